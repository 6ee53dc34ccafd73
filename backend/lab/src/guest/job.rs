//! A command that runs in a guest.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{Guest, Output, gate::Sending, lock};
use crate::error::{Error, Result};
use crate::guest::channel::{Barrier, Channel, Event, Request, Silence};

/// Bytes of a command's output that are kept: the end of it, and up to twice as much in between.
const KEPT: usize = 16 << 20;

/// Time limit for a killed command to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// Event of a running command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// It runs, in the process group of this number.
    Started(i32),
    /// It has printed this, on either stream.
    Printed(Vec<u8>),
    /// Something that it has started waits at a barrier.
    Waits(Barrier),
    /// Something that it has started asks for a command of ibvswitch.
    Asks(Request),
    /// It has ended with this status; 128 + signal if a signal ended it.
    Ended(i32),
}

/// A command that runs in a guest. Dropping it kills the command, with all it started.
pub struct Job<'guest> {
    guest: &'guest Guest,
    /// Taken when the guest's end can no longer be trusted to listen.
    channel: Option<Channel>,
    id: u32,
    /// Until the guest has answered.
    sending: Option<Sending<'guest>>,
    pid: Option<i32>,
    command: String,
    output: Vec<u8>,
    status: Option<i32>,
}

impl fmt::Debug for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("guest", &self.guest.name())
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl<'guest> Job<'guest> {
    pub(super) fn new(
        guest: &'guest Guest,
        channel: Channel,
        id: u32,
        command: &str,
        sending: Sending<'guest>,
    ) -> Self {
        Self {
            guest,
            channel: Some(channel),
            id,
            sending: Some(sending),
            pid: None,
            command: command.into(),
            output: Vec::new(),
            status: None,
        }
    }
}

impl Job<'_> {
    /// Returns the output of the command so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    /// Waits until `deadline` for the next event of the command; `None` after that.
    pub fn news(&mut self, deadline: Instant) -> Result<Option<News>> {
        match self.next(deadline) {
            Ok(news) => Ok(Some(news)),
            Err(Silence::TimeLimit) => Ok(None),
            Err(silence) => {
                self.channel = None;
                Err(self.guest.silent(silence, "while a command ran"))
            }
        }
    }

    /// Kills the command, and says whether that is known to have ended it.
    pub fn stop(mut self) -> bool {
        self.kill();
        self.status.is_some()
    }

    /// Waits for the command's end; past `limit` it is killed, and that is an error.
    pub fn wait(mut self, limit: Duration) -> Result<Output> {
        let deadline = Instant::now() + limit;
        while self.status.is_none() {
            self.advance(deadline, "finish", limit)?;
        }
        Ok(Output {
            status: self.status.unwrap_or_default(),
            text: self.text(),
        })
    }

    /// Waits until the command has printed `text`; past `limit`, or if the command ends before,
    /// that is an error.
    pub fn await_text(&mut self, text: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !self.text().contains(text) {
            if self.status.is_some() {
                return Err(self.ended());
            }
            self.advance(deadline, &format!("print {text:?}"), limit)?;
        }
        Ok(())
    }

    /// Waits until something in the guest listens on TCP port `port`; an error past `limit`, or if
    /// the command ends before.
    pub fn await_port(&mut self, port: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while self.pid.is_none() {
            self.advance(deadline, "start", limit)?;
        }
        let pid = self.pid.unwrap_or_default();
        let awaited = self.guest.run(&format!("await-port {port} {pid}"), limit)?;
        if awaited.status == 0 {
            return Ok(());
        }
        while self.status.is_none() {
            self.advance(deadline, "finish", limit)?;
        }
        Err(self.ended())
    }

    /// That the command has ended, as an error.
    fn ended(&self) -> Error {
        Error::Command {
            guest: self.guest.name().into(),
            command: self.command.clone(),
            status: self.status.unwrap_or_default(),
            output: self.text(),
        }
    }

    /// Whether the command still runs, as far as the guest has said.
    pub fn running(&mut self) -> Result<bool> {
        Ok(!self.ends_within(Duration::ZERO)?)
    }

    /// Whether the command ends within `limit`; it goes on if it does not.
    pub fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let deadline = Instant::now() + limit;
        while self.status.is_none() {
            match self.event(deadline) {
                Ok(()) => {}
                Err(Silence::TimeLimit) => return Ok(false),
                Err(silence) => return Err(self.guest.silent(silence, &self.command)),
            }
        }
        Ok(true)
    }

    /// Runs the client of which this command is the server to its end. Both have to succeed; gives
    /// what server and client printed. If either fails the other is not waited for.
    pub fn with_client(
        mut self,
        client: &Guest,
        command: &str,
        limit: Duration,
    ) -> Result<[String; 2]> {
        const OTHER_END: Duration = Duration::from_secs(5);
        let deadline = Instant::now() + limit;
        let mut calling = client.spawn(command)?;
        let mut failed = false;
        while !calling.ends_within(Duration::from_millis(200))? && !failed {
            failed = self.status.is_some_and(|status| status != 0) || Instant::now() > deadline;
            self.ends_within(Duration::ZERO)?;
        }
        failed |= calling.status != Some(0);
        let limit = if failed { OTHER_END } else { limit };
        let ends = [self, calling].map(|mut end| {
            let ended = end.ends_within(limit);
            ended.map(|ended| {
                (
                    end.describe(ended),
                    ended && end.status == Some(0),
                    end.text(),
                )
            })
        });
        match ends {
            [Ok((_, true, served)), Ok((_, true, called))] => Ok([served, called]),
            [Ok((server, ..)), Ok((client, ..))] => Err(Error::Exchange { server, client }),
            [Err(error), _] | [_, Err(error)] => Err(error),
        }
    }

    /// The command, how it ended, and what it printed.
    fn describe(&self, ended: bool) -> String {
        let end = match self.status {
            Some(status) if ended => format!("ended with status {status}"),
            _ => "did not end in time".into(),
        };
        format!(
            "`{}` in guest {} {end}\n{}",
            self.command,
            self.guest.name(),
            self.text()
        )
    }

    fn advance(&mut self, deadline: Instant, awaited: &str, limit: Duration) -> Result<()> {
        match self.event(deadline) {
            Ok(()) => Ok(()),
            Err(Silence::TimeLimit) => {
                self.kill();
                Err(Error::TimeLimit {
                    guest: self.guest.name().into(),
                    command: self.command.clone(),
                    awaited: awaited.into(),
                    limit,
                    output: self.text(),
                })
            }
            Err(silence) => {
                self.channel = None;
                Err(self.guest.silent(silence, &self.command))
            }
        }
    }

    /// Takes in one event, and keeps what it says.
    fn event(&mut self, deadline: Instant) -> std::result::Result<(), Silence> {
        if let News::Printed(bytes) = self.next(deadline)? {
            self.output.extend(bytes);
            // A guest prints as much as it likes.
            if self.output.len() > 2 * KEPT {
                let over = self.output.len() - KEPT;
                self.output.drain(..over);
            }
        }
        Ok(())
    }

    fn next(&mut self, deadline: Instant) -> std::result::Result<News, Silence> {
        loop {
            let channel = self.channel.as_mut().ok_or(Silence::Closed)?;
            match channel.event(deadline)? {
                Event::Output(bytes) => return Ok(News::Printed(bytes)),
                Event::Barrier(barrier) => return Ok(News::Waits(barrier)),
                Event::Control(request) => return Ok(News::Asks(request)),
                Event::Pid(id, pid) if id == self.id => {
                    self.sending = None;
                    self.pid = Some(pid);
                    return Ok(News::Started(pid));
                }
                Event::Exit(id, status) if id == self.id => {
                    self.status = Some(status);
                    return Ok(News::Ended(status));
                }
                // Another command's records can only be left over from before a restart.
                Event::Pid(..) | Event::Exit(..) => {}
                Event::Hello => {
                    let lost = std::io::Error::other("the guest has restarted");
                    return Err(Silence::Io(lost));
                }
            }
        }
    }

    /// Kills the command with all it started, and waits for its end.
    fn kill(&mut self) {
        let deadline = Instant::now() + KILL_LIMIT;
        while self.pid.is_none() && self.status.is_none() {
            if self.event(deadline).is_err() {
                self.channel = None;
                return;
            }
        }
        let Some(pid) = self.pid.filter(|_| self.status.is_none()) else {
            return;
        };
        let killed = self.guest.run(&format!("kill -KILL -- -{pid}"), KILL_LIMIT);
        while killed.is_ok() && self.status.is_none() {
            if self.event(deadline).is_err() {
                break;
            }
        }
        if self.status.is_none() {
            self.channel = None;
        }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.status.is_none() && self.channel.is_some() {
            self.kill();
        }
        if let Some(channel) = self.channel.take() {
            lock(&self.guest.channels).push(channel);
        }
    }
}
