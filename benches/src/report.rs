//! Results, for people and for programs.

pub mod markdown;

use std::fmt;
use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// Reference for a result, measured in the same run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reference {
    /// Name, with its unit.
    pub name: &'static str,
    /// Value.
    pub value: f64,
}

/// One result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// Its name, the same in all versions.
    pub name: &'static str,
    /// Value.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// Reference, if there is one.
    pub reference: Option<Reference>,
}

impl Serialize for Measurement {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat {
            name: &'static str,
            value: f64,
            unit: &'static str,
            reference: Option<&'static str>,
            reference_value: Option<f64>,
        }
        Flat {
            name: self.name,
            value: self.value,
            unit: self.unit,
            reference: self.reference.map(|reference| reference.name),
            reference_value: self.reference.map(|reference| reference.value),
        }
        .serialize(serializer)
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value, unit) = (self.name, self.value, self.unit);
        write!(f, "{name:<24} {value:>10.3} {unit:<8}")?;
        match self.reference {
            Some(Reference { name, value }) => write!(f, " ({name}: {value:.3})"),
            None => Ok(()),
        }
    }
}

/// All results of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// In the order they were measured.
    pub results: Vec<Measurement>,
}

/// A run as a file has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run<R> {
    /// Model and number of its processors.
    pub machine: String,
    /// The day, as `2026-11-28`.
    pub date: String,
    /// The commit of the source tree; of an old run, the commit that wrote its figures down.
    pub commit: Option<String>,
    /// The command.
    pub command: String,
    /// In the order they were measured.
    pub results: Vec<R>,
}

impl Run<Measurement> {
    /// A run that this program has just made on this machine.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let output = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            output.status.success().then(|| text.trim().to_owned())
        };
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split(": ").nth(1));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arguments = std::env::args().skip(1);
        let command: Vec<String> = ["ibvswitch bench".to_owned()]
            .into_iter()
            .chain(arguments)
            .collect();
        let tree = env!("CARGO_MANIFEST_DIR");
        Self {
            machine: format!("{}, {processors} processors", model.unwrap_or("unknown")),
            date: output("date", &["-u", "+%F"]).unwrap_or_default(),
            commit: output("git", &["-C", tree, "rev-parse", "--short=8", "HEAD"]),
            command: command.join(" "),
            results: report.results.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_five_members() {
        let run = Run {
            machine: "m".to_owned(),
            date: "d".to_owned(),
            commit: None,
            command: "x".to_owned(),
            results: vec![
                Measurement {
                    name: "a",
                    value: 1.5,
                    unit: "ms",
                    reference: None,
                },
                Measurement {
                    name: "b",
                    value: 2.0,
                    unit: "times",
                    reference: Some(Reference {
                        name: "c, ns",
                        value: 3.0,
                    }),
                },
            ],
        };
        assert_eq!(
            serde_json::to_string(&run).unwrap(),
            r#"{"machine":"m","date":"d","commit":null,"command":"x","results":[{"name":"a","value":1.5,"unit":"ms","reference":null,"reference_value":null},{"name":"b","value":2.0,"unit":"times","reference":"c, ns","reference_value":3.0}]}"#
        );
    }
}
