//! A VF's guest memory, as the engine reaches it, and the formats of what is there.

use std::sync::Arc;

use connectx::{Configuration, Mlx5};
use hca::dma::DEVICE_MEMORY;
use hca::{Dma, Readable};
use serde::{Deserialize, Serialize};
use vfio_user::{DmaView, SharedMemory, SharedView};
use vm_memory::VolatileSlice;

/// Memory of a VF's device: a part of BAR 0, which its guest may map.
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    /// All of BAR 0.
    bar: Arc<SharedMemory>,
    /// Where the memory begins there, in bytes.
    begin: usize,
    /// Its length in bytes.
    len: usize,
}

/// A page of a device's memory in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicePage {
    /// Where in the memory, in bytes.
    at: usize,
    /// Two digits for each byte.
    bytes: String,
}

/// Bytes of a page.
const PAGE: usize = 4096;

impl DevicePage {
    fn decode(&self) -> Option<Vec<u8>> {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let byte = |pair: &[u8; 2]| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8);
        let (pairs, rest) = self.bytes.as_bytes().as_chunks::<2>();
        let whole = pairs.len() == PAGE && rest.is_empty();
        whole.then(|| pairs.iter().map(byte).collect()).flatten()
    }
}

impl DeviceMemory {
    /// Returns the memory of a function with the BAR 0 `bar`, if it has any.
    #[must_use]
    pub fn of(configuration: &Configuration, bar: &Arc<SharedMemory>) -> Option<Self> {
        let (begin, len) = configuration.device_memory_area()?;
        Some(Self {
            bar: Arc::clone(bar),
            begin: begin as usize,
            len: len as usize,
        })
    }

    /// Memory from a DMA address on, if it is the device's.
    #[cold]
    fn window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let at = usize::try_from(addr.checked_sub(DEVICE_MEMORY)?).ok()?;
        let left = (self.begin + self.len).checked_sub(at)?;
        let inside = at >= self.begin && left > 0;
        self.bar.slice(at, len.min(left)).filter(|_| inside)
    }

    /// Makes zeros of it: another guest may be the next to see it.
    pub fn clear(&self) {
        if let Err(error) = self.bar.clear(self.begin, self.len) {
            tracing::warn!("the memory of a device cannot be cleared: {error}");
        }
    }

    /// Its pages that are not all zeros.
    #[must_use]
    pub fn save(&self) -> Vec<DevicePage> {
        let page = |at| {
            let mut bytes = [0_u8; PAGE];
            self.bar
                .slice(self.begin + at, PAGE)?
                .copy_to(&mut bytes[..]);
            let written = bytes.iter().any(|byte| *byte != 0);
            written.then(|| DevicePage {
                at,
                bytes: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            })
        };
        (0..self.len).step_by(PAGE).filter_map(page).collect()
    }

    /// Has what is in these pages, and zeros elsewhere.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn restore(&self, pages: &[DevicePage]) -> Result<(), String> {
        self.clear();
        for page in pages {
            let fits = page.at.is_multiple_of(PAGE) && page.at < self.len;
            let to = self.bar.slice(self.begin.saturating_add(page.at), PAGE);
            match (page.decode(), to.filter(|_| fits)) {
                (Some(bytes), Some(to)) => to.copy_from(&bytes[..]),
                _ => {
                    let at = page.at;
                    return Err(format!("invalid page of the device's memory at {at:#x}"));
                }
            }
        }
        Ok(())
    }
}

/// The mappings that a VF's client has made, and the memory of the device behind them. To change the
/// mappings, the engine is given another view, so that nothing is unmapped under an access and nobody
/// waits for what it takes to unmap.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory {
    view: DmaView,
    device: Option<DeviceMemory>,
}

impl GuestMemory {
    /// These mappings, and this memory of the device.
    #[must_use]
    pub const fn new(view: DmaView, device: Option<DeviceMemory>) -> Self {
        Self { view, device }
    }
}

impl Dma for GuestMemory {
    #[inline]
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        match self.view.read_window(addr, len) {
            None => self.device.as_ref()?.window(addr, len),
            found => found,
        }
    }

    #[inline]
    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        match self.view.write_window(addr, len) {
            None => self.device.as_ref()?.window(addr, len),
            found => found,
        }
    }

    fn share(&self) -> Option<Arc<dyn Readable>> {
        Some(Arc::new(ReadableMemory {
            view: self.view.shared(),
            device: self.device.clone(),
        }))
    }
}

/// The same for the threads of other engines to read.
#[derive(Debug)]
struct ReadableMemory {
    view: SharedView,
    device: Option<DeviceMemory>,
}

impl Readable for ReadableMemory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        match self.view.read_window(addr, len) {
            None => self.device.as_ref()?.window(addr, len),
            found => found,
        }
    }
}

/// The formats of the VFs' queues, over their guests' memory.
pub type Format = Mlx5<GuestMemory>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_device_is_reached_saved_and_cleared() {
        let configuration = Configuration::default();
        let (begin, len) = configuration.device_memory_area().unwrap();
        let memory = || {
            let bar = SharedMemory::new("bar", configuration.bar_size as usize).unwrap();
            DeviceMemory::of(&configuration, &Arc::new(bar)).unwrap()
        };
        let (here, there) = (memory(), memory());
        let dma = GuestMemory::new(DmaView::default(), Some(here.clone()));
        hca::dma::write(&dma, DEVICE_MEMORY + begin + 8190, b"written").unwrap();
        // Nothing before it, behind it, or where a guest's memory is.
        for addr in [begin - 1, begin + len, 0, u64::MAX - DEVICE_MEMORY] {
            assert!(
                dma.read_window(DEVICE_MEMORY + addr, 1).is_none(),
                "{addr:#x}"
            );
        }
        assert!(dma.read_window(begin, 1).is_none());
        let end = DEVICE_MEMORY + begin + len;
        assert_eq!(dma.write_window(end - 2, 8).unwrap().len(), 2);
        let pages = here.save();
        let places: Vec<_> = pages.iter().map(|page| page.at).collect();
        assert_eq!(places, [4096, 8192]);
        there.restore(&pages).unwrap();
        assert_eq!(there.save(), pages);
        for damage in [
            |page: &mut DevicePage| page.at = 1,
            |page: &mut DevicePage| page.at = usize::MAX - 4095,
            |page: &mut DevicePage| page.bytes.truncate(8190),
            |page: &mut DevicePage| page.bytes.replace_range(..2, "+1"),
            |page: &mut DevicePage| page.bytes.replace_range(..2, "é"),
        ] {
            let mut page = pages[0].clone();
            damage(&mut page);
            assert!(there.restore(&[page]).is_err());
        }
        here.clear();
        assert_eq!(here.save(), []);
    }
}
