//! Partitions, as OpenSM's partition configuration file (`partitions.conf`) describes them.

use std::collections::BTreeSet;
use std::fmt;

use wire::attribute::NodeType;
use wire::sa::{McMemberRecord, Selector};
use wire::{Gid, Guid, PKey, QKey, Sl};

use crate::config::preset_group::PresetGroup;

/// Membership of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Membership {
    Limited,
    Full,
    /// With both keys.
    Both,
}

impl Membership {
    /// By its name or the beginning of it, as OpenSM reads it.
    fn of(text: &str) -> Option<Self> {
        let names = [
            ("full", Self::Full),
            ("limited", Self::Limited),
            ("both", Self::Both),
        ];
        let mut names = names.into_iter();
        let found = names.find(|(name, _)| !text.is_empty() && name.starts_with(text));
        found.map(|(_, membership)| membership)
    }

    fn keys(self, partition: u16) -> impl Iterator<Item = PKey> {
        let full = (self != Self::Limited).then(|| PKey::new(partition | FULL));
        let limited = (self != Self::Full).then(|| PKey::new(partition));
        full.into_iter().chain(limited)
    }
}

/// Members of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Member {
    All,
    OfKind(NodeType),
    /// The subnet manager's own port.
    Own,
    Port(Guid),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Partition {
    name: String,
    /// The lower 15 bits.
    key: u16,
    /// Service level of its paths and of groups without their own, with the line that says so.
    level: Option<(usize, Sl)>,
    /// In order: what comes later counts.
    members: Vec<(Member, Membership, IndexZero)>,
}

/// Whether the key is to have index 0.
type IndexZero = bool;

const FULL: u16 = 0x8000;
const DEFAULT: u16 = 0x7fff;
/// IPoIB's queue key, as OpenSM has it.
const IPOIB_QKEY: u32 = 0x0b1b;
const IPV4: u16 = 0x401b;
const IPV6: u16 = 0x601b;
/// As OpenSM: 10 Gb/s and 2048 bytes.
const RATE: u8 = 3;
const MTU: u8 = 4;
const LIFE_TIME: u8 = 18;
/// The longest file: a port takes some 30 bytes.
pub const FILE_MAX: usize = 16 << 20;
/// Mistakes that are told.
pub(crate) const MISTAKES: usize = 32;

/// A mistake in a partition configuration file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Mistake {
    /// From 1.
    pub line: usize,
    /// The error, and its remedy.
    pub what: String,
    /// A name that no port has.
    pub unknown: Option<String>,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// A port that may be a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) guid: Guid,
    pub(crate) kind: NodeType,
    /// It is the subnet manager's own.
    pub(crate) is_own: bool,
}

/// Partitions and multicast groups of a partition configuration file.
///
/// The format is OpenSM's. An entry that OpenSM passes over with a warning in its log, such as a flag that it does
/// not know, is an error here; and where OpenSM takes a port GUID, a name stands for one if the caller knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    partitions: Vec<Partition>,
    groups: Vec<PresetGroup>,
    /// Members that are named one by one, with their lines.
    named: Vec<(usize, Guid)>,
}

impl Partitions {
    /// Reads a file's text; `port` tells the GUID that a name stands for.
    ///
    /// # Errors
    /// The first 32 mistakes.
    pub fn parse(text: &str, port: impl Fn(&str) -> Option<Guid>) -> Result<Self, Vec<Mistake>> {
        let mut reader = Reader {
            port: &port,
            partitions: Vec::new(),
            groups: Vec::new(),
            mistakes: Vec::new(),
            named: Vec::new(),
            explicit: BTreeSet::new(),
        };
        if text.len() > FILE_MAX {
            reader.mistake(1, format!("the file has more than {FILE_MAX} bytes"));
        } else {
            reader.read(text);
        }
        if !reader.mistakes.is_empty() {
            return Err(reader.mistakes);
        }
        let mut partitions = reader.partitions;
        match partitions.iter_mut().find(|one| one.key == DEFAULT) {
            Some(_) => {}
            None => partitions.insert(
                0,
                Partition {
                    name: "Default".to_owned(),
                    key: DEFAULT,
                    level: None,
                    members: vec![
                        (Member::All, Membership::Limited, false),
                        (Member::Own, Membership::Full, false),
                    ],
                },
            ),
        }
        Ok(Self {
            partitions,
            groups: reader.groups,
            named: reader.named,
        })
    }

    /// The ports that are members by name or GUID, with the lines that say so.
    pub fn named(&self) -> &[(usize, Guid)] {
        &self.named
    }

    /// The service level of paths in the partition of a P_Key.
    pub(crate) fn level(&self, pkey: PKey) -> Option<Sl> {
        let key = pkey.value() & DEFAULT;
        let partition = self.partitions.iter().find(|one| one.key == key)?;
        partition.level.map(|(_, level)| level)
    }

    /// Partitions that have a service level: the line that gives it, the P_Key of full members, the level.
    pub fn levels(&self) -> impl Iterator<Item = (usize, PKey, Sl)> {
        self.partitions.iter().filter_map(|one| {
            let (line, level) = one.level?;
            Some((line, PKey::new(one.key | FULL), level))
        })
    }

    /// The P_Keys of the adapter's port with this GUID.
    pub fn keys_of(&self, guid: Guid) -> Vec<PKey> {
        self.table(&Candidate {
            guid,
            kind: NodeType::ChannelAdapter,
            is_own: false,
        })
    }

    /// The multicast groups that are there from the start.
    pub fn groups(&self) -> &[PresetGroup] {
        &self.groups
    }

    /// Names and P_Keys of the partitions, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = (&str, PKey)> {
        let partitions = self.partitions.iter();
        partitions.map(|one| (one.name.as_str(), PKey::new(one.key | FULL)))
    }

    /// The P_Key table of a port: what is to have index 0 first, then the default partition, then
    /// the others as the file has them.
    pub(crate) fn table(&self, port: &Candidate) -> Vec<PKey> {
        let mut entries = Vec::new();
        for (place, partition) in self.partitions.iter().enumerate() {
            let mut own = partition
                .members
                .iter()
                .filter(|(member, ..)| match member {
                    Member::All => true,
                    Member::OfKind(kind) => *kind == port.kind,
                    Member::Own => port.is_own,
                    Member::Port(guid) => *guid == port.guid,
                });
            let mut membership = own
                .next_back()
                .map(|&(_, membership, zero)| (membership, zero));
            if port.is_own {
                // The manager must reach everybody, and everybody the subnet administration.
                membership = Some((Membership::Full, membership.is_some_and(|(_, zero)| zero)));
            }
            if let Some((membership, zero)) = membership {
                let rank = (!zero, partition.key != DEFAULT, place);
                entries.extend(membership.keys(partition.key).map(|key| (rank, key)));
            }
        }
        entries.sort_by_key(|&(rank, _)| rank);
        entries.into_iter().map(|(_, key)| key).collect()
    }
}

/// A `name` or `name=value`, and where it is.
#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    line: usize,
    name: &'a str,
    value: Option<&'a str>,
}

#[derive(Debug, Clone, Copy)]
struct GroupFlags {
    mtu: u8,
    rate: u8,
    sl: Option<Sl>,
    /// A bit for each scope that was named.
    scopes: u16,
    qkey: u32,
    traffic_class: u8,
    flow_label: u32,
}

struct Reader<'a> {
    port: &'a dyn Fn(&str) -> Option<Guid>,
    partitions: Vec<Partition>,
    groups: Vec<PresetGroup>,
    mistakes: Vec<Mistake>,
    named: Vec<(usize, Guid)>,
    /// Keys that the file names, so that none of them is invented for another partition.
    explicit: BTreeSet<u16>,
}

/// The text without comments, in pieces with the lines they begin at, cut where `at` says.
fn pieces(text: &str, line: usize, at: char) -> impl Iterator<Item = (usize, &str)> {
    let mut line = line;
    text.split(at).map(move |piece| {
        let begin = line;
        line += piece.matches('\n').count();
        if at == '\n' {
            line += 1;
        }
        let blank = piece.len() - piece.trim_start().len();
        let begin = begin + piece[..blank].matches('\n').count();
        (begin, piece.trim())
    })
}

fn token(line: usize, text: &str) -> Token<'_> {
    match text.split_once('=') {
        Some((name, value)) => Token {
            line,
            name: name.trim(),
            value: Some(value.trim()),
        },
        None => Token {
            line,
            name: text,
            value: None,
        },
    }
}

/// A number as C reads it: hexadecimal, octal or decimal by how it begins.
pub(super) fn number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    match lower.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if lower.len() > 1 && lower.starts_with('0') => u64::from_str_radix(&lower, 8).ok(),
        None => lower.parse().ok(),
    }
}

impl Reader<'_> {
    fn mistake(&mut self, line: usize, what: impl Into<String>) {
        if self.mistakes.len() < MISTAKES {
            self.mistakes.push(Mistake {
                line,
                what: what.into(),
                unknown: None,
            });
        }
    }

    fn read(&mut self, text: &str) {
        let bare: Vec<&str> = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default())
            .collect();
        let bare = bare.join("\n");
        let rules: Vec<(usize, &str)> = pieces(&bare, 1, ';').collect();
        for (line, rule) in &rules {
            let head = rule.split(':').next().unwrap_or_default();
            let first = head.split(',').next().unwrap_or_default();
            let first = token(*line, first.trim());
            let key = first.value.or_else(|| unnamed_key(first.name));
            self.explicit
                .extend(key.and_then(number).map(|key| key as u16 & DEFAULT));
        }
        let last = rules.len() - 1;
        for (index, (line, rule)) in rules.into_iter().enumerate() {
            if rule.is_empty() {
                continue;
            }
            if index == last {
                self.mistake(line, "this rule does not end; write \";\" after it");
            }
            self.rule(line, rule);
        }
    }

    fn rule(&mut self, line: usize, rule: &str) {
        let Some((head, body)) = rule.split_once(':') else {
            let what = "no partition definition; write NAME=P_KEY : members ;";
            self.mistake(line, what);
            return;
        };
        let body_line = line + head.matches('\n').count();
        let mut tokens = pieces(head, line, ',').map(|(line, text)| token(line, text));
        let first = tokens.next().unwrap_or_else(|| token(line, ""));
        let mut flags = GroupFlags {
            mtu: MTU,
            rate: RATE,
            sl: None,
            scopes: 0,
            qkey: 0,
            traffic_class: 0,
            flow_label: 0,
        };
        let (mut default, mut zero, mut ipoib) = (Membership::Limited, false, false);
        for token in tokens {
            match (token.name, token.value) {
                ("ipoib", None) => ipoib = true,
                ("indx0", None) => zero = true,
                ("defmember", Some(value)) => match Membership::of(value) {
                    Some(membership) => default = membership,
                    None => self.mistake(
                        token.line,
                        format!("defmember={value}: write full, limited or both"),
                    ),
                },
                _ => {
                    self.group_flag(&mut flags, token);
                    // IPoIB's group is there in any case, and these are about it.
                    ipoib |= token.name != "sl";
                }
            }
        }
        let Some(at) = self.partition(first) else {
            return;
        };
        let key = self.partitions[at].key;
        self.level(at, line, flags.sl.take());
        if ipoib {
            let mgid = Gid::from_bits(0xff12_401b << 96 | 0xffff_ffff);
            self.add_group(mgid, key, flags);
        }
        // A group takes the rest of its line.
        for (line, text) in pieces(body, body_line, '\n') {
            let is_group = text
                .split(['=', ','])
                .next()
                .is_some_and(|name| name.trim() == "mgid");
            if is_group {
                self.group(line, text, key, flags);
                continue;
            }
            for (line, text) in pieces(text, line, ',') {
                if !text.is_empty() {
                    self.member(at, token(line, text), default, zero);
                }
            }
        }
    }

    /// Notes the service level that a rule gives its partition.
    fn level(&mut self, at: usize, line: usize, level: Option<Sl>) {
        let Some(level) = level else { return };
        match self.partitions[at].level {
            Some((first, other)) if other != level => {
                let (other, level) = (other.value(), level.value());
                let what = format!(
                    "sl={level}: line {first} gives the same partition sl={other}; write one of the two"
                );
                self.mistake(line, what);
            }
            Some(_) => {}
            None => self.partitions[at].level = Some((line, level)),
        }
    }

    /// The partition that a rule is about, new or known.
    fn partition(&mut self, first: Token<'_>) -> Option<usize> {
        let unnamed = unnamed_key(first.name).filter(|_| first.value.is_none());
        let name = if unnamed.is_some() { "" } else { first.name };
        let key = match first.value.or(unnamed) {
            Some(text) => match number(text).filter(|&key| key <= 0xffff) {
                Some(key) if key as u16 & DEFAULT != 0 => key as u16 & DEFAULT,
                _ => {
                    let what = format!("{text} is no P_Key; write 0x0001 to 0x7fff");
                    self.mistake(first.line, what);
                    return None;
                }
            },
            None => {
                let named = |one: &Partition| !name.is_empty() && one.name == name;
                match self.partitions.iter().position(named) {
                    Some(at) => return Some(at),
                    None if name == "Default" => DEFAULT,
                    None => (1..DEFAULT).find(|key| !self.explicit.contains(key))?,
                }
            }
        };
        self.explicit.insert(key);
        if let Some(at) = self.partitions.iter().position(|one| one.key == key) {
            return Some(at);
        }
        self.partitions.push(Partition {
            name: name.to_owned(),
            key,
            level: None,
            members: Vec::new(),
        });
        Some(self.partitions.len() - 1)
    }

    fn member(&mut self, at: usize, token: Token<'_>, default: Membership, zero: bool) {
        let membership = match token.value {
            None => default,
            Some(value) => match Membership::of(value) {
                Some(membership) => membership,
                None => {
                    let what = format!("{}={value}: write full, limited or both", token.name);
                    self.mistake(token.line, what);
                    return;
                }
            },
        };
        let member = match token.name {
            "NONE" => return,
            "ALL" => Member::All,
            "ALL_CAS" => Member::OfKind(NodeType::ChannelAdapter),
            "ALL_SWITCHES" => Member::OfKind(NodeType::Switch),
            "ALL_ROUTERS" => Member::OfKind(NodeType::Router),
            "SELF" => Member::Own,
            name => match (self.port)(name).or_else(|| name.parse().ok()) {
                Some(guid) if !guid.is_none() => {
                    self.named.push((token.line, guid));
                    Member::Port(guid)
                }
                _ => {
                    let what = format!(
                        "{name} is no port; write a port GUID such as 0x0002c90300000101, a VF's \
                         name, ALL, ALL_CAS, ALL_SWITCHES or SELF"
                    );
                    self.mistake(token.line, what);
                    if let Some(mistake) = self.mistakes.last_mut() {
                        mistake.unknown = Some(name.to_owned());
                    }
                    return;
                }
            },
        };
        self.partitions[at].members.push((member, membership, zero));
    }

    fn group_flag(&mut self, flags: &mut GroupFlags, token: Token<'_>) {
        let Token { line, name, value } = token;
        let known = ["mtu", "rate", "sl", "scope", "Q_Key", "TClass", "FlowLabel"];
        if !known.contains(&name) {
            let what = format!(
                "{name}: no such flag; there are ipoib, indx0, defmember=, mtu=, rate=, sl=, \
                 scope=, Q_Key=, TClass= and FlowLabel="
            );
            self.mistake(line, what);
            return;
        }
        let value = value.unwrap_or_default();
        let number = number(value);
        let limits = match name {
            "mtu" => 1..=5,
            "rate" => 2..=31,
            "sl" => 0..=15,
            "scope" => 1..=15,
            "Q_Key" => 0..=u64::from(u32::MAX),
            "TClass" => 0..=255,
            _ => 0..=0xf_ffff,
        };
        let Some(number) = number.filter(|number| limits.contains(number)) else {
            let (least, most) = (limits.start(), limits.end());
            self.mistake(line, format!("{name}={value}: write {least} to {most}"));
            return;
        };
        match name {
            "mtu" => flags.mtu = number as u8,
            "rate" => flags.rate = number as u8,
            "sl" => flags.sl = Some(Sl::new(number as u8)),
            "scope" => flags.scopes |= 1 << number,
            "Q_Key" => flags.qkey = number as u32,
            "TClass" => flags.traffic_class = number as u8,
            _ => flags.flow_label = number as u32,
        }
    }

    /// A line `mgid=GID,flags`.
    fn group(&mut self, line: usize, text: &str, key: u16, of_partition: GroupFlags) {
        let mut flags = of_partition;
        let mut tokens = pieces(text, line, ',').map(|(line, text)| token(line, text));
        let gid = tokens
            .next()
            .and_then(|token| token.value)
            .unwrap_or_default();
        for token in tokens.filter(|token| !token.name.is_empty()) {
            self.group_flag(&mut flags, token);
        }
        let Some(mgid) = gid.parse().ok().filter(|gid: &Gid| gid.is_multicast()) else {
            let what = format!("mgid={gid}: no multicast GID; write one such as ff12:401b::1");
            self.mistake(line, what);
            return;
        };
        let signature = (mgid.to_bits() >> 96) as u16;
        if [IPV4, IPV6].contains(&signature) {
            let named = (mgid.to_bits() >> 80) as u16;
            if named != 0 && named != (key | FULL) {
                let what = format!(
                    "mgid={gid}: has the P_Key 0x{named:04x}, the partition has 0x{:04x}; write \
                     that, or 0",
                    key | FULL
                );
                self.mistake(line, what);
                return;
            }
            if (flags.rate, flags.mtu) != (of_partition.rate, of_partition.mtu) {
                let what = format!(
                    "mgid={gid}: rate and mtu of an IP group are those of the partition, {} and {}",
                    of_partition.rate, of_partition.mtu
                );
                self.mistake(line, what);
                return;
            }
        }
        self.add_group(mgid, key, flags);
    }

    fn add_group(&mut self, mgid: Gid, key: u16, flags: GroupFlags) {
        let pkey = PKey::new(key | FULL);
        let mut bits = mgid.to_bits();
        let is_ip = [IPV4, IPV6].contains(&((bits >> 96) as u16));
        let mut qkey = flags.qkey;
        if is_ip {
            bits = bits & !(0xffff << 80) | u128::from(pkey.value()) << 80;
            if qkey == 0 {
                qkey = IPOIB_QKEY;
            }
        }
        let scopes = match flags.scopes {
            0 => 1 << ((bits >> 112) & 0xf),
            scopes => scopes,
        };
        for scope in (0..16).filter(|scope| scopes >> scope & 1 == 1) {
            let bits = bits & !(0xf << 112) | scope << 112;
            let mgid = Gid::from_bits(bits);
            let mut known = self.groups.iter();
            if known.any(|group| group.record.mgid == mgid) {
                continue;
            }
            self.groups.push(PresetGroup {
                has_own_level: flags.sl.is_some(),
                record: McMemberRecord {
                    mgid,
                    qkey: QKey::new(qkey),
                    mtu_selector: Selector::Exactly.code(),
                    mtu: flags.mtu,
                    traffic_class: flags.traffic_class,
                    pkey,
                    rate_selector: Selector::Exactly.code(),
                    rate: flags.rate,
                    packet_life_time_selector: Selector::Exactly.code(),
                    packet_life_time: LIFE_TIME,
                    flow_label: flags.flow_label,
                    sl: flags.sl.unwrap_or_default(),
                    scope: scope as u8,
                    ..McMemberRecord::default()
                },
            });
        }
    }
}

/// A rule may begin with the key instead of a name.
fn unnamed_key(name: &str) -> Option<&str> {
    name.starts_with(|first: char| first.is_ascii_digit())
        .then_some(name)
}

#[cfg(test)]
mod tests;
