//! The subnet manager on large subnets: fat-trees of 36-port switches in this process.
//!
//! Every packet goes hop by hop through the fabric, whose nodes answer as they do for any other
//! manager; the time is the manager's and the fabric's together.

use std::time::{Duration, Instant};

use fabric::{Fabric, Station};
use subnet_manager::{Config, MinHop, SubnetManager};
use topologies::{FatTree, Hosts};
use wire::attribute::NodeType;

use crate::daemons::pace::median;
use crate::management::opensm::{self, Compared};

use crate::{BenchError, Context, Effort, Measurement, Reference, Result};

/// 648 hosts at 36 leaves under 18 roots, and 5832 hosts at 324 leaves of 972 switches in three
/// levels: the sizes measured in *Towards the InfiniBand SR-IOV vSwitch Architecture*.
const MEDIUM: &str = "XGFT(2;36,18;18,1)";
const LARGE: &str = "XGFT(3;18,18,18;18,18,1)";
/// For a look whether everything works.
const TINY: &str = "XGFT(2;4,2;2,1)";

/// Costs of the embedded manager for a subnet.
#[derive(Debug, Clone, Copy)]
pub struct Embedded {
    /// Ports with a LID that are Active in the end.
    pub active: usize,
    /// From the first packet to the last port Active, all being Initialize before.
    pub cold_start: Duration,
    /// A light sweep in which nothing has changed.
    pub light_sweep: Duration,
    /// A full sweep in which nothing has changed.
    pub full_sweep: Duration,
}

/// Brings a fat-tree up with the embedded manager at its first host, and sweeps it again.
///
/// # Errors
/// [`BenchError::Subnet`] when ports stay down or an unchanged subnet is not left alone.
pub fn embedded(tree: &FatTree) -> Result<Embedded> {
    let wrong = |what: String| BenchError::Subnet(what);
    let topology = tree.topology(Hosts::Adapters);
    let nodes = topology.nodes().iter();
    let port = nodes
        .filter(|node| node.kind == NodeType::ChannelAdapter)
        .find_map(|node| node.port_guids.first())
        .ok_or_else(|| wrong("a fat-tree without hosts".to_owned()))?;
    let mut fabric = Fabric::new(&topology).map_err(|error| wrong(error.to_string()))?;
    let port = fabric
        .port_by_guid(*port)
        .ok_or_else(|| wrong(format!("no port {port}")))?;
    let mut station = Station::of_manager(&mut fabric, port);
    let config = Config::default();
    let interval = config.sweep_interval;
    let mut manager =
        SubnetManager::new(config, Box::new(MinHop)).map_err(|error| wrong(error.to_string()))?;

    // Nothing is ever lost here, so that one poll is a whole sweep.
    let began = Instant::now();
    let mut now = Duration::ZERO;
    manager.poll(now, &mut station.at(&mut fabric));
    let cold_start = began.elapsed();
    let report = manager.report();
    let ports = tree.hosts() + tree.switches();
    if !manager.is_up() || report.active != ports || !report.errors.is_empty() {
        return Err(wrong(format!(
            "{} of {ports} ports are Active; {:?}",
            report.active, report.errors
        )));
    }
    let active = report.active;

    now += interval;
    let began = Instant::now();
    manager.poll(now, &mut station.at(&mut fabric));
    let light_sweep = began.elapsed();
    let report = manager.report();
    if (report.sweeps, report.light_sweeps) != (1, 1) {
        return Err(wrong("the light sweep was none".to_owned()));
    }

    manager.request_sweep();
    let began = Instant::now();
    manager.poll(now, &mut station.at(&mut fabric));
    let full_sweep = began.elapsed();
    let report = manager.report();
    if (report.sweeps, report.sets) != (2, 0) {
        return Err(wrong(format!(
            "a sweep of an unchanged subnet set {} attributes",
            report.sets
        )));
    }
    Ok(Embedded {
        active,
        cold_start,
        light_sweep,
        full_sweep,
    })
}

fn tree(spec: &str) -> Result<FatTree> {
    spec.parse()
        .map_err(|error| BenchError::Subnet(format!("{spec}: {error}")))
}

/// Measures it.
///
/// # Errors
/// [`crate::BenchError`].
pub fn run(context: &Context) -> Result<Vec<Measurement>> {
    let smoke = context.effort == Effort::SMOKE;
    let rounds = if smoke { 1 } else { 3 };
    let [medium, large] = [MEDIUM, LARGE].map(|spec| tree(if smoke { TINY } else { spec }));
    let runs =
        |tree: &FatTree| -> Result<Vec<Embedded>> { (0..rounds).map(|_| embedded(tree)).collect() };
    let (medium, large) = (medium?, large?);
    let opensm_medium = opensm::compare(&medium, if smoke { 1 } else { 5 })?;
    let opensm_large = opensm::compare(&large, if smoke { 1 } else { 2 })?;
    let (medium, large) = (runs(&medium)?, runs(&large)?);
    let ms = |runs: &[Embedded], of: fn(&Embedded) -> Duration| {
        median(runs.iter().map(|run| of(run).as_secs_f64() * 1e3).collect())
    };
    let result = |name, value| Measurement {
        name,
        value,
        unit: "ms",
        reference: None,
    };
    let over = |name, compared: &Compared| Measurement {
        name,
        value: compared.daemon_ms() / compared.ibsim_ms(),
        unit: "ratio",
        reference: Some(Reference {
            name: "OpenSM over ibsim, ms",
            value: compared.ibsim_ms(),
        }),
    };
    let embedded = ms(&medium, |run| run.cold_start);
    Ok(vec![
        over("opensm_648_over_ibsim", &opensm_medium),
        over("opensm_5832_over_ibsim", &opensm_large),
        Measurement {
            name: "sm_648_over_opensm",
            value: embedded / opensm_medium.ibsim_ms(),
            unit: "ratio",
            reference: Some(Reference {
                name: "OpenSM over ibsim, ms",
                value: opensm_medium.ibsim_ms(),
            }),
        },
        result("sm_cold_648_ms", embedded),
        result("sm_cold_5832_ms", ms(&large, |run| run.cold_start)),
        result("sm_full_5832_ms", ms(&large, |run| run.full_sweep)),
        result("sm_light_5832_ms", ms(&large, |run| run.light_sweep)),
    ])
}
