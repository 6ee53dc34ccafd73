//! Roles of nodes in a fat-tree, and OpenSM's files of GUIDs that give them.

use std::collections::BTreeSet;

use wire::Guid;

use crate::config::partitions::{MISTAKES, Mistake};

/// Roles of nodes, most of them in a fat-tree. Adapters that are no compute nodes may be on any level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roles {
    /// Node GUIDs of the roots; empty where the distance to adapters decides the levels.
    pub roots: BTreeSet<Guid>,
    /// Port GUIDs of the compute nodes; `None` for all adapters but the I/O nodes.
    pub compute: Option<BTreeSet<Guid>>,
    /// Port GUIDs of I/O nodes: those of them that are no compute nodes by name.
    pub io: BTreeSet<Guid>,
    /// Port GUIDs whose LIDs are routed first, in this order, by engines that count paths.
    pub order: Vec<Guid>,
}

impl Roles {
    pub(super) fn is_compute(&self, port: Guid) -> bool {
        match &self.compute {
            Some(named) => named.contains(&port),
            None => !self.io.contains(&port),
        }
    }

    /// Whether compute nodes are known, so that others need no way to each other by going up and then down.
    pub(super) fn tell_compute(&self) -> bool {
        self.compute.is_some() || !self.io.is_empty()
    }
}

/// Reads a file of GUIDs as OpenSM has them (`root_guid_file` and others): a GUID at the beginning of each line, which a
/// remark may follow. Each GUID comes with its line.
///
/// # Errors
/// The lines that begin with something else.
pub fn parse_guids(text: &str) -> Result<Vec<(usize, Guid)>, Vec<Mistake>> {
    let (mut guids, mut mistakes) = (Vec::new(), Vec::new());
    for (line, text) in (1..).zip(text.lines()) {
        let word = text.split('#').next().unwrap_or_default();
        let Some(word) = word.split_whitespace().next() else {
            continue;
        };
        match word.parse() {
            Ok(guid) => guids.push((line, guid)),
            Err(_) if mistakes.len() < MISTAKES => mistakes.push(Mistake {
                line,
                what: format!(
                    "{} is no GUID; write 0x and 16 hexadecimal digits",
                    word.escape_debug()
                ),
                unknown: None,
            }),
            Err(_) => {}
        }
    }
    if mistakes.is_empty() {
        Ok(guids)
    } else {
        Err(mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_guids() {
        let text = "# roots\n\n0x110 spine1\n  0x0000000000000120# spine2\n";
        let guids = [(3, Guid::new(0x110)), (4, Guid::new(0x120))];
        assert_eq!(parse_guids(text), Ok(guids.to_vec()));
        let mistakes = parse_guids("0x1\nspine1 0x110\n").unwrap_err();
        assert_eq!(
            mistakes[0].to_string(),
            "line 2: spine1 is no GUID; write 0x and 16 hexadecimal digits"
        );
    }
}
