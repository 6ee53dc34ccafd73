//! Programs of the host, and what they say.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program in one of the directories of `path`.
pub(super) fn find(program: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|directory| directory.join(program))
        .find(|program| program.is_file())
}

/// What a program prints that succeeds.
pub(super) fn ask(program: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it does not say why");
        return Err(io::Error::other(format!("{}: {first}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
