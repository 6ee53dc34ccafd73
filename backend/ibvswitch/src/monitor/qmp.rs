//! QEMU's monitor, over QMP (QEMU's docs/interop/qmp-spec.rst).

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::MonitorError;
use super::line::Lines;

/// Time limit of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// Events that are kept until somebody waits for them; of more, the eldest are forgotten.
const EVENTS: usize = 256;

/// A connected monitor.
#[derive(Debug)]
pub struct Qmp {
    lines: Lines,
    /// Events that came while a command was answered.
    events: VecDeque<Value>,
}

impl Qmp {
    /// Connects to a monitor's socket. One client at a time is served: another one waits here.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn connect(socket: &Path) -> Result<Self, MonitorError> {
        let mut qmp = Self {
            lines: Lines::connect(socket)?,
            events: VecDeque::new(),
        };
        let greeting = qmp.message(Instant::now() + COMMAND_TIMEOUT)?;
        if greeting.get("QMP").is_none() {
            let answer = greeting.to_string();
            return Err(qmp.lines.refused("is no monitor", answer));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command; what it returns.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, MonitorError> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.lines.send(&request.to_string(), COMMAND_TIMEOUT)?;
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        loop {
            let mut message = self.message(deadline)?;
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = message.get("error") {
                let why = error.get("desc").and_then(Value::as_str);
                let why = why.map_or_else(|| error.to_string(), str::to_owned);
                return Err(self.lines.refused(format!("refused `{command}`"), why));
            }
            if self.events.len() >= EVENTS {
                self.events.pop_front();
            }
            self.events.push_back(message);
        }
    }

    /// Executes a command of the monitor for people; what it prints.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn human(&mut self, command: &str) -> Result<String, MonitorError> {
        let arguments = json!({ "command-line": command });
        let text = self.execute("human-monitor-command", arguments)?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Whether, and why not, the VM runs: `running`, `paused`, `inmigrate`, `postmigrate` and others.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn status(&mut self) -> Result<String, MonitorError> {
        let status = self.execute("query-status", json!({}))?;
        Ok(text_at(&status, "status"))
    }

    /// Waits for an event that `wanted` takes something out of; others pass.
    ///
    /// # Errors
    /// [`MonitorError::Lost`] at `deadline`, and when the QEMU goes.
    pub fn await_event<T>(
        &mut self,
        deadline: Instant,
        mut wanted: impl FnMut(&str, &Value) -> Option<T>,
    ) -> Result<T, MonitorError> {
        loop {
            let message = match self.events.pop_front() {
                Some(message) => message,
                None => self.message(deadline)?,
            };
            let name = text_at(&message, "event");
            if let Some(found) = wanted(&name, &message["data"]) {
                return Ok(found);
            }
        }
    }

    /// Waits until the state of the migration is one of these.
    ///
    /// # Errors
    /// As of [`Qmp::await_event`].
    pub fn await_migration(
        &mut self,
        deadline: Instant,
        states: &[&str],
    ) -> Result<String, MonitorError> {
        self.await_event(deadline, |event, data| {
            let state = text_at(data, "status");
            (event == "MIGRATION" && states.contains(&&*state)).then_some(state)
        })
    }

    /// An error about what this QEMU said.
    pub fn refused(&self, what: impl Into<String>, answer: impl Into<String>) -> MonitorError {
        self.lines.refused(what, answer)
    }

    fn message(&mut self, deadline: Instant) -> Result<Value, MonitorError> {
        let line = self.lines.receive(deadline)?;
        serde_json::from_str(&line).map_err(|_| self.lines.refused("is no monitor", line))
    }
}

/// A text in a message; nothing where there is none.
fn text_at(value: &Value, key: &str) -> String {
    let text = value.get(key).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}
