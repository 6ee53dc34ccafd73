//! Saving and restoring a function of software.

use super::{Host, Software};
use crate::configuration::{Configuration, Doorbells, Likeness};
use crate::function::Function;
use crate::function::image::{FunctionImage, FunctionImageV1, RestoreError};

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
