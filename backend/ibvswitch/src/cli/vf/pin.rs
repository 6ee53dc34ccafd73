//! `ibvswitch vf pin`

use clap::Args;

use crate::cli::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{PinRequest, Request, Response};

/// Arguments of `vf pin`.
#[derive(Debug, Args)]
#[command(after_help = "\
The VM goes on working. VFs that share a port share the numbers of their queue pairs, so they move \
together. `ibvswitch status` shows the engine of each VF, and the VFs that talk most to another \
engine. After a restart of the daemon, VFs are dealt out in the configuration's order.")]
pub(in crate::cli) struct PinArgs {
    /// The VF.
    name: String,
    /// The engine, counted from 0.
    #[arg(long, value_name = "N")]
    engine: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, args: PinArgs) -> Result<(), CliError> {
    let PinArgs { name, engine, json } = args;
    let request = Request::Pin(PinRequest { vf: name, engine });
    let Response::Pinned(pinned) = ask(source, &request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    if json {
        return print_json(&pinned);
    }
    let (verb, names) = match &pinned.vfs[..] {
        [one] => ("lives", one.clone()),
        several => ("live", several.join(", ")),
    };
    print(format!(
        "{names} {verb} in engine {}; all engines paused for {} us\n",
        pinned.engine, pinned.pause_us
    ))
}
