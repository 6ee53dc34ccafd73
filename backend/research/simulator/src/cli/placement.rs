//! `ibvswitch simulate placement`

use std::time::Duration;

use clap::Args;

use super::number::at_least;
use super::{CliError, print, print_json};
use crate::quality::placement::{Outcomes, compare};

/// Time for each 0-1 program.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `simulate placement`.
#[derive(Debug, Args)]
pub(super) struct PlacementArgs {
    /// Number of random instances: 2 to 8 hosts in two levels of switches, up to 9 VMs.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = at_least(1u64))]
    instances: u64,
    /// Seed of the random numbers.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PlacementArgs) -> Result<(), CliError> {
    let outcomes = compare(args.instances, args.seed, PROGRAM_TIMEOUT);
    if args.json {
        return print_json(&outcomes);
    }
    let Outcomes {
        instances,
        optimal,
        worse,
        refused,
        missed,
        undecided,
        mean_gap_percent,
        longest_gap_percent,
        heuristic_us,
        program_us,
    } = outcomes;
    print(&format!(
        "{instances} instances: {optimal} with the fewest cables, {worse} with more, {refused} refused by both, \
         {missed} by the heuristic alone, {undecided} not decided\n\
         cables over the fewest: {mean_gap_percent:.2} % on average, {longest_gap_percent:.1} % at most\n\
         time: heuristic {heuristic_us:.0} us, program {program_us:.0} us\n"
    ))
}
