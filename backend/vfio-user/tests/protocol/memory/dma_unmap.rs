//! DMA_UNMAP.

use std::os::fd::AsFd;

use crate::harness::{Served, dma, dma_read, memory, references};

fn request(addr: u64, size: u64) -> Vec<u8> {
    dma(24, 0, &[addr, size])
}

/// Pages of one file at 0x1000, 0x2000 and 0x4000, and 0x1000 bytes without
/// memory at 0x8000.
fn mapped() -> Served {
    let mut served = Served::negotiated();
    let memory = memory(0x1000, 9);
    for addr in [0x1000, 0x2000, 0x4000] {
        let answer = served.ask(2, &dma(32, 3, &[0, addr, 0x1000]), &[memory.fd().as_fd()]);
        assert_eq!(answer.error, 0);
    }
    assert_eq!(
        served.ask(2, &dma(32, 3, &[0, 0x8000, 0x1000]), &[]).error,
        0
    );
    served
}

#[test]
fn the_reply_is_the_request() {
    let mut served = mapped();
    let payload = [
        0x18, 0, 0, 0, // argsz
        0, 0, 0, 0, // flags
        0x00, 0x20, 0, 0, 0, 0, 0, 0, // address
        0x00, 0x10, 0, 0, 0, 0, 0, 0, // size
    ];
    assert_eq!(served.ask(3, &payload, &[]).payload, payload);
    assert_eq!(dma_read(&served.dma, 0x2000, 1), None);
    assert_eq!(dma_read(&served.dma, 0x1000, 1).unwrap(), [9]);
    // Free for another.
    let other = memory(0x1000, 8);
    assert_eq!(
        served
            .ask(2, &dma(32, 3, &[0, 0x2000, 0x1000]), &[other.fd().as_fd()])
            .error,
        0
    );
    assert_eq!(dma_read(&served.dma, 0x2000, 1).unwrap(), [8]);
}

#[test]
fn one_range_covers_several_mappings() {
    let mut served = mapped();
    assert_eq!(served.ask(3, &request(0, 0x5000), &[]).error, 0);
    assert_eq!(served.dma.lock().len(), 1);
}

#[test]
fn what_was_never_mapped_is_no_error() {
    let mut served = mapped();
    for (addr, size) in [
        (0x3000, 0x1000),
        (0x9000, 0x1000),
        (0, 1),
        (1 << 63, 1 << 63),
        (1 << 63, (1 << 63) - 1),
        (0x9000, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
    ] {
        let answer = served.ask(3, &request(addr, size), &[]);
        assert_eq!(
            (answer.error, answer.payload),
            (0, request(addr, size)),
            "{addr:#x} {size:#x}"
        );
    }
    assert_eq!(served.dma.lock().len(), 4);
}

#[test]
fn everything_at_once() {
    for payload in [dma(24, 2, &[0, 0]), request(0, u64::MAX), request(0, 0)] {
        let mut served = mapped();
        assert_eq!(served.ask(3, &payload, &[]).error, 0);
        assert!(served.dma.lock().is_empty());
    }
}

#[test]
fn part_of_a_mapping_cannot_go() {
    let mut served = mapped();
    for (addr, size) in [
        (0x1000, 0x800),
        (0x1800, 0x800),
        (0x1800, 0x1800),
        (0, 0x4800),
        (0x1001, 1),
    ] {
        assert_eq!(
            served.ask(3, &request(addr, size), &[]).error,
            libc::EINVAL,
            "{addr:#x}"
        );
    }
    assert_eq!(served.dma.lock().len(), 4);
}

#[test]
fn malformed_requests() {
    let mut served = mapped();
    for payload in [
        dma(23, 0, &[0x1000, 0x1000]),
        dma(24, 8, &[0x1000, 0x1000]),
        dma(24, 2, &[0x1000, 0x1000]),
        request(0x1000, 0),
        request(0x1000, 0x1000)[..23].to_vec(),
        dma(24, 0, &[0x1000, 0x1000, 0]),
        vec![],
    ] {
        assert_eq!(
            served.ask(3, &payload, &[]).error,
            libc::EINVAL,
            "{payload:x?}"
        );
    }
    let payload = dma(24, 4, &[0x1000, 0x1000]);
    assert_eq!(served.ask(3, &payload, &[]).error, libc::EOPNOTSUPP);
    assert_eq!(served.dma.lock().len(), 4);
    served.assert_in_step();
}

#[test]
fn the_memory_is_let_go() {
    let mut served = Served::negotiated();
    let memory = memory(0x2000, 0);
    let before = references(&memory);
    for addr in [0, 0x10_0000] {
        let answer = served.ask(2, &dma(32, 3, &[0, addr, 0x2000]), &[memory.fd().as_fd()]);
        assert_eq!(answer.error, 0);
    }
    assert_eq!(served.ask(3, &request(0, 0x2000), &[]).error, 0);
    assert_eq!(references(&memory), before + 1);
    assert_eq!(served.ask(3, &request(0x10_0000, 0x2000), &[]).error, 0);
    assert_eq!(references(&memory), before);
}
