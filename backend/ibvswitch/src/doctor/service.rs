//! The daemon: where its sockets are, whether it runs, and as a service.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{AccessFlags, access, geteuid};

use super::program::Programs;
use crate::control::{Client, ClientError, Request, Response};
use crate::finding::{Finding, Verdict};

const UNIT: &str = "ibvswitch.service";

/// Whether this user can have sockets there, where no daemon has its own there: that of the service is
/// another user's.
pub(super) fn runtime_dir(dir: &Path, serves: bool) -> Finding {
    const WHAT: &str = "runtime directory";
    const ELSEWHERE: &str = "choose a directory of this user's own, with --runtime-dir";
    let shown = dir.display();
    let user = geteuid().as_raw();
    let writable = AccessFlags::W_OK | AccessFlags::X_OK;
    if serves {
        let found = format!("{shown} is the running daemon's");
        return Finding::new(WHAT, Verdict::Ok, found);
    }
    match fs::metadata(dir) {
        Ok(it) if !it.is_dir() => {
            Finding::new(WHAT, Verdict::Error, format!("{shown} is no directory"))
                .remedy("remove it, or choose another one, with --runtime-dir")
        }
        Ok(it) if it.uid() != user => {
            let found = format!(
                "{shown} belongs to user {}, and this is user {user}",
                it.uid()
            );
            // The daemon takes no directory of another user, not as root either.
            Finding::new(WHAT, Verdict::Warning, found)
                .remedy(format!("run the daemon as that user, or {ELSEWHERE}"))
        }
        Ok(_) => match access(dir, writable) {
            Ok(()) => Finding::new(WHAT, Verdict::Ok, format!("{shown} is this user's")),
            Err(error) => {
                let found = format!("{shown} cannot be written to: {error}");
                Finding::new(WHAT, Verdict::Error, found).remedy(ELSEWHERE)
            }
        },
        Err(_) => {
            let above = dir.ancestors().skip(1).find(|it| it.exists());
            match above.map(|above| (above, access(above, writable))) {
                Some((_, Ok(()))) => {
                    let found = format!("{shown} is made when the daemon starts");
                    Finding::new(WHAT, Verdict::Ok, found)
                }
                Some((above, Err(error))) => {
                    let found = format!(
                        "{shown} is not there and cannot be made in {}: {error}",
                        above.display()
                    );
                    Finding::new(WHAT, Verdict::Error, found).remedy(ELSEWHERE)
                }
                None => Finding::new(WHAT, Verdict::Error, format!("{shown} cannot be made"))
                    .remedy(ELSEWHERE),
            }
        }
    }
}

/// Whether a daemon serves.
pub(super) fn daemon(socket: &Path) -> Finding {
    const WHAT: &str = "daemon";
    let asked = Client::connect(socket).and_then(|mut client| client.ask(&Request::Status {}));
    match asked {
        Ok(Response::Status(status)) => Finding::new(
            WHAT,
            Verdict::Ok,
            format!(
                "process {} serves, version {}, sandbox: {}",
                status.pid, status.version, status.sandbox
            ),
        ),
        Ok(_) => Finding::new(WHAT, Verdict::Warning, "it sends an unexpected answer")
            .remedy("use an `ibvswitch` of the daemon's version"),
        Err(ClientError::NotRunning { .. }) => {
            let found = format!("none answers on {}", socket.display());
            Finding::new(WHAT, Verdict::Note, found)
                .remedy("`ibvswitch run`, or start the service; --runtime-dir names another one")
        }
        Err(ClientError::NoAccess { .. }) => {
            let found = format!("this user has no access to {}", socket.display());
            Finding::new(WHAT, Verdict::Note, found).remedy("use the daemon's own user, or sudo")
        }
        Err(error) => Finding::new(WHAT, Verdict::Warning, error.to_string()),
    }
}

/// Checks the state of the service, if systemd runs.
pub(super) fn unit(programs: Programs<'_>, root: &Path) -> Finding {
    const WHAT: &str = "service";
    if !root.join("run/systemd/system").is_dir() {
        let found = "systemd does not run this host";
        return Finding::new(WHAT, Verdict::Note, found)
            .remedy("make this host's service manager run `ibvswitch run --keeper`, before VMs");
    }
    let state = match state(programs) {
        Ok(state) => state,
        Err(error) => {
            let found = format!("systemctl does not show its state: {error}");
            return Finding::new(WHAT, Verdict::Warning, found)
                .remedy(format!("`systemctl status {UNIT}`"));
        }
    };
    match state {
        [loaded, ..] if loaded == "not-found" => Finding::new(
            WHAT,
            Verdict::Note,
            format!("there is no {UNIT}"),
        )
        .remedy(
            "qemu/ibvswitch.service of the source tree is one: docs/users/install.md says where \
                 it goes",
        ),
        [_, active, sub] if active == "active" => {
            Finding::new(WHAT, Verdict::Ok, format!("{UNIT} is {active} ({sub})"))
        }
        [_, active, sub] if active == "failed" => {
            let found = format!("{UNIT} has failed ({sub})");
            Finding::new(WHAT, Verdict::Error, found).remedy(format!("`journalctl -u {UNIT}`"))
        }
        [_, active, sub] => {
            let found = format!("{UNIT} is {active} ({sub})");
            Finding::new(WHAT, Verdict::Note, found)
                .remedy(format!("`systemctl enable --now {UNIT}`"))
        }
    }
}

/// LoadState, ActiveState and SubState of the unit.
fn state(programs: Programs<'_>) -> io::Result<[String; 3]> {
    let program = programs.find("systemctl");
    let program = program.ok_or_else(|| io::Error::other("it is not in $PATH"))?;
    let properties = "--property=LoadState,ActiveState,SubState";
    let said = programs.ask(&program, &["show", properties, UNIT])?;
    let of = |key: &str| {
        let mut lines = said.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let value = value.map(str::to_owned);
        value.ok_or_else(|| io::Error::other(format!("it prints no {key}")))
    };
    Ok([of("LoadState")?, of("ActiveState")?, of("SubState")?])
}
