//! Choice of waiting migrations that are made at the same time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;

use wire::Guid;

use super::plan::{Blocks, Plan};
use super::stages::Stage;
use super::{Job, Migrations, Running, Waiting};
use crate::manager::{Knowledge, Phase, SubnetManager};
use crate::migration::{Method, Migration, MigrationError, Target, Wait};
use crate::model::At;

/// Number of waiting migrations that are examined after the first that can begin.
const AHEAD: usize = 128;

/// Reason why a migration does not begin now.
enum Refusal {
    /// It can in a later round.
    Later(Wait),
    /// There is room for it when one of these VMs has moved.
    NoPlace(Vec<Guid>),
    Never(MigrationError),
}

/// Places in the subnet that migrations of a round have for themselves, and the VM of each.
#[derive(Default)]
struct Taken {
    /// Blocks of forwarding tables, by switch and number.
    blocks: BTreeMap<(usize, u16), Guid>,
    /// Functions that VMs leave or go to.
    functions: BTreeSet<At>,
    /// Switches at the ends of moves.
    ends: BTreeMap<usize, Guid>,
    /// Switches at the ends of moves that wait.
    kept: BTreeMap<usize, Guid>,
    vms: BTreeSet<Guid>,
}

impl Taken {
    /// A switch of these that a move that begins, or one that waits, has at its end.
    fn at(of: &BTreeMap<usize, Guid>, ends: [Option<usize>; 2]) -> Option<(usize, Guid)> {
        let mut ends = ends.into_iter().flatten();
        ends.find_map(|node| Some((node, *of.get(&node)?)))
    }

    /// A switch one of whose blocks is another one's; one of the ends, if there is.
    fn busy(&self, blocks: &Blocks, ends: [Option<usize>; 2]) -> Option<(usize, Guid)> {
        let numbers = |node: usize| blocks.get(&node).into_iter().flat_map(BTreeMap::keys);
        let nodes = ends.into_iter().flatten().chain(blocks.keys().copied());
        let mut places = nodes.flat_map(|node| numbers(node).map(move |&number| (node, number)));
        places.find_map(|place| Some((place.0, *self.blocks.get(&place)?)))
    }

    /// A move waits: later ones do not overtake it at its ends.
    fn keep(&mut self, vm: Guid, ends: [Option<usize>; 2]) {
        for node in ends.into_iter().flatten() {
            self.kept.entry(node).or_insert(vm);
        }
    }

    fn take(&mut self, vm: Guid, plan: &Plan, ends: [Option<usize>; 2]) {
        for (&node, blocks) in &plan.blocks {
            let numbers = blocks.keys();
            self.blocks
                .extend(numbers.map(|&number| ((node, number), vm)));
        }
        self.functions.extend([plan.from, plan.to]);
        let ends = ends.into_iter().flatten();
        self.ends.extend(ends.map(|node| (node, vm)));
    }
}

impl Knowledge {
    /// The switches at both ends of a move.
    fn ends(&self, asked: &Migration) -> [Option<usize>; 2] {
        let from = self
            .subnet
            .adapter_port(asked.vm)
            .and_then(|at| self.edge(at));
        let to = match asked.to {
            Target::Hypervisor(guid) => self.subnet.node_by_guid(guid),
            Target::Function(guid) => self.subnet.node_by_guid(guid).and_then(|node| {
                let &number = self.subnet.nodes[node].ports.keys().next()?;
                Some(self.edge((node, number))?.0)
            }),
        };
        [from.map(|edge| edge.0), to]
    }

    fn switch_of(&self, (node, vm): (usize, Guid)) -> Wait {
        Wait::Switch {
            switch: self.subnet.nodes[node].info.node_guid,
            vm,
        }
    }

    /// VMs that are to move and have the places that another one lacks.
    fn holders(&self, error: &MigrationError, vm: Guid, movers: &BTreeSet<Guid>) -> Vec<Guid> {
        let nodes = &self.subnet.nodes;
        let node = match *error {
            MigrationError::NoFreeFunction {
                hypervisor: guid, ..
            }
            | MigrationError::Occupied { function: guid } => self.subnet.node_by_guid(guid),
            _ => None,
        };
        let Some((number, node)) = node.map(|number| (number, &nodes[number])) else {
            return Vec::new();
        };
        let places: Vec<At> = if node.is_switch() {
            node.ports.values().filter_map(|port| port.peer).collect()
        } else {
            node.ports.keys().map(|&port| (number, port)).collect()
        };
        places
            .into_iter()
            .filter_map(|at| Some(self.subnet.port(at)?.guid))
            .filter(|&holder| holder != vm && movers.contains(&holder))
            .collect()
    }
}

impl SubnetManager {
    /// Begins what has waited longest, and whatever else changes none of the same blocks of forwarding tables.
    ///
    /// Functions are taken in the order in which migrations were asked for: a migration that waits keeps the
    /// switches at both its ends, and with them the functions there, from later ones. A migration that waits for a
    /// place does not, since later ones may make it.
    pub(in crate::manager) fn begin_round(&mut self) {
        self.migrations.look_for_fewest(&self.known);
        let mut waiting = mem::take(&mut self.migrations.waiting);
        let mut later: VecDeque<Waiting> = VecDeque::new();
        let mut taken = Taken::default();
        let mut begun: Vec<Running> = Vec::new();
        // By the place in `later`: VMs that have the places that are waited for.
        let mut holders: Vec<(usize, Vec<Guid>)> = Vec::new();
        let movers = waiting.iter().filter(|each| each.job == Job::Move);
        let movers: BTreeSet<Guid> = movers.map(|each| each.asked.vm).collect();
        let round = self.migrations.rounds + 1;
        while let Some(each) = waiting.pop_front() {
            let alone = each.job != Job::Move || each.asked.method == Some(Method::Full);
            let last = begun.last().is_some_and(Running::is_alone);
            if !begun.is_empty() && (alone || last || later.len() >= AHEAD) {
                waiting.push_front(each);
                for mut each in waiting.drain(..) {
                    each.waited.get_or_insert(Wait::Turn);
                    later.push_back(each);
                }
                break;
            }
            let looked = self
                .migrations
                .look_at(&mut self.known, each, &movers, &mut taken, round);
            match looked {
                Ok(running) => begun.push(running),
                Err((mut each, Refusal::Later(wait))) => {
                    each.waited = Some(wait);
                    later.push_back(each);
                }
                Err((each, Refusal::NoPlace(vms))) => {
                    holders.push((later.len(), vms));
                    later.push_back(each);
                }
                Err((each, Refusal::Never(error))) => self.migrations.end(each.ticket, Err(error)),
            }
        }
        for (number, vms) in holders {
            let leaves = |vm: &&Guid| begun.iter().any(|running| running.asked.vm == **vm);
            let vm = vms.iter().find(leaves).or(vms.first());
            later[number].waited = vm.map(|&vm| Wait::Place { vm });
        }
        if begun.is_empty() {
            // Nobody can begin: whoever waits for a place waits for one of those who wait.
            later.retain(|each| match each.waited {
                Some(Wait::Place { vm: blocker }) => {
                    let error = MigrationError::Circular { blocker };
                    self.migrations.end(each.ticket, Err(error));
                    false
                }
                _ => true,
            });
            self.migrations.waiting = later;
            return;
        }
        self.migrations.waiting = later;
        self.migrations.rounds = round;
        self.known.judge_round(&mut begun);
        let tickets: Vec<_> = begun.iter().map(|running| running.ticket).collect();
        self.migrations.running = begun;
        self.phase = Phase::Migrating;
        for ticket in tickets {
            self.proceed(ticket);
        }
    }
}

impl Migrations {
    fn look_at(
        &self,
        known: &mut Knowledge,
        each: Waiting,
        movers: &BTreeSet<Guid>,
        taken: &mut Taken,
        round: u64,
    ) -> Result<Running, (Waiting, Refusal)> {
        let Waiting { job, asked, .. } = each;
        let vm = asked.vm;
        let planned = match job {
            Job::Start => known.plan_start(vm),
            Job::End => known.plan_end(vm),
            Job::Move => {
                if !taken.vms.insert(vm) {
                    return Err((each, Refusal::Later(Wait::Itself)));
                }
                let ends = known.ends(&asked);
                let planned = self.plan(known, &asked, &taken.functions);
                let busy = Taken::at(&taken.kept, ends).or_else(|| match &planned {
                    Ok((plan, _)) => taken.busy(&plan.blocks, ends),
                    // Who leaves may make room, and who comes may take it.
                    Err(
                        MigrationError::NoFreeFunction { .. } | MigrationError::Occupied { .. },
                    ) => Taken::at(&taken.ends, ends),
                    Err(_) => None,
                });
                if let Some(busy) = busy {
                    taken.keep(vm, ends);
                    return Err((each, Refusal::Later(known.switch_of(busy))));
                }
                planned
            }
        };
        match planned {
            Ok((plan, mut moved)) => {
                if job == Job::Move {
                    taken.take(vm, &plan, known.ends(&asked));
                    known.swap_manager_levels(vm, plan.spare);
                }
                (moved.round, moved.waited) = (round, each.waited);
                Ok(Running {
                    ticket: each.ticket,
                    job,
                    asked,
                    plan,
                    moved,
                    per_switch: BTreeMap::new(),
                    next: Some(match job {
                        Job::Move => Stage::Detach,
                        Job::Start | Job::End => Stage::Address,
                    }),
                    open: 0,
                    dropping: false,
                    failure: None,
                })
            }
            Err(error) => {
                let holders = known.holders(&error, vm, movers);
                let refusal = if holders.is_empty() {
                    Refusal::Never(error)
                } else {
                    Refusal::NoPlace(holders)
                };
                Err((each, refusal))
            }
        }
    }
}

impl Running {
    fn is_alone(&self) -> bool {
        self.job != Job::Move || self.moved.method == Method::Full
    }
}
