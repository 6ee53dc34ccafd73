//! VMs that move from one VF to another.
//!
//! There are three ways, of which each VM has one: the embedded subnet manager exchanges its identity
//! with a spare one's ([`by_manager`]); a VM that shares a port is registered at another port
//! ([`by_registration`]); and to another subnet, or while another subnet manager manages the subnet, its
//! node changes places with a spare one's ([`by_exchange`]).

mod by_exchange;
mod by_manager;
mod by_registration;
mod error;
mod report;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use hca::VfId;
use subnet_manager::{Method, MigrationError};

use crate::managers::Managers;
use crate::model::Address;
use crate::output::Output;
use crate::vswitch::{SubnetState, VSwitch};
use by_exchange::Exchange;
pub use by_exchange::NotActive;
use by_manager::Managed;
use by_registration::Registration;
pub use by_registration::RegistrationError;
pub use error::{MigrateError, Need};
pub use report::{How, Migrated};

/// Which VM is to move where.
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
    /// How forwarding tables follow; what the destination allows if left out.
    pub method: Option<Method>,
    /// Has switches drop packets to the VM before they are changed.
    pub drop_first: bool,
    /// Changes as few switches as do in a fat-tree.
    pub fewest: bool,
    /// Reaches switches by their LIDs.
    pub destination_routed: bool,
    /// How long another subnet manager may take, where one manages the subnet.
    pub allowed: Duration,
}

impl MoveRequest {
    /// Whether it says how forwarding tables are to change.
    fn is_about_tables(&self) -> bool {
        self.method.is_some() || self.drop_first || self.fewest || self.destination_routed
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

/// What a move is made on.
struct Ground<'a> {
    vswitch: &'a VSwitch,
    managers: &'a mut Managers,
    state: &'a mut SubnetState,
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
    /// Which VFs have a VMM.
    is_connected: &'a dyn Fn(VfId) -> bool,
    promised: &'a mut Promised,
}

/// Room at a hypervisor for VMs with LIDs of their own.
struct Room {
    /// The VF that is asked for.
    named: Option<VfId>,
    /// One of its VFs.
    first: usize,
    /// How many it has.
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

impl VSwitch {
    /// Begins to move VMs, at the same time where they can. `is_connected` tells which VFs have a VMM:
    /// where the destination is a hypervisor, a free VF with one is taken first, since that is where a
    /// VM waits to be received. For each the error for which it has not begun; the end of the others
    /// is told by [`Output::Moved`].
    ///
    /// # Errors
    /// [`MigrateError`] for mistakes in names; none has begun then.
    pub fn migrate(
        &self,
        requests: &[MoveRequest],
        is_connected: impl Fn(VfId) -> bool,
    ) -> Result<Vec<Option<MigrateError>>, MigrateError> {
        let mut vms = Vec::with_capacity(requests.len());
        for request in requests {
            let vm = self.placed_vf("VM", &request.vm, |place| !place.spare)?;
            if vms.contains(&vm) {
                return Err(MigrateError::Twice(request.vm.clone()));
            }
            vms.push(vm);
            self.functions_of(&request.to)?;
            if let Some(name) = &request.vf {
                self.vf_named(name, &request.to)?;
            }
        }
        let mut promised = Promised::default();
        let managers = &mut *self.managers.lock();
        let begun = self.with(|state| {
            let mut begin = |request: &MoveRequest, vm: usize| -> Result<(), MigrateError> {
                let wish = Wish {
                    request,
                    vm,
                    is_connected: &is_connected,
                    promised: &mut promised,
                };
                let mut way = self.way(state, wish)?;
                way.begin(&mut Ground {
                    vswitch: self,
                    managers,
                    state,
                    now: self.now(),
                })?;
                let tag = request.tag;
                state.moves.push(Moving { tag, way });
                Ok(())
            };
            let all = requests.iter().zip(vms);
            all.map(|(request, vm)| begin(request, vm).err()).collect()
        });
        self.wake();
        Ok(begun)
    }

    /// The way in which a VM moves, and where to.
    fn way(&self, state: &SubnetState, wish: Wish<'_>) -> Result<Box<dyn Move>, MigrateError> {
        Ok(match self.places[wish.vm].address {
            Address::Shared => Box::new(Registration::plan(self, state, wish)?),
            Address::Dedicated if !state.is_managed() || self.crosses(state, &wish) => {
                Box::new(Exchange::plan(self, state, wish)?)
            }
            Address::Dedicated => Box::new(Managed::plan(self, state, wish)?),
        })
    }

    /// The subnet of a hypervisor.
    fn subnet_at(&self, hypervisor: &str) -> usize {
        let mut places = self.places.iter();
        let place = places.find(|place| place.hypervisor == hypervisor);
        place.map_or(0, |place| place.subnet)
    }

    /// Whether a VM is to go to another subnet than it is in.
    fn crosses(&self, state: &SubnetState, wish: &Wish<'_>) -> bool {
        let occupants = self.occupants(state);
        let at = { occupants.iter() }.position(|&occupant| occupant == Some(wish.vm));
        at.is_some_and(|at| self.places[at].subnet != self.subnet_at(&wish.request.to))
    }

    /// What a VM needs at its destination.
    fn need_of(&self, vm: usize) -> Need {
        let place = &self.places[vm];
        match place.address {
            _ if place.ethernet => Need::Port,
            Address::Dedicated => Need::Dedicated,
            Address::Shared => Need::Shared,
        }
    }

    /// What room the destination has for a VM with a LID of its own.
    fn room(&self, state: &SubnetState, wish: &Wish<'_>) -> Result<Room, MigrateError> {
        let request = wish.request;
        let ethernet = self.places[wish.vm].ethernet;
        let named = match &request.vf {
            Some(name) => {
                let vf = self.vf_named(name, &request.to)?;
                if self.address(vf) == Address::Shared {
                    return Err(MigrateError::OtherAddress(name.clone()));
                }
                if self.is_ethernet(vf) != ethernet {
                    return Err(MigrateError::OtherKind(name.clone()));
                }
                Some(vf)
            }
            None => None,
        };
        let all = self.functions_of(&request.to)?;
        let mixed = all.iter().any(|&vf| self.is_ethernet(vf) != ethernet);
        let fits =
            |&vf: &VfId| self.address(vf) == Address::Dedicated && self.is_ethernet(vf) == ethernet;
        let here: Vec<VfId> = all.into_iter().filter(fits).collect();
        let Some(&first) = here.first() else {
            return Err(MigrateError::Full {
                hypervisor: request.to.clone(),
                functions: 0,
                need: self.need_of(wish.vm),
            });
        };
        let occupants = self.occupants(state);
        let at = |vf: VfId| occupants.get(usize::from(vf.0)).copied().flatten();
        if named.is_none() && here.iter().any(|&vf| at(vf) == Some(wish.vm)) {
            return Err(MigrateError::Manager(MigrationError::AlreadyThere));
        }
        let is_free = |&vf: &VfId| at(vf).is_some_and(|occupant| self.places[occupant].spare);
        Ok(Room {
            named,
            first: usize::from(first.0),
            functions: here.len(),
            free: here.into_iter().filter(is_free).collect(),
            mixed,
        })
    }

    /// Takes moves as far as they come now, and has the rights of VMs follow them.
    pub(crate) fn advance_moves(
        &self,
        managers: &mut Managers,
        state: &mut SubnetState,
        now: Duration,
    ) {
        let mut moved = false;
        for mut moving in std::mem::take(&mut state.moves) {
            let outcome = moving.way.advance(&mut Ground {
                vswitch: self,
                managers,
                state,
                now,
            });
            let Some(outcome) = outcome else {
                state.moves.push(moving);
                continue;
            };
            moved = true;
            let tag = moving.tag;
            state.outputs.put(Output::Moved { tag, outcome });
        }
        if moved {
            self.serve_occupants(state);
        }
    }
}
