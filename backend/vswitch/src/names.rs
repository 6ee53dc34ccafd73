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
    // As a listing has it, too: S-0002c90300000101.
    let bare = ["S-", "H-", "R-"]
        .iter()
        .find_map(|kind| wanted.strip_prefix(kind));
    let guid: Option<Guid> = bare.unwrap_or(wanted).parse().ok();
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

/// Names that may have been meant: the one that is spelled almost so, or all where they are few, or else the nearest.
/// `all` says how to see all, where there is a way.
#[must_use]
pub fn near<T: AsRef<str>>(wanted: &str, known: impl IntoIterator<Item = T>, all: &str) -> String {
    let known: Vec<T> = known.into_iter().collect();
    let mut names: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    let count = names.len();
    if count <= LISTED_MAX {
        return match (closest(wanted, &names), &names[..]) {
            (Some(meant), _) => format!("did you mean `{meant}`?"),
            (None, []) => "the list of names is empty".to_owned(),
            (None, [one]) => format!("there is only {one}"),
            (None, names) => format!("there are {}", names.join(", ")),
        };
    }
    let wanted = wanted.to_lowercase();
    names.sort_by_cached_key(|name| {
        let other = name.to_lowercase();
        let is_part = !wanted.is_empty() && other.contains(&wanted);
        let edits = if is_part {
            0
        } else {
            distance(&wanted, &other)
        };
        (edits, *name)
    });
    let nearest = names[..NEAREST].join(", ");
    let rest = if all.is_empty() { "" } else { "; " };
    format!("the nearest of {count} are {nearest}{rest}{all}")
}

/// The name that a misspelled one was most likely meant to be; `None` where none is much like it, or several are.
/// Names with other numbers, such as `vm1` and `vm9`, are not alike.
#[must_use]
pub fn closest<'k>(wanted: &str, known: &[&'k str]) -> Option<&'k str> {
    let letters = |name: &str| name.replace(|it: char| it.is_ascii_digit(), "");
    let is_guid = wanted.parse::<Guid>().is_ok();
    let like = |name: &&'k str| {
        // GUIDs of one vendor begin alike; behind one may be a name.
        let edits = match name.split_once(' ') {
            Some((guid, _)) if is_guid => distance(wanted, guid),
            _ => distance(wanted, name),
        };
        let edits_max = if is_guid { 2 } else { name.len().div_ceil(3) };
        let few = edits <= edits_max && edits < name.len();
        (few && letters(wanted) != letters(name)).then_some((edits, *name))
    };
    let alike: Vec<(usize, &str)> = known.iter().filter_map(like).collect();
    let &(least, meant) = alike.iter().min()?;
    let is_other = |&(edits, name): &(usize, &str)| edits == least && name != meant;
    (!alike.iter().any(is_other)).then_some(meant)
}

/// Levenshtein's distance: how many letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
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
        assert_eq!(find("H-0000000000000003", &few), Ok(2));
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
    fn a_misspelled_name_is_recognised_and_a_foreign_one_is_not() {
        let known = ["runtime_dir", "log", "engine"];
        assert_eq!(closest("runtimedir", &known), Some("runtime_dir"));
        assert_eq!(closest("engines", &known), Some("engine"));
        assert_eq!(closest("password", &known), None);
        assert_eq!(near("vm1a", ["vm1", "db"], ""), "did you mean `vm1`?");
        let known = ["0x0002c9034a81069b", "0x0002c90300000101"];
        let others = "there are 0x0002c9034a81069b, 0x0002c90300000101";
        assert_eq!(near("0x0002c90300000999", known, ""), others);
        let meant = "did you mean `0x0002c9034a81069b`?";
        assert_eq!(near("0x0002c9034a81069c", known, ""), meant);
        assert_eq!(near("vm3", ["vm1", "db"], ""), "there are vm1, db");
        assert_eq!(near("wm", ["vm", "um"], ""), "there are vm, um");
    }

    #[test]
    fn distance_counts_edits() {
        // The textbook's example.
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("lid", "lid"), 0);
    }
}
