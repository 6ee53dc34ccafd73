//! Jobs that other threads leave for an engine's thread, which does them while it polls or has work.
//!
//! An engine's thread that is awake has a processor; a thread that has a job for the engine may lose its own. If such a
//! thread took the engine, it might do so with the engine in its hands, and all functions would wait until the host's
//! scheduler runs it again. So the job comes to the engine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use hca::{Discarded, Engine, QueueFormat};
use parking_lot::Mutex;

/// Longest time of a wait awake.
const MAX_AWAKE: Duration = Duration::from_micros(50);

/// Jobs in their order. For each of them somebody waits.
pub(super) struct Mailbox<F: QueueFormat> {
    /// `None` while nobody takes any.
    jobs: Mutex<Option<VecDeque<Job<F>>>>,
    /// Number of jobs.
    waiting: AtomicUsize,
}

impl<F: QueueFormat> std::fmt::Debug for Mailbox<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl<F: QueueFormat> Default for Mailbox<F> {
    fn default() -> Self {
        Self {
            jobs: Mutex::new(None),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl<F: QueueFormat> Mailbox<F> {
    /// From now on jobs are taken.
    pub fn open(&self) {
        self.jobs.lock().get_or_insert_default();
    }

    /// No more jobs are taken. Those that are left are returned.
    pub fn close(&self) -> VecDeque<Job<F>> {
        let jobs = self.jobs.lock().take().unwrap_or_default();
        self.waiting.fetch_sub(jobs.len(), Ordering::Relaxed);
        jobs
    }

    /// Has `act` done by the engine's thread, which `call` calls, and waits until it is done.
    ///
    /// # Errors
    /// `act` itself where no jobs are taken.
    pub fn leave<R, A>(&self, act: A, call: impl FnOnce()) -> Result<R, A>
    where
        R: Send + 'static,
        A: FnOnce(&mut Engine<F>) -> R + Send + 'static,
    {
        let mut jobs = self.jobs.lock();
        let Some(open) = jobs.as_mut() else {
            return Err(act);
        };
        let letter = Arc::new(Letter {
            act: Mutex::new(Some(act)),
            result: Mutex::new(None),
            done: AtomicBool::new(false),
            waits: thread::current(),
        });
        open.push_back(Job(Arc::clone(&letter) as Arc<dyn Work<F>>));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        drop(jobs);
        call();
        letter.wait();
        let result = letter.result.lock().take();
        let (result, discarded) = result.expect("the engine's thread has ended over this");
        // The heap is for who asked, not for the engine's thread.
        drop(discarded);
        Ok(result)
    }

    /// Number of jobs.
    #[inline]
    pub fn jobs(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The next job, unless somebody is putting one there this moment, who is not waited for.
    pub fn take(&self) -> Option<Job<F>> {
        let job = self.jobs.try_lock()?.as_mut()?.pop_front();
        if job.is_some() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        job
    }
}

/// A job for the engine. Its waiting thread is told when it is done, or dropped.
pub(super) struct Job<F: QueueFormat>(Arc<dyn Work<F>>);

impl<F: QueueFormat> Job<F> {
    /// Does it.
    pub fn run(self, engine: &mut Engine<F>) {
        self.0.act(engine);
    }
}

impl<F: QueueFormat> Drop for Job<F> {
    fn drop(&mut self) {
        self.0.end();
    }
}

trait Work<F: QueueFormat>: Send + Sync {
    fn act(&self, engine: &mut Engine<F>);
    fn end(&self);
}

/// A job and its result. The thread that waits for the result frees the letter.
struct Letter<A, R> {
    act: Mutex<Option<A>>,
    result: Mutex<Option<(R, Discarded)>>,
    done: AtomicBool,
    waits: Thread,
}

impl<A, R> Letter<A, R> {
    /// Waits until the job is done. To wake a thread that sleeps takes the engine's thread several microseconds, in
    /// which it serves nobody; most jobs are done before.
    fn wait(&self) {
        let begun = Instant::now();
        while !self.done.load(Ordering::Acquire) {
            if begun.elapsed() < MAX_AWAKE {
                thread::yield_now();
            } else {
                thread::park();
            }
        }
    }
}

impl<F, R, A> Work<F> for Letter<A, R>
where
    F: QueueFormat,
    R: Send,
    A: FnOnce(&mut Engine<F>) -> R + Send,
{
    fn act(&self, engine: &mut Engine<F>) {
        let act = self.act.lock().take();
        if let Some(act) = act {
            let result = act(engine);
            *self.result.lock() = Some((result, engine.take_discarded()));
        }
    }

    fn end(&self) {
        self.done.store(true, Ordering::Release);
        self.waits.unpark();
    }
}
