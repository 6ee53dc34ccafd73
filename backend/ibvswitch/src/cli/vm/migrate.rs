//! `ibvswitch vm migrate`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::error::ErrorKind;
use serde::Serialize;
use serde_json::json;

use super::settle::{Guard, go_on_at_source};
use crate::cli::text::number::whole;
use crate::cli::{CliError, SourceArgs, print, print_json};
use crate::control::{
    Client, ClientError, LiveDone, LiveMove, LivePlaces, LiveRequest, LiveSaved, LiveStep,
    Migrated, Place, Request, Response,
};
use crate::monitor::pci::{Location, State, flush};
use crate::monitor::{MonitorError, Qmp, Qtest};
use crate::qemu::Monitor;

/// Time that QEMU may take for the rest of the memory when the VM is paused.
const SWITCHOVER: Duration = Duration::from_secs(60);

/// Arguments of `vm migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Start the VM's QEMU with the arguments of `vf qemu-args VF --migratable`, and another QEMU, with
the same machine, at a free VF of the destination, with those of `vf qemu-args VF --receive`:

  ibvswitch vf qemu-args hv2-spare1 --receive --memory 4G
  ibvswitch vm migrate vm1 --to hv2

If a VM has several devices, such as a VF and a port, name all, the one with these arguments first:

  ibvswitch vm migrate vm1 cloud1 --to hv2

If anything fails before the device goes on at the destination, the VM stays where it was. The VM's \
former QEMU ends when the VM runs at its destination.")]
pub(in crate::cli) struct MigrateArgs {
    /// The VM: the names of its VF and its ports in the configuration.
    #[arg(required = true, value_name = "VM")]
    vms: Vec<String>,
    /// The destination hypervisor.
    #[arg(long, value_name = "HYPERVISOR")]
    to: String,
    /// The VF or port there, for each that is named, in this order; by default a free one with a
    /// waiting QEMU.
    #[arg(long = "vf", value_name = "VF")]
    vfs: Vec<String>,
    /// Directory of the sockets of both QEMUs, as of `vf qemu-args --sockets`.
    #[arg(long, value_name = "DIR")]
    sockets: Option<PathBuf>,
    /// Socket of the monitor of the VM's QEMU.
    #[arg(long, value_name = "SOCKET")]
    from_qmp: Option<PathBuf>,
    /// Socket of the monitor of the QEMU that receives it.
    #[arg(long, value_name = "SOCKET")]
    to_qmp: Option<PathBuf>,
    /// Socket of the test protocol of the QEMU that receives it.
    #[arg(long, value_name = "SOCKET")]
    to_qtest: Option<PathBuf>,
    /// Time limit for copying the VM's memory while the VM runs.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = whole(1..=86400u32))]
    wait: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Result of a migration, with the time of each step.
#[derive(Debug, Serialize)]
struct Report {
    /// Moves of the VM's VFs and ports.
    moves: Vec<MoveReport>,
    /// Milliseconds.
    steps: Vec<StepReport>,
    /// Milliseconds for which the VM did not run.
    pause_ms: f64,
    /// Milliseconds of the pause that QEMU did not need itself.
    device_ms: f64,
    /// Part of the HCA, if the VM has one.
    #[serde(flatten)]
    hca: Option<HcaReport>,
    /// Subnet management packets for the addresses.
    packets: u64,
}

#[derive(Debug, Serialize)]
struct MoveReport {
    vm: String,
    from: Place,
    to: Place,
    lid: u32,
    guid: String,
}

#[derive(Debug, Serialize)]
struct HcaReport {
    image_bytes: u64,
    queue_pairs: u64,
    pages: u64,
}

#[derive(Debug, Serialize)]
struct StepReport {
    step: &'static str,
    ms: f64,
}

/// Steps and how long they took.
#[derive(Debug, Default)]
struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    fn time<T, E>(
        &mut self,
        step: &'static str,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let done = act();
        self.0.push((step, begun.elapsed()));
        done
    }

    fn of(&self, names: &[&str]) -> Duration {
        let named = self.0.iter().filter(|(step, _)| names.contains(step));
        named.map(|(_, took)| *took).sum()
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn failed(error: MonitorError) -> CliError {
    CliError::Failed(error.to_string())
}

/// Sockets of the two QEMUs.
struct Sockets {
    from_qmp: PathBuf,
    to_qmp: PathBuf,
    to_qtest: PathBuf,
    incoming: PathBuf,
}

impl Sockets {
    fn new(args: &MigrateArgs, runtime_dir: &Path, first: &LivePlaces) -> Self {
        let directory = args.sockets.as_deref().unwrap_or(runtime_dir);
        let source = Monitor::new(directory, &first.from.vf);
        let destination = Monitor::new(directory, &first.to.vf);
        let or = |named: &Option<PathBuf>, usual: PathBuf| named.clone().unwrap_or(usual);
        Self {
            from_qmp: or(&args.from_qmp, source.qmp),
            to_qmp: or(&args.to_qmp, destination.qmp),
            to_qtest: or(&args.to_qtest, destination.qtest),
            incoming: destination.incoming,
        }
    }
}

/// The two QEMUs.
struct Machines {
    source: Qmp,
    destination: Qmp,
    /// Test protocol of the QEMU at the destination, if the VM has an HCA, of which QEMU moves nothing.
    qtest: Option<Qtest>,
    incoming: PathBuf,
}

impl Machines {
    /// Finds both, and that they can do it.
    fn connect(sockets: &Sockets, has_hca: bool) -> Result<Self, MonitorError> {
        let mut machines = Self {
            source: Qmp::connect(&sockets.from_qmp)?,
            destination: Qmp::connect(&sockets.to_qmp)?,
            qtest: has_hca
                .then(|| Qtest::connect(&sockets.to_qtest))
                .transpose()?,
            incoming: sockets.incoming.clone(),
        };
        for (qmp, wanted) in [
            (&mut machines.source, "running"),
            (&mut machines.destination, "inmigrate"),
        ] {
            let status = qmp.status()?;
            if status != wanted {
                return Err(qmp.refused(format!("has to be in state `{wanted}`"), status));
            }
        }
        if has_hca {
            Location::of_hca(&mut machines.source)?;
            Location::of_hca(&mut machines.destination)?;
        }
        Ok(machines)
    }

    /// Begins to copy memory.
    fn begin(&mut self) -> Result<(), MonitorError> {
        let events = json!({ "capability": "events", "state": true });
        let pause = json!({ "capability": "pause-before-switchover", "state": true });
        let set = "migrate-set-capabilities";
        self.destination
            .execute(set, json!({ "capabilities": [events] }))?;
        self.source
            .execute(set, json!({ "capabilities": [events, pause] }))?;
        let uri = format!("unix:{}", self.incoming.display());
        self.destination
            .execute("migrate-incoming", json!({ "uri": uri }))?;
        self.source.execute("migrate", json!({ "uri": uri }))?;
        Ok(())
    }

    /// Waits until memory is copied but for what changes too fast, and the VM is paused.
    fn precopy(&mut self, patience: Duration) -> Result<(), MonitorError> {
        let states = ["pre-switchover", "failed", "cancelled", "completed"];
        let deadline = Instant::now() + patience;
        let state = self.source.await_migration(deadline, &states)?;
        self.expected(state, "pre-switchover")
    }

    fn expected(&mut self, state: String, wanted: &str) -> Result<(), MonitorError> {
        if state == wanted {
            return Ok(());
        }
        let info = self.source.execute("query-migrate", json!({}))?;
        let why = info["error-desc"].as_str().map_or(state, str::to_owned);
        Err(self.source.refused(
            "did not migrate; see the output of the QEMU at the destination",
            why,
        ))
    }

    fn switch_over(&mut self) -> Result<(), MonitorError> {
        let state = json!({ "state": "pre-switchover" });
        self.source.execute("migrate-continue", state).map(drop)
    }

    /// Waits until all of the VM but its device is at the destination.
    fn arrive(&mut self) -> Result<(), MonitorError> {
        let (states, deadline) = (
            ["completed", "failed", "cancelled"],
            Instant::now() + SWITCHOVER,
        );
        let state = self.source.await_migration(deadline, &states)?;
        self.expected(state, "completed")?;
        let state = self.destination.await_migration(deadline, &states)?;
        self.expected(state, "completed")
    }

    fn save_pci(&mut self, config: Vec<u32>) -> Result<(Location, State), MonitorError> {
        let location = Location::of_hca(&mut self.source)?;
        Ok((location, State::save(&mut self.source, config)?))
    }

    fn restore_pci(&mut self, saved: &(Location, State)) -> Result<(), MonitorError> {
        let Some(qtest) = &mut self.qtest else {
            return Ok(());
        };
        let location = Location::of_hca(&mut self.destination)?;
        if location != saved.0 {
            let answer = format!("at {location}, in place of {}", saved.0);
            return Err(self
                .destination
                .refused("has the HCA at another PCI address", answer));
        }
        saved.1.restore(qtest, location)
    }
}

/// The daemon's part.
struct Devices(Client);

impl Devices {
    fn step(&mut self, step: LiveStep) -> Result<LiveDone, CliError> {
        match self.0.ask(&Request::LiveStep { step })? {
            Response::Live(done) => Ok(done),
            _ => Err(CliError::UnexpectedResponse),
        }
    }

    fn save(&mut self) -> Result<LiveSaved, CliError> {
        match self.step(LiveStep::Save)? {
            LiveDone::Saved(saved) => Ok(saved),
            _ => Err(CliError::UnexpectedResponse),
        }
    }

    fn move_addresses(&mut self) -> Result<Vec<Migrated>, CliError> {
        match self.step(LiveStep::Move)? {
            LiveDone::Moved { moves } => Ok(moves),
            _ => Err(CliError::UnexpectedResponse),
        }
    }
}

pub(super) fn run(source: SourceArgs, args: MigrateArgs) -> Result<(), CliError> {
    let control = source.control_socket()?;
    let mut client = Client::connect(&control)?;
    let mut vfs = args.vfs.iter().cloned();
    let moves = args.vms.iter().map(|vm| LiveMove {
        vm: vm.clone(),
        vf: vfs.next(),
    });
    let moves: Vec<LiveMove> = moves.collect();
    if vfs.next().is_some() {
        let message = "there are more --vf than VFs and ports to move; name each once";
        let error = clap::Error::raw(ErrorKind::TooManyValues, format!("{message}\n"));
        return Err(CliError::Usage(error));
    }
    let to = args.to.clone();
    let request = Request::Live(LiveRequest { moves, to });
    let Response::Live(LiveDone::Begun { moves, has_hca }) = client.ask(&request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    let Some(first) = moves.first() else {
        return Err(CliError::UnexpectedResponse);
    };
    let LivePlaces { vm, from, .. } = first;
    let sockets = Sockets::new(&args, control.parent().unwrap_or(&control), first);
    let mut machines = Machines::connect(&sockets, has_hca).map_err(failed)?;
    let (qmp, to_qmp) = (&sockets.from_qmp, &sockets.to_qmp);
    let guard = Guard::start(&control, vm, &from.vf, qmp, to_qmp)?;
    let moved = migrate(&mut machines, Devices(client), has_hca, &args);
    let (steps, saved, migrated) = match moved {
        Ok(done) => done,
        Err(error) => {
            let stays = undo(&control, vm, &mut machines);
            guard.dismiss();
            let at = match stays {
                Ok(()) => format!("{vm} runs on at {}", from.hypervisor),
                Err(why) => format!("{vm} could not be continued: {why}"),
            };
            return Err(CliError::Failed(format!("{error}; {at}")));
        }
    };
    // There is no way back; the VM that is sent on its way twice would be two.
    let went_on = machines.destination.execute("cont", json!({}));
    let _ = machines.source.execute("quit", json!({}));
    guard.dismiss();
    went_on.map_err(failed)?;
    let report = report(moves, &steps, saved, &migrated);
    if args.json {
        print_json(&report)
    } else {
        print(text(&report))
    }
}

/// Everything up to the point of no return, and that.
fn migrate(
    machines: &mut Machines,
    mut devices: Devices,
    has_hca: bool,
    args: &MigrateArgs,
) -> Result<(Steps, Option<LiveSaved>, Vec<Migrated>), CliError> {
    let mut steps = Steps::default();
    let patience = Duration::from_secs(args.wait.into());
    steps
        .time("precopy", || {
            machines.begin()?;
            machines.precopy(patience)
        })
        .map_err(failed)?;
    // The rings of ports have stopped with the VM.
    let mut hca = None;
    if has_hca {
        steps
            .time("flush", || flush(&mut machines.source))
            .map_err(failed)?;
        steps.time("stop", || devices.step(LiveStep::Stop))?;
        let saved = steps.time("state", || devices.save())?;
        let pci = steps.time("read PCI", || machines.save_pci(saved.config.clone()));
        hca = Some((saved, pci.map_err(failed)?));
    }
    machines.switch_over().map_err(failed)?;
    // While QEMU copies the rest.
    let migrated = steps.time("addresses", || devices.move_addresses())?;
    steps.time("memory", || machines.arrive()).map_err(failed)?;
    if let Some((_, pci)) = &hca {
        steps
            .time("write PCI", || machines.restore_pci(pci))
            .map_err(failed)?;
        steps.time("restore", || devices.step(LiveStep::Restore))?;
    }
    steps.time("resume", || devices.step(LiveStep::Resume))?;
    Ok((steps, hca.map(|(saved, _)| saved), migrated))
}

/// The VM goes on where it was. The devices' part is undone since their connection has ended.
fn undo(control: &Path, vm: &str, machines: &mut Machines) -> Result<(), CliError> {
    let _ = machines.destination.execute("quit", json!({}));
    let vm = vm.to_owned();
    let settled = Client::connect(control).and_then(|mut it| it.ask(&Request::LiveSettle { vm }));
    match settled {
        // A daemon that is dead has nothing to undo, and who takes over knows nothing of the move.
        Ok(_) | Err(ClientError::NotRunning { .. } | ClientError::Broken { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    go_on_at_source(&mut machines.source).map_err(failed)
}

fn report(
    moves: Vec<LivePlaces>,
    steps: &Steps,
    saved: Option<LiveSaved>,
    migrated: &[Migrated],
) -> Report {
    const DEVICE: [&str; 8] = [
        "flush",
        "stop",
        "state",
        "read PCI",
        "addresses",
        "write PCI",
        "restore",
        "resume",
    ];
    let device = steps.of(&DEVICE);
    let packets = migrated.iter().flat_map(|moved| {
        let Migrated {
            functions,
            drops,
            vswitches,
            switches,
            ..
        } = moved;
        [functions, drops, vswitches, switches].map(|packets| packets.sent)
    });
    let moves = moves
        .into_iter()
        .zip(migrated)
        .map(|(places, moved)| MoveReport {
            vm: places.vm,
            from: places.from,
            to: places.to,
            lid: moved.lid,
            guid: moved.guid.clone(),
        });
    Report {
        moves: moves.collect(),
        steps: { steps.0.iter() }
            .map(|&(step, took)| StepReport { step, ms: ms(took) })
            .collect(),
        pause_ms: ms(device + steps.of(&["memory"])),
        device_ms: ms(device),
        hca: saved.map(|saved| HcaReport {
            image_bytes: saved.image_bytes,
            queue_pairs: saved.queue_pairs,
            pages: saved.pages,
        }),
        packets: packets.sum(),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for MoveReport { vm, from, to, .. } in &report.moves {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{vm} runs at {} ({}), and no longer at {} ({})",
            to.hypervisor, to.vf, from.hypervisor, from.vf
        );
    }
    let hca = report.hca.as_ref();
    for StepReport { step, ms } in &report.steps {
        let what = match *step {
            "precopy" => "memory was copied while the VM ran".to_owned(),
            "state" => hca.map_or_else(String::new, |hca| {
                let HcaReport {
                    image_bytes,
                    queue_pairs,
                    ..
                } = hca;
                format!("an image of {image_bytes} bytes, with {queue_pairs} queue pairs")
            }),
            "addresses" => format!("LID, GUID and P_Keys, by {} packets", report.packets),
            "restore" => hca.map_or_else(String::new, |hca| {
                format!("{} pages that the device had written", hca.pages)
            }),
            _ => String::new(),
        };
        let line = format!("    {step:<12}{ms:>10.1} ms  {what}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(
        text,
        "    {:<12}{:>10.1} ms  {:.1} ms of them for the device",
        "pause", report.pause_ms, report.device_ms
    );
    text
}
