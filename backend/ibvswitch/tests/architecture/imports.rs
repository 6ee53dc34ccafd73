//! Files import each other in one direction. A name counts as imported from the file that defines it, whichever
//! re-export it goes through.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{Module, Source, sources, words};
use super::limits;

/// Re-exports that a name goes through at most; more are a mistake, or a circle.
const MAX_REEXPORTS: usize = 8;

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

/// A file, or a module inside of one.
struct Scope<'a> {
    source: &'a Source,
    at: Module,
    uses: Vec<String>,
    body: String,
}

impl<'a> Scope<'a> {
    fn new(source: &'a Source, at: Module, text: &str) -> Self {
        let statement = pattern!(r"(?m)^ *(?:pub(?:\([\w: ]+\))? )?use ([\w:{},*\s]+);");
        let uses = statement.captures_iter(text).flat_map(|it| paths(&it[1]));
        Self {
            source,
            at,
            uses: uses.collect(),
            body: statement.replace_all(text, "").into_owned(),
        }
    }

    /// A file and the modules inside of it.
    fn all(source: &'a Source) -> Vec<Self> {
        let inline = pattern!(r"(?ms)^(?:pub(?:\([\w: ]+\))? )?mod (\w+) \{$(.*?)^\}");
        let inside = inline.captures_iter(&source.text);
        let inside = inside.map(|it| {
            let at = [&source.module[..], &[it[1].to_owned()]].concat();
            Self::new(source, at, &it[2])
        });
        let outside = inline.replace_all(&source.text, "");
        let outside = Self::new(source, source.module.clone(), &outside);
        inside.chain([outside]).collect()
    }
}

/// The names of a crate: its modules, and for each name that a module imports the path it is for.
struct Names {
    modules: BTreeSet<Module>,
    imported: BTreeMap<Module, Module>,
}

impl Names {
    fn new(scopes: &[Scope<'_>]) -> Self {
        let mut names = Self {
            modules: scopes.iter().map(|it| it.at.clone()).collect(),
            imported: BTreeMap::new(),
        };
        let each = |scope: &Scope<'_>| {
            let uses = scope.uses.iter().filter_map(|path| {
                let path = path.replace("::self", "");
                let name = path.rsplit([':', ' ']).next().expect("a name");
                let target = names.absolute(&scope.at, &path)?;
                Some(([&scope.at[..], &[name.to_owned()]].concat(), target))
            });
            uses.collect::<Vec<_>>()
        };
        names.imported = scopes.iter().flat_map(each).collect();
        names
    }

    /// A path from the root of the crate, if it is of the crate and written in a module.
    fn absolute(&self, at: &Module, path: &str) -> Option<Module> {
        let path = path.split(" as ").next().expect("a path");
        let path = words(path, "::");
        let mut at = at.clone();
        let mut rest = &path[..];
        match path[0].as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => {
                at.pop();
            }
            first => {
                let name = [&at[..], &[first.to_owned()]].concat();
                let is_here = self.modules.contains(&name) || self.imported.contains_key(&name);
                return is_here.then(|| [at, path].concat());
            }
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|it| it == "super") {
            rest = &rest[1..];
            at.pop();
        }
        Some([&at, rest].concat())
    }

    /// The module that defines what an absolute path names.
    fn definer(&self, path: &[String]) -> Module {
        let mut path = path.to_vec();
        for _ in 0..MAX_REEXPORTS {
            let inner = |len: &usize| self.modules.contains(&path[..*len]);
            let len = (1..=path.len()).take_while(inner).last().unwrap_or(0);
            let next = path.get(..=len).and_then(|name| self.imported.get(name));
            let Some(target) = next else {
                path.truncate(len);
                return path;
            };
            path = [target, &path[len + 1..]].concat();
        }
        panic!("{} is exported again and again", path.join("::"));
    }
}

/// The files from which each file of a crate imports. A module and those in it are one another's.
fn imports(sources: &[Source]) -> BTreeMap<Module, BTreeSet<Module>> {
    let qualified = pattern!(r"\b\w+(?:::\w+)+");
    let scopes: Vec<Scope<'_>> = sources.iter().flat_map(Scope::all).collect();
    let names = Names::new(&scopes);
    let files: BTreeSet<&Module> = sources.iter().map(|it| &it.module).collect();
    let mut found: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for scope in &scopes {
        let module = &scope.source.module;
        let body = qualified.find_iter(&scope.body).map(|it| it.as_str());
        let all = scope.uses.iter().map(String::as_str).chain(body);
        let targets = all.filter_map(|path| {
            let path = names.absolute(&scope.at, path)?;
            let mut at = names.definer(&path);
            while !at.is_empty() && !files.contains(&at) {
                at.pop();
            }
            let related = at.starts_with(module) || module.starts_with(&at);
            (!related).then_some(at)
        });
        found.entry(module.clone()).or_default().extend(targets);
    }
    found
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
fn circles_through_exports_are_found() {
    let root = "mod a;\nmod b;\npub use a::X;\npub(crate) use self::b::{Y, c::V as W};\n";
    let found = |a: &str, b: &str| {
        let files = [("lib", root), ("a", a), ("b", b), ("b/c", "struct V;")];
        let sources = files.map(|(module, text)| Source::new(module, text));
        circles(&imports(&sources))
    };
    assert_eq!(found("use crate::Y;", "use super::X;"), ["a", "b"]);
    assert_eq!(
        found("use crate::{W, Y};", "fn f(x: crate::X) {}"),
        ["a", "b"]
    );
    assert!(found("use crate::W;", "use crate::X;").is_empty());
    assert_eq!(
        found("use crate::b;\nfn f(c: b::Y) {}", "pub use crate::a::X;"),
        ["a", "b"]
    );
}
