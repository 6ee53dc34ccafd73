//! `ibvswitch simulate capacity`

use crate::capacity::{LIDS, Model, Question, Row, VIRTUAL_LIDS, capacity};
use clap::Args;
use comfy_table::CellAlignment;
use serde::Serialize;

use super::number::{at_least, whole};
use super::table::table;
use super::{CliError, Output, Report};
use crate::plot::{Figure, Line, Panel};

/// Arguments of `simulate capacity`.
#[derive(Debug, Args)]
#[command(after_help = "\
Models:
  shared-port   all VMs of a hypervisor share its LID
  prepopulated  a LID for every VF, used or not
  dynamic       a LID for every VM that runs
  extended      a LID of 18 bits for every VM that runs: not in hardware, but with fabric.extended_lids

Examples:
  ibvswitch simulate capacity
  ibvswitch simulate capacity --vfs 16 --population 25")]
pub(super) struct CapacityArgs {
    /// Virtual functions of a hypervisor.
    #[arg(
        long,
        value_name = "NUMBER,…",
        value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,126",
        value_parser = whole(1..=253u8)
    )]
    vfs: Vec<u8>,
    /// VMs that run on each, in percent of its virtual functions.
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 50,
        value_parser = whole(1..=100u8)
    )]
    population: u8,
    /// Ports of the switches.
    #[arg(long, value_name = "NUMBER", default_value_t = 36, value_parser = at_least(1u32))]
    ports: u32,
    #[command(flatten)]
    output: Output,
}

/// The results.
#[derive(Debug, Serialize)]
struct Capacity {
    population: u8,
    ports: u32,
    rows: Vec<Row>,
}

pub(super) fn run(args: &CapacityArgs) -> Result<(), CliError> {
    let mut rows = Vec::new();
    for &functions in &args.vfs {
        let question = Question {
            functions,
            population: args.population,
            ports: args.ports,
        };
        rows.extend(capacity(question).map_err(|error| CliError::Failed(error.to_string()))?);
    }
    args.output.show(&Capacity {
        population: args.population,
        ports: args.ports,
        rows,
    })
}

impl Capacity {
    /// A row of cells under [`Report::rows`]'s names of columns.
    fn cells(row: &Row) -> Vec<String> {
        let tree = &row.tree;
        let mut cells = vec![row.model.name().to_owned()];
        let numbers = [
            row.functions.into(),
            row.running,
            row.hypervisors,
            row.vms,
            tree.hypervisors,
            tree.vms,
            tree.switches,
            tree.lids,
            tree.blocks,
            tree.packets,
        ];
        cells.extend(numbers.map(|number| number.to_string()));
        cells
    }
}

impl Report for Capacity {
    fn text(&self) -> String {
        let heading = [
            "MODEL",
            "VFS",
            "VMS",
            "HYPERVISORS",
            "VMS",
            "HYPERVISORS",
            "VMS",
            "SWITCHES",
            "LIDS",
            "BLOCKS",
            "PACKETS",
        ];
        let above = [
            "",
            "each",
            "each",
            "without",
            "switches",
            "in a tree",
            "",
            "",
            "",
            "per table",
            "full",
        ];
        let mut rows = [above, heading]
            .map(|row| row.map(str::to_owned).to_vec())
            .to_vec();
        rows.extend(self.rows.iter().map(Self::cells));
        format!(
            "{LIDS} LIDs, and {VIRTUAL_LIDS} for VMs with 18 bits; {} % of the VFs run a VM; a \
             fat-tree of switches with {} ports\n\n{}",
            self.population,
            self.ports,
            table(&rows, CellAlignment::Right)
        )
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let heading = [
            "model",
            "vfs",
            "running",
            "hypervisors",
            "vms",
            "tree_hypervisors",
            "tree_vms",
            "tree_switches",
            "tree_lids",
            "tree_blocks",
            "tree_packets",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(self.rows.iter().map(Self::cells));
        rows
    }

    fn figure(&self) -> Figure {
        let lines = |value: fn(&Row) -> u64| {
            let line = |model: Model| {
                let rows = self.rows.iter().filter(|row| row.model == model);
                let points = rows.map(|row| (f64::from(row.functions), value(row) as f64));
                Line::joined(model.name(), points.collect())
            };
            Model::ALL.map(line).to_vec()
        };
        let x = "virtual functions of a hypervisor";
        Figure {
            title: format!(
                "Capacity of {LIDS} LIDs, {} % of the VFs in use",
                self.population
            ),
            panels: vec![
                Panel::lines(
                    "Hypervisors",
                    x,
                    "hypervisors",
                    lines(|row| row.tree.hypervisors),
                )
                .logarithmic(),
                Panel::lines("VMs that run", x, "VMs", lines(|row| row.tree.vms)).logarithmic(),
            ],
        }
    }
}
