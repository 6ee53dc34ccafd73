//! The subnets, each with its manager.

use std::collections::VecDeque;

use crossbeam_channel::Sender;
use fabric::{Fabric, Owner, PortRef, SmpAccess};
use hca::VfId;
use subnet::{Arrival, RoutingEngine, SubnetManager, Ticket, Transport};
use wire::attribute::CapabilityMask;
use wire::{Guid, MadPacket};

use super::memory::{Memory, read_partitions};
use super::migration::Waiter;
use super::settings::{manager_config, random};
use super::{Management, ManagementError, Managers, SubnetState};
use crate::config::{Config, ManagerPlace};
use crate::topology::Plan;

/// A subnet, and the embedded manager if it has one.
#[derive(Debug)]
pub(super) struct ManagedSubnet {
    /// Where there are several.
    pub(super) name: Option<String>,
    /// That of its manager's host.
    pub(super) port: PortRef,
    /// No program of the host and no guest manages the subnet.
    pub(super) embedded: bool,
    /// What has come for the embedded manager.
    pub(super) received: VecDeque<MadPacket>,
    /// What the manager remembers from run to run.
    pub(super) memory: Option<Memory>,
    /// Who waits for a sweep to end.
    pub(super) swept: Vec<Sender<()>>,
    /// What VMs are waiting for.
    pub(super) migrations: Vec<(Ticket, Waiter)>,
}

/// What an embedded manager gets, and what it sends.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) received: VecDeque<MadPacket>,
    pub(super) sent: Vec<MadPacket>,
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
    /// The subnets of a configuration, whose managers have done nothing yet.
    pub(super) fn all(
        config: &Config,
        plan: &Plan,
        fabric: &mut Fabric,
        routing: impl Fn(&Config) -> Box<dyn RoutingEngine>,
    ) -> Result<Vec<(Self, Option<SubnetManager>)>, ManagementError> {
        let subnets = config.subnets.iter().enumerate().zip(plan.managers());
        subnets
            .map(|((number, subnet), port)| {
                fabric.set_owner(port, Owner::Consumer, SmpAccess::Fabric);
                let mut managed = Self {
                    name: subnet.name.clone(),
                    port,
                    embedded: false,
                    received: VecDeque::new(),
                    memory: None,
                    swept: Vec::new(),
                    migrations: Vec::new(),
                };
                if config.manager.place == ManagerPlace::External {
                    return Ok((managed, None));
                }
                managed.memory = Memory::open(config, subnet)?;
                let here = CapabilityMask::IS_SM;
                fabric.set_capabilities(port, here, CapabilityMask::default());
                let mut settings = manager_config(config, number);
                settings.partition_file = read_partitions(config)?;
                if let Some(memory) = &managed.memory {
                    settings.known_lids.clone_from(memory.lids());
                }
                let manager = SubnetManager::new(settings, routing(config))?;
                managed.embedded = true;
                Ok((managed, Some(manager.with_key_source(Box::new(random)))))
            })
            .collect()
    }

    /// Writes down what the manager is to remember, and tells those who wait for a sweep that it
    /// has ended.
    pub(super) fn after_sweep(&mut self, manager: Option<&SubnetManager>) {
        let Some(manager) = manager.filter(|manager| manager.is_up()) else {
            return;
        };
        if let Some(memory) = &mut self.memory {
            memory.keep(manager.lids(), |guid| manager.lmc(guid));
        }
        for waiting in self.swept.drain(..) {
            // Who asked may have gone.
            let _ = waiting.try_send(());
        }
    }
}

impl SubnetState {
    /// Whether the subnets have embedded managers.
    pub(super) fn is_managed(&self) -> bool {
        self.subnets.iter().any(|subnet| subnet.embedded)
    }

    /// The subnet whose manager's host has this port.
    pub(super) fn managed_at(&mut self, port: PortRef) -> Option<&mut ManagedSubnet> {
        let mut subnets = self.subnets.iter_mut();
        subnets.find(|subnet| subnet.port == port && subnet.embedded)
    }
}

/// Sweeps that the embedded managers have ended.
pub(super) fn sweeps(managers: &Managers) -> u64 {
    let managers = managers.iter().flatten();
    managers.map(|manager| manager.report().sweeps).sum()
}

impl Management {
    /// The subnet that a VF is in.
    pub(super) fn subnet_of(&self, vf: VfId) -> usize {
        let slot = self.slots.get(usize::from(vf.0));
        slot.map_or(0, |slot| slot.subnet)
    }

    /// A VM's function and a spare one, whose ports have changed places, are in other subnets now:
    /// the ports forget what the managers have set, and the managers learn whom they have in place of
    /// whom.
    pub(super) fn cross_subnets(
        &self,
        managers: &mut Managers,
        state: &mut SubnetState,
        (vm, from): (Guid, VfId),
        (spare, to): (Guid, VfId),
    ) {
        for vf in [from, to] {
            if let Some(port) = self.port(vf) {
                state.fabric.forget_subnet(port);
            }
        }
        let a_spare = Arrival {
            is_spare: true,
            has_lid: !self.dynamic,
        };
        // Only VMs that run move, where it makes a difference.
        let a_vm = Arrival {
            is_spare: false,
            has_lid: true,
        };
        let [here, there] = [from, to].map(|vf| self.subnet_of(vf));
        if let Some(manager) = &mut managers[here] {
            manager.exchanged(vm, spare, a_spare);
        }
        if let Some(manager) = &mut managers[there] {
            manager.exchanged(spare, vm, a_vm);
        }
    }
}
