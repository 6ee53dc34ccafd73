//! Reading a TOML document key by key, keeping the place of every value.
//!
//! A configuration is read by hand rather than deserialized: each mistake is reported with file,
//! line, key, value and remedy, and all mistakes of a file in one go, so that nobody has to fix a
//! file one run at a time. serde ends at the first value or key that does not fit, with neither the
//! value nor a remedy, and tables lenient enough for it to go on leave every check as it is here.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::Key;

/// The most characters of a name.
const NAME_MAX: usize = 31;

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
    /// The mistake.
    pub what: String,
    /// The correction.
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

/// Where a LID, GUID and so on is taken, with the line of the configuration, for "already used".
pub(super) type Seen<T> = HashMap<T, String>;

/// A configuration text under examination, and the problems found in it so far.
#[derive(Debug)]
pub(super) struct Document<'d> {
    origin: &'d str,
    text: &'d str,
    /// Where the lines begin.
    lines: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
}

impl<'d> Document<'d> {
    pub(super) fn new(origin: &'d str, text: &'d str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            origin,
            text,
            lines: std::iter::once(0).chain(ends).collect(),
            problems: RefCell::default(),
            warnings: RefCell::default(),
        }
    }

    /// The path of a file that the text names: a relative one begins at the folder of the text, wherever the program
    /// is started.
    pub(super) fn path(&self, named: &str) -> PathBuf {
        let folder = Path::new(self.origin).parent();
        folder.unwrap_or(Path::new("")).join(named)
    }

    /// Parses the syntax. Errors of syntax are recorded and leave nothing to read.
    pub(super) fn parse(&self) -> Option<Spanned<DeTable<'d>>> {
        let error = match DeTable::parse(self.text) {
            Ok(table) => return Some(table),
            Err(error) => error,
        };
        let what = format!("not valid TOML: {}", error.message().replace('\n', ", "));
        let remedy = "see https://toml.io for the syntax";
        self.record(error.span(), String::new(), None, what, remedy);
        None
    }

    /// Records a problem that no single place in the text shows.
    pub(super) fn reject_whole(
        &self,
        key: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.record(None, key.to_owned(), None, what, remedy);
    }

    /// All problems, and all warnings, in the order of the file.
    pub(super) fn into_problems(self) -> (Vec<Problem>, Vec<Problem>) {
        let in_order = |mut problems: Vec<Problem>| {
            problems.sort_by_key(|problem| problem.place.unwrap_or((usize::MAX, 0)));
            problems
        };
        let (problems, warnings) = (self.problems.into_inner(), self.warnings.into_inner());
        (in_order(problems), in_order(warnings))
    }

    fn record(
        &self,
        span: Option<Range<usize>>,
        key: String,
        value: Option<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let problem = self.problem(span, key, value, what, remedy);
        self.problems.borrow_mut().push(problem);
    }

    fn problem(
        &self,
        span: Option<Range<usize>>,
        key: String,
        value: Option<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        Problem {
            origin: self.origin.to_owned(),
            place: span.map(|span| self.place(span.start)),
            key,
            value,
            what: what.into(),
            remedy: remedy.into(),
        }
    }

    /// Line and column of a byte, counted from 1.
    fn place(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|&start| start <= offset);
        let before = self.text.get(self.lines[line - 1]..offset);
        (line, before.unwrap_or_default().chars().count() + 1)
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

/// A value with the key and place it came from.
#[derive(Debug, Clone)]
pub(super) struct Entry<'d, T> {
    pub(super) value: T,
    document: &'d Document<'d>,
    key: String,
    span: Range<usize>,
}

impl<'d, T> Entry<'d, T> {
    /// The same entry with another value, for a value derived from it.
    pub(super) fn with<U>(&self, value: U) -> Entry<'d, U> {
        Entry {
            value,
            document: self.document,
            key: self.key.clone(),
            span: self.span.clone(),
        }
    }

    /// Records that the value will not do.
    pub(super) fn reject(&self, what: impl Into<String>, remedy: impl Into<String>) {
        let value = Some(self.document.quote(&self.span));
        let span = Some(self.span.clone());
        self.document
            .record(span, self.key.clone(), value, what, remedy);
    }

    /// Warns that the value does not do what it looks like, though nothing is wrong with it.
    pub(super) fn warn(&self, what: impl Into<String>, remedy: impl Into<String>) {
        let value = Some(self.document.quote(&self.span));
        let span = Some(self.span.clone());
        let key = self.key.clone();
        let problem = self.document.problem(span, key, value, what, remedy);
        self.document.warnings.borrow_mut().push(problem);
    }

    /// Returns `found`, and records a mistake if there is no meaning.
    pub(super) fn meaning<U>(&self, found: Option<U>, what: &str, remedy: &str) -> Option<U> {
        if found.is_none() {
            self.reject(what, remedy);
        }
        found
    }

    /// Returns the meaning of this entry's text in `names`. Another text is rejected: `what` is the mistake, and the
    /// remedy lists the names after `are`.
    pub(super) fn find<U: Copy>(
        &self,
        name: &str,
        names: &[(&str, U)],
        what: impl Into<String>,
        are: &str,
    ) -> Option<U> {
        let found = names.iter().find(|(known, _)| *known == name);
        if found.is_none() {
            self.reject(what, format!("{are} are {}", quoted(names)));
        }
        found.map(|&(_, value)| value)
    }

    fn reject_type(&self, found: &DeValue<'_>, wanted: &str) {
        let what = format!("is of the type {}", found.type_str());
        // The text at the place of a table is its name.
        let value = (!found.is_table()).then(|| self.document.quote(&self.span));
        let span = Some(self.span.clone());
        self.document.record(
            span,
            self.key.clone(),
            value,
            what,
            format!("write {wanted}"),
        );
    }
}

impl<T: Eq + Hash + Clone> Entry<'_, T> {
    /// Notes that the value is `owner`'s, or reports whose it was already.
    pub(super) fn claim(&self, seen: &mut Seen<T>, noun: &str, owner: &str) {
        let (line, _) = self.document.place(self.span.start);
        let owner = match owner {
            "" => "another table".to_owned(),
            owner => format!("{owner} (line {line})"),
        };
        match seen.get(&self.value) {
            Some(first) => self.reject(
                format!("this {noun} is already taken by {first}"),
                format!("give each its own {noun}"),
            ),
            None => {
                seen.insert(self.value.clone(), owner);
            }
        }
    }
}

impl Entry<'_, &str> {
    /// Names go into socket paths, node descriptions and QEMU identifiers.
    pub(super) fn check_name(&self) {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if self.value.len() > NAME_MAX
            || !self.value.bytes().all(allowed)
            || !self
                .value
                .starts_with(|first: char| first.is_ascii_alphabetic())
        {
            let rest = NAME_MAX - 1;
            self.reject(
                "not a name",
                format!("a name is a letter and up to {rest} letters, digits, `-`, `_` or `.`"),
            );
        }
    }
}

impl<'d> Entry<'d, &'d DeValue<'d>> {
    fn read<U>(&self, read: Option<U>, wanted: &str) -> Option<Entry<'d, U>> {
        if read.is_none() {
            self.reject_type(self.value, wanted);
        }
        read.map(|value| self.with(value))
    }

    /// An integer of a range, if it is one.
    pub(super) fn integer(&self, range: RangeInclusive<i64>) -> Option<i64> {
        let DeValue::Integer(digits) = self.value else {
            return None;
        };
        let number = i64::from_str_radix(digits.as_str(), digits.radix()).ok();
        number.filter(|number| range.contains(number))
    }
}

/// A table of the document, with the keys that may stand in it.
#[derive(Debug)]
pub(super) struct Section<'d> {
    document: &'d Document<'d>,
    path: String,
    span: Range<usize>,
    /// `None` where the document has no such table.
    table: Option<&'d DeTable<'d>>,
    known: &'static [Key],
}

impl<'d> Section<'d> {
    /// The document that the table is in.
    pub(super) fn document(&self) -> &'d Document<'d> {
        self.document
    }

    /// The outermost table. Keys other than `known` are reported.
    pub(super) fn root(
        document: &'d Document<'d>,
        table: &'d Spanned<DeTable<'d>>,
        known: &'static [Key],
    ) -> Self {
        let (span, table) = (table.span(), Some(table.get_ref()));
        Self::open(document, String::new(), span, table, known)
    }

    fn open(
        document: &'d Document<'d>,
        path: String,
        span: Range<usize>,
        table: Option<&'d DeTable<'d>>,
        known: &'static [Key],
    ) -> Self {
        let section = Self {
            document,
            path,
            span,
            table,
            known,
        };
        if !known.is_empty() {
            section.reject_unknown();
        }
        section
    }

    fn reject_unknown(&self) {
        let known: Vec<&str> = self.known.iter().map(|key| key.name).collect();
        for (name, _) in self.table.into_iter().flatten() {
            let spelled = name.get_ref().as_ref();
            if known.contains(&spelled) {
                continue;
            }
            let remedy = match vswitch::closest(spelled, &known) {
                _ if spelled == "port_guid" && known.contains(&"guid") => {
                    "the GUID of the port is `guid`".to_owned()
                }
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("the keys here are {}", list(&known)),
            };
            let key = self.key_path(spelled);
            self.document
                .record(Some(name.span()), key, None, "unknown key", remedy);
        }
    }

    /// Records a problem about `key` that has no value to show: a missing key, say.
    pub(super) fn reject(&self, key: &str, what: impl Into<String>, remedy: impl Into<String>) {
        let span = Some(self.span.clone());
        self.document
            .record(span, self.key_path(key), None, what, remedy);
    }

    /// The names of all keys of this table with their values, for a table of free names.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'d str, Entry<'d, &'d DeValue<'d>>)> {
        self.table.into_iter().flatten().map(|(name, value)| {
            let name: &'d str = name.get_ref().as_ref();
            (name, self.entry(name, value))
        })
    }

    /// The value of `key`, of any type.
    pub(super) fn value(&self, key: &str) -> Option<Entry<'d, &'d DeValue<'d>>> {
        self.table?.get(key).map(|value| self.entry(key, value))
    }

    /// The string at `key`. A value of another type is reported and read as absent.
    pub(super) fn text(&self, key: &str) -> Option<Entry<'d, &'d str>> {
        let entry = self.value(key)?;
        entry.read(entry.value.as_str(), "a string in double quotes")
    }

    /// The string that must stand at `key`.
    pub(super) fn required_text(&self, key: &str) -> Option<Entry<'d, &'d str>> {
        if self.value(key).is_none() {
            self.reject(key, "missing", format!("add `{key} = \"…\"` to this table"));
        }
        self.text(key)
    }

    /// The name that this table must have, and that no other in `seen` has.
    pub(super) fn name(&self, seen: &mut Seen<String>, owner: &str) -> Option<Entry<'d, &'d str>> {
        let name = self.required_text("name")?;
        name.check_name();
        name.with(name.value.to_owned()).claim(seen, "name", owner);
        Some(name)
    }

    /// The value called so at `key`.
    pub(super) fn one_of<T: Copy>(&self, key: &str, names: &[(&str, T)]) -> Option<T> {
        let entry = self.value(key)?;
        let Some(text) = entry.value.as_str() else {
            let what = format!("is of the type {}", entry.value.type_str());
            entry.reject(what, format!("the values are {}", quoted(names)));
            return None;
        };
        entry.find(text, names, "unknown value", "the values")
    }

    /// The values at a path of keys from here, in all tables of arrays on the way.
    pub(super) fn at(&self, path: &str) -> Vec<Entry<'d, &'d DeValue<'d>>> {
        match path.rsplit_once('.') {
            None => self.value(path).into_iter().collect(),
            Some((tables, key)) => {
                let tables = self.tables(tables);
                tables.iter().filter_map(|table| table.value(key)).collect()
            }
        }
    }

    /// The tables at a path of keys from here, in all arrays on the way.
    pub(super) fn tables(&self, path: &str) -> Vec<Self> {
        let (first, rest) = path.split_once('.').unwrap_or((path, ""));
        let Some(entry) = self.value(first) else {
            return Vec::new();
        };
        let array = entry.value.as_array().into_iter().flatten();
        let tables = array.map(|table| table.get_ref()).chain([entry.value]);
        let tables = tables.filter_map(DeValue::as_table).map(|table| {
            let (document, path) = (self.document, entry.key.clone());
            Self::open(document, path, entry.span.clone(), Some(table), &[])
        });
        match rest {
            "" => tables.collect(),
            rest => tables.flat_map(|table| table.tables(rest)).collect(),
        }
    }

    /// Whether it is so, where `key` says.
    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        let entry = self.value(key)?;
        let remedy = "write true or false";
        entry.meaning(entry.value.as_bool(), "neither true nor false", remedy)
    }

    /// The integer at `key`, reported unless it lies in the range of the key; `remedy` says what is right.
    pub(super) fn integer(&self, key: &str, remedy: &str) -> Option<Entry<'d, i64>> {
        let entry = self.value(key)?;
        if !entry.value.is_integer() {
            entry.reject_type(entry.value, "an integer");
            return None;
        }
        let known = self.known.iter().find(|known| known.name == key);
        let range = known.and_then(|known| known.values.range());
        let number = entry.integer(range.expect("is a key with integers"));
        let number = entry.meaning(number, "out of range", remedy)?;
        Some(entry.with(number))
    }

    /// The same, of a type that has the range.
    pub(super) fn number<T: TryFrom<i64>>(&self, key: &str, remedy: &str) -> Option<T> {
        T::try_from(self.integer(key, remedy)?.value).ok()
    }

    /// The array at `key`, and its elements.
    pub(super) fn array(&self, key: &str) -> Option<Entry<'d, Vec<Entry<'d, &'d DeValue<'d>>>>> {
        let whole = self.value(key)?;
        let array = whole.value.as_array();
        let elements =
            array.map(|array| array.iter().map(|value| self.entry(key, value)).collect());
        whole.read(elements, "an array")
    }

    /// The table at `key`, empty where there is none; with no `known` keys its names are free.
    pub(super) fn section(&self, key: &str, known: &'static [Key]) -> Self {
        let path = self.key_path(key);
        let Some(entry) = self.value(key) else {
            return Self::open(self.document, path, 0..0, None, known);
        };
        let table = entry.value.as_table();
        if table.is_none() {
            entry.reject_type(entry.value, &format!("a table: [{path}]"));
        }
        Self::open(self.document, path, entry.span, table, known)
    }

    /// The tables of the array of tables at `key`.
    pub(super) fn sections(&self, key: &str, known: &'static [Key]) -> Vec<Self> {
        let Some(entry) = self.value(key) else {
            return Vec::new();
        };
        let form = format!("an array of tables: [[{}]]", entry.key);
        let Some(array) = entry.value.as_array() else {
            entry.reject_type(entry.value, &form);
            return Vec::new();
        };
        let open = |value: &'d Spanned<DeValue<'d>>| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                self.entry(key, value).reject_type(value.get_ref(), &form);
            }
            let path = entry.key.clone();
            Some(Self::open(
                self.document,
                path,
                value.span(),
                Some(table?),
                known,
            ))
        };
        array.iter().filter_map(open).collect()
    }

    fn entry(&self, key: &str, value: &'d Spanned<DeValue<'d>>) -> Entry<'d, &'d DeValue<'d>> {
        Entry {
            value: value.get_ref(),
            document: self.document,
            key: self.key_path(key),
            span: value.span(),
        }
    }

    fn key_path(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }
}

/// Rejects tables of which there are more than `most`.
pub(super) fn at_most(
    most: usize,
    sections: &[Section<'_>],
    what: &str,
    remedy: impl Into<String>,
) {
    if let Some(first_too_many) = sections.get(most) {
        first_too_many.reject("name", format!("{} {what}", sections.len()), remedy);
    }
}

/// The string at a key of the outermost table, in a text that may have mistakes elsewhere.
pub(super) fn line_of(text: &str, key: &str) -> Option<String> {
    let before_tables = text
        .lines()
        .take_while(|line| !line.trim_start().starts_with('['));
    let mut parsed = before_tables.filter_map(|line| DeTable::parse(line).ok());
    parsed.find_map(|table| Some(table.get_ref().get(key)?.get_ref().as_str()?.to_owned()))
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

fn quoted<T>(names: &[(&str, T)]) -> String {
    let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    list(&names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_not_bytes() {
        let document = Document::new("f", "ä = 1\nöö = 2\n");
        // "ä = 1\n" is 7 bytes, "öö = " another 7.
        assert_eq!(document.place(14), (2, 6));
    }
}
