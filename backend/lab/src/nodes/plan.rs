//! A lab in a file: what nodes are like, what each of them runs, and what happens to the subnet meanwhile.
//!
//! The file is `lab.toml`, a folder with one, or a script. In a folder, `NAME.sh` is the script of the node
//! of that name, and `all.sh` that of all others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde::{Deserialize, Deserializer, de::Error as _};

use crate::cli::quantity;
use crate::error::{Doing, Error, Result, near};
use crate::nodes::daemon::{self, Daemon};

/// The file in a folder.
const FILE: &str = "lab.toml";

/// Commands that start another program, with words of its own.
const FOREIGN: &[&str] = &["external", "lab", "simulate", "web", "run", "keeper"];

/// A script is no longer: nodes get it as an argument of their shell, and these are up to 128 KiB.
const LONGEST_SCRIPT: usize = 90 << 10;

/// Contents of a file about a lab. The command line provides missing values.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plan {
    /// Number of nodes; by default the nodes in `node`, or the VFs of the configuration.
    #[serde(deserialize_with = "count")]
    pub nodes: Option<u32>,
    /// Debian packages.
    pub packages: Vec<String>,
    /// A version of Debian's, or a file.
    pub kernel: Option<String>,
    /// The folder of modules of a kernel that is a file.
    pub modules: Option<PathBuf>,
    /// The subnet's configuration.
    pub config: Option<PathBuf>,
    /// The root file system of commands.
    pub root: Option<PathBuf>,
    /// Nodes are ready before ports are Active.
    pub any_state: bool,
    /// Memory of a node in MiB.
    #[serde(deserialize_with = "memory")]
    pub memory: Option<u32>,
    /// Processors of a node.
    #[serde(deserialize_with = "count")]
    pub cpus: Option<u32>,
    /// The cluster that nodes are in.
    pub cluster: Option<String>,
    /// Each node has processors of this machine to itself.
    pub pin: bool,
    /// Time limit for nodes to boot.
    #[serde(deserialize_with = "time")]
    pub boot_timeout: Option<Duration>,
    /// Time limit of scripts.
    #[serde(deserialize_with = "time")]
    pub timeout: Option<Duration>,
    /// The first script that fails ends the others.
    pub fail_fast: bool,
    /// Nodes may write to the working directory.
    pub writable: bool,
    /// Nodes may have the subnet changed.
    pub control: bool,
    /// Nodes can move while they run.
    pub migratable: bool,
    /// A script for all nodes.
    pub script: Option<String>,
    /// The same from a file.
    pub file: Option<PathBuf>,
    /// Nodes by name.
    #[serde(deserialize_with = "nodes")]
    pub node: Vec<NodePlan>,
    /// Changes to the subnet.
    pub at: Vec<Happening>,
    /// The whole path of the folder that the file is in; none of a script.
    #[serde(skip)]
    pub folder: Option<PathBuf>,
}

/// Description of a node in a file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodePlan {
    /// Its name.
    pub name: String,
    /// It boots later, and joins the queue of the cluster.
    #[serde(default)]
    pub later: bool,
    /// It runs only while others leave processors idle.
    #[serde(default)]
    pub background: bool,
    /// Its script.
    pub script: Option<String>,
    /// The same from a file.
    pub file: Option<PathBuf>,
}

/// A command of ibvswitch that changes the subnet while scripts run.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Happening {
    /// Time since scripts began.
    #[serde(deserialize_with = "moment")]
    pub time: Duration,
    /// The command, without `ibvswitch` in front: words with spaces between.
    pub run: String,
}

impl Happening {
    fn words(&self) -> Vec<&str> {
        self.run.split_whitespace().collect()
    }

    /// Refuses a command that `ibvswitch` does not have, or that cannot be run beside a lab.
    ///
    /// # Errors
    /// The mistake, with the command.
    pub fn check(&self) -> Result<()> {
        let wrong = |why: &str| Error::Host(format!("[[at]] run = {:?}: {why}", self.run));
        let words = self.words();
        match words.first().copied() {
            None => Err(wrong(
                "write a command of ibvswitch, such as \"link down h-n1:1\"",
            )),
            Some("ibvswitch") => Err(wrong("leave `ibvswitch` out")),
            Some(other) if FOREIGN.contains(&other) => Err(wrong(&format!(
                "`{other}` starts another program; write a command that changes the subnet"
            ))),
            Some(_) => {
                // Parses the words, and does nothing else.
                let mut command = Command::new(daemon::program()?);
                command.args(&words).arg("--help");
                daemon::said(&mut command).map_err(|error| {
                    let text = error.to_string();
                    let line = text.lines().next().unwrap_or_default();
                    wrong(line.trim_start_matches("error: "))
                })
            }
        }
    }
}

/// Refuses names that the subnet does not have, up to the first command that may add one.
///
/// # Errors
/// The answer of the daemon, with the command.
pub fn check_names(happenings: &[Happening], daemon: &Daemon) -> Result<()> {
    let mut happenings: Vec<_> = happenings.iter().collect();
    happenings.sort_by_key(|it| it.time);
    for happening in happenings {
        let question = match happening.words()[..] {
            ["link", _, name, ..] if !name.starts_with('-') => ["link", "show", name],
            ["vf", "pin" | "firmware" | "migrate" | "remove", name, ..]
            | ["vm", "migrate", name, ..]
                if !name.starts_with('-') =>
            {
                ["vf", "show", name]
            }
            ["vf" | "port" | "cluster", "add", ..] | ["config", "apply", ..] => return Ok(()),
            _ => continue,
        };
        let wrong = |error| Error::Host(format!("[[at]] run = {:?}: {error}", happening.run));
        daemon::said(daemon.command().args(question)).map_err(wrong)?;
    }
    Ok(())
}

/// Scripts of nodes: by their names, and one for all others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scripts {
    all: Option<String>,
    each: BTreeMap<String, String>,
    /// Names of files in a folder with a script for all: one that is no node's is none of the lab's.
    optional: BTreeSet<String>,
}

impl Scripts {
    /// The same line for all.
    pub fn all(line: String) -> Self {
        Self {
            all: Some(line),
            ..Self::default()
        }
    }

    /// A line for the first node, and nothing for the others.
    pub fn first(name: &str, line: String) -> Self {
        Self {
            all: Some(":".into()),
            each: BTreeMap::from([(name.to_owned(), line)]),
            ..Self::default()
        }
    }

    /// Returns the script for the shell of a node. An error if there is none, or if there is one for an unknown
    /// node.
    pub fn of(&self, node: &str) -> Result<&str> {
        let found = self.each.get(node).or(self.all.as_ref());
        found.map(String::as_str).ok_or_else(|| {
            Error::Host(format!(
                "node {node} has no script: write one for it, or one for all nodes (script or file in {FILE}, \
                 or all.sh in the folder)"
            ))
        })
    }

    /// Refuses scripts for nodes that there are not, and nodes without one.
    pub fn check(&self, nodes: &[&str]) -> Result<()> {
        let unknown = |it: &&String| !nodes.contains(&it.as_str()) && !self.optional.contains(*it);
        if let Some(other) = self.each.keys().find(unknown) {
            return Err(Error::Host(format!(
                "script for unknown node {other}; {}",
                near(other, nodes)
            )));
        }
        nodes.iter().try_for_each(|node| self.of(node).map(drop))
    }

    fn is_empty(&self) -> bool {
        self.all.is_none() && self.each.is_empty()
    }
}

/// A quantity in a file: with a unit in quotes, or a bare number.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "write a number, or a number with its unit in quotes"
)]
enum Quantity {
    Number(u64),
    Text(String),
}

impl Quantity {
    fn text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

fn memory<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u32>, D::Error> {
    let text = Quantity::deserialize(from)?.text();
    quantity::memory(&text).map(Some).map_err(D::Error::custom)
}

fn count<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "write a number without quotes")]
    enum Count {
        Number(u32),
    }
    let Count::Number(number) = Count::deserialize(from)?;
    Ok(Some(number))
}

fn nodes<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<NodePlan>, D::Error> {
    let wrong = || {
        D::Error::custom(
            "`node` describes one node: write [[node]] with a name; did you mean `nodes`?",
        )
    };
    let value = toml::Value::deserialize(from)?;
    let toml::Value::Array(tables) = value else {
        return Err(wrong());
    };
    let table = |it: toml::Value| match it {
        toml::Value::Table(_) => it.try_into().map_err(D::Error::custom),
        _ => Err(wrong()),
    };
    tables.into_iter().map(table).collect()
}

fn time<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Duration>, D::Error> {
    let text = Quantity::deserialize(from)?.text();
    quantity::time(&text).map(Some).map_err(D::Error::custom)
}

fn moment<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Duration, D::Error> {
    let text = Quantity::deserialize(from)?.text();
    quantity::moment(&text).map_err(D::Error::custom)
}

impl Plan {
    /// Reads a file, a folder, or a script. Paths in it are from where the file is.
    pub fn read(path: &Path) -> Result<(Self, Scripts)> {
        let is_folder = fs::metadata(path).at("read", path)?.is_dir();
        let is_plan = path.extension().is_some_and(|it| it == "toml");
        let (folder, file) = match (is_folder, is_plan) {
            (true, _) => (
                path.to_owned(),
                Some(path.join(FILE)).filter(|it| it.exists()),
            ),
            (false, true) => (above(path), Some(path.to_owned())),
            (false, false) => return Ok((Self::default(), Scripts::all(script(path)?))),
        };
        let mut plan = match &file {
            Some(file) => Self::parse(&fs::read_to_string(file).at("read", file)?, file)?,
            None => Self::default(),
        };
        let folder = fs::canonicalize(&folder).at("find", &folder)?;
        for path in [&mut plan.config, &mut plan.modules, &mut plan.root]
            .into_iter()
            .flatten()
        {
            *path = folder.join(&path);
        }
        // A file, where it is no version.
        if let Some(kernel) = plan.kernel.as_mut().filter(|it| it.contains('/')) {
            *kernel = folder.join(&kernel).display().to_string();
        }
        plan.folder = Some(folder.clone());
        let mut scripts = plan.scripts(&folder)?;
        if is_folder {
            scripts.add(&folder)?;
        }
        if scripts.is_empty() && file.is_none() {
            return Err(Error::Host(format!(
                "there is nothing to run in {}: neither {FILE} nor all.sh, nor a script by the name of a node, \
                 such as n1.sh",
                folder.display()
            )));
        }
        Ok((plan, scripts))
    }

    fn parse(text: &str, file: &Path) -> Result<Self> {
        let wrong = |why: String| Error::Host(format!("{}: {why}", file.display()));
        let plan: Self = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if plan.script.is_some() && plan.file.is_some() {
            return Err(wrong("write `script` or `file`, not both".into()));
        }
        for (at, node) in plan.node.iter().enumerate() {
            let name = &node.name;
            let right = |it: char| it.is_ascii_alphanumeric() || it == '-';
            if name.is_empty() || name.len() > 30 || !name.chars().all(right) {
                return Err(wrong(format!(
                    "the name of a node is 1 to 30 letters, digits and '-', and not {name:?}"
                )));
            }
            if name == "localhost" || name.ends_with("-ib") {
                return Err(wrong(format!(
                    "the name {name} is reserved: NAME-ib is the address of NAME by IP over InfiniBand; write another name"
                )));
            }
            if plan.node[..at].iter().any(|it| it.name == *name) {
                return Err(wrong(format!("there are two nodes {name}")));
            }
            if node.script.is_some() && node.file.is_some() {
                return Err(wrong(format!(
                    "node {name}: write `script` or `file`, not both"
                )));
            }
        }
        Ok(plan)
    }

    /// The scripts that it has or names.
    fn scripts(&self, folder: &Path) -> Result<Scripts> {
        let get = |text: &Option<String>, file: &Option<PathBuf>| match (text, file) {
            (Some(text), _) => line(text.clone(), "a script").map(Some),
            (None, Some(file)) => script(&folder.join(file)).map(Some),
            (None, None) => Ok(None),
        };
        let mut scripts = Scripts {
            all: get(&self.script, &self.file)?,
            ..Scripts::default()
        };
        for node in &self.node {
            if let Some(line) = get(&node.script, &node.file)? {
                scripts.each.insert(node.name.clone(), line);
            }
        }
        Ok(scripts)
    }
}

impl Scripts {
    /// Adds what a folder has by the names of nodes, where nothing else has been said.
    fn add(&mut self, folder: &Path) -> Result<()> {
        for entry in fs::read_dir(folder).at("read", folder)?.flatten() {
            let path = entry.path();
            let name = path.file_stem().and_then(|it| it.to_str());
            let Some(name) = name.filter(|_| path.extension().is_some_and(|it| it == "sh")) else {
                continue;
            };
            match name {
                "all" if self.all.is_none() => self.all = Some(script(&path)?),
                "all" => {}
                _ if self.each.contains_key(name) => {}
                _ => {
                    self.optional.insert(name.to_owned());
                    self.each.insert(name.to_owned(), script(&path)?);
                }
            }
        }
        if self.all.is_none() {
            self.optional.clear();
        }
        Ok(())
    }
}

/// The folder that a file is in.
fn above(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// The script in a file, as a node's shell is given it.
fn script(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).at("read", path)?;
    line(text, &path.display().to_string())
}

/// A script as a node's shell is given it. One that names its interpreter is a program.
fn line(text: String, what: &str) -> Result<String> {
    if text.len() > LONGEST_SCRIPT || text.contains('\0') {
        return Err(Error::Host(format!(
            "{what} is longer than {} KiB, or not text; keep it in the working directory, which nodes have, and \
             run it from there",
            LONGEST_SCRIPT >> 10
        )));
    }
    if !text.starts_with("#!") {
        return Ok(text);
    }
    let quoted = crate::guest::share::quoted(&text);
    Ok(format!(
        "printf %s {quoted} >/run/lab-script && chmod +x /run/lab-script && exec /run/lab-script"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_file_says_what_nodes_are_and_do() {
        let dir = written(&[
            (
                "lab.toml",
                "packages = [\"fio\"]\nmemory = \"2G\"\ntimeout = 300\nconfig = \"subnet.toml\"\n\
                 script = \"all\"\n[[node]]\nname = \"server\"\nfile = \"s\"\n[[node]]\nname = \"client\"\n\
                 [[at]]\ntime = \"1500ms\"\nrun = \"link down h-client:1\"\n",
            ),
            ("s", "#!/usr/bin/python3\nprint('it')\n"),
        ]);
        let (plan, scripts) = Plan::read(&dir.path().join("lab.toml")).unwrap();
        assert_eq!(plan.memory, Some(2048));
        assert_eq!(plan.timeout, Some(Duration::from_secs(300)));
        let folder = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(plan.config, Some(folder.join("subnet.toml")));
        assert_eq!(plan.folder, Some(folder));
        assert_eq!(plan.at[0].time, Duration::from_millis(1500));
        assert_eq!(scripts.of("client").unwrap(), "all");
        let server = scripts.of("server").unwrap();
        assert!(
            server.starts_with("printf %s '#!/usr/bin/python3\n"),
            "{server}"
        );
        assert!(server.contains(r"print('\''it'\'')"), "{server}");
        scripts.check(&["server", "client"]).unwrap();
        let error = scripts.check(&["n1"]).unwrap_err().to_string();
        assert!(error.contains("unknown node server"), "{error}");
    }

    #[test]
    fn a_folder_has_scripts_by_names_of_nodes() {
        let dir = written(&[("n1.sh", "one"), ("notes.txt", "no script")]);
        let (_, scripts) = Plan::read(dir.path()).unwrap();
        assert_eq!(scripts.of("n1").unwrap(), "one");
        let error = scripts.check(&["n1", "n2"]).unwrap_err().to_string();
        assert!(error.contains("node n2 has no script"), "{error}");
        fs::write(dir.path().join("all.sh"), "all").unwrap();
        fs::write(dir.path().join("lab.toml"), "nodes = 3").unwrap();
        let (plan, scripts) = Plan::read(dir.path()).unwrap();
        assert_eq!(plan.nodes, Some(3));
        assert_eq!(scripts.of("n3").unwrap(), "all");
        fs::write(dir.path().join("common.sh"), "sourced").unwrap();
        let (_, scripts) = Plan::read(dir.path()).unwrap();
        scripts.check(&["n1", "n2", "n3"]).unwrap();
        let empty = written(&[]);
        let error = Plan::read(empty.path()).unwrap_err().to_string();
        assert!(error.contains("there is nothing to run"), "{error}");
        let (_, scripts) = Plan::read(&dir.path().join("n1.sh")).unwrap();
        assert_eq!(scripts.of("any").unwrap(), "one");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, message) in [
            ("node = 2", "did you mean `nodes`?"),
            ("nodes = \"2\"", "write a number without quotes"),
            ("[[node]]\nname = \"a-ib\"", "the name a-ib is reserved"),
            (
                "[[node]]\nname = \"a\"\nscrpt = \"x\"",
                "unknown field `scrpt`",
            ),
            ("packges = []", "unknown field `packges`"),
            ("memory = 1", "as in 512M or 2G"),
            ("timeout = \"soon\"", "as in 90s, 5m or 2h"),
            (
                "[[at]]\ntime = \"-1s\"\nrun = \"x\"",
                "as in 500ms, 3s or 2m",
            ),
            (
                "script = \"a\"\nfile = \"b\"",
                "`script` or `file`, not both",
            ),
            ("[[node]]\nname = \"a b\"", "not \"a b\""),
            (
                "[[node]]\nname = \"a\"\n[[node]]\nname = \"a\"",
                "two nodes a",
            ),
        ] {
            let error = Plan::parse(text, Path::new("x/lab.toml")).unwrap_err();
            let error = error.to_string();
            assert!(error.starts_with("x/lab.toml: "), "{error}");
            assert!(error.contains(message), "{error}");
        }
        let long = written(&[("n1.sh", &"x".repeat(LONGEST_SCRIPT + 1))]);
        let error = Plan::read(long.path()).unwrap_err().to_string();
        assert!(error.contains("n1.sh is longer than 90 KiB"), "{error}");
    }
}
