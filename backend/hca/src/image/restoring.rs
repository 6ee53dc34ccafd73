//! An image becomes a function in parts, with others at the engine between them.

use std::collections::VecDeque;

use wire::{Gid, Qpn};

use super::held::HeldImageV1;
use super::restore::{Restorer, place, refusal};
use super::{
    CounterSetImageV1, CountersImageV1, CqImageV1, ErroredImageV1, ImageError, Object, QpImageV1,
    SrqImageV1, VfImage,
};
use crate::engine::Engine;
use crate::engine::executor::Executor;
use crate::memory::mr::MemoryKey;
use crate::objects::counters::QpCounters;
use crate::objects::ids::{QpIndex, VerbError, VfId};
use crate::objects::shared_port::is_free;
use crate::queue_format::QueueFormat;

/// Steps of a part. Neighbours wait no longer.
const PART: usize = 256;

/// An image of which a function is being made.
#[derive(Debug)]
pub struct Restoring<F: QueueFormat> {
    steps: VecDeque<Step<F>>,
    begun: bool,
}

/// One object, or what is as quickly done.
#[derive(Debug)]
enum Step<F: QueueFormat> {
    Pd(u32),
    CounterSet(Box<CounterSetImageV1>),
    Xrcd(u32),
    Psv(u32, u32),
    Key(u32, Box<MemoryKey>),
    Cq(Box<CqImageV1<F>>),
    Srq(Box<SrqImageV1<F>>),
    Qp(Box<QpImageV1<F>>),
    ReservedQpn(u32),
    /// A table has all that it is to have.
    Close(Table),
    Member(Gid, Qpn),
    Errored(ErroredImageV1),
    Ready(Qpn),
    Rest {
        searching: bool,
        counters: Box<CountersImageV1>,
        held: Vec<HeldImageV1>,
    },
}

#[derive(Debug, Clone, Copy)]
enum Table {
    Pds,
    Xrcds,
    Psvs,
    Keys,
    Cqs,
    Srqs,
    Qps,
}

impl<F: QueueFormat> Restoring<F> {
    /// Takes an image apart, which needs no engine: lists of pages are made here, and only given there.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn new(image: VfImage<F>) -> Result<Self, ImageError> {
        let VfImage::V1(image) = image;
        let mut steps = VecDeque::new();
        steps.extend(image.pds.into_iter().map(Step::Pd));
        steps.push_back(Step::Close(Table::Pds));
        steps.extend(image.xrcds.into_iter().map(Step::Xrcd));
        steps.push_back(Step::Close(Table::Xrcds));
        let psvs = image.psvs.into_iter();
        steps.extend(psvs.map(|(number, pd)| Step::Psv(number, pd)));
        steps.push_back(Step::Close(Table::Psvs));
        for key in image.keys {
            let index = key.index;
            steps.push_back(Step::Key(index, Box::new(key.restore()?)));
        }
        steps.push_back(Step::Close(Table::Keys));
        steps.extend(image.cqs.into_iter().map(|cq| Step::Cq(Box::new(cq))));
        steps.push_back(Step::Close(Table::Cqs));
        steps.extend(image.srqs.into_iter().map(|srq| Step::Srq(Box::new(srq))));
        steps.push_back(Step::Close(Table::Srqs));
        let sets = image.counter_sets.into_iter();
        steps.extend(sets.map(|set| Step::CounterSet(Box::new(set))));
        steps.extend(image.qps.into_iter().map(|qp| Step::Qp(Box::new(qp))));
        let reserved = image.reserved_qpns.into_iter();
        steps.extend(reserved.map(Step::ReservedQpn));
        steps.push_back(Step::Close(Table::Qps));
        for group in image.multicast {
            let members = group.members.into_iter();
            steps.extend(members.map(|member| Step::Member(group.gid, member)));
        }
        steps.extend(image.errored.into_iter().map(Step::Errored));
        steps.extend(image.ready.into_iter().map(Step::Ready));
        steps.push_back(Step::Rest {
            searching: image.searching,
            counters: Box::new(image.counters),
            held: image.held,
        });
        Ok(Self {
            steps,
            begun: false,
        })
    }
}

impl<F: QueueFormat> Engine<F> {
    /// Makes a function, which must have no objects, what it was when the image was saved. It goes on at
    /// once, unless it rests.
    ///
    /// # Errors
    /// [`ImageError`]. The function has no objects then, and is as after [`Engine::reset_vf`].
    pub fn restore(&mut self, vf: VfId, image: VfImage<F>) -> Result<(), ImageError> {
        self.executor.objects.vf(vf).is_vacant()?;
        let mut restoring = Restoring::new(image)?;
        while self.restore_part(vf, &mut restoring)? {}
        Ok(())
    }

    /// Makes a further part of a function, of a bounded number of objects. Whether more is left. The
    /// function has to rest from the first part to the last, and nothing of it may change by commands.
    ///
    /// # Errors
    /// As of [`Engine::restore`].
    pub fn restore_part(
        &mut self,
        vf: VfId,
        restoring: &mut Restoring<F>,
    ) -> Result<bool, ImageError> {
        if !std::mem::replace(&mut restoring.begun, true) {
            self.executor.objects.vf(vf).is_vacant()?;
        }
        let now = self.executor.time_of(vf);
        for _ in 0..PART {
            let Some(step) = restoring.steps.pop_front() else {
                break;
            };
            if let Err(error) = self.restore_step(vf, step, now) {
                self.reset_vf(vf);
                return Err(error);
            }
        }
        Ok(!restoring.steps.is_empty())
    }

    const fn restorer(&mut self, vf: VfId, now: u64) -> Restorer<'_, F> {
        let Executor {
            objects, requests, ..
        } = &mut self.executor;
        Restorer {
            vf,
            now,
            objects,
            completions: &mut requests.completions,
        }
    }

    fn restore_step(&mut self, vf: VfId, step: Step<F>, now: u64) -> Result<(), ImageError> {
        let state = self.executor.objects.vf_mut(vf);
        match step {
            Step::Pd(number) => {
                let of = Object::new("protection domain", number);
                place(&mut state.pds, of, &mut state.memory, 0)
            }
            Step::Xrcd(number) => {
                let of = Object::new("XRC domain", number);
                place(&mut state.xrcds, of, &mut state.memory, 0)
            }
            Step::Psv(number, pd) => {
                let of = Object::new("signature value", number);
                self.executor.objects.vf(vf).require_pd(of, pd)?;
                let state = self.executor.objects.vf_mut(vf);
                place(&mut state.psvs, of, &mut state.memory, pd)?;
                state.hold_pd(pd);
                Ok(())
            }
            Step::CounterSet(set) => {
                let CounterSetImageV1 { number, counts } = *set;
                let of = Object::new("set of counters", number.into());
                let counters = QpCounters::default();
                counts.restore(&counters);
                let inserted = state.sets.insert(number, counters, &mut state.memory);
                inserted.map_err(|error| match error {
                    VerbError::Exhausted => ImageError::Exhausted(of),
                    _ => ImageError::NoPlace(of),
                })
            }
            Step::Key(index, key) => self.executor.objects.vf_mut(vf).restore_key(index, *key),
            Step::Cq(cq) => self.restorer(vf, now).restore_cq(*cq),
            Step::Srq(srq) => self.restorer(vf, now).restore_srq(*srq),
            Step::Qp(qp) => self.restorer(vf, now).restore_qp(*qp),
            Step::ReservedQpn(number) => {
                let of = Object::new("reserved queue pair number", number);
                let lid = state.port.lid;
                if !is_free(&self.executor.objects.vfs, vf, number) {
                    return Err(ImageError::Taken { number, lid });
                }
                let state = self.executor.objects.vf_mut(vf);
                place(&mut state.qps, of, &mut state.memory, QpIndex::NOBODY)
            }
            Step::Close(table) => {
                match table {
                    Table::Pds => state.pds.close(),
                    Table::Xrcds => state.xrcds.close(),
                    Table::Psvs => state.psvs.close(),
                    Table::Keys => state.keys.close(),
                    Table::Cqs => state.cqs.close(),
                    Table::Srqs => state.srqs.close(),
                    Table::Qps => state.qps.close(),
                }
                Ok(())
            }
            Step::Member(gid, member) => {
                let of = Object::new("multicast attachment of queue pair", member.value());
                self.verbs(vf)
                    .attach_multicast(member, gid)
                    .map_err(|error| refusal(of, error))
            }
            Step::Errored(errored) => self.restorer(vf, now).restore_errored(&errored),
            Step::Ready(qpn) => {
                let of = Object::new("list of turns of function", 0);
                let index = self.executor.objects.vf(vf).named(of, qpn)?;
                self.executor.make_ready(index);
                Ok(())
            }
            Step::Rest {
                searching,
                counters,
                held,
            } => {
                counters.restore(state);
                state.version += 1;
                if searching {
                    state.run_queue.search_left = state.qps.slots() + state.srqs.slots();
                }
                let Executor {
                    objects, requests, ..
                } = &mut self.executor;
                let scheduler = &mut requests.completions.scheduler;
                if searching {
                    scheduler.queue(objects, vf);
                }
                scheduler.set_alarm(objects, vf);
                scheduler.polling.sweep_vf(objects, vf);
                self.restore_held(vf, held)
            }
        }
    }
}
