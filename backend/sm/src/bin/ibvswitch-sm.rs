//! A subnet manager for a subnet of InfiniBand.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_sm::cli::main()
}
