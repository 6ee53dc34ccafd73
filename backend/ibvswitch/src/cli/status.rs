//! `ibvswitch status`

use clap::Args;
use wire::Lid;

use super::text::bytes::bytes;
use super::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{
    Adapter, ManagerPlace, PassedVf, PinSuggestion, Placement, Request, Response, Status,
};
use report::table;

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
        print(text(&status))
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
            client(vf.client_connected, vf.memory_unshared),
            vf.objects.qp.to_string(),
            bytes(vf.counters.xmit_bytes),
            bytes(vf.counters.rcv_bytes),
        ]
    }));
    let subnet = |name: &str, prefix: &str, (switches, lid, sweeps, smps): (u32, u16, u64, u64)| {
        let done = match fabric.manager {
            ManagerPlace::Embedded => format!("{sweeps} sweeps, {smps} SMPs sent"),
            ManagerPlace::External => "managed from outside".to_owned(),
        };
        let lid = Lid::from(lid);
        format!("Subnet {name}{prefix}: {switches} switches, SM lid {lid:#}, {done}\n")
    };
    let subnets: String = match &fabric.subnets[..] {
        [] => {
            let counts = (fabric.switches, fabric.sm_lid, fabric.sweeps, fabric.smps);
            subnet("", &fabric.subnet_prefix, counts)
        }
        several => several
            .iter()
            .map(|it| {
                let counts = (it.switches, it.sm_lid, it.sweeps, it.smps);
                subnet(&format!("{} ", it.name), &it.prefix, counts)
            })
            .collect(),
    };
    let placement = status.placement.as_ref();
    let placement = placement.map_or_else(String::new, |placement| {
        format!("\n{}", engines(placement, status.uptime_s))
    });
    let adapters = adapter_ports(&status.adapters);
    let passed = passed_through(&status.passthrough);
    let warnings = status.warnings.iter();
    let warnings: String = warnings.map(|it| format!("Warning: {it}\n")).collect();
    format!(
        "ibvswitch {}, process {}, up {}, sockets in {}\nSandbox: {}\n{subnets}{warnings}\n{}{adapters}{passed}{placement}",
        status.version,
        status.pid,
        duration(status.uptime_s),
        status.runtime_dir,
        status.sandbox,
        table(&rows)
    )
}

fn client(connected: bool, unshared: bool) -> String {
    match (connected, unshared) {
        (true, true) => "memory not shared",
        (true, false) => "connected",
        (false, _) => "none",
    }
    .to_owned()
}

/// The ports of adapters with several, and the others that are not Active.
fn adapter_ports(adapters: &[Adapter]) -> String {
    const SHOWN: usize = 32;
    let each = adapters.iter().flat_map(|adapter| {
        let ports = adapter.ports.iter();
        ports
            .filter(|port| adapter.ports.len() > 1 || port.state != "Active")
            .map(move |port| (adapter, port))
    });
    let rows = each.map(|(adapter, port)| {
        [
            format!("{}:{}", adapter.name, port.port),
            port.state.clone(),
            port.lid.unwrap_or_default().to_string(),
            port.guid.clone(),
            port.rate.as_deref().unwrap_or("-").to_owned(),
            port.cable.as_deref().unwrap_or("none").to_owned(),
        ]
    });
    let head = ["ADAPTER", "STATE", "LID", "PORT GUID", "RATE", "CABLE"].map(str::to_owned);
    let mut rows: Vec<_> = [head].into_iter().chain(rows).collect();
    let more = match rows.len().saturating_sub(SHOWN + 1) {
        0 => String::new(),
        more => format!("and {more} more; `ibvswitch status --json` has all\n"),
    };
    rows.truncate(SHOWN + 1);
    match rows.len() {
        1 => String::new(),
        _ => format!("\n{}{more}", table(&rows)),
    }
}

/// VFs that are passed through, where there are any.
fn passed_through(vfs: &[PassedVf]) -> String {
    if vfs.is_empty() {
        return String::new();
    }
    let mut rows = vec![
        [
            "PASSED THROUGH",
            "HYPERVISOR",
            "STATE",
            "LID",
            "PORT GUID",
            "VM",
            "QPS",
            "COMMANDS",
            "ISOLATION",
            "TO",
        ]
        .map(str::to_owned),
    ];
    rows.extend(vfs.iter().map(|vf| {
        let commands = vf.all_commands();
        [
            vf.name.clone(),
            vf.hypervisor.clone(),
            if vf.alive { vf.state.as_str() } else { "lost" }.to_owned(),
            vf.lid.to_string(),
            vf.port_guid.clone(),
            client(vf.client_connected, vf.memory_unshared),
            vf.objects.qp.to_string(),
            (commands.answered + commands.refused + commands.executed + commands.failed)
                .to_string(),
            vf.isolation.clone(),
            vf.device.clone(),
        ]
    }));
    format!("\n{}", table(&rows))
}

/// The engines, and which VFs would do better in another one.
fn engines(placement: &Placement, uptime_s: u64) -> String {
    let mut rows = vec![["ENGINE", "BUSY", "VFS"].map(str::to_owned)];
    rows.extend(
        placement
            .engines
            .iter()
            .enumerate()
            .map(|(number, engine)| {
                let share = engine.busy_ms as f64 / 10.0 / uptime_s.max(1) as f64;
                [
                    number.to_string(),
                    format!("{:.0} %", share.min(100.0)),
                    engine.vfs.join(" "),
                ]
            }),
    );
    let advice = placement.suggestions.iter().map(|suggestion| {
        let PinSuggestion {
            vf,
            engine,
            crossing_bytes,
            bytes: all,
        } = suggestion;
        format!(
            "{vf} exchanges {} of {} with VFs of engine {engine}: `ibvswitch vf pin {vf} --engine {engine}`\n",
            bytes(*crossing_bytes),
            bytes(*all),
        )
    });
    table(&rows) + &advice.collect::<String>()
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
