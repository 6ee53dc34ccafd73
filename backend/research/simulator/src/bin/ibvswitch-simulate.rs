//! Experiments with large InfiniBand subnets in memory.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_simulator::cli::main()
}
