//! Files are about one thing, and import each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::{crates, limits, root};

/// Lines of the longest file that may be about one noun.
const MAX_LINES: usize = 800;

/// Files of a folder without an entry in the limits.
const MAX_FOLDER_FILES: usize = 15;

/// Methods of a struct over all its files, without an entry in the limits.
const MAX_METHODS: usize = 60;

/// Files with methods of one struct, without an entry in the limits.
const MAX_STRUCT_FILES: usize = 6;

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
            lines <= MAX_LINES,
            "{path} has {lines} lines; make two of it, of at most {MAX_LINES} each"
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

/// A file of a crate's sources, without comments and tests.
struct Source {
    module: Module,
    text: String,
}

/// A regular expression that is built once.
macro_rules! pattern {
    ($text:literal) => {{
        static PATTERN: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($text).expect("is a regular expression"));
        &*PATTERN
    }};
}

fn words(text: &str, separator: &str) -> Module {
    text.split(separator)
        .map(|it| it.trim().to_owned())
        .collect()
}

impl Source {
    fn new(module: &str, text: &str) -> Self {
        let comment = pattern!("(?m)//.*$");
        let test = pattern!(r"(?ms)^#\[cfg\(test\)\]\n(?:[^\n]*;$|.*?^\})");
        Self {
            module: words(module, "/"),
            text: test
                .replace_all(&comment.replace_all(text, ""), "")
                .into_owned(),
        }
    }

    /// All files of a crate's sources, but those of tests.
    fn all(source: &Path) -> Vec<Self> {
        let paths = files(source).into_iter().map(|path| {
            let inside = path.strip_prefix(source).expect("is in it");
            let module = inside.with_extension("").display().to_string();
            Self::new(
                &module,
                &std::fs::read_to_string(&path).expect("is readable"),
            )
        });
        let is_test = |it: &Self| it.module.iter().any(|name| name == "tests");
        paths.filter(|it| !is_test(it)).collect()
    }

    /// The module paths in this file's `use` and bodies that begin with `crate`, `self` or `super`, each from the
    /// root of the crate.
    fn paths(&self) -> Vec<Module> {
        let inline = pattern!(r"(?ms)^(?:pub(?:\([\w ]+\))? )?mod (\w+) \{$(.*?)^\}");
        let inside = inline.captures_iter(&self.text);
        let inside = inside.map(|it| {
            let mut module = self.module.clone();
            module.push(it[1].to_owned());
            (module, it[2].to_owned())
        });
        let outside = inline.replace_all(&self.text, "").into_owned();
        let statement = pattern!(r"(?m)^ *(?:pub(?:\([\w ]+\))? )?use ([\w:{},*\s]+);");
        let qualified = pattern!(r"\b(?:crate|self|super)(?:::\w+)+");
        let mut found = Vec::new();
        for (at, text) in inside.chain([(self.module.clone(), outside)]) {
            let uses = statement.captures_iter(&text).flat_map(|it| paths(&it[1]));
            let body = statement.replace_all(&text, "");
            let body = qualified.find_iter(&body).map(|it| it.as_str().to_owned());
            found.extend(uses.chain(body).filter_map(|path| absolute(&at, &path)));
        }
        found
    }

    /// The type and the number of methods of each `impl` block that is not of a trait.
    fn methods(&self) -> Vec<(String, usize)> {
        let block = pattern!(r"(?ms)^impl\b([^{;]*)\{$(.*?)^\}");
        let of_trait = pattern!(r"\bfor\s");
        let method = pattern!(r"(?m)^    (?:pub(?:\([\w ]+\))? )?(?:const |async |unsafe )*fn ");
        let generics = pattern!("<[^<>]*>");
        let blocks = self.text[..].to_owned();
        let blocks = block
            .captures_iter(&blocks)
            .filter(|it| !of_trait.is_match(&it[1]));
        let name = |header: &str| {
            let mut header = header.replace("->", "");
            while generics.is_match(&header) {
                header = generics.replace_all(&header, "").into_owned();
            }
            let name = header.split_whitespace().next().expect("a type");
            name.rsplit("::").next().expect("a name").to_owned()
        };
        blocks
            .map(|it| (name(&it[1]), method.find_iter(&it[2]).count()))
            .collect()
    }
}

/// A path from the root of the crate, if it is of the crate and written in a module.
fn absolute(module: &Module, path: &str) -> Option<Module> {
    let mut path = words(path, "::");
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
    Some(at)
}

/// The files from which each file of a crate imports. A module and those in it are one another's.
fn imports(sources: &[Source]) -> BTreeMap<Module, BTreeSet<Module>> {
    let all: BTreeSet<&Module> = sources.iter().map(|it| &it.module).collect();
    let from = |source: &Source| {
        let module = &source.module;
        let targets = source.paths().into_iter().filter_map(|mut at| {
            while !at.is_empty() && !all.contains(&at) {
                at.pop();
            }
            let related = at.starts_with(module) || module.starts_with(&at);
            (!related).then_some(at)
        });
        targets.collect()
    };
    let entries = sources.iter().map(|it| (it.module.clone(), from(it)));
    entries.collect()
}

/// The files that import themselves by way of others.
fn circles(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<String> {
    let is_in_one = |module: &Module| {
        let mut reached = BTreeSet::new();
        let mut open = vec![module];
        while let Some(next) = open.pop() {
            open.extend(imports[next].iter().filter(|it| reached.insert(*it)));
        }
        reached.contains(module)
    };
    let found = imports.keys().filter(|it| is_in_one(it));
    found.map(|module| module.join("::")).collect()
}

/// The sources of each crate, by its folder.
fn sources() -> BTreeMap<String, Vec<Source>> {
    let folders = crates().into_keys();
    folders
        .map(|folder| {
            let sources = Source::all(&root().join(&folder).join("src"));
            (folder, sources)
        })
        .collect()
}

#[test]
fn files_import_in_one_direction() {
    let mut counts = BTreeMap::new();
    for (folder, sources) in sources() {
        let circles = circles(&imports(&sources));
        if !circles.is_empty() {
            println!("{folder}, in circles: {}", circles.join(" "));
        }
        counts.insert(folder, circles.len());
    }
    limits::check("circles", 0, &counts);
}

#[test]
fn a_folder_has_few_files() {
    let mut counts = BTreeMap::new();
    for folder in crates().keys() {
        for path in files(&root().join(folder).join("src")) {
            let folder = path.parent().expect("is in a folder");
            let folder = folder.strip_prefix(root()).expect("is in the repository");
            *counts.entry(folder.display().to_string()).or_default() += 1;
        }
    }
    limits::check("folders", MAX_FOLDER_FILES, &counts);
}

#[test]
fn a_struct_has_few_methods_in_few_files() {
    let (mut methods, mut spread) = (BTreeMap::new(), BTreeMap::new());
    for (folder, sources) in sources() {
        for source in sources {
            let mut names = BTreeSet::new();
            for (name, count) in source.methods() {
                let name = format!("{folder} {name}");
                *methods.entry(name.clone()).or_default() += count;
                names.insert(name);
            }
            for name in names {
                *spread.entry(name).or_default() += 1;
            }
        }
    }
    limits::check("methods", MAX_METHODS, &methods);
    limits::check("spread", MAX_STRUCT_FILES, &spread);
}

#[test]
fn circles_are_found() {
    assert_eq!(
        paths("a::{b, c::{d, e as f}}"),
        ["a::b", "a::c::d", "a::c::e as f"]
    );
    let found = |files: &[(&str, &str)]| {
        let sources: Vec<Source> = files
            .iter()
            .map(|(module, text)| Source::new(module, text))
            .collect();
        circles(&imports(&sources))
    };
    assert!(
        found(&[
            ("a", "use crate::{b::X, c};"),
            ("b", "use super::c;"),
            ("c", "")
        ])
        .is_empty()
    );
    assert_eq!(
        found(&[
            ("a", "use crate::b::X;"),
            ("b", "fn f() {\n    crate::a::g();\n}"),
            ("c", "use crate::a;")
        ]),
        ["a", "b"]
    );
    let inline = "mod x {\n    use super::Y;\n    use super::super::a::Z;\n}\n";
    assert_eq!(found(&[("a", "use crate::b;"), ("b", inline)]), ["a", "b"]);
    let test = "// crate::a::X\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n";
    assert!(found(&[("a", "use crate::b;"), ("b", test)]).is_empty());
}

#[test]
fn methods_are_found() {
    let text = "impl<F: Fn(u8) -> Vec<u8>> a::Name<F>\nwhere\n    F: Copy,\n{\n    pub(crate) const fn one() {}\n\n    \
                fn two() {}\n}\n\nimpl Clone for Name {\n    fn clone() {}\n}\n";
    assert_eq!(Source::new("a", text).methods(), [("Name".to_owned(), 2)]);
}
