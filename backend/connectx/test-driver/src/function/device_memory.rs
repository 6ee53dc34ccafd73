//! Memory of the device (MEMIC), a part of BAR 0.

use crate::bits::{dm, put_qword, qword};
use crate::error::{Error, Result};
use crate::function::command::request;
use crate::function::device::Device;
use crate::function::opcode::Opcode;
use crate::memory::{PAGE, Window};

/// A piece of it.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    offset: u64,
    len: u32,
    /// Where it is mapped.
    window: Option<Window>,
}

impl DeviceMemory {
    /// Takes `len` bytes, a multiple of 64, at the first page that is free, as the stock driver does.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(device: &Device, len: u32) -> Result<Self> {
        let caps = device.query_capabilities(dm::CURRENT)?;
        if dm::MEMIC.get(&caps) == 0 {
            return Err(Error::Unexpected("it has no memory of its own".into()));
        }
        let begin = qword(&caps, dm::BAR_START);
        let end = begin + u64::from(dm::BAR_SIZE.get(&caps));
        let mut refusal = None;
        for page in (begin..end).step_by(PAGE) {
            match Self::at(device, page, len) {
                Err(error) if error.status().is_some() => refusal = Some(error),
                outcome => return outcome,
            }
        }
        Err(refusal.unwrap_or(Error::Unexpected("its memory has no bytes".into())))
    }

    fn at(device: &Device, page: u64, len: u32) -> Result<Self> {
        let mut input = request(Opcode::AllocMemic, 0, 32);
        put_qword(&mut input, dm::RANGE_START, page);
        dm::RANGE_SIZE.set(&mut input, len.next_multiple_of(PAGE as u32));
        dm::SIZE.set(&mut input, len);
        let out = device.command(&input, 16)?;
        let offset = qword(&out, dm::ALLOCATED);
        let window = device.0.bar.window(offset, len as usize);
        Ok(Self {
            device: device.clone(),
            offset,
            len,
            window,
        })
    }

    /// Where in BAR 0 it is, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// It is never empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, where a processor writes and reads it.
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Panics
    /// The bytes are not in it.
    pub fn write(&self, at: usize, data: &[u8]) -> Result<()> {
        self.contains(at, data.len());
        match &self.window {
            Some(window) => window.slice(at, data.len()).copy_from(data),
            None => self.device.write_bar(self.offset + at as u64, data)?,
        }
        Ok(())
    }

    /// As [`DeviceMemory::write`].
    ///
    /// # Errors
    /// [`Error`].
    ///
    /// # Panics
    /// The bytes are not in it.
    pub fn read(&self, at: usize, data: &mut [u8]) -> Result<()> {
        self.contains(at, data.len());
        match &self.window {
            Some(window) => drop(window.slice(at, data.len()).copy_to(data)),
            None => self.device.read_bar(self.offset + at as u64, data)?,
        }
        Ok(())
    }

    fn contains(&self, at: usize, len: usize) {
        let inside = at
            .checked_add(len)
            .is_some_and(|end| end <= self.len as usize);
        assert!(inside, "{len} bytes at {at} are not in it");
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let mut input = request(Opcode::DeallocMemic, 0, 32);
        put_qword(&mut input, dm::FREED, self.offset);
        dm::FREED_SIZE.set(&mut input, self.len);
        // The device may be gone, and the memory with it.
        let _ = self.device.command(&input, 16);
    }
}
