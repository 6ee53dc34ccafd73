//! `ibvswitch capture`, and tshark to read what it wrote.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    daemon::Daemon,
    error::{Doing, Error, Result},
};

/// A capture under way; dropping it ends it.
#[derive(Debug)]
pub struct Capture {
    file: PathBuf,
    child: Child,
}

/// A capture that has ended.
#[derive(Debug)]
pub struct Packets(PathBuf);

impl Capture {
    /// Starts `ibvswitch capture` with `options`, which goes to `file`, and waits until it captures.
    pub fn start(daemon: &Daemon, options: &[&str], file: PathBuf) -> Result<Self> {
        let mut command = daemon.command();
        command
            .arg("capture")
            .args(options)
            .arg("--write")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let child = command.spawn().doing("start ibvswitch capture")?;
        let mut capture = Self { file, child };
        // It says when it has begun, or why it cannot.
        let mut said = String::new();
        if let Some(stderr) = &mut capture.child.stderr {
            let mut lines = BufReader::new(stderr);
            lines.read_line(&mut said).doing("read what it says")?;
        }
        if said.starts_with("capturing to ") {
            Ok(capture)
        } else {
            Err(Error::Host(said))
        }
    }

    /// Ends it as by Ctrl-C.
    pub fn end(self) -> Result<Packets> {
        self.interrupt();
        self.ended()
    }

    /// Waits for its end, where `options` say when that is. It has to end well.
    pub fn ended(mut self) -> Result<Packets> {
        let status = self.child.wait().doing("wait for ibvswitch capture")?;
        if status.success() {
            Ok(Packets(self.file.clone()))
        } else {
            Err(Error::Host(format!("ibvswitch capture: {status}")))
        }
    }

    fn interrupt(&self) {
        // Fails only for a process that is already gone.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT);
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.interrupt();
            let _ = self.child.wait();
        }
    }
}

impl Packets {
    /// Some fields of the packets that a display filter lets through, as tshark reads them; an error if
    /// there is no such packet, or one without such a field.
    pub fn fields<const N: usize>(
        &self,
        filter: &str,
        fields: [&str; N],
    ) -> Result<Vec<[String; N]>> {
        let mut command = Command::new("tshark");
        command.arg("-r").arg(&self.0);
        // It takes checksums on trust otherwise.
        for protocol in ["ip", "tcp"] {
            command.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
        }
        command.args(["-Y", filter, "-T", "fields"]);
        for field in fields {
            command.args(["-e", field]);
        }
        let output = command
            .output()
            .map_err(|error| Error::Host(format!("cannot start tshark: {error}; install it")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let unexpected = || Error::Output {
            what: format!("{fields:?} of packets with {filter}, from tshark"),
            text: text.clone().into_owned(),
        };
        let mut packets = Vec::new();
        for line in text.lines() {
            let values: Vec<String> = line.split('\t').map(str::to_owned).collect();
            packets.push(values.try_into().map_err(|_| unexpected())?);
        }
        if packets.is_empty() {
            Err(unexpected())
        } else {
            Ok(packets)
        }
    }

    /// The same, of fields that are numbers of 16 bits.
    pub fn numbers<const N: usize>(
        &self,
        filter: &str,
        fields: [&str; N],
    ) -> Result<Vec<[u16; N]>> {
        let packets = self.fields(filter, fields)?;
        packets.iter().map(numbers).collect()
    }
}

/// Numbers as tshark prints them, in hexadecimal with `0x`, or in decimal.
pub fn numbers<const N: usize>(fields: &[String; N]) -> Result<[u16; N]> {
    let mut numbers = [0; N];
    for (number, field) in numbers.iter_mut().zip(fields) {
        let parsed = match field.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16),
            None => field.parse(),
        };
        *number = parsed.map_err(|_| Error::Output {
            what: "numbers from tshark".into(),
            text: fields.join(" "),
        })?;
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_either_base() {
        let fields = |fields: [&str; 2]| fields.map(str::to_owned);
        assert_eq!(numbers(&fields(["0x0035", "12"])).unwrap(), [0x35, 12]);
        assert!(numbers(&fields(["1", "0x12345"])).is_err());
    }
}
