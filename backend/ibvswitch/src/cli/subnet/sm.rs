//! `ibvswitch sm`

use std::fmt::Write;

use clap::{Args, Subcommand};
use wire::Lid;

use crate::cli::{CliError, SourceArgs, print, print_json};
use crate::control::{Client, LidsByPaths, Request, Response, SmAction, SmStatus};

/// Queries and commands for the embedded subnet manager.
#[derive(Debug, Subcommand)]
pub(crate) enum SmCommand {
    /// Show its activity and the results of its sweeps.
    Status(SmArgs),
    /// Sweep the whole subnet now.
    Sweep(SmArgs),
    /// Read its files (partitions, GUIDs) again, and update the subnet.
    Reload(SmArgs),
}

/// Arguments of the commands.
#[derive(Debug, Args)]
pub(crate) struct SmArgs {
    /// Only the manager of this subnet, if there are several.
    #[arg(long, value_name = "NAME")]
    subnet: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(source: SourceArgs, command: SmCommand) -> Result<(), CliError> {
    let (args, action) = match command {
        SmCommand::Status(args) => (args, SmAction::Status),
        SmCommand::Sweep(args) => (args, SmAction::Sweep),
        SmCommand::Reload(args) => (args, SmAction::Reload),
    };
    let SmArgs { subnet, json } = args;
    let mut client = Client::connect(&source.control_socket()?)?;
    let response = client.ask(&Request::Sm { action, subnet })?;
    if action == SmAction::Reload
        && let Response::Status(status) = client.ask(&Request::Status {})?
    {
        for warning in &status.warnings {
            eprintln!("ibvswitch: warning: {warning}");
        }
    }
    match (response, json) {
        (Response::Sm(status), true) => print_json(&status),
        (Response::Sm(status), false) => print(text(&status)),
        (Response::Sms { managers }, true) => print_json(&managers),
        (Response::Sms { managers }, false) => {
            print(managers.iter().map(text).collect::<Vec<_>>().join("\n"))
        }
        _ => Err(CliError::UnexpectedResponse),
    }
}

fn text(status: &SmStatus) -> String {
    let of = status.subnet.as_ref();
    let mut text = format!(
        "subnet manager{}: {}, priority {}, LID {:#}, GUID {}\n",
        of.map_or(String::new(), |subnet| format!(" of {subnet}")),
        status.state,
        status.priority,
        Lid::from(status.lid),
        status.guid
    );
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "    {name}: {value}");
    };
    line("Routing", routing(status));
    if let Some(balance) = &status.balance {
        line(
            "Balance",
            format!(
                "{} paths between VMs on the busiest link, {} when they were computed; spread anew \
                 at {} %, {} times so far",
                balance.now, balance.computed, balance.threshold, balance.rebalanced
            ),
        );
    }
    if let Some(lids) = &status.lids {
        line("LIDs", lids_by_paths(lids));
    }
    if let Some(extended) = &status.extended_lids {
        let value = match &extended.lacking[..] {
            [] => format!("of {} VMs", extended.vms),
            lacking => format!("none: {} do not speak them", lacking.join(", ")),
        };
        line("LIDs of 18 bits", value);
    }
    line(
        "Sweeps",
        format!("{} full, {} light", status.sweeps, status.light_sweeps),
    );
    if let Some(seconds) = status.last_sweep_s {
        line(
            "Last full sweep",
            format!(
                "{seconds:.1} s ago: {} switches, {} adapters, {} ports Active; {} packets, {} of \
                 them to set something",
                status.switches, status.adapters, status.active, status.packets, status.sets
            ),
        );
    }
    for other in &status.others {
        line(
            "Another manager",
            format!(
                "{}, {}, priority {}",
                other.guid, other.state, other.priority
            ),
        );
    }
    for partition in &status.partitions {
        line(
            "Partition",
            format!("{} {}", partition.pkey, partition.name),
        );
    }
    for trap in &status.traps {
        line("Trap", format!("{}, {} times", trap.trap, trap.count));
    }
    for requests in &status.requests {
        line(
            "Sent",
            format!(
                "{} {}({})",
                requests.count, requests.method, requests.attribute
            ),
        );
    }
    for error in &status.errors {
        line("Error", error.clone());
    }
    text
}

fn lids_by_paths(lids: &LidsByPaths) -> String {
    let mut text = format!(
        "{} of {} ports for {} paths, by {}; {} fewer than with one for each path",
        lids.used, lids.ports, lids.paths, lids.assignment, lids.saved
    );
    // Writing to a string does not fail.
    if lids.following > 0 {
        let _ = write!(text, "; {} paths follow others", lids.following);
    }
    if lids.undecided > 0 {
        let _ = write!(text, "; fewer may do for {} ports", lids.undecided);
    }
    text
}

fn routing(status: &SmStatus) -> String {
    let lanes = match status.lanes {
        0 | 1 => String::new(),
        lanes => format!(", on {lanes} lanes"),
    };
    match &status.routed_by {
        Some(engine) if *engine != status.routing => {
            format!("{engine} in place of {}{lanes}", status.routing)
        }
        _ => format!("{}{lanes}", status.routing),
    }
}
