//! Service levels: which virtual lanes a path may use.

use wire::{Lid, Sl};

/// The service level of every path, from the switch where it begins to the LID where it ends.
///
/// Engines that keep paths free of deadlock by spreading them over virtual lanes answer with one per
/// path; service level n travels on lane n. A path belongs to the switch of its source: what hangs
/// at one switch takes the same way from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceLevels {
    count: u8,
    columns: usize,
    /// By LID: which column tells of it.
    column: Vec<u32>,
    /// By switch: its row.
    row: Vec<usize>,
    /// By row, then by column.
    levels: Vec<u8>,
}

impl ServiceLevels {
    /// Every path on service level 0.
    pub fn uniform() -> Self {
        Self {
            count: 1,
            columns: 0,
            column: Vec::new(),
            row: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Levels by row and column: `row` names the row of every switch, `column` the column of every
    /// LID, a number too high standing for level 0.
    pub(super) fn by_column(column: Vec<u32>, row: Vec<usize>, levels: Vec<u8>) -> Self {
        let count = levels.iter().max().map_or(1, |&level| level + 1);
        let rows = row.iter().max().map_or(1, |&row| row + 1);
        if count == 1 {
            return Self::uniform();
        }
        Self {
            count,
            columns: levels.len() / rows,
            column,
            row,
            levels,
        }
    }

    /// How many service levels, and so virtual lanes, are in use: those from 0.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// The level of the path from what hangs at a switch, an index of
    /// [`Graph::switches`](super::Graph::switches), to a LID.
    pub fn level(&self, switch: usize, destination: Lid) -> Sl {
        let column = self.column.get(usize::from(destination.value()));
        let level = column
            .filter(|&&column| (column as usize) < self.columns)
            .zip(self.row.get(switch))
            .and_then(|(&column, row)| self.levels.get(row * self.columns + column as usize));
        Sl::new(level.copied().unwrap_or_default())
    }
}

impl Default for ServiceLevels {
    fn default() -> Self {
        Self::uniform()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_switch_and_lid() {
        let levels =
            ServiceLevels::by_column(vec![u32::MAX, 0, 0, 1], vec![0, 1, 0], vec![0, 1, 2, 3]);
        assert_eq!(levels.count(), 4);
        let level = |switch, lid| levels.level(switch, Lid::new(lid)).value();
        assert_eq!([level(0, 1), level(0, 2), level(0, 3)], [0, 0, 1]);
        assert_eq!([level(1, 1), level(1, 2), level(1, 3)], [2, 2, 3]);
        assert_eq!([level(2, 1), level(2, 2), level(2, 3)], [0, 0, 1]);
        assert_eq!([level(1, 0), level(1, 9), level(7, 1)], [0, 0, 0]);
        assert_eq!(ServiceLevels::uniform().level(3, Lid::new(1)).value(), 0);
    }
}
