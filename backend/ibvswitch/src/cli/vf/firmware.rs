//! `ibvswitch vf firmware`

use clap::Args;

use crate::cli::text::fraction::microseconds;
use crate::cli::text::number::at_least;
use crate::cli::{CliError, SourceArgs, ask, print, print_json};
use crate::control::{FirmwareReport, FirmwareRequest, Request, Response};

/// Arguments of `vf firmware`.
#[derive(Debug, Args)]
#[command(after_help = "\
For tests of drivers, with VFs with `like = \"connectx-5\"`. Without options it prints the settings \
of the VF's firmware.")]
pub(in crate::cli) struct FirmwareArgs {
    /// The VF.
    name: String,
    /// Each command takes up to this many milliseconds, and commands finish in another order; 0 for no delay.
    #[arg(long, value_name = "MS", value_parser = microseconds)]
    delay: Option<u64>,
    /// This many of the next commands are never answered.
    #[arg(long, value_name = "COUNT", value_parser = at_least(0u32))]
    lose: Option<u32>,
    /// The firmware asks the driver for this many pages of memory, or, if negative, gives them back.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pages: Option<i32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(source: SourceArgs, args: FirmwareArgs) -> Result<(), CliError> {
    let request = Request::Firmware(FirmwareRequest {
        vf: args.name,
        delay_us: args.delay,
        lose: args.lose,
        pages: args.pages,
    });
    let Response::Firmware(report) = ask(source, &request)? else {
        return Err(CliError::UnexpectedResponse);
    };
    if args.json {
        return print_json(&report);
    }
    print(text(&report))
}

fn text(report: &FirmwareReport) -> String {
    let delay = match report.delay_us {
        0 => "at once".to_owned(),
        delay => format!("within {} ms", delay as f64 / 1000.0),
    };
    let lose = match report.lose {
        0 => String::new(),
        1 => ", but for the next one".to_owned(),
        count => format!(", but for the next {count}"),
    };
    format!(
        "{} answers commands {delay}{lose}; its firmware has {} pages\n",
        report.vf, report.pages
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_does() {
        let mut report = FirmwareReport {
            vf: "vm1".to_owned(),
            delay_us: 0,
            lose: 0,
            pages: 32,
        };
        let said = "vm1 answers commands at once; its firmware has 32 pages\n";
        assert_eq!(text(&report), said);
        (report.delay_us, report.lose) = (2500, 3);
        let said =
            "vm1 answers commands within 2.5 ms, but for the next 3; its firmware has 32 pages\n";
        assert_eq!(text(&report), said);
    }
}
