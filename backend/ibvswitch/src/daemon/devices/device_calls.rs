//! Calls of other threads, which the thread of a device makes between two messages of its client.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;

/// Time that a device may keep other threads waiting. Its thread waits only for a client that sends half a message.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// There is no client whose messages the thread waits for, or it is stuck in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no VMM is there, or it does not answer")]
pub struct Gone;

type Call<D> = Box<dyn FnOnce(&mut D) + Send>;

/// DeviceCalls for the thread of a device `D`. Clones are for the same one.
pub struct DeviceCalls<D>(Arc<Shared<D>>);

struct Shared<D> {
    waiting: Mutex<Waiting<D>>,
    called: EventFd,
}

struct Waiting<D> {
    open: bool,
    calls: VecDeque<Call<D>>,
}

impl<D> Clone for DeviceCalls<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D> fmt::Debug for DeviceCalls<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceCalls").finish_non_exhaustive()
    }
}

impl<D> DeviceCalls<D> {
    /// None, and nobody who would run any.
    ///
    /// # Errors
    /// Where the system has no event descriptors left.
    pub fn new() -> io::Result<Self> {
        let called = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let waiting = Mutex::new(Waiting {
            open: false,
            calls: VecDeque::new(),
        });
        Ok(Self(Arc::new(Shared { waiting, called })))
    }

    /// Readable when there are some.
    #[must_use]
    pub fn ready(&self) -> BorrowedFd<'_> {
        self.0.called.as_fd()
    }

    /// The thread has a client, and looks at [`DeviceCalls::ready`] from now on.
    pub fn open(&self) {
        self.0.waiting.lock().open = true;
    }

    /// The thread has no client any more. Waiting callers get an error.
    pub fn close(&self) {
        let mut waiting = self.0.waiting.lock();
        waiting.open = false;
        let calls = std::mem::take(&mut waiting.calls);
        drop(waiting);
        drop(calls);
    }

    /// The next one, for the thread of the device.
    pub fn next(&self) -> Option<Call<D>> {
        let next = self.0.waiting.lock().calls.pop_front();
        if next.is_none() {
            // Nothing to read means that nobody has called since.
            let _ = self.0.called.read();
            return self.0.waiting.lock().calls.pop_front();
        }
        next
    }

    /// Has the thread of the device do something, and waits until it has.
    ///
    /// # Errors
    /// [`Gone`]: it has not been done, and will not be.
    pub fn run<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut D) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let (sender, done) = bounded(1);
        let claimed = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&claimed);
        let call: Call<D> = Box::new(move |device| {
            if !begun.swap(true, Ordering::AcqRel) {
                // The caller waits for it.
                let _ = sender.send(act(device));
            }
        });
        {
            let mut waiting = self.0.waiting.lock();
            if !waiting.open {
                return Err(Gone);
            }
            waiting.calls.push_back(call);
        }
        // It can only fail with a counter at its end, and then the thread is awake anyway.
        let _ = self.0.called.write(1);
        match done.recv_timeout(DEVICE_TIMEOUT) {
            Ok(result) => Ok(result),
            // Under way by now: then it comes to its end.
            Err(RecvTimeoutError::Timeout) if claimed.swap(true, Ordering::AcqRel) => {
                done.recv().map_err(|_| Gone)
            }
            Err(_) => Err(Gone),
        }
    }
}

/// The thread of a device, which waits for what it is to do and hears nobody else, until this is dropped.
pub struct Detained<D>(Sender<Call<D>>);

impl<D> fmt::Debug for Detained<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detained").finish_non_exhaustive()
    }
}

impl<D> Detained<D> {
    /// Has the thread do something, and waits until it has.
    ///
    /// # Errors
    /// [`Gone`]: the thread has ended.
    pub fn run<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut D) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let (sender, done) = bounded(1);
        let call: Call<D> = Box::new(move |device| {
            // The caller waits for it.
            let _ = sender.send(act(device));
        });
        self.0.send(call).map_err(|_| Gone)?;
        done.recv().map_err(|_| Gone)
    }
}

/// The thread of a device was told to stand by.
pub struct Called<D> {
    is_here: Receiver<()>,
    acts: Sender<Call<D>>,
}

impl<D> fmt::Debug for Called<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Called").finish_non_exhaustive()
    }
}

impl<D> Called<D> {
    /// Waits until it does, at most for this time.
    ///
    /// # Errors
    /// [`Gone`]: it does not come to that point, or its client goes just now.
    pub fn wait(self, patience: Duration) -> Result<Detained<D>, Gone> {
        self.is_here.recv_timeout(patience).map_err(|_| Gone)?;
        Ok(Detained(self.acts))
    }
}

impl<D: 'static> DeviceCalls<D> {
    /// Detains the thread of the device between two messages, whether it has a client or waits for one. A thread
    /// that is called before it starts reads no message before that.
    #[must_use]
    pub fn detain(&self) -> Called<D> {
        let (here, is_here) = bounded(1);
        let (acts, waiting) = bounded::<Call<D>>(1);
        let call: Call<D> = Box::new(move |device| {
            // Where nobody waits any more, nobody has anything to do either.
            let _ = here.send(());
            for act in waiting {
                act(device);
            }
        });
        self.0.waiting.lock().calls.push_back(call);
        // It can only fail with a counter at its end, and then the thread is awake anyway.
        let _ = self.0.called.write(1);
        Called { is_here, acts }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn calls_are_run_in_their_order_by_the_devices_thread() {
        let calls = DeviceCalls::<Vec<u32>>::new().expect("an event descriptor");
        assert_eq!(calls.run(|_| ()), Err(Gone));
        calls.open();
        let theirs = calls.clone();
        let thread = thread::spawn(move || {
            let mut device = Vec::new();
            while device.len() < 3 {
                let mut ready = [PollFd::new(theirs.ready(), PollFlags::POLLIN)];
                poll(&mut ready, PollTimeout::NONE).expect("waits");
                while let Some(call) = theirs.next() {
                    call(&mut device);
                }
            }
            device
        });
        for number in 0..3 {
            let before = calls.run(move |device| {
                device.push(number);
                device.len()
            });
            assert_eq!(before, Ok(number as usize + 1));
        }
        assert_eq!(thread.join().expect("ends"), [0, 1, 2]);
        // A caller that waits when the client goes gets an error.
        let waits = calls.clone();
        let waits = thread::spawn(move || waits.run(|_| ()));
        let mut ready = [PollFd::new(calls.ready(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::NONE).expect("waits");
        calls.close();
        assert_eq!(waits.join().expect("ends"), Err(Gone));
    }
}
