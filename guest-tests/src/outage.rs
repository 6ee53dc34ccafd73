//! A cable that is out for a while.

use std::{thread, time::Duration};

use crate::{daemon::Daemon, error::Result};

/// Pulls the cable out of `port` (`vm1:1`), and puts it in again after a while. `at` looks twice: when the cable is
/// out, and before it is put in.
pub fn outage<T>(
    daemon: &Daemon,
    port: &str,
    lasts: Duration,
    mut at: impl FnMut() -> Result<T>,
) -> Result<[T; 2]> {
    daemon.ask(&["link", "down", port])?;
    let first = at();
    // How long it lasts is what this is about; nothing happens at its end but what is done here.
    thread::sleep(lasts);
    let last = at();
    daemon.ask(&["link", "up", port])?;
    Ok([first?, last?])
}
