//! A program that takes another one's place: VMs are where they were, and their devices what they were.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{error, info};
use vswitch::{Plan, VSwitch};
use wire::{Guid, Lid};

use super::handover::client_log::ClientLog;
use super::handover::{HandoverV1, Taken};
use super::links::{self, LinkRecord};
use super::now;
use crate::control::Upgraded;
use crate::daemon::devices::device::Early;
use crate::daemon::devices::device_calls::{Called, Detained};
use crate::daemon::engines::dma::Format;
use crate::daemon::management::Management;
use crate::daemon::management::manager_files::Remembered;
use crate::daemon::moves::places::Places;
use crate::daemon::moves::relocation::SoftwareDevice;
use config::Config;

/// Time limit until the thread of a device goes on with its client.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// State of the program before, besides its files.
#[derive(Debug)]
pub struct Before {
    /// Its version.
    pub from: String,
    /// Number of times that a program of this process has followed another, this time included.
    pub count: u64,
    /// This program is only tried.
    pub trial: bool,
    /// State of its subnets.
    pub remembered: Remembered,
    rests_since: u64,
    /// Where VMs were that had moved.
    pub places: Places,
    /// Links that were not as configured.
    pub links: Vec<LinkRecord>,
    /// Descriptors that were left.
    pub taken: Taken,
}

impl Before {
    /// Returns the state that a handover has.
    #[must_use]
    pub fn new(config: &Config, handover: &HandoverV1, trial: bool) -> Self {
        let lids = handover.lids.iter().enumerate();
        let lids = lids.map(|(subnet, lids)| {
            let masks = handover.masks.get(subnet).into_iter().flatten();
            let masks: BTreeMap<u64, u8> = masks.copied().collect();
            let port = |&(guid, lid): &(u64, u16)| {
                let mask = masks.get(&guid).copied().unwrap_or(0);
                (Guid::new(guid), (Lid::from(lid), mask))
            };
            lids.iter().map(port).collect()
        });
        let holders = handover.vfs.iter();
        let running = handover.vfs.iter().filter(|vf| vf.client.is_some());
        let running = running.filter_map(|vf| Some(config.vf(vf.holds.as_ref()?)?.1.model.guid));
        Self {
            from: handover.from.clone(),
            count: handover.count,
            trial,
            remembered: Remembered {
                lids: lids.collect(),
                running: running.collect(),
            },
            rests_since: handover.rests_since,
            places: holders
                .filter_map(|vf| Some((vf.name.clone(), vf.holds.clone()?)))
                .collect(),
            links: handover.links.clone(),
            taken: Taken::default(),
        }
    }
}

/// A client that goes on, with its device.
#[derive(Debug)]
pub struct Arriving {
    /// Its VF.
    pub name: String,
    /// Its device, the thread of which has heard nobody else.
    pub device: Called<SoftwareDevice>,
    /// State of the client.
    pub client_log: ClientLog,
    /// The image of its machine; empty where the device is to fail.
    pub image: String,
}

/// Devices that are again what they were, and rest until they are told to go on.
#[derive(Debug, Default)]
pub struct Arrived {
    resting: Vec<(Detained<SoftwareDevice>, ClientLog)>,
    links: Vec<LinkRecord>,
    upgraded: Option<(Upgraded, u64)>,
}

impl Arrived {
    /// Has devices be what they were. One that cannot is as after a reset, and its driver recovers it; in a trial
    /// that is an error.
    ///
    /// # Errors
    /// What is wrong, and with which VF.
    pub fn restore(
        before: &Before,
        management: &Arc<Management<Format>>,
        arriving: Vec<Arriving>,
    ) -> Result<Self, String> {
        let mut devices = Vec::new();
        for Arriving {
            name,
            device,
            client_log,
            image,
        } in arriving
        {
            let detained = device.wait(DEVICE_TIMEOUT);
            match detained.map_err(|gone| format!("VF `{name}`: {gone}")) {
                Ok(detained) => devices.push((detained, name, client_log, image)),
                Err(why) if before.trial => return Err(why),
                Err(why) => error!("its VM is lost: {why}"),
            }
        }
        management.settle();
        let mut arrived = Self::default();
        let (vms, mut failed) = (devices.len() as u64, 0);
        for (detained, name, client_log, image) in devices {
            let may_fail = image.is_empty();
            let restored = detained.run(move |device| device.restore_stayed(&image));
            let restored = restored.map_err(|gone| gone.to_string());
            let restored = restored.and_then(|it| it.map_err(|error| error.to_string()));
            match restored {
                Ok(()) => {}
                Err(_) if may_fail => {
                    failed += 1;
                    info!(vf = name, "its device has failed, as requested");
                }
                Err(why) if before.trial => return Err(format!("VF `{name}`: {why}")),
                Err(why) => {
                    failed += 1;
                    error!(
                        vf = name,
                        "its device could not go on, and has failed: {why}"
                    );
                }
            }
            arrived.resting.push((detained, client_log));
        }
        let upgraded = Upgraded {
            count: before.count,
            from: before.from.clone(),
            vms,
            failed,
            rested_us: 0,
        };
        arrived.links.clone_from(&before.links);
        arrived.upgraded = Some((upgraded, before.rests_since));
        Ok(arrived)
    }

    /// Links are as they were, and all devices go on. Not before: the subnet manager gives addresses to those that it
    /// reaches.
    pub fn go_on(self, plan: &Plan, vswitch: &VSwitch) -> Option<Upgraded> {
        links::restore(plan, vswitch, &self.links);
        for (detained, client_log) in self.resting {
            client_log.arrive();
            // Where its thread is gone, nobody waits for the device.
            let _ = detained.run(|device| device.go_on(Early::default()));
        }
        let (mut upgraded, since) = self.upgraded?;
        upgraded.rested_us = now().saturating_sub(since) / 1000;
        info!(
            from = upgraded.from,
            vms = upgraded.vms,
            rested_us = upgraded.rested_us,
            "goes on in place of another program"
        );
        Some(upgraded)
    }
}
