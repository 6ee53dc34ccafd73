//! Figure 8: what migrations do to fat-trees.

use std::collections::BTreeMap;

use topologies::FatTree;

use super::{Effort, Findings, PapersError};
use crate::comparison::{Column, Comparison, Row, Value};
use crate::migration::{self, Outcome, Pattern, Start};
use crate::progress::{Progress, Step};

const SOURCE: &str = "\"Efficient Routing and Reconfiguration in Virtualized HPC Environments with \
                      vSwitch-enabled Lossless Networks\"";

/// Figure 8, of trees up to so many hypervisors.
pub(super) fn figure_8(effort: Effort, progress: Progress<'_>) -> Result<Findings, PapersError> {
    let mut trees = Vec::new();
    for text in migration::TREES {
        let tree: FatTree = text.parse()?;
        if tree.hosts() <= effort.hypervisors {
            trees.push(tree);
        }
    }
    let mut simulations = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        let studies = migration::studies(tree, effort.draws, effort.lids.seed);
        simulations.extend(migration::run(&studies, &|at| {
            progress(Step {
                what: at.what,
                done: number * at.of + at.done,
                of: trees.len() * at.of,
            });
        })?);
    }
    Ok(Findings {
        comparisons: vec![switches(&simulations), bandwidth(&simulations)],
        simulations,
    })
}

/// By tree, in the order of the simulations.
fn by_tree(simulations: &[Outcome]) -> Vec<(String, Vec<&Outcome>)> {
    let mut trees: Vec<(String, Vec<&Outcome>)> = Vec::new();
    for outcome in simulations {
        let name = outcome.study.tree.to_string();
        match trees.last_mut() {
            Some((last, outcomes)) if *last == name => outcomes.push(outcome),
            _ => trees.push((name, vec![outcome])),
        }
    }
    trees
}

/// Figure 8a.
fn switches(simulations: &[Outcome]) -> Comparison {
    let row = |(name, outcomes): (String, Vec<&Outcome>)| {
        let moves: usize = outcomes.iter().map(|outcome| outcome.moves).sum();
        let mean = |of: &dyn Fn(&Outcome) -> f64| {
            let sum = outcomes
                .iter()
                .map(|outcome| of(outcome) * outcome.moves as f64);
            Value::measured(sum.sum::<f64>() / moves.max(1) as f64)
        };
        let most = |of: &dyn Fn(&Outcome) -> usize| {
            let most = outcomes.iter().map(|outcome| of(outcome)).max();
            Value::measured(most.unwrap_or(0) as f64)
        };
        Row {
            name,
            values: vec![
                mean(&|outcome| outcome.minimal.mean),
                mean(&|outcome| outcome.iterative.mean),
                most(&|outcome| outcome.minimal.maximum),
                most(&|outcome| outcome.iterative.maximum),
                Value::measured(outcomes.first().map_or(0, |outcome| outcome.switches) as f64),
            ],
        }
    };
    Comparison {
        name: "figure-8a",
        title: format!("Figure 8a of {SOURCE}: switches that a migration changes"),
        of: "tree",
        columns: vec![
            Column::new("FTreeMinRC, mean", "switches"),
            Column::new("ItRC, mean", "switches"),
            Column::new("FTreeMinRC, most", "switches"),
            Column::new("ItRC, most", "switches"),
            Column::new("in the tree", "switches"),
        ],
        rows: by_tree(simulations).into_iter().map(row).collect(),
        remarks: vec![
            "Over all migrations of the 21 simulations of a tree. Published as a plot without \
             numbers; its finding is that FTreeMinRC changes fewer than ItRC, in the mean and at \
             most."
                .to_owned(),
        ],
    }
}

/// Published improvement of the final bandwidth by a fresh routing, at most, in percent; none is published for
/// random to random.
fn published_improvement(start: Start, pattern: Pattern) -> Option<f64> {
    match (start, pattern) {
        (Start::Uniform, Pattern::Random) | (_, Pattern::ToUniform) => Some(10.0),
        (Start::Random, Pattern::Random) => None,
        (_, Pattern::Consolidate | Pattern::Grouping) => Some(1.0),
    }
}

/// The name of a start and a pattern.
fn moves(start: Start, pattern: Pattern) -> (&'static str, &'static str) {
    let start = match start {
        Start::Uniform => "uniform",
        Start::Random => "random",
    };
    let pattern = match pattern {
        Pattern::Random => "random",
        Pattern::Consolidate => "consolidate",
        Pattern::Grouping => "grouping",
        Pattern::ToUniform => "to uniform",
    };
    (start, pattern)
}

/// In how many snapshots a fresh routing is worse, beside what the paper says.
fn fresh_is_worse(simulations: &[Outcome]) -> String {
    let snapshots = simulations.iter().flat_map(|outcome| &outcome.snapshots);
    let all = snapshots.clone().count();
    // A thousandth of a percent is rounding.
    let worse = snapshots.map(|snapshot| -100.0 * snapshot.improvement());
    let worse: Vec<f64> = worse.filter(|&percent| percent > 0.001).collect();
    let most = worse.iter().copied().fold(0.0, f64::max);
    format!(
        "Published: a fresh routing is never worse. Here it is worse in {} of {all} snapshots, by \
         {most:.1} % at most: it gives every root as many machines, and not every root as many of \
         those that a draw pairs.",
        worse.len()
    )
}

/// Figures 8b to 8h: by how much a fresh routing improves the bandwidth in the end, in percent of what
/// the moves have left; of the populations the most.
fn bandwidth(simulations: &[Outcome]) -> Comparison {
    let trees = by_tree(simulations);
    let mut rows: BTreeMap<usize, (String, Vec<Value>)> = BTreeMap::new();
    for (_, outcomes) in &trees {
        let mut kinds: Vec<(Start, Pattern)> = Vec::new();
        for outcome in outcomes {
            let kind = (outcome.study.start, outcome.study.pattern);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        for (at, &(start, pattern)) in kinds.iter().enumerate() {
            let same = outcomes
                .iter()
                .filter(|outcome| (outcome.study.start, outcome.study.pattern) == (start, pattern));
            let percent = same.map(|outcome| outcome.improvement() * 100.0);
            let most = percent.fold(f64::NEG_INFINITY, f64::max);
            let (from, to) = moves(start, pattern);
            let row = rows
                .entry(at)
                .or_insert_with(|| (format!("{from}, {to}"), Vec::new()));
            row.1.push(Value {
                measured: Some(most),
                published: published_improvement(start, pattern),
            });
        }
    }
    Comparison {
        name: "figure-8b-h",
        title: format!(
            "Figures 8b to 8h of {SOURCE}: improvement by a fresh routing after all migrations"
        ),
        of: "placement and pattern",
        columns: trees.into_iter().map(|(name, _)| Column::new(name, "%")).collect(),
        rows: rows
            .into_values()
            .map(|(name, values)| Row { name, values })
            .collect(),
        remarks: vec![
            "By how much a fresh vSwitchFatTree improves the effective bisection bandwidth that \
             FTreeMinRC's tables have left, in percent of the latter; of 25, 50 and 75 % of the \
             functions in use the most. Published: no numbers, but up to about 10 % from uniform to \
             random and back, about 1 % after consolidating and grouping."
                .to_owned(),
            fresh_is_worse(simulations),
            "After grouping the published 1 % does not reproduce. Switches that are not marked go on \
             sending a LID up to the root that was chosen for its old place. The paper leaves open \
             who of a group moves where: here machines stay that are where their group gathers, and the others come in \
             the order of where they are, so that neighbours, who have different roots, remain \
             neighbours. Groups that gather in random order lose up to twice as much."
                .to_owned(),
        ],
    }
}
