//! A machine for fuzz targets: an engine with functions on a trivial subnet,
//! all in one thread, with time that moves only when told.
//!
//! Its objects are created by commands in the driver's encoding, so that a
//! target begins where a guest would.

pub mod dynamic;
pub mod frames;
pub mod images;
pub mod machine;
pub mod mediation;
pub mod network;
pub mod paging;
pub mod ports;
pub mod rings;
pub mod signatures;
pub mod tags;
pub mod vms;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use connectx::{
    Configuration, Function, FunctionState, Host, Interrupts, IpOverInfiniBand, Mlx5, Parts,
    Region, Software, Turn,
};
use hca::{Clock, Engine, PortView, Quota, VfId};
use wire::{Lid, PKey};

use machine::guest::GuestMemory;
use machine::subnet::{FixedPort, FixedSubnet};

/// Time that moves when told, in nanoseconds.
#[derive(Debug, Default)]
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&mut self, _vector: u16) {}
}

type Fuzzed = Engine<Mlx5<GuestMemory>>;

/// A function's place in the engine, of the one thread that there is.
#[derive(Debug)]
struct Place {
    engine: Arc<Mutex<Fuzzed>>,
    vf: VfId,
    memory: GuestMemory,
}

fn lock(engine: &Mutex<Fuzzed>) -> MutexGuard<'_, Fuzzed> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host for Place {
    type Dma = GuestMemory;
    type Mapping = ();
    type Error = ();

    fn dma(&self) -> &GuestMemory {
        &self.memory
    }

    fn map(&mut self, (): ()) -> Result<(), ()> {
        Err(())
    }

    fn unmap(&mut self, _addr: u64, _size: u64) -> Result<(), ()> {
        Err(())
    }

    fn unmap_all(&mut self) {}

    fn with<R, A>(&self, _turn: Turn, act: A) -> R
    where
        A: FnOnce(&mut Fuzzed) -> R,
    {
        act(&mut lock(&self.engine))
    }

    fn clear_away(&self) {
        while lock(&self.engine).clear_away(self.vf) {}
    }

    fn release_memory(&self) {}
}

/// Functions with LIDs 1, 2, … and full membership of the default partition.
#[derive(Debug)]
pub struct Machine {
    engine: Arc<Mutex<Fuzzed>>,
    functions: Vec<Function<Software<Place>>>,
    guests: Vec<GuestMemory>,
    clock: Arc<TestClock>,
    /// Delay between functions, in nanoseconds.
    delay: u64,
}

impl Machine {
    /// A machine with `count` functions, each with memory of its own.
    pub fn new(count: u16) -> Self {
        Self::with_delay(count, 0)
    }

    /// The same, where what goes from one function to another takes its time, and so goes by frames.
    pub fn by_frames(count: u16) -> Self {
        const DELAY: u64 = 1000;
        Self::with_delay(count, DELAY)
    }

    fn with_delay(count: u16, delay: u64) -> Self {
        let clock = Arc::new(TestClock::default());
        let subnet = FixedSubnet::new(count, delay);
        let mut engine = Engine::new(Box::new(subnet), clock.clone(), 0x5eed);
        let configuration = Configuration {
            bar_size: 1 << 20,
            ipoib: IpOverInfiniBand::Enhanced,
            ..Configuration::default()
        };
        let quota = Quota {
            memory: 1 << 20,
            ..Quota::default()
        };
        engine.sweep();
        let mut machine = Self {
            functions: Vec::new(),
            guests: Vec::new(),
            clock,
            delay,
            engine: Arc::new(Mutex::new(engine)),
        };
        for index in 0..count {
            let guest = GuestMemory::new();
            let state = FunctionState::new(configuration, quota, Box::new(NoInterrupts));
            let port = FixedPort::new(index + 1);
            let mut engine = lock(&machine.engine);
            let vf = engine.add_vf(guest.clone(), state, quota);
            engine.vf_mut(vf).set_port(PortView {
                lid: Lid::new(index + 1),
                lmc: 0,
                active: true,
                pkeys: vec![PKey::new(0xffff)],
                gids: vec![port.gid],
                ..PortView::default()
            });
            drop(engine);
            let host = Place {
                engine: Arc::clone(&machine.engine),
                vf,
                memory: guest.clone(),
            };
            machine.functions.push(Function::new(Software::new(Parts {
                host,
                vf,
                configuration,
                doorbell_pages: None,
                clock: machine.clock.clone(),
                port: Box::new(port),
            })));
            machine.guests.push(guest);
        }
        machine
    }

    /// Memory of function `vf`.
    pub fn guest(&self, vf: usize) -> &GuestMemory {
        &self.guests[vf]
    }

    /// Writes to a region of function `vf`, and lets the engine run a bounded
    /// time.
    pub fn write(&mut self, vf: usize, region: Region, offset: u64, data: &[u8]) {
        let _ = self.functions[vf].write(region, offset, data);
        self.run();
    }

    /// Reads from a region of function `vf`.
    pub fn read(&mut self, vf: usize, region: Region, offset: u64, data: &mut [u8]) {
        self.functions[vf].read(region, offset, data);
    }

    /// Size of a region of function `vf`.
    pub fn region_size(&self, vf: usize, region: Region) -> u64 {
        self.functions[vf].region_size(region)
    }

    /// Lets the engine run a bounded time.
    pub fn run(&mut self) {
        for _ in 0..64 {
            if !lock(&self.engine).run() {
                break;
            }
        }
    }

    /// Lets time pass, and what was to happen then.
    pub fn pass(&mut self, nanoseconds: u64) {
        self.clock.0.fetch_add(nanoseconds, Ordering::Relaxed);
        self.run();
    }

    /// Lets what is under way arrive, and what answers it, for a few times there and back.
    pub fn arrive(&mut self) {
        if self.delay > 0 {
            for _ in 0..8 {
                self.pass(self.delay);
            }
        }
    }

    /// The image of function `vf`.
    ///
    /// # Panics
    /// Where it is none.
    pub fn save(&self, vf: usize) -> serde_json::Value {
        serde_json::to_value(self.functions[vf].save()).expect("an image is data")
    }

    /// Restores function `vf` from what may be an image.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn restore(&mut self, vf: usize, image: serde_json::Value) -> Result<(), String> {
        let image = serde_json::from_value(image).map_err(|error| error.to_string())?;
        let restored = self.functions[vf].restore(image);
        restored.map_err(|error| error.to_string())
    }

    /// Makes an image of function `vf`, which goes on from that.
    ///
    /// # Panics
    /// Where it cannot.
    pub fn go_on_from_image(&mut self, vf: usize) {
        let image = self.save(vf);
        let restored = self.restore(vf, image);
        restored.expect("an image that was saved");
        self.run();
    }

    /// Resets function `vf`.
    ///
    /// # Panics
    /// Where an object outlives that.
    pub fn reset(&mut self, vf: usize) {
        self.functions[vf].reset();
        for (kind, count) in lock(&self.engine).vf(VfId(vf as u16)).object_counts() {
            assert_eq!(count, 0, "{kind} objects outlive a reset");
        }
    }
}
