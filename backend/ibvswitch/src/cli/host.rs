//! `ibvswitch host`

use std::fmt::Write;

use clap::{Args, Subcommand};
use passthrough::Device;

use super::text::finding;
use super::vf::{bytes_of, memory_size};
use super::{CliError, SourceArgs, print, print_json};
use crate::host::machine::Machine;
use crate::host::plan::{Class, Plan, Sizes, ranges};
use crate::host::{Host, Report};

/// Commands on this host and its adapters. None needs the daemon.
#[derive(Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Check whether VFs of this host's adapters can be passed through, and print remedies. VFs that are not in
    /// use are opened and reset.
    Check(CheckArgs),
    /// Print which processors and how much memory of this host the kernel, engines and VMs have.
    Plan(PlanArgs),
}

/// Arguments of `host plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
VMs have a place in the plan by `processors` or `background` of their VF or port, and memory by `guest_memory`. What
the host has no room for is refused: a line with the numbers and the remedy, and the exit status 1.
`ibvswitch vf qemu-args` and `vf libvirt-xml` print arguments by this plan.")]
pub(super) struct PlanArgs {
    /// Memory of each VM without `guest_memory`.
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    memory: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
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
    let args = match command {
        HostCommand::Check(args) => args,
        HostCommand::Plan(args) => return plan(source, &args),
    };
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

fn plan(source: SourceArgs, args: &PlanArgs) -> Result<(), CliError> {
    let config = source.load()?;
    let sizes = Sizes {
        one: None,
        others: args.memory.as_deref().and_then(bytes_of),
    };
    let plan = Plan::new(&config, &Machine::here(), sizes);
    if args.json {
        print_json(&plan)?;
    } else {
        print(plan_text(&plan))?;
    }
    if plan.refused.is_empty() {
        return Ok(());
    }
    Err(CliError::Failed(
        "this host has no room for all of this: see the lines with `refused`".into(),
    ))
}

fn plan_text(plan: &Plan) -> String {
    let list = |numbers: &[usize]| match numbers {
        [] => "-".to_owned(),
        numbers => ranges(numbers),
    };
    let processors = &plan.processors;
    let engines = if processors.engines_apart {
        list(&processors.engines)
    } else {
        "those of the kernel".to_owned()
    };
    let mut out = format!(
        "Processors\n  kernel   {}\n  engines  {engines}\n  free     {}\n",
        list(&processors.kernel),
        list(&processors.free)
    );
    let memory = &plan.memory;
    let host = { memory.host }.map_or("unknown".into(), |bytes| format!("{} MiB", bytes >> 20));
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "Memory\n  host     {host}\n  reserved {} MiB\n  VMs      {} MiB\nVMs",
        memory.reserved >> 20,
        memory.vms >> 20
    );
    for vm in &plan.vms {
        let class = match vm.class {
            Class::Dedicated => "dedicated",
            Class::Background => "background",
            Class::Shared => "shared",
        };
        let memory = { vm.memory }.map_or("-".into(), |bytes| format!("{} MiB", bytes >> 20));
        let _ = write!(
            out,
            "  {:12} {class:10}  {:8}  {memory:10}",
            vm.name,
            list(&vm.processors)
        );
        match &vm.prefix[..] {
            [] => {
                out.truncate(out.trim_end().len());
                out.push('\n');
            }
            words => {
                let _ = writeln!(out, "  {} qemu-system-x86_64 …", words.join(" "));
            }
        }
    }
    for it in &plan.refused {
        let _ = writeln!(
            out,
            "  refused  {}: {}\n           {}",
            it.subject, it.why, it.remedy
        );
    }
    out
}
