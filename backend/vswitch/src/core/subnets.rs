//! The subnets, each with its manager.

pub(crate) mod status;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fabric::{Fabric, Owner, PortRef, SmpAccess};
use subnet_manager::routing::Imported;
use subnet_manager::{MigrationError, SubnetManager, Ticket, Transport};
use tracing::{debug, warn};
use wire::attribute::CapabilityMask;
use wire::{Guid, Lid, MadPacket};

use super::output::{Output, Outputs};
use crate::environment::{Environment, Error};
use crate::layout::PlacedVf;
use crate::manager_settings::manager_config;
use crate::model::{ManagerPlace, Model};
use crate::plan::Plan;
pub use status::{ClusterStatus, ExtendedLids, ManagerStatus, SmError};

/// The embedded managers of the subnets, in their order.
pub(crate) type Managers = Vec<Option<SubnetManager>>;

/// A subnet, and the embedded manager if it has one.
#[derive(Debug)]
pub(crate) struct ManagedSubnet {
    /// Its name, where there are several subnets.
    pub(crate) name: Option<String>,
    /// The port of its manager's host.
    pub(crate) port: PortRef,
    /// No program of the host and no guest manages the subnet.
    pub(crate) embedded: bool,
    /// Packets for the embedded manager.
    pub(crate) received: VecDeque<MadPacket>,
    /// The LIDs of the last [`Output::Lids`].
    reported: BTreeMap<Guid, (Lid, u8)>,
    /// Tags of those who wait for a sweep to end.
    pub(crate) swept: Vec<u64>,
    /// VMs that get a LID since they start, or lose it since they end: their names, for the log.
    presences: Vec<(Ticket, String)>,
}

/// The packets that an embedded manager gets and sends.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    pub(crate) received: VecDeque<MadPacket>,
    pub(crate) sent: Vec<MadPacket>,
}

impl Transport for Mail {
    fn send(&mut self, packet: MadPacket) {
        self.sent.push(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.received.pop_front()
    }
}

impl ManagedSubnet {
    /// The subnets of a model; their managers have done nothing yet.
    pub(crate) fn all(
        model: &Model,
        plan: &Plan,
        fabric: &mut Fabric,
        environment: &Environment,
    ) -> Result<Vec<(Self, Option<SubnetManager>)>, Error> {
        let subnets = model.subnets.iter().enumerate().zip(plan.managers());
        subnets
            .map(|((number, subnet), port)| {
                fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);
                let mut managed = Self {
                    name: subnet.name.clone(),
                    port,
                    embedded: false,
                    received: VecDeque::new(),
                    reported: BTreeMap::new(),
                    swept: Vec::new(),
                    presences: Vec::new(),
                };
                if model.manager.place == ManagerPlace::External {
                    return Ok((managed, None));
                }
                let here = CapabilityMask::IS_SM;
                fabric.set_capabilities(port, here, CapabilityMask::default());
                let files = environment.files.clone();
                let mut settings = manager_config(model, files, &environment.running, number);
                if let Some(known) = environment.known_lids.get(number) {
                    settings.known_lids.clone_from(known);
                    managed.reported.clone_from(known);
                }
                let routing = match &environment.files.tables {
                    Some(source) => Box::new(Imported::new(Arc::clone(source))),
                    None => (environment.routing)(&model.manager),
                };
                let manager = SubnetManager::new(settings, routing)?;
                managed.embedded = true;
                let keys = Arc::clone(&environment.keys);
                let manager = manager.with_key_source(Box::new(move || keys()));
                Ok((managed, Some(manager)))
            })
            .collect()
    }

    /// Tells what the manager is to remember, and those who wait for a sweep that it has ended.
    pub(crate) fn after_sweep(
        &mut self,
        subnet: usize,
        manager: &SubnetManager,
        outputs: &mut Outputs,
    ) {
        if !manager.is_up() {
            return;
        }
        let lids = manager.lids().iter();
        let lids = lids.map(|(&guid, &lid)| (guid, (lid, manager.lmc(guid))));
        if !lids
            .clone()
            .eq(self.reported.iter().map(|(&guid, &range)| (guid, range)))
        {
            self.reported = lids.collect();
            outputs.put(Output::Lids {
                subnet,
                lids: self.reported.clone(),
            });
        }
        for tag in self.swept.drain(..) {
            outputs.put(Output::Swept(tag));
        }
    }

    /// Whether something is on its way of which VMs, or the log, wait for the end.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.presences.is_empty()
    }
}

/// Sweeps that the embedded managers have ended.
pub(crate) fn sweeps(managers: &Managers) -> u64 {
    let managers = managers.iter().flatten();
    managers.map(|manager| manager.report().sweeps).sum()
}

/// Whether the subnets have embedded managers.
pub(crate) fn is_managed(subnets: &[ManagedSubnet]) -> bool {
    subnets.iter().any(|subnet| subnet.embedded)
}

/// The subnet that the embedded manager at this port manages.
pub(crate) fn managed_at(
    subnets: &mut [ManagedSubnet],
    port: PortRef,
) -> Option<&mut ManagedSubnet> {
    let mut subnets = subnets.iter_mut();
    subnets.find(|subnet| subnet.port == port && subnet.embedded)
}

/// Has the subnet manager give a LID to a VM that starts, or take it back from one that ends.
pub(crate) fn change_presence(
    subnet: &mut ManagedSubnet,
    manager: &mut Option<SubnetManager>,
    vm: &PlacedVf,
    present: bool,
) {
    if let (false, Some(manager)) = (vm.spare, manager) {
        let ticket = if present {
            manager.start(vm.guid)
        } else {
            manager.end(vm.guid)
        };
        subnet.presences.push((ticket, vm.name.clone()));
    }
}

/// Takes note of VMs whose start or end a subnet manager has carried out.
pub(crate) fn note_presences(subnets: &mut [ManagedSubnet], managers: &mut Managers) {
    for (subnet, manager) in subnets.iter_mut().zip(managers) {
        let Some(manager) = manager else {
            continue;
        };
        subnet.presences.retain(|(ticket, vm)| {
            let Some(result) = manager.take_migration(*ticket) else {
                return true;
            };
            match result {
                Ok(moved) => {
                    debug!(vm, lid = %moved.lid, switches = moved.switches.sent, "LID set or freed");
                }
                // It has a LID already, having come with it; or none, having left.
                Err(MigrationError::AlreadyThere | MigrationError::NotRunning { .. }) => {}
                Err(error) => warn!(vm, "{error}"),
            }
            false
        });
    }
}
