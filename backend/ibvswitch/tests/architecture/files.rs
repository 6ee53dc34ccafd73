//! Files are about one thing, and import each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

use super::{crates, root};

/// Lines of the longest file that may be about one noun.
const LONGEST: usize = 800;

/// Crates with files that import each other in circles: not to become more.
const CIRCULAR: &[&str] = &["backend/hca", "backend/vswitch"];

/// The module that a file is: its path within the crate, without the root.
type Module = Vec<String>;

/// All Rust files below a folder, but for what was built.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("is readable").path());
    let found = paths.flat_map(|path| {
        if path.is_dir() && !path.ends_with("target") {
            files(&path)
        } else {
            vec![path]
        }
    });
    found
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .collect()
}

#[test]
fn a_file_is_one_noun() {
    let folders: Vec<String> = crates().into_keys().collect();
    for path in folders
        .iter()
        .flat_map(|it| files(&root().join(it).join("src")))
    {
        let text = std::fs::read_to_string(&path).expect("is readable");
        let lines = text.lines().count();
        let path = path.display();
        assert!(
            lines <= LONGEST,
            "{path} has {lines} lines; make two of it, of at most {LONGEST} each"
        );
    }
}

/// The paths that a `use` names: `a::{b, c::d}` are `a::b` and `a::c::d`.
fn paths(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let list = rest
        .trim_end()
        .strip_suffix('}')
        .expect("braces are closed");
    let (mut depth, mut items) = (0, vec![String::new()]);
    for letter in list.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if letter == ',' && depth == 0 {
            items.push(String::new());
        } else {
            items.last_mut().expect("there is one").push(letter);
        }
    }
    let inner = items.iter().flat_map(|item| paths(item));
    inner
        .map(|path| format!("{}{path}", prefix.trim()))
        .collect()
}

/// Which files of a crate each of its files imports from. A module and those in it are one another's.
fn imports(source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let words = |text: &str, separator: &str| -> Module {
        text.split(separator)
            .map(|it| it.trim().to_owned())
            .collect()
    };
    let name = |path: &Path| {
        let inside = path
            .strip_prefix(source)
            .expect("is in it")
            .with_extension("");
        words(inside.to_str().expect("is text"), "/")
    };
    let all: BTreeMap<Module, PathBuf> = files(source)
        .into_iter()
        .map(|it| (name(&it), it))
        .collect();
    let statement = Regex::new(r"(?m)^(?:pub(?:\(\w+\))? )?use ([^;]+);").expect("is one");
    let of = |module: &Module, path: &Path| {
        let text = std::fs::read_to_string(path).expect("is readable");
        let uses = statement.captures_iter(&text).flat_map(|it| paths(&it[1]));
        let targets = uses.filter_map(|path| {
            let mut path = words(&path, "::");
            let mut at = match path[0].as_str() {
                "crate" => Vec::new(),
                "self" => module.clone(),
                "super" => module[..module.len() - 1].to_vec(),
                _ => return None,
            };
            path.remove(0);
            while path.first().is_some_and(|it| it == "super") {
                path.remove(0);
                at.pop();
            }
            at.extend(path);
            while !at.is_empty() && !all.contains_key(&at) {
                at.pop();
            }
            let related = at.starts_with(module) || module.starts_with(&at);
            (!related).then_some(at)
        });
        targets.collect()
    };
    all.iter()
        .map(|(module, path)| (module.clone(), of(module, path)))
        .collect()
}

/// What is left when files are taken away, again and again, that import from none of the others.
fn circle(mut imports: BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    loop {
        let there: BTreeSet<Module> = imports.keys().cloned().collect();
        imports.retain(|_, from| !from.is_disjoint(&there));
        if imports.len() == there.len() {
            return there.iter().map(|module| module.join("::")).collect();
        }
    }
}

#[test]
fn files_import_in_one_direction() {
    for folder in crates().keys() {
        let circle = circle(imports(&root().join(folder).join("src")));
        assert_eq!(
            !circle.is_empty(),
            CIRCULAR.contains(&folder.as_str()),
            "{folder} has files that import each other in a circle, or from such files, or has none \
             any more: {circle:?}"
        );
    }
}

#[test]
fn circles_are_found() {
    assert_eq!(
        paths("a::{b, c::{d, e as f}}"),
        ["a::b", "a::c::d", "a::c::e as f"]
    );
    let of = |pairs: &[(&str, &str)]| {
        let mut imports = BTreeMap::<Module, BTreeSet<Module>>::new();
        for (from, to) in pairs {
            imports.entry(vec![(*to).to_owned()]).or_default();
            let entry = imports.entry(vec![(*from).to_owned()]).or_default();
            entry.insert(vec![(*to).to_owned()]);
        }
        circle(imports)
    };
    assert!(of(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
    assert_eq!(of(&[("a", "b"), ("b", "a"), ("b", "c")]), ["a", "b"]);
}
