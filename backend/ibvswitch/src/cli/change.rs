//! Changes of the running daemon's configuration: by a new file, or of one of its tables. The daemon takes its own
//! place with the new configuration, and VMs do not notice.

pub(super) mod cluster;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliError, SourceArgs, print, print_json, upgrade};
use crate::control::{Client, UpgradeRequest, Upgraded};
use crate::daemon::management;
use config::cluster::request::Shown;
use config::difference::{Difference, differences};
use config::edit::{Edit, EditError, Part, Setting};
use config::{Config, Source};

/// Options of every change, besides the change itself.
#[derive(Debug, Args)]
pub(super) struct ChangeArgs {
    /// Show the differences, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Time limit in seconds, as for `upgrade`.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = upgrade::within)]
    within: f64,
    /// A VF that may fail, as for `upgrade`.
    #[arg(long, value_name = "VF", value_delimiter = ',')]
    let_fail: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Something new in the configuration.
#[derive(Debug, Args)]
pub(super) struct AddArgs {
    /// Its name.
    name: String,
    /// One of its keys, as in the configuration file; any number of times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Something new at a hypervisor.
#[derive(Debug, Args)]
pub(super) struct AddToArgs {
    /// The hypervisor.
    #[arg(long, value_name = "NAME")]
    hypervisor: String,
    #[command(flatten)]
    add: AddArgs,
}

/// Something that goes.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// Its name.
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Commands on hypervisors.
#[derive(Debug, Subcommand)]
pub(super) enum HypervisorCommand {
    /// Plug a hypervisor into the subnet of the running daemon.
    Add(AddArgs),
    /// Unplug a hypervisor, with its VFs and ports.
    Remove(RemoveArgs),
}

/// Commands on ports of VMs with an Ethernet card.
#[derive(Debug, Subcommand)]
pub(super) enum PortCommand {
    /// Add a port to a hypervisor of the running daemon.
    Add(AddToArgs),
    /// Remove a port.
    Remove(RemoveArgs),
}

pub(super) fn hypervisor(source: SourceArgs, command: HypervisorCommand) -> Result<(), CliError> {
    match command {
        HypervisorCommand::Add(args) => add(source, Part::Hypervisor, None, args),
        HypervisorCommand::Remove(args) => remove(source, Part::Hypervisor, &args),
    }
}

pub(super) fn port(source: SourceArgs, command: PortCommand) -> Result<(), CliError> {
    match command {
        PortCommand::Add(args) => add_to(source, Part::Port, args),
        PortCommand::Remove(args) => remove(source, Part::Port, &args),
    }
}

/// Adds a VF or a port to a hypervisor.
pub(super) fn add_to(source: SourceArgs, part: Part, args: AddToArgs) -> Result<(), CliError> {
    add(source, part, Some(&args.hypervisor), args.add)
}

fn add(
    source: SourceArgs,
    part: Part,
    hypervisor: Option<&str>,
    args: AddArgs,
) -> Result<(), CliError> {
    edited(source, &args.change, |edit| {
        edit.add(part, &args.name, hypervisor, &args.settings)
    })
}

/// Removes what has a name.
pub(super) fn remove(source: SourceArgs, part: Part, args: &RemoveArgs) -> Result<(), CliError> {
    edited(source, &args.change, |edit| edit.remove(part, &args.name))
}

fn edited(
    source: SourceArgs,
    args: &ChangeArgs,
    change: impl FnOnce(&mut Edit) -> Result<(), EditError>,
) -> Result<(), CliError> {
    let file = File::of(source)?;
    let before = file.source.load()?;
    let mut edit = Edit::new(&file.text)?;
    change(&mut edit)?;
    let name = file.path.display().to_string();
    apply(&file, Some(&before), (&name, &edit.text()), args, &[])
}

/// Has the running daemon be as another file says.
pub(super) fn by_file(source: SourceArgs, new: &Path, args: &ChangeArgs) -> Result<(), CliError> {
    let file = File::of(source)?;
    let text = config::read_text(new)?;
    // A file that somebody has spoilt by hand is mended by a right one.
    let before = file.source.load().inspect_err(|error| {
        eprintln!("The differences are unknown, since the present file is invalid: {error}");
    });
    let origin = new.display().to_string();
    apply(&file, before.ok().as_ref(), (&origin, &text), args, &[])
}

fn unreadable(path: &Path, source: io::Error) -> config::ConfigError {
    config::ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    }
}

/// The daemon's file, which nobody else changes by this program meanwhile.
struct File {
    source: Source,
    path: PathBuf,
    text: String,
    _lock: fs::File,
}

impl File {
    fn of(source: SourceArgs) -> Result<Self, CliError> {
        let source = source.source();
        let path = source.file.clone().ok_or_else(|| {
            CliError::Failed(
                "the built-in configuration does not change: write it to a file (`ibvswitch config default`), start \
                 the daemon with --config FILE, and name the file here, too"
                    .to_owned(),
            )
        })?;
        // Where the file is a link, what it leads to is the file.
        let path = fs::canonicalize(&path).map_err(|source| unreadable(&path, source))?;
        // The file itself is another one after a change.
        let lock = fs::File::open(path.parent().unwrap_or(Path::new("/")))
            .and_then(|dir| dir.lock().map(|()| dir))
            .map_err(|error| {
                CliError::Failed(format!("{} cannot be locked: {error}", path.display()))
            })?;
        let text = config::read_text(&path)?;
        Ok(Self {
            source,
            path,
            text,
            _lock: lock,
        })
    }

    /// Writes another text in its place, of which nobody ever sees a part, and nobody who may not see the file.
    fn write(&self, text: &str) -> Result<(), CliError> {
        let name = self.path.file_name().unwrap_or_default();
        let name = format!(".{}.{}", name.display(), std::process::id());
        let new = self.path.with_file_name(name);
        let write = || {
            let earlier = fs::metadata(&self.path)?;
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            fchown(&file, Some(earlier.uid()), Some(earlier.gid()))?;
            file.write_all(text.as_bytes())?;
            file.set_permissions(earlier.permissions())?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|error| {
            // It is not there, or is of no use.
            let _ = fs::remove_file(&new);
            CliError::Failed(format!(
                "{} cannot be written: {error}",
                self.path.display()
            ))
        })
    }
}

#[derive(Serialize)]
struct Outcome<'a> {
    /// `null` where they are not known.
    differences: Option<&'a [Difference]>,
    applied: Option<Upgraded>,
    /// Clusters that were asked for.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    clusters: &'a [Shown],
}

/// Changes the daemon's configuration to this text; `before` is what it is at present, if that is known. Tells of clusters that
/// were asked for.
fn apply(
    file: &File,
    before: Option<&Config>,
    (origin, text): (&str, &str),
    args: &ChangeArgs,
    clusters: &[Shown],
) -> Result<(), CliError> {
    let after = file.source.parse(origin, text)?;
    management::check(&after)?;
    let differences = before.map(|before| differences(before, &after));
    let differences = differences.as_deref();
    if let Some(differences) = differences.filter(|_| !args.json) {
        let lines: String = differences.iter().map(|it| format!("{it}\n")).collect();
        print(&lines)?;
    }
    if before.is_some_and(|before| before.runtime_dir != after.runtime_dir) {
        let why = "`runtime_dir` does not change while the daemon runs: stop it, change the file, and start it";
        return Err(CliError::Failed(why.to_owned()));
    }
    let applied = if args.dry_run {
        None
    } else {
        Some(have_daemon_read(file, &after, text, args)?)
    };
    if args.json {
        return print_json(&Outcome {
            differences,
            applied,
            clusters,
        });
    }
    print(cluster::text(clusters))?;
    match applied {
        Some(applied) => print(format!(
            "{}: {} VMs go on after {:.1} ms\n",
            file.path.display(),
            applied.vms,
            applied.rested_us as f64 / 1000.0
        )),
        None if differences.is_some_and(<[_]>::is_empty) => print("Nothing changes.\n"),
        None => Ok(()),
    }
}

/// Writes the text, and has the daemon go on with it. If the daemon cannot, the file is what it was.
fn have_daemon_read(
    file: &File,
    after: &Config,
    text: &str,
    args: &ChangeArgs,
) -> Result<Upgraded, CliError> {
    let socket = after.control_socket();
    let mut client = Client::connect(&socket)?;
    let read = upgrade::status(&mut client)?.config;
    if read.as_deref().map(Path::new) != Some(&file.path) {
        return Err(CliError::Failed(format!(
            "the daemon reads {}, not {}: name the daemon's file with --config",
            read.as_deref().unwrap_or("the built-in configuration"),
            file.path.display()
        )));
    }
    file.write(text)?;
    let request = UpgradeRequest {
        program: None,
        within_ms: Some(upgrade::milliseconds(args.within)),
        let_fail: args.let_fail.clone(),
    };
    let replaced = upgrade::replace(&mut client, &socket, request).map(|(_, upgraded)| upgraded);
    if replaced.is_err() {
        file.write(&file.text)?;
    }
    replaced
}
