//! As many commands at a time as there are entries, each as long as can be:
//! page lists of memory keys that cannot be created after all.

use test_driver::bits::{mkc, request};
use test_driver::{Device, ENTRY, Opcode, Options};

use crate::Result;
use crate::neighbours::attacker::Attacker;
use crate::neighbours::batch::{self, Letter, SLOTS};
use crate::neighbours::lab::{HOSTILE, Lab};

/// A protection domain that there is not.
const NO_DOMAIN: u32 = 0x00ff_fffe;

/// The attack.
#[derive(Debug)]
pub(super) struct Commands {
    device: Device,
    entries: Vec<[u8; ENTRY]>,
    _letter: Letter,
}

impl Commands {
    pub(super) fn prepare(lab: &Lab) -> Result<Self> {
        let len = lab.scale.command;
        let options = Options {
            memory: (16 << 20) + 3 * len,
            ..Options::default()
        };
        let device = Device::open_with(lab.socket(HOSTILE), options)?;
        let mut letter = Letter::new(&device, len)?;
        let mut input = test_driver::request(Opcode::CreateMkey, 0, len);
        let octwords = ((len - request::PAGES) / 16) as u32;
        request::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, octwords);
        let context = &mut input[request::CONTEXT..];
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
        mkc::ACCESS_MODE.set(context, 1);
        mkc::LOG_PAGE_SIZE.set(context, 12);
        mkc::PD.set(context, NO_DOMAIN);
        letter.write(&input);
        Ok(Self {
            entries: vec![letter.entry(None); SLOTS],
            _letter: letter,
            device,
        })
    }
}

impl Attacker for Commands {
    fn strike(&mut self) -> Result<()> {
        batch::execute(&self.device, &self.entries).map(drop)
    }
}
