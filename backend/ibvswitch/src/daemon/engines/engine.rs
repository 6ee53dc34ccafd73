//! An engine and the thread that keeps it going.
//!
//! An engine is plain data behind one mutex. Where doorbells are trapped, who
//! has work for it takes the mutex: a socket thread for a command or a
//! doorbell, the management thread for a datagram. A socket thread then gives
//! its own function one turn, unless that has work waiting already. The engine
//! thread does the rest, functions in turn, and sleeps until a timer is due or
//! work was left over.
//!
//! Where doorbell pages are polled the engine thread keeps the mutex and spins.
//! Others leave it what they want done (`daemon::engines::mailbox`), one thing of
//! theirs after each turn.
//!
//! Nobody has the engine for longer than a turn or one command takes, however
//! much a guest asks for. Nothing large is freed meanwhile, no interrupt is
//! signalled and, where doorbells are trapped, nobody woken
//! ([`crate::daemon::engines::deferred`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hca::transport::MyDoor;
use hca::{Clock, Discarded, Engine, QueueFormat, VfId};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_timerslack;
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::daemon::engines::call_times::{CallTimes, Calls};
use crate::daemon::engines::deferred::Deferred;
use crate::daemon::engines::mailbox::Mailbox;

/// Turns without work after which an adaptive engine pauses between looks. Few:
/// where processors are scarce, a thread that spins is put off for
/// milliseconds, and one that has slept runs at once.
const SPIN_TURNS: u32 = 512;
/// Turns of a look between pauses.
const LOOK_TURNS: u32 = 16;
/// By how much each pause is longer than the one before.
const PAUSE_STEP: Duration = Duration::from_micros(1);
/// Longest pause between two looks of an adaptive engine at rest.
const LONGEST_PAUSE: Duration = Duration::from_micros(100);
/// Delay with which the kernel may end a pause, in nanoseconds; its default is 50 µs.
const TIMER_SLACK: u64 = 1000;
/// Turns with the mutex kept before the stop flag is looked at.
const TURNS_PER_ROUND: u32 = 256;
/// Turns between two looks at the doorbell pages while there are queue pairs
/// whose records are looked at anyway: each look takes a line from a processor
/// that is about to write it.
const LOOK_EVERY: u32 = 4;
/// Turns without work after which the engine leaves more of its core to a
/// thread that may share it. Before, that would delay the next request.
const PAUSE_AFTER: u32 = 4096;

/// Time since the program started.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Behaviour of the engine's thread while nothing is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Idle {
    /// Sleeps; doorbells are trapped.
    Sleep,
    /// Spins for a while, then looks from time to time.
    Adapt,
    /// Spins.
    Spin,
}

/// Finds what was rung on doorbell pages that the guest writes without telling.
pub trait Hints<F: QueueFormat>: Send {
    /// Passes what it finds to [`Engine::hint`].
    fn look(&mut self, engine: &mut Engine<F>);
}

/// State behind the mutex.
#[derive(Debug)]
pub(super) struct Guarded<F: QueueFormat> {
    pub engine: Engine<F>,
    /// When the engine thread wakes up by itself, on the clock; `None` while it
    /// is awake or waits for ever.
    wakes_at: Option<u64>,
    stop: bool,
}

/// Work that is left when an engine has been given back.
#[derive(Debug)]
pub(super) struct Left {
    wakes: bool,
    discarded: Discarded,
}

/// An engine, shared by the threads of the program.
#[derive(Debug)]
pub struct SharedEngine<F: QueueFormat> {
    guarded: Mutex<Guarded<F>>,
    wake: Condvar,
    /// Open while the thread polls.
    mailbox: Mailbox<F>,
    /// The thread polls, and is about to look away for a moment or does.
    paused: AtomicBool,
    deferred: Deferred,
    /// Where other engines leave word.
    door: Option<MyDoor>,
    /// Nanoseconds in which there was work, as far as they have been added up.
    busy: AtomicU64,
    calls: CallTimes,
}

impl<F: QueueFormat + 'static> SharedEngine<F> {
    /// Shares `engine`, which may leave something to do `afterwards`. Others leave word at its `door`.
    #[must_use]
    pub fn new(engine: Engine<F>, deferred: Deferred, door: Option<MyDoor>) -> Arc<Self> {
        Arc::new(Self {
            guarded: Mutex::new(Guarded {
                engine,
                wakes_at: None,
                stop: false,
            }),
            wake: Condvar::new(),
            mailbox: Mailbox::default(),
            paused: AtomicBool::new(false),
            deferred,
            door,
            busy: AtomicU64::new(0),
            calls: CallTimes::default(),
        })
    }

    /// Waits for the engine. To be given back with [`SharedEngine::leave`].
    pub(super) fn lock(&self) -> MutexGuard<'_, Guarded<F>> {
        self.guarded.lock()
    }

    /// Calls the engine's thread, which sleeps or is about to.
    pub(super) fn call(&self) {
        // A thread that is about to sleep has the mutex until it does.
        drop(self.guarded.lock());
        self.wake.notify_one();
    }

    /// Nanoseconds in which there was work for the engine.
    pub fn busy(&self) -> u64 {
        self.busy.load(Ordering::Relaxed)
    }

    /// Returns the times of calls since the last question.
    pub fn calls(&self) -> Calls {
        self.calls.ask()
    }

    /// There was work since then.
    fn worked(&self, since: Instant) {
        let nanoseconds = since.elapsed().as_nanos() as u64;
        self.busy.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Does something with the engine, by the engine thread where it polls; the
    /// engine thread executes what became ready.
    pub fn with<R, A>(&self, act: A) -> R
    where
        R: Send + 'static,
        A: FnOnce(&mut Engine<F>) -> R + Send + 'static,
    {
        match self.mailbox.leave(act, || self.call_paused()) {
            Ok(result) => result,
            Err(act) => {
                let mut guarded = self.guarded.lock();
                let result = self.calls.time(|| act(&mut guarded.engine));
                self.leave(guarded);
                result
            }
        }
    }

    /// Takes away what a function had before it was reset, with others at the
    /// engine between. The function has no more than one reset's remains if its
    /// thread calls this after each.
    pub fn clear_away(&self, vf: VfId) {
        while self.with(move |engine| engine.clear_away(vf)) {}
    }

    /// Gives the engine back, and wakes its thread if there is work for it.
    fn leave(&self, guarded: MutexGuard<'_, Guarded<F>>) {
        let left = self.release(guarded);
        self.finish(left);
    }

    /// Gives the engine back, and returns the work that is left. That work takes engines itself, so it waits until
    /// the caller has given all engines back: [`SharedEngine::finish`].
    pub(super) fn release(&self, mut guarded: MutexGuard<'_, Guarded<F>>) -> Left {
        let discarded = guarded.engine.take_discarded();
        let deadline = guarded.engine.next_deadline();
        let sooner = match (deadline, guarded.wakes_at) {
            (Some(deadline), Some(wakes_at)) => deadline < wakes_at,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let wakes = sooner || guarded.engine.polls();
        // To wake a thread is a system call that may take long: nobody is to
        // wait for it. A spinning engine thread needs no call; the condition
        // variable then has no waiter and this is one load.
        drop(guarded);
        Left { wakes, discarded }
    }

    /// Does what is left when an engine has been given back.
    pub(super) fn finish(&self, left: Left) {
        self.deferred.act();
        if left.wakes {
            self.wake.notify_one();
        }
        drop(left.discarded);
    }

    /// Starts the engine thread.
    ///
    /// # Errors
    /// When the thread cannot be started, or `cpu` is not a processor it may
    /// run on.
    pub fn start(
        self: &Arc<Self>,
        idle: Idle,
        cpu: Option<usize>,
        clock: Arc<dyn Clock>,
        hints: Box<dyn Hints<F>>,
    ) -> io::Result<EngineThread<F>> {
        let shared = Arc::clone(self);
        let (pinned, result) = std::sync::mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || {
                let outcome = cpu.map_or(Ok(()), pin);
                let failed = outcome.is_err();
                let _ = pinned.send(outcome);
                if !failed {
                    shared.serve(idle, clock.as_ref(), hints);
                }
            })?;
        let started = EngineThread {
            shared: Arc::clone(self),
            thread: Some(thread),
        };
        match result.recv() {
            Ok(Ok(())) => Ok(started),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the engine thread ended at once")),
        }
    }

    fn serve(&self, idle: Idle, clock: &dyn Clock, mut hints: Box<dyn Hints<F>>) {
        if idle == Idle::Adapt
            && let Err(error) = set_timerslack(TIMER_SLACK)
        {
            tracing::warn!("pauses of the engine will be longer than necessary: {error}");
        }
        if let Err(error) = vmm_socket::shorten_slice() {
            tracing::debug!("the engine's thread has long slices: {error}");
        }
        let mut guarded = self.guarded.lock();
        let mut quiet = 0_u32;
        let mut pause = Duration::ZERO;
        let mut open = false;
        while !guarded.stop {
            if idle != Idle::Sleep && guarded.engine.polls() {
                if !open {
                    self.mailbox.open();
                    open = true;
                }
                let pausing = idle == Idle::Adapt && quiet >= SPIN_TURNS;
                let turns = if pausing { LOOK_TURNS } else { TURNS_PER_ROUND };
                let since = Instant::now();
                let idled = quiet;
                quiet = self.poll_round(&mut guarded, hints.as_mut(), quiet, turns);
                if quiet < idled + turns {
                    self.worked(since);
                }
                if idle == Idle::Adapt && quiet >= SPIN_TURNS {
                    pause = (pause + PAUSE_STEP).min(LONGEST_PAUSE);
                    self.paused.store(true, Ordering::SeqCst);
                    if !self.is_called(true) && self.mailbox.jobs() == 0 {
                        self.wake.wait_for(&mut guarded, pause);
                    }
                    self.paused.store(false, Ordering::Relaxed);
                    self.is_called(false);
                } else {
                    pause = Duration::ZERO;
                }
            } else {
                self.look_at_door(&mut guarded.engine);
                let since = Instant::now();
                let more = self.calls.time(|| guarded.engine.run());
                self.worked(since);
                // To hand the engine to a thread that sleeps, and to get it back, takes longer than its job.
                if more && !open {
                    self.mailbox.open();
                    open = true;
                } else if more {
                    self.do_jobs(&mut guarded);
                } else if open {
                    self.finish_jobs(&mut guarded);
                    open = false;
                }
                if !self.tidy(&mut guarded) {
                    if more {
                        MutexGuard::bump(&mut guarded);
                    } else {
                        self.sleep(&mut guarded, clock);
                    }
                }
            }
        }
        self.finish_jobs(&mut guarded);
    }

    /// A number of turns; returns how many turns there has been no work.
    fn poll_round(
        &self,
        guarded: &mut MutexGuard<'_, Guarded<F>>,
        hints: &mut dyn Hints<F>,
        mut quiet: u32,
        turns: u32,
    ) -> u32 {
        for turn in 0..turns {
            if turn.is_multiple_of(LOOK_EVERY) || !guarded.engine.is_hot() {
                hints.look(&mut guarded.engine);
            }
            self.look_at_door(&mut guarded.engine);
            if self.calls.time(|| guarded.engine.poll()) {
                quiet = 0;
            } else {
                quiet = quiet.saturating_add(1);
                if quiet > PAUSE_AFTER {
                    std::hint::spin_loop();
                }
            }
            if self.do_jobs(guarded) {
                quiet = 0;
            }
            if !self.tidy(guarded) {
                MutexGuard::bump(guarded);
            }
        }
        quiet
    }

    /// Does the jobs that have been left until now. Whether there are any.
    #[inline]
    fn do_jobs(&self, guarded: &mut MutexGuard<'_, Guarded<F>>) -> bool {
        let jobs = self.mailbox.jobs();
        for _ in 0..jobs {
            if let Some(job) = self.mailbox.take() {
                let engine = &mut guarded.engine;
                self.calls.time(|| job.run(engine));
            }
        }
        jobs > 0
    }

    /// The thread takes no more jobs: does those that it has been left.
    fn finish_jobs(&self, guarded: &mut MutexGuard<'_, Guarded<F>>) {
        for job in self.mailbox.close() {
            job.run(&mut guarded.engine);
        }
    }

    /// Calls the engine's thread if it has paused.
    fn call_paused(&self) {
        if self.paused.load(Ordering::SeqCst) {
            self.call();
        }
    }

    /// Does what a turn has left to do while others may have the engine. Whether there was anything.
    #[inline]
    fn tidy(&self, guarded: &mut MutexGuard<'_, Guarded<F>>) -> bool {
        let due = self.deferred.is_due() || guarded.engine.has_discarded();
        if due {
            let discarded = guarded.engine.take_discarded();
            MutexGuard::unlocked_fair(guarded, || {
                self.deferred.act();
                drop(discarded);
            });
        }
        due
    }

    /// Has the engine look at what others have left word of.
    #[inline]
    fn look_at_door(&self, engine: &mut Engine<F>) {
        if let Some(door) = &self.door
            && door.has_mail()
        {
            engine.wake();
        }
    }

    /// The thread is about to sleep, or not any more. Whether there is something to do first.
    fn is_called(&self, asleep: bool) -> bool {
        let door = self.door.as_ref();
        door.is_some_and(|door| door.sleep(asleep))
    }

    /// Sleeps until called, or until the engine's next deadline.
    fn sleep(&self, guarded: &mut MutexGuard<'_, Guarded<F>>, clock: &dyn Clock) {
        if self.is_called(true) {
            self.is_called(false);
            return MutexGuard::bump(guarded);
        }
        self.wait(guarded, clock);
        self.is_called(false);
    }

    fn wait(&self, guarded: &mut MutexGuard<'_, Guarded<F>>, clock: &dyn Clock) {
        let deadline = guarded.engine.next_deadline();
        match deadline {
            Some(deadline) => {
                let now = clock.now();
                if deadline > now {
                    guarded.wakes_at = Some(deadline);
                    self.wake
                        .wait_for(guarded, Duration::from_nanos(deadline - now));
                } else {
                    MutexGuard::bump(guarded);
                }
            }
            None => self.wake.wait(guarded),
        }
        guarded.wakes_at = None;
    }

    fn stop(&self) {
        self.guarded.lock().stop = true;
        self.wake.notify_one();
    }
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}

/// The running engine thread; stops when dropped.
#[derive(Debug)]
pub struct EngineThread<F: QueueFormat> {
    shared: Arc<SharedEngine<F>>,
    thread: Option<JoinHandle<()>>,
}

impl<F: QueueFormat> Drop for EngineThread<F> {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
