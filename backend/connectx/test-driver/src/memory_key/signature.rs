//! Memory keys whose bytes have signatures.

use std::sync::Arc;

use crate::bits::{mkc, psv, put_dword};
use crate::error::Result;
use crate::function::command::request;
use crate::function::device::Object;
use crate::function::opcode::Opcode;
use crate::memory_key::region::{MemoryRegion, Mode, ProtectionDomain};

/// Octwords of a form.
const OCTWORDS: u32 = 4;
/// Stretches that a key has room for.
const STRETCHES: u32 = 4;

/// A value under way (PSV), which forms name.
#[derive(Debug)]
pub struct SignatureValue {
    object: Object,
    _domain: Arc<ProtectionDomain>,
}

impl SignatureValue {
    /// A new one.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(pd: &Arc<ProtectionDomain>) -> Result<Self> {
        let device = pd.device();
        let mut input = request(Opcode::CreatePsv, 0, 16);
        psv::NUM_PSV.set(&mut input, 1);
        psv::PD.set(&mut input, pd.number());
        let out = device.command(&input, 32)?;
        Ok(Self {
            object: Object::new(device, Opcode::DestroyPsv, psv::PSV0_INDEX.get(&out)),
            _domain: Arc::clone(pd),
        })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number
    }
}

/// T10-DIF behind each block of 512 bytes, with a CRC, an application tag of zeros, and reference tags from zero on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SignatureForm {
    /// In memory: names this value under way.
    pub memory: Option<u32>,
    /// On the wire: names this value under way.
    pub wire: Option<u32>,
}

impl SignatureForm {
    /// As a request has it (`mlx5_bsf`). Every byte is looked at where it comes from, and made anew where it goes.
    pub fn to_bytes(self) -> [u8; 64] {
        const BLOCKS_OF_512: u8 = 1;
        const REPEATS: u8 = 1 << 7;
        const CRC: u8 = 1;
        const INCREMENTS: u8 = 1 << 6;
        const VALID_AND_REFRESHED: u32 = 0xc000;
        let mut bytes = [0; 64];
        // With all its parts.
        bytes[0] = 2 << 6;
        bytes[1] = 0xff;
        // The wire is described first, but for the size of its blocks.
        let sides = [(self.wire, 2, 8, 32), (self.memory, 3, 12, 48)];
        for (value, block, values, part) in sides {
            if let Some(value) = value {
                bytes[block] = BLOCKS_OF_512;
                put_dword(&mut bytes, values, value);
                put_dword(&mut bytes, part, VALID_AND_REFRESHED << 16);
                bytes[part + 8] = CRC;
                bytes[part + 9] = REPEATS;
                bytes[part + 13] = INCREMENTS;
                bytes[part + 14..part + 16].copy_from_slice(&[0xff; 2]);
            }
        }
        bytes
    }
}

impl MemoryRegion {
    /// A key without memory, which work requests give signatures and stretches of other regions.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn with_signatures(pd: &Arc<ProtectionDomain>) -> Result<Self> {
        let context = |context: &mut [u8]| {
            mkc::FREE.set(context, 1);
            mkc::UMR_EN.set(context, 1);
            mkc::BSF_EN.set(context, 1);
            mkc::BSF_OCTWORD_SIZE.set(context, OCTWORDS);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, STRETCHES);
        };
        Self::create(pd, Mode::Indirect, context, Vec::new(), 0)
    }
}
