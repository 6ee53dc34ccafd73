//! Connected queue pairs, and requests in flight on them.

use test_driver::{Access, Config, Connection, QueuePair, Receive, SendRequest, Transport};

use crate::daemons::pace::until;
use crate::{BenchError, Peer, Result};

/// A short receive queue.
const OWN: Receive<'static> = Receive::Own {
    log_size: 2,
    log_sges: 0,
};

/// A queue pair of the first peer, and the one of the second that it is
/// connected to.
#[derive(Debug)]
pub struct Connected {
    /// Sends.
    pub near: QueuePair,
    /// Receives.
    pub far: QueuePair,
    in_flight: u32,
}

impl Connected {
    /// Connects two peers by a reliable connection whose send queues have
    /// `1 << log_blocks` blocks.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub fn new([a, b]: &[Peer; 2], log_blocks: u32) -> Result<Self> {
        Self::between(a, b, log_blocks)
    }

    /// As [`Connected::new`].
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub(crate) fn between(a: &Peer, b: &Peer, log_blocks: u32) -> Result<Self> {
        Self::receiving(a, b, log_blocks, OWN)
    }

    /// As [`Connected::new`], where the second peer's receive requests come from here.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub(crate) fn receiving(
        a: &Peer,
        b: &Peer,
        log_blocks: u32,
        receive: Receive<'_>,
    ) -> Result<Self> {
        let create = |peer: &Peer, receive| {
            QueuePair::new(&Config {
                log_send_blocks: log_blocks,
                receive,
                ..Config::new(Transport::Rc, &peer.pd, &peer.uar, &peer.cq)
            })
        };
        let (near, far) = (create(a, OWN)?, create(b, receive)?);
        near.connect(Access::ALL, &Connection::to(b.port.lid, far.number()))?;
        far.connect(Access::ALL, &Connection::to(a.port.lid, near.number()))?;
        Ok(Self {
            near,
            far,
            in_flight: 0,
        })
    }

    /// Posts a request and rings, without waiting.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    #[inline]
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<()> {
        self.near.post_send(request)?;
        Ok(())
    }

    /// As [`Connected::post`], for a request that completes.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    #[inline]
    pub fn post_signaled(&mut self, request: &SendRequest<'_>) -> Result<()> {
        self.in_flight += 1;
        self.post(request)
    }

    /// Completions not yet taken.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Takes a completion of `peer`, if there is one; whether there was.
    ///
    /// # Errors
    /// [`BenchError::Completion`].
    #[inline]
    pub fn poll(&mut self, peer: &mut Peer) -> Result<bool> {
        let Some(entry) = peer.cq.poll() else {
            return Ok(false);
        };
        self.take(&entry)?;
        Ok(true)
    }

    /// Takes note of a completion.
    ///
    /// # Errors
    /// [`BenchError::Completion`].
    #[inline]
    pub fn take(&mut self, entry: &test_driver::Cqe) -> Result<()> {
        if !entry.is_ok() {
            return Err(BenchError::Completion(entry.syndrome()));
        }
        self.near.complete(entry);
        self.in_flight -= 1;
        Ok(())
    }

    /// Waits until everything has completed.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn drain(&mut self, peer: &mut Peer) -> Result<()> {
        while self.in_flight > 0 {
            let mut taken = Ok(false);
            until("a completion", || {
                taken = self.poll(peer);
                !matches!(taken, Ok(false))
            })?;
            taken?;
        }
        Ok(())
    }
}
