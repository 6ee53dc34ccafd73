//! Timers of queue pairs.

use crate::engine::scheduler::Scheduler;
use crate::objects::Objects;
use crate::objects::ids::QpIndex;
use crate::objects::qp::Wait;
use crate::queue_format::QueueFormat;
use crate::transport::room::BYTES_PER_SLOT;

impl<F: QueueFormat> Scheduler<F> {
    /// A queue pair waits from one time to another, in the clock's nanoseconds.
    pub fn set_wait(
        &mut self,
        objects: &mut Objects<F>,
        index: QpIndex,
        wait: Wait,
        (since, due): (u64, u64),
    ) {
        let id = self.timer();
        if let Some(qp) = objects.qps.get_mut(index.0) {
            qp.req.wait = wait;
            qp.req.timer = id;
            (qp.req.since, qp.req.due) = (since, due);
            let vf = qp.core.vf;
            objects
                .vf_mut(vf)
                .run_queue
                .timers
                .insert((due, index.0, id));
            self.set_alarm(objects, vf);
        }
    }

    /// The wait of a queue pair is over before its time.
    #[cold]
    pub fn end_wait(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Some(qp) = objects.qps.get_mut(index.0) else {
            return;
        };
        qp.req.wait = Wait::None;
        let timer = (qp.req.due, index.0, std::mem::take(&mut qp.req.timer));
        let vf = qp.core.vf;
        if objects.vf_mut(vf).run_queue.timers.remove(&timer) {
            self.set_alarm(objects, vf);
        }
    }

    /// So many requests of a restored queue pair are under way.
    pub fn start_frames(&mut self, objects: &mut Objects<F>, index: QpIndex, requests: usize) {
        let Some(qp) = objects.qps.get(index.0).filter(|qp| qp.req.away.is_some()) else {
            return;
        };
        let vf = objects.vf_mut(qp.core.vf);
        vf.taken = vf.taken.saturating_add(requests as u32);
        (0..requests).for_each(|_| vf.memory.exchange(0, BYTES_PER_SLOT));
        self.set_away_timer(objects, index);
    }

    /// Sees to it that the queue pair has a turn when an answer is overdue.
    pub fn set_away_timer(&mut self, objects: &mut Objects<F>, index: QpIndex) {
        let Objects { qps, vfs, .. } = objects;
        let Some(qp) = qps.get_mut(index.0) else {
            return;
        };
        let Some(away) = &mut qp.req.away else { return };
        let deadline = away.requester.deadline();
        if away.timer != 0 && deadline == Some(away.due) {
            return;
        }
        let vf = qp.core.vf;
        let timers = &mut vfs[usize::from(vf.0)].run_queue.timers;
        timers.remove(&(away.due, index.0, std::mem::take(&mut away.timer)));
        if let Some(due) = deadline {
            (away.timer, away.due) = (self.timer(), due);
            timers.insert((due, index.0, away.timer));
        }
        self.set_alarm(objects, vf);
    }
}
