//! Programs of the host, and what they say.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};
use wait_timeout::ChildExt;

/// Time that the doctor waits for a program that has been killed.
const END: Duration = Duration::from_secs(1);

/// Where programs are, and how long each may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Programs<'a> {
    /// As in `$PATH`.
    pub(super) path: &'a OsStr,
    pub(super) limit: Duration,
}

impl Programs<'_> {
    /// A program in one of the directories.
    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        env::split_paths(self.path)
            .map(|directory| directory.join(program))
            .find(|program| program.is_file())
    }

    /// Runs a program, and returns its output if it succeeds. A program that takes longer than the limit is killed.
    pub(super) fn ask(&self, program: &Path, arguments: &[&str]) -> io::Result<String> {
        // A pipe could fill up, and a child of the program could keep it open.
        let (mut out, mut errors) = (memory()?, memory()?);
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()?;
        let Some(status) = child.wait_timeout(self.limit)? else {
            child.kill()?;
            // Not without end: a program that waits for a disk outlives even that.
            child.wait_timeout(END)?;
            let limit = self.limit.as_secs_f64();
            return Err(io::Error::other(format!(
                "it had not ended after {limit} s, and was killed"
            )));
        };
        if !status.success() {
            let said = text(&mut errors)?;
            let first = said.lines().next().unwrap_or("it does not say why");
            return Err(io::Error::other(format!("{status}: {first}")));
        }
        text(&mut out)
    }
}

fn memory() -> io::Result<File> {
    Ok(memfd_create("said", MFdFlags::MFD_CLOEXEC)?.into())
}

fn text(said: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
