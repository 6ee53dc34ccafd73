//! Results of the demo: as tables, and as data.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::hca::Hca;
use crate::shared_memory;
use crate::tools::perftest::{Figures, Tool};

/// All that the demo found out. Its JSON form is what `--json` writes.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The guests.
    pub guests: Vec<GuestReport>,
    /// The measurements.
    pub tests: Vec<Measurement>,
    /// Speed of memory that both guests share, and mlx5's share of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<Comparison>,
    /// Kind of doorbells: `trap`, `poll` or `adaptive`.
    pub doorbells: String,
    /// For each test measured over both transports, how many times better mlx5 was: latency of
    /// rxe over that of mlx5, bandwidth of mlx5 over that of rxe.
    pub ratios: BTreeMap<String, f64>,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// The guests' kernel, as `uname -r` says it.
    pub kernel: String,
    /// The version of QEMU.
    pub qemu: String,
}

/// One guest and its HCA.
#[derive(Debug, Clone, Serialize)]
pub struct GuestReport {
    /// The guest's name.
    pub name: String,
    /// Its HCA.
    #[serde(flatten)]
    pub hca: Hca,
}

/// Memory that both guests have, beside mlx5.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Comparison {
    /// Results of guests with such memory.
    #[serde(flatten)]
    pub figures: shared_memory::Figures,
    /// Median latency of ib_write_lat over that of the memory.
    pub guest_write_lat_over_shared_memory: Option<f64>,
    /// Bandwidth of ib_write_bw with 64 KiB over that of copies.
    pub guest_write_bw_over_shared_memory: Option<f64>,
}

impl Comparison {
    /// Compares.
    pub fn of(figures: shared_memory::Figures, tests: &[Measurement]) -> Self {
        let of = |tool: Tool, bytes: u64| {
            let name = tool.to_string();
            let mut tests = tests.iter();
            tests.find(|test| {
                test.transport == Transport::Mlx5 && test.tool == name && test.bytes == bytes
            })
        };
        let latency = of(Tool::WriteLat, 2).and_then(|test| test.median_us);
        let bandwidth = of(Tool::WriteBw, 65536).and_then(|test| test.mb_per_s);
        Self {
            figures,
            guest_write_lat_over_shared_memory: latency.map(|it| it / figures.median_us),
            guest_write_bw_over_shared_memory: bandwidth.map(|it| it / figures.mib_per_s),
        }
    }
}

/// Transport of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// The device under test.
    Mlx5,
    /// Soft-RoCE over virtio-net.
    Rxe,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mlx5 => "mlx5",
            Self::Rxe => "rxe",
        })
    }
}

/// One test over one transport: the median of its rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    /// The program, as `ib_send_lat`.
    pub tool: String,
    /// The message size in bytes.
    pub bytes: u64,
    /// Transport of the messages.
    pub transport: Transport,
    /// Median latency in µs.
    pub median_us: Option<f64>,
    /// 99th percentile of latency in µs.
    pub p99_us: Option<f64>,
    /// Average bandwidth in perftest's default unit, 2^20 bytes per second.
    pub mb_per_s: Option<f64>,
}

impl Measurement {
    /// The median of several rounds of one test. `None` without rounds.
    pub fn of(tool: Tool, bytes: u64, transport: Transport, rounds: &[Figures]) -> Option<Self> {
        let latency = |which: fn(f64, f64) -> f64| {
            median(rounds.iter().filter_map(|figures| match figures {
                Figures::Latency { median_us, p99_us } => Some(which(*median_us, *p99_us)),
                Figures::Bandwidth { .. } => None,
            }))
        };
        let bandwidth = median(rounds.iter().filter_map(|figures| match figures {
            Figures::Bandwidth {
                mib_per_s,
                messages_per_s,
            } => {
                // For small messages the table's two decimals say little, its rate says more.
                let by_rate = messages_per_s * bytes as f64 / f64::from(1 << 20);
                Some(if *mib_per_s < 10.0 {
                    by_rate
                } else {
                    *mib_per_s
                })
            }
            Figures::Latency { .. } => None,
        }));
        if rounds.is_empty() {
            return None;
        }
        Some(Self {
            tool: tool.to_string(),
            bytes,
            transport,
            median_us: latency(|median_us, _| median_us),
            p99_us: latency(|_, p99_us| p99_us),
            mb_per_s: bandwidth,
        })
    }

    /// The name of the test, apart from the transport.
    fn key(&self) -> String {
        // Bandwidth of small messages stands for the message rate.
        match (self.mb_per_s, self.bytes) {
            (Some(_), bytes) if bytes < 1024 => format!("{}_{bytes}b", self.tool),
            _ => self.tool.clone(),
        }
    }
}

/// The middle value; the upper one of the two in the middle of an even number.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Returns the ratios of mlx5 to rxe, for each test that both have.
pub fn ratios(tests: &[Measurement]) -> BTreeMap<String, f64> {
    let mut ratios = BTreeMap::new();
    for mlx5 in tests
        .iter()
        .filter(|test| test.transport == Transport::Mlx5)
    {
        let rxe = tests
            .iter()
            .find(|test| test.transport == Transport::Rxe && test.key() == mlx5.key());
        let Some(rxe) = rxe else {
            continue;
        };
        let ratio = match (mlx5.median_us, rxe.median_us, mlx5.mb_per_s, rxe.mb_per_s) {
            (Some(mlx5), Some(rxe), _, _) => rxe / mlx5,
            (_, _, Some(mlx5), Some(rxe)) => mlx5 / rxe,
            _ => continue,
        };
        if ratio.is_finite() {
            ratios.insert(mlx5.key(), (ratio * 10.0).round() / 10.0);
        }
    }
    ratios
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for guest in &self.guests {
            let hca = &guest.hca;
            writeln!(f, "{}", guest.name)?;
            writeln!(f, "    driver      {} ({})", hca.driver, hca.link_layer)?;
            writeln!(f, "    state       {}", hca.state)?;
            writeln!(f, "    LID         {0} (0x{0:04x})", hca.lid)?;
            writeln!(f, "    port GUID   {}", hca.port_guid)?;
            writeln!(f, "    P_Keys      {}", hca.pkeys.join(" "))?;
            writeln!(f, "    SM LID      {}", hca.sm_lid)?;
        }
        for transport in [Transport::Mlx5, Transport::Rxe] {
            let tests = || self.tests.iter().filter(|test| test.transport == transport);
            if tests().next().is_none() {
                continue;
            }
            writeln!(f)?;
            let header = [
                "perftest",
                "bytes",
                "median µs",
                "p99 µs",
                "MB/s",
                "times better",
            ];
            let [tool, bytes, median, p99, mb, times] = header;
            write!(f, "{:<22}{bytes:>7}", format!("{tool}, {transport}"))?;
            write!(f, "{median:>12}{p99:>12}{mb:>10}")?;
            let compared = transport == Transport::Mlx5 && !self.ratios.is_empty();
            writeln!(
                f,
                "{}",
                if compared {
                    format!("{times:>15}")
                } else {
                    String::new()
                }
            )?;
            for test in tests() {
                write!(f, "{:<22}{:>7}", test.tool, test.bytes)?;
                write!(f, "{:>12}", number(test.median_us))?;
                write!(f, "{:>12}", number(test.p99_us))?;
                write!(f, "{:>10}", number(test.mb_per_s))?;
                match self.ratios.get(&test.key()) {
                    Some(ratio) if compared => writeln!(f, "{ratio:>15.1}")?,
                    _ => writeln!(f)?,
                }
            }
        }
        if let Some(shared) = &self.shared_memory {
            let figures = &shared.figures;
            write!(f, "\n{:<22}{:>7}", "memory of both guests", 8)?;
            write!(f, "{:>12}", number(Some(figures.median_us)))?;
            writeln!(f, "{:>12}{:>10}", number(Some(figures.p99_us)), "–")?;
            write!(
                f,
                "{:<22}{:>7}{:>12}{:>12}",
                "copies to it", 65536, "–", "–"
            )?;
            writeln!(f, "{:>10}", number(Some(figures.mib_per_s)))?;
            writeln!(
                f,
                "ib_write_lat takes {} times as long as a write to it, and ib_write_bw moves {} times as much",
                number(shared.guest_write_lat_over_shared_memory),
                number(shared.guest_write_bw_over_shared_memory)
            )?;
        }
        writeln!(f)?;
        let Self {
            kernel,
            doorbells,
            qemu,
            accelerator,
            ..
        } = self;
        writeln!(
            f,
            "guests: kernel {kernel}, QEMU {qemu}, accelerator {accelerator}; doorbells {doorbells}"
        )
    }
}

fn number(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(value) if value < 10.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(median_us: f64) -> Figures {
        Figures::Latency {
            median_us,
            p99_us: 2.0 * median_us,
        }
    }

    fn bandwidth(mib_per_s: f64, messages_per_s: f64) -> Figures {
        Figures::Bandwidth {
            mib_per_s,
            messages_per_s,
        }
    }

    fn report() -> Report {
        let of = |tool, bytes, transport, rounds: &[Figures]| {
            Measurement::of(tool, bytes, transport, rounds).unwrap()
        };
        let (mlx5, rxe) = (Transport::Mlx5, Transport::Rxe);
        let tests = vec![
            of(
                Tool::SendLat,
                2,
                mlx5,
                &[latency(90.0), latency(20.0), latency(30.0)],
            ),
            of(Tool::WriteBw, 2, mlx5, &[bandwidth(0.4, 200_000.0)]),
            of(Tool::WriteBw, 65536, mlx5, &[bandwidth(900.0, 14_400.0)]),
            of(Tool::SendLat, 2, rxe, &[latency(300.0)]),
            of(Tool::WriteBw, 2, rxe, &[bandwidth(0.03, 10_000.0)]),
            of(Tool::WriteBw, 65536, rxe, &[bandwidth(30.0, 480.0)]),
        ];
        Report {
            guests: Vec::new(),
            shared_memory: None,
            doorbells: "trap".into(),
            ratios: ratios(&tests),
            tests,
            accelerator: "tcg".into(),
            kernel: "6.12".into(),
            qemu: "11.1.3".into(),
        }
    }

    #[test]
    fn ratios_say_how_many_times_better() {
        let expected = [
            ("ib_send_lat", 10.0),
            ("ib_write_bw", 30.0),
            ("ib_write_bw_2b", 20.0),
        ];
        let expected = expected.map(|(name, ratio)| (name.to_owned(), ratio));
        assert_eq!(report().ratios, BTreeMap::from(expected));
    }

    #[test]
    fn json_has_null_where_nothing_was_measured() {
        let json = serde_json::to_value(report()).unwrap();
        let test = &json["tests"][0];
        assert_eq!(test["transport"], "mlx5");
        assert_eq!(test["median_us"], 30.0);
        assert_eq!(test["p99_us"], 60.0);
        assert!(test["mb_per_s"].is_null() && test.get("mb_per_s").is_some());
    }

    #[test]
    fn tables_for_people() {
        let text = report().to_string();
        assert!(text.contains("perftest, mlx5"), "{text}");
        assert!(
            text.lines()
                .any(|line| line.starts_with("ib_send_lat") && line.ends_with("10.0")),
            "{text}"
        );
    }
}
