//! The subnet as those see it who look for paths and ask about ports: without a lock.
//!
//! Whoever changes the subnet has a [`Change`] in hands. When it is given back, a [`Snapshot`] of what
//! has changed takes the place of the one before, then the generation rises, then what the fabric has
//! put out is anybody's. So who finds a path under a generation finds it in the subnet of that
//! generation or of a later one, and who hears of a change finds it there.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fabric::{Nodes, PortRef};
use hca::{PortView, VfId};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use wire::{Gid, Guid, Lid};

use crate::cluster::Addresses;
use crate::guest::GroupLids;
use crate::output::port_view;
use crate::shared_port::Sharing;
use crate::vswitch::{SubnetState, VSwitch};

/// All that paths and ports are found in, as of a moment. Nothing in it changes but counters.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) nodes: Nodes,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) sharing: Arc<Sharing>,
    pub(crate) group_lids: Arc<GroupLids>,
}

impl Snapshot {
    pub(crate) fn of(state: &SubnetState) -> Self {
        Self {
            nodes: (*state.fabric).clone(),
            addresses: Arc::clone(state.clusters.addresses()),
            sharing: Arc::clone(state.shared.sharing()),
            group_lids: Arc::clone(state.registrations.group_lids()),
        }
    }

    /// A function's port as the engine is to know it.
    pub(crate) fn view(&self, vf: VfId, port: PortRef) -> PortView {
        view(&self.nodes, &self.sharing, &self.addresses, vf, port)
    }

    /// The LID of a group to which a function's guest sends.
    pub(crate) fn group_lid(&self, vf: VfId, port: PortRef, mgid: Gid, lid: Lid) -> Lid {
        match guid_at(&self.nodes, &self.sharing, vf, port) {
            Some(vm) => self.group_lids.here(vm, mgid, lid),
            None => lid,
        }
    }

    /// The LID of a function's port in the subnet.
    pub(crate) fn physical_lid(&self, vf: VfId, port: PortRef) -> Lid {
        self.sharing.address(vf, &self.nodes, port).0
    }
}

/// A function's port as the engine is to know it.
pub(crate) fn view(
    nodes: &Nodes,
    sharing: &Sharing,
    addresses: &Addresses,
    vf: VfId,
    port: PortRef,
) -> PortView {
    let mut view = port_view(nodes, port);
    sharing.adapt(vf, nodes, &mut view);
    addresses.adapt(vf, &mut view);
    view
}

/// Whose addresses are at a function's port.
pub(crate) fn guid_at(nodes: &Nodes, sharing: &Sharing, vf: VfId, port: PortRef) -> Option<Guid> {
    match sharing.place(vf) {
        Some(place) => place.guid(nodes),
        None => nodes.guids(port)?.first().copied(),
    }
}

/// Snapshots that were published.
#[derive(Debug)]
pub(crate) struct Publications {
    /// The revision of the last one.
    revision: u64,
    /// Former ones that somebody looks at yet: they are freed here, not by who looks.
    retired: Vec<Arc<Snapshot>>,
}

impl Publications {
    /// One with this revision is published.
    pub(crate) fn new(revision: u64) -> Self {
        Self {
            revision,
            retired: Vec::new(),
        }
    }
}

/// The subnet in the hands of one who changes it.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    vswitch: &'a VSwitch,
    /// Until it is given back.
    state: Option<RwLockWriteGuard<'a, SubnetState>>,
}

impl<'a> Change<'a> {
    pub(crate) fn new(vswitch: &'a VSwitch) -> Self {
        let state = Some(vswitch.state.write());
        Self { vswitch, state }
    }

    fn give_back(&mut self) -> Option<RwLockWriteGuard<'a, SubnetState>> {
        let mut state = self.state.take()?;
        self.vswitch.publish(&mut state);
        Some(state)
    }

    /// Gives it to whoever waits for it.
    pub(crate) fn hand_over(mut self) {
        if let Some(state) = self.give_back() {
            RwLockWriteGuard::unlock_fair(state);
        }
    }

    /// Lets others look, too.
    pub(crate) fn downgrade(mut self) -> RwLockReadGuard<'a, SubnetState> {
        let state = self.give_back().expect("nobody has given it back");
        RwLockWriteGuard::downgrade(state)
    }
}

impl Deref for Change<'_> {
    type Target = SubnetState;

    fn deref(&self) -> &SubnetState {
        self.state.as_ref().expect("nobody has given it back")
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut SubnetState {
        self.state.as_mut().expect("nobody has given it back")
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl VSwitch {
    /// The subnet, to be changed.
    pub(crate) fn change(&self) -> Change<'_> {
        Change::new(self)
    }

    /// The subnet as it is. To be held as long as one question takes.
    pub(crate) fn snapshot(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.snapshot.load()
    }

    fn publish(&self, state: &mut SubnetState) {
        let (revision, generation) = (state.fabric.revision(), state.fabric.generation());
        if state.publications.revision != revision {
            let former = self.snapshot.swap(Arc::new(Snapshot::of(state)));
            self.generation.store(generation, Ordering::Release);
            let Publications { retired, .. } = &mut state.publications;
            retired.push(former);
            retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
            state.publications.revision = revision;
        }
        state.outputs.release(&self.outputs);
    }
}
