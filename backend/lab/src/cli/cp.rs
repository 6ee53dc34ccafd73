//! `ibvswitch lab cp`
//!
//! A node has a folder of the lab's over 9p. A node could replace files there by links, which are never followed:
//! files for the node are written elsewhere and moved there, and files from it are moved out before they are read.
//! Those have the names that were asked for, and no device is among them.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;

use super::{
    away::{LabArgs, ask, folder},
    status,
};
use crate::debian::apt;
use crate::error::{Doing, Error, Result};
use crate::guest::share::{EXCHANGE, quoted};
use crate::nodes;
use crate::nodes::outcome::FAILED;
use crate::nodes::rundir::Running;

/// Arguments of `cp`.
#[derive(Debug, Args)]
#[command(after_help = "\
A path in a node is NODE:PATH, relative to /root. All sources must be in the same node, or all on
this machine; write `./` before a local path with a colon. Folders are copied with their contents.
As with cp(1), the destination of several sources must be a folder.
  ibvswitch lab cp test.sh n1:/root/
  ibvswitch lab cp n1:/root/results .")]
pub(super) struct CpArgs {
    #[command(flatten)]
    lab: LabArgs,
    /// Sources, and the destination.
    #[arg(required = true, num_args = 2.., value_names = ["FROM", "TO"])]
    paths: Vec<String>,
}

pub(super) fn cp(args: &CpArgs) -> i32 {
    status(copied(args))
}

fn copied(args: &CpArgs) -> Result<i32> {
    let Some((to, from)) = args.paths.split_last() else {
        return Ok(FAILED);
    };
    let sources: Vec<_> = from.iter().map(|it| place(it)).collect();
    match (sources.as_slice(), place(to)) {
        ([(None, _), ..], (Some(node), to)) if sources.iter().all(|it| it.0.is_none()) => {
            let exchange = Exchange::new(args.lab.find()?, node)?;
            exchange.send(from, to)
        }
        ([(Some(node), _), ..], (None, to)) if sources.iter().all(|it| it.0 == Some(node)) => {
            let exchange = Exchange::new(args.lab.find()?, node)?;
            let from: Vec<&str> = sources.iter().map(|it| it.1).collect();
            exchange.fetch(&from, to)
        }
        _ => Err(Error::Host(
            "copy from this machine to a node (NODE:PATH), or from one node to this machine".into(),
        )),
    }
}

/// A node, and a path in it; or none, and one of this machine.
fn place(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':') {
        Some((node, "")) if !node.contains('/') => (Some(node), "."),
        Some((node, path)) if !node.contains('/') => (Some(node), path),
        _ => (None, text),
    }
}

/// The way to a node and from it.
struct Exchange<'a> {
    lab: Running,
    node: &'a str,
    /// Folder that the node shares with this machine.
    open: PathBuf,
    /// Folder that the node cannot see, on the same file system.
    own: tempfile::TempDir,
    /// The name of what is copied, in both.
    name: String,
}

impl<'a> Exchange<'a> {
    fn new(lab: Running, node: &'a str) -> Result<Self> {
        let line = format!("grep -q ' {EXCHANGE} 9p ' /proc/mounts");
        if ask(&lab, node, line, |_| ())? != 0 {
            return Err(Error::Host(format!(
                "nothing can be copied: the lab is one of nodes that move (--migratable), or the kernel of {node} has no 9p \
                 (CONFIG_9P_FS, CONFIG_NET_9P_VIRTIO)"
            )));
        }
        let folder = folder(&lab, node)?;
        let own = tempfile::Builder::new().prefix("cp-").tempdir_in(&folder);
        let own = own.at("write to", &folder)?;
        let name = own.path().file_name().unwrap_or_default();
        Ok(Self {
            open: folder.join(nodes::EXCHANGE),
            name: name.to_string_lossy().into_owned(),
            own,
            lab,
            node,
        })
    }

    fn send(&self, from: &[String], to: &str) -> Result<i32> {
        let staged = self.own.path().join(&self.name);
        fs::create_dir(&staged).at("create", &staged)?;
        let mut there = Vec::new();
        for path in from {
            // `.` has a name only by its whole path.
            let whole = fs::canonicalize(path).at("read", Path::new(path))?;
            let given = Path::new(path).file_name();
            let name = given.or(whole.file_name()).unwrap_or_default();
            host_cp(&[&whole], &staged.join(name))?;
            let name = name.to_string_lossy();
            there.push(format!("{EXCHANGE}/{}/{name}", self.name));
        }
        let open = self.open.join(&self.name);
        fs::rename(&staged, &open).at("write to", &self.open)?;
        let there: Vec<String> = there.iter().map(|it| quoted(it)).collect();
        let copied = self.ask(format!("cp -r -- {} {}", there.join(" "), quoted(to)));
        // The lab's end removes what this cannot.
        let _ = fs::remove_dir_all(&open);
        copied
    }

    fn fetch(&self, from: &[&str], to: &str) -> Result<i32> {
        let there = format!("{EXCHANGE}/{}", self.name);
        let wanted: Option<Vec<&str>> = from.iter().map(|it| last(it)).collect();
        let from: Vec<String> = from.iter().map(|it| quoted(it)).collect();
        let from = from.join(" ");
        let copied = self.ask(format!("mkdir {there} && cp -r -H -- {from} {there}/"));
        let came = self.own.path().join(&self.name);
        let moved = fs::rename(self.open.join(&self.name), &came);
        let status = copied?;
        if status != 0 {
            return Ok(status);
        }
        moved.at("take what came", &self.open)?;
        if !fs::symlink_metadata(&came).is_ok_and(|it| it.is_dir()) {
            return Err(Error::Host(format!(
                "{} has replaced files while they were copied",
                self.node
            )));
        }
        let paths = plain(&came)?;
        let other = |it: &&PathBuf| {
            let wanted = wanted.as_ref().map(|all| all.iter().map(OsStr::new));
            wanted.is_some_and(|mut all| all.all(|name| it.file_name() != Some(name)))
        };
        if let Some(other) = paths.iter().find(other) {
            let name = other.file_name().unwrap_or_default().to_string_lossy();
            return Err(Error::Host(format!(
                "{} has sent {name:?}, which was not requested",
                self.node
            )));
        }
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        host_cp(&paths, Path::new(to)).map(|()| 0)
    }

    /// Runs cp(1) in the node; its messages go to standard error.
    fn ask(&self, line: String) -> Result<i32> {
        ask(&self.lab, self.node, format!("cd; {line}"), |bytes| {
            eprint!("{}", String::from_utf8_lossy(bytes));
        })
    }
}

/// The name that a path's copy has; none where all that is in a folder is copied without it.
fn last(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next();
    name.filter(|name| !["", ".", ".."].contains(name))
}

/// Returns the contents of a folder, which must be files, folders and links: a node can make devices too.
fn plain(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        let (path, kind) = (entry.path(), entry.file_type().at("read", folder)?);
        if kind.is_dir() {
            plain(&path)?;
        } else if !kind.is_file() && !kind.is_symlink() {
            let name = entry.file_name();
            return Err(Error::Host(format!(
                "{name:?} is a device, a pipe or a socket, and these are not copied"
            )));
        }
        paths.push(path);
    }
    Ok(paths)
}

/// Copies files and folders of this machine. Links in folders stay links, and none at the target is written
/// through.
fn host_cp(from: &[&Path], to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.args(["-r", "-P", "--remove-destination", "--"]);
    command.args(from).arg(to);
    apt::run(&mut command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_in_a_node_or_here() {
        assert_eq!(place("n1:/tmp/x"), (Some("n1"), "/tmp/x"));
        assert_eq!(place("n1:"), (Some("n1"), "."));
        assert_eq!(place("./a:b"), (None, "./a:b"));
        assert_eq!(place("a"), (None, "a"));
    }

    #[test]
    fn what_may_come() {
        for (path, name) in [
            ("/root/a", Some("a")),
            ("a//", Some("a")),
            ("a/.", None),
            ("a/..", None),
            ("/", None),
        ] {
            assert_eq!(last(path), name, "{path}");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("/dev/null", dir.path().join("folder/link")).unwrap();
        assert_eq!(plain(dir.path()).unwrap(), [dir.path().join("folder")]);
        let pipe = dir.path().join("folder/pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let error = plain(dir.path()).unwrap_err().to_string();
        assert!(error.contains("\"pipe\" is a device, a pipe"), "{error}");
    }
}
