//! Names of update-alternatives(1), as the maintainers' scripts of packages ask for them: `mpirun` for
//! `mpirun.openmpi`.
//!
//! These scripts do not run. The lab reads names that they write out; names that a script puts together from
//! variables are left out.

use std::{fs, os::unix::fs::symlink, path::Path};

use crate::error::{Doing, Result};

/// A name, and what it may stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alternative {
    /// The path of the link.
    pub link: String,
    /// Where the link leads.
    pub target: String,
    /// The highest of a name is taken.
    pub priority: i32,
}

/// The names that a maintainer's script installs, slaves with the priority of their masters.
pub fn read(script: &str) -> Vec<Alternative> {
    let mut all = Vec::new();
    for line in script.replace("\\\n", " ").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(at) = words.iter().position(|it| *it == "update-alternatives") else {
            continue;
        };
        let mut words = words[at + 1..].iter().copied();
        let mut priority = None;
        while let Some(word) = words.next() {
            let slave = match word {
                "--install" => false,
                "--slave" => true,
                _ => continue,
            };
            let (link, _name, target) = (words.next(), words.next(), words.next());
            if !slave {
                priority = words.next().and_then(|it| it.parse().ok());
            }
            let (Some(link), Some(target), Some(priority)) = (link, target, priority) else {
                break;
            };
            if [link, target].into_iter().all(is_plain) {
                let (link, target) = (link.to_owned(), target.to_owned());
                all.push(Alternative {
                    link,
                    target,
                    priority,
                });
            }
        }
    }
    all
}

/// Whether a word is a path below the root, and means itself in a shell.
fn is_plain(word: &str) -> bool {
    let plain = |it: char| it.is_ascii_alphanumeric() || "/._+-".contains(it);
    word.starts_with('/') && word.chars().all(plain) && !word.split('/').any(|it| it == "..")
}

/// Makes links in the tree at `root`, of each name the one with the highest priority, where what they lead to is there and
/// they are not.
pub fn link(root: &Path, mut all: Vec<Alternative>) -> Result<()> {
    all.sort_by_key(|it| -it.priority);
    for Alternative { link, target, .. } in &all {
        let at = root.join(link.trim_start_matches('/'));
        let leads = root.join(target.trim_start_matches('/'));
        if fs::symlink_metadata(&leads).is_err() || fs::symlink_metadata(&at).is_ok() {
            continue;
        }
        if let Some(parent) = at.parent() {
            fs::create_dir_all(parent).at("create", parent)?;
        }
        symlink(target, &at).at("link", &at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in openmpi-bin 5.0.7-1, and as others write it.
    const SCRIPT: &str = "\
if [ \"$1\" = \"configure\" ]; then
update-alternatives \\
\t--install /usr/bin/mpirun mpirun /usr/bin/mpirun.openmpi 50 \\
\t--slave /usr/share/man/man1/mpirun.1.gz mpirun.1.gz /usr/share/man/man1/mpirun.openmpi.1.gz \\
\t--slave /usr/bin/mpiexec mpiexec /usr/bin/mpiexec.openmpi

  update-alternatives --quiet --install /usr/bin/x x /usr/bin/x.low -5
  update-alternatives --quiet --install /usr/bin/x x /usr/bin/x.high 10 || true
  update-alternatives --install /usr/lib/$arch/y y \"$there\" 10
  update-alternatives --remove rsh /usr/bin/ssh
  update-alternatives --install /usr/bin/../../etc/z z /usr/bin/x.low 10
fi
";

    #[test]
    fn names_that_a_script_says_in_words() {
        let all = read(SCRIPT);
        let found: Vec<_> = all
            .iter()
            .map(|it| (it.link.as_str(), it.target.as_str(), it.priority))
            .collect();
        assert_eq!(
            found,
            [
                ("/usr/bin/mpirun", "/usr/bin/mpirun.openmpi", 50),
                (
                    "/usr/share/man/man1/mpirun.1.gz",
                    "/usr/share/man/man1/mpirun.openmpi.1.gz",
                    50
                ),
                ("/usr/bin/mpiexec", "/usr/bin/mpiexec.openmpi", 50),
                ("/usr/bin/x", "/usr/bin/x.low", -5),
                ("/usr/bin/x", "/usr/bin/x.high", 10),
            ]
        );
    }

    #[test]
    fn links_to_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("usr/bin");
        fs::create_dir_all(&bin).unwrap();
        for name in ["mpirun.openmpi", "x.low", "x.high"] {
            fs::write(bin.join(name), name).unwrap();
        }
        link(root.path(), read(SCRIPT)).unwrap();
        let leads = |name: &str| fs::read_link(bin.join(name)).ok();
        assert_eq!(leads("mpirun"), Some("/usr/bin/mpirun.openmpi".into()));
        assert_eq!(leads("x"), Some("/usr/bin/x.high".into()));
        // mpiexec.openmpi is in no package here.
        assert_eq!(leads("mpiexec"), None);
        assert!(!root.path().join("etc").exists());
    }
}
