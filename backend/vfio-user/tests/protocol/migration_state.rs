//! DEVICE_FEATURE's MIG_DEVICE_STATE: the states of a device that moves, and the ways between them.

use std::sync::atomic::Ordering::Relaxed;

use ibvswitch_vfio_user::testing::{BAR, RESET};

use crate::device_feature::{GET, SET};
use crate::harness::{Served, words};

const ERROR: u32 = 0;
const STOP: u32 = 1;
const RUNNING: u32 = 2;
const STOP_COPY: u32 = 3;
const RESUMING: u32 = 4;

fn state(served: &mut Served) -> u32 {
    let answer = served.ask(16, &words(&[16, GET | 2]), &[]);
    assert_eq!((answer.error, answer.payload.len()), (0, 16));
    assert!(answer.fds.is_empty());
    u32::from_le_bytes(answer.payload[8..12].try_into().unwrap())
}

fn go(served: &mut Served, to: u32) -> i32 {
    let request = words(&[16, SET | 2, to, 0]);
    let answer = served.ask(16, &request, &[]);
    if answer.error == 0 {
        assert_eq!(answer.payload, request);
        assert_eq!(state(served), to);
    }
    answer.error
}

#[test]
fn all_ways_between_all_states() {
    let mut served = Served::negotiated();
    assert_eq!(state(&mut served), RUNNING);
    let states = [STOP, RUNNING, STOP_COPY, RESUMING];
    for from in states {
        for to in states {
            assert_eq!((go(&mut served, from), go(&mut served, to)), (0, 0));
            assert_eq!(served.events.rests.load(Relaxed), to != RUNNING);
        }
    }
    served.assert_in_step();
}

/// Nobody asks for an error, and what this device cannot do is refused: the states of P2P and PRE_COPY,
/// and those that there are not.
#[test]
fn states_that_there_are_not() {
    let mut served = Served::negotiated();
    for to in [ERROR, 5, 6, 7, 8, 0xabcd, u32::MAX] {
        assert_eq!(go(&mut served, to), libc::EINVAL);
        assert_eq!(state(&mut served), RUNNING);
    }
    for payload in [words(&[16, SET | 2]), words(&[8, SET | 2, STOP, 0])] {
        assert_eq!(served.ask(16, &payload, &[]).error, libc::EINVAL);
    }
    served.assert_in_step();
}

#[test]
fn a_reset_leads_back() {
    let mut served = Served::negotiated();
    for from in [STOP, STOP_COPY, RESUMING] {
        assert_eq!(go(&mut served, from), 0);
        assert_eq!(served.ask(13, &[], &[]).error, 0);
        assert_eq!(state(&mut served), RUNNING);
        assert!(!served.events.rests.load(Relaxed));
    }
    served.assert_in_step();
}

/// Registers of a device can reset it, too. What was saved of it before is nobody's any more.
#[test]
fn a_reset_by_a_register_leads_back() {
    let mut served = Served::negotiated();
    let reset = [&words(&[RESET as u32, 0, BAR, 4])[..], &[0; 4]].concat();
    for from in [STOP, STOP_COPY, RESUMING, RUNNING] {
        assert_eq!(go(&mut served, from), 0);
        assert_eq!(served.ask(10, &reset, &[]).error, 0);
        assert_eq!(state(&mut served), RUNNING);
        assert!(!served.events.rests.load(Relaxed));
        let read = words(&[8 + 4096, 4096]);
        assert_eq!(served.ask(17, &read, &[]).error, libc::EINVAL);
    }
    assert_eq!(served.events.resets.load(Relaxed), 4);
    // Nothing is an image of this device.
    assert_eq!(go(&mut served, RESUMING), 0);
    let image = [&words(&[8 + 4, 4])[..], &[0; 4]].concat();
    assert_eq!(served.ask(18, &image, &[]).error, 0);
    assert_eq!(go(&mut served, RUNNING), libc::EINVAL);
    assert_eq!(state(&mut served), ERROR);
    assert_eq!(served.ask(10, &reset, &[]).error, 0);
    assert_eq!(state(&mut served), RUNNING);
    served.assert_in_step();
}

/// The next client finds a device that runs.
#[test]
fn a_client_that_goes_leaves_nobody_resting() {
    let mut served = Served::negotiated();
    assert_eq!(go(&mut served, STOP_COPY), 0);
    let events = std::sync::Arc::clone(&served.events);
    served.end();
    assert!(!events.rests.load(Relaxed));
}
