//! Measures the device without guests.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_benches::cli::main()
}
