//! A function becomes an image.

use wire::Gid;

use super::{
    ContextImageV1, CounterSetImageV1, CountersImageV1, CqImageV1, ErroredImageV1, GroupImageV1,
    HeldImageV1, InboundImageV1, KeyImageV1, QpCountersImageV1, QpImageV1, RecvImageV1,
    RequesterImageV1, ResponderImageV1, SrqImageV1, TargetImageV1, VfImage, VfImageV1,
};
use crate::engine::Engine;
use crate::objects::Objects;
use crate::objects::cq::{CompletionQueues, Cq};
use crate::objects::dynamic::{Role, Target};
use crate::objects::ids::{CqIndex, QpIndex, VfId};
use crate::objects::qp::attributes::Inbound;
use crate::objects::qp::{Qp, QueuePairs, RecvQueue, Wait};
use crate::objects::srq::Srq;
use crate::objects::vf::quiesce::MAX_HELD_BYTES;
use crate::queue_format::QueueFormat;
use crate::transport::Frame;

/// Cost of a part of an image: 256 objects, or a block of pages of one key. Neighbours wait no longer.
const PART: usize = 4096;
/// Cost of an object.
const OBJECT: usize = PART / 256;

/// An image that is being made in parts, with others at the engine between them.
#[derive(Debug)]
pub struct Saving<F: QueueFormat> {
    image: VfImageV1<F>,
    stage: Stage,
    /// The next item of this stage: a slot, or a place in a list.
    at: usize,
    /// The next block of the last key's pages.
    block: usize,
    /// Times count from here.
    now: Option<u64>,
    groups: Vec<Gid>,
    /// Bytes of frames that wait in line for turns.
    in_line: usize,
}

/// The part that is being saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Pds,
    Xrcds,
    Psvs,
    Keys,
    Cqs,
    Srqs,
    Qps,
    Groups,
    Ready,
    Waiting,
    Errored,
    Held,
    Done,
}

impl<F: QueueFormat> Default for Saving<F> {
    fn default() -> Self {
        Self {
            image: VfImageV1::default(),
            stage: Stage::Pds,
            at: 0,
            block: 0,
            now: None,
            groups: Vec::new(),
            in_line: 0,
        }
    }
}

impl<F: QueueFormat> Saving<F> {
    /// The image, when [`Engine::save_part`] has said that it is complete.
    #[must_use]
    pub fn finish(mut self) -> VfImage<F> {
        self.image.multicast.sort_by_key(|group| group.gid);
        VfImage::V1(self.image)
    }

    /// Number of objects that it has by now.
    #[must_use]
    pub fn objects(&self) -> usize {
        let image = &self.image;
        let domains = image.pds.len() + image.xrcds.len() + image.psvs.len();
        domains + image.keys.len() + image.cqs.len() + image.srqs.len() + image.qps.len()
    }

    fn next_stage(&mut self, stage: Stage) -> usize {
        (self.stage, self.at) = (stage, 0);
        1
    }
}

impl<F: QueueFormat> Engine<F> {
    /// The image of a function as it is now, between two turns. Where it is to go on elsewhere,
    /// [`Engine::quiesce`] it before.
    #[must_use]
    pub fn save(&self, vf: VfId) -> VfImage<F> {
        let mut saving = Saving::default();
        while self.save_part(vf, &mut saving) {}
        saving.finish()
    }

    /// Makes a further part of an image, of a bounded number of objects. Whether more is left. The function
    /// has to rest from the first part to the last, and nothing of it may change by commands.
    pub fn save_part(&self, vf: VfId, saving: &mut Saving<F>) -> bool {
        saving.now.get_or_insert(self.executor.time_of(vf));
        let mut left = PART;
        while left >= OBJECT && saving.stage != Stage::Done {
            left = left.saturating_sub(self.save_next(vf, saving));
        }
        saving.stage != Stage::Done
    }

    /// Saves what comes next; returns what that has cost.
    fn save_next(&self, vf: VfId, saving: &mut Saving<F>) -> usize {
        let (state, objects) = (self.executor.objects.vf(vf), &self.executor.objects);
        let now = saving.now.unwrap_or_default();
        let qpn = |index: &QpIndex| objects.qps.get(index.0).map(|qp| qp.core.qpn);
        let at = saving.at;
        saving.at += 1;
        let image = &mut saving.image;
        match saving.stage {
            Stage::Pds if at < state.pds.slots() => {
                image
                    .pds
                    .extend(state.pds.numbered(at).map(|(number, _)| number));
                1
            }
            Stage::Pds => saving.next_stage(Stage::Xrcds),
            Stage::Xrcds if at < state.xrcds.slots() => {
                image
                    .xrcds
                    .extend(state.xrcds.numbered(at).map(|(number, _)| number));
                1
            }
            Stage::Xrcds => saving.next_stage(Stage::Psvs),
            Stage::Psvs if at < state.psvs.slots() => {
                let psv = state.psvs.numbered(at);
                image.psvs.extend(psv.map(|(number, pd)| (number, *pd)));
                1
            }
            Stage::Psvs => saving.next_stage(Stage::Keys),
            Stage::Keys => match state.keys.numbers().numbered(at) {
                Some((index, key)) if saving.block == 0 => {
                    let key = KeyImageV1::save(index, key);
                    let (cost, goes_on) = (OBJECT + key.cost(), key.is_long());
                    image.keys.push(key);
                    if goes_on {
                        (saving.at, saving.block) = (at, 1);
                    }
                    cost
                }
                Some((_, key)) => match key.save_block(saving.block - 1) {
                    Some((block, pages)) => {
                        if let Some(key) = image.keys.last_mut() {
                            key.add_block(block);
                        }
                        (saving.at, saving.block) = (at, saving.block + 1);
                        1 + pages / OBJECT
                    }
                    None => {
                        saving.block = 0;
                        1
                    }
                },
                None if at < state.keys.numbers().slots() => 1,
                None => saving.next_stage(Stage::Cqs),
            },
            Stage::Cqs if at < state.cqs.slots() => {
                let cq = state
                    .cqs
                    .in_slot(at)
                    .and_then(|index| objects.cqs.get(index.0));
                image.cqs.extend(cq.map(|cq| save_cq(cq, now)));
                if cq.is_some() { OBJECT } else { 1 }
            }
            Stage::Cqs => saving.next_stage(Stage::Srqs),
            Stage::Srqs if at < state.srqs.slots() => {
                let srq = state
                    .srqs
                    .in_slot(at)
                    .and_then(|index| objects.srqs.get(index.0));
                image.srqs.extend(srq.map(|srq| objects.save_srq(srq)));
                if srq.is_some() { OBJECT } else { 1 }
            }
            Stage::Srqs => saving.next_stage(Stage::Qps),
            Stage::Qps if at < state.qps.slots() => {
                let Some((number, &index)) = state.qps.numbered(at) else {
                    return 1;
                };
                if index == QpIndex::NOBODY {
                    image.reserved_qpns.push(number);
                    return 1;
                }
                let Some(qp) = objects.qps.get(index.0) else {
                    return 1;
                };
                image.qps.push(objects.save_qp(qp, now));
                let away = qp.req.away.as_ref();
                let requests = away.map_or(0, |away| away.requester.under_way());
                let rest = state.quiesced.as_deref();
                let mut left = MAX_HELD_BYTES - rest.map_or(0, |rest| rest.bytes) - saving.in_line;
                let before = left;
                for frame in lines(objects, qp) {
                    image.held.extend(HeldImageV1::in_line(frame, &mut left));
                }
                saving.in_line += before - left;
                OBJECT + requests * OBJECT + (before - left) / OBJECT
            }
            Stage::Qps => {
                saving.groups = state.multicast.keys().copied().collect();
                saving.next_stage(Stage::Groups) + saving.groups.len()
            }
            Stage::Groups => match saving.groups.get(at) {
                Some(&gid) => {
                    let members = state.multicast.get(&gid).map_or(&[][..], |it| it);
                    image.multicast.push(GroupImageV1 {
                        gid,
                        members: members.iter().filter_map(qpn).collect(),
                    });
                    OBJECT + members.len()
                }
                None => saving.next_stage(Stage::Ready),
            },
            Stage::Ready => match state.run_queue.ready.get(at) {
                Some(index) => {
                    let qp = objects.qps.get(index.0);
                    let qp = qp.filter(|qp| qp.req.queued && qp.core.vf == vf);
                    image.ready.extend(qp.map(|qp| qp.core.qpn));
                    1
                }
                None => saving.next_stage(Stage::Waiting),
            },
            // They look again where they come to be. Those whose turn is to come are in the image by now.
            Stage::Waiting if at < state.qps.slots() => {
                let qp = state
                    .qps
                    .in_slot(at)
                    .and_then(|index| objects.qps.get(index.0));
                let again =
                    |qp: &&Qp<F>| qp.req.wait == Wait::Quiesced || qp.req.paging.is_to_be_told();
                let qp = qp.filter(|qp| !qp.req.queued).filter(again);
                image.ready.extend(qp.map(|qp| qp.core.qpn));
                1
            }
            Stage::Waiting => saving.next_stage(Stage::Errored),
            Stage::Errored => match state.run_queue.errored.list.get(at) {
                Some(errored) => {
                    image
                        .errored
                        .extend(qpn(&errored.qp).map(|qpn| ErroredImageV1 {
                            qpn,
                            due: errored.due.saturating_sub(now),
                            pause: errored.pause,
                        }));
                    1
                }
                None => saving.next_stage(Stage::Held),
            },
            Stage::Held => match state.quiesced.as_ref().and_then(|rest| rest.held.get(at)) {
                Some(held) => {
                    image.held.push(HeldImageV1::save(held));
                    OBJECT + held.frame.payload.len() / OBJECT
                }
                None => {
                    image.searching = state.run_queue.search_left > 0;
                    image.counters = CountersImageV1::save(state);
                    let sets = state.sets.numbered();
                    let saved = sets.map(|(number, counters)| CounterSetImageV1 {
                        number,
                        counts: QpCountersImageV1::save(counters),
                    });
                    image.counter_sets = saved.collect();
                    saving.next_stage(Stage::Done)
                }
            },
            Stage::Done => 0,
        }
    }
}

impl<F: QueueFormat> CompletionQueues<F> {
    pub(crate) fn cqn(&self, cq: CqIndex) -> Option<u32> {
        self.get(cq.0).map(|cq| cq.cqn)
    }
}

impl<F: QueueFormat> Objects<F> {
    pub(crate) fn save_srq(&self, srq: &Srq<F>) -> SrqImageV1<F> {
        let xrc = srq.xrc.map(|(xrcd, cq)| (xrcd, self.cqs.cqn(cq)));
        let tags = srq.tags.as_ref();
        SrqImageV1 {
            srqn: srq.srqn,
            pd: srq.pd,
            xrc: xrc.and_then(|(xrcd, cqn)| Some((xrcd, cqn?))),
            tags: tags.and_then(|tags| Some(tags.save(self.cqs.cqn(tags.cq)?))),
            limit: srq.limit,
            failed: srq.failed,
            user_index: srq.user_index,
            ring: F::save_shared(&srq.ring),
        }
    }

    pub(crate) fn save_qp(&self, Qp { core, req, resp }: &Qp<F>, now: u64) -> QpImageV1<F> {
        let wait = match req.wait {
            Wait::Quiesced | Wait::Page => Wait::None,
            wait => wait,
        };
        let due = match wait {
            Wait::None => 0,
            _ => req.due.saturating_sub(now),
        };
        QpImageV1 {
            qpn: core.qpn,
            user_index: core.user_index,
            in_completion: core.in_completion,
            transport: core.transport,
            pd: core.pd,
            state: core.state,
            attr: core.attr,
            source_qpn: core.source_qpn,
            block_multicast_loopback: core.block_multicast_loopback,
            offloads: core.offloads,
            polled: core.polled,
            counter_set: self.vf(core.vf).sets.number(&core.set),
            requester: RequesterImageV1 {
                queue: req.queue.as_ref().map(F::save_send),
                cqn: req.cq.and_then(|cq| self.cqs.cqn(cq)),
                current: req.current.as_deref().cloned(),
                // The rest of a request that was flushed has no meaning.
                offset: req.current.as_ref().map_or(0, |_| req.offset),
                psn: req.psn,
                retries_left: req.retries_left,
                rnr_left: req.rnr_left,
                wait,
                due,
                paging: req.paging.lasting(),
                away: req.away.as_ref().map(|away| away.requester.save(now)),
                far: req.far,
            },
            responder: ResponderImageV1 {
                queue: match &resp.queue {
                    RecvQueue::None => RecvImageV1::None,
                    RecvQueue::Own(queue) => RecvImageV1::Own(F::save_recv(queue)),
                    RecvQueue::Shared(srq) | RecvQueue::Tagged(srq) => match self.srqs.get(srq.0) {
                        Some(srq) => RecvImageV1::Shared(srq.srqn),
                        None => RecvImageV1::None,
                    },
                    RecvQueue::Xrc(xrcd) => RecvImageV1::Xrc(*xrcd),
                },
                cqn: resp.cq.and_then(|cq| self.cqs.cqn(cq)),
                psn: resp.psn,
                msn: resp.msn,
                inbound: resp.inbound.as_ref().map(save_inbound),
                received: resp.received,
                established: resp.established,
                paging: resp.paging.lasting(),
                receiving: resp.receiving.clone(),
                target: match &resp.role {
                    Role::Target(target) => Some(self.qps.save_target(target, now)),
                    Role::None | Role::Context(_) | Role::Tagged(_) => None,
                },
                tagged: match &resp.role {
                    Role::Tagged(tagged) => Some(**tagged),
                    Role::None | Role::Target(_) | Role::Context(_) => None,
                },
            },
        }
    }
}

impl<F: QueueFormat> QueuePairs<F> {
    fn save_target(&self, target: &Target, now: u64) -> TargetImageV1 {
        let contexts = target.contexts().iter().filter_map(|index| {
            let Qp { core, resp, .. } = self.get(index.0)?;
            let Role::Context(context) = &resp.role else {
                return None;
            };
            Some(ContextImageV1 {
                initiator: context.initiator,
                session: context.session,
                earlier: context.earlier,
                refused: !core.state.receives(),
                idle: now.saturating_sub(context.used),
                mtu: core.attr.mtu,
                path: core.attr.path?,
                psn: resp.psn,
                msn: resp.msn,
                inbound: resp.inbound.as_ref().map(save_inbound),
                received: resp.received,
                receiving: resp.receiving.clone(),
            })
        });
        TargetImageV1 {
            key: target.key,
            route: target.route,
            armed: target.armed,
            violations: target.violations,
            left_behind: target.left_behind.iter().map(save_inbound).collect(),
            contexts: contexts.collect(),
        }
    }
}

fn save_inbound(inbound: &Inbound) -> InboundImageV1 {
    InboundImageV1 {
        wr: (*inbound.wr).clone(),
        srqn: inbound.srqn,
        pd: inbound.pd,
    }
}

fn save_cq<F: QueueFormat>(cq: &Cq<F>, now: u64) -> CqImageV1<F> {
    CqImageV1 {
        cqn: cq.cqn,
        failed: cq.failed,
        watched: cq.watched,
        held: (cq.timer != 0).then(|| cq.held_until.saturating_sub(now)),
        ring: F::save_completion(&cq.ring),
    }
}

/// Frames that wait for turns of a queue pair, or of the contexts that it has.
fn lines<'a, F: QueueFormat>(
    objects: &'a Objects<F>,
    qp: &'a Qp<F>,
) -> impl Iterator<Item = &'a Frame> {
    let contexts = match &qp.resp.role {
        Role::Target(target) => target.contexts(),
        _ => &[],
    };
    let contexts = contexts.iter().filter_map(|index| objects.qps.get(index.0));
    let all = std::iter::once(qp).chain(contexts);
    all.flat_map(|qp| qp.req.line.frames())
}
