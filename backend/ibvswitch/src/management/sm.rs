//! The embedded subnet manager, as `ibvswitch sm` asks for it.

use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use fabric::Fabric;
use parking_lot::RwLockWriteGuard;
use subnet::SubnetManager;
use wire::attribute::{SmInfo, SmState};

use super::memory::read_partitions;
use super::subnets::ManagedSubnet;
use super::{Management, Message};
use crate::config::Config;
use crate::control::{
    Balance, ExtendedLids, OtherManager, Partition, SmAction, SmRequests, SmStatus, SmTraps,
};

/// How long a sweep may take before whoever waits for it is told that it takes longer.
const PATIENCE: Duration = Duration::from_secs(8);

/// Why the subnet manager did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SmError {
    /// There is none here.
    #[error(
        "another subnet manager manages the subnet; `sm.manager = \"embedded\"` has the daemon do it"
    )]
    External,
    /// There is no such subnet.
    #[error("{}", unknown(.name, .known))]
    Unknown {
        /// The name.
        name: String,
        /// Those there are.
        known: Vec<String>,
    },
    /// Another one has the subnet.
    #[error("the subnet manager is {state}: another one is the master; ask that one")]
    NotMaster {
        /// What it is.
        state: SmState,
    },
    /// The partitions cannot be read.
    #[error("{0}; the partitions stay as they are")]
    File(#[from] super::FileError),
    /// Packets get lost, and are sent again.
    #[error("the sweep takes more than 8 seconds; `ibvswitch sm status` tells when it has ended")]
    Slow,
}

fn unknown(name: &str, known: &[String]) -> String {
    match known {
        [] => format!("there is no subnet `{name}`; leave the name out, since there is one alone"),
        known => format!(
            "there is no subnet `{name}`; there are {}",
            known.join(", ")
        ),
    }
}

impl Management {
    /// Does what the embedded subnet managers are asked, or that of one subnet, and tells how they are
    /// then.
    ///
    /// # Errors
    /// [`SmError`].
    pub fn manager(
        &self,
        config: &Config,
        action: SmAction,
        subnet: Option<&str>,
    ) -> Result<Vec<SmStatus>, SmError> {
        let partitions = match action {
            SmAction::Reload => Some(read_partitions(config)?),
            _ => None,
        };
        let mut managers = self.managers.lock();
        let mut state = self.state.write();
        let names = || state.subnets.iter().flat_map(|subnet| &subnet.name);
        if let Some(unknown) = subnet.filter(|&subnet| !names().any(|name| name == subnet)) {
            return Err(SmError::Unknown {
                name: unknown.to_owned(),
                known: names().cloned().collect(),
            });
        }
        let is_asked = |it: &ManagedSubnet| subnet.is_none() || it.name.as_deref() == subnet;
        let mut waiting = Vec::new();
        let each = state.subnets.iter_mut().zip(&mut *managers);
        for (managed, manager) in each.filter(|(it, _)| is_asked(it)) {
            let ManagedSubnet { swept, .. } = managed;
            let manager = manager.as_mut().ok_or(SmError::External)?;
            let master = manager.state();
            if action != SmAction::Status && master != SmState::Master {
                return Err(SmError::NotMaster { state: master });
            }
            match action {
                SmAction::Status => continue,
                SmAction::Sweep => manager.request_sweep(),
                SmAction::Reload => manager.set_partition_file(partitions.clone().flatten()),
            }
            waiting.push(wait(swept));
        }
        if !waiting.is_empty() {
            drop(state);
            drop(managers);
            // The thread takes messages as long as there are devices that could ask.
            let _ = self.sender.send(Message::Look);
            let patience = Instant::now() + PATIENCE;
            for done in waiting {
                done.recv_deadline(patience).map_err(|_| SmError::Slow)?;
            }
            managers = self.managers.lock();
            state = self.state.write();
        }
        let state = RwLockWriteGuard::downgrade(state);
        let asked = state.subnets.iter().zip(&*managers);
        { asked.filter(|(it, _)| is_asked(it)) }
            .map(|(subnet, manager)| {
                let manager = manager.as_ref().ok_or(SmError::External)?;
                Ok(self.describe_manager(config, &state.fabric, subnet, manager))
            })
            .collect()
    }

    fn describe_manager(
        &self,
        config: &Config,
        fabric: &Fabric,
        subnet: &ManagedSubnet,
        manager: &SubnetManager,
    ) -> SmStatus {
        let now = self.epoch.elapsed();
        let report = manager.report();
        let own = fabric.port_info(subnet.port);
        let guid = fabric.node_info(subnet.port);
        SmStatus {
            subnet: subnet.name.clone(),
            state: manager.state().to_string(),
            priority: manager.priority(),
            guid: guid.map_or(String::new(), |node| node.port_guid.to_string()),
            lid: own.map_or(0, |info| info.lid.value()),
            routing: manager.routing().to_owned(),
            routed_by: manager.routed_by().map(str::to_owned),
            lanes: manager.lanes(),
            balance: manager
                .balance()
                .zip(config.manager.rebalance_threshold)
                .map(|(balance, threshold)| Balance {
                    computed: balance.computed,
                    now: balance.now,
                    threshold,
                    rebalanced: balance.rebalanced,
                }),
            extended_lids: config.fabric.extended_lids.then(|| ExtendedLids {
                vms: manager.virtual_lids().len(),
                lacking: manager
                    .without_extended_lids()
                    .map(|guid| guid.to_string())
                    .collect(),
            }),
            sweeps: report.sweeps,
            light_sweeps: report.light_sweeps,
            last_sweep_s: (report.sweeps > 0)
                .then(|| now.saturating_sub(report.ended).as_secs_f64()),
            switches: report.switches,
            adapters: report.adapters,
            active: report.active,
            packets: report.packets,
            sets: report.sets,
            requests: manager
                .requests()
                .map(|(method, attribute, count)| SmRequests {
                    method: method.to_string(),
                    attribute: attribute.to_string(),
                    count,
                })
                .collect(),
            traps: manager
                .traps()
                .map(|(trap, count)| SmTraps { trap, count })
                .collect(),
            others: manager.others().map(other).collect(),
            partitions: manager
                .partition_names()
                .map(|(name, pkey)| Partition {
                    name: name.to_owned(),
                    pkey: pkey.to_string(),
                })
                .collect(),
            errors: report.errors.clone(),
        }
    }
}

fn wait(swept: &mut Vec<Sender<()>>) -> crossbeam_channel::Receiver<()> {
    let (sender, receiver) = bounded(1);
    swept.push(sender);
    receiver
}

fn other(info: &SmInfo) -> OtherManager {
    OtherManager {
        guid: info.guid.to_string(),
        priority: info.priority,
        state: info.state.to_string(),
    }
}
