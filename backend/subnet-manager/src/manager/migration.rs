//! Moving VMs' addresses from functions to others; giving a VM a LID when it starts, where LIDs are
//! dynamic, and taking it back when it ends.
//!
//! The GUID at a function's port says whose it is. LIDs and P_Key tables belong to GUIDs, so that whoever sweeps
//! the subnet next puts them where the GUIDs are. A migration is therefore done, or not done, with one packet: the
//! one that gives the function at the destination the VM's GUID. Before it, the function at the source gives its
//! LID up; a manager that finds two functions with one GUID afterwards knows that the VM has left the one without a
//! LID, and gives that one the GUID that is missing.
//!
//! In order: *detach* takes the LID away at the source and prepares the P_Key table at the
//! destination; *identify* sets the GUID there; *address* sets the LID there, and the GUID and
//! P_Keys at the source; *restore* the LID there, where it is to have one; *forward* changes the
//! forwarding tables. Each ends before the next begins.
//!
//! Moves that change no block of a switch in common are made at the same time, in a round (*Efficient Routing
//! and Reconfiguration in Virtualized HPC Environments with vSwitch-enabled Lossless Networks*,
//! section 3). None waits for a packet of another; the next round begins when all have come to their
//! end, with a sweep between if one of them has not come well.

mod deadlock;
mod fewest;
mod plan;
mod round;
mod stages;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::sync::Arc;

use tracing::info;
use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

use super::errand::Ticket;
use super::routes::priority::Live;
use super::{Knowledge, Phase, Purpose, SubnetManager};
use crate::lids;
use crate::migration::{
    Arrival, Method, Migration, MigrationError, Moved, Packets, SwitchPackets, Target, Wait,
};
use crate::model::At;
use crate::routing::Endpoint;
use fewest::Least;
pub(super) use plan::Blocks;
use plan::Plan;
use stages::Stage;

/// A change of a VM's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    /// They move.
    Move,
    /// It gets a LID where it is.
    Start,
    /// Its LID is free again.
    End,
}

/// Migrations that wait, those that run, and how those before came out.
#[derive(Debug, Default)]
pub(super) struct Migrations {
    waiting: VecDeque<Waiting>,
    /// The migrations of the round that runs.
    running: Vec<Running>,
    /// Rounds so far.
    rounds: u64,
    /// The rule by which moves change the fewest switches; once somebody has asked since the last sweep.
    least: Option<Least>,
    /// Counted for the first round since paths were computed.
    live: Live,
    results: BTreeMap<Ticket, Result<Moved, MigrationError>>,
    tickets: u64,
}

/// Results that nobody has asked for.
const RESULTS: usize = 4096;

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    job: Job,
    asked: Migration,
    waited: Option<Wait>,
}

#[derive(Debug)]
struct Running {
    ticket: Ticket,
    job: Job,
    asked: Migration,
    plan: Plan,
    moved: Moved,
    per_switch: BTreeMap<Guid, Packets>,
    /// The stage that begins when no request is open.
    next: Option<Stage>,
    /// Requests that are not answered.
    open: usize,
    dropping: bool,
    failure: Option<String>,
}

/// Result of a round.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Places that VMs have moved between.
    pub(super) places: Vec<At>,
    /// A VM has started or ended, or paths were computed anew.
    pub(super) more_changed: bool,
    /// No migration has failed.
    pub(super) all_done: bool,
}

impl Migrations {
    fn find(&mut self, ticket: Ticket) -> Option<&mut Running> {
        self.running.iter_mut().find(|each| each.ticket == ticket)
    }

    /// Paths have been computed.
    pub(super) fn paths_are_new(&mut self) {
        self.least = None;
        self.live = Live::default();
    }

    /// GUIDs that change places in the round.
    pub(super) fn moving(&self) -> BTreeSet<Guid> {
        let running = self.running.iter();
        running
            .flat_map(|each| [each.asked.vm, each.plan.spare])
            .collect()
    }

    /// A request is made for a migration.
    pub(super) fn opens(&mut self, ticket: Ticket) {
        if let Some(running) = self.find(ticket) {
            running.open += 1;
        }
    }

    /// A request for a migration has come out, after `sent` packets.
    pub(super) fn closes(&mut self, ticket: Ticket, purpose: &Purpose, sent: u32, done: bool) {
        if let Some(running) = self.find(ticket) {
            running.open -= 1;
            running.count(purpose, sent, done);
        }
    }

    fn ask(&mut self, job: Job, asked: Migration) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.push_back(Waiting {
            ticket,
            job,
            asked,
            waited: None,
        });
        ticket
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// VMs whose move, start or end waits.
    pub(super) fn waiting_vms(&self) -> impl Iterator<Item = Guid> {
        self.waiting.iter().map(|each| each.asked.vm)
    }

    /// Whether some wait, or have failed and wait for a sweep.
    pub(super) fn has_unanswered(&self) -> bool {
        self.has_waiting() || !self.running.is_empty()
    }

    /// Answers those that wait, since another manager is the master. A VM that has started or ended meanwhile is
    /// found so by the first sweep after; the other manager puts the remains of a failed migration in order.
    pub(super) fn refuse(&mut self, known: &mut Knowledge) {
        self.settle(known);
        while let Some(Waiting {
            ticket, job, asked, ..
        }) = self.waiting.pop_front()
        {
            match job {
                Job::Move => {}
                Job::Start => drop(known.config.without_lid.remove(&asked.vm)),
                Job::End => {
                    known.extended.lids.remove(&asked.vm);
                    known.config.without_lid.insert(asked.vm);
                    known.lids.remove(&asked.vm);
                }
            }
            self.end(ticket, Err(MigrationError::NotMaster));
        }
    }

    /// After a sweep: tells of the migrations that it has cleaned up after.
    pub(super) fn settle(&mut self, known: &Knowledge) {
        for each in mem::take(&mut self.running) {
            let error = MigrationError::Interrupted {
                round: each.moved.round,
                reason: each
                    .failure
                    .unwrap_or_else(|| "another subnet manager came between".to_owned()),
                now_at: known.function_of(each.asked.vm),
            };
            self.end(each.ticket, Err(error));
        }
    }

    fn end(&mut self, ticket: Ticket, result: Result<Moved, MigrationError>) {
        let results = &mut self.results;
        results.insert(ticket, result);
        while results.len() > RESULTS {
            results.pop_first();
        }
    }
}

impl Knowledge {
    /// Node GUID of the function that has this port GUID.
    fn function_of(&self, vm: Guid) -> Option<Guid> {
        let at = self.subnet.adapter_port(vm)?;
        Some(self.subnet.nodes[at.0].info.node_guid)
    }

    /// Paths of the subnet administration, as they are now.
    fn paths_moved(&mut self, done: &Running) {
        let (plan, lid) = (&done.plan, done.moved.lid);
        let edges = [plan.from, plan.to].map(|at| self.edge(at));
        let [Some(from), Some(to)] = edges else {
            return;
        };
        let lmc = self.lmc_of(done.asked.vm);
        let (left, left_lmc) = match done.job {
            Job::Move => (self.lid_of(plan.spare), self.lmc_of(plan.spare)),
            Job::Start | Job::End => (Lid::NONE, 0),
        };
        let (vm, spare) = (done.asked.vm, plan.spare);
        let came = lids::range(lid, lmc).map(|lid| (lid, vm, to));
        let left = lids::range(left, left_lmc).map(|lid| (lid, spare, from));
        let paths = &mut self.paths;
        for (lid, guid, (node, port)) in came.chain(left) {
            let switch = paths.nodes.iter().position(|&other| other == node);
            let endpoints = &mut paths.graph.endpoints;
            let place = endpoints.binary_search_by_key(&lid, |endpoint| endpoint.lid);
            let Some(switch) = switch.filter(|_| lid.is_unicast()) else {
                continue;
            };
            paths.levels.moved(lid, switch);
            let endpoint = Endpoint {
                lid,
                guid,
                switch,
                port,
            };
            match (place, done.job) {
                (Ok(place), Job::End) => drop(endpoints.remove(place)),
                (Ok(place), _) => endpoints[place] = endpoint,
                (Err(place), Job::Start) => endpoints.insert(place, endpoint),
                (Err(_), _) => {}
            }
        }
        let tables = Arc::make_mut(&mut paths.tables);
        for (&node, table) in paths.nodes.iter().zip(tables) {
            for (&number, block) in plan.blocks.get(&node).into_iter().flatten() {
                if number < LinearBlock::COUNT {
                    table.set_block(number, block);
                }
            }
        }
    }
}

impl SubnetManager {
    /// Asks for a VM to be moved. It is when no sweep runs and no migration that changes one of the
    /// same switches; [`SubnetManager::take_migration`] tells how it came out.
    ///
    /// Migrations that are asked for before the manager is polled may be made at the same time.
    pub fn migrate(&mut self, migration: Migration) -> Ticket {
        self.migrations.ask(Job::Move, migration)
    }

    /// Asks for a LID for a VM that is among [`Config::without_lid`](crate::Config::without_lid):
    /// the lowest free one, which all switches forward as they forward the LID of the VM's vSwitch.
    pub fn start(&mut self, vm: Guid) -> Ticket {
        self.migrations
            .ask(Job::Start, Migration::new(vm, Target::Function(vm)))
    }

    /// Asks for a VM's LID to be free again.
    pub fn end(&mut self, vm: Guid) -> Ticket {
        self.migrations
            .ask(Job::End, Migration::new(vm, Target::Function(vm)))
    }

    /// The function with the GUID `left` has gone to another subnet, and the one with the GUID
    /// `arrived` has come to its place, which the sweep that this begins finds out. The LID of the
    /// first is free.
    pub fn exchanged(&mut self, left: Guid, arrived: Guid, arrival: Arrival) {
        self.known.config.spare_functions.remove(&left);
        self.known.config.without_lid.remove(&left);
        self.known.extended.lids.remove(&left);
        self.known.lids.remove(&left);
        if arrival.is_spare {
            self.known.config.spare_functions.insert(arrived);
        }
        if !arrival.has_lid {
            self.known.config.without_lid.insert(arrived);
        }
        self.request_sweep();
    }

    /// Takes the result of a migration; `None` while there is none. Returns it once.
    pub fn take_migration(&mut self, ticket: Ticket) -> Option<Result<Moved, MigrationError>> {
        self.migrations.results.remove(&ticket)
    }

    /// Node GUID of the function that has this port GUID, as far as the last sweep knows.
    pub fn function_of(&self, vm: Guid) -> Option<Guid> {
        self.known.function_of(vm)
    }

    /// No request of the round is open: tells how its migrations came out.
    pub(super) fn end_round(&mut self) -> Ended {
        self.phase = Phase::Idle;
        let running = mem::take(&mut self.migrations.running);
        let mut full = false;
        let mut ended = Ended::default();
        for each in running {
            if each.failure.is_some() {
                // A sweep finds out where the VM is and puts everything there.
                self.sweeps.changed = true;
                self.migrations.running.push(each);
                continue;
            }
            self.known.paths_moved(&each);
            self.known.clusters.outdate();
            self.known.cluster_lanes.is_outdated = self.known.config.cluster_lanes;
            ended.more_changed |= each.job != Job::Move;
            if each.job != Job::Move {
                self.migrations.live = Live::default();
            } else if let (Some(from), Some(to)) = (
                self.known.edge(each.plan.from),
                self.known.edge(each.plan.to),
            ) {
                let places = [from, to];
                self.migrations
                    .live
                    .moved(&self.known, each.asked.vm, places);
            }
            ended.places.extend([each.plan.from, each.plan.to]);
            let Running {
                ticket,
                plan,
                mut moved,
                per_switch,
                ..
            } = each;
            let each = |(guid, packets)| SwitchPackets {
                guid,
                is_vswitch: plan.vswitches.contains(&guid),
                packets,
            };
            moved.per_switch = per_switch.into_iter().map(each).collect();
            info!(
                vm = %moved.vm, lid = %moved.lid, from = %moved.from, to = %moved.to,
                round = moved.round, switches = moved.switches.sent,
                vswitches = moved.vswitches.sent, functions = moved.functions.sent,
                not_fewest = moved.not_fewest.as_ref().map(tracing::field::display), "migrated"
            );
            full |= moved.method == Method::Full;
            self.migrations.end(ticket, Ok(moved));
        }
        if !self.migrations.running.is_empty() {
            return ended;
        }
        self.schedule();
        if full {
            self.known.paths_computed();
        } else if !self.migrations.has_waiting() {
            self.known.look_at_balance();
        }
        ended.all_done = true;
        ended.more_changed |= full;
        ended
    }

    /// Functions that an interrupted migration has left with the GUID of a VM that is elsewhere get
    /// the GUID back that is missing; and so do those that somebody else has given it, who have a LID
    /// all the same.
    pub(super) fn mend_identities(&mut self) {
        let mut holders: BTreeMap<Guid, Vec<At>> = BTreeMap::new();
        for (at, port) in self.known.subnet.ports() {
            if !port.guid.is_none() && !self.known.subnet.nodes[at.0].is_switch() {
                holders.entry(port.guid).or_default().push(at);
            }
        }
        let spares = self.known.config.spare_functions.iter();
        let mut missing: Vec<Guid> = spares
            .filter(|guid| !holders.contains_key(guid))
            .copied()
            .collect();
        self.end_twins(&holders);
        let left_behind: Vec<At> = holders
            .into_values()
            .filter(|ports| ports.len() > 1)
            .flatten()
            .filter(|&at| {
                let info = self.known.subnet.port(at).and_then(|port| port.info);
                let node = self.known.subnet.nodes[at.0].info.node_guid;
                info.is_some_and(|info| info.lid == Lid::NONE) && !self.known.extended.holds(node)
            })
            .collect();
        for at in left_behind {
            if let Some(guid) = missing.pop() {
                self.set_guid(at, guid, None);
            }
        }
    }

    /// Settles a GUID that several ports with a LID each have: the one that had both before keeps the GUID. Each
    /// other one gets back what it had then, or, if that is not known, its node's.
    fn end_twins(&mut self, holders: &BTreeMap<Guid, Vec<At>>) {
        let former = |at: At| {
            let node = self.known.subnet.nodes[at.0].info.node_guid;
            let before = self.known.before.as_ref()?;
            let there = before.node_by_guid(node)?;
            Some(before.port((there, at.1))?.guid)
        };
        let lid = |at: At| {
            self.known
                .subnet
                .port(at)
                .and_then(|port| port.info)
                .map(|info| info.lid)
        };
        let mut ends: Vec<(Guid, At, Option<Guid>)> = Vec::new();
        for (&guid, ports) in holders {
            let has_lid = |at: &At| lid(*at).is_some_and(|lid| lid != Lid::NONE);
            let mut ports: Vec<At> = ports.iter().copied().filter(has_lid).collect();
            let known = self.known.lids.get(&guid).copied();
            ports.sort_by_key(|&at| (former(at) != Some(guid), lid(at) != known));
            for &at in ports.iter().skip(1) {
                let node = self.known.subnet.nodes[at.0].info.node_guid;
                let free = |own: &Guid| {
                    !holders.contains_key(own) && !ends.iter().any(|end| end.2 == Some(*own))
                };
                let own = former(at).into_iter().chain([node]).find(free);
                ends.push((guid, at, own));
            }
        }
        for (guid, at, own) in ends {
            let node = self.known.subnet.nodes[at.0].info.node_guid;
            self.sweeps.error(format!(
                "the node {node} has the port GUID {guid}, which another one has: {}",
                match own {
                    Some(own) => format!("it gets {own} back"),
                    None => "give it one of its own".to_owned(),
                }
            ));
            if let Some(own) = own {
                self.set_guid(at, own, None);
            }
        }
    }
}
