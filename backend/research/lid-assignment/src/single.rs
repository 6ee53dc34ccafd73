//! Paths that one LID per destination suffices for.

use std::collections::VecDeque;

use subnet_manager::routing::multipath::paths::{LinkLoads, NotConnected, UpDown};
use subnet_manager::routing::multipath::{Kind, LinkId, Network, NodeIndex, Path};

/// Each switch has one way to a destination, whoever sends: what an up*/down* routing engine fills
/// linear forwarding tables with, and what SRD and fully explicit routing aim at. A switch that can
/// go down to the destination does; others go up, towards the nearest such switch. Of equal ways the
/// one whose link carries the fewest destinations so far.
#[derive(Debug, Clone, Copy)]
pub struct SingleLid<'a> {
    /// The order of the network.
    pub order: &'a UpDown,
}

impl SingleLid<'_> {
    /// The paths of all pairs, by rising destination and then rising source.
    ///
    /// # Errors
    /// [`NotConnected`] names a pair without a legal path.
    pub fn paths(&self, network: &Network) -> Result<Vec<Path>, NotConnected> {
        let machines: Vec<NodeIndex> = network.machines().collect();
        let mut loads = LinkLoads::new(network);
        let mut paths = Vec::with_capacity(machines.len() * machines.len());
        for &to in &machines {
            let next = self.next_hops(network, to, &mut loads);
            for &from in machines.iter().filter(|&&from| from != to) {
                let mut links = Vec::new();
                let mut at = from;
                while at != to {
                    let link = next[at.0 as usize].ok_or(NotConnected { from, to })?;
                    links.push(link);
                    at = network.link(link).to;
                }
                let path = network.path_of_links(links);
                paths.push(path.expect("every hop comes nearer to the destination"));
            }
        }
        Ok(paths)
    }

    fn next_hops(
        &self,
        network: &Network,
        to: NodeIndex,
        loads: &mut LinkLoads,
    ) -> Vec<Option<LinkId>> {
        let mut distance = vec![u32::MAX; network.nodes().len()];
        let mut next = vec![None; network.nodes().len()];
        distance[to.0 as usize] = 0;
        // First all that can come down to it, then all that can climb to one of these.
        let mut reached = vec![to];
        for up in [false, true] {
            let mut queue: VecDeque<NodeIndex> = reached.iter().copied().collect();
            if up {
                queue = by_distance(&reached, &distance);
            }
            while let Some(at) = queue.pop_front() {
                if network.kind(at) == Kind::Machine && at != to {
                    continue;
                }
                for &back in network.outgoing(at) {
                    let link = back.reverse();
                    let from = network.link(link).from;
                    // A machine sends to whichever switch is nearest; its link always leads up.
                    if self.order.is_up(network, link) != up {
                        continue;
                    }
                    let new = distance[at.0 as usize] + 1;
                    if distance[from.0 as usize] == u32::MAX {
                        distance[from.0 as usize] = new;
                        reached.push(from);
                        // Of equal distance are next to each other: the queue stays ordered.
                        let place = queue.partition_point(|node| distance[node.0 as usize] <= new);
                        queue.insert(place, from);
                        next[from.0 as usize] = Some(link);
                    } else if distance[from.0 as usize] == new
                        && next[from.0 as usize].is_some_and(|old| {
                            self.order.is_up(network, old) == up && loads.get(link) < loads.get(old)
                        })
                    {
                        next[from.0 as usize] = Some(link);
                    }
                }
            }
        }
        for link in next.iter().flatten() {
            loads.add(&[*link]);
        }
        next
    }
}

fn by_distance(nodes: &[NodeIndex], distance: &[u32]) -> VecDeque<NodeIndex> {
    let mut nodes = nodes.to_vec();
    nodes.sort_by_key(|node| (distance[node.0 as usize], *node));
    nodes.into()
}

#[cfg(test)]
mod tests {
    use subnet_manager::routing::multipath::Heuristic;
    use subnet_manager::routing::multipath::paths::{
        CANDIDATES, Legality, PathSelection, maximum_load,
    };

    use super::*;

    #[test]
    fn one_lid_does_for_paths_that_are_made_for_it() {
        let mut network = Network::default();
        let nodes: Vec<NodeIndex> = (0..12).map(|_| network.add_switch()).collect();
        for at in 0..12 {
            let other = |step: usize| nodes[(at + step) % 12];
            network.cable(nodes[at], other(1));
            if at % 3 == 0 {
                network.cable(nodes[at], other(4));
                network.cable(nodes[at], other(4));
            }
        }
        for &switch in [&nodes, &nodes].into_iter().flatten() {
            let machine = network.add_machine();
            network.cable(machine, switch);
        }
        let order = UpDown::new(&network, nodes[0]).unwrap();
        let legality = Legality::UpDown(&order);
        let candidates = CANDIDATES;
        let selection = PathSelection {
            legality,
            candidates,
        };
        let selected = selection.paths(&network).unwrap();
        let single = SingleLid { order: &order }.paths(&network).unwrap();
        assert_eq!(single.len(), 24 * 23);
        assert!(
            single
                .iter()
                .all(|path| legality.allows(&network, path.links()))
        );
        let [narrow, wide] = [&single, &selected].map(|paths| maximum_load(&network, paths));
        assert!(
            wide <= narrow,
            "path selection balances: {wide} and {narrow}"
        );
        for to in network.machines() {
            let paths = single.iter().filter(|path| network.destination(path) == to);
            let paths: Vec<Path> = paths.cloned().collect();
            let greedy = Heuristic::Greedy.assign(&network, &paths);
            assert_eq!(greedy.configurations(), 1);
        }
    }
}
