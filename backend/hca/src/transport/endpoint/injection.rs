//! Congestion control at ports (IBA A10.2.2).
//!
//! A receiver tells the sender of packets that a switch has marked. Each notification raises the sender's index
//! into a table of pauses, and time lowers it. Requests and datagrams are held back so, queue pairs one by one or
//! all of a service level together; answers are not.

mod congestion;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use wire::congestion::{CaCongestionEntry, InjectionDelay};
use wire::{Qpn, Sl};

use crate::objects::ids::{QpIndex, VfId};

/// Nanoseconds of a unit of the timer.
const TICK: u64 = 1024;
/// Where there are so many flows, or twice as many as were left the last time, those that are not held back any more
/// are forgotten.
const FLOWS: usize = 1024;

/// Rules by which a port holds back frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Injection {
    /// All of a service level is held back together, and not queue pairs one by one.
    pub by_level: bool,
    /// By service level.
    pub levels: [CaCongestionEntry; 16],
    /// The pauses, by index.
    pub delays: Vec<InjectionDelay>,
}

impl Injection {
    fn level(&self, sl: Sl) -> &CaCongestionEntry {
        &self.levels[usize::from(sl.value() & 15)]
    }

    fn delay(&self, index: u16) -> InjectionDelay {
        self.delays
            .get(usize::from(index))
            .copied()
            .unwrap_or_default()
    }

    fn last(&self) -> u16 {
        self.delays.len().saturating_sub(1) as u16
    }

    /// Whether nothing is held back that has met no congestion.
    fn rests(&self, sl: Sl) -> bool {
        self.delay(u16::from(self.level(sl).min)).multiplier == 0
    }

    fn flow(&self, vf: VfId, qp: Qpn, sl: Sl) -> Flow {
        let qp = (!self.by_level).then_some(qp);
        Flow { vf, qp, sl }
    }
}

/// A flow: frames that are held back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Flow {
    vf: VfId,
    /// `None`: all queue pairs.
    qp: Option<Qpn>,
    sl: Sl,
}

/// Delay of a flow.
#[derive(Debug, Clone, Copy)]
struct Held {
    index: u16,
    /// From when on the timer has run.
    since: u64,
    /// When the next packet may be sent.
    until: u64,
}

impl Held {
    /// Lowers the index by what the timer has.
    fn recover(&mut self, now: u64, level: &CaCongestionEntry) {
        let min = u16::from(level.min);
        let period = u64::from(level.timer) * TICK;
        if period == 0 || self.index <= min {
            self.index = self.index.max(min);
            self.since = now;
            return;
        }
        let steps = now.saturating_sub(self.since) / period;
        self.since += steps * period;
        self.index = (u64::from(self.index).saturating_sub(steps) as u16).max(min);
    }
}

/// Flows of all functions that are held back.
#[derive(Debug, Default)]
pub(crate) struct Injections {
    /// By function: how it is, and as of which generation of the subnet.
    rules: HashMap<VfId, (u64, Option<Arc<Injection>>)>,
    held: HashMap<Flow, Held>,
    /// Number of them left when some were forgotten last.
    left: usize,
    /// Until when queue pairs wait, whether they have sent in their last turn, and which they are: of those that wait
    /// together who has not comes first.
    waiting: BinaryHeap<Reverse<(u64, bool, u32)>>,
}

impl Injections {
    /// When somebody may go on that waits.
    pub fn deadline(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse((until, ..))| *until)
    }

    /// The next queue pair that may go on, if one may.
    pub fn due(&mut self, now: u64) -> Option<QpIndex> {
        self.deadline().filter(|until| *until <= now)?;
        let Reverse((.., index)) = self.waiting.pop()?;
        Some(QpIndex(index))
    }

    /// Forgets a function that was reset.
    pub fn forget(&mut self, vf: VfId) {
        self.held.retain(|flow, _| flow.vf != vf);
    }

    /// Until when packets of a flow are to wait, if they are.
    fn waits(&self, now: u64, flow: Flow) -> Option<u64> {
        let held = self.held.get(&flow).filter(|held| held.until > now)?;
        Some(held.until)
    }

    /// A frame has left that takes so long on its link.
    fn sent(&mut self, now: u64, flow: Flow, rules: &Injection, time: u64) {
        let level = rules.level(flow.sl);
        if !self.held.contains_key(&flow) && rules.rests(flow.sl) {
            return;
        }
        let held = self.flow(now, flow, level);
        let pause = rules.delay(held.index).after(time);
        if pause == 0 && held.index == u16::from(level.min) {
            self.held.remove(&flow);
            return;
        }
        held.until = now.max(held.until) + time + pause;
    }

    /// A notification has come. Whether the index has reached its threshold.
    fn notified(&mut self, now: u64, flow: Flow, rules: &Injection) -> bool {
        let level = rules.level(flow.sl);
        if level.increase == 0 || rules.last() == 0 {
            return false;
        }
        let held = self.flow(now, flow, level);
        let before = held.index;
        held.index = (before + u16::from(level.increase)).min(rules.last());
        let threshold = u16::from(level.trigger_threshold);
        threshold > 0 && before < threshold && threshold <= held.index
    }

    /// Brings the delay of a flow up to date.
    fn flow(&mut self, now: u64, flow: Flow, level: &CaCongestionEntry) -> &mut Held {
        if !self.held.contains_key(&flow) {
            self.make_room(now);
        }
        let held = self.held.entry(flow).or_insert(Held {
            index: u16::from(level.min),
            since: now,
            until: now,
        });
        held.recover(now, level);
        held
    }

    /// Forgets what is not held back any more, where there is much.
    fn make_room(&mut self, now: u64) {
        if self.held.len() < FLOWS.max(2 * self.left) {
            return;
        }
        let Self {
            held, rules, left, ..
        } = self;
        held.retain(|flow, held| {
            let Some((_, Some(rules))) = rules.get(&flow.vf) else {
                return false;
            };
            let level = rules.level(flow.sl);
            held.recover(now, level);
            held.until > now || held.index > u16::from(level.min)
        });
        *left = held.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: Flow = Flow {
        vf: VfId(0),
        qp: None,
        sl: Sl::new(3),
    };

    /// Pauses of nothing, of once, of twice ... the time on the link.
    fn rules(timer: u16, increase: u8, threshold: u8, min: u8) -> Injection {
        let mut levels = [CaCongestionEntry::default(); 16];
        levels[3] = CaCongestionEntry {
            timer,
            increase,
            trigger_threshold: threshold,
            min,
        };
        let delays = (0..8).map(|multiplier| InjectionDelay {
            shift: 0,
            multiplier,
        });
        Injection {
            by_level: true,
            levels,
            delays: delays.collect(),
        }
    }

    /// Pause of a flow between two frames that take 100 ns each on the link.
    fn pause(injections: &mut Injections, now: u64, rules: &Injection) -> u64 {
        injections.sent(now, FLOW, rules, 100);
        injections
            .held
            .get(&FLOW)
            .map_or(100, |held| held.until - now)
            - 100
    }

    #[test]
    fn notifications_raise_the_index_and_time_lowers_it() {
        let (mut injections, rules) = (Injections::default(), rules(10, 3, 5, 0));
        assert_eq!(pause(&mut injections, 0, &rules), 0);
        let reached = [0, 0, 0].map(|now| injections.notified(now, FLOW, &rules));
        assert_eq!(reached, [false, true, false], "at 3, 6 and 7");
        // 7, the last one, and not 9.
        assert_eq!(pause(&mut injections, 0, &rules), 700);
        let after = |ticks: u64| ticks * 1024;
        assert_eq!(pause(&mut injections, after(9), &rules), 700);
        assert_eq!(pause(&mut injections, after(10), &rules), 600);
        assert_eq!(pause(&mut injections, after(45), &rules), 300);
        assert_eq!(
            injections.waits(after(45) + 399, FLOW),
            Some(after(45) + 400)
        );
        assert_eq!(injections.waits(after(45) + 400, FLOW), None);
        assert_eq!(pause(&mut injections, after(70), &rules), 0);
        assert!(injections.held.is_empty());
    }

    #[test]
    fn what_meets_no_congestion_is_held_back_where_the_lowest_index_says_so() {
        let (mut injections, rules) = (Injections::default(), rules(10, 1, 0, 2));
        assert_eq!(pause(&mut injections, 0, &rules), 200);
        assert!(!injections.notified(0, FLOW, &rules), "no threshold");
        assert_eq!(pause(&mut injections, 1000, &rules), 300);
        assert_eq!(pause(&mut injections, 1_000_000, &rules), 200);
    }

    #[test]
    fn flows_that_have_recovered_are_forgotten() {
        let (mut injections, rules) = (Injections::default(), Arc::new(rules(1, 1, 0, 0)));
        let kept = (1, Some(Arc::clone(&rules)));
        injections.rules.insert(VfId(0), kept);
        for at in 0..4000_u32 {
            let flow = Flow {
                qp: Some(Qpn::new(at)),
                ..FLOW
            };
            injections.notified(u64::from(at) * 10, flow, &rules);
        }
        assert!(injections.held.len() <= FLOWS, "{}", injections.held.len());
        // Of those that are held back none is, and where they are many they are seldom looked through.
        for at in 0..5 * FLOWS {
            let flow = Flow {
                qp: Some(Qpn::new(at as u32)),
                ..FLOW
            };
            injections.notified(1_000_000, flow, &rules);
        }
        assert_eq!(injections.held.len(), 5 * FLOWS);
        assert!(injections.left > 2 * FLOWS, "{}", injections.left);
    }
}
