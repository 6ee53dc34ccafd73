//! A function moves to another engine of the program, with all that it is.

use super::ImageError;
use crate::engine::Engine;
use crate::objects::ids::VfId;
use crate::queue_format::QueueFormat;
use crate::storage::share::Memory;

impl<F: QueueFormat> Engine<F> {
    /// Moves a function that lives here to another engine, which has the same functions and is joined to
    /// this one. Its objects keep their numbers, and go on where they were. Guest memory, the face's
    /// state and counters go along as they are.
    ///
    /// The caller has all engines of the program, sets the function's home, and calls [`Engine::clear_away`] here
    /// afterwards. So that nothing comes out of order, [`Engine::take_in`] is called before, at all of them.
    ///
    /// # Errors
    /// [`ImageError`], where it cannot be there what it is here: another function at its port lives here,
    /// too. It stays then.
    pub fn hand_over(&mut self, vf: VfId, to: &mut Self) -> Result<(), ImageError> {
        // Of a function at rest, it is here, and the other one may have been told, too.
        let (rested, told) = (
            self.executor.objects.vf(vf).is_quiet(),
            to.executor.objects.vf(vf).is_quiet(),
        );
        let mut port = self.executor.objects.vf(vf).port.clone();
        if let Some(rest) = &self.executor.objects.vf(vf).quiesced {
            port.active = rest.active;
        }
        to.executor.objects.vf_mut(vf).set_port(port);
        self.executor.quiesce(vf);
        to.quiesce(vf);
        let image = self.save(vf);
        let limit = self.executor.objects.vf(vf).quota.memory;
        let memory = std::mem::replace(
            &mut self.executor.objects.vf_mut(vf).memory,
            Memory::new(limit),
        );
        self.exchange(vf, to);
        let restored = to.restore(vf, image);
        let home = if restored.is_ok() {
            self.reset_vf(vf);
            self.executor.objects.vf_mut(vf).elsewhere = true;
            to.vf_mut(vf).elsewhere = false;
            &mut *to
        } else {
            self.exchange(vf, to);
            &mut *self
        };
        // Memory that belongs to no object, such as that of event queues, is charged as before.
        home.vf_mut(vf).memory = memory;
        // The caller that had it rest has it go on.
        for (engine, rests) in [(self, told), (to, rested)] {
            let state = engine.vf_mut(vf);
            state.version += 1;
            let rests = if restored.is_ok() {
                rests
            } else {
                rested || told
            };
            if !rests {
                engine.resume(vf);
            }
        }
        restored
    }

    /// Takes in all that has arrived, and nothing else. Whether there was anything.
    pub fn take_in(&mut self) -> bool {
        self.wake();
        let any = self.executor.network.exits.have_arrivals();
        while self.executor.network.exits.have_arrivals() {
            self.executor
                .arrivals(self.executor.requests.completions.scheduler.clock.now());
        }
        any
    }

    /// Exchanges the state of a function other than its objects.
    fn exchange(&mut self, vf: VfId, with: &mut Self) {
        let (one, other) = (self.executor.objects.vf_mut(vf), with.vf_mut(vf));
        std::mem::swap(&mut one.dma, &mut other.dma);
        std::mem::swap(&mut one.face, &mut other.face);
        std::mem::swap(&mut one.counters, &mut other.counters);
        std::mem::swap(&mut one.in_flight, &mut other.in_flight);
        if let (Some(one), Some(other)) = (&mut one.quiesced, &mut other.quiesced) {
            std::mem::swap(&mut one.changes, &mut other.changes);
        }
    }
}
