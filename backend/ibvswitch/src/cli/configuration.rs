//! `ibvswitch config`

use std::fmt::Write;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{CliError, SourceArgs, print, print_json};
use crate::config::{Config, DEFAULT, Doorbells};
use crate::management;

/// Commands on configurations. None needs the daemon.
#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Check the configuration and show what it amounts to.
    Check(CheckArgs),
    /// Print the built-in configuration, to start one's own from.
    Default,
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
        ConfigCommand::Check(args) => {
            let config = source.load()?;
            management::check(&config)?;
            if args.json {
                print_json(&summary(&config))
            } else {
                print(&text(&config))
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
}

fn summary(config: &Config) -> Summary<'_> {
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
            .map(|(hypervisor, vf)| VfSummary {
                name: &vf.name,
                hypervisor: &hypervisor.name,
                lid: vf.lid.map(u16::from),
                guid: vf.guid.to_string(),
                pkeys: vf.pkeys.iter().map(ToString::to_string).collect(),
                doorbells: vf.doorbells,
                socket: vf.socket.display().to_string(),
            })
            .collect(),
    }
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
    for (hypervisor, vf) in config.vfs() {
        let lid = vf
            .lid
            .map_or_else(|| "assigned".to_owned(), |lid| lid.to_string());
        let pkeys: Vec<String> = vf.pkeys.iter().map(ToString::to_string).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  {} on {}: LID {lid}, GUID {}, P_Keys {}, doorbells {}",
            vf.name,
            hypervisor.name,
            vf.guid,
            pkeys.join(" "),
            vf.doorbells
        );
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
