//! A private apt state: packages of another Debian release, fetched and unpacked beside the
//! system.
//!
//! Nothing of the system's own package state is read or changed: lists, cache and the status
//! file (empty: so every dependency is part of the answer) are private. Only the machine's apt
//! configuration (proxies and the like) and its mirror are shared. No root is needed.

use std::{
    fs,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::debian::architecture::Architecture;
use crate::debian::sources;
use crate::error::{Doing, Error, Result, tail};
use crate::{paths, progress};

/// Package lists younger than this are used as they are.
const LISTS_FRESH: Duration = Duration::from_secs(3600);

/// A private apt state for some suites of Debian.
#[derive(Debug)]
pub struct Apt {
    dir: PathBuf,
    /// Locked while this lives: another process that wants the same waits.
    _lock: File,
}

/// One package file that a mirror offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// The package's name.
    pub name: String,
    /// Its version, with the epoch.
    pub version: String,
    /// The size of its file, in bytes.
    pub size: u64,
}

impl Apt {
    /// The private state for `suites` of amd64, with lists no older than an hour.
    pub fn new(suites: &[&str]) -> Result<Self> {
        Self::of(Architecture::Amd64, suites)
    }

    /// The same for an architecture.
    pub fn of(architecture: Architecture, suites: &[&str]) -> Result<Self> {
        let mut names = vec!["apt"];
        if architecture == Architecture::I386 {
            names.push("i386");
        }
        let dir = paths::cache()?.join([&names, suites].concat().join("_"));
        fs::create_dir_all(&dir).at("create", &dir)?;
        let lock = File::create(dir.join("in-use")).at("create a lock in", &dir)?;
        lock.lock().at("lock", &dir)?;
        let apt = Self { dir, _lock: lock };
        let updated = apt.dir.join("updated");
        let fresh = fs::metadata(&updated)
            .and_then(|m| m.modified())
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age < LISTS_FRESH));
        if !fresh {
            for sub in ["lists/partial", "archives/partial"] {
                let sub = apt.dir.join(sub);
                fs::create_dir_all(&sub).at("create", &sub)?;
            }
            let mirror = sources::debian_mirror()?;
            apt.write("debian.sources", &mirror.with_suites(suites, architecture))?;
            apt.write("status", "")?;
            apt.write("apt.conf", &apt.configuration(architecture))?;
            progress::step(format_args!("apt: package lists of {}", suites.join(", ")));
            apt.run(&["update", "-qq", "--error-on=any"]).map_err(|e| {
                Error::Host(format!(
                    "cannot read the package lists of {} from this machine's mirror; check the \
                     network, and that debian-archive-keyring is up to date\n{e}",
                    suites.join(", ")
                ))
            })?;
            apt.write("updated", "")?;
        }
        Ok(apt)
    }

    /// Returns the packages that installing `packages` on an empty system would fetch, with dependencies and
    /// without recommendations. `release` is preferred where several suites have a package.
    pub fn resolve(&self, release: &str, packages: &[&str]) -> Result<Vec<Package>> {
        let mut arguments = vec![
            "install",
            "-qq",
            "-y",
            "--print-uris",
            "--no-install-recommends",
        ];
        arguments.extend(["-t", release]);
        arguments.extend(packages);
        let text = self.run(&arguments)?;
        let found: Vec<Package> = text.lines().filter_map(parse_uri_line).collect();
        if found.is_empty() {
            return Err(Error::Output {
                what: format!("packages for {}", packages.join(" ")),
                text,
            });
        }
        Ok(found)
    }

    /// Fetches `packages` and unpacks them below `root`. `label` names the lot in progress lines.
    pub fn unpack(&self, label: &str, packages: &[Package], root: &Path) -> Result<()> {
        self.unpack_each(label, packages, root, |_| Ok(()))
    }

    /// The same; `each` gets the file of every package.
    pub fn unpack_each(
        &self,
        label: &str,
        packages: &[Package],
        root: &Path,
        mut each: impl FnMut(&Path) -> Result<()>,
    ) -> Result<()> {
        let megabytes = packages.iter().map(|p| p.size).sum::<u64>() as f64 / 1e6;
        let count = packages.len();
        progress::step(format_args!("{label}: {count} packages, {megabytes:.1} MB"));
        // Below the root, which is in a folder that does not outlive an interrupted run.
        let archives = root.join("archives.partial");
        fs::create_dir_all(&archives).at("create", &archives)?;
        self.download(label, packages, &archives)?;
        let mut files: Vec<PathBuf> = fs::read_dir(&archives)
            .at("read", &archives)?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "deb"))
            .collect();
        files.sort();
        if files.len() != count {
            return Err(Error::Host(format!(
                "apt-get fetched {} of {count} packages for {label}; run again",
                files.len()
            )));
        }
        progress::step(format_args!("{label}: unpacking"));
        for file in files {
            run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(root))?;
            each(&file)?;
        }
        paths::remove(&archives)
    }

    fn download(&self, label: &str, packages: &[Package], into: &Path) -> Result<()> {
        let mut command = self.command();
        command.args(["download", "-qq", "-o", "APT::Status-Fd=1"]);
        command.args(packages.iter().map(|p| format!("{}={}", p.name, p.version)));
        command.current_dir(into);
        let errors = into.join("errors");
        let to = File::create(&errors).at("create", &errors)?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(to)
            .spawn()
            .doing("start apt-get")?;
        // Lines are "dlstatus:<file>:<percent>:<what apt says>".
        let mut next = 25.0;
        for line in child
            .stdout
            .take()
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines())
        {
            let line = line.doing("read from apt-get")?;
            let percent = line.split(':').nth(2).and_then(|p| p.parse::<f64>().ok());
            if let Some(percent) = percent
                && percent >= next
            {
                progress::step(format_args!("{label}: {percent:.0} % fetched"));
                next = percent + 25.0;
            }
        }
        let status = child.wait().doing("wait for apt-get")?;
        if !status.success() {
            let output = fs::read_to_string(&errors).unwrap_or_default();
            return Err(Error::Program {
                program: format!("apt-get download ({label})"),
                status,
                output: tail(&output, 20),
            });
        }
        Ok(())
    }

    fn command(&self) -> Command {
        let mut command = Command::new("apt-get");
        // LC_ALL: the answers are parsed.
        command
            .arg("-c")
            .arg(self.dir.join("apt.conf"))
            .env("LC_ALL", "C");
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        run(self.command().args(arguments))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).at("write", &path)
    }

    /// Read by apt after the machine's own configuration, so it overrides it. The hooks are
    /// cleared because they tell the system's own tools about updates that are none to them.
    fn configuration(&self, architecture: Architecture) -> String {
        let dir = self.dir.display();
        format!(
            r#"Dir::State "{dir}";
Dir::State::lists "{dir}/lists";
Dir::State::status "{dir}/status";
Dir::State::extended_states "{dir}/extended_states";
Dir::Cache "{dir}";
Dir::Cache::archives "{dir}/archives";
Dir::Etc::sourcelist "{dir}/debian.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
APT::Architecture "{architecture}";
#clear APT::Architectures;
APT::Architectures "{architecture}";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "3";
"#
        )
    }
}

/// The script of a package's maintainer that would run after it is unpacked; none of most packages.
pub fn postinst(file: &Path) -> String {
    let mut command = Command::new("dpkg-deb");
    // It fails where there is none.
    run(command.arg("-I").arg(file).arg("postinst")).unwrap_or_default()
}

/// One line of `apt-get --print-uris`: `'URI' name_version_arch.deb size hash`.
fn parse_uri_line(line: &str) -> Option<Package> {
    let mut words = line.strip_prefix('\'')?.split_whitespace().skip(1);
    let (file, size) = (words.next()?, words.next()?);
    let mut parts = file.strip_suffix(".deb")?.split('_');
    Some(Package {
        name: parts.next()?.to_owned(),
        version: parts.next()?.replace("%3a", ":"),
        size: size.parse().ok()?,
    })
}

/// Runs a program on the host to its end; its standard output, or an error with all it said.
pub fn run(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                Error::Host(format!("{program} is not installed; run scripts/setup"))
            }
            _ => Error::Io {
                doing: format!("start {program}"),
                source,
            },
        })?;
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(out);
    }
    Err(Error::Program {
        program: format!("{command:?}"),
        status: output.status,
        output: tail(&(out + &String::from_utf8_lossy(&output.stderr)), 20),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn print_uris_line_with_epoch() {
        let line = "'http://m.example/pool/k/kmod_34.deb' busybox-static_1%3a1.37.0-6+b9_amd64.deb 955316 SHA256:00";
        let package = parse_uri_line(line).unwrap();
        assert_eq!(package.name, "busybox-static");
        assert_eq!(package.version, "1:1.37.0-6+b9");
        assert_eq!(package.size, 955_316);
        assert_eq!(parse_uri_line("Reading package lists..."), None);
    }
}
