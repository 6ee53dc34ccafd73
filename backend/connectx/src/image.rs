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

use crate::configuration::{Configuration, Doorbells, Likeness};
use crate::face::Mlx5;
use crate::function::Function;
use crate::pci::{ConfigImageV1, MsixImageV1};
use crate::segment::SegmentImageV1;
use crate::software::{Host, Software};
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
    bar_size: u64,
    /// Interrupt vectors.
    vectors: u16,
    /// Doorbell pages of user programs are memory.
    polled: bool,
    /// It is made after a ConnectX-5.
    #[serde(default)]
    connectx_5: bool,
    /// Drivers may have queues of network interfaces.
    #[serde(default)]
    enhanced_ipoib: bool,
    config: ConfigImageV1,
    msix: MsixImageV1,
    segment: SegmentImageV1,
    software: SoftwareImageV1<D>,
}

/// What is behind the registers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct SoftwareImageV1<D: Dma + 'static> {
    pub(crate) state: StateImageV1,
    pub(crate) objects: VfImage<Mlx5<D>>,
    /// What the driver has set at its port.
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
        /// What differs.
        what: &'static str,
        /// The value in the image.
        there: u64,
        /// The value of this function.
        here: u64,
    },
    /// What the driver has set up makes no sense.
    #[error("{0}; save the image anew")]
    Invalid(String),
    /// The objects.
    #[error(transparent)]
    Objects(#[from] ImageError),
}

impl<H: Host> Function<Software<H>> {
    /// The image of the function as it is now. Where it is to go on elsewhere, quiesce it in the engine
    /// before.
    #[must_use]
    pub fn save(&self) -> FunctionImage<H::Dma> {
        let (configuration, registers) = (self.configuration(), self.registers());
        FunctionImage::V1(FunctionImageV1 {
            bar_size: configuration.bar_size,
            vectors: configuration.vectors,
            polled: is_polled(configuration),
            connectx_5: is_connectx_5(configuration),
            enhanced_ipoib: configuration.has_network_queues(),
            config: registers.0.save(),
            msix: registers.1.save(),
            segment: registers.2.save(),
            software: self.backend().save(),
        })
    }

    /// Makes the function, which is reset by that, what it was when the image was saved.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(&mut self, image: FunctionImage<H::Dma>) -> Result<(), RestoreError> {
        self.reset();
        let restored = self.restore_all(image);
        if restored.is_err() {
            self.reset();
        }
        restored
    }

    fn restore_all(&mut self, image: FunctionImage<H::Dma>) -> Result<(), RestoreError> {
        let FunctionImage::V1(image) = image;
        let own = *self.configuration();
        let (polled, polls) = (image.polled.into(), is_polled(&own).into());
        let (like, likes) = (image.connectx_5.into(), is_connectx_5(&own).into());
        for (what, there, here) in [
            ("a BAR 0 of bytes:", image.bar_size, own.bar_size),
            (
                "interrupt vectors:",
                image.vectors.into(),
                own.vectors.into(),
            ),
            (
                "doorbell pages that are memory (1) or not (0):",
                polled,
                polls,
            ),
            ("the likeness of a ConnectX-5 (1) or none (0):", like, likes),
            (
                "enhanced IP over InfiniBand (1) or basic (0):",
                image.enhanced_ipoib.into(),
                own.has_network_queues().into(),
            ),
        ] {
            if there != here {
                return Err(RestoreError::Differs { what, there, here });
            }
        }
        let (config, msix, segment) = self.registers_mut();
        config.restore(&image.config);
        msix.restore(&image.msix).map_err(RestoreError::Invalid)?;
        segment.restore(&image.segment);
        self.backend_mut().restore(image.software)
    }
}

const fn is_polled(configuration: &Configuration) -> bool {
    matches!(configuration.doorbells, Doorbells::Poll)
}

const fn is_connectx_5(configuration: &Configuration) -> bool {
    matches!(configuration.like, Likeness::ConnectX5)
}
