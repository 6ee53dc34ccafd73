//! Another program takes this one's place in the same process, and VMs do not notice.
//!
//! All devices rest. Their state, and the state that was handed to this program, is written down ([`handover`]). Then
//! the new program is tried: in a process of its own it does everything up to the point where it would serve. It
//! reads the written state itself, and has the memory of the VMs, which nobody changes meanwhile. If it comes to that
//! point, this process executes it (execve(2)), and it does the same once more. If not, the devices go on as if
//! nothing had been. Nothing is given up before.
//!
//! The process stays, and so do its number, its parent, its limits and its keeper. Messages of its VMMs wait in their
//! sockets meanwhile.

pub mod arrival;
pub mod handover;
pub mod links;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::time::{ClockId, clock_gettime};
use tracing::{info, warn};
use vfio_user::SharedMemory;
use wire::{Guid, Lid};

use crate::control::{Landlock, Sandbox};
use crate::daemon::devices::device::{Early, VfDevice};
use crate::daemon::devices::device_calls::Detained;
use crate::daemon::life::sandbox;
use crate::daemon::moves::relocation::{SoftwareCalls, SoftwareDevice};
use handover::client_log::ClientLog;
use handover::{HandoverV1, Leaving, VfRecord};
use links::LinkRecord;

/// Line of a program that is tried and has come as far as a trial goes.
pub const FIT: &str = "fit\n";
/// Time limit until the thread of a device waits for nobody.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Why a program may not be executed.
const SANDBOXED: &str = "; the daemon's sandbox lets it execute programs of the system and of the directory that it \
     was started from itself: put the program there";
/// Number of bytes that are shown of the output of a program that fails its trial.
const TOLD: usize = 2000;

/// Nanoseconds of CLOCK_MONOTONIC.
#[must_use]
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    now.as_nanos() as u64
}

/// State of a VF that is to be left.
#[derive(Debug)]
pub struct HandoverVf {
    /// Its name.
    pub name: String,
    /// Path of its socket.
    pub socket: PathBuf,
    /// The socket.
    pub listener: OwnedFd,
    /// The memory of its doorbell pages.
    pub doorbells: Option<Arc<SharedMemory>>,
    /// Its device and its client, where it is one that can be handed over.
    pub device: Option<(SoftwareCalls, ClientLog)>,
}

/// State of a daemon that is to be left.
#[derive(Debug)]
pub struct Handover {
    /// The file with the lock on the runtime directory.
    pub lock: OwnedFd,
    /// The listening control socket.
    pub control: OwnedFd,
    /// The VFs, in the order of the configuration.
    pub vfs: Vec<HandoverVf>,
    /// Number of times that a program of this process has followed another.
    pub count: u64,
}

/// Conditions of an upgrade for VMs.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Time that VMs may wait while the program is tried. If the trial is good, they wait about as long once more.
    pub within: Duration,
    /// VFs with devices that may fail.
    pub let_fail: &'a [String],
}

/// Addresses in the subnets at the moment.
#[derive(Debug)]
pub struct Addresses {
    /// By subnet, GUIDs, LIDs and LID mask controls.
    pub lids: Vec<BTreeMap<Guid, (Lid, u8)>>,
    /// By VF, the VM that has its addresses there.
    pub holders: Vec<Option<String>>,
    /// Links that are not as configured.
    pub links: Vec<LinkRecord>,
}

/// Time limit of a program until it could serve.
#[derive(Debug, Clone, Copy)]
struct Patience {
    within: Duration,
    /// When it began, in nanoseconds of CLOCK_MONOTONIC.
    since: u64,
    deadline: Instant,
}

impl Patience {
    fn new(within: Duration) -> Self {
        Self {
            within,
            since: now(),
            deadline: Instant::now() + within,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Devices that rest, until this is dropped.
#[derive(Debug, Default)]
struct Resting(Vec<Option<Detained<SoftwareDevice>>>);

impl Drop for Resting {
    fn drop(&mut self) {
        for device in self.0.iter().flatten() {
            // Where its thread is gone, nobody waits for the device.
            let _ = device.run(|device| device.go_on(Early::default()));
        }
    }
}

fn system(what: &str) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("cannot {what}: {error}{}", vmm_socket::remedy(&error))
}

impl Handover {
    /// Has `program` take this one's place, if it can on these terms. `addresses` is asked when all devices
    /// rest. Returns only if the program does not take the place: why not, after which all is as before.
    pub fn pass_on(
        &self,
        program: &Path,
        terms: &Terms<'_>,
        addresses: impl Fn() -> Addresses,
    ) -> String {
        info!(program = %program.display(), "another program is to take over");
        let why = self.try_to_pass_on(program, terms, addresses);
        warn!("goes on as it was: {why}");
        why
    }

    fn try_to_pass_on(
        &self,
        program: &Path,
        terms: &Terms<'_>,
        addresses: impl Fn() -> Addresses,
    ) -> String {
        let has_device = |name: &&String| {
            let mut devices = self.vfs.iter().filter(|vf| vf.device.is_some());
            devices.any(|vf| vf.name == **name)
        };
        if let Some(name) = terms.let_fail.iter().find(|name| !has_device(name)) {
            return format!("there is no VF `{name}` with an HCA that could fail");
        }
        // Once without VMs, which do not have to wait for what would fail in any case.
        let mut leaving = Leaving::default();
        let patience = Patience::new(terms.within);
        let handover = self.handover(&[], &addresses(), terms, patience, &mut leaving);
        let tried = handover.and_then(|handover| {
            let number = { leaving.write(handover) }.map_err(system("write down what is left"))?;
            try_out(program, number, patience)
        });
        drop(leaving);
        if let Err(why) = tried {
            return why;
        }
        let patience = Patience::new(terms.within);
        let resting = match self.rest() {
            Ok(resting) => resting,
            Err(why) => return why,
        };
        let mut leaving = Leaving::default();
        let handover = self.handover(&resting.0, &addresses(), terms, patience, &mut leaving);
        let written = handover.and_then(|handover| {
            leaving
                .write(handover)
                .map_err(system("write down what is left"))
        });
        let tried = written.and_then(|number| {
            try_out(program, number, patience)?;
            Ok(number)
        });
        match tried {
            Ok(number) => {
                let error = Command::new(program).args(arguments(number)).exec();
                system("execute the program")(error)
            }
            Err(why) => why,
        }
    }

    /// Lets all devices rest.
    fn rest(&self) -> Result<Resting, String> {
        let mut resting = Resting::default();
        for vf in &self.vfs {
            let Some((calls, _)) = &vf.device else {
                resting.0.push(None);
                continue;
            };
            let gone = |_| format!("VF `{}` is busy with its VMM; try again", vf.name);
            let detained = calls.detain().wait(DEVICE_TIMEOUT).map_err(gone)?;
            if !detained.run(VfDevice::rest_to_stay).map_err(gone)? {
                return Err(format!(
                    "VF `{}`: its VMM migrates it; try again later",
                    vf.name
                ));
            }
            resting.0.push(Some(detained));
        }
        Ok(resting)
    }

    /// Returns the handover, with the clients of the devices that rest.
    fn handover(
        &self,
        resting: &[Option<Detained<SoftwareDevice>>],
        addresses: &Addresses,
        terms: &Terms<'_>,
        patience: Patience,
        leaving: &mut Leaving,
    ) -> Result<HandoverV1, String> {
        let mut vfs = Vec::new();
        for (at, vf) in self.vfs.iter().enumerate() {
            let system = system("leave a VF to another program");
            let doorbells = vf.doorbells.as_ref();
            let doorbells = doorbells.map(|memory| leaving.leave(memory.fd().as_fd()));
            let device = resting.get(at).and_then(Option::as_ref);
            let client_log = vf.device.as_ref().map(|(_, client_log)| client_log);
            let client = match device.zip(client_log) {
                Some((device, client_log)) if client_log.has_client() => {
                    let wrong =
                        |error: &dyn std::fmt::Display| format!("VF `{}`: {error}", vf.name);
                    let image = if terms.let_fail.contains(&vf.name) {
                        String::new()
                    } else {
                        let image = device.run(|device| device.save_to_stay());
                        let image = image.map_err(|gone| wrong(&gone))?;
                        image.map_err(|error| {
                            wrong(&format!("{error}; or let it fail (--let-fail)"))
                        })?
                    };
                    if patience.is_over() {
                        return Err(wrong(&format!(
                            "VMs would wait longer than {} s until their state is written; allow more with \
                            --within, or let the devices of VMs with too many objects fail (--let-fail)",
                            patience.within.as_secs_f32()
                        )));
                    }
                    let client = client_log.leave(image, leaving);
                    Some(client.map_err(|error| wrong(&error))?)
                }
                _ => None,
            };
            let keeper = client_log.map(|client_log| client_log.leave_keeper(leaving));
            vfs.push(VfRecord {
                name: vf.name.clone(),
                socket: vf.socket.clone(),
                listener: leaving.leave(vf.listener.as_fd()).map_err(&system)?,
                holds: addresses.holders.get(at).cloned().flatten(),
                doorbells: doorbells.transpose().map_err(&system)?,
                keeper: keeper.transpose().map_err(&system)?.flatten(),
                client,
            });
        }
        let left = |fd: &OwnedFd, leaving: &mut Leaving| {
            { leaving.leave(fd.as_fd()) }.map_err(system("leave a socket to another program"))
        };
        Ok(HandoverV1 {
            from: env!("CARGO_PKG_VERSION").to_owned(),
            count: self.count + 1,
            rests_since: patience.since,
            lock: left(&self.lock, leaving)?,
            control: left(&self.control, leaving)?,
            lids: { addresses.lids.iter() }
                .map(|lids| {
                    lids.iter()
                        .map(|(guid, (lid, _))| (guid.value(), lid.value()))
                })
                .map(Iterator::collect)
                .collect(),
            masks: { addresses.lids.iter() }
                .map(|lids| {
                    let several = lids.iter().filter(|(_, (_, lmc))| *lmc > 0);
                    several
                        .map(|(guid, &(_, lmc))| (guid.value(), lmc))
                        .collect()
                })
                .collect(),
            vfs,
            links: addresses.links.clone(),
            sandbox: Some(sandbox::state()).filter(|it| *it != Sandbox::default()),
        })
    }
}

/// The arguments that this process was started with, and the number of what it is left.
fn arguments(handover: RawFd) -> Vec<OsString> {
    let mut own = env::args_os().skip(1);
    let mut arguments = Vec::new();
    while let Some(argument) = own.next() {
        if argument == "--inherit" {
            own.next();
        } else {
            arguments.push(argument);
        }
    }
    arguments.extend(["--inherit".into(), handover.to_string().into()]);
    arguments
}

/// Has a program do what it would do with a handover, up to where it would serve.
fn try_out(program: &Path, handover: RawFd, patience: Patience) -> Result<(), String> {
    let wrong = |what: &str| format!("{} cannot take over: {what}", program.display());
    let said = memfd_create("output of a program", MFdFlags::MFD_CLOEXEC)
        .map_err(|errno| system("try a program")(errno.into()))?;
    let mut said = File::from(said);
    let errors = said.try_clone().map_err(system("try a program"))?;
    let mut command = Command::new(program);
    command.args(arguments(handover)).arg("--trial");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let spawned = command.stderr(errors).spawn();
    let mut child = spawned.map_err(|error| {
        let may_be_sandbox = error.kind() == io::ErrorKind::PermissionDenied
            && sandbox::state().landlock != Landlock::None;
        let remedy = if may_be_sandbox { SANDBOXED } else { "" };
        wrong(&format!("{error}{remedy}"))
    })?;
    let mut answer = Vec::new();
    let in_time = child.stdout.take().is_some_and(|mut output| {
        let mut read = || -> io::Result<bool> {
            let mut bytes = [0; 64];
            while answer.len() < bytes.len() {
                if !is_readable_by(output.as_fd(), patience.deadline)? {
                    return Ok(false);
                }
                match output.read(&mut bytes)? {
                    0 => break,
                    count => answer.extend_from_slice(&bytes[..count]),
                }
            }
            Ok(true)
        };
        read().unwrap_or(false)
    });
    if !in_time {
        // Fails where it has ended just now.
        let _ = child.kill();
    }
    let status = child.wait().map_err(system("wait for a program"))?;
    if !in_time {
        return Err(wrong(&format!(
            "it was not ready within {} s; allow more with --within, as long as VMs can wait",
            patience.within.as_secs_f32()
        )));
    }
    if status.success() && answer == FIT.as_bytes() {
        return Ok(());
    }
    let mut text = String::new();
    // Output that cannot be read is not shown.
    let _ = { said.rewind() }.and_then(|()| said.take(TOLD as u64).read_to_string(&mut text));
    let text = text.trim();
    let text = text.strip_prefix("ibvswitch: ").unwrap_or(text);
    Err(if text.is_empty() {
        wrong(&format!(
            "it ended with {status}; name an ibvswitch that can take over"
        ))
    } else {
        wrong(text)
    })
}

/// Waits for something to read.
fn is_readable_by(fd: std::os::fd::BorrowedFd<'_>, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, timeout) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
