//! Broken cables.

use std::collections::HashSet;

use fabric::Topology;
use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use wire::attribute::NodeType;

use crate::parts::Parts;

/// Error for more broken cables than the switches can do without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{broken} broken cables leave the {cables} between switches in parts; break fewer")]
pub struct TooManyBroken {
    /// Requested number of broken cables.
    pub broken: usize,
    /// Number of cables between switches.
    pub cables: usize,
}

/// Number of cables between switches.
#[must_use]
pub fn trunks(topology: &Topology) -> usize {
    between_switches(topology).len()
}

/// Places of the cables between switches.
fn between_switches(topology: &Topology) -> Vec<usize> {
    let is_switch = |node: usize| topology.nodes()[node].kind == NodeType::Switch;
    let links = topology.links().iter().enumerate();
    links
        .filter(|(_, (a, b, _))| is_switch(a.node.index()) && is_switch(b.node.index()))
        .map(|(place, _)| place)
        .collect()
}

/// The same topology with this many cables between switches broken, drawn at random by `seed` from those without which
/// the switches still reach each other.
///
/// # Errors
/// [`TooManyBroken`].
pub fn break_cables(
    topology: Topology,
    broken: usize,
    seed: u64,
) -> Result<Topology, TooManyBroken> {
    if broken == 0 {
        return Ok(topology);
    }
    let mut cables = between_switches(&topology);
    let all = cables.len();
    // Joining the switches in random order shows which cables they cannot do without.
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    cables.shuffle(&mut random);
    let mut parts = Parts::new(topology.nodes().len());
    let links = topology.links();
    cables.retain(|&place| {
        let (a, b, _) = links[place];
        !parts.join(a.node.index(), b.node.index())
    });
    let Some(left) = cables.len().checked_sub(broken) else {
        return Err(TooManyBroken {
            broken,
            cables: all,
        });
    };
    let gone: HashSet<usize> = cables.drain(left..).collect();
    let mut rest = Topology::new();
    for node in topology.nodes() {
        rest.add(node.clone());
    }
    for (place, &(a, b, rate)) in links.iter().enumerate() {
        if !gone.contains(&place) {
            rest.link((a.node, a.port), (b.node, b.port), rate);
        }
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FatTree, Hosts, Torus};

    fn joined(topology: &Topology) -> usize {
        let mut parts = Parts::new(topology.nodes().len());
        let links = topology.links().iter();
        links
            .filter(|(a, b, _)| parts.join(a.node.index(), b.node.index()))
            .count()
    }

    #[test]
    fn broken_cables_leave_it_whole() {
        let torus = Torus::new(&[4, 4], 1).unwrap().topology(Hosts::Adapters);
        for seed in 0..20 {
            let topology = break_cables(torus.clone(), 17, seed).unwrap();
            assert_eq!(topology.links().len(), 32 - 17 + 16);
            assert_eq!(joined(&topology), 31, "seed {seed}");
        }
        let error = break_cables(torus, 18, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "18 broken cables leave the 32 between switches in parts; break fewer"
        );
    }

    #[test]
    fn hosts_keep_their_cables() {
        let tree: FatTree = "XGFT(2;4,2;2,1)".parse().unwrap();
        let whole = tree.topology(Hosts::Adapters);
        let broken = break_cables(whole.clone(), 3, 1).unwrap();
        assert_eq!(broken.nodes(), whole.nodes());
        assert_eq!(trunks(&broken), trunks(&whole) - 3);
        assert_eq!(broken.links().len(), whole.links().len() - 3);
    }
}
