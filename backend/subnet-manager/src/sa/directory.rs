//! The subnet as the last sweep left it, arranged for those who ask about it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wire::attribute::{
    NodeDescription, NodeInfo, NodeType, PKeyBlock, PortInfo, SwitchInfo, VNodeInfo,
};
use wire::sa::Rate;
use wire::{Gid, Guid, Lid, LinkSpeed, LinkSpeedExt, LinkWidth, PKey, PortState};

use super::View;
use super::aliases::{Aliases, GuidTable};
use crate::config::partitions::Candidate;
use crate::lids;
use crate::model::{self, At, VPort};
use crate::routing::ForwardingTable;

/// A port, as an index of [`Directory::ports`].
pub(super) type PortIndex = u32;

const NONE: u32 = u32::MAX;
/// Links on a path: more means that forwarding tables make a circle.
const HOPS: usize = 64;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    pub(super) description: NodeDescription,
    pub(super) switch: Option<SwitchInfo>,
    /// Ports by number; of an adapter only those that the sweep came by.
    ports: Vec<u32>,
    /// Index of the switch in the graph, and of its forwarding table.
    vertex: Option<usize>,
}

impl Node {
    pub(super) fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::Switch
    }

    pub(super) fn port(&self, number: u8) -> Option<PortIndex> {
        let port = *self.ports.get(usize::from(number))?;
        (port != NONE).then_some(port)
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = PortIndex> {
        self.ports.iter().copied().filter(|&port| port != NONE)
    }
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) node: u32,
    pub(super) number: u8,
    /// GUID of a port that has a LID.
    pub(super) guid: Guid,
    pub(super) info: PortInfo,
    pub(super) peer: Option<PortIndex>,
    /// The GUID table.
    pub(super) guids: Vec<Guid>,
    /// GUIDs of virtual ports that are up.
    vports: Vec<Guid>,
    /// The P_Key table of an adapter's port, by number of the block.
    pub(super) pkey_blocks: BTreeMap<u16, Arc<PKeyBlock>>,
    /// Partitions; empty for a switch's external port.
    pub(super) pkeys: Vec<PKey>,
    /// Rate of the link.
    pub(super) rate: Rate,
}

impl Port {
    /// A node's port of this number.
    fn new(
        (node, number): (u32, u8),
        port: &model::Port,
        info: PortInfo,
        peer: Option<PortIndex>,
    ) -> Self {
        let keys = port.pkeys.values().flat_map(|block| block.0);
        Self {
            node,
            number,
            guid: port.guid,
            info,
            peer,
            guids: vec![port.guid],
            vports: Vec::new(),
            pkey_blocks: port.pkeys.clone(),
            pkeys: keys.filter(|key| key.is_valid()).collect(),
            rate: rate(&info),
        }
    }

    fn place(&self) -> (u32, u8) {
        (self.node, self.number)
    }

    /// All its GUIDs: its own, those of functions that share it, and those of virtual ports.
    pub(super) fn all_guids(&self) -> impl Iterator<Item = Guid> {
        let all = self.guids.iter().chain(&self.vports).copied();
        all.filter(|guid| !guid.is_none())
    }

    /// Whether this port and a packet's or another port's key are of one partition.
    pub(super) fn holds(&self, pkey: PKey) -> bool {
        self.pkeys.iter().any(|own| own.matches(pkey))
    }

    /// Whether the two ports may talk to each other in any partition.
    pub(super) fn shares(&self, other: &Self) -> bool {
        self.pkeys.iter().any(|&own| other.holds(own))
    }
}

/// A virtual port that is up.
#[derive(Debug)]
pub(super) struct VirtualPort {
    /// Its own LID; `None`: it has the LIDs of its physical port.
    pub(super) lid: Option<Lid>,
    /// Entries of its table of GUIDs.
    pub(super) guid_cap: u8,
    /// The table of GUIDs.
    pub(super) guids: Vec<Guid>,
    /// The virtual adapter.
    pub(super) node: VNodeInfo,
    /// Name of the virtual adapter.
    pub(super) description: NodeDescription,
}

/// A table of GUIDs that requests can change.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableOfGuids {
    /// The GUID of its port or virtual port.
    pub(super) holder: Guid,
    /// Number of entries.
    pub(super) entries: u8,
}

/// Limits of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    /// In the code of [`wire::Mtu`].
    pub(super) mtu: u8,
    pub(super) rate: Rate,
    /// The port at its end is the one it begins at.
    pub(super) loops: bool,
}

/// The subnet as the last sweep left it.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) nodes: Vec<Node>,
    pub(super) ports: Vec<Port>,
    /// The forwarding tables of the graph's switches.
    tables: Arc<Vec<ForwardingTable>>,
    /// By LID.
    lids: Vec<u32>,
    guids: HashMap<Guid, PortIndex>,
    /// Virtual ports with a LID of their own: the physical port, and the GUID.
    own_lids: HashMap<Lid, (PortIndex, Guid)>,
    /// Virtual ports by GUID.
    vports: HashMap<Guid, VirtualPort>,
    /// Virtual ports by alias GUID.
    vport_aliases: HashMap<Guid, Guid>,
    /// Partitions of alias GUIDs and virtual ports that are not members of all their port's.
    partitions: HashMap<Guid, Vec<PKey>>,
    prefix: u64,
    /// Routers' ports, by the prefix of the subnet that they lead to.
    routers: HashMap<u64, PortIndex>,
    /// The manager's own port.
    pub(super) own: Option<PortIndex>,
}

impl Directory {
    pub(super) fn new(view: &View<'_>, aliases: &Aliases) -> Self {
        let subnet = view.subnet;
        let mut directory = Self {
            prefix: view.config.gid_prefix,
            ..Self::default()
        };
        let mut at = HashMap::new();
        for (index, entry) in (0..).zip(&subnet.nodes) {
            let mut node = Node {
                info: entry.info,
                description: entry.description,
                switch: entry.switch,
                ports: Vec::new(),
                vertex: None,
            };
            for (&number, port) in &entry.ports {
                let Some(info) = port.info else {
                    continue;
                };
                let slot = usize::from(number);
                if node.ports.len() <= slot {
                    node.ports.resize(slot + 1, NONE);
                }
                let here = directory.ports.len() as PortIndex;
                node.ports[slot] = here;
                at.insert((index as usize, number), here);
                let mut port = Port::new((index, number), port, info, None);
                if node.is_switch() && number == 0 {
                    // A switch's own port is a member of the default partition.
                    port.pkeys.push(PKey::DEFAULT_FULL);
                }
                directory.ports.push(port);
            }
            directory.nodes.push(node);
        }
        directory.ports.shrink_to_fit();
        for (place, port) in subnet.ports() {
            let Some(&here) = at.get(&place) else {
                continue;
            };
            let entry = &mut directory.ports[here as usize];
            entry.peer = port.peer.and_then(|peer| at.get(&peer)).copied();
            if entry.guid.is_none() {
                continue;
            }
            directory.enter(here);
        }
        for (place, port) in subnet.ports() {
            if let (Some(&here), false) = (at.get(&place), port.vports.is_empty()) {
                directory.add_vports(here, port.vports.values(), view);
            }
        }
        for (guid, table) in aliases.ports() {
            directory.add_aliases(guid, table, view);
        }
        for &(prefix, router) in &view.config.prefix_routes {
            if let Some(port) = directory.by_guid(router) {
                // The first that is there.
                directory.routers.entry(prefix).or_insert(port);
            }
        }
        directory.own = subnet.own.and_then(|own| at.get(&own)).copied();
        directory.tables = Arc::clone(&view.paths.tables);
        for (vertex, &node) in view.paths.nodes.iter().enumerate() {
            if let Some(node) = directory.nodes.get_mut(node) {
                node.vertex = Some(vertex).filter(|&vertex| vertex < view.paths.tables.len());
            }
        }
        directory
    }

    /// The port at a place of the subnet.
    pub(super) fn port_at(&self, (node, number): At) -> Option<&Port> {
        let index = self.nodes.get(node)?.port(number)?;
        Some(self.port(index))
    }

    /// Gives the forwarding tables back until [`Directory::moved`], so that they can be changed where they are.
    pub(super) fn release_tables(&mut self) {
        self.tables = Arc::default();
    }

    /// GUIDs and LIDs of adapters' ports changed places, and paths followed them. False where that is not all: then the
    /// directory has to be made anew.
    pub(super) fn moved(&mut self, view: &View<'_>, aliases: &Aliases, places: &[At]) -> bool {
        self.tables = Arc::clone(&view.paths.tables);
        let port =
            |&(node, number): &At| Some((self.nodes.get(node)?.port(number)?, (node, number)));
        let places: Option<Vec<(PortIndex, At)>> = places.iter().map(port).collect();
        let Some(places) = places else {
            return false;
        };
        let mut came = Vec::new();
        for &(index, at) in &places {
            let found = view.subnet.port(at);
            let Some((port, info)) = found.and_then(|port| Some((port, port.info?))) else {
                return false;
            };
            let has_aliases = aliases.of(port.guid).next().is_some();
            if self.node_of(self.port(index)).is_switch() || has_aliases || !port.vports.is_empty()
            {
                return false;
            }
            came.push((index, port, info));
        }
        for &(index, _, _) in &came {
            let (guid, lid, lmc) = {
                let port = self.port(index);
                (port.guid, port.info.lid, port.info.lmc)
            };
            if self.by_guid(guid) == Some(index) {
                self.guids.remove(&guid);
            }
            for lid in lids::range(lid, lmc) {
                if let Some(holder) = self.lids.get_mut(usize::from(lid.value()))
                    && *holder == index
                {
                    *holder = NONE;
                }
            }
        }
        for (index, port, info) in came {
            let peer = self.port(index).peer;
            let place = self.port(index).place();
            self.ports[index as usize] = Port::new(place, port, info, peer);
            self.enter(index);
        }
        true
    }

    /// Has a port found by its GUID and its LIDs.
    fn enter(&mut self, index: PortIndex) {
        let port = self.port(index);
        let (guid, lid, lmc) = (port.guid, port.info.lid, port.info.lmc);
        self.guids.insert(guid, index);
        if lid.is_unicast() {
            let last = usize::from(lid.value()) + (1 << lmc.min(7)) - 1;
            if self.lids.len() <= last {
                self.lids.resize(last + 1, NONE);
            }
            self.lids[usize::from(lid.value())..=last].fill(index);
        }
    }

    /// The forwarding table of a switch.
    pub(super) fn table(&self, node: &Node) -> Option<&ForwardingTable> {
        self.tables.get(node.vertex?)
    }

    fn add_aliases(&mut self, port: Guid, table: &GuidTable, view: &View<'_>) {
        let Some(index) = self.by_guid(port) else {
            return;
        };
        let at = &mut self.ports[index as usize];
        let (guids, of_vport) = match self.vports.get_mut(&port) {
            Some(vport) => (&mut vport.guids, true),
            None => (&mut at.guids, false),
        };
        for (&place, &guid) in table {
            let place = usize::from(place);
            if guids.len() <= place {
                guids.resize(place + 1, Guid::NONE);
            }
            guids[place] = guid;
            self.guids.insert(guid, index);
            if of_vport {
                at.vports.push(guid);
                self.vport_aliases.insert(guid, port);
            }
            let own = view.config.partitions.get(&guid);
            let own = own.or_else(|| self.partitions.get(&port).filter(|_| of_vport));
            if let Some(pkeys) = own.cloned() {
                self.partitions.insert(guid, pkeys);
            }
        }
    }

    fn add_vports<'a>(
        &mut self,
        here: PortIndex,
        vports: impl Iterator<Item = &'a VPort>,
        view: &View<'_>,
    ) {
        let port = &mut self.ports[here as usize];
        // What others may know of goes by all keys at the port; its own paths by its own.
        self.partitions
            .entry(port.guid)
            .or_insert_with(|| port.pkeys.clone());
        for vport in vports.filter(|vport| vport.info.port_state == PortState::Active) {
            let guid = vport.info.port_guid;
            let pkeys = view.config.pkeys(&Candidate {
                guid,
                kind: NodeType::ChannelAdapter,
                is_own: false,
            });
            for &pkey in &pkeys {
                if !port.pkeys.contains(&pkey) {
                    port.pkeys.push(pkey);
                }
            }
            port.vports.push(guid);
            self.guids.insert(guid, here);
            self.partitions.insert(guid, pkeys);
            let lid = vport.own_lid();
            if let Some(lid) = lid {
                self.own_lids.insert(lid, (here, guid));
            }
            let vport = VirtualPort {
                lid,
                guid_cap: vport.info.guid_cap,
                guids: vec![guid],
                node: vport.node,
                description: vport.description,
            };
            self.vports.insert(guid, vport);
        }
    }

    /// The virtual port that a GUID is of, and its GUID.
    fn vport_of(&self, guid: Guid) -> Option<(Guid, &VirtualPort)> {
        let of = self.vport_aliases.get(&guid).copied().unwrap_or(guid);
        Some((of, self.vports.get(&of)?))
    }

    /// The virtual ports of a port that have a LID of their own.
    pub(super) fn vports_with_lid<'a>(
        &'a self,
        port: &'a Port,
    ) -> impl Iterator<Item = (Lid, &'a VirtualPort)> {
        let vports = port.vports.iter().filter_map(|guid| self.vports.get(guid));
        vports.filter_map(|vport| Some((vport.lid?, vport)))
    }

    /// The table of GUIDs that a LID is of, as one has it who asks with this GUID: those who share a LID have a table each.
    pub(super) fn guid_table(&self, lid: Lid, asker: Guid) -> Option<TableOfGuids> {
        let port = self.by_lid(lid)?;
        let own = self.own_lids.get(&lid).map(|&(_, guid)| guid);
        let sharing = { self.vport_of(asker) }
            .filter(|(_, vport)| vport.lid.is_none() && self.by_guid(asker) == Some(port))
            .map(|(guid, _)| guid);
        let vport = own.or(sharing);
        let vport = vport.and_then(|guid| Some((guid, self.vports.get(&guid)?.guid_cap)));
        let physical = self.port(port);
        let (holder, entries) = vport.unwrap_or((physical.guid, physical.info.guid_cap));
        Some(TableOfGuids { holder, entries })
    }

    /// The GUID of the port or virtual port that a GUID is of.
    pub(super) fn holder_of(&self, guid: Guid) -> Option<Guid> {
        let physical = || Some(self.port(self.by_guid(guid)?).guid);
        { self.vport_of(guid) }.map(|(of, _)| of).or_else(physical)
    }

    /// The LID of a GUID's port, and its LID mask control.
    pub(super) fn lids_of(&self, port: &Port, guid: Guid) -> (Lid, u8) {
        let own = self.vport_of(guid).and_then(|(_, vport)| vport.lid);
        own.map_or((port.info.lid, port.info.lmc), |lid| (lid, 0))
    }

    /// Whether a GUID is found by a LID that others have, too.
    pub(super) fn shares_lid(&self, port: &Port, guid: Guid) -> bool {
        let has_own = { self.vports.get(&guid) }.is_some_and(|vport| vport.lid.is_some());
        port.guid != guid && !has_own
    }

    /// The GUID that a LID is of.
    pub(super) fn guid_with(&self, lid: Lid) -> Option<Guid> {
        if let Some(&(_, guid)) = self.own_lids.get(&lid) {
            return Some(guid);
        }
        Some(self.port(self.by_lid(lid)?).guid)
    }

    /// The partitions that a GUID of a port is in: where the configuration says so, not all of the
    /// port's.
    pub(super) fn pkeys<'a>(&'a self, port: &'a Port, guid: Guid) -> &'a [PKey] {
        self.partitions.get(&guid).map_or(&port.pkeys, |own| own)
    }

    pub(super) fn port(&self, index: PortIndex) -> &Port {
        &self.ports[index as usize]
    }

    pub(super) fn node_of(&self, port: &Port) -> &Node {
        &self.nodes[port.node as usize]
    }

    pub(super) fn by_lid(&self, lid: Lid) -> Option<PortIndex> {
        let port = self.lids.get(usize::from(lid.value())).copied();
        let port = port.filter(|&port| port != NONE);
        port.or_else(|| Some(self.own_lids.get(&lid)?.0))
    }

    pub(super) fn by_guid(&self, guid: Guid) -> Option<PortIndex> {
        self.guids.get(&guid).copied()
    }

    pub(super) fn by_gid(&self, gid: Gid) -> Option<PortIndex> {
        if gid.prefix() != self.prefix && gid.prefix() != Gid::DEFAULT_PREFIX {
            return None;
        }
        self.by_guid(gid.guid())
    }

    /// Whether a port is a router's.
    pub(super) fn is_router(&self, port: PortIndex) -> bool {
        self.node_of(self.port(port)).info.node_type == NodeType::Router
    }

    /// The port of the router to the subnet of a prefix.
    pub(super) fn router_to(&self, prefix: u64) -> Option<PortIndex> {
        self.routers.get(&prefix).copied()
    }

    pub(super) fn gid(&self, port: &Port) -> Gid {
        self.gid_of(port.guid)
    }

    pub(super) fn gid_of(&self, guid: Guid) -> Gid {
        Gid::new(self.prefix, guid)
    }

    /// Ports that have LIDs, by rising LID.
    pub(super) fn end_ports(&self) -> impl Iterator<Item = PortIndex> {
        let mut before = NONE;
        self.lids.iter().copied().filter(move |&port| {
            let new = port != NONE && port != before;
            before = port;
            new
        })
    }

    /// GUIDs of adapters' ports, and of the functions at them.
    pub(super) fn end_guids(&self) -> impl Iterator<Item = Guid> {
        let ports = self.end_ports().map(|index| self.port(index));
        let ports = ports.filter(|port| !self.node_of(port).is_switch());
        ports.flat_map(Port::all_guids)
    }

    /// The LID by which a port's records go: of a switch's port that of the switch.
    pub(super) fn lid(&self, port: &Port) -> Lid {
        let node = self.node_of(port);
        if !node.is_switch() {
            return port.info.lid;
        }
        node.port(0)
            .map_or(Lid::NONE, |management| self.port(management).info.lid)
    }

    /// The port with a LID that answers for a port: of a switch's port its port 0.
    pub(super) fn end_port<'a>(&'a self, port: &'a Port) -> &'a Port {
        let node = self.node_of(port);
        match node.port(0) {
            Some(management) if node.is_switch() => self.port(management),
            _ => port,
        }
    }

    /// The switch where a port's paths begin, as an index of the graph's switches.
    pub(super) fn vertex(&self, port: &Port) -> Option<usize> {
        let node = self.node_of(port);
        if node.is_switch() {
            node.vertex
        } else {
            self.node_of(self.port(port.peer?)).vertex
        }
    }

    /// Limits of the path from a port to a LID: the least of all links, as the forwarding tables lead. `None` where
    /// they lead nowhere.
    pub(super) fn capacity(&self, from: PortIndex, dlid: Lid) -> Option<Capacity> {
        let to = self.by_lid(dlid)?;
        let source = self.port(from);
        let mut capacity = Capacity {
            mtu: source.info.neighbor_mtu,
            rate: source.rate,
            loops: from == to,
        };
        if !capacity.loops && self.node_of(source).is_switch() {
            // A switch's port 0 has no link.
            capacity.mtu = source.info.mtu_cap;
            capacity.rate = Rate(0);
        }
        self.walk(from, to, dlid, |out| {
            let out = self.port(out);
            capacity.mtu = capacity.mtu.min(out.info.neighbor_mtu);
            if capacity.rate == Rate(0) || out.rate.gigabits() < capacity.rate.gigabits() {
                capacity.rate = out.rate;
            }
        })?;
        Some(capacity)
    }

    /// The ports by which a packet leaves the nodes on its path from a port to a LID: one for each
    /// link. `None` where the forwarding tables lead nowhere.
    pub(super) fn links(&self, from: PortIndex, dlid: Lid) -> Option<Vec<PortIndex>> {
        let mut links = Vec::new();
        self.walk(from, self.by_lid(dlid)?, dlid, |out| links.push(out))?;
        Some(links)
    }

    fn walk(
        &self,
        from: PortIndex,
        to: PortIndex,
        dlid: Lid,
        mut leave: impl FnMut(PortIndex),
    ) -> Option<()> {
        if from == to {
            return Some(());
        }
        let source = self.port(from);
        let mut node = self.node_of(source);
        if !node.is_switch() {
            leave(from);
            let peer = source.peer?;
            if peer == to {
                return Some(());
            }
            node = self.node_of(self.port(peer));
        }
        for _ in 0..HOPS {
            if !node.is_switch() {
                return None;
            }
            if node.port(0) == Some(to) {
                return Some(());
            }
            let out = node.port(self.table(node)?.port(dlid))?;
            leave(out);
            let peer = self.port(out).peer?;
            if peer == to {
                return Some(());
            }
            node = self.node_of(self.port(peer));
        }
        None
    }
}

fn rate(info: &PortInfo) -> Rate {
    Rate::of_link(
        info.active_width().unwrap_or(LinkWidth::X1),
        info.active_speed().unwrap_or(LinkSpeed::Sdr),
        info.active_speed_ext().unwrap_or(LinkSpeedExt::None),
    )
}
