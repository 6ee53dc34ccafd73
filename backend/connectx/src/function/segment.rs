//! The initialization segment: how a driver finds the device, gives it a
//! command queue, and watches its health.

use serde::{Deserialize, Serialize};

use crate::backend::Registers;
use crate::bits::initialization::mlx5_init_seg as segment;

/// Largest number of entries of the command queue, as a power of two: one bit
/// of the doorbell per entry.
pub const LOG_COMMAND_ENTRIES: u32 = 5;
/// Number of entries that drivers are told of. Not the largest: Linux (since 6.12, and stable kernels of late 2024) shifts a
/// 1 by it to know the free ones, which on processors with 32 bits leaves none of 32. Drivers that have been told of 32,
/// and have moved here, use them.
const LOG_COMMAND_ENTRIES_TOLD: u32 = 4;
/// Bytes of an entry, as a power of two.
pub const LOG_COMMAND_STRIDE: u32 = 6;
/// Revision of the command interface; drivers know no other.
const COMMAND_INTERFACE: u32 = 5;
/// Offset of the health buffer.
const HEALTH_BUFFER: usize = 0x200;

/// Interfaces by which drivers use the device.
mod interface {
    pub const FULL: u32 = 0;
    /// Not at all. A device is so from a reset on until it is given a command
    /// queue: a driver that was not told of the reset sees it here, and starts
    /// anew.
    pub const DISABLED: u32 = 1;
    pub const SOFTWARE_RESET: u32 = 7;
}

/// Effect of a write on the rest of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum SegmentEffect {
    /// Nothing.
    None,
    /// Look at these entries of the command queue, a bit each.
    Commands {
        /// DMA address of the queue.
        queue: u64,
        /// The entries.
        entries: u32,
    },
    /// Stop everything: the driver gives up the device without taking down its
    /// objects one by one.
    Reset,
}

/// The initialization segment in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentImageV1 {
    /// DMA address of the command queue.
    queue: u64,
    /// The interface by which the driver uses the device.
    interface: u32,
}

/// Registers of the initialization segment. All are big-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitializationSegment {
    queue_high: u32,
    queue_low: u32,
    interface: u32,
}

impl Default for InitializationSegment {
    fn default() -> Self {
        Self {
            queue_high: 0,
            queue_low: 0,
            interface: interface::DISABLED,
        }
    }
}

impl InitializationSegment {
    /// DMA address of the command queue; `None` while the driver does not use
    /// the device or has not said where its queue is.
    #[must_use]
    pub fn command_queue(&self) -> Option<u64> {
        let queue = u64::from(self.queue_high) << 32 | u64::from(self.queue_low);
        (self.interface != interface::DISABLED && queue != 0).then_some(queue)
    }

    /// Its part of an image.
    #[must_use]
    pub const fn save(&self) -> SegmentImageV1 {
        SegmentImageV1 {
            queue: (self.queue_high as u64) << 32 | self.queue_low as u64,
            interface: self.interface,
        }
    }

    /// Becomes the segment of an image.
    pub const fn restore(&mut self, image: &SegmentImageV1) {
        self.queue_high = (image.queue >> 32) as u32;
        self.queue_low = image.queue as u32 & !0xfff;
        self.interface = image.interface & 7;
    }

    /// A segment that says so where this one says how the driver uses the device.
    pub(crate) const fn disabled(mut self) -> Self {
        self.interface = interface::DISABLED;
        self
    }

    /// Back to the state of power-on.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The dword at `offset`, a multiple of four, of a device with these registers.
    fn dword(&self, offset: u64, device: &Registers) -> u32 {
        /// In the dword that says whether the device is yet to come up.
        const INITIALIZING: u32 = 1 << 31;
        let (major, minor, subminor) = device.firmware;
        let registers = [
            (segment::FW_REV, u32::from(minor) << 16 | u32::from(major)),
            (
                segment::CMDIF_REV_FW_SUB,
                COMMAND_INTERFACE << 16 | u32::from(subminor),
            ),
            (segment::CMDQ_ADDR_H, self.queue_high),
            (
                segment::CMDQ_ADDR_L_SZ,
                self.queue_low
                    | self.interface << 8
                    | LOG_COMMAND_ENTRIES_TOLD << 4
                    | LOG_COMMAND_STRIDE,
            ),
            (
                segment::INITIALIZING,
                u32::from(device.initializing) * INITIALIZING,
            ),
            (segment::INTERNAL_TIMER_H, (device.timer >> 32) as u32),
            (segment::INTERNAL_TIMER_L, device.timer as u32),
            (segment::HEALTH_COUNTER, device.health_counter & 0x00ff_ffff),
        ];
        let at = |field: crate::bits::Field| field.position().0 as u64 == offset * 8;
        if let Some(&(_, value)) = registers.iter().find(|(field, _)| at(*field)) {
            return value;
        }
        let within = usize::try_from(offset).ok();
        let within = within.and_then(|offset| offset.checked_sub(HEALTH_BUFFER));
        let health = within.and_then(|at| device.health.get(at..at + 4)?.first_chunk());
        health.map_or(0, |dword| u32::from_be_bytes(*dword))
    }

    /// Reads any number of bytes from any offset, of a device with these registers.
    pub fn read(&self, offset: u64, data: &mut [u8], device: &Registers) {
        let mut dword = [0; 4];
        let mut held = None;
        for (at, byte) in (offset..=u64::MAX).zip(data) {
            if held != Some(at & !3) {
                dword = self.dword(at & !3, device).to_be_bytes();
                held = Some(at & !3);
            }
            *byte = dword[(at & 3) as usize];
        }
    }

    /// Writes a whole dword at `offset`. Parts of dwords are no accesses that
    /// the interface has; a caller drops them.
    pub fn write(&mut self, offset: u64, value: u32) -> SegmentEffect {
        let at = |field: crate::bits::Field| field.position().0 as u64 == offset * 8;
        if at(segment::CMDQ_ADDR_H) {
            self.queue_high = value;
        } else if at(segment::CMDQ_ADDR_L_SZ) {
            self.queue_low = value & !0xfff;
            return self.set_interface(value >> 8 & 7);
        } else if at(segment::CMD_DBELL) {
            let entries = value;
            let queue = self.command_queue();
            return queue.map_or(SegmentEffect::None, |queue| SegmentEffect::Commands {
                queue,
                entries,
            });
        }
        SegmentEffect::None
    }

    fn set_interface(&mut self, value: u32) -> SegmentEffect {
        match value {
            interface::SOFTWARE_RESET => {
                // Done before the driver can look: it waits for "disabled".
                self.interface = interface::DISABLED;
                SegmentEffect::Reset
            }
            interface::DISABLED if self.interface == interface::FULL => {
                self.interface = value;
                SegmentEffect::Reset
            }
            _ => {
                self.interface = value;
                SegmentEffect::None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::registers;

    fn read(segment: &InitializationSegment, offset: u64, now: u64) -> u32 {
        let mut bytes = [0; 4];
        segment.read(offset, &mut bytes, &registers(now));
        u32::from_be_bytes(bytes)
    }

    #[test]
    fn the_queue_address_and_sizes_share_a_register() {
        let mut segment = InitializationSegment::default();
        assert_eq!(segment.write(0x10, 0x1), SegmentEffect::None);
        assert_eq!(segment.write(0x14, 0x2345_6000), SegmentEffect::None);
        assert_eq!(segment.command_queue(), Some(0x1_2345_6000));
        assert_eq!(read(&segment, 0x14, 0), 0x2345_6046);
        assert_eq!(read(&segment, 0x4, 0) >> 16, 5);
    }

    #[test]
    fn giving_up_the_device_reads_back() {
        let mut segment = InitializationSegment::default();
        assert_eq!(segment.write(0x14, 0x1000), SegmentEffect::None);
        assert_eq!(segment.write(0x14, 0x1000 | 1 << 8), SegmentEffect::Reset);
        assert_eq!(read(&segment, 0x14, 0) >> 8 & 7, 1);
        assert_eq!(segment.write(0x14, 0x1000), SegmentEffect::None);
        assert_eq!(segment.write(0x14, 0x1000 | 7 << 8), SegmentEffect::Reset);
        assert_eq!(read(&segment, 0x14, 0) >> 8 & 7, 1);
    }

    #[test]
    fn a_reset_shows_until_there_is_a_command_queue_again() {
        let mut segment = InitializationSegment::default();
        for _ in 0..2 {
            assert_eq!(read(&segment, 0x14, 0), 0x146);
            // Half an address is none, and neither is address 0.
            assert_eq!(segment.write(0x10, 0x1), SegmentEffect::None);
            assert_eq!(read(&segment, 0x14, 0) >> 8 & 7, 1);
            assert_eq!(segment.command_queue(), None);
            assert_eq!(segment.write(0x10, 0), SegmentEffect::None);
            assert_eq!(segment.write(0x14, 0), SegmentEffect::None);
            assert_eq!(segment.command_queue(), None);
            assert_eq!(segment.write(0x14, 0x1000), SegmentEffect::None);
            assert_eq!(read(&segment, 0x14, 0), 0x1046);
            assert_eq!(segment.command_queue(), Some(0x1000));
            segment.reset();
        }
    }

    #[test]
    fn health_is_good_and_moves_with_time() {
        let segment = InitializationSegment::default();
        let second = 1_000_000_000;
        let counts: Vec<u32> = (0..4)
            .map(|i| read(&segment, 0x1010, i * 2 * second))
            .collect();
        assert!(counts.windows(2).all(|pair| pair[0] != pair[1]));
        let mut byte = [0xff];
        segment.read(0x23d, &mut byte, &registers(second));
        assert_eq!(byte, [0]);
        assert_eq!(read(&segment, 0x1fc, 0), 0);
        assert_eq!(
            (
                read(&segment, 0x1000, 5 << 32 | 7),
                read(&segment, 0x1004, 5 << 32 | 7)
            ),
            (5, 7)
        );
    }

    #[test]
    fn unaligned_reads_see_the_same_bytes() {
        let mut segment = InitializationSegment::default();
        assert_eq!(segment.write(0x14, 0xabcd_e000), SegmentEffect::None);
        let mut bytes = [0; 7];
        segment.read(0x13, &mut bytes, &registers(0));
        assert_eq!(bytes, [0, 0xab, 0xcd, 0xe0, 0x46, 0, 0]);
    }

    #[test]
    fn a_device_that_is_not_well_says_so() {
        let segment = InitializationSegment::default();
        let mut health = [0; 64];
        health[0x3d] = 7;
        let device = Registers {
            initializing: true,
            health,
            ..registers(0)
        };
        let read = |offset| segment.dword(offset, &device);
        assert_eq!((read(0x1fc), read(0x23c)), (1 << 31, 7 << 16));
        assert_eq!((read(0x200), read(0x240), read(0x3ffc)), (0, 0, 0));
    }
}
