//! Routes of tenants, merged into those of the provider (Hillenbrand, *Towards Virtual InfiniBand Clusters with Network and
//! Performance Isolation*, section 3.3.4).
//!
//! A tenant's entry acts where a walk along its entries reaches the LID. All other switches forward the LID as the provider's
//! routes say, so that every mixture leads to it.

pub(crate) mod lanes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wire::attribute::LinearBlock;
use wire::{Guid, Lid};

use super::{Break, Endpoint, ForwardingTable, Graph};

/// Forwarding tables that a cluster's own subnet manager has set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterTables {
    /// LIDs of the cluster's VMs. Entries for others never act.
    pub lids: BTreeSet<Lid>,
    /// By node GUID of a switch: the port for each LID. A switch without an entry forwards the LID as the provider's
    /// routes say.
    pub entries: BTreeMap<Guid, BTreeMap<Lid, u8>>,
}

/// Reason why an entry does not act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleReason {
    /// The LID is not one of the cluster's VMs.
    Foreign,
    /// No VM has the LID now, or the VM moves.
    Absent,
    /// The subnet has no switch of this GUID.
    NoSwitch,
    /// The walk from there along the cluster's entries does not reach the LID.
    Broken(Break),
}

impl fmt::Display for IdleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "the LID is not one of the cluster's",
            Self::Absent => "no VM has the LID at present",
            Self::NoSwitch => "the subnet has no such switch",
            Self::Broken(Break::Dropped) => "a switch on the way drops the LID",
            Self::Broken(Break::WrongPort) => "the way ends at a port where the LID is not",
            Self::Broken(Break::Circle) => "the way goes round in a circle",
        })
    }
}

/// An entry that does not act: the provider's takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleEntry {
    /// The switch.
    pub switch: Guid,
    /// The LID.
    pub lid: Lid,
    /// The reason.
    pub reason: IdleReason,
}

impl fmt::Display for IdleEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            switch,
            lid,
            reason,
        } = self;
        write!(f, "LID {lid:#} at switch {switch}: {reason}")
    }
}

/// Idle entries that are named; the others are counted.
const IDLE_MAX: usize = 16;

/// The entries of a cluster that act, and those that do not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ways {
    /// Switch, as an index of [`Graph::switches`], LID and port.
    pub(crate) acting: Vec<(usize, Lid, u8)>,
    /// The first ones.
    pub(crate) idle: Vec<IdleEntry>,
    pub(crate) idle_count: usize,
}

impl Ways {
    /// Judges a cluster's entries against the provider's tables. `admits` tells the LIDs that a cluster may route.
    pub(crate) fn new(
        graph: &Graph,
        tables: &[ForwardingTable],
        cluster: &ClusterTables,
        admits: impl Fn(&Endpoint) -> bool,
    ) -> Self {
        let mut ways = Self::default();
        let mut by_lid: BTreeMap<Lid, Vec<(usize, u8)>> = BTreeMap::new();
        for (&guid, entries) in &cluster.entries {
            let switch = { &graph.switches }.binary_search_by_key(&guid, |switch| switch.guid);
            for (&lid, &port) in entries {
                match switch {
                    _ if !cluster.lids.contains(&lid) => ways.idle(guid, lid, IdleReason::Foreign),
                    Ok(switch) => by_lid.entry(lid).or_default().push((switch, port)),
                    Err(_) => ways.idle(guid, lid, IdleReason::NoSwitch),
                }
            }
        }
        for (lid, entries) in by_lid {
            let end = { &graph.endpoints }.binary_search_by_key(&lid, |end| end.lid);
            let end = end.ok().map(|end| &graph.endpoints[end]);
            let Some(end) = end.filter(|end| admits(end)) else {
                for (switch, _) in entries {
                    ways.idle(graph.switches[switch].guid, lid, IdleReason::Absent);
                }
                continue;
            };
            let mut ports: Vec<u8> = tables.iter().map(|table| table.port(lid)).collect();
            for &(switch, port) in &entries {
                ports[switch] = port;
            }
            let breaks = breaks(graph, end, &ports);
            for (switch, port) in entries {
                match breaks[switch] {
                    None => ways.acting.push((switch, lid, port)),
                    Some(what) => {
                        let reason = IdleReason::Broken(what);
                        ways.idle(graph.switches[switch].guid, lid, reason);
                    }
                }
            }
        }
        ways
    }

    fn idle(&mut self, switch: Guid, lid: Lid, reason: IdleReason) {
        self.idle_count += 1;
        if self.idle.len() < IDLE_MAX {
            self.idle.push(IdleEntry {
                switch,
                lid,
                reason,
            });
        }
    }
}

/// The fault of the walk to a LID from each switch, given every switch's port for it.
fn breaks(graph: &Graph, end: &Endpoint, ports: &[u8]) -> Vec<Option<Break>> {
    let mut found: Vec<Option<Option<Break>>> = vec![None; ports.len()];
    let mut on_path = vec![false; ports.len()];
    let mut path = Vec::new();
    for start in 0..ports.len() {
        let mut at = start;
        let result = loop {
            if let Some(known) = found[at] {
                break known;
            }
            if on_path[at] {
                break Some(Break::Circle);
            }
            on_path[at] = true;
            path.push(at);
            match ports[at] {
                port if (at, port) == (end.switch, end.port) => break None,
                LinearBlock::DROP => break Some(Break::Dropped),
                port => match graph.neighbour(at, port) {
                    Some(next) => at = next,
                    None => break Some(Break::WrongPort),
                },
            }
        };
        for at in path.drain(..) {
            on_path[at] = false;
            found[at] = Some(result);
        }
    }
    found.into_iter().map(Option::flatten).collect()
}

/// The provider's ports where entries of clusters act, so that their tables can be had again: switch, LID and port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Overlay(Vec<(usize, Lid, u8)>);

impl Overlay {
    /// Puts entries of clusters into the provider's tables.
    pub(crate) fn lay<'a>(
        &mut self,
        tables: &mut [ForwardingTable],
        entries: impl IntoIterator<Item = &'a (usize, Lid, u8)>,
    ) {
        for &(switch, lid, port) in entries {
            let table = &mut tables[switch];
            let own = table.port(lid);
            if own != port {
                self.0.push((switch, lid, own));
                table.set(lid, port);
            }
        }
    }

    /// Makes the tables the provider's again.
    pub(crate) fn lift(self, tables: &mut [ForwardingTable]) {
        for (switch, lid, port) in self.0 {
            if let Some(table) = tables.get_mut(switch) {
                table.set(lid, port);
            }
        }
    }

    /// Whether entries of clusters act.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of a cluster acts for a LID.
    pub(crate) fn holds(&self, lid: Lid) -> bool {
        self.0.iter().any(|&(_, held, _)| held == lid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::fat_tree;
    use super::super::{MinHop, RoutingEngine, Verdict};
    use super::*;

    fn tables(entries: &[(u64, u16, u8)]) -> ClusterTables {
        let mut tables = ClusterTables::default();
        for &(switch, lid, port) in entries {
            let lid = Lid::new(lid);
            tables.lids.insert(lid);
            let of_switch = tables.entries.entry(Guid::new(switch)).or_default();
            of_switch.insert(lid, port);
        }
        tables
    }

    fn judged(cluster: &ClusterTables) -> (Vec<(usize, u16, u8)>, Vec<IdleReason>) {
        let graph = fat_tree();
        let provider = MinHop.route(&graph).unwrap().tables;
        let ways = Ways::new(&graph, &provider, cluster, |end| end.port != 0);
        let acting = ways.acting.iter();
        let acting = acting.map(|&(switch, lid, port)| (switch, lid.value(), port));
        let reasons = ways.idle.iter().map(|idle| idle.reason);
        (acting.collect(), reasons.collect())
    }

    #[test]
    fn entries_act_where_they_lead_to_the_lid() {
        use IdleReason::{Absent, Broken, Foreign, NoSwitch};
        let none = Vec::new;
        // From leaf 1 up by the one spine or the other.
        for port in [3, 4] {
            assert_eq!(
                judged(&tables(&[(1, 7, port)])),
                (vec![(0, 7, port)], none())
            );
        }
        for (entries, reason) in [
            // Down to a host of the same leaf, where the LID is not, and to no cable.
            (&[(1, 7, 1)][..], Broken(Break::WrongPort)),
            (&[(1, 7, 200)], Broken(Break::WrongPort)),
            (&[(1, 7, LinearBlock::DROP)], Broken(Break::Dropped)),
            // A switch's own LID, and one that nobody has.
            (&[(1, 2, 3)], Absent),
            (&[(1, 99, 3)], Absent),
            (&[(9, 7, 3)], NoSwitch),
        ] {
            assert_eq!(
                judged(&tables(entries)),
                (vec![], vec![reason]),
                "{entries:?}"
            );
        }
        let mut foreign = tables(&[(1, 7, 3)]);
        foreign.lids.clear();
        assert_eq!(judged(&foreign), (vec![], vec![Foreign]));
        // The spines send it back to where it comes from; the leaf's own entry is sound and acts.
        let circle = tables(&[(1, 7, 3), (3, 7, 1), (4, 7, 1), (2, 7, 1)]);
        let broken = Broken(Break::Circle);
        assert_eq!(judged(&circle), (vec![(1, 7, 1)], vec![broken; 3]));
    }

    #[test]
    fn the_providers_tables_come_back() {
        let graph = fat_tree();
        let provider = MinHop.route(&graph).unwrap().tables;
        let (mut merged, mut overlay) = (provider.clone(), Overlay::default());
        let entries = [3, 4].map(|port| (0, Lid::new(7), port));
        overlay.lay(&mut merged, &entries[..1]);
        overlay.lay(&mut merged, [&(0, Lid::new(8), entries[1].2)]);
        assert!(overlay.is_empty() || provider != merged);
        overlay.lift(&mut merged);
        assert_eq!(merged, provider);
    }

    proptest! {
        /// Whatever a tenant's tables say, every LID is reached from everywhere, and entries of others stay.
        #[test]
        fn random_tables_hurt_nobody(
            entries in vec((1..6u64, 1..10u16, prop_oneof![0..6u8, Just(LinearBlock::DROP)]), 0..40),
        ) {
            let graph = fat_tree();
            let provider = MinHop.route(&graph).unwrap();
            let mut cluster = tables(&entries);
            cluster.lids = [5, 7].map(Lid::new).into();
            let ways = Ways::new(&graph, &provider.tables, &cluster, |end| end.port != 0);
            let mut merged = provider.clone();
            Overlay::default().lay(&mut merged.tables, &ways.acting);
            let verdict = Verdict::new(&graph, &merged);
            prop_assert!(verdict.is_connected() && verdict.endless.is_none(), "{verdict}");
            for (old, new) in provider.tables.iter().zip(&merged.tables) {
                for lid in [1, 2, 3, 4, 6, 8].map(Lid::new) {
                    prop_assert_eq!(old.port(lid), new.port(lid));
                }
            }
            let count = cluster.entries.values().map(BTreeMap::len).sum::<usize>();
            prop_assert_eq!(ways.acting.len() + ways.idle_count, count);
        }
    }
}
