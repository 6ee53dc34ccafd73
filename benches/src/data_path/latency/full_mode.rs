//! Price of full mode on the data path: a small WRITE between VMs of a tenant with a subnet manager of its own, beside
//! one between VMs of the same daemon without a cluster.

use super::{POLL, PingStream};
use crate::daemons::lab::two_vfs;
use crate::daemons::pace::median;
use crate::management::opensm;
use crate::{BenchError, Context, Daemon, Measurement, Pinned, Reference, Result};

/// VFs of the tenant, each on a hypervisor of its own.
const TENANT: [&str; 2] = ["tenant-a", "tenant-b"];

/// Daemons, one after the other: the places of their memory change the ratio by more than full mode does.
const DAEMONS: usize = 7;

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub(super) fn run(context: &Context) -> Result<Measurement> {
    let (mut ratios, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..DAEMONS.min(context.effort.rounds) {
        let (without, with) = one_way(context)?;
        ratios.push(with / without);
        plain.push(without);
    }
    Ok(Measurement {
        name: "full_mode_over_plain",
        value: median(ratios),
        unit: "times",
        reference: Some(Reference {
            name: "one-way time between plain VFs, ns",
            value: median(plain),
        }),
    })
}

/// One-way times at one daemon: between plain VFs, and between those of the tenant.
fn one_way(context: &Context) -> Result<(f64, f64)> {
    let socket = format!("ibvswitch-bench-full-mode-{}", std::process::id());
    let dir = tempfile::tempdir().map_err(BenchError::system("create a directory"))?;
    let text = two_vfs(Some(context.processors.engine), POLL)
        .set("external.socket", socket.as_str())
        .entry("cluster", "tenant")
        .key("view", "full")
        .key("full_mode_lease_s", 3600)
        .hypervisor("hv2", [])
        .member(TENANT[0], "tenant")
        .hypervisor("hv3", [])
        .member(TENANT[1], "tenant");
    let daemon = Daemon::with(&text)?;
    let manager = format!("tenant/{}", TENANT[0]);
    let opensm = opensm::start(&socket, &manager, dir.path(), &[])?;
    let [near, far] = TENANT.map(|name| daemon.peer(name, 4096));
    let mut peers = [daemon.peers(4096)?, [near?, far?]];
    let _pinned = Pinned::to(context.processors.driver)?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..context.effort.rounds {
        for (times, peers) in times.iter_mut().zip(&mut peers) {
            let mut stream = PingStream::new(peers)?;
            let batches = 0..8 * context.effort.batches;
            let round = batches.map(|_| stream.one_way(peers));
            times.push(median(round.collect::<Result<_>>()?));
        }
    }
    drop(opensm);
    let [plain, tenant] = times.map(median);
    Ok((plain, tenant))
}
