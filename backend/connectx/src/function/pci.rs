//! Configuration space and MSI-X structures of the PCI function.

use serde::{Deserialize, Serialize};

use crate::configuration::{Configuration, Identity, MSIX_IN_BAR0};

/// Bytes of configuration space.
pub const CONFIG_SIZE: usize = 4096;
/// Network controller, InfiniBand.
pub const CLASS: u32 = 0x02_0700;
/// Bytes of BAR 2, which holds the MSI-X structures and nothing else.
pub const MSIX_BAR_SIZE: u64 = 0x2000;

/// Offset of the pending bits behind the table.
const PENDING_BITS: usize = 0x1000;
const BAR_OF_MSIX: u32 = 2;

const POWER_MANAGEMENT: usize = 0x40;
const EXPRESS: usize = 0x50;
const MSIX: usize = 0x90;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const BAR2: usize = 0x18;
const DEVICE_CONTROL: usize = EXPRESS + 0x08;
const INITIATE_FLR: u16 = 1 << 15;

/// Effect of a write to configuration space on the rest of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ConfigEffect {
    /// Nothing.
    None,
    /// A function-level reset.
    Reset,
}

/// Configuration space in an image: what can be written, byte by byte.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigImageV1 {
    written: Vec<(u16, u8)>,
}

/// The MSI-X table in an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MsixImageV1 {
    entries: Vec<[u32; 4]>,
}

/// Configuration space: little-endian, as PCI has it.
#[derive(Debug, Clone)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_SIZE]>,
    writable: Box<[u8; CONFIG_SIZE]>,
    identity: Identity,
    bar0_size: u64,
    vectors: u16,
    /// The BAR that the MSI-X structures are in, and where they begin there.
    msix: (u32, u32),
}

impl ConfigSpace {
    /// The configuration space of a function with this configuration, see [`Configuration::checked`].
    #[must_use]
    pub fn new(configuration: &Configuration) -> Self {
        let mut space = Self {
            bytes: Box::new([0; CONFIG_SIZE]),
            writable: Box::new([0; CONFIG_SIZE]),
            identity: configuration.identity,
            bar0_size: configuration.bar_size,
            vectors: configuration.vectors,
            msix: if configuration.has_msix_in_bar0() {
                (0, MSIX_IN_BAR0 as u32)
            } else {
                (BAR_OF_MSIX, 0)
            },
        };
        space.reset();
        space
    }

    /// Back to the state of power-on.
    pub fn reset(&mut self) {
        self.bytes.fill(0);
        self.writable.fill(0);
        self.header();
        self.power_management();
        self.express();
        self.msix();
    }

    fn put16(&mut self, at: usize, value: u16, writable: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 2].copy_from_slice(&writable.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32, writable: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self.writable[at..at + 4].copy_from_slice(&writable.to_le_bytes());
    }

    fn header(&mut self) {
        const CAPABILITY_LIST: u16 = 1 << 4;
        const MEMORY_64_PREFETCHABLE: u32 = 0b1100;
        // Memory space, bus master, parity, SERR, no INTx.
        const COMMAND_BITS: u16 = 0x0546;
        let identity = self.identity;
        self.put16(0x00, identity.vendor, 0);
        self.put16(0x02, identity.device, 0);
        self.put16(COMMAND, 0, COMMAND_BITS);
        self.put16(STATUS, CAPABILITY_LIST, 0);
        self.put32(0x08, CLASS << 8 | u32::from(identity.revision), 0);
        // Cache line size and latency are the system's to note.
        self.put16(0x0c, 0, 0x00ff);
        let mask = !(self.bar0_size - 1);
        self.put32(BAR0, MEMORY_64_PREFETCHABLE, mask as u32);
        self.put32(BAR0 + 4, 0, (mask >> 32) as u32);
        if self.msix.0 == BAR_OF_MSIX {
            self.put32(BAR2, 0, !(MSIX_BAR_SIZE as u32 - 1));
        }
        self.put16(0x2c, identity.subsystem_vendor, 0);
        self.put16(0x2e, identity.subsystem, 0);
        self.bytes[0x34] = POWER_MANAGEMENT as u8;
        self.writable[0x3c] = 0xff;
    }

    fn power_management(&mut self) {
        const NO_SOFT_RESET: u16 = 1 << 3;
        const POWER_STATE: u16 = 0b11;
        self.put16(POWER_MANAGEMENT, 0x01 | (EXPRESS as u16) << 8, 0);
        self.put16(POWER_MANAGEMENT + 2, 0x0003, 0);
        self.put16(POWER_MANAGEMENT + 4, NO_SOFT_RESET, POWER_STATE);
    }

    fn express(&mut self) {
        // Version 2 of the structure, an endpoint.
        const ENDPOINT: u16 = 0x0002;
        // Payloads to 512 bytes, 64 ns and 1 µs to leave idle states, role-based
        // error reporting, function-level reset.
        const CAPABILITIES: u32 = 0x1000_8002;
        // 16 GT/s, 16 lanes.
        const LINK: u32 = 0x0000_0104;
        self.put16(EXPRESS, 0x10 | (MSIX as u16) << 8, 0);
        self.put16(EXPRESS + 0x02, ENDPOINT, 0);
        self.put32(EXPRESS + 0x04, CAPABILITIES, 0);
        // Relaxed ordering, no snoop, largest read request.
        self.put16(DEVICE_CONTROL, 0x2810, 0x7fff);
        self.put32(EXPRESS + 0x0c, LINK, 0);
        self.put16(EXPRESS + 0x10, 0, 0x00c0);
        self.put16(EXPRESS + 0x12, LINK as u16, 0);
        // Completion timeout ranges and its disabling.
        self.put32(EXPRESS + 0x24, 0x0000_001f, 0);
        self.put16(EXPRESS + 0x28, 0, 0x001f);
        self.put32(EXPRESS + 0x2c, 0x0000_001e, 0);
        self.put16(EXPRESS + 0x30, 0x0004, 0);
    }

    fn msix(&mut self) {
        const ENABLE_AND_MASK: u16 = 0xc000;
        let vectors = self.vectors;
        self.put16(MSIX, 0x11, 0);
        self.put16(MSIX + 2, vectors - 1, ENABLE_AND_MASK);
        let (bar, begin) = self.msix;
        self.put32(MSIX + 4, begin | bar, 0);
        self.put32(MSIX + 8, (begin + PENDING_BITS as u32) | bar, 0);
    }

    /// Reads from byte `offset`; all ones past the end.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..=u64::MAX).zip(data) {
            *byte = usize::try_from(at)
                .ok()
                .and_then(|at| self.bytes.get(at))
                .copied()
                .unwrap_or(0xff);
        }
    }

    /// Writes to byte `offset` what may be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::None;
        for (at, &byte) in (offset..=u64::MAX).zip(data) {
            let Ok(at) = usize::try_from(at) else { break };
            let (Some(old), Some(&mask)) = (self.bytes.get_mut(at), self.writable.get(at)) else {
                break;
            };
            *old = *old & !mask | byte & mask;
            if at == DEVICE_CONTROL + 1 && u16::from(byte) << 8 & INITIATE_FLR != 0 {
                effect = ConfigEffect::Reset;
            }
        }
        effect
    }

    /// The first `N` bytes, and the bits of them that a guest may write.
    pub(crate) fn first<const N: usize>(&self) -> ([u8; N], [u8; N]) {
        let first = |bytes: &[u8; CONFIG_SIZE]| bytes.first_chunk().copied();
        let (bytes, writable) = (first(&self.bytes), first(&self.writable));
        (bytes.unwrap_or([0; N]), writable.unwrap_or([0; N]))
    }

    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> ConfigImageV1 {
        let written = |at: &usize| self.writable[*at] != 0;
        ConfigImageV1 {
            written: (0..CONFIG_SIZE)
                .filter(written)
                .map(|at| (at as u16, self.bytes[at] & self.writable[at]))
                .collect(),
        }
    }

    /// Writes what an image has, where it may be written.
    pub fn restore(&mut self, image: &ConfigImageV1) {
        for &(at, byte) in &image.written {
            if let (Some(old), Some(&mask)) = (
                self.bytes.get_mut(usize::from(at)),
                self.writable.get(usize::from(at)),
            ) {
                *old = *old & !mask | byte & mask;
            }
        }
    }

    /// Number of interrupt vectors.
    #[must_use]
    pub const fn vectors(&self) -> u16 {
        self.vectors
    }
}

/// The MSI-X table and pending bits. The virtual machine monitor keeps its own
/// copy and masks by it; this one is what reads return.
#[derive(Debug, Clone)]
pub struct MsixTable {
    entries: Vec<[u32; 4]>,
}

impl MsixTable {
    const MASKED: u32 = 1;

    /// A table of `vectors` masked entries.
    #[must_use]
    pub fn new(vectors: u16) -> Self {
        Self {
            entries: vec![[0, 0, 0, Self::MASKED]; usize::from(vectors)],
        }
    }

    /// Masks and clears all entries.
    pub fn reset(&mut self) {
        self.entries.fill([0, 0, 0, Self::MASKED]);
    }

    /// Its part of an image.
    #[must_use]
    pub fn save(&self) -> MsixImageV1 {
        MsixImageV1 {
            entries: self.entries.clone(),
        }
    }

    /// Becomes the table of an image.
    ///
    /// # Errors
    /// It has another number of vectors.
    pub fn restore(&mut self, image: &MsixImageV1) -> Result<(), String> {
        let (there, here) = (image.entries.len(), self.entries.len());
        if there != here {
            return Err(format!("an MSI-X table of {there} vectors, of {here}"));
        }
        self.entries.clone_from(&image.entries);
        Ok(())
    }

    fn dword(&mut self, at: usize) -> Option<&mut u32> {
        self.entries
            .get_mut(at / 16)
            .map(|entry| &mut entry[at / 4 % 4])
    }

    /// Reads from byte `offset` of the structures. Nothing is ever pending: a masked
    /// vector is held back by whoever masked it.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..=u64::MAX).zip(data) {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            *byte = self
                .dword(at)
                .map_or(0, |dword| dword.to_le_bytes()[at % 4]);
        }
    }

    /// Writes to byte `offset` of the structures.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, &value) in (offset..=u64::MAX).zip(data) {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            if let Some(dword) = self.dword(at) {
                let mut bytes = dword.to_le_bytes();
                bytes[at % 4] = value;
                *dword = u32::from_le_bytes(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read32(space: &ConfigSpace, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identity_and_capabilities_are_found_as_a_kernel_looks_for_them() {
        let space = ConfigSpace::new(&Configuration::default());
        assert_eq!(read32(&space, 0), 0x101e_15b3);
        assert_eq!(read32(&space, 8) >> 8, 0x02_0700);
        let mut found = Vec::new();
        let mut at = u64::from(read32(&space, 0x34) as u8);
        while at != 0 {
            let head = read32(&space, at);
            found.push(head as u8);
            at = u64::from((head >> 8) as u8);
        }
        assert_eq!(found, [0x01, 0x10, 0x11]);
        assert_eq!(read32(&space, 0x90) >> 16 & 0x7ff, 31);
    }

    #[test]
    fn bars_answer_with_their_size() {
        let mut space = ConfigSpace::new(&Configuration::default());
        for at in [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24] {
            assert_eq!(space.write(at, &[0xff; 4]), ConfigEffect::None);
        }
        let low = read32(&space, 0x10);
        assert_eq!(low & 0xf, 0xc);
        let size = !(u64::from(read32(&space, 0x14)) << 32 | u64::from(low & !0xf)) + 1;
        assert_eq!(size, 8 << 20);
        assert_eq!(!read32(&space, 0x18) + 1, 0x2000);
        assert_eq!(read32(&space, 0x20), 0);
    }

    #[test]
    fn only_what_is_writable_changes() {
        let mut space = ConfigSpace::new(&Configuration::default());
        let before = space.clone();
        assert_eq!(space.write(0, &[0; 4]), ConfigEffect::None);
        assert_eq!(read32(&space, 0), read32(&before, 0));
        assert_eq!(space.write(4, &[0xff; 2]), ConfigEffect::None);
        assert_eq!(read32(&space, 4) as u16, 0x0546);
        assert_eq!(space.write(0x59, &[0x80]), ConfigEffect::Reset);
        assert_eq!(read32(&space, 0x58) & 0x8000, 0);
        assert_eq!(space.write(4095, &[0xff; 64]), ConfigEffect::None);
        assert_eq!(space.write(u64::MAX, &[0xff; 64]), ConfigEffect::None);
    }

    #[test]
    fn the_table_keeps_what_is_written_and_pending_bits_are_clear() {
        let mut table = MsixTable::new(2);
        table.write(0x10, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut data = [0xee; 48];
        table.read(0, &mut data);
        assert_eq!(
            data[12..32],
            [1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 1, 0, 0, 0][..]
        );
        assert_eq!(data[32..], [0; 16]);
        table.write(0x20, &[0xff; 4]);
        table.read(0x1000, &mut data);
        assert_eq!(data, [0; 48]);
        table.read(u64::MAX - 3, &mut data);
    }
}
