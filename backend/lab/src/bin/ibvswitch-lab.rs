//! QEMU guests on a subnet of their own; `ibvswitch lab` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_lab::cli::main()
}
