//! Barriers between nodes.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::guest::channel::Barrier;

/// An answer to one who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The node in which it waits; the first is 0.
    pub node: usize,
    /// The pipe that it reads.
    pub reply: String,
    /// Text for the node to read.
    pub text: String,
}

/// The barriers of all nodes.
#[derive(Debug)]
pub struct Barriers {
    names: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By name of the barrier: those who wait, by node.
    waiting: BTreeMap<String, BTreeMap<usize, String>>,
    /// The first node that has ended.
    left: Option<usize>,
}

impl Barriers {
    /// None yet, of nodes with these names.
    pub fn new(names: Vec<String>) -> Self {
        Self {
            names,
            state: Mutex::default(),
        }
    }

    /// Notes that a process of a node has come to a barrier. Returns the answers to nodes.
    pub fn arrive(&self, node: usize, barrier: Barrier) -> Vec<Answer> {
        let Barrier { name, reply } = barrier;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = state.left {
            return vec![self.gone(node, reply, left)];
        }
        let there = state.waiting.entry(name.clone()).or_default();
        if there.contains_key(&node) {
            let text = "another process of this node waits at it already".into();
            return vec![Answer { node, reply, text }];
        }
        there.insert(node, reply);
        if there.len() < self.names.len() {
            return Vec::new();
        }
        let all = state.waiting.remove(&name).unwrap_or_default();
        let go = |(node, reply)| Answer {
            node,
            reply,
            text: "go".into(),
        };
        all.into_iter().map(go).collect()
    }

    /// Notes that a node's command has ended: nobody waits for that node any more. Returns the answers to nodes.
    pub fn leave(&self, node: usize) -> Vec<Answer> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.left.get_or_insert(node);
        let waiting = std::mem::take(&mut state.waiting);
        let all = waiting.into_values().flatten();
        all.map(|(waits, reply)| self.gone(waits, reply, node))
            .collect()
    }

    fn gone(&self, node: usize, reply: String, left: usize) -> Answer {
        let text = format!("no {}'s command has ended", self.names[left]);
        Answer { node, reply, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &str, reply: &str) -> Barrier {
        Barrier {
            name: name.into(),
            reply: reply.into(),
        }
    }

    fn told(answers: &[Answer]) -> Vec<(usize, &str, &str)> {
        let told = answers
            .iter()
            .map(|it| (it.node, it.reply.as_str(), it.text.as_str()));
        told.collect()
    }

    #[test]
    fn the_last_one_lets_all_go_again_and_again() {
        let barriers = Barriers::new(vec!["n1".into(), "n2".into()]);
        for _ in 0..2 {
            assert_eq!(barriers.arrive(1, at("up", "b")), []);
            assert_eq!(barriers.arrive(0, at("other", "c")), []);
            let all = barriers.arrive(0, at("up", "a"));
            assert_eq!(told(&all), [(0, "a", "go"), (1, "b", "go")]);
            assert_eq!(barriers.arrive(1, at("other", "d")).len(), 2);
        }
    }

    #[test]
    fn nobody_waits_for_who_has_left() {
        let barriers = Barriers::new(vec!["n1".into(), "n2".into()]);
        barriers.arrive(0, at("up", "a"));
        let gone = "no n2's command has ended";
        assert_eq!(told(&barriers.leave(1)), [(0, "a", gone)]);
        assert_eq!(told(&barriers.arrive(0, at("up", "b"))), [(0, "b", gone)]);
    }

    #[test]
    fn a_node_waits_once() {
        let barriers = Barriers::new(vec!["n1".into(), "n2".into()]);
        barriers.arrive(0, at("up", "a"));
        let twice = barriers.arrive(0, at("up", "b"));
        assert!(twice[0].text.starts_with("another process"), "{twice:?}");
        assert_eq!(barriers.arrive(1, at("up", "c")).len(), 2);
    }
}
