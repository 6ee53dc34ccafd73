//! Rights at the VF that an operator leaves a guest.

use std::fmt::Debug;
use std::sync::Arc;

use hca::ServiceLevels;
use wire::{Gid, Lid, MadPacket, PKey};

use crate::cluster::Membership;

/// Protection of the daemon's own memory at the VF, through which the VF could be given any command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// The daemon: no key, no queue and no work request of the guest can name that memory. The guest
    /// cannot change keys by work requests then.
    #[default]
    Strict,
    /// The VF alone, which keeps its guest from what is not the VF's. The guest can change keys by work
    /// requests.
    Sriov,
}

/// Destinations of a guest's subnet management packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Smp {
    /// Nowhere.
    Deny,
    /// To its own port's agent, by a command, which may not set anything.
    #[default]
    OwnPort,
    /// As far as the VF behind lets them.
    Fabric,
}

/// Sender of a management packet.
#[derive(Debug, Clone, Copy)]
pub struct Sender<'a> {
    /// The LID of the guest's port in the subnet.
    pub lid: Lid,
    /// Its LID in the guest's cluster, where the guest is in one.
    pub virtual_lid: Option<Lid>,
    /// Its GID.
    pub gid: Gid,
    /// The guest's P_Key table from index 0.
    pub pkeys: &'a [PKey],
}

/// Says which management packets a guest's queue pair 1 may send.
pub trait ManagementFilter: Debug + Send + Sync {
    /// Whether a packet may be sent; what its guest has no claim to is taken out of it. The packet has the LIDs of
    /// the subnet. Its source LID is not its port's where the packet is for another port with the same LID.
    fn passes(&self, packet: &mut MadPacket, from: &Sender<'_>) -> bool;
}

/// Rights of a guest, apart from the limits of the VF behind.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Memory that it may name.
    pub isolation: Isolation,
    /// Destinations of its subnet management packets.
    pub smp: Smp,
    /// Service levels of its connections and datagrams.
    pub service_levels: ServiceLevels,
    /// The cluster that it is in.
    pub membership: Option<Membership>,
    /// Its P_Key table from index 0, with the bit of full membership: of these it has what the VF behind has.
    /// `None`: it has the table of the VF behind.
    pub pkeys: Option<Vec<u16>>,
    /// Filter of packets from its queue pair 1. `None`: all pass.
    pub management: Option<Arc<dyn ManagementFilter>>,
}

impl Policy {
    /// Whether there is something to look at in datagrams that are no management packets: they say in work requests
    /// where they go.
    #[must_use]
    pub const fn reads_datagrams(&self) -> bool {
        self.membership.is_some() || self.service_levels.allowed != u16::MAX
    }
}
