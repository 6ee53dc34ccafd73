//! From a document to a checked [`Config`].

mod clusters;
mod daemon;
mod fabric;
mod hardware;
mod host;
mod hypervisors;
mod mads;
mod manager;
mod partitions;
mod ports;
mod subnets;

pub(crate) use host::size;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use vswitch::model::derive_guid;
use wire::{Guid, Lid};

use self::hypervisors::Defaults;
use super::document::{Document, Entry, Problem, Section, Seen};
use super::{Address, AddressModel, Config, Directories, ManagerPlace, Sandbox, keys, scope};

const LID_REMEDY: &str = "a unicast LID is 0x0001 to 0xbfff (1 to 49151)";
const GUID_REMEDY: &str = "write 16 hexadecimal digits, such as \"0002:c903:0000:0101\"";
const PREFIX_REMEDY: &str = "write 64 bits, such as \"fe80::\" or \"2001:db8:0:5\"";

/// Reads `text`, or returns everything wrong with it.
pub(super) fn read(
    origin: &str,
    text: &str,
    dirs: Directories<'_>,
) -> Result<Config, Vec<Problem>> {
    let document = Document::new(origin, text);
    let config = document.parse().map(|table| {
        let root = Section::root(&document, &table, keys::ROOT);
        let reader = Reader {
            document: &document,
            names: Names::default(),
            nodes_unknown: false,
            warnings: Vec::new(),
        };
        reader.config(&root, dirs)
    });
    match (config, document.into_problems()) {
        (Some(mut config), (problems, warnings)) if problems.is_empty() => {
            config
                .warnings
                .extend(warnings.iter().map(Problem::to_string));
            Ok(config)
        }
        (_, (problems, _)) => Err(problems),
    }
}

/// Names that must be unique, as far as read.
#[derive(Debug, Default)]
pub(super) struct Names {
    hypervisors: Seen<String>,
    vfs: Seen<String>,
    /// By subnet.
    lids: Seen<(usize, i64)>,
    pub(super) guids: Seen<u64>,
    sockets: Seen<PathBuf>,
    clusters: clusters::Clusters,
    partitions: HashMap<String, u16>,
    /// Partitions that a list of P_Keys which acts names.
    used_partitions: RefCell<HashSet<u16>>,
    /// Files beside the configuration.
    pub(super) files: Vec<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Reader<'d> {
    pub(super) document: &'d Document<'d>,
    pub(super) names: Names,
    /// Whether the file of nodes cannot be used, so that nothing can be said of what should be in it.
    pub(super) nodes_unknown: bool,
    /// Warnings: values that take effect in another way than they are written.
    pub(super) warnings: Vec<String>,
}

impl<'d> Reader<'d> {
    /// Returns the configuration, with a default in place of each value that was rejected.
    fn config(mut self, root: &Section<'d>, dirs: Directories<'_>) -> Config {
        let runtime_dir = self.runtime_dir(root, dirs);
        let log = daemon::log(root);
        let socket_mode = daemon::socket_mode(root);
        let sandbox = root.one_of("sandbox", &Sandbox::NAMES).unwrap_or_default();
        let (engine, doorbells, object_memory) = daemon::engine(root);
        let host = host::host(root);
        let sm = root.section("sm", keys::SM);
        let (manager, files) = manager::manager(&sm);
        let external = daemon::external(root, &runtime_dir);
        let section = root.section("fabric", keys::FABRIC);
        let fabric = self.fabric(&section);
        let mut subnets = self.subnets(root, &section, &sm);
        let wiring = self.wiring(root, &section, &sm, &mut subnets);
        self.partitions(root);
        self.clusters(root, fabric.extended_lids, manager.cluster_lanes);
        let defaults = Defaults {
            runtime_dir: &runtime_dir,
            doorbells,
            object_memory,
            model: fabric.model,
            // Adapters have LIDs of their own for virtual ports only where they are told so.
            address: match fabric.model {
                AddressModel::Virtualized => Address::Shared,
                _ => Address::default(),
            },
            guest_memory: None,
            subnet: 0,
            is_external: manager.place == ManagerPlace::External,
        };
        let hypervisors = self.hypervisors(root, (&wiring, &subnets), &manager, defaults);
        self.check_guest_memory(&hypervisors);
        self.check_several_subnets(&subnets, &fabric, &manager);
        self.addresses(&fabric, (&wiring, &subnets), &manager, &hypervisors);
        if !self.nodes_unknown {
            manager::roots_exist(&sm, &wiring, &hypervisors);
        }
        let config = Config {
            runtime_dir,
            log,
            socket_mode,
            sandbox,
            read: std::mem::take(&mut self.names.files),
            warnings: std::mem::take(&mut self.warnings),
            file_warnings: Vec::new(),
            file: None,
            engine,
            host,
            fabric,
            manager,
            files,
            subnets,
            external,
            partitions: self.names.partitions.clone(),
            clusters: std::mem::take(&mut self.names.clusters.found),
            exclusive_switches: std::mem::take(&mut self.names.clusters.exclusive),
            elsewhere: std::mem::take(&mut self.names.clusters.elsewhere),
            wiring,
            hypervisors,
        };
        partitions::check_partitions(&self.names, root, &config.manager);
        scope::check(root, &config);
        config
    }

    pub(super) fn lid(&mut self, section: &Section<'d>, owner: &str, subnet: usize) -> Option<Lid> {
        let entry = lid_at(section, "lid")?;
        entry
            .with((subnet, entry.value))
            .claim(&mut self.names.lids, "LID", owner);
        u16::try_from(entry.value).ok().map(Lid::from)
    }

    pub(super) fn guid(&mut self, section: &Section<'d>, name: &str) -> Option<Guid> {
        let Some(entry) = section.text("guid") else {
            return Some(self.derived("VF", name));
        };
        let guid = guid_at(&entry)?;
        entry
            .with(guid.value())
            .claim(&mut self.names.guids, "GUID", name);
        Some(guid)
    }

    /// The GUID of the node that a VF's guest sees, if it is not the `port`'s GUID.
    pub(super) fn node_guid(
        &mut self,
        section: &Section<'d>,
        name: &str,
        port: Option<Guid>,
    ) -> Option<Guid> {
        let entry = section.text("node_guid")?;
        let guid = guid_at(&entry).filter(|guid| port != Some(*guid))?;
        entry
            .with(guid.value())
            .claim(&mut self.names.guids, "GUID", name);
        Some(guid)
    }

    /// A derived GUID, which may not meet a configured one or, with bad luck, another derived one.
    pub(super) fn derived(&mut self, kind: &str, name: &str) -> Guid {
        let guid = derive_guid(kind, name);
        let owner = format!("the {kind} `{name}`, whose GUID is derived from its name");
        // Two of the same kind and name are a mistake that is reported as such.
        if let Some(other) = self.names.guids.insert(u64::from(guid), owner.clone())
            && other != owner
        {
            self.document.reject_whole(
                "hypervisor.vf.guid",
                format!("the GUID {guid} derived for the {kind} `{name}` is also that of {other}"),
                "rename one of them, or configure another GUID",
            );
        }
        guid
    }
}

fn guid_at(entry: &Entry<'_, &str>) -> Option<Guid> {
    let guid: Guid = entry.meaning(entry.value.parse().ok(), "not a GUID", GUID_REMEDY)?;
    if guid == Guid::NONE {
        entry.reject(
            "a GUID must not be zero: applications regard such a port as not configured",
            "leave the key out to have one derived from the name",
        );
        return None;
    }
    Some(guid)
}

/// The LID at a key: a number, also in quotes, decimal or hexadecimal.
pub(super) fn lid_at<'d>(section: &Section<'d>, key: &str) -> Option<Entry<'d, i64>> {
    let entry = section.value(key)?;
    let Some(text) = entry.value.as_str() else {
        return section.integer(key, LID_REMEDY);
    };
    let lid = text.parse().ok().filter(|lid: &Lid| lid.is_unicast());
    let lid = entry.meaning(lid, "not a LID", LID_REMEDY)?;
    Some(entry.with(lid.value().into()))
}
