//! Settings of the manager, by the names that OpenSM's configuration file has for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use subnet_manager::persistence::settings_text;
use subnet_manager::routing::multipath::{LidChoice, Multipath, PathChoice};
use subnet_manager::routing::{
    DUMP_MAX, HopMatrix, Imported, MAX_LANES, MatrixFile, Roles, RoutingChoice, TableDump,
    TableFile, TableSource, parse_guids,
};
use subnet_manager::{
    Arbitration, Config, CongestionControl, FILE_MAX, Files, KeyPolicy, MinHop, Mistake, NodeNames,
    Partitions, Policy, PortKind, PortQuality, QualityError, RoutingEngine, VirtualPorts,
    check_levels, parse_lanes,
};
use wire::attribute::SlToVl;
use wire::{Guid, Lid, PKey, Sl};

use crate::dump_files::{DumpFiles, ROUTING_FLAG};

/// The tables of arbitration that OpenSM has where only some are given.
const HIGH: &str = "0:4";
const LOW: &str = "0:0,1:4";

/// Mistakes that are told at a time.
const MAX_MISTAKES: usize = 32;

/// Mistakes in settings and in the files that they name, each with its place and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct Mistakes(Vec<String>);

/// Why a key was not taken.
enum Refusal {
    /// It means nothing here.
    Unknown,
    /// The value is wrong.
    Wrong(String),
}

/// Quality of service, as it is written.
#[derive(Debug, Clone, Default)]
struct Quality {
    is_on: bool,
    lanes: Option<u8>,
    high_limit: Option<u8>,
    high: Option<String>,
    low: Option<String>,
    service_levels: Option<SlToVl>,
}

impl Quality {
    /// The options of ports; `all` has the arbitration that is left out here.
    fn of_ports(&self, all: &Self) -> PortQuality {
        let own = [&self.high, &self.low].map(Option::as_deref);
        let is_own = own.iter().any(Option::is_some) || self.high_limit.is_some();
        let arbitration = || {
            let high = own[0].or(all.high.as_deref()).unwrap_or(HIGH);
            let low = own[1].or(all.low.as_deref()).unwrap_or(LOW);
            let limit = self.high_limit.or(all.high_limit).unwrap_or(0);
            Arbitration::parse(limit, high, low).ok()
        };
        PortQuality {
            max_lanes: self.lanes,
            sl_to_vl: self.service_levels,
            arbitration: is_own.then(arbitration).flatten(),
        }
    }
}

/// Settings of the manager.
#[derive(Debug, Clone)]
pub struct Settings {
    config: Config,
    /// GUID of the port to work at.
    pub guid: Option<Guid>,
    engine: RoutingChoice,
    nue_lanes: Option<u8>,
    roles: Roles,
    tables: Option<Arc<dyn TableSource>>,
    hops: Option<Arc<dyn TableSource>>,
    partitions: Option<(PathBuf, Partitions)>,
    /// Directory of dumps, and OpenSM's log flags, of which one asks for tables there.
    dump_dir: Option<PathBuf>,
    log_flags: u8,
    /// The file of the policy, and its text: what it means depends on the partitions.
    policy_file: Option<(PathBuf, String)>,
    quality: Quality,
    /// Quality of kinds of ports.
    kinds: BTreeMap<PortKind, Quality>,
    /// Whether nodes get their settings of congestion control.
    controls_congestion: bool,
    congestion: CongestionControl,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config: Config {
                // As OpenSM: adapters have little room for packets to queue pair 0.
                window: 4,
                ..Config::default()
            },
            guid: None,
            engine: RoutingChoice::default(),
            nue_lanes: None,
            roles: Roles::default(),
            tables: None,
            hops: None,
            partitions: None,
            policy_file: None,
            dump_dir: None,
            log_flags: 0,
            quality: Quality::default(),
            kinds: BTreeMap::new(),
            controls_congestion: false,
            congestion: CongestionControl::default(),
        }
    }
}

fn number<T: TryFrom<u64>>(value: &str, range: RangeInclusive<u64>) -> Result<T, Refusal> {
    let hexadecimal = value
        .strip_prefix("0x")
        .or_else(|| value.strip_prefix("0X"));
    let number = match hexadecimal {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => value.parse(),
    };
    let number = number.ok().filter(|number| range.contains(number));
    number.and_then(|it| T::try_from(it).ok()).ok_or_else(|| {
        let (first, last) = (range.start(), range.end());
        Refusal::Wrong(match *last {
            u64::MAX => "write a number of at most 16 hexadecimal digits after 0x".to_owned(),
            _ => format!("write a number from {first} to {last}"),
        })
    })
}

fn flag(value: &str) -> Result<bool, Refusal> {
    match value.to_ascii_uppercase().as_str() {
        "TRUE" => Ok(true),
        "FALSE" => Ok(false),
        _ => Err(Refusal::Wrong("write TRUE or FALSE".to_owned())),
    }
}

fn millis(value: &str) -> Result<Duration, Refusal> {
    number(value, 1..=3_600_000).map(Duration::from_millis)
}

/// Number of lanes by the code of `VLCap`.
fn lanes_of_code(code: u8) -> u8 {
    [1, 2, 4, 8, 15][usize::from(code.clamp(1, 5) - 1)]
}

/// The text of a file of settings.
fn text(path: &Path) -> Result<String, Refusal> {
    text_up_to(path, FILE_MAX)
}

fn text_up_to(path: &Path, max: usize) -> Result<String, Refusal> {
    let read = || {
        let length = fs::metadata(path)?.len();
        if length > max as u64 {
            let large = format!("{length} bytes; at most {max} are read");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, large));
        }
        settings_text(&fs::read(path)?)
    };
    read().map_err(|error| {
        let path = path.display();
        Refusal::Wrong(format!(
            "cannot read {path}: {error}; name a text file that this user may read"
        ))
    })
}

/// Mistakes of a file, each with its line.
fn in_file(path: &Path, mistakes: &[Mistake]) -> String {
    let path = path.display();
    let lines = mistakes
        .iter()
        .map(|it| format!("{path}:{}: {}", it.line, it.what));
    lines.collect::<Vec<_>>().join("\n")
}

fn of_file(path: &Path, mistakes: &[Mistake]) -> Refusal {
    Refusal::Wrong(in_file(path, mistakes))
}

/// A file of GUIDs, one at the beginning of each line.
fn guids(path: &str) -> Result<BTreeSet<Guid>, Refusal> {
    Ok(guids_in_order(path)?.into_iter().collect())
}

fn guids_in_order(path: &str) -> Result<Vec<Guid>, Refusal> {
    let path = Path::new(path);
    let guids = parse_guids(&text(path)?).map_err(|mistakes| of_file(path, &mistakes))?;
    Ok(guids.into_iter().map(|(_, guid)| guid).collect())
}

/// Forwarding tables of a file.
fn tables(path: &str) -> Result<Arc<dyn TableSource>, Refusal> {
    let dump = TableDump::parse(&text_up_to(Path::new(path), DUMP_MAX)?);
    let dump = dump.map_err(|mistakes| of_file(Path::new(path), &mistakes))?;
    Ok(Arc::new(TableFile {
        path: path.to_owned(),
        dump: Arc::new(dump),
    }))
}

/// Hops between switches of a file.
fn hops(path: &str) -> Result<Arc<dyn TableSource>, Refusal> {
    let matrix = HopMatrix::parse(&text_up_to(Path::new(path), DUMP_MAX)?);
    Ok(Arc::new(MatrixFile {
        path: path.to_owned(),
        matrix: matrix.map_err(|mistakes| of_file(Path::new(path), &mistakes))?,
    }))
}

fn one_of<T: Copy>(value: &str, all: &[(&str, T)]) -> Result<T, Refusal> {
    let found = all.iter().find(|(name, _)| *name == value);
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let wrong = || Refusal::Wrong(format!("write one of {}", names.join(", ")));
    found.map(|&(_, choice)| choice).ok_or_else(wrong)
}

/// Whether a file is not there and need not be: OpenSM writes these names into configurations in any case.
fn is_default(path: &Path) -> bool {
    path.starts_with("/etc/opensm") && !path.exists()
}

/// A file of routers' ports: the prefix of a subnet and the GUID of the port that leads there, on each line.
fn prefix_routes(path: &Path) -> Result<Vec<(u64, Guid)>, Refusal> {
    if is_default(path) {
        return Ok(Vec::new());
    }
    let text = text(path)?;
    let mut routes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        // Both are numbers of 64 bits.
        let numbers: Option<Vec<Guid>> = words.iter().map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([]) => {}
            Some(&[prefix, guid]) => routes.push((prefix.value(), guid)),
            _ => {
                let path = path.display();
                return Err(Refusal::Wrong(format!(
                    "{path}:{number}: write the prefix of a subnet and the GUID of a router's port, each as 0x and at \
                     most 16 hexadecimal digits"
                )));
            }
        }
    }
    Ok(routes)
}

fn partitions(path: &Path) -> Result<Option<(PathBuf, Partitions)>, Refusal> {
    if is_default(path) {
        return Ok(None);
    }
    let parsed = Partitions::parse(&text(path)?, |_| None);
    let parsed = parsed.map_err(|mistakes| of_file(path, &mistakes))?;
    Ok(Some((path.to_owned(), parsed)))
}

impl Settings {
    /// Takes over a configuration file of OpenSM; returns the keys that mean nothing here.
    ///
    /// # Errors
    /// All mistakes, with their lines; nothing of the file has an effect then.
    pub fn read(&mut self, path: &Path) -> Result<BTreeSet<String>, Mistakes> {
        let wrong = |refusal| match refusal {
            Refusal::Wrong(what) => Mistakes(vec![what]),
            Refusal::Unknown => Mistakes(Vec::new()),
        };
        let text = text(path).map_err(wrong)?;
        self.parse(&path.display().to_string(), &text)
    }

    /// The same for the text of a file with this name.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub fn parse(&mut self, name: &str, text: &str) -> Result<BTreeSet<String>, Mistakes> {
        let mut settings = self.clone();
        let (mut ignored, mut mistakes) = (BTreeSet::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            match settings.set(key, value.trim()) {
                Ok(()) => {}
                Err(Refusal::Unknown) => drop(ignored.insert(key.to_owned())),
                Err(Refusal::Wrong(what)) if mistakes.len() < MAX_MISTAKES => {
                    mistakes.push(format!("{name}:{number}: {line}: {what}"));
                }
                Err(Refusal::Wrong(_)) => {}
            }
        }
        if !mistakes.is_empty() {
            return Err(Mistakes(mistakes));
        }
        *self = settings;
        Ok(ignored)
    }

    /// Takes over an option of the command line, by the name of its key in a file.
    ///
    /// # Errors
    /// The value is wrong.
    pub fn option(&mut self, option: &str, key: &str, value: &str) -> Result<(), Mistakes> {
        self.set(key, value).map_err(|refusal| {
            let what = match refusal {
                Refusal::Wrong(what) => what,
                Refusal::Unknown => "no such option".to_owned(),
            };
            Mistakes(vec![format!("{option} {value}: {what}")])
        })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        let Self {
            config,
            quality,
            kinds,
            ..
        } = self;
        let of_kind = PortKind::NAMES.into_iter().find_map(|(name, kind)| {
            let rest = key.strip_prefix("qos_")?.strip_prefix(name)?;
            Some((kind, format!("qos{rest}")))
        });
        let (quality, key) = match &of_kind {
            Some((kind, key)) => (kinds.entry(*kind).or_default(), key.as_str()),
            None => (quality, key),
        };
        if value == "(null)" || value.is_empty() {
            return Ok(());
        }
        let table = || {
            let parsed = Arbitration::parse(0, value, "");
            let wrong = |error: QualityError| Refusal::Wrong(error.to_string());
            parsed.map_err(wrong).map(|_| Some(value.to_owned()))
        };
        match key {
            "guid" => {
                let guid: Guid = value
                    .parse()
                    .map_err(|error: wire::ParseError| Refusal::Wrong(error.to_string()))?;
                self.guid = Some(guid).filter(|guid| !guid.is_none());
            }
            "m_key" => {
                config.m_key = match number(value, 0..=u64::MAX)? {
                    0 => KeyPolicy::None,
                    key => KeyPolicy::One(key),
                };
            }
            "m_key_lease_period" => config.m_key_lease = number(value, 0..=0xffff)?,
            "m_key_protection_level" => config.m_key_protect = number(value, 0..=3)?,
            "sm_key" => config.sm_key = number(value, 0..=u64::MAX)?,
            "sa_key" => config.sa_key = number(value, 0..=u64::MAX)?,
            "subnet_prefix" => config.gid_prefix = number(value, 0..=u64::MAX)?,
            "lmc" => config.lmc = number(value, 0..=7)?,
            "lid_assignment" => config.multipath.lids = one_of(value, &LidChoice::NAMES)?,
            "path_scheme" => config.multipath.paths = one_of(value, &PathChoice::NAMES)?,
            "virt_enabled" => {
                config.virtual_ports = match number(value, 0..=2)? {
                    0u8 => VirtualPorts::Ignored,
                    1 => VirtualPorts::Disabled,
                    _ => VirtualPorts::Enabled,
                }
            }
            "max_op_vls" => config.max_lanes = Some(lanes_of_code(number(value, 1..=5)?)),
            "subnet_timeout" => config.subnet_timeout = number(value, 0..=31)?,
            "dump_files_dir" => self.dump_dir = Some(value.into()),
            "log_flags" => self.log_flags = number(value, 0..=0xff)?,
            "qos_policy_file" => {
                let path = Path::new(value);
                self.policy_file = None;
                if !is_default(path) {
                    self.policy_file = Some((path.to_owned(), text(path)?));
                }
            }
            "node_name_map_name" => {
                let path = Path::new(value);
                let names = NodeNames::parse(&text(path)?);
                config.names = Arc::new(names.map_err(|mistakes| of_file(path, &mistakes))?);
            }
            "partition_config_file" => self.partitions = partitions(Path::new(value))?,
            "prefix_routes_file" => config.prefix_routes = prefix_routes(Path::new(value))?,
            "part_enforce" => {
                config.enforce_partitions = match value {
                    "both" | "in" | "out" => true,
                    "off" => false,
                    _ => return Err(Refusal::Wrong("write both or off".to_owned())),
                };
            }
            "no_partition_enforcement" => config.enforce_partitions &= !flag(value)?,
            "sweep_interval" => {
                config.sweep_interval = Duration::from_secs(number(value, 0..=1_000_000)?);
            }
            "sm_priority" => config.priority = number(value, 0..=15)?,
            "sminfo_polling_timeout" => config.poll_interval = millis(value)?,
            "polling_retry_number" => config.poll_retries = number(value, 1..=1000)?,
            "max_wire_smps" => config.window = number(value, 1..=4096)?,
            "transaction_timeout" => config.timeout = millis(value)?,
            "transaction_retries" => config.retries = number(value, 0..=255)?,
            "routing_engine" => self.engine = engine(value)?,
            "use_ucast_cache" => config.ucast_cache = flag(value)?,
            "nue_max_num_vls" => {
                self.nue_lanes = Some(number(value, 0..=15)?).filter(|lanes| *lanes > 0);
            }
            "root_guid_file" => self.roles.roots = guids(value)?,
            "cn_guid_file" => self.roles.compute = Some(guids(value)?),
            "io_guid_file" => self.roles.io = guids(value)?,
            "lfts_file" => self.tables = Some(tables(value)?),
            "lid_matrix_dump_file" => self.hops = Some(hops(value)?),
            "guid_routing_order_file" => self.roles.order = guids_in_order(value)?,
            "qos" => quality.is_on = flag(value)?,
            "qos_max_vls" => {
                quality.lanes = Some(number(value, 0..=15)?).filter(|lanes| *lanes > 0);
            }
            "qos_high_limit" => {
                quality.high_limit = match value {
                    "-1" => None,
                    _ => Some(number(value, 0..=255)?),
                };
            }
            "qos_vlarb_high" => quality.high = table()?,
            "qos_vlarb_low" => quality.low = table()?,
            "qos_sl2vl" => {
                let levels = parse_lanes(value);
                let levels = levels.map_err(|error| Refusal::Wrong(error.to_string()))?;
                quality.service_levels = Some(levels);
            }
            "congestion_control" => self.controls_congestion = flag(value)?,
            key => {
                let taken = self.congestion.set(key, value).map_err(Refusal::Wrong)?;
                return taken.then_some(()).ok_or(Refusal::Unknown);
            }
        }
        Ok(())
    }

    /// Whether the settings agree with each other. Returns what does not act, with its place and its remedy.
    ///
    /// # Errors
    /// Mistakes in the policy, and service levels that cannot act.
    pub fn complete(&mut self) -> Result<Vec<String>, Mistakes> {
        let mut idle = Vec::new();
        let Multipath { lids, paths } = self.config.multipath;
        if lids != LidChoice::Port && self.engine != RoutingChoice::MinHop {
            let (lids, engine) = (lids.name(), self.engine.name());
            return Err(Mistakes(vec![format!(
                "lid_assignment {lids}: LIDs follow the paths of path_scheme, which routing_engine {engine} \
                 contradicts; leave one of the two out"
            )]));
        } else if lids == LidChoice::Port && paths != PathChoice::default() {
            idle.push("path_scheme acts with lid_assignment alone".to_owned());
        }
        if !self.controls_congestion && self.congestion != CongestionControl::default() {
            idle.push(
                "cc_*: keys of congestion control act with `congestion_control TRUE` alone"
                    .to_owned(),
            );
        }
        let chooser = format!("the routing engine {}", self.engine.name());
        let free = self.engine.free_levels();
        let chooser = self.engine.is_layered().then_some((chooser.as_str(), free));
        let tables = self.kinds.values().chain([&self.quality]);
        let tables: Vec<SlToVl> = tables
            .filter(|_| self.quality.is_on)
            .filter_map(|quality| quality.service_levels)
            .collect();
        let check = |path: &Path, levels: &mut dyn Iterator<Item = (usize, Sl)>| {
            let mistakes = check_levels(levels, chooser, &tables);
            (mistakes.is_empty())
                .then_some(())
                .ok_or_else(|| Mistakes(vec![in_file(path, &mistakes)]))
        };
        if let Some((path, partitions)) = &self.partitions {
            let levels = partitions.levels();
            check(path, &mut levels.map(|(line, _, level)| (line, level)))?;
        }
        let Some((path, text)) = &self.policy_file else {
            return Ok(idle);
        };
        if !self.quality.is_on {
            let path = path.display();
            idle.push(format!(
                "{path}: the policy acts with `qos TRUE` or --qos alone"
            ));
            return Ok(idle);
        }
        let file = self.partitions.as_ref().map(|(_, file)| file);
        let policy = Policy::parse(text, |name| {
            let mut names = file.into_iter().flat_map(Partitions::names);
            let found = names.find(|&(known, _)| known == name);
            let default = (name == "Default").then_some(PKey::DEFAULT_FULL);
            found.map(|(_, pkey)| pkey).or(default)
        });
        let policy = policy.map_err(|mistakes| Mistakes(vec![in_file(path, &mistakes)]))?;
        check(path, &mut policy.levels())?;
        idle.extend(
            policy
                .idle()
                .iter()
                .map(|it| in_file(path, slice::from_ref(it))),
        );
        if let Some((path, partitions)) = &self.partitions {
            let path = path.display();
            let overridden = policy.overridden(partitions);
            idle.extend(overridden.map(|(line, what)| format!("{path}:{line}: {what}")));
        }
        self.config.policy = Some(policy);
        Ok(idle)
    }

    /// Settings that a manager takes over while it runs.
    #[must_use]
    pub fn files(&self) -> Files {
        Files {
            partitions: self.partitions.as_ref().map(|(_, file)| file.clone()),
            policy: self.config.policy.clone(),
            roles: self.roles.clone(),
            congestion: (self.controls_congestion).then(|| self.congestion.clone()),
        }
    }

    /// Settings of the manager itself, with these LIDs from an earlier run.
    #[must_use]
    pub fn manager(&self, known_lids: BTreeMap<Guid, (Lid, u8)>) -> Config {
        let mut config = self.config.clone();
        config.known_lids = known_lids;
        let files = self.files();
        config.congestion = files.congestion;
        config.roles = Arc::new(files.roles);
        config.partition_file = files.partitions;
        if self.quality.is_on {
            let all = self.quality.of_ports(&self.quality);
            config.max_lanes = all.max_lanes.or(config.max_lanes);
            config.sl_to_vl = all.sl_to_vl;
            config.arbitration = all.arbitration;
            let kinds = self.kinds.iter();
            let kinds = kinds.map(|(&kind, own)| (kind, own.of_ports(&self.quality)));
            config.kinds = kinds.collect();
        }
        config
    }

    /// Names of nodes.
    #[must_use]
    pub fn names(&self) -> Arc<NodeNames> {
        Arc::clone(&self.config.names)
    }

    /// The files that are written after sweeps.
    #[must_use]
    pub fn dumps(&self) -> Option<DumpFiles> {
        let has_tables = self.log_flags & ROUTING_FLAG != 0;
        { self.dump_dir.clone() }.map(|dir| DumpFiles::new(dir, has_tables))
    }

    /// Time after which the manager asks again.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// The routing engine.
    #[must_use]
    pub fn routing(&self) -> Box<dyn RoutingEngine> {
        if let (RoutingChoice::File, Some(source)) =
            (self.engine, self.tables.as_ref().or(self.hops.as_ref()))
        {
            return Box::new(Imported::new(Arc::clone(source)));
        }
        // Whether links have so many lanes the manager finds out.
        let lanes = match self.engine {
            RoutingChoice::Nue => self.nue_lanes.unwrap_or(MAX_LANES),
            _ => MAX_LANES,
        };
        let engine = self.engine.engine(lanes);
        engine.unwrap_or_else(|| Box::new(MinHop))
    }
}

/// The first engine of a list; `minhop` takes its place where it cannot route the subnet.
fn engine(list: &str) -> Result<RoutingChoice, Refusal> {
    let mut first = None;
    for name in list.split(',').map(str::trim) {
        // Programs for tables are the daemon's.
        let engines = RoutingChoice::NAMES.into_iter();
        let engines = engines.filter(|&(_, engine)| engine != RoutingChoice::External);
        let found = RoutingChoice::named(name).filter(|&found| found != RoutingChoice::External);
        let Some(found) = found else {
            let names: Vec<_> = engines.map(|(name, _)| name).collect();
            return Err(Refusal::Wrong(format!(
                "unknown routing engine `{name}`; the engines are {}",
                names.join(", ")
            )));
        };
        first.get_or_insert(found);
    }
    Ok(first.unwrap_or_default())
}

#[cfg(test)]
mod tests;
