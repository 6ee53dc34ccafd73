//! Reading.

use std::collections::HashMap;

use wire::attribute::{NodeDescription, NodeType};
use wire::{Guid, LinkSpeed, LinkSpeedExt, LinkWidth};

use super::rate_of;
use crate::links::rate::LinkRate;
use crate::nodes::topology::{NodeId, NodeSpec, Topology, TopologyError};

/// The most nodes of a netlist: some twenty subnets full.
const MAX_NODES: u64 = 1 << 20;

/// The longest text that is read, in bytes: many times the largest subnet's.
pub const NETLIST_MAX: usize = 256 << 20;

/// Why a text is no topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetlistError {
    /// A line is wrong.
    #[error("line {line}: {what}")]
    Line {
        /// The line, counted from 1.
        line: usize,
        /// The error, and its remedy.
        what: String,
    },
    /// The text is too long.
    #[error("more than {NETLIST_MAX} bytes; a subnet has less")]
    TooLong,
    /// There is no node in it.
    #[error("there is no node; begin one with a line such as `Switch 36 \"name\"`")]
    Empty,
    /// The nodes and cables make no fabric.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

fn error<T>(line: usize, what: impl Into<String>) -> Result<T, NetlistError> {
    let what = what.into();
    Err(NetlistError::Line { line, what })
}

/// Capabilities of a port, as in PortInfo: a bit for each width and each speed.
#[derive(Debug, Clone, Copy)]
struct Abilities {
    width: u8,
    speed: u8,
    extended: u8,
}

impl Default for Abilities {
    /// Default capabilities of ibsim's ports.
    fn default() -> Self {
        Self {
            width: LinkWidth::X4.code(),
            speed: LinkSpeed::Sdr.code(),
            extended: 0,
        }
    }
}

/// All codes up to this one.
const fn up_to(code: u8) -> u8 {
    (code << 1).wrapping_sub((code != 0) as u8)
}

impl From<LinkRate> for Abilities {
    fn from(rate: LinkRate) -> Self {
        Self {
            width: rate.width.code(),
            speed: up_to(rate.speed.code()),
            extended: up_to(rate.extended.code()),
        }
    }
}

impl Abilities {
    /// The best that both ends can do.
    fn with(self, other: Self) -> Option<LinkRate> {
        let width = self.width & other.width;
        let width = [
            LinkWidth::X12,
            LinkWidth::X8,
            LinkWidth::X4,
            LinkWidth::X2,
            LinkWidth::X1,
        ]
        .into_iter()
        .find(|it| width & it.code() != 0)?;
        let highest = |bits: u8| bits.checked_ilog2().map_or(0, |bit| 1 << bit);
        let extended = LinkSpeedExt::from_code(highest(self.extended & other.extended));
        Some(LinkRate {
            width,
            speed: LinkSpeed::from_code(highest(self.speed & other.speed))?,
            extended: extended.unwrap_or(LinkSpeedExt::None),
        })
    }

    fn set(&mut self, option: char, value: u8) -> bool {
        let (place, values) = match option {
            'w' => (&mut self.width, 1..=31),
            's' => (&mut self.speed, 1..=7),
            'e' => (&mut self.extended, 0..=15),
            _ => return false,
        };
        *place = value;
        values.contains(&value)
    }
}

/// One end of a cable as it stands in the text.
#[derive(Debug)]
struct End {
    line: usize,
    remote: String,
    remote_port: u8,
    abilities: Abilities,
}

/// A node as it stands in the text.
#[derive(Debug)]
struct Record {
    name: String,
    id: NodeId,
    spec: NodeSpec,
    /// By port.
    ends: HashMap<u8, End>,
}

/// Properties of a node from the lines before it.
#[derive(Debug, Default)]
struct Preamble {
    vendor: Option<u32>,
    device: Option<u16>,
    port_guid: Option<Guid>,
}

/// Next GUIDs for nodes without one.
#[derive(Debug)]
struct Guids {
    base: u64,
    next: u64,
}

#[derive(Debug)]
struct Reader {
    records: Vec<Record>,
    preamble: Preamble,
    switches: Guids,
    adapters: Guids,
    abilities: Abilities,
}

impl Topology {
    /// Reads a topology that `ibnetdiscover` printed, or one for ibsim.
    ///
    /// # Errors
    /// [`NetlistError`] with the first line that is wrong.
    pub fn from_netlist(text: &str) -> Result<Self, NetlistError> {
        if text.len() > NETLIST_MAX {
            return Err(NetlistError::TooLong);
        }
        let mut reader = Reader {
            records: Vec::new(),
            preamble: Preamble::default(),
            // Where ibsim begins.
            switches: Guids::new(0x0020_0000),
            adapters: Guids::new(0x0010_0000),
            abilities: Abilities::default(),
        };
        let mut open = false;
        for (line, number) in text.lines().zip(1..) {
            open = reader.line(line.trim_end(), number, open)?;
        }
        reader.finish()
    }
}

impl Guids {
    const fn new(base: u64) -> Self {
        Self { base, next: base }
    }

    /// `=0x…`, or `+n` from the last absolute one.
    fn set(&mut self, value: &str, line: usize) -> Result<(), NetlistError> {
        let value = value.split('(').next().unwrap_or_default();
        match value.strip_prefix('+') {
            Some(offset) => self.next = self.base.wrapping_add(number(offset, line)?),
            None => {
                self.base = number(value.trim_start_matches('='), line)?;
                self.next = self.base;
            }
        }
        Ok(())
    }

    fn take(&mut self, ports: u64) -> u64 {
        let guid = self.next;
        self.next = guid.wrapping_add(ports);
        guid
    }
}

/// A number as C reads it.
fn number(text: &str, line: usize) -> Result<u64, NetlistError> {
    let text = text.trim();
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.or_else(|_| error(line, format!("`{text}` is no number")))
}

/// The text between the first two quotation marks, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"')
}

impl Reader {
    /// Reads a line; whether cables of the last node may follow.
    fn line(&mut self, line: &str, at: usize, open: bool) -> Result<bool, NetlistError> {
        if line.is_empty() {
            return Ok(false);
        }
        if line.starts_with('#') {
            return Ok(open);
        }
        if line.starts_with('[') {
            if !open {
                return error(
                    at,
                    "a cable without a node; begin one with `Switch` or `Ca`",
                );
            }
            self.cable(line, at)?;
            return Ok(true);
        }
        let word: &str = line
            .split(|letter: char| !letter.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default();
        let rest = line[word.len()..].trim_start();
        match word {
            "Switch" => self.node(NodeType::Switch, rest, at)?,
            "Hca" | "Ca" => self.node(NodeType::ChannelAdapter, rest, at)?,
            "Rt" => return error(at, "routers are not supported; remove the node"),
            "vendid" => {
                self.preamble.vendor = Some(number(rest.trim_start_matches('='), at)? as u32)
            }
            "devid" => {
                self.preamble.device = Some(number(rest.trim_start_matches('='), at)? as u16)
            }
            // Every node is a system of its own here.
            "sysimgguid" => {}
            "switchguid" | "switchguids" => {
                self.switches.set(rest, at)?;
                if let Some((_, port)) = rest.split_once('(') {
                    let digits = port.trim_end_matches(')');
                    match u64::from_str_radix(digits, 16) {
                        Ok(guid) => self.preamble.port_guid = Some(Guid::new(guid)),
                        Err(_) => return error(at, format!("`{digits}` is no GUID")),
                    }
                }
            }
            "hcaguid" | "hcaguids" | "caguid" | "caguids" => self.adapters.set(rest, at)?,
            "width" => self.ability('w', rest, at)?,
            "speed" => self.ability('s', rest, at)?,
            "extspeed" => self.ability('e', rest, at)?,
            _ => {
                return error(
                    at,
                    format!(
                        "`{word}` is not understood; nodes are `Switch` and `Ca`, cables begin with `[`, comments with `#`"
                    ),
                );
            }
        }
        Ok(matches!(word, "Switch" | "Hca" | "Ca"))
    }

    fn ability(&mut self, option: char, rest: &str, at: usize) -> Result<(), NetlistError> {
        let value = number(rest.trim_start_matches('='), at)?;
        let value = u8::try_from(value).unwrap_or(u8::MAX);
        if self.abilities.set(option, value) {
            Ok(())
        } else {
            error(at, format!("{value} is out of range"))
        }
    }

    /// `36 "name"   # "description" …`.
    fn node(&mut self, kind: NodeType, rest: &str, at: usize) -> Result<(), NetlistError> {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit());
        let ports = rest[..digits.unwrap_or(rest.len())].parse::<u8>();
        let Some(ports) = ports.ok().filter(|ports| (1..=254).contains(ports)) else {
            return error(at, "no number of ports; a node has 1 to 254");
        };
        let Some((name, rest)) = quoted(rest) else {
            return error(at, "no name in quotation marks");
        };
        if name.is_empty() {
            return error(at, "the name is empty");
        }
        let comment = rest.split_once('#').map(|(_, comment)| comment.trim());
        let description = match comment {
            Some(comment) if comment.starts_with('"') => {
                quoted(comment).map_or(name, |(text, _)| text)
            }
            // A text without quotation marks ends where what `ibnetdiscover` adds begins.
            Some(comment) => {
                let ends = [" enhanced port ", " base port ", " lid ", " lmc "];
                let end = ends.iter().filter_map(|end| comment.find(end)).min();
                match &comment[..end.unwrap_or(comment.len())] {
                    "" => name,
                    text => text,
                }
            }
            None => name,
        };
        if self.records.len() as u64 >= MAX_NODES {
            return error(at, format!("more than {MAX_NODES} nodes"));
        }
        let Preamble {
            vendor,
            device,
            port_guid,
        } = std::mem::take(&mut self.preamble);
        let mut spec = if kind == NodeType::Switch {
            let guid = Guid::new(self.switches.take(1));
            let mut spec = NodeSpec::switch(guid, ports, description);
            spec.port_guids = vec![port_guid.unwrap_or(guid)];
            spec
        } else {
            let guid = self.adapters.take(u64::from(ports) + 1);
            let mut spec = NodeSpec::channel_adapter(Guid::new(guid), Guid::new(guid), "");
            // Unless the cables' lines say otherwise.
            spec.port_guids = (1..=u64::from(ports))
                .map(|port| Guid::new(guid.wrapping_add(port)))
                .collect();
            spec.ports = ports;
            spec
        };
        spec.description = NodeDescription::new(description);
        spec.vendor_id = vendor.unwrap_or(spec.vendor_id) & 0x00ff_ffff;
        spec.device_id = device.unwrap_or(spec.device_id);
        self.records.push(Record {
            name: name.to_owned(),
            id: NodeId(self.records.len() as u32),
            spec,
            ends: HashMap::new(),
        });
        Ok(())
    }

    /// `[1](guid) "remote"[2](guid) w=… # … 4xEDR`.
    fn cable(&mut self, line: &str, at: usize) -> Result<(), NetlistError> {
        let Some(record) = self.records.last_mut() else {
            return error(at, "a cable without a node");
        };
        let Some((port, rest)) = line[1..].split_once(']') else {
            return error(at, "no `]` after the port's number");
        };
        let port = number(port, at)?;
        let Some(port) = u8::try_from(port)
            .ok()
            .filter(|port| (1..=record.spec.ports).contains(port))
        else {
            let ports = record.spec.ports;
            return error(at, format!("port {port} of a node with {ports} ports"));
        };
        let Some((remote, tail)) = quoted(rest) else {
            return error(at, "no name of the other node in quotation marks");
        };
        if remote.contains('@') {
            return error(at, "aliases are not supported; name the node");
        }
        // A channel adapter's line gives the port's GUID.
        let own_guid = rest
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map(|(digits, _)| digits);
        if let Some(digits) = own_guid
            && record.spec.kind == NodeType::ChannelAdapter
        {
            let Ok(guid) = u64::from_str_radix(digits, 16) else {
                return error(at, format!("`{digits}` is no GUID"));
            };
            if let Some(place) = record.spec.port_guids.get_mut(usize::from(port) - 1) {
                *place = Guid::new(guid);
            }
        }
        let tail = tail.trim_start();
        let (remote_port, options) = match tail.strip_prefix('[') {
            Some(tail) => match tail.split_once(']') {
                Some((port, options)) => (number(port, at)?, options),
                None => return error(at, "no `]` after the other port's number"),
            },
            None => (1, tail),
        };
        let Ok(remote_port @ 1..=254) = u8::try_from(remote_port) else {
            return error(at, format!("port {remote_port}; ports are 1 to 254"));
        };
        let (options, comment) = options.split_once('#').unwrap_or((options, ""));
        let rate = comment.split_whitespace().next_back().and_then(rate_of);
        let mut abilities = rate.map_or(self.abilities, Abilities::from);
        for option in options.split_whitespace() {
            let Some((name, value)) = option.split_once('=') else {
                continue;
            };
            let value = u8::try_from(number(value, at)?).unwrap_or(u8::MAX);
            let known = name.chars().next().filter(|_| name.len() == 1);
            if !known.is_some_and(|name| abilities.set(name, value)) {
                return error(
                    at,
                    format!("`{option}`: the options are w=1 to 31, s=1 to 7, and e=0 to 15"),
                );
            }
        }
        let end = End {
            line: at,
            remote: remote.to_owned(),
            remote_port,
            abilities,
        };
        if record.ends.insert(port, end).is_some() {
            return error(at, format!("port {port} has a cable already"));
        }
        Ok(())
    }

    fn finish(self) -> Result<Topology, NetlistError> {
        if self.records.is_empty() {
            return Err(NetlistError::Empty);
        }
        let mut topology = Topology::new();
        let mut by_name = HashMap::new();
        for record in &self.records {
            topology.add(record.spec.clone());
            if by_name.insert(record.name.as_str(), record).is_some() {
                let line = record.ends.values().map(|end| end.line).min();
                let before = line.unwrap_or(1).saturating_sub(1);
                return error(before, format!("there are two nodes `{}`", record.name));
            }
        }
        for record in &self.records {
            let mut ports: Vec<_> = record.ends.iter().collect();
            ports.sort_by_key(|(port, _)| **port);
            for (&port, end) in ports {
                let there = &end.remote;
                let Some(remote) = by_name.get(there.as_str()) else {
                    return error(end.line, format!("there is no node `{there}`"));
                };
                let back = remote.ends.get(&end.remote_port);
                let returns =
                    back.filter(|back| back.remote == record.name && back.remote_port == port);
                let Some(back) = returns else {
                    return error(
                        end.line,
                        format!(
                            "`{there}` has no cable at port {} that leads back here; a cable \
                             stands at both its nodes",
                            end.remote_port
                        ),
                    );
                };
                let (a, b) = ((record.id, port), (remote.id, end.remote_port));
                // Each cable once.
                if a <= b {
                    let Some(rate) = end.abilities.with(back.abilities) else {
                        return error(end.line, "the ends have no width or speed in common");
                    };
                    topology.link(a, b, rate);
                }
            }
        }
        topology.check()?;
        Ok(topology)
    }
}
