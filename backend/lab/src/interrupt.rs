//! Effect of SIGINT, SIGTERM and SIGHUP on a lab: its guests are killed, threads that wait for them return at
//! once, and everything is taken down as without a signal.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use nix::sys::signal::{SigSet, Signal};

use crate::{
    error::{Doing, Error, Result},
    guest::Guest,
};

/// The signals that are waited for.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Knows whether a signal has come, and which guests are to be killed then.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    signal: Option<Signal>,
    guests: Vec<Arc<Guest>>,
}

impl Interrupt {
    /// Waits for signals from now on. Threads that are started before this get them as ever.
    pub fn by_signals() -> Result<Self> {
        let mut signals = SigSet::empty();
        SIGNALS.into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block().doing("block signals")?;
        let interrupt = Self::default();
        let told = interrupt.clone();
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                told.end(signal);
            }
        });
        Ok(interrupt)
    }

    /// The signal that has come, if one has.
    pub fn signal(&self) -> Option<Signal> {
        self.state().signal
    }

    /// Waits for a signal.
    pub fn wait(&self) {
        let mut state = self.state();
        while state.signal.is_none() {
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Has a guest be killed when a signal comes. An error if one has come.
    pub fn watch(&self, guest: &Arc<Guest>) -> Result<()> {
        let mut state = self.state();
        if let Some(signal) = state.signal {
            return Err(Error::Host(format!("ended by {signal}")));
        }
        state.guests.push(Arc::clone(guest));
        Ok(())
    }

    /// Kills all guests that it knows, and forgets them.
    pub fn kill_guests(&self) {
        let guests = std::mem::take(&mut self.state().guests);
        guests.iter().for_each(|guest| guest.kill());
    }

    /// Does what a signal does.
    pub fn end(&self, signal: Signal) {
        self.state().signal.get_or_insert(signal);
        self.0.1.notify_all();
        self.kill_guests();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
