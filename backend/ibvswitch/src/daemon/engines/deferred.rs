//! Work that waits until nobody holds the engine: signals and wake-ups. They are system calls, which may take long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use hca::VfId;
use hca::transport::Homes;
use parking_lot::Mutex;
use vfio_user::Interrupts;

/// Rung by who leaves something to do, heard by who gives the engine back.
#[derive(Debug, Clone, Default)]
pub struct Bell(Arc<AtomicBool>);

impl Bell {
    /// Something is left to do.
    #[inline]
    pub fn ring(&self) {
        self.0.store(true, Ordering::Release);
    }

    #[inline]
    fn has_rung(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Does what is left to do.
pub type Task = Box<dyn Fn() + Send + Sync>;

/// Work that there may be when the engine is free again.
#[derive(Default)]
pub struct Deferred {
    bell: Bell,
    tasks: Vec<Task>,
}

impl std::fmt::Debug for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Deferred").field(&self.bell).finish()
    }
}

impl Deferred {
    /// Each of the tasks is run when `bell` has rung.
    #[must_use]
    pub fn new(bell: Bell, tasks: Vec<Task>) -> Self {
        Self { bell, tasks }
    }

    /// Whether there is something to do.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.bell.has_rung()
    }

    /// Does what there is. To be called without the engine.
    #[inline]
    pub fn act(&self) {
        if self.is_due() {
            self.run();
        }
    }

    #[cold]
    fn run(&self) {
        // Before: what is left from now on is heard by who leaves it.
        self.bell.0.swap(false, Ordering::AcqRel);
        self.tasks.iter().for_each(|task| task());
    }
}

/// The waker of somebody who is to be woken when the engine is free.
#[derive(Debug)]
pub struct Later {
    bell: Bell,
    due: AtomicBool,
}

impl Later {
    /// Rings `bell` when it is called.
    #[must_use]
    pub const fn new(bell: Bell) -> Self {
        Self {
            bell,
            due: AtomicBool::new(false),
        }
    }

    /// Whether it was called since this was asked last.
    pub fn take(&self) -> bool {
        self.due.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Later {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.due.store(true, Ordering::Release);
        self.bell.ring();
    }
}

/// Interrupts of functions that were raised and are yet to be signalled.
#[derive(Debug, Default)]
pub struct Raised {
    bell: Bell,
    vectors: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    raised: Vec<(Interrupts, u16)>,
    /// Room for the next ones.
    spare: Vec<(Interrupts, u16)>,
}

impl Raised {
    /// Rings `bell` for each.
    #[must_use]
    pub fn new(bell: Bell) -> Self {
        Self {
            bell,
            vectors: Mutex::default(),
        }
    }

    /// Signals all of them.
    pub fn signal(&self) {
        let mut lists = self.vectors.lock();
        let spare = std::mem::take(&mut lists.spare);
        let mut raised = std::mem::replace(&mut lists.raised, spare);
        drop(lists);
        for (interrupts, vector) in raised.drain(..) {
            interrupts.trigger(vector);
        }
        self.vectors.lock().spare = raised;
    }
}

/// The interrupts of one function, as its engine raises them.
#[derive(Debug)]
pub struct Vectors {
    /// Through which they are signalled.
    pub interrupts: Interrupts,
    /// Until then, by engine.
    pub raised: Arc<[Raised]>,
    /// The VF that the vectors belong to.
    pub vf: VfId,
    /// Tells the engine that the VF lives in.
    pub homes: Arc<Homes>,
}

impl connectx::Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        // The thread that raises it has that engine.
        let Some(raised) = self.raised.get(self.homes.of(self.vf)) else {
            return;
        };
        let vectors = &mut raised.vectors.lock().raised;
        vectors.push((self.interrupts.clone(), vector));
        raised.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Waker;

    use super::*;

    #[test]
    fn who_is_woken_is_woken_once_and_when_it_is_time() {
        let bell = Bell::default();
        let later = Arc::new(Later::new(bell.clone()));
        let woken = Arc::new(AtomicU32::new(0));
        let (counted, taken) = (Arc::clone(&woken), Arc::clone(&later));
        let wake: Task = Box::new(move || {
            counted.fetch_add(u32::from(taken.take()), Ordering::Relaxed);
        });
        let deferred = Deferred::new(bell.clone(), vec![wake]);
        let waker = Waker::from(later);
        for calls in [0, 1, 3] {
            (0..calls).for_each(|_| waker.wake_by_ref());
            assert_eq!(deferred.is_due(), calls > 0);
            let before = woken.load(Ordering::Relaxed);
            deferred.act();
            deferred.act();
            let after = woken.load(Ordering::Relaxed);
            assert_eq!(after - before, calls.min(1), "{calls} calls");
        }
        // Others ring the same bell.
        bell.ring();
        deferred.act();
        assert_eq!(
            (woken.load(Ordering::Relaxed), deferred.is_due()),
            (2, false)
        );
    }
}
