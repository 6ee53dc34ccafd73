//! A function that nobody serves: what its guest is to see until somebody does again.
//!
//! A driver that is to recover has to find the device failed and not yet initialized, and alive nevertheless:
//! the interface disabled, as after a reset, and a health counter that runs. It waits as long as the device
//! is initializing.

use crate::backend::{Backend, Registers};
use crate::bits::initialization::mlx5_init_seg as segment;
use crate::function::segment::InitializationSegment;
use crate::function::{Function, Region};

/// Bytes of configuration space that have something in them.
const CONFIG: usize = 256;
/// Where the initialization segment has something besides counters and timers, as offset and length in
/// bytes: its beginning, and the health buffer with what precedes it.
const REGISTERS: [(u64, usize); 2] = [(0x000, 0x18), (0x1fc, 0x44)];

/// A part of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The region.
    pub region: Region,
    /// Where the part begins, in bytes.
    pub offset: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The bits that its guest may write; empty where that is none.
    pub writable: Vec<u8>,
}

/// A function that nobody serves. Addresses outside of all parts read as zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// A driver uses it: it has a command queue.
    pub at_work: bool,
    /// The function as it is.
    pub working: Vec<Part>,
    /// Differences of a function that has failed and is yet to come up.
    pub failed: Vec<Part>,
    /// The health counter, 24 bits of a big-endian dword: where it is. It has to change.
    pub counter: (Region, u64),
}

fn parts(segment: &InitializationSegment, device: &Registers) -> Vec<Part> {
    let part = |(offset, len)| {
        let mut bytes = vec![0; len];
        segment.read(offset, &mut bytes, device);
        Part {
            region: Region::Bar0,
            offset,
            bytes,
            writable: Vec::new(),
        }
    };
    REGISTERS.into_iter().map(part).collect()
}

impl<B: Backend> Function<B> {
    /// The picture that its guest sees without a server from now on.
    #[must_use]
    pub fn absent(&self) -> Absent {
        let (config, _, segment) = self.registers();
        let device = self.backend().registers();
        let (bytes, writable) = config.first::<CONFIG>();
        let mut working = parts(segment, &device);
        working.push(Part {
            region: Region::Config,
            offset: 0,
            bytes: bytes.into(),
            writable: writable.into(),
        });
        let coming = Registers {
            initializing: true,
            ..device
        };
        Absent {
            at_work: segment.command_queue().is_some(),
            working,
            failed: parts(&segment.disabled(), &coming),
            counter: (
                Region::Bar0,
                segment::HEALTH_COUNTER.position().0 as u64 / 8,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::registers;

    fn dword(parts: &[Part], at: u64) -> u32 {
        let find = |part: &Part| {
            let within = usize::try_from(at.checked_sub(part.offset)?).ok()?;
            part.bytes.get(within..)?.first_chunk().copied()
        };
        let found = parts.iter().find_map(find);
        u32::from_be_bytes(found.expect("it is in one of the parts"))
    }

    #[test]
    fn a_failed_device_is_disabled_and_initializing() {
        let mut segment = InitializationSegment::default();
        let _ = segment.write(0x14, 0x1000);
        let device = registers(0);
        let working = parts(&segment, &device);
        let coming = Registers {
            initializing: true,
            ..device
        };
        let failed = parts(&segment.disabled(), &coming);
        assert_eq!(dword(&working, 0x14), 0x1046);
        assert_eq!(dword(&failed, 0x14), 0x1146);
        assert_eq!(
            (dword(&working, 0x1fc), dword(&failed, 0x1fc)),
            (0, 1 << 31)
        );
        // The version and the health are the same, and well.
        for at in [0x0, 0x4, 0x238, 0x23c] {
            assert_eq!(dword(&working, at), dword(&failed, at));
        }
        assert_eq!(dword(&failed, 0x4) >> 16, 5);
        assert_eq!(dword(&failed, 0x23c), 0);
    }
}
