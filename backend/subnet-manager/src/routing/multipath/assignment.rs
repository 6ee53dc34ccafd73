//! Configurations: which paths of a destination share a LID.

/// Configuration of each path of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    labels: Vec<usize>,
    configurations: usize,
}

impl Assignment {
    /// Makes an assignment of a label per path, with any numbers.
    #[must_use]
    pub fn compact(mut labels: Vec<usize>) -> Self {
        let mut used = labels.clone();
        used.sort_unstable();
        used.dedup();
        for label in &mut labels {
            *label = used.partition_point(|other| other < label);
        }
        Self::new(labels)
    }

    /// Makes an assignment of a label per path. Labels count from 0 without gaps.
    pub(crate) fn new(labels: Vec<usize>) -> Self {
        let configurations = labels.iter().max().map_or(0, |&label| label + 1);
        Self {
            labels,
            configurations,
        }
    }

    /// Returns the number of LIDs that the destination needs, before rounding.
    #[must_use]
    pub fn configurations(&self) -> usize {
        self.configurations
    }

    /// The configuration of a path, from 0.
    #[must_use]
    pub fn configuration(&self, path: usize) -> Option<usize> {
        self.labels.get(path).copied()
    }

    /// The paths of each configuration.
    #[must_use]
    pub fn members(&self) -> Vec<Vec<usize>> {
        let mut members = vec![Vec::new(); self.configurations];
        for (path, &label) in self.labels.iter().enumerate() {
            members[label].push(path);
        }
        members
    }
}
