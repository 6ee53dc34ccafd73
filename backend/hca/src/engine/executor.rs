//! The executor carries work out: requests of queue pairs, and frames that arrive for them.
//!
//! Each function has a queue of work, and functions have their turns one after the other. So a function that asks for
//! much waits long itself, and others do not.

use crate::budget::{Budget, LOOK_NS, REQUEST_NS, TIMER_NS, TURN};
use crate::engine::completion::Burst;
use crate::engine::outcome::Outcome;
use crate::engine::requests::Requests;
use crate::objects::Objects;
use crate::objects::ids::{QpIndex, VfId};
use crate::objects::qp::Wait;
use crate::objects::qp::attributes::QpState;
use crate::objects::reason::Status;
use crate::objects::work::SendWr;
use crate::queue_format::QueueFormat;
use crate::transport::datagram::MAX_DATAGRAM;
use crate::transport::network::Network;

/// Alarms of functions that ring at a time; the others follow.
const ALARMS: usize = 64;

/// All that a turn works on. A step that needs one part only is a method of that part.
#[derive(Debug)]
pub(crate) struct Executor<F: QueueFormat> {
    pub objects: Objects<F>,
    pub requests: Requests<F>,
    pub network: Network<F>,
    /// Where datagrams are gathered; taken out while one is on its way.
    pub datagram: Option<Box<[u8; MAX_DATAGRAM]>>,
}

impl<F: QueueFormat> Executor<F> {
    /// The clock of a function, in nanoseconds: it stands still while the function is quiesced.
    pub fn time_of(&self, vf: VfId) -> u64 {
        let scheduler = &self.requests.completions.scheduler;
        scheduler.time_of(&self.objects, vf)
    }

    /// A queue pair is to have a turn.
    #[inline]
    pub fn make_ready(&mut self, index: QpIndex) {
        let scheduler = &mut self.requests.completions.scheduler;
        scheduler.make_ready(&mut self.objects, index);
    }

    /// See [`Engine::run`](crate::Engine::run).
    pub fn run(&mut self) -> bool {
        self.look_at_clock();
        // Others may wait for the engine outside, with their doorbells in hand.
        self.run_round(if self.requests.completions.scheduler.had_others() {
            self.requests.completions.scheduler.len()
        } else {
            usize::MAX
        })
    }

    /// See [`Engine::run_vf`](crate::Engine::run_vf).
    pub fn run_vf(&mut self, vf: VfId) {
        if self.objects.vf(vf).is_quiet() {
            return;
        }
        self.visit(vf, &mut { TURN });
        if self.objects.vf(vf).run_queue.is_pending() {
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.queue(&mut self.objects, vf);
        } else {
            let run_queue = &mut self.objects.vfs[usize::from(vf.0)].run_queue;
            self.requests.completions.scheduler.withdraw(vf, run_queue);
        }
    }

    /// So many turns of functions at most, as far as the budget of one long turn goes.
    pub fn run_round(&mut self, most: usize) -> bool {
        let mut left = TURN;
        let mut turns = 0;
        while left.is_left()
            && turns < most
            && let Some(vf) = self.requests.completions.scheduler.next()
        {
            turns += 1;
            self.objects.vf_mut(vf).run_queue.queued = false;
            left.take(LOOK_NS);
            self.visit(vf, &mut left);
            if self.objects.vf(vf).run_queue.is_pending() {
                let scheduler = &mut self.requests.completions.scheduler;
                scheduler.queue(&mut self.objects, vf);
            }
        }
        !self.requests.completions.scheduler.is_empty() || self.network.exits.have_arrivals()
    }

    /// A turn of one function, which takes from `round`.
    pub fn visit(&mut self, vf: VfId, round: &mut Budget) {
        let allowance = self.requests.completions.scheduler.allowance(
            &self.objects,
            vf,
            self.objects.vf(vf).polled.hot(),
        );
        let mut left = allowance;
        self.requests.completions.scheduler.begin(&self.objects, vf);
        let run_queue = &mut self.objects.vf_mut(vf).run_queue;
        if std::mem::take(&mut run_queue.rang) {
            let now = self.requests.completions.scheduler.clock.now();
            self.timers_due(vf, now, &mut left);
            if self.objects.vf(vf).run_queue.errored.due <= now {
                self.requests
                    .look_at_errored(&mut self.objects, vf, now, &mut left);
            }
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.set_alarm(&mut self.objects, vf);
        }
        self.requests.search_users(&mut self.objects, vf, &mut left);
        while left.is_left()
            && let Some(index) = self.objects.vf_mut(vf).run_queue.ready.pop_front()
        {
            // Another one may have its place by now, which has its turn early then.
            match self.objects.qps.get_mut(index.0) {
                Some(qp) if qp.req.queued && qp.core.vf == vf => {
                    qp.req.queued = false;
                    while left.is_left()
                        && let Some(qp) = self.objects.qps.get_mut(index.0)
                        && !qp.req.line.is_empty()
                        && let Some(arrived) = qp.next_arrived()
                    {
                        self.carry_out(index, arrived, &mut left);
                    }
                    self.turn(index, &mut left);
                }
                _ => left.take(LOOK_NS),
            }
        }
        // An owner that is told of a completion queue that failed in this turn finds its users failed, if they are
        // few.
        self.requests.search_users(&mut self.objects, vf, &mut left);
        let scheduler = &mut self.requests.completions.scheduler;
        scheduler.end(&mut self.objects, vf, !left.is_left());
        round.charge(allowance, left);
    }

    pub fn timers_due(&mut self, vf: VfId, now: u64, left: &mut Budget) {
        while left.is_left()
            && let Some(&(at, index, id)) = self.objects.vf(vf).run_queue.timers.first()
            && at <= now
        {
            self.objects.vf_mut(vf).run_queue.timers.pop_first();
            left.take(TIMER_NS);
            self.timer_fired(QpIndex(index), id);
        }
    }

    /// Queues functions that have something due.
    pub fn look_at_clock(&mut self) {
        let nothing = !self.requests.completions.scheduler.has_alarms()
            && self.network.exits.deadline().is_none();
        if nothing && self.requests.completions.held_events.is_empty() {
            return;
        }
        let now = self.requests.completions.scheduler.clock.now();
        for _ in 0..ALARMS {
            let Some(vf) = self.requests.completions.scheduler.ring(now) else {
                break;
            };
            let run_queue = &mut self.objects.vf_mut(vf).run_queue;
            run_queue.alarm = u64::MAX;
            run_queue.rang = true;
            let scheduler = &mut self.requests.completions.scheduler;
            scheduler.queue(&mut self.objects, vf);
        }
        if self.network.exits.deadline().is_some_and(|at| at <= now) {
            self.arrivals(now);
        }
        self.requests
            .completions
            .expire_events(&mut self.objects, now);
    }

    /// See [`Engine::next_deadline`](crate::Engine::next_deadline).
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.requests.completions.scheduler.is_empty() {
            return Some(0);
        }
        let (alarm, held) = (
            self.requests.completions.scheduler.deadline(),
            self.requests.completions.held_events.deadline(),
        );
        [alarm, self.network.exits.deadline(), held]
            .into_iter()
            .flatten()
            .min()
    }

    /// One turn of a queue pair's requester, until its work or the budget is
    /// used up.
    #[inline]
    pub fn turn(&mut self, index: QpIndex, budget: &mut Budget) {
        self.requests.completions.burst = Burst::Begun;
        self.take_turn(index, budget);
        self.requests.completions.burst = Burst::None;
        if !self.requests.completions.unwritten.is_empty() {
            self.requests.completions.write_out(&mut self.objects);
        }
    }

    pub fn take_turn(&mut self, index: QpIndex, budget: &mut Budget) {
        while budget.is_left() {
            let Some(qp) = self.objects.qps.get_mut(index.0) else {
                return;
            };
            if qp.req.away.is_some() {
                return self.away_turn(index, budget);
            }
            match qp.core.state {
                QpState::ReadyToSend => {}
                QpState::SendQueueDrain if qp.req.current.is_some() => {}
                QpState::Error | QpState::SendQueueError => {
                    self.requests.flush(&mut self.objects, index, budget);
                    return;
                }
                _ => return,
            }
            if qp.req.wait != Wait::None {
                return;
            }
            let is_datagram = qp.core.transport.is_datagram();
            let wr = match qp.req.current.take() {
                Some(wr) => wr,
                None => match self.requests.take_request(&mut self.objects, index) {
                    Some(wr) => wr,
                    None => return self.requests.trim_spares(),
                },
            };
            let goes_on = self.attempt(index, is_datagram, wr, budget);
            budget.take(REQUEST_NS);
            if !goes_on {
                return;
            }
            if !self.objects.qps.send_announced(index) {
                return self.requests.trim_spares();
            }
            if self.requests.completions.scheduler.had_others()
                && self.requests.completions.scheduler.takes_long()
            {
                budget.end();
            }
        }
        self.make_ready(index);
    }

    /// Attempts a request; whether the queue pair may go on with the next.
    #[inline]
    pub fn attempt(
        &mut self,
        index: QpIndex,
        is_datagram: bool,
        mut wr: Box<SendWr>,
        budget: &mut Budget,
    ) -> bool {
        let outcome = if is_datagram {
            self.send_datagram(index, &mut wr, budget)
        } else {
            self.send_connected(index, &mut wr, budget)
        };
        match outcome {
            Outcome::Done(len) => {
                self.requests
                    .finish(&mut self.objects, index, wr, Status::Success, len);
                return true;
            }
            Outcome::Failed(status) => {
                self.requests
                    .finish(&mut self.objects, index, wr, status, 0);
                return false;
            }
            Outcome::Partly => {
                if let Some(qp) = self.objects.qps.get_mut(index.0) {
                    qp.req.reload_retries(&qp.core.attr);
                }
                self.objects.qps.keep(index, wr);
                self.make_ready(index);
            }
            Outcome::Departs => {
                self.objects.send_in_frames(index, wr, None);
                self.make_ready(index);
            }
            Outcome::Held(until) => {
                self.objects.qps.keep(index, wr);
                self.network
                    .wait_until(&mut self.objects, index, until, true);
            }
            Outcome::Crowded => {
                self.objects.qps.keep(index, wr);
                // Whether it has sent others before, nobody knows here.
                self.network.exits.crowded.push(index, true);
            }
            Outcome::OtherEndQuiesced => {
                if self.objects.other_end_moves(index) {
                    // Nobody tells when there is a path again.
                    self.requests
                        .wait_answer(&mut self.objects, index, wr, Wait::Quiesced);
                } else {
                    self.objects.qps.keep(index, wr);
                    if let Some(qp) = self.objects.qps.get_mut(index.0) {
                        qp.req.wait = Wait::Quiesced;
                    }
                }
                self.network.wait_for_rest(&self.objects, index);
            }
            Outcome::Absent => self.requests.requester_waits(&mut self.objects, index, wr),
            Outcome::NotReady(code) => self.requests.not_ready(&mut self.objects, index, wr, code),
            Outcome::Unanswered => {
                self.requests
                    .wait_answer(&mut self.objects, index, wr, Wait::Ack)
            }
            Outcome::OutOfSequence => {
                self.requests
                    .wait_answer(&mut self.objects, index, wr, Wait::Nak)
            }
        }
        false
    }

    pub fn timer_fired(&mut self, index: QpIndex, id: u64) {
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        if qp.req.timer != id {
            return self.away_timeout(index, id);
        }
        let (wait, since) = (qp.req.wait, qp.req.since);
        self.network.find_other_end(&mut self.objects, index);
        if matches!(wait, Wait::Ack | Wait::Nak)
            && !self.objects.other_end_rests(index)
            && let Some(left) =
                self.requests
                    .completions
                    .scheduler
                    .time_left(&self.objects, index, since)
        {
            return self.requests.wait(&mut self.objects, index, wait, left);
        }
        let excused = self.objects.other_end_rests(index);
        if !excused
            && self.objects.qps.is_exhausted(index)
            && self.network.migrate(&mut self.objects, index)
        {
            if let Some(qp) = self.objects.qps.get_mut(index.0) {
                qp.req.wait = Wait::None;
            }
            return self.make_ready(index);
        }
        let Some(qp) = self.objects.qps.get_mut(index.0) else {
            return;
        };
        let failed = match qp.req.wait {
            Wait::None => return,
            Wait::Rnr | Wait::Quiesced | Wait::Page => None,
            Wait::Ack | Wait::Nak if excused => None,
            // Without a timeout there is no retry to count (9.7.6.1.3).
            Wait::Ack if qp.core.attr.timeout == 0 => None,
            Wait::Ack | Wait::Nak if qp.req.retries_left == 0 => Some(Status::RetryExceeded),
            Wait::Ack | Wait::Nak => {
                qp.req.retries_left -= 1;
                None
            }
        };
        let again = failed.is_none() && qp.core.attr.timeout != 0 && !excused;
        if again && matches!(qp.req.wait, Wait::Ack | Wait::Nak) {
            let retries = self.objects.vfs[usize::from(qp.core.vf.0)].retries(&qp.core);
            retries.add(|of| &of.local_ack_timeout_err, 1);
        }
        qp.req.wait = Wait::None;
        let failed = failed.map(|status| (qp.req.current.take(), status));
        match failed {
            Some((Some(wr), status)) => {
                self.requests
                    .finish(&mut self.objects, index, wr, status, 0)
            }
            Some((None, _)) => {}
            None => self.make_ready(index),
        }
    }
}
