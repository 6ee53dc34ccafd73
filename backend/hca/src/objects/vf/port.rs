//! The quota of a function, and its port.

use wire::{Gid, Lid, PKey};

use crate::objects::vf::service_level::ServiceLevels;

/// Most objects of each kind that one function may have, as powers of two, and what all of them
/// together may take of the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Queue pairs.
    pub log_qps: u8,
    /// Completion queues.
    pub log_cqs: u8,
    /// Shared receive queues.
    pub log_srqs: u8,
    /// Memory keys, and signature values under way.
    pub log_keys: u8,
    /// Protection domains, and XRC domains.
    pub log_pds: u8,
    /// Multicast attachments.
    pub log_multicast: u8,
    /// Bytes of the host's memory that all objects and their lists of pages may take.
    pub memory: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            log_qps: 17,
            log_cqs: 16,
            log_srqs: 16,
            log_keys: 20,
            log_pds: 16,
            log_multicast: 13,
            memory: 40 << 20,
        }
    }
}

/// The port of a function, as far as the engine needs it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortView {
    /// Base LID.
    pub lid: Lid,
    /// LID mask control: the port also answers to the LIDs that differ in the
    /// low `lmc` bits.
    pub lmc: u8,
    /// Whether the port is Active: nothing but subnet management passes otherwise.
    pub active: bool,
    /// P_Key table.
    pub pkeys: Vec<PKey>,
    /// GID table. Unused entries have a GUID of 0.
    pub gids: Vec<Gid>,
    /// P_Keys that the guest sees under another value: the table's P_Key, and what the guest sees. It
    /// sees all others as they are.
    pub shown_pkeys: Vec<(PKey, PKey)>,
    /// The service levels it may use.
    pub service_levels: ServiceLevels,
    /// The virtual cluster it is in, if any. Of functions at one port those in a cluster have LIDs of
    /// their own, and those of different clusters, or of one and of none, hear nothing of each other.
    pub cluster: Option<u16>,
}

impl PortView {
    /// Whether a packet to `lid` is for this port.
    #[inline]
    #[must_use]
    pub fn owns(&self, lid: Lid) -> bool {
        u16::from(lid) >> self.lmc == u16::from(self.lid) >> self.lmc
    }

    /// Whether a GID is this port's.
    #[inline]
    #[must_use]
    pub fn has_gid(&self, gid: Gid) -> bool {
        !gid.guid().is_none() && self.gids.contains(&gid)
    }

    /// The low bits by which a LID of this port differs from the base LID.
    #[inline]
    #[must_use]
    pub fn path_bits(&self, lid: Lid) -> u8 {
        (u16::from(lid) & self.path_mask()) as u8
    }

    /// The source LID that path bits of a request make; those that the LMC leaves no room for do not
    /// count.
    #[inline]
    #[must_use]
    pub fn source(&self, path_bits: u8) -> Lid {
        Lid::new(u16::from(self.lid) | u16::from(path_bits) & self.path_mask())
    }

    fn path_mask(&self) -> u16 {
        (1 << self.lmc) - 1
    }

    /// P_Key at `index`, or an invalid one.
    #[inline]
    #[must_use]
    pub fn pkey(&self, index: u16) -> PKey {
        self.pkeys
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }

    /// The P_Key that the guest sees in place of one that came in.
    #[inline]
    #[must_use]
    pub fn shown(&self, pkey: PKey) -> PKey {
        const MEMBERSHIP: u16 = 0x8000;
        let mut pairs = self.shown_pkeys.iter();
        let found = pairs.find(|(own, _)| own.partition() == pkey.partition());
        found.map_or(pkey, |(_, shown)| {
            PKey::new(shown.partition() | pkey.value() & MEMBERSHIP)
        })
    }
}
