//! Eventfds of a client, signalled without waiting for the client.
//!
//! A write to an eventfd blocks while its counter is full, unless O_NONBLOCK is
//! set. The flag belongs to the open file, which the client shares: the client
//! can clear it, and fill the counter, between any check and the write. The
//! kernel signals an eventfd without waiting, whatever its flags and counter
//! are, when an asynchronous operation completes that names the eventfd
//! (`IOCB_FLAG_RESFD`, io_submit(2)). So a signal is such an operation here: a
//! read of nothing from /dev/null, which is complete before the call returns.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::LazyLock;

use nix::errno::Errno;
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

/// Completed operations that the kernel keeps until they are taken from it, at
/// least; `fs.aio-max-nr` bounds their sum over the host.
const COMPLETIONS: u32 = 256;

/// Signals eventfds, from any thread.
#[derive(Debug)]
pub struct Signaller {
    context: IoContext,
    null: File,
}

impl Signaller {
    fn new() -> io::Result<Self> {
        Ok(Self {
            context: IoContext::new(COMPLETIONS)?,
            null: File::open("/dev/null")?,
        })
    }

    /// The signaller of this process.
    ///
    /// # Errors
    /// Where the host has no room for asynchronous operations (`EAGAIN`,
    /// `fs.aio-max-nr`), or the process has no descriptors left.
    pub fn get() -> io::Result<&'static Self> {
        static SIGNALLER: LazyLock<io::Result<Signaller>> = LazyLock::new(Signaller::new);
        SIGNALLER.as_ref().map_err(|error| {
            error
                .raw_os_error()
                .map_or(error.kind().into(), io::Error::from_raw_os_error)
        })
    }

    /// Adds 1 to the counter of `eventfd`; a counter that is full stays so, and
    /// its reader finds it full. Does nothing to a descriptor of another kind.
    pub fn signal(&self, eventfd: BorrowedFd<'_>) {
        let mut operation = IoControlBlock {
            aio_lio_opcode: IOCB_CMD_PREAD as u16,
            aio_fildes: self.null.as_raw_fd() as u32,
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: eventfd.as_raw_fd() as u32,
            ..IoControlBlock::default()
        };
        while let Err(error) = self.context.submit(&[&mut operation]) {
            // No room for another completion. Other threads may take the room
            // that this one makes; each time one of them has signalled.
            if error.raw_os_error() != Some(Errno::EAGAIN as i32) || !self.forget_completions() {
                // The descriptor is no eventfd: the client's own doing.
                return;
            }
        }
    }

    /// Takes completions from the kernel, as many as there are; whether it could.
    #[cold]
    fn forget_completions(&self) -> bool {
        let mut events = [IoEvent::default(); COMPLETIONS as usize];
        let mut at_once = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        self.context
            .get_events(0, &mut events, Some(&mut at_once))
            .is_ok()
    }
}
