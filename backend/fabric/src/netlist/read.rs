//! Reading.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use wire::Guid;
use wire::attribute::{NodeDescription, NodeType};
use wire::smp::DATA;

use super::cables::{Abilities, Ability};
use super::error::{NETLIST_MAX, NetlistError, Place, error};
use super::lines::{CableComment, guid, lid_of, number, quoted, widely_quoted};
use super::notices::{Loss, Notices};
use super::text::{bytes_of, printable, shown, text_of};
use crate::nodes::topology::{NodeSpec, Topology};

/// The most nodes of a listing: some twenty subnets full.
const NODES_MAX: u64 = 1 << 20;
/// Files that include each other, one in the other, as in ibsim.
const INCLUSIONS_MAX: usize = 9;

/// A topology that was read, and what of the text it has not.
#[derive(Debug)]
pub struct Listing {
    /// The nodes and cables.
    pub topology: Topology,
    /// Losses: parts of the text that the topology does not keep, one sentence for each kind.
    pub notices: Vec<String>,
    /// The files that were included.
    pub included: Vec<PathBuf>,
}

impl Listing {
    /// Reads a listing that includes no other files.
    ///
    /// # Errors
    /// [`NetlistError`] with the first line that is wrong.
    pub fn read(text: &[u8]) -> Result<Self, NetlistError> {
        Reader::new(None).whole(text)
    }

    /// Reads a file, and the files beside it that it includes.
    ///
    /// # Errors
    /// [`NetlistError`] with the first line that is wrong, or why the file cannot be read.
    pub fn open(path: &Path) -> Result<Self, NetlistError> {
        let text = contents(path).map_err(NetlistError::Unreadable)?;
        Reader::new(Some(path.parent().unwrap_or(Path::new("")).to_owned())).whole(&text)
    }
}

fn contents(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(NETLIST_MAX as u64 + 1).read_to_end(&mut text))
        .map_err(|error| error.to_string())?;
    Ok(text)
}

impl Topology {
    /// Reads a topology that `ibnetdiscover` printed, or one for ibsim.
    ///
    /// # Errors
    /// [`NetlistError`] with the first line that is wrong.
    pub fn from_netlist(text: &str) -> Result<Self, NetlistError> {
        Ok(Listing::read(text.as_bytes())?.topology)
    }
}

/// The other end of a cable as it stands in the text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Remote {
    Port(String, u8),
    /// An alias of ibsim, with its module.
    Alias(String),
}

/// One end of a cable as it stands in the text.
#[derive(Debug)]
pub(super) struct End {
    pub(super) at: Place,
    pub(super) remote: Remote,
    pub(super) ability: Ability,
    /// GUID of the other port, where the line tells it.
    pub(super) remote_guid: Option<Guid>,
}

/// A node as it stands in the text.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) at: Place,
    pub(super) name: String,
    pub(super) spec: NodeSpec,
    /// By port; of a switch, 0.
    pub(super) guids: BTreeMap<u8, (Guid, Place)>,
    /// LIDs, by port; of a switch, 0.
    pub(super) lids: BTreeMap<u8, (u32, Place)>,
    /// By port.
    pub(super) ends: BTreeMap<u8, End>,
    /// Ports that other nodes name by an alias.
    pub(super) aliases: BTreeMap<u8, (String, Ability)>,
}

/// Properties of nodes from the lines before them.
#[derive(Debug, Default)]
struct Preamble {
    /// These hold for the nodes that follow, as in ibsim.
    vendor: Option<u32>,
    device: Option<u16>,
    /// These are the next node's.
    system: Option<Guid>,
    port_guid: Option<Guid>,
    has_guid: bool,
}

/// Next GUIDs for nodes without one.
#[derive(Debug)]
struct Guids {
    base: u64,
    next: u64,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) records: Vec<Record>,
    pub(super) notices: Notices,
    pub(super) included: Vec<PathBuf>,
    preamble: Preamble,
    switches: Guids,
    adapters: Guids,
    abilities: Abilities,
    /// Whether the text has said what ports can do.
    told_abilities: bool,
    /// Prefix of names, by ibsim's `module`.
    module: String,
    /// Where included files are.
    folder: Option<PathBuf>,
    /// Files that are being read, one in the other.
    depth: usize,
    /// Bytes read.
    length: usize,
}

impl Guids {
    const fn new(base: u64) -> Self {
        Self { base, next: base }
    }

    /// `=0x…`, or `+n` from the last absolute one.
    fn set(&mut self, value: &str, at: &Place) -> Result<(), NetlistError> {
        let value = value.split('(').next().unwrap_or_default();
        if let Some((_, offset)) = value.split_once('+') {
            self.next = self.base.wrapping_add(number(offset, at)?);
        } else {
            self.base = number(assigned(value, at)?, at)?;
            self.next = self.base;
        }
        Ok(())
    }

    fn take(&mut self, ports: u64) -> u64 {
        let guid = self.next;
        self.next = guid.wrapping_add(ports);
        guid
    }
}

/// The text after `=`.
fn assigned<'t>(text: &'t str, at: &Place) -> Result<&'t str, NetlistError> {
    match text.split_once('=') {
        Some((_, value)) => Ok(value),
        None => error(at, "no `=`; write the value behind it"),
    }
}

/// The GUID that `ibnetdiscover` makes a node's name of, or that the name is.
fn guid_of_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("0x").or_else(|| {
        let rest = name.strip_prefix(['S', 'H', 'R'])?.strip_prefix('-')?;
        Some(rest.strip_prefix("0x").unwrap_or(rest))
    })?;
    let all = digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| all)
}

impl Reader {
    fn new(folder: Option<PathBuf>) -> Self {
        Self {
            records: Vec::new(),
            notices: Notices::default(),
            included: Vec::new(),
            preamble: Preamble::default(),
            // Where ibsim begins.
            switches: Guids::new(0x0020_0000),
            adapters: Guids::new(0x0010_0000),
            abilities: Abilities::default(),
            told_abilities: false,
            module: String::new(),
            folder,
            depth: 0,
            length: 0,
        }
    }

    fn whole(mut self, text: &[u8]) -> Result<Listing, NetlistError> {
        self.text(text, None)?;
        self.finish()
    }

    /// Reads the text of a file; `file` is its name where it is included.
    fn text(&mut self, bytes: &[u8], file: Option<Arc<str>>) -> Result<(), NetlistError> {
        self.length = self.length.saturating_add(bytes.len());
        if self.length > NETLIST_MAX {
            return Err(NetlistError::TooLong);
        }
        if let Some(form) = other_form(bytes) {
            return Err(NetlistError::OtherForm(form));
        }
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = text_of(bytes);
        let mut open = false;
        for (line, number) in text.lines().zip(1..) {
            let at = Place {
                file: file.clone(),
                line: number,
            };
            open = self.line(line.trim(), &at, open)?;
        }
        Ok(())
    }

    /// Reads a line; whether cables of the last node may follow.
    fn line(&mut self, line: &str, at: &Place, open: bool) -> Result<bool, NetlistError> {
        if line.is_empty() {
            return Ok(false);
        }
        if line.starts_with('#') {
            return Ok(open);
        }
        let (alias, cable) = match line.strip_prefix('@') {
            Some(cable) => (true, cable),
            None => (false, line),
        };
        if let Some(cable) = cable.strip_prefix('[')
            && (open || cable.starts_with(|letter: char| letter.is_ascii_digit()))
        {
            if !open {
                return error(
                    at,
                    "a cable without a node; begin one with `Switch`, `Ca` or `Rt`, and leave no \
                     empty line behind it",
                );
            }
            self.cable(cable, alias, at)?;
            return Ok(true);
        }
        let word: &str = line
            .split(|letter: char| !letter.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default();
        let rest = line[word.len()..].trim_start();
        if line.starts_with('{') {
            self.opensm_line(line, at)?;
            return Ok(true);
        }
        if let Some(form) = other_line(word, rest, line) {
            return error(at, form);
        }
        match word {
            "Switch" => self.node(NodeType::Switch, rest, at)?,
            "Hca" | "Ca" => self.node(NodeType::ChannelAdapter, rest, at)?,
            "Rt" => self.node(NodeType::Router, rest, at)?,
            "vendid" => self.preamble.vendor = Some(self.limited(rest, 24, at)? as u32),
            "devid" => self.preamble.device = Some(self.limited(rest, 16, at)? as u16),
            "sysimgguid" => {
                let guid = Guid::new(number(assigned(rest, at)?, at)?);
                self.preamble.system = Some(guid).filter(|guid| !guid.is_none());
                self.chassis(rest.contains("# Chassis"), at);
            }
            "switchguid" | "switchguids" => {
                self.switches.set(rest, at)?;
                self.preamble.has_guid = true;
                let port = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
                if let Some((digits, comment)) = port {
                    self.preamble.port_guid = Some(Guid::new(guid(digits, at)?));
                    self.chassis(comment.contains('#'), at);
                }
            }
            "hcaguid" | "hcaguids" | "caguid" | "caguids" | "rtguid" | "rtguids" => {
                self.adapters.set(rest, at)?;
                self.preamble.has_guid = true;
            }
            "width" => self.ability('w', rest, at)?,
            "speed" => self.ability('s', rest, at)?,
            "extspeed" => self.ability('e', rest, at)?,
            "module" => match assigned(rest, at).map(quoted)? {
                Some((module, _)) => module.clone_into(&mut self.module),
                None => return error(at, "no name in quotation marks"),
            },
            "include" => self.include(rest, at)?,
            // How much ibsim prints.
            "pdebug" => {}
            "Chassis" | "Non" | "Hostname" => self.chassis(true, at),
            _ => self.notices.add(Loss::UnknownLine, at, || {
                let word = if word.is_empty() { line } else { word };
                format!(
                    "`{}` is not understood, and the line is left out; nodes are `Switch`, `Ca` and \
                     `Rt`, cables begin with `[`, comments with `#`",
                    shown(word)
                )
            }),
        }
        Ok(matches!(word, "Switch" | "Hca" | "Ca" | "Rt"))
    }

    fn chassis(&mut self, is_told: bool, at: &Place) {
        if is_told {
            self.notices.add(Loss::Chassis, at, || {
                "chassis, slots and numbers of external ports are not kept".to_owned()
            });
        }
    }

    /// A number of so many bits.
    fn limited(&self, rest: &str, bits: u32, at: &Place) -> Result<u64, NetlistError> {
        let value = number(assigned(rest, at)?, at)?;
        if value >> bits == 0 {
            Ok(value)
        } else {
            error(at, format!("{value:#x}; the number has {bits} bits"))
        }
    }

    fn ability(&mut self, option: char, rest: &str, at: &Place) -> Result<(), NetlistError> {
        let value = number(assigned(rest, at)?, at)?;
        let value = u8::try_from(value).unwrap_or(u8::MAX);
        self.told_abilities = true;
        if self.abilities.set(option, value) {
            Ok(())
        } else {
            let what = "the values are width=1 to 31, speed=1 to 7, and extspeed=0 to 15";
            error(at, format!("{value} is out of range; {what}"))
        }
    }

    fn include(&mut self, rest: &str, at: &Place) -> Result<(), NetlistError> {
        let Some((name, _)) = quoted(rest) else {
            return error(at, "no name of a file in quotation marks");
        };
        let path = Path::new(name);
        let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        let Some(folder) = &self.folder else {
            return error(
                at,
                "other files are not included here; put their nodes in this one",
            );
        };
        if !path.components().all(inside) || name.is_empty() {
            let what = format!(
                "`{}` is not beside this file; put it there, and write its name alone",
                shown(name)
            );
            return error(at, what);
        }
        if self.depth >= INCLUSIONS_MAX {
            let what =
                format!("more than {INCLUSIONS_MAX} files, each in the other; include fewer");
            return error(at, what);
        }
        let path = folder.join(path);
        let text = contents(&path).or_else(|what| {
            error(
                at,
                format!("{}: {what}; put the file there", path.display()),
            )
        })?;
        self.included.push(path);
        self.depth += 1;
        self.text(&text, Some(name.into()))?;
        self.depth -= 1;
        Ok(())
    }

    /// A node's name, and the name of its module.
    fn full_name(&self, name: &str) -> String {
        if self.module.is_empty() || name.contains('#') {
            name.to_owned()
        } else {
            format!("{}#{name}", self.module)
        }
    }

    /// The properties of the next node.
    pub(super) fn set_identity(
        &mut self,
        vendor: u32,
        device: u16,
        system: Guid,
        port_guid: Option<Guid>,
    ) {
        self.preamble = Preamble {
            vendor: Some(vendor),
            device: Some(device),
            system: Some(system).filter(|guid| !guid.is_none()),
            port_guid,
            has_guid: false,
        };
    }

    /// `36 "name"   # "description" …`.
    pub(super) fn node(
        &mut self,
        kind: NodeType,
        rest: &str,
        at: &Place,
    ) -> Result<(), NetlistError> {
        let before = rest.split('"').next().unwrap_or_default();
        let first = before.find(|letter: char| letter.is_ascii_digit());
        let ports = first.and_then(|first| number(&before[first..], at).ok());
        let Some(ports @ 1..=254) = ports else {
            return error(at, "no number of ports; a node has 1 to 254");
        };
        let ports = ports as u8;
        let Some((name, rest)) = quoted(rest) else {
            return error(at, "no name in quotation marks");
        };
        if name.is_empty() {
            return error(at, "the name is empty; write one that no other node has");
        }
        if self.records.len() as u64 >= NODES_MAX {
            return error(at, format!("more than {NODES_MAX} nodes; remove some"));
        }
        let comment = rest.split_once('#').map(|(_, comment)| comment.trim());
        let (text, told) = comment.map_or((name, ""), |comment| description(comment, name));
        let told_bytes = bytes_of(text);
        let mut bytes = printable(&told_bytes);
        if bytes != told_bytes {
            self.notices.add(Loss::ControlText, at, || {
                "control characters in the node's text are spaces".to_owned()
            });
        }
        if bytes.len() > DATA {
            self.notices.add(Loss::LongText, at, || {
                format!("the node's text is cut to the {DATA} bytes of a NodeDescription")
            });
            // At a character's boundary, if it has such.
            let cut =
                std::str::from_utf8(&bytes).map_or(DATA, |text| text.floor_char_boundary(DATA));
            bytes.truncate(cut);
        }
        self.chassis(told.contains("(scp)"), at);
        let has_guid = std::mem::take(&mut self.preamble.has_guid);
        let counted = match kind {
            NodeType::Switch => &mut self.switches,
            _ => &mut self.adapters,
        };
        let guid = match guid_of_name(name).filter(|_| !has_guid) {
            Some(guid) => Guid::new(guid),
            None if kind == NodeType::Switch => Guid::new(counted.take(1)),
            None => Guid::new(counted.take(u64::from(ports) + 1)),
        };
        let port_guid = self.preamble.port_guid.take();
        let mut guids = BTreeMap::new();
        let mut lids = BTreeMap::new();
        let mut spec = match kind {
            NodeType::Switch => {
                guids.extend(port_guid.map(|guid| (0, (guid, at.clone()))));
                if let Some((lid, lmc)) = lid_of(told) {
                    lids.insert(0, (lid, at.clone()));
                    self.lmc(lmc, at);
                }
                NodeSpec::switch(guid, ports, "")
            }
            NodeType::ChannelAdapter => NodeSpec::channel_adapter(guid, guid, ""),
            NodeType::Router => NodeSpec::router(guid, vec![guid], ""),
        };
        spec.ports = ports;
        spec.enhanced_port0 = kind == NodeType::Switch && told.contains("enhanced port 0");
        spec.description = NodeDescription::of_bytes(&bytes);
        spec.system_image_guid = self.preamble.system.take().unwrap_or(guid);
        spec.vendor_id = self.preamble.vendor.unwrap_or(spec.vendor_id);
        spec.device_id = self.preamble.device.unwrap_or(spec.device_id);
        self.records.push(Record {
            at: at.clone(),
            name: self.full_name(name),
            spec,
            guids,
            lids,
            ends: BTreeMap::new(),
            aliases: BTreeMap::new(),
        });
        Ok(())
    }

    fn lmc(&mut self, lmc: u8, at: &Place) {
        if lmc != 0 {
            self.notices.add(Loss::Lmc, at, || {
                format!("LMC {lmc} is not kept: the subnet manager sets it (`sm.lmc`)")
            });
        }
    }

    /// `1](guid) "remote"[2](guid) w=… # … 4xEDR`; with `alias`, `1] "alias"`.
    pub(super) fn cable(
        &mut self,
        line: &str,
        alias: bool,
        at: &Place,
    ) -> Result<(), NetlistError> {
        let Some(record) = self.records.last() else {
            return error(at, "a cable without a node");
        };
        let (kind, ports) = (record.spec.kind, record.spec.ports);
        let Some((port, rest)) = line.split_once(']') else {
            return error(at, "no `]` after the port's number");
        };
        let port = number(port, at)?;
        let Some(port) = u8::try_from(port)
            .ok()
            .filter(|port| (1..=ports).contains(port))
        else {
            return error(at, format!("port {port} of a node with {ports} ports"));
        };
        let Some((remote, tail)) = quoted(rest) else {
            return error(at, "no name of the other node in quotation marks");
        };
        let before = rest.split('"').next().unwrap_or_default();
        let (tail, comment) = tail.split_once('#').unwrap_or((tail, ""));
        let comment = CableComment::parse(comment);
        let (remote_port, tail) = match tail.trim_start().strip_prefix('[') {
            Some(tail) => match tail.split_once(']') {
                Some((port, rest)) => (number(port, at)?, rest),
                None => return error(at, "no `]` after the other port's number"),
            },
            None => (1, tail),
        };
        let Ok(remote_port @ 1..=254) = u8::try_from(remote_port) else {
            return error(at, format!("port {remote_port}; ports are 1 to 254"));
        };
        let grouping = [before, tail].iter().any(|part| part.contains("[ext"));
        self.chassis(grouping || comment.grouping, at);
        let ability = self.ability_of(tail, &comment, alias, at)?;
        // The port's GUID stands at an adapter's own line, and at the other's.
        let own_guid = parenthesized(before).filter(|_| kind != NodeType::Switch);
        let own_guid = own_guid.map(|digits| guid(digits, at)).transpose()?;
        let remote_guid = parenthesized(tail)
            .map(|digits| guid(digits, at))
            .transpose()?;
        let own = comment.own.filter(|_| kind != NodeType::Switch);
        if let Some((_, lmc)) = own {
            self.lmc(lmc, at);
        }
        let remote = match remote.split_once('@') {
            Some(("", name)) => Remote::Alias(format!("{}@{name}", self.module)),
            Some(_) => Remote::Alias(remote.to_owned()),
            None => Remote::Port(self.full_name(remote), remote_port),
        };
        let name_of_alias = match &remote {
            Remote::Port(..) => format!("{}@{}", self.module, rest_of_alias(rest)),
            Remote::Alias(_) if alias => {
                return error(at, "`@` in the name of an alias; write the name without it");
            }
            Remote::Alias(_) => String::new(),
        };
        let Some(record) = self.records.last_mut() else {
            return Ok(());
        };
        if let Some(guid) = own_guid {
            record.guids.insert(port, (Guid::new(guid), at.clone()));
        }
        if let Some((lid, _)) = own {
            record.lids.insert(port, (lid, at.clone()));
        }
        let taken = if alias {
            record
                .aliases
                .insert(port, (name_of_alias, ability))
                .is_some()
                || record.ends.contains_key(&port)
        } else {
            let end = End {
                at: at.clone(),
                remote,
                ability,
                remote_guid: remote_guid.map(Guid::new),
            };
            record.ends.insert(port, end).is_some() || record.aliases.contains_key(&port)
        };
        if taken {
            return error(at, format!("port {port} has a cable already; remove one"));
        }
        Ok(())
    }

    /// Returns the abilities of the port at a cable, with the rate in the comment.
    fn ability_of(
        &mut self,
        options: &str,
        comment: &CableComment<'_>,
        alias: bool,
        at: &Place,
    ) -> Result<Ability, NetlistError> {
        let mut abilities = self.abilities;
        let mut has_options = false;
        for option in options.split_whitespace() {
            let Some((name, value)) = option.split_once('=') else {
                continue;
            };
            let value = u8::try_from(number(value, at)?).unwrap_or(u8::MAX);
            // A bracket may stand before the letter.
            let letter = name.chars().next_back();
            if !letter.is_some_and(|name| abilities.set(name, value)) {
                let what = "the options are w=1 to 31, s=1 to 7, and e=0 to 15";
                return error(at, format!("`{}`: {what}", shown(option)));
            }
            has_options = true;
        }
        if comment.full {
            self.notices.add(Loss::Lanes, at, || {
                "VLCap (`v=`) is not kept: every port has eight data lanes".to_owned()
            });
        }
        match comment.rate {
            Some((word, named)) if named.width.is_none() || named.speed.is_none() => {
                self.notices.add(Loss::UnknownRate, at, || {
                    format!(
                        "`{}` is no rate that is known; the one at the other end is taken, or else 4X \
                         and SDR",
                        shown(word)
                    )
                });
            }
            None if !has_options && !self.told_abilities && !alias => {
                self.notices.add(Loss::NoRate, at, || {
                    "no rate is given, and 4X SDR is taken, as ibsim does; write one at the end of the \
                     line, such as `# 4xEDR`"
                        .to_owned()
                });
            }
            _ => {}
        }
        Ok(Ability {
            abilities,
            has_options,
            named: comment.rate.map(|(_, named)| named),
        })
    }
}

/// The name in the line of an alias.
fn rest_of_alias(rest: &str) -> &str {
    quoted(rest).map_or("", |(name, _)| name)
}

/// The digits in the first parentheses.
fn parenthesized(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('(')?;
    rest.split_once(')').map(|(digits, _)| digits)
}

/// The text of a node in its comment, and what the comment says beside it.
fn description<'t>(comment: &'t str, name: &'t str) -> (&'t str, &'t str) {
    if comment.starts_with('"') {
        return widely_quoted(comment).unwrap_or((name, ""));
    }
    // A text without quotation marks ends where what `ibnetdiscover` adds begins.
    let ends = [
        " enhanced port ",
        " base port ",
        " port 0 ",
        " lid ",
        " lmc ",
    ];
    let end = ends.iter().filter_map(|end| comment.find(end)).min();
    let (text, told) = comment.split_at(end.unwrap_or(comment.len()));
    (if text.is_empty() { name } else { text }, told)
}

/// The remedy, where the bytes are no text of this kind at all.
fn other_form(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Some("the text is in UTF-16; save it as UTF-8");
    }
    let compressed: [&[u8]; 3] = [b"\x1f\x8b", b"BZh", b"\xfd7zXZ"];
    if compressed.iter().any(|magic| bytes.starts_with(magic)) {
        return Some("the file is compressed; uncompress it");
    }
    bytes.contains(&0).then_some(
        "the file is no text; of a cache, `ibnetdiscover --load-cache FILE` prints the listing",
    )
}

/// The remedy, where a line is of another form of output.
fn other_line(word: &str, rest: &str, line: &str) -> Option<&'static str> {
    let is_number = rest.starts_with(|letter: char| letter.is_ascii_digit());
    match word {
        "Switch" | "Ca" | "CA" | "Router" | "Rt" | "Hca" if rest.starts_with(':') => Some(
            "a list of nodes, as `ibnetdiscover -l`, `ibswitches`, `ibhosts` and `iblinkinfo` print \
             it, has no cables; give what `ibnetdiscover` prints without options",
        ),
        "SW" | "CA" | "RT" if is_number => Some(
            "a report of ports (`ibnetdiscover -p`) has no GUIDs of nodes; give what `ibnetdiscover` \
             prints without options",
        ),
        "" if line.starts_with("< ") || line.starts_with("> ") => Some(
            "a difference (`ibnetdiscover --diff`) is not a whole subnet; give what `ibnetdiscover` \
             prints without options",
        ),
        "do" => Some(
            "commands of ibsim are not run; remove the line, and use `ibvswitch link` when the subnet \
             is up",
        ),
        _ => None,
    }
}
