//! Numbers in files of little-endian 64-bit ELF (System V ABI, chapter *Object Files*) and in headers like them. Each is
//! `None` where the file ends before it.

/// The 32-bit word at an offset.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
}

/// The 64-bit word at an offset.
pub(crate) fn long(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
}
