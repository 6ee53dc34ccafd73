//! `ibvswitch-path-cache` in a guest: it answers the path queries of the guest's kernel, and keeps the paths with the flag that
//! addresses move with their owners.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guest::Guest;

/// Path of the program in guests.
pub const PROGRAM: &str = "usr/bin/ibvswitch-path-cache";

/// The program with this name of the crate `sm` of this build, which is beside `built`, another program of it.
///
/// # Errors
/// It is not built.
pub fn program(built: &str, name: &str) -> Result<PathBuf> {
    let program = PathBuf::from(built).with_file_name(name);
    if program.exists() {
        return Ok(program);
    }
    Err(Error::Host(format!(
        "no {}; build it: cargo build -p ibvswitch-sm",
        program.display()
    )))
}

/// Starts it, and waits until the kernel's queries come to it.
///
/// # Errors
/// The guest's.
pub fn start(guest: &Guest, limit: Duration) -> Result<()> {
    let command = "(ibvswitch-path-cache >/tmp/path-cache.log 2>&1 </dev/null &); \
                   until grep -q answered /tmp/path-cache.log; do usleep 50000; done";
    guest.sh(command, limit).map(drop)
}

/// Ends it, with all that it remembers; gives the lines that it has printed.
///
/// # Errors
/// The guest's.
pub fn stop(guest: &Guest, limit: Duration) -> Result<String> {
    let command = "killall ibvswitch-path-cache; \
                   while pidof ibvswitch-path-cache >/dev/null; do usleep 20000; done; cat /tmp/path-cache.log";
    guest.sh(command, limit)
}
