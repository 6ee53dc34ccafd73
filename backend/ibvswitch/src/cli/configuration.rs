//! `ibvswitch config`

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::change::{self, ChangeArgs};
use super::{CliError, SourceArgs, print, print_json};
use crate::budget::{Available, Budget, mebibytes};
use crate::daemon::management;
use config::{Config, DEFAULT, Doorbells};

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
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, command: ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Default => print(DEFAULT),
        ConfigCommand::Apply(args) => change::by_file(source, &args.file, &args.change),
        ConfigCommand::Check(args) => {
            let config = source.load()?.settled(None);
            management::check(&config)?;
            if args.json {
                print_json(&summary(&config))
            } else {
                print(text(&config))
            }
        }
    }
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
    pkeys: Vec<String>,
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

fn summary(config: &Config) -> Summary<'_> {
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
                pkeys: vf.model.pkeys.iter().map(ToString::to_string).collect(),
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
        warnings: &config.warnings,
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

fn text(config: &Config) -> String {
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
        let lid = vf
            .model
            .lid
            .map_or_else(|| "assigned".to_owned(), |lid| lid.to_string());
        let pkeys: Vec<String> = vf.model.pkeys.iter().map(ToString::to_string).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  {} on {}: LID {lid}, GUID {}, P_Keys {}, doorbells {}, at most {} MiB",
            vf.model.name,
            hypervisor.name,
            vf.model.guid,
            pkeys.join(" "),
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
    for warning in config.warnings.iter().chain(&complaint) {
        let _ = writeln!(text, "Warning: {warning}.");
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
