//! DEVICE_SET_IRQS.

use std::os::fd::{AsFd, BorrowedFd};

use ibvswitch_vfio_user::testing::{BAR, TRIGGER, VECTORS};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::EventFd;
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

use crate::harness::{Served, borrow, eventfd, signals, words};

const NONE: u32 = 1;
const BOOL: u32 = 2;
const EVENTFD: u32 = 4;
const MASK: u32 = 8;
const UNMASK: u32 = 16;
const TRIGGERED: u32 = 32;
const INTX: u32 = 0;
const MSIX: u32 = 2;

impl Served {
    fn set(
        &mut self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> i32 {
        let answer = self.ask(8, &words(&[20, flags, index, start, count]), fds);
        assert!(answer.payload.is_empty());
        answer.error
    }

    fn set_bool(&mut self, action: u32, index: u32, start: u32, booleans: &[u8]) -> i32 {
        let count = booleans.len() as u32;
        let mut payload = words(&[20 + count, BOOL | action, index, start, count]);
        payload.extend_from_slice(booleans);
        self.ask(8, &payload, &[]).error
    }

    /// The device raises all MSI-X vectors once; which arrive?
    fn raised(&mut self, eventfds: &[EventFd]) -> Vec<usize> {
        for vector in 0..u32::from(VECTORS) + 2 {
            let mut write = TRIGGER.to_le_bytes().to_vec();
            write.extend_from_slice(&words(&[BAR, 4, vector]));
            assert_eq!(self.ask(10, &write, &[]).error, 0);
        }
        let arrived = |eventfd: &EventFd| match signals(eventfd) {
            0 => false,
            count => count == 1 || panic!("{count} signals"),
        };
        (0..eventfds.len())
            .filter(|&index| arrived(&eventfds[index]))
            .collect()
    }
}

fn eventfds(count: usize) -> Vec<EventFd> {
    (0..count).map(|_| eventfd()).collect()
}

#[test]
fn a_vector_signals_its_eventfd() {
    let mut served = Served::negotiated();
    let eventfds = eventfds(1);
    let payload = [
        0x14, 0, 0, 0, // argsz
        0x24, 0, 0, 0, // DATA_EVENTFD, ACTION_TRIGGER
        0x02, 0, 0, 0, // MSI-X
        0x07, 0, 0, 0, // start
        0x01, 0, 0, 0, // count
    ];
    assert_eq!(served.ask(8, &payload, &borrow(&eventfds)).error, 0);
    assert_eq!(served.raised(&eventfds), [0]);
}

#[test]
fn chunks_of_sixteen_as_qemu_sends_them() {
    let mut served = Served::negotiated();
    let eventfds = eventfds(40);
    for start in [0, 16, 32] {
        let chunk = &eventfds[start..(start + 16).min(40)];
        let set = served.set(
            EVENTFD | TRIGGERED,
            MSIX,
            start as u32,
            chunk.len() as u32,
            &borrow(chunk),
        );
        assert_eq!(set, 0);
    }
    assert_eq!(served.raised(&eventfds), Vec::from_iter(0..40));

    // Without descriptors, a part is disconnected; the rest stays.
    assert_eq!(served.set(EVENTFD | TRIGGERED, MSIX, 3, 30, &[]), 0);
    assert_eq!(
        served.raised(&eventfds),
        [0, 1, 2, 33, 34, 35, 36, 37, 38, 39]
    );

    // Another eventfd takes the place of one.
    let other = self::eventfds(1);
    assert_eq!(
        served.set(EVENTFD | TRIGGERED, MSIX, 0, 1, &borrow(&other)),
        0
    );
    assert_eq!(served.raised(&other), [0]);
    let counts = eventfds.iter().map(signals).collect::<Vec<_>>();
    assert_eq!((counts[0], counts[1]), (0, 1));

    // None of them.
    assert_eq!(served.set(NONE | TRIGGERED, MSIX, 0, 0, &[]), 0);
    assert!(served.raised(&eventfds).is_empty());
}

#[test]
fn the_client_triggers_vectors_itself() {
    let mut served = Served::negotiated();
    let eventfds = eventfds(8);
    assert_eq!(
        served.set(EVENTFD | TRIGGERED, MSIX, 4, 8, &borrow(&eventfds)),
        0
    );
    assert_eq!(served.set(NONE | TRIGGERED, MSIX, 5, 3, &[]), 0);
    let counts: Vec<u64> = eventfds.iter().map(signals).collect();
    assert_eq!(counts, [0, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(served.set_bool(TRIGGERED, MSIX, 4, &[1, 0, 0, 0xff]), 0);
    let counts: Vec<u64> = eventfds.iter().map(signals).collect();
    assert_eq!(counts, [1, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn a_masked_interrupt_waits() {
    let mut served = Served::negotiated();
    let eventfds = eventfds(1);
    assert_eq!(
        served.set(EVENTFD | TRIGGERED, INTX, 0, 1, &borrow(&eventfds)),
        0
    );
    assert_eq!(served.set(NONE | MASK, INTX, 0, 1, &[]), 0);
    for _ in 0..3 {
        assert_eq!(served.set(NONE | TRIGGERED, INTX, 0, 1, &[]), 0);
    }
    assert_eq!(signals(&eventfds[0]), 0);
    assert_eq!(served.set_bool(UNMASK, INTX, 0, &[0]), 0);
    assert_eq!(signals(&eventfds[0]), 0);
    assert_eq!(served.set_bool(UNMASK, INTX, 0, &[1]), 0);
    assert_eq!(signals(&eventfds[0]), 1);
    assert_eq!(served.set(NONE | UNMASK, INTX, 0, 1, &[]), 0);
    assert_eq!(signals(&eventfds[0]), 0);
}

#[test]
fn what_an_index_does_not_do() {
    let mut served = Served::negotiated();
    let eventfds = eventfds(1);
    for action in [MASK, UNMASK] {
        assert_eq!(served.set(NONE | action, MSIX, 0, 1, &[]), libc::ENOTTY);
        assert_eq!(
            served.set(EVENTFD | action, INTX, 0, 1, &borrow(&eventfds)),
            libc::ENOTTY
        );
    }
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    let eventfds = eventfds(3);
    let fds = borrow(&eventfds);
    assert_eq!(served.set(EVENTFD | TRIGGERED, MSIX, 0, 3, &fds), 0);
    let refused = [
        (EVENTFD | TRIGGERED, MSIX, 40, 1),
        (EVENTFD | TRIGGERED, MSIX, 39, 2),
        (EVENTFD | TRIGGERED, MSIX, 0, 41),
        (EVENTFD | TRIGGERED, MSIX, u32::MAX, 2),
        (EVENTFD | TRIGGERED, MSIX, 2, u32::MAX),
        (NONE | TRIGGERED, MSIX, 1, 0),
        (NONE | TRIGGERED, 1, 0, 1),
        (NONE | TRIGGERED, 5, 0, 0),
        (NONE | TRIGGERED, u32::MAX, 0, 1),
        (EVENTFD | TRIGGERED, MSIX, 0, 0),
        (BOOL | TRIGGERED, MSIX, 0, 0),
        (BOOL | TRIGGERED, MSIX, 0, 1),
        (NONE | MASK, INTX, 0, 0),
        (NONE, MSIX, 0, 1),
        (TRIGGERED, MSIX, 0, 1),
        (NONE | BOOL | TRIGGERED, MSIX, 0, 1),
        (NONE | MASK | TRIGGERED, MSIX, 0, 1),
        (NONE | TRIGGERED | 1 << 6, MSIX, 0, 1),
        (0, 0, 0, 0),
        (u32::MAX, MSIX, 0, 1),
    ];
    for (flags, index, start, count) in refused {
        let set = served.set(flags, index, start, count, &[]);
        assert_eq!(set, libc::EINVAL, "{flags:#x} {index} {start} {count}");
    }
    for count in [1, 2, 4] {
        assert_eq!(
            served.set(EVENTFD | TRIGGERED, MSIX, 0, count, &fds),
            libc::EINVAL
        );
    }
    for payload in [
        vec![],
        words(&[20, NONE | TRIGGERED, MSIX, 0]),
        words(&[19, NONE | TRIGGERED, MSIX, 0, 1]),
        words(&[24, NONE | TRIGGERED, MSIX, 0, 1]),
        words(&[u32::MAX, NONE | TRIGGERED, MSIX, 0, 1]),
        // Booleans for four vectors, said to be for three, five and 2^32 - 1.
        words(&[24, BOOL | TRIGGERED, MSIX, 0, 3, 0x0101_0101]),
        words(&[24, BOOL | TRIGGERED, MSIX, 0, 5, 0x0101_0101]),
        words(&[24, BOOL | TRIGGERED, MSIX, 0, u32::MAX, 0x0101_0101]),
    ] {
        assert_eq!(
            served.ask(8, &payload, &[]).error,
            libc::EINVAL,
            "{payload:x?}"
        );
    }
    assert!(eventfds.iter().all(|eventfd| signals(eventfd) == 0));
    assert_eq!(served.raised(&eventfds), [0, 1, 2]);
}

#[test]
fn only_eventfds_are_taken() {
    let mut served = Served::negotiated();
    let good = eventfd();
    let (_reader, pipe) = nix::unistd::pipe().unwrap();
    let socket = served.socket.try_clone().unwrap();
    for bad in [pipe.as_fd(), socket.as_fd()] {
        // All or none.
        let fds = [good.as_fd(), bad];
        assert_eq!(
            served.set(EVENTFD | TRIGGERED, MSIX, 0, 2, &fds),
            libc::EINVAL
        );
    }
    assert_eq!(served.set(NONE | TRIGGERED, MSIX, 0, 1, &[]), 0);
    assert_eq!(signals(&good), 0);

    // What looks like an eventfd and is none cannot be signalled.
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::empty()).unwrap();
    served.set(EVENTFD | TRIGGERED, MSIX, 0, 1, &[timer.as_fd()]);
    assert_eq!(served.set(NONE | TRIGGERED, MSIX, 0, 1, &[]), 0);
    served.assert_in_step();
}

#[test]
fn an_eventfd_whose_writers_block_holds_up_nobody() {
    let mut served = Served::negotiated();
    let full = eventfd();
    assert_eq!(
        served.set(EVENTFD | TRIGGERED, MSIX, 0, 1, &[full.as_fd()]),
        0
    );
    // The client shares the open file, so that its flags are the client's to
    // change at any time.
    full.write(u64::MAX - 1).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&full, FcntlArg::F_GETFL).unwrap());
    fcntl(&full, FcntlArg::F_SETFL(flags - OFlag::O_NONBLOCK)).unwrap();
    // More often than there can be operations under way.
    for _ in 0..10_000 {
        assert_eq!(served.set(NONE | TRIGGERED, MSIX, 0, 1, &[]), 0);
    }
    // No interrupt is lost to one that reads at last.
    assert!(full.read().unwrap() >= u64::MAX - 1);
    assert_eq!(served.set(NONE | TRIGGERED, MSIX, 0, 1, &[]), 0);
    assert_eq!(full.read().unwrap(), 1);
}

#[test]
fn every_signal_of_every_thread_is_counted() {
    const THREADS: u64 = 8;
    const SIGNALS: u64 = 20_000;
    let (mut client, served) = Served::client();
    let eventfds = eventfds(THREADS as usize);
    client.set_irqs(MSIX, 0, &borrow(&eventfds)).unwrap();
    std::thread::scope(|scope| {
        for vector in 0..THREADS as u16 {
            let interrupts = served.interrupts.clone();
            scope.spawn(move || (0..SIGNALS).for_each(|_| interrupts.trigger(vector)));
        }
    });
    for eventfd in &eventfds {
        assert_eq!(signals(eventfd), SIGNALS);
    }
}

#[test]
fn a_client_connects_more_than_a_message_holds() {
    let (mut client, mut served) = Served::client();
    let eventfds = eventfds(40);
    client.set_irqs(MSIX, 0, &borrow(&eventfds)).unwrap();
    assert_eq!(served.raised(&eventfds), Vec::from_iter(0..40));
    client.disable_irqs(MSIX).unwrap();
    assert!(served.raised(&eventfds).is_empty());
}
