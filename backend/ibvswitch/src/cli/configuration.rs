//! `ibvswitch config`

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use super::change::{self, ChangeArgs};
use super::{CliError, SourceArgs, print, print_json};
use crate::budget::{Available, Budget, mebibytes};
use crate::daemon::management::manager_files::strangers;
use crate::daemon::management::{self, ManagementError};
use crate::status::Observer;
use crate::warnings;
use config::{Config, DEFAULT, Doorbells, ManagerPlace};

/// Commands on configurations.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check the configuration and show a summary of it.
    Check(CheckArgs),
    /// Print the built-in configuration, as a start for your own.
    Default,
    /// Give the running daemon the configuration in another file; VMs do not notice.
    Apply(ApplyArgs),
}

/// Arguments of `config apply`.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows the differences from the daemon's file, which --config names, writes the new text there, and \
makes the daemon replace itself, as `upgrade` does. If the daemon cannot, or a VM could not go on, \
the file stays as it was, and this command prints the reason.")]
pub(super) struct ApplyArgs {
    /// The new configuration.
    file: PathBuf,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Arguments of `config check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// The file to check, in place of the one that --config names.
    file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(mut source: SourceArgs, command: ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Default => print(DEFAULT),
        ConfigCommand::Apply(args) => change::by_file(source, &args.file, &args.change),
        ConfigCommand::Check(args) => {
            source.config = args.file.or(source.config);
            let config = source.load()?.settled(None);
            let planned = Planned::of(&config)?;
            if args.json {
                print_json(&summary(&config, &planned))
            } else {
                print(text(&config, &planned))
            }
        }
    }
}

/// The subnet as the manager brings it up.
struct Planned {
    /// P_Key tables by port GUID, where the daemon's own manager fills them.
    pkeys: Option<HashMap<String, Vec<String>>>,
    warnings: Vec<String>,
}

impl Planned {
    fn of(config: &Config) -> Result<Self, CliError> {
        let (plan, vswitch) = management::planned(config)?;
        let mut warnings = vswitch.inspect(|fabric| warnings::of(config, &plan, fabric));
        if config.manager.place == ManagerPlace::Embedded {
            warnings.extend(vswitch.inspect(|fabric| warnings::waiting(config, &plan, fabric)));
        }
        let strangers = strangers(config, &plan).map_err(ManagementError::from)?;
        warnings.extend(strangers);
        let managers = vswitch.manager_status();
        warnings.extend(warnings::of_managers(&managers));
        if let Some(dir) = config
            .files
            .state_dir
            .as_ref()
            .filter(|dir| !is_writable(dir))
        {
            let dir = dir.display();
            warnings.push(format!(
                "sm.state_dir {dir} cannot be written by this user, and a daemon of this user would not start"
            ));
        }
        let embedded = config.manager.place == ManagerPlace::Embedded;
        let pkeys = embedded.then(|| {
            let observer = Observer::new(config.clone(), plan);
            let topology = vswitch.inspect(|fabric| observer.topology(fabric, &[]));
            let nodes = topology.nodes.into_iter();
            nodes.map(|node| (node.port_guid, node.pkeys)).collect()
        });
        Ok(Self { pkeys, warnings })
    }

    /// The P_Keys of a VF; `None` where an external manager decides.
    fn pkeys(&self, vf: &config::Vf) -> Option<Vec<String>> {
        let own = || vf.model.pkeys.iter().map(ToString::to_string).collect();
        let tables = self.pkeys.as_ref()?;
        let planned = tables.get(&vf.model.guid.to_string());
        Some(planned.cloned().unwrap_or_else(own))
    }
}

/// Whether this user may make the directory or write in it.
fn is_writable(dir: &Path) -> bool {
    let mut present = dir.ancestors().filter(|dir| dir.exists());
    present
        .next()
        .is_some_and(|dir| access(dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok())
}

#[derive(Serialize)]
struct Summary<'a> {
    runtime_dir: String,
    switches: Vec<&'a str>,
    sm_lid: u16,
    hypervisors: Vec<&'a str>,
    vfs: Vec<VfSummary<'a>>,
    memory: MemorySummary<'a>,
    /// Warnings: values that take effect in another way than they are written.
    warnings: &'a [String],
}

#[derive(Serialize)]
struct VfSummary<'a> {
    name: &'a str,
    hypervisor: &'a str,
    lid: Option<u16>,
    guid: String,
    /// `None`: as the external subnet manager says.
    pkeys: Option<Vec<String>>,
    doorbells: Doorbells,
    socket: String,
    memory_bytes: u64,
}

/// Most memory that guests can make the daemon take.
#[derive(Serialize)]
struct MemorySummary<'a> {
    hypervisors: BTreeMap<&'a str, u64>,
    sum_bytes: u64,
    available_bytes: Option<u64>,
    warning: Option<String>,
}

fn summary<'a>(config: &'a Config, planned: &'a Planned) -> Summary<'a> {
    let (budget, available) = (Budget::of(config), Available::here());
    Summary {
        runtime_dir: config.runtime_dir.display().to_string(),
        switches: config
            .wiring
            .switches
            .iter()
            .map(|it| it.name.as_str())
            .collect(),
        sm_lid: config.subnets[0].manager.lid.value(),
        hypervisors: config
            .hypervisors
            .iter()
            .map(|it| it.name.as_str())
            .collect(),
        vfs: config
            .vfs()
            .zip(budget.vfs.iter().copied())
            .map(|((hypervisor, vf), memory_bytes)| VfSummary {
                memory_bytes,
                name: &vf.model.name,
                hypervisor: &hypervisor.name,
                lid: vf.model.lid.map(u16::from),
                guid: vf.model.guid.to_string(),
                pkeys: planned.pkeys(vf),
                doorbells: vf.doorbells.unwrap_or_default(),
                socket: vf.socket.display().to_string(),
            })
            .collect(),
        memory: MemorySummary {
            hypervisors: by_hypervisor(config, &budget).into_iter().collect(),
            sum_bytes: budget.sum(),
            available_bytes: available.map(Available::bytes),
            warning: available.and_then(|available| available.complaint(&budget)),
        },
        warnings: &planned.warnings,
    }
}

/// Returns the most memory that the guests of each hypervisor can make the daemon take, in bytes.
fn by_hypervisor<'a>(config: &'a Config, budget: &Budget) -> Vec<(&'a str, u64)> {
    let mut vfs = budget.vfs.iter();
    let hypervisors = config.hypervisors.iter();
    hypervisors
        .map(|it| (it.name.as_str(), vfs.by_ref().take(it.vfs.len()).sum()))
        .collect()
}

fn text(config: &Config, planned: &Planned) -> String {
    let switches = match &config.wiring.switches[..] {
        [one] => format!("switch {}", one.name),
        several => count(several.len(), "switch").replace("switchs", "switches"),
    };
    let mut text = format!(
        "The configuration is right: {} on {}, {}, sockets in {}.\n",
        count(config.hypervisors.len(), "hypervisor"),
        switches,
        count(config.vfs().count(), "VF"),
        config.runtime_dir.display()
    );
    let budget = Budget::of(config);
    for ((hypervisor, vf), bytes) in config.vfs().zip(&budget.vfs) {
        let (lid, pkeys) = match planned.pkeys(vf) {
            Some(pkeys) => (
                vf.model
                    .lid
                    .map_or_else(|| "assigned".to_owned(), |lid| lid.to_string()),
                pkeys.join(" "),
            ),
            None => [(); 2]
                .map(|()| "as the external manager says".to_owned())
                .into(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  {} on {}: LID {lid}, GUID {}, P_Keys {}, doorbells {}, at most {} MiB",
            vf.model.name,
            hypervisor.name,
            vf.model.guid,
            pkeys,
            vf.doorbells.unwrap_or_default(),
            mebibytes(*bytes)
        );
    }
    let _ = writeln!(
        text,
        "The daemon's memory: at most {} MiB on account of guests, and its own needs.",
        mebibytes(budget.sum())
    );
    for (name, bytes) in by_hypervisor(config, &budget) {
        let _ = writeln!(text, "  {name}: {} MiB", mebibytes(bytes));
    }
    let complaint = Available::here().and_then(|available| available.complaint(&budget));
    for warning in planned.warnings.iter().chain(&complaint) {
        let end = if warning.ends_with('?') { "" } else { "." };
        let _ = writeln!(text, "Warning: {warning}{end}");
    }
    text
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}
