//! Answers that are wrong in every possible way: the manager neither panics nor runs away.

use std::time::Duration;

use ibvswitch_subnet_manager::{Config, MinHop, SubnetManager, Transport};
use proptest::prelude::*;
use testing::Random;
use wire::MadPacket;
use wire::smp::Smp;

use crate::harness::{Link, Managed};

/// Changes bytes of the attributes in every `often`-th answer.
struct Liar<'a> {
    link: &'a mut Link,
    random: Random,
    often: u64,
    received: usize,
}

impl Transport for Liar<'_> {
    fn send(&mut self, packet: MadPacket) {
        self.link.send(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        let mut packet = self.link.receive()?;
        self.received += 1;
        if self.random.number().is_multiple_of(self.often) {
            for _ in 0..=self.random.number() % 8 {
                let (at, value) = (self.random.number() as usize, self.random.number() as u8);
                if let Ok(mut smp) = Smp::new_checked(&mut packet.mad[..]) {
                    smp.data_mut()[at % 64] = value;
                }
            }
        }
        Some(packet)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn lies_do_no_harm(random in any::<u64>(), often in 1u64..20) {
        let config = Config {
            timeout: Duration::from_millis(1),
            ..Config::default()
        };
        let (mut managed, _) = Managed::hypervisors(2, 2, config.clone());
        let mut liar = Liar {
            link: &mut managed.link,
            random: Random::new(random),
            often,
            received: 0,
        };
        let mut now = Duration::ZERO;
        for _ in 0..6 {
            now = managed.manager.poll(now, &mut liar).unwrap_or(now);
            // Invented ports are asked for and looked behind, each once in a sweep.
            prop_assert!(liar.received < 100_000);
        }
        // The truth heals it: what the lies made of the fabric is set right.
        managed.manager = SubnetManager::new(config, Box::new(MinHop)).unwrap();
        managed.settle();
        managed.all_active_and_reachable();
    }
}
