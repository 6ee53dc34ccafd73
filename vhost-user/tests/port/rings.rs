//! Rings that a guest makes wrong: each ends the connection, and the port is there for the next one.

use vhost_user_driver::{BASE, Driver, MEMORY, RECEIVE, SIZE, TRANSMIT};
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::{Bytes, GuestAddress};

use crate::harness::{Lab, mac};

/// A guest does this to its ring of frames to send, and is gone.
fn ends(what: &str, wrong: impl Fn(&mut Driver)) {
    println!("{what}");
    let lab = Lab::new(1);
    let mut driver = lab.guest(0);
    wrong(&mut driver);
    driver.kick(TRANSMIT).unwrap();
    driver.await_end().unwrap();
    lab.guest(0);
}

fn indirect(driver: &Driver, table: u64, at: u64, descriptor: (u64, u32, u32, u16)) {
    let (addr, len, flags, next) = descriptor;
    let bits = u128::from(addr)
        | u128::from(len) << 64
        | u128::from(flags) << 96
        | u128::from(next) << 112;
    let at = GuestAddress(table + 16 * at);
    driver.memory.write_slice(&bits.to_le_bytes(), at).unwrap();
}

#[test]
fn rings_that_make_no_sense_end_the_connection() {
    const INDIRECT: u32 = VRING_DESC_F_INDIRECT;
    const NEXT: u32 = VRING_DESC_F_NEXT;
    const WRITE: u32 = VRING_DESC_F_WRITE;
    let table = BASE + 0x60_0000;
    // All entries name descriptor 0, which is right.
    for (what, index) in [("jumps", SIZE + 1), ("goes back", u16::MAX)] {
        ends(&format!("an index that {what}"), |driver| {
            driver.queues[TRANSMIT].describe(0, BASE, 64, 0, 0);
            driver.queues[TRANSMIT].announce(index);
        });
    }
    ends("an entry without a descriptor", |driver| {
        driver.queues[TRANSMIT].offer(SIZE);
    });
    ends("a chain that goes to no descriptor", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, BASE, 64, NEXT, SIZE);
        queue.offer(0);
    });
    ends("a chain that bites its tail", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, BASE, 1, NEXT, 1);
        queue.describe(1, BASE, 1, NEXT, 0);
        queue.offer(0);
    });
    ends("a buffer outside memory", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, 0, 64, 0, 0);
        queue.offer(0);
    });
    ends("a buffer that ends outside memory", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, BASE + MEMORY as u64 - 63, 64, 0, 0);
        queue.offer(0);
    });
    ends("a buffer that goes around", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, u64::MAX - 8, 64, 0, 0);
        queue.offer(0);
    });
    ends("a buffer to read behind one to write", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, BASE, 64, NEXT | WRITE, 1);
        queue.describe(1, BASE, 64, 0, 0);
        queue.offer(0);
    });
    for (what, addr, len) in [
        ("a table of no length", table, 0),
        ("a table of half a descriptor", table, 24),
        ("a table that is too long", table, 16 * 1025),
        ("a table outside memory", 0, 32),
    ] {
        ends(what, |driver| {
            let queue = &mut driver.queues[TRANSMIT];
            queue.describe(0, addr, len, INDIRECT, 0);
            queue.offer(0);
        });
    }
    ends("a table in a table", |driver| {
        indirect(driver, table, 0, (table, 32, INDIRECT, 0));
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, table, 32, INDIRECT, 0);
        queue.offer(0);
    });
    ends("a table with something behind it", |driver| {
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, table, 32, INDIRECT | NEXT, 1);
        queue.offer(0);
    });
    ends("a loop in a table", |driver| {
        indirect(driver, table, 0, (BASE, 64, NEXT, 1));
        indirect(driver, table, 1, (BASE, 64, NEXT, 0));
        let queue = &mut driver.queues[TRANSMIT];
        queue.describe(0, table, 32, INDIRECT, 0);
        queue.offer(0);
    });
}

/// Buffers for frames have room for a header at least, or a frame would take very many of them.
#[test]
fn receive_buffers_without_room_for_a_header_end_the_connection() {
    let lab = Lab::new(2);
    let mut driver = lab.guest(0);
    let mut neighbour = lab.guest(1);
    let used = usize::from(SIZE);
    for head in 0..used {
        let queue = &mut driver.queues[RECEIVE];
        let at = queue.buffer(head as u16);
        queue.describe(head as u16, at, 11, VRING_DESC_F_WRITE, 0);
    }
    // Whoever says something to all: the driver's own port is in the broadcast group at some time.
    let all = [
        &[0xff; 6][..],
        &mac(1).0,
        &[0x08, 0x00],
        &[0x45; 4],
        &[0; 100],
    ]
    .concat();
    let mut all = all;
    all[16..18].copy_from_slice(&100_u16.to_be_bytes());
    while !driver.has_ended() {
        neighbour.send(&all).unwrap();
    }
    lab.guest(0);
}

/// Chains that are no frames are skipped, and the ring goes on.
#[test]
fn chains_that_are_no_frames_are_used_up() {
    let lab = Lab::new(1);
    let mut driver = lab.guest(0);
    let queue = &mut driver.queues[TRANSMIT];
    // Shorter than the header, longer than any frame, and nothing to read.
    queue.describe(0, BASE, 11, 0, 0);
    queue.describe(1, BASE, 100_000, 0, 0);
    queue.describe(2, BASE, 64, VRING_DESC_F_WRITE, 0);
    (0..3).for_each(|head| queue.offer(head));
    driver.kick(TRANSMIT).unwrap();
    let mut used = 0;
    while used < 3 {
        used += usize::from(driver.queues[TRANSMIT].take().is_some());
        std::thread::yield_now();
    }
    assert_eq!(driver.stop_ring(TRANSMIT).unwrap(), 3);
}

/// Kicks that nothing is behind cost the port a look each, and nobody anything else.
#[test]
fn kicks_without_end_do_no_harm() {
    let lab = Lab::new(2);
    let driver = lab.guest(0);
    for _ in 0..10_000 {
        driver.kick(TRANSMIT).unwrap();
        driver.kick(RECEIVE).unwrap();
    }
    // A counter that is full is signalled like any other.
    let _ = driver.queues[TRANSMIT].kick.write(u64::MAX - 1 - 10_000);
    assert_eq!(driver.stop_ring(TRANSMIT).unwrap(), 0);
    lab.guest(1);
}
