//! Requests on their way: a window of them, repeated when no answer comes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Request, Smp};
use wire::{Lid, MadPacket, Transport};

/// Room for requests that is kept while there are none.
const LARGE_QUEUE: usize = 1024;

/// Why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody answered.
    TimedOut,
    /// The answer says no.
    Refused(Status),
}

/// Outcome of a request.
#[derive(Debug)]
pub(crate) struct Outcome<P> {
    pub(crate) purpose: P,
    pub(crate) request: Request,
    pub(crate) answer: Result<[u8; DATA], Failure>,
    /// Packets that carried it.
    pub(crate) sent: u32,
}

#[derive(Debug)]
struct Outstanding<P> {
    request: Request,
    purpose: P,
    due: Duration,
    left: u8,
    sent: u32,
}

/// Requests, each with the purpose its answer serves.
#[derive(Debug)]
pub(crate) struct Requests<P> {
    window: usize,
    timeout: Duration,
    retries: u8,
    next: u64,
    waiting: VecDeque<(Request, P)>,
    outstanding: HashMap<u64, Outstanding<P>>,
    sent: u64,
    counts: BTreeMap<(Method, AttributeId), u64>,
}

impl<P> Requests<P> {
    pub(crate) fn new(window: usize, timeout: Duration, retries: u8) -> Self {
        Self {
            window,
            timeout,
            retries,
            next: 1,
            waiting: VecDeque::new(),
            outstanding: HashMap::new(),
            sent: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Packets sent, repetitions included.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Packets sent by method and attribute.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Method, AttributeId, u64)> {
        let counts = self.counts.iter();
        counts.map(|(&(method, attribute), &count)| (method, attribute, count))
    }

    fn count(&mut self, request: &Request) {
        self.sent += 1;
        let key = (request.method, request.attribute);
        *self.counts.entry(key).or_default() += 1;
    }

    /// Forgets all requests: answers to those on their way count no more.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.outstanding.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.outstanding.is_empty()
    }

    /// Queues a request; its transaction is chosen here.
    pub(crate) fn push(&mut self, mut request: Request, purpose: P) {
        request.transaction = self.next;
        // The upper half belongs to drivers that multiplex.
        self.next = (self.next + 1) & 0xffff_ffff;
        self.waiting.push_back((request, purpose));
    }

    /// Sends what the window allows.
    pub(crate) fn send(&mut self, now: Duration, transport: &mut impl Transport) {
        while self.outstanding.len() < self.window
            && let Some((request, purpose)) = self.waiting.pop_front()
        {
            transport.send(packet(&request));
            self.count(&request);
            let outstanding = Outstanding {
                due: now + self.timeout,
                left: self.retries,
                sent: 1,
                purpose,
                request,
            };
            self.outstanding
                .insert(outstanding.request.transaction, outstanding);
        }
        // The tables of a large subnet are many requests, once.
        if self.waiting.is_empty() && self.waiting.capacity() > LARGE_QUEUE {
            self.waiting = VecDeque::new();
        }
    }

    /// The request that a packet answers.
    pub(crate) fn answered(&mut self, packet: &MadPacket) -> Option<Outcome<P>> {
        let smp = Smp::new_checked(&packet.mad[..]).ok()?;
        let mad = smp.mad();
        let transaction = mad.transaction() & 0xffff_ffff;
        let asked = &self.outstanding.get(&transaction)?.request;
        let fits = mad.method().is_response()
            && mad.attribute() == asked.attribute
            && mad.modifier() == asked.modifier;
        if !fits {
            return None;
        }
        let Outstanding {
            request,
            purpose,
            sent,
            ..
        } = self.outstanding.remove(&transaction)?;
        Some(Outcome {
            sent,
            purpose,
            request,
            answer: match mad.status() {
                Status::OK => Ok(*smp.data()),
                status => Err(Failure::Refused(status)),
            },
        })
    }

    /// Repeats what has waited too long; returns what has been repeated often enough.
    pub(crate) fn overdue(
        &mut self,
        now: Duration,
        transport: &mut impl Transport,
    ) -> Vec<Outcome<P>> {
        let mut due: Vec<u64> = self
            .outstanding
            .iter()
            .filter(|(_, outstanding)| outstanding.due <= now)
            .map(|(&transaction, _)| transaction)
            .collect();
        due.sort_unstable();
        let mut failed = Vec::new();
        for transaction in due {
            let Some(outstanding) = self.outstanding.get_mut(&transaction) else {
                continue;
            };
            if outstanding.left > 0 {
                outstanding.left -= 1;
                outstanding.sent += 1;
                outstanding.due = now + self.timeout;
                transport.send(packet(&outstanding.request));
                self.sent += 1;
                let key = (outstanding.request.method, outstanding.request.attribute);
                *self.counts.entry(key).or_default() += 1;
            } else if let Some(outstanding) = self.outstanding.remove(&transaction) {
                failed.push(Outcome {
                    purpose: outstanding.purpose,
                    request: outstanding.request,
                    sent: outstanding.sent,
                    answer: Err(Failure::TimedOut),
                });
            }
        }
        failed
    }

    /// When the next request will have waited too long.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.outstanding.values().map(|o| o.due).min()
    }
}

fn packet(request: &Request) -> MadPacket {
    MadPacket::smp(Lid::NONE, request.dlid(), request.to_bytes())
}

#[cfg(test)]
mod tests {
    use wire::smp::{Destination, Route};

    use super::*;

    #[derive(Default)]
    struct Wire(Vec<MadPacket>);

    impl Transport for Wire {
        fn send(&mut self, packet: MadPacket) {
            self.0.push(packet);
        }
        fn receive(&mut self) -> Option<MadPacket> {
            None
        }
    }

    fn request() -> Request {
        Request {
            destination: Destination::Directed(Route::default()),
            method: Method::GET,
            attribute: AttributeId::NODE_INFO,
            modifier: 0,
            transaction: 0,
            m_key: 0,
            data: [0; DATA],
        }
    }

    #[test]
    fn window_repetition_and_failure() {
        let mut wire = Wire::default();
        let second = Duration::from_secs(1);
        let mut requests = Requests::new(2, second, 1);
        for purpose in ["a", "b", "c"] {
            requests.push(request(), purpose);
        }
        requests.send(Duration::ZERO, &mut wire);
        assert_eq!(wire.0.len(), 2);
        assert_eq!(requests.deadline(), Some(second));

        let mut answer = wire.0[0].clone();
        Smp::new_checked(&mut answer.mad[..])
            .unwrap()
            .respond(Status::OK);
        let outcome = requests.answered(&answer).unwrap();
        assert_eq!(outcome.purpose, "a");
        assert!(requests.answered(&answer).is_none(), "answered once");

        assert!(requests.overdue(second, &mut wire).is_empty());
        assert_eq!(requests.sent(), 3);
        let failed = requests.overdue(second * 2, &mut wire);
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].purpose, "b");
        assert_eq!(failed[0].answer, Err(Failure::TimedOut));
        requests.send(second * 2, &mut wire);
        assert!(!requests.is_empty());
    }

    #[test]
    fn another_attribute_is_no_answer() {
        let mut wire = Wire::default();
        let mut requests = Requests::new(2, Duration::from_secs(1), 1);
        requests.push(request(), ());
        requests.send(Duration::ZERO, &mut wire);
        let mut answer = wire.0[0].clone();
        let mut smp = Smp::new_checked(&mut answer.mad[..]).unwrap();
        smp.respond(Status::OK);
        smp.mad_mut().set_attribute(AttributeId::PORT_INFO, 0);
        assert!(requests.answered(&answer).is_none());
    }
}
