//! The packets of a migration, a start or an end.

use std::collections::BTreeMap;

use wire::attribute::{GuidInfo, LinearBlock};
use wire::mad::{AttributeId, Method as MadMethod};
use wire::smp::{DATA, Destination};
use wire::{ExtendedLid, Guid, Lid, PortState};

use super::{Blocks, Job, Running, Ticket};
use crate::manager::{Purpose, SubnetManager};
use crate::migration::Method;
use crate::model::At;

/// A part of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Detach,
    Identify,
    Address,
    Restore,
    Forward,
}

impl Stage {
    fn next(self) -> Option<Self> {
        match self {
            Self::Detach => Some(Self::Identify),
            Self::Identify => Some(Self::Address),
            Self::Address => Some(Self::Restore),
            Self::Restore => Some(Self::Forward),
            Self::Forward => None,
        }
    }
}

impl SubnetManager {
    /// Enters a migration's next stage when the one before has come well to its end, and those that
    /// take no packets at once.
    pub(super) fn proceed(&mut self, ticket: Ticket) {
        self.migrations.acting = Some(ticket);
        while let Some(running) = self.migrations.acting()
            && running.open == 0
            && running.failure.is_none()
            && let Some(stage) = running.next
        {
            running.next = stage.next();
            self.enter_stage(stage);
        }
        self.migrations.acting = None;
    }

    /// Begins to take in how a request came out that is part of a migration.
    pub(in crate::manager) fn resume_migration(
        &mut self,
        ticket: Ticket,
        purpose: &Purpose,
        sent: u32,
        done: bool,
    ) {
        self.migrations.acting = Some(ticket);
        if let Some(running) = self.migrations.acting() {
            running.open -= 1;
            running.count(purpose, sent, done);
        }
    }

    /// Ends what [`SubnetManager::resume_migration`] has begun.
    pub(in crate::manager) fn continue_migration(&mut self) {
        if let Some(ticket) = self.migrations.acting {
            self.proceed(ticket);
        }
    }

    fn enter_stage(&mut self, stage: Stage) {
        let Some(current) = self.migrations.acting() else {
            return;
        };
        current.dropping = stage == Stage::Detach;
        let (from, to) = (current.plan.from, current.plan.to);
        let (vm, spare) = (current.asked.vm, current.plan.spare);
        let drop_first = current.asked.drop_first;
        let job = current.job;
        match stage {
            Stage::Address if job != Job::Move => {
                self.set_partitions_at(to, vm);
                self.set_address(to, vm, job == Job::Start);
            }
            Stage::Restore if job != Job::Move => {}
            Stage::Detach => {
                match current.moved.virtual_lid {
                    Some(_) => self.set_virtual_lid(from, None),
                    None => self.set_lid(from, Lid::NONE, false),
                }
                self.set_partitions_at(to, vm);
                if drop_first {
                    self.send_drops();
                }
            }
            Stage::Identify => self.set_guid(to, vm),
            Stage::Address => {
                self.set_address(to, vm, true);
                self.set_guid(from, spare);
                self.set_partitions_at(from, spare);
            }
            Stage::Restore => {
                let left = self.lid_of(spare);
                if left != Lid::NONE {
                    self.set_lid(from, left, false);
                }
            }
            Stage::Forward => self.send_blocks(),
        }
    }

    /// Gives a function the LID of the VM that it has now, of whichever kind the VM has.
    fn set_address(&mut self, at: At, vm: Guid, reregister: bool) {
        let current = self.migrations.acting();
        if current.is_some_and(|current| current.moved.virtual_lid.is_some()) {
            self.set_virtual_lid(at, self.extended.lids.get(&vm).copied());
        } else {
            self.set_lid(at, self.lid_of(vm), reregister);
        }
    }

    fn set_lid(&mut self, at: At, lid: Lid, reregister: bool) {
        if let Some((_, mut info)) = self.wanted(at) {
            info.lid = lid;
            if lid == Lid::NONE {
                info.lmc = 0;
            }
            self.set_port(at, &info, PortState::NoChange, reregister);
        }
    }

    pub(in crate::manager) fn set_guid(&mut self, at: At, guid: Guid) {
        let Some(port) = self.subnet.port(at) else {
            return;
        };
        let route = port.route.clone();
        let mut data = [0; DATA];
        // Alias GUIDs are the guests' own to ask for anew.
        let mut entries = [Guid::NONE; 8];
        entries[0] = guid;
        GuidInfo::from_entries(entries).emit(&mut data);
        let purpose = Purpose::Identity(at, guid);
        self.set(route, AttributeId::GUID_INFO, 0, data, purpose);
    }

    pub(in crate::manager) fn take_identity(&mut self, at: At, guid: Guid, data: &[u8; DATA]) {
        let given = GuidInfo::parse(data).map(|info| info.guid0);
        if given != Ok(guid) {
            let node = self.subnet.nodes.get(at.0);
            let node = node.map_or(Guid::NONE, |node| node.info.node_guid);
            return self.migration_failed(format!(
                "the node {node} keeps its port GUID: it is no virtual function"
            ));
        }
        if let Some(port) = self.subnet.port_mut(at) {
            port.guid = guid;
        }
    }

    /// Sends the blocks that the plan changes, with the VM's LID dropped and nothing else changed.
    fn send_drops(&mut self) {
        let Some(current) = self.migrations.acting() else {
            return;
        };
        let (vm, virtual_lid) = (current.asked.vm, current.moved.virtual_lid);
        let switches: Vec<usize> = current.plan.blocks.keys().copied().collect();
        let lids: Vec<ExtendedLid> = self
            .lids_of(vm)
            .map(ExtendedLid::from)
            .chain(virtual_lid)
            .collect();
        for node in switches {
            let guid = self.subnet.nodes[node].info.node_guid;
            for (number, block) in self.dropped(guid, lids.iter().copied()) {
                self.send_block(node, number, block);
            }
        }
    }

    fn send_blocks(&mut self) {
        let Some(current) = self.migrations.acting() else {
            return;
        };
        if current.moved.method == Method::Full {
            // A routing engine sees no vLIDs: their blocks are sent besides.
            let virtual_lid = current.moved.virtual_lid;
            let secondary = virtual_lid.map(|_| current.plan.blocks.clone());
            self.send_everything();
            return self.send_these(secondary.unwrap_or_default());
        }
        let blocks = current.plan.blocks.clone();
        self.send_these(blocks);
    }

    fn send_these(&mut self, blocks: Blocks) {
        for (node, blocks) in blocks {
            for (number, block) in blocks {
                self.send_block(node, number, block);
            }
        }
    }

    /// What a subnet manager does that knows of no vSwitches.
    fn send_everything(&mut self) {
        let routed = self.fresh_paths();
        if routed.engine.is_none() {
            let reasons = routed.refusals.iter().map(ToString::to_string);
            return self.migration_failed(reasons.collect::<Vec<_>>().join("; "));
        }
        let mut blocks: Blocks = BTreeMap::new();
        for (&node, table) in routed.nodes.iter().zip(&routed.tables) {
            for (number, block) in (0u16..).zip(table.blocks()) {
                self.send_block(node, number, block);
                blocks.entry(node).or_default().insert(number, block);
            }
        }
        let checked = self.migrations.acting();
        let checked = checked.is_some_and(|current| current.asked.check_deadlock);
        let deadlock = checked.then(|| self.deadlock_between(&self.paths, &routed));
        self.paths = routed;
        if let Some(current) = self.migrations.acting() {
            current.plan.blocks = blocks;
            current.moved.deadlock = deadlock;
        }
    }

    fn send_block(&mut self, node: usize, number: u16, block: LinearBlock) {
        let current = self.migrations.acting();
        let by_lid = current.is_some_and(|current| current.asked.destination_routed);
        let entry = &self.subnet.nodes[node];
        let own = entry.ports.get(&0).and_then(|port| port.info);
        let destination = match own.map(|info| info.lid) {
            Some(lid) if by_lid && lid.is_unicast() => Destination::Lid(lid),
            _ => match entry.route() {
                Some(route) => Destination::Directed(route.clone()),
                None => return,
            },
        };
        let switch = entry.info.node_guid;
        self.tables.writes_linear(switch, number);
        let purpose = Purpose::Linear { switch, number };
        self.report.sets += 1;
        self.request_to(
            destination,
            MadMethod::SET,
            AttributeId::LINEAR_FORWARDING,
            u32::from(number),
            block.0,
            purpose,
        );
    }

    pub(in crate::manager) fn migration_failed(&mut self, reason: String) {
        if let Some(current) = self.migrations.acting() {
            current.failure.get_or_insert(reason);
        } else {
            self.error(reason);
        }
    }
}

impl Running {
    /// Counts the packets of a request that has come out.
    fn count(&mut self, purpose: &Purpose, sent: u32, done: bool) {
        let moved = &mut self.moved;
        let Purpose::Linear { switch, .. } = purpose else {
            return moved.functions.count(sent, done);
        };
        let each = self.per_switch.entry(*switch).or_default();
        each.count(sent, done);
        let sum = if self.dropping {
            &mut moved.drops
        } else if self.plan.vswitches.contains(switch) {
            &mut moved.vswitches
        } else {
            &mut moved.switches
        };
        sum.count(sent, done);
    }
}
