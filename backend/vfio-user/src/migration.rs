//! VFIO's migration protocol, version 2, and the log of a device's writes (`linux/vfio.h`, "Device
//! migration"), as vfio-user carries them.
//!
//! A device is running until its client says otherwise. To move it, the client stops it, reads its image
//! while it is in STOP_COPY, and writes that to another one in RESUMING, which then goes on. All other
//! ways lead over STOP. There is no PRE_COPY, since an image is small beside the guest's memory, and no
//! P2P.

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FEATURE_DMA_LOGGING_REPORT, VFIO_DEVICE_FEATURE_DMA_LOGGING_START,
    VFIO_DEVICE_FEATURE_DMA_LOGGING_STOP, VFIO_DEVICE_FEATURE_GET, VFIO_DEVICE_FEATURE_MASK,
    VFIO_DEVICE_FEATURE_MIG_DATA_SIZE, VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE,
    VFIO_DEVICE_FEATURE_MIGRATION, VFIO_DEVICE_FEATURE_PROBE, VFIO_DEVICE_FEATURE_SET,
    VFIO_MIGRATION_STOP_COPY,
};

use crate::DmaTable;
use crate::device::{Device, Migration};
use crate::dma::PAGE_SIZE;
use crate::message::{
    DeviceFeature, LoggingControl, LoggingReport, MAX_DATA_XFER_SIZE, MigData, PutFields,
};

/// The longest bitmap of pages that one report has, in bytes: 128 GiB in pages of 4 KiB. Of more a client
/// has to ask in parts.
pub const MAX_BITMAP_SIZE: u64 = 4 << 20;

/// States of a device (`enum vfio_device_mig_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum MigrationState {
    /// It is nothing any more: its image was none. A reset leads out.
    Error = 0,
    /// It rests.
    Stop = 1,
    /// It works.
    #[default]
    Running = 2,
    /// It rests, and its image can be read.
    StopCopy = 3,
    /// It rests, and takes an image.
    Resuming = 4,
}

impl MigrationState {
    /// The state with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        let all = [
            Self::Error,
            Self::Stop,
            Self::Running,
            Self::StopCopy,
            Self::Resuming,
        ];
        all.into_iter().find(|&state| state as u32 == number)
    }
}

/// Progress of a client in moving the device.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    state: MigrationState,
    /// The image on its way, and how much of it was read.
    image: Vec<u8>,
    read: usize,
}

impl Progress {
    /// The device was reset, which ends whatever was begun.
    pub(crate) fn reset(&mut self, device: &mut dyn Device) {
        let rested = !matches!(self.state, MigrationState::Running);
        *self = Self::default();
        if let Some(device) = device.migration()
            && rested
        {
            // Nothing is left of it that could fail.
            let _ = device.resume();
        }
    }

    /// Leads the device to another state, by the shortest way.
    fn go(&mut self, device: &mut dyn Migration, to: MigrationState) -> Result<(), Errno> {
        use MigrationState::{Error, Resuming, Running, Stop, StopCopy};
        if to == Error || self.state == Error {
            return Err(Errno::EINVAL);
        }
        if self.state == to {
            return Ok(());
        }
        match self.state {
            Running => device.stop()?,
            StopCopy => self.forget(),
            Resuming => {
                let image = std::mem::take(&mut self.image);
                // A client that has written nothing has changed its mind.
                if !image.is_empty()
                    && let Err(errno) = device.restore(&image)
                {
                    self.state = Error;
                    return Err(errno);
                }
            }
            Stop | Error => {}
        }
        self.state = Stop;
        match to {
            Running => device.resume()?,
            StopCopy => self.image = device.save()?,
            Stop | Resuming | Error => {}
        }
        self.state = to;
        Ok(())
    }

    fn forget(&mut self) {
        self.image = Vec::new();
        self.read = 0;
    }

    /// DEVICE_FEATURE. Leaves the payload of the reply in `reply`.
    pub(crate) fn feature(
        &mut self,
        device: &mut dyn Device,
        payload: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let (request, data) = DeviceFeature::parse(payload)?;
        let operations = request.flags & !VFIO_DEVICE_FEATURE_MASK;
        let (get, set, probe) = (
            VFIO_DEVICE_FEATURE_GET,
            VFIO_DEVICE_FEATURE_SET,
            VFIO_DEVICE_FEATURE_PROBE,
        );
        let asked = operations & (get | set);
        let probes = operations & probe != 0;
        if operations & !(get | set | probe) != 0
            || operations == 0
            || (asked == get | set && !probes)
        {
            return Err(Errno::EINVAL);
        }
        let feature = request.flags & VFIO_DEVICE_FEATURE_MASK;
        let known = match feature {
            VFIO_DEVICE_FEATURE_MIGRATION
            | VFIO_DEVICE_FEATURE_DMA_LOGGING_REPORT
            | VFIO_DEVICE_FEATURE_MIG_DATA_SIZE => get,
            VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE => get | set,
            VFIO_DEVICE_FEATURE_DMA_LOGGING_START | VFIO_DEVICE_FEATURE_DMA_LOGGING_STOP => set,
            _ => 0,
        };
        let device = device.migration().filter(|_| known != 0);
        let device = device.ok_or(Errno::ENOTTY)?;
        if asked & !known != 0 {
            return Err(Errno::EINVAL);
        }
        if probes {
            reply.extend_from_slice(payload);
            return Ok(());
        }
        let mut answer = Vec::new();
        match (feature, asked == set) {
            (VFIO_DEVICE_FEATURE_MIGRATION, _) => {
                answer.put_u64(VFIO_MIGRATION_STOP_COPY.into());
            }
            (VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE, false) => {
                answer.put_u32(self.state as u32);
                // There is no descriptor: data goes by messages.
                answer.put_u32(0);
            }
            (VFIO_DEVICE_FEATURE_MIG_DEVICE_STATE, true) => {
                let state = data.first_chunk().ok_or(Errno::EINVAL)?;
                let state = MigrationState::from_number(u32::from_ne_bytes(*state));
                self.go(device, state.ok_or(Errno::EINVAL)?)?;
                answer.extend_from_slice(data);
            }
            (VFIO_DEVICE_FEATURE_MIG_DATA_SIZE, _) => {
                let unread = self.image.len() - self.read;
                answer.put_u64(match self.state {
                    MigrationState::StopCopy => unread as u64,
                    _ => device.image_size(),
                });
            }
            (VFIO_DEVICE_FEATURE_DMA_LOGGING_START, _) => {
                start_log(device, LoggingControl::parse(data)?)?;
                answer.extend_from_slice(data);
            }
            (VFIO_DEVICE_FEATURE_DMA_LOGGING_STOP, _) => {
                device.with_mappings(&mut DmaTable::stop_dirty_log);
            }
            _ => report(
                device,
                LoggingReport::parse(data)?,
                request.argsz,
                &mut answer,
            )?,
        }
        let argsz = (DeviceFeature::LEN + answer.len()) as u32;
        if request.argsz < argsz {
            return Err(Errno::EINVAL);
        }
        DeviceFeature {
            argsz,
            flags: request.flags,
        }
        .emit(reply);
        reply.extend_from_slice(&answer);
        Ok(())
    }

    /// MIG_DATA_READ: the next bytes of the image, none at its end.
    pub(crate) fn read_data(&mut self, payload: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
        let (request, rest) = MigData::parse(payload)?;
        if self.state != MigrationState::StopCopy || !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        if request.size > MAX_DATA_XFER_SIZE {
            return Err(Errno::E2BIG);
        }
        let left = self.image.get(self.read..).unwrap_or_default();
        let data = &left[..left.len().min(request.size as usize)];
        MigData::emit(data.len(), reply);
        reply.extend_from_slice(data);
        self.read += data.len();
        Ok(())
    }

    /// MIG_DATA_WRITE: more bytes of an image.
    pub(crate) fn write_data(
        &mut self,
        device: &mut dyn Device,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let (request, data) = MigData::parse(payload)?;
        if self.state != MigrationState::Resuming || data.len() as u64 != u64::from(request.size) {
            return Err(Errno::EINVAL);
        }
        let limit = device.migration().map_or(0, |device| device.image_limit());
        if data.len() > limit.saturating_sub(self.image.len()) {
            return Err(Errno::E2BIG);
        }
        self.image.extend_from_slice(data);
        Ok(())
    }
}

/// Begins to log, in pages of [`PAGE_SIZE`] whatever size is asked for, and everywhere: ranges are there
/// for devices that have room for few.
fn start_log(device: &mut dyn Migration, asked: LoggingControl) -> Result<(), Errno> {
    if !asked.page_size.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    device.with_mappings(&mut |table| {
        if !table.is_logging() {
            table.start_dirty_log();
        }
    });
    Ok(())
}

/// Whether what the device writes is logged.
pub(crate) fn is_logging(device: &mut dyn Migration) -> bool {
    let mut logging = false;
    device.with_mappings(&mut |table| logging = table.is_logging());
    logging
}

/// A range that a client asks about, in pages of its choice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    iova: u64,
    length: u64,
    page_size: u64,
}

impl Written {
    /// `EINVAL` for what is no range, `E2BIG` for one that takes more than [`MAX_BITMAP_SIZE`].
    pub(crate) fn new(iova: u64, length: u64, page_size: u64) -> Result<Self, Errno> {
        if !page_size.is_power_of_two() || length == 0 || iova.checked_add(length).is_none() {
            return Err(Errno::EINVAL);
        }
        let range = Self {
            iova,
            length,
            page_size,
        };
        if range.bitmap_size() > MAX_BITMAP_SIZE {
            return Err(Errno::E2BIG);
        }
        Ok(range)
    }

    fn pages(&self) -> u64 {
        self.length.div_ceil(self.page_size)
    }

    /// Bytes of a bitmap with a bit for each page, in words of 64.
    pub(crate) fn bitmap_size(&self) -> u64 {
        self.pages().div_ceil(64) * 8
    }

    /// The bitmap of what was written there since somebody was told last.
    pub(crate) fn take(&self, device: &mut dyn Migration) -> Vec<u64> {
        let Self {
            iova,
            length,
            page_size,
        } = *self;
        let pages = self.pages();
        let mut bitmap = vec![0_u64; (self.bitmap_size() / 8) as usize];
        let mut mark = |from: u64, to: u64| {
            let first = from.saturating_sub(iova) / page_size;
            let last = (to - iova).div_ceil(page_size).min(pages);
            for page in first..last {
                if let Some(word) = bitmap.get_mut((page / 64) as usize) {
                    *word |= 1 << (page % 64);
                }
            }
        };
        device.with_mappings(&mut |table| {
            for page in table.take_dirty_log_of(iova, length) {
                mark(page, (page + PAGE_SIZE).max(iova));
            }
            if let Some(lost) = table.lost_dirty_logs()
                && lost.end > iova
            {
                mark(lost.start, lost.end);
            }
        });
        bitmap
    }
}

/// DMA_LOGGING_REPORT: what was written in a range since the last one.
fn report(
    device: &mut dyn Migration,
    asked: LoggingReport,
    argsz: u32,
    answer: &mut Vec<u8>,
) -> Result<(), Errno> {
    let range = Written::new(asked.iova, asked.length, asked.page_size)?;
    let whole = (DeviceFeature::LEN + LoggingReport::LEN) as u64 + range.bitmap_size();
    if u64::from(argsz) < whole || !is_logging(device) {
        return Err(Errno::EINVAL);
    }
    asked.emit(answer);
    for word in range.take(device) {
        answer.put_u64(word);
    }
    Ok(())
}
