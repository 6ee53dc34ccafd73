//! A page that shows a running daemon; `ibvswitch web` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ibvswitch_web::cli::main()
}
