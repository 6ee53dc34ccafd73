//! A VF that is passed through, beside the same VF used directly by the same driver.
//!
//! In each round the driver first opens the VF, then what a daemon makes of it that stands before it, and does
//! the same with both. The VF is one of a daemon in another process, or whatever VF one names.

mod commands;
mod exits;
mod lab;
mod memory;
mod operations;
mod plain;

use lab::{Behind, Front};
use operations::Times;

use crate::daemons::pace::median;
use crate::data_path::latency::PingStream;
use crate::data_path::rate::Stream;
use crate::{Context, Measurement, Peer, Pinned, Reference, Result, Tell};

/// Bytes of each end's buffer.
const BUFFER: usize = 4096;
/// Batches of a rate before those that count.
const WARM_UP: usize = 8;

/// Results of one way to a VF in a round.
#[derive(Debug, Default)]
struct Round {
    one_way_ns: f64,
    mops: f64,
    command_us: f64,
    qps_per_s: f64,
}

fn round(context: &Context, peers: &mut [Peer; 2], times: &mut [Times; 4]) -> Result<Round> {
    let _pinned = Pinned::to(context.processors.driver)?;
    operations::measure(peers, context.effort.batches, times)?;
    let mut stream = PingStream::new(peers)?;
    let batches = (0..8 * context.effort.batches).map(|_| stream.one_way(peers));
    let one_way_ns = median(batches.collect::<Result<_>>()?);
    drop(stream);
    let mut stream = Stream::new(peers, 1)?;
    let batches = WARM_UP + context.effort.batches;
    let rates = (0..batches).map(|_| stream.rate(peers));
    let rates: Vec<f64> = rates.collect::<Result<_>>()?;
    stream.check(peers)?;
    drop(stream);
    Ok(Round {
        one_way_ns,
        mops: median(rates[WARM_UP..].to_vec()),
        command_us: commands::query_us(&peers[0].device, context.effort.batches)?,
        qps_per_s: commands::qps_per_s(peers, context.effort.batches)?,
    })
}

/// The median over rounds.
fn typical(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    median(rounds.iter().map(of).collect())
}

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context, tell: Tell<'_>) -> Result<()> {
    let behind = Behind::new(context)?;
    let (mut direct, mut passed) = (Vec::new(), Vec::new());
    let mut times: [[Times; 4]; 2] = Default::default();
    for _ in 0..context.effort.rounds {
        if let Some(there) = behind.direct(context)? {
            let mut peers = lab::peers(&there.sockets)?;
            direct.push(round(context, &mut peers, &mut times[0])?);
        }
        let front = Front::start(context, &behind)?;
        let mut peers = lab::peers(&front.sockets)?;
        passed.push(round(context, &mut peers, &mut times[1])?);
    }
    let beside = |name, of: fn(&Round) -> f64| {
        let value = typical(&direct, of);
        (!direct.is_empty()).then_some(Reference { name, value })
    };
    for (name, unit, reference, of) in [
        (
            "passthrough_command_us",
            "us",
            "direct, us",
            (|it| it.command_us) as fn(&Round) -> f64,
        ),
        ("passthrough_qps_per_s", "1/s", "direct, 1/s", |it| {
            it.qps_per_s
        }),
    ] {
        tell(Measurement {
            name,
            value: typical(&passed, of),
            unit,
            reference: beside(reference, of),
        })?;
    }
    for (name, reference, of) in [
        (
            "passthrough_write_8b_over_direct",
            "direct, one way, ns",
            (|it| it.one_way_ns) as fn(&Round) -> f64,
        ),
        ("passthrough_mops_over_direct", "direct, M/s", |it| it.mops),
    ] {
        // Of a round each, so that a change of the machine's pace changes both.
        let ratios = passed.iter().zip(&direct).map(|(it, by)| of(it) / of(by));
        let ratios: Vec<f64> = ratios.collect();
        if !ratios.is_empty() {
            tell(Measurement {
                name,
                value: median(ratios),
                unit: "times",
                reference: beside(reference, of),
            })?;
        }
    }
    let [direct, passed] = times;
    operations::results(&passed, &direct).try_for_each(&mut *tell)?;
    exits::run(context, &behind)?
        .into_iter()
        .try_for_each(&mut *tell)?;
    tell(memory::run(context, &behind)?)
}
