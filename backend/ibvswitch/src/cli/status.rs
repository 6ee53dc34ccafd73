//! `ibvswitch status`

use clap::Args;
use wire::Lid;

use super::{CliError, SourceArgs, ask, print, print_json};
use crate::config::ManagerPlace;
use crate::control::{Request, Response, Status};

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, args: &StatusArgs) -> Result<(), CliError> {
    let Response::Status(status) = ask(source, &Request::Status {})? else {
        return Err(CliError::UnexpectedResponse);
    };
    if args.json {
        print_json(&status)
    } else {
        print(&text(&status))
    }
}

fn text(status: &Status) -> String {
    let fabric = &status.fabric;
    let mut rows = vec![
        [
            "VF",
            "HYPERVISOR",
            "STATE",
            "LID",
            "PORT GUID",
            "DOORBELLS",
            "VM",
            "QPS",
            "SENT",
            "RECEIVED",
        ]
        .map(str::to_owned),
    ];
    rows.extend(status.vfs.iter().map(|vf| {
        [
            vf.name.clone(),
            vf.hypervisor.clone(),
            vf.state.clone(),
            vf.lid.to_string(),
            vf.port_guid.clone(),
            vf.doorbells.to_string(),
            if vf.client_connected {
                "connected"
            } else {
                "none"
            }
            .to_owned(),
            vf.objects.qp.to_string(),
            bytes(vf.counters.xmit_bytes),
            bytes(vf.counters.rcv_bytes),
        ]
    }));
    format!(
        "ibvswitch {}, process {}, up {}, sockets in {}\n\
         Subnet {}: {} switches, SM lid {:#}, {}\n\n{}",
        status.version,
        status.pid,
        duration(status.uptime_s),
        status.runtime_dir,
        fabric.subnet_prefix,
        fabric.switches,
        Lid::from(fabric.sm_lid),
        match fabric.manager {
            ManagerPlace::Embedded =>
                format!("{} sweeps, {} SMPs sent", fabric.sweeps, fabric.smps),
            ManagerPlace::External => "managed from outside".to_owned(),
        },
        table(&rows)
    )
}

/// Columns as wide as their widest cell, two spaces apart.
fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// A number of bytes with three digits or more that count.
fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(unit) = (number | 1)
        .ilog2()
        .checked_div(10)
        .filter(|&unit| unit > 0)
    else {
        return format!("{number} B");
    };
    let scaled = number as f64 / (1u64 << (10 * unit)) as f64;
    format!("{scaled:.1} {}", UNITS[unit as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_bytes() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_572_864, "1.5 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn durations() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3660, "1 h 1 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [["A", "LONG"], ["wide", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "A     LONG\nwide  x\n");
    }
}
