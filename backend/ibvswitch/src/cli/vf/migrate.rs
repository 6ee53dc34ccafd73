//! `ibvswitch vf migrate`

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use wire::{ExtendedLid, Lid};

use crate::cli::text::number::whole;
use crate::cli::{CliError, SourceArgs, ask, print, print_json, usage};
use crate::control::{
    self, Deadlock, Migrated, MigrationRequest, MigrationsReport, MigrationsRequest, Move,
    MoveOutcome, Packets, REQUEST_MAX, Request, Response, Transition, Waited,
};
use report::table;

/// Arguments of `vf migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The VMs' addresses move: each to a free VF of the destination, preferably one with a VMM. The
VMs themselves move by QEMU's migration, before or after: see docs/users/migrate-a-vm.md.

  ibvswitch vf migrate vm1 --to hv2            one VM
  ibvswitch vf migrate vm1 vm2 --to hv3        several to one hypervisor
  ibvswitch vf migrate vm1=hv2 vm3=hv4         several to several

VMs whose moves change no common switch move at the same time. A plan has moves such as vm1=hv2, \
separated by blanks or lines; # begins a comment.")]
pub(in crate::cli) struct MigrateArgs {
    /// A VM, by the name of its VF in the configuration; after an equals sign its destination, in
    /// place of --to.
    #[arg(value_name = "VM[=HYPERVISOR]", required_unless_present = "plan")]
    vms: Vec<String>,
    /// The destination hypervisor.
    #[arg(long, value_name = "HYPERVISOR")]
    to: Option<String>,
    /// A file with further moves; - for standard input.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// The VF there, for one VM.
    #[arg(long, value_name = "VF")]
    vf: Option<String>,
    /// Method to change forwarding tables. Default: swap if all VFs have LIDs, copy if spare ones have none.
    #[arg(long, value_enum)]
    method: Option<control::Method>,
    /// Make switches drop packets to a VM before their tables are changed.
    #[arg(long)]
    drop_first: bool,
    /// Change every switch whose entries differ, which balances paths better, not the fewest switches.
    #[arg(long)]
    every_switch: bool,
    /// Reach switches by their LIDs instead of by directed routes.
    #[arg(long)]
    destination_routed: bool,
    /// Time limit for an external subnet manager to make a VM's port Active.
    #[arg(long, value_name = "SECONDS", value_parser = whole(1..=600u16))]
    wait: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, args: MigrateArgs) -> Result<(), CliError> {
    let named = args.vms.iter();
    let named = named.map(|word| parse(word, args.to.as_deref()).map_err(wrong));
    let mut moves = named.collect::<Result<Vec<Move>, CliError>>()?;
    if let Some(file) = &args.plan {
        moves.extend(plan(file, args.to.as_deref())?);
    }
    if args.vf.is_some() && moves.len() != 1 {
        let number = moves.len();
        return Err(wrong(format!(
            "--vf names the place of one VM, and {number} are to move; leave it out"
        )));
    }
    if args.plan.is_none()
        && moves.len() == 1
        && let Some(Move { vm, to }) = moves.pop()
    {
        return one(source, args, vm, to);
    }
    let number = moves.len();
    let request = Request::MigrateAll(MigrationsRequest {
        moves,
        method: args.method,
        drop_first: args.drop_first,
        every_switch: args.every_switch,
        destination_routed: args.destination_routed,
        wait_s: args.wait,
    });
    if serde_json::to_string(&request).is_ok_and(|line| line.len() >= REQUEST_MAX) {
        return Err(CliError::Failed(format!(
            "{number} moves are more than {REQUEST_MAX} bytes of names; move them in parts"
        )));
    }
    let Response::Migrations(report) = ask(source, &request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    if args.json {
        print_json(&report)?
    } else {
        print(several(&report))?
    }
    let failed = report.moves.iter();
    let failed = failed.filter(|outcome| matches!(outcome, MoveOutcome::Failed { .. }));
    match failed.count() {
        0 => Ok(()),
        failed => Err(CliError::Failed(format!(
            "{failed} of {number} VMs did not move"
        ))),
    }
}

fn wrong(message: String) -> CliError {
    usage(&["vf", "migrate"], message)
}

/// The moves in a plan: at least one.
fn plan(file: &Path, to: Option<&str>) -> Result<Vec<Move>, CliError> {
    let (name, text) = if file.as_os_str() == "-" {
        ("standard input".into(), io::read_to_string(io::stdin()))
    } else {
        (file.display().to_string(), fs::read_to_string(file))
    };
    let failed = |message: String| CliError::Failed(format!("{name}{message}"));
    let text = text.map_err(|error| {
        failed(format!(
            ": the plan cannot be read: {error}; name a readable file with --plan"
        ))
    })?;
    let mut moves = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let planned = line.split('#').next().unwrap_or_default();
        for word in planned.split_whitespace() {
            let planned = parse(word, to);
            moves.push(planned.map_err(|what| failed(format!(":{}: {what}", number + 1)))?);
        }
    }
    if moves.is_empty() {
        Err(failed(
            ": the plan has no moves; write moves such as vm1=hv2".to_owned(),
        ))
    } else {
        Ok(moves)
    }
}

fn parse(word: &str, to: Option<&str>) -> Result<Move, String> {
    let (vm, to) = match (word.split_once('='), to) {
        (Some(both), _) => both,
        (None, Some(to)) => (word, to),
        (None, None) => {
            return Err(format!(
                "`{word}` has no destination; write `{word}=HYPERVISOR`, or add --to HYPERVISOR"
            ));
        }
    };
    if vm.is_empty() || to.is_empty() {
        return Err(format!("`{word}` is no move; write VM=HYPERVISOR"));
    }
    Ok(Move {
        vm: vm.to_owned(),
        to: to.to_owned(),
    })
}

fn one(source: SourceArgs, args: MigrateArgs, vm: String, to: String) -> Result<(), CliError> {
    let request = Request::Migrate(MigrationRequest {
        vm,
        to,
        vf: args.vf,
        method: args.method,
        drop_first: args.drop_first,
        every_switch: args.every_switch,
        destination_routed: args.destination_routed,
        wait_s: args.wait,
    });
    let Response::Migrated(migrated) = ask(source, &request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    if args.json {
        print_json(&migrated)
    } else {
        print(migration(&migrated))
    }
}

/// Packets sent, and those confirmed where these are fewer.
fn count(packets: Packets) -> String {
    if packets.sent == packets.updated {
        packets.sent.to_string()
    } else {
        format!("{} ({} confirmed)", packets.sent, packets.updated)
    }
}

/// Returns the result of several moves: a table by round, the moves that failed, and possible losses of packets.
fn several(report: &MigrationsReport) -> String {
    const HEAD: [&str; 9] = [
        "ROUND",
        "VM",
        "FROM",
        "TO",
        "LID",
        "VFS",
        "DROPS",
        "VSWITCHES",
        "SWITCHES",
    ];
    let mut done: Vec<&Migrated> = Vec::new();
    let mut failed = String::new();
    for outcome in &report.moves {
        match outcome {
            MoveOutcome::Moved(migrated) => done.push(migrated),
            MoveOutcome::Failed {
                vm,
                to,
                round,
                error,
            } => {
                let round = round.map_or_else(String::new, |round| format!(", in round {round}"));
                // Writing to a string does not fail.
                let _ = writeln!(failed, "{vm} to {to}{round}: {error}");
            }
        }
    }
    done.sort_by_key(|migrated| migrated.round);
    let mut rows = vec![HEAD.map(str::to_owned)];
    let mut notes = String::new();
    let mut rounds: BTreeMap<u64, &Transition> = BTreeMap::new();
    for migrated in &done {
        let place = |place: &control::Place| format!("{} ({})", place.hypervisor, place.vf);
        let lid = of_18_bits(migrated.lid);
        let former = migrated.former_lid.map(Lid::from);
        // Where no tables were changed from here, no packets were counted.
        let count = |packets| match migrated.method {
            Some(_) => count(packets),
            None => "-".to_owned(),
        };
        rows.push([
            migrated
                .round
                .map_or_else(String::new, |round| round.to_string()),
            migrated.vm.clone(),
            place(&migrated.from),
            place(&migrated.to),
            former.map_or_else(|| lid.to_string(), |former| format!("{lid} (was {former})")),
            count(migrated.functions),
            count(migrated.drops),
            count(migrated.vswitches),
            count(migrated.switches),
        ]);
        if let Some(waited) = &migrated.waited {
            let _ = writeln!(notes, "{} waited for {}", migrated.vm, reason(waited));
        }
        if let Some(why) = &migrated.not_fewest {
            let _ = writeln!(notes, "{}: not the fewest switches: {why}", migrated.vm);
        }
        if let (Some(round), Some(transition)) = (migrated.round, &migrated.transition) {
            rounds.insert(round, transition);
        }
    }
    let sum = report.packets;
    let blank = String::new;
    rows.push([
        blank(),
        "all".to_owned(),
        blank(),
        blank(),
        blank(),
        count(sum.functions),
        count(sum.drops),
        count(sum.vswitches),
        count(sum.switches),
    ]);
    let mut text = if done.is_empty() {
        String::new()
    } else {
        table(&rows)
    };
    text.push_str(&notes);
    for (round, transition) in rounds {
        let _ = writeln!(text, "deadlock in round {round}: {}", deadlock(transition));
    }
    text.push_str(&failed);
    text
}

/// Returns the event that a move waited for.
fn reason(waited: &Waited) -> String {
    match waited {
        Waited::Switch { switch, vm } => {
            format!("switch {switch}, which the move of {vm} changes")
        }
        Waited::Place { vm } => format!("the place that {vm} had"),
        Waited::Itself => "the move of the same VM before".to_owned(),
        Waited::Turn => "an earlier request, which is carried out alone".to_owned(),
    }
}

fn of_18_bits(lid: u32) -> ExtendedLid {
    ExtendedLid::new(lid).unwrap_or(Lid::NONE.into())
}

/// Returns the result of a migration, with its number of packets.
fn migration(migrated: &Migrated) -> String {
    let Migrated { from, to, .. } = migrated;
    let former = migrated.former_lid.map(Lid::from);
    let mut text = format!(
        "{} moved from {} ({}) to {} ({})\n    LID {:#}{}, GUID {}\n    socket {}\n",
        migrated.vm,
        from.hypervisor,
        from.vf,
        to.hypervisor,
        to.vf,
        of_18_bits(migrated.lid),
        former.map_or_else(String::new, |lid| format!(
            " (was {lid:#}: peers have to connect anew)"
        )),
        migrated.guid,
        to.socket,
    );
    if let Some(took) = migrated.active_after_ms {
        let _ = writeln!(text, "    Active after {took} ms, by the subnet's manager");
    }
    if migrated.method.is_none() {
        return text;
    }
    let _ = writeln!(text, "    {:<28}sent confirmed", "packets");
    let mut line = |name: &str, packets: Packets| {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "    {name:<28}{:>4} {:>9}",
            packets.sent, packets.updated
        );
    };
    line("to the two VFs", migrated.functions);
    line("to switches, to drop first", migrated.drops);
    line("to vSwitches", migrated.vswitches);
    line("to switches", migrated.switches);
    for switch in &migrated.per_switch {
        let kind = if switch.vswitch { "vSwitch" } else { "switch" };
        line(&format!("  {kind} {}", switch.name), switch.packets);
    }
    if let Some(waited) = &migrated.waited {
        let _ = writeln!(text, "    waited for {}", reason(waited));
    }
    if let Some(why) = &migrated.not_fewest {
        let _ = writeln!(text, "    not the fewest switches: {why}");
    }
    if let Some(transition) = &migrated.transition {
        let _ = writeln!(text, "    deadlock: {}", deadlock(transition));
    }
    text
}

/// Whether packets could wait for each other for ever, and where.
fn deadlock(transition: &Transition) -> String {
    let links: Vec<String> = transition
        .circle
        .iter()
        .map(|(switch, port)| format!("{switch} port {port}"))
        .collect();
    let circle = format!(
        "lane {}: {}",
        transition.lane.unwrap_or_default(),
        links.join(", ")
    );
    match transition.deadlock {
        Deadlock::None => "none possible while tables changed".to_owned(),
        Deadlock::Lasting => {
            format!("possible from now on, on {circle}; it was not possible before")
        }
        Deadlock::Possible => {
            format!("possible while tables changed, on {circle}; --drop-first prevents it")
        }
        Deadlock::Standing => format!(
            "possible at any time with these paths, on {circle}; another sm.routing prevents it"
        ),
        Deadlock::Unknown => "not known, since the subnet changed meanwhile".to_owned(),
    }
}
