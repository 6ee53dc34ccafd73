//! `ibvswitch upgrade`

use std::path::{Path, PathBuf};

use clap::Args;

use super::{CliError, SourceArgs, print, print_json};
use crate::control::{Client, ClientError, Request, Response, Status, UpgradeRequest, Upgraded};

/// Arguments of `upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "\
The program that is now installed at the daemon's path replaces it, in the same process. VMs do not \
notice: connections go on, with memory, queues and addresses as they were. The new program is tried \
first. If it cannot take over, or its configuration lacks something that VMs use, the daemon goes \
on, and this command prints the reason.")]
pub(super) struct UpgradeArgs {
    /// Another program, in place of the installed one.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Time limit for the trial; VMs stand still for at most about twice as long. QEMU gives up a device after
    /// 5 seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = within)]
    within: f64,
    /// A VF that may fail if it cannot be handed over in time: the guest's driver then recovers the device,
    /// without its connections.
    #[arg(long, value_name = "VF", value_delimiter = ',')]
    let_fail: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn status(client: &mut Client) -> Result<Status, CliError> {
    match client.ask(&Request::Status {})? {
        Response::Status(status) => Ok(status),
        _ => Err(CliError::UnexpectedResponse),
    }
}

/// Seconds of the command line.
pub(super) fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}

/// A time limit in seconds.
pub(super) fn within(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (0.001..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "write seconds above 0, up to 3600, such as 2 or 0.5".to_owned())
}

/// Replaces the daemon by a program; returns the new daemon's status and the result.
pub(super) fn replace(
    client: &mut Client,
    socket: &Path,
    request: UpgradeRequest,
) -> Result<(Status, Upgraded), CliError> {
    let before = status(client)?.upgraded.map_or(0, |before| before.count);
    // Its connection ends with the program that has answered on it.
    match client.ask(&Request::Upgrade(request)) {
        Err(ClientError::Broken { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(CliError::UnexpectedResponse),
    }
    let mut after = status(&mut Client::connect(socket)?)?;
    let upgraded = after.upgraded.take().filter(|it| it.count == before + 1);
    let upgraded = upgraded.ok_or_else(|| {
        CliError::Failed("the daemon has restarted; see its log for the reason".to_owned())
    })?;
    Ok((after, upgraded))
}

pub(super) fn run(source: SourceArgs, args: &UpgradeArgs) -> Result<(), CliError> {
    let socket = source.control_socket()?;
    let mut client = Client::connect(&socket)?;
    let program = args.program.as_ref().map(std::path::absolute).transpose();
    let program = program.map_err(|error| CliError::Failed(error.to_string()))?;
    let request = UpgradeRequest {
        program,
        within_ms: Some(milliseconds(args.within)),
        let_fail: args.let_fail.clone(),
    };
    let (after, upgraded) = replace(&mut client, &socket, request)?;
    if args.json {
        return print_json(&upgraded);
    }
    let failed = match upgraded.failed {
        0 => String::new(),
        failed => format!(", {failed} of them with a device that has failed and recovers"),
    };
    print(format!(
        "version {} has taken over from {}: {} VMs go on after {:.1} ms{failed}\n",
        after.version,
        upgraded.from,
        upgraded.vms,
        upgraded.rested_us as f64 / 1000.0
    ))
}
