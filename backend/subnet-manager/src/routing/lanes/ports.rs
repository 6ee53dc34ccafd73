//! Lanes that depend on the ports by which a packet enters a switch and leaves it.

use wire::Sl;
use wire::attribute::SlToVl;

/// Tables from service levels to lanes for each pair of ports of each switch: by classes of ports, so that there are a few
/// tables for a subnet, and a byte for a port.
///
/// Class 0 has the ports of adapters, the switches' own ports, and whatever is none of the topology's cables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortLanes {
    /// By switch, then by port: the class.
    classes: Vec<Box<[u8]>>,
    /// By the class of the port to come in by, then by that of the port to leave by.
    tables: Vec<SlToVl>,
    /// Number of classes.
    count: usize,
    lanes: u8,
}

impl PortLanes {
    /// `classes` by switch and port, as many as `count`, and the table from one class to another, with lanes below `lanes`.
    pub(in crate::routing) fn new(
        classes: Vec<Box<[u8]>>,
        count: u8,
        lanes: u8,
        table: impl Fn(u8, u8) -> SlToVl,
    ) -> Self {
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        Self {
            classes,
            tables: pairs.map(|(from, to)| table(from, to)).collect(),
            count: count.into(),
            lanes,
        }
    }

    /// The same for a graph that has only these switches, by their index.
    pub(super) fn of_switches(&self, switches: &[usize]) -> Self {
        let classes = switches.iter().map(|&switch| self.classes.get(switch));
        Self {
            classes: classes.map(|of| of.cloned().unwrap_or_default()).collect(),
            tables: self.tables.clone(),
            ..*self
        }
    }

    /// Data lanes in use.
    pub(crate) fn lanes(&self) -> u8 {
        self.lanes
    }

    /// Number of classes of ports.
    pub(in crate::routing) fn classes(&self) -> usize {
        self.count
    }

    /// The class of a port of a switch.
    pub(in crate::routing) fn class(&self, switch: usize, port: u8) -> usize {
        let of_switch = self.classes.get(switch);
        let class = of_switch.and_then(|classes| classes.get(usize::from(port)));
        class.copied().unwrap_or_default().into()
    }

    /// The lane from one class of ports to another.
    pub(in crate::routing) fn lane(&self, from: usize, to: usize, level: u8) -> u8 {
        self.tables[from * self.count + to]
            .lane(Sl::new(level))
            .value()
    }

    /// The table of a switch from one port to another.
    pub(crate) fn table(&self, switch: usize, from: u8, to: u8) -> SlToVl {
        self.tables[self.class(switch, from) * self.count + self.class(switch, to)]
    }

    /// The table of adapters.
    pub(crate) fn of_adapters(&self) -> SlToVl {
        self.tables[0]
    }
}
