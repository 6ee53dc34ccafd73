//! Names for nodes, as a node name map has them (`node-name-map` of OpenSM and infiniband-diags).

use std::collections::BTreeMap;

use wire::Guid;
use wire::attribute::NodeDescription;

use crate::config::partitions::{FILE_MAX, MISTAKES, Mistake};

/// Names by node GUID, in place of the descriptions that nodes tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeNames(BTreeMap<Guid, String>);

impl NodeNames {
    /// Reads a file's text: on each line a node GUID, and the name in quotes or without. `#` begins a comment.
    ///
    /// # Errors
    /// The first 32 mistakes.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let (mut names, mut mistakes) = (BTreeMap::new(), Vec::new());
        let mut mistake = |line, what: String| {
            if mistakes.len() < MISTAKES {
                let unknown = None;
                mistakes.push(Mistake {
                    line,
                    what,
                    unknown,
                });
            }
        };
        if text.len() > FILE_MAX {
            mistake(1, format!("the file has more than {FILE_MAX} bytes"));
        }
        let lines = (1..)
            .zip(text.lines().map(str::trim))
            .take_while(|_| text.len() <= FILE_MAX);
        let mut first_lines = BTreeMap::new();
        for (line, text) in lines.filter(|(_, text)| !text.is_empty() && !text.starts_with('#')) {
            let end = text.find(|it: char| it.is_whitespace() || it == '#' || it == '"');
            let (guid, rest) = text.split_at(end.unwrap_or(text.len()));
            let rest = rest.trim_start();
            let name = match rest.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').map(|(name, _)| name),
                None => rest.split('#').next(),
            };
            let name = name.map(str::trim).filter(|name| !name.is_empty());
            let (Ok(guid), Some(name)) = (guid.parse::<Guid>(), name) else {
                mistake(
                    line,
                    "no name of a node; write 0x and the hexadecimal digits of its GUID, and the name in quotes"
                        .to_owned(),
                );
                continue;
            };
            if let Some(first) = first_lines.insert(guid, line) {
                mistake(
                    line,
                    format!("node {guid:#} has a name in line {first}, too; remove one"),
                );
            }
            names.insert(guid, name.to_owned());
        }
        if mistakes.is_empty() {
            Ok(Self(names))
        } else {
            Err(mistakes)
        }
    }

    /// The name that the file has for a node.
    pub fn get(&self, node: Guid) -> Option<&str> {
        self.0.get(&node).map(String::as_str)
    }

    /// The name of a node that tells this description.
    pub fn name(&self, node: Guid, description: &NodeDescription) -> String {
        match self.get(node) {
            Some(name) => name.to_owned(),
            // Other programs read names by line; they replace such characters, too.
            None => String::from_utf8_lossy(description.as_bytes())
                .replace(|it: char| it.is_control(), " "),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_come_from_the_file() {
        let text = "# racks\n\n0x0002c902002a2ef8 \"Line Card 1\" # spare\n0x10 leaf 2 # bare\n0x11\t\"\u{e9}\"\n";
        let names = NodeNames::parse(text).unwrap();
        assert_eq!(
            names.get(Guid::new(0x2_c902_002a_2ef8)),
            Some("Line Card 1")
        );
        assert_eq!(names.get(Guid::new(0x10)), Some("leaf 2"));
        assert_eq!(names.get(Guid::new(0x11)), Some("\u{e9}"));
        let told = NodeDescription::new("a\nb");
        assert_eq!(names.name(Guid::new(0x10), &told), "leaf 2");
        assert_eq!(names.name(Guid::new(0x12), &told), "a b");
    }

    #[test]
    fn mistakes_have_lines() {
        for (text, line) in [
            (
                "0x1 \"a\"\nspine1 \"b\"\n",
                "line 2: no name of a node; write",
            ),
            ("0x1\n", "line 1: no name of a node; write"),
            ("0x1 \"a\n", "line 1: no name of a node; write"),
            (
                "0x1 a\n0x2 b\n0x1 c\n",
                "line 3: node 0x0000000000000001 has a name in line 1, too",
            ),
        ] {
            let mistakes = NodeNames::parse(text).unwrap_err();
            assert!(mistakes[0].to_string().starts_with(line), "{}", mistakes[0]);
        }
    }

    proptest! {
        #[test]
        fn any_text(text in "(0x[0-9a-f]{0,4}|[ \"#\\n]|\\PC){0,60}") {
            let _ = NodeNames::parse(&text);
        }
    }
}
