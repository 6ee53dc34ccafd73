//! Moving a VM's addresses from one function to another; giving it a LID when it starts, where LIDs
//! are dynamic, and taking it back when it ends.
//!
//! The GUID at a function's port says whose it is. LIDs and P_Key tables belong to GUIDs, so that
//! whoever sweeps the subnet next puts them where the GUIDs are. A migration is therefore done, or
//! not done, with one packet: the one that gives the function at the destination the VM's GUID.
//! Before it, the function at the source gives its LID up; whoever finds two functions with one
//! GUID afterwards knows that the one without a LID is what the VM left, and gives that one the
//! GUID that is missing.
//!
//! In order: *detach* takes the LID away at the source and prepares the P_Key table at the
//! destination; *identify* sets the GUID there; *address* sets the LID there, and the GUID and
//! P_Keys at the source; *restore* the LID there, where it is to have one; *forward* changes the
//! forwarding tables. Each ends before the next begins.

mod plan;
mod transition;

use std::collections::{BTreeMap, VecDeque};

use tracing::info;
use wire::attribute::{GuidInfo, LinearBlock};
use wire::mad::{AttributeId, Method as MadMethod};
use wire::smp::{DATA, Destination};
use wire::{ExtendedLid, Guid, Lid, PortState};

use super::{Phase, Purpose, SubnetManager};
use crate::lids;
use crate::migration::{Method, Migration, MigrationError, Moved, Packets, SwitchPackets, Target};
use crate::model::At;
use crate::routing::Endpoint;
pub(super) use plan::Blocks;
use plan::Plan;

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

/// What is to be done with a VM's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    /// They move.
    Move,
    /// It gets a LID where it is.
    Start,
    /// Its LID is free again.
    End,
}

/// Names a migration, a start or an end that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Migrations that wait, the one that runs, and how those before came out.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    waiting: VecDeque<(Ticket, Job, Migration)>,
    current: Option<Current>,
    results: BTreeMap<Ticket, Result<Moved, MigrationError>>,
    tickets: u64,
}

/// Results that nobody has asked for.
const RESULTS: usize = 64;

#[derive(Debug)]
struct Current {
    ticket: Ticket,
    job: Job,
    asked: Migration,
    plan: Plan,
    moved: Moved,
    per_switch: BTreeMap<Guid, Packets>,
    dropping: bool,
    failure: Option<String>,
}

impl SubnetManager {
    /// Asks for a VM to be moved. It is when no sweep runs and those asked for before have been;
    /// [`SubnetManager::take_migration`] tells how it came out.
    pub fn migrate(&mut self, migration: Migration) -> Ticket {
        self.ask(Job::Move, migration)
    }

    /// Asks for a LID for a VM that is among [`Config::without_lid`](crate::Config::without_lid):
    /// the lowest free one, which all switches forward as they forward the LID of the VM's vSwitch.
    pub fn start(&mut self, vm: Guid) -> Ticket {
        self.ask(Job::Start, Migration::new(vm, Target::Function(vm)))
    }

    /// Asks for a VM's LID to be free again.
    pub fn end(&mut self, vm: Guid) -> Ticket {
        self.ask(Job::End, Migration::new(vm, Target::Function(vm)))
    }

    fn ask(&mut self, job: Job, asked: Migration) -> Ticket {
        let migrations = &mut self.migrations;
        migrations.tickets += 1;
        let ticket = Ticket(migrations.tickets);
        migrations.waiting.push_back((ticket, job, asked));
        ticket
    }

    /// How a migration came out; `None` while it has not. Tells it once.
    pub fn take_migration(&mut self, ticket: Ticket) -> Option<Result<Moved, MigrationError>> {
        self.migrations.results.remove(&ticket)
    }

    /// Node GUID of the function that has this port GUID, as far as the last sweep knows.
    pub fn function_of(&self, vm: Guid) -> Option<Guid> {
        let at = self.function_at(vm)?;
        Some(self.subnet.nodes[at.0].info.node_guid)
    }

    pub(super) fn has_migrations(&self) -> bool {
        !self.migrations.waiting.is_empty()
    }

    /// Answers those that wait, since another manager is the master. A VM that has started or ended
    /// meanwhile is found so by the first sweep after.
    pub(super) fn refuse_migrations(&mut self) {
        while let Some((ticket, job, asked)) = self.migrations.waiting.pop_front() {
            match job {
                Job::Move => {}
                Job::Start => drop(self.config.without_lid.remove(&asked.vm)),
                Job::End => {
                    self.extended.lids.remove(&asked.vm);
                    self.config.without_lid.insert(asked.vm);
                    self.lids.remove(&asked.vm);
                }
            }
            self.end_migration(ticket, Err(MigrationError::NotMaster));
        }
    }

    /// Begins the migration that has waited longest.
    pub(super) fn begin_migration(&mut self) {
        let Some((ticket, job, asked)) = self.migrations.waiting.pop_front() else {
            return;
        };
        let plan = match job {
            Job::Move => self.plan(&asked),
            Job::Start => self.plan_start(asked.vm),
            Job::End => self.plan_end(asked.vm),
        };
        match plan {
            Ok((plan, mut moved)) => {
                if job == Job::Move {
                    self.swap_manager_levels(asked.vm, plan.spare);
                }
                if job == Job::Move && asked.check_transition && moved.method != Method::Full {
                    moved.transition = Some(self.transition_to(&plan, &moved, asked.drop_first));
                }
                self.migrations.current = Some(Current {
                    ticket,
                    job,
                    asked,
                    plan,
                    moved,
                    per_switch: BTreeMap::new(),
                    dropping: false,
                    failure: None,
                });
                self.enter_stage(match job {
                    Job::Move => Stage::Detach,
                    Job::Start | Job::End => Stage::Address,
                });
            }
            Err(error) => self.end_migration(ticket, Err(error)),
        }
    }

    /// Goes on after a stage whose requests are all answered; whether the migration is done.
    pub(super) fn advance_migration(&mut self, stage: Stage) -> bool {
        let Some(current) = &self.migrations.current else {
            self.phase = Phase::Idle;
            return false;
        };
        if current.failure.is_some() {
            // A sweep finds out where the VM is and puts everything there.
            self.phase = Phase::Idle;
            self.changed = true;
            return false;
        }
        if let Some(stage) = stage.next() {
            self.enter_stage(stage);
            return false;
        }
        self.phase = Phase::Idle;
        self.schedule();
        if let Some(current) = self.migrations.current.take() {
            self.paths_moved(&current);
            let Current {
                plan,
                mut moved,
                per_switch,
                ..
            } = current;
            let each = |(guid, packets)| SwitchPackets {
                guid,
                is_vswitch: plan.vswitches.contains(&guid),
                packets,
            };
            moved.per_switch = per_switch.into_iter().map(each).collect();
            info!(
                vm = %moved.vm, lid = %moved.lid, from = %moved.from, to = %moved.to,
                switches = moved.switches.sent, vswitches = moved.vswitches.sent,
                functions = moved.functions.sent,
                "migrated"
            );
            let method = moved.method;
            self.end_migration(current.ticket, Ok(moved));
            match method {
                Method::Full => self.paths_computed(),
                _ if self.has_migrations() => {}
                _ => self.look_at_balance(),
            }
        }
        true
    }

    /// What the subnet administration knows of paths, as it is now.
    fn paths_moved(&mut self, current: &Current) {
        let (plan, lid) = (&current.plan, current.moved.lid);
        let edges = [plan.from, plan.to].map(|at| self.edge(at));
        let [Some(from), Some(to)] = edges else {
            return;
        };
        let lmc = self.lmc_of(current.asked.vm);
        let (left, left_lmc) = match current.job {
            Job::Move => (self.lid_of(plan.spare), self.lmc_of(plan.spare)),
            Job::Start | Job::End => (Lid::NONE, 0),
        };
        let came = lids::range(lid, lmc).map(|lid| (lid, to));
        let left = lids::range(left, left_lmc).map(|lid| (lid, from));
        let paths = &mut self.paths;
        for (lid, (node, port)) in came.chain(left) {
            let switch = paths.nodes.iter().position(|&other| other == node);
            let endpoints = &mut paths.graph.endpoints;
            let place = endpoints.binary_search_by_key(&lid, |endpoint| endpoint.lid);
            let Some(switch) = switch.filter(|_| lid.is_unicast()) else {
                continue;
            };
            paths.levels.moved(lid, switch);
            match (place, current.job) {
                (Ok(place), Job::End) => drop(endpoints.remove(place)),
                (Ok(place), _) => endpoints[place] = Endpoint { lid, switch, port },
                (Err(place), Job::Start) => endpoints.insert(place, Endpoint { lid, switch, port }),
                (Err(_), _) => {}
            }
        }
        for (&node, table) in paths.nodes.iter().zip(&mut paths.tables) {
            for (&number, block) in plan.blocks.get(&node).into_iter().flatten() {
                if number < LinearBlock::COUNT {
                    table.set_block(number, block);
                }
            }
        }
    }

    /// After a sweep: tells of the migration that it has cleaned up after.
    pub(super) fn settle_migration(&mut self) {
        if let Some(current) = self.migrations.current.take() {
            let now_at = self.function_of(current.asked.vm);
            let reason = current.failure.unwrap_or_default();
            let error = MigrationError::Interrupted { reason, now_at };
            self.end_migration(current.ticket, Err(error));
        }
    }

    fn end_migration(&mut self, ticket: Ticket, result: Result<Moved, MigrationError>) {
        let results = &mut self.migrations.results;
        results.insert(ticket, result);
        while results.len() > RESULTS {
            results.pop_first();
        }
    }

    fn enter_stage(&mut self, stage: Stage) {
        self.phase = Phase::Migrating(stage);
        let Some(current) = &mut self.migrations.current else {
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
        let current = self.migrations.current.as_ref();
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

    pub(super) fn set_guid(&mut self, at: At, guid: Guid) {
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

    pub(super) fn take_identity(&mut self, at: At, guid: Guid, data: &[u8; DATA]) {
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
        let Some(current) = &self.migrations.current else {
            return;
        };
        let ordinary = self.lids_of(current.asked.vm).map(ExtendedLid::from);
        let lids = ordinary.chain(current.moved.virtual_lid);
        let switches: Vec<usize> = current.plan.blocks.keys().copied().collect();
        for node in switches {
            let guid = self.subnet.nodes[node].info.node_guid;
            for (number, block) in self.dropped(guid, lids.clone()) {
                self.send_block(node, number, block);
            }
        }
    }

    fn send_blocks(&mut self) {
        let Some(current) = &self.migrations.current else {
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
        let checked = self.migrations.current.as_ref();
        let checked = checked.is_some_and(|current| current.asked.check_transition);
        let transition = checked.then(|| self.transition_between(&self.paths, &routed));
        self.paths = routed;
        if let Some(current) = &mut self.migrations.current {
            current.plan.blocks = blocks;
            current.moved.transition = transition;
        }
    }

    fn send_block(&mut self, node: usize, number: u16, block: LinearBlock) {
        let by_lid = self
            .migrations
            .current
            .as_ref()
            .is_some_and(|current| current.asked.destination_routed);
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

    /// Counts the packets of a request that has come out.
    pub(super) fn count_migration(&mut self, purpose: &Purpose, sent: u32, done: bool) {
        let Some(current) = &mut self.migrations.current else {
            return;
        };
        let moved = &mut current.moved;
        let Purpose::Linear { switch, .. } = purpose else {
            return moved.functions.count(sent, done);
        };
        let each = current.per_switch.entry(*switch).or_default();
        each.count(sent, done);
        let sum = if current.dropping {
            &mut moved.drops
        } else if current.plan.vswitches.contains(switch) {
            &mut moved.vswitches
        } else {
            &mut moved.switches
        };
        sum.count(sent, done);
    }

    pub(super) fn migration_failed(&mut self, reason: String) {
        if let Some(current) = &mut self.migrations.current {
            current.failure.get_or_insert(reason);
        } else {
            self.error(reason);
        }
    }

    /// Functions that an interrupted migration has left with the GUID of a VM that is elsewhere get
    /// the GUID back that is missing.
    pub(super) fn mend_identities(&mut self) {
        let mut holders: BTreeMap<Guid, Vec<At>> = BTreeMap::new();
        for (at, port) in self.subnet.ports() {
            if !port.guid.is_none() && !self.subnet.nodes[at.0].is_switch() {
                holders.entry(port.guid).or_default().push(at);
            }
        }
        let spares = self.config.spare_functions.iter();
        let mut missing: Vec<Guid> = spares
            .filter(|guid| !holders.contains_key(guid))
            .copied()
            .collect();
        let left_behind: Vec<At> = holders
            .into_values()
            .filter(|ports| ports.len() > 1)
            .flatten()
            .filter(|&at| {
                let info = self.subnet.port(at).and_then(|port| port.info);
                let node = self.subnet.nodes[at.0].info.node_guid;
                info.is_some_and(|info| info.lid == Lid::NONE) && !self.extended.holds(node)
            })
            .collect();
        for at in left_behind {
            if let Some(guid) = missing.pop() {
                self.set_guid(at, guid);
            }
        }
    }
}
