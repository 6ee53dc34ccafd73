//! Clusters in full mode: the packets of their managers, and the effect of what these set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hca::{Foreign, VfId};
use subnet_manager::SubnetManager;
use subnet_manager::routing::ClusterTables;
use tracing::warn;
use wire::mad::{Class, Mad, Method};
use wire::{Lid, MadPacket, PKey, Sl};

use super::VSwitch;
use super::guest::pass_out;
use super::snapshot::{Snapshot, with_view_input};
use crate::core::cluster::{PortLevels, Tenancy};
use crate::core::hosts::Sent;
use crate::core::subnets::{ClusterStatus, Managers};
use crate::core::tenant::{News, Turn};

/// The clusters whose VMs may manage them.
pub(super) struct Tenants<'a>(pub(super) &'a VSwitch);

/// The service levels that a cluster has in the subnet, one for each part of its share.
fn levels_of<'a>(managers: &'a Managers, cluster: &str) -> &'a [Sl] {
    // Clusters are of the one subnet there is.
    let manager = managers.first().and_then(Option::as_ref);
    let mut all = manager.into_iter().flat_map(|it| it.cluster_levels().all());
    let of = all.find(|of| of.name == cluster);
    of.map_or(&[], |of| match &of.own_levels[..] {
        [] => &of.levels,
        own => own,
    })
}

/// Has a cluster divide its share by these parts; false where it does so already.
fn divide(manager: &mut SubnetManager, cluster: &str, parts: &[u16]) -> bool {
    manager.change_cluster_shares(|shares| {
        let mut shares = shares.iter_mut();
        let found = shares.find(|of| of.name == cluster && of.own_levels != parts);
        if let Some(of) = found {
            parts.clone_into(&mut of.own_levels);
            return true;
        }
        false
    })
}

/// Effect of a cluster's manager on others.
struct Effect {
    cluster: usize,
    tenancy: Option<Tenancy>,
    turn: Option<Turn>,
    news: Vec<News>,
}

impl Tenants<'_> {
    /// Takes a subnet management packet of a guest whose cluster is in full mode, or goes to it by this packet; false
    /// where it is managed.
    pub(super) fn manage(&self, cluster: usize, vf: VfId, packet: &MadPacket) -> bool {
        if packet.header().method() == Method::SET {
            self.enter(cluster);
        }
        let now = self.0.now();
        let Some(mut tenant) = self
            .0
            .views
            .tenant(cluster)
            .filter(|tenant| tenant.is_full())
        else {
            return false;
        };
        let sent = tenant.send(vf, packet, now);
        drop(tenant);
        if let Err(reason) = sent {
            self.0.filter.refuse(now, vf, reason, packet);
        }
        true
    }

    /// The answer of its own port's agent to a guest whose cluster is in full mode, or goes to it by this request.
    pub(super) fn manage_port(
        &self,
        cluster: usize,
        vf: VfId,
        mad: &[u8; 256],
    ) -> Option<[u8; 256]> {
        let sets = Mad::new_checked(&mad[..]).ok()?.method() == Method::SET;
        if sets {
            self.enter(cluster);
        }
        let now = self.0.now();
        let answer = self.0.views.tenant(cluster)?.ask_local(vf, mad, now)?;
        if sets {
            self.0.wake();
        }
        if let Some(reason) = answer.refused {
            let packet = MadPacket::smp(Lid::NONE, Lid::NONE, *mad);
            self.0.filter.refuse(now, vf, reason, &packet);
        }
        Some(answer.mad)
    }

    /// Passes a question for counters on to a switch of the cluster's own network; false where it is none.
    pub(super) fn ask_switch(&self, vf: VfId, packet: &MadPacket) -> bool {
        let header = packet.header();
        let asks = header.class() == Class::PERFORMANCE && !header.method().is_response();
        let snapshot = self.0.snapshot();
        let addresses = &snapshot.addresses;
        let (Some(cluster), Some(tenancy)) = (addresses.cluster_of(vf), addresses.tenancy(vf))
        else {
            return false;
        };
        // VMs answer by themselves.
        if !asks || addresses.physical(vf, packet.dlid).is_some() {
            return false;
        }
        drop(self.0.up_to_date());
        let question = MadPacket {
            pkey: tenancy.seen_key(vf, packet.pkey),
            ..packet.clone()
        };
        if let Some(mut tenant) = self.0.views.tenant(cluster) {
            tenant.ask_switch(vf, question, packet.pkey, self.0.now());
        }
        true
    }

    /// A driver says whether a subnet manager is at its VF, where it may manage its cluster; false where it may not.
    pub(super) fn announce(&self, vf: VfId, is: bool) -> bool {
        let Some(cluster) = self.0.snapshot().addresses.cluster_of(vf) else {
            return false;
        };
        let Some(mut tenant) = self.0.views.tenant(cluster) else {
            return false;
        };
        tenant.announce(vf, is, self.0.now());
        drop(tenant);
        if is {
            self.enter(cluster);
        }
        self.0.wake();
        true
    }

    /// A VF was reset, and no driver says any more that a subnet manager is there.
    pub(super) fn reset(&self, vf: VfId) {
        if self.may_manage(vf) && !self.0.read().hosts.manages_as_vm(vf) {
            self.announce(vf, false);
        }
    }

    /// Whether the guest at a VF may manage its cluster.
    pub(super) fn may_manage(&self, vf: VfId) -> bool {
        let cluster = self.0.snapshot().addresses.cluster_of(vf);
        cluster.is_some_and(|cluster| self.0.views.tenant(cluster).is_some())
    }

    fn enter(&self, cluster: usize) {
        let managed = { self.0.views.tenant(cluster) }.is_some_and(|tenant| !tenant.is_full());
        if managed {
            with_view_input(self.0, |input| {
                self.0.views.renew_writable(cluster, input, true)
            });
        }
    }

    /// Has what clusters' managers have set take effect, and tells VMs what is new; when there is something to do again.
    pub(super) fn tend(&self, managers: &mut Managers) -> Option<Duration> {
        let now = self.0.now();
        let mut pace = self.0.views.tenant_changes.lock();
        let may_change = now >= pace.next();
        let clusters = 0..self.0.views.len();
        let effects = clusters.clone().filter_map(|cluster| {
            self.route(cluster, managers);
            self.tend_one(cluster, managers, may_change)
        });
        let effects: Vec<Effect> = effects.collect();
        if effects.iter().any(|effect| effect.tenancy.is_some()) {
            pace.take(now);
        }
        if !effects.is_empty() {
            // One change, after which paths are found anew once.
            let mut core = self.0.change();
            for effect in effects {
                if effect.tenancy.is_some() || effect.turn.is_some() {
                    core.set_tenancy(effect.cluster, effect.tenancy.map(Arc::new), effect.turn);
                }
                for news in effect.news {
                    core.tell_tenant(news);
                }
            }
        }
        let change_from = pace.next();
        let deadlines = clusters.filter_map(|cluster| {
            let tenant = self.0.views.tenant(cluster)?;
            tenant.deadline(change_from)
        });
        deadlines.min()
    }

    /// Has the subnet's manager route the cluster's VMs as the cluster's own does, where it is time.
    fn route(&self, cluster: usize, managers: &mut Managers) {
        let Some(mut tenant) = self.0.views.tenant(cluster) else {
            return;
        };
        let tables = tenant.take_routes(self.0.now(), |vf| self.0.physical_lid(vf));
        let name = tenant.name().to_owned();
        // Clusters are of the one subnet there is.
        let Some(manager) = managers.first_mut().and_then(Option::as_mut) else {
            return;
        };
        if tenant.is_full() && divide(manager, &name, tenant.parts()) {
            self.0.wake();
        }
        let acting = manager.clusters().get(&name);
        tenant.refuse_entries(acting.and_then(|(_, state)| state.refusal.as_ref()));
        let Some(tables) = tables else { return };
        if acting.is_some_and(|(now, _)| *now == tables) {
            tenant.judged(None);
            return;
        }
        drop(tenant);
        let refused = manager.set_cluster_tables(&name, tables.clone()).err();
        if let Some(refusal) = &refused {
            warn!(
                cluster = name,
                "its forwarding tables do not act: {refusal}"
            );
        }
        if let Some(mut tenant) = self.0.views.tenant(cluster) {
            tenant.judged(refused.map(|refusal| (tables, refusal)));
        }
        self.0.wake();
    }

    fn tend_one(
        &self,
        cluster: usize,
        managers: &mut Managers,
        may_change: bool,
    ) -> Option<Effect> {
        let mut tenant = self.0.views.tenant(cluster)?;
        let name = tenant.name().to_owned();
        let now = self.0.now();
        tenant.advance(now);
        let turn = tenant.take_turn();
        let (moved, is_full) = (tenant.take_moved(), tenant.is_full());
        let news = tenant.take_news();
        tenant.set_levels(levels_of(managers, &name));
        let provider = |vf| (self.first_pkey(vf), self.levels(vf));
        let tenancy = if may_change {
            tenant.take_tenancy(now, provider)
        } else {
            None
        };
        drop(tenant);
        if turn == Some(Turn::Managed) {
            self.0.views.forget(cluster);
            if let Some(manager) = managers.first_mut().and_then(Option::as_mut) {
                let cleared = manager.set_cluster_tables(&name, ClusterTables::default());
                debug_assert!(cleared.is_ok(), "nothing is refused");
                divide(manager, &name, &[]);
            }
            self.0.wake();
        }
        if moved {
            self.tell_filter(cluster, is_full);
        }
        let has_effect = tenancy.is_some() || turn.is_some() || !news.is_empty();
        has_effect.then_some(Effect {
            cluster,
            tenancy,
            turn,
            news,
        })
    }

    /// Has the filter know which guests are of a cluster in full mode.
    fn tell_filter(&self, cluster: usize, is_full: bool) {
        let addresses = Arc::clone(&self.0.snapshot().addresses);
        for (vf, _) in self.0.layout.vfs() {
            match addresses.cluster_of(vf) {
                Some(of) if of == cluster => self.0.filter.set_full_mode(vf, is_full),
                Some(_) => {}
                None => self.0.filter.set_full_mode(vf, false),
            }
        }
    }

    /// The state of clusters that have service levels of their own, or may be managed by their VMs.
    pub(super) fn status(&self) -> Vec<ClusterStatus> {
        let managers = self.0.managers.lock();
        let manager = managers.first().and_then(Option::as_ref);
        let levels = manager.into_iter().flat_map(|it| it.cluster_levels().all());
        let mut all: BTreeMap<String, ClusterStatus> = BTreeMap::new();
        for of in levels {
            all.entry(of.name.clone()).or_default().levels = Some(of.clone());
        }
        drop(managers);
        for tenant in (0..self.0.views.len()).filter_map(|at| self.0.views.tenant(at)) {
            let status = all.entry(tenant.name().to_owned()).or_default();
            status.full_mode = tenant.is_full();
            status.refusal = tenant.refusal().cloned();
        }
        let named = |(name, status)| ClusterStatus { name, ..status };
        all.into_iter().map(named).collect()
    }

    /// The service levels of the subnet for those of a VF's guest.
    fn levels(&self, vf: VfId) -> PortLevels {
        let Snapshot {
            nodes, addresses, ..
        } = &**self.0.snapshot();
        let info = { self.0.port(vf) }.and_then(|port| nodes.port_info(port));
        // Ports that VFs share have the provider's.
        let has_own = info.is_some_and(|info| info.master_sm_sl != Sl::default());
        if has_own && addresses.follows_manager(vf) {
            return PortLevels::Cluster;
        }
        match self.0.port_view(vf).service_levels.foreign {
            Foreign::Rewritten(sl) => PortLevels::Rewritten(sl),
            Foreign::Denied => PortLevels::Own,
        }
    }

    /// The first P_Key of a VF's port in the subnet.
    fn first_pkey(&self, vf: VfId) -> PKey {
        let Snapshot { nodes, sharing, .. } = &**self.0.snapshot();
        let shared = sharing.pkeys(vf, nodes);
        let table = self.0.port(vf).and_then(|port| nodes.pkeys(port));
        let table = shared.as_deref().or(table).unwrap_or_default();
        table.first().copied().unwrap_or_default()
    }

    /// The VF of a VM that is named with its cluster, `CLUSTER/VM`.
    pub(super) fn vm_named(&self, name: &str) -> Option<VfId> {
        let (cluster, vm) = name.split_once('/')?;
        let cluster = self.0.views.tenant_named(cluster)?;
        let at = { self.0.layout.places.iter() }.position(|place| place.name == vm)?;
        let vf = self.0.read().vf_of(at)?;
        (self.0.snapshot().addresses.cluster_of(vf) == Some(cluster)).then_some(vf)
    }

    /// Sends packets of a program of the VM at a VF: they take the steps of the VM's own.
    pub(super) fn send(&self, vf: VfId, packets: Vec<MadPacket>) -> Vec<Sent> {
        let sent = vec![Sent::Elsewhere; packets.len()];
        let mut answers = Vec::new();
        for packet in packets {
            answers.extend(pass_out(self.0, vf, packet));
        }
        self.0.settle();
        let mut core = self.0.change();
        for answer in answers {
            core.hand_out(vf, Box::new(answer));
        }
        sent
    }
}
