//! Clusters in full mode: the packets of their managers, and the effect of what these set.

use std::sync::Arc;
use std::time::Duration;

use hca::{Foreign, VfId};
use subnet_manager::routing::ClusterTables;
use tracing::warn;
use wire::mad::{Mad, Method};
use wire::{Lid, MadPacket, PKey, Sl};

use super::VSwitch;
use super::guest::pass_out;
use super::snapshot::{Snapshot, with_view_input};
use crate::core::cluster::Tenancy;
use crate::core::hosts::Sent;
use crate::core::subnets::Managers;
use crate::core::tenant::{News, Turn};

/// The clusters whose VMs may manage them.
pub(super) struct Tenants<'a>(pub(super) &'a VSwitch);

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
        drop(tenant);
        // Clusters are of the one subnet there is.
        let manager = managers.first_mut().and_then(Option::as_mut);
        let (Some(tables), Some(manager)) = (tables, manager) else {
            return;
        };
        if { manager.clusters().get(&name) }.is_some_and(|(now, _)| *now == tables) {
            return;
        }
        if let Err(refusal) = manager.set_cluster_tables(&name, tables) {
            warn!(
                cluster = name,
                "its forwarding tables do not act: {refusal}"
            );
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
        let provider = |vf| (self.first_pkey(vf), self.rewritten(vf));
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

    /// The service level that the provider writes in place of those of a VF's guest.
    fn rewritten(&self, vf: VfId) -> Option<Sl> {
        match self.0.port_view(vf).service_levels.foreign {
            Foreign::Rewritten(sl) => Some(sl),
            Foreign::Denied => None,
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
