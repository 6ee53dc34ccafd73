//! perftest between two guests.

use std::{fmt, time::Duration};

use crate::{
    error::{Error, Result},
    guest::Guest,
};

/// One of perftest's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as the programs are")]
pub enum Tool {
    SendLat,
    WriteLat,
    ReadLat,
    AtomicLat,
    SendBw,
    WriteBw,
    ReadBw,
    AtomicBw,
}

impl Tool {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SendLat,
        Self::WriteLat,
        Self::ReadLat,
        Self::AtomicLat,
        Self::SendBw,
        Self::WriteBw,
        Self::ReadBw,
        Self::AtomicBw,
    ];

    /// Whether it measures latency; bandwidth otherwise.
    pub fn is_latency(self) -> bool {
        matches!(
            self,
            Self::SendLat | Self::WriteLat | Self::ReadLat | Self::AtomicLat
        )
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendLat => "ib_send_lat",
            Self::WriteLat => "ib_write_lat",
            Self::ReadLat => "ib_read_lat",
            Self::AtomicLat => "ib_atomic_lat",
            Self::SendBw => "ib_send_bw",
            Self::WriteBw => "ib_write_bw",
            Self::ReadBw => "ib_read_bw",
            Self::AtomicBw => "ib_atomic_bw",
        })
    }
}

/// One run of perftest.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program.
    pub tool: Tool,
    /// The device at both ends.
    pub device: String,
    /// The GID index; RoCE needs one.
    pub gid_index: Option<u8>,
    /// Further options, the same at both ends.
    pub options: Vec<String>,
}

/// One line of perftest's table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Message size in bytes.
    pub bytes: u64,
    /// Results.
    pub figures: Figures,
}

/// Results of perftest for one message size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figures {
    /// Latency, as perftest defines it (half a round trip for sends and writes).
    Latency {
        /// The median (`t_typical`) in µs.
        median_us: f64,
        /// The 99th percentile in µs.
        p99_us: f64,
    },
    /// Bandwidth.
    Bandwidth {
        /// The average in MiB/s, which is perftest's default unit.
        mib_per_s: f64,
        /// Messages per second.
        messages_per_s: f64,
    },
}

impl Run {
    /// A run of `tool` over `device` with default options.
    pub fn new(tool: Tool, device: &str) -> Self {
        Self {
            tool,
            device: device.into(),
            gid_index: None,
            options: Vec::new(),
        }
    }

    /// With further options, separated by spaces.
    pub fn with(mut self, options: &str) -> Self {
        self.options
            .extend(options.split_whitespace().map(str::to_owned));
        self
    }

    /// The command line at the server's end; the client's has the server's address besides.
    pub fn command(&self) -> String {
        // -F: processors of a guest change their clock or not, it is no concern of these tests.
        let mut command = format!("{} -F -d {}", self.tool, self.device);
        if let Some(index) = self.gid_index {
            command += &format!(" -x {index}");
        }
        for option in &self.options {
            command.push(' ');
            command += option;
        }
        command
    }

    /// Runs it between two guests, over TCP at port 18515 or what `-p` says; gives the client's
    /// table. Both ends have to succeed, in `limit` each.
    pub fn between(&self, server: &Guest, client: &Guest, limit: Duration) -> Result<Vec<Row>> {
        let command = self.command();
        let mut serving = server.spawn(&command)?;
        serving.await_port(self.port(), limit)?;
        let calling = format!("{command} {}", server.address());
        let [_, called] = serving.with_client(client, &calling, limit)?;
        parse(&called)
    }

    fn port(&self) -> &str {
        let flag = self.options.iter().position(|option| option == "-p");
        let port = flag.and_then(|at| self.options.get(at + 1));
        port.map_or("18515", String::as_str)
    }
}

/// Reads the tables in what a perftest program printed.
pub fn parse(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines();
    let header = lines
        .by_ref()
        .find(|line| line.trim_start().starts_with("#bytes"));
    let latency = header.is_some_and(|line| line.contains("t_typical[usec]"));
    // Before 6.0 it said MB and meant MiB.
    let bandwidth = header.is_some_and(|line| line.contains("BW average["));
    let rows: Vec<Row> = lines
        .take_while(|line| !line.starts_with("---"))
        .filter_map(|line| parse_row(line, latency, bandwidth))
        .collect();
    if rows.is_empty() {
        return Err(Error::Output {
            what: "perftest table".into(),
            text: text.into(),
        });
    }
    Ok(rows)
}

fn parse_row(line: &str, latency: bool, bandwidth: bool) -> Option<Row> {
    let words: Option<Vec<f64>> = line
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    let (bytes, figures) = match words?.as_slice() {
        // #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
        [bytes, _, _, _, typical, _, _, p99, _] if latency => (
            *bytes,
            Figures::Latency {
                median_us: *typical,
                p99_us: *p99,
            },
        ),
        // #bytes #iterations peak average MsgRate[Mpps]
        [bytes, _, _, average, rate] if bandwidth => (
            *bytes,
            Figures::Bandwidth {
                mib_per_s: *average,
                messages_per_s: *rate * 1e6,
            },
        ),
        _ => return None,
    };
    Some(Row {
        bytes: bytes as u64,
        figures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As perftest 25.01 prints them (RESULT_FMT_LAT, REPORT_FMT_LAT, RESULT_FMT, REPORT_FMT).
    const LATENCY: &str = "\
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x79a6ef
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          150.02         2151.01      256.50             266.10         60.12          480.25                  2151.01
---------------------------------------------------------------------------------------
";
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected
 2          5000             0.03               0.02                 0.012500
 65536      1000             17.20              15.11                0.000242
---------------------------------------------------------------------------------------
";

    #[test]
    fn latency_table() {
        let figures = Figures::Latency {
            median_us: 256.50,
            p99_us: 480.25,
        };
        assert_eq!(parse(LATENCY).unwrap(), [Row { bytes: 2, figures }]);
    }

    #[test]
    fn bandwidth_table_with_a_warning_inside() {
        let rows = parse(BANDWIDTH).unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[1].bytes, 65536);
        let figures = Figures::Bandwidth {
            mib_per_s: 0.02,
            messages_per_s: 12500.0,
        };
        assert_eq!(rows[0].figures, figures);
    }

    #[test]
    fn no_table_is_an_error() {
        assert!(parse("Couldn't connect to 10.0.0.1:18515\n").is_err());
    }

    #[test]
    fn command_line_and_port() {
        let mut run = Run::new(Tool::SendBw, "rxe0").with("-s 64 -p 7000");
        run.gid_index = Some(1);
        assert_eq!(run.command(), "ib_send_bw -F -d rxe0 -x 1 -s 64 -p 7000");
        assert_eq!(run.port(), "7000");
        assert_eq!(Run::new(Tool::ReadLat, "mlx5_0").port(), "18515");
    }
}
