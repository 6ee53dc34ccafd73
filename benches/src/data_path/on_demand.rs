//! Costs of pages that could be away while they are there.

use test_driver::{Access, KeyChange, KeyUpdate, MemoryRegion, PAGE, PRESENT, SendRequest};

use crate::daemons::pace::median;
use crate::data_path::bulk::Stream;
use crate::{Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Bytes of a message, and of the regions.
const MESSAGE: usize = 64 << 10;

/// A region of a peer's buffer on demand, of which each page is there.
fn region(peer: &mut Peer, changer: &mut Connected) -> Result<MemoryRegion> {
    let region = MemoryRegion::on_demand(&peer.pd, &peer.buffer, Access::ALL)?;
    let page = |at: usize| (peer.buffer.iova() + (at * PAGE) as u64) | PRESENT;
    let entries: Vec<u8> = (0..MESSAGE / PAGE)
        .flat_map(|at| page(at).to_be_bytes())
        .collect();
    let change = KeyChange::Entries {
        first: 0,
        entries: &entries,
    };
    let key = region.key();
    changer.post_signaled(&SendRequest::key_update(KeyUpdate { key, change }))?;
    changer.drain(peer)?;
    Ok(region)
}

/// Measures it: 64 KiB writes from and to such regions against those from and to registered ones.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Measurement> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(MESSAGE)?;
    let mut stream = Stream::new(&peers, MESSAGE)?;
    let mut regions = Vec::new();
    let [a, b] = &mut peers;
    let changers = [Connected::between(a, b, 8)?, Connected::between(b, a, 8)?];
    for (peer, mut changer) in [a, b].into_iter().zip(changers) {
        regions.push(region(peer, &mut changer)?);
    }
    let _pinned = Pinned::to(context.processors.driver)?;
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    let mut swap = |peers: &mut [Peer; 2]| {
        for (peer, region) in peers.iter_mut().zip(&mut regions) {
            std::mem::swap(&mut peer.region, region);
        }
    };
    for _ in 0..context.effort.rounds * context.effort.batches.max(1) {
        let registered = stream.time(&mut peers)?;
        swap(&mut peers);
        let on_demand = stream.time(&mut peers)?;
        swap(&mut peers);
        ratios.push(on_demand / registered);
        times.push(registered);
    }
    Ok(Measurement {
        name: "odp_over_pinned",
        value: median(ratios),
        unit: "times",
        reference: Some(Reference {
            name: "a message of a registered region, ns",
            value: median(times),
        }),
    })
}
