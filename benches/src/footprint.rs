//! Memory of a daemon with idle VFs.

use crate::daemons::lab::two_vfs;
use crate::daemons::process::Process;
use crate::{BenchError, Context, Measurement, Peer, Result};

/// Measures it: drivers have initialized both VFs and do nothing.
///
/// # Errors
/// [`BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
    let text = two_vfs(None, "trap");
    let (process, config) = Process::start(dir.path(), &text, &context.program)?;
    let sockets = config.vfs().map(|(_, vf)| Peer::open(&vf.socket, 4096));
    let _peers = sockets.collect::<Result<Vec<_>>>()?;
    Ok(vec![Measurement {
        name: "daemon_rss_mib",
        value: process.resident()?,
        unit: "MiB",
        reference: None,
    }])
}
