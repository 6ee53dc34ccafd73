//! Load of links by paths.

use crate::routing::multipath::{LinkId, Network, Path};

/// Paths over each directed link.
#[derive(Debug, Clone)]
pub struct LinkLoads(Vec<u32>);

impl LinkLoads {
    /// No path yet.
    #[must_use]
    pub fn new(network: &Network) -> Self {
        Self(vec![0; network.links().len()])
    }

    /// Adds a path.
    pub fn add(&mut self, links: &[LinkId]) {
        for link in links {
            self.0[link.at()] += 1;
        }
    }

    /// Adds paths over one link.
    pub(super) fn add_many(&mut self, link: LinkId, paths: u32) {
        self.0[link.at()] += paths;
    }

    /// Takes a path away that was added.
    pub(super) fn remove(&mut self, links: &[LinkId]) {
        for link in links {
            self.0[link.at()] -= 1;
        }
    }

    /// Paths over a link.
    #[must_use]
    pub fn get(&self, link: LinkId) -> u32 {
        self.0[link.at()]
    }

    /// Paths over all links of a path, in sum.
    pub(super) fn sum(&self, links: &[LinkId]) -> u32 {
        links.iter().map(|&link| self.get(link)).sum()
    }

    /// The most paths over any link.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

/// The largest load of a link when each machine sends 1 in all, in equal parts to all others: the
/// measure of table VI.
#[must_use]
pub fn maximum_load<'a>(network: &Network, paths: impl IntoIterator<Item = &'a Path>) -> f64 {
    let mut loads = LinkLoads::new(network);
    for path in paths {
        loads.add(path.links());
    }
    let others = network.machines().count().saturating_sub(1).max(1);
    f64::from(loads.most()) / others as f64
}
