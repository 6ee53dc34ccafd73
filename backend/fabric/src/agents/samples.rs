//! Sampling of a port's counters (IBA 16.1.3.2, 16.1.3.3): what passes in an interval to come.

use std::time::Duration;

use wire::mad::Status;
use wire::performance::{PortSamplesControl, PortSamplesResult};

use super::performance::PerformanceAgent;
use crate::nodes::counters::{Counter, Totals};
use crate::nodes::sampler::{COUNTERS, Sampler, Stage};
use crate::nodes::topology::{NodeId, PortRef};
use crate::timers::Timer;

/// Unit of times, PortXmitWait among them.
const TICK: Duration = Duration::from_micros(1);
/// The same in multiples of 4 ns, less one.
const TICK_CODE: u8 = 249;
/// Counters of 32 bits.
const COUNTER_WIDTH: u8 = 4;
/// A counter's three bits of CounterMasks when it can count the mandatory quantities.
const MANDATORY: u8 = 1;
/// The same bits for counters 1 to 4, the uppermost of nine.
const COUNTER_MASKS_1_TO_9: u32 = 0b001_001_001_001 << 15;
/// The optional counters that nodes have, by their bits of OptionMask.
const OPTIONS: u64 = {
    // PortRcvErrorDetails: PortLocalPhysicalErrors; PortBufferOverrunErrors to PortLoopingErrors.
    let errors = 1 << 6 | 0b1111 << 8;
    // PortXmitDiscardDetails: PortInactiveDiscards, PortSwHOQLifetimeLimitDiscards.
    let discards = 1 << 12 | 1 << 15;
    // PortCountersExtended: unicast and multicast packets, both ways.
    let kinds = 0b1111 << 24;
    // PortXmitDataSL, PortRcvDataSL.
    let levels = 0b11 << 55;
    errors | discards | kinds | levels
};
/// The last code of the mandatory quantities.
const HIGHEST_QUANTITY: u16 = 5;

/// A quantity by its code; nodes need to know no other ones.
fn quantity(totals: &Totals, code: u16) -> u64 {
    match code {
        0x0001 => totals.get(Counter::XmitData),
        0x0002 => totals.get(Counter::RcvData),
        0x0003 => totals.xmit_packets(),
        0x0004 => totals.rcv_packets(),
        0x0005 => totals.get(Counter::XmitWait),
        _ => 0,
    }
}

fn selects(asked: &PortSamplesControl) -> [u16; COUNTERS] {
    [
        asked.counter_select0,
        asked.counter_select1,
        asked.counter_select2,
        asked.counter_select3,
        asked.counter_select4,
    ]
}

/// A request as the node keeps it: what it does not know selects nothing.
fn accepted(asked: PortSamplesControl) -> PortSamplesControl {
    let known = |code: u16| if code <= HIGHEST_QUANTITY { code } else { 0 };
    PortSamplesControl {
        port_select: asked.port_select,
        sample_start: asked.sample_start,
        sample_interval: asked.sample_interval,
        tag: asked.tag,
        counter_select0: known(asked.counter_select0),
        counter_select1: known(asked.counter_select1),
        counter_select2: known(asked.counter_select2),
        counter_select3: known(asked.counter_select3),
        counter_select4: known(asked.counter_select4),
        ..PortSamplesControl::default()
    }
}

impl PerformanceAgent<'_> {
    /// Tells what is sampled, or begins to sample. While a sample is being taken, a Set changes
    /// nothing.
    pub(crate) fn port_samples_control(
        &mut self,
        at: PortRef,
        set: bool,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let asked = PortSamplesControl::parse(data).map_err(|_| Status::INVALID_FIELD)?;
        self.nodes.selected(at, asked.port_select)?;
        let now = self.timers.now();
        let sampler = self.sampler_mut(at.node).ok_or(Status::INVALID_FIELD)?;
        let begins = set && sampler.stage == Stage::Done;
        if begins {
            *sampler = Sampler {
                stage: Stage::Starting,
                asked: accepted(asked),
                ..Sampler::default()
            };
        }
        let sampler = *sampler;
        if begins {
            let start = now.saturating_add(TICK * asked.sample_start);
            self.timers.schedule(start, Timer::Sample(at.node));
        }
        data.fill(0);
        PortSamplesControl {
            port_select: asked.port_select,
            tick: TICK_CODE,
            counter_width: COUNTER_WIDTH,
            counter_mask0: MANDATORY,
            counter_masks_1_to_9: COUNTER_MASKS_1_TO_9,
            sample_status: sampler.stage as u8,
            option_mask: OPTIONS,
            ..sampler.asked
        }
        .emit(data);
        Ok(())
    }

    /// Result of the last sample, once it is done.
    pub(crate) fn port_samples_result(
        &mut self,
        at: PortRef,
        data: &mut [u8],
    ) -> Result<(), Status> {
        let sampler = *self.sampler_mut(at.node).ok_or(Status::INVALID_FIELD)?;
        let found = match sampler.stage {
            Stage::Done => sampler.counters,
            _ => [0; COUNTERS],
        };
        let [counter0, counter1, counter2, counter3, counter4] =
            found.map(|counter| u32::try_from(counter).unwrap_or(u32::MAX));
        data.fill(0);
        PortSamplesResult {
            tag: sampler.asked.tag,
            sample_status: sampler.stage as u8,
            counter0,
            counter1,
            counter2,
            counter3,
            counter4,
        }
        .emit(data);
        Ok(())
    }

    /// A node's interval begins or ends.
    pub(crate) fn sample_due(&mut self, node: NodeId) {
        let Some(&mut sampler) = self.sampler_mut(node) else {
            return;
        };
        let totals = self.sampled(node, &sampler.asked);
        let now = self.timers.now();
        let Some(sampler) = self.sampler_mut(node) else {
            return;
        };
        match sampler.stage {
            Stage::Done => {}
            Stage::Starting => {
                sampler.stage = Stage::Sampling;
                sampler.counters = totals;
                let end = now.saturating_add(TICK * sampler.asked.sample_interval);
                self.timers.schedule(end, Timer::Sample(node));
            }
            Stage::Sampling => {
                sampler.stage = Stage::Done;
                for (counter, total) in sampler.counters.iter_mut().zip(totals) {
                    *counter = total.wrapping_sub(*counter);
                }
            }
        }
    }

    fn sampler_mut(&mut self, node: NodeId) -> Option<&mut Sampler> {
        Some(&mut self.ledgers.node_mut(node)?.sampler)
    }

    fn sampled(&self, node: NodeId, asked: &PortSamplesControl) -> [u64; COUNTERS] {
        let at = PortRef {
            node,
            port: asked.port_select,
        };
        let now = self.timers.now();
        let ports = self
            .nodes
            .selected(at, asked.port_select)
            .into_iter()
            .flatten();
        let totals = ports
            .filter_map(|port| {
                let at = PortRef { port, ..at };
                Some(self.ledgers.port(at)?.totals(self.nodes.port(at)?, now))
            })
            .fold(Totals::default(), |sum, totals| sum.plus(&totals));
        selects(asked).map(|code| quantity(&totals, code))
    }
}
