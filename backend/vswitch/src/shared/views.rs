//! The views of clusters, and the locks under which they are made and asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric::ViewFabric;
use hca::{Clock, VfId};
use parking_lot::{Mutex, MutexGuard};
use subnet_manager::SubnetManager;
use wire::mad::{Class, Mad, Method};
use wire::{Guid, MadPacket};

use super::VSwitch;
use super::snapshot::with_view_input;
use super::tenants::Tenants;
use crate::core::tenant::{ChangePace, Tenant};
use crate::core::view::{CachedView, Pace, View, ViewInput};
use crate::filter::Reason;
use crate::model::{self, Model, View as Kind};

/// The views of all clusters.
#[derive(Debug)]
pub(crate) struct Views {
    clock: Arc<dyn Clock>,
    /// By cluster; `None` where its VMs see their own port alone. Locked while a view is made.
    views: Mutex<Vec<Option<View>>>,
    /// By cluster. Locked while one question is answered.
    made: Vec<Mutex<Option<CachedView>>>,
    /// Pace of views that nobody has asked for.
    pace: Mutex<Pace>,
    /// Changes that do not alter the subnet's generation.
    changes: AtomicU64,
    /// Names of VMs whose text the subnet does not know.
    vms: HashMap<Guid, String>,
    /// By cluster; `None` where its VMs may not manage it. Locked while one question is answered, and while the
    /// network of the cluster is made anew.
    tenants: Vec<Option<Mutex<Tenant>>>,
    /// Pace of what the managers of clusters set.
    pub(super) tenant_changes: Mutex<ChangePace>,
}

impl Views {
    pub(crate) fn new(model: &Model, clock: &Arc<dyn Clock>) -> Self {
        let now = Duration::from_nanos(clock.now());
        let view = |(index, cluster): (usize, &model::Cluster)| {
            let shows = cluster.view != Kind::OwnPort;
            shows.then(|| View::new(model, index, cluster, now))
        };
        Self {
            clock: Arc::clone(clock),
            views: Mutex::new(model.clusters.iter().enumerate().map(view).collect()),
            made: model.clusters.iter().map(|_| Mutex::default()).collect(),
            pace: Mutex::new(Pace::new(now)),
            changes: AtomicU64::new(0),
            vms: model
                .vfs()
                .map(|(_, vf)| (vf.guid, vf.name.clone()))
                .collect(),
            tenants: { model.clusters.iter() }
                .map(|cluster| {
                    let manages = cluster.view == Kind::Full;
                    manages.then(|| Mutex::new(Tenant::new(cluster)))
                })
                .collect(),
            tenant_changes: Mutex::new(ChangePace::new(now)),
        }
    }

    /// A cluster whose VMs may manage it.
    pub(super) fn tenant(&self, cluster: usize) -> Option<MutexGuard<'_, Tenant>> {
        Some(self.tenants.get(cluster)?.as_ref()?.lock())
    }

    /// Whether VMs of a cluster may manage it.
    pub(super) fn may_be_managed(&self, cluster: usize) -> bool {
        matches!(self.tenants.get(cluster), Some(Some(_)))
    }

    /// The cluster of this name, if its VMs may manage it.
    pub(super) fn tenant_named(&self, name: &str) -> Option<usize> {
        let mut clusters = 0..self.len();
        clusters.find(|&at| self.tenant(at).is_some_and(|tenant| tenant.name() == name))
    }

    /// Number of clusters.
    pub(super) fn len(&self) -> usize {
        self.tenants.len()
    }

    /// Has a cluster go to full mode, or makes its network in that mode anew if the subnet has changed since, as far
    /// as it is time. Returns whether it has done so.
    pub(super) fn renew_writable(
        &self,
        cluster: usize,
        input: &ViewInput<'_>,
        enters: bool,
    ) -> bool {
        let mut views = self.views.lock();
        let (Some(Some(view)), Some(mut tenant)) = (views.get_mut(cluster), self.tenant(cluster))
        else {
            return false;
        };
        let now = self.now();
        let generation = input.addresses.generation(input.nodes);
        let as_of = (generation, self.changes.load(Ordering::Relaxed));
        if tenant.is_full() == enters
            || !enters && (view.as_of == Some(as_of) || !view.pace.permits(now))
        {
            return false;
        }
        let before = tenant.view().map(|view| &view.view_fabric);
        let new = view.make_writable(input, &self.vms, before);
        view.pace.spent += self.now().saturating_sub(now);
        view.as_of = new.is_some().then_some(as_of);
        let Some(new) = new else { return false };
        tenant.renew(new, now);
        true
    }

    /// A cluster is managed again: its view is to be made anew.
    pub(super) fn forget(&self, cluster: usize) {
        if let Some(Some(view)) = self.views.lock().get_mut(cluster) {
            view.as_of = None;
        }
        if let Some(made) = self.made.get(cluster) {
            *made.lock() = None;
        }
    }

    /// Something has changed that alters no path.
    pub(crate) fn outdate(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a cluster's view anew if the subnet has changed since, as far as it is time.
    fn renew(&self, cluster: usize, input: &ViewInput<'_>) {
        let mut views = self.views.lock();
        let (Some(Some(view)), Some(made)) = (views.get_mut(cluster), self.made.get(cluster))
        else {
            return;
        };
        let now = self.now();
        let generation = input.addresses.generation(input.nodes);
        let as_of = (generation, self.changes.load(Ordering::Relaxed));
        if view.as_of == Some(as_of) || !view.pace.permits(now) {
            return;
        }
        let new = view.make(input, &self.vms);
        view.pace.spent += self.now().saturating_sub(now);
        view.as_of = new.is_some().then_some(as_of);
        *made.lock() = new;
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now())
    }

    /// Looks at the view of a VF's guest, as it was made last, and which host it is there; `None`
    /// where it sees its own port alone.
    fn ask<R>(
        &self,
        cluster: usize,
        vf: VfId,
        look: impl FnOnce(&mut ViewFabric, usize) -> R,
    ) -> Option<R> {
        let mut made = self.made.get(cluster)?.lock();
        let made = made.as_mut()?;
        let host = *made.hosts.get(&vf)?;
        Some(look(&mut made.view_fabric, host))
    }
}

impl VSwitch {
    /// The answers to a subnet management packet of a guest that has a view of the subnet; `None`
    /// where it has none.
    pub(crate) fn ask_view(&self, vf: VfId, packet: &MadPacket) -> Option<Vec<MadPacket>> {
        if !packet.is_smp() {
            return Tenants(self).ask_switch(vf, packet).then(Vec::new);
        }
        let cluster = self.snapshot().addresses.cluster_of(vf)?;
        self.renew_view(cluster);
        if Tenants(self).manage(cluster, vf, packet) {
            return Some(Vec::new());
        }
        let manager = {
            let managers = self.managers.lock();
            // Clusters are of the one subnet there is.
            let manager = managers.first().and_then(Option::as_ref);
            manager.map(SubnetManager::sm_info)
        };
        let answer = self.views.ask(cluster, vf, |view_fabric, host| {
            view_fabric.ask(host, packet, manager.as_ref())
        })?;
        if packet.header().method() != Method::GET {
            self.filter.refuse(self.now(), vf, Reason::Smp, packet);
        }
        Some(answer.into_iter().collect())
    }

    /// The answer of its own port's agent to such a guest.
    pub(crate) fn ask_view_locally(&self, vf: VfId, mad: &[u8; 256]) -> Option<[u8; 256]> {
        let header = Mad::new_checked(&mad[..]).ok()?;
        let reads = header.method() == Method::GET;
        if !matches!(header.class(), Class::SUBN_LID | Class::SUBN_DIRECTED) {
            return None;
        }
        let cluster = self.snapshot().addresses.cluster_of(vf)?;
        if let Some(answer) = Tenants(self).manage_port(cluster, vf, mad) {
            return Some(answer);
        }
        if !reads {
            return None;
        }
        let answer = |view_fabric: &mut ViewFabric, host| view_fabric.ask_local(host, mad);
        self.views.ask(cluster, vf, answer)?
    }

    /// Makes a cluster's view anew if it is outdated.
    fn renew_view(&self, cluster: usize) {
        let is_full = { self.views.tenant(cluster) }.is_some_and(|tenant| tenant.is_full());
        with_view_input(self, |input| {
            if is_full {
                self.views.renew_writable(cluster, input, false);
            } else {
                self.views.renew(cluster, input);
            }
        });
    }

    /// Renews the views of all clusters, as far as it is time.
    pub(crate) fn renew_views(&self) {
        for cluster in 0..self.views.made.len() {
            let mut pace = self.views.pace.lock();
            let begun = self.now();
            if pace.permits(begun) {
                self.renew_view(cluster);
                pace.spent += self.now().saturating_sub(begun);
            }
        }
    }
}
