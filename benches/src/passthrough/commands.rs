//! Commands: a short one, and those that bring queue pairs up.

use std::time::Instant;

use test_driver::{Access, Config, Connection, Device, Opcode, QueuePair, Transport};

use crate::daemons::pace::median;
use crate::{Peer, Result};

/// Bytes of the question for the port's context, and of the answer.
const QUERY: usize = 16;
const CONTEXT: usize = 528;

/// Microseconds from giving a command to having its answer: the port's context, which the VF itself is asked for.
pub(super) fn query_us(device: &Device, count: usize) -> Result<f64> {
    let query = test_driver::request(Opcode::QueryHcaVportContext, 0, QUERY);
    let times = (0..count).map(|_| {
        let start = Instant::now();
        device.command(&query, CONTEXT)?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3)
    });
    Ok(median(times.collect::<Result<_>>()?))
}

/// Queue pairs per second that are created and brought to Ready to Send.
pub(super) fn qps_per_s([a, b]: &[Peer; 2], count: usize) -> Result<f64> {
    let far = QueuePair::new(&Config::new(Transport::Rc, &b.pd, &b.uar, &b.cq))?;
    let to = Connection::to(b.port.lid, far.number());
    let start = Instant::now();
    let pairs = (0..count).map(|_| {
        let pair = QueuePair::new(&Config::new(Transport::Rc, &a.pd, &a.uar, &a.cq))?;
        pair.connect(Access::ALL, &to)?;
        Ok(pair)
    });
    let pairs: Vec<QueuePair> = pairs.collect::<Result<_>>()?;
    Ok(pairs.len() as f64 / start.elapsed().as_secs_f64())
}
