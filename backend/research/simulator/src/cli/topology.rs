//! Topology of an experiment.

use std::io::{self, Read};
use std::path::Path;

use crate::{Shape, without_aggregation_nodes};
use clap::Args;
use fabric::{Listing, NETLIST_MAX, NetlistError, Topology};
use topologies::{Hosts, TooManyBroken};

use super::CliError;

/// Name of standard input.
const STANDARD_INPUT: &str = "-";

/// The topology.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct TopologyArgs {
    /// A generator such as "XGFT(2;18,18;18,1)", a file in the format of ibnetdiscover and ibsim, or - for
    /// standard input. LIDs and link speeds of a file do not count.
    #[arg(long, short, value_name = "GENERATOR|FILE")]
    topology: Option<String>,
    /// The same without the option.
    #[arg(value_name = "GENERATOR|FILE")]
    positional: Option<String>,
}

/// The nodes and cables, with adapters for hosts.
pub(super) struct Loaded {
    pub(super) topology: Topology,
    /// Remarks on a file that is not taken as it is.
    pub(super) remarks: Vec<String>,
}

impl Loaded {
    /// Breaks a percentage of the cables between switches.
    pub(super) fn break_cables(&mut self, percent: u8, seed: u64) -> Result<(), TooManyBroken> {
        let all = topologies::trunks(&self.topology);
        let broken = (all * usize::from(percent)).div_ceil(100);
        self.topology = topologies::break_cables(std::mem::take(&mut self.topology), broken, seed)?;
        self.remarks.push(format!(
            "{broken} of {all} cables between switches are broken."
        ));
        Ok(())
    }
}

impl TopologyArgs {
    /// The generator or file, as typed.
    pub(super) fn name(&self) -> &str {
        let typed = self.topology.as_deref().or(self.positional.as_deref());
        typed.unwrap_or_default()
    }

    pub(super) fn load(&self, seed: u64) -> Result<Loaded, CliError> {
        let text = self.name();
        let wrong = |error: &dyn std::fmt::Display| CliError::Failed(format!("{text}: {error}"));
        if Shape::is_meant_by(text) {
            let shape: Shape = text.parse().map_err(|error| wrong(&error))?;
            let topology = shape.topology(Hosts::Adapters, seed);
            return Ok(Loaded {
                topology: topology.map_err(|error| wrong(&error))?,
                remarks: Vec::new(),
            });
        }
        let listing = listing(text).map_err(|error| {
            CliError::Failed(match error {
                NetlistError::Unreadable(error) => format!(
                    "{text} cannot be read: {error}; give a file as ibnetdiscover writes it, or a \
                     generator such as \"XGFT(2;18,18;18,1)\""
                ),
                error => format!("{text}: {error}"),
            })
        })?;
        for notice in &listing.notices {
            eprintln!("ibvswitch simulate: warning: {text}: {notice}");
        }
        let (topology, left_out) = without_aggregation_nodes(&listing.topology);
        let mut remarks = vec![
            "LIDs and link speeds of the file do not count: LIDs are given anew, by rising GUID, and all cables \
             are alike."
                .to_owned(),
        ];
        if left_out > 0 {
            remarks.push(format!(
                "Left out, since they send no traffic of hosts: {left_out} aggregation nodes (SHARP)."
            ));
        }
        Ok(Loaded { topology, remarks })
    }
}

/// Reads a file or standard input.
fn listing(name: &str) -> Result<Listing, NetlistError> {
    if name != STANDARD_INPUT {
        return Listing::open(Path::new(name));
    }
    let mut bytes = Vec::new();
    let input = io::stdin().lock().take(NETLIST_MAX as u64 + 1);
    { input }
        .read_to_end(&mut bytes)
        .map_err(|error| NetlistError::Unreadable(error.to_string()))?;
    Listing::read(&bytes)
}
