//! Nodes by the names that people give them.

use fabric::{NodeId, Topology};
use wire::Guid;

/// Names that an error lists.
const LISTED_MAX: usize = 8;
/// Names that an error lists where there are more.
const NEAREST: usize = 3;

/// A node that may be meant.
#[derive(Debug)]
pub(crate) struct Candidate<'a, T> {
    pub(crate) node: T,
    pub(crate) name: &'a str,
    /// Its NodeDescription.
    pub(crate) text: String,
    /// GUIDs of the node and its ports.
    pub(crate) guids: Vec<Guid>,
}

/// Why a name is no node's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No node has it.
    #[error("there is no node `{name}`; {}", near(.name, .known, "`ibvswitch topology` shows all"))]
    Unknown {
        /// The name.
        name: String,
        /// The names of nodes.
        known: Vec<String>,
    },
    /// Several nodes have it.
    #[error("`{name}` is the name of {} nodes; give the GUID of one instead, {}", .guids.len(), some(.guids))]
    Ambiguous {
        /// The name.
        name: String,
        /// The GUIDs of the nodes.
        guids: Vec<Guid>,
    },
}

/// The node of this name, with this GUID or of this text.
pub(crate) fn find<T: Copy>(wanted: &str, nodes: &[Candidate<'_, T>]) -> Result<T, NameError> {
    let guid: Option<Guid> = wanted.parse().ok();
    let has_guid = |it: &&Candidate<'_, T>| guid.is_some_and(|guid| it.guids.contains(&guid));
    if let Some(found) = nodes.iter().find(has_guid) {
        return Ok(found.node);
    }
    let named: Vec<_> = nodes.iter().filter(|it| it.name == wanted).collect();
    let found = if named.is_empty() {
        nodes.iter().filter(|it| it.text == wanted).collect()
    } else {
        named
    };
    match found[..] {
        [one] => Ok(one.node),
        [] => Err(NameError::Unknown {
            name: wanted.to_owned(),
            known: nodes.iter().map(|it| it.name.to_owned()).collect(),
        }),
        _ => Err(NameError::Ambiguous {
            name: wanted.to_owned(),
            guids: found
                .iter()
                .filter_map(|it| it.guids.first().copied())
                .collect(),
        }),
    }
}

/// The node of a topology that has this name among `names`, this GUID, or alone this text.
///
/// # Errors
/// [`NameError`] where there is none, or several.
pub fn node_named(
    topology: &Topology,
    names: &[String],
    wanted: &str,
) -> Result<NodeId, NameError> {
    let nodes: Vec<_> = { topology.nodes().iter().zip(topology.ids()).zip(names) }
        .map(|((spec, node), name)| Candidate {
            node,
            name,
            text: spec.description.to_string(),
            guids: [spec.guid]
                .iter()
                .chain(&spec.port_guids)
                .copied()
                .collect(),
        })
        .collect();
    find(wanted, &nodes)
}

fn some(guids: &[Guid]) -> String {
    let shown: Vec<String> = guids
        .iter()
        .take(NEAREST)
        .map(ToString::to_string)
        .collect();
    match guids.len() {
        ..=NEAREST => shown.join(" or "),
        _ => format!(
            "such as {}; `ibvswitch topology` shows all",
            shown.join(", ")
        ),
    }
}

/// The names that there are, or of many those that are nearest to one; `all` says how to see all.
#[must_use]
pub fn near(wanted: &str, known: &[impl AsRef<str>], all: &str) -> String {
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    if known.len() <= LISTED_MAX {
        return format!("there are {}", known.join(", "));
    }
    let small = wanted.to_lowercase();
    let mut by_distance: Vec<(usize, &str)> = known
        .iter()
        .map(|&name| {
            let other = name.to_lowercase();
            let part = !small.is_empty() && other.contains(&small);
            (if part { 0 } else { distance(&small, &other) }, name)
        })
        .collect();
    by_distance.sort();
    let nearest: Vec<&str> = by_distance
        .iter()
        .take(NEAREST)
        .map(|&(_, name)| name)
        .collect();
    let count = known.len();
    format!("the nearest of {count} are {}; {all}", nearest.join(", "))
}

/// Levenshtein's distance: how many letters to insert, delete or replace.
#[must_use]
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(node: usize, name: &str) -> Candidate<'_, usize> {
        Candidate {
            node,
            name,
            text: format!("text of {}", node / 2),
            guids: vec![Guid::new(node as u64 + 1)],
        }
    }

    #[test]
    fn names_guids_and_texts() {
        let few: Vec<_> = { ["sw1", "hv1", "hv1"].iter().enumerate() }
            .map(|(node, name)| candidate(node, name))
            .collect();
        assert_eq!(find("sw1", &few), Ok(0));
        assert_eq!(find("0x0000000000000003", &few), Ok(2));
        assert_eq!(find("text of 1", &few), Ok(2));
        let error = |wanted, nodes: &[Candidate<'_, usize>]| {
            find(wanted, nodes).expect_err("unknown").to_string()
        };
        assert_eq!(
            error("hv1", &few),
            "`hv1` is the name of 2 nodes; give the GUID of one instead, 0000:0000:0000:0002 or \
             0000:0000:0000:0003"
        );
        assert_eq!(
            error("sw2", &few),
            "there is no node `sw2`; there are sw1, hv1, hv1"
        );
        let names: Vec<String> = (0..250).map(|node| format!("node{node}")).collect();
        let many: Vec<_> = { names.iter().enumerate() }
            .map(|(node, name)| Candidate {
                text: "MT4129".to_owned(),
                ..candidate(node, name)
            })
            .collect();
        assert_eq!(
            error("MT4129", &many),
            "`MT4129` is the name of 250 nodes; give the GUID of one instead, such as \
             0000:0000:0000:0001, 0000:0000:0000:0002, 0000:0000:0000:0003; `ibvswitch topology` shows \
             all"
        );
        assert_eq!(
            error("nod777", &many),
            "there is no node `nod777`; the nearest of 250 are node77, node17, node177; `ibvswitch \
             topology` shows all"
        );
    }

    #[test]
    fn distance_counts_edits() {
        // The textbook's example.
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("lid", "lid"), 0);
    }
}
