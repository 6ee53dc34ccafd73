//! `ibvswitch counters`

use std::fmt::Write;

use clap::Args;
use wire::Lid;

use crate::cli::text::bytes::bytes;
use crate::cli::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{CountersReport, NodeCounters, PortCounts, Request, Response};
use report::table;

/// Arguments of `counters`.
#[derive(Debug, Args)]
pub(crate) struct CountersArgs {
    /// Show only this node, by name or GUID, with its errors and management packets.
    node: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(source: SourceArgs, args: &CountersArgs) -> Result<(), CliError> {
    let request = Request::Counters {
        node: args.node.clone(),
    };
    let Response::Counters(report) = ask(source, &request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    if args.json {
        return print_json(&report);
    }
    let mut text = ports(&report);
    if args.node.is_some() {
        for node in &report.nodes {
            text.push('\n');
            text.push_str(&details(node));
        }
    }
    print(&text)
}

fn ports(report: &CountersReport) -> String {
    let mut rows = vec![
        [
            "PORT", "TO", "STATE", "SENT", "PACKETS", "RECEIVED", "PACKETS", "ERRORS",
        ]
        .map(str::to_owned),
    ];
    for node in &report.nodes {
        rows.extend(node.ports.iter().map(|port| {
            [
                format!("{}:{}", node.name, port.port),
                port.peer.clone(),
                port.state.clone(),
                bytes(port.xmit_bytes),
                port.xmit_packets.to_string(),
                bytes(port.rcv_bytes),
                port.rcv_packets.to_string(),
                errors(port),
            ]
        }));
    }
    table(&rows)
}

fn errors(port: &PortCounts) -> String {
    let named = port.errors.iter();
    let named: Vec<String> = named
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if named.is_empty() {
        "-".to_owned()
    } else {
        named.join(", ")
    }
}

fn details(node: &NodeCounters) -> String {
    let mut text = format!("{} {}\n", node.name, node.guid);
    let mut line = |name: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "    {name}: {value}");
    };
    if let Some(lid) = node.lid {
        line("LID", format!("{:#}", Lid::from(lid)));
    }
    if let Some(tables) = &node.forwarding {
        line(
            "Forwarding",
            format!(
                "{} LIDs, the highest {}, blocks of 64: {}",
                tables.lids, tables.top, tables.blocks
            ),
        );
    }
    line("SMPs forwarded", node.smps.forwarded.to_string());
    line("SMPs dropped", node.smps.dropped.to_string());
    for (packet, count) in &node.smps.answered {
        line(packet, count.to_string());
    }
    text
}
