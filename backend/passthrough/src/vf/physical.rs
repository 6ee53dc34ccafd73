//! The VF behind the guest's function, as VFIO shows it, whichever way it is reached.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use connectx::DoorbellPages;
use thiserror::Error;
use vfio_user::client::ClientError;
use vfio_user::{Errno, Mapping, PAGE_SIZE, SparseArea};

use crate::vf::obstacle::Obstacle;

/// Offset of the command register in configuration space.
pub(crate) const COMMAND: u64 = 4;
/// In the command register: the function's memory answers, and it may reach memory.
pub(crate) const ENABLED: u16 = 1 << 1 | 1 << 2;
/// Bytes of BAR 0 that make sense.
pub(crate) const BAR_SIZES: RangeInclusive<u64> = 128 << 10..=1 << 30;
/// Numbers of MSI-X vectors that make sense.
pub(crate) const VECTORS: RangeInclusive<u32> = 2..=2048;

/// Why the VF does not do what it is told.
#[derive(Debug, Error)]
pub enum PhysicalError {
    /// Its server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The host keeps it from being used.
    #[error("{0}: {remedy}", remedy = .0.remedy())]
    Obstacle(#[from] Obstacle),
    /// The kernel.
    #[error("{what}: {errno}")]
    Kernel {
        /// The impossible action.
        what: &'static str,
        /// Why not.
        errno: Errno,
    },
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
            Self::Kernel { errno, .. } => Some(*errno),
            Self::Obstacle(Obstacle::LockedMemory { .. }) => Some(Errno::ENOMEM),
            Self::Obstacle(Obstacle::Addresses { .. }) => Some(Errno::EINVAL),
            Self::Obstacle(_) | Self::Unfit(_) => None,
        }
    }

    pub(crate) const fn kernel(what: &'static str, errno: Errno) -> Self {
        Self::Kernel { what, errno }
    }
}

/// Finds the doorbell pages from page `first` on among the parts of BAR 0 that can be mapped: offset and length
/// in bytes. If there are several areas, the longest.
pub(crate) fn doorbell_area(areas: &[SparseArea], first: u32, bar_size: u64) -> Option<(u64, u64)> {
    let first = u64::from(first) * PAGE_SIZE;
    let pages = areas.iter().filter_map(|area| {
        let end = area.offset.checked_add(area.size)?;
        // Only where the first of them is there: others may be memory of the device and no doorbells.
        let aligned = (first | end).is_multiple_of(PAGE_SIZE) && area.offset <= first;
        (aligned && first < end && end <= bar_size).then(|| (first, end - first))
    });
    pages.max_by_key(|(_, len)| *len)
}

/// A VF. After an error that is no refusal it is of no use any more.
pub trait Physical: std::fmt::Debug + Send {
    /// Bytes of BAR 0.
    fn bar_size(&self) -> u64;

    /// Number of MSI-X vectors.
    fn vectors(&self) -> u16;

    /// Returns the doorbell pages that a guest may map, from page `first` on.
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
