//! Plans of migrations, starts and ends; made before anything is sent.

use std::collections::{BTreeMap, BTreeSet};

use wire::attribute::LinearBlock;
use wire::{ExtendedLid, Guid, Lid};

use super::super::Knowledge;
use super::super::routes::priority;
use super::Migrations;
use crate::lids;
use crate::migration::{Method, Migration, MigrationError, Moved, NotFewest, Packets, Target};
use crate::model::At;

/// Blocks of forwarding tables, by node and number.
pub(in crate::manager) type Blocks = BTreeMap<usize, BTreeMap<u16, LinearBlock>>;

/// Plan of a migration; made before anything is sent.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) from: At,
    pub(super) to: At,
    /// GUID of the function at the destination, which the source gets.
    pub(super) spare: Guid,
    /// Blocks to be sent, by switch.
    pub(super) blocks: Blocks,
    /// The switches that have some, in the order in which they are told.
    pub(super) order: Vec<usize>,
    pub(super) vswitches: BTreeSet<Guid>,
}

impl Knowledge {
    /// The switch that a function is at, and its port there.
    pub(in crate::manager) fn edge(&self, at: At) -> Option<At> {
        let peer = self.subnet.port(at)?.peer?;
        self.subnet.nodes[peer.0].is_switch().then_some(peer)
    }

    /// The switch above a vSwitch, which is a switch with one link to another switch.
    fn above(&self, vswitch: usize) -> Option<usize> {
        let ports = self.subnet.nodes[vswitch].ports.values();
        let mut trunks = ports
            .filter(|port| port.is_linked())
            .filter_map(|port| port.peer)
            .filter(|peer| self.subnet.nodes[peer.0].is_switch());
        match (trunks.next(), trunks.next()) {
            (Some((above, _)), None) => Some(above),
            _ => None,
        }
    }

    fn destination(
        &self,
        asked: &Migration,
        lid: Lid,
        from_edge: usize,
        taken: &BTreeSet<At>,
    ) -> Result<At, MigrationError> {
        let is_free = |at: At| {
            let port = self.subnet.port(at).filter(|_| !taken.contains(&at));
            port.is_some_and(|port| {
                self.config.spare_functions.contains(&port.guid) && port.info.is_some()
            })
        };
        match asked.to {
            Target::Function(guid) => {
                let node = self.subnet.node_by_guid(guid);
                let node = node.filter(|&node| !self.subnet.nodes[node].is_switch());
                let what = "function";
                let no_target = MigrationError::NoSuchTarget { what, guid };
                let node = node.ok_or(no_target.clone())?;
                let &number = self.subnet.nodes[node]
                    .ports
                    .keys()
                    .next()
                    .ok_or(no_target)?;
                let at = (node, number);
                if self
                    .subnet
                    .port(at)
                    .is_some_and(|port| port.guid == asked.vm)
                {
                    return Err(MigrationError::AlreadyThere);
                }
                if is_free(at) {
                    Ok(at)
                } else {
                    Err(MigrationError::Occupied { function: guid })
                }
            }
            Target::Hypervisor(guid) => {
                let found = self.subnet.node_by_guid(guid);
                let found = found.filter(|&node| self.subnet.nodes[node].is_switch());
                let what = "hypervisor with vSwitch";
                let vswitch = found.ok_or(MigrationError::NoSuchTarget { what, guid })?;
                let entry = &self.subnet.nodes[vswitch];
                if vswitch == from_edge {
                    return Err(MigrationError::AlreadyThere);
                }
                let functions: Vec<At> = entry
                    .ports
                    .values()
                    .filter_map(|port| port.peer)
                    .filter(|peer| !self.subnet.nodes[peer.0].is_switch())
                    .collect();
                let (block, _) = place(lid);
                let other_block = |&at: &At| {
                    let port = self.subnet.port(at);
                    let lid = port.map_or(Lid::NONE, |port| self.lid_of(port.guid));
                    place(lid).0 != block
                };
                functions
                    .iter()
                    .copied()
                    .filter(|&at| is_free(at))
                    .min_by_key(other_block)
                    .ok_or(MigrationError::NoFreeFunction {
                        hypervisor: guid,
                        functions: functions.len(),
                    })
            }
        }
    }

    pub(super) fn plan_start(&mut self, vm: Guid) -> Result<(Plan, Moved), MigrationError> {
        let no_vm = MigrationError::NoSuchVm { vm };
        let at = self.subnet.adapter_port(vm).ok_or(no_vm.clone())?;
        let edge = self.edge(at).ok_or(no_vm)?;
        let has_virtual = self.extended.lids.contains_key(&vm);
        if has_virtual || !self.config.without_lid.contains(&vm) {
            return Err(MigrationError::AlreadyThere);
        }
        if self.extends_lids() && !self.config.pinned_lids.contains_key(&vm) {
            let lid = self.draw_virtual_lid(vm)?;
            let blocks = self.virtual_changes(lid, Some(edge)).inspect_err(|_| {
                self.extended.lids.remove(&vm);
            })?;
            return Ok(self.in_place(vm, (Lid::NONE, Some(lid)), at, edge, blocks));
        }
        let pinned = &self.config.pinned_lids;
        let lmc = self.lmc_of(vm);
        let lid = match pinned.get(&vm) {
            Some(&lid) => lid,
            None => {
                let taken = self.lids.iter().chain(pinned);
                let taken = taken.map(|(&guid, &lid)| (lid, self.lmc_of(guid)));
                lids::lowest_free(taken, lmc).ok_or(MigrationError::NoFreeLid {
                    vm,
                    pinned: pinned.len(),
                })?
            }
        };
        let switches = self.subnet.switches().map(|(node, _)| node).collect();
        let range: Vec<Lid> = lids::range(lid, lmc).collect();
        let blocks = self.changes(&range, &[], edge, switches)?;
        self.config.without_lid.remove(&vm);
        self.lids.insert(vm, lid);
        Ok(self.in_place(vm, (lid, None), at, edge, blocks))
    }

    pub(super) fn plan_end(&mut self, vm: Guid) -> Result<(Plan, Moved), MigrationError> {
        let no_vm = MigrationError::NoSuchVm { vm };
        let at = self.subnet.adapter_port(vm).ok_or(no_vm.clone())?;
        let edge = self.edge(at).ok_or(no_vm)?;
        if let Some(&lid) = self.extended.lids.get(&vm) {
            let blocks = self.virtual_changes(lid, None)?;
            self.extended.lids.remove(&vm);
            return Ok(self.in_place(vm, (Lid::NONE, Some(lid)), at, edge, blocks));
        }
        let lid = self.lid_of(vm);
        if !lid.is_unicast() {
            return Err(MigrationError::NotRunning { vm });
        }
        let mut blocks: Blocks = BTreeMap::new();
        for (node, switch) in self.subnet.switches() {
            let own = self.dropped(switch.info.node_guid, self.lids_of(vm));
            if !own.is_empty() {
                blocks.insert(node, own);
            }
        }
        self.config.without_lid.insert(vm);
        self.lids.remove(&vm);
        Ok(self.in_place(vm, (lid, None), at, edge, blocks))
    }

    /// The blocks of a switch that hold any of these LIDs, with them dropped.
    pub(super) fn dropped(
        &self,
        switch: Guid,
        lids: impl Iterator<Item: Into<ExtendedLid>>,
    ) -> BTreeMap<u16, LinearBlock> {
        let mut blocks = BTreeMap::new();
        for (number, entry) in lids.map(|lid| lid.into().place()) {
            let held = blocks.get(&number).copied();
            if let Some(mut block) = held.or_else(|| self.tables.linear(switch, number))
                && block.0[entry] != LinearBlock::DROP
            {
                block.0[entry] = LinearBlock::DROP;
                blocks.insert(number, block);
            }
        }
        blocks
    }

    /// The plan of a VM that starts or ends where it is.
    fn in_place(
        &self,
        vm: Guid,
        (lid, virtual_lid): (Lid, Option<ExtendedLid>),
        at: At,
        edge: At,
        blocks: Blocks,
    ) -> (Plan, Moved) {
        let function = self.subnet.nodes[at.0].info.node_guid;
        let vswitch = self
            .above(edge.0)
            .map(|_| self.subnet.nodes[edge.0].info.node_guid);
        let others = self
            .subnet
            .switches()
            .filter(|&(node, _)| self.above(node).is_some());
        let others = others.map(|(_, node)| node.info.node_guid);
        let plan = Plan {
            from: at,
            to: at,
            spare: vm,
            order: blocks.keys().copied().collect(),
            blocks,
            vswitches: vswitch.into_iter().chain(others).collect(),
        };
        let moved = Moved {
            vm,
            lid,
            virtual_lid,
            from: function,
            to: function,
            method: Method::Copy,
            functions: Packets::default(),
            drops: Packets::default(),
            vswitches: Packets::default(),
            switches: Packets::default(),
            per_switch: Vec::new(),
            deadlock: None,
            round: 0,
            waited: None,
            not_fewest: None,
        };
        (plan, moved)
    }

    /// The switches that a migration may change. Every one is looked at (ItRC in the paper); where
    /// both functions are below one leaf switch, nobody but that switch can tell the difference, and
    /// the others keep what they have.
    fn affected(&self, from: At, to: At) -> Vec<usize> {
        let (from_leaf, to_leaf) = (self.above(from.0), self.above(to.0));
        if from.0 == to.0 {
            vec![from.0]
        } else if let (Some(leaf), true) = (from_leaf, from_leaf == to_leaf) {
            vec![from.0, to.0, leaf]
        } else {
            self.subnet.switches().map(|(node, _)| node).collect()
        }
    }

    /// The blocks that change, by switch, among these: each of a VM's LIDs changes places with one of
    /// those at its destination or, where there are none, goes the way of the vSwitch there.
    pub(super) fn changes(
        &self,
        own: &[Lid],
        spares: &[Lid],
        to: At,
        switches: Vec<usize>,
    ) -> Result<Blocks, MigrationError> {
        let mut changes: Blocks = BTreeMap::new();
        for node in switches {
            let switch = self.subnet.nodes[node].info.node_guid;
            let unknown = MigrationError::UnknownTables { switch };
            let port = |lid: Lid| {
                let (number, entry) = place(lid);
                let block = self.tables.linear(switch, number);
                block.map(|block| block.0[entry]).ok_or(unknown.clone())
            };
            let mut wanted = Vec::new();
            if let (Some(&first), Some(&spare)) = (own.first(), spares.first()) {
                for (number, &lid) in own.iter().enumerate() {
                    wanted.push((lid, port(*spares.get(number).unwrap_or(&spare))?));
                }
                for (number, &lid) in spares.iter().enumerate() {
                    wanted.push((lid, port(*own.get(number).unwrap_or(&first))?));
                }
            } else {
                let way = if node == to.0 {
                    to.1
                } else {
                    port(self.vswitch_lid(to).ok_or(unknown.clone())?)?
                };
                wanted.extend(own.iter().map(|&lid| (lid, way)));
            }
            for (lid, wanted) in wanted {
                if port(lid)? == wanted {
                    continue;
                }
                let (number, entry) = place(lid);
                let blocks = changes.entry(node).or_default();
                let block = match blocks.get_mut(&number) {
                    Some(block) => block,
                    None => {
                        let held = self.tables.linear(switch, number);
                        let held = held.ok_or(unknown.clone())?;
                        blocks.entry(number).or_insert(held)
                    }
                };
                block.0[entry] = wanted;
            }
        }
        Ok(changes)
    }
}

impl Migrations {
    /// The plan of a move; to a function that is none of those `taken` by others.
    pub(super) fn plan(
        &self,
        known: &Knowledge,
        asked: &Migration,
        taken: &BTreeSet<At>,
    ) -> Result<(Plan, Moved), MigrationError> {
        let vm = asked.vm;
        let no_vm = MigrationError::NoSuchVm { vm };
        if known.config.spare_functions.contains(&vm) {
            return Err(no_vm);
        }
        let from = known.subnet.adapter_port(vm).ok_or(no_vm.clone())?;
        let from_edge = known.edge(from).ok_or(no_vm.clone())?;
        let lid = known.lid_of(vm);
        let virtual_lid = known.extended.lids.get(&vm).copied();
        if !lid.is_unicast() && virtual_lid.is_none() {
            return Err(MigrationError::NotRunning { vm });
        }
        let to = known.destination(asked, lid, from_edge.0, taken)?;
        if to == from {
            return Err(MigrationError::AlreadyThere);
        }
        let function = known.subnet.nodes[to.0].info.node_guid;
        let no_target = MigrationError::NoSuchTarget {
            what: "function",
            guid: function,
        };
        let spare = known.subnet.port(to).ok_or(no_target.clone())?.guid;
        let to_edge = known.edge(to).ok_or(no_target)?;
        let swaps = known.lid_of(spare).is_unicast() && virtual_lid.is_none();
        let method = match asked.method {
            Some(Method::Swap) if !swaps => {
                return Err(MigrationError::NothingToSwap { function });
            }
            Some(Method::Copy) if swaps => return Err(MigrationError::HasLid { function }),
            Some(method) => method,
            None if swaps => Method::Swap,
            None => Method::Copy,
        };
        let vswitches: BTreeSet<usize> = [from_edge.0, to_edge.0]
            .into_iter()
            .filter(|&edge| known.above(edge).is_some())
            .collect();
        let (blocks, not_fewest) = match virtual_lid {
            Some(lid) => {
                let blocks = known.virtual_changes(lid, Some(to_edge))?;
                (blocks, (!asked.every_switch).then_some(NotFewest::Extended))
            }
            None => self.exchange(known, asked, spare, (from_edge, to_edge))?,
        };
        let not_fewest = match method {
            Method::Full => (!asked.every_switch).then_some(NotFewest::Full),
            _ => not_fewest,
        };
        let plan = Plan {
            from,
            to,
            spare,
            order: priority::of_switches(known, &self.live, &blocks, (vm, from_edge)),
            blocks,
            vswitches: vswitches
                .iter()
                .map(|&node| known.subnet.nodes[node].info.node_guid)
                .collect(),
        };
        let moved = Moved {
            vm,
            lid,
            virtual_lid,
            from: known.subnet.nodes[from.0].info.node_guid,
            to: function,
            method,
            functions: Packets::default(),
            drops: Packets::default(),
            vswitches: Packets::default(),
            switches: Packets::default(),
            per_switch: Vec::new(),
            deadlock: None,
            round: 0,
            waited: None,
            not_fewest,
        };
        Ok((plan, moved))
    }

    /// The blocks that change when a VM's LIDs go from one switch to another, and those that it changes
    /// places with the other way; and why they are not as few as can be, where they are to be.
    fn exchange(
        &self,
        known: &Knowledge,
        asked: &Migration,
        spare: Guid,
        (from, to): (At, At),
    ) -> Result<(Blocks, Option<NotFewest>), MigrationError> {
        let lids = |guid| known.lids_of(guid).collect::<Vec<_>>();
        let (own, spares) = (lids(asked.vm), lids(spare));
        let all = || known.changes(&own, &spares, to, known.affected(from, to));
        if asked.every_switch {
            return Ok((all()?, None));
        }
        match self.fewest(known, (&own, &spares), (from, to)) {
            Ok(blocks) => Ok((blocks, None)),
            Err(reason) => Ok((all()?, Some(reason))),
        }
    }
}

/// The block of a LID's entry, and the entry in it.
pub(super) fn place(lid: Lid) -> (u16, usize) {
    ExtendedLid::from(lid).place()
}
