//! Memory that its owner truncates.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use ibvswitch_vfio_user::memory::truncations;
use nix::sys::memfd::{MFdFlags, memfd_create};
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
fn a_client_truncates_its_memory_and_gets_zeros() {
    let mut served = Served::negotiated();
    let in_tmpfs = tempfile::tempfile_in("/dev/shm").unwrap();
    in_tmpfs.set_len(0x4000).unwrap();
    for (addr, file) in [(0x10_0000, unsealable(0x4000)), (0x20_0000, in_tmpfs)] {
        let map = dma(32, 3, &[0, addr, 0x4000]);
        assert_eq!(served.ask(2, &map, &[file.as_fd()]).error, 0);
        served
            .dma
            .lock()
            .write_window(addr, 0x4000)
            .unwrap()
            .copy_from(&[6u8; 0x4000]);
        let before = truncations();
        file.set_len(0x1000).unwrap();
        let found = dma_read(&served.dma, addr, 0x4000).unwrap();
        assert!(found[..0x1000].iter().all(|&byte| byte == 6));
        assert!(found[0x1000..].iter().all(|&byte| byte == 0));
        assert!(truncations() > before);
        served
            .dma
            .lock()
            .write_window(addr + 0x3000, 1)
            .unwrap()
            .copy_from(&[1u8]);
        assert_eq!(served.ask(3, &dma(24, 0, &[addr, 0x4000]), &[]).error, 0);
    }
    served.assert_in_step();
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
        .args(["--exact", "sigbus::other_faults_stay_fatal"])
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}
