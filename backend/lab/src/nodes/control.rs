//! Commands of `ibvswitch` that nodes have the lab run on its subnet (`guest/ibvswitch`), where it allows them.
//!
//! A node's request is not trusted: there are commands that show the subnet and commands that change it, and none
//! names a file or a program of this machine.

use std::{
    process::{Command, Output, Stdio},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use wait_timeout::ChildExt;

use crate::bound::bound;
use crate::error::{Doing, Result};
use crate::guest::channel::Request;
use crate::guest::share::quoted;
use crate::nodes::moves::{self, Moves};
use crate::nodes::{Lab, Node};

/// Commands: the words that they begin with.
const COMMANDS: &[&[&str]] = &[
    &["link", "show"],
    &["link", "down"],
    &["link", "up"],
    &["link", "drop"],
    &["link", "delay"],
    &["link", "stall"],
    &["link", "overrun"],
    &["link", "restore"],
    &["vf", "show"],
    &["vf", "pin"],
    &["vf", "firmware"],
    &["vf", "migrate"],
    &["vm", "migrate"],
    &["sm", "status"],
    &["sm", "sweep"],
    &["status"],
    &["topology"],
    &["counters"],
];

/// Their options, none of which names a file.
const OPTIONS: &[&str] = &[
    "--json",
    "--seed",
    "--engine",
    "--delay",
    "--lose",
    "--pages",
    "--to",
    "--vf",
    "--method",
    "--drop-first",
    "--every-switch",
    "--destination-routed",
    "--wait",
    "--subnet",
    "--format",
    "--theme",
];

/// So many words has no command.
const MAX_WORDS: usize = 64;

/// The status of what is refused, as of a command line that is wrong.
const REFUSED: i32 = 2;

/// The status where a command could not be run, or did not end.
const FAILED: i32 = 125;

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(120);

/// Time limit of a node for each part of an answer.
const TOLD: Duration = Duration::from_secs(20);

/// Bytes of an answer at a time: quoted they are an argument of the node's shell.
const PART: usize = 16 << 10;

/// An answer is no longer.
const LONGEST_ANSWER: usize = 1 << 20;

/// So many commands of a node run at the same time.
const MAX_COMMANDS: usize = 8;

/// The words that a node has asked for, where they are some.
fn words(request: &Request) -> Option<Vec<String>> {
    let bytes: Option<Vec<u8>> = (request.words.as_bytes().chunks(2))
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    let text = String::from_utf8(bytes?).ok()?;
    let words: Vec<String> = text
        .strip_suffix('\0')?
        .split('\0')
        .map(Into::into)
        .collect();
    (words.len() <= MAX_WORDS).then_some(words)
}

/// Why a node does not get a command run, if it does not.
pub fn refusal(words: &[String]) -> Option<String> {
    let begins = |it: &&&[&str]| {
        words
            .iter()
            .map(String::as_str)
            .take(it.len())
            .eq(it.iter().copied())
    };
    let Some(command) = COMMANDS.iter().find(begins) else {
        return Some(format!(
            "nodes can have the lab run link, vf show, vf pin, vf firmware, vf migrate, vm migrate, sm status, sm sweep, \
             status, topology and counters, and not `{}`",
            words.join(" ").escape_debug()
        ));
    };
    let options = words[command.len()..]
        .iter()
        .filter(|it| it.starts_with('-'));
    let name = |it: &String| it.split('=').next().unwrap_or_default().to_owned();
    let other = options.map(name).find(|it| !OPTIONS.contains(&it.as_str()));
    other.map(|option| {
        format!(
            "nodes have no option {} here; write `--json` and others behind the command",
            option.escape_debug()
        )
    })
}

/// Whether nodes may, and how much they do.
#[derive(Debug)]
pub struct Control {
    allowed: bool,
    running: Vec<Arc<AtomicUsize>>,
}

impl Control {
    /// For nodes of a lab, which may or may not.
    pub fn new(allowed: bool, nodes: usize) -> Self {
        Self {
            allowed,
            running: (0..nodes).map(|_| Arc::default()).collect(),
        }
    }

    /// Does what a node has asked for, and answers it, in a thread of its own.
    pub fn carry_out(&self, lab: &Lab, number: usize, request: Request) {
        let Some((node, running)) = lab.nodes().get(number).zip(self.running.get(number)) else {
            return;
        };
        let running = Arc::clone(running);
        if running.fetch_add(1, Ordering::Relaxed) >= MAX_COMMANDS {
            // A node that asks without end gets no answer: an answer takes as much as a command.
            running.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let refused = |why: String| Answer {
            status: REFUSED,
            out: String::new(),
            err: format!("ibvswitch: {why}\n"),
        };
        let answer: std::result::Result<Task, Answer> = match words(&request) {
            Some(words) if words.len() == 3 && words[..2] == ["lab", "boot"] => {
                Err(match lab.boot(&words[2]) {
                    Ok(out) => Answer {
                        status: 0,
                        out,
                        err: String::new(),
                    },
                    Err(error) => refused(error.to_string()),
                })
            }
            _ if !self.allowed => Err(refused(
                "this lab does not let nodes change its subnet; start it with --control".into(),
            )),
            Some(words) => match (refusal(&words), moves::named(&words)) {
                (Some(why), _) => Err(refused(why)),
                (None, Some((node, to))) => match lab.moves() {
                    Ok(moves) => Ok(Task::Move(moves, node.into(), to.into())),
                    Err(error) => Err(refused(error.to_string())),
                },
                (None, None) if words.starts_with(&["vm".into()]) => Err(refused(
                    "nodes move by `ibvswitch vm migrate NODE --to HYPERVISOR`".into(),
                )),
                (None, None) => {
                    let mut command = lab.daemon().command();
                    command.args(words);
                    Ok(Task::Run(command))
                }
            },
            None => Err(refused("no command is given".into())),
        };
        let tell = node.teller();
        thread::spawn(move || {
            let answer = answer.map(Task::carry_out);
            let answer = answer.unwrap_or_else(|refused| refused);
            // A node that is gone needs none.
            let _ = answer.send(&request.reply, tell);
            running.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Request of a node.
enum Task {
    /// A command of ibvswitch.
    Run(Command),
    /// That a node of this name moves to a hypervisor.
    Move(Moves, String, String),
}

impl Task {
    fn carry_out(self) -> Answer {
        match self {
            Self::Run(command) => run(&command),
            Self::Move(moves, node, to) => match moves.carry_out(&node, &to) {
                Ok(out) => Answer {
                    status: 0,
                    out,
                    err: String::new(),
                },
                Err(error) => Answer {
                    status: 1,
                    out: String::new(),
                    err: format!("{error}\n"),
                },
            },
        }
    }
}

/// Result of a command.
#[derive(Debug)]
struct Answer {
    status: i32,
    out: String,
    err: String,
}

impl Answer {
    fn send(&self, reply: &str, tell: impl Fn(&str, Duration) -> Result<()>) -> Result<()> {
        // The name that the node gave is the node's own file, whatever it is.
        for (text, suffix) in [(&self.out, "out"), (&self.err, "err")] {
            let file = quoted(&format!("{reply}.{suffix}"));
            for part in parts(text) {
                tell(&format!("printf %s {} >>{file}", quoted(part)), TOLD)?;
            }
        }
        let (status, reply) = (self.status, quoted(reply));
        tell(&format!("test -p {reply} && echo {status} >{reply}"), TOLD)
    }
}

/// A text in parts that are not too long.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = &text[..text.floor_char_boundary(LONGEST_ANSWER)];
    std::iter::from_fn(move || {
        let (part, left) = rest.split_at(rest.floor_char_boundary(PART));
        rest = left;
        (!part.is_empty()).then_some(part)
    })
}

/// Runs a command of ibvswitch to its end, which comes in time.
fn run(command: &Command) -> Answer {
    let failed = |why: String| Answer {
        status: FAILED,
        out: String::new(),
        err: format!("ibvswitch: {why}\n"),
    };
    match output(command) {
        Ok(Some(output)) => Answer {
            status: output.status.code().unwrap_or(FAILED),
            // NUL is nothing that an argument could have.
            out: String::from_utf8_lossy(&output.stdout).replace('\0', ""),
            err: String::from_utf8_lossy(&output.stderr).replace('\0', ""),
        },
        Ok(None) => failed(format!("the command has not ended within {LIMIT:?}")),
        Err(error) => failed(error.to_string()),
    }
}

fn output(command: &Command) -> Result<Option<Output>> {
    let mut command = bound(command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().doing("start ibvswitch")?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let read = |from: Option<Box<dyn std::io::Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut from) = from {
                let _ = from.read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let out = read(out.map(|it| Box::new(it) as _));
    let err = read(err.map(|it| Box::new(it) as _));
    let Some(status) = child.wait_timeout(LIMIT).doing("wait for ibvswitch")? else {
        let _ = child.kill();
        let _ = child.wait();
        return Ok(None);
    };
    let joined = |it: thread::JoinHandle<Vec<u8>>| it.join().unwrap_or_default();
    Ok(Some(Output {
        status,
        stdout: joined(out),
        stderr: joined(err),
    }))
}

impl Node {
    /// Returns a function that runs lines in the node's shell, one at a time, by the channel that is kept for
    /// the lab.
    fn teller(&self) -> impl Fn(&str, Duration) -> Result<()> + Send + 'static {
        let (guest, errands) = (Arc::clone(&self.guest), Arc::clone(&self.errands));
        move |line, limit| {
            // A command that panicked has left nothing half done in here.
            let _one = errands.lock().unwrap_or_else(PoisonError::into_inner);
            guest.run(line, limit).map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        refusal(&words)
    }

    #[test]
    fn nodes_change_the_subnet_and_name_no_file() {
        for right in [
            "link down h-n1:1",
            "link drop h-n1:1 10 --seed 5 --json",
            "vf show",
            "vf migrate n1 --to h-n2 --wait=5",
            "vm migrate n1 --to h-n2",
            "counters left --json",
            "topology --format=json",
        ] {
            assert_eq!(refused(right), None, "{right}");
        }
        for wrong in [
            "",
            "link",
            "vf",
            "run",
            "external run sh -c id",
            "capture --write /etc/passwd",
            "metrics --write /etc/passwd",
            "--config /etc/passwd link down x:1",
            "link --config /etc/passwd down x:1",
            "upgrade --program /tmp/x",
        ] {
            let why = refused(wrong).unwrap_or_default();
            assert!(
                why.starts_with("nodes can have the lab run link"),
                "{wrong}: {why}"
            );
        }
        for wrong in [
            "link down h-n1:1 --config=/etc/passwd",
            "vf migrate n1 --plan /etc/passwd",
            "status --runtime-dir /",
            "status -c x",
        ] {
            let why = refused(wrong).unwrap_or_default();
            assert!(why.starts_with("nodes have no option -"), "{wrong}: {why}");
        }
    }

    /// As guest/ibvswitch makes them: od(1) of what printf(1) writes.
    #[test]
    fn words_arrive() {
        let script = include_str!("../../guest/ibvswitch");
        let made = script.lines().find(|line| line.starts_with("words="));
        let script = format!("{}; printf %s \"$words\"", made.unwrap());
        let words = ["link", "down", "a b", "", "ä:1"];
        let output = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args(words)
            .output()
            .unwrap();
        let request = |words: &str| Request {
            words: words.into(),
            reply: String::new(),
        };
        let made = String::from_utf8(output.stdout).unwrap();
        assert_eq!(super::words(&request(&made)).unwrap(), words);
        for wrong in ["-", "61", "6", "zz00", "ff00", &"6100".repeat(65)] {
            assert_eq!(super::words(&request(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn answers_come_in_parts() {
        let text = "ä".repeat(20_000);
        let all: Vec<&str> = parts(&text).collect();
        assert_eq!(all.concat(), text);
        assert!(all.len() == 3 && all.iter().all(|it| it.len() <= PART));
        assert_eq!(parts("").count(), 0);
        let long = "x".repeat(LONGEST_ANSWER + 5);
        assert_eq!(parts(&long).map(str::len).sum::<usize>(), LONGEST_ANSWER);
    }
}
