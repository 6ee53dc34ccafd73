//! Devices that move: their states, their images, and what they have written.

use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FEATURE_DMA_LOGGING_REPORT, VFIO_DEVICE_FEATURE_DMA_LOGGING_START,
    VFIO_DEVICE_FEATURE_DMA_LOGGING_STOP, VFIO_DEVICE_FEATURE_GET,
    VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE, VFIO_DEVICE_FEATURE_SET,
    VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP,
};

use super::{Client, ClientError};
use crate::dma::PAGE_SIZE;
use crate::message::{BitmapShape, DmaUnmap, LoggingControl, LoggingReport, MigData};
use crate::{Command, MAX_DATA_XFER_SIZE, MigrationState};

impl Client {
    /// DMA_UNMAP of all mappings within a range, while what the device writes is logged: addresses of the
    /// pages of [`PAGE_SIZE`] that it has written there since the last time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dma_unmap_written(&mut self, addr: u64, size: u64) -> Result<Vec<u64>, ClientError> {
        let command = Command::DmaUnmap;
        let shape = BitmapShape {
            page_size: PAGE_SIZE,
            size: size.div_ceil(PAGE_SIZE).div_ceil(64) * 8,
        };
        let request = DmaUnmap {
            argsz: DmaUnmap::LEN + BitmapShape::LEN + shape.size as u32,
            flags: VFIO_DMA_UNMAP_FLAG_GET_DIRTY_BITMAP,
            addr,
            size,
        };
        let mut payload = Vec::new();
        request.emit(&mut payload);
        shape.emit(&mut payload);
        let reply = self.command(command, &payload, &[])?;
        let bitmap = reply.payload.strip_prefix(payload.as_slice());
        let bitmap = bitmap.filter(|bitmap| bitmap.len() as u64 == shape.size);
        let bitmap = bitmap.ok_or(ClientError::Malformed(command))?;
        Ok(pages(addr, bitmap).collect())
    }

    /// The device's state on its way to another place.
    ///
    /// # Errors
    /// [`ClientError`]; the errno `ENOTTY` of a device that cannot go to another place.
    pub fn migration_state(&mut self) -> Result<MigrationState, ClientError> {
        let flags = VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE;
        let data = self.device_feature(flags, &[], 8)?;
        let number = data.first_chunk().copied().map(u32::from_ne_bytes);
        let state = number.and_then(MigrationState::from_number);
        state.ok_or(ClientError::Malformed(Command::DeviceFeature))
    }

    /// Leads the device to another state.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn set_migration_state(&mut self, state: MigrationState) -> Result<(), ClientError> {
        let flags = VFIO_DEVICE_FEATURE_SET | VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE;
        let mut data = (state as u32).to_ne_bytes().to_vec();
        data.extend([0; 4]);
        self.device_feature(flags, &data, 8).map(drop)
    }

    /// MIG_DATA_READ until nothing is left: the image of a device in STOP_COPY.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn read_image(&mut self) -> Result<Vec<u8>, ClientError> {
        let command = Command::MigDataRead;
        let mut image = Vec::new();
        loop {
            let mut payload = Vec::new();
            payload.extend((MigData::LEN as u32 + MAX_DATA_XFER_SIZE).to_ne_bytes());
            payload.extend(MAX_DATA_XFER_SIZE.to_ne_bytes());
            let reply = self.command(command, &payload, &[])?;
            let (fields, data) =
                MigData::parse(&reply.payload).map_err(|_| ClientError::Malformed(command))?;
            if data.len() != fields.size as usize {
                return Err(ClientError::Malformed(command));
            }
            if data.is_empty() {
                return Ok(image);
            }
            image.extend_from_slice(data);
        }
    }

    /// MIG_DATA_WRITE of an image, to a device in RESUMING.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn write_image(&mut self, image: &[u8]) -> Result<(), ClientError> {
        for part in image.chunks(MAX_DATA_XFER_SIZE as usize) {
            let mut payload = Vec::new();
            MigData::emit(part.len(), &mut payload);
            payload.extend_from_slice(part);
            self.command(Command::MigDataWrite, &payload, &[])?;
        }
        Ok(())
    }

    /// Begins to log what the device writes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn start_dirty_log(&mut self) -> Result<(), ClientError> {
        let mut data = Vec::new();
        LoggingControl {
            page_size: PAGE_SIZE,
            num_ranges: 0,
        }
        .emit(&mut data);
        let flags = VFIO_DEVICE_FEATURE_SET | VFIO_DEVICE_FEATURE_DMA_LOGGING_START;
        self.device_feature(flags, &data, 0).map(drop)
    }

    /// Ends the log.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stop_dirty_log(&mut self) -> Result<(), ClientError> {
        let flags = VFIO_DEVICE_FEATURE_SET | VFIO_DEVICE_FEATURE_DMA_LOGGING_STOP;
        self.device_feature(flags, &[], 0).map(drop)
    }

    /// Addresses of the pages of [`PAGE_SIZE`] in `addr..addr + size` that the device has written since
    /// the last time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn take_dirty_log(&mut self, addr: u64, size: u64) -> Result<Vec<u64>, ClientError> {
        let mut data = Vec::new();
        LoggingReport {
            iova: addr,
            length: size,
            page_size: PAGE_SIZE,
        }
        .emit(&mut data);
        let words = size.div_ceil(PAGE_SIZE).div_ceil(64) as usize;
        let flags = VFIO_DEVICE_FEATURE_GET | VFIO_DEVICE_FEATURE_DMA_LOGGING_REPORT;
        let answer = self.device_feature(flags, &data, data.len() + words * 8)?;
        let bitmap = answer.get(data.len()..).unwrap_or_default();
        Ok(pages(addr, bitmap).collect())
    }
}

/// Addresses of the pages of [`PAGE_SIZE`] from `addr` on that a bitmap has.
fn pages(addr: u64, bitmap: &[u8]) -> impl Iterator<Item = u64> {
    let (bitmap, _) = bitmap.as_chunks();
    bitmap.iter().enumerate().flat_map(move |(word, bits)| {
        let bits = u64::from_ne_bytes(*bits);
        (0..64_u64)
            .filter(move |bit| bits >> bit & 1 != 0)
            .map(move |bit| addr + (word as u64 * 64 + bit) * PAGE_SIZE)
    })
}
