//! `ibvswitch upgrade`

use std::path::PathBuf;

use clap::Args;

use super::{CliError, SourceArgs, print, print_json};
use crate::control::{Client, ClientError, Request, Response, Status, UpgradeRequest};

/// Arguments of `upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "\
The program that is installed where the daemon was started from takes the daemon's place, in the same
process. VMs do not notice: connections go on, with memory, queues and addresses as they were. First the
new program is tried. If it cannot take over, or reads another configuration than the VMs need, the
daemon serves on, and this command says why.")]
pub(super) struct UpgradeArgs {
    /// Another program than the one that is installed.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// How long VMs may wait until the program is ready; they wait about twice as long at the most. QEMU gives up
    /// a device after 5 seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    within: f64,
    /// A VF with a VM that cannot be handed over, or that takes too long: its device fails, and the guest's driver
    /// recovers it, without its connections.
    #[arg(long, value_name = "VF", value_delimiter = ',')]
    let_fail: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn status(client: &mut Client) -> Result<Status, CliError> {
    match client.ask(&Request::Status {})? {
        Response::Status(status) => Ok(status),
        _ => Err(CliError::UnexpectedResponse),
    }
}

pub(super) fn run(source: SourceArgs, args: &UpgradeArgs) -> Result<(), CliError> {
    let config = source.load()?;
    let socket = config.control_socket();
    let mut client = Client::connect(&socket)?;
    let before = status(&mut client)?
        .upgraded
        .map_or(0, |before| before.count);
    let program = args.program.as_ref().map(std::path::absolute).transpose();
    let program = program.map_err(|error| CliError::Failed(error.to_string()))?;
    let within_ms = Some((args.within.max(0.0) * 1000.0) as u64);
    let request = Request::Upgrade(UpgradeRequest {
        program,
        within_ms,
        let_fail: args.let_fail.clone(),
    });
    // Its connection ends with the program that has answered on it.
    match client.ask(&request) {
        Err(ClientError::Broken { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(CliError::UnexpectedResponse),
    }
    let after = status(&mut Client::connect(&socket)?)?;
    let upgraded = after.upgraded.filter(|it| it.count == before + 1);
    let upgraded = upgraded.ok_or_else(|| {
        CliError::Failed("the daemon has started anew; its log says why".to_owned())
    })?;
    if args.json {
        return print_json(&upgraded);
    }
    let failed = match upgraded.failed {
        0 => String::new(),
        failed => format!(", {failed} of them with a device that has failed and recovers"),
    };
    print(&format!(
        "version {} has taken over from {}: {} VMs go on after {:.1} ms{failed}\n",
        after.version,
        upgraded.from,
        upgraded.vms,
        upgraded.rested_us as f64 / 1000.0
    ))
}
