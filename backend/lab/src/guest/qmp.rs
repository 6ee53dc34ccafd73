//! QEMU's monitor, over QMP (docs/interop/qmp-spec.rst of QEMU).

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde_json::{Value, json};

use crate::error::{Doing, Error, Result};

/// Time limit of the monitor for an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// A connected monitor.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Takes over a connected socket: reads the greeting and enters command mode.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream
            .set_read_timeout(Some(LIMIT))
            .doing("set a time limit for the monitor")?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        qmp.message()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command; gives what it returns.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        let stream = self.stream.get_mut();
        writeln!(stream, "{request}").doing(format_args!("send {command} to the monitor"))?;
        loop {
            let mut message = self.message()?;
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
            if let Some(error) = message.get("error") {
                return Err(Error::Output {
                    what: format!("success of monitor command {command}"),
                    text: error.to_string(),
                });
            }
            // Anything else is an event, which nobody here waits for.
        }
    }

    /// Waits for an event that `wanted` takes something out of; others pass.
    pub fn await_event<T>(&mut self, mut wanted: impl FnMut(&Value) -> Option<T>) -> Result<T> {
        loop {
            let message = self.message()?;
            if let Some(found) = wanted(&message) {
                return Ok(found);
            }
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .doing("read from the monitor")?;
        serde_json::from_str(&line).map_err(|_| Error::Output {
            what: "QMP message".into(),
            text: line,
        })
    }
}
