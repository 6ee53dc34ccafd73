//! VMs that move while they run, from one device of the daemon to another one: one moves at a time between
//! the same two, and until the last step all can be undone.

use std::collections::BTreeSet;
use std::sync::Arc;

use connectx::Software;
use hca::VfId;
use parking_lot::{Condvar, Mutex};
use tracing::{error, info, warn};
use vswitch::{Input, MoveRequest, VSwitch};

use crate::config::Config;
use crate::control::{
    ErrorKind, LiveDone, LiveMigration, LiveRequest, LiveSaved, LiveStep, Migrated, Place, allowed,
};
use crate::daemon::device::{Early, Saved, VfDevice};
use crate::daemon::dma::Format;
use crate::daemon::errands::{Errands, Gone};
use crate::daemon::management::Management;
use crate::daemon::vf_host::VfHost;

/// A device of software, as others reach it.
pub type DeviceErrands = Errands<VfDevice<Software<VfHost>>>;

/// A VF that VMs can move from and to.
#[derive(Debug, Clone)]
pub struct End {
    /// Its name.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// Which it is.
    pub vf: VfId,
    /// Its device.
    pub device: DeviceErrands,
}

/// Moves that are under way: which VMs, and between which VFs.
#[derive(Debug, Default)]
pub struct Claims {
    claimed: Mutex<Vec<(String, [VfId; 2])>>,
    changed: Condvar,
}

impl Claims {
    fn claim(self: &Arc<Self>, vm: &str, both: [VfId; 2]) -> Option<Claim> {
        let mut claimed = self.claimed.lock();
        if { claimed.iter() }.any(|(_, others)| both.iter().any(|vf| others.contains(vf))) {
            return None;
        }
        claimed.push((vm.to_owned(), both));
        Some(Claim {
            claims: Arc::clone(self),
            both,
        })
    }

    /// Whether a VF takes part in a move.
    #[must_use]
    pub fn has(&self, vf: VfId) -> bool {
        let claimed = self.claimed.lock();
        claimed.iter().any(|(_, both)| both.contains(&vf))
    }

    /// Waits until no move of a VM is under way.
    pub fn settle(&self, vm: &str) {
        let mut claimed = self.claimed.lock();
        while claimed.iter().any(|(moves, _)| moves == vm) {
            self.changed.wait(&mut claimed);
        }
    }
}

#[derive(Debug)]
struct Claim {
    claims: Arc<Claims>,
    both: [VfId; 2],
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.claims.claimed.lock();
        claimed.retain(|(_, both)| *both != self.both);
        self.claims.changed.notify_all();
    }
}

/// How far a move is.
#[derive(Debug)]
enum Stage {
    /// The source logs what it writes.
    Begun,
    /// Both devices rest, or one of them.
    Resting,
    /// There is an image.
    Saved(Arc<Saved>),
    /// The addresses are at the destination, or on their way.
    Moved(Arc<Saved>),
    /// The destination's device is what the source's was.
    Restored,
    /// The destination's device works.
    Done,
}

/// A VM on its way.
#[derive(Debug)]
pub struct Relocation {
    config: Arc<Config>,
    management: Arc<Management<Format>>,
    vm: String,
    source: End,
    destination: End,
    stage: Stage,
    /// What was to be rung at the destination, for the source if the VM stays.
    early: Early,
    // Given back last.
    _claim: Claim,
}

type Refusal = (ErrorKind, String);

fn failed(message: impl ToString) -> Refusal {
    (ErrorKind::Failed, message.to_string())
}

impl End {
    fn place(&self, config: &Config) -> Place {
        let vf = config.vf(&self.name);
        Place {
            vf: self.name.clone(),
            hypervisor: self.hypervisor.clone(),
            socket: vf.map_or(String::new(), |(_, vf)| vf.socket.display().to_string()),
        }
    }

    fn gone(&self) -> impl FnOnce(Gone) -> Refusal {
        let name = self.name.clone();
        move |gone| failed(format!("VF `{name}`: {gone}"))
    }

    fn wrong(&self, error: impl std::fmt::Display) -> Refusal {
        failed(format!("VF `{}`: {error}", self.name))
    }
}

impl Relocation {
    /// Begins to move a VM between two of the `ends`. `is_connected` says which of them have a VMM.
    ///
    /// # Errors
    /// What is wrong; then nothing has happened.
    pub fn begin(
        config: &Arc<Config>,
        management: &Arc<Management<Format>>,
        claims: &Arc<Claims>,
        ends: &[End],
        is_connected: impl Fn(VfId) -> bool,
        request: &LiveRequest,
    ) -> Result<(Self, LiveDone), Refusal> {
        let holders = management.vswitch().holders();
        let holds = |end: &&End| holders.get(usize::from(end.vf.0)).cloned().flatten();
        let source = { ends.iter() }.find(|end| holds(end).as_ref() == Some(&request.vm));
        let source = source.ok_or_else(|| {
            let known: Vec<String> = ends.iter().filter_map(|end| holds(&end)).collect();
            let message = format!(
                "there is no VM `{}` with an HCA of software; there are {}",
                request.vm,
                known.join(", ")
            );
            (ErrorKind::Unknown, message)
        })?;
        if !is_connected(source.vf) {
            return Err(source.wrong(
                "no VMM is connected; a VM that does not run moves by `ibvswitch vf migrate`",
            ));
        }
        let here: Vec<&End> = { ends.iter() }
            .filter(|end| end.hypervisor == request.to)
            .collect();
        if here.is_empty() {
            let known: BTreeSet<&str> = ends.iter().map(|end| &*end.hypervisor).collect();
            let known: Vec<&str> = known.into_iter().collect();
            let message = format!(
                "there is no hypervisor with VFs `{}`; there are {}",
                request.to,
                known.join(", ")
            );
            return Err((ErrorKind::Unknown, message));
        }
        let fits = |end: &&&End| {
            let named = request.vf.as_ref().is_none_or(|name| *name == end.name);
            named && holds(end).is_none() && is_connected(end.vf) && !claims.has(end.vf)
        };
        let destination = here.iter().find(fits).ok_or_else(|| {
            let which = request.vf.as_ref().map_or_else(
                || format!("no free VF of hypervisor `{}`", request.to),
                |name| format!("VF `{name}` of hypervisor `{}` is not free, or not", request.to),
            );
            failed(format!(
                "{which} has a QEMU that waits for the VM; start one with the arguments of `ibvswitch vf \
                 qemu-args VF --receive`"
            ))
        })?;
        if !management.vswitch().keeps_lid(source.vf, destination.vf) {
            return Err(source.wrong(
                "its VM would have another LID there, and its connections would end; move it by \
                 `ibvswitch vf migrate`, as docs/users/migrate-a-vm.md says, without its HCA",
            ));
        }
        let claim = claims
            .claim(&request.vm, [source.vf, destination.vf])
            .ok_or_else(|| source.wrong("its VM is on its way already; wait until it is there"))?;
        let logs = source.device.run(VfDevice::begin_log);
        let logs = logs.map_err(source.gone())?;
        logs.map_err(|error| source.wrong(error))?;
        let begun = LiveDone::Begun {
            from: source.place(config),
            to: destination.place(config),
        };
        info!(
            vm = request.vm,
            from = source.name,
            to = destination.name,
            "a VM begins to move"
        );
        let relocation = Self {
            config: Arc::clone(config),
            management: Arc::clone(management),
            vm: request.vm.clone(),
            source: source.clone(),
            destination: (*destination).clone(),
            stage: Stage::Begun,
            early: Early::default(),
            _claim: claim,
        };
        Ok((relocation, begun))
    }

    fn vswitch(&self) -> &VSwitch {
        self.management.vswitch()
    }

    /// Moves the addresses to a VF, and waits until its device and the other one know.
    fn move_addresses(&self, to: &End) -> Result<Migrated, String> {
        let request = MoveRequest {
            tag: 0,
            vm: self.vm.clone(),
            to: to.hypervisor.clone(),
            vf: Some(to.name.clone()),
            method: None,
            drop_first: false,
            fewest: false,
            destination_routed: false,
            allowed: allowed(None),
        };
        let both = [self.source.vf, self.destination.vf];
        let moved = self
            .management
            .migrate(vec![request], |vf| both.contains(&vf));
        let moved = moved.map_err(|error| error.to_string())?.pop();
        // Guests are told of changes of their ports before a device becomes another one, and not after.
        self.management.settle();
        match moved {
            Some(Ok(moved)) => Ok(Migrated::new(&self.config, moved)),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("nothing has moved".to_owned()),
        }
    }

    fn is_at(&self, end: &End) -> bool {
        let holders = self.vswitch().holders();
        holders.get(usize::from(end.vf.0)) == Some(&Some(self.vm.clone()))
    }

    fn stop(&mut self) -> Result<LiveDone, Refusal> {
        self.stage = Stage::Resting;
        for end in [&self.source, &self.destination] {
            let rests = end.device.run(VfDevice::rest_to_move);
            rests.map_err(end.gone())?;
        }
        Ok(LiveDone::Stopped {})
    }

    fn save(&mut self) -> Result<LiveDone, Refusal> {
        let saved = self.source.device.run(VfDevice::save_to_move);
        let saved = saved.map_err(self.source.gone())?;
        let saved = saved.map_err(|error| self.source.wrong(error))?;
        let done = LiveSaved {
            image_bytes: saved.image.len() as u64,
            queue_pairs: saved.queue_pairs,
            pages: saved.pages.len() as u64,
            config: saved.config.to_vec(),
        };
        self.stage = Stage::Saved(Arc::new(saved));
        Ok(LiveDone::Saved(done))
    }

    fn restore(&mut self, saved: &Arc<Saved>) -> Result<LiveDone, Refusal> {
        let image = Arc::clone(saved);
        let restored = self
            .destination
            .device
            .run(move |device| device.restore_moved(&image));
        let restored = restored.map_err(self.destination.gone())?;
        restored.map_err(|error| self.destination.wrong(error))?;
        self.stage = Stage::Restored;
        Ok(LiveDone::Restored {})
    }

    fn resume(&mut self) -> Result<LiveDone, Refusal> {
        // Where its monitor is gone, nothing has come.
        let early = { self.source.device.run(VfDevice::take_early) }.unwrap_or_default();
        self.early = early.clone();
        let destination = &self.destination.device;
        let went_on = destination.run(move |device| device.go_on(early));
        went_on.map_err(self.destination.gone())?;
        self.stage = Stage::Done;
        // Where its monitor is gone, there is nothing left to forget.
        let _ = self.source.device.run(|device| {
            device.end_log();
            device.go_on_as_new();
        });
        info!(vm = self.vm, to = self.destination.name, "a VM has moved");
        Ok(LiveDone::Resumed {})
    }

    fn undo(&mut self) {
        if matches!(self.stage, Stage::Moved(_) | Stage::Restored)
            && !self.is_at(&self.source)
            && let Err(why) = self.move_addresses(&self.source)
        {
            error!(
                vm = self.vm,
                "a VM's addresses could not be moved back: {why}"
            );
        }
        if !matches!(self.stage, Stage::Begun) {
            // A monitor that is gone has taken its device's state along.
            let _ = self.destination.device.run(VfDevice::go_on_as_new);
        }
        let began = matches!(self.stage, Stage::Begun);
        let early = std::mem::take(&mut self.early);
        let went_on = self.source.device.run(move |device| {
            device.end_log();
            if !began {
                device.go_on(early);
            }
        });
        if went_on.is_err() && !began {
            // The VM is no more.
            self.vswitch().handle(Input::Reset(self.source.vf));
        }
        warn!(
            vm = self.vm,
            at = self.source.name,
            "a VM has not moved and goes on where it was"
        );
    }
}

impl LiveMigration for Relocation {
    fn step(&mut self, step: LiveStep) -> Result<LiveDone, Refusal> {
        match (step, &self.stage) {
            (LiveStep::Stop, Stage::Begun) => self.stop(),
            (LiveStep::Save, Stage::Resting) => self.save(),
            (LiveStep::Move, Stage::Saved(saved)) => {
                self.stage = Stage::Moved(Arc::clone(saved));
                let moved = self.move_addresses(&self.destination);
                let moved = moved.map_err(failed)?;
                Ok(LiveDone::Moved(Box::new(moved)))
            }
            (LiveStep::Restore, Stage::Moved(saved)) => {
                let saved = Arc::clone(saved);
                self.restore(&saved)
            }
            (LiveStep::Resume, Stage::Restored) => self.resume(),
            (step, _) => Err((
                ErrorKind::BadRequest,
                format!("step {step:?} is not the next one; ask for each once, in their order"),
            )),
        }
    }
}

impl Drop for Relocation {
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Done) {
            self.undo();
        }
    }
}
