//! Memory that its owner truncates.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use ibvswitch_vfio_user::memory::truncations;
use ibvswitch_vfio_user::{End, SharedMemory};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::harness::{Served, dma, dma_read};

/// Names the child's part in `other_faults_stay_fatal`.
const CHILD: &str = "IBVSWITCH_TEST_SIGBUS_CHILD";

fn unsealable(size: u64) -> File {
    let file = File::from(memfd_create("unsealable", MFdFlags::empty()).unwrap());
    file.set_len(size).unwrap();
    file
}

#[test]
fn a_client_that_truncates_its_memory_gets_zeros_and_is_hung_up_on() {
    let in_tmpfs = tempfile::tempfile_in("/dev/shm").unwrap();
    in_tmpfs.set_len(0x4000).unwrap();
    for (addr, file) in [(0x10_0000, unsealable(0x4000)), (0x20_0000, in_tmpfs)] {
        let mut served = Served::negotiated();
        let map = dma(32, 3, &[0, addr, 0x4000]);
        assert_eq!(served.ask(2, &map, &[file.as_fd()]).error, 0);
        let mut bystander = Served::negotiated();
        let table = served.dma.lock();
        let window = table.write_window(addr, 0x4000).unwrap();
        window.copy_from(&[6u8; 0x4000]);
        let before = truncations();
        file.set_len(0x1000).unwrap();
        let mut found = [1u8; 0x4000];
        window.copy_to(&mut found);
        assert!(found[..0x1000].iter().all(|&byte| byte == 6));
        assert!(found[0x1000..].iter().all(|&byte| byte == 0));
        assert!(truncations() > before);
        let last = table.write_window(addr + 0x3000, 1).unwrap();
        last.copy_from(&[1u8]);
        drop(table);
        // What takes the place of its memory would be the server's.
        assert_eq!(served.join(), End::MemoryLost);
        assert!(served.dma.lock().is_empty());
        bystander.assert_in_step();
    }
}

#[test]
fn sealable_memory_cannot_be_truncated() {
    let mut served = Served::negotiated();
    let file = File::from(memfd_create("sealable", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(0x4000).unwrap();
    assert_eq!(
        served
            .ask(2, &dma(32, 3, &[0, 0, 0x4000]), &[file.as_fd()])
            .error,
        0
    );
    assert_eq!(
        file.set_len(0x1000).unwrap_err().raw_os_error(),
        Some(libc::EPERM)
    );
}

#[test]
fn other_faults_stay_fatal() {
    if std::env::var_os(CHILD).is_some() {
        // The handler is there, and so is a mapping that it guards.
        let mut served = Served::negotiated();
        let guarded = unsealable(0x1000);
        assert_eq!(
            served
                .ask(2, &dma(32, 3, &[0, 0, 0x1000]), &[guarded.as_fd()])
                .error,
            0
        );
        let file = unsealable(0x1000);
        let region: MmapRegion =
            MmapRegion::from_file(FileOffset::new(file.try_clone().unwrap(), 0), 0x1000).unwrap();
        file.set_len(0).unwrap();
        region.get_slice(0, 1).unwrap().copy_to(&mut [0u8]);
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::sigbus::other_faults_stay_fatal"])
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

/// As many descriptors as the system lets this process have.
fn raise_limit_of_files() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

/// A new client's memory is mapped, and guarded like all.
fn assert_another_can_attach() {
    let mut served = Served::negotiated();
    let file = unsealable(0x2000);
    let map = dma(32, 3, &[0, 0, 0x2000]);
    assert_eq!(served.ask(2, &map, &[file.as_fd()]).error, 0);
    let window = [1u8; 0x2000];
    let table = served.dma.lock();
    table.write_window(0, 0x2000).unwrap().copy_from(&window);
    drop(table);
    file.set_len(0x1000).unwrap();
    let found = dma_read(&served.dma, 0, 0x2000).unwrap();
    assert_eq!(found, [[1; 0x1000], [0; 0x1000]].concat());
}

#[test]
fn clients_with_many_small_files_keep_nobody_out() {
    raise_limit_of_files();
    let mut clients: Vec<Served> = (0..9).map(|_| Served::negotiated()).collect();
    for served in &mut clients {
        for number in 0..128 {
            let file = unsealable(0x1000);
            let map = dma(32, 3, &[0, number * 0x1000, 0x1000]);
            assert_eq!(served.ask(2, &map, &[file.as_fd()]).error, 0);
        }
    }
    assert_another_can_attach();
    // Slots are used anew.
    for served in clients {
        served.end();
    }
    for _ in 0..20 {
        assert_another_can_attach();
    }
}

#[test]
fn a_thousand_polled_devices_leave_room_for_clients() {
    raise_limit_of_files();
    let pages: Vec<SharedMemory> = (0..1100)
        .map(|_| SharedMemory::new("doorbells", 0x1000).unwrap())
        .collect();
    assert_another_can_attach();
    drop(pages);
    assert_another_can_attach();
}
