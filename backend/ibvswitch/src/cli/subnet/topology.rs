//! `ibvswitch topology`

use std::sync::Arc;

use clap::{Args, ValueEnum};
use vswitch::{Plan, VSwitch};

use crate::cli::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{Request, Response};
use crate::daemon::management;
use crate::status::Observer;
use config::Config;
use report::picture::{self, Theme};

/// Arguments of `topology`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ibvswitch topology
  ibvswitch topology --format svg > subnet.svg
  ibvswitch topology --format dot | dot -Tpdf > subnet.pdf
  ibvswitch topology --planned --config new.toml")]
pub(crate) struct TopologyArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Print JSON: the same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Show the subnet that the configuration describes, as the embedded subnet manager brings it up at its
    /// first start. Does not need the daemon.
    #[arg(long)]
    planned: bool,
    /// Colours of --format svg.
    #[arg(long, value_enum, default_value_t)]
    theme: Theme,
}

/// Output format of a topology.
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
    /// The output of `ibnetdiscover`.
    Ibnetdiscover,
}

pub(crate) fn run(source: SourceArgs, args: &TopologyArgs) -> Result<(), CliError> {
    if matches!(args.format, Format::Ibnetdiscover) {
        return print(netlist(source, args.planned)?);
    }
    let topology = if args.planned {
        let (config, plan, vswitch) = planned(source)?;
        let observer = Observer::new(config, plan);
        vswitch.inspect(|fabric| observer.topology(fabric, &[]))
    } else {
        let Response::Topology(topology) = ask(source, &Request::Topology {})? else {
            return Err(CliError::UnexpectedResponse);
        };
        topology
    };
    match args.format {
        _ if args.json => print_json(&topology),
        Format::Text => print(picture::text(&topology)),
        Format::Dot => print(picture::dot(&topology)),
        Format::Svg => print(picture::svg(&topology, args.theme)?),
        Format::Json | Format::Ibnetdiscover => print_json(&topology),
    }
}

fn netlist(source: SourceArgs, of_plan: bool) -> Result<Vec<u8>, CliError> {
    if of_plan {
        let (_, _, vswitch) = planned(source)?;
        return Ok(vswitch.inspect(|fabric| fabric.to_netlist()));
    }
    match ask(source, &Request::Netlist {})? {
        Response::Netlist { text } => Ok(text.into_bytes()),
        _ => Err(CliError::UnexpectedResponse),
    }
}

/// The subnet of a configuration, brought up in this process by the subnet manager itself.
fn planned(source: SourceArgs) -> Result<(Config, Plan, Arc<VSwitch>), CliError> {
    let config = source.load()?;
    for warning in &config.warnings {
        eprintln!("ibvswitch: warning: {warning}");
    }
    let (plan, vswitch) = management::planned(&config)?;
    Ok((config, plan, vswitch))
}
