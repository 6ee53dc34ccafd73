//! Whose turn it is: functions with work, in their order, and functions with something due.

use std::collections::{BTreeSet, VecDeque};

use crate::engine::agenda::Agenda;
use crate::engine::objects::Objects;
use crate::engine::{QpIndex, VfId};
use crate::face::Face;

/// The order of functions' turns. What a function does in its turn, its [`Agenda`] says.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Functions with work, in the order of their turns.
    round: VecDeque<VfId>,
    /// When which function has something to do without anybody asking.
    alarms: BTreeSet<(u64, VfId)>,
    /// Number of the last timer that was set.
    timers: u64,
}

impl Turns {
    /// Whether no function has work.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.round.is_empty()
    }

    /// Whether nothing is due at any time.
    #[inline]
    pub fn has_alarms(&self) -> bool {
        !self.alarms.is_empty()
    }

    /// When the first function has something due, in the clock's nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// Whether functions besides the one with this agenda have work.
    #[inline]
    pub fn has_others(&self, agenda: &Agenda) -> bool {
        self.round.len() > usize::from(agenda.queued)
    }

    /// A number for a timer; no two timers have the same.
    #[inline]
    pub const fn timer(&mut self) -> u64 {
        self.timers += 1;
        self.timers
    }

    /// A function is to have a turn.
    #[inline]
    pub fn queue(&mut self, vf: VfId, agenda: &mut Agenda) {
        if !agenda.queued {
            agenda.queued = true;
            self.round.push_back(vf);
        }
    }

    /// The function whose turn it is. It is out of the list then: say so to its agenda.
    #[inline]
    pub fn next(&mut self) -> Option<VfId> {
        self.round.pop_front()
    }

    /// A function has had its turn out of order: it needs no other one, if it is the last in the list.
    pub fn withdraw(&mut self, vf: VfId, agenda: &mut Agenda) {
        if self.round.back() == Some(&vf) {
            self.round.pop_back();
            agenda.queued = false;
        }
    }

    /// A function that rests has no turns: it counts as one whose turn comes, and is in no list.
    pub fn rest(&mut self, vf: VfId, agenda: &mut Agenda) {
        self.round.retain(|&it| it != vf);
        self.forget_alarm(vf, agenda);
        agenda.queued = true;
        agenda.rests = true;
    }

    /// The function may have turns again.
    pub fn resume(&mut self, vf: VfId, agenda: &mut Agenda) {
        agenda.queued = false;
        agenda.rests = false;
        if agenda.is_pending() {
            self.queue(vf, agenda);
        }
        self.set_alarm(vf, agenda);
    }

    /// Takes note of when a function's next timer is due.
    pub fn set_alarm(&mut self, vf: VfId, agenda: &mut Agenda) {
        let due = agenda.due();
        if agenda.rests || agenda.rang || due == agenda.alarm {
            return;
        }
        self.forget_alarm(vf, agenda);
        agenda.alarm = due;
        if due != u64::MAX {
            self.alarms.insert((due, vf));
        }
    }

    /// A function has nothing due.
    pub fn forget_alarm(&mut self, vf: VfId, agenda: &mut Agenda) {
        let alarm = std::mem::replace(&mut agenda.alarm, u64::MAX);
        self.alarms.remove(&(alarm, vf));
    }

    /// A function that has something due now, no more than once for each time.
    pub fn ring(&mut self, now: u64) -> Option<VfId> {
        let first = self.alarms.first().filter(|&&(at, _)| at <= now);
        let (_, vf) = first.copied()?;
        self.alarms.pop_first();
        Some(vf)
    }

    /// A queue pair is to have a turn.
    #[inline]
    pub fn make_ready<F: Face>(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        if let Some(qp) = objects.qps.get_mut(index.0)
            && !qp.req.queued
        {
            qp.req.queued = true;
            let vf = qp.core.vf;
            let agenda = &mut objects.vfs[usize::from(vf.0)].agenda;
            agenda.ready.push_back(index);
            self.queue(vf, agenda);
        }
    }
}
