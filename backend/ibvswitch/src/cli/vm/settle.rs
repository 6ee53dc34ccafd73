//! `ibvswitch vm settle`, and the process that does the same when a `vm migrate` dies.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::cli::{CliError, SourceArgs, print};
use crate::control::{Client, Request, Response, Status};
use crate::monitor::{MonitorError, Qmp};

/// Time that QEMU may take to cancel a migration.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(30);
/// Message that tells the guard that it is not needed any more.
const DONE: &[u8] = b"done";

/// Arguments of `vm settle`.
#[derive(Debug, Args)]
#[command(after_help = "\
If `vm migrate` is killed, the daemon and a process that the command has started finish or undo the \
move at once. If that process was killed, too, or QEMU did not answer it, this command does the same.")]
pub(in crate::cli) struct SettleArgs {
    /// The VM.
    vm: String,
    /// The VF at the source.
    #[arg(long, value_name = "VF")]
    from: String,
    /// Socket of the monitor of the QEMU at the source.
    #[arg(long, value_name = "SOCKET")]
    from_qmp: PathBuf,
    /// Socket of the monitor of the QEMU at the destination.
    #[arg(long, value_name = "SOCKET")]
    to_qmp: PathBuf,
    /// Wait until standard input ends, and do nothing if `done` has come by then.
    #[arg(long, hide = true)]
    guard: bool,
}

pub(super) fn run(source: SourceArgs, args: &SettleArgs) -> Result<(), CliError> {
    let control = source.control_socket()?;
    if args.guard {
        let mut said = Vec::new();
        // An error is an end, too.
        let _ = io::stdin().take(64).read_to_end(&mut said);
        if said.starts_with(DONE) {
            return Ok(());
        }
    }
    let runs = settle(&control, args)?;
    print(format!("{} runs at {runs}\n", args.vm))
}

/// Has the VM run where its addresses are; the name of the VF.
fn settle(control: &Path, args: &SettleArgs) -> Result<String, CliError> {
    let mut client = Client::connect(control)?;
    // The move that was begun is undone, or has come to its end.
    let vm = args.vm.clone();
    client.ask(&Request::LiveSettle { vm })?;
    let Response::Status(status) = client.ask(&Request::Status {})? else {
        return Err(CliError::UnexpectedResponse);
    };
    let at = place(&status, &args.vm)?;
    let failed = |error: MonitorError| CliError::Failed(error.to_string());
    if at == args.from {
        stay(&args.from_qmp, &args.to_qmp).map_err(failed)?;
    } else {
        leave(&args.from_qmp, &args.to_qmp).map_err(failed)?;
    }
    Ok(at)
}

/// The VF where a VM's addresses are.
fn place(status: &Status, vm: &str) -> Result<String, CliError> {
    let mut vfs = status.vfs.iter();
    let at = vfs.find(|vf| vf.holds.as_deref() == Some(vm));
    at.map(|vf| vf.name.clone())
        .ok_or_else(|| CliError::Failed(format!("no VF has the addresses of `{vm}`")))
}

/// The VM goes on at the source; the QEMU that waits for it has no use any more.
pub(super) fn stay(source: &Path, destination: &Path) -> Result<(), MonitorError> {
    if let Ok(mut qmp) = Qmp::connect(destination) {
        // It may be gone before it has answered.
        let _ = qmp.execute("quit", json!({}));
    }
    let mut qmp = Qmp::connect(source)?;
    go_on_at_source(&mut qmp)
}

/// Has the VM of a QEMU go on that was to send it.
pub(super) fn go_on_at_source(qmp: &mut Qmp) -> Result<(), MonitorError> {
    let under_way = |info: &Value| {
        let status = info["status"].as_str().unwrap_or("none");
        !["none", "completed", "failed", "cancelled"].contains(&status)
    };
    let info = qmp.execute("query-migrate", json!({}))?;
    if under_way(&info) {
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        // Refused while one is under way, and set then.
        let _ = qmp.execute("migrate-set-capabilities", events);
        qmp.execute("migrate_cancel", json!({}))?;
        let info = qmp.execute("query-migrate", json!({}))?;
        if under_way(&info) {
            let ends = ["failed", "cancelled", "completed"];
            qmp.await_migration(Instant::now() + CANCEL_TIMEOUT, &ends)?;
        }
    }
    if qmp.status()? != "running" {
        qmp.execute("cont", json!({}))?;
    }
    Ok(())
}

/// The VM runs at the destination; its former QEMU ends.
fn leave(source: &Path, destination: &Path) -> Result<(), MonitorError> {
    let mut qmp = Qmp::connect(destination)?;
    if qmp.status()? != "running" {
        qmp.execute("cont", json!({}))?;
    }
    if let Ok(mut qmp) = Qmp::connect(source) {
        // It may be gone before it has answered.
        let _ = qmp.execute("quit", json!({}));
    }
    Ok(())
}

/// A process that settles a migration when this one dies.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Starts it.
    pub(super) fn start(
        control: &Path,
        vm: &str,
        from: &str,
        from_qmp: &Path,
        to_qmp: &Path,
    ) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(directory) = control.parent() {
            command.arg("--runtime-dir").arg(directory);
        }
        command.args(["vm", "settle", "--guard", vm, "--from", from]);
        command.arg("--from-qmp").arg(from_qmp);
        command.arg("--to-qmp").arg(to_qmp);
        // A signal that interrupts this process does not interrupt that one.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().map(Self)
    }

    /// It is not needed any more.
    pub(super) fn dismiss(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // Where it is gone, it does nothing either.
            let _ = stdin.write_all(DONE);
        }
        let _ = self.0.wait();
    }
}
