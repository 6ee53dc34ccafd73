//! The engines, each with a thread of its own, and which VF lives in which.

mod call_times;
pub mod deferred;
pub mod dma;
pub mod engine;
pub mod failures;
mod mailbox;
pub mod placement;
pub mod vf_host;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use connectx::Turn;
use hca::image::ImageError;
use hca::transport::{Crossings, Homes, Mesh};
use hca::{Clock, Engine, PortView, QueueFormat, VfId};
use parking_lot::MutexGuard;

use crate::daemon::engines::call_times::Calls;
use crate::daemon::engines::deferred::{Bell, Deferred, Later, Task};
use crate::daemon::engines::engine::{EngineThread, Guarded, Hints, Idle, SharedEngine};
use crate::daemon::ports::Inbox;

/// Time limit for packets that are on their way to a resting function: longer than links take, and shorter than a
/// client waits for an answer.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// All engines.
#[derive(Debug)]
pub struct Engines<F: QueueFormat> {
    all: Vec<Arc<SharedEngine<F>>>,
    homes: Arc<Homes>,
    /// By engine; none where there is one alone.
    crossings: Vec<Arc<Crossings>>,
}

/// Calls a thread that waits for arrivals. It may have other reasons to be unparked.
#[derive(Debug)]
struct Arrivals {
    any: AtomicBool,
    waiter: Thread,
}

impl Arrivals {
    fn here() -> Arc<Self> {
        Arc::new(Self {
            any: AtomicBool::new(false),
            waiter: thread::current(),
        })
    }

    /// Waits for the next ones. Whether there were any before `end`.
    fn wait(&self, end: Instant) -> bool {
        while !self.any.swap(false, Ordering::Acquire) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            thread::park_timeout(left);
        }
        true
    }
}

impl Wake for Arrivals {
    fn wake(self: Arc<Self>) {
        self.any.store(true, Ordering::Release);
        self.waiter.unpark();
    }
}

/// Calls an engine that sleeps.
#[derive(Debug)]
struct Caller<F: QueueFormat>(OnceLock<Weak<SharedEngine<F>>>);

impl<F: QueueFormat> Default for Caller<F> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<F: QueueFormat> Wake for Caller<F>
where
    SharedEngine<F>: Send + Sync,
{
    fn wake(self: Arc<Self>) {
        if let Some(engine) = self.0.get().and_then(Weak::upgrade) {
            engine.call();
        }
    }
}

/// An engine that is to be one of several, and what it leaves to be done.
pub struct Part<F: QueueFormat> {
    /// With all functions.
    pub engine: Engine<F>,
    /// Rung by whatever the engine leaves to be done.
    pub bell: Bell,
    /// Tasks that the bell rings for.
    pub tasks: Vec<Task>,
}

impl<F: QueueFormat> std::fmt::Debug for Part<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").finish_non_exhaustive()
    }
}

impl<F: QueueFormat + 'static> Engines<F> {
    /// Joins `parts`, which have the same functions. `homes` has the number of each function's engine. The functions
    /// of `ports`, which live in no engine, come behind. Also returns the links of these ports.
    #[must_use]
    pub fn new(
        parts: Vec<Part<F>>,
        homes: &Arc<Homes>,
        ports: &[Arc<Inbox>],
    ) -> (Arc<Self>, Vec<Mesh>) {
        let homes = Arc::clone(homes);
        let count = parts.len();
        let members = count + ports.len();
        if members == 1 {
            let shared =
                |Part {
                     engine,
                     bell,
                     tasks,
                 }| { SharedEngine::new(engine, Deferred::new(bell, tasks), None) };
            let alone = Self {
                all: parts.into_iter().map(shared).collect(),
                homes,
                crossings: Vec::new(),
            };
            return (Arc::new(alone), Vec::new());
        }
        // A thread with a message for an engine that sleeps calls it when it has given its own engine back.
        let callers: Vec<Vec<Arc<Later>>> = parts
            .iter()
            .map(|part| {
                let callers = (0..members).map(|_| Later::new(part.bell.clone()));
                callers.map(Arc::new).collect()
            })
            .collect();
        // The thread of a port has no engine, and calls at once.
        let direct: Vec<Arc<Caller<F>>> = (0..count).map(|_| Arc::default()).collect();
        let waker = |from: usize, to: usize| match callers.get(from) {
            Some(callers) => Waker::from(Arc::clone(&callers[to])),
            None if to < count => Waker::from(Arc::clone(&direct[to])),
            None => Waker::from(Arc::clone(&ports[to - count])),
        };
        let mut meshes = Mesh::all(members, &homes, waker);
        let of_ports = meshes.split_off(count);
        meshes.iter_mut().for_each(|mesh| mesh.set_engines(count));
        let crossings = meshes.iter().map(Mesh::crossings).collect();
        let engines = Arc::new_cyclic(|known: &std::sync::Weak<Self>| Self {
            all: parts
                .into_iter()
                .zip(meshes)
                .zip(callers)
                .map(|((part, mesh), callers)| {
                    let Part {
                        mut engine,
                        bell,
                        mut tasks,
                    } = part;
                    let door = mesh.door();
                    engine.join(mesh);
                    let known = known.clone();
                    let ports = ports.to_vec();
                    tasks.push(Box::new(move || {
                        let callers = callers.iter().enumerate();
                        for (at, _) in callers.filter(|(_, caller)| caller.take()) {
                            if let Some(port) = at.checked_sub(count).and_then(|at| ports.get(at)) {
                                port.ring();
                            } else if let Some(engines) = known.upgrade() {
                                engines.all[at].call();
                            }
                        }
                    }));
                    SharedEngine::new(engine, Deferred::new(bell, tasks), Some(door))
                })
                .collect(),
            homes,
            crossings,
        });
        for (caller, engine) in direct.iter().zip(&engines.all) {
            let _ = caller.0.set(Arc::downgrade(engine));
        }
        (engines, of_ports)
    }

    /// Whether a function lives in no engine.
    #[must_use]
    pub fn is_apart(&self, vf: VfId) -> bool {
        self.homes.of(vf) >= self.all.len()
    }

    /// One after the other.
    pub fn each(&self) -> impl ExactSizeIterator<Item = &Arc<SharedEngine<F>>> {
        self.all.iter()
    }

    /// The number of the engine that a function lives in.
    #[must_use]
    pub fn home(&self, vf: VfId) -> usize {
        self.homes.of(vf)
    }

    /// The engine that a function lives in, as of now.
    pub fn home_of(&self, vf: VfId) -> &SharedEngine<F> {
        // The state of a port in engines is the same in all.
        self.all.get(self.homes.of(vf)).unwrap_or(&self.all[0])
    }

    /// Returns the times of the slowest engine's calls since the last question.
    #[must_use]
    pub fn calls(&self) -> Calls {
        let each = self.all.iter().map(|engine| engine.calls());
        each.fold(Calls::default(), |most, it| Calls {
            long: most.long.max(it.long),
            longest: most.longest.max(it.longest),
        })
    }

    /// Returns the traffic of a function with functions of another engine, in units of four octets.
    #[must_use]
    pub fn crossed(&self, vf: VfId, engine: usize) -> u64 {
        let counted = self.crossings.iter();
        counted.map(|crossings| crossings.read(vf, engine)).sum()
    }

    /// Returns the number of frames that an engine has sent to others, and the bytes of all their packets.
    #[must_use]
    pub fn sent(&self, engine: usize) -> [u64; 2] {
        let counted = self.crossings.get(engine).map(|crossings| crossings.sent());
        let [frames, words] = counted.unwrap_or_default();
        [frames, words * 4]
    }

    /// Does something with a function's engine, which stays its engine meanwhile.
    pub fn with<R, A>(&self, vf: VfId, act: A) -> R
    where
        R: Send + 'static,
        A: FnOnce(&mut Engine<F>) -> R + Send + 'static,
    {
        self.act(vf, Turn::Later, act)
    }

    /// Takes away what a function had before it was reset.
    pub fn clear_away(&self, vf: VfId) {
        self.home_of(vf).clear_away(vf);
    }

    /// Does something with the engine that a function lives in, which is looked for once more when the function has
    /// moved meanwhile. If the function has work from before, it has had its turn, and the engine thread does this
    /// work too when it has the next one.
    pub fn act<R, A>(&self, vf: VfId, turn: Turn, mut act: A) -> R
    where
        R: Send + 'static,
        A: FnOnce(&mut Engine<F>) -> R + Send + 'static,
    {
        let apart = self.is_apart(vf);
        loop {
            let engine = self.home_of(vf);
            let here = move |engine: &mut Engine<F>| {
                if !apart && !engine.vf(vf).is_home() {
                    return Err(act);
                }
                let runs = turn == Turn::Now && !engine.vf(vf).is_pending();
                let result = act(engine);
                if runs {
                    engine.run_vf(vf);
                }
                Ok(result)
            };
            match engine.with(here) {
                Ok(result) => return result,
                Err(again) => act = again,
            }
        }
    }

    /// Says to all engines what a function's port is like. Its own is told to do something `more`,
    /// whether the port was Active and whether it is.
    pub fn set_port(
        &self,
        vf: VfId,
        port: PortView,
        more: impl FnOnce(&mut Engine<F>, bool, bool) + Send + 'static,
    ) {
        if self.all.len() > 1 {
            for engine in &self.all {
                let port = port.clone();
                engine.with(move |engine| {
                    if !engine.vf(vf).is_home() {
                        engine.vf_mut(vf).set_port(port);
                    }
                });
            }
        }
        self.with(vf, move |engine| {
            let (was, is) = (engine.vf(vf).port().active, port.active);
            engine.vf_mut(vf).set_port(port);
            more(engine, was, is);
        });
    }

    /// Lets a function rest. All engines know, so that nobody sends to it any more.
    pub fn quiesce(&self, vf: VfId) {
        self.each_other(vf, move |engine| engine.quiesce(vf));
        self.with(vf, move |engine| engine.quiesce(vf));
    }

    /// Lets a resting function go on. Messages that waited for it come before new ones.
    pub fn resume(&self, vf: VfId) {
        self.act(vf, Turn::Now, move |engine| engine.resume(vf));
        self.each_other(vf, move |engine| engine.resume(vf));
    }

    fn each_other(&self, vf: VfId, act: impl Fn(&mut Engine<F>) + Send + Copy + 'static) {
        for engine in self.all.iter().filter(|_| self.all.len() > 1) {
            engine.with(move |engine| {
                if !engine.vf(vf).is_home() {
                    act(engine);
                }
            });
        }
    }

    /// Waits until nothing is on its way any more from or to a function that rests: as long as links are slow, and
    /// not longer than a second. One thread at a time may do that.
    pub fn drain(&self, vf: VfId) {
        let carries = |engine: &Arc<SharedEngine<F>>| engine.with(move |engine| engine.carries(vf));
        if !self.all.iter().any(carries) {
            return;
        }
        let end = Instant::now() + LONGEST_DRAIN;
        let arrivals = Arrivals::here();
        // A frame that leaves one engine's ring arrives at another one, so that all of them tell, and all of them are
        // asked again.
        self.call_at_arrivals(Some(&arrivals));
        while self.all.iter().any(carries) && arrivals.wait(end) {}
        self.call_at_arrivals(None);
    }

    fn call_at_arrivals(&self, waiter: Option<&Arc<Arrivals>>) {
        for engine in &self.all {
            let waker = waiter.map(|waiter| Waker::from(Arc::clone(waiter)));
            engine.with(move |engine| engine.call_at_arrivals(waker));
        }
    }

    /// Moves functions, of which those at one port have to be together, to another engine while they
    /// work. All engines stand still for as long as it takes to make images of their objects and objects
    /// of those. Nothing gets lost.
    ///
    /// # Errors
    /// [`ImageError`]; none has moved then.
    pub fn relocate(&self, functions: &[VfId], to: usize) -> Result<(), ImageError> {
        let mut all: Vec<_> = self.all.iter().map(|engine| engine.lock()).collect();
        // Frames in the rings come before those that are sent from now on.
        while all
            .iter_mut()
            .fold(false, |any, it| it.engine.take_in() | any)
        {}
        let mut left = Vec::new();
        let mut outcome = Ok(());
        for &vf in functions {
            let from = self.homes.of(vf);
            if from == to {
                continue;
            }
            outcome = self.hand_over(&mut all, vf, to);
            if outcome.is_err() {
                break;
            }
            left.push((vf, from));
        }
        if outcome.is_err() {
            for &(vf, from) in &left {
                // There it was a moment ago.
                let _ = self.hand_over(&mut all, vf, from);
            }
        }
        let engines = self.all.iter();
        let given_back = engines.zip(all).map(|(engine, it)| engine.release(it));
        let given_back: Vec<_> = given_back.collect();
        for (engine, rest) in self.all.iter().zip(given_back) {
            engine.finish(rest);
            // The work that would have woken it may be another engine's now.
            engine.call();
        }
        for (vf, from) in left {
            for engine in [from, to] {
                self.all[engine].clear_away(vf);
            }
        }
        outcome
    }

    fn hand_over(
        &self,
        all: &mut [MutexGuard<'_, Guarded<F>>],
        vf: VfId,
        to: usize,
    ) -> Result<(), ImageError> {
        let from = self.homes.of(vf);
        let Ok([from, there]) = all.get_disjoint_mut([from, to]) else {
            return Ok(());
        };
        from.engine.hand_over(vf, &mut there.engine)?;
        self.homes.set(vf, to as u16);
        Ok(())
    }

    /// Starts the threads, the first of them on processor `cpu` and each other one on the next.
    ///
    /// # Errors
    /// The processor that one of them cannot be on, and what the system says.
    pub fn start(
        &self,
        idle: Idle,
        cpu: Option<usize>,
        clock: &Arc<dyn Clock>,
        mut hints: impl FnMut() -> Box<dyn Hints<F>>,
    ) -> Result<Vec<EngineThread<F>>, (Option<usize>, io::Error)>
    where
        F: Send + 'static,
    {
        let started = self.all.iter().enumerate().map(|(at, engine)| {
            let cpu = cpu.map(|first| first + at);
            let started = engine.start(idle, cpu, Arc::clone(clock), hints());
            started.map_err(|error| (cpu, error))
        });
        started.collect()
    }
}
