//! The extended LID space: LIDs of 18 bits for VMs, beside the 49151 ordinary ones.
//!
//! As "Efficient Routing and Reconfiguration in Virtualized HPC Environments with vSwitch-enabled
//! Lossless Networks" (section 4.1) proposes it: VMs have vLIDs, which switches look up in a second
//! table. No routing engine sees them; an entry is a copy of the one of the vSwitch behind which the
//! VM runs, as with dynamic LIDs. Where one node of the subnet does not speak this, VMs take
//! ordinary LIDs.

use std::collections::{BTreeMap, BTreeSet};

use tracing::info;
use wire::attribute::LinearBlock;
use wire::mad::AttributeId;
use wire::smp::{DATA, Route};
use wire::{ExtendedLid, Guid, Lid};

use super::migration::Blocks;
use super::{Errand, Knowledge, Purpose, SubnetManager, Ticket};
use crate::migration::MigrationError;
use crate::model::At;

/// State of the extended LID space.
#[derive(Debug, Default)]
pub(super) struct Extended {
    /// Extended LIDs of VMs that run, by port GUID.
    pub(super) lids: BTreeMap<Guid, ExtendedLid>,
    /// Nodes that do not speak it, as the last sweep found.
    lacking: BTreeSet<Guid>,
    /// Extended LIDs of adapters, by node GUID; those without an entry do not speak it.
    held: BTreeMap<Guid, Option<ExtendedLid>>,
}

impl Extended {
    /// A sweep begins: all nodes will be asked.
    pub(super) fn forget(&mut self) {
        self.lacking.clear();
        self.held.clear();
    }

    /// A node said that it does not know what it was asked.
    pub(super) fn lacks(&mut self, node: Guid) {
        self.lacking.insert(node);
    }

    /// Whether an adapter has a vLID.
    pub(super) fn holds(&self, node: Guid) -> bool {
        self.held.get(&node).is_some_and(Option::is_some)
    }

    /// The lowest vLID that no VM has.
    fn free(&self) -> Option<ExtendedLid> {
        let taken: BTreeSet<ExtendedLid> = self.lids.values().copied().collect();
        let all = ExtendedLid::VIRTUAL_FIRST.value()..=ExtendedLid::VIRTUAL_LAST.value();
        all.filter_map(ExtendedLid::new)
            .find(|lid| !taken.contains(lid))
    }
}

impl Knowledge {
    /// Whether VMs that start get vLIDs.
    pub(super) fn extends_lids(&self) -> bool {
        self.config.extended_lids && self.extended.lacking.is_empty()
    }

    /// A node speaks it.
    pub(super) fn take_extension(&mut self, node: usize, data: &[u8; DATA]) {
        let Some(entry) = self.subnet.nodes.get(node) else {
            return;
        };
        let [a, b, c, d, ..] = *data;
        if let (false, Some(held)) = (entry.is_switch(), ExtendedLid::parse([a, b, c, d])) {
            self.extended.held.insert(entry.info.node_guid, held);
        }
    }

    /// Gives VMs ordinary LIDs where a node that does not speak the extended LID space has come.
    pub(super) fn fall_back(&mut self) {
        if !self.config.extended_lids || self.extends_lids() {
            return;
        }
        let node = self.extended.lacking.first().copied().unwrap_or_default();
        info!(%node, nodes = self.extended.lacking.len(),
            "no extended LID space: these nodes do not speak it, and VMs have ordinary LIDs");
        for vm in std::mem::take(&mut self.extended.lids).into_keys() {
            self.config.without_lid.remove(&vm);
        }
    }

    /// The ordinary LID of a vSwitch.
    pub(super) fn vswitch_lid(&self, at: At) -> Option<Lid> {
        let port = self.subnet.port((at.0, 0))?;
        Some(port.info?.lid).filter(|lid| lid.is_unicast())
    }

    /// Gives a VM that starts a vLID.
    pub(super) fn draw_virtual_lid(&mut self, vm: Guid) -> Result<ExtendedLid, MigrationError> {
        let lid = self.extended.free();
        let lid = lid.ok_or(MigrationError::NoFreeVirtualLid { vm })?;
        self.extended.lids.insert(vm, lid);
        Ok(lid)
    }

    /// The blocks that change when a vLID is to be found at `to`, or nowhere.
    pub(super) fn virtual_changes(
        &self,
        lid: ExtendedLid,
        to: Option<At>,
    ) -> Result<Blocks, MigrationError> {
        let (number, entry) = lid.place();
        let mut changes = Blocks::new();
        for (node, switch) in self.subnet.switches() {
            let switch = switch.info.node_guid;
            let unknown = || MigrationError::UnknownTables { switch };
            let mut block = self.tables.linear(switch, number).ok_or_else(unknown)?;
            let wanted = match to {
                None => LinearBlock::DROP,
                Some(to) if to.0 == node => to.1,
                Some(to) => {
                    let above = self.vswitch_lid(to).ok_or_else(unknown)?;
                    let (number, entry) = ExtendedLid::from(above).place();
                    let block = self.tables.linear(switch, number).ok_or_else(unknown)?;
                    block.0[entry]
                }
            };
            if std::mem::replace(&mut block.0[entry], wanted) != wanted {
                changes.entry(node).or_default().insert(number, block);
            }
        }
        Ok(changes)
    }
}

impl SubnetManager {
    /// vLIDs of the VMs that have one, by port GUID. Nothing in the subnet administration's records
    /// can carry them: whoever sends to a VM learns its vLID here.
    pub fn virtual_lids(&self) -> &BTreeMap<Guid, ExtendedLid> {
        &self.known.extended.lids
    }

    /// Nodes, by node GUID, for the sake of which VMs take ordinary LIDs though
    /// [`Config::extended_lids`](crate::Config::extended_lids) is set.
    pub fn without_extended_lids(&self) -> impl Iterator<Item = Guid> {
        self.known.extended.lacking.iter().copied()
    }

    /// Asks a node that was found whether it speaks the extended LID space.
    pub(super) fn ask_extension(&mut self, node: usize, route: Route, is_switch: bool) {
        if !self.known.config.extended_lids {
            return;
        }
        let (attribute, modifier) = if is_switch {
            (
                AttributeId::LINEAR_FORWARDING,
                u32::from(LinearBlock::SECONDARY_FIRST),
            )
        } else {
            (AttributeId::EXTENDED_LID, 0)
        };
        self.get(route, attribute, modifier, Purpose::Extension(node));
    }

    /// Has every adapter have the vLID of the VM that is there. One that has a vLID already, of
    /// which nothing is known here, keeps it: another manager has given it.
    pub(super) fn set_virtual_lids(&mut self) {
        if self.known.extends_lids() {
            for at in self.known.subnet.end_ports() {
                let node = self.known.subnet.nodes[at.0].info.node_guid;
                let guid = self.known.subnet.port(at).map(|port| port.guid);
                let held = self.known.extended.held.get(&node).copied().flatten();
                if let (Some(guid), Some(lid)) = (guid, held)
                    && self.known.config.without_lid.contains(&guid)
                    && !self.known.extended.lids.values().any(|&taken| taken == lid)
                {
                    self.known.extended.lids.entry(guid).or_insert(lid);
                }
            }
        }
        for at in self.known.subnet.end_ports() {
            let node = self.known.subnet.nodes[at.0].info.node_guid;
            let guid = self.known.subnet.port(at).map(|port| port.guid);
            let wanted = guid
                .and_then(|guid| self.known.extended.lids.get(&guid))
                .copied();
            let held = self.known.extended.held.get(&node);
            if held.is_some_and(|&held| held != wanted) {
                self.set_virtual_lid(at, wanted, None);
            }
        }
    }

    /// Sets the vLID of an adapter's port.
    pub(super) fn set_virtual_lid(
        &mut self,
        at: At,
        lid: Option<ExtendedLid>,
        migration: Option<Ticket>,
    ) {
        let Some(port) = self.known.subnet.port(at) else {
            return;
        };
        let route = port.route.clone();
        let mut data = [0; DATA];
        data[..4].copy_from_slice(&ExtendedLid::emit(lid));
        let purpose = Purpose::Extension(at.0);
        let errand = Errand { purpose, migration };
        self.set(route, AttributeId::EXTENDED_LID, 0, data, errand);
    }

    /// Has every switch have the entries of all vLIDs, after a sweep has set those of ordinary LIDs.
    pub(super) fn set_secondary_tables(&mut self) {
        if !self.known.config.extended_lids {
            return;
        }
        let edges: Vec<(ExtendedLid, At)> = self
            .known
            .extended
            .lids
            .iter()
            .filter_map(|(&vm, &lid)| {
                Some((lid, self.known.edge(self.known.subnet.adapter_port(vm)?)?))
            })
            .collect();
        let mut changes: Vec<(usize, u16, LinearBlock)> = Vec::new();
        for (&node, table) in self.known.paths.nodes.iter().zip(&*self.known.paths.tables) {
            let switch = self.known.subnet.nodes[node].info.node_guid;
            // Blocks that exist no longer are dropped.
            let numbers = self.known.tables.secondary_blocks(switch);
            let mut wanted: BTreeMap<u16, LinearBlock> = numbers
                .map(|number| (number, LinearBlock::default()))
                .collect();
            for &(lid, edge) in &edges {
                let (number, entry) = lid.place();
                let port = if edge.0 == node {
                    edge.1
                } else {
                    table.port(self.known.vswitch_lid(edge).unwrap_or(Lid::NONE))
                };
                wanted.entry(number).or_default().0[entry] = port;
            }
            changes.extend(wanted.into_iter().filter_map(|(number, block)| {
                (self.known.tables.linear(switch, number) != Some(block))
                    .then_some((node, number, block))
            }));
        }
        for (node, number, block) in changes {
            let switch = self.known.subnet.nodes[node].info.node_guid;
            self.known.tables.writes_linear(switch, number);
            let purpose = Purpose::Linear { switch, number };
            let modifier = u32::from(number);
            let attribute = AttributeId::LINEAR_FORWARDING;
            self.set_at_switch(node, attribute, modifier, block.0, purpose);
        }
    }
}
