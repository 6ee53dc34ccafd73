//! A function becomes an image.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    CountersImageV1, CqImageV1, ErroredImageV1, GroupImageV1, HeldImageV1, InboundImageV1,
    KeyImageV1, QpImageV1, RecvImageV1, RequesterImageV1, ResponderImageV1, SrqImageV1, VfImage,
    VfImageV1,
};
use crate::engine::objects::Objects;
use crate::engine::vf::TrafficCounters;
use crate::engine::{CqIndex, Engine, QpIndex, VfId};
use crate::face::Face;
use crate::verbs::cq::Cq;
use crate::verbs::qp::{Qp, RecvQueue, Wait};
use crate::verbs::srq::Srq;

impl<F: Face> Engine<F> {
    /// The image of a function as it is now, between two turns. Where it is to go on elsewhere,
    /// [`Engine::quiesce`] it before.
    #[must_use]
    pub fn save(&self, vf: VfId) -> VfImage<F> {
        let (state, now) = (self.vf(vf), self.clock.now());
        let numbers = |domains: &crate::storage::numbers::Numbers<u32>| -> Vec<u32> {
            domains.iter().map(|(number, _)| number).collect()
        };
        let qpn = |index: &QpIndex| self.objects.qps.get(index.0).map(|qp| qp.core.qpn);
        let is_ready = |index: &&QpIndex| {
            let qp = self.objects.qps.get(index.0);
            qp.is_some_and(|qp| qp.req.queued && qp.core.vf == vf)
        };
        let waits_for_others = |(_, index): (u32, &QpIndex)| {
            let qp = self.objects.qps.get(index.0)?;
            (qp.req.wait == Wait::Rest).then_some(qp.core.qpn)
        };
        let mut multicast: Vec<GroupImageV1> = state
            .multicast
            .iter()
            .map(|(&gid, members)| GroupImageV1 {
                gid,
                members: members.iter().filter_map(qpn).collect(),
            })
            .collect();
        multicast.sort_by_key(|group| group.gid);
        VfImage::V1(VfImageV1 {
            pds: numbers(&state.pds),
            xrcds: numbers(&state.xrcds),
            keys: state
                .keys
                .iter()
                .map(|(index, key)| KeyImageV1::save(index, key))
                .collect(),
            cqs: state
                .cqs
                .iter()
                .filter_map(|(_, index)| Some(save_cq(self.objects.cqs.get(index.0)?, now)))
                .collect(),
            srqs: state
                .srqs
                .iter()
                .filter_map(|(_, index)| {
                    Some(self.objects.save_srq(self.objects.srqs.get(index.0)?))
                })
                .collect(),
            qps: state
                .qps
                .iter()
                .filter_map(|(_, index)| {
                    Some(self.objects.save_qp(self.objects.qps.get(index.0)?, now))
                })
                .collect(),
            multicast,
            ready: state
                .agenda
                .ready
                .iter()
                .filter(is_ready)
                .filter_map(qpn)
                .chain(state.qps.iter().filter_map(waits_for_others))
                .collect(),
            errored: state
                .agenda
                .errored
                .list
                .iter()
                .filter_map(|errored| {
                    Some(ErroredImageV1 {
                        qpn: qpn(&errored.qp)?,
                        due: errored.due.saturating_sub(now),
                        pause: errored.pause,
                    })
                })
                .collect(),
            searching: state.agenda.search_left > 0,
            counters: CountersImageV1::save(&state.counters),
            held: match &state.rest {
                Some(rest) => rest.held.iter().map(HeldImageV1::save).collect(),
                None => Vec::new(),
            },
        })
    }
}

impl<F: Face> Objects<F> {
    pub(crate) fn cqn(&self, cq: CqIndex) -> Option<u32> {
        self.cqs.get(cq.0).map(|cq| cq.cqn)
    }

    pub(crate) fn save_srq(&self, srq: &Srq<F>) -> SrqImageV1<F> {
        let xrc = srq.xrc.map(|(xrcd, cq)| (xrcd, self.cqn(cq)));
        SrqImageV1 {
            srqn: srq.srqn,
            pd: srq.pd,
            xrc: xrc.and_then(|(xrcd, cqn)| Some((xrcd, cqn?))),
            limit: srq.limit,
            failed: srq.failed,
            ring: F::save_shared(&srq.ring),
        }
    }

    pub(crate) fn save_qp(&self, Qp { core, req, resp }: &Qp<F>, now: u64) -> QpImageV1<F> {
        let wait = match req.wait {
            Wait::Rest => Wait::None,
            wait => wait,
        };
        let due = match wait {
            Wait::None => 0,
            _ => req.due.saturating_sub(now),
        };
        QpImageV1 {
            qpn: core.qpn,
            transport: core.transport,
            pd: core.pd,
            state: core.state,
            attr: core.attr,
            source_qpn: core.source_qpn,
            block_multicast_loopback: core.block_multicast_loopback,
            polled: core.polled,
            requester: RequesterImageV1 {
                queue: req.queue.as_ref().map(F::save_send),
                cqn: req.cq.and_then(|cq| self.cqn(cq)),
                current: req.current.as_deref().cloned(),
                // What a request has left behind that was flushed means nothing.
                offset: req.current.as_ref().map_or(0, |_| req.offset),
                psn: req.psn,
                retries_left: req.retries_left,
                rnr_left: req.rnr_left,
                wait,
                due,
                away: req.away.as_ref().map(|away| away.requester.save(now)),
            },
            responder: ResponderImageV1 {
                queue: match &resp.queue {
                    RecvQueue::None => RecvImageV1::None,
                    RecvQueue::Own(queue) => RecvImageV1::Own(F::save_recv(queue)),
                    RecvQueue::Shared(srq) => match self.srqs.get(srq.0) {
                        Some(srq) => RecvImageV1::Shared(srq.srqn),
                        None => RecvImageV1::None,
                    },
                    RecvQueue::Xrc(xrcd) => RecvImageV1::Xrc(*xrcd),
                },
                cqn: resp.cq.and_then(|cq| self.cqn(cq)),
                psn: resp.psn,
                msn: resp.msn,
                inbound: resp.inbound.as_ref().map(|inbound| InboundImageV1 {
                    wr: (*inbound.wr).clone(),
                    srqn: inbound.srqn,
                    pd: inbound.pd,
                }),
                received: resp.received,
                established: resp.established,
                receiving: resp.receiving.clone(),
            },
        }
    }
}

fn save_cq<F: Face>(cq: &Cq<F>, now: u64) -> CqImageV1<F> {
    CqImageV1 {
        cqn: cq.cqn,
        failed: cq.failed,
        watched: cq.watched,
        held: (cq.timer != 0).then(|| cq.held_until.saturating_sub(now)),
        ring: F::save_completion(&cq.ring),
    }
}

/// Each counter, with its field of the image.
macro_rules! counters {
    ($($field:ident: $($at:ident).+;)+) => {
        impl CountersImageV1 {
            pub(crate) fn save(counters: &TrafficCounters) -> Self {
                Self { $($field: counters.$($at).+.load(Ordering::Relaxed),)+ }
            }

            pub(crate) fn restore(&self, counters: &TrafficCounters) {
                let set = |counter: &AtomicU64, value| counter.store(value, Ordering::Relaxed);
                $(set(&counters.$($at).+, self.$field);)+
            }
        }
    };
}

counters! {
    xmit_words: xmit_words;
    xmit_packets: xmit_packets;
    rcv_words: rcv_words;
    rcv_packets: rcv_packets;
    multicast_xmit_packets: multicast_xmit_packets;
    multicast_rcv_packets: multicast_rcv_packets;
    pkey_violations: pkey_violations;
    qkey_violations: qkey_violations;
    xmit_discards: xmit_discards;
    local_ack_timeout_err: retries.local_ack_timeout_err;
    packet_seq_err: retries.packet_seq_err;
    implied_nak_seq_err: retries.implied_nak_seq_err;
    rnr_nak_retry_err: retries.rnr_nak_retry_err;
    out_of_sequence: retries.out_of_sequence;
    duplicate_request: retries.duplicate_request;
    rx_write_requests: requests.rx_write_requests;
    rx_read_requests: requests.rx_read_requests;
    rx_atomic_requests: requests.rx_atomic_requests;
    out_of_buffer: requests.out_of_buffer;
}
