//! QEMU from outside: its monitor (QMP), its test protocol, and what a device's PCI function is there.
//!
//! The sockets give whoever opens them all that the QEMU has. Commands speak to them, the daemon never.

mod line;
pub mod pci;
pub mod qmp;
pub mod qtest;

use std::io;
use std::path::PathBuf;

pub use qmp::Qmp;
pub use qtest::Qtest;

/// Why a QEMU did not do as it was asked.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// Nobody listens on a socket of it.
    #[error(
        "no QEMU answers on {}: {source}; start it with the arguments of `ibvswitch vf qemu-args VF \
         --migratable`, or name its socket", .socket.display()
    )]
    Absent {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It went away, or said nothing for too long.
    #[error("the QEMU behind {} {what}: {source}", .socket.display())]
    Lost {
        /// The socket.
        socket: PathBuf,
        /// The action that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// It refused, or answered something else than expected.
    #[error("the QEMU behind {} {what}: {answer}", .socket.display())]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// The action that failed.
        what: String,
        /// Its answer.
        answer: String,
    },
}
