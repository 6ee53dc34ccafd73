//! `ibvswitch simulate scale`

use std::fmt::Write;

use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;
use subnet_manager::routing::RoutingChoice;

use super::number::{at_least, whole};
use super::progress::Bar;
use super::table::table;
use super::{CliError, named, print, print_json};
use crate::Shape;
use crate::managed::scale::{MAX_SUBNETS, Outcome, Setting, Stage, free_memory};

/// Arguments of `simulate scale`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ibvswitch simulate scale
  ibvswitch simulate scale --subnets 3 --topology \"XGFT(2;10,10;5,1)\" --json")]
pub(super) struct ScaleArgs {
    /// Number of subnets; a router has a port in each.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 100,
        value_parser = whole(1..=MAX_SUBNETS)
    )]
    subnets: u8,
    /// Topology of each subnet: a generator, as for simulate routing.
    #[arg(
        long,
        short,
        value_name = "GENERATOR",
        default_value = "XGFT(3;25,20,20;20,20,1)"
    )]
    topology: String,
    /// Routing engine.
    #[arg(long, default_value = "ftree", value_parser = named(&RoutingChoice::NAMES))]
    engine: RoutingChoice,
    /// Migrations of a VM in the first subnet, one after the other.
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = at_least(0usize))]
    migrations: usize,
    /// Memory that the experiment may take, in GiB; all that is free by default.
    #[arg(long, value_name = "GIB", value_parser = whole(1..=65535u64))]
    memory: Option<u64>,
    /// Seed of all random numbers: the same seed gives the same paths to follow.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = at_least(0u64))]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The result with its parameters.
#[derive(Debug, Serialize)]
struct Scale<'a> {
    topology: &'a str,
    requested_subnets: u8,
    bytes_per_port: f64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

pub(super) fn run(args: &ScaleArgs) -> Result<(), CliError> {
    let shape: Result<Shape, _> = args.topology.parse();
    let setting = Setting {
        subnets: args.subnets,
        shape: shape.map_err(|error| CliError::Failed(error.to_string()))?,
        engine: args.engine,
        migrations: args.migrations,
        seed: args.seed,
        memory: args.memory.map_or_else(free_memory, |gib| gib << 30),
    };
    let bar = Bar::new();
    let outcome = setting.run(&|step| bar.show(step));
    drop(bar);
    let outcome = outcome.map_err(|error| CliError::Failed(error.to_string()))?;
    if args.json {
        return print_json(&Scale {
            topology: &args.topology,
            requested_subnets: args.subnets,
            bytes_per_port: outcome.bytes_per_port(),
            outcome: &outcome,
        });
    }
    print(&text(args, &outcome))
}

/// The result for people.
fn text(args: &ScaleArgs, outcome: &Outcome) -> String {
    let stage = |name: &str, stage: Stage| {
        let per_port = stage.processor_seconds * 1e6 / outcome.end_ports.max(1) as f64;
        [
            name.to_owned(),
            format!("{:.2} s", stage.seconds),
            format!("{:.2} s", stage.processor_seconds),
            format!("{per_port:.2} us"),
        ]
        .to_vec()
    };
    let mut rows = vec![
        ["STAGE", "CLOCK", "PROCESSOR", "PER PORT"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend([
        stage("nodes and cables", outcome.build),
        stage("discovery and LIDs", outcome.discovery),
        stage("routes", outcome.routing),
        stage("tables written", outcome.writing),
    ]);
    let mut text = format!(
        "{} subnets of {}: {} end ports, {} switches, {} ports in all, up to {} LIDs, routed by {}\n\n{}\n",
        outcome.subnets,
        args.topology,
        outcome.end_ports,
        outcome.switches,
        outcome.ports,
        outcome.lids,
        outcome.engine,
        table(&rows, CellAlignment::Right),
    );
    let moves = outcome.migrations;
    let per_port = |bytes: u64| bytes / outcome.end_ports.max(1) as u64;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "packets of management: {}\n\
         memory: fabric {} MiB ({} bytes per end port), managers {} MiB ({}), peak {} MiB\n\
         paths followed: {} of {} within a subnet arrive, {} of {} from subnet to subnet\n\
         migrations: {}, median {:.2} ms ({:.2} to {:.2}), {:.2} ms of processor time on average, up to {} switches and {} packets each",
        outcome.packets,
        outcome.fabric_bytes >> 20,
        per_port(outcome.fabric_bytes),
        outcome.managed_bytes >> 20,
        per_port(outcome.managed_bytes),
        outcome.peak_bytes >> 20,
        outcome.within.arriving,
        outcome.within.paths,
        outcome.across.arriving,
        outcome.across.paths,
        moves.count,
        moves.median_ms,
        moves.min_ms,
        moves.max_ms,
        moves.processor_ms,
        moves.switches,
        moves.packets,
    );
    if let Some(reason) = &outcome.stopped {
        let _ = writeln!(
            text,
            "stopped after {} of {} subnets: {reason}",
            outcome.subnets, args.subnets
        );
    }
    text
}
