//! The LID assignments and path schemes by their names.

use super::{Elsewhere, Heuristic};

/// The LIDs of adapters' ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LidChoice {
    /// The same number for each, whatever paths there are.
    #[default]
    Port,
    /// Each path by the first LID that takes it.
    Greedy,
    /// Splits paths at the nodes that fewest use first, then merges greedily.
    SplitMergeSmallest,
    /// The same at the nodes that most paths use first.
    SplitMergeLargest,
    /// The path that parts from most others first.
    Color,
    /// The path that parts from fewest others first.
    ColorSmallest,
    /// The fewest.
    Optimal,
    /// Destination renaming: chosen together with the paths.
    Renaming,
}

impl LidChoice {
    /// All with their names.
    pub const NAMES: [(&'static str, Self); 8] = [
        ("port", Self::Port),
        ("greedy", Self::Greedy),
        ("split-merge-smallest", Self::SplitMergeSmallest),
        ("split-merge-largest", Self::SplitMergeLargest),
        ("color", Self::Color),
        ("color-smallest", Self::ColorSmallest),
        ("optimal", Self::Optimal),
        ("renaming", Self::Renaming),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, choice)| *choice == self);
        found.map_or("port", |&(name, _)| name)
    }

    /// The heuristic that it begins with; none where LIDs are chosen together with the paths.
    pub(super) const fn heuristic(self) -> Option<Heuristic> {
        match self {
            Self::Port | Self::Renaming => None,
            Self::Greedy => Some(Heuristic::Greedy),
            Self::SplitMergeSmallest => Some(Heuristic::SplitMergeSmallest(Elsewhere::Apart)),
            Self::SplitMergeLargest => Some(Heuristic::SplitMergeLargest(Elsewhere::Apart)),
            Self::Color | Self::Optimal => Some(Heuristic::ColorLargest),
            Self::ColorSmallest => Some(Heuristic::ColorSmallest),
        }
    }
}

/// The paths of pairs of ports that LIDs are assigned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathChoice {
    /// The least loaded one of each pair's shortest paths.
    #[default]
    ShortestWidest,
    /// One of up to 16 paths of each pair, longer ones too, such that the load is spread.
    PathSelection,
}

impl PathChoice {
    /// All with their names.
    pub const NAMES: [(&'static str, Self); 2] = [
        ("shortest-widest", Self::ShortestWidest),
        ("path-selection", Self::PathSelection),
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, choice)| *choice == self);
        found.map_or("shortest-widest", |&(name, _)| name)
    }
}

/// LIDs by the paths of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Multipath {
    /// The LID assignment.
    pub lids: LidChoice,
    /// The paths; those of [`LidChoice::Renaming`] are shortest-widest ones.
    pub paths: PathChoice,
}

impl Multipath {
    /// The name of the scheme that computes the paths.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.lids {
            LidChoice::Renaming => self.lids.name(),
            _ => self.paths.name(),
        }
    }

    /// Whether LIDs are chosen by paths at all.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.lids != LidChoice::Port
    }
}
