//! Lines of OpenSM's opensm-subnet.lst: each has a port and its neighbour, so that a cable has two.
//!
//! ```text
//! { CA Ports:02 SystemGUID:… NodeGUID:… PortGUID:… VenID:0002C9 DevID:1003 Rev:000000A1 {text} LID:0005 PN:01 } { SW … } PHY=4x LOG=ACT SPD=25
//! ```

use wire::Guid;
use wire::attribute::NodeType;

use super::error::{NetlistError, Place, error};
use super::notices::Loss;
use super::read::Reader;

/// Speeds as OpenSM has them, in Gbit/s, and as `ibnetdiscover` names them.
const SPEEDS: [(&str, &str); 9] = [
    ("2.5", "SDR"),
    ("5", "DDR"),
    ("10", "QDR"),
    ("FDR10", "FDR10"),
    ("14", "FDR"),
    ("25", "EDR"),
    ("50", "HDR"),
    ("100", "NDR"),
    ("200", "XDR"),
];

/// A port in braces.
#[derive(Debug)]
struct Port<'t> {
    kind: NodeType,
    ports: u8,
    system: Guid,
    node: Guid,
    guid: Guid,
    vendor: u32,
    device: u16,
    text: &'t str,
    lid: u16,
    number: u8,
}

impl<'t> Port<'t> {
    /// The port that a line begins with, and what follows.
    fn parse(line: &'t str) -> Option<(Self, &'t str)> {
        let (fields, rest) = line.trim_start().strip_prefix("{ ")?.split_once(" {")?;
        // A text may have braces.
        let mut ends = rest.match_indices("} LID:");
        let (text, lid, number, rest) = ends.find_map(|(end, mark)| {
            let (numbers, after) = rest[end + mark.len()..].split_once(" }")?;
            let (lid, number) = numbers.split_once(" PN:")?;
            let lid = u16::from_str_radix(lid, 16).ok()?;
            let number = u8::from_str_radix(number, 16).ok()?;
            Some((&rest[..end], lid, number, after))
        })?;
        let field = |key: &str| fields.split(' ').find_map(|field| field.strip_prefix(key));
        let hex = |key: &str| u32::from_str_radix(field(key)?, 16).ok();
        let guid = |key: &str| field(key)?.parse::<Guid>().ok();
        let kind = match fields.split([' ', '-']).next()? {
            "SW" => NodeType::Switch,
            "CA" => NodeType::ChannelAdapter,
            "Rt" => NodeType::Router,
            _ => return None,
        };
        let port = Self {
            kind,
            ports: hex("Ports:")?.try_into().ok()?,
            system: guid("SystemGUID:")?,
            node: guid("NodeGUID:")?,
            guid: guid("PortGUID:")?,
            vendor: hex("VenID:")?,
            // OpenSM writes the neighbour's with four digits behind, `ibdiagnet` also the port's own.
            device: match hex("DevID:")? {
                long @ 0x1_0000.. => (long >> 16) as u16,
                device => device as u16,
            },
            text,
            lid,
            number,
        };
        Some((port, rest))
    }

    /// The name that `ibnetdiscover` gives the node.
    fn name(&self) -> String {
        let letter = match self.kind {
            NodeType::Switch => 'S',
            NodeType::ChannelAdapter => 'H',
            NodeType::Router => 'R',
        };
        format!("{letter}-{:016x}", self.node.value())
    }
}

impl Reader {
    /// Reads a line as those that `ibnetdiscover` has for the same cable, and for its node before the first.
    pub(super) fn opensm_line(&mut self, line: &str, at: &Place) -> Result<(), NetlistError> {
        let parse = || {
            let (own, rest) = Port::parse(line)?;
            let (other, rest) = Port::parse(rest)?;
            let field = |key: &str| {
                let mut fields = rest.split_whitespace();
                fields.find_map(|field| field.strip_prefix(key))
            };
            Some((own, other, field("PHY=")?, field("SPD=")?))
        };
        let Some((own, other, width, speed)) = parse() else {
            return error(
                at,
                "no line of opensm-subnet.lst, which has two ports in braces, PHY= and SPD=; copy the \
                 file as OpenSM wrote it",
            );
        };
        let name = own.name();
        if self.records.last().is_none_or(|record| record.name != name) {
            let port_guid = Some(own.guid).filter(|_| own.kind == NodeType::Switch);
            self.set_identity(own.vendor, own.device, own.system, port_guid);
            let text = format!(
                "{} \"{name}\" # \"{}\" lid {} lmc 0",
                own.ports, own.text, own.lid
            );
            self.node(own.kind, &text, at)?;
            self.notices.add(Loss::Revision, at, || {
                "revisions of devices (`Rev:`) are not kept".to_owned()
            });
        }
        let known = SPEEDS.iter().find(|(number, _)| *number == speed);
        let speed = known.map_or("???", |&(_, name)| name);
        let cable = format!(
            "{}]({:x}) \"{}\"[{}]({:x}) # lid {} lmc 0 \"\" {width}{speed}",
            own.number,
            own.guid.value(),
            other.name(),
            other.number,
            other.guid.value(),
            own.lid,
        );
        self.cable(&cable, false, at)
    }
}
