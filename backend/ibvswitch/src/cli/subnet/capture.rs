//! `ibvswitch capture`

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use wire::erf;

use crate::capture::{PART_HEADER, PART_MAX, RECORD, SUMMARY, Summary, Wish};
use crate::cli::text::number::{at_least, whole};
use crate::cli::{CliError, SourceArgs, print_json, usage};
use crate::control::{Client, Request, Response};

/// Arguments of `capture`.
#[derive(Debug, Args)]
#[command(after_help = "\
Management packets are shown as they cross the links of the ports; data packets, with --data, as
the packets that local messages would be on a link. A packet is recorded at each port: with ERF
interface 0 where it leaves a port, 1 where it reaches one. LIDs are the subnet's own. The capture
ends with --count, --duration, Ctrl-C, or its reader.

Examples:
  ibvswitch capture | tshark -r -
  ibvswitch capture --data | wireshark -k -i -
  ibvswitch capture --vf vm1 --data -w vm1.pcap --duration 10")]
pub(crate) struct CaptureArgs {
    /// Capture at the port of this VF; may be given several times. Without it and --manager: at
    /// every VF and the subnet manager.
    #[arg(long, value_name = "NAME")]
    vf: Vec<String>,
    /// Capture at the port of the subnet manager.
    #[arg(long)]
    manager: bool,
    /// Show data packets as well.
    #[arg(long)]
    data: bool,
    /// Bytes of payload to keep of each data packet.
    #[arg(long, value_name = "BYTES", default_value_t = 4096, value_parser = whole(0..=4096u32))]
    snaplen: u32,
    /// File to write, in pcap format; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    write: PathBuf,
    /// End after this many packets.
    #[arg(long, value_name = "N", value_parser = at_least(1u64))]
    count: Option<u64>,
    /// End after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Print the summary as JSON; needs --write FILE.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(source: SourceArgs, args: &CaptureArgs) -> Result<(), CliError> {
    let to_stdout = args.write.as_os_str() == "-";
    if to_stdout && io::stdout().is_terminal() {
        return Err(usage(
            &["capture"],
            "a capture is binary and not for a terminal; write it to a file with `-w FILE`, or add \
             `| tshark -r -`",
        ));
    }
    if to_stdout && args.json {
        return Err(usage(
            &["capture"],
            "with --json, standard output is for the summary; write the capture to a file with \
             `-w FILE`",
        ));
    }
    let control = source.control_socket()?;
    // Which VFs there are, the daemon knows: its configuration may be another one.
    let wish = Wish {
        vfs: args.vf.clone(),
        manager: args.manager,
        data: args.data,
        snaplen: args.snaplen,
    };
    let mut client = Client::connect(&control)?;
    // From here on, so that an interrupted capture is a whole one.
    let signals = take_signals()?;
    let Response::Capture {} = client.ask(&Request::Capture(wish))? else {
        return Err(CliError::UnexpectedResponse);
    };
    let (stream, early) = client.into_stream();
    let mut out: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(&args.write).map_err(|error| {
            CliError::Failed(format!(
                "cannot write {}: {error}; name a file in a directory where this user may write",
                args.write.display()
            ))
        })?)
    };
    out.write_all(&erf::file_header())?;
    out.flush()?;
    if !to_stdout {
        // Traffic that starts now is captured from its first packet on.
        eprintln!("capturing to {}", args.write.display());
    }
    // A time that no clock reaches is none.
    let until = args
        .duration
        .and_then(|duration| Instant::now().checked_add(duration));
    let mut reader = Reader {
        stream,
        buffer: early,
        left: args.count,
        written: 0,
        out,
    };
    let mut summary = reader.run(&signals, until)?;
    // Packets that the daemon sent after the last one wanted do not count.
    summary.packets = reader.written;
    if args.json {
        return print_json(&summary);
    }
    eprintln!(
        "{} packets captured, {} lost, {} left out",
        summary.packets, summary.lost, summary.left_out
    );
    Ok(())
}

fn take_signals() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?)
}

struct Reader {
    stream: UnixStream,
    /// Bytes that have been received, and not yet parsed.
    buffer: Vec<u8>,
    /// Packets still wanted.
    left: Option<u64>,
    written: u64,
    out: Box<dyn Write>,
}

impl Reader {
    /// Writes records until the daemon says what the capture came to.
    fn run(&mut self, signals: &SignalFd, until: Option<Instant>) -> Result<Summary, CliError> {
        let mut ending = false;
        loop {
            if let Some(summary) = self.parts()? {
                return Ok(summary);
            }
            let enough = self.left == Some(0) || until.is_some_and(|until| Instant::now() >= until);
            if !ending && (enough || self.wait(signals, until)?) {
                ending = true;
                self.stream.shutdown(Shutdown::Write)?;
            }
            self.receive(ending)?;
        }
    }

    /// Waits for something to read; true when a signal came or the time is over.
    fn wait(&self, signals: &SignalFd, until: Option<Instant>) -> Result<bool, CliError> {
        let mut waited = [
            PollFd::new(self.stream.as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
        ];
        let timeout = match until {
            None => PollTimeout::NONE,
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                // Not before the time is over.
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        match poll(&mut waited, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let is_ready = |at: usize| waited[at].any().unwrap_or(false);
        Ok(is_ready(1) || !is_ready(0) && until.is_some_and(|until| Instant::now() >= until))
    }

    fn receive(&mut self, wait: bool) -> Result<(), CliError> {
        self.stream.set_nonblocking(!wait)?;
        let mut bytes = [0; 1 << 16];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(CliError::Failed(
                "the daemon ended the capture; see its log".to_owned(),
            )),
            Ok(count) => {
                self.buffer.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(CliError::Failed(format!(
                "the daemon's capture cannot be read: {error}"
            ))),
        }
    }

    /// Writes the whole records that have been received; returns the summary, if it has come.
    fn parts(&mut self) -> Result<Option<Summary>, CliError> {
        let mut at = 0;
        let mut summary = None;
        while let Some(header) = self.buffer[at..].first_chunk::<PART_HEADER>() {
            let &[kind, a, b, c, d] = header;
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            if length > PART_MAX {
                return Err(CliError::UnexpectedResponse);
            }
            let start = at + PART_HEADER;
            let Some(content) = self.buffer.get(start..start + length) else {
                break;
            };
            at = start + length;
            match kind {
                RECORD if self.left != Some(0) => {
                    self.out.write_all(content)?;
                    self.written += 1;
                    self.left = self.left.map(|left| left - 1);
                }
                RECORD => {}
                SUMMARY => {
                    let read = serde_json::from_slice(content);
                    summary = Some(read.map_err(|_| CliError::UnexpectedResponse)?);
                }
                _ => return Err(CliError::UnexpectedResponse),
            }
        }
        self.buffer.drain(..at);
        self.out.flush()?;
        Ok(summary)
    }
}

/// A time in seconds, not 0, with or without a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds).ok()?;
        (!time.is_zero()).then_some(time)
    });
    time.ok_or_else(|| "write seconds, such as 10 or 0.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_none() {
        for text in ["0", "-1", "nan", "inf", "1e30", "", "1 s"] {
            assert_eq!(
                seconds(text),
                Err("write seconds, such as 10 or 0.5".to_owned()),
                "{text}"
            );
        }
        assert_eq!(seconds("0.2"), Ok(Duration::from_millis(200)));
    }
}
