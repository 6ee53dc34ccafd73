//! VMs that move while they run, from VFs and ports of the daemon to others: one moves at a time between
//! the same two, and until the last step all can be undone.

mod hca;

use std::collections::BTreeSet;
use std::sync::Arc;

use ::hca::VfId;
use connectx::Software;
use keeper::Notes;
use parking_lot::{Condvar, Mutex};
use tracing::{error, info, warn};
use vswitch::{MoveRequest, VSwitch};

use crate::control::{
    ErrorKind, LiveDone, LiveMigration, LiveMove, LivePlaces, LiveRequest, LiveStep, Migrated,
    Place, allowed, migrated,
};
use crate::daemon::devices::device::{Saved, VfDevice};
use crate::daemon::devices::device_calls::DeviceCalls;
use crate::daemon::engines::dma::Format;
use crate::daemon::engines::vf_host::VfHost;
use crate::daemon::management::Management;
use crate::daemon::moves::places;
use config::Config;
use hca::Hca;

/// A device of software.
pub type SoftwareDevice = VfDevice<Software<VfHost>>;

/// A device of software, as others reach it.
pub type SoftwareCalls = DeviceCalls<SoftwareDevice>;

/// A VF or port that VMs can move from and to.
#[derive(Debug, Clone)]
pub struct End {
    /// Its name.
    pub name: String,
    /// Its hypervisor.
    pub hypervisor: String,
    /// The VF.
    pub vf: VfId,
    /// Its device; `None` for a port, of which QEMU moves all but the addresses.
    pub device: Option<SoftwareCalls>,
    /// Tells the keeper who is there, where there is one.
    pub notes: Option<Notes>,
}

/// Moves that are under way: of which VFs and ports, and between which.
#[derive(Debug, Default)]
pub struct Claims {
    claimed: Mutex<Vec<(Vec<String>, Vec<VfId>)>>,
    changed: Condvar,
}

impl Claims {
    fn claim(self: &Arc<Self>, moves: &[VmMove]) -> Option<Claim> {
        let vms = moves.iter().map(|each| each.vm.clone());
        let ends = moves
            .iter()
            .flat_map(|VmMove { from, to, .. }| [from.vf, to.vf]);
        let (vms, ends): (Vec<_>, Vec<_>) = (vms.collect(), ends.collect());
        let mut claimed = self.claimed.lock();
        if { claimed.iter() }.any(|(_, others)| ends.iter().any(|vf| others.contains(vf))) {
            return None;
        }
        claimed.push((vms, ends.clone()));
        Some(Claim {
            claims: Arc::clone(self),
            ends,
        })
    }

    /// Whether a VF takes part in a move.
    #[must_use]
    pub fn has(&self, vf: VfId) -> bool {
        let claimed = self.claimed.lock();
        claimed.iter().any(|(_, ends)| ends.contains(&vf))
    }

    /// Whether no move is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claimed.lock().is_empty()
    }

    /// Waits until no move of a VM is under way.
    pub fn settle(&self, vm: &str) {
        let mut claimed = self.claimed.lock();
        while { claimed.iter() }.any(|(vms, _)| vms.iter().any(|moves| moves == vm)) {
            self.changed.wait(&mut claimed);
        }
    }
}

#[derive(Debug)]
struct Claim {
    claims: Arc<Claims>,
    ends: Vec<VfId>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.claims.claimed.lock();
        claimed.retain(|(_, ends)| *ends != self.ends);
        self.claims.changed.notify_all();
    }
}

/// The way of a VF's addresses, or of a port's.
#[derive(Debug)]
struct VmMove {
    vm: String,
    from: End,
    to: End,
}

/// Stage of a move.
#[derive(Debug)]
enum Stage {
    /// The source logs what it writes.
    Begun,
    /// Both devices rest, or one of them.
    Resting,
    /// There is an image.
    Saved(Arc<Saved>),
    /// The addresses are at the destination, or on their way. A VM without an HCA has no image.
    Moved(Option<Arc<Saved>>),
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
    /// At least one.
    moves: Vec<VmMove>,
    hca: Option<Hca>,
    stage: Stage,
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

    /// Notes for a daemon to come which VM is there.
    pub fn note(&self, vm: Option<&str>) {
        if let Some(notes) = &self.notes {
            places::note(&self.name, notes, vm);
        }
    }

    const fn kind(&self) -> &'static str {
        match self.device {
            Some(_) => "VF",
            None => "port",
        }
    }

    fn wrong(&self, error: impl std::fmt::Display) -> Refusal {
        failed(format!("{} `{}`: {error}", self.kind(), self.name))
    }
}

/// All VFs and ports, and who is at them.
struct Ends<'a> {
    all: &'a [End],
    holders: Vec<Option<String>>,
    claims: &'a Claims,
    is_connected: &'a dyn Fn(VfId) -> bool,
}

impl<'a> Ends<'a> {
    fn holder(&self, end: &End) -> Option<&str> {
        self.holders.get(usize::from(end.vf.0))?.as_deref()
    }

    fn source(&self, vm: &str) -> Result<&'a End, Refusal> {
        let source = self.all.iter().find(|end| self.holder(end) == Some(vm));
        let source = source.ok_or_else(|| {
            let known: Vec<&str> = { self.all.iter() }
                .filter_map(|end| self.holder(end))
                .collect();
            let known = match &known[..] {
                [] => "no VM is at a VF".to_owned(),
                known => vswitch::near(vm, known, "`ibvswitch vf show` shows all"),
            };
            let message =
                format!("there is no VM `{vm}` with an HCA of software or a port; {known}");
            (ErrorKind::Unknown, message)
        })?;
        if !(self.is_connected)(source.vf) {
            return Err(source.wrong(
                "no VMM is connected; a VM that does not run moves by `ibvswitch vf migrate`",
            ));
        }
        Ok(source)
    }

    /// Where the VM of `source` goes: a free VF or port, as it is one, that a VMM waits at.
    fn destination(
        &self,
        source: &End,
        hypervisor: &str,
        named: Option<&str>,
    ) -> Result<&'a End, Refusal> {
        if !{ self.all.iter() }.any(|end| end.hypervisor == hypervisor) {
            let known: BTreeSet<&str> = self.all.iter().map(|end| &*end.hypervisor).collect();
            let known: Vec<&str> = known.into_iter().collect();
            let known = vswitch::near(hypervisor, &known, "`ibvswitch status` shows all");
            let message = format!("there is no hypervisor with VFs `{hypervisor}`; {known}");
            return Err((ErrorKind::Unknown, message));
        }
        let kind = source.kind();
        let fits = |end: &&End| {
            end.hypervisor == hypervisor
                && end.kind() == kind
                && named.is_none_or(|name| name == end.name)
                && self.holder(end).is_none()
                && (self.is_connected)(end.vf)
                && !self.claims.has(end.vf)
        };
        let fitting: Vec<&End> = self.all.iter().filter(fits).collect();
        // The cards of a VM that has several must not change places.
        if let ([_, _, ..], None) = (&fitting[..], &source.device) {
            let names: Vec<&str> = fitting.iter().map(|end| &*end.name).collect();
            return Err(source.wrong(format!(
                "QEMUs wait at several ports of hypervisor `{hypervisor}`: {}; name one with `--vf`",
                names.join(", ")
            )));
        }
        fitting.first().copied().ok_or_else(|| {
            let which = named.map_or_else(
                || format!("no free {kind} of hypervisor `{hypervisor}`"),
                |name| format!("{kind} `{name}` of hypervisor `{hypervisor}` is not free, or not"),
            );
            failed(format!(
                "{which} has a QEMU that waits for the VM; start one with the arguments of `ibvswitch vf \
                 qemu-args {} --receive`",
                kind.to_uppercase()
            ))
        })
    }
}

impl Relocation {
    /// Begins to move a VM between some of the `ends`. `is_connected` says which of them have a VMM.
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
        let ends = Ends {
            all: ends,
            holders: management.vswitch().holders(),
            claims,
            is_connected: &is_connected,
        };
        let mut moves: Vec<VmMove> = Vec::new();
        for LiveMove { vm, vf } in &request.moves {
            let from = ends.source(vm)?;
            let to = ends.destination(from, &request.to, vf.as_deref())?;
            let twice = |each: &VmMove| each.from.vf == from.vf || each.to.vf == to.vf;
            if moves.iter().any(twice) {
                return Err(from.wrong("it is named twice, or its destination is"));
            }
            if !management.vswitch().keeps_lid(from.vf, to.vf) {
                return Err(from.wrong(
                    "its VM would have another LID there, and its connections would end; move it by \
                     `ibvswitch vf migrate`, as docs/users/migrate-a-vm.md says, without its HCA",
                ));
            }
            let (vm, from, to) = (vm.clone(), from.clone(), to.clone());
            moves.push(VmMove { vm, from, to });
        }
        let mut hcas = { moves.iter() }.filter_map(|way| Hca::between(&way.from, &way.to));
        let hca = hcas.next();
        if moves.is_empty() || hcas.next().is_some() {
            let message = "name the devices of one VM: one VF at most, and any number of ports";
            return Err((ErrorKind::BadRequest, message.to_owned()));
        }
        drop(hcas);
        let claim = claims.claim(&moves).ok_or_else(|| {
            moves[0]
                .from
                .wrong("its VM moves already; wait until it has moved")
        })?;
        hca.as_ref().map_or(Ok(()), Hca::log)?;
        let places = moves.iter().map(|VmMove { vm, from, to }| {
            info!(vm, from = from.name, to = to.name, "a VM begins to move");
            LivePlaces {
                vm: vm.clone(),
                from: from.place(config),
                to: to.place(config),
            }
        });
        let begun = LiveDone::Begun {
            moves: places.collect(),
            has_hca: hca.is_some(),
        };
        let relocation = Self {
            config: Arc::clone(config),
            management: Arc::clone(management),
            moves,
            hca,
            stage: Stage::Begun,
            _claim: claim,
        };
        Ok((relocation, begun))
    }

    fn vswitch(&self) -> &VSwitch {
        self.management.vswitch()
    }

    fn is_at(&self, vm: &str, end: &End) -> bool {
        let holders = self.vswitch().holders();
        let holder = holders.get(usize::from(end.vf.0));
        holder.is_some_and(|holder| holder.as_deref() == Some(vm))
    }

    /// Moves the addresses to the ends that `towards` says, where they are not there yet, and waits until all
    /// devices know.
    fn move_addresses(&self, towards: fn(&VmMove) -> &End) -> Result<Vec<Migrated>, String> {
        let away = |each: &&VmMove| !self.is_at(&each.vm, towards(each));
        let requests = self.moves.iter().filter(away).map(|each| MoveRequest {
            tag: 0,
            vm: each.vm.clone(),
            to: towards(each).hypervisor.clone(),
            vf: Some(towards(each).name.clone()),
            method: None,
            drop_first: false,
            every_switch: false,
            destination_routed: false,
            allowed: allowed(None),
        });
        let ours = |vf| {
            let mut moves = self.moves.iter();
            moves.any(|each| [each.from.vf, each.to.vf].contains(&vf))
        };
        let requests: Vec<MoveRequest> = requests.collect();
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let moved = self.management.migrate(requests, ours);
        let moved = moved.map_err(|error| error.to_string())?;
        // Guests are told of changes of their ports before a device becomes another one, and not after.
        self.management.settle();
        let moved = moved.into_iter().map(|moved| {
            let moved = moved.map_err(|error| error.to_string())?;
            Ok(migrated(&self.config, moved))
        });
        moved.collect()
    }

    fn save(&mut self) -> Result<LiveDone, Refusal> {
        let Some(hca) = &self.hca else {
            return Err(failed("there is no device"));
        };
        let (saved, done) = hca.save()?;
        self.stage = Stage::Saved(saved);
        Ok(LiveDone::Saved(done))
    }

    fn move_there(&mut self, saved: Option<Arc<Saved>>) -> Result<LiveDone, Refusal> {
        self.stage = Stage::Moved(saved);
        let moves = self.move_addresses(|each| &each.to);
        let moves = moves.map_err(failed)?;
        if self.hca.is_none() {
            self.stage = Stage::Restored;
        }
        Ok(LiveDone::Moved { moves })
    }

    fn resume(&mut self) -> Result<LiveDone, Refusal> {
        self.hca.as_mut().map_or(Ok(()), Hca::go_on)?;
        self.stage = Stage::Done;
        // Not before: until here, a daemon after one that dies has the VM at the source.
        for VmMove { vm, from, to } in &self.moves {
            from.note(None);
            to.note(Some(vm));
        }
        if let Some(hca) = &self.hca {
            hca.leave();
        }
        for VmMove { vm, to, .. } in &self.moves {
            info!(vm, to = to.name, "a VM has moved");
        }
        Ok(LiveDone::Resumed {})
    }

    fn undo(&mut self) {
        if matches!(self.stage, Stage::Moved(_) | Stage::Restored)
            && let Err(why) = self.move_addresses(|each| &each.from)
        {
            let vm = &self.moves[0].vm;
            error!(vm, "a VM's addresses could not be moved back: {why}");
        }
        let rested = !matches!(self.stage, Stage::Begun);
        if let Some(hca) = &mut self.hca {
            hca.stay(rested, self.management.vswitch());
        }
        for VmMove { vm, from, .. } in &self.moves {
            let at = &from.name;
            warn!(vm, at, "a VM has not moved and goes on where it was");
        }
    }
}

impl LiveMigration for Relocation {
    fn step(&mut self, step: LiveStep) -> Result<LiveDone, Refusal> {
        match (step, &self.stage, &self.hca) {
            (LiveStep::Stop, Stage::Begun, Some(hca)) => {
                self.stage = Stage::Resting;
                hca.rest()?;
                Ok(LiveDone::Stopped {})
            }
            (LiveStep::Save, Stage::Resting, _) => self.save(),
            (LiveStep::Move, Stage::Saved(saved), _) => {
                let saved = Arc::clone(saved);
                self.move_there(Some(saved))
            }
            (LiveStep::Move, Stage::Begun, None) => self.move_there(None),
            (LiveStep::Restore, Stage::Moved(Some(saved)), Some(hca)) => {
                hca.restore(Arc::clone(saved))?;
                self.stage = Stage::Restored;
                Ok(LiveDone::Restored {})
            }
            (LiveStep::Resume, Stage::Restored, _) => self.resume(),
            (step, _, _) => Err((
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
