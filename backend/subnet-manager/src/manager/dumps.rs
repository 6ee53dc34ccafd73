//! The subnet in files of OpenSM's forms, which other programs read.

use std::collections::BTreeMap;
use std::io::{self, Write};

use wire::attribute::{LinearBlock, MulticastBlock, NodeType, PortInfo};
use wire::{Guid, Lid, LinkSpeed, LinkSpeedExt, LinkWidth, PortState};

use super::SubnetManager;
use crate::config::node_names::NodeNames;
use crate::lids;
use crate::model::{At, Node, Port, Subnet};
use crate::routing::Graph;
use crate::sa::Paths;
use crate::tables::Tables;

/// Hops to where no way leads.
const NO_WAY: u8 = u8::MAX;

/// A file that OpenSM writes after a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// Nodes and cables.
    Subnet,
    /// Forwarding tables.
    Tables,
    /// Hops between switches.
    Hops,
    /// Forwarding tables with the hops of each path.
    Routes,
    /// Multicast forwarding tables.
    Multicast,
    /// Tables from service levels to lanes, where the manager has set any.
    Lanes,
}

impl Dump {
    /// All of them, with OpenSM's names for the files.
    pub const FILES: [(&'static str, Self); 6] = [
        ("opensm-subnet.lst", Self::Subnet),
        ("opensm-lfts.dump", Self::Tables),
        ("opensm-lid-matrix.dump", Self::Hops),
        ("opensm.fdbs", Self::Routes),
        ("opensm.mcfdbs", Self::Multicast),
        ("opensm-sl2vl.dump", Self::Lanes),
    ];

    /// Writes the file as the last sweep has it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(self, manager: &SubnetManager, out: &mut impl Write) -> io::Result<()> {
        let known = &manager.known;
        let view = View {
            subnet: known.before.as_ref().unwrap_or(&known.subnet),
            paths: &known.paths,
            names: &known.config.names,
        };
        match self {
            Self::Subnet => view.subnet(out),
            Self::Tables => view.tables(out),
            Self::Hops => view.hops(out),
            Self::Routes => view.routes(out),
            Self::Multicast => view.multicast(manager, out),
            Self::Lanes => view.lanes(&known.tables, out),
        }
    }
}

/// The subnet as the last sweep left it.
struct View<'a> {
    subnet: &'a Subnet,
    paths: &'a Paths,
    names: &'a NodeNames,
}

impl View<'_> {
    fn name(&self, node: &Node) -> String {
        self.names.name(node.info.node_guid, &node.description)
    }

    /// The ports that LIDs are of, in words.
    fn owners(&self) -> BTreeMap<Lid, String> {
        let mut owners = BTreeMap::new();
        for ((node, _), port) in self.subnet.ports() {
            let (Some(info), false) = (port.info, port.guid.is_none()) else {
                continue;
            };
            let node = &self.subnet.nodes[node];
            let own = lids::range(info.lid, info.lmc).map(|lid| (lid, port.guid));
            let virtual_ports = port.vports.values();
            let virtual_ports =
                virtual_ports.filter_map(|it| Some((it.own_lid()?, it.info.port_guid)));
            let all = own.chain(virtual_ports).filter(|(lid, _)| lid.is_unicast());
            let (kind, name) = (kind(node), self.name(node));
            let words = |guid: Guid| format!("{kind} portguid {guid:#}: '{name}'");
            owners.extend(all.map(|(lid, guid)| (lid, words(guid))));
        }
        owners
    }

    /// The switches with forwarding tables: the place in the graph, the node, and its LID.
    fn switches(&self) -> impl Iterator<Item = (usize, &Node, Lid)> {
        let nodes = self.paths.nodes.iter().enumerate();
        nodes.filter_map(|(at, &node)| {
            let node = self.subnet.nodes.get(node)?;
            let info = node.ports.get(&0)?.info?;
            (at < self.paths.tables.len()).then_some((at, node, info.lid))
        })
    }

    fn subnet(&self, out: &mut impl Write) -> io::Result<()> {
        let mut nodes: Vec<usize> = (0..self.subnet.nodes.len()).collect();
        nodes.sort_by_key(|&node| self.subnet.nodes[node].info.node_guid);
        for node in nodes {
            for (&number, port) in self.subnet.nodes[node].ports.range(1..) {
                let (Some(peer), Some(info)) = (port.peer, port.info) else {
                    continue;
                };
                // OpenSM writes the numbers of a neighbour longer.
                let own = self.end((node, number), 6, 4);
                let (own, other) = (own, self.end(peer, 8, 8));
                let (width, state, speed) = (width(&info), state(port), speed(&info));
                writeln!(out, "{own} {other} PHY={width} LOG={state} SPD={speed}")?;
            }
        }
        Ok(())
    }

    /// A port in braces.
    fn end(&self, (at, number): At, vendor_digits: usize, device_digits: usize) -> String {
        let node = &self.subnet.nodes[at];
        let info = &node.info;
        let kind = match info.node_type {
            NodeType::Switch => "SW",
            NodeType::Router => "Rt",
            NodeType::ChannelAdapter => "CA",
        };
        let end = if node.is_switch() { 0 } else { number };
        let end = node.ports.get(&end);
        let end_info = end.and_then(|end| end.info).unwrap_or_default();
        let manager = if end_info.lid == end_info.master_sm_lid {
            "-SM"
        } else {
            ""
        };
        let guid = end.map_or(info.port_guid, |end| end.guid);
        // Its four digits are followed by others there.
        let device = u32::from(info.device_id) << (4 * (device_digits - 4));
        let device = format!("{device:04X}");
        format!(
            "{{ {kind}{manager} Ports:{:02X} SystemGUID:{:016x} NodeGUID:{:016x} PortGUID:{:016x} \
             VenID:{:0vendor_digits$X} DevID:{device} Rev:{:08X} {{{}}} LID:{:04X} PN:{number:02X} }}",
            info.num_ports,
            info.system_image_guid.value(),
            info.node_guid.value(),
            guid.value(),
            info.vendor_id,
            info.revision,
            self.name(node),
            end_info.lid.value(),
        )
    }

    fn tables(&self, out: &mut impl Write) -> io::Result<()> {
        let owners = self.owners();
        let top = owners.keys().next_back().map_or(0, |lid| lid.value());
        for (at, node, lid) in self.switches() {
            let (guid, name) = (node.info.node_guid, self.name(node));
            writeln!(
                out,
                "Unicast lids [0-{top}] of switch Lid {lid} guid {guid:#} ('{name}'):"
            )?;
            for lid in (0..=top).map(Lid::new) {
                let port = self.paths.tables[at].port(lid);
                if port == LinearBlock::DROP {
                    continue;
                }
                let owner = owners.get(&lid);
                let owner = owner.map_or("unknown node and type", String::as_str);
                writeln!(out, "0x{:04x} {port:03} # {owner}", lid.value())?;
            }
            writeln!(out, "{top} lids dumped")?;
        }
        Ok(())
    }

    fn hops(&self, out: &mut impl Write) -> io::Result<()> {
        let hops = Hops::new(&self.paths.graph);
        let mut ends: Vec<(Lid, usize, &Node)> = self
            .switches()
            .map(|(at, node, lid)| (lid, at, node))
            .collect();
        ends.sort_unstable_by_key(|&(lid, ..)| lid);
        for (at, node, _) in self.switches() {
            writeln!(out, "Switch: guid {:#}", node.info.node_guid)?;
            for &(lid, to, end) in &ends {
                let of_ports = hops.by_port(at, to, node.info.num_ports);
                if of_ports[0] == NO_WAY {
                    continue;
                }
                write!(out, "0x{:04x}:", lid.value())?;
                for hops in of_ports {
                    write!(out, " {hops:02x}")?;
                }
                writeln!(out, " # portguid {:#}", end.info.port_guid)?;
            }
        }
        Ok(())
    }

    fn routes(&self, out: &mut impl Write) -> io::Result<()> {
        let hops = Hops::new(&self.paths.graph);
        let ends = self.paths.graph.endpoints.iter();
        let ends: BTreeMap<Lid, _> = ends.map(|end| (end.lid, end)).collect();
        let top = ends.keys().next_back().map_or(0, |lid| lid.value());
        for (at, node, _) in self.switches() {
            let guid = node.info.node_guid;
            writeln!(
                out,
                "dump_ucast_routes: Switch {guid:#}\nLID    : Port : Hops : Optimal"
            )?;
            for lid in (1..=top).map(Lid::new) {
                write!(out, "0x{:04X} : ", lid.value())?;
                let port = self.paths.tables[at].port(lid);
                let end = ends.get(&lid).filter(|_| port != LinearBlock::DROP);
                let Some(end) = end else {
                    writeln!(out, "UNREACHABLE")?;
                    continue;
                };
                // An adapter is a hop further than its switch, which its port leads to at once.
                let last = u8::from(end.port != 0);
                let by_port = hops.by_port(at, end.switch, node.info.num_ports);
                let of_port = by_port.get(usize::from(port)).copied();
                let own = if end.switch == at { Some(0) } else { of_port };
                let own = own.unwrap_or(NO_WAY);
                if own == NO_WAY {
                    writeln!(out, "{port:03}  : HOPS UNKNOWN")?;
                    continue;
                }
                let (own, best) = (own.saturating_add(last), by_port[0].saturating_add(last));
                write!(out, "{port:03}  : {own:02}   : ")?;
                if own == best {
                    writeln!(out, "yes")?;
                } else {
                    let better = by_port.iter().skip(1).position(|&hops| hops == by_port[0]);
                    let better = better.map_or(0, |at| at + 1);
                    writeln!(out, "No {best} hop path possible via port {better}!")?;
                }
            }
        }
        Ok(())
    }

    fn lanes(&self, tables: &Tables, out: &mut impl Write) -> io::Result<()> {
        let mut nodes: Vec<&Node> = self.subnet.nodes.iter().collect();
        nodes.sort_by_key(|node| node.info.node_guid);
        for node in nodes {
            let guid = node.info.node_guid;
            let linked = |number| node.ports[&number].as_ref();
            let linked =
                { node.ports.range(1..) }.filter(|&(&number, _)| linked(number).is_linked());
            let linked: Vec<u8> = linked.map(|(&number, _)| number).collect();
            // A switch has a block, an adapter one for each port.
            let blocks: Vec<(u8, Vec<(u8, u8)>)> = if node.is_switch() {
                let ins = 0..=node.info.num_ports;
                let pairs = linked
                    .iter()
                    .flat_map(|&to| ins.clone().map(move |from| (from, to)));
                vec![(0, pairs.collect())]
            } else {
                linked.iter().map(|&port| (port, vec![(0, 0)])).collect()
            };
            for (end, pairs) in blocks {
                let known = pairs.into_iter().filter_map(|(from, to)| {
                    let place = if node.is_switch() {
                        (from, to)
                    } else {
                        (0, end)
                    };
                    Some((from, to, tables.lanes(guid, node.is_switch(), place)?))
                });
                let known: Vec<_> = known.collect();
                let Some(info) = node.ports.get(&end).and_then(|port| port.info) else {
                    continue;
                };
                if known.is_empty() {
                    continue;
                }
                let (kind, port, name) = (kind(node), node.ports[&end].guid, self.name(node));
                writeln!(out, "{kind} {port:#}, base LID {}, \"{name}\"", info.lid)?;
                write!(out, "#in out :")?;
                for level in 0..16 {
                    write!(out, " {level:<2}")?;
                }
                writeln!(out, "\n{RULE}")?;
                for (from, to, table) in known {
                    write!(out, "{from:<3} {to:<3} :")?;
                    for lane in table.0 {
                        write!(out, " {:<2}", lane.value())?;
                    }
                    writeln!(out)?;
                }
                writeln!(out, "{RULE}\n")?;
            }
        }
        Ok(())
    }

    fn multicast(&self, manager: &SubnetManager, out: &mut impl Write) -> io::Result<()> {
        for (_, node, _) in self.switches() {
            let mut ports: BTreeMap<Lid, Vec<u16>> = BTreeMap::new();
            let switch = node.info.node_guid;
            for (&(block, position), held) in manager.administration.multicast_tables(switch) {
                let first = Lid::MULTICAST_FIRST.value() + block * MulticastBlock::LIDS;
                for (lid, mask) in (first..).zip(held.0).filter(|(_, mask)| *mask != 0) {
                    let first = u16::from(position * MulticastBlock::PORTS);
                    let set = (0..16).filter(|bit| mask >> bit & 1 == 1);
                    let ports = ports.entry(Lid::new(lid)).or_default();
                    ports.extend(set.map(|bit| first + bit));
                }
            }
            if !ports.is_empty() {
                writeln!(out, "\nSwitch {switch:#}\nLID    : Out Port(s)")?;
            }
            for (lid, mut ports) in ports {
                ports.sort_unstable();
                write!(out, "0x{:04X} :", lid.value())?;
                for port in ports {
                    write!(out, " 0x{port:03X} ")?;
                }
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

/// A line of OpenSM's between tables.
const RULE: &str = "#--------------------------------------------------------";

/// Hops between the switches of a graph.
struct Hops<'a> {
    graph: &'a Graph,
    /// By destination and source.
    distances: Vec<Vec<Option<u32>>>,
}

impl<'a> Hops<'a> {
    fn new(graph: &'a Graph) -> Self {
        let switches = 0..graph.switches.len();
        Self {
            graph,
            distances: switches.map(|to| graph.distances(to)).collect(),
        }
    }

    /// Hops to a switch by each port of another one; by port 0, the fewest.
    fn by_port(&self, from: usize, to: usize, ports: u8) -> Vec<u8> {
        let hops = |from: usize, more: u32| {
            let hops = self.distances[to][from].map(|hops| hops + more);
            hops.map_or(NO_WAY, |hops| u8::try_from(hops).unwrap_or(NO_WAY))
        };
        let mut by_port = vec![NO_WAY; usize::from(ports) + 1];
        by_port[0] = hops(from, 0);
        for trunk in &self.graph.switches[from].trunks {
            if let Some(entry) = by_port.get_mut(usize::from(trunk.port)) {
                *entry = hops(trunk.to, 1);
            }
        }
        by_port
    }
}

fn kind(node: &Node) -> &'static str {
    match node.info.node_type {
        NodeType::ChannelAdapter => "Channel Adapter",
        NodeType::Switch => "Switch",
        NodeType::Router => "Router",
    }
}

fn width(info: &PortInfo) -> &'static str {
    match info.active_width() {
        Some(LinkWidth::X1) => "1x",
        Some(LinkWidth::X2) => "2x",
        Some(LinkWidth::X4) => "4x",
        Some(LinkWidth::X8) => "8x",
        Some(LinkWidth::X12) => "12x",
        None => "??",
    }
}

fn state(port: &Port) -> &'static str {
    match port.state() {
        PortState::Active => "ACT",
        PortState::Armed => "ARM",
        PortState::Initialize => "INI",
        _ => "DWN",
    }
}

/// Gb/s of a lane. OpenSM has none for NDR and XDR.
fn speed(info: &PortInfo) -> &'static str {
    match (info.active_speed_ext(), info.active_speed()) {
        (Some(LinkSpeedExt::Fdr), _) => "14",
        (Some(LinkSpeedExt::Edr), _) => "25",
        (Some(LinkSpeedExt::Hdr), _) => "50",
        (Some(LinkSpeedExt::Ndr), _) => "100",
        (Some(LinkSpeedExt::Xdr), _) => "200",
        (_, Some(LinkSpeed::Sdr)) => "2.5",
        (_, Some(LinkSpeed::Ddr)) => "5",
        (_, Some(LinkSpeed::Qdr)) => "10",
        _ => "??",
    }
}
