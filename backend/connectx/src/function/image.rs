//! Everything that a function of software is, as plain data: its registers, what its driver has set up,
//! and the image of its objects ([`hca::image`]).
//!
//! A function is saved between two accesses of its guest. Then no command is under way: software answers
//! each before the access that rang for it returns. The contents of doorbell pages, which are hints, and
//! what was logged are left out. Interrupts that were raised and not taken are the monitor's.

use hca::Dma;
use hca::image::{ImageError, VfImage};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::function::pci::{ConfigImageV1, MsixImageV1};
use crate::function::segment::SegmentImageV1;
use crate::queue_format::Mlx5;
use crate::state::StateImageV1;

/// The image of a function, in the version that its first key names.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum FunctionImage<D: Dma + 'static> {
    /// Version 1.
    V1(FunctionImageV1<D>),
}

/// Version 1 of the image of a function.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct FunctionImageV1<D: Dma + 'static> {
    /// Bytes of BAR 0.
    pub(crate) bar_size: u64,
    /// Interrupt vectors.
    pub(crate) vectors: u16,
    /// Doorbell pages of user programs are memory.
    pub(crate) polled: bool,
    /// It is made after a ConnectX-5.
    #[serde(default)]
    pub(crate) connectx_5: bool,
    /// Drivers may have queues of network interfaces.
    #[serde(default)]
    pub(crate) enhanced_ipoib: bool,
    pub(crate) config: ConfigImageV1,
    pub(crate) msix: MsixImageV1,
    pub(crate) segment: SegmentImageV1,
    pub(crate) software: SoftwareImageV1<D>,
}

/// The backend of a function.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct SoftwareImageV1<D: Dma + 'static> {
    pub(crate) state: StateImageV1,
    pub(crate) objects: VfImage<Mlx5<D>>,
    /// Settings of the driver at its port.
    pub(crate) node_description: Vec<u8>,
    pub(crate) capability_mask: u32,
}

/// Why an image of a function cannot be restored. The function is as after a reset then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The functions are not alike.
    #[error(
        "the image is of a function with {what} {there}, and this one has {here}; configure both alike"
    )]
    Differs {
        /// The difference.
        what: &'static str,
        /// The value in the image.
        there: u64,
        /// The value of this function.
        here: u64,
    },
    /// The state of the driver is not sound.
    #[error("{0}; save the image anew")]
    Invalid(String),
    /// The objects.
    #[error(transparent)]
    Objects(#[from] ImageError),
}
