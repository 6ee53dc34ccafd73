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
    let rows: Vec<Row> = by_tree(simulations).into_iter().map(row).collect();
    let fewer = rows.iter().filter(|row| {
        let [minimal, iterative, most, most_iterative] =
            [0, 1, 2, 3].map(|at| row.values.get(at).and_then(|value| value.measured));
        minimal < iterative && most < most_iterative
    });
    let verdict = format!(
        "Published: FTreeMinRC changes fewer than ItRC, in the mean and at most. So it does here in {} of {} \
         trees.",
        fewer.count(),
        rows.len()
    );
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
        rows,
        remarks: vec![
            "Over all migrations of the 21 simulations of a tree. Published as a plot without numbers."
                .to_owned(),
            verdict,
        ],
    }
}

/// Statement of the paper, in words, about the improvement of the final bandwidth by a fresh routing.
enum Said {
    /// Up to almost this many percent.
    UpTo(f64),
    /// About this many percent.
    About(f64),
    /// Nothing.
    Nothing,
}

fn said(start: Start, pattern: Pattern) -> Said {
    match (start, pattern) {
        (Start::Uniform, Pattern::Random) | (_, Pattern::ToUniform) => Said::UpTo(10.0),
        (Start::Random, Pattern::Random) => Said::Nothing,
        (_, Pattern::Consolidate | Pattern::Grouping) => Said::About(1.0),
    }
}

/// Holds a statement against the values of a row, one for each tree.
fn verdict(said: &Said, name: &str, values: &[Value]) -> Option<String> {
    let percent: Vec<f64> = values.iter().filter_map(|value| value.measured).collect();
    let least = percent.iter().copied().fold(f64::INFINITY, f64::min);
    let most = percent.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // "About" is what rounds to it.
    let (claim, above, below) = match *said {
        Said::UpTo(bound) => (format!("up to almost {bound} %"), bound, f64::NEG_INFINITY),
        Said::About(bound) => (format!("about {bound} %"), bound + 0.5, bound - 0.5),
        Said::Nothing => return None,
    };
    let more = percent.iter().filter(|&&percent| percent >= above).count();
    let less = percent.iter().filter(|&&percent| percent < below).count();
    let trees = percent.len();
    let holds = trees - more - less;
    let but = [(more, "more"), (less, "less")]
        .into_iter()
        .filter(|(count, _)| *count > 0);
    let but: Vec<String> = but
        .map(|(count, word)| format!("{word} in {count}"))
        .collect();
    let but = if but.is_empty() {
        String::new()
    } else {
        format!(", {}", but.join(", "))
    };
    Some(format!(
        "{name}: published {claim}; here {least:.1} to {most:.1} %, so in {holds} of {trees} trees{but}."
    ))
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
         {most:.1} % at most. It gives every root as many machines, and not every root as many of those \
         that a draw pairs.",
        worse.len()
    )
}

/// Figures 8b to 8h: by how much a fresh routing improves the bandwidth in the end, in percent of what
/// the moves have left; of the populations the most.
fn bandwidth(simulations: &[Outcome]) -> Comparison {
    let trees = by_tree(simulations);
    let mut rows: BTreeMap<usize, (String, Vec<Value>, Said)> = BTreeMap::new();
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
                .or_insert_with(|| (format!("{from}, {to}"), Vec::new(), Said::Nothing));
            row.1.push(Value::measured(most));
            row.2 = said(start, pattern);
        }
    }
    let mut remarks = vec![
        "By how much a fresh vSwitchFatTree improves the effective bisection bandwidth that FTreeMinRC's tables \
         have left, in percent of the latter; of 25, 50 and 75 % of the functions in use the most. Published as \
         plots without numbers; the statements about them follow."
            .to_owned(),
    ];
    remarks.extend(
        rows.values()
            .filter_map(|(name, values, said)| verdict(said, name, values)),
    );
    remarks.push(fresh_is_worse(simulations));
    remarks.push(
        "Why a fresh routing improves: switches that are not marked go on sending a LID up to the root that was \
         chosen for its old place. The paper leaves open who of a group moves where: here machines stay that are \
         where their group gathers, and the others come in the order of where they are, so that neighbours, who \
         have different roots, remain neighbours."
            .to_owned(),
    );
    Comparison {
        name: "figure-8b-h",
        title: format!(
            "Figures 8b to 8h of {SOURCE}: improvement by a fresh routing after all migrations"
        ),
        of: "placement and pattern",
        columns: trees
            .into_iter()
            .map(|(name, _)| Column::new(name, "%"))
            .collect(),
        rows: rows
            .into_values()
            .map(|(name, values, _)| Row { name, values })
            .collect(),
        remarks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_in_words() {
        let values = [1.2, 0.2, 9.0, 10.2].map(Value::measured);
        let of = |said| verdict(&said, "a", &values);
        assert_eq!(
            of(Said::About(1.0)).as_deref(),
            Some(
                "a: published about 1 %; here 0.2 to 10.2 %, so in 1 of 4 trees, more in 2, less in 1."
            )
        );
        assert_eq!(
            of(Said::UpTo(10.0)).as_deref(),
            Some(
                "a: published up to almost 10 %; here 0.2 to 10.2 %, so in 3 of 4 trees, more in 1."
            )
        );
        assert_eq!(of(Said::Nothing), None);
    }
}
