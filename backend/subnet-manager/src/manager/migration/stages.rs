//! The packets of a migration, a start or an end.

use std::collections::BTreeMap;

use wire::attribute::{GuidInfo, LinearBlock};
use wire::mad::{AttributeId, Method as MadMethod};
use wire::smp::{DATA, Destination};
use wire::{ExtendedLid, Guid, Lid, PortState};

use super::{Blocks, Job, Running, Ticket};
use crate::manager::{Errand, Purpose, SubnetManager};
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
    pub(in crate::manager) fn proceed(&mut self, ticket: Ticket) {
        while let Some(running) = self.migrations.find(ticket)
            && running.open == 0
            && running.failure.is_none()
            && let Some(stage) = running.next
        {
            running.next = stage.next();
            self.enter_stage(ticket, stage);
        }
    }

    fn enter_stage(&mut self, ticket: Ticket, stage: Stage) {
        let Some(current) = self.migrations.find(ticket) else {
            return;
        };
        current.dropping = stage == Stage::Detach;
        let (from, to) = (current.plan.from, current.plan.to);
        let (vm, spare) = (current.asked.vm, current.plan.spare);
        let drop_first = current.asked.drop_first;
        let job = current.job;
        let migration = Some(ticket);
        match stage {
            Stage::Address if job != Job::Move => {
                self.set_partitions_at(to, vm, migration);
                self.set_address(ticket, to, vm, job == Job::Start);
            }
            Stage::Restore if job != Job::Move => {}
            Stage::Detach => {
                match current.moved.virtual_lid {
                    Some(_) => self.set_virtual_lid(from, None, migration),
                    None => self.set_lid(ticket, from, Lid::NONE, false),
                }
                self.set_partitions_at(to, vm, migration);
                if drop_first {
                    self.send_drops(ticket);
                }
            }
            Stage::Identify => self.set_guid(to, vm, migration),
            Stage::Address => {
                self.set_address(ticket, to, vm, true);
                self.set_guid(from, spare, migration);
                self.set_partitions_at(from, spare, migration);
            }
            Stage::Restore => {
                let left = self.known.lid_of(spare);
                if left != Lid::NONE {
                    self.set_lid(ticket, from, left, false);
                }
            }
            Stage::Forward => self.send_blocks(ticket),
        }
    }

    /// Gives a function the LID of the VM that it has now, of whichever kind the VM has.
    fn set_address(&mut self, ticket: Ticket, at: At, vm: Guid, reregister: bool) {
        let current = self.migrations.find(ticket);
        if current.is_some_and(|current| current.moved.virtual_lid.is_some()) {
            let lid = self.known.extended.lids.get(&vm).copied();
            self.set_virtual_lid(at, lid, Some(ticket));
        } else {
            self.set_lid(ticket, at, self.known.lid_of(vm), reregister);
        }
    }

    fn set_lid(&mut self, ticket: Ticket, at: At, lid: Lid, reregister: bool) {
        if let Some((_, mut info)) = self.known.wanted(self.administration.aliases(), at) {
            info.lid = lid;
            if lid == Lid::NONE {
                info.lmc = 0;
            }
            self.set_port(at, &info, PortState::NoChange, reregister, Some(ticket));
        }
    }

    /// Gives a port another GUID, for a migration or to clean up after one.
    pub(in crate::manager) fn set_guid(&mut self, at: At, guid: Guid, migration: Option<Ticket>) {
        let Some(port) = self.known.subnet.port(at) else {
            return;
        };
        let route = port.route.clone();
        let mut data = [0; DATA];
        // Alias GUIDs are the guests' own to ask for anew.
        let mut entries = [Guid::NONE; 8];
        entries[0] = guid;
        GuidInfo::from_entries(entries).emit(&mut data);
        let purpose = Purpose::Identity(at, guid);
        let errand = Errand { purpose, migration };
        self.set(route, AttributeId::GUID_INFO, 0, data, errand);
    }

    pub(in crate::manager) fn take_identity(
        &mut self,
        at: At,
        guid: Guid,
        data: &[u8; DATA],
        migration: Option<Ticket>,
    ) {
        let given = GuidInfo::parse(data).map(|info| info.guid0);
        if given != Ok(guid) {
            let node = self.known.subnet.nodes.get(at.0);
            let node = node.map_or(Guid::NONE, |node| node.info.node_guid);
            let reason = format!("the node {node} keeps its port GUID: it is no virtual function");
            return self.migration_failed(migration, reason);
        }
        self.known.subnet.set_guid(at, guid);
    }

    /// Sends the blocks that the plan changes, with the VM's LID dropped and nothing else changed.
    fn send_drops(&mut self, ticket: Ticket) {
        let Some(current) = self.migrations.find(ticket) else {
            return;
        };
        let (vm, virtual_lid) = (current.asked.vm, current.moved.virtual_lid);
        let switches = current.plan.order.clone();
        let lids: Vec<ExtendedLid> = self
            .known
            .lids_of(vm)
            .map(ExtendedLid::from)
            .chain(virtual_lid)
            .collect();
        for node in switches {
            let guid = self.known.subnet.nodes[node].info.node_guid;
            for (number, block) in self.known.dropped(guid, lids.iter().copied()) {
                self.send_block(ticket, node, number, block);
            }
        }
    }

    fn send_blocks(&mut self, ticket: Ticket) {
        let Some(current) = self.migrations.find(ticket) else {
            return;
        };
        if current.moved.method == Method::Full {
            // A routing engine sees no vLIDs: their blocks are sent besides.
            let virtual_lid = current.moved.virtual_lid;
            let secondary = virtual_lid.map(|_| current.plan.blocks.clone());
            let order = current.plan.order.clone();
            self.send_everything(ticket);
            return self.send_these(ticket, &order, &secondary.unwrap_or_default());
        }
        let (blocks, order) = (current.plan.blocks.clone(), current.plan.order.clone());
        self.send_these(ticket, &order, &blocks);
    }

    fn send_these(&mut self, ticket: Ticket, order: &[usize], blocks: &Blocks) {
        for &node in order {
            for (&number, &block) in blocks.get(&node).into_iter().flatten() {
                self.send_block(ticket, node, number, block);
            }
        }
    }

    /// Work of a subnet manager that knows of no vSwitches.
    fn send_everything(&mut self, ticket: Ticket) {
        let routed = self.known.fresh_paths();
        if routed.engine.is_none() {
            let reasons = routed.refusals.iter().map(ToString::to_string);
            let reason = reasons.collect::<Vec<_>>().join("; ");
            return self.migration_failed(Some(ticket), reason);
        }
        let mut blocks: Blocks = BTreeMap::new();
        for (&node, table) in routed.nodes.iter().zip(&*routed.tables) {
            for (number, block) in (0u16..).zip(table.blocks()) {
                self.send_block(ticket, node, number, block);
                blocks.entry(node).or_default().insert(number, block);
            }
        }
        let checked = self.migrations.find(ticket);
        let checked = checked.is_some_and(|current| current.asked.check_deadlock);
        let deadlock = checked.then(|| self.known.deadlock_between(&self.known.paths, &routed));
        self.known.paths = routed;
        if let Some(current) = self.migrations.find(ticket) {
            current.plan.blocks = blocks;
            current.moved.deadlock = deadlock;
        }
    }

    fn send_block(&mut self, ticket: Ticket, node: usize, number: u16, block: LinearBlock) {
        let current = self.migrations.find(ticket);
        let by_lid = current.is_some_and(|current| current.asked.destination_routed);
        let entry = &self.known.subnet.nodes[node];
        let own = entry.ports.get(&0).and_then(|port| port.info);
        let destination = match own.map(|info| info.lid) {
            Some(lid) if by_lid && lid.is_unicast() => Destination::Lid(lid),
            _ => match entry.route() {
                Some(route) => Destination::Directed(route.clone()),
                None => return,
            },
        };
        let switch = entry.info.node_guid;
        self.known.tables.writes_linear(switch, number);
        let errand = Errand {
            purpose: Purpose::Linear { switch, number },
            migration: Some(ticket),
        };
        self.sweeps.report.sets += 1;
        self.request_to(
            destination,
            MadMethod::SET,
            AttributeId::LINEAR_FORWARDING,
            u32::from(number),
            block.0,
            errand,
        );
    }

    /// Something went wrong with a migration, or with something else.
    pub(in crate::manager) fn migration_failed(
        &mut self,
        migration: Option<Ticket>,
        reason: String,
    ) {
        let running = migration.and_then(|ticket| self.migrations.find(ticket));
        if let Some(running) = running {
            running.failure.get_or_insert(reason);
        } else {
            self.sweeps.error(reason);
        }
    }
}

impl Running {
    /// Counts the packets of a request that has come out.
    pub(super) fn count(&mut self, purpose: &Purpose, sent: u32, done: bool) {
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
