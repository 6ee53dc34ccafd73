//! Topology of an experiment.

use std::path::Path;

use crate::Shape;
use clap::Args;
use fabric::{Listing, NetlistError, Topology};
use topologies::Hosts;

use super::CliError;

/// The topology.
#[derive(Debug, Args)]
pub(super) struct TopologyArgs {
    /// A generator such as "XGFT(2;18,18;18,1)", or a file in the format of ibnetdiscover and ibsim.
    #[arg(long, short, value_name = "GENERATOR|FILE")]
    pub(super) topology: String,
}

impl TopologyArgs {
    /// The nodes and cables, with adapters for hosts.
    pub(super) fn load(&self, seed: u64) -> Result<Topology, CliError> {
        let text = &self.topology;
        let wrong = |error: &dyn std::fmt::Display| CliError::Failed(format!("{text}: {error}"));
        if Shape::is_meant_by(text) {
            let shape: Shape = text.parse().map_err(|error| wrong(&error))?;
            let topology = shape.topology(Hosts::Adapters, seed);
            return topology.map_err(|error| wrong(&error));
        }
        let listing = Listing::open(Path::new(text)).map_err(|error| {
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
        Ok(listing.topology)
    }
}
