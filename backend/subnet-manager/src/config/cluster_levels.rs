//! Service levels that clusters have for themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use wire::{Guid, PKey, Sl};

/// A cluster that is to have a share of the links that it uses, apart from others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterShare {
    /// Name, unique among clusters.
    pub name: String,
    /// Port GUIDs of its VMs.
    pub ports: BTreeSet<Guid>,
    /// Its part of a link, against those of the other clusters there; 0 counts as 1.
    pub share: u8,
    /// Parts of its share for service levels of its own, in their order; fewer than two for none.
    pub own_levels: Vec<u16>,
}

/// Reason why a cluster has no service level of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterLevelError {
    /// Links have too few lanes.
    #[error(
        "links have {lanes} data lanes, of which the first is the provider's, and none is left: at port {port} of switch \
         {switch} it meets the cluster {other}, and in all {others} clusters; keep its VMs apart from theirs, or allow more \
         lanes"
    )]
    Lanes {
        /// Data lanes.
        lanes: u8,
        /// Clusters that it meets.
        others: usize,
        /// One of them.
        other: String,
        /// Node GUID of a switch where they meet.
        switch: Guid,
        /// The switch's port there.
        port: u8,
    },
    /// Something else decides on service levels and lanes.
    #[error("{0} says which service levels or lanes there are; leave it out, or cluster_lanes")]
    Contradicted(&'static str),
}

/// Service levels of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelsOfCluster {
    /// Name of the cluster.
    pub name: String,
    /// Its service levels, the first for all that asks for none.
    pub levels: Vec<Sl>,
    /// By service level of its own: the one that takes its place.
    pub own_levels: Vec<Sl>,
    /// The reason why it has none: then its VMs use service level 0, as the provider does.
    pub refusal: Option<ClusterLevelError>,
}

impl fmt::Display for LevelsOfCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, level) in self.levels.iter().enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            write!(f, "{comma}{}", level.value())?;
        }
        match (self.own_levels.len(), self.levels.len()) {
            (own, levels) if own > levels => write!(f, " (for {own} lanes of its own)"),
            _ => Ok(()),
        }
    }
}

/// Service levels of all clusters. Level 0 is the provider's: management, and ports outside of clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterLevels {
    pub(crate) list: Vec<LevelsOfCluster>,
    /// By port GUID: the place in `list`.
    pub(crate) of_port: BTreeMap<Guid, usize>,
    /// By partition: the place in `list`.
    pub(crate) of_partition: BTreeMap<u16, usize>,
}

impl ClusterLevels {
    /// Each cluster, in the order in which they have precedence.
    pub fn all(&self) -> &[LevelsOfCluster] {
        &self.list
    }

    /// Service levels of the cluster of a port; none where it has none.
    pub fn of(&self, port: Guid) -> &[Sl] {
        let place = self.of_port.get(&port);
        place.map_or(&[], |&place| &self.list[place].levels)
    }

    /// The level of paths between two ports of which one is in a cluster with levels; none if the cluster has not the one
    /// that is wanted.
    pub(crate) fn level(&self, ends: [Guid; 2], wanted: Option<Sl>) -> Option<Option<Sl>> {
        let levels = ends.map(|end| self.of(end));
        let levels = levels.into_iter().find(|levels| !levels.is_empty())?;
        Some(match wanted {
            Some(wanted) => levels.iter().copied().find(|&level| level == wanted),
            None => levels.first().copied(),
        })
    }

    /// The level of groups of a partition that is one cluster's alone.
    pub(crate) fn of_partition(&self, pkey: PKey) -> Option<Sl> {
        let place = self.of_partition.get(&pkey.partition())?;
        self.list[*place].levels.first().copied()
    }

    /// All levels in use, the provider's among them.
    pub(crate) fn assigned(&self) -> BTreeSet<Sl> {
        let levels = self.list.iter().flat_map(|of| &of.levels);
        levels.copied().chain([Sl::default()]).collect()
    }
}
