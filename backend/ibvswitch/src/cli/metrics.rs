//! `ibvswitch metrics`

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::sibling::web;
use super::{CliError, SourceArgs, print};
use crate::control::{Client, Request, Response};
use report::metrics::{away, exposition};

/// Arguments of `metrics`.
#[derive(Debug, Args)]
#[command(after_help = "\
For Prometheus, which reads http://127.0.0.1:9843/metrics:

  ibvswitch metrics --listen 127.0.0.1:9843

Or with node_exporter's textfile collector, from a timer or cron:

  ibvswitch metrics --write /var/lib/prometheus/node-exporter/ibvswitch.prom")]
pub(super) struct MetricsArgs {
    /// Write to this file, which is replaced at once, in place of standard output. Without a daemon it says
    /// `ibvswitch_up 0`.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Serve them over HTTP at /metrics, until SIGINT or SIGTERM; a port alone means 127.0.0.1.
    #[arg(long, value_name = "[ADDRESS:]PORT", conflicts_with = "write")]
    listen: Option<String>,
}

pub(super) fn run(source: SourceArgs, args: &MetricsArgs) -> Result<(), CliError> {
    if let Some(address) = &args.listen {
        let args = ["--metrics".into(), format!("--listen={address}").into()];
        return web::serve(source, args);
    }
    let asked = ask(&source.control_socket()?);
    match (&args.write, asked) {
        (None, asked) => print(&asked?),
        (Some(file), Ok(text)) => write(file, &text),
        (Some(file), Err(error)) => {
            // The file tells Prometheus that there is no daemon; the error tells the user the reason.
            write(file, &away())?;
            Err(error)
        }
    }
}

fn ask(socket: &Path) -> Result<String, CliError> {
    let mut client = Client::connect(socket)?;
    let Response::Status(status) = client.ask(&Request::Status {})? else {
        return Err(CliError::UnexpectedResponse);
    };
    let Response::Counters(counters) = client.ask(&Request::Counters { node: None })? else {
        return Err(CliError::UnexpectedResponse);
    };
    Ok(exposition(&status, &counters))
}

fn write(file: &Path, text: &str) -> Result<(), CliError> {
    replace(file, text).map_err(|error| {
        CliError::Failed(format!(
            "cannot write {}: {error}; name a file in a directory where this user may write",
            file.display()
        ))
    })
}

/// Whoever reads the file finds the old text or the new one, never a part.
fn replace(file: &Path, text: &str) -> std::io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(name);
    fs::write(&new, text)?;
    fs::rename(&new, file).inspect_err(|_| {
        // The first error is the one to tell.
        let _ = fs::remove_file(&new);
    })
}
