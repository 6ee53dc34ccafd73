//! `ibvswitch link`

use std::str::FromStr;

use clap::{Args, Subcommand};

use crate::cli::text::fraction::{microseconds, scaled};
use crate::cli::text::number::at_least;
use crate::cli::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{LinkAction, LinkReport, LinkRequest, Request, Response, StallDirection};

/// Actions on a link.
#[derive(Debug, Subcommand)]
pub(crate) enum LinkCommand {
    /// Show the state of a link.
    Show(LinkArgs),
    /// Pull a cable out: the link goes down, at both ends.
    Down(LinkArgs),
    /// Put a cable back in.
    Up(LinkArgs),
    /// Make a link lose packets at random.
    Drop(DropArgs),
    /// Make a link delay packets.
    Delay(DelayArgs),
    /// Let no flow-control credits arrive: data is stuck, subnet management passes.
    Stall(StallArgs),
    /// Make packets overrun the receiver's buffers.
    Overrun(OverrunArgs),
    /// Put the cable back in, and end all faults.
    Restore(LinkArgs),
}

/// The link.
#[derive(Debug, Args)]
pub(crate) struct LinkArgs {
    /// The port at either end: the node's name, or its GUID, and the number of the port.
    #[arg(value_name = "NODE:PORT")]
    port: Port,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `link drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Percentage of packets, each way; 0 for none.
    #[arg(value_name = "PERCENT", value_parser = per_million)]
    share: u32,
    /// Seed of the random numbers that choose the packets.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = at_least(0u64))]
    seed: u64,
}

/// Arguments of `link delay`.
#[derive(Debug, Args)]
pub(crate) struct DelayArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Delay each way, in milliseconds; 0 for none.
    #[arg(value_name = "MS", value_parser = microseconds)]
    delay: u64,
}

/// Arguments of `link stall`.
#[derive(Debug, Args)]
pub(crate) struct StallArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// Stuck packets: those that leave by this port, those that arrive by it, both, or none.
    #[arg(value_name = "DIRECTION", default_value = "both")]
    direction: StallDirection,
}

/// Arguments of `link overrun`.
#[derive(Debug, Args)]
pub(crate) struct OverrunArgs {
    #[command(flatten)]
    link: LinkArgs,
    /// One packet of this many, each way; 0 for none.
    #[arg(value_name = "EVERY", value_parser = at_least(0u32))]
    every: u32,
}

/// A port, as it is written.
#[derive(Debug, Clone)]
struct Port {
    node: String,
    port: u8,
}

impl FromStr for Port {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.rsplit_once(':').and_then(|(node, port)| {
            let port = port.parse().ok().filter(|&port| port > 0)?;
            Some(Self {
                node: node.to_owned(),
                port,
            })
        });
        parsed.ok_or("write a node and a port from 1 on, such as sw1:2")
    }
}

fn per_million(text: &str) -> Result<u32, &'static str> {
    match scaled(text, 10_000.0, 100.0) {
        Some(share) => Ok(share as u32),
        None => Err("give 0 to 100"),
    }
}

pub(crate) fn run(source: SourceArgs, command: LinkCommand) -> Result<(), CliError> {
    let (link, action) = match command {
        LinkCommand::Show(link) => (link, LinkAction::Show),
        LinkCommand::Down(link) => (link, LinkAction::Down),
        LinkCommand::Up(link) => (link, LinkAction::Up),
        LinkCommand::Drop(args) => {
            let (per_million, seed) = (args.share, args.seed);
            (args.link, LinkAction::Drop { per_million, seed })
        }
        LinkCommand::Delay(args) => {
            let microseconds = args.delay;
            (args.link, LinkAction::Delay { microseconds })
        }
        LinkCommand::Stall(args) => {
            let direction = args.direction;
            (args.link, LinkAction::Stall { direction })
        }
        LinkCommand::Overrun(args) => {
            let every = args.every;
            (args.link, LinkAction::Overrun { every })
        }
        LinkCommand::Restore(link) => (link, LinkAction::Restore),
    };
    let Port { node, port } = link.port;
    let request = Request::Link(LinkRequest { node, port, action });
    let Response::Link(report) = ask(source, &request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    if link.json {
        print_json(&report)
    } else {
        print(text(&report))
    }
}

fn text(report: &LinkReport) -> String {
    let LinkReport { port, peer, .. } = report;
    let mut text = format!(
        "{}:{} - {}:{}: {}, {}",
        port.node, port.port, peer.node, peer.port, report.state, report.physical_state
    );
    if !report.cable {
        text += ", cable out";
    }
    if report.lost_per_million > 0 {
        let percent = f64::from(report.lost_per_million) / 10_000.0;
        text += &format!(", loses {percent} % of packets");
    }
    if report.delay_us > 0 {
        let ms = report.delay_us as f64 / 1000.0;
        text += &format!(", delays them by {ms} ms");
    }
    if report.overrun_every > 0 {
        text += &format!(", overruns at one packet of {}", report.overrun_every);
    }
    text += match report.stalled {
        StallDirection::Off => "",
        StallDirection::Out => ", stalled outwards",
        StallDirection::In => ", stalled inwards",
        StallDirection::Both => ", stalled",
    };
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        let port: Port = "subnet manager:1".parse().expect("is right");
        assert_eq!((port.node.as_str(), port.port), ("subnet manager", 1));
        let port: Port = "0002:c903:0000:0101:12".parse().expect("is right");
        assert_eq!(port.node, "0002:c903:0000:0101");
        for bad in ["sw1", "sw1:", "sw1:0", "sw1:256", "sw1:x", ""] {
            assert!(bad.parse::<Port>().is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers() {
        assert_eq!(per_million("0.01"), Ok(100));
        assert_eq!(per_million("100"), Ok(1_000_000));
        assert_eq!(microseconds("2.5"), Ok(2500));
        for bad in ["-1", "101", "NaN", "inf", "x", ""] {
            assert!(per_million(bad).is_err(), "{bad}");
        }
        assert!(microseconds("10001").is_err());
    }
}
