//! The SA flooder of *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets*: instances that ask for path records, each for the
//! next one when it has the last, in rounds of rising number.
//!
//! Loaders, fabric and subnet administration take turns on one thread. A query's response time counts from the moment when its
//! instance was to send it, so that the time in which it waits for its turn is part of it, as in the queue of a real one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use fabric::{Fabric, LinkRate, NodeSpec, Owner, PortRef, SmpAccess, Topology, TopologyError};
use serde::Serialize;
use subnet_manager::{Config, ConfigError, MinHop, SubnetManager};
use wire::mad::{Mad, Method, Status};
use wire::sa::{PathRecord, get};
use wire::{Gid, Guid, Lid, MadPacket, PKey, Sl};

use super::Managed;
use crate::{Progress, Step};

/// Loaders that may be asked for.
pub const MAX_LOADERS: u8 = 32;
/// Virtual functions of a hypervisor.
const FUNCTIONS: u8 = 16;
/// The last rounds of these are those at saturation.
const LAST: usize = 5;

/// Address model of the virtual functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// All instances of a host ask through its one port.
    SharedPort,
    /// Each function has a LID.
    VSwitch,
}

impl Model {
    /// Both with their names.
    pub const NAMES: [(&'static str, Self); 2] = [
        ("shared-port", Self::SharedPort),
        ("vswitch", Self::VSwitch),
    ];
}

/// Extent of the experiment.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Address model.
    pub model: Model,
    /// Hosts that load the subnet administration.
    pub loaders: u8,
    /// Instances that each loader adds in a round.
    pub step: u16,
    /// Number of rounds.
    pub rounds: u16,
    /// Duration of a round.
    pub length: Duration,
    /// Time between an answer and the next query of an instance.
    pub pause: Duration,
}

/// Responses in a round.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Responses {
    /// Queries that were answered in a second.
    pub rate: f64,
    /// Mean of the response times, in microseconds.
    pub mean_us: f64,
    /// Their median.
    pub median_us: f64,
    /// Their standard deviation.
    pub deviation_us: f64,
}

/// A round.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Round {
    /// Instances, the measuring one among them.
    pub instances: usize,
    /// Responses to all instances.
    pub all: Responses,
    /// Responses to the measuring instance.
    pub measuring: Responses,
    /// Queries that failed.
    pub failed: u64,
}

/// Result.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Address model.
    pub model: Model,
    /// Hosts that loaded the subnet administration.
    pub loaders: u8,
    /// Median of the rates of the last rounds.
    pub rate: f64,
    /// Standard deviation of these rates.
    pub deviation: f64,
    /// All rounds.
    pub rounds: Vec<Round>,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum FloodError {
    /// Nodes and cables do not fit.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A setting of the manager.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// No subnet.
    #[error("the subnet of the experiment does not come up: {0}")]
    NotUp(String),
}

/// An instance.
#[derive(Debug, Clone, Copy)]
struct Client {
    port: PortRef,
    lid: Lid,
    sgid: Gid,
    due: Instant,
}

/// The subnet, and all that ask in it.
struct Bed {
    model: Model,
    fabric: Fabric,
    managed: Managed,
    /// Ports by host.
    hosts: Vec<Vec<PortRef>>,
    /// Destinations.
    ends: Vec<Gid>,
    sm: Lid,
    began: Instant,
    clients: Vec<Client>,
    due: BinaryHeap<Reverse<(Instant, usize)>>,
}

const MANAGER: Guid = Guid::new(0x0002_c903_0000_0001);

impl Bed {
    fn new(model: Model, hosts: u8) -> Result<Self, FloodError> {
        let rate = LinkRate::default();
        let mut topology = Topology::new();
        let spec = NodeSpec::switch(Guid::new(0x0002_c903_0000_0002), hosts + 1, "switch");
        let switch = topology.add(spec);
        let manager = topology.add(NodeSpec::channel_adapter(MANAGER, MANAGER, "manager"));
        topology.link((switch, hosts + 1), (manager, 1), rate);
        let mut guids = Vec::new();
        for host in 1..=hosts {
            let own = 0x0002_c903_0001_0000 | u64::from(host) << 8;
            let own_guid = Guid::new(own);
            match model {
                Model::SharedPort => {
                    let node = topology.add(NodeSpec::shared_port(own_guid, FUNCTIONS, "host"));
                    topology.link((switch, host), (node, 1), rate);
                    guids.push(vec![own_guid]);
                }
                Model::VSwitch => {
                    let node = topology.add(NodeSpec::switch(own_guid, FUNCTIONS + 1, "vSwitch"));
                    topology.link((switch, host), (node, 1), rate);
                    let functions = (1..=FUNCTIONS).map(|function| {
                        let guid = Guid::new(own | u64::from(function));
                        let vf = topology.add(NodeSpec::virtual_function(guid, "VF"));
                        topology.link((node, function + 1), (vf, 1), rate);
                        guid
                    });
                    guids.push(functions.collect());
                }
            }
        }
        let mut fabric = Fabric::new(&topology)?;
        let not_there = || FloodError::NotUp("a port is not there".to_owned());
        let mut ports = Vec::new();
        for host in &guids {
            let found = host.iter().map(|&guid| fabric.port_by_guid(guid));
            ports.push(found.collect::<Option<Vec<_>>>().ok_or_else(not_there)?);
        }
        for &port in ports.iter().flatten() {
            fabric.set_owner(port, Owner::Consumer, SmpAccess::OwnPort);
        }
        let config = Config {
            sweep_interval: Duration::ZERO,
            path_caching: true,
            ..Config::default()
        };
        let prefix = config.gid_prefix;
        let manager = SubnetManager::new(config, Box::new(MinHop))?;
        let own = fabric.port_by_guid(MANAGER).ok_or_else(not_there)?;
        let mut managed = Managed::new(manager, own, &mut fabric);
        managed
            .until(&mut fabric, |manager| manager.is_up().then_some(()))
            .ok_or_else(|| FloodError::NotUp(managed.manager.report().errors.join("; ")))?;
        managed.station.others.clear();
        let sm = fabric.port_info(own).map_or(Lid::NONE, |info| info.lid);
        Ok(Self {
            model,
            fabric,
            managed,
            hosts: ports,
            ends: { guids.iter().flatten() }
                .map(|&guid| Gid::new(prefix, guid))
                .collect(),
            sm,
            began: Instant::now(),
            clients: Vec::new(),
            due: BinaryHeap::new(),
        })
    }

    /// Adds an instance at a host.
    fn add(&mut self, host: usize) {
        let ports = &self.hosts[host];
        let port = ports[self.clients.len() % ports.len()];
        let guid = self
            .fabric
            .guids(port)
            .and_then(|guids| guids.first().copied());
        let prefix = self.ends.first().map_or(0, |gid| gid.prefix());
        let now = Instant::now();
        self.due.push(Reverse((now, self.clients.len())));
        self.clients.push(Client {
            port,
            lid: self
                .fabric
                .port_info(port)
                .map_or(Lid::NONE, |info| info.lid),
            sgid: Gid::new(prefix, guid.unwrap_or_default()),
            due: now,
        });
    }

    /// Has an instance send its query.
    fn send(&mut self, number: usize, due: Instant) {
        let client = &mut self.clients[number];
        client.due = due;
        let template = PathRecord {
            sgid: client.sgid,
            dgid: self.ends[number % self.ends.len()],
            numb_path: 1,
            ..PathRecord::default()
        };
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
        let mad = get(number as u64, mask, &template);
        let key = PKey::DEFAULT_FULL;
        let packet = MadPacket::gmp(client.lid, self.sm, Sl::default(), key, mad);
        match self.model {
            Model::SharedPort => self.fabric.inject_for_function(client.port, packet),
            Model::VSwitch => self.fabric.inject(client.port, packet),
        };
    }

    fn round(&mut self, length: Duration, pause: Duration) -> Round {
        let began = Instant::now();
        let end = began + length;
        let (mut all, mut measuring, mut failed) = (Vec::new(), Vec::new(), 0);
        loop {
            let now = Instant::now();
            if now >= end {
                break;
            }
            match self.due.peek() {
                Some(&Reverse((due, number))) if due <= now => {
                    self.due.pop();
                    self.send(number, due);
                }
                next => {
                    let next = next.map_or(end, |&Reverse((due, _))| due.min(end));
                    std::thread::sleep(next.saturating_duration_since(now));
                    continue;
                }
            }
            self.managed.now = now - self.began;
            self.managed.poll(&mut self.fabric);
            let now = Instant::now();
            for (_, packet) in self.managed.station.packets_for_others() {
                let Ok(mad) = Mad::new_checked(&packet.mad[..]) else {
                    continue;
                };
                let number = mad.transaction() as usize;
                let Some(client) = self.clients.get(number) else {
                    continue;
                };
                if mad.method() != Method::GET_RESPONSE {
                    continue;
                }
                failed += u64::from(mad.status() != Status::OK);
                let took = (now - client.due).as_secs_f64() * 1e6;
                all.push(took);
                if number == 0 {
                    measuring.push(took);
                }
                self.due.push(Reverse((now + pause, number)));
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        Round {
            instances: self.clients.len(),
            all: Responses::of(all, seconds),
            measuring: Responses::of(measuring, seconds),
            failed,
        }
    }
}

impl Responses {
    fn of(mut times: Vec<f64>, seconds: f64) -> Self {
        let (median_us, deviation_us) = spread(&mut times);
        Self {
            rate: times.len() as f64 / seconds,
            mean_us: times.iter().sum::<f64>() / times.len().max(1) as f64,
            median_us,
            deviation_us,
        }
    }
}

/// Median and standard deviation.
fn spread(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let median = values.get(values.len() / 2).copied().unwrap_or_default();
    (median, (squares / count).sqrt())
}

impl Setting {
    /// Runs it.
    ///
    /// # Errors
    /// [`FloodError`].
    pub fn run(&self, progress: Progress<'_>) -> Result<Outcome, FloodError> {
        let mut bed = Bed::new(self.model, self.loaders + 1)?;
        bed.add(0);
        let mut rounds = Vec::with_capacity(usize::from(self.rounds));
        for number in 0..self.rounds {
            progress(Step {
                what: &format!("{} loaders, round {}", self.loaders, number + 1),
                done: usize::from(number),
                of: usize::from(self.rounds),
            });
            // The measuring instance is alone at first.
            for loader in (1..=usize::from(self.loaders)).filter(|_| number > 0) {
                for _ in 0..self.step {
                    bed.add(loader);
                }
            }
            rounds.push(bed.round(self.length, self.pause));
        }
        let last = rounds.iter().rev().take(LAST);
        let (rate, deviation) = spread(&mut last.map(|round| round.all.rate).collect::<Vec<_>>());
        Ok(Outcome {
            model: self.model,
            loaders: self.loaders,
            rate,
            deviation,
            rounds,
        })
    }
}

#[cfg(test)]
mod tests {
    use subnet_manager::routing::Dfsssp;
    use subnet_manager::{Migration, Target};
    use topologies::{Hosts, Torus};
    use wire::sa::{DATA, Record};

    use super::*;
    use crate::silent;
    use subnet_manager::PathCache;

    #[test]
    fn all_are_answered_in_both_models() {
        for (_, model) in Model::NAMES {
            let setting = Setting {
                model,
                loaders: 2,
                step: 3,
                rounds: 3,
                length: Duration::from_millis(20),
                pause: Duration::from_micros(100),
            };
            let outcome = setting.run(&silent).unwrap();
            let instances: Vec<usize> = outcome.rounds.iter().map(|it| it.instances).collect();
            assert_eq!(instances, [1, 7, 13], "{model:?}");
            let failed: u64 = outcome.rounds.iter().map(|round| round.failed).sum();
            assert_eq!(failed, 0, "{model:?}");
            assert!(outcome.rate > 0.0);
        }
    }

    fn ask(fabric: &mut Fabric, managed: &mut Managed, from: Guid, to: Guid) -> PathRecord {
        let port = fabric.port_by_guid(from).unwrap();
        let info = fabric.port_info(port).unwrap();
        let template = PathRecord {
            sgid: Gid::new(Gid::DEFAULT_PREFIX, from),
            dgid: Gid::new(Gid::DEFAULT_PREFIX, to),
            numb_path: 1,
            ..PathRecord::default()
        };
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
        let (lid, sm, key) = (info.lid, info.master_sm_lid, PKey::DEFAULT_FULL);
        let mad = get(1, mask, &template);
        fabric.inject(port, MadPacket::gmp(lid, sm, Sl::default(), key, mad));
        managed.station.others.clear();
        managed.poll(fabric);
        let (_, answer) = { managed.station.packets_for_others() }
            .last()
            .expect("an answer");
        PathRecord::read(&answer.mad[DATA]).unwrap()
    }

    /// A VM moves in a torus whose paths take several lanes: the LID stays, the service level need not.
    #[test]
    fn a_cache_learns_of_another_service_level() {
        let torus = Torus::new(&[5, 5], 1).unwrap();
        let topology = torus.topology(Hosts::Hypervisors { functions: 2 });
        let mut fabric = Fabric::new(&topology).unwrap();
        let function =
            |host: u64, number: u64| Guid::new(0x0002_c903_0000_0000 | host << 8 | number);
        let config = Config {
            spare_functions: (2..=25).map(|host| function(host, 2)).collect(),
            path_caching: true,
            sweep_interval: Duration::ZERO,
            ..Config::default()
        };
        let manager = SubnetManager::new(config, Box::new(Dfsssp { lanes: 8 })).unwrap();
        let own = fabric.port_by_guid(function(1, 1)).unwrap();
        let mut managed = Managed::new(manager, own, &mut fabric);
        let (client, vm) = (function(1, 2), function(2, 1));
        let port = fabric.port_by_guid(client).unwrap();
        fabric.set_owner(port, Owner::Consumer, SmpAccess::OwnPort);
        managed
            .until(&mut fabric, |manager| manager.is_up().then_some(()))
            .unwrap();
        let mut cache = PathCache::default();
        let to = Gid::new(Gid::DEFAULT_PREFIX, vm);
        let first = ask(&mut fabric, &mut managed, client, vm);
        cache.answered(first);
        let mut changes = 0;
        for host in 3..=25 {
            let migration = Migration::new(vm, Target::Function(function(host, 2)));
            let ticket = managed.manager.migrate(migration);
            let moved = managed.until(&mut fabric, |manager| manager.take_migration(ticket));
            moved.unwrap().unwrap();
            // The address is the same, and a client that does not know of the move asks nobody.
            let kept = *cache.path(to).expect("is kept");
            assert_eq!(kept.dlid, first.dlid);
            cache.failed(to);
            assert_eq!(cache.path(to), None);
            let fresh = ask(&mut fabric, &mut managed, client, vm);
            let change = cache.answered(fresh);
            assert_eq!(change.sl, kept.sl != fresh.sl);
            assert_eq!(cache.path(to), Some(&fresh));
            changes += usize::from(change.sl);
        }
        assert!(changes > 0, "no move has changed the service level");
    }
}
