//! Notices: losses of a listing.

use std::fmt;

use super::error::Place;

/// Kind of a loss. Of each kind one notice is given, however many lines have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    UnknownRate,
    RatesDiffer,
    NoRate,
    Lanes,
    Lmc,
    LidTaken,
    LidReserved,
    LongText,
    ControlText,
    Chassis,
    UnknownLine,
    Revision,
    GuidTaken,
}

#[derive(Debug)]
struct Notice {
    loss: Loss,
    first: Place,
    more: usize,
    text: String,
}

/// The notices of a listing, in the order of the lines that they name.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<Notice>);

impl Notices {
    /// Notes a loss, with the text of the first one of its kind.
    pub(super) fn add(&mut self, loss: Loss, at: &Place, text: impl FnOnce() -> String) {
        match self.0.iter_mut().find(|notice| notice.loss == loss) {
            Some(notice) => notice.more += 1,
            None => self.0.push(Notice {
                loss,
                first: at.clone(),
                more: 0,
                text: text(),
            }),
        }
    }

    /// The first line that was not understood.
    pub(super) fn not_understood(&self) -> Option<String> {
        let mut notices = self.0.iter();
        let found = notices.find(|notice| notice.loss == Loss::UnknownLine)?;
        Some(found.to_string())
    }

    pub(super) fn into_texts(mut self) -> Vec<String> {
        self.0.sort_by(|one, other| one.first.cmp(&other.first));
        self.0.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.more {
            0 => write!(f, "{}: {}", self.first, self.text),
            more => write!(f, "{} and {more} more: {}", self.first, self.text),
        }
    }
}
