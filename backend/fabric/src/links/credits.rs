//! Ports that get no credits for their data lanes (IBA 7.9.4): what is to leave by them waits, and is
//! discarded in the end. Lane 15 is not under flow control, so subnet management goes on.

use std::time::Duration;

use wire::MadPacket;

use super::starved::Waiting;
use crate::fabric::Fabric;
use crate::nodes::counters::Counter;
use crate::nodes::ledger::PortRecord;
use crate::nodes::node::Port;
use crate::nodes::topology::PortRef;
use crate::timers::Timer;

/// Packets that a port keeps while it has no credits.
const BUFFER: usize = 64;
/// Symbol times without an update of flow control after which the watchdog runs out.
const WATCHDOG_SYMBOLS: u32 = 400_000;
/// The longest HOQLife that is one: greater codes mean for ever (IBA 14.2.5.6).
const LONGEST_LIFE: u8 = 19;
/// Length of a tick of PortXmitWait.
const TICK: Duration = Duration::from_micros(1);

impl PortRecord {
    /// For how many ticks the port has had something to send and no credits.
    pub(crate) fn ticks_waited(&self, now: Duration) -> u64 {
        let starved = self.starved.as_deref();
        let waited = self.waited + starved.map_or(Duration::ZERO, |s| s.busy_time(now));
        (waited.as_nanos() / TICK.as_nanos()) as u64
    }

    /// Something is to be sent until a time.
    fn keep_busy(&mut self, now: Duration, until: Duration) {
        if let Some(starved) = self.starved.as_deref_mut() {
            self.waited += starved.busy_time(now);
            let (_, before) = starved.busy.unwrap_or_default();
            starved.busy = Some((now, before.max(until)));
        }
    }
}

impl Port {
    /// Time that a packet waits to leave a port: HOQLife at a switch. An adapter has no such limit; packets that it
    /// cannot send wait as if it were the longest.
    fn head_of_queue_life(&self, at_switch: bool) -> Duration {
        let code = if at_switch {
            self.info.hoq_life
        } else {
            LONGEST_LIFE
        };
        match code {
            0..=LONGEST_LIFE => Duration::from_nanos(4096 << code),
            _ => Duration::MAX,
        }
    }
}

impl Fabric {
    /// Whether a port gets no credits.
    pub(crate) fn is_starved(&self, port: PortRef) -> bool {
        self.port(port).is_some_and(Port::is_starved)
    }

    /// Has a port keep what waits for credits, or send it since they come again: its fault is this
    /// already.
    pub(crate) fn set_starved(&mut self, at: PortRef, starved: bool) {
        let now = self.timers.now();
        let Some(ledger) = self.ledgers.port_mut(at) else {
            return;
        };
        if starved == ledger.starved.is_some() {
            return;
        }
        if starved {
            ledger.starved = Some(Box::default());
            return self.credits_begin(at);
        }
        let record = ledger.record_mut();
        let waiting = record.and_then(|record| {
            record.keep_busy(now, now);
            Some(record.starved.take()?.waiting)
        });
        for Waiting { hops, packet, .. } in waiting.into_iter().flatten() {
            self.transmit(at, hops, packet);
        }
    }

    /// A link has come up or gone down, or its credits stop to come: the watchdog begins anew.
    pub(crate) fn credits_begin(&mut self, at: PortRef) {
        let now = self.timers.now();
        // None while the link is down.
        let rate = self.link_rate(at);
        let Some(ledger) = self.ledgers.port_mut(at) else {
            return;
        };
        let Some(record) = ledger.record_mut() else {
            return;
        };
        record.keep_busy(now, now);
        let Some(starved) = record.starved.as_deref_mut() else {
            return;
        };
        if let Some(rate) = rate {
            let due = now + rate.symbol_times(WATCHDOG_SYMBOLS);
            starved.watchdog = due;
            self.timers.schedule(due, Timer::Watchdog { port: at });
        } else {
            starved.busy = None;
            let lost = std::mem::take(&mut starved.waiting).len() as u64;
            self.ledgers.count(at, Counter::InactiveDiscards, lost);
        }
    }

    /// A packet is to leave by a port that gets no credits.
    pub(crate) fn hold(&mut self, out: PortRef, hops: u8, packet: Box<MadPacket>) {
        let now = self.timers.now();
        let at_switch = self.switch(out.node).is_some();
        let (Some(port), Some(ledger)) = (self.nodes.port(out), self.ledgers.port_mut(out)) else {
            return;
        };
        let until = now.saturating_add(port.head_of_queue_life(at_switch));
        ledger.keep_busy(now, until);
        let starved = ledger.starved.as_deref_mut();
        match starved.filter(|starved| starved.waiting.len() < BUFFER) {
            None => self.ledgers.count(out, Counter::OtherDiscards, 1),
            Some(starved) => {
                let packet = Waiting {
                    until,
                    hops,
                    packet,
                };
                starved.waiting.push_back(packet);
                if until < Duration::MAX {
                    self.timers
                        .schedule(until, Timer::HeadOfQueue { port: out });
                }
            }
        }
    }

    /// Packets of the data plane were to leave by a port that gets no credits. They are not kept:
    /// who sent them has heard that they got lost.
    pub(crate) fn waits_in_vain(&mut self, out: PortRef) {
        let now = self.timers.now();
        let at_switch = self.switch(out.node).is_some();
        if let (Some(port), Some(ledger)) = (self.nodes.port(out), self.ledgers.port_mut(out)) {
            let life = port.head_of_queue_life(at_switch);
            ledger.keep_busy(now, now.saturating_add(life));
        }
    }

    /// The first packets that wait at a port have waited long enough.
    pub(crate) fn head_of_queue_due(&mut self, at: PortRef) {
        let now = self.timers.now();
        let ledger = self.ledgers.port_mut(at);
        let starved = ledger.and_then(|ledger| ledger.starved.as_deref_mut());
        let Some(starved) = starved else {
            return;
        };
        let mut discarded = 0;
        while starved
            .waiting
            .pop_front_if(|first| first.until <= now)
            .is_some()
        {
            discarded += 1;
        }
        self.ledgers
            .count(at, Counter::HoqLifetimeDiscards, discarded);
    }

    /// A port may have been without credits for too long.
    pub(crate) fn watchdog_due(&mut self, at: PortRef) {
        let now = self.timers.now();
        let starved = self
            .ledgers
            .port(at)
            .and_then(|ledger| ledger.starved.as_deref());
        let late = starved.is_some_and(|starved| starved.watchdog <= now);
        if late && self.port(at).is_some_and(Port::is_linked) {
            self.no_credits(at);
        }
    }
}
