//! Costs of idle queue pairs for busy ones.

use crate::daemons::pace::median;
use crate::data_path::latency::PingStream;
use crate::{Connected, Context, Daemon, Measurement, Peer, Pinned, Reference, Result};

/// Idle queue pairs that are always there.
const FEW: usize = 10;

/// Times that the idle queue pairs are created.
const CYCLES: usize = 3;

/// Median one-way time in each of some rounds.
fn one_way(context: &Context, stream: &mut PingStream, peers: &mut [Peer; 2]) -> Result<f64> {
    let _pinned = Pinned::to(context.processors.driver)?;
    let mut rounds = Vec::new();
    for _ in 0..context.effort.rounds.div_ceil(CYCLES) {
        let times = (0..context.effort.batches).map(|_| stream.one_way(peers));
        rounds.push(median(times.collect::<Result<_>>()?));
    }
    Ok(median(rounds))
}

/// Connected queue pairs that nobody uses. Each connection is one on either
/// side, of one engine.
fn idle(peers: &[Peer; 2], count: usize) -> Result<Vec<Connected>> {
    (0..count / 2).map(|_| Connected::new(peers, 0)).collect()
}

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let daemon = Daemon::start(context.processors)?;
    let mut peers = daemon.peers(4096)?;
    let mut stream = PingStream::new(&peers)?;
    let _few = idle(&peers, FEW)?;
    let (mut ratios, mut times) = (Vec::new(), Vec::new());
    for _ in 0..CYCLES {
        let few = one_way(context, &mut stream, &mut peers)?;
        let more = context.effort.idle_queue_pairs.saturating_sub(FEW);
        let _many = idle(&peers, more)?;
        ratios.push(one_way(context, &mut stream, &mut peers)? / few);
        times.push(few);
    }
    Ok(vec![Measurement {
        name: "idle_qp_cost",
        value: median(ratios),
        unit: "times",
        reference: Some(Reference {
            name: "one-way time with 10 idle queue pairs, ns",
            value: median(times),
        }),
    }])
}
