//! The HCA of a VM that moves while it runs: one device of the daemon becomes what another one was.

use std::sync::Arc;

use hca::VfId;
use vswitch::{Input, VSwitch};

use super::{End, Refusal, SoftwareCalls, failed};
use crate::control::LiveSaved;
use crate::daemon::devices::device::{Early, Saved, VfDevice};
use crate::daemon::devices::device_calls::Gone;

/// A device at one end of the way.
#[derive(Debug)]
struct Device {
    name: String,
    vf: VfId,
    calls: SoftwareCalls,
}

impl Device {
    fn of(end: &End) -> Option<Self> {
        Some(Self {
            name: end.name.clone(),
            vf: end.vf,
            calls: end.device.clone()?,
        })
    }

    fn gone(&self) -> impl FnOnce(Gone) -> Refusal {
        let name = self.name.clone();
        move |gone| failed(format!("VF `{name}`: {gone}"))
    }

    fn wrong(&self, error: impl std::fmt::Display) -> Refusal {
        failed(format!("VF `{}`: {error}", self.name))
    }
}

/// Both devices.
#[derive(Debug)]
pub(super) struct Hca {
    source: Device,
    destination: Device,
    /// Writes to BAR 0 of the destination; they go to the source if the VM stays.
    early: Early,
}

impl Hca {
    /// Returns the HCA of a VM, if the VM has one at both ends.
    pub(super) fn between(source: &End, destination: &End) -> Option<Self> {
        Some(Self {
            source: Device::of(source)?,
            destination: Device::of(destination)?,
            early: Early::default(),
        })
    }

    /// The source logs what it writes from now on.
    pub(super) fn log(&self) -> Result<(), Refusal> {
        let logs = self.source.calls.run(VfDevice::begin_log);
        let logs = logs.map_err(self.source.gone())?;
        logs.map_err(|error| self.source.wrong(error))
    }

    /// Both devices rest.
    pub(super) fn rest(&self) -> Result<(), Refusal> {
        for end in [&self.source, &self.destination] {
            let rests = end.calls.run(VfDevice::rest_to_move);
            rests.map_err(end.gone())?;
        }
        Ok(())
    }

    /// An image of the source.
    pub(super) fn save(&self) -> Result<(Arc<Saved>, LiveSaved), Refusal> {
        let saved = self.source.calls.run(VfDevice::save_to_move);
        let saved = saved.map_err(self.source.gone())?;
        let saved = saved.map_err(|error| self.source.wrong(error))?;
        let done = LiveSaved {
            image_bytes: saved.image.len() as u64,
            queue_pairs: saved.queue_pairs,
            pages: saved.pages.len() as u64,
            config: saved.config.to_vec(),
        };
        Ok((Arc::new(saved), done))
    }

    /// The destination becomes what the image says.
    pub(super) fn restore(&self, saved: Arc<Saved>) -> Result<(), Refusal> {
        let calls = &self.destination.calls;
        let restored = calls.run(move |device| device.restore_moved(&saved));
        let restored = restored.map_err(self.destination.gone())?;
        restored.map_err(|error| self.destination.wrong(error))
    }

    /// The destination works.
    pub(super) fn go_on(&mut self) -> Result<(), Refusal> {
        // Where its monitor is gone, nothing has come.
        let early = { self.source.calls.run(VfDevice::take_early) }.unwrap_or_default();
        self.early = early.clone();
        let destination = &self.destination.calls;
        let went_on = destination.run(move |device| device.go_on(early));
        went_on.map_err(self.destination.gone())
    }

    /// There is no way back: the source forgets the VM.
    pub(super) fn leave(&self) {
        // Where its monitor is gone, there is nothing left to forget.
        let _ = self.source.calls.run(|device| {
            device.end_log();
            device.go_on_as_new();
        });
    }

    /// The source works as before, where both devices `rested` and where not.
    pub(super) fn stay(&mut self, rested: bool, vswitch: &VSwitch) {
        if rested {
            // A monitor that is gone has taken its device's state along.
            let _ = self.destination.calls.run(VfDevice::go_on_as_new);
        }
        let early = std::mem::take(&mut self.early);
        let went_on = self.source.calls.run(move |device| {
            device.end_log();
            if rested {
                device.go_on(early);
            }
        });
        if went_on.is_err() && rested {
            // The VM is no more.
            vswitch.handle(Input::Reset(self.source.vf));
        }
    }
}
