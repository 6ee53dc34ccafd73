//! The port that the manager talks through.

mod device;
mod simulated;

use std::io;
use std::os::fd::BorrowedFd;

use subnet_manager::Transport;

pub use device::{DeviceError, DevicePort, PortAddress};
pub use simulated::SimulatedPort;

/// Packets that are taken before the manager has its turn.
const MAX_TAKEN: usize = 1024;

/// A port, of which the packets that wait to be sent or to be received are in memory.
pub trait Port: Transport {
    /// Takes packets that have come, as many as the manager takes at a time.
    ///
    /// # Errors
    /// The port is gone.
    fn take(&mut self) -> io::Result<()>;

    /// Sends the packets that wait, as far as there is room for them.
    ///
    /// # Errors
    /// The port is gone.
    fn flush(&mut self) -> io::Result<()>;

    /// Shows others no subnet manager any more.
    fn resign(&mut self);

    /// Sends the packets that wait, the last ones; comes back when the other side has taken them.
    ///
    /// # Errors
    /// The port is gone.
    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }

    /// Whether packets wait to be sent.
    fn is_behind(&self) -> bool;

    /// The descriptor to wait at.
    fn descriptor(&self) -> BorrowedFd<'_>;
}
