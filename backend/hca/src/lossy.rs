//! Links that lose packets. A message is carried out as a whole, once all of its packets have arrived, but
//! they are lost one by one, and sent again as a wire's requester and responder would (IBA 9.7.5, 9.7.6).
//!
//! What follows a packet that got lost arrives out of sequence and tells the requester at once, by a NAK
//! or, in the response to a read, by the gap. What nothing follows it misses after its local ACK timeout,
//! an acknowledgement that got lost likewise: the request that it then sends again is a duplicate, which
//! the responder knows by its number. Retries count as long as there is no progress.

use std::sync::atomic::AtomicU64;

use wire::Psn;

use crate::access::Domain;
use crate::engine::{Engine, QpIndex, VfId};
use crate::face::Face;
use crate::flight::Flight;
use crate::message::{HEADER_WORDS, check_local};
use crate::progress::{Outcome, failed};
use crate::qp::{Impairment, Peer, Qp};
use crate::reason::Reason;
use crate::traffic::PathId;
use crate::vf::TrafficCounters;
use crate::work::{Operation, SendWr, Status};

/// Packets that are sent before it is known how the first of them fared.
const WINDOW: u64 = 64;
/// Packets after which others have their turn.
const TURN_PACKETS: u64 = 4096;

/// What connections of a function have missed or received twice, by the names that Linux gives the
/// counters of hardware. Written by the engine alone.
#[derive(Debug, Default)]
pub struct RetryCounters {
    /// Local ACK timeouts that ran out.
    pub local_ack_timeout_err: AtomicU64,
    /// NAKs for a sequence error that requesters received.
    pub packet_seq_err: AtomicU64,
    /// Gaps that requesters found in responses.
    pub implied_nak_seq_err: AtomicU64,
    /// NAKs of receivers that were not ready.
    pub rnr_nak_retry_err: AtomicU64,
    /// Packets that responders received out of sequence.
    pub out_of_sequence: AtomicU64,
    /// Packets of requests that responders had carried out before.
    pub duplicate_request: AtomicU64,
}

/// How much of a request has got through that is not carried out yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    /// The request's first packet.
    psn: Psn,
    /// Packets of the request, and of the response where that brings something.
    packets: [u64; 2],
    /// The responder has had the request before.
    asked: bool,
}

/// Packets from one port to another.
#[derive(Clone, Copy)]
struct Leg {
    from: VfId,
    to: VfId,
    path: PathId,
    faulty: bool,
}

/// How many packets are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// All.
    Sent,
    /// As many as it takes for the receiver to see that one is missing, and to say so without delay.
    Missed,
}

/// How some packets fared.
enum Passage {
    All,
    /// As many arrived in order. `Some` of those after them arrived.
    Gap {
        before: u64,
        stray: u64,
    },
}

impl<F: Face> Engine<F> {
    /// Whether a connected request may be carried out now, as far as losses on the way to `peer` and back
    /// are concerned; else what has come of it.
    #[cold]
    pub(crate) fn pass(
        &mut self,
        index: QpIndex,
        peer: Peer,
        wr: &mut SendWr,
        len: u64,
    ) -> Result<(), Outcome> {
        let ends = (self.qps.get(index.0), self.qps.get(peer.qp.0));
        let (Some(Qp { core, req, .. }), Some(to)) = ends else {
            return Err(Outcome::Unanswered);
        };
        if req.offset > 0 {
            // The rest of one that has passed.
            return Ok(());
        }
        let vf = self.vf(core.vf);
        let domain = Domain {
            dma: &vf.dma,
            keys: &vf.keys,
            pd: core.pd,
        };
        if let Err(error) = check_local(domain, wr) {
            let reason = Reason::LocalKey(error.into());
            return Err(failed(wr, Status::LocalProtection, reason));
        }
        let (psn, reliable) = (req.psn, core.transport.is_reliable());
        let executed = psn != to.resp.psn && psn.precedes(to.resp.psn);
        let legs = legs(core.vf, to.core.vf, peer, req.impairment.faulty);
        let packets = len.div_ceil(u64::from(peer.mtu)).max(1);
        let words = (len / packets).div_ceil(4) + HEADER_WORDS;
        if !reliable {
            return match self.send_over(legs[0], packets, words, Until::Sent) {
                Passage::All => Ok(()),
                Passage::Gap { .. } => Err(self.dropped(index, len, peer.mtu)),
            };
        }
        if executed && !wr.operation.fills_list() {
            return self.duplicate(legs[0], packets, words);
        }
        // What goes there, and what comes back.
        let ways = match wr.operation {
            Operation::Read => [(1, HEADER_WORDS), (packets, words)],
            operation if operation.fills_list() => [(1, words), (1, words)],
            _ => [(packets, words), (0, 0)],
        };
        let mut passed = req.passed.filter(|passed| passed.psn == psn);
        let passed = passed.get_or_insert(Passed {
            psn,
            packets: [0; 2],
            asked: false,
        });
        let result = self.pass_both(index, legs, ways, passed);
        if let Some(qp) = self.qps.get_mut(index.0) {
            qp.req.passed = result.is_err().then_some(*passed);
        }
        result
    }

    /// Sends what is left of a request, and has the response come.
    fn pass_both(
        &mut self,
        index: QpIndex,
        legs: [Leg; 2],
        ways: [(u64, u64); 2],
        passed: &mut Passed,
    ) -> Result<(), Outcome> {
        let flight = self
            .qps
            .get(index.0)
            .and_then(|qp| qp.req.flight.as_deref());
        let until = match flight.map_or(0, Flight::round_trip) {
            0 => Until::Missed,
            _ => Until::Sent,
        };
        let mut left = TURN_PACKETS;
        let mut way = 0;
        while way < 2 {
            let (all, words) = ways[way];
            let rest = all - passed.packets[way];
            if rest == 0 {
                if way == 0 && ways[1].0 > 0 {
                    if passed.asked {
                        let responder = &self.vf(legs[0].to).counters.retries;
                        TrafficCounters::add(&responder.duplicate_request, 1);
                    }
                    passed.asked = true;
                }
                way += 1;
                continue;
            }
            if left == 0 {
                return Err(Outcome::Partly);
            }
            let count = rest.min(WINDOW).min(left);
            left -= count;
            let Passage::Gap { before, stray } = self.send_over(legs[way], count, words, until)
            else {
                passed.packets[way] += count;
                continue;
            };
            passed.packets[way] += before;
            let noticed = stray > 0 || self.is_followed(index, legs[way], rest > count);
            let seen = noticed.then_some(stray.max(1));
            let retry = self.retry(index, legs[way], way, before > 0, seen);
            if way == 1 {
                // The rest has to be asked for.
                passed.packets[0] = 0;
                way = 0;
            }
            retry?;
        }
        Ok(())
    }

    /// A packet is missing on the way there (0) or back (1): it is sent again at once, if packets after
    /// it were `seen` and it may be; else when the time has come.
    fn retry(
        &mut self,
        index: QpIndex,
        leg: Leg,
        way: usize,
        progress: bool,
        seen: Option<u64>,
    ) -> Result<(), Outcome> {
        let Some(qp) = self.qps.get_mut(index.0) else {
            return Err(Outcome::Unanswered);
        };
        if progress {
            qp.req.reload_retries(&qp.core.attr);
        }
        let Some(stray) = seen else {
            return Err(Outcome::Unanswered);
        };
        let exhausted = qp.req.retries_left == 0;
        let round_trip = qp.req.flight.as_deref().map_or(0, Flight::round_trip);
        qp.req.retries_left = qp.req.retries_left.saturating_sub(1);
        let [sender, receiver] = [leg.from, leg.to].map(|vf| &self.vf(vf).counters.retries);
        if way == 0 {
            TrafficCounters::add(&receiver.out_of_sequence, stray);
            TrafficCounters::add(&sender.packet_seq_err, 1);
        } else {
            TrafficCounters::add(&receiver.implied_nak_seq_err, 1);
        }
        match (exhausted, round_trip) {
            (true, _) => Err(Outcome::Failed(Status::RetryExceeded)),
            (false, 0) => Ok(()),
            (false, _) => Err(Outcome::SendAgain),
        }
    }

    /// Whether a packet arrives that follows: the message has `more`, or another one is posted.
    fn is_followed(&mut self, index: QpIndex, leg: Leg, more: bool) -> bool {
        let posted = || {
            let Some(qp) = self.qps.get(index.0) else {
                return false;
            };
            let departed = |flight: &Flight| flight.has_departed();
            let dma = &self.vf(qp.core.vf).dma;
            let queue = qp.req.queue.as_ref();
            qp.req.flight.as_deref().is_some_and(departed)
                || queue.is_some_and(|queue| F::send_posted(dma, queue))
        };
        (more || posted()) && self.lose(leg, 1, HEADER_WORDS).is_none()
    }

    /// A request that the responder has carried out is sent again: it acknowledges what it knows.
    fn duplicate(&mut self, leg: Leg, packets: u64, words: u64) -> Result<(), Outcome> {
        let (before, arrived) = match self.send_over(leg, packets, words, Until::Sent) {
            Passage::All => (packets, packets),
            Passage::Gap { before, stray } => (before, before + stray),
        };
        self.count_unused(leg, before, words);
        let responder = &self.vf(leg.to).counters.retries;
        TrafficCounters::add(&responder.duplicate_request, arrived);
        match arrived {
            0 => Err(Outcome::Unanswered),
            _ => Ok(()),
        }
    }

    /// What a requester makes of a request that was carried out, or not, where acknowledgements may get
    /// lost or have no way. `psn` is where it began.
    #[cold]
    pub(crate) fn acknowledged(
        &mut self,
        index: QpIndex,
        peer: Peer,
        psn: Psn,
        outcome: Outcome,
    ) -> Outcome {
        let ends = (self.qps.get(index.0), self.qps.get(peer.qp.0));
        let (Outcome::Done(_), (Some(Qp { core, req, .. }), Some(to))) = (outcome, ends) else {
            return outcome;
        };
        let Impairment {
            answers, faulty, ..
        } = req.impairment;
        let [_, back] = legs(core.vf, to.core.vf, peer, faulty);
        // One for what follows would do for this as well.
        let heard = answers
            && (self.lose(back, 1, HEADER_WORDS).is_none() || self.is_followed(index, back, false));
        if heard {
            return outcome;
        }
        if let Some(qp) = self.qps.get_mut(index.0) {
            qp.req.psn = psn;
            qp.req.offset = 0;
        }
        Outcome::Unanswered
    }

    /// Sends packets of `words` words each: all of them, or `until` the receiver has told that one is
    /// missing. What gets lost, and what arrives in vain, is counted here; the rest when the message is
    /// carried out.
    fn send_over(&mut self, leg: Leg, packets: u64, words: u64, until: Until) -> Passage {
        let Some(before) = self.lose(leg, packets, words) else {
            return Passage::All;
        };
        let (mut left, mut lost) = (packets - before - 1, 1);
        let mut stray = 0;
        while left > 0 && (until == Until::Sent || stray == 0) {
            let count = match until {
                Until::Sent => left,
                Until::Missed => 1,
            };
            let arrived = self.lose(leg, count, words);
            stray += arrived.unwrap_or(count);
            lost += u64::from(arrived.is_some());
            left -= arrived.map_or(count, |arrived| arrived + 1);
        }
        self.vf(leg.from).counters.sent(lost * words, lost);
        self.count_unused(leg, stray, words);
        Passage::Gap { before, stray }
    }

    /// Counts packets that arrive and are of no use.
    fn count_unused(&self, leg: Leg, packets: u64, words: u64) {
        self.traffic.add(leg.path, packets * words, packets);
        self.vf(leg.from).counters.sent(packets * words, packets);
        self.vf(leg.to).counters.received(packets * words, packets);
    }

    fn lose(&mut self, leg: Leg, packets: u64, words: u64) -> Option<u64> {
        match leg.faulty {
            true => self.subnet.lose(leg.path, packets, words),
            false => None,
        }
    }
}

/// The way there and the way back.
fn legs(from: VfId, to: VfId, peer: Peer, faulty: [bool; 2]) -> [Leg; 2] {
    let [there, back] = peer.paths;
    [(from, to, there, faulty[0]), (to, from, back, faulty[1])].map(|(from, to, path, faulty)| {
        Leg {
            from,
            to,
            path,
            faulty,
        }
    })
}
