//! The switches of a configuration and the cables between them.

use std::collections::BTreeSet;

use fabric::{Listing, NetlistError, NodeId, PortRef, Topology};
use vswitch::{near, node_named};
use wire::Guid;
use wire::attribute::NodeType;

use super::document::{Entry, Section, Seen, at_most};
use super::placement::{SWITCH_PORTS_MAX, leaves};
use super::read::Reader;
use super::{FileNodes, ManagerHost, Subnet, Switch, Wiring, keys};

/// Switches that a configuration may list; a file may have more.
const SWITCHES_MAX: usize = 1024;
/// The switch where none is named.
const DEFAULT: &str = "sw1";

impl<'d> Reader<'d> {
    pub(super) fn wiring(
        &mut self,
        root: &Section<'d>,
        fabric: &Section<'d>,
        sm: &Section<'d>,
        subnets: &mut [Subnet],
    ) -> Wiring {
        let several = subnets.iter().any(|subnet| subnet.name.is_some());
        let file = fabric.text("topology");
        let single = fabric.text("switch");
        let switches = root.sections("switch", keys::SWITCH);
        let links = root.sections("link", keys::LINK);
        let sm_switch = sm.text("switch");
        let sm_host = sm.text("host");
        if let Some(file) = file {
            let others = [single.as_ref(), sm_switch.as_ref()];
            for other in others.into_iter().flatten() {
                other.reject(
                    "the nodes are those of `fabric.topology`",
                    "remove this key; `sm.host` says which of them the subnet manager's host is",
                );
            }
            let others = ["subnet", "router"].map(|key| root.sections(key, &[]));
            for section in switches.iter().chain(&links).chain(others.iter().flatten()) {
                section.reject(
                    "name",
                    "the nodes are those of `fabric.topology`",
                    "remove this table, or the key `fabric.topology`",
                );
            }
            let wiring = self.file(
                &file,
                sm_host.as_ref(),
                &mut subnets[0].manager,
                sm.value("lid").is_some(),
            );
            self.nodes_unknown = wiring.file.is_none();
            return wiring;
        }
        if let Some(host) = sm_host {
            host.reject(
                "there is no file of nodes",
                "remove this key, or name the file in `fabric.topology`",
            );
        }
        if let (Some(single), false) = (&single, switches.is_empty()) {
            single.reject(
                "there are tables [[switch]]",
                "remove this key; the first of them takes its place",
            );
        }
        let mut wiring = Wiring {
            switches: Vec::new(),
            cables: Vec::new(),
            routers: Vec::new(),
            file: None,
        };
        let remedy = format!(
            "a configuration lists at most {SWITCHES_MAX}; write a file of them, and name it in \
             `fabric.topology`"
        );
        at_most(SWITCHES_MAX, &switches, "switches", remedy);
        let mut seen = Seen::new();
        for section in &switches {
            let Some(name) = section.name(&mut seen, "switch") else {
                continue;
            };
            let extended_lids = section.flag("extended_lids").unwrap_or(true);
            let subnet = self.subnet_of(section, subnets);
            self.add_switch(&mut wiring, name.value, subnet, extended_lids);
        }
        if switches.is_empty() {
            let name = single.map_or(DEFAULT, |entry| {
                entry.check_name();
                entry.value
            });
            self.add_switch(&mut wiring, name, 0, true);
        }
        for section in &links {
            let ends = ["from", "to"].map(|key| {
                let entry = section.required_text(key)?;
                let switch = self.switch_named(&entry, &wiring);
                Some((switch, entry))
            });
            let count = section.integer("count", "write how many cables there are, from 1 to 127");
            let [Some((from, _)), Some((to, entry))] = ends else {
                continue;
            };
            let subnet_of = |switch: usize| wiring.switches[switch].subnet;
            if subnet_of(from) != subnet_of(to) {
                entry.reject(
                    "the two switches are in different subnets",
                    "join the subnets by a table [[router]] with a switch of each",
                );
            }
            let count = count.map_or(1, |count| count.value as usize);
            wiring.cables.extend(std::iter::repeat_n((from, to), count));
        }
        match sm_switch {
            Some(entry) if several => entry.reject(
                "there are tables [[subnet]]",
                "remove this key; `sm_switch` in each of them says where its manager is",
            ),
            Some(entry) => subnets[0].manager.switch = self.switch_named(&entry, &wiring),
            None => subnets[0].manager.switch = self.leaf(root, &wiring, 0).unwrap_or(0),
        }
        self.join_subnets(root, &mut wiring, subnets);
        let mut used = vec![0; wiring.switches.len()];
        for switch in wiring.ends(subnets) {
            used[switch] += 1;
        }
        for (switch, used) in wiring.switches.iter().zip(used) {
            if used > SWITCH_PORTS_MAX {
                self.document.reject_whole(
                    "link",
                    format!("{used} cables at the switch `{}`", switch.name),
                    format!("a switch has at most {SWITCH_PORTS_MAX} ports"),
                );
            }
        }
        wiring
    }

    fn add_switch(&mut self, wiring: &mut Wiring, name: &str, subnet: usize, extended_lids: bool) {
        let guid = self.derived("switch", name);
        let name = name.to_owned();
        wiring.switches.push(Switch {
            name,
            guid,
            subnet,
            extended_lids,
        });
    }

    /// The place of the switch that `entry` names.
    pub(super) fn switch_named(&self, entry: &Entry<'d, &str>, wiring: &Wiring) -> usize {
        let guid = entry.value.parse().ok();
        let mut switches = wiring.switches.iter();
        let found =
            switches.position(|switch| switch.name == entry.value || guid == Some(switch.guid));
        if found.is_none() && !self.nodes_unknown {
            let known: Vec<&str> = { wiring.switches.iter() }
                .map(|switch| switch.name.as_str())
                .collect();
            entry.reject(
                "there is no switch of this name",
                near(entry.value, &known, "name one of them, or add it"),
            );
        }
        found.unwrap_or(0)
    }

    /// Where the manager of a subnet is that has not been told: on the first switch with a hypervisor,
    /// which in a tree is a leaf, or else on the first switch.
    pub(super) fn leaf(&self, root: &Section<'d>, wiring: &Wiring, subnet: usize) -> Option<usize> {
        // Mistakes in these are reported where the hypervisors are read.
        let hypervisors = root
            .value("hypervisor")
            .and_then(|list| list.value.as_array());
        let at = |name: &str| {
            let mut switches = wiring.switches.iter();
            switches.position(|switch| switch.name == name)
        };
        let leaves = leaves(wiring);
        let tables = hypervisors.into_iter().flatten();
        let used: BTreeSet<usize> = tables
            .filter_map(|hypervisor| hypervisor.get_ref().as_table())
            .filter_map(|hypervisor| match hypervisor.get("switch") {
                Some(name) => name.get_ref().as_str().and_then(at),
                None => leaves.first().copied(),
            })
            .collect();
        let mut here =
            { 0..wiring.switches.len() }.filter(|&at| wiring.switches[at].subnet == subnet);
        let first = here.clone().next();
        here.find(|at| used.contains(at)).or(first)
    }

    fn file(
        &mut self,
        entry: &Entry<'d, &str>,
        host: Option<&Entry<'d, &str>>,
        manager: &mut ManagerHost,
        has_lid: bool,
    ) -> Wiring {
        let mut wiring = Wiring {
            switches: vec![Switch {
                name: DEFAULT.to_owned(),
                guid: Guid::new(1),
                subnet: 0,
                extended_lids: true,
            }],
            cables: Vec::new(),
            routers: Vec::new(),
            file: None,
        };
        let path = self.document.path(entry.value);
        self.names.files.push(path.clone());
        let Listing {
            topology,
            notices,
            included,
        } = match Listing::open(&path) {
            Ok(listing) => listing,
            Err(error) => {
                let remedy = match &error {
                    NetlistError::Unreadable(_) => {
                        "name a file in the form that `ibnetdiscover` prints"
                    }
                    _ => "correct the file",
                };
                entry.reject(format!("{}: {error}", path.display()), remedy);
                return wiring;
            }
        };
        self.names.files.extend(included);
        let said = notices.iter();
        self.warnings
            .extend(said.map(|notice| format!("{}: {notice}", path.display())));
        let names = names(&topology);
        for (spec, name) in topology.nodes().iter().zip(&names) {
            for &guid in [spec.guid].iter().chain(&spec.port_guids) {
                let owner = format!("the node `{name}` in {}", path.display());
                self.names.guids.insert(guid.into(), owner);
            }
        }
        let of = |kind| {
            let nodes = topology.nodes().iter().zip(topology.ids()).zip(&names);
            nodes
                .filter(move |((spec, _), _)| spec.kind == kind)
                .map(|((spec, id), name)| (spec, id, name))
        };
        let adapters = || of(NodeType::ChannelAdapter);
        let cables = |id: NodeId| {
            let links = topology.links().iter().flat_map(|&(a, b, _)| [a, b]);
            links.filter(move |end| end.node == id).map(|end| end.port)
        };
        let cabled = |id: NodeId| cables(id).min();
        let port = match host {
            Some(entry) => match node_named(&topology, &names, entry.value) {
                Ok(id) => {
                    let spec = &topology.nodes()[id.index()];
                    // The GUID of a port is that port, unless it is the node's, too.
                    let guid = entry.value.parse().ok().filter(|&guid| guid != spec.guid);
                    let own = spec.port_guids.iter().zip(1..);
                    let named = { own }.find_map(|(&it, port)| (guid == Some(it)).then_some(port));
                    let port = cables(id)
                        .filter(|&port| named.is_none_or(|it| it == port))
                        .min();
                    if spec.kind != NodeType::ChannelAdapter || spec.is_aggregation_node() {
                        entry.reject(
                            "this node runs no programs",
                            "name a channel adapter that is no aggregation node",
                        );
                    } else if port.is_none() {
                        let what = match cabled(id) {
                            Some(_) => "this port of the adapter has no cable",
                            None => "no port of this adapter has a cable",
                        };
                        entry.reject(what, "name one with a cable, or lay one in the file");
                    }
                    port.map(|port| (id, port))
                }
                Err(error) => {
                    let error = error.to_string();
                    let (what, remedy) = error.split_once("; ").unwrap_or((&error, "name one"));
                    entry.reject(what, remedy.replace("`ibvswitch topology`", "the file"));
                    None
                }
            },
            None => {
                let ordinary = adapters().filter(|(spec, _, _)| !spec.is_aggregation_node());
                let first = ordinary
                    .filter_map(|(_, id, _)| Some((id, cabled(id)?)))
                    .next();
                if first.is_none() {
                    entry.reject(
                        "no channel adapter with a cable is in the file",
                        "add one: it is the subnet manager's host",
                    );
                }
                first
            }
        };
        let Some((id, port)) = port else {
            return wiring;
        };
        let spec = &topology.nodes()[id.index()];
        let place = usize::from(port) - 1;
        manager.guid = spec.port_guids[place];
        if let (Some(&lid), false) = (spec.lids.get(place).filter(|lid| lid.is_unicast()), has_lid)
        {
            self.move_manager_lid(manager.lid, lid);
            manager.lid = lid;
        }
        let switches = || of(NodeType::Switch);
        if switches().next().is_none() {
            entry.reject(
                "no switch is in the file",
                "add one: hypervisors are at the ports of switches",
            );
            return wiring;
        }
        wiring.switches = switches()
            .map(|(spec, _, name)| Switch {
                name: name.clone(),
                guid: spec.guid,
                subnet: 0,
                extended_lids: true,
            })
            .collect();
        let switches = switches().map(|(_, id, _)| id).collect();
        wiring.file = Some(FileNodes {
            switches,
            manager: PortRef { node: id, port },
            names,
            topology,
        });
        wiring
    }
}

/// A name for each node: its text, or where that is empty or another's too, its GUID.
fn names(topology: &Topology) -> Vec<String> {
    let mut times = std::collections::HashMap::new();
    for spec in topology.nodes() {
        *times.entry(spec.description.to_string()).or_insert(0) += 1;
    }
    let name = |spec: &fabric::NodeSpec| {
        let text = spec.description.to_string();
        if text.is_empty() || times[&text] > 1 {
            spec.guid.to_string()
        } else {
            text
        }
    };
    topology.nodes().iter().map(name).collect()
}
