//! A stream of large RDMA WRITEs.

use test_driver::{Data, SendRequest};

use crate::daemons::pace::{timed, until};
use crate::{Connected, Peer, Result};

/// Requests of which the last completes: perftest has fewer complete.
const GROUP: usize = 8;
/// Groups in flight.
const DEPTH: u32 = 2;
/// Bytes of a batch.
pub const BATCH: usize = 8 << 20;

/// Writes of `len` bytes, one like the other, in groups of [`GROUP`], of which
/// [`DEPTH`] are in flight.
#[derive(Debug)]
pub struct Stream {
    connection: Connected,
    len: usize,
}

impl Stream {
    /// Connects two peers for it.
    pub fn new(peers: &[Peer; 2], len: usize) -> Result<Self> {
        let connection = Connected::new(peers, 8)?;
        Ok(Self { connection, len })
    }

    fn post(&mut self, [a, b]: &[Peer; 2]) -> Result<()> {
        let sges = [a.sge(self.len)];
        let request = SendRequest::write(b.remote(0), Data::Memory(&sges));
        for _ in 1..GROUP {
            self.connection.post(&request.unsignaled())?;
        }
        self.connection.post_signaled(&request)
    }

    /// Waits until a group has completed.
    fn wait(&mut self, peer: &mut Peer) -> Result<()> {
        let mut taken = Ok(false);
        until("a completion", || {
            taken = self.connection.poll(peer);
            !matches!(taken, Ok(false))
        })?;
        taken.map(drop)
    }

    /// Nanoseconds per message, over one batch. Groups before it bring the
    /// payload to the engine's cache; nothing is in flight afterwards.
    pub fn time(&mut self, peers: &mut [Peer; 2]) -> Result<f64> {
        for _ in 0..DEPTH {
            self.post(peers)?;
        }
        self.wait(&mut peers[0])?;
        self.post(peers)?;
        let groups = (BATCH / self.len / GROUP).max(1);
        let time = timed(|| {
            for _ in 0..groups {
                self.wait(&mut peers[0])?;
                self.post(peers)?;
            }
            Ok(())
        })?;
        self.connection.drain(&mut peers[0])?;
        Ok(time / (groups * GROUP) as f64)
    }
}
