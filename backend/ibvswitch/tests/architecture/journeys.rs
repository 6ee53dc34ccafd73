//! The journeys in docs/developers/architecture.md name files and functions that exist, and the pages are short.

use regex::Regex;

use super::{crates, root};

/// Words that a page may have; numbers do not count.
const MAX_WORDS: usize = 1500;

fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("is readable")
}

/// The text of a file that a page names from its crate on: `hca/engine/poll.rs` is `backend/hca/src/engine/poll.rs`.
fn source(folders: &[String], name: &str) -> String {
    let (package, inside) = name.split_once('/').expect("begins with a crate");
    let folder = folders
        .iter()
        .find(|folder| *folder == package || folder.ends_with(&format!("/{package}")));
    let folder = folder.unwrap_or_else(|| panic!("there is no crate {package}"));
    let path = root().join(folder).join("src").join(inside);
    std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("docs/developers/architecture.md names {name}: {error}"))
}

#[test]
fn journeys_name_files_and_functions_that_exist() {
    let folders: Vec<String> = crates().into_keys().collect();
    let page = page("docs/developers/architecture.md");
    let (_, journeys) = page.split_once("\n## Journeys\n").expect("has journeys");
    let journeys = journeys.split("\n## ").next().expect("is there");
    let span = Regex::new("`([^`]+)`").expect("is one");
    let named = Regex::new(r"^([\w-]+/[\w/]+\.rs)(?:::(\w+))?$").expect("is one");
    let alone = Regex::new("^[a-z_]+$").expect("is one");
    let mut count = 0;
    for journey in journeys.split("\n### ").skip(1) {
        let title = journey.lines().next().expect("has a title");
        let spans = || {
            span.captures_iter(journey)
                .map(|found| found.extract::<1>().1[0])
        };
        let files: Vec<(String, Option<String>)> = spans()
            .filter_map(|text| named.captures(text))
            .map(|found| {
                (
                    source(&folders, &found[1]),
                    found.get(2).map(|it| it.as_str().to_owned()),
                )
            })
            .collect();
        let has = |text: &str, function: &str| {
            Regex::new(&format!(r"\bfn {function}\b"))
                .expect("is one")
                .is_match(text)
        };
        for (text, function) in &files {
            if let Some(function) = function {
                assert!(
                    has(text, function),
                    "{title}: a named file has no function {function}"
                );
            }
        }
        for function in spans().filter(|text| alone.is_match(text)) {
            assert!(
                files.iter().any(|(text, _)| has(text, function)),
                "{title}: no named file has a function {function}"
            );
        }
        count += 1;
    }
    assert_eq!(count, 5, "journeys");
}

#[test]
fn pages_are_short() {
    for path in ["docs/developers/architecture.md", "docs/performance.md"] {
        let text = page(path);
        let words = text.split_whitespace();
        let words = words
            .filter(|word| word.contains(char::is_alphabetic))
            .count();
        assert!(
            words <= MAX_WORDS,
            "{path} has {words} words, of {MAX_WORDS} at most"
        );
    }
}
