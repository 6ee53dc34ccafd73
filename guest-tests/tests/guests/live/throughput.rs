//! Throughput of a VM over time while it moves, as the daemon counts it, and a picture of it.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ibvswitch_guest_tests::{Error, Result, error::Doing, progress};
use serde_json::Value;
use simulator::plot::{Figure, Line, Panel};

use super::{
    scene::{PLACES, Scene},
    traffic::{Pair, Traffic},
};

/// Where to write the picture.
const PLOT: &str = "IBVSWITCH_PLOT";
/// Time between two points of the picture.
const INTERVAL: Duration = Duration::from_millis(100);
/// Points before and after the move.
const MARGIN: usize = 30;

/// Seconds since the beginning, and bytes that have been sent by then.
type Samples = Vec<(f64, u64)>;

/// The daemon's counter of what a VF has sent.
struct Counter {
    stream: UnixStream,
    lines: std::io::Lines<BufReader<UnixStream>>,
    began: Instant,
}

impl Counter {
    fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).at("connect to", socket)?;
        let lines = BufReader::new(stream.try_clone().at("share", socket)?).lines();
        let began = Instant::now();
        Ok(Self {
            stream,
            lines,
            began,
        })
    }

    fn read(&mut self, vf: &str) -> Result<(f64, u64)> {
        let asked = self.stream.write_all(b"{\"request\":\"status\"}\n");
        asked.doing("ask the daemon")?;
        let line = self.lines.next().transpose().doing("hear the daemon")?;
        let line = line.unwrap_or_default();
        let status: Value = serde_json::from_str(&line).unwrap_or_default();
        let mut vfs = status["vfs"].as_array().into_iter().flatten();
        let bytes = vfs.find(|it| it["name"] == vf);
        let bytes = bytes.and_then(|it| it["counters"]["xmit_bytes"].as_u64());
        let bytes = bytes.ok_or_else(|| Error::Output {
            what: "counter".into(),
            text: line,
        })?;
        Ok((self.began.elapsed().as_secs_f64(), bytes))
    }
}

#[test]
#[ignore = "a measurement"]
fn throughput_through_a_move() -> Result<()> {
    let (scene, vm) = Scene::new()?;
    let pair = Pair {
        vm: &vm,
        peer: &scene.peer,
    };
    let mut traffic = Traffic::bandwidth("write", "ib_write_bw -q 16", 18600, 60, &vm);
    traffic.keep(pair)?;
    let mut counter = Counter::open(&scene.daemon.control())?;
    let first = counter.read("vm2")?.1;
    while counter.read("vm2")?.1 < first + (64 << 20) {
        thread::sleep(INTERVAL);
    }
    let has_moved = AtomicBool::new(false);
    let (samples, vm, [from, to]) = thread::scope(|scope| {
        let reading = scope.spawn(|| -> Result<Samples> {
            let mut samples = Samples::new();
            let mut after = 0;
            while after < MARGIN {
                samples.push(counter.read("vm2")?);
                after += usize::from(has_moved.load(Ordering::Relaxed));
                thread::sleep(INTERVAL);
            }
            Ok(samples)
        });
        let began = Instant::now();
        thread::sleep(INTERVAL * MARGIN as u32);
        let from = began.elapsed().as_secs_f64();
        let moved = scene.migrate(vm, "hv2", PLACES[1]);
        let to = began.elapsed().as_secs_f64();
        has_moved.store(true, Ordering::Relaxed);
        let samples = reading.join();
        let samples = samples.map_err(|_| Error::Host("the counter was not read".into()))??;
        let (vm, report) = moved?;
        progress::step(&report);
        Ok::<_, Error>((samples, vm, [from, to]))
    })?;
    let start = samples.first().map_or(0.0, |sample| sample.0);
    if let Some(file) = env::var_os(PLOT) {
        let svg = figure(&samples, start + from, start + to).svg();
        let svg = svg.map_err(|error| Error::Host(error.to_string()))?;
        fs::write(&file, svg).at("write", file.as_ref())?;
    }
    traffic.finish(Pair {
        vm: &vm,
        peer: &scene.peer,
    })
}

/// A move between these times.
fn figure(samples: &Samples, from: f64, to: f64) -> Figure {
    let rates = samples.windows(2).map(|pair| {
        let [(before, had), (now, has)] = [pair[0], pair[1]];
        let rate = has.saturating_sub(had) as f64 / 1e6 / (now - before);
        (now - from, rate)
    });
    let rates: Vec<_> = rates.collect();
    let most = rates.iter().map(|point| point.1).fold(0.0, f64::max);
    let end = to - from;
    let runs = vec![(0.0, 0.0), (0.0, most), (end, most), (end, 0.0)];
    let lines = vec![
        Line::joined("sixteen queue pairs of ib_write_bw", rates),
        Line::joined("vm migrate runs", runs),
    ];
    let title = "What comes through to a VM that moves";
    Figure {
        title: title.into(),
        panels: vec![Panel::lines("", "seconds", "MB/s", lines)],
    }
}
