//! Answers of nodes that lie to a subnet manager, to all that it asks: it ends its sweeps, and one that hears the truth sets all
//! right.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use fabric::{Fabric, Station};
use libfuzzer_sys::fuzz_target;
use subnet_manager::{Config, CongestionControl, MinHop, SubnetManager, Transport};
use topologies::Hypervisors;
use wire::mad::SIZE;
use wire::{MadPacket, PortState};

/// One byte of an answer, after some that are true.
#[derive(Debug, Arbitrary)]
struct Lie {
    after: u8,
    at: u8,
    value: u8,
}

/// Packets of a manager, which hears lies while there are any.
struct Liar<'a, T> {
    true_one: T,
    lies: &'a mut std::vec::IntoIter<Lie>,
    next: &'a mut Option<Lie>,
    received: &'a mut usize,
}

impl<T: Transport> Transport for Liar<'_, T> {
    fn send(&mut self, packet: MadPacket) {
        self.true_one.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let mut packet = self.true_one.receive()?;
        *self.received += 1;
        assert!(*self.received < 100_000, "it asks without end");
        match self.next {
            Some(lie) if lie.after == 0 => {
                // The status, or what lies behind the header.
                let at = match lie.at % 234 {
                    at @ (0 | 1) => 4 + usize::from(at),
                    at => 22 + usize::from(at),
                };
                packet.mad[at % SIZE] = lie.value;
                *self.next = self.lies.next();
            }
            Some(lie) => lie.after -= 1,
            None => {}
        }
        Some(packet)
    }
}

fuzz_target!(|lies: Vec<Lie>| {
    let layout = Hypervisors::new(2, 2).expect("is possible");
    let mut fabric = Fabric::new(layout.topology()).expect("is right");
    let port = fabric
        .port_by_guid(layout.manager_guid())
        .expect("is there");
    let mut station = Station::of_manager(&mut fabric, port);
    let config = Config {
        timeout: Duration::from_millis(1),
        congestion: Some(CongestionControl::default()),
        ..Config::default()
    };
    let manager = || SubnetManager::new(config.clone(), Box::new(MinHop)).expect("is right");
    let (mut now, mut received) = (Duration::ZERO, 0);
    let mut lies = lies.into_iter();
    let mut next = lies.next();
    let mut liar = manager();
    for _ in 0..6 {
        let mut transport = Liar {
            true_one: station.at(&mut fabric),
            lies: &mut lies,
            next: &mut next,
            received: &mut received,
        };
        now = liar.poll(now, &mut transport).unwrap_or(now);
        fabric.advance(now);
        station.others.clear();
    }
    let mut manager = manager();
    for _ in 0..64 {
        now = manager
            .poll(now, &mut station.at(&mut fabric))
            .unwrap_or(now);
        fabric.advance(now);
    }
    assert!(manager.is_up(), "{:?}", manager.report().errors);
    for (hypervisor, vf) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let vf = layout.vf_guid(hypervisor, vf);
        let port = fabric.port_by_guid(vf).expect("is there");
        let info = fabric.port_info(port).expect("is a port");
        assert_eq!(info.port_state, PortState::Active, "{info}");
    }
});
