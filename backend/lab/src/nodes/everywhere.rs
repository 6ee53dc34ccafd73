//! A command in all nodes at once: what they print, how they end, and the barriers between them.

mod barriers;
mod printer;

use std::{
    collections::BTreeMap,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::error::{Error, Result};
use crate::guest::share::quoted;
use crate::guest::{Job, News};
use crate::nodes::control::Control;
use crate::nodes::outcome::{End, Outcome};
use crate::nodes::plan::{Happening, Scripts};
use crate::nodes::{Lab, moves};
use crate::progress;

use barriers::{Answer, Barriers};
use printer::Lines;

/// Time limit for a node to receive a message.
const TOLD: Duration = Duration::from_secs(20);

/// Bytes of a command's output that are kept besides those that are shown.
const KEPT: usize = 1 << 20;

/// Work for all nodes.
#[derive(Debug, Clone)]
pub struct Task {
    /// Scripts of the nodes.
    pub scripts: Scripts,
    /// Changes to the subnet meanwhile.
    pub happenings: Vec<Happening>,
    /// Whether nodes may have the subnet changed.
    pub control: bool,
    /// Time limit.
    pub limit: Duration,
    /// Whether the first that fails ends the others.
    pub fail_fast: bool,
    /// Where it starts, if that is there.
    pub directory: Option<String>,
}

impl Task {
    /// Returns the script for the shell of a node.
    fn script(&self, lab: &Lab, node: usize) -> Result<String> {
        let line = self.scripts.of(lab.nodes()[node].name())?;
        Ok(lab.script(node, self.directory.as_deref(), line))
    }
}

/// Words as one would type them; a single one is a line for the shell.
pub fn line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        words => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            words.join(" ")
        }
    }
}

/// Has all nodes do it, prints what they print as they do, and tells what became of them, node by node. A
/// failed change of the subnet is one more.
pub fn run(lab: &Lab, task: &Task) -> Vec<Outcome> {
    let names = lab.nodes().iter().map(|it| it.name().to_owned()).collect();
    let all = All {
        lab,
        task,
        barriers: Barriers::new(names),
        control: Control::new(task.control, lab.nodes().len()),
        shared: Mutex::default(),
        done: Condvar::new(),
    };
    thread::scope(|scope| {
        let each = |node| {
            scope.spawn({
                let all = &all;
                move || all.node(node)
            })
        };
        let threads: Vec<_> = (0..lab.nodes().len()).map(each).collect();
        let happens = scope.spawn(|| all.happen());
        let mut outcomes: Vec<Outcome> = threads.into_iter().filter_map(joined).collect();
        all.shared().ended = true;
        all.done.notify_all();
        outcomes.extend(joined(happens));
        outcomes
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// State that the threads of nodes share.
struct All<'a> {
    lab: &'a Lab,
    task: &'a Task,
    barriers: Barriers,
    control: Control,
    shared: Mutex<Shared>,
    /// Notified when all nodes are done.
    done: Condvar,
}

#[derive(Default)]
struct Shared {
    /// Process groups of the commands that run, by node.
    running: BTreeMap<usize, i32>,
    /// The failure because of which all are to end.
    ending: Option<String>,
    /// Whether all have ended.
    ended: bool,
}

impl All<'_> {
    /// Returns what has become of the command in a node; none if it never booted.
    fn node(&self, number: usize) -> Option<Outcome> {
        let node = &self.lab.nodes()[number];
        let start = Instant::now();
        let mut lines = Lines::new(node.name(), KEPT);
        let end = match self.lab.come_up(number) {
            Ok(true) => self.command(number, &mut lines),
            Ok(false) => {
                progress::step(format_args!("{}: nobody has had it boot", node.name()));
                return None;
            }
            Err(error) => Err(error),
        };
        let end = end.unwrap_or_else(|error| {
            let why = match error {
                Error::Guest { what, .. } => what,
                other => other.to_string(),
            };
            End::Lost { why }
        });
        self.lab.leave();
        lines.finish();
        let failed = end.status() != 0;
        self.shared().running.remove(&number);
        if failed && (self.task.fail_fast || matches!(end, End::Lost { .. })) {
            self.end_others(format!("the command of node {} failed", node.name()));
        }
        self.answer(self.barriers.leave(number));
        let outcome = Outcome {
            node: node.name().into(),
            seconds: start.elapsed().as_secs_f64(),
            output: lines.kept(),
            // A command that a signal has killed has nothing to say.
            kernel_log: (failed && !self.lab.interrupted()).then(|| node.kernel_log()),
            end,
        };
        if let Some(log) = &outcome.kernel_log {
            let log = match log.trim() {
                "" => "nothing".to_owned(),
                log => log.replace('\n', "\n    "),
            };
            progress::step(format_args!(
                "{}: {}; its kernel said meanwhile:\n    {log}",
                outcome.node, outcome.end
            ));
        } else if matches!(outcome.end, End::Ended { .. }) {
            progress::step(format_args!("{}: {}", outcome.node, outcome.end));
        }
        Some(outcome)
    }

    /// Runs the command in one node to its end.
    fn command(&self, number: usize, lines: &mut Lines) -> Result<End> {
        let guest = &self.lab.nodes()[number].guest;
        let deadline = Instant::now() + self.task.limit;
        let mut job = guest.spawn(&self.task.script(self.lab, number)?)?;
        let end = self.follow(number, &mut job, lines, deadline)?;
        if end == End::TimeLimit && !job.stop() {
            let why =
                "does not answer: its command could not be killed at the time limit (--timeout)";
            return Ok(End::Lost { why: why.into() });
        }
        let ending = self.shared().ending.clone();
        Ok(match ending {
            Some(why) if end.status() != 0 && end != End::TimeLimit => End::Ended { why },
            _ => end,
        })
    }

    fn follow(
        &self,
        number: usize,
        job: &mut Job<'_>,
        lines: &mut Lines,
        deadline: Instant,
    ) -> Result<End> {
        loop {
            match job.news(deadline)? {
                None => return Ok(End::TimeLimit),
                Some(News::Printed(bytes)) => lines.add(&bytes),
                Some(News::Waits(barrier)) => {
                    self.answer(self.barriers.arrive(number, barrier));
                }
                Some(News::Asks(request)) => self.control.carry_out(self.lab, number, request),
                Some(News::Started(group)) => {
                    let ending = {
                        let mut shared = self.shared();
                        shared.running.insert(number, group);
                        shared.ending.is_some()
                    };
                    if ending {
                        self.kill(number, group);
                    }
                }
                Some(News::Ended(status)) => return Ok(End::Exited { status }),
            }
        }
    }

    /// Changes the subnet, each change at its time, until all nodes are done. Returns the outcome of the first change
    /// that failed.
    fn happen(&self) -> Option<Outcome> {
        let start = Instant::now();
        let mut happenings = self.task.happenings.clone();
        happenings.sort_by_key(|it| it.time);
        for Happening { time, run } in happenings {
            let left = time.saturating_sub(start.elapsed());
            let shared = self.shared();
            let waited = self
                .done
                .wait_timeout_while(shared, left, |shared| !shared.ended);
            let (shared, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if shared.ended {
                return None;
            }
            drop(shared);
            let words: Vec<&str> = run.split_whitespace().collect();
            let done = match moves::named(&words) {
                Some((node, to)) => self.lab.moves().and_then(|it| it.carry_out(node, to)),
                None => self.lab.daemon().ask(&words),
            };
            if let Err(error) = done {
                let why = format!("`ibvswitch {run}` after {time:?} has failed: {error}");
                progress::step(&why);
                self.end_others(format!("`ibvswitch {run}` (at {time:?}) failed"));
                return Some(Outcome {
                    node: "subnet".into(),
                    end: End::Lost { why },
                    seconds: start.elapsed().as_secs_f64(),
                    output: String::new(),
                    kernel_log: None,
                });
            }
            progress::step(format_args!("ibvswitch {run}"));
        }
        None
    }

    /// Kills the commands of all nodes where one still runs, because of a failure.
    fn end_others(&self, why: String) {
        self.lab.boot_no_more();
        let running = {
            let mut shared = self.shared();
            shared.ending.get_or_insert(why);
            shared.running.clone()
        };
        for (number, group) in running {
            self.kill(number, group);
        }
    }

    fn kill(&self, number: usize, group: i32) {
        // A node that does not answer has its time limit.
        let guest = &self.lab.nodes()[number].guest;
        let _ = guest.run(&format!("kill -KILL -- -{group}"), TOLD);
    }

    /// Tells those who wait at barriers what has become of them.
    fn answer(&self, answers: Vec<Answer>) {
        for answer in answers {
            let guest = &self.lab.nodes()[answer.node].guest;
            let (text, reply) = (quoted(&answer.text), quoted(&answer.reply));
            // A command that is gone by now does not read it, and needs none.
            let _ = guest.run(&format!("test -p {reply} && echo {text} >{reply}"), TOLD);
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
