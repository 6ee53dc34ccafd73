//! Nodes that are off until somebody has them boot, while the others work.
//!
//! Their QEMUs are there, with their processors halted: so the subnet is whole, and a node that boots needs nothing more of
//! this machine than it has been admitted with.

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, PoisonError},
};

use crate::error::{Error, Result, near};
use crate::nodes::command_socket::lock;
use crate::nodes::{Lab, Node};

/// State of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    Off,
    /// It is to boot, or boots.
    Wanted,
    On,
    /// It has not booted, or never will.
    Never,
}

/// The nodes of a lab that are not on from the beginning.
#[derive(Debug, Default)]
pub(super) struct Later {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By the numbers of nodes.
    nodes: BTreeMap<usize, Power>,
    /// Nodes that may still have others boot.
    at_work: usize,
}

impl Later {
    /// Makes those of a lab with so many nodes, of which some are off.
    pub(super) fn new(count: usize, off: impl Iterator<Item = usize>) -> Self {
        let nodes: BTreeMap<usize, Power> = off.map(|node| (node, Power::Off)).collect();
        let at_work = count - nodes.len();
        Self {
            state: Mutex::new(State { nodes, at_work }),
            changed: Condvar::new(),
        }
    }

    fn power(&self, node: usize) -> Power {
        *lock(&self.state).nodes.get(&node).unwrap_or(&Power::On)
    }

    fn set(&self, node: usize, power: Power) {
        lock(&self.state).nodes.insert(node, power);
        self.changed.notify_all();
    }

    /// Waits until a node is no longer in one of these states.
    fn wait(&self, node: usize, states: &[Power]) -> Power {
        let state = lock(&self.state);
        let there = |it: &State| *it.nodes.get(&node).unwrap_or(&Power::On);
        let waited = (self.changed).wait_while(state, |it| states.contains(&there(it)));
        there(&waited.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Lab {
    fn number(&self, name: &str) -> Result<usize> {
        let found = self.nodes().iter().position(|it| it.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.nodes().iter().map(Node::name).collect();
            Error::Host(format!("there is no node {name}; {}", near(name, &names)))
        })
    }

    /// Has a node boot, and does not wait for it. Returns a text for the user.
    ///
    /// # Errors
    /// There is no such node, or it cannot.
    pub fn boot(&self, name: &str) -> Result<String> {
        let node = self.number(name)?;
        let mut state = lock(&self.later.state);
        Ok(match state.nodes.get(&node) {
            Some(Power::Off) => {
                state.nodes.insert(node, Power::Wanted);
                state.at_work += 1;
                self.later.changed.notify_all();
                format!("{name} boots\n")
            }
            Some(Power::Never) => return Err(Error::Host(format!("{name} has not booted"))),
            Some(Power::Wanted) => format!("{name} boots already\n"),
            Some(Power::On) | None => format!("{name} is on already\n"),
        })
    }

    /// Waits until a node is on that somebody has let boot.
    ///
    /// # Errors
    /// It has not booted.
    pub fn await_boot(&self, name: &str) -> Result<String> {
        let node = self.number(name)?;
        match self.later.wait(node, &[Power::Wanted]) {
            Power::On => Ok(format!("{name} is ready\n")),
            _ => Err(Error::Host(format!(
                "{name} has not booted; the lab has said why"
            ))),
        }
    }

    /// Whether a node is on.
    pub fn is_on(&self, node: usize) -> bool {
        self.later.power(node) == Power::On
    }

    /// Waits until a node is to be on, and brings it up; false if that never comes.
    ///
    /// # Errors
    /// It does not boot.
    pub fn come_up(&self, node: usize) -> Result<bool> {
        match self.later.wait(node, &[Power::Off]) {
            Power::On => return Ok(true),
            Power::Off | Power::Never => return Ok(false),
            Power::Wanted => {}
        }
        let done = self.bring_up(node);
        let power = done.as_ref().map_or(Power::Never, |()| Power::On);
        self.later.set(node, power);
        done.map(|()| true)
    }

    /// A node has others boot no more. Without any that may, those that are off stay so.
    pub fn leave(&self) {
        let mut state = lock(&self.later.state);
        state.at_work = state.at_work.saturating_sub(1);
        if state.at_work == 0 {
            drop(state);
            self.boot_no_more();
        }
    }

    /// Nodes that are off stay so.
    pub fn boot_no_more(&self) {
        let mut state = lock(&self.later.state);
        let off = state.nodes.values_mut().filter(|it| **it == Power::Off);
        off.for_each(|it| *it = Power::Never);
        self.later.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_on_unless_it_is_said_to_be_off() {
        let later = Later::new(3, [2].into_iter());
        assert_eq!((later.power(0), later.power(2)), (Power::On, Power::Off));
        assert_eq!(lock(&later.state).at_work, 2);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| later.wait(2, &[Power::Off]));
            later.set(2, Power::Wanted);
            assert_eq!(waits.join().unwrap(), Power::Wanted);
        });
    }
}
