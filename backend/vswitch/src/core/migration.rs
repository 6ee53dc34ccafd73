//! VMs that move from one VF to another.
//!
//! There are three ways, of which each VM has one: the embedded subnet manager exchanges its identity
//! with a spare one's ([`by_manager`]); the GUID of a VM that shares a port goes to another port
//! ([`by_guid`]); and to another subnet, or while another subnet manager manages the subnet, its
//! node changes places with a spare one's ([`by_exchange`]).

mod by_exchange;
mod by_guid;
mod by_manager;
pub(crate) mod error;
mod names;
pub(crate) mod report;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use hca::VfId;
use subnet_manager::{Method, MigrationError};

use super::Core;
use super::output::Output;
use super::subnets::{Managers, is_managed};
use crate::model::Address;
use by_exchange::Exchange;
use by_guid::GuidMove;
use by_manager::Managed;
pub use error::{GuidMoveError, MigrateError, Need, NotActive};
pub use report::{How, Migrated};

/// A request to move a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRequest {
    /// By which [`Output::Moved`] tells of its end.
    pub tag: u64,
    /// The VM: the name of the VF that is configured for it.
    pub vm: String,
    /// Name of the destination's hypervisor.
    pub to: String,
    /// The VF there; a free one if left out.
    pub vf: Option<String>,
    /// The way in which forwarding tables follow; the destination decides if left out.
    pub method: Option<Method>,
    /// Has switches drop packets to the VM before they are changed.
    pub drop_first: bool,
    /// Changes every switch whose entries differ, not the fewest.
    pub every_switch: bool,
    /// Reaches switches by their LIDs.
    pub destination_routed: bool,
    /// The time that another subnet manager may take, where one manages the subnet.
    pub allowed: Duration,
}

impl MoveRequest {
    /// Whether it says how forwarding tables are to change.
    fn is_about_tables(&self) -> bool {
        self.method.is_some() || self.drop_first || self.every_switch || self.destination_routed
    }
}

/// One of the ways to move a VM.
trait Move: fmt::Debug + Send + Sync {
    /// Begins the move. An error: nothing has happened.
    fn begin(&mut self, ground: &mut Ground<'_>) -> Result<(), MigrateError>;

    /// Takes the move as far as it comes now; how it came out, if it is over.
    fn advance(&mut self, ground: &mut Ground<'_>) -> Option<Result<Migrated, MigrateError>>;

    /// When to look at it again at the latest.
    fn due(&self) -> Option<Duration>;
}

/// The subnet and the managers that a move works on.
struct Ground<'a> {
    core: &'a mut Core,
    managers: &'a mut Managers,
    now: Duration,
}

/// A move that has begun.
#[derive(Debug)]
pub(crate) struct Moving {
    tag: u64,
    way: Box<dyn Move>,
}

impl Moving {
    /// When to look at it again at the latest.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.way.due()
    }
}

/// VFs that moves asked for together have been promised.
#[derive(Debug, Default)]
struct Promised(BTreeSet<VfId>);

impl Promised {
    fn has(&self, vf: VfId) -> bool {
        self.0.contains(&vf)
    }

    fn promise(&mut self, vf: VfId) {
        self.0.insert(vf);
    }
}

/// A request, with what is known of it and of the others.
struct Wish<'a> {
    request: &'a MoveRequest,
    /// The VM: which of the VFs is configured for it.
    vm: usize,
    /// Tells whether a VF has a VMM.
    is_connected: &'a dyn Fn(VfId) -> bool,
    promised: &'a mut Promised,
}

/// Room at a hypervisor for VMs with LIDs of their own.
struct Room {
    /// The VF that is asked for.
    named: Option<VfId>,
    /// One of its VFs.
    first: usize,
    /// Number of its VFs.
    functions: usize,
    free: Vec<VfId>,
    /// There are places of another kind than the VM's, too.
    mixed: bool,
}

impl Room {
    /// A free VF that nobody else has been promised.
    fn free(&self, wish: &Wish<'_>) -> Option<VfId> {
        let mut free = self.free.iter().copied();
        free.find(|&vf| !wish.promised.has(vf))
    }

    /// A free VF that a VMM waits on.
    fn waits(&self, wish: &Wish<'_>) -> Option<VfId> {
        let mut free = self.free.iter().copied();
        free.find(|&vf| (wish.is_connected)(vf) && !wish.promised.has(vf))
    }
}

impl Wish<'_> {
    /// The way in which the VM moves, and where to.
    fn way(self, core: &Core) -> Result<Box<dyn Move>, MigrateError> {
        Ok(match core.layout.places[self.vm].address {
            Address::Shared => Box::new(GuidMove::plan(core, self)?),
            Address::Dedicated if !is_managed(&core.subnets) || self.crosses(core) => {
                Box::new(Exchange::plan(core, self)?)
            }
            Address::Dedicated => Box::new(Managed::plan(core, self)?),
        })
    }

    /// Whether the VM is to go to another subnet than it is in.
    fn crosses(&self, core: &Core) -> bool {
        let layout = &core.layout;
        core.vf_of(self.vm)
            .is_some_and(|at| layout.subnet_of(at) != layout.subnet_at(&self.request.to))
    }

    /// The room that the destination has for a VM with a LID of its own.
    fn room(&self, core: &Core) -> Result<Room, MigrateError> {
        let (request, layout) = (self.request, &core.layout);
        let ethernet = layout.places[self.vm].ethernet;
        let named = match &request.vf {
            Some(name) => {
                let vf = layout.vf_named(name, &request.to)?;
                if layout.address(vf) == Address::Shared {
                    return Err(MigrateError::OtherAddress(name.clone()));
                }
                if layout.is_ethernet(vf) != ethernet {
                    return Err(MigrateError::OtherKind(name.clone()));
                }
                Some(vf)
            }
            None => None,
        };
        let all = layout.functions_of(&request.to)?;
        let is_alike = |vf: VfId| layout.is_ethernet(vf) == ethernet;
        let mixed = !all.iter().all(|&vf| is_alike(vf));
        let fits = |&vf: &VfId| layout.address(vf) == Address::Dedicated && is_alike(vf);
        let here: Vec<VfId> = all.into_iter().filter(fits).collect();
        let Some(&first) = here.first() else {
            return Err(MigrateError::Full {
                hypervisor: request.to.clone(),
                functions: 0,
                need: layout.need_of(self.vm),
            });
        };
        let occupants = core.occupants();
        let at = |vf: VfId| occupants.get(usize::from(vf.0)).copied().flatten();
        if named.is_none() && here.iter().any(|&vf| at(vf) == Some(self.vm)) {
            return Err(MigrateError::Manager(MigrationError::AlreadyThere));
        }
        let is_free = |&vf: &VfId| at(vf).is_some_and(|occupant| layout.places[occupant].spare);
        Ok(Room {
            named,
            first: usize::from(first.0),
            functions: here.len(),
            free: here.into_iter().filter(is_free).collect(),
            mixed,
        })
    }
}

impl Core {
    /// Begins to move these VMs, at the same time where they can. `is_connected` tells which VFs have a
    /// VMM. For each the error for which it has not begun.
    pub(crate) fn migrate(
        &mut self,
        managers: &mut Managers,
        requests: &[(usize, &MoveRequest)],
        is_connected: &dyn Fn(VfId) -> bool,
    ) -> Vec<Option<MigrateError>> {
        let mut promised = Promised::default();
        let now = self.now;
        let mut begin = |&(vm, request): &(usize, &MoveRequest)| -> Result<(), MigrateError> {
            let wish = Wish {
                request,
                vm,
                is_connected,
                promised: &mut promised,
            };
            let mut way = wish.way(self)?;
            way.begin(&mut Ground {
                core: self,
                managers,
                now,
            })?;
            let tag = request.tag;
            self.moves.push(Moving { tag, way });
            Ok(())
        };
        requests
            .iter()
            .map(|request| begin(request).err())
            .collect()
    }

    /// Takes moves as far as they come now, and has the rights of VMs follow them.
    pub(super) fn advance_moves(&mut self, managers: &mut Managers, now: Duration) {
        let mut moved = false;
        for mut moving in std::mem::take(&mut self.moves) {
            let outcome = moving.way.advance(&mut Ground {
                core: self,
                managers,
                now,
            });
            let Some(outcome) = outcome else {
                self.moves.push(moving);
                continue;
            };
            moved = true;
            let tag = moving.tag;
            self.outputs.put(Output::Moved { tag, outcome });
        }
        if moved {
            self.serve_occupants();
        }
    }
}
