//! Descriptors that a program leaves to the one that this process runs next.
//!
//! The standard library opens nothing that outlives execve(2), and neither does this program. So a descriptor that
//! does was left on purpose, by its number, and nobody here has it yet.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Another descriptor for the same thing, which programs that are executed find under its number.
///
/// # Errors
/// The process has no file descriptors left.
pub fn leave(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let left = fd.try_clone_to_owned()?;
    fcntl(&left, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(left)
}

/// Takes the descriptor that an earlier program has left under this number. From here on it is not there any
/// more for other programs, nor for a second call.
///
/// # Errors
/// `EBADF` where nothing was left.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if number <= io::stderr().as_raw_fd() {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: it is used for as long as it takes to ask what it is; where it is none, the system says so.
    let found = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = FdFlag::from_bits_truncate(fcntl(found, FcntlArg::F_GETFD)?);
    if flags.contains(FdFlag::FD_CLOEXEC) {
        return Err(Errno::EBADF.into());
    }
    fcntl(found, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open. It did not have the flag that everything has which this program has opened, or has taken
    // here before, so that nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, IntoRawFd};

    use super::*;

    #[test]
    fn what_was_left_is_taken_once() {
        let file = File::open("/dev/null").expect("is there");
        let left = leave(file.as_fd()).expect("a descriptor").into_raw_fd();
        let taken = take(left).expect("was left");
        assert_eq!(taken.as_raw_fd(), left);
        for number in [left, file.as_raw_fd(), -1, 0, 1, 2, 1 << 20] {
            let error = take(number).expect_err("is nothing that was left");
            assert_eq!(error.raw_os_error(), Some(Errno::EBADF as i32), "{number}");
        }
    }
}
