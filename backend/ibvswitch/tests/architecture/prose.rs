//! Sentences are plain: docs/developers/guidelines.md. Exceptions are counted, and only become fewer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::{files::files, root};

/// The number of sentences or names of a kind that may remain: `prose.toml`.
fn limit(kind: &str) -> usize {
    let limits: BTreeMap<String, usize> =
        toml::from_str(include_str!("prose.toml")).expect("is TOML with numbers");
    limits[kind]
}

/// Compares the number of places that were found with the limit.
fn hold(kind: &str, found: &[String], instead: &str) {
    let (count, limit) = (found.len(), limit(kind));
    let list = found.iter().rev().take(20).rev();
    let list: Vec<&str> = list.map(String::as_str).collect();
    assert!(
        count <= limit,
        "{kind}: {count}, but prose.toml allows {limit}; {instead}. The last ones:\n{}",
        list.join("\n")
    );
    if count < limit {
        println!("{kind}: {count}; write this number into prose.toml, in place of {limit}");
    }
}

/// All Rust files of the workspace and of `fuzz`, by their path below the root, with their text.
fn sources() -> Vec<(String, String)> {
    let mut paths = files(root());
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> (String, String) {
    let inside = path.strip_prefix(root()).expect("is below the root");
    let text = std::fs::read_to_string(path).expect("is readable");
    (inside.display().to_string(), text)
}

/// Whether a file has tests, benchmarks or fuzz targets alone: users do not see their texts.
fn is_test(path: &str) -> bool {
    let of_tests = ["fuzz/", "guest-tests/", "benches/"];
    of_tests.iter().any(|folder| path.starts_with(folder))
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
}

/// The doc comments of a file, each in one line.
fn comments(text: &str) -> Vec<String> {
    let mut comments: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let line = line.trim_start();
        let words = line.strip_prefix("///").or(line.strip_prefix("//!"));
        match (words, inside) {
            (Some(words), true) => comments.last_mut().expect("has begun").push_str(words),
            (Some(words), false) => comments.push(words.trim_start().to_owned()),
            (None, _) => {}
        }
        inside = words.is_some();
    }
    comments
}

static LITERAL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#""((?:[^"\\\n]|\\[^\n]|\\\n)*)""#).expect("is one"));

static CONTINUED: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\\\n\s*").expect("is one"));

/// The string literals of a file, with continued lines joined.
fn literals(text: &str) -> Vec<String> {
    let literals = LITERAL.captures_iter(text);
    literals
        .map(|it| CONTINUED.replace_all(&it[1], "").into_owned())
        .collect()
}

/// The paragraphs, items and cells of a page, each in one line: no headings and no blocks of code.
fn paragraphs(text: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut code = false;
    for line in text.lines() {
        let line = line.trim();
        let fence = line.starts_with("```");
        code ^= fence;
        let item = line.starts_with(['-', '*', '|', '>'])
            || line.starts_with(|it: char| it.is_ascii_digit());
        if code || fence || line.is_empty() || line.starts_with('#') || item {
            paragraphs.push(String::new());
        }
        if !(code || fence || line.starts_with('#')) {
            for (at, cell) in line
                .trim_start_matches(['-', '*', '>'])
                .split('|')
                .enumerate()
            {
                if at > 0 {
                    paragraphs.push(String::new());
                }
                let last = paragraphs.last_mut().expect("there is one");
                last.push(' ');
                last.push_str(cell.trim());
            }
        }
    }
    let paragraphs = paragraphs.iter().map(|it| it.trim().to_owned());
    paragraphs.filter(|it| !it.is_empty()).collect()
}

static CLAUSE: LazyLock<Regex> = LazyLock::new(|| {
    let clause = Regex::new(
        r"(?:^|[.!?:)] )((?:What|Who|Whom|Whose)(?:ever)? [^.;?|]*)(.?)|; ((?:what|who|whom|whose)(?:ever)? [^.;?|]*)(.?)",
    );
    clause.expect("is one")
});

/// The clauses of a text whose subject is a relative clause without a noun: "Who asks knows." Questions are none.
fn free_relatives(text: &str) -> Vec<String> {
    let found = CLAUSE.captures_iter(text).filter_map(|it| {
        let (words, end) = it.get(1).or(it.get(3)).zip(it.get(2).or(it.get(4)))?;
        (end.as_str() != "?").then(|| words.as_str().to_owned())
    });
    found.collect()
}

/// The findings in each file, with the path of the file before each.
fn found(files: &[(String, String)], find: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let found = files.iter().flat_map(|(path, text)| {
        let found = find(text);
        found.into_iter().map(move |it| format!("{path}: {it}"))
    });
    found.collect()
}

#[test]
fn comments_name_the_item() {
    let opening = Regex::new(r"^(What|Who|Whom|Whose|Of|Which|How)\b").expect("is one");
    let found = found(&sources(), |text| {
        let comments = comments(text).into_iter();
        comments.filter(|it| opening.is_match(it)).collect()
    });
    hold(
        "comments_that_open_with_a_question",
        &found,
        "begin a doc comment with the noun that the item is, or with a verb if it is a function: \
         \"Number of …\", \"Returns …\", \"Checks whether …\"",
    );
}

#[test]
fn constants_are_named_by_noun_and_unit() {
    let constant =
        Regex::new(r"(?:const|static) ((?:\w+_)?(?:MOST|THINGS?|PATIENCE|AT_ONCE)(?:_\w+)?)\b");
    let constant = constant.expect("is one");
    let found = found(&sources(), |text| {
        let names = constant.captures_iter(text);
        names.map(|it| it[1].to_owned()).collect()
    });
    hold(
        "constants_without_a_noun",
        &found,
        "name a constant by its noun and unit: MAX_OUTSTANDING, RETRY_INTERVAL_NS, ANSWER_TIMEOUT, BATCH",
    );
}

/// Sources that have texts for users: no tests.
fn sources_for_users() -> Vec<(String, String)> {
    let mut sources = sources();
    sources.retain(|(path, _)| !is_test(path));
    sources
}

#[test]
fn error_texts_say_what_is_wrong() {
    let phrase =
        Regex::new(r"\b(is none|are none|which there is not|that can be)\b").expect("is one");
    let found = found(&sources_for_users(), |text| {
        let literals = literals(text).into_iter();
        literals.filter(|it| phrase.is_match(it)).collect()
    });
    hold(
        "error_texts",
        &found,
        "say \"invalid …\", \"unknown …\", \"no such …\" or \"must be …\"",
    );
}

/// Advice for a clause without a noun as its subject.
const NOUN: &str = "give the sentence a noun as its subject: \"The caller has checked.\", not \"Who calls has checked.\"";

#[test]
fn texts_of_programs_have_nouns_as_subjects() {
    let lower = Regex::new(r"^(what|who|whom|whose)(ever)? ").expect("is one");
    let found = found(&sources_for_users(), |text| {
        let comments = comments(text).into_iter();
        // The first sentence is counted by its first word.
        let rest = comments.filter_map(|it| it.split_once(". ").map(|it| format!(". {}", it.1)));
        let (texts, begun) = literals(text)
            .into_iter()
            .filter(|it| it.contains(' '))
            .partition::<Vec<String>, _>(|it| !lower.is_match(it));
        let clauses = rest.chain(texts).flat_map(|it| free_relatives(&it));
        clauses.chain(begun).collect()
    });
    hold("free_relatives_in_code", &found, NOUN);
}

/// All pages: of `docs`, and at the top level.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("is readable");
    let mut paths: Vec<PathBuf> = entries.map(|it| it.expect("is readable").path()).collect();
    paths.sort();
    let below = paths
        .iter()
        .filter(|it| it.starts_with(root().join("docs")) && it.is_dir());
    let below: Vec<PathBuf> = below.flat_map(|it| pages(it)).collect();
    paths.retain(|it| it.extension().is_some_and(|it| it == "md"));
    paths.into_iter().chain(below).collect()
}

#[test]
fn pages_have_nouns_as_subjects() {
    let mut paths = pages(root());
    paths.extend(pages(&root().join("docs")));
    let pages: Vec<_> = paths.iter().map(|path| read(path)).collect();
    let found = found(&pages, |text| {
        let paragraphs = paragraphs(text);
        paragraphs
            .iter()
            .flat_map(|it| free_relatives(it))
            .collect()
    });
    hold("free_relatives_in_pages", &found, NOUN);
}

#[test]
fn sentences_are_found() {
    assert_eq!(
        free_relatives("Who asks knows. Who asks? It ends; what is left, is lost."),
        ["Who asks knows", "what is left, is lost"]
    );
    assert_eq!(
        paragraphs("# What\na\nb\n\n```\nWhat\n```\n- c\n| d | e |"),
        ["a b", "c", "d", "e"]
    );
    assert_eq!(comments("/// a\n/// b\nfn c() {}\n//! d"), ["a b", "d"]);
    assert_eq!(literals("\"a \\\n   b\" + \"c\\\"\""), ["a b", "c\\\""]);
}
