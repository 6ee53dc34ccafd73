//! Pieces of lines.

use wire::Lid;

use super::error::{NetlistError, Place, error};
use super::text::shown;
use super::{Speed, WIDTHS, speed_of};
use wire::LinkWidth;

/// A number as C's strtoul reads it: decimal, with `0x` hexadecimal, and what follows it is left out.
pub(super) fn number(text: &str, at: &Place) -> Result<u64, NetlistError> {
    let text = text.trim();
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (radix, digits) = match hexadecimal {
        Some(digits) => (16, digits),
        None => (10, text),
    };
    let end = digits.find(|letter: char| !letter.is_digit(radix));
    let digits = &digits[..end.unwrap_or(digits.len())];
    u64::from_str_radix(digits, radix).or_else(|_| {
        error(
            at,
            format!(
                "`{}` is no number; write one such as 0x2c9 or 713",
                shown(text)
            ),
        )
    })
}

/// A GUID in hexadecimal digits, with or without `0x`.
pub(super) fn guid(digits: &str, at: &Place) -> Result<u64, NetlistError> {
    let plain = digits.trim();
    let plain = plain.strip_prefix("0x").unwrap_or(plain);
    u64::from_str_radix(plain, 16).or_else(|_| {
        let what = format!(
            "`{}` is no GUID; write up to 16 hexadecimal digits",
            shown(digits)
        );
        error(at, what)
    })
}

/// The text between the first two quotation marks, and what follows.
pub(super) fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"')
}

/// The text between the first quotation mark and the last one, and what follows: texts of nodes may have
/// quotation marks.
pub(super) fn widely_quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    rest.rsplit_once('"')
}

/// The LID and the LMC that a piece of a comment names.
pub(super) fn lid_of(text: &str) -> Option<(u32, u8)> {
    let value = |key: &str| {
        let mut words = text.split_whitespace();
        words.find(|word| *word == key)?;
        words.next()?.parse::<u32>().ok()
    };
    Some((
        value("lid")?,
        value("lmc").map_or(0, |lmc| lmc.min(7) as u8),
    ))
}

/// Whether a port may have this LID.
pub(super) fn is_lid(lid: u32) -> bool {
    (1..=u32::from(Lid::UNICAST_LAST.value())).contains(&lid)
}

/// The rate that the comment of a cable names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) width: Option<LinkWidth>,
    pub(super) speed: Option<Speed>,
}

/// Contents of a cable's comment.
#[derive(Debug, Default)]
pub(super) struct CableComment<'t> {
    /// The port's LID and LMC, where the line is an adapter's or a router's.
    pub(super) own: Option<(u32, u8)>,
    /// The word that names a rate, and what is known of it.
    pub(super) rate: Option<(&'t str, Named)>,
    /// `s=`, `w=` and `v=` of `ibnetdiscover --full`.
    pub(super) full: bool,
    /// Words of grouping.
    pub(super) grouping: bool,
}

impl<'t> CableComment<'t> {
    pub(super) fn parse(comment: &'t str) -> Self {
        let (before, after) = match widely_quoted(comment) {
            Some((_, after)) => (comment.split('"').next().unwrap_or_default(), after),
            // Listings of the first years have texts without quotation marks.
            None => (
                comment,
                comment
                    .rsplit_once(" lid ")
                    .map_or(comment, |(_, rest)| rest),
            ),
        };
        let words = || after.split_whitespace();
        Self {
            own: lid_of(before),
            rate: words().find_map(|word| Some((word, named(word)?))),
            full: words().any(|word| word.starts_with("v=")),
            grouping: words().any(|word| matches!(word, "slot" | "(scp)")),
        }
    }
}

/// The rate of a word such as `4xEDR`; `None` where it names none. A width or speed that is not known is
/// `None` in it: `4x???`.
fn named(word: &str) -> Option<Named> {
    let (width, speed) = match word.split_once('x') {
        Some((lanes, speed)) if lanes.bytes().all(|digit| digit.is_ascii_digit()) => {
            (&word[..=lanes.len()], speed)
        }
        _ => (word.get(..2).filter(|width| *width == "??")?, &word[2..]),
    };
    let is_speed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'?';
    if width.len() < 2 || speed.len() < 3 || !speed.bytes().all(is_speed) {
        return None;
    }
    let known = WIDTHS.iter().find(|(name, _)| *name == width);
    Some(Named {
        width: known.map(|&(_, width)| width),
        speed: speed_of(speed),
    })
}
