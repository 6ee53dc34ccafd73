//! The addresses that each VF sees: the part of the clusters that paths and ports need.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Nodes, PortRef};
use hca::{Foreign, PortView, ServiceLevels, VfId};
use wire::{ExtendedLid, Lid, PKey, PortState, Sl};

use super::Cluster;
use super::lid_map::LidTables;
use super::tenancy::Tenancy;
use super::translation::{Direction, Translator};
use crate::model::{Model, Vf};
use crate::sharing::Sharing;

/// The cluster, service levels and P_Keys that a VM sees.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Member {
    /// Its cluster, and its LID there.
    pub(super) cluster: Option<(usize, Lid)>,
    pub(super) service_levels: ServiceLevels,
    /// Its service level is the one by which it reaches the manager, whatever its guest says.
    pub(super) follows_manager: bool,
    /// P_Keys that it sees otherwise: that of the port, and what it sees.
    pub(super) pkeys: Vec<(PKey, PKey)>,
    /// Partitions that stand for others of its cluster in full mode, and for nothing else.
    share: Vec<u16>,
}

impl Member {
    /// The VM of a VF, in one of the model's clusters if in any.
    pub(super) fn new(vf: &Vf, model: &Model) -> Self {
        let cluster = { vf.cluster }.and_then(|(cluster, _)| model.clusters.get(cluster));
        let share = cluster.map_or(&[][..], |cluster| &cluster.full_mode.pkeys);
        let pkeys = vf.pkeys.iter().zip(&vf.virtual_pkeys);
        Self {
            cluster: vf.cluster,
            service_levels: vf.service_levels,
            follows_manager: model.manager.cluster_lanes
                && vf.cluster.is_some()
                && vf.service_levels == ServiceLevels::default(),
            pkeys: pkeys.map(|(&port, &seen)| (port, seen)).collect(),
            share: share.iter().map(|key| key.partition()).collect(),
        }
    }
}

impl Member {
    /// A P_Key of the port as it is outside of full mode.
    fn without_share(&self, key: PKey) -> PKey {
        if self.share.contains(&key.partition()) {
            PKey::INVALID
        } else {
            key
        }
    }
}

/// The LIDs that one cluster's VMs see.
#[derive(Debug, Clone)]
struct Lids {
    tables: Arc<LidTables>,
    extended: Arc<HashMap<Lid, (VfId, ExtendedLid)>>,
    tenancy: Option<Arc<Tenancy>>,
}

impl Lids {
    fn of(cluster: &Cluster) -> Self {
        Self {
            tables: Arc::clone(cluster.map.tables()),
            extended: Arc::clone(&cluster.extended),
            tenancy: cluster.tenancy.clone(),
        }
    }
}

/// The addresses that all VFs see. A copy shares its tables.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    clusters: Vec<Lids>,
    /// By VF: who is there now.
    members: Vec<Arc<Member>>,
    /// Changes of clusters' own networks, each of which has outdated all paths.
    changes: u64,
}

impl Addresses {
    /// The addresses in clusters without members, where nobody is at any VF.
    pub(super) fn new(clusters: &[Cluster], vfs: usize) -> Self {
        Self {
            clusters: clusters.iter().map(Lids::of).collect(),
            members: vec![Arc::default(); vfs],
            changes: 0,
        }
    }

    /// A cluster's LIDs are others now.
    pub(super) fn enter_cluster(&mut self, index: usize, cluster: &Cluster) {
        if let Some(lids) = self.clusters.get_mut(index) {
            *lids = Lids::of(cluster);
        }
    }

    /// A cluster's own network is another one now.
    pub(super) fn enter_tenancy(&mut self, index: usize, cluster: &Cluster) {
        self.changes += 1;
        self.enter_cluster(index, cluster);
    }

    /// The generation of the subnet apart from changes of clusters' own networks.
    pub(crate) fn generation(&self, nodes: &Nodes) -> u64 {
        nodes.generation().wrapping_sub(self.changes)
    }

    /// At a VF is somebody else now.
    pub(super) fn enter_member(&mut self, vf: VfId, member: Arc<Member>) {
        if let Some(place) = self.members.get_mut(usize::from(vf.0)) {
            *place = member;
        }
    }

    /// The index of a VF's cluster, if it is in one.
    pub(crate) fn cluster_of(&self, vf: VfId) -> Option<usize> {
        let (cluster, _) = self.member(vf)?.cluster?;
        Some(cluster)
    }

    /// The network of a VF's cluster, in full mode.
    pub(crate) fn tenancy(&self, vf: VfId) -> Option<&Tenancy> {
        let lids = self.clusters.get(self.cluster_of(vf)?)?;
        lids.tenancy.as_deref()
    }

    /// The LID of a VF in this cluster; `None` where it is not in it.
    pub(crate) fn lid_in(&self, vf: VfId, cluster: usize) -> Option<Lid> {
        let (of, lid) = self.member(vf)?.cluster?;
        (of == cluster).then_some(lid)
    }

    /// The LID by which a cluster knows the subnet manager, which is at `physical`.
    pub(crate) fn manager(&self, cluster: usize, physical: Lid) -> Lid {
        let cluster = self.clusters.get(cluster);
        let lid = cluster.and_then(|cluster| cluster.tables.seen(physical));
        lid.unwrap_or_default()
    }

    /// The LID map of a VF, if it is in a cluster.
    fn map(&self, vf: VfId) -> Option<&LidTables> {
        let lids = self.clusters.get(self.cluster_of(vf)?)?;
        Some(&lids.tables)
    }

    pub(super) fn member(&self, vf: VfId) -> Option<&Arc<Member>> {
        self.members.get(usize::from(vf.0))
    }

    /// The physical LID that a VF means by `lid`, or none.
    pub(crate) fn physical(&self, vf: VfId, lid: Lid) -> Option<Lid> {
        match self.map(vf) {
            Some(map) => map.physical(lid),
            None => Some(lid),
        }
    }

    /// The physical LID that a VF means by `lid` as the destination of data. It may have 18 bits.
    pub(crate) fn destination(&self, vf: VfId, lid: Lid) -> Option<ExtendedLid> {
        let physical = self.physical(vf, lid).map(ExtendedLid::from);
        physical.or_else(|| {
            let (cluster, _) = self.member(vf)?.cluster?;
            let (_, lid) = self.clusters.get(cluster)?.extended.get(&lid)?;
            Some(*lid)
        })
    }

    /// The LID by which a VF knows the physical `lid`, or none.
    pub(crate) fn seen(&self, vf: VfId, lid: Lid) -> Option<Lid> {
        match self.map(vf) {
            Some(map) => map.seen(lid),
            None => Some(lid),
        }
    }

    /// Whether two VFs may hear of each other: both in the same cluster, or neither in any.
    pub(crate) fn together(&self, a: VfId, b: VfId) -> bool {
        let cluster = |vf| Some(self.member(vf)?.cluster?.0);
        cluster(a) == cluster(b)
    }

    /// Whether a VF sees other LIDs than those there are.
    pub(crate) fn has_own_lids(&self, vf: VfId) -> bool {
        self.map(vf).is_some()
    }

    /// The LID that a VF sees as its own, where it has one in the subnet.
    pub(crate) fn own_lid(&self, vf: VfId, physical: Lid) -> Lid {
        if let Some(tenancy) = self.tenancy(vf) {
            return tenancy.info(vf).unwrap_or_default().lid;
        }
        match self.member(vf).and_then(|member| member.cluster) {
            Some((_, lid)) if physical != Lid::NONE => lid,
            Some((cluster, lid)) if self.has_extended(vf, cluster, lid) => lid,
            Some(_) => Lid::NONE,
            None => physical,
        }
    }

    /// Whether a VF has a LID of 18 bits behind the one that it sees.
    fn has_extended(&self, vf: VfId, cluster: usize, seen: Lid) -> bool {
        let extended = self.clusters.get(cluster).map(|of| &of.extended);
        extended.is_some_and(|extended| extended.get(&seen).is_some_and(|(at, _)| *at == vf))
    }

    /// The same if no cluster were in full mode.
    pub(crate) fn as_managed(&self) -> Self {
        let mut managed = self.clone();
        for lids in &mut managed.clusters {
            lids.tenancy = None;
        }
        managed
    }

    /// A VF's port as the engine is to know it.
    pub(crate) fn view(
        &self,
        vf: VfId,
        nodes: &Nodes,
        sharing: &Sharing,
        port: PortRef,
    ) -> PortView {
        let info = nodes.port_info(port).unwrap_or_default();
        let mut view = PortView {
            lid: info.lid,
            lmc: info.lmc,
            active: info.port_state == PortState::Active,
            pkeys: nodes.pkeys(port).unwrap_or_default().to_vec(),
            gids: nodes.gids(port).collect(),
            ..PortView::default()
        };
        sharing.adapt(vf, nodes, &mut view);
        self.adapt(vf, &mut view);
        // In full mode levels are the cluster's own.
        let follows = self.follows_manager(vf) && self.tenancy(vf).is_none();
        if follows && info.master_sm_sl != Sl::default() {
            view.service_levels = ServiceLevels {
                allowed: 1 << info.master_sm_sl.value(),
                foreign: Foreign::Rewritten(info.master_sm_sl),
            };
        }
        view
    }

    /// Whether a VF has its cluster's service levels.
    pub(crate) fn follows_manager(&self, vf: VfId) -> bool {
        self.member(vf).is_some_and(|member| member.follows_manager)
    }

    /// Makes a port as it is what it is to the VF's guest.
    fn adapt(&self, vf: VfId, view: &mut PortView) {
        let Some(member) = self.member(vf) else {
            return;
        };
        view.cluster = member.cluster.map(|(cluster, _)| cluster as u16);
        view.service_levels = member.service_levels;
        if let Some(tenancy) = self.tenancy(vf) {
            let info = tenancy.info(vf).unwrap_or_default();
            (view.lid, view.lmc) = (info.lid, info.lmc);
            view.active &= info.port_state == PortState::Active;
            view.pkeys = tenancy.wire_table(vf);
            view.shown_pkeys = tenancy.shown_pkeys(vf);
            return;
        }
        for key in &mut view.pkeys {
            *key = member.without_share(*key);
        }
        if member.cluster.is_some() {
            view.lid = self.own_lid(vf, view.lid);
            view.lmc = 0;
        }
        view.shown_pkeys.clone_from(&member.pkeys);
    }

    /// The P_Key table that a VF sees where the port has `physical`.
    pub(crate) fn pkeys(&self, vf: VfId, physical: &[PKey]) -> Vec<PKey> {
        if let Some(tenancy) = self.tenancy(vf) {
            return tenancy.table(vf);
        }
        let mut table = physical.to_vec();
        if let Some(member) = self.member(vf) {
            let translator = Translator {
                cluster: None,
                pkeys: &member.pkeys,
                direction: Direction::ToGuest,
            };
            for entry in &mut table {
                *entry = translator.pkey(member.without_share(*entry));
            }
        }
        table
    }
}
