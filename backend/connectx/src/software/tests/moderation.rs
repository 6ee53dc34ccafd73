//! Completion queue moderation: events that wait for more entries.

use super::guest::{Guest, INTERRUPTS, Pair, data, remote};
use crate::Region;
use crate::bits::command::{Opcode, Status, create_eq_in};
use crate::bits::completion::{cqc, create_cq_in, modify_cq_in, query_cq_out};

/// Fields that MODIFY_CQ changes: period, count.
const MODERATION: u32 = 0b11;

/// A pair whose driver takes every event and arms again.
struct Rig {
    pair: Pair,
    /// Entries taken.
    taken: u32,
    /// Events taken.
    events: u32,
}

impl Rig {
    fn new(count: u32, period: u32) -> Self {
        let mut rig = Self {
            pair: Pair::new(),
            taken: 0,
            events: 0,
        };
        assert_eq!(rig.modify(MODERATION, count, period), Some(Status::Ok));
        rig.arm();
        rig
    }

    fn modify(&mut self, select: u32, count: u32, period: u32) -> Option<Status> {
        let mut request = Guest::request(Opcode::ModifyCq, &[]);
        modify_cq_in::CQN.set(&mut request, self.pair.cq.0);
        modify_cq_in::MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT.set(&mut request, select);
        let context = modify_cq_in::CQ_CONTEXT.get_mut(&mut request);
        cqc::CQ_MAX_COUNT.set(context, count);
        cqc::CQ_PERIOD.set(context, period);
        self.pair.guest.command(&request, 16).status()
    }

    /// Arms, having taken all entries that were there.
    fn arm(&mut self) {
        let (cqn, _, record) = self.pair.cq;
        let word = (self.events & 3) << 28 | self.taken;
        let guest = &mut self.pair.guest;
        guest.memory.write32(record, self.taken);
        guest.memory.write32(record + 4, word);
        let doorbell = [word.to_be_bytes(), cqn.to_be_bytes()].concat();
        let uar = u64::from(self.pair.uar);
        let _ = guest.write(Region::Bar0, uar * 4096 + 0x20, &doorbell);
    }

    /// Takes the event that has been raised, if one has; and all entries then.
    fn take_event(&mut self, completed: u32) -> bool {
        let raised = self.pair.guest.raised.count(INTERRUPTS as u16) as u32;
        assert!(raised <= self.events + 1);
        if raised == self.events {
            return false;
        }
        self.events = raised;
        self.taken = completed;
        let (eqn, uar) = (self.pair.eq.0, self.pair.uar);
        self.pair.guest.arm_eq(uar, eqn, self.events);
        self.arm();
        true
    }

    fn write_word(&mut self) {
        let Pair { guest, a, key, .. } = &mut self.pair;
        let at = guest.free - 4096;
        let segments = [remote(at, *key), data(8, *key, at + 64)].concat();
        guest.post_send(a, 0x08, 0, &segments);
    }

    /// Interrupts of so many requests that complete one by one.
    fn interrupts(&mut self, requests: u32) -> u32 {
        self.pair.guest.allocate(4096);
        let before = self.events;
        for completed in 1..=requests {
            self.write_word();
            if !self.take_event(completed) {
                // Room in the queue: the driver takes entries without an event as well.
                let record = self.pair.cq.2;
                self.pair.guest.memory.write32(record, completed);
            }
        }
        self.events - before
    }
}

#[test]
fn a_thousand_completions_raise_as_many_interrupts_as_moderation_says() {
    assert_eq!(Rig::new(0, 0).interrupts(1000), 1000);
    assert_eq!(Rig::new(1, 4000).interrupts(1000), 1000);
    assert_eq!(Rig::new(20, 4000).interrupts(1000), 50);
    assert_eq!(Rig::new(50, 4000).interrupts(1000), 20);
    // Without a period nobody would tell of the last ones.
    assert_eq!(Rig::new(50, 0).interrupts(1000), 1000);
}

#[test]
fn an_event_waits_no_longer_than_its_period() {
    let mut rig = Rig::new(1000, 500);
    rig.pair.guest.allocate(4096);
    for completed in 1..=3 {
        rig.write_word();
        assert!(!rig.take_event(completed), "after {completed}");
        let now = rig.pair.guest.now();
        let due = rig.pair.guest.engine().next_deadline().expect("a timer");
        assert!((now..=now + 500_000).contains(&due), "{now} {due}");
        // Each look at the clock of this laboratory takes a microsecond.
        let mut looks = 0;
        while !rig.take_event(completed) {
            rig.pair.guest.engine().run();
            looks += 1;
            assert!(looks < 1000);
        }
        assert!(looks > 400, "{looks}");
        assert_eq!(rig.pair.guest.engine().next_deadline(), None);
    }
}

#[test]
fn entries_that_were_there_when_it_was_armed_count() {
    let mut rig = Rig::new(4, 4000);
    rig.pair.guest.allocate(4096);
    // The event for these leaves the queue unarmed.
    for completed in 1..=4 {
        assert!(!rig.take_event(completed));
        rig.write_word();
    }
    let guest = &mut rig.pair.guest;
    assert_eq!(guest.raised.count(INTERRUPTS as u16), 1);
    guest.arm_eq(rig.pair.uar, rig.pair.eq.0, 1);
    rig.events = 1;
    rig.taken = 4;
    for _ in 0..3 {
        rig.write_word();
    }
    rig.arm();
    assert!(!rig.take_event(7));
    rig.write_word();
    assert!(rig.take_event(8));
    // What has been taken since it began to wait is nothing to tell of.
    rig.write_word();
    rig.taken = 9;
    rig.arm();
    for _ in 0..10_000 {
        rig.pair.guest.engine().run();
    }
    assert!(!rig.take_event(9));
}

#[test]
fn a_queue_is_born_moderated_and_says_so() {
    let mut guest = Guest::initialized();
    let uar = guest.plain(Opcode::AllocUar, &[]).number();
    let (eqn, _) = guest.create_eq(1, 0, uar);
    let (ring, record) = (guest.allocate(4096), guest.allocate(64));
    let mut request = Guest::request(Opcode::CreateCq, &[ring]);
    let context = create_cq_in::CQ_CONTEXT.get_mut(&mut request);
    cqc::LOG_CQ_SIZE.set(context, 6);
    cqc::UAR_PAGE.set(context, uar);
    cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
    cqc::DBR_ADDR.set(context, record);
    cqc::CQ_MAX_COUNT.set(context, 7);
    cqc::CQ_PERIOD.set(context, 4095);
    let cqn = guest.command(&request, 16).number();
    let mut query = vec![0; 16];
    create_eq_in::OPCODE.set(&mut query, u32::from(Opcode::QueryCq.code()));
    crate::command::NUMBER.set(&mut query, cqn);
    let answer = guest.command(&query, query_cq_out::SIZE);
    let context = query_cq_out::CQ_CONTEXT.get(&answer.reply);
    assert_eq!(cqc::CQ_MAX_COUNT.get(context), 7);
    assert_eq!(cqc::CQ_PERIOD.get(context), 4095);
}

#[test]
fn what_cannot_change_is_refused() {
    let mut rig = Rig::new(4, 4000);
    // Its event queue.
    assert_eq!(rig.modify(1 << 3, 0, 0), Some(Status::BadParameter));
    // The count alone.
    assert_eq!(rig.modify(1 << 1, 2, 0), Some(Status::Ok));
    assert_eq!(rig.interrupts(100), 50);
}
