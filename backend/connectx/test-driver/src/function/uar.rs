//! Doorbell pages of BAR 0.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::function::device::{BAR0, Device, Object};
use crate::function::opcode::Opcode;
use crate::memory::{PAGE, Window};

/// A doorbell page.
#[derive(Debug)]
pub struct Uar {
    object: Object,
    window: Option<Window>,
}

impl Uar {
    /// Allocates a doorbell page, as every process does.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(device: &Device) -> Result<Arc<Self>> {
        let number = device.allocate(Opcode::AllocUar)?;
        Ok(Arc::new(Self {
            window: device.0.bar.page(u64::from(number) * PAGE as u64),
            object: Object::new(device, Opcode::DeallocUar, number),
        }))
    }

    /// Its number, which is its page in BAR 0.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    /// Writes 8 bytes at `offset`; `value` is in the order of the interface,
    /// its most significant byte first.
    #[inline]
    pub fn ring(&self, offset: u64, value: u64) -> Result<()> {
        match &self.window {
            Some(window) => {
                // After everything that the doorbell is about.
                window.words()[offset as usize / 8].store(value.to_be(), Ordering::Release);
                Ok(())
            }
            None => self.ring_trapped(offset, value),
        }
    }

    /// Writes a block at `offset` as [`Uar::ring`] writes its first word (BlueFlame). A processor makes eight writes of
    /// it where it does not gather them.
    #[inline]
    pub(crate) fn ring_block(&self, offset: u64, block: &[AtomicU64]) -> Result<()> {
        block.iter().enumerate().try_for_each(|(at, word)| {
            let value = u64::from_be(word.load(Ordering::Relaxed));
            self.ring(offset + 8 * at as u64, value)
        })
    }

    #[cold]
    fn ring_trapped(&self, offset: u64, value: u64) -> Result<()> {
        let device = &self.object.device;
        let offset = u64::from(self.object.number) * PAGE as u64 + offset;
        let mut client = device.0.client.lock();
        if device.0.synchronous_doorbells {
            Ok(client.region_write(BAR0, offset, &value.to_be_bytes())?)
        } else {
            Ok(client.region_post(BAR0, offset, &value.to_be_bytes())?)
        }
    }
}
