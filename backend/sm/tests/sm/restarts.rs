//! A manager that ends in the middle of a sweep, and the next one.

use std::io;
use std::os::fd::BorrowedFd;

use ibvswitch_sm::port::{Port, SimulatedPort};
use ibvswitch_sm::rehearsal::Rehearsal;
use ibvswitch_sm::service::{Signals, run};
use subnet_manager::{Config, MinHop, SubnetManager, Transport};
use wire::MadPacket;

use crate::place::Place;

/// A port that is gone after a number of packets.
struct Failing {
    port: SimulatedPort,
    left: usize,
}

impl Transport for Failing {
    fn send(&mut self, packet: MadPacket) {
        if self.left > 0 {
            self.left -= 1;
            self.port.send(packet);
        }
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.port.receive()
    }
}

impl Port for Failing {
    fn take(&mut self) -> io::Result<()> {
        if self.left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.port.take()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.port.flush()
    }

    fn resign(&mut self) {
        self.port.resign();
    }

    fn is_behind(&self) -> bool {
        self.port.is_behind()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.descriptor()
    }
}

fn manager() -> SubnetManager {
    SubnetManager::new(Config::default(), Box::new(MinHop)).expect("is right")
}

/// All packets of the first sweep are tried, in steps; the next manager leaves nothing to be changed.
#[test]
fn the_next_manager_completes_a_sweep() {
    let signals = Signals::new().expect("signals");
    let mut complete = false;
    for left in (1..).step_by(9) {
        let place = Place::ibsim();
        let port = |manages| SimulatedPort::new(&place.socket, None, manages).expect("a port");
        let mut failing = Failing {
            port: port(true),
            left,
        };
        let first = run(&mut manager(), &mut failing, &signals, true, |_| {}, |_| {});
        drop(failing);
        let mut next = manager();
        run(&mut next, &mut port(true), &signals, true, |_| {}, |_| {}).expect("goes on");
        assert_eq!(next.report().errors, [""; 0], "{left}");
        assert_eq!(next.report().active, 6, "{left}");
        let mut rehearsal = Rehearsal::new(port(false));
        run(
            &mut manager(),
            &mut rehearsal,
            &signals,
            true,
            |_| {},
            |_| {},
        )
        .expect("goes on");
        assert_eq!(
            rehearsal.report(),
            "0 changes; nothing was written\n",
            "{left}"
        );
        complete = first.is_ok();
        if complete {
            break;
        }
    }
    assert!(complete);
}
