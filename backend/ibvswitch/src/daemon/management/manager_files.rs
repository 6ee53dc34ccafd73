//! Files of the subnet manager: what it remembers from run to run, and the partitions it is to make.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hca::Clock;
use subnet_manager::persistence::{self, settings_text};
use subnet_manager::routing::{
    DUMP_MAX, HopMatrix, MatrixFile, Roles, TableDump, TableFile, TableSource, parse_guids,
};
use subnet_manager::{CongestionControl, FILE_MAX, Files, Partitions, Policy};
use tracing::{debug, error, info, warn};
use vswitch::{Environment, Plan, SettingsFiles};
use wire::attribute::SlToVl;
use wire::{Guid, Lid, PKey, Sl};

use super::routing_program::RoutingProgram;
use crate::warnings;
use config::cluster::partitions;
use config::{Config, ManagerPlace, RoutingChoice, Subnet};

/// Warnings about members that are no ports.
const STRANGERS_MAX: usize = 16;

/// Why the subnet manager's files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file that remembers LIDs is damaged.
    #[error("{}: {what}; correct it, or remove the file to begin anew", .path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The error and its place.
        what: String,
    },
    /// There are mistakes in a file.
    #[error("{}", lines(.path, .mistakes))]
    Mistakes {
        /// The file.
        path: PathBuf,
        /// All of them.
        mistakes: Vec<subnet_manager::Mistake>,
    },
}

fn lines(path: &Path, mistakes: &[subnet_manager::Mistake]) -> String {
    let path = path.display();
    let lines = mistakes.iter();
    let lines: Vec<String> = lines
        .map(|subnet_manager::Mistake { line, what, .. }| format!("{path}:{line}: {what}"))
        .collect();
    lines.join("\n")
}

/// The text of a file of at most so many bytes.
fn read(path: &Path, max: usize) -> Result<String, FileError> {
    let unreadable = |source| FileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > max as u64 {
        let large = format!("{size} bytes; at most {max} are read");
        return Err(unreadable(io::Error::new(
            io::ErrorKind::FileTooLarge,
            large,
        )));
    }
    { fs::read(path) }
        .and_then(|bytes| settings_text(&bytes))
        .map_err(unreadable)
}

/// Contents of the files that a configuration names.
///
/// # Errors
/// [`FileError`].
pub fn read_settings(config: &Config) -> Result<SettingsFiles, FileError> {
    let [roots, compute, io, order] = guid_files(config).map(|file| {
        let guids = file?.map(|(_, guids)| guids.into_iter().map(|(_, guid)| guid).collect());
        Ok::<Option<Vec<Guid>>, FileError>(guids)
    });
    let set = |guids: Vec<Guid>| guids.into_iter().collect::<BTreeSet<Guid>>();
    let mut roots = set(roots?.unwrap_or_default());
    roots.extend(&config.manager.roots);
    let partitions = read_partitions(config)?;
    Ok(SettingsFiles {
        manager: Files {
            policy: read_policy(config, partitions.as_ref())?,
            congestion: read_congestion_control(config)?,
            partitions,
            roles: Roles {
                roots,
                compute: compute?.map(set),
                io: set(io?.unwrap_or_default()),
                order: order?.unwrap_or_default(),
            },
        },
        tables: tables(config)?,
    })
}

/// The source of forwarding tables that the manager does not compute itself.
fn tables(config: &Config) -> Result<Option<Arc<dyn TableSource>>, FileError> {
    let files = &config.files;
    let in_file = |path: &Path, mistakes| FileError::Mistakes {
        path: path.to_owned(),
        mistakes,
    };
    Ok(match (config.manager.routing, &files.tables, &files.hops) {
        (RoutingChoice::File, Some(path), _) => {
            let dump = TableDump::parse(&read(path, DUMP_MAX)?);
            let dump = dump.map_err(|mistakes| in_file(path, mistakes));
            Some(Arc::new(TableFile {
                path: path.display().to_string(),
                dump: Arc::new(dump?),
            }))
        }
        (RoutingChoice::File, None, Some(path)) => {
            let matrix = HopMatrix::parse(&read(path, DUMP_MAX)?);
            Some(Arc::new(MatrixFile {
                path: path.display().to_string(),
                matrix: matrix.map_err(|mistakes| in_file(path, mistakes))?,
            }))
        }
        (RoutingChoice::External, ..) => Some(Arc::new(RoutingProgram {
            command: files.routing_program.clone(),
            limit: files.routing_timeout,
        })),
        _ => None,
    })
}

/// A file of GUIDs: the path, and the GUIDs with their lines.
type GuidFile<'a> = (&'a Path, Vec<(usize, Guid)>);

/// The files of GUIDs of roots, of compute nodes, of I/O nodes, and of ports that are routed first.
fn guid_files(config: &Config) -> [Result<Option<GuidFile<'_>>, FileError>; 4] {
    let files = &config.files;
    [&files.roots, &files.compute, &files.io, &files.order].map(|path| {
        let Some(path) = path.as_deref() else {
            return Ok(None);
        };
        let guids = parse_guids(&read(path, FILE_MAX)?);
        let guids = guids.map_err(|mistakes| FileError::Mistakes {
            path: path.to_owned(),
            mistakes,
        });
        Ok(Some((path, guids?)))
    })
}

/// The partitions of the file that a configuration names, if it names one.
///
/// # Errors
/// [`FileError`].
fn read_partitions(config: &Config) -> Result<Option<Partitions>, FileError> {
    let Some(path) = &config.files.partitions else {
        return Ok(None);
    };
    let text = read(path, FILE_MAX)?;
    let guid = |name: &str| {
        let mut vfs = config.vfs();
        vfs.find(|(_, vf)| vf.model.name == name)
            .map(|(_, vf)| vf.model.guid)
    };
    let wrong = |mistakes| FileError::Mistakes {
        path: path.clone(),
        mistakes,
    };
    let partitions = Partitions::parse(&text, guid).map_err(|mut mistakes| {
        for mistake in &mut mistakes {
            if let Some(name) = &mistake.unknown {
                let vfs = config.vfs().map(|(_, vf)| vf.model.name.as_str());
                let remedy = vswitch::near(name, vfs, "");
                mistake.what = format!("{}; {remedy}", mistake.what);
            }
        }
        wrong(mistakes)
    })?;
    let levels = partitions.levels().map(|(line, _, level)| (line, level));
    check_levels(config, levels).map_err(wrong)?;
    Ok(Some(partitions))
}

/// The policy of the file that a configuration names, if it names one.
///
/// # Errors
/// [`FileError`].
fn read_policy(
    config: &Config,
    partitions: Option<&Partitions>,
) -> Result<Option<Policy>, FileError> {
    let Some(path) = &config.files.policy else {
        return Ok(None);
    };
    let in_file = |mistakes| FileError::Mistakes {
        path: path.clone(),
        mistakes,
    };
    let policy = Policy::parse(&read(path, FILE_MAX)?, |name| {
        let mut names = partitions.iter().flat_map(|file| file.names());
        let of_file = names.find(|&(known, _)| known == name);
        let of_table = || config.partitions.get(name).map(|&pkey| PKey::new(pkey));
        of_file.map(|(_, pkey)| pkey).or_else(of_table)
    });
    let policy = policy.map_err(in_file)?;
    check_levels(config, policy.levels()).map_err(in_file)?;
    Ok(Some(policy))
}

/// Congestion control by the file that a configuration names, if it names one.
///
/// # Errors
/// [`FileError`].
fn read_congestion_control(config: &Config) -> Result<Option<CongestionControl>, FileError> {
    let Some(path) = &config.files.congestion else {
        return Ok(None);
    };
    let control = CongestionControl::parse(&read(path, FILE_MAX)?);
    control.map_err(|mistakes| FileError::Mistakes {
        path: path.clone(),
        mistakes,
    })
}

/// Whether service levels of a file can act, given by line.
fn check_levels(
    config: &Config,
    levels: impl Iterator<Item = (usize, Sl)>,
) -> Result<(), Vec<subnet_manager::Mistake>> {
    let manager = &config.manager;
    let free = manager.routing.free_levels();
    let chooser = { manager.routing.is_layered() }.then_some(("sm.routing", free));
    let kinds = manager.kinds.values().map(|own| own.sl_to_vl);
    let tables: Vec<SlToVl> = kinds.chain([manager.sl_to_vl]).flatten().collect();
    let mistakes = subnet_manager::check_levels(levels, chooser, &tables);
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(mistakes)
    }
}

/// Members of the partition file and GUIDs of other files that no port of the subnet has, and VFs that may not use the
/// service level of their partition.
///
/// # Errors
/// [`FileError`].
pub fn strangers(config: &Config, plan: &Plan) -> Result<Vec<String>, FileError> {
    if config.manager.place == ManagerPlace::External {
        return Ok(Vec::new());
    }
    let nodes = plan.topology().nodes().iter();
    let ports = nodes.flat_map(|node| {
        [node.guid]
            .into_iter()
            .chain(node.port_guids.iter().copied())
    });
    let vfs = config.vfs().map(|(_, vf)| vf.model.guid);
    let known: BTreeSet<Guid> = ports.chain(vfs).collect();
    let mut warnings = Vec::new();
    let mut tell = |path: &Path, named: &[(usize, Guid)]| {
        let strangers = named.iter().filter(|(_, guid)| !known.contains(guid));
        warnings.extend(strangers.take(STRANGERS_MAX).map(|(line, guid)| {
            let guids: Vec<String> = known.iter().map(|guid| format!("{guid:#}")).collect();
            let remedy = vswitch::near(&format!("{guid:#}"), guids, "");
            let path = path.display();
            format!("{path}:{line}: no port has the GUID {guid:#}; {remedy}")
        }));
    };
    for file in guid_files(config) {
        if let Some((path, guids)) = file? {
            tell(path, &guids);
        }
    }
    let partitions = read_partitions(config)?;
    let policy = read_policy(config, partitions.as_ref())?;
    for (path, named) in [
        (
            &config.files.partitions,
            partitions.as_ref().map(Partitions::named),
        ),
        (&config.files.policy, policy.as_ref().map(Policy::named)),
    ] {
        if let (Some(path), Some(named)) = (path, named) {
            tell(path, named);
        }
    }
    if let (Some(path), Some(policy)) = (&config.files.policy, &policy) {
        let path = path.display();
        let idle = policy.idle().iter();
        warnings.extend(idle.map(|it| format!("{path}:{}: {}", it.line, it.what)));
    }
    if let (Some(path), Some(partitions)) = (&config.files.partitions, &partitions) {
        let path = path.display();
        let levels = unusable_levels(config, partitions);
        warnings.extend(levels.map(|warning| format!("{path}:{warning}")));
        let overridden = policy
            .iter()
            .flat_map(|policy| policy.overridden(partitions));
        warnings.extend(overridden.map(|(line, what)| format!("{path}:{line}: {what}")));
    }
    Ok(warnings)
}

/// Service levels of partitions that members may not use: line and warning.
fn unusable_levels<'a>(
    config: &'a Config,
    partitions: &'a Partitions,
) -> impl Iterator<Item = String> + 'a {
    partitions.levels().filter_map(|(line, pkey, level)| {
        let is_member = |vf: &config::Vf| {
            let has = |keys: &[PKey]| keys.iter().any(|key| key.partition() == pkey.partition());
            if vf.model.has_pkeys {
                has(&vf.model.pkeys)
            } else {
                has(&partitions.keys_of(vf.model.guid))
            }
        };
        let vfs = config.vfs().map(|(_, vf)| vf);
        let barred = vfs.filter(|vf| vf.model.service_levels.admit(level) != Some(level));
        let names: Vec<&str> = { barred.filter(|vf| is_member(vf)) }
            .map(|vf| vf.model.name.as_str())
            .collect();
        let level = level.value();
        (!names.is_empty()).then(|| {
            format!(
                "{line}: paths in the partition {pkey} have sl={level}, which these VFs may not use: {}; add {level} \
                 to their `sl`",
                warnings::first(&names)
            )
        })
    })
}

/// State of the subnets in the program before.
#[derive(Debug, Clone, Default)]
pub struct Remembered {
    /// By subnet, the LIDs that were given: the first of each port, and the LID mask control.
    pub lids: Vec<BTreeMap<Guid, (Lid, u8)>>,
    /// VMs that run.
    pub running: BTreeSet<Guid>,
}

/// Returns the environment of the vSwitch (clock, keys, running VMs), and the stores of its LIDs. LIDs that are not
/// in `remembered`, from the program before, are read from files.
///
/// # Errors
/// [`FileError`].
pub fn environment(
    config: &Config,
    clock: Arc<dyn Clock>,
    remembered: &Remembered,
) -> Result<(Environment, LidStores), FileError> {
    let mut environment = Environment::new(clock);
    environment.running.clone_from(&remembered.running);
    environment.keys = Arc::new(random);
    let mut stores = Vec::new();
    if config.manager.place == ManagerPlace::Embedded {
        environment.files = read_settings(config)?;
        for subnet in &config.subnets {
            let store = LidStore::open(config, subnet)?;
            let stored = store.as_ref().map(|store| &store.known);
            let known = remembered.lids.get(stores.len()).or(stored).cloned();
            environment.known_lids.push(known.unwrap_or_default());
            stores.push(store);
        }
    }
    let lids = environment.known_lids.clone();
    Ok((environment, LidStores { stores, lids }))
}

/// A number that nobody can guess.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    if let Err(error) = read {
        warn!(%error, "no random numbers from /dev/urandom: management keys can be guessed");
    }
    u64::from_ne_bytes(bytes)
}

/// Memory of the subnet managers, by subnet.
#[derive(Debug, Default)]
pub struct LidStores {
    stores: Vec<Option<LidStore>>,
    /// LIDs at present.
    lids: Vec<BTreeMap<Guid, (Lid, u8)>>,
}

impl LidStores {
    /// Writes the LIDs of a subnet down, where they are to be remembered.
    pub(super) fn keep(&mut self, subnet: usize, lids: &BTreeMap<Guid, (Lid, u8)>) {
        if let Some(Some(store)) = self.stores.get_mut(subnet) {
            let bases = lids.iter().map(|(&guid, &(lid, _))| (guid, lid)).collect();
            let lmc = |guid| lids.get(&guid).map_or(0, |&(_, lmc)| lmc);
            store.text = Some(persistence::format_lids(&bases, lmc));
            store.write();
        }
        if let Some(known) = self.lids.get_mut(subnet) {
            known.clone_from(lids);
        }
    }

    /// By subnet, the LIDs of now.
    pub(super) fn lids(&self) -> &[BTreeMap<Guid, (Lid, u8)>] {
        &self.lids
    }

    /// Writes down what could not be written before.
    pub(super) fn retry(&mut self) {
        for store in self.stores.iter_mut().flatten() {
            store.write();
        }
    }
}

/// The directory with what a subnet manager remembers.
#[derive(Debug)]
struct LidStore {
    directory: PathBuf,
    /// LIDs that the file had at the beginning.
    known: BTreeMap<Guid, (Lid, u8)>,
    /// Text that is to be written.
    text: Option<String>,
    failed: bool,
}

impl LidStore {
    /// Opens the store of a subnet in the directory that the configuration names, if it names one; a subnet with a
    /// name has a directory of that name there.
    fn open(config: &Config, subnet: &Subnet) -> Result<Option<Self>, FileError> {
        let Some(directory) = &config.files.state_dir else {
            return Ok(None);
        };
        let directory = match &subnet.name {
            Some(name) => directory.join(name),
            None => directory.clone(),
        };
        let path = directory.join(LIDS);
        let known = match fs::read_to_string(&path) {
            Ok(text) => persistence::parse_lids(&text).map_err(|error| FileError::Memory {
                path,
                what: error.to_string(),
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(source) => return Err(FileError::Unreadable { path, source }),
        };
        Ok(Some(Self {
            directory,
            known,
            text: None,
            failed: false,
        }))
    }

    /// Writes what is to be written; what cannot be written is told once.
    fn write(&mut self) {
        let Some(text) = &self.text else {
            return;
        };
        match write_whole(&self.directory, LIDS, text) {
            Ok(()) => {
                debug!("LIDs are remembered");
                self.text = None;
                self.failed = false;
            }
            Err(error) if !self.failed => {
                let path = self.directory.join(LIDS);
                warn!(path = %path.display(), %error, "LIDs are not remembered");
                self.failed = true;
            }
            Err(_) => {}
        }
    }
}

/// Writes a file as a whole or not at all.
fn write_whole(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let new = directory.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, directory.join(name))
}

/// Writes the partitions of clusters for another subnet manager, unless the file has them already.
pub fn write_partitions(config: &Config) {
    let Some(path) = &config.external.partitions else {
        return;
    };
    let text = partitions::file(config);
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return;
    }
    let (directory, name) = (path.parent(), path.file_name().and_then(|it| it.to_str()));
    let written = match (directory, name) {
        (Some(directory), Some(name)) => write_whole(directory, name, &text),
        _ => Err(io::ErrorKind::InvalidFilename.into()),
    };
    let path = path.display();
    match written {
        Ok(()) => info!(%path, "partitions of clusters are written"),
        Err(error) => error!(
            %path, %error,
            "partitions of clusters are not written: name in external.partitions_file a file in a directory that the \
             daemon may write, and start the daemon anew"
        ),
    }
}

/// As OpenSM names it.
const LIDS: &str = "guid2lid";
