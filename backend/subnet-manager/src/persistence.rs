//! Memory of a manager from one run to the next, in OpenSM's file format.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;

use wire::{Guid, Lid};

/// A line of a file that cannot be what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Unreadable {
    /// From 1.
    pub line: usize,
    /// The error.
    pub what: &'static str,
}

/// The text of a file of settings. Comments may be of any encoding, as for OpenSM.
///
/// # Errors
/// The text is UTF-16.
pub fn settings_text(bytes: &[u8]) -> io::Result<String> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.contains(&0) || matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        let what = "not UTF-8 (it looks like UTF-16); save the file as UTF-8";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Reads OpenSM's `guid2lid`: port GUID, first and last LID of a port on every line. Their number gives the LID mask
/// control.
///
/// # Errors
/// The first line that is something else.
pub fn parse_lids(text: &str) -> Result<BTreeMap<Guid, (Lid, u8)>, Unreadable> {
    let mut lids = BTreeMap::new();
    for (line, text) in (1..).zip(text.lines().map(str::trim)) {
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let wrong = |what| Unreadable { line, what };
        let mut words = text.split_whitespace();
        let guid: Option<Guid> = words.next().and_then(|word| word.parse().ok());
        let guid = guid.ok_or(wrong("no GUID; write 0x and 16 hexadecimal digits"))?;
        let range: Vec<Option<Lid>> = words.map(|word| word.parse().ok()).collect();
        let [Some(first), Some(last)] = range[..] else {
            return Err(wrong("not two LIDs after the GUID"));
        };
        if !first.is_unicast() || !last.is_unicast() || first > last {
            return Err(wrong(
                "LIDs are 0x0001 to 0xbfff, the first not above the last",
            ));
        }
        let count = last.value() - first.value() + 1;
        lids.insert(guid, (first, (count.ilog2() as u8).min(7)));
    }
    Ok(lids)
}

/// Writes OpenSM's `guid2lid`.
pub fn format_lids(lids: &BTreeMap<Guid, Lid>, lmc: impl Fn(Guid) -> u8) -> String {
    let mut text = String::new();
    for (guid, lid) in lids {
        let (first, more) = (lid.value(), (1u16 << lmc(*guid).min(7)) - 1);
        let last = first.saturating_add(more);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "0x{:016x} 0x{first:04x} 0x{last:04x}\n", guid.value());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `osm_db_files.c` and `osm_db_pack.c` of OpenSM 3.3.23 write them.
    #[test]
    fn the_file_of_opensm() {
        let text = "0x0002c90300000101 0x0010 0x0013\n\n0x0002c90300000201 0x0003 0x0003\n\n";
        let lids = parse_lids(text).unwrap();
        let edited = "# by hand\n0002:c903:0000:0101 16 19\n0x2c90300000201 3 3\n";
        assert_eq!(parse_lids(edited), Ok(lids.clone()));
        let expected = [
            (0x0002_c903_0000_0101, 0x10, 2),
            (0x0002_c903_0000_0201, 3, 0),
        ];
        let expected: BTreeMap<_, _> = expected
            .map(|(guid, lid, lmc)| (Guid::new(guid), (Lid::new(lid), lmc)))
            .into();
        assert_eq!(lids, expected);
        let bases = lids.iter().map(|(&guid, &(lid, _))| (guid, lid)).collect();
        assert_eq!(format_lids(&bases, |guid| lids[&guid].1), text);
    }

    #[test]
    fn encodings_of_settings() {
        let text = |bytes: &[u8]| settings_text(bytes).map_err(|error| error.to_string());
        assert_eq!(
            text(b"\xef\xbb\xbf# caf\xe9\nok"),
            Ok("# caf\u{fffd}\nok".to_owned())
        );
        let refused = text(b"\xff\xfeo\0k\0").expect_err("UTF-16");
        assert_eq!(
            refused,
            "not UTF-8 (it looks like UTF-16); save the file as UTF-8"
        );
        assert!(text(b"\0o\0k").is_err());
    }

    #[test]
    fn lines_that_are_something_else() {
        for (text, error) in [
            (
                "\nguid 1 2",
                "line 2: no GUID; write 0x and 16 hexadecimal digits",
            ),
            ("0x1 0x2", "line 1: not two LIDs after the GUID"),
            (
                "0x1 0x0 0x0",
                "line 1: LIDs are 0x0001 to 0xbfff, the first not above the last",
            ),
            (
                "0x1 0x5 0x4",
                "line 1: LIDs are 0x0001 to 0xbfff, the first not above the last",
            ),
        ] {
            assert_eq!(parse_lids(text).unwrap_err().to_string(), error, "{text}");
        }
    }
}
