//! The fewest configurations, by search and by integer programming.

use std::time::{Duration, Instant};

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, SolveOutcome, Variable};

use subnet_manager::routing::multipath::{
    Assignment, SplitGraph, Undecided, charged, color, descend,
};

/// Why the optimum is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExactError {
    /// The time for one problem is over.
    #[error(
        "whether {configurations} LIDs suffice for {paths} paths was not found out in time; allow more time, or take the heuristic's answer"
    )]
    TimedOut {
        /// The number tried.
        configurations: usize,
        /// Paths that part enough to matter.
        paths: usize,
    },
    /// The solver failed.
    #[error("the solver failed: {0}")]
    Solver(String),
}

/// Whether paths fit into so many configurations, as a 0-1 program (section IV): a variable
/// `X[p, i]` for each path and configuration, 1 where the path is in it; each path in exactly one;
/// of two paths that part at most one in each. There is no objective.
#[derive(Debug)]
pub struct Formulation<'a> {
    graph: &'a SplitGraph,
    configurations: usize,
}

impl<'a> Formulation<'a> {
    /// The program for so many configurations.
    #[must_use]
    pub fn new(graph: &'a SplitGraph, configurations: usize) -> Self {
        Self {
            graph,
            configurations,
        }
    }

    /// Variables, as many as bounds.
    #[must_use]
    pub fn variables(&self) -> usize {
        self.graph.len() * self.configurations
    }

    /// Equalities: one per path.
    #[must_use]
    pub fn equalities(&self) -> usize {
        self.graph.len()
    }

    /// Inequalities: one per pair that parts and configuration.
    #[must_use]
    pub fn inequalities(&self) -> usize {
        pairs(self.graph).count() * self.configurations
    }

    /// An assignment with at most so many configurations; `None` when there is none.
    ///
    /// Paths of which every two part are given different configurations to begin with, which loses
    /// no solution and spares the solver the permutations.
    ///
    /// # Errors
    /// [`ExactError`], when `limit` is over or the solver fails.
    pub fn solve(&self, limit: Duration) -> Result<Option<Vec<usize>>, ExactError> {
        let clique = self.graph.clique();
        if clique.len() > self.configurations {
            return Ok(None);
        }
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        problem.set_time_limit(limit);
        let of_path: Vec<Vec<Variable>> = (0..self.graph.len())
            .map(|path| {
                let fixed = clique.iter().position(|&other| other == path);
                let variable = |configuration| match fixed {
                    Some(fixed) => {
                        let value = i32::from(fixed == configuration);
                        problem.add_integer_var(0.0, (value, value))
                    }
                    None => problem.add_binary_var(0.0),
                };
                (0..self.configurations).map(variable).collect()
            })
            .collect();
        for variables in &of_path {
            let sum: Vec<(Variable, f64)> = variables.iter().map(|&x| (x, 1.0)).collect();
            problem.add_constraint(sum, ComparisonOp::Eq, 1.0);
        }
        for (p, q) in pairs(self.graph) {
            for (&x, &y) in of_path[p].iter().zip(&of_path[q]) {
                problem.add_constraint([(x, 1.0), (y, 1.0)], ComparisonOp::Le, 1.0);
            }
        }
        match problem.solve() {
            Err(Error::Infeasible) => Ok(None),
            Err(error) => Err(ExactError::Solver(error.to_string())),
            Ok(SolveOutcome::Solution(solution)) => {
                let label = |variables: &Vec<Variable>| {
                    variables
                        .iter()
                        .position(|&x| solution.var_value(x) > 0.5)
                        .unwrap_or_default()
                };
                Ok(Some(of_path.iter().map(label).collect()))
            }
            Ok(_) => Err(ExactError::TimedOut {
                configurations: self.configurations,
                paths: self.graph.len(),
            }),
        }
    }
}

fn pairs(graph: &SplitGraph) -> impl Iterator<Item = (usize, usize)> + '_ {
    (0..graph.len()).flat_map(|p| {
        let neighbours = graph.neighbours(p).ones();
        neighbours.filter(move |&q| p < q).map(move |q| (p, q))
    })
}

/// The fewest configurations, from `known` downwards until fewer are proved impossible (section IV).
/// `limit` is the time for each problem, half of it for a search and half for the integer program; the
/// paper allowed four hours.
///
/// # Errors
/// [`ExactError`]; the caller still has `known`.
pub fn optimum(
    graph: &SplitGraph,
    known: &Assignment,
    limit: Duration,
) -> Result<Assignment, ExactError> {
    let next = |configurations| configurations - 1;
    descend(graph, known, next, |core, fewer| solve(core, fewer, limit))
}

/// An assignment for which the destination is charged the fewest LIDs: as [`optimum`], with no
/// question asked whose answer would not change the power of two.
///
/// # Errors
/// [`ExactError`]; the caller still has `known`.
pub fn fewest_lids(
    graph: &SplitGraph,
    known: &Assignment,
    limit: Duration,
) -> Result<Assignment, ExactError> {
    let next = |configurations| charged(configurations) / 2;
    descend(graph, known, next, |core, fewer| solve(core, fewer, limit))
}

/// First a search, which settles most at once; where it does not, the program may.
fn solve(
    graph: &SplitGraph,
    configurations: usize,
    limit: Duration,
) -> Result<Option<Vec<usize>>, ExactError> {
    let until = Instant::now() + limit / 2;
    match color(graph, configurations, |_| Instant::now() <= until) {
        Ok(found) => Ok(found),
        Err(Undecided) => Formulation::new(graph, configurations).solve(limit / 2),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The paths of figure 5: the chain p1-p2-p4-p3 of figure 8.
    fn figure_5() -> SplitGraph {
        SplitGraph::of_pairs(4, &[(0, 1), (1, 3), (2, 3)])
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn the_papers_program() {
        let graph = figure_5();
        let program = Formulation::new(&graph, 2);
        let sizes = (
            program.variables(),
            program.equalities(),
            program.inequalities(),
        );
        assert_eq!(sizes, (8, 4, 6));
        let labels = program.solve(LIMIT).unwrap().unwrap();
        assert_eq!((labels[0], labels[1]), (labels[3], labels[2]));
        assert_ne!(labels[0], labels[1]);
        assert_eq!(Formulation::new(&graph, 1).solve(LIMIT), Ok(None));
    }

    #[test]
    fn greedy_is_improved_on() {
        let graph = figure_5();
        let greedy = Assignment::compact(vec![0, 1, 0, 2]);
        let best = optimum(&graph, &greedy, LIMIT).unwrap();
        assert_eq!(best.configurations(), 2);
        assert_eq!(graph.check(&best), Ok(()));
    }

    /// Whether `colors` suffice, by trying everything.
    fn colorable(graph: &SplitGraph, colors: usize, labels: &mut Vec<usize>) -> bool {
        if labels.len() == graph.len() {
            return true;
        }
        let path = labels.len();
        let used = labels.iter().max().map_or(0, |&most| most + 1);
        (0..colors.min(used + 1)).any(|color| {
            let free = (0..path).all(|other| labels[other] != color || !graph.splits(path, other));
            labels.push(color);
            let found = free && colorable(graph, colors, labels);
            labels.pop();
            found
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn the_optimum_is_what_trying_everything_finds(
            vertices in 1usize..11,
            pattern in any::<u64>(),
        ) {
            let all = (0..vertices).flat_map(|a| (a + 1..vertices).map(move |b| (a, b)));
            let edges: Vec<_> = all
                .enumerate()
                .filter(|(bit, _)| pattern >> (bit % 64) & 1 == 1)
                .map(|(_, edge)| edge)
                .collect();
            let graph = SplitGraph::of_pairs(vertices, &edges);
            // A start that is far from good.
            let known = Assignment::compact((0..vertices).collect());
            let best = optimum(&graph, &known, LIMIT).unwrap();
            let charge = fewest_lids(&graph, &known, LIMIT).unwrap();
            prop_assert_eq!(charged(charge.configurations()), charged(best.configurations()));
            let needed = (1..).find(|&colors| colorable(&graph, colors, &mut Vec::new()));
            prop_assert_eq!(Some(best.configurations()), needed);
            let program = |colors| Formulation::new(&graph, colors).solve(LIMIT).unwrap();
            let programmed = (1..).find(|&colors| program(colors).is_some());
            prop_assert_eq!(programmed, needed);
            for (p, q) in pairs(&graph) {
                prop_assert_ne!(best.configuration(p), best.configuration(q));
            }
        }
    }
}
