//! The VF behind the guest's function, as VFIO shows it, whichever way it is reached.

use std::os::fd::BorrowedFd;

use connectx::DoorbellPages;
use thiserror::Error;
use vfio_user::client::ClientError;
use vfio_user::{Errno, Mapping};

/// Why the VF does not do what it is told.
#[derive(Debug, Error)]
pub enum PhysicalError {
    /// Its server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It is none that can be used.
    #[error("{0}")]
    Unfit(String),
}

impl PhysicalError {
    /// The errno of a request that was understood and refused, which is not the VF's end.
    #[must_use]
    pub fn refused(&self) -> Option<Errno> {
        match self {
            Self::Client(error) => error.errno(),
            Self::Unfit(_) => None,
        }
    }
}

/// A VF. After an error that is no refusal it is of no use any more.
pub trait Physical: std::fmt::Debug + Send {
    /// Bytes of BAR 0.
    fn bar_size(&self) -> u64;

    /// Number of MSI-X vectors.
    fn vectors(&self) -> u16;

    /// What of its doorbell pages a guest may map, from page `first` on.
    fn doorbell_pages(&self, first: u32) -> Option<DoorbellPages>;

    /// Reads from byte `offset` of BAR 0.
    ///
    /// # Errors
    /// [`PhysicalError`].
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), PhysicalError>;

    /// Writes to byte `offset` of BAR 0. Later accesses find it done.
    ///
    /// # Errors
    /// [`PhysicalError`].
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), PhysicalError>;

    /// Has the VF reach memory.
    ///
    /// # Errors
    /// [`PhysicalError`].
    fn map(&mut self, mapping: &Mapping) -> Result<(), PhysicalError>;

    /// Takes away a mapping, which begins at DMA address `addr` and has `size` bytes. When this returns,
    /// the VF does not reach it any more.
    ///
    /// # Errors
    /// [`PhysicalError`].
    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), PhysicalError>;

    /// Has the VF raise MSI-X vector `vector` by this eventfd, or not at all.
    ///
    /// # Errors
    /// [`PhysicalError`].
    fn connect(
        &mut self,
        vector: u16,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), PhysicalError>;

    /// Resets the function, and lets it reach memory again. Mappings and eventfds stay.
    ///
    /// # Errors
    /// [`PhysicalError`].
    fn reset(&mut self) -> Result<(), PhysicalError>;
}
