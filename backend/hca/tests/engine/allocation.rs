//! The data path allocates nothing once it has warmed up.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use hca::Transport;
use hca::work::{Operation, SendWr};

use crate::lab::{Lab, base, datagram, remote, request};

/// Counts the allocations of threads that ask for it.
struct Counting;

thread_local! {
    static COUNT: Cell<Option<usize>> = const { Cell::new(None) };
}

fn count() {
    // The thread may be past the life of its locals; then nobody counts.
    let _ = COUNT.try_with(|count| count.set(count.get().map(|n| n + 1)));
}

// SAFETY: every request goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations while the engine executes what is posted.
fn allocations(lab: &mut Lab) -> usize {
    COUNT.set(Some(0));
    lab.settle();
    COUNT.replace(None).unwrap_or_default()
}

#[test]
fn steady_traffic_allocates_nothing() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let datagrams = [lab.qp(0, Transport::Ud), lab.qp(1, Transport::Ud)];
    lab.connect_with(&datagrams[0], &datagrams[1], |_| {});
    let key = lab.nodes[1].key;
    for round in 0..5 {
        for index in 0..500_u16 {
            let sge = lab.sge(0, 0, 8);
            let write = remote(Operation::Write, index, &[sge], base(1), key);
            lab.post(&a, SendWr { ..write });
            lab.receive(&b, index, &[lab.sge(1, 0, 64)]);
            lab.post(&a, request(Operation::Send, index, &[sge]));
            let add = remote(Operation::FetchAdd, index, &[sge], base(1), key);
            lab.post(&a, add);
            lab.receive(&datagrams[1], index, &[lab.sge(1, 0, 64)]);
            let wr = datagram(&lab, &datagrams[1], index, &[sge]);
            lab.post(&datagrams[0], wr);
        }
        let count = allocations(&mut lab);
        assert!(
            round == 0 || count == 0,
            "{count} allocations in round {round}"
        );
        assert_eq!(a.cq.poll().len(), 1500);
        assert_eq!(b.cq.poll().len(), 500);
        assert_eq!(datagrams[1].cq.poll().len(), 500);
        datagrams[0].cq.poll();
    }
    // The counter counts.
    COUNT.set(Some(0));
    drop(std::hint::black_box(vec![0_u8; 10]));
    assert_eq!(COUNT.replace(None), Some(1));
}
