//! The subnet for readers of paths and ports, who take no lock.
//!
//! A thread that changes the subnet holds a [`Change`]. When it gives the change back, first a [`Snapshot`] of the
//! changes takes the place of the one before, then the generation rises, then the outputs of the fabric are public.
//! So a path that is found under a generation is a path of that generation or of a later one, and a reader that hears
//! of a change finds it there.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::{Nodes, PortRef};
use hca::{PortView, VfId};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use wire::{Gid, Lid};

use super::VSwitch;
use crate::core::Core;
use crate::core::cluster::Addresses;
use crate::core::registrations::GroupLids;
use crate::core::view::ViewInput;
use crate::sharing::Sharing;

/// All that paths and ports are found in, as of a moment. Nothing in it changes but counters.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) nodes: Nodes,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) sharing: Arc<Sharing>,
    pub(crate) group_lids: Arc<GroupLids>,
}

impl Snapshot {
    pub(super) fn of(core: &Core) -> Self {
        Self {
            nodes: (*core.fabric).clone(),
            addresses: Arc::clone(core.clusters.addresses()),
            sharing: Arc::clone(&core.layout.sharing),
            group_lids: Arc::clone(core.registrations.group_lids()),
        }
    }

    /// A function's port as the engine is to know it.
    pub(crate) fn view(&self, vf: VfId, port: PortRef) -> PortView {
        self.addresses.view(vf, &self.nodes, &self.sharing, port)
    }

    /// The LID of a group to which a function's guest sends.
    pub(crate) fn group_lid(&self, vf: VfId, port: PortRef, mgid: Gid, lid: Lid) -> Lid {
        match self.sharing.guid_at(vf, &self.nodes, port) {
            Some(vm) => self.group_lids.here(vm, mgid, lid),
            None => lid,
        }
    }

    /// The LID of a function's port in the subnet.
    pub(crate) fn physical_lid(&self, vf: VfId, port: PortRef) -> Lid {
        self.sharing.address(vf, &self.nodes, port).0
    }
}

/// The subnet, and the snapshots of it that were published.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) core: Core,
    /// When somebody is to look again without being asked.
    pub(super) wakes: Option<Duration>,
    /// The revision of the last snapshot.
    revision: u64,
    /// Former ones that somebody looks at yet: they are freed here, not by who looks.
    retired: Vec<Arc<Snapshot>>,
}

impl Published {
    /// The first snapshot is published.
    pub(super) fn new(core: Core) -> Self {
        Self {
            revision: core.fabric.revision(),
            wakes: None,
            retired: Vec::new(),
            core,
        }
    }
}

impl Deref for Published {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

/// The subnet in the hands of one who changes it.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    vswitch: &'a VSwitch,
    /// Until it is given back.
    guard: Option<RwLockWriteGuard<'a, Published>>,
}

impl<'a> Change<'a> {
    fn new(vswitch: &'a VSwitch) -> Self {
        let mut guard = vswitch.core.write();
        guard.core.now = vswitch.now();
        Self {
            vswitch,
            guard: Some(guard),
        }
    }

    fn give_back(&mut self) -> Option<RwLockWriteGuard<'a, Published>> {
        let mut guard = self.guard.take()?;
        self.vswitch.publish(&mut guard);
        Some(guard)
    }

    /// Notes when somebody is to look again without being asked.
    pub(super) fn set_wakes(&mut self, wakes: Option<Duration>) {
        if let Some(guard) = &mut self.guard {
            guard.wakes = wakes;
        }
    }

    /// When somebody is to look again without being asked.
    pub(super) fn wakes(&self) -> Option<Duration> {
        self.guard.as_ref()?.wakes
    }

    /// Gives it to whoever waits for it.
    pub(crate) fn hand_over(mut self) {
        if let Some(guard) = self.give_back() {
            RwLockWriteGuard::unlock_fair(guard);
        }
    }

    /// Lets others look, too.
    pub(super) fn downgrade(mut self) -> RwLockReadGuard<'a, Published> {
        let guard = self.give_back().expect("nobody has given it back");
        RwLockWriteGuard::downgrade(guard)
    }
}

impl Deref for Change<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        let guard = self.guard.as_ref().expect("nobody has given it back");
        &guard.core
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        let guard = self.guard.as_mut().expect("nobody has given it back");
        &mut guard.core
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl VSwitch {
    /// The subnet, to be looked at.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Published> {
        self.core.read()
    }

    /// The subnet, to be changed.
    pub(crate) fn change(&self) -> Change<'_> {
        Change::new(self)
    }

    /// The subnet as it is. To be held as long as one question takes.
    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    fn publish(&self, published: &mut Published) {
        let Published {
            core,
            revision,
            retired,
            ..
        } = published;
        let now = core.fabric.revision();
        if *revision != now {
            let former = self.snapshot.swap(Arc::new(Snapshot::of(core)));
            self.generation
                .store(core.fabric.generation(), Ordering::Release);
            retired.push(former);
            retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
            *revision = now;
        }
        for (vf, finding) in core.outputs.take_findings() {
            self.filter.enter(&self.layout.places, vf, finding);
        }
        if !core.outputs.is_empty() {
            core.outputs.deliver_mail();
            self.outputs.lock().append(&mut core.outputs);
        }
        if core.outputs.take_unfinished() {
            self.wake();
        }
    }
}

/// Does something with the subnet as views are made of it.
pub(super) fn with_view_input<R>(vswitch: &VSwitch, act: impl FnOnce(&ViewInput<'_>) -> R) -> R {
    let Snapshot {
        nodes,
        addresses,
        sharing,
        ..
    } = &*vswitch.snapshot.load_full();
    act(&ViewInput {
        nodes,
        addresses,
        sharing,
        ports: &vswitch.layout.ports,
        counters: &|cluster, port| vswitch.paths.lock().of_cluster(cluster, port),
    })
}
