//! The embedded subnet manager, as `ibvswitch sm` asks for it.

use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use wire::attribute::{SmInfo, SmState};

use super::memory::read_partitions;
use super::{Management, Message, SubnetState};
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

impl Management {
    /// Does what the embedded subnet manager is asked, and tells how it is then.
    ///
    /// # Errors
    /// [`SmError`].
    pub fn manager(&self, config: &Config, action: SmAction) -> Result<SmStatus, SmError> {
        let partitions = match action {
            SmAction::Reload => Some(read_partitions(config)?),
            _ => None,
        };
        let mut state = self.state.lock();
        let done = {
            let SubnetState { manager, swept, .. } = &mut *state;
            let manager = manager.as_mut().ok_or(SmError::External)?;
            let master = manager.state();
            if action != SmAction::Status && master != SmState::Master {
                return Err(SmError::NotMaster { state: master });
            }
            match (action, partitions) {
                (SmAction::Status, _) => None,
                (SmAction::Sweep, _) => {
                    manager.request_sweep();
                    Some(wait(swept))
                }
                (SmAction::Reload, partitions) => {
                    manager.set_partition_file(partitions.flatten());
                    Some(wait(swept))
                }
            }
        };
        if let Some(done) = done {
            drop(state);
            // The thread takes messages as long as there are devices that could ask.
            let _ = self.sender.send(Message::Look);
            done.recv_timeout(PATIENCE).map_err(|_| SmError::Slow)?;
            state = self.state.lock();
        }
        let now = self.epoch.elapsed();
        let manager = state.manager.as_ref().ok_or(SmError::External)?;
        let report = manager.report();
        let own = state.fabric.port_info(self.manager_port);
        let guid = state.fabric.node_info(self.manager_port);
        Ok(SmStatus {
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
        })
    }

    /// Writes down what the manager is to remember, and tells those who wait for a sweep that it
    /// has ended.
    pub(super) fn after_sweep(&self, state: &mut SubnetState) {
        let SubnetState {
            manager: Some(manager),
            memory,
            swept,
            ..
        } = state
        else {
            return;
        };
        if !manager.is_up() {
            return;
        }
        if let Some(memory) = memory {
            memory.keep(manager.lids(), |guid| manager.lmc(guid));
        }
        for waiting in swept.drain(..) {
            // Who asked may have gone.
            let _ = waiting.try_send(());
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
