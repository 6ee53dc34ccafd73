//! DMA_MAP.

use std::fs::File;
use std::os::fd::AsFd;

use ibvswitch_vfio_user::MemoryLimits;
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::harness::{Served, content, dma, dma_read, memory, references};

/// argsz 32, readable and writable, offset, address, size.
fn request(offset: u64, addr: u64, size: u64) -> Vec<u8> {
    dma(32, 3, &[offset, addr, size])
}

#[test]
fn the_device_reaches_the_clients_memory() {
    let mut served = Served::negotiated();
    let memory = memory(0x3000, 0x5a);
    let payload = [
        0x20, 0, 0, 0, // argsz
        0x03, 0, 0, 0, // readable, writable
        0x00, 0x10, 0, 0, 0, 0, 0, 0, // offset
        0x00, 0x00, 0x0a, 0, 0x01, 0, 0, 0, // address
        0x00, 0x20, 0, 0, 0, 0, 0, 0, // size
    ];
    let answer = served.ask(2, &payload, &[memory.fd().as_fd()]);
    assert_eq!((answer.error, answer.payload.len()), (0, 0));

    assert_eq!(dma_read(&served.dma, 0x1_000a_0ffe, 4).unwrap(), [0x5a; 4]);
    // A window ends with its mapping.
    assert_eq!(dma_read(&served.dma, 0x1_000a_1ffe, 4).unwrap(), [0x5a; 2]);
    assert_eq!(dma_read(&served.dma, 0x1_000a_2000, 4), None);
    assert_eq!(dma_read(&served.dma, 0x1_0009_ffff, 4), None);

    served
        .dma
        .lock()
        .write_window(0x1_000a_0000, 2)
        .unwrap()
        .copy_from(&[1u8, 2]);
    assert_eq!(content(&memory, 0x0fff, 4), [0x5a, 1, 2, 0x5a]);
}

#[test]
fn adjacent_mappings_are_found_apart() {
    let mut served = Served::negotiated();
    let (low, high) = (memory(0x1000, 1), memory(0x1000, 2));
    assert_eq!(
        served
            .ask(2, &request(0, 0x2000, 0x1000), &[high.fd().as_fd()])
            .error,
        0
    );
    assert_eq!(
        served
            .ask(2, &request(0, 0x1000, 0x1000), &[low.fd().as_fd()])
            .error,
        0
    );
    assert_eq!(dma_read(&served.dma, 0x1fff, 8).unwrap(), [1]);
    assert_eq!(dma_read(&served.dma, 0x2000, 1).unwrap(), [2]);
}

#[test]
fn overlap_is_eexist() {
    let mut served = Served::negotiated();
    let memory = memory(0x8000, 0);
    let fd = [memory.fd().as_fd()];
    assert_eq!(served.ask(2, &request(0, 0x4000, 0x2000), &fd).error, 0);
    for (addr, size) in [
        (0x4000, 0x2000),
        (0x3000, 0x2000),
        (0x5000, 0x2000),
        (0x4000, 0x1000),
        (0x3000, 0x4000),
    ] {
        assert_eq!(
            served.ask(2, &request(0, addr, size), &fd).error,
            libc::EEXIST,
            "{addr:#x}"
        );
        assert_eq!(
            served.ask(2, &request(0, addr, size), &[]).error,
            libc::EEXIST,
            "{addr:#x}"
        );
    }
    for addr in [0x2000, 0x6000] {
        assert_eq!(served.ask(2, &request(0, addr, 0x2000), &fd).error, 0);
    }
}

#[test]
fn without_a_descriptor_it_is_accepted_and_never_touched() {
    let mut served = Served::negotiated();
    assert_eq!(served.ask(2, &request(0, 0, 0xa0000), &[]).error, 0);
    // ROMs need not be of whole pages, nor can anything that large exist.
    assert_eq!(served.ask(2, &request(0, 0x10_0001, 0x801), &[]).error, 0);
    assert_eq!(
        served
            .ask(2, &request(0, 1 << 63, (1 << 63) - 1), &[])
            .error,
        0
    );
    assert_eq!(dma_read(&served.dma, 0, 1), None);
    assert!(served.dma.lock().write_window(0, 1).is_none());
    assert_eq!(served.dma.lock().len(), 3);
}

#[test]
fn protection_is_kept() {
    let mut served = Served::negotiated();
    let memory = memory(0x1000, 7);
    let fd = [memory.fd().as_fd()];
    assert_eq!(
        served.ask(2, &dma(32, 1, &[0, 0x1000, 0x1000]), &fd).error,
        0
    );
    assert_eq!(
        served.ask(2, &dma(32, 2, &[0, 0x2000, 0x1000]), &fd).error,
        0
    );
    let table = served.dma.lock();
    assert!(table.read_window(0x1000, 1).is_some() && table.write_window(0x1000, 1).is_none());
    assert!(table.read_window(0x2000, 1).is_none() && table.write_window(0x2000, 1).is_some());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut served = Served::negotiated();
    let memory = memory(0x2000, 0);
    let fd = memory.fd().as_fd();
    let refused = [
        ("argsz", dma(31, 3, &[0, 0, 0x1000])),
        ("no protection", dma(32, 0, &[0, 0, 0x1000])),
        ("unknown flag", dma(32, 7, &[0, 0, 0x1000])),
        ("no size", request(0, 0, 0)),
        (
            "past the last address",
            request(0, u64::MAX - 0xfff, 0x1000),
        ),
        ("wraps", request(0, 0x1000, u64::MAX)),
        ("offset wraps", request(u64::MAX - 0xfff, 0, 0x1000)),
        ("past the file", request(0x1000, 0, 0x2000)),
        ("way past the file", request(1 << 60, 0, 0x1000)),
        ("offset not of pages", request(0x800, 0, 0x1000)),
        ("address not of pages", request(0, 0x800, 0x1000)),
        ("size not of pages", request(0, 0, 0x800)),
        ("short", request(0, 0, 0x1000)[..31].to_vec()),
        ("long", dma(32, 3, &[0, 0, 0x1000, 0])),
        ("empty", vec![]),
    ];
    for (what, payload) in refused {
        assert_eq!(served.ask(2, &payload, &[fd]).error, libc::EINVAL, "{what}");
    }
    assert_eq!(
        served.ask(2, &request(0, 0, 0x1000), &[fd, fd]).error,
        libc::EINVAL,
        "two files"
    );
    assert!(served.dma.lock().is_empty());
    served.assert_in_step();
}

#[test]
fn descriptors_that_are_no_memory_are_refused() {
    let mut served = Served::negotiated();
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    assert_eq!(
        served.ask(2, &request(0, 0, 0x1000), &[null.as_fd()]).error,
        libc::EINVAL
    );
    let socket = served.socket.try_clone().unwrap();
    assert_eq!(
        served
            .ask(2, &request(0, 0, 0x1000), &[socket.as_fd()])
            .error,
        libc::EINVAL
    );
    // Of a file that can only be read, only a readable mapping.
    let memory = memory(0x1000, 3);
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(memory.fd())
    );
    let readable = File::open(path).unwrap();
    assert_eq!(
        served
            .ask(2, &request(0, 0, 0x1000), &[readable.as_fd()])
            .error,
        libc::EACCES
    );
    assert_eq!(
        served
            .ask(2, &dma(32, 1, &[0, 0, 0x1000]), &[readable.as_fd()])
            .error,
        0
    );
    assert_eq!(dma_read(&served.dma, 0, 1).unwrap(), [3]);
}

#[test]
fn descriptors_do_not_pile_up() {
    let mut served = Served::negotiated();
    let memory = memory(0x10_0000, 0);
    let before = references(&memory);
    let fd = [memory.fd().as_fd()];
    for page in 0..256 {
        let addr = page * 0x1000;
        assert_eq!(served.ask(2, &request(addr, addr, 0x1000), &fd).error, 0);
        assert_eq!(
            served.ask(2, &request(addr, addr, 0x1000), &fd).error,
            libc::EEXIST
        );
        // A command that takes no descriptor.
        assert_eq!(served.ask(13, &[], &fd).error, 0);
    }
    // One, of the file's only mapping, whoever opened it.
    assert_eq!(references(&memory), before + 1);
}

/// A file that takes no memory.
fn sparse(size: u64) -> File {
    let file = File::from(memfd_create("sparse", MFdFlags::empty()).unwrap());
    file.set_len(size).unwrap();
    file
}

#[test]
fn sparse_files_take_no_more_address_space_than_a_client_may() {
    const SIZE: u64 = 1 << 38;
    let mut served = Served::negotiated();
    // 27 TiB, of the 128 that a process has.
    let files: Vec<File> = (0..107).map(|_| sparse(SIZE)).collect();
    let answers: Vec<i32> = (files.iter().zip(0u64..))
        .map(|(file, number)| {
            let map = request(0, number * 0x1000, 0x1000);
            served.ask(2, &map, &[file.as_fd()]).error
        })
        .collect();
    let limit = MemoryLimits::default().bytes;
    let fit = (limit / SIZE) as usize;
    assert_eq!(limit, 1 << 40);
    assert_eq!(answers[..fit], vec![0; fit]);
    assert!(answers[fit..].iter().all(|&error| error == libc::ENOSPC));
    // One alone that is too large.
    let huge = sparse(limit + 0x1000);
    let map = request(0, 1 << 40, 0x1000);
    assert_eq!(served.ask(2, &map, &[huge.as_fd()]).error, libc::ENOSPC);

    // What it has still works, and room that it makes is there.
    assert_eq!(dma_read(&served.dma, 0, 1).unwrap(), [0]);
    assert_eq!(served.ask(3, &dma(24, 0, &[0, 0x1000]), &[]).error, 0);
    assert_eq!(served.ask(2, &map, &[files[106].as_fd()]).error, 0);
    served.assert_in_step();
}

#[test]
fn a_file_that_grows_counts_as_often_as_it_is_mapped() {
    let mut served = Served::negotiated();
    let file = sparse(0x1000);
    let files = MemoryLimits::default().files as u64;
    let answers: Vec<i32> = (0..files + 10)
        .map(|page| {
            // The mapping so far ends before this page, and is in use.
            file.set_len((page + 1) * 0x1000).unwrap();
            let map = request(page * 0x1000, page * 0x1000, 0x1000);
            served.ask(2, &map, &[file.as_fd()]).error
        })
        .collect();
    assert_eq!(answers[..files as usize], vec![0; files as usize]);
    assert_eq!(answers[files as usize..], [libc::ENOSPC; 10]);
}

#[test]
fn dirty_pages_are_those_written() {
    let mut served = Served::negotiated();
    let memory = memory(0x20_0000, 0);
    assert_eq!(
        served
            .ask(2, &request(0, 0x10_0000, 0x20_0000), &[memory.fd().as_fd()])
            .error,
        0
    );
    let mut table = served.dma.lock();
    table.write_window(0x10_0000, 1).unwrap();
    assert!(table.take_dirty_log().is_empty());
    table.start_dirty_log();
    table.write_window(0x10_1fff, 2).unwrap();
    table.read_window(0x10_4000, 1).unwrap();
    table.write_window(0x10_1000, 1).unwrap();
    table.write_window(0x13_e000, 0x4000).unwrap();
    // Asked past the end: written up to it.
    table.write_window(0x2f_ffff, 0x10_0000).unwrap();
    assert_eq!(
        table.take_dirty_log(),
        [
            0x10_1000, 0x10_2000, 0x13_e000, 0x13_f000, 0x14_0000, 0x14_1000, 0x2f_f000
        ]
    );
    assert!(table.take_dirty_log().is_empty());
    table.write_window(0x10_0000, 0x20_0000).unwrap();
    let all: Vec<u64> = (0x100..0x300).map(|page| page * 0x1000).collect();
    assert_eq!(table.take_dirty_log(), all);
}
