//! Programs of the workspace that are built along with this one and lie beside it.

pub(super) mod bench;
pub(super) mod demo;
pub(super) mod lab;
pub(super) mod simulate;
pub(super) mod web;

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::CliError;

/// Runs `program` with `args` in place of this process; `remedy` says what to do where there is
/// none.
fn become_program(program: &str, args: &[OsString], remedy: &str) -> Result<(), CliError> {
    match start(program, args, remedy) {
        Ok(never) => match never {},
        Err(message) => Err(CliError::Sibling(message)),
    }
}

fn start(program: &str, args: &[OsString], remedy: &str) -> Result<Infallible, String> {
    let own = env::current_exe().map_err(|error| {
        format!("this program's own path is unknown: {error}; run {program} itself")
    })?;
    let path = own.with_file_name(program);
    if !path.is_file() {
        return Err(format!(
            "there is no {program} beside {}; {remedy}",
            own.display()
        ));
    }
    // Returns only if it fails.
    let error = Command::new(&path).args(args).exec();
    Err(format!("{} cannot be started: {error}", path.display()))
}
