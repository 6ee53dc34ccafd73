//! The thread that has the vSwitch work, and hands out what it puts out.

pub mod manager_files;
mod routing_program;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use fabric::PortEvent;
use hca::{Clock, PortView, QueueFormat, VfId};
use parking_lot::Mutex;
use subnet_manager::MigrationError;
use tracing::{info, warn};
use vswitch::{
    ForGuest, HostPlace, HostTag, Input, ManagerStatus, MigrateError, Migrated, MoveRequest,
    Output, Plan, Sent, SmError, VSwitch, changes,
};
use wire::{Guid, Lid, MadPacket};

use self::manager_files::{FileError, LidStores, Remembered, environment, read_settings};
use crate::capture::Captures;
use crate::control::Unmoved;
use crate::daemon::engines::Engines;
use crate::daemon::ports::Inbox;
use crate::warnings;
use config::Config;

/// Number of packets that guests get before others have their turn at the engine.
const AT_A_TIME: usize = 16;
/// Time limit of a migration, with lost packets and a sweep after it.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Part of that time that is not another subnet manager's.
const MARGIN: Duration = Duration::from_secs(30);
/// Time that a sweep may take before the client is told that it takes longer.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(8);

/// Why there is no subnet.
#[derive(Debug, thiserror::Error)]
pub enum ManagementError {
    /// The configuration makes none.
    #[error(transparent)]
    Subnet(#[from] vswitch::Error),
    /// The subnet manager's files are of no use.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a VM did not move, or nobody knows whether it did.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It did not.
    #[error(transparent)]
    Unmoved(#[from] MigrateError),
    /// It may still come to its end.
    #[error("not finished after a minute; `ibvswitch vf show` shows where the VM's addresses are")]
    Late,
    /// The daemon is ending.
    #[error("the daemon is ending")]
    Ending,
}

impl From<MoveError> for Unmoved {
    fn from(error: MoveError) -> Self {
        Self {
            why: error.to_string(),
            round: match error {
                MoveError::Unmoved(MigrateError::Manager(MigrationError::Interrupted {
                    round,
                    ..
                })) => Some(round),
                _ => None,
            },
        }
    }
}

/// Why a subnet manager did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// It says why.
    #[error(transparent)]
    Manager(#[from] SmError),
    /// A file cannot be read.
    #[error("{0}; nothing changes")]
    File(#[from] FileError),
    /// Packets get lost, and are sent again.
    #[error("the sweep takes more than 8 seconds; `ibvswitch sm status` tells when it has ended")]
    Slow,
}

/// The subnets of a configuration, not yet managed, and what is remembered of the LIDs there: by the program before,
/// or in files.
///
/// # Errors
/// [`ManagementError`].
pub fn vswitch(
    config: &Config,
    plan: &Plan,
    clock: Arc<dyn Clock>,
    remembered: &Remembered,
) -> Result<(Arc<VSwitch>, LidStores), ManagementError> {
    let (environment, stores) = environment(config, clock, remembered)?;
    Ok((VSwitch::new(&config.model(), plan, environment)?, stores))
}

/// Finds what is wrong with a configuration beyond its text: the nodes do not make a fabric, or a file
/// that it names cannot be used.
///
/// # Errors
/// [`ManagementError`], as [`vswitch()`] would return it.
pub fn check(config: &Config) -> Result<(), ManagementError> {
    described(config).map(drop)
}

/// The subnet that a configuration describes, as the embedded subnet manager brings it up at its first start.
///
/// # Errors
/// [`ManagementError`].
pub(crate) fn planned(config: &Config) -> Result<(Plan, Arc<VSwitch>), ManagementError> {
    let (plan, vswitch) = described(config)?;
    vswitch.poll();
    Ok((plan, vswitch))
}

fn described(config: &Config) -> Result<(Plan, Arc<VSwitch>), ManagementError> {
    let clock = Arc::new(crate::daemon::engines::engine::SystemClock::default());
    let plan = Plan::new(&config.model());
    let (vswitch, _) = vswitch(config, &plan, clock, &Remembered::default())?;
    Ok((plan, vswitch))
}

/// The vSwitch, and those whom its outputs are for.
#[derive(Debug)]
pub struct Management<F: QueueFormat> {
    vswitch: Arc<VSwitch>,
    engines: Arc<Engines<F>>,
    /// Functions that live in no engine.
    ports: Arc<HashMap<VfId, Arc<Inbox>>>,
    /// Held by who hands out what guests get, so that it stays in order.
    delivering: Mutex<()>,
    captures: Arc<Captures>,
    stores: Mutex<LidStores>,
    moves: Awaited<Result<Migrated, MigrateError>>,
    sweeps: Awaited<()>,
    signal: Arc<Signal>,
    signals: Receiver<()>,
    stopping: AtomicBool,
}

/// Wakes the management thread.
#[derive(Debug)]
struct Signal(Sender<()>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        // Where there is one already, it is enough.
        let _ = self.0.try_send(());
    }
}

/// Ends that somebody waits for, by numbers.
#[derive(Debug)]
struct Awaited<T> {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Sender<T>>>,
}

impl<T> Default for Awaited<T> {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }
}

impl<T> Awaited<T> {
    fn expect(&self) -> Expected<'_, T> {
        let tag = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, end) = bounded(1);
        self.waiting.lock().insert(tag, sender);
        Expected {
            awaited: self,
            tag,
            end,
        }
    }

    fn end(&self, tag: u64, how: T) {
        if let Some(waiting) = self.waiting.lock().remove(&tag) {
            // The client may have gone.
            let _ = waiting.try_send(how);
        }
    }
}

/// An end to wait for.
struct Expected<'a, T> {
    awaited: &'a Awaited<T>,
    tag: u64,
    end: Receiver<T>,
}

impl<T> Drop for Expected<'_, T> {
    fn drop(&mut self) {
        self.awaited.waiting.lock().remove(&self.tag);
    }
}

impl<F: QueueFormat> Management<F> {
    /// For a vSwitch whose functions are `engine`'s, but for those in `ports`.
    #[must_use]
    pub fn new(
        vswitch: Arc<VSwitch>,
        engines: Arc<Engines<F>>,
        ports: Arc<HashMap<VfId, Arc<Inbox>>>,
        stores: LidStores,
    ) -> Arc<Self> {
        let (sender, signals) = bounded(1);
        let signal = Arc::new(Signal(sender));
        vswitch.set_waker(Waker::from(Arc::clone(&signal)));
        Arc::new(Self {
            vswitch,
            engines,
            ports,
            delivering: Mutex::default(),
            captures: Arc::default(),
            stores: Mutex::new(stores),
            moves: Awaited::default(),
            sweeps: Awaited::default(),
            signal,
            signals,
            stopping: AtomicBool::new(false),
        })
    }

    /// The vSwitch.
    #[must_use]
    pub fn vswitch(&self) -> &Arc<VSwitch> {
        &self.vswitch
    }

    /// By subnet, the LIDs that embedded managers have given.
    #[must_use]
    pub fn lids(&self) -> Vec<BTreeMap<Guid, (Lid, u8)>> {
        self.stores.lock().lids().to_vec()
    }

    /// Ports for guests without an InfiniBand driver.
    #[must_use]
    pub fn ports(&self) -> &Arc<HashMap<VfId, Arc<Inbox>>> {
        &self.ports
    }

    /// Returns the captures.
    #[must_use]
    pub fn captures(&self) -> &Arc<Captures> {
        &self.captures
    }

    /// Hands out what the vSwitch has put out.
    fn deliver(&self) {
        while let Some(output) = self.vswitch.poll_output() {
            match output {
                Output::Flush(mailbox) => mailbox.flush(),
                Output::Tapped {
                    port,
                    direction,
                    packet,
                } => self.captures.mad(port, direction, &packet),
                Output::Moved { tag, outcome } => self.moves.end(tag, outcome),
                Output::Swept(tag) => self.sweeps.end(tag, ()),
                Output::Lids { subnet, lids } => self.stores.lock().keep(subnet, &lids),
            }
        }
        while self.vswitch.has_guest_output() {
            for (vf, packet) in self.deliver_to_guests() {
                self.vswitch.handle(Input::Unclaimed(vf, packet));
            }
        }
    }

    /// Hands some of the vSwitch's packets for guests to the guests' engines. Returns the packets of functions
    /// without a queue pair for them.
    fn deliver_to_guests(&self) -> Vec<(VfId, Box<MadPacket>)> {
        let _delivering = self.delivering.lock();
        let mut unclaimed = Vec::new();
        let outputs = std::iter::from_fn(|| self.vswitch.poll_guest());
        let mut outputs: VecDeque<ForGuest> = outputs.take(AT_A_TIME).collect();
        while let Some(first) = outputs.pop_front() {
            let (vf, packet) = match first {
                ForGuest::Packet(vf, packet) => (vf, packet),
                ForGuest::Port(vf, event, view) => {
                    self.change_port(vf, event, view);
                    continue;
                }
            };
            if let Some(port) = self.ports.get(&vf) {
                if !port.take(&packet) {
                    unclaimed.push((vf, packet));
                }
                continue;
            }
            (unclaimed, outputs) = self.engines.with(vf, move |engine| {
                let mut next = Some((vf, packet));
                while let Some((vf, packet)) = next.take() {
                    if !engine.deliver_mad(vf, &packet) {
                        unclaimed.push((vf, packet));
                    }
                    // Those that follow go with it, as far as the same engine gets them.
                    if let Some(ForGuest::Packet(vf, _)) = outputs.front()
                        && engine.vf(*vf).is_home()
                        && let Some(ForGuest::Packet(vf, packet)) = outputs.pop_front()
                    {
                        next = Some((vf, packet));
                    }
                }
                (unclaimed, outputs)
            });
        }
        unclaimed
    }

    fn change_port(&self, vf: VfId, event: PortEvent, view: PortView) {
        self.engines.set_port(vf, view, move |engine, was, is| {
            for change in changes(event, was, is) {
                engine.vf_mut(vf).port_changed(change);
            }
        });
        if let Some(port) = self.ports.get(&vf) {
            port.changed();
        }
    }

    /// Sends packets of a program of the host, and hands out what comes of it; what became of each.
    pub fn send_from_host(
        &self,
        tag: HostTag,
        place: HostPlace,
        packets: Vec<MadPacket>,
    ) -> Vec<Sent> {
        let sent = self.vswitch.send_from_host(tag, place, packets);
        self.deliver();
        sent
    }

    /// Moves VMs, at the same time where they can, and waits until each has moved or will not. The tags
    /// of the requests are not looked at. `is_connected` as of [`VSwitch::migrate`].
    ///
    /// # Errors
    /// [`MigrateError`] for mistakes in names; none has moved then.
    pub fn migrate(
        &self,
        mut requests: Vec<MoveRequest>,
        is_connected: impl Fn(VfId) -> bool,
    ) -> Result<Vec<Result<Migrated, MoveError>>, MigrateError> {
        let ends: Vec<_> = requests.iter().map(|_| self.moves.expect()).collect();
        for (request, end) in requests.iter_mut().zip(&ends) {
            request.tag = end.tag;
        }
        let begun = self.vswitch.migrate(&requests, is_connected)?;
        let waited = requests.iter().zip(begun).zip(ends);
        let waited = waited.map(|((request, refused), expected)| {
            if let Some(refused) = refused {
                return Err(refused.into());
            }
            let patience = MIGRATION_TIMEOUT.max(request.allowed + MARGIN);
            let end = expected.end.recv_timeout(patience);
            let end = end.map_err(|error| match error {
                RecvTimeoutError::Timeout => MoveError::Late,
                RecvTimeoutError::Disconnected => MoveError::Ending,
            });
            Ok(end??)
        });
        Ok(waited.collect())
    }

    /// Waits until guests have been told what the vSwitch has for them by now.
    pub fn settle(&self) {
        self.deliver();
        // Another thread may have some of it in hand.
        drop(self.delivering.lock());
    }

    /// Has the embedded subnet managers sweep, or that of one subnet, and waits until they have. With
    /// `reloaded`, the files that this configuration names are read before.
    ///
    /// # Errors
    /// [`SweepError`].
    pub fn sweep(&self, subnet: Option<&str>, reloaded: Option<&Config>) -> Result<(), SweepError> {
        let files = reloaded.map(read_settings).transpose()?;
        let mut ends = Vec::new();
        self.vswitch.sweep(subnet, files, || {
            let end = self.sweeps.expect();
            let tag = end.tag;
            ends.push(end);
            tag
        })?;
        let patience = Instant::now() + SWEEP_TIMEOUT;
        for expected in ends {
            let end = expected.end.recv_deadline(patience);
            end.map_err(|_| SweepError::Slow)?;
        }
        Ok(())
    }
}

impl<F: QueueFormat + Send + 'static> Management<F> {
    /// Warns after a sweep of ports that it has not activated, unless it did so `before`.
    fn warn_of_waiting(&self, config: &Config, plan: &Plan, before: &mut Vec<String>) {
        let inspect = |fabric: &_| warnings::waiting(config, plan, fabric);
        let waiting = self.vswitch.inspect(inspect);
        for warning in waiting.iter().filter(|it| !before.contains(it)) {
            warn!("{warning}");
        }
        *before = waiting;
    }

    /// Brings the subnets up, before anybody uses them, and starts the thread that
    /// manages them from then on.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        self: &Arc<Self>,
        config: &Config,
        plan: &Arc<Plan>,
    ) -> io::Result<ManagementThread<F>> {
        self.vswitch.poll();
        self.deliver();
        for warning in self
            .vswitch
            .inspect(|fabric| warnings::of(config, plan, fabric))
        {
            warn!("{warning}");
        }
        let managers = self.vswitch.manager_status();
        if managers.is_empty() {
            info!("the subnet waits for an external subnet manager");
        }
        for ManagerStatus { subnet, report, .. } in &managers {
            let name = subnet.as_deref();
            info!(
                name,
                switches = report.switches,
                adapters = report.adapters,
                active = report.active,
                smps = report.packets,
                "subnet up"
            );
        }
        let management = Arc::clone(self);
        let (config, plan) = (config.clone(), Arc::clone(plan));
        let thread = thread::Builder::new()
            .name("management".to_owned())
            .spawn(move || management.serve(&config, &plan))?;
        Ok(ManagementThread {
            management: Arc::clone(self),
            thread: Some(thread),
        })
    }

    fn serve(&self, config: &Config, plan: &Plan) {
        let (mut sweeps, mut waiting) = (0, Vec::new());
        while !self.stopping.load(Ordering::Acquire) {
            self.vswitch.poll();
            self.deliver();
            if std::mem::replace(&mut sweeps, self.vswitch.sweeps()) != sweeps {
                self.warn_of_waiting(config, plan, &mut waiting);
            }
            self.stores.lock().retry();
            // Its sender is this very object's.
            let _ = match self.vswitch.deadline() {
                Some(due) => {
                    let left = due.saturating_sub(self.vswitch.now());
                    self.signals.recv_timeout(left).is_ok()
                }
                None => self.signals.recv().is_ok(),
            };
        }
        self.moves.waiting.lock().clear();
        self.sweeps.waiting.lock().clear();
    }
}

/// The running management thread; stops when dropped.
#[derive(Debug)]
pub struct ManagementThread<F: QueueFormat> {
    management: Arc<Management<F>>,
    thread: Option<JoinHandle<()>>,
}

impl<F: QueueFormat> Drop for ManagementThread<F> {
    fn drop(&mut self) {
        self.management.stopping.store(true, Ordering::Release);
        Arc::clone(&self.management.signal).wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
