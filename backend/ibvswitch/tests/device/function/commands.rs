//! Commands reach an engine whether its thread polls, pauses or sleeps.

use std::sync::Barrier;
use std::thread;

use crate::daemon::{Daemon, HALF, Peer};
use test_driver::{Data, SendRequest, Transport};
use testing::Configuration;

/// Times that each client makes the engine poll and sleep again.
const TIMES: usize = 60;

/// Clients whose queue pairs come and go, so that the engine begins and ends to poll while others have
/// commands for it.
fn comes_and_goes(doorbells: &str, engines: usize) {
    let names = ["vm1", "vm2", "vm3"];
    let engine = Configuration::new()
        .set("engine.threads", engines)
        .set("engine.doorbells", doorbells);
    let hypervisors = names.iter().fold(engine, |it, name| {
        it.hypervisor(&format!("of-{name}"), [name])
    });
    let daemon = Daemon::configured(hypervisors);
    let begin = Barrier::new(names.len());
    thread::scope(|scope| {
        for name in names {
            let (daemon, begin) = (&daemon, &begin);
            scope.spawn(move || {
                let mut peer = Peer::open(daemon, name);
                begin.wait();
                for seed in 1..=TIMES as u64 {
                    let mut to = peer.qp(Transport::Rc);
                    let access = test_driver::Access::ALL;
                    let own = test_driver::Connection::to(peer.port.lid, to.number());
                    to.connect(access, &own).expect("connected to itself");
                    peer.fill(0, HALF, seed);
                    let from = [peer.sge(0, HALF)];
                    let write = SendRequest::write(peer.remote(HALF), Data::Memory(&from));
                    peer.execute(&mut to, &write);
                    peer.verify(HALF, HALF, seed);
                    // With the queue pair goes what the engine polls.
                    drop(to);
                }
            });
        }
        // Somebody looks on, and moves them where there is another engine.
        scope.spawn(|| {
            for turn in 0..8 {
                daemon.ask(&["status"]);
                if engines > 1 {
                    let to = (turn % engines).to_string();
                    daemon.ask(&["vf", "pin", "vm2", "--engine", &to]);
                }
            }
        });
    });
    assert_eq!(daemon.vf("vm1")["objects"]["qp"], 0);
}

#[test]
fn an_engine_that_polls_takes_commands() {
    comes_and_goes("poll", 1);
}

#[test]
fn an_engine_that_pauses_takes_commands() {
    comes_and_goes("adaptive", 1);
}

#[test]
fn engines_that_poll_take_commands_of_functions_that_move() {
    comes_and_goes("poll", 2);
}
