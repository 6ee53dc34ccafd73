//! Listings as text: their bytes may be of any encoding.

use std::borrow::Cow;

/// Where the characters are that stand for bytes that are not UTF-8.
const BYTES: u32 = 0x0010_ff00;

/// A listing as text. Bytes that are not UTF-8 become characters that [`bytes_of`] makes bytes again.
pub(super) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let stand_in = |&byte: &u8| char::from_u32(BYTES + u32::from(byte));
        text.extend(chunk.invalid().iter().filter_map(stand_in));
    }
    Cow::Owned(text)
}

/// The bytes that a piece of a listing was made of.
pub(super) fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match u32::from(letter).checked_sub(BYTES) {
            Some(byte @ 0x80..=0xff) => bytes.push(byte as u8),
            _ => bytes.extend(letter.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// The text of a node, as `ibnetdiscover` has it: what cannot be printed is a space.
pub(super) fn printable(text: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(text) else {
        let clean = |&byte: &u8| if byte.is_ascii_control() { b' ' } else { byte };
        return text.iter().map(clean).collect();
    };
    let clean = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().map(clean).collect::<String>().into_bytes()
}

/// A piece of a listing in a message.
pub(super) fn shown(text: &str) -> String {
    const LENGTH: usize = 60;
    let bytes = bytes_of(text);
    let text = String::from_utf8_lossy(&bytes);
    let safe = text
        .chars()
        .take(LENGTH)
        .map(|letter| if letter.is_control() { ' ' } else { letter });
    let more = text.chars().nth(LENGTH).map(|_| '…');
    safe.chain(more).collect()
}
