//! Results of a command in nodes, for people and for programs.

use std::fmt::{self, Write as _};

use serde::Serialize;

/// The status of what was ended at its time limit, as of timeout(1).
pub const TIME_LIMIT: i32 = 124;

/// The status of a mistake on the command line, as clap has it.
pub const MISTAKE: i32 = 2;

/// The status where a node or the lab itself fails, as of env(1) and others that run commands.
pub const FAILED: i32 = 125;

/// End of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "end")]
pub enum End {
    /// By itself.
    Exited {
        /// Its exit status; 128 + signal if a signal ended it.
        status: i32,
    },
    /// It was killed at the time limit.
    TimeLimit,
    /// It was killed because something else had failed.
    Ended {
        /// The failure.
        why: String,
    },
    /// Its node is gone, or does not answer.
    Lost {
        /// The known reason.
        why: String,
    },
}

impl End {
    /// The exit status that stands for it.
    pub fn status(&self) -> i32 {
        match self {
            Self::Exited { status } => *status,
            Self::TimeLimit => TIME_LIMIT,
            // The end of the node that caused it says more.
            Self::Ended { .. } => 0,
            Self::Lost { .. } => FAILED,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A shell's status for a program that it does not find.
            Self::Exited { status: 127 } => f.write_str(
                "status 127: no such program in the node; --packages names Debian packages to put into it",
            ),
            Self::Exited { status } => write!(f, "status {status}"),
            Self::TimeLimit => f.write_str("killed at the time limit (--timeout)"),
            Self::Ended { why } => write!(f, "killed, since {why}"),
            Self::Lost { why } => f.write_str(why),
        }
    }
}

/// Result of the command in one node.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The node's name.
    pub node: String,
    /// End of the command.
    #[serde(flatten)]
    pub end: End,
    /// Seconds from its start.
    pub seconds: f64,
    /// Output on both streams, the last mebibyte of it.
    pub output: String,
    /// Messages of the node's kernel meanwhile, if the command has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_log: Option<String>,
}

/// The exit status of a lab: the highest of its nodes'.
pub fn worst(outcomes: &[Outcome]) -> i32 {
    let statuses = outcomes.iter().map(|it| it.end.status());
    statuses.max().unwrap_or(FAILED)
}

/// Returns the results of the command in all nodes, as data.
pub fn json(command: &str, outcomes: &[Outcome]) -> String {
    let value = serde_json::json!({
        "command": command,
        "status": worst(outcomes),
        "nodes": outcomes,
    });
    format!("{value:#}\n")
}

/// The same in the form of JUnit, which services for continuous integration read: a test case for each node.
pub fn junit(command: &str, outcomes: &[Outcome]) -> String {
    let failures = outcomes.iter().filter(|it| it.end.status() != 0).count();
    let seconds = outcomes.iter().map(|it| it.seconds).fold(0.0, f64::max);
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" time=\"{seconds:.3}\">\n",
        escaped(command),
        outcomes.len()
    );
    for outcome in outcomes {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  <testcase classname=\"ibvswitch.lab\" name=\"{}\" time=\"{:.3}\">",
            escaped(&outcome.node),
            outcome.seconds
        );
        let log = outcome.kernel_log.as_deref().unwrap_or_default();
        let end = escaped(&outcome.end.to_string());
        if matches!(outcome.end, End::Ended { .. }) {
            let _ = writeln!(text, "    <skipped message=\"{end}\"/>");
        } else if outcome.end.status() != 0 {
            let log = escaped(log);
            let _ = writeln!(text, "    <failure message=\"{end}\">{log}</failure>");
        }
        let output = escaped(&outcome.output);
        let _ = writeln!(text, "    <system-out>{output}</system-out>\n  </testcase>");
    }
    text + "</testsuite>\n"
}

/// Text in XML. Control characters, which no document may have, become U+FFFD.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(letter),
            '\r' => {}
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(node: &str, end: End) -> Outcome {
        Outcome {
            node: node.into(),
            end,
            seconds: 1.5,
            output: "a < b & \"c\"\u{1b}[0m\n".into(),
            kernel_log: None,
        }
    }

    #[test]
    fn the_highest_status_counts() {
        let ends = [
            End::Exited { status: 0 },
            End::Exited { status: 3 },
            End::Ended {
                why: "the command of node a failed".into(),
            },
        ];
        let mut all: Vec<_> = ends.into_iter().map(|end| outcome("n1", end)).collect();
        assert_eq!(worst(&all), 3);
        all.push(outcome("n4", End::TimeLimit));
        assert_eq!(worst(&all), 124);
        assert_eq!(worst(&all[..1]), 0);
    }

    #[test]
    fn data() {
        let why = "its kernel panicked".to_owned();
        let all = [
            outcome("n1", End::Exited { status: 7 }),
            outcome("n2", End::Lost { why }),
        ];
        let value: serde_json::Value = serde_json::from_str(&json("x", &all)).unwrap();
        assert_eq!(value["status"], 125);
        assert_eq!(value["nodes"][0]["end"], "exited");
        assert_eq!(value["nodes"][0]["status"], 7);
        assert_eq!(value["nodes"][1]["why"], "its kernel panicked");
    }

    #[test]
    fn a_document_is_well_formed_whatever_was_printed() {
        let all = [
            outcome("n1", End::Exited { status: 7 }),
            outcome("n2", End::Exited { status: 0 }),
        ];
        let text = junit("sh -c \"a<b\"", &all);
        roxmltree::Document::parse(&text).unwrap();
        assert!(text.contains("name=\"sh -c &quot;a&lt;b&quot;\" tests=\"2\" failures=\"1\""));
        assert!(text.contains("<failure message=\"status 7\">"), "{text}");
        assert!(text.contains("<system-out>a &lt; b &amp; &quot;c&quot;\u{fffd}[0m\n"));
    }
}
