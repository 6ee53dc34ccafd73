//! A cache of paths for the programs of a host or guest.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_sm::path_service::main()
}
