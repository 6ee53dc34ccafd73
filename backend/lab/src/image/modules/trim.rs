//! Removes parts of a module that only cost time when it is loaded. Its code and data stay what they are.

use crate::image::elf::{long, word};

/// Takes a module's signature away, and hides its list of functions that can be traced.
///
/// For each such function the kernel goes through all symbols of the module (Linux `ftrace_module_enable`), and mlx5_core has
/// thousands. An emulated guest takes a second for this, and another one for signatures.
pub fn trim(module: &mut Vec<u8>) {
    let length = without_signature(module).unwrap_or(module.len());
    module.truncate(length);
    hide(module, b"__mcount_loc\0");
}

/// Returns the length of a module without its signature, if it has one: at its end are the signature, its
/// description, and a line that announces it (Linux Documentation/admin-guide/module-signing.rst).
fn without_signature(module: &[u8]) -> Option<usize> {
    const LINE: &[u8] = b"~Module signature appended~\n";
    /// Eight bytes, and the signature's length, big-endian.
    const DESCRIPTION: usize = 12;
    let signed = module.strip_suffix(LINE)?;
    let length = signed.last_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    signed.len().checked_sub(length.checked_add(DESCRIPTION)?)
}

/// Has the kernel ignore the section of this name: it takes no memory any more (SHF_ALLOC).
fn hide(module: &mut [u8], name: &[u8]) {
    const FLAGS: usize = 0x08;
    const SHF_ALLOC: u8 = 2;
    let Some(header) = section(module, name) else {
        return;
    };
    if let Some(flags) = module.get_mut(header + FLAGS) {
        *flags &= !SHF_ALLOC;
    }
}

/// Where the header of the section of this name is, which ends with a byte of zero.
fn section(elf: &[u8], name: &[u8]) -> Option<usize> {
    const SECTION_HEADERS: usize = 0x28;
    const SIZE_AND_COUNT: usize = 0x3a;
    const NAMES: usize = 0x3e;
    const OFFSET: usize = 0x18;
    let half = |at: usize| Some(word(elf, at)? & 0xffff);
    if !elf.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (start, size) = (long(elf, SECTION_HEADERS)?, half(SIZE_AND_COUNT)?);
    let header = |number: usize| start.checked_add(number * size);
    let names = header(u16::from_le_bytes(*elf.get(NAMES..)?.first_chunk()?).into())?;
    let names = elf.get(long(elf, names.checked_add(OFFSET)?)?..)?;
    let mut headers = (0..half(SIZE_AND_COUNT + 2)?).filter_map(header);
    headers.find(|&header| {
        let named = word(elf, header).and_then(|at| names.get(at..));
        named.is_some_and(|named| named.starts_with(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with three sections: of names, `.text` and `__mcount_loc`, both of the latter in memory.
    fn elf() -> Vec<u8> {
        let mut file = vec![0; 0x40];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[0x28], file[0x3a], file[0x3c]) = (0x40, 0x40, 3);
        for (name, flags, offset) in [(0, 0, 0x100), (1, 6, 0), (7, 2, 0)] {
            let mut header = [0; 0x40];
            (header[0], header[8]) = (name, flags);
            header[0x18..0x1a].copy_from_slice(&u16::to_le_bytes(offset));
            file.extend(header);
        }
        file.extend(b"\0.text\0__mcount_loc\0");
        file
    }

    fn signed(mut module: Vec<u8>, signature: u32) -> Vec<u8> {
        module.extend([0xaa; 100]);
        module.extend([0; 8]);
        module.extend(signature.to_be_bytes());
        module.extend(b"~Module signature appended~\n");
        module
    }

    #[test]
    fn code_stays_and_the_list_of_functions_is_no_longer_loaded() {
        let mut module = signed(elf(), 100);
        trim(&mut module);
        let mut expected = elf();
        expected[0xc8] = 0;
        assert_eq!(module, expected);
        // It has neither any more.
        trim(&mut module);
        assert_eq!(module, expected);
    }

    #[test]
    fn other_files_stay_what_they_are() {
        let text = signed(b"#!/bin/sh".to_vec(), 0xffff_ffff);
        for file in [text, b"#!/bin/sh".to_vec(), Vec::new()] {
            let mut trimmed = file.clone();
            trim(&mut trimmed);
            assert_eq!(trimmed, file);
        }
        // Whatever is wrong with them.
        let whole = signed(elf(), 100);
        for at in 0..whole.len() {
            trim(&mut whole[..at].to_vec());
            let mut wrong = whole.clone();
            wrong[at] ^= 0xff;
            trim(&mut wrong);
        }
    }
}
