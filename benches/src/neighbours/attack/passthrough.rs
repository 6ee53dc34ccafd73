//! A guest with a VF that is passed through to one of another daemon: the longest lists of pages that are right,
//! commands of garbage as many as there are entries, and a reset in the middle of them, over and over.

use test_driver::bits::{mkc, put_qword, request};
use test_driver::{Device, ENTRY, Opcode, Options, PAGE, ProtectionDomain};

use crate::Result;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::batch::{self, Letter, SLOTS};
use crate::neighbours::lab::{HOSTILE, Lab};

/// Batches of garbage between two resets.
const BATCHES: u16 = 16;
/// Opcodes of the interface are below.
const OPCODES: u16 = 0x0c00;

/// The attack.
pub(super) struct Passthrough<'a> {
    lab: &'a Lab,
    opcode: u16,
}

impl<'a> Passthrough<'a> {
    pub(super) const fn prepare(lab: &'a Lab) -> Self {
        Self { lab, opcode: 0 }
    }

    /// A memory key of as many pages as a command has room for, all of them the guest's.
    fn key(&self, device: &Device, domain: &ProtectionDomain) -> Result<Letter> {
        let len = self.lab.scale.command;
        let mut letter = Letter::new(device, len)?;
        let mut input = test_driver::request(Opcode::CreateMkey, 0, len);
        let pages = (len - request::PAGES) / 8;
        let octwords = (pages / 2) as u32;
        request::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, octwords);
        for number in 0..pages {
            put_qword(
                &mut input,
                request::PAGES + 8 * number,
                device.memory().iova(),
            );
        }
        let context = &mut input[request::CONTEXT..];
        mkc::LR.set(context, 1);
        mkc::ACCESS_MODE.set(context, 1);
        mkc::LOG_PAGE_SIZE.set(context, 12);
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
        mkc::PD.set(context, domain.number());
        put_qword(context, mkc::LEN, (pages * PAGE) as u64);
        letter.write(&input);
        Ok(letter)
    }

    /// Commands of any opcode, each of whose bytes is the same.
    fn garbage(&mut self, letter: &Letter) -> Vec<[u8; ENTRY]> {
        (0..SLOTS)
            .map(|slot| {
                self.opcode = (self.opcode + 1) % OPCODES;
                let mut entry = letter.entry(None);
                let inline = &mut entry[0x10..0x20];
                inline.fill(slot as u8);
                inline[..2].copy_from_slice(&self.opcode.to_be_bytes());
                entry
            })
            .collect()
    }
}

impl Attacker for Passthrough<'_> {
    fn strike(&mut self) -> Result<()> {
        let len = self.lab.scale.command;
        let options = Options {
            memory: (16 << 20) + 3 * len,
            ..Options::default()
        };
        let device = Device::open_with(self.lab.socket(HOSTILE), options)?;
        let domain = ProtectionDomain::new(&device)?;
        let letter = self.key(&device, &domain)?;
        let keys = vec![letter.entry(None); SLOTS];
        batch::execute(&device, &keys)?;
        for _ in 0..BATCHES {
            let garbage = self.garbage(&letter);
            batch::execute(&device, &garbage)?;
        }
        // Nobody waits for these.
        device.raw_commands(&keys)?;
        device.reset()?;
        Ok(())
    }
}
