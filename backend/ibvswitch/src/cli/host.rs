//! `ibvswitch host`

use std::fmt::Write;

use clap::{Args, Subcommand};
use passthrough::Device;

use super::text::finding;
use super::{CliError, SourceArgs, print, print_json};
use crate::host::{Host, Report};

/// Commands on this host and its adapters. None needs the daemon.
#[derive(Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Check whether VFs of this host's adapters can be passed through, and print remedies. VFs that are not in
    /// use are opened and reset.
    Check(CheckArgs),
}

/// Arguments of `host check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// VFs to check, as the configuration names them (0000:3b:00.2). Default: those of the configuration, or if
    /// it has none, all VFs of ConnectX adapters.
    #[arg(value_name = "DEVICE", value_parser = device)]
    devices: Vec<Device>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn device(text: &str) -> Result<Device, String> {
    text.parse::<Device>()
        .map_err(|error| format!("{error}; write a PCI address as `lspci -D` prints it"))
}

pub(super) fn run(source: SourceArgs, command: HostCommand) -> Result<(), CliError> {
    let HostCommand::Check(args) = command;
    let mut devices = args.devices;
    if devices.is_empty() {
        let config = source.load()?;
        devices.extend(config.hardware().map(|hardware| hardware.device.clone()));
    }
    let report = Host::default().check(&devices);
    if args.json {
        print_json(&report)?;
    } else {
        print(text(&report))?;
    }
    if report.has_errors() {
        return Err(CliError::Failed(
            "this host cannot pass all of these VFs through yet".into(),
        ));
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let mut out = String::from("This host\n");
    report
        .host
        .iter()
        .for_each(|it| finding::line(&mut out, it));
    for vf in &report.vfs {
        let _ = writeln!(out, "\n{}", vf.device);
        vf.checks.iter().for_each(|it| finding::line(&mut out, it));
        if let Some(port) = &vf.port {
            let mapped = if port.doorbell_pages {
                "mapped"
            } else {
                "trapped"
            };
            let _ = writeln!(
                out,
                "           firmware {}, {} vectors, doorbell pages {mapped}",
                port.firmware, port.vectors
            );
        }
    }
    out
}
