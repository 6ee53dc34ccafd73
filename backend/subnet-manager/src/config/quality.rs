//! Quality of service: which lanes service levels take and how lanes share a link, by the options
//! that OpenSM has for it.

use wire::attribute::{NodeType, PortInfo, SlToVl, VlArbitration, VlWeight};
use wire::{Sl, Vl};

use crate::config::partitions::{MISTAKES, Mistake};

/// An option that cannot be what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QualityError(String);

/// Kind of a port, by which OpenSM's options tell ports apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortKind {
    /// A channel adapter's.
    Adapter,
    /// An enhanced port 0 of a switch.
    SwitchItself,
    /// A switch's others.
    SwitchExternal,
    /// A router's.
    Router,
}

impl PortKind {
    /// All kinds with their names in options, as in `qos_ca_max_vls`.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("ca", Self::Adapter),
        ("sw0", Self::SwitchItself),
        ("swe", Self::SwitchExternal),
        ("rtr", Self::Router),
    ];

    /// The kind of a port of a node.
    pub(crate) fn of(node: NodeType, port: u8) -> Self {
        match node {
            NodeType::Switch if port == 0 => Self::SwitchItself,
            NodeType::Switch => Self::SwitchExternal,
            NodeType::Router => Self::Router,
            _ => Self::Adapter,
        }
    }
}

/// Options for one kind of ports; what it leaves out is as for all ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortQuality {
    /// The most data lanes.
    pub max_lanes: Option<u8>,
    /// Lanes of service levels.
    pub sl_to_vl: Option<SlToVl>,
    /// Arbitration of lanes.
    pub arbitration: Option<Arbitration>,
}

/// The tables that all ports are given for arbitration between their lanes (IBA 7.6.9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arbitration {
    /// The high-priority table; ports take as many entries as they have room for.
    pub high: Vec<VlWeight>,
    /// The low-priority table.
    pub low: Vec<VlWeight>,
    /// Limit of high-priority data before a low-priority packet has its turn: this many times 4096 bytes; 0 one
    /// packet, 255 any number.
    pub high_limit: u8,
}

impl Arbitration {
    /// Reads OpenSM's options `qos_high_limit`, `qos_vlarb_high` and `qos_vlarb_low`: lists of lanes
    /// with weights in units of 64 bytes, as in `0:4,1:64`.
    ///
    /// # Errors
    /// What is wrong with the first wrong entry.
    pub fn parse(high_limit: u8, high: &str, low: &str) -> Result<Self, QualityError> {
        Ok(Self {
            high: weights(high)?,
            low: weights(low)?,
            high_limit,
        })
    }

    /// The blocks of the tables for a port: blocks of 32 entries by number, 1 and 2 of the low-priority table and 3
    /// and 4 of the other one (IBA 14.2.5.9).
    pub(crate) fn blocks(&self, port: &PortInfo) -> impl Iterator<Item = (u8, VlArbitration)> {
        let low = Self::halves(&self.low, port.vl_arbitration_low_cap);
        let high = Self::halves(&self.high, port.vl_arbitration_high_cap);
        (1..).zip(low).chain((3..).zip(high))
    }

    /// The first `room` entries of a table as a port takes them, in halves of 32.
    fn halves(entries: &[VlWeight], room: u8) -> Vec<VlArbitration> {
        let room = usize::from(room);
        let mut halves = Vec::new();
        for first in (0..room.min(2 * VlArbitration::ENTRIES)).step_by(VlArbitration::ENTRIES) {
            let mut half = VlArbitration::default();
            let own = entries.iter().take(room).skip(first);
            for (entry, weight) in half.0.iter_mut().zip(own) {
                *entry = *weight;
            }
            halves.push(half);
        }
        halves
    }
}

fn weights(text: &str) -> Result<Vec<VlWeight>, QualityError> {
    let entries = text.split(',').map(str::trim);
    let entries: Vec<VlWeight> = entries
        .filter(|entry| !entry.is_empty())
        .map(|entry| {
            weight(entry).ok_or_else(|| {
                QualityError(format!(
                    "{entry} is no lane with a weight; write 0:0 to 14:255, as in 0:4,1:64"
                ))
            })
        })
        .collect::<Result<_, _>>()?;
    match entries.len() {
        0..=64 => Ok(entries),
        many => Err(QualityError(format!("{many} entries; a table has 64"))),
    }
}

fn weight(entry: &str) -> Option<VlWeight> {
    let (vl, weight) = entry.split_once(':')?;
    let vl = vl.trim().parse().ok().filter(|vl| *vl <= 14)?;
    let weight = weight.trim().parse().ok()?;
    Some(VlWeight {
        vl: Vl::new(vl),
        weight,
    })
}

/// Reads OpenSM's option `qos_sl2vl`: the lanes of the service levels from 0 to 15, 15 to drop.
///
/// # Errors
/// What is wrong.
pub fn parse_lanes(text: &str) -> Result<SlToVl, QualityError> {
    let wrong = || {
        QualityError(format!(
            "{text}: write 16 lanes from 0 to 15, as in 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,7"
        ))
    };
    let lanes: Option<Vec<Vl>> = text
        .split(',')
        .map(|lane| lane.trim().parse().ok().filter(|vl| *vl <= 15).map(Vl::new))
        .collect();
    let lanes: [Vl; 16] = lanes
        .and_then(|lanes| lanes.try_into().ok())
        .ok_or_else(wrong)?;
    Ok(SlToVl(lanes))
}

/// Mistakes of a file that gives paths these service levels, by line. Where a routing engine chooses the levels, `chooser`
/// names it and has the bits of a level that it leaves to others. `tables` are those of all kinds of ports.
pub fn check_levels(
    levels: impl Iterator<Item = (usize, Sl)>,
    chooser: Option<(&str, u8)>,
    tables: &[SlToVl],
) -> Vec<Mistake> {
    let is_dropped = |level: Sl| {
        let mut lanes = tables
            .iter()
            .map(|table| table.0[usize::from(level.value())]);
        lanes.any(|lane| lane == Vl::new(15))
    };
    let mistakes = levels.filter_map(|(line, level)| {
        let what = match chooser {
            Some((chooser, free)) if level.value() & !free != 0 => {
                let class = if free == 0 { String::new() } else { format!(" or {free}") };
                format!(
                    "sl={}: {chooser} chooses the service levels of paths; write 0{class}, or another routing engine",
                    level.value()
                )
            }
            None if is_dropped(level) => format!(
                "sl={}: qos_sl2vl has lane 15 for this level, which drops its packets; write another level, or lane",
                level.value()
            ),
            _ => return None,
        };
        let unknown = None;
        Some(Mistake { line, what, unknown })
    });
    mistakes.take(MISTAKES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OpenSM's own defaults, OSM_DEFAULT_QOS_* of osm_base.h in OpenSM 3.3.23.
    #[test]
    fn the_options_of_opensm() {
        let high = "0:4,1:0,2:0,3:0,4:0,5:0,6:0,7:0,8:0,9:0,10:0,11:0,12:0,13:0,14:0";
        let low = "0:0,1:4,2:4,3:4,4:4,5:4,6:4,7:4,8:4,9:4,10:4,11:4,12:4,13:4,14:4";
        let arbitration = Arbitration::parse(0, high, low).unwrap();
        assert_eq!((arbitration.high.len(), arbitration.low.len()), (15, 15));
        assert_eq!(arbitration.high[0].weight, 4);
        assert_eq!(
            (arbitration.low[14].vl, arbitration.low[14].weight),
            (Vl::new(14), 4)
        );
        let halves = Arbitration::halves(&arbitration.low, 8);
        assert_eq!(halves.len(), 1);
        assert_eq!(halves[0].0[7].vl, Vl::new(7));
        assert_eq!(halves[0].0[8], VlWeight::default());
        assert_eq!(Arbitration::halves(&arbitration.low, 64).len(), 2);
        let lanes = parse_lanes("0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,7").unwrap();
        assert_eq!(lanes.0[15], Vl::new(7));
    }

    #[test]
    fn mistakes() {
        for text in ["0", "15:1", "0:256", "a:b", "0:1;1:2"] {
            assert!(Arbitration::parse(0, text, "").is_err(), "{text}");
        }
        assert!(Arbitration::parse(0, &"0:1,".repeat(65), "").is_err());
        for text in ["", "0,1", "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,16"] {
            assert!(parse_lanes(text).is_err(), "{text}");
        }
    }
}
