//! What comes through to a VM over time, as the daemon counts it, and a picture of it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ibvswitch_guest_tests::{Error, Result, daemon::Daemon, error::Doing};
use serde_json::Value;
use simulate::plot::{Figure, Line, Panel};

/// Where to write the picture; without it nothing is measured.
const PLOT: &str = "IBVSWITCH_PLOT";
/// What one point of the picture stands for.
const INTERVAL: Duration = Duration::from_millis(50);
/// How much is shown before and after a move, in seconds.
const MARGIN: f64 = 3.0;

/// Seconds since the beginning, and bytes that have been sent by then.
type Samples = Vec<(f64, u64)>;

/// Reads again and again what a VF has sent.
pub struct Gauge {
    began: Instant,
    /// Seconds at which moves began and ended.
    moves: Vec<[f64; 2]>,
    reading: Option<(PathBuf, Arc<AtomicBool>, JoinHandle<Result<Samples>>)>,
}

fn samples(socket: &Path, vf: &str, began: Instant, ends: &AtomicBool) -> Result<Samples> {
    let mut samples = Vec::new();
    let mut stream = UnixStream::connect(socket).at("connect to", socket)?;
    let mut lines = BufReader::new(stream.try_clone().at("share", socket)?).lines();
    while !ends.load(Ordering::Relaxed) {
        let asked = stream.write_all(b"{\"request\":\"status\"}\n");
        asked.at("write to", socket)?;
        let line = lines.next().transpose().at("read", socket)?;
        let status: Value = serde_json::from_str(&line.unwrap_or_default()).unwrap_or_default();
        let vfs = status["vfs"].as_array().into_iter().flatten();
        let bytes = { vfs.filter(|it| it["name"] == vf) }
            .find_map(|it| it["counters"]["xmit_bytes"].as_u64());
        samples.extend(bytes.map(|bytes| (began.elapsed().as_secs_f64(), bytes)));
        thread::sleep(INTERVAL);
    }
    Ok(samples)
}

impl Gauge {
    /// Begins, where a picture is wanted.
    pub fn start(daemon: &Daemon, vf: &'static str) -> Self {
        let began = Instant::now();
        let reading = env::var_os(PLOT).map(|file| {
            let (socket, ends) = (daemon.control(), Arc::new(AtomicBool::new(false)));
            let until = Arc::clone(&ends);
            let thread = thread::spawn(move || samples(&socket, vf, began, &until));
            (file.into(), ends, thread)
        });
        Self {
            began,
            moves: Vec::new(),
            reading,
        }
    }

    /// Seconds since it began.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// That a move began then, and has ended now.
    pub fn mark(&mut self, began: f64) {
        self.moves.push([began, self.now()]);
    }

    /// Draws the picture.
    pub fn end(self) -> Result<()> {
        let Some((file, ends, thread)) = self.reading else {
            return Ok(());
        };
        ends.store(true, Ordering::Relaxed);
        let samples = thread.join();
        let samples = samples.map_err(|_| Error::Host("the gauge has failed".into()))??;
        let panels = { self.moves.iter() }.map(|&[from, to]| panel(&samples, from, to));
        let figure = Figure {
            title: "Four queue pairs write into a VM that moves".into(),
            panels: panels.collect(),
        };
        let svg = { figure.svg() }.map_err(|error| Error::Host(error.to_string()))?;
        fs::write(&file, svg).at("write", &file)
    }
}

/// A move that began and ended then.
fn panel(samples: &Samples, from: f64, to: f64) -> Panel {
    let shown = |at: f64| from - MARGIN <= at && at <= to + MARGIN;
    let rates = { samples.windows(2) }.filter(|pair| shown(pair[1].0));
    let rates = rates.map(|pair| {
        let [(before, had), (now, has)] = [pair[0], pair[1]];
        let rate = has.saturating_sub(had) as f64 / 1e6 / (now - before);
        (now - from, rate)
    });
    let rates: Vec<_> = rates.collect();
    let most = rates.iter().map(|point| point.1).fold(0.0, f64::max);
    let runs = vec![(0.0, 0.0), (0.0, most), (to - from, most), (to - from, 0.0)];
    Panel::lines(
        "ib_write_bw",
        "seconds since the command began",
        "MB/s",
        vec![
            Line::joined("written", rates),
            Line::joined("vm migrate runs", runs),
        ],
    )
}
