//! Reading a TOML document key by key, keeping the place of every value.
//!
//! A configuration is read by hand rather than deserialized: each mistake is reported with file,
//! line, key, value and remedy, and all mistakes of a file in one go, so that nobody has to fix a
//! file one run at a time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One mistake in a configuration: where it is, what is wrong, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the name of the built-in configuration.
    pub origin: String,
    /// Line and column, both counted from 1; `None` for a mistake that no single place shows.
    pub place: Option<(usize, usize)>,
    /// The key with its tables, such as `hypervisor.vf.lid`; empty for a syntax error.
    pub key: String,
    /// The value as it stands in the file.
    pub value: Option<String>,
    /// What is wrong with it.
    pub what: String,
    /// What to write instead.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        match (self.key.as_str(), &self.value) {
            ("", _) => {}
            (key, Some(value)) => write!(f, ": `{key} = {value}`")?,
            (key, None) => write!(f, ": `{key}`")?,
        }
        write!(f, ": {}", self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A value with the key and place it came from.
#[derive(Debug, Clone)]
pub(super) struct Entry<T> {
    pub(super) value: T,
    key: String,
    span: Range<usize>,
}

impl<T> Entry<T> {
    /// The same entry with another value, for a value derived from it.
    pub(super) fn with<U>(&self, value: U) -> Entry<U> {
        Entry {
            value,
            key: self.key.clone(),
            span: self.span.clone(),
        }
    }
}

/// Where a LID, GUID and so on is taken, with the line of the configuration, for "already used".
pub(super) type Seen<T> = HashMap<T, String>;

/// A configuration text under examination, and the problems found in it so far.
#[derive(Debug)]
pub(super) struct Document<'i> {
    origin: &'i str,
    text: &'i str,
    problems: RefCell<Vec<Problem>>,
}

impl<'i> Document<'i> {
    pub(super) fn new(origin: &'i str, text: &'i str) -> Self {
        Self {
            origin,
            text,
            problems: RefCell::new(Vec::new()),
        }
    }

    /// What the text is called: the path of its file.
    pub(super) fn origin(&self) -> &'i str {
        self.origin
    }

    /// Parses the syntax. Errors of syntax are recorded and leave nothing to read.
    pub(super) fn parse(&self) -> Option<Spanned<DeTable<'i>>> {
        match DeTable::parse(self.text) {
            Ok(table) => Some(table),
            Err(error) => {
                self.record(Problem {
                    origin: self.origin.to_owned(),
                    place: error.span().map(|span| self.place(span.start)),
                    key: String::new(),
                    value: None,
                    what: format!("not valid TOML: {}", error.message().replace('\n', ", ")),
                    remedy: "see https://toml.io for the syntax".to_owned(),
                });
                None
            }
        }
    }

    /// Records that the value of `entry` will not do.
    pub(super) fn reject<T>(
        &self,
        entry: &Entry<T>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.record(Problem {
            origin: self.origin.to_owned(),
            place: Some(self.place(entry.span.start)),
            key: entry.key.clone(),
            value: Some(self.quote(&entry.span)),
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    /// Notes that `entry`'s value is `owner`'s, or reports whose it was already.
    pub(super) fn claim<T: Eq + Hash + Clone>(
        &self,
        seen: &mut Seen<T>,
        entry: &Entry<T>,
        noun: &str,
        owner: &str,
    ) {
        let owner = match owner {
            "" => "another table".to_owned(),
            owner => format!("{owner} (line {})", self.line(entry)),
        };
        match seen.get(&entry.value) {
            Some(first) => self.reject(
                entry,
                format!("this {noun} is already that of {first}"),
                format!("give each its own {noun}"),
            ),
            None => {
                seen.insert(entry.value.clone(), owner);
            }
        }
    }

    /// Records a problem about `key` of `section` that has no value to show: a missing key, say.
    pub(super) fn reject_section(
        &self,
        section: &Section<'_, '_>,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.record(Problem {
            origin: self.origin.to_owned(),
            place: Some(self.place(section.span.start)),
            key: section.key_path(key),
            value: None,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    /// Records a problem that no single place in the text shows.
    pub(super) fn reject_whole(
        &self,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.record(Problem {
            origin: self.origin.to_owned(),
            place: None,
            key: key.to_owned(),
            value: None,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    /// The line on which `entry` stands, to point at from another problem.
    pub(super) fn line<T>(&self, entry: &Entry<T>) -> usize {
        self.place(entry.span.start).0
    }

    /// All problems, in the order of the file.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.place.unwrap_or((usize::MAX, 0)));
        problems
    }

    fn record(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    fn place(&self, offset: usize) -> (usize, usize) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (
            before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            before[line_start..].chars().count() + 1,
        )
    }

    /// The value as written, on one line and short enough for a message.
    fn quote(&self, span: &Range<usize>) -> String {
        const LONGEST: usize = 160;
        let written = self.text.get(span.clone()).unwrap_or_default();
        let line = written.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }
}

/// A table of the document, with the keys that may stand in it.
#[derive(Debug)]
pub(super) struct Section<'d, 'i> {
    document: &'d Document<'i>,
    path: String,
    span: Range<usize>,
    table: &'d DeTable<'i>,
}

impl<'d, 'i> Section<'d, 'i> {
    /// The outermost table. Keys other than `known` are reported.
    pub(super) fn root(
        document: &'d Document<'i>,
        table: &'d Spanned<DeTable<'i>>,
        known: &[&str],
    ) -> Self {
        Self::open(
            document,
            String::new(),
            table.span(),
            table.get_ref(),
            known,
        )
    }

    fn open(
        document: &'d Document<'i>,
        path: String,
        span: Range<usize>,
        table: &'d DeTable<'i>,
        known: &[&str],
    ) -> Self {
        let section = Self {
            document,
            path,
            span,
            table,
        };
        if !known.is_empty() {
            section.reject_unknown(known);
        }
        section
    }

    fn reject_unknown(&self, known: &[&str]) {
        for name in self.table.keys() {
            let name: &Spanned<_> = name;
            let spelled = name.get_ref().as_ref();
            if known.contains(&spelled) {
                continue;
            }
            let remedy = match closest(spelled, known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the keys here are {}", list(known)),
            };
            self.document.record(Problem {
                origin: self.document.origin.to_owned(),
                place: Some(self.document.place(name.span().start)),
                key: self.key_path(spelled),
                value: None,
                what: "unknown key".to_owned(),
                remedy,
            });
        }
    }

    /// The names of all keys of this table with their values, for a table of free names.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'d str, Entry<&'d DeValue<'i>>)> {
        self.table.iter().map(|(name, value)| {
            let name: &'d str = name.get_ref().as_ref();
            (name, self.entry(name, value))
        })
    }

    /// The value of `key`, of any type.
    pub(super) fn value(&self, key: &str) -> Option<Entry<&'d DeValue<'i>>> {
        self.table.get(key).map(|value| self.entry(key, value))
    }

    /// The string at `key`. A value of another type is reported and read as absent.
    pub(super) fn text(&self, key: &str) -> Option<Entry<&'d str>> {
        let entry = self.value(key)?;
        match entry.value.as_str() {
            Some(text) => Some(entry.with(text)),
            None => {
                self.wrong_type(&entry, "a string in double quotes");
                None
            }
        }
    }

    /// The string that must stand at `key`.
    pub(super) fn required_text(&self, key: &str) -> Option<Entry<&'d str>> {
        if self.table.get(key).is_none() {
            self.document.reject_section(
                self,
                key,
                "missing",
                format!("add `{key} = \"…\"` to this table"),
            );
        }
        self.text(key)
    }

    /// The integer at `key`, reported unless it lies in `range`; `remedy` says what is right.
    pub(super) fn integer(
        &self,
        key: &str,
        range: std::ops::RangeInclusive<i64>,
        remedy: &str,
    ) -> Option<Entry<i64>> {
        let entry = self.value(key)?;
        let DeValue::Integer(digits) = entry.value else {
            self.wrong_type(&entry, "an integer");
            return None;
        };
        match i64::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(number) if range.contains(&number) => Some(entry.with(number)),
            _ => {
                self.document.reject(&entry, "out of range", remedy);
                None
            }
        }
    }

    /// The elements of the array at `key`.
    pub(super) fn array(&self, key: &str) -> Option<Vec<Entry<&'d DeValue<'i>>>> {
        let entry = self.value(key)?;
        match entry.value.as_array() {
            Some(array) => Some(array.iter().map(|value| self.entry(key, value)).collect()),
            None => {
                self.wrong_type(&entry, "an array");
                None
            }
        }
    }

    /// The table at `key`; with no `known` keys its names are free.
    pub(super) fn section(&self, key: &str, known: &[&str]) -> Option<Self> {
        let entry = self.value(key)?;
        match entry.value.as_table() {
            Some(table) => Some(Self::open(
                self.document,
                self.key_path(key),
                entry.span,
                table,
                known,
            )),
            None => {
                self.wrong_type(&entry, &format!("a table: [{}]", self.key_path(key)));
                None
            }
        }
    }

    /// The tables of the array of tables at `key`.
    pub(super) fn sections(&self, key: &str, known: &[&str]) -> Vec<Self> {
        let Some(entry) = self.value(key) else {
            return Vec::new();
        };
        let form = format!("an array of tables: [[{}]]", self.key_path(key));
        let Some(array) = entry.value.as_array() else {
            self.wrong_type(&entry, &form);
            return Vec::new();
        };
        array
            .iter()
            .filter_map(|value| match value.get_ref().as_table() {
                Some(table) => Some(Self::open(
                    self.document,
                    self.key_path(key),
                    value.span(),
                    table,
                    known,
                )),
                None => {
                    self.wrong_type(&self.entry(key, value), &form);
                    None
                }
            })
            .collect()
    }

    fn entry(&self, key: &str, value: &'d Spanned<DeValue<'i>>) -> Entry<&'d DeValue<'i>> {
        Entry {
            value: value.get_ref(),
            key: self.key_path(key),
            span: value.span(),
        }
    }

    fn wrong_type(&self, entry: &Entry<&DeValue<'_>>, wanted: &str) {
        // What stands at the place of a table is its name.
        let is_table = entry.value.is_table();
        self.document.record(Problem {
            origin: self.document.origin.to_owned(),
            place: Some(self.document.place(entry.span.start)),
            key: entry.key.clone(),
            value: (!is_table).then(|| self.document.quote(&entry.span)),
            what: format!("is of the type {}", entry.value.type_str()),
            remedy: format!("write {wanted}"),
        });
    }

    fn key_path(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }
}

/// `a`, `b` and `c`
pub(super) fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The known name that a misspelled one was most likely meant to be.
fn closest<'k>(spelled: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|&name| (distance(spelled, name), name))
        .filter(|&(distance, name)| distance <= name.len().div_ceil(3))
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein's distance: how many letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        // The textbook's example.
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("lid", "lid"), 0);
    }

    #[test]
    fn a_misspelled_key_is_recognised_and_a_foreign_one_is_not() {
        let known = ["runtime_dir", "log", "engine"];
        assert_eq!(closest("runtimedir", &known), Some("runtime_dir"));
        assert_eq!(closest("engines", &known), Some("engine"));
        assert_eq!(closest("password", &known), None);
    }

    #[test]
    fn places_count_characters_not_bytes() {
        let document = Document::new("f", "ä = 1\nöö = 2\n");
        // "ä = 1\n" is 7 bytes, "öö = " another 7.
        assert_eq!(document.place(14), (2, 6));
    }
}
