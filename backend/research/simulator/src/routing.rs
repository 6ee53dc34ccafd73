//! Routing engines on a topology: how long they take, and what walking their tables shows.

use std::time::Instant;

use fabric::Topology;
use serde::Serialize;
use subnet_manager::routing::{Fault, Roles, RoutingChoice, Verdict};
use subnet_manager::{Graph, MinHop, Routing, RoutingEngine, RoutingError};
use wire::Lid;
use wire::attribute::NodeType;

use crate::network::shape::{InParts, connected};
use crate::network::{TooManyLids, graph, with_hypervisors};
use crate::opensm::{self, OpenSmError};
use crate::progress::{Progress, Step};
use crate::quality::{Bandwidth, QualityError, Traffic, effective_bandwidth};

/// Data lanes that most adapters have.
const LANES: u8 = 8;

/// The names of all engines that compute paths themselves, which are OpenSM's where it has the engine.
#[must_use]
pub fn engines() -> Vec<&'static str> {
    let computing = RoutingChoice::NAMES
        .iter()
        .filter(|(_, choice)| choice.engine(LANES).is_some());
    computing.map(|&(name, _)| name).collect()
}

/// A new engine of this name.
#[must_use]
pub fn engine(name: &str) -> Option<Box<dyn RoutingEngine>> {
    RoutingChoice::named(name)?.engine(LANES)
}

/// Parameters of a study: topology and engines.
#[derive(Debug)]
pub struct Study<'a> {
    /// The nodes and cables.
    pub topology: &'a Topology,
    /// Name of the topology.
    pub name: &'a str,
    /// Names of engines.
    pub engines: &'a [&'static str],
    /// In place of each of so many adapters, or of all, a hypervisor with so many virtual functions.
    pub hypervisors: Option<(Option<usize>, u8)>,
    /// Traffic between the adapters, of which the bandwidth is wanted.
    pub traffic: Option<Demand>,
    /// Whether OpenSM is to route the same topology with its engines of these names.
    pub compare_opensm: bool,
}

/// Traffic to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Pattern of traffic.
    pub traffic: Traffic,
    /// Draws, where it is random.
    pub draws: usize,
    /// Decides them.
    pub seed: u64,
}

/// Results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Name of the topology.
    pub topology: String,
    /// Switches, vSwitches among them.
    pub switches: usize,
    /// LIDs, those of switches among them.
    pub lids: usize,
    /// LIDs at adapters.
    pub adapters: usize,
    /// Cables between switches.
    pub cables: usize,
    /// By engine.
    pub engines: Vec<Row>,
    /// Remarks on the topology.
    pub remarks: Vec<String>,
}

/// Results of an engine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The engine that was asked for.
    pub engine: &'static str,
    /// Why it could not, so that `minhop` did it in its place, as with OpenSM.
    pub fallback: Option<String>,
    /// From the graph to the tables, in one thread, in seconds.
    pub seconds: f64,
    /// Results of walking the tables.
    pub walk: Walk,
    /// Results of walking OpenSM's tables.
    pub opensm: Option<OpenSm>,
}

/// Results of OpenSM with its engine of the same name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OpenSm {
    /// The engine that it used in the end.
    pub used: String,
    /// From beginning to route to the first packet to a switch, in seconds.
    pub seconds: f64,
    /// Its tables. Of its service levels nothing is known, so nothing of lanes and deadlock either.
    pub walk: Walk,
}

/// Results of walking tables from every switch to every LID: [`Verdict`] as data.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Walk {
    /// Paths that arrive.
    pub arriving: u64,
    /// Paths that do not.
    pub failing: u64,
    /// The first of these.
    pub faults: Vec<String>,
    /// Paths longer than they must be.
    pub detours: u64,
    /// Paths by the number of links between switches on them.
    pub hops: Vec<u64>,
    /// Their mean number.
    pub mean_hops: f64,
    /// Virtual lanes in use.
    pub lanes: Option<u8>,
    /// Whether packets could wait for each other for ever; the lane and the number of channels that
    /// do, in words.
    pub deadlock: Option<String>,
    /// Paths between adapters per direction of a cable between switches: the fewest on one.
    pub least_load: u64,
    /// The mean.
    pub mean_load: f64,
    /// The most on one.
    pub largest_load: u64,
    /// The standard deviation.
    pub load_deviation: f64,
    /// Bandwidth with the requested traffic.
    pub bandwidth: Option<Bandwidth>,
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The cables leave nodes out.
    #[error(transparent)]
    InParts(#[from] InParts),
    /// Fewer adapters than hypervisors.
    #[error("{asked} hypervisors; the topology has {adapters} adapters, give at most as many")]
    Hypervisors {
        /// Asked for.
        asked: usize,
        /// Adapters that hypervisors can replace.
        adapters: usize,
    },
    /// Nothing to route.
    #[error("there is no switch in it; routing is between switches")]
    NoSwitch,
    /// Too large.
    #[error(transparent)]
    TooManyLids(#[from] TooManyLids),
    /// Not even the engine to fall back on.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// No traffic.
    #[error(transparent)]
    Quality(#[from] QualityError),
    /// Nothing to compare with.
    #[error(transparent)]
    OpenSm(#[from] OpenSmError),
}

impl Study<'_> {
    /// Runs it.
    ///
    /// # Errors
    /// [`StudyError`].
    pub fn run(&self, progress: Progress<'_>) -> Result<Outcome, StudyError> {
        let nodes = self.topology.nodes();
        if !nodes.iter().any(|node| node.kind == NodeType::Switch) {
            return Err(StudyError::NoSwitch);
        }
        connected(self.topology)?;
        let mut graph = graph(self.topology)?;
        if let Some((asked, functions)) = self.hypervisors {
            let adapters = graph.endpoints.iter().filter(|end| end.port != 0).count();
            let hosts = asked.unwrap_or(adapters);
            if hosts > adapters {
                return Err(StudyError::Hypervisors {
                    asked: hosts,
                    adapters,
                });
            }
            graph = with_hypervisors(&graph, hosts, functions)?;
        }
        let theirs = |name: &str| {
            self.compare_opensm
                && RoutingChoice::named(name).is_some_and(RoutingChoice::is_in_opensm)
        };
        let of = self.engines.len() + self.engines.iter().filter(|name| theirs(name)).count();
        let mut done = 0;
        let mut tell = |what: &str| {
            progress(Step { what, done, of });
            done += 1;
        };
        let mut rows = Vec::new();
        for &name in self.engines {
            tell(name);
            let mut row = self.row(&graph, name)?;
            if theirs(name) {
                tell(&format!("OpenSM's {name}"));
                let routed = opensm::route(self.topology, name, &Roles::default())?;
                let mut walk = self.walk(&routed.graph, &routed.routing)?;
                (walk.lanes, walk.deadlock) = (None, None);
                row.opensm = Some(OpenSm {
                    used: routed.used,
                    seconds: routed.time.as_secs_f64(),
                    walk,
                });
            }
            rows.push(row);
        }
        let at_adapters = graph.endpoints.iter().filter(|endpoint| endpoint.port != 0);
        let trunks = graph.switches.iter().map(|vertex| vertex.trunks.len());
        Ok(Outcome {
            topology: self.name.to_owned(),
            switches: graph.switches.len(),
            lids: graph.endpoints.len(),
            adapters: at_adapters.count(),
            cables: trunks.sum::<usize>() / 2,
            engines: rows,
            remarks: Vec::new(),
        })
    }
}

impl Row {
    /// The engine that was asked for and, in brackets, the one that took its place.
    #[must_use]
    pub fn name(&self) -> String {
        by_another(self.engine, self.fallback.as_ref().map(|_| "minhop"))
    }
}

/// An engine's name and, in brackets, the engine that routed in its place.
pub(crate) fn by_another(engine: &str, used: Option<&str>) -> String {
    match used.filter(|used| *used != engine) {
        Some(used) => format!("{engine} ({used})"),
        None => engine.to_owned(),
    }
}

impl Study<'_> {
    fn row(&self, graph: &Graph, name: &'static str) -> Result<Row, StudyError> {
        let engine = engine(name).unwrap_or_else(|| Box::new(MinHop));
        let (routing, fallback, seconds) = match timed(engine.as_ref(), graph) {
            Ok((routing, seconds)) => (routing, None, seconds),
            Err(error) => {
                let (routing, seconds) = timed(&MinHop, graph)?;
                (routing, Some(error.reason), seconds)
            }
        };
        Ok(Row {
            engine: name,
            fallback,
            seconds,
            walk: self.walk(graph, &routing)?,
            opensm: None,
        })
    }

    fn walk(&self, graph: &Graph, routing: &Routing) -> Result<Walk, StudyError> {
        let mut walk = Walk::new(graph, routing);
        if let Some(demand) = self.traffic {
            let at_adapters = graph.endpoints.iter().filter(|endpoint| endpoint.port != 0);
            let lids: Vec<Lid> = at_adapters.map(|endpoint| endpoint.lid).collect();
            let Demand {
                traffic,
                draws,
                seed,
            } = demand;
            let tables = &[routing.tables.as_slice()];
            let found = effective_bandwidth(graph, tables, &lids, traffic, draws, seed)?;
            walk.bandwidth = found.first().copied();
        }
        Ok(walk)
    }
}

/// Tables, and the seconds that they took; of what takes no time the least of several.
fn timed(engine: &dyn RoutingEngine, graph: &Graph) -> Result<(Routing, f64), RoutingError> {
    const SHORT: f64 = 0.05;
    let time = || {
        let start = Instant::now();
        let routing = engine.route(graph)?;
        Ok::<_, RoutingError>((routing, start.elapsed().as_secs_f64()))
    };
    let (routing, mut seconds) = time()?;
    for _ in 0..2 {
        if seconds < SHORT {
            seconds = seconds.min(time()?.1);
        }
    }
    Ok((routing, seconds))
}

impl Walk {
    /// Walks tables.
    #[must_use]
    pub fn new(graph: &Graph, routing: &Routing) -> Self {
        let verdict = Verdict::new(graph, routing);
        let fault = |fault: &Fault| {
            let guid = graph.switches[fault.switch].guid;
            format!("LID {} from switch {guid}: {:?}", fault.lid, fault.what)
        };
        Self {
            arriving: verdict.arriving,
            failing: verdict.failing,
            faults: verdict.faults.iter().map(fault).collect(),
            detours: verdict.detours,
            mean_hops: verdict.mean_hops(),
            lanes: Some(verdict.lanes),
            deadlock: verdict.circle.as_ref().map(|circle| {
                let channels = circle.channels.len();
                format!(
                    "{channels} channels wait in a circle on lane {}",
                    circle.lane
                )
            }),
            least_load: verdict.loads.minimum,
            mean_load: verdict.loads.mean,
            largest_load: verdict.loads.maximum,
            load_deviation: verdict.loads.deviation,
            bandwidth: None,
            hops: verdict.hops,
        }
    }
}

#[cfg(test)]
mod tests {
    use topologies::Hosts;

    use super::*;
    use crate::{Shape, silent};

    fn run(shape: &str, engines: &[&'static str]) -> Result<Outcome, StudyError> {
        let parsed: Shape = shape.parse().unwrap();
        Study {
            topology: &parsed.topology(Hosts::Adapters, 1).unwrap(),
            name: shape,
            engines,
            hypervisors: None,
            traffic: Some(Demand {
                traffic: Traffic::Shift,
                draws: 1,
                seed: 1,
            }),
            compare_opensm: false,
        }
        .run(&silent)
    }

    #[test]
    fn all_engines_on_a_tree() {
        let outcome = run("XGFT(2;8,4;4,1)", &engines()).unwrap();
        assert_eq!((outcome.switches, outcome.lids), (12, 44));
        assert_eq!((outcome.adapters, outcome.cables), (32, 32));
        for row in &outcome.engines {
            assert_eq!((row.walk.failing, row.walk.detours), (0, 0), "{row:?}");
            assert_eq!(row.walk.deadlock, None);
            // A shift in a whole tree blocks nobody that is routed for it.
            let shift = row.walk.bandwidth.unwrap().mean;
            assert!(row.engine != "ftree" || shift == 1.0, "{row:?}");
            let for_others = ["dor", "torus-2QoS", "dragonfly"];
            let is_for_others = for_others.contains(&row.engine);
            assert_eq!(row.fallback.is_some(), is_for_others);
        }
    }

    #[test]
    fn no_tree_is_routed_by_another() {
        let outcome = run("torus(4x4,1)", &["ftree", "minhop", "dor"]).unwrap();
        let [ftree, minhop, dor] = &outcome.engines[..] else {
            panic!("three engines");
        };
        assert!(ftree.fallback.is_some());
        assert_eq!([ftree, minhop].map(Row::name), ["ftree (minhop)", "minhop"]);
        assert_eq!(ftree.walk, minhop.walk);
        assert!(minhop.walk.deadlock.is_some());
        assert_eq!(
            (dor.walk.deadlock.as_ref(), dor.walk.lanes),
            (None, Some(4))
        );
    }
}
