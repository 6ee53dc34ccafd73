//! What idle queue pairs cost those that are busy.

use crate::latency::PingStream;
use crate::pace::median;
use crate::{Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Idle queue pairs that are always there.
const FEW: usize = 10;

/// Median one-way time in each of some rounds.
fn one_way(context: &Context, stream: &mut PingStream, peers: &mut [Peer; 2]) -> Result<f64> {
    let mut rounds = Vec::new();
    for _ in 0..context.effort.rounds {
        let times = (0..context.effort.batches).map(|_| stream.one_way(peers));
        rounds.push(median(times.collect::<Result<_>>()?));
    }
    Ok(median(rounds))
}

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(4096)?;
    let mut stream = PingStream::new(&peers)?;
    let idle = |count| {
        let each = (0..count).map(|_| Connected::new(&peers, 0));
        each.collect::<Result<Vec<_>>>()
    };
    // Each connection is a queue pair on either side, of one engine.
    let _few = idle(FEW / 2)?;
    let few = {
        let _pinned = Pinned::to(context.processors.driver)?;
        one_way(context, &mut stream, &mut peers)?
    };
    let idle = |count| {
        let each = (0..count).map(|_| Connected::new(&peers, 0));
        each.collect::<Result<Vec<_>>>()
    };
    let _many = idle(context.effort.idle_queue_pairs.saturating_sub(FEW) / 2)?;
    let _pinned = Pinned::to(context.processors.driver)?;
    let many = one_way(context, &mut stream, &mut peers)?;
    Ok(vec![Measurement {
        name: "idle_qp_cost",
        value: many / few,
        unit: "times",
        reference: Some(Reference {
            name: "one-way time with 10 idle queue pairs, ns",
            value: few,
        }),
    }])
}
