//! The `ibvswitch` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch::cli::main()
}
