//! Requests to the kernel's MAD device that are neither reads nor writes (`include/uapi/rdma/ib_user_mad.h`).

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::{ioctl_none, ioctl_readwrite};

/// `IB_IOCTL_MAGIC`.
const MAGIC: u8 = 0x1b;

/// `struct ib_user_mad_reg_req`.
#[repr(C)]
#[derive(Default)]
struct Registration {
    id: u32,
    /// Two words of 64 bits that are aligned to 4 bytes.
    methods: [u32; 4],
    queue_pair: u8,
    class: u8,
    class_version: u8,
    oui: [u8; 3],
    /// 0: this program does RMPP itself.
    rmpp_version: u8,
}

ioctl_readwrite!(register_agent, MAGIC, 1, Registration);
ioctl_none!(enable_pkey, MAGIC, 3);

/// Has the headers of packets name P_Keys by their indexes; before anything else is done with the device.
pub(super) fn enable_pkeys(device: BorrowedFd<'_>) -> nix::Result<()> {
    // SAFETY: the request takes no argument.
    unsafe { enable_pkey(device.as_raw_fd()) }.map(drop)
}

/// Takes the requests of a class that have one of these methods, a bit for each; returns the number of the agent.
pub(super) fn register(
    device: BorrowedFd<'_>,
    queue_pair: u8,
    (class, class_version): (u8, u8),
    methods: u64,
) -> nix::Result<u32> {
    let mut mask = [0; 4];
    for (word, bytes) in mask.iter_mut().zip(methods.to_ne_bytes().chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let mut registration = Registration {
        methods: mask,
        queue_pair,
        class,
        class_version,
        ..Registration::default()
    };
    // SAFETY: the structure is the one that the request reads and writes, and lives until the request has ended.
    unsafe { register_agent(device.as_raw_fd(), &raw mut registration) }?;
    Ok(registration.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size is part of the request's number.
    #[test]
    fn layout_of_a_registration() {
        assert_eq!(size_of::<Registration>(), 28);
        assert_eq!(std::mem::offset_of!(Registration, queue_pair), 20);
        assert_eq!(std::mem::offset_of!(Registration, rmpp_version), 26);
    }
}
