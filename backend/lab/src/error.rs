//! Errors, with messages that tell the reader the remedy.

use std::{fmt, fmt::Display, io, path::Path, process::ExitStatus, time::Duration};

/// The result of anything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The names that there are, or of many those that begin most like the wanted one.
pub(crate) fn near(wanted: &str, names: &[&str]) -> String {
    const LISTED: usize = 8;
    if names.len() <= LISTED {
        return format!("there are {}", names.join(", "));
    }
    let alike = |name: &str| {
        wanted
            .bytes()
            .zip(name.bytes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    let mut nearest = names.to_vec();
    nearest.sort_by_key(|name| (std::cmp::Reverse(alike(name)), name.len()));
    format!(
        "the nearest of {} are {}; `ibvswitch lab list` shows those of labs that run",
        names.len(),
        nearest[..3].join(", ")
    )
}

/// Error around a guest.
#[derive(thiserror::Error)]
pub enum Error {
    /// An operating system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The action, with the path or name of its object.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program on the host failed.
    #[error("`{program}` on the host failed ({status})\n{output}")]
    Program {
        /// The command line.
        program: String,
        /// Exit status.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },
    /// The machine lacks something; the text names the remedy.
    #[error("{0}")]
    Host(String),
    /// A guest (or its QEMU) did not do what was expected of it.
    #[error("guest {guest}: {what}\n--- end of its console ---\n{console}\n---")]
    Guest {
        /// The guest's name.
        guest: String,
        /// Description of the event.
        what: String,
        /// The last lines of its console and of QEMU's own messages.
        console: String,
    },
    /// A command in a guest ended with a status other than 0.
    #[error("`{command}` in guest {guest} ended with status {status}\n{output}")]
    Command {
        /// The guest's name.
        guest: String,
        /// The command.
        command: String,
        /// Its exit status; 128 + signal if a signal ended it.
        status: i32,
        /// Output of the program (standard output and error together).
        output: String,
    },
    /// A command in a guest did not finish within its time limit; it has been killed.
    #[error("`{command}` in guest {guest} did not {awaited} within {limit:?}\n{output}")]
    TimeLimit {
        /// The guest's name.
        guest: String,
        /// The command.
        command: String,
        /// The awaited event: `finish`, `print "…"`.
        awaited: String,
        /// The limit.
        limit: Duration,
        /// Output until then.
        output: String,
    },
    /// A server in one guest and its client in another did not both succeed.
    #[error("{client}\n--- the other end ---\n{server}")]
    Exchange {
        /// The server's command, end and output.
        server: String,
        /// The client's.
        client: String,
    },
    /// A tool's output is not what this crate knows how to read.
    #[error("no {what} in this output:\n{text}")]
    Output {
        /// The missing item.
        what: String,
        /// Where it was looked for.
        text: String,
    },
}

/// As for people: a test that returns an error prints it in this form.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Says what was being done when a system call failed.
pub trait Doing<T> {
    /// Names the action, with no path.
    fn doing(self, what: impl Display) -> Result<T>;
    /// Names the action and the path it was done to.
    fn at(self, what: &str, path: &Path) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Display) -> Result<T> {
        self.map_err(|source| Error::Io {
            doing: what.to_string(),
            source: source.into(),
        })
    }

    fn at(self, what: &str, path: &Path) -> Result<T> {
        self.doing(format_args!("{what} {}", path.display()))
    }
}

/// The last `lines` lines of `text`.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_names_are_listed_and_of_many_the_nearest() {
        let names: Vec<String> = (1..=64).map(|node| format!("node{node}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(near("node9", &names[..2]), "there are node1, node2");
        assert_eq!(
            near("node65", &names),
            "the nearest of 64 are node6, node60, node61; `ibvswitch lab list` shows those of labs that run"
        );
    }
}
