//! Reading of a policy file.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use wire::attribute::NodeType;
use wire::sa::Rate;
use wire::{Guid, PKey, Sl};

use super::{Group, Level, Policy, Ranges, Rule};
use crate::config::partitions::{FILE_MAX, MISTAKES, Mistake, number};

/// A line without its comment, and its number.
type Line<'a> = (usize, &'a str);

/// A field of a block: line, name, value.
type Field<'a> = (usize, &'a str, &'a str);

/// By name, the line and the place of something.
type Names = BTreeMap<String, (usize, usize)>;

/// Numbers of services: those of SDP, and those that RDS and iSER share.
const SDP: u64 = 0x1_0000;
const RDS: u64 = 0x106_0000;
const RDS_PORT: u64 = 0x48ca;
const ISER_PORT: u64 = 0x0cbc;
/// The default partition.
const DEFAULT: u64 = 0x7fff;

const SECTIONS: &str =
    "the sections are port-groups, qos-setup, qos-levels, qos-match-rules and qos-ulps";
const ULPS: &str = "write default, sdp, rds or iser, or these with `, port-num N`; ipoib, or with `, pkey N`; srp, \
                    target-port-guid N; or any with service-id, pkey, target-port-guid, source-port-guid or \
                    source-target-port-guid, and `: SL` after it";

/// A rule before its groups and its level are known.
#[derive(Debug, Default)]
struct Draft<'a> {
    rule: Rule,
    sources: Vec<Line<'a>>,
    destinations: Vec<Line<'a>>,
    level: Option<Line<'a>>,
}

pub(super) struct Reader<'a> {
    partition: &'a dyn Fn(&str) -> Option<PKey>,
    policy: Policy,
    /// Groups and levels that have names.
    groups: Names,
    levels: Names,
    /// Rules of the simplified form, which come last.
    simple: Vec<Rule>,
    /// The level `default` of the simplified form.
    simple_default: Option<usize>,
    mistakes: Vec<Mistake>,
}

/// A name as names are compared: without blanks, whatever its case.
fn folded(name: &str) -> String {
    let name = unquoted(name).chars().filter(|it| !it.is_whitespace());
    name.flat_map(char::to_lowercase).collect()
}

fn unquoted(text: &str) -> &str {
    let text = text.trim();
    let inner = text.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    inner.unwrap_or(text)
}

/// The part of a line before a comment.
fn bare(line: &str) -> &str {
    let mut quoted = false;
    let comment = line.char_indices().find(|&(_, it)| {
        quoted ^= it == '"';
        it == '#' && !quoted
    });
    comment.map_or(line, |(at, _)| &line[..at]).trim()
}

/// The entries of a list; a comma in quotes separates none.
fn entries(value: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let entries = value.split(move |it| {
        quoted ^= it == '"';
        it == ',' && !quoted
    });
    entries.map(str::trim)
}

impl<'a> Reader<'a> {
    pub(super) fn new(partition: &'a dyn Fn(&str) -> Option<PKey>) -> Self {
        Self {
            partition,
            policy: Policy::default(),
            groups: Names::new(),
            levels: Names::new(),
            simple: Vec::new(),
            simple_default: None,
            mistakes: Vec::new(),
        }
    }

    pub(super) fn read(mut self, text: &str) -> Result<Policy, Vec<Mistake>> {
        if text.len() > FILE_MAX {
            self.mistake(1, format!("the file has more than {FILE_MAX} bytes"));
            return Err(self.mistakes);
        }
        let lines = (1..).zip(text.lines().map(bare));
        let mut lines = lines.filter(|(_, text)| !text.is_empty());
        let mut drafts = Vec::new();
        while let Some(begin) = lines.next() {
            match begin.1 {
                "port-groups" => {
                    for block in self.blocks(&mut lines, begin, "port-group") {
                        self.group(block);
                    }
                }
                "qos-levels" => {
                    for block in self.blocks(&mut lines, begin, "qos-level") {
                        self.level(block);
                    }
                }
                "qos-match-rules" => {
                    for block in self.blocks(&mut lines, begin, "qos-match-rule") {
                        drafts.push(self.rule(block));
                    }
                }
                "qos-setup" => {
                    self.block(&mut lines, begin);
                    let what = "qos-setup does not act, as in OpenSM; write the keys qos_sl2vl, qos_vlarb_high and \
                                qos_vlarb_low of the configuration";
                    self.idle(begin.0, what.to_owned());
                }
                "qos-ulps" => {
                    for line in self.block(&mut lines, begin) {
                        self.simple_rule(line);
                    }
                }
                other => self.mistake(begin.0, format!("{other}: no section; {SECTIONS}")),
            }
        }
        self.finish(drafts)
    }

    fn finish(mut self, drafts: Vec<Draft<'_>>) -> Result<Policy, Vec<Mistake>> {
        for draft in drafts {
            let Some(level) = draft.level else { continue };
            let mut rule = draft.rule;
            rule.sources = self.find(&draft.sources, "port-group", |it| &it.groups);
            rule.destinations = self.find(&draft.destinations, "port-group", |it| &it.groups);
            let level = self.find(&[level], "qos-level", |it| &it.levels);
            rule.level = level.first().copied().unwrap_or_default();
            self.policy.rules.push(rule);
        }
        self.policy.rules.append(&mut self.simple);
        match (self.levels.get("default").copied(), self.simple_default) {
            (Some((line, level)), simple) => {
                self.policy.default = level;
                if let Some(simple) = simple {
                    let what = format!(
                        "default does not act, since line {line} has the qos-level DEFAULT; remove one of the two"
                    );
                    self.idle(self.policy.levels[simple].line, what);
                }
            }
            (None, Some(level)) => self.policy.default = level,
            (None, None) => self.mistake(
                1,
                "no level for requests that no rule matches; write a qos-level with the name DEFAULT, or `default : 0` \
                 in qos-ulps"
                    .to_owned(),
            ),
        }
        if self.mistakes.is_empty() {
            Ok(self.policy)
        } else {
            Err(self.mistakes)
        }
    }

    fn mistake(&mut self, line: usize, what: String) {
        if self.mistakes.len() < MISTAKES {
            self.mistakes.push(Mistake {
                line,
                what,
                unknown: None,
            });
        }
    }

    fn idle(&mut self, line: usize, what: String) {
        if self.policy.idle.len() < MISTAKES {
            self.policy.idle.push(Mistake {
                line,
                what,
                unknown: None,
            });
        }
    }

    /// The lines of a block up to its end.
    fn block<'t>(
        &mut self,
        lines: &mut impl Iterator<Item = Line<'t>>,
        (line, name): Line<'t>,
    ) -> Vec<Line<'t>> {
        let mut inner = Vec::new();
        for (number, text) in lines {
            if text.strip_prefix("end-") == Some(name) {
                return inner;
            }
            inner.push((number, text));
        }
        self.mistake(line, format!("{name} does not end; write end-{name}"));
        Vec::new()
    }

    /// The blocks with a name in a section: where each begins, and its fields.
    fn blocks<'t>(
        &mut self,
        lines: &mut impl Iterator<Item = Line<'t>>,
        begin: Line<'t>,
        name: &str,
    ) -> Vec<(usize, Vec<Field<'t>>)> {
        let mut inner = self.block(lines, begin).into_iter();
        let mut blocks = Vec::new();
        while let Some(begin) = inner.next() {
            if begin.1 == name {
                let fields = self.block(&mut inner, begin);
                blocks.push((begin.0, self.fields(&fields)));
            } else {
                let (line, text) = begin;
                self.mistake(line, format!("{text}: write {name} or the section's end"));
            }
        }
        blocks
    }

    fn fields<'t>(&mut self, lines: &[Line<'t>]) -> Vec<Field<'t>> {
        const ONCE: [&str; 7] = [
            "name",
            "use",
            "sl",
            "mtu-limit",
            "rate-limit",
            "packet-life",
            "qos-level-name",
        ];
        let mut fields: Vec<Field<'t>> = Vec::new();
        for &(line, text) in lines {
            let Some((name, value)) = text.split_once(':') else {
                self.mistake(line, format!("{text}: write a name, a colon and a value"));
                continue;
            };
            let name = name.trim();
            match fields.iter().find(|field| field.1 == name) {
                Some((first, ..)) if ONCE.contains(&name) => {
                    let what = format!("{name} is in line {first}, too; remove one");
                    self.mistake(line, what);
                }
                _ => fields.push((line, name, value.trim())),
            }
        }
        fields
    }

    /// Notes the name of a group or level.
    fn name(
        &mut self,
        line: usize,
        kind: &str,
        name: Option<&str>,
        known: fn(&mut Self) -> (&mut Names, usize),
    ) {
        let name = name.map(folded).filter(|name| !name.is_empty());
        let Some(name) = name else {
            self.mistake(line, format!("a {kind} without a name; write `name: NAME`"));
            return;
        };
        let (names, place) = known(self);
        let before = names.get(&name).copied();
        names.entry(name).or_insert((line, place));
        if let Some((first, _)) = before {
            let what = format!("the {kind} of line {first} has this name, too; write another one");
            self.mistake(line, what);
        }
    }

    /// The places of groups or levels by their names.
    fn find(&mut self, named: &[Line<'_>], kind: &str, known: fn(&Self) -> &Names) -> Vec<usize> {
        let mut found = Vec::new();
        for &(line, name) in named {
            match known(self).get(&folded(name)) {
                Some(&(_, place)) => found.push(place),
                None => {
                    let what =
                        format!("no {kind} has the name {name}; write one, or correct the name");
                    self.mistake(line, what);
                }
            }
        }
        found
    }

    fn group(&mut self, (begin, fields): (usize, Vec<Field<'_>>)) {
        let (mut group, mut name) = (Group::default(), None);
        for (line, key, value) in fields {
            match key {
                "name" => name = Some(value),
                "use" => {}
                "port-guid" => group.guids.add(self.guids(line, key, value)),
                "pkey" => group.partitions.add(self.pkeys(line, key, value)),
                "port-name" => {
                    let names = entries(value).map(|entry| (entry, port_name(entry)));
                    for (entry, name) in names {
                        match name {
                            Some(name) => group.names.push(name),
                            None => self.mistake(
                                line,
                                format!("port-name {entry}: write a node's name and its port, as in vs1/P1"),
                            ),
                        }
                    }
                }
                "partition" => {
                    for entry in entries(value).map(unquoted) {
                        match (self.partition)(entry) {
                            Some(pkey) => {
                                let number = u64::from(pkey.partition());
                                group.partitions.add(Ranges(vec![(number, number)]));
                            }
                            None => self.mistake(
                                line,
                                format!(
                                    "no partition has the name {entry}; write one of the partition configuration, or \
                                     `pkey: 0x…`"
                                ),
                            ),
                        }
                    }
                }
                "node-type" => {
                    for entry in entries(value) {
                        self.kind(line, entry, &mut group);
                    }
                }
                _ => self.unknown(
                    line,
                    key,
                    "name, use, port-guid, port-name, pkey, partition and node-type",
                ),
            }
        }
        self.name(begin, "port-group", name, |it| {
            (&mut it.groups, it.policy.groups.len())
        });
        self.policy.groups.push(group);
    }

    fn kind(&mut self, line: usize, kind: &str, group: &mut Group) {
        use NodeType::{ChannelAdapter, Router, Switch};
        let kinds: &[NodeType] = match kind.to_ascii_uppercase().as_str() {
            "CA" => &[ChannelAdapter],
            "SWITCH" => &[Switch],
            "ROUTER" => &[Router],
            "ALL" => &[ChannelAdapter, Switch, Router],
            "SELF" => {
                group.has_own = true;
                &[]
            }
            _ => {
                let what = format!("node-type {kind}: write CA, SWITCH, ROUTER, ALL or SELF");
                self.mistake(line, what);
                return;
            }
        };
        group.kinds.extend(kinds);
    }

    fn level(&mut self, (begin, fields): (usize, Vec<Field<'_>>)) {
        let (mut level, mut name, mut sl) = (Level::default(), None, None);
        level.line = begin;
        for (line, key, value) in fields {
            match key {
                "name" => name = Some(value),
                "use" => {}
                "sl" => {
                    sl = Some(self.number(line, key, value, 0..=15));
                    level.line = line;
                }
                "mtu-limit" => level.mtu = Some(self.number(line, key, value, 1..=5) as u8),
                "rate-limit" => {
                    let rate = Rate(self.number(line, key, value, 2..=24) as u8);
                    level.rate = Some(rate);
                }
                "packet-life" => level.life = Some(self.number(line, key, value, 0..=63) as u8),
                "pkey" => level.partitions.add(self.pkeys(line, key, value)),
                "path-bits" => {
                    self.ranges(line, key, value, 0..=127);
                    let what = "path-bits does not act, as in OpenSM; remove it";
                    self.idle(line, what.to_owned());
                }
                _ => self.unknown(
                    line,
                    key,
                    "name, use, sl, mtu-limit, rate-limit, packet-life, path-bits and pkey",
                ),
            }
        }
        match sl {
            Some(sl) => level.sl = Sl::new(sl as u8),
            None => self.mistake(
                begin,
                "a qos-level without a service level; write `sl: 0`".to_owned(),
            ),
        }
        self.name(begin, "qos-level", name, |it| {
            (&mut it.levels, it.policy.levels.len())
        });
        self.policy.levels.push(level);
    }

    fn rule<'t>(&mut self, (begin, fields): (usize, Vec<Field<'t>>)) -> Draft<'t> {
        let mut draft = Draft::default();
        for (line, key, value) in fields {
            match key {
                "use" => {}
                "qos-class" => {
                    let classes = self.ranges(line, key, value, 0..=0xfff);
                    draft.rule.classes.add(classes);
                }
                "service-id" => {
                    let services = self.ranges(line, key, value, 0..=u64::MAX);
                    draft.rule.services.add(services);
                }
                "pkey" => draft.rule.partitions.add(self.pkeys(line, key, value)),
                "source" => draft
                    .sources
                    .extend(entries(value).map(|name| (line, name))),
                "destination" => {
                    let groups = entries(value).map(|name| (line, name));
                    draft.destinations.extend(groups);
                }
                "qos-level-name" => draft.level = Some((line, value)),
                _ => self.unknown(
                    line,
                    key,
                    "use, qos-class, service-id, pkey, source, destination and qos-level-name",
                ),
            }
        }
        if draft.level.is_none() {
            let what = "a qos-match-rule without a level; write `qos-level-name: NAME`";
            self.mistake(begin, what.to_owned());
        }
        draft
    }

    /// A line of the simplified form, such as `any, pkey 0x0abc : 6`.
    fn simple_rule(&mut self, (line, text): Line<'_>) {
        let Some((what, sl)) = text.rsplit_once(':') else {
            self.mistake(line, format!("{text}: {ULPS}"));
            return;
        };
        let sl = Sl::new(self.number(line, "service level", sl.trim(), 0..=15) as u8);
        let (protocol, criterion) = match what.split_once(',') {
            Some((protocol, criterion)) => (protocol, criterion.trim()),
            None => (what, ""),
        };
        let protocol = protocol.trim().to_ascii_lowercase();
        let (key, value) = criterion
            .split_once(char::is_whitespace)
            .unwrap_or((criterion, ""));
        let mut rule = Rule::default();
        let one = |number: u64| Ranges(vec![(number, number)]);
        let mut ports = |base: u64| {
            let ports = self.ranges(line, key, value, 0..=0xffff).0.into_iter();
            Ranges(
                ports
                    .map(|(first, last)| (base + first, base + last))
                    .collect(),
            )
        };
        match (protocol.as_str(), key) {
            ("default", "") => {
                match self.simple_default {
                    Some(first) => {
                        let first = self.policy.levels[first].line;
                        self.mistake(line, format!("default is in line {first}, too; remove one"));
                    }
                    None => self.simple_default = Some(self.policy.levels.len()),
                }
                self.simple_level(line, sl);
                return;
            }
            ("sdp", "") => rule.services = Ranges(vec![(SDP, SDP + 0xffff)]),
            ("sdp", "port-num") => rule.services = ports(SDP),
            ("rds", "") => rule.services = one(RDS + RDS_PORT),
            ("iser", "") => rule.services = one(RDS + ISER_PORT),
            ("rds" | "iser", "port-num") => rule.services = ports(RDS),
            ("ipoib", "") => rule.partitions = one(DEFAULT),
            ("ipoib" | "any", "pkey") => rule.partitions = self.pkeys(line, key, value),
            ("any", "service-id") => rule.services = self.ranges(line, key, value, 0..=u64::MAX),
            ("srp" | "any", "target-port-guid")
            | ("any", "source-port-guid" | "source-target-port-guid") => {
                let group = vec![self.policy.groups.len()];
                let guids = self.guids(line, key, value);
                self.policy.groups.push(Group {
                    guids,
                    ..Group::default()
                });
                rule.either_end = key == "source-target-port-guid";
                if key != "target-port-guid" {
                    rule.sources.clone_from(&group);
                }
                if key != "source-port-guid" {
                    rule.destinations = group;
                }
            }
            _ => {
                self.mistake(line, format!("{text}: {ULPS}"));
                return;
            }
        }
        rule.level = self.simple_level(line, sl);
        self.simple.push(rule);
    }

    fn simple_level(&mut self, line: usize, sl: Sl) -> usize {
        self.policy.levels.push(Level {
            line,
            sl,
            ..Level::default()
        });
        self.policy.levels.len() - 1
    }

    fn unknown(&mut self, line: usize, key: &str, known: &str) {
        self.mistake(line, format!("{key}: no such field; there are {known}"));
    }

    fn number(&mut self, line: usize, key: &str, value: &str, range: RangeInclusive<u64>) -> u64 {
        if let Some(number) = number(value).filter(|number| range.contains(number)) {
            return number;
        }
        let (first, last) = (range.start(), range.end());
        self.mistake(
            line,
            format!("{key} {value}: write a number from {first} to {last}"),
        );
        *first
    }

    /// Numbers and ranges, as in `7-9,0xb`.
    fn ranges(
        &mut self,
        line: usize,
        key: &str,
        value: &str,
        range: RangeInclusive<u64>,
    ) -> Ranges {
        let mut ranges = Vec::new();
        for entry in entries(value) {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            let read = |text: &str| number(text.trim()).filter(|number| range.contains(number));
            match (read(first), read(last)) {
                (Some(first), Some(last)) => ranges.push((first.min(last), first.max(last))),
                _ => {
                    let (first, last) = (range.start(), range.end());
                    let what = format!(
                        "{key} {entry}: write numbers and ranges from {first:#x} to {last:#x}, as in 0x1,0x5-0x9"
                    );
                    self.mistake(line, what);
                }
            }
        }
        let mut all = Ranges::default();
        all.add(Ranges(ranges));
        all
    }

    fn guids(&mut self, line: usize, key: &str, value: &str) -> Ranges {
        let ranges = self.ranges(line, key, value, 1..=u64::MAX);
        let single = ranges.0.iter().filter(|(first, last)| first == last);
        let named = single.map(|&(guid, _)| (line, Guid::new(guid)));
        self.policy.named.extend(named);
        ranges
    }

    /// Partitions by P_Keys without the bit of full membership.
    fn pkeys(&mut self, line: usize, key: &str, value: &str) -> Ranges {
        let ranges = self.ranges(line, key, value, 1..=0xffff).0.into_iter();
        let partitions = ranges.map(|(first, last)| {
            let (first, last) = (first & DEFAULT, last & DEFAULT);
            (first.min(last), first.max(last))
        });
        let mut all = Ranges::default();
        all.add(Ranges(partitions.collect()));
        all
    }
}

/// The name of a node and the number of its port, as in `vs1 HCA-1/P1`.
fn port_name(text: &str) -> Option<(String, u8)> {
    let (name, port) = unquoted(text).rsplit_once('/')?;
    let port = number(port.strip_prefix(['P', 'p'])?)?;
    let port = u8::try_from(port)
        .ok()
        .filter(|port| (1..=254).contains(port))?;
    Some((name.to_owned(), port)).filter(|_| !name.is_empty())
}
