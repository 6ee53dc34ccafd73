//! VMs that move while they run, by `ibvswitch vm migrate`.

use std::{
    process::{Child, Stdio},
    thread,
};

use serde_json::{Value, json};

use crate::{
    daemon::Daemon,
    error::{Error, Result},
    guest::Guest,
    progress,
};

/// Moves a VM, with the VFs and ports of these names, to a hypervisor where a QEMU waits; what the command reports.
pub fn migrate(daemon: &Daemon, vms: &[&str], to: &str) -> Result<Value> {
    let arguments = [&["vm", "migrate"], vms, &["--to", to, "--json"]].concat();
    let text = daemon.ask(&arguments)?;
    let report: Value = serde_json::from_str(&text).map_err(|_| Error::Output {
        what: "JSON".into(),
        text,
    })?;
    progress::step(&report);
    Ok(report)
}

/// The same, not waited for.
pub fn start(daemon: &Daemon, vms: &[&str], to: &str) -> Result<Child> {
    let mut command = daemon.command();
    command.args([&["vm", "migrate"], vms, &["--to", to]].concat());
    let command = { command.stdout(Stdio::null()) }.stderr(Stdio::piped());
    command
        .spawn()
        .map_err(|error| Error::Host(error.to_string()))
}

/// The same, up to when the memory of the VM is on its way.
pub fn begin(daemon: &Daemon, vm: &Guest, vms: &[&str], to: &str) -> Result<Child> {
    let child = start(daemon, vms, to)?;
    await_migration(vm, &["active"])?;
    Ok(child)
}

/// Waits until QEMU says that the migration of a VM is in one of these states.
pub fn await_migration(vm: &Guest, states: &[&str]) -> Result<()> {
    loop {
        let info = vm.monitor("query-migrate", json!({}))?;
        if info["status"]
            .as_str()
            .is_some_and(|it| states.contains(&it))
        {
            return Ok(());
        }
        thread::yield_now();
    }
}

/// Returns the message of a command that has to fail.
pub fn refusal(child: Child) -> Result<String> {
    let output = { child.wait_with_output() }.map_err(|error| Error::Host(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(1) {
        return Ok(said);
    }
    Err(Error::Output {
        what: "a refusal".into(),
        text: format!("{}: {said}", output.status),
    })
}
