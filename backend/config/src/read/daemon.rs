//! The daemon itself: its directory, log, threads and sockets.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hca::Quota;

use super::Reader;
use super::manager::path;
use crate::document::{Entry, Section};
use crate::{
    CONTROL_SOCKET, Directories, Doorbells, Engine, External, SOCKET_PATH_MAX, Threads, keys,
    log_filter,
};
use vswitch::model::derive_name;

impl<'d> Reader<'d> {
    pub(super) fn runtime_dir(&mut self, root: &Section<'d>, dirs: Directories<'_>) -> PathBuf {
        let configured = root.text("runtime_dir");
        let dir = match (dirs.chosen, &configured) {
            (Some(chosen), _) => chosen,
            (None, Some(entry)) => Path::new(entry.value),
            (None, None) => dirs.fallback,
        };
        // A path on the command line is relative to where the command was typed; one in a file
        // would depend on where the daemon was started.
        let dir = match (dirs.chosen, &configured) {
            (None, Some(entry)) if dir.is_relative() => {
                entry.reject(
                    "a relative path, and VMMs name the sockets in it from other directories",
                    "write a path that begins with /",
                );
                return dir.to_owned();
            }
            _ => std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
        };
        let control = dir.join(CONTROL_SOCKET);
        let length = control.as_os_str().as_bytes().len();
        if length > SOCKET_PATH_MAX {
            let what = too_long(&control, length);
            let remedy = "choose a directory with a shorter path";
            match (&configured, dirs.chosen) {
                (Some(entry), None) => entry.reject(what, remedy),
                (_, Some(_)) => self.document.reject_whole("--runtime-dir", what, remedy),
                (None, None) => self.document.reject_whole("runtime_dir", what, remedy),
            }
        }
        self.names
            .sockets
            .insert(control, "the daemon's control socket".to_owned());
        dir
    }

    pub(super) fn socket(
        &mut self,
        name: &Entry<'d, &str>,
        configured: Option<&Entry<'d, &str>>,
        runtime_dir: &Path,
    ) -> PathBuf {
        let file =
            configured.map_or_else(|| format!("{}.sock", name.value), |e| e.value.to_owned());
        let path = runtime_dir.join(&file);
        // The place to mend is the socket's own key where there is one, else the VF's name.
        let entry = configured.unwrap_or(name);
        if file.is_empty() || file.ends_with('/') || file.contains('\0') {
            entry.reject(
                "not the path of a file",
                "write a file name, which is then in the runtime directory, or a whole path",
            );
            return path;
        }
        let length = path.as_os_str().as_bytes().len();
        if length > SOCKET_PATH_MAX {
            entry.reject(
                too_long(&path, length),
                "choose a shorter `runtime_dir`, name or `socket`",
            );
        }
        entry
            .with(path.clone())
            .claim(&mut self.names.sockets, "socket", name.value);
        path
    }
}

pub(super) fn log(root: &Section<'_>) -> String {
    let Some(entry) = root.text("log") else {
        return "info".to_owned();
    };
    if let Err((what, remedy)) = log_filter(entry.value) {
        entry.reject(what, remedy);
    }
    entry.value.to_owned()
}

pub(super) fn socket_mode(root: &Section<'_>) -> u32 {
    const OWNER: u32 = 0o600;
    const REMEDY: &str = "write octal permission bits such as 0o660, of which 0o600 for the owner";
    let Some(entry) = root.integer("socket_mode", REMEDY) else {
        return OWNER;
    };
    let mode = entry.value as u32;
    if mode & OWNER != OWNER {
        entry.reject("out of range", REMEDY);
    }
    mode
}

pub(super) fn engine(root: &Section<'_>) -> (Engine, Option<Doorbells>, u64) {
    let section = root.section("engine", keys::ENGINE);
    let remedy = "write the number of a processor, counted from 0";
    (
        Engine {
            cpu: section.number("cpu", remedy),
            threads: threads(&section).unwrap_or(Threads::Fixed(1)),
        },
        section
            .one_of("doorbells", &Doorbells::NAMES)
            .unwrap_or(Some(Doorbells::default())),
        object_memory(&section).unwrap_or(Quota::default().memory as u64),
    )
}

fn threads(section: &Section<'_>) -> Option<Threads> {
    const REMEDY: &str = "write a number of engines from 1 to 64, or \"auto\"";
    let entry = section.value("threads")?;
    match entry.value.as_str() {
        Some("auto") => Some(Threads::Auto),
        Some(_) => entry.meaning(None, "no number of engines", REMEDY),
        None => section.number("threads", REMEDY).map(Threads::Fixed),
    }
}

pub(super) fn external(root: &Section<'_>, runtime_dir: &Path) -> External {
    let section = root.section("external", keys::EXTERNAL);
    let socket = match section.text("socket") {
        Some(entry) if entry.value.is_empty() => None,
        Some(entry) => {
            entry.check_name();
            Some(entry.value.to_owned())
        }
        // Daemons that run at the same time have runtime directories of their own.
        None => Some(derive_name("ibvswitch", &runtime_dir.to_string_lossy())),
    };
    External {
        socket,
        partitions: path(&section, "partitions_file"),
    }
}

/// Bytes of the daemon's memory for a guest's objects, of a table that says so.
pub(super) fn object_memory(section: &Section<'_>) -> Option<u64> {
    const REMEDY: &str =
        "write how many MiB of the daemon's memory a guest's objects may take, from 1 to 1048576";
    let mebibytes: u64 = section.number("object_memory", REMEDY)?;
    Some(mebibytes << 20)
}

fn too_long(path: &Path, length: usize) -> String {
    format!(
        "the socket {} would have a path of {length} bytes, and a UNIX socket's has at most {SOCKET_PATH_MAX}",
        path.display()
    )
}
