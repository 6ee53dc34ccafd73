//! The engines, each with a thread of its own, and which VF lives in which.

use std::io;
use std::sync::Arc;
use std::task::Waker;

use hca::image::ImageError;
use hca::transport::{Crossings, Homes, Mesh};
use hca::{Clock, Engine, Face, PortView, VfId};
use parking_lot::MutexGuard;

use crate::afterwards::{Afterwards, Bell, Errand, Later};
use crate::engine::{EngineThread, Guarded, Hints, Idle, SharedEngine};

/// All engines.
#[derive(Debug)]
pub struct Engines<F: Face> {
    all: Vec<Arc<SharedEngine<F>>>,
    homes: Arc<Homes>,
    /// By engine; none where there is one alone.
    crossings: Vec<Arc<Crossings>>,
}

/// An engine that is to be one of several, and what it leaves to be done.
pub struct Part<F: Face> {
    /// With all functions.
    pub engine: Engine<F>,
    /// Rung by whatever the engine leaves to be done.
    pub bell: Bell,
    /// What that is.
    pub errands: Vec<Errand>,
}

impl<F: Face> std::fmt::Debug for Part<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").finish_non_exhaustive()
    }
}

impl<F: Face> Engines<F> {
    /// Joins `parts`, which have the same functions. Of each function, `homes` has the number of the
    /// engine that it lives in.
    #[must_use]
    pub fn new(parts: Vec<Part<F>>, homes: Arc<Homes>) -> Arc<Self> {
        if parts.len() == 1 {
            let shared = |Part {
                              engine,
                              bell,
                              errands,
                          }| {
                SharedEngine::new(engine, Afterwards::new(bell, errands), None)
            };
            return Arc::new(Self {
                all: parts.into_iter().map(shared).collect(),
                homes,
                crossings: Vec::new(),
            });
        }
        // Who has something for an engine that sleeps calls it when he has given back his own.
        let callers: Vec<Vec<Arc<Later>>> = parts
            .iter()
            .map(|part| {
                let callers = parts.iter().map(|_| Later::new(part.bell.clone()));
                callers.map(Arc::new).collect()
            })
            .collect();
        let waker = |from: usize, to: usize| Waker::from(Arc::clone(&callers[from][to]));
        let meshes = Mesh::all(parts.len(), &homes, waker);
        let crossings = meshes.iter().map(Mesh::crossings).collect();
        Arc::new_cyclic(|known: &std::sync::Weak<Self>| Self {
            all: parts
                .into_iter()
                .zip(meshes)
                .zip(callers)
                .map(|((part, mesh), callers)| {
                    let Part {
                        mut engine,
                        bell,
                        mut errands,
                    } = part;
                    let door = mesh.door();
                    engine.join(mesh);
                    let known = known.clone();
                    errands.push(Box::new(move || {
                        for (at, caller) in callers.iter().enumerate() {
                            if caller.take()
                                && let Some(engines) = known.upgrade()
                            {
                                engines.all[at].call();
                            }
                        }
                    }));
                    SharedEngine::new(engine, Afterwards::new(bell, errands), Some(door))
                })
                .collect(),
            homes,
            crossings,
        })
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
        &self.all[self.homes.of(vf)]
    }

    /// What a function has exchanged with those of an engine other than its own, in units of four octets.
    #[must_use]
    pub fn crossed(&self, vf: VfId, engine: usize) -> u64 {
        let counted = self.crossings.iter();
        counted.map(|crossings| crossings.read(vf, engine)).sum()
    }

    /// Does something with a function's engine, which stays its engine meanwhile.
    pub fn with<R>(&self, vf: VfId, act: impl FnOnce(&mut Engine<F>) -> R) -> R {
        self.at_home(vf, act, |engine, act| engine.with(act))
    }

    /// The same, and gives the function a turn ([`SharedEngine::with_vf`]).
    pub fn with_turn<R>(&self, vf: VfId, act: impl FnOnce(&mut Engine<F>) -> R) -> R {
        self.at_home(vf, act, |engine, act| engine.with_vf(vf, act))
    }

    /// Looks at a function's engine without letting it work.
    pub fn inspect<R>(&self, vf: VfId, look: impl FnOnce(&Engine<F>) -> R) -> R {
        self.at_home(
            vf,
            |engine| look(engine),
            |engine, act| engine.with_idle(act),
        )
    }

    /// Takes away what a function had before it was reset.
    pub fn clear_away(&self, vf: VfId) {
        self.home_of(vf).clear_away(vf);
    }

    /// Finds the engine that a function lives in, once more when the function has moved meanwhile.
    fn at_home<R>(
        &self,
        vf: VfId,
        act: impl FnOnce(&mut Engine<F>) -> R,
        with: impl Fn(&SharedEngine<F>, &mut dyn FnMut(&mut Engine<F>)),
    ) -> R {
        let mut act = Some(act);
        let mut result = None;
        loop {
            with(self.home_of(vf), &mut |engine| {
                if engine.is_home(vf)
                    && let Some(act) = act.take()
                {
                    result = Some(act(engine));
                }
            });
            if let Some(result) = result.take() {
                return result;
            }
        }
    }

    /// Says to all engines what a function's port is like. Its own is told to do something `more`,
    /// whether the port was Active and whether it is.
    pub fn set_port(
        &self,
        vf: VfId,
        port: PortView,
        more: impl FnOnce(&mut Engine<F>, bool, bool),
    ) {
        if self.all.len() > 1 {
            for engine in &self.all {
                engine.with(|engine| {
                    if !engine.is_home(vf) {
                        engine.set_port(vf, port.clone());
                    }
                });
            }
        }
        self.with(vf, |engine| {
            let (was, is) = (engine.port(vf).active, port.active);
            engine.set_port(vf, port);
            more(engine, was, is);
        });
    }

    /// Moves functions, of which those at one port have to be together, to another engine while they
    /// work. All engines stand still for as long as it takes to make images of their objects and objects
    /// of those. Nothing gets lost.
    ///
    /// # Errors
    /// [`ImageError`]; none has moved then.
    pub fn relocate(&self, functions: &[VfId], to: usize) -> Result<(), ImageError> {
        let mut all: Vec<_> = self.all.iter().map(|engine| engine.lock()).collect();
        // What is in the rings comes before what is sent from now on.
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
            // What would have woken it may be another one's now.
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
