//! `ibvswitch topology`

use clap::{Args, ValueEnum};

use super::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{Request, Response, Topology};
use crate::management::Management;
use crate::picture::{self, Theme};
use crate::status::Observer;
use crate::topology::Plan;

/// Arguments of `topology`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ibvswitch topology
  ibvswitch topology --format svg > subnet.svg
  ibvswitch topology --format dot | dot -Tpdf > subnet.pdf
  ibvswitch topology --planned --config new.toml")]
pub(super) struct TopologyArgs {
    /// How to show it.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Print JSON: the same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Show what the configuration would give, as the embedded subnet manager brings it up for the
    /// first time. Does not need the daemon.
    #[arg(long)]
    planned: bool,
    /// Colours of --format svg.
    #[arg(long, value_enum, default_value_t)]
    theme: Theme,
}

/// What a topology is shown as.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Format {
    /// A tree of text.
    #[default]
    Text,
    /// A graph for Graphviz.
    Dot,
    /// A drawing.
    Svg,
    /// Data.
    Json,
}

pub(super) fn run(source: SourceArgs, args: &TopologyArgs) -> Result<(), CliError> {
    let topology = if args.planned {
        planned(source)?
    } else {
        let Response::Topology(topology) = ask(source, &Request::Topology {})? else {
            return Err(CliError::UnexpectedResponse);
        };
        topology
    };
    match args.format {
        _ if args.json => print_json(&topology),
        Format::Text => print(&picture::text(&topology)),
        Format::Dot => print(&picture::dot(&topology)),
        Format::Svg => print(&picture::svg(&topology, args.theme)),
        Format::Json => print_json(&topology),
    }
}

/// The subnet of a configuration, brought up in this process by the subnet manager itself.
fn planned(source: SourceArgs) -> Result<Topology, CliError> {
    let config = source.load()?;
    let plan = Plan::new(&config);
    let management = Management::new(&config, &plan)
        .map_err(|error| CliError::Planned(format!("the subnet cannot be set up: {error}")))?;
    management.bring_up();
    let observer = Observer::new(config, plan);
    Ok(management.with(|state| observer.topology(&state.fabric, &[])))
}
