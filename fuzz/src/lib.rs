//! A machine for fuzz targets: an engine with functions on a trivial subnet,
//! all in one thread, with time that moves only when told.
//!
//! Its objects are created by commands in the driver's encoding, so that a
//! target begins where a guest would.

pub mod guest;
pub mod subnet;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use connectx::{Configuration, Function, FunctionState, Interrupts, Mlx5, Region, Software};
use hca::{Clock, Engine, PortView, Quota, VfId};
use wire::{Lid, PKey};

use guest::GuestMemory;
use subnet::{FixedPort, FixedSubnet};

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

/// Functions with LIDs 1, 2, … and full membership of the default partition.
#[derive(Debug)]
pub struct Machine {
    engine: Engine<Mlx5<GuestMemory>>,
    functions: Vec<Function>,
    ports: Vec<FixedPort>,
    guests: Vec<GuestMemory>,
    clock: Arc<TestClock>,
}

impl Machine {
    /// A machine with `count` functions, each with memory of its own.
    pub fn new(count: u16) -> Self {
        let clock = Arc::new(TestClock::default());
        let subnet = FixedSubnet::new(count);
        let mut engine = Engine::new(Box::new(subnet), clock.clone(), 0x5eed);
        let configuration = Configuration {
            bar_size: 256 << 10,
            quota: Quota {
                memory: 1 << 20,
                ..Quota::default()
            },
            ..Configuration::default()
        };
        let mut machine = Self {
            functions: Vec::new(),
            ports: Vec::new(),
            guests: Vec::new(),
            clock,
            engine: {
                engine.sweep();
                engine
            },
        };
        for index in 0..count {
            let guest = GuestMemory::new();
            let state = FunctionState::new(configuration, Box::new(NoInterrupts));
            let vf = machine
                .engine
                .add_vf(guest.clone(), state, configuration.quota);
            let port = FixedPort::new(index + 1);
            machine.engine.set_port(
                vf,
                PortView {
                    lid: Lid::new(index + 1),
                    lmc: 0,
                    active: true,
                    pkeys: vec![PKey::new(0xffff)],
                    gids: vec![port.gid],
                    ..PortView::default()
                },
            );
            machine.functions.push(Function::new(configuration));
            machine.ports.push(port);
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
        let mut backend = Software::new(&mut self.engine, VfId(vf as u16), &mut self.ports[vf]);
        let _ = self.functions[vf].write(region, offset, data, &mut backend);
        self.run();
    }

    /// Reads from a region of function `vf`.
    pub fn read(&mut self, vf: usize, region: Region, offset: u64, data: &mut [u8]) {
        self.functions[vf].read(region, offset, data, self.clock.now());
    }

    /// Size of a region of function `vf`.
    pub fn region_size(&self, vf: usize, region: Region) -> u64 {
        self.functions[vf].region_size(region)
    }

    /// Lets the engine run a bounded time.
    pub fn run(&mut self) {
        for _ in 0..64 {
            if !self.engine.run() {
                break;
            }
        }
    }

    /// Lets time pass, and what was to happen then.
    pub fn pass(&mut self, nanoseconds: u64) {
        self.clock.0.fetch_add(nanoseconds, Ordering::Relaxed);
        self.run();
    }

    /// Resets function `vf`.
    ///
    /// # Panics
    /// Where an object outlives that.
    pub fn reset(&mut self, vf: usize) {
        let id = VfId(vf as u16);
        let mut backend = Software::new(&mut self.engine, id, &mut self.ports[vf]);
        self.functions[vf].reset(&mut backend);
        for (kind, count) in self.engine.object_counts(id) {
            assert_eq!(count, 0, "{kind} objects outlive a reset");
        }
    }
}
