//! Virtual clusters: VMs that see LIDs, and P_Keys, of their own.
//!
//! Each cluster has a LID space of its own, in which the configuration numbers its VMs. Guests meet LIDs at four
//! places: when a connection is set up, when a datagram is sent, when one is received, and when they ask about their
//! port; and inside management packets. At all of them stands the cluster's [`LidMap`]. Packets on the wire have
//! physical LIDs only, and the subnet manager knows nothing of clusters.
//!
//! All VMs of a cluster share one map, since they see the same LIDs. That makes two of the four
//! places one: the LID a datagram's receiver is to see is the one its sender has.

mod addresses;
mod attributes;
mod groups;
mod lid_map;
mod members;
mod tables;
mod tenancy;
#[cfg(test)]
mod tests;
mod translation;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use fabric::{Nodes, PortRef};
use hca::VfId;
use wire::attribute::PortInfo;
use wire::mad::{Class, Method};
use wire::sa::{self, McMemberRecord, Record};
use wire::{ExtendedLid, Guid, Lid, MadPacket};

use crate::filter::Reason;
use crate::model::Model;
use crate::sharing::Sharing;
pub(crate) use addresses::Addresses;
use addresses::Member;
pub use groups::{Change, Groups};
pub use lid_map::LidMap;
pub use members::Vms;
pub use tables::TABLE_BYTES_PER_GUEST;
pub(crate) use tables::Tables;
pub(crate) use tenancy::{PortLevels, Tenancy, TenantPort};
pub use translation::{Direction, Translator};

/// One cluster: what its VMs know.
#[derive(Debug, Default)]
pub struct Cluster {
    /// The LID by which its VMs know the subnet manager.
    pub sm_lid: Lid,
    /// The physical LIDs behind theirs.
    pub map: LidMap,
    /// LIDs of 18 bits behind those that VMs see, and at which VF each is. They are a matter of
    /// data alone: no management packet has room for them.
    pub extended: Arc<HashMap<Lid, (VfId, ExtendedLid)>>,
    /// Its VMs.
    pub vms: Vms,
    /// Their multicast groups.
    pub groups: Groups,
    /// Its network, in full mode.
    tenancy: Option<Arc<Tenancy>>,
}

/// All clusters and who is in which.
#[derive(Debug)]
pub(crate) struct Clusters {
    clusters: Vec<Cluster>,
    /// By the GUID of the VM, which moves with it.
    configured: HashMap<Guid, Arc<Member>>,
    addresses: Arc<Addresses>,
    /// By VF: the pairs it holds in its cluster's map.
    held: Vec<Vec<(usize, Lid, Lid)>>,
}

impl Deref for Clusters {
    type Target = Addresses;

    fn deref(&self) -> &Addresses {
        &self.addresses
    }
}

impl Clusters {
    pub(crate) fn new(model: &Model) -> Self {
        let guids = model.vfs().map(|(_, vf)| vf.guid);
        let physical = model.hypervisors.iter().map(|it| it.physical_guid);
        let known: Arc<HashSet<Guid>> = Arc::new(guids.chain(physical).collect());
        let clusters = model.clusters.iter().enumerate().map(|(index, cluster)| {
            let vms = model.vfs().filter_map(|(_, vf)| match vf.cluster {
                Some((of, lid)) if of == index => Some((vf.guid, lid)),
                _ => None,
            });
            Cluster {
                sm_lid: cluster.sm_lid,
                vms: Vms::new(vms, Arc::clone(&known)),
                ..Cluster::default()
            }
        });
        let clusters: Vec<Cluster> = clusters.collect();
        let members = model.vfs();
        let members = members.map(|(_, vf)| (vf.guid, Arc::new(Member::new(vf, model))));
        let vfs = model.vfs().count();
        Self {
            addresses: Arc::new(Addresses::new(&clusters, vfs)),
            clusters,
            configured: members.collect(),
            held: vec![Vec::new(); vfs],
        }
    }

    /// The addresses that VFs see now.
    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// Looks who is at a VF's port and which LIDs it has; whether that is another than before, after
    /// which no path found before holds.
    pub(crate) fn refresh(
        &mut self,
        vf: VfId,
        nodes: &Nodes,
        sharing: &Sharing,
        port: PortRef,
    ) -> bool {
        let guid = sharing.guid_at(vf, nodes, port);
        let (own, _) = sharing.address(vf, nodes, port);
        let index = usize::from(vf.0);
        let (Some(member), Some(held), Some(info)) = (
            self.addresses.member(vf).cloned(),
            self.held.get_mut(index),
            nodes.port_info(port),
        ) else {
            return false;
        };
        let found = guid
            .and_then(|guid| self.configured.get(&guid))
            .cloned()
            .unwrap_or_default();
        let pairs: Vec<(usize, Lid, Lid)> = match found.cluster {
            Some((cluster, lid)) => {
                let of = &self.clusters[cluster];
                let pairs = match &of.tenancy {
                    Some(tenancy) => range(&tenancy.info(vf).unwrap_or_default(), own),
                    None => vec![(lid, own), (of.sm_lid, info.master_sm_lid)],
                };
                { pairs.into_iter() }
                    // Before a port has a LID there is nothing to stand for.
                    .filter(|(_, physical)| physical.is_unicast())
                    .map(|(seen, physical)| (cluster, seen, physical))
                    .collect()
            }
            None => Vec::new(),
        };
        let extended = found.cluster.zip(nodes.virtual_lid(port));
        let before = member.cluster.and_then(|(cluster, seen)| {
            let extended = self.clusters[cluster].extended.get(&seen);
            extended.filter(|(at, _)| *at == vf).map(|(_, lid)| *lid)
        });
        if found == member && pairs == *held && before == extended.map(|(_, lid)| lid) {
            return false;
        }
        if let (Some(_), Some((cluster, seen))) = (before, member.cluster) {
            Arc::make_mut(&mut self.clusters[cluster].extended).remove(&seen);
        }
        if let Some(((cluster, seen), lid)) = extended {
            Arc::make_mut(&mut self.clusters[cluster].extended).insert(seen, (vf, lid));
        }
        for (cluster, seen, physical) in std::mem::replace(held, pairs) {
            self.clusters[cluster].map.release(seen, physical);
        }
        for &(cluster, seen, physical) in held.iter() {
            self.clusters[cluster].map.hold(seen, physical);
        }
        let addresses = Arc::make_mut(&mut self.addresses);
        for (index, _) in { [member.cluster, found.cluster].into_iter() }.flatten() {
            addresses.enter_cluster(index, &self.clusters[index]);
        }
        addresses.enter_member(vf, found);
        true
    }

    /// A cluster's network is this one from now on, in full mode; `None`: it has none of its own.
    pub(crate) fn set_tenancy(&mut self, cluster: usize, tenancy: Option<Arc<Tenancy>>) {
        if let Some(of) = self.clusters.get_mut(cluster) {
            of.tenancy = tenancy;
            Arc::make_mut(&mut self.addresses).enter_tenancy(cluster, of);
        }
    }

    /// The LID by which a VF knows the subnet manager at `physical`, unless its cluster is in full mode.
    pub(crate) fn managers_lid(&self, vf: VfId, physical: Lid) -> Lid {
        match self.cluster(vf).filter(|_| physical.is_unicast()) {
            Some(cluster) => cluster.sm_lid,
            None => physical,
        }
    }

    /// The cluster of a VF, if it is in one.
    fn cluster(&self, vf: VfId) -> Option<&Cluster> {
        self.clusters.get(self.cluster_of(vf)?)
    }

    /// Makes a management packet of a VF's guest one of the wire, or the other way round. The P_Key
    /// in its header stays that of the wire: the engine knows both.
    ///
    /// # Errors
    /// Why it must not pass: it is to or from nobody that this VF knows, or nobody knows where
    /// addresses stand in it.
    pub(crate) fn translate(
        &self,
        vf: VfId,
        direction: Direction,
        packet: &mut MadPacket,
    ) -> Result<(), Reason> {
        if let Some(tenancy) = self.tenancy(vf) {
            return self.translate_headers(vf, tenancy, direction, packet);
        }
        let Some(translator) = self.translator(vf, direction) else {
            return Ok(());
        };
        let lids = match direction {
            Direction::ToWire => (
                self.physical(vf, packet.slid),
                self.physical(vf, packet.dlid),
            ),
            Direction::ToGuest => (self.seen(vf, packet.slid), self.seen(vf, packet.dlid)),
        };
        let (Some(slid), Some(dlid)) = lids else {
            return Err(Reason::Cluster);
        };
        let peer = match direction {
            Direction::ToWire => packet.dlid,
            Direction::ToGuest => slid,
        };
        // A sender that is none of the VMs may write other LIDs than theirs.
        let is_vm = |cluster: &Cluster| cluster.vms.guid(peer).is_some();
        let passes =
            !attributes::is_opaque(packet.header().class()) || translator.cluster.is_none_or(is_vm);
        if !passes || !translator.mad(&mut packet.mad) {
            return Err(Reason::Attribute);
        }
        (packet.slid, packet.dlid) = (slid, dlid);
        Ok(())
    }

    /// Both ends of a packet in a cluster in full mode see the same addresses, so that what is inside stays.
    fn translate_headers(
        &self,
        vf: VfId,
        tenancy: &Tenancy,
        direction: Direction,
        packet: &mut MadPacket,
    ) -> Result<(), Reason> {
        let look_up = |lid: Lid| match direction {
            Direction::ToWire => self.physical(vf, lid),
            Direction::ToGuest => self.seen(vf, lid),
        };
        let passes = match direction {
            Direction::ToWire => {
                let way = tenancy.path_mtu(vf, packet.dlid, packet.sl, packet.pkey);
                packet.dlid.is_unicast() && way.is_some()
            }
            Direction::ToGuest => packet.slid.is_unicast() && packet.dlid.is_unicast(),
        };
        let lids = look_up(packet.slid).zip(look_up(packet.dlid));
        (packet.slid, packet.dlid) = lids.filter(|_| passes).ok_or(Reason::Cluster)?;
        packet.sl = match direction {
            Direction::ToWire => tenancy.wire_level(vf, packet.sl),
            Direction::ToGuest => tenancy.seen_level(vf, packet.sl),
        };
        Ok(())
    }

    /// Whether it is known of a packet to a VF's guest where addresses stand in it.
    pub(crate) fn knows(&self, vf: VfId, packet: &MadPacket) -> bool {
        let translator = self.translator(vf, Direction::ToGuest);
        translator.is_none_or(|translator| translator.knows(&packet.mad))
    }

    /// Makes a packet for a VF's guest, which [`Clusters::translate`] made of one of the wire, that
    /// one again.
    pub(crate) fn undo(&self, vf: VfId, packet: &mut MadPacket) {
        // An address that is known one way is known the other way.
        let _ = self.translate(vf, Direction::ToWire, packet);
    }

    /// Translates a management datagram that never leaves the VF. False: nobody knows where addresses
    /// stand in it.
    #[must_use]
    pub(crate) fn translate_local(
        &self,
        vf: VfId,
        direction: Direction,
        mad: &mut [u8; 256],
    ) -> bool {
        let translator = self.translator(vf, direction);
        translator.is_none_or(|translator| translator.mad(mad))
    }

    /// Whether a packet for a VF's guest reports an event that is none of its cluster's.
    pub(crate) fn hides(&self, vf: VfId, packet: &MadPacket) -> bool {
        let header = packet.header();
        let is_report = header.class() == Class::SUBN_ADM && header.method() == Method::REPORT;
        let translator = is_report.then(|| self.translator(vf, Direction::ToGuest));
        translator
            .flatten()
            .is_some_and(|translator| !translator.concerns(&packet.mad))
    }

    /// Takes note of a packet, as the wire has it, from or to a VF's guest: it may be about a group
    /// that its VM joins or leaves.
    pub(crate) fn note(&mut self, vf: VfId, packet: &MadPacket) {
        let header = packet.header();
        let is_join = header.attribute() == sa::id::MC_MEMBER;
        if header.class() != Class::SUBN_ADM || !is_join || self.tenancy(vf).is_some() {
            return;
        }
        let Some((cluster, lid)) = self.member(vf).and_then(|member| member.cluster) else {
            return;
        };
        let Some(cluster) = self.clusters.get_mut(cluster) else {
            return;
        };
        let (Some(vm), Ok(record)) = (
            cluster.vms.guid(lid),
            McMemberRecord::read(&packet.mad[sa::DATA]),
        ) else {
            return;
        };
        let transaction = header.transaction();
        match header.method() {
            method @ (Method::SET | Method::DELETE) => {
                let change = Change {
                    transaction,
                    group: record.mgid,
                    states: record.join_state.0,
                    joins: method == Method::SET,
                };
                cluster.groups.ask(vm, change);
            }
            Method::GET_RESPONSE | Method::DELETE_RESPONSE => {
                let done = header.status().is_ok();
                cluster.groups.answer(vm, transaction, record.mgid, done);
            }
            _ => {}
        }
    }

    fn translator(&self, vf: VfId, direction: Direction) -> Option<Translator<'_>> {
        let member = self.member(vf)?;
        if self.tenancy(vf).is_some() {
            return None;
        }
        let cluster = self.cluster(vf);
        (cluster.is_some() || !member.pkeys.is_empty()).then_some(Translator {
            cluster,
            pkeys: &member.pkeys,
            direction,
        })
    }
}

/// The pairs of LIDs of a port in full mode and in the subnet, where it may have fewer. The base LIDs come last, so that
/// each stands for the other.
fn range(port: &PortInfo, physical: Lid) -> Vec<(Lid, Lid)> {
    if !port.lid.is_unicast() {
        return Vec::new();
    }
    let all = (0..1_u16 << port.lmc).rev();
    all.map(|bits| (Lid::new(port.lid.value().saturating_add(bits)), physical))
        .filter(|(seen, _)| seen.is_unicast())
        .collect()
}
