//! A cable that is out for a while.

use std::{thread, time::Duration};

use crate::{daemon::Daemon, error::Result};

/// So long it is: the driver has told all its users by then, and a reliable connection has begun to send again.
const LASTS: Duration = Duration::from_secs(5);

/// Pulls the cable out of `port` (`vm1:1`) and puts it in again. What `at` finds when it has just been pulled
/// out, and before it is put in.
pub fn outage<T>(daemon: &Daemon, port: &str, mut at: impl FnMut() -> Result<T>) -> Result<[T; 2]> {
    daemon.ask(&["link", "down", port])?;
    let first = at();
    // How long it lasts is what this is about; nothing happens at its end but what is done here.
    thread::sleep(LASTS);
    let last = at();
    daemon.ask(&["link", "up", port])?;
    Ok([first?, last?])
}
