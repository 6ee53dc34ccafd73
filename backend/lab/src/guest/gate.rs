//! Lets either commands be sent to a guest, or the guest move: not both.
//!
//! Bytes that a QEMU has not read when its guest leaves are lost with it. So a guest does not move before it
//! has answered to all that it was sent, and is sent nothing until it is there.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Time limit for a guest to answer that a command has begun, before it moves.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Time limit of a move.
const MOVE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// The gate of one guest.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Commands that the guest has not answered to.
    sending: usize,
    closed: bool,
}

/// A command that has been sent, and not been answered to.
#[derive(Debug)]
pub struct Sending<'a>(&'a Gate);

/// Proof that nothing is sent.
#[derive(Debug)]
pub struct Closed<'a>(&'a Gate);

impl Gate {
    /// Before a command is sent: waits until the guest does not move. None if it does so for too long.
    pub fn pass(&self) -> Option<Sending<'_>> {
        let mut state = self.wait(self.state(), MOVE_LIMIT, |it| it.closed)?;
        state.sending += 1;
        Some(Sending(self))
    }

    /// Before the guest moves: waits until it has answered to all commands. None if it does not, or moves already.
    pub fn close(&self) -> Option<Closed<'_>> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.closed = true;
        let closed = Closed(self);
        let answered = self
            .wait(state, ANSWER_LIMIT, |it| it.sending > 0)
            .is_some();
        answered.then_some(closed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while something is so; none if it is for too long.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: Duration,
        so: impl Fn(&State) -> bool,
    ) -> Option<MutexGuard<'a, State>> {
        let waited = (self.changed).wait_timeout_while(state, limit, |state| so(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!so(&state)).then_some(state)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.state().sending -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.state().closed = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    #[test]
    fn a_guest_moves_when_all_is_answered_and_is_sent_nothing_meanwhile() {
        let gate = Gate::default();
        let sending = gate.pass().unwrap();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let tell_of_move = tell.clone();
            let gate = &gate;
            scope.spawn(move || {
                let closed = gate.close().unwrap();
                tell_of_move.send("moves").unwrap();
                assert!(gate.close().is_none(), "it moves twice");
                let other = scope.spawn(move || {
                    let _sending = gate.pass().unwrap();
                    tell.send("is sent").unwrap();
                });
                tell_of_move.send("has moved").unwrap();
                drop(closed);
                other.join().unwrap();
            });
            // It closes, and waits.
            while !gate.state().closed {
                thread::yield_now();
            }
            assert!(told.try_recv().is_err());
            drop(sending);
        });
        let all: Vec<_> = told.iter().collect();
        assert_eq!(all, ["moves", "has moved", "is sent"]);
    }
}
