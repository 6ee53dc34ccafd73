//! DEVICE_FEATURE's DMA_LOGGING_START, DMA_LOGGING_STOP and DMA_LOGGING_REPORT: which pages the device has
//! written.

use std::os::fd::AsFd;

use ibvswitch_vfio_user::Protection;
use ibvswitch_vfio_user::testing::{BAR, DMA_WRITE};

use crate::device_feature::{GET, SET};
use crate::harness::{Served, memory, words};

const START: u32 = SET | 6;
const STOP: u32 = SET | 7;
const REPORT: u32 = GET | 8;
/// The client's memory: 128 pages at this DMA address.
const MEMORY: u64 = 0x10_0000;
const PAGES: u64 = 128;

fn fields(argsz: u32, flags: u32, values: &[u64]) -> Vec<u8> {
    let mut bytes = words(&[argsz, flags]);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// The bitmap of a range.
fn report(served: &mut Served, iova: u64, length: u64, page_size: u64) -> Result<Vec<u64>, i32> {
    let request = fields(8 + 24 + 4096, REPORT, &[iova, length, page_size]);
    let answer = served.ask(16, &request, &[]);
    if answer.error != 0 {
        return Err(answer.error);
    }
    let size = answer.payload.len() as u32;
    assert_eq!(
        answer.payload[..32],
        fields(size, REPORT, &[iova, length, page_size])
    );
    let (words, rest) = answer.payload[32..].as_chunks();
    assert!(rest.is_empty());
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Has the device write 8 bytes there.
fn write(served: &mut Served, addr: u64) {
    let write = [
        &words(&[DMA_WRITE as u32, 0, BAR, 8])[..],
        &addr.to_le_bytes(),
    ]
    .concat();
    assert_eq!(served.ask(10, &write, &[]).error, 0);
}

fn with_memory() -> Served {
    let (mut client, served) = Served::client();
    let memory = memory((PAGES * 4096) as usize, 0);
    let protection = Protection::READ_WRITE;
    let size = PAGES * 4096;
    client
        .dma_map(Some(memory.fd().as_fd()), 0, MEMORY, size, protection)
        .unwrap();
    served
}

fn start(served: &mut Served, page_size: u64) -> i32 {
    served
        .ask(16, &fields(24, START, &[page_size, 0]), &[])
        .error
}

#[test]
fn what_was_written_is_told_once() {
    let mut served = with_memory();
    write(&mut served, MEMORY);
    assert_eq!(start(&mut served, 4096), 0);
    // What is logged already goes on.
    write(&mut served, MEMORY + 5 * 4096);
    assert_eq!(start(&mut served, 4096), 0);
    write(&mut served, MEMORY + 64 * 4096 + 4088);
    write(&mut served, MEMORY + 127 * 4096);
    let whole = PAGES * 4096;
    // A part first: what lies beside it is kept.
    assert_eq!(report(&mut served, MEMORY, 4096 * 5, 4096), Ok(vec![0]));
    assert_eq!(
        report(&mut served, MEMORY + 4096 * 64, 4096, 4096),
        Ok(vec![1])
    );
    let left = vec![1 << 5, 1 << 63];
    assert_eq!(report(&mut served, MEMORY, whole, 4096), Ok(left));
    assert_eq!(report(&mut served, MEMORY, whole, 4096), Ok(vec![0, 0]));
    // Nothing was ever there.
    assert_eq!(report(&mut served, 1 << 40, 4096, 4096), Ok(vec![0]));
    served.assert_in_step();
}

#[test]
fn pages_of_other_sizes() {
    let mut served = with_memory();
    assert_eq!(start(&mut served, 4096), 0);
    let whole = PAGES * 4096;
    for (page_size, expected) in [
        (2048, vec![3 << 6, 0, 0, 0]),
        (8192, vec![1 << 1]),
        (whole, vec![1]),
        (1 << 40, vec![1]),
    ] {
        write(&mut served, MEMORY + 3 * 4096);
        let told = report(&mut served, MEMORY, whole, page_size);
        assert_eq!(told, Ok(expected), "{page_size}");
    }
    // A range that begins and ends within a page.
    write(&mut served, MEMORY + 3 * 4096);
    let told = report(&mut served, MEMORY + 3 * 4096 + 100, 200, 64);
    assert_eq!(told, Ok(vec![0b1111]));
    served.assert_in_step();
}

/// Writes to memory that is gone are reported, since a client asks after it has unmapped it.
#[test]
fn memory_that_is_gone() {
    let mut served = with_memory();
    assert_eq!(start(&mut served, 4096), 0);
    write(&mut served, MEMORY + 4096);
    let unmap = fields(24, 0, &[MEMORY, PAGES * 4096]);
    assert_eq!(served.ask(3, &unmap, &[]).error, 0);
    assert_eq!(report(&mut served, MEMORY, 64 * 4096, 4096), Ok(vec![2]));
    served.assert_in_step();
}

/// Whoever unmaps can be told in the same breath ("VFIO Bitmap"), and nobody is told again.
#[test]
fn memory_that_goes_with_its_bitmap() {
    const SIZE: u64 = PAGES * 4096;
    let mut served = with_memory();
    assert_eq!(start(&mut served, 4096), 0);
    write(&mut served, MEMORY + 5 * 4096);
    write(&mut served, MEMORY + 127 * 4096);
    // Room for more than there is: it is all sent, the rest as zeroes.
    let request = fields(24 + 16 + 24, 1, &[MEMORY, SIZE, 4096, 24]);
    let answer = served.ask(3, &request, &[]);
    let bitmap = [1_u64 << 5, 1 << 63, 0].map(u64::to_le_bytes).concat();
    assert_eq!(
        (answer.error, answer.payload),
        (0, [request, bitmap].concat())
    );
    assert!(served.dma.lock().is_empty());
    assert_eq!(report(&mut served, MEMORY, SIZE, 4096), Ok(vec![0, 0]));
    served.assert_in_step();
}

#[test]
fn memory_that_stays_since_its_bitmap_cannot_be_told() {
    const SIZE: u64 = PAGES * 4096;
    let mut served = with_memory();
    let asked = |argsz, page_size, size| fields(argsz, 1, &[MEMORY, SIZE, page_size, size]);
    let whole = asked(24 + 16 + 16, 4096, 16);
    // There is no log.
    assert_eq!(served.ask(3, &whole, &[]).error, libc::EINVAL);
    assert_eq!(start(&mut served, 4096), 0);
    for (payload, error) in [
        // Room for too few pages, and an answer that its client has no room for.
        (asked(24 + 16 + 8, 4096, 8), libc::EINVAL),
        (asked(24 + 16 + 15, 4096, 16), libc::EINVAL),
        (asked(24, 4096, 16), libc::EINVAL),
        (asked(24 + 16 + 16, 0, 16), libc::EINVAL),
        (asked(24 + 16 + 16, 4097, 16), libc::EINVAL),
        (asked(u32::MAX, 4096, 1 << 31), libc::E2BIG),
        (asked(u32::MAX, 4096, u64::MAX), libc::E2BIG),
        (fields(56, 1, &[0, u64::MAX, 4096, 16]), libc::E2BIG),
        (fields(56, 1, &[MEMORY, 0, 4096, 16]), libc::EINVAL),
        (fields(56, 1, &[MEMORY, SIZE, 4096]), libc::EINVAL),
        (fields(56, 1, &[MEMORY, SIZE, 4096, 16, 0]), libc::EINVAL),
        // A part of a mapping.
        (fields(56, 1, &[MEMORY, 4096, 4096, 16]), libc::EINVAL),
        // All of them have no one bitmap.
        (fields(56, 3, &[0, 0, 4096, 16]), libc::EINVAL),
    ] {
        assert_eq!(served.ask(3, &payload, &[]).error, error, "{payload:x?}");
        assert_eq!(served.dma.lock().len(), 1);
    }
    assert_eq!(served.ask(3, &whole, &[]).error, 0);
    served.assert_in_step();
}

/// However often memory comes and goes, what is kept of it is bounded: then all of it counts as written.
#[test]
fn memory_that_comes_and_goes() {
    let (mut client, mut served) = Served::client();
    client.start_dirty_log().unwrap();
    let memory = memory(4096, 0);
    for round in 0..1025 {
        let addr = MEMORY + round * 8192;
        client
            .dma_map(
                Some(memory.fd().as_fd()),
                0,
                addr,
                4096,
                Protection::READ_WRITE,
            )
            .unwrap();
        write(&mut served, addr);
        client.dma_unmap(addr, 4096).unwrap();
    }
    let last = MEMORY + 1024 * 8192;
    assert_eq!(
        client.take_dirty_log(MEMORY, 16384).unwrap(),
        [MEMORY, MEMORY + 8192]
    );
    for _ in 0..2 {
        assert_eq!(client.take_dirty_log(last, 8192).unwrap(), [last]);
    }
    client.stop_dirty_log().unwrap();
    client.start_dirty_log().unwrap();
    assert!(client.take_dirty_log(last, 8192).unwrap().is_empty());
    served.assert_in_step();
}

#[test]
fn without_a_log_nothing_is_told() {
    let mut served = with_memory();
    assert_eq!(report(&mut served, MEMORY, 4096, 4096), Err(libc::EINVAL));
    assert_eq!(start(&mut served, 4096), 0);
    write(&mut served, MEMORY);
    for _ in 0..2 {
        assert_eq!(served.ask(16, &words(&[8, STOP]), &[]).error, 0);
        assert_eq!(report(&mut served, MEMORY, 4096, 4096), Err(libc::EINVAL));
    }
    // Begun anew it is empty.
    assert_eq!(start(&mut served, 4096), 0);
    assert_eq!(report(&mut served, MEMORY, 4096, 4096), Ok(vec![0]));
    served.assert_in_step();
}

#[test]
fn malformed_requests() {
    let mut served = with_memory();
    for page_size in [0, 3, 4097, u64::MAX] {
        assert_eq!(start(&mut served, page_size), libc::EINVAL);
    }
    for payload in [
        words(&[8, START]),
        fields(16, START, &[4096]),
        // Ranges that are not there, and some that nobody has counted.
        fields(24, START, &[4096, 1]),
        fields(24, START, &[4096, u32::MAX.into()]),
        fields(40, START, &[4096, 0, 0, 4096]),
    ] {
        let error = served.ask(16, &payload, &[]).error;
        assert_eq!(error, libc::EINVAL, "{payload:?}");
    }
    // One that is there.
    let range = fields(40, START, &[4096, 1, MEMORY, 4096]);
    assert_eq!(served.ask(16, &range, &[]).error, 0);
    for (iova, length, page_size, error) in [
        (0, 0, 4096, libc::EINVAL),
        (0, 4096, 0, libc::EINVAL),
        (0, 4096, 12288, libc::EINVAL),
        (u64::MAX, 4096, 4096, libc::EINVAL),
        // More than one report tells, and more than there is room for.
        (0, u64::MAX, 4096, libc::E2BIG),
        (0, 1 << 40, 4096, libc::E2BIG),
        (0, 1 << 30, 4096, libc::EINVAL),
    ] {
        let told = report(&mut served, iova, length, page_size);
        assert_eq!(told, Err(error), "{length:#x} bytes at {iova:#x}");
    }
    served.assert_in_step();
}
