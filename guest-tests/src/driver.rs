//! Events for a guest's driver: it is removed and loaded again, its function is reset under it.

use std::time::Duration;

use crate::error::Result;
use crate::guest::Guest;
use crate::hca::await_active;
use crate::testbed::{DEVICE, MLX5};
use crate::tools::perftest::{Run, Tool};
use crate::tools::pingpong::Pingpong;

/// Modules that may stand on the driver, those that stand on others first.
const ABOVE: &str = "ib_ipoib rdma_ucm ib_umad";

/// Removes the driver with all that stands on it, loads it again, and waits for its port.
pub fn reload(guest: &Guest, limit: Duration) -> Result<()> {
    let remove = format!(
        "for module in {ABOVE} mlx5_ib mlx5_core; do \
         ! grep -q \"^$module \" /proc/modules || rmmod $module || exit 1; done"
    );
    guest.sh(&remove, limit)?;
    guest.sh("test ! -e /sys/class/infiniband/mlx5_0", limit)?;
    for module in MLX5 {
        guest.sh(&format!("modprobe {module}"), limit)?;
    }
    await_active(guest, DEVICE)
}

/// Resets a guest's function as its kernel does when told to, in the middle of a transfer, and waits
/// until the driver, which is not told, has noticed and has the port back.
pub fn reset_in_mid_transfer(peer: &Guest, guest: &Guest, limit: Duration) -> Result<()> {
    const RECOVERED: &str = "dmesg | grep -c 'health recovery succeeded'";
    let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
    let mut serving = peer.spawn(&run.command())?;
    serving.await_port("18515", limit)?;
    let mut writing = guest.spawn(&format!("{} {}", run.command(), peer.address()))?;
    writing.await_text(" 65536 ", limit)?;
    let before = guest.run(RECOVERED, limit)?.text;
    let reset = format!(
        "cd /sys/class/infiniband/{DEVICE}/device/ && echo flr > reset_method && echo 1 > reset"
    );
    guest.sh(&reset, limit)?;
    let more = format!(
        "until test $({RECOVERED}) -gt {}; do usleep 50000; done",
        before.trim()
    );
    guest.sh(&more, limit)?;
    drop((serving, writing));
    await_active(guest, DEVICE)?;
    Pingpong::Rc.between((peer, guest), DEVICE, false, "", limit)
}
