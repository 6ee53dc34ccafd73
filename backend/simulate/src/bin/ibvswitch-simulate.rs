//! Experiments with large InfiniBand subnets in memory.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_simulate::cli::main()
}
