//! Files, folders and structs are about one thing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{crates, limits, root};

/// Lines of the longest file that may be about one noun.
const MAX_LINES: usize = 800;

/// Files of a folder without an entry in the limits.
const MAX_FOLDER_FILES: usize = 15;

/// Methods of a struct over all its files, without an entry in the limits.
const MAX_METHODS: usize = 60;

/// Files with methods of one struct, without an entry in the limits.
const MAX_STRUCT_FILES: usize = 6;

/// The module that a file is: its path within the crate, empty for the root.
pub type Module = Vec<String>;

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

/// A file of a crate's sources, without comments and tests.
pub struct Source {
    pub module: Module,
    pub text: String,
}

pub fn words(text: &str, separator: &str) -> Module {
    text.split(separator)
        .map(|it| it.trim().to_owned())
        .collect()
}

impl Source {
    pub fn new(module: &str, text: &str) -> Self {
        let comment = pattern!("(?m)//.*$");
        let test = pattern!(r"(?ms)^#\[cfg\(test\)\]\n(?:[^\n]*;$|.*?^\})");
        let is_root = matches!(module, "lib" | "main");
        Self {
            module: if is_root { vec![] } else { words(module, "/") },
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

    /// The type and the number of methods of each `impl` block that is not of a trait.
    fn methods(&self) -> Vec<(String, usize)> {
        let block = pattern!(r"(?ms)^impl\b([^{;]*)\{$(.*?)^\}");
        let of_trait = pattern!(r"\bfor\s");
        let method = pattern!(r"(?m)^    (?:pub(?:\([\w: ]+\))? )?(?:const |async |unsafe )*fn ");
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

/// The sources of each crate, by its folder.
pub fn sources() -> BTreeMap<String, Vec<Source>> {
    let folders = crates().into_keys();
    folders
        .map(|folder| {
            let sources = Source::all(&root().join(&folder).join("src"));
            (folder, sources)
        })
        .collect()
}

#[test]
fn a_folder_has_few_files() {
    let mut counts = BTreeMap::new();
    let sources = |folder: &String| ["src", "tests"].map(|it| root().join(folder).join(it));
    for folder in crates().keys().flat_map(sources) {
        for path in files(&folder) {
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
fn methods_are_found() {
    let text = "impl<F: Fn(u8) -> Vec<u8>> a::Name<F>\nwhere\n    F: Copy,\n{\n    pub(crate) const fn one() {}\n\n    \
                fn two() {}\n}\n\nimpl Clone for Name {\n    fn clone() {}\n}\n";
    assert_eq!(Source::new("a", text).methods(), [("Name".to_owned(), 2)]);
}
