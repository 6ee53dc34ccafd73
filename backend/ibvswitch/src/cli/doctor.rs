//! `ibvswitch doctor`

use std::path::PathBuf;

use clap::Args;

use super::text::finding;
use super::{CliError, SourceArgs, print, print_json};
use crate::doctor::{Doctor, Report};
use config::{ConfigError, Source};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
It changes nothing, and opens no device but /dev/kvm. It checks the limits and rights of this
shell and this user; a service has its own. The exit status is 1 if a line begins with `error`,
and 0 otherwise. For VFs that are passed through see `ibvswitch host check`.

Verdicts:
  ok       correct
  note     not needed, or a matter of choice
  warning  it works, but not for all purposes
  error    it does not work")]
pub(super) struct DoctorArgs {
    /// The QEMU that runs the VMs, if it is not the qemu-system-x86_64 of $PATH.
    #[arg(
        long,
        value_name = "PROGRAM",
        env = "IBVSWITCH_QEMU",
        hide_env_values = true
    )]
    qemu: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, args: DoctorArgs) -> Result<(), CliError> {
    let source = source.source();
    // The host can be examined whatever the configuration is.
    let (config, mistakes) = match source.load() {
        Err(mistakes @ ConfigError::Invalid(_)) => {
            let (dir, _) = source.locate()?;
            let built_in = Source {
                file: None,
                runtime_dir: Some(dir),
            };
            (built_in.load()?, Some(mistakes))
        }
        loaded => (loaded?, None),
    };
    let doctor = Doctor {
        qemu: args.qemu,
        ..Doctor::default()
    };
    let report = doctor.examine(&config);
    if args.json {
        print_json(&report)?;
    } else {
        print(text(&report))?;
    }
    if let Some(mistakes) = mistakes {
        return Err(mistakes.into());
    }
    if report.has_errors() {
        return Err(CliError::Failed(
            "something is missing on this host: see the lines with `error` and their remedies"
                .into(),
        ));
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let mut out = String::from("This host\n");
    let checks = report.checks.iter();
    checks.for_each(|it| finding::line(&mut out, it));
    out.push_str(if report.passthrough.configured {
        "\nFor VFs that are passed through\n"
    } else {
        "\nFor VFs that are passed through, of which the configuration has none\n"
    });
    let checks = report.passthrough.checks.iter();
    checks.for_each(|it| finding::line(&mut out, it));
    out
}
