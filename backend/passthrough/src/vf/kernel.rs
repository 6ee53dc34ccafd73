//! The kernel's VFIO, as `vfio-ioctls` has it, with what that lacks: mappings for reading alone, single
//! interrupt vectors, resets that say whether they were done, and the addresses that the IOMMU has.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::{ioctl_none_bad, ioctl_readwrite_bad, ioctl_write_ptr_bad, request_code_none};
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_DMA_MAP_FLAG_READ, VFIO_DMA_MAP_FLAG_WRITE, VFIO_IOMMU_INFO_CAPS,
    VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_TYPE, vfio_iommu_type1_dma_map, vfio_iommu_type1_info,
    vfio_irq_set,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioRegionInfoCap};
use vfio_user::{Mapping, SparseArea};

/// Number of one of VFIO's requests.
const fn nr(number: u32) -> u8 {
    (VFIO_BASE + number) as u8
}

ioctl_write_ptr_bad!(
    device_set_irqs,
    request_code_none!(VFIO_TYPE, nr(10)),
    vfio_irq_set
);
ioctl_none_bad!(device_reset, request_code_none!(VFIO_TYPE, nr(11)));
ioctl_readwrite_bad!(
    iommu_get_info,
    request_code_none!(VFIO_TYPE, nr(12)),
    vfio_iommu_type1_info
);
ioctl_write_ptr_bad!(
    iommu_map_dma,
    request_code_none!(VFIO_TYPE, nr(13)),
    vfio_iommu_type1_dma_map
);

/// Most bytes of what the kernel says of an IOMMU.
const MAX_INFO: usize = 64 << 10;

/// A function that this process has, alone in a container.
pub(crate) struct Kernel {
    /// `None` while it is dropped.
    device: Option<VfioDevice>,
    container: Arc<VfioContainer>,
    /// Memory that the function reaches, by DMA address. Memory is kept until the function does not reach it.
    mappings: BTreeMap<u64, Mapping>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("mappings", &self.mappings)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// Opens the function at `folder` in sysfs.
    pub fn open(folder: &Path) -> Result<Self, VfioError> {
        let container = Arc::new(VfioContainer::new(None)?);
        let device = VfioDevice::new(folder, Arc::clone(&container) as _, false)?;
        Ok(Self {
            device: Some(device),
            container,
            mappings: BTreeMap::new(),
        })
    }

    fn device(&self) -> &VfioDevice {
        self.device.as_ref().expect("is there until dropped")
    }

    /// The descriptor that regions are read, written and mapped by.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the device's, which outlives the borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(self.device().as_raw_fd()) }
    }

    /// Where a region begins in the descriptor, how many bytes it has, and its flags.
    pub fn region(&self, index: u32) -> (u64, u64, u32) {
        let device = self.device();
        (
            device.get_region_offset(index),
            device.get_region_size(index),
            device.get_region_flags(index),
        )
    }

    /// The parts of a region that can be mapped, where the kernel names parts.
    pub fn areas(&self, index: u32) -> Vec<SparseArea> {
        let mut areas = Vec::new();
        for cap in self.device().get_region_caps(index) {
            if let VfioRegionInfoCap::SparseMmap(sparse) = cap {
                areas.extend(sparse.areas.iter().map(|area| SparseArea {
                    offset: area.offset,
                    size: area.size,
                }));
            }
        }
        areas
    }

    /// Number of MSI-X vectors.
    pub fn vectors(&self) -> u32 {
        let info = self.device().get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX);
        info.map_or(0, |info| info.count)
    }

    /// Connects MSI-X vectors from `start` on; those without an eventfd to none. Where the kernel has fewer
    /// vectors than that, it says how many.
    pub fn set_vectors(
        &self,
        start: u32,
        eventfds: &[Option<BorrowedFd<'_>>],
    ) -> Result<i32, Errno> {
        let count = eventfds.len() as u32;
        let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
        let len = size_of::<vfio_irq_set>() as u32 + 4 * count;
        let mut words = vec![len, flags, VFIO_PCI_MSIX_IRQ_INDEX, start, count];
        let fd = |it: &Option<BorrowedFd<'_>>| it.map_or(-1, |it| it.as_raw_fd());
        words.extend(eventfds.iter().map(|it| fd(it).cast_unsigned()));
        let set: *const vfio_irq_set = words.as_ptr().cast();
        // SAFETY: `words` is a `vfio_irq_set`, of four-byte fields, and the descriptors after it; its length
        // says how many bytes the kernel may read, and all of them are there.
        unsafe { device_set_irqs(self.raw(), set) }
    }

    /// Resets the function.
    pub fn reset(&self) -> Result<(), Errno> {
        // SAFETY: the request has no argument.
        unsafe { device_reset(self.raw()) }.map(drop)
    }

    fn raw(&self) -> RawFd {
        self.device().as_raw_fd()
    }

    /// Has the function reach memory, which the kernel pins. Ranges without one are left out.
    pub fn map(&mut self, mapping: &Mapping) -> Result<(), Errno> {
        let Some(memory) = mapping.memory() else {
            return Ok(());
        };
        let protection = mapping.protection();
        let flag = |set, flag| if set { flag } else { 0 };
        let request = vfio_iommu_type1_dma_map {
            argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
            flags: flag(protection.read, VFIO_DMA_MAP_FLAG_READ)
                | flag(protection.write, VFIO_DMA_MAP_FLAG_WRITE),
            vaddr: memory.ptr_guard().as_ptr() as u64,
            iova: mapping.addr(),
            size: mapping.size(),
        };
        // SAFETY: the memory stays mapped at this address until the function reaches it no more, since
        // `mappings` has it as long, and it is shared memory, which is accessed as volatile only.
        unsafe { iommu_map_dma(self.container.as_raw_fd(), &request) }?;
        self.mappings.insert(mapping.addr(), mapping.clone());
        Ok(())
    }

    /// Takes memory away from the function.
    pub fn unmap(&mut self, addr: u64) -> Result<(), VfioError> {
        if let Some(mapping) = self.mappings.get(&addr) {
            self.container
                .vfio_dma_unmap(addr, mapping.size() as usize)?;
            self.mappings.remove(&addr);
        }
        Ok(())
    }

    /// The DMA addresses that there are. Empty where the kernel does not say.
    pub fn addresses(&self) -> Result<Vec<RangeInclusive<u64>>, Errno> {
        let mut info = vfio_iommu_type1_info {
            argsz: size_of::<vfio_iommu_type1_info>() as u32,
            ..Default::default()
        };
        // SAFETY: the kernel writes as many bytes as `argsz` says, which are there.
        unsafe { iommu_get_info(self.container.as_raw_fd(), &raw mut info) }?;
        let len = (info.argsz as usize).clamp(size_of::<vfio_iommu_type1_info>(), MAX_INFO);
        let mut words = vec![0_u64; len.div_ceil(8)];
        words[0] = (words.len() * 8) as u64;
        // SAFETY: `words` is aligned for the structure, which its first bytes are, and the kernel writes as
        // many bytes as `argsz`, the first of its fields, says.
        unsafe { iommu_get_info(self.container.as_raw_fd(), words.as_mut_ptr().cast()) }?;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(iova_ranges(&bytes))
    }
}

/// The ranges in what the kernel says of an IOMMU: `struct vfio_iommu_type1_info` and its capabilities.
fn iova_ranges(info: &[u8]) -> Vec<RangeInclusive<u64>> {
    let half = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let long = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let mut ranges = Vec::new();
    if word(4).unwrap_or(0) & VFIO_IOMMU_INFO_CAPS == 0 {
        return ranges;
    }
    let mut at = word(16).unwrap_or(0) as usize;
    // Each capability is a header of 8 bytes: number, version, where the next one is.
    let mut left = info.len() / 8;
    while at != 0 && left > 0 {
        left -= 1;
        if half(at).map(u32::from) == Some(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
            let count = word(at + 8).unwrap_or(0) as usize;
            for range in 0..count.min(info.len() / 16) {
                let first = at + 16 + 16 * range;
                if let (Some(start), Some(end)) = (long(first), long(first + 8)) {
                    ranges.push(start..=end);
                }
            }
        }
        at = word(at + 4).unwrap_or(0) as usize;
    }
    ranges
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // A process that has mapped doorbell pages keeps the function open; its memory goes now.
        for mapping in self.mappings.values() {
            let _ = self
                .container
                .vfio_dma_unmap(mapping.addr(), mapping.size() as usize);
        }
        let device = self.device.take();
        // `VfioDevice` looks for the function in sysfs once more, where an adapter that was pulled out is
        // not to be found, and panics then.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(device)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_among_other_capabilities() {
        let mut info = Vec::new();
        let words = |info: &mut Vec<u8>, words: &[u32]| {
            info.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        };
        // argsz, flags, page sizes, offset of the first capability, padding.
        words(&mut info, &[96, 3, 0xffff_f000, 0xffff_ffff, 24, 0]);
        // Another capability, of 8 bytes and a body of 8.
        words(&mut info, &[1 << 16 | 3, 40, 65535, 0]);
        // Two ranges: without the interrupts' addresses.
        words(&mut info, &[1 << 16 | 1, 0, 2, 0]);
        for at in [0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff_u64] {
            info.extend(at.to_ne_bytes());
        }
        let ranges = [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
        assert_eq!(iova_ranges(&info), ranges);
        // Cut short, and in a circle: an end all the same.
        for len in 0..info.len() {
            iova_ranges(&info[..len]);
        }
        info[28..32].copy_from_slice(&24_u32.to_ne_bytes());
        assert_eq!(iova_ranges(&info), []);
    }
}
