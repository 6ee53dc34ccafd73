//! OpenSM on the same subnet, in the simulator ibsim: what its routing engines write into the
//! switches, and how long they take.
//!
//! The time is the engine's alone, from OpenSM's own log and its time stamps in microseconds: it begins with
//! the line `building routing with …` of `osm_ucast_mgr.c`, and ends when the first packet is prepared that sets a
//! switch (`Setting SwitchInfo …`, of `osm_req.c`). OpenSM does both in one thread, one after the other; neither
//! discovery nor the distribution of the tables lies between, nor any packet.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, io};

use fabric::Topology;
use subnet_manager::routing::Roles;
use subnet_manager::{Graph, Mistake, Routing};
use wire::Guid;

use crate::network::TooManyLids;

mod dump;
pub mod netlist;
mod program;
mod torus;

pub use program::{Ibsim, Program, command};

/// Time limit of OpenSM for a subnet, discovery included.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Where libumad2sim is on machines of this kind.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/aarch64-linux-gnu/umad2sim/libumad2sim.so",
];

/// Why there is nothing of OpenSM's.
#[derive(Debug, thiserror::Error)]
pub enum OpenSmError {
    /// A program, or the library between them, is not there.
    #[error("{what} is missing; install the packages opensm, ibsim-utils and libumad2sim0")]
    Missing {
        /// The missing program.
        what: &'static str,
    },
    /// A program ended before it had done its work.
    #[error("{program} ended too early; the last it said was: {said}")]
    Ended {
        /// The program.
        program: &'static str,
        /// Its last line.
        said: String,
    },
    /// A program was not done in time.
    #[error("{program} was not done after {} s", limit.as_secs())]
    TooLong {
        /// The program.
        program: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// There is no adapter for OpenSM to be at.
    #[error("the subnet has no channel adapter that OpenSM could be at")]
    NoAdapter,
    /// A file of OpenSM's cannot be read.
    #[error("OpenSM's forwarding tables: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Dump(Vec<Mistake>),
    /// OpenSM has left out a port.
    #[error("OpenSM's forwarding tables have no LID of port {0:#}")]
    NoLid(Guid),
    /// Too large.
    #[error(transparent)]
    TooManyLids(#[from] TooManyLids),
    /// The system did not let us.
    #[error("cannot {what}: {source}")]
    System {
        /// The failed action.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> OpenSmError {
    move |source| OpenSmError::System { what, source }
}

/// Times of OpenSM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// The engine that routed: another one than asked for if that one could not.
    pub used: String,
    /// From beginning to route to the first packet to a switch.
    pub time: Duration,
}

/// Results of OpenSM's routing of a topology.
#[derive(Debug)]
pub struct Routed {
    /// The graph with the LIDs that OpenSM gave.
    pub graph: Graph,
    /// The tables that it wrote into the switches. Its service levels are not known.
    pub routing: Routing,
    /// The file of its tables from service levels to lanes, if it wrote one.
    pub lanes: Option<String>,
    /// The engine that routed: another one than asked for if that one could not.
    pub used: String,
    /// From beginning to route to the first packet to a switch.
    pub time: Duration,
}

/// Where libumad2sim is.
///
/// # Errors
/// [`OpenSmError::Missing`].
pub fn library() -> Result<&'static Path, OpenSmError> {
    let mut known = LIBRARIES.iter().map(Path::new);
    known
        .find(|path| path.exists())
        .ok_or(OpenSmError::Missing {
            what: "libumad2sim",
        })
}

/// Has OpenSM route a topology with one of its engines (`minhop`, `updn`, `ftree`, `dfsssp`, `lash`,
/// `dor` and others) as far as the first packet to a switch.
///
/// # Errors
/// [`OpenSmError`].
pub fn time(topology: &Topology, engine: &str) -> Result<Timed, OpenSmError> {
    Run::start(topology, engine, &Roles::default(), Log::Times)?.timed
}

/// The same to the end, with the tables. In a fat-tree nodes have these roles.
///
/// # Errors
/// [`OpenSmError`].
pub fn route(topology: &Topology, engine: &str, roles: &Roles) -> Result<Routed, OpenSmError> {
    let mut run = Run::start(topology, engine, roles, Log::Tables)?;
    let Timed { used, time } = run.timed?;
    run.opensm.wait(run.deadline)?;
    let text = fs::read_to_string(run.dir.path().join("opensm-lfts.dump"));
    let text = text.map_err(system("read what OpenSM wrote into the switches"))?;
    let (graph, routing) = dump::read(topology, &text)?;
    Ok(Routed {
        lanes: fs::read_to_string(run.dir.path().join("opensm-sl2vl.dump")).ok(),
        graph,
        routing,
        used,
        time,
    })
}

/// Level of OpenSM's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    Times,
    Tables,
}

/// A run of both programs, at the point where OpenSM has routed.
struct Run {
    timed: Result<Timed, OpenSmError>,
    opensm: Program,
    deadline: Instant,
    _ibsim: Ibsim,
    dir: tempfile::TempDir,
}

impl Run {
    fn start(
        topology: &Topology,
        engine: &str,
        roles: &Roles,
        log: Log,
    ) -> Result<Self, OpenSmError> {
        let deadline = Instant::now() + LIMIT;
        let dir = tempfile::tempdir().map_err(system("create a directory"))?;
        let path = |name| dir.path().join(name);
        let file = path("subnet.net");
        fs::write(&file, netlist::write(topology)).map_err(system("write a file of nodes"))?;
        let host = netlist::host(topology).ok_or(OpenSmError::NoAdapter)?;
        let mut arguments: Vec<&str> = Vec::new();
        let mut torus_options = String::new();
        if engine == "torus-2QoS"
            && let Some(text) = torus::config(&crate::graph(topology)?)
        {
            fs::write(path("torus-2QoS.conf"), text)
                .map_err(system("write OpenSM's configuration"))?;
            torus_options = format!("torus_config {}\n", path("torus-2QoS.conf").display());
            // Without it OpenSM writes none of the lanes that it needs.
            arguments.push("-Q");
        }
        // Of all that OpenSM can log only the two ends of what is timed.
        let modules = path("modules");
        fs::write(&modules, "osm_ucast_mgr.c 0x07\nosm_req.c 0x0f\n")
            .and_then(|()| {
                let mut options = format!("per_module_logging_file {}\n", modules.display());
                options += &torus_options;
                let compute = roles.compute.iter().flatten();
                for (option, guids) in [
                    ("root_guid_file", roles.roots.iter().copied().collect()),
                    ("cn_guid_file", dump::translate(topology, compute)),
                    ("io_guid_file", dump::translate(topology, &roles.io)),
                ] {
                    let lines: Vec<String> =
                        guids.iter().map(|guid| format!("{guid:#}\n")).collect();
                    if !lines.is_empty() {
                        fs::write(path(option), lines.concat())?;
                        options += &format!("{option} {}\n", path(option).display());
                    }
                }
                fs::write(path("opensm.conf"), options + "force_log_flush TRUE\n")
            })
            .map_err(system("write OpenSM's configuration"))?;
        let ibsim = Ibsim::start(topology, &file, deadline)?;
        let mut command = command(library()?, ibsim.socket(), &host, dir.path());
        command
            .arg("-F")
            .arg(path("opensm.conf"))
            .args(arguments)
            .args(["-R", engine, "--once", "-f", "-", "-D"])
            .arg(match log {
                Log::Times => "0x03",
                Log::Tables => "0x43",
            })
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        let mut opensm = Program::start("opensm", &mut command)?;
        let mut reading = Reading::default();
        let timed = opensm.find(deadline, move |line| reading.line(line));
        Ok(Self {
            timed,
            opensm,
            deadline,
            _ibsim: ibsim,
            dir,
        })
    }
}

/// State of reading the log.
#[derive(Debug, Default)]
struct Reading {
    /// The engine at work, and since when.
    engine: Option<(String, Duration)>,
}

impl Reading {
    /// Takes a line; says what was done with the line that shows it.
    fn line(&mut self, line: &str) -> Option<Timed> {
        if let Some((_, rest)) = line.split_once("building routing with '") {
            let name = rest.split('\'').next().unwrap_or_default();
            self.engine = Some((name.to_owned(), time_of_day(line)?));
            return None;
        }
        let sets =
            line.contains("Setting SwitchInfo") || line.contains("Setting LinearForwardingTable");
        let (engine, began) = self.engine.as_ref().filter(|_| sets)?;
        let day = Duration::from_secs(24 * 60 * 60);
        let now = time_of_day(line)?;
        // Midnight may have passed.
        let now = if now < *began { now + day } else { now };
        Some(Timed {
            used: engine.clone(),
            time: now - *began,
        })
    }
}

/// The time in `Nov 21 22:18:27 721842 [293436C0] 0x04 -> …`.
fn time_of_day(line: &str) -> Option<Duration> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let (clock, micros) = (words.next()?, words.next()?);
    let mut seconds = 0;
    for part in clock.split(':') {
        seconds = seconds * 60 + part.parse::<u64>().ok()?;
    }
    Some(Duration::from_secs(seconds) + Duration::from_micros(micros.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILDS: &str = "Nov 21 23:59:59 721842 [293436C0] 0x04 -> ucast_mgr_route: building routing \
                          with 'ftree' routing algorithm...";
    const FALLS_BACK: &str = "Nov 21 23:59:59 800000 [293436C0] 0x04 -> ucast_mgr_route: building \
                              routing with 'minhop' routing algorithm...";
    const GETS: &str = "Nov 21 23:59:59 900000 [2A] 0x08 -> osm_prepare_req_set: Setting PortInfo \
                        (0x15), modifier 0x1, TID 0x28c4a, MKey 0x0000000000000000";
    const SETS: &str = "Nov 22 00:00:06 232132 [293436C0] 0x08 -> osm_prepare_req_set: Setting \
                        SwitchInfo (0x12), modifier 0x0, TID 0x28c4a, MKey 0x0000000000000000";

    #[test]
    fn from_the_engine_to_the_first_packet() {
        let mut reading = Reading::default();
        for line in [SETS, BUILDS, GETS] {
            assert_eq!(reading.line(line), None, "{line}");
        }
        let timed = reading.line(SETS).unwrap();
        assert_eq!(timed.used, "ftree");
        assert_eq!(timed.time, Duration::from_micros(6_510_290));
    }

    #[test]
    fn the_engine_that_routes_is_the_one_timed() {
        let mut reading = Reading::default();
        for line in [BUILDS, FALLS_BACK, "something else"] {
            assert_eq!(reading.line(line), None, "{line}");
        }
        let timed = reading.line(SETS).unwrap();
        assert_eq!(timed.used, "minhop");
        assert_eq!(timed.time, Duration::from_micros(6_432_132));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut command = std::process::Command::new("no-such-program");
        let error = Program::start("it", &mut command).unwrap_err().to_string();
        assert!(error.contains("it is missing; install"), "{error}");
    }
}
