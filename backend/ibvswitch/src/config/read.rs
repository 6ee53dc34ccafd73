//! From a document to a checked [`Config`].

mod clusters;
mod mads;

use std::collections::HashMap;
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabric::SmpAccess;
use hca::ServiceLevels;
use toml::de::DeValue;
use wire::{Gid, Guid, Lid, LinkWidth, Mtu, PKey};

use super::document::{Document, Entry, Problem, Section, list};
use super::guid::{derive_guid, derive_name};
use super::model::Population;
use super::names::WIDTHS;
use super::{
    AddressModel, CONTROL_SOCKET, Config, Directories, Doorbells, Engine, External, Fabric,
    GmpClasses, Hypervisor, KeyChoice, LinkRate, MANAGER, MadRate, MadRules, Manager, ManagerPlace,
    PKEYS_MAX, RoutingChoice, SMP_ACCESS, SOCKET_PATH_MAX, VFS_PER_HYPERVISOR_MAX, Vf, Wiring,
    keys,
};

/// The highest unicast LID (IBA 4.1.3).
const LID_MAX: i64 = 0xbfff;
const LID_REMEDY: &str = "a unicast LID is 0x0001 to 0xbfff (1 to 49151)";
const GUID_REMEDY: &str = "write 16 hexadecimal digits, such as \"0002:c903:0000:0101\"";
const PKEY_REMEDY: &str = "write a name from [partitions], optionally with \":full\" or \
     \":limited\", or a number from 0x0001 to 0xffff whose lower 15 bits are not zero";
/// The default partition's P_Key without the membership bit (IBA 10.9.1.2).
const DEFAULT_PARTITION: u16 = 0x7fff;
const FULL_MEMBER: u16 = 0x8000;
const NAME_MAX: usize = 31;
/// Where a LID, GUID and so on is taken, with the line of the configuration, for "already used".
pub(super) type Seen<T> = HashMap<T, String>;

/// Reads `text`, or returns everything wrong with it.
pub(super) fn read(
    origin: &str,
    text: &str,
    dirs: Directories<'_>,
) -> Result<Config, Vec<Problem>> {
    let document = Document::new(origin, text);
    let config = document.parse().and_then(|table| {
        let root = Section::root(&document, &table, keys::ROOT);
        Reader {
            document: &document,
            names: Names::default(),
        }
        .config(&root, dirs)
    });
    match (config, document.into_problems()) {
        (Some(config), problems) if problems.is_empty() => Ok(config),
        (_, problems) => Err(problems),
    }
}

/// What must be unique, as far as read.
#[derive(Debug, Default)]
struct Names {
    hypervisors: Seen<String>,
    vfs: Seen<String>,
    lids: Seen<i64>,
    guids: Seen<u64>,
    sockets: Seen<PathBuf>,
    clusters: clusters::Clusters,
    partitions: HashMap<String, u16>,
}

#[derive(Debug)]
pub(super) struct Reader<'d, 'i> {
    pub(super) document: &'d Document<'i>,
    names: Names,
}

impl<'d, 'i> Reader<'d, 'i> {
    /// `None` only along with a recorded problem.
    fn config(mut self, root: &Section<'d, 'i>, dirs: Directories<'_>) -> Option<Config> {
        let runtime_dir = self.runtime_dir(root, dirs);
        let log = self.log(root);
        let socket_mode = self.socket_mode(root);
        let (engine, doorbells) = self.engine(root);
        let sm = root.section("sm", keys::SM);
        let mut manager = self.manager(sm.as_ref());
        let external = self.external(root, &runtime_dir);
        let section = root.section("fabric", keys::FABRIC);
        let fabric = self.fabric(section.as_ref());
        let wiring = self.wiring(root, section.as_ref(), sm.as_ref(), &mut manager);
        self.partitions(root);
        self.clusters(root);
        let hypervisors = self.hypervisors(root, &wiring, &runtime_dir, doorbells);
        if let Some(fabric) = &fabric {
            self.addresses(fabric, &wiring, &manager, &hypervisors);
        }
        Some(Config {
            runtime_dir,
            log,
            socket_mode,
            engine,
            fabric: fabric?,
            manager,
            external,
            clusters: self.names.clusters.found,
            wiring,
            hypervisors,
        })
    }

    /// Whether the model of addresses fits the manager and the number of VFs.
    fn addresses(
        &self,
        fabric: &Fabric,
        wiring: &Wiring,
        manager: &Manager,
        hypervisors: &[Hypervisor],
    ) {
        const KEY: &str = "fabric.model";
        if fabric.model == AddressModel::Dynamic && manager.place == ManagerPlace::External {
            self.document.reject_whole(
                KEY,
                "an external subnet manager gives every port a LID",
                "write \"vswitch-prepopulated\", or sm.manager = \"embedded\"",
            );
        }
        let population = Population {
            hypervisors: hypervisors.len(),
            vfs: hypervisors
                .iter()
                .map(|hypervisor| hypervisor.vfs.len())
                .sum(),
            switches: wiring.switches.len(),
        };
        if let Err((what, remedy)) = population.check(fabric.model) {
            self.document.reject_whole(KEY, what, remedy);
        }
    }

    fn runtime_dir(&mut self, root: &Section<'d, 'i>, dirs: Directories<'_>) -> PathBuf {
        let configured = root.text("runtime_dir");
        let dir = match (dirs.chosen, &configured) {
            (Some(chosen), _) => chosen,
            (None, Some(entry)) => Path::new(entry.value),
            (None, None) => dirs.fallback,
        };
        // A path on the command line is relative to where the command was typed; one in a file
        // would depend on where the daemon was started.
        let dir = match (dirs.chosen, &configured) {
            (None, Some(entry)) if dir.is_relative() => {
                self.document
                    .reject(entry, "a relative path", "write a path that begins with /");
                return dir.to_owned();
            }
            _ => std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()),
        };
        let control = dir.join(CONTROL_SOCKET);
        let length = control.as_os_str().as_bytes().len();
        if length > SOCKET_PATH_MAX {
            let what = too_long(&control, length);
            let remedy = "choose a shorter directory";
            match (&configured, dirs.chosen) {
                (Some(entry), None) => self.document.reject(entry, what, remedy),
                (_, Some(_)) => self.document.reject_whole("--runtime-dir", what, remedy),
                (None, None) => self.document.reject_whole("runtime_dir", what, remedy),
            }
        }
        self.names
            .sockets
            .insert(control, "the daemon's control socket".to_owned());
        dir
    }

    fn log(&self, root: &Section<'d, 'i>) -> String {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let Some(entry) = root.text("log") else {
            return "info".to_owned();
        };
        for directive in entry.value.split(',') {
            let level = directive
                .rsplit_once('=')
                .map_or(directive, |(_, level)| level);
            if !LEVELS.contains(&level) {
                self.document.reject(
                    &entry,
                    format!("`{level}` is no log level"),
                    format!(
                        "the levels are {}; a directive is LEVEL or MODULE=LEVEL, separated by commas",
                        list(&LEVELS)
                    ),
                );
            }
        }
        entry.value.to_owned()
    }

    fn socket_mode(&self, root: &Section<'d, 'i>) -> u32 {
        const OWNER: u32 = 0o600;
        const REMEDY: &str =
            "write octal permission bits such as 0o660, of which 0o600 for the owner";
        let Some(entry) = root.integer("socket_mode", 0..=0o777, REMEDY) else {
            return OWNER;
        };
        let mode = entry.value as u32;
        if mode & OWNER != OWNER {
            self.document.reject(&entry, "out of range", REMEDY);
        }
        mode
    }

    fn engine(&self, root: &Section<'d, 'i>) -> (Engine, Doorbells) {
        let section = root.section("engine", keys::ENGINE);
        let section = section.as_ref();
        let cpu = section.and_then(|engine| {
            engine.integer(
                "cpu",
                0..=8191,
                "write the number of a processor, counted from 0",
            )
        });
        let doorbells =
            section.and_then(|engine| self.one_of(engine, "doorbells", &Doorbells::NAMES));
        (
            Engine {
                cpu: cpu.map(|cpu| cpu.value as usize),
            },
            doorbells.unwrap_or_default(),
        )
    }

    fn fabric(&mut self, section: Option<&Section<'d, 'i>>) -> Option<Fabric> {
        const MTU_REMEDY: &str = "the MTUs are 256, 512, 1024, 2048 and 4096";
        let subnet_prefix = section
            .and_then(|fabric| fabric.text("subnet_prefix"))
            .and_then(|entry| {
                // A prefix is written as a GUID is: 64 bits in hexadecimal.
                let prefix = entry.value.parse().ok().map(Guid::value);
                if prefix.is_none() {
                    self.document.reject(
                        &entry,
                        "not a 64-bit subnet prefix",
                        "write 16 hexadecimal digits, such as \"fe80:0000:0000:0000\"",
                    );
                }
                prefix
            })
            .unwrap_or(Gid::DEFAULT_PREFIX);
        let mtu = section.and_then(|fabric| {
            let entry = fabric.integer("mtu", 256..=4096, MTU_REMEDY)?;
            let mtu = u32::try_from(entry.value).ok().and_then(Mtu::from_bytes);
            if mtu.is_none() {
                self.document
                    .reject(&entry, "not an InfiniBand MTU", MTU_REMEDY);
            }
            mtu
        });
        let link_width = section.and_then(|fabric| self.one_of(fabric, "link_width", &WIDTHS));
        let link_speed =
            section.and_then(|fabric| self.one_of(fabric, "link_speed", &LinkRate::NAMES));
        let model = section.and_then(|fabric| self.one_of(fabric, "model", &AddressModel::NAMES));
        Some(Fabric {
            model: model.unwrap_or_default(),
            subnet_prefix,
            mtu: mtu.unwrap_or(Mtu::B4096),
            link_width: link_width.unwrap_or(LinkWidth::X4),
            link_speed: link_speed.unwrap_or(LinkRate::Edr),
        })
    }

    fn manager(&mut self, section: Option<&Section<'d, 'i>>) -> Manager {
        let lid = section.and_then(|sm| self.lid(sm, "the subnet manager"));
        let lid = lid.unwrap_or_else(|| {
            self.names
                .lids
                .entry(1)
                .or_insert_with(|| "the subnet manager".to_owned());
            Lid::from(1)
        });
        let sweep_interval = section.and_then(|sm| {
            sm.integer(
                "sweep_interval",
                1..=86_400,
                "write seconds, from 1 to 86400 (a day)",
            )
        });
        let place = section.and_then(|sm| self.one_of(sm, "manager", &ManagerPlace::NAMES));
        Manager {
            place: place.unwrap_or_default(),
            lid,
            guid: self.derived("node", MANAGER),
            sweep_interval: Duration::from_secs(sweep_interval.map_or(10, |s| s.value as u64)),
            priority: section
                .and_then(|sm| sm.integer("priority", 0..=15, "write 0 to 15, 15 the highest"))
                .map_or(0, |entry| entry.value as u8),
            routing: section
                .and_then(|sm| self.one_of(sm, "routing", &RoutingChoice::NAMES))
                .unwrap_or_default(),
            roots: section.map_or_else(Vec::new, |sm| self.roots(sm)),
            partitions_file: section.and_then(|sm| self.absolute(sm, "partitions_file")),
            enforce_partitions: section
                .and_then(|sm| self.flag(sm, "enforce_partitions"))
                .unwrap_or_default(),
            state_dir: section.and_then(|sm| self.absolute(sm, "state_dir")),
            max_lanes: section.and_then(|sm| self.max_lanes(sm)),
            sl_to_vl: section.and_then(|sm| self.service_lanes(sm)),
            arbitration: section.and_then(|sm| self.arbitration(sm)),
            m_key: section.map_or(KeyChoice::None, |sm| self.m_key(sm)),
            m_key_protect: section
                .and_then(|sm| sm.integer("m_key_protect", 0..=3, "write 0 to 3"))
                .map_or(2, |entry| entry.value as u8),
            m_key_lease: section
                .and_then(|sm| sm.integer("m_key_lease", 0..=65_535, "write seconds, 0 to 65535"))
                .map_or(60, |entry| entry.value as u16),
            path_caching: section
                .and_then(|sm| self.flag(sm, "path_caching"))
                .unwrap_or_default(),
        }
    }

    fn roots(&self, section: &Section<'d, 'i>) -> Vec<Guid> {
        let entries = section.array("roots").unwrap_or_default().into_iter();
        entries
            .filter_map(|entry| {
                let guid = match entry.value {
                    DeValue::String(text) => text.parse::<Guid>().ok(),
                    _ => None,
                };
                if guid.is_none() {
                    self.document
                        .reject(&entry, "not the GUID of a switch", GUID_REMEDY);
                }
                guid
            })
            .collect()
    }

    fn max_lanes(&self, section: &Section<'d, 'i>) -> Option<u8> {
        const LANES: [i64; 5] = [1, 2, 4, 8, 15];
        let remedy = "write 1, 2, 4, 8 or 15";
        let entry = section.integer("qos_max_vls", 1..=15, remedy)?;
        if !LANES.contains(&entry.value) {
            self.document.reject(&entry, "no link has so many", remedy);
            return None;
        }
        Some(entry.value as u8)
    }

    fn service_lanes(&self, section: &Section<'d, 'i>) -> Option<wire::attribute::SlToVl> {
        let entry = section.text("qos_sl2vl")?;
        subnet::parse_lanes(entry.value)
            .map_err(|_| {
                let remedy =
                    "write 16 lanes from 0 to 15, as in \"0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7\"";
                self.document
                    .reject(&entry, "not a lane for each service level", remedy);
            })
            .ok()
    }

    /// What the keys for arbitration say; those left out are OpenSM's defaults for so many lanes.
    fn arbitration(&self, section: &Section<'d, 'i>) -> Option<subnet::Arbitration> {
        let [high, low] = ["qos_vlarb_high", "qos_vlarb_low"].map(|key| section.text(key));
        let limit = section.integer("qos_high_limit", 0..=255, "write 0 to 255");
        if high.is_none() && low.is_none() && limit.is_none() {
            return None;
        }
        let mut tables = [String::new(), String::new()];
        for ((table, entry), default) in tables.iter_mut().zip([high, low]).zip(["0:4", "0:0,1:4"])
        {
            let text = entry.as_ref().map_or(default, |entry| entry.value);
            match (subnet::Arbitration::parse(0, text, ""), &entry) {
                (Err(error), Some(entry)) => {
                    let what = format!("no arbitration table ({error})");
                    self.document.reject(
                        entry,
                        what,
                        "write lanes with weights, as in \"0:4,1:64\"",
                    );
                }
                _ => text.clone_into(table),
            }
        }
        let limit = limit.map_or(0, |entry| entry.value as u8);
        subnet::Arbitration::parse(limit, &tables[0], &tables[1]).ok()
    }

    fn m_key(&self, section: &Section<'d, 'i>) -> KeyChoice {
        let Some(entry) = section.text("m_key") else {
            return KeyChoice::None;
        };
        let digits = entry.value.strip_prefix("0x");
        match entry.value {
            "none" => KeyChoice::None,
            "per-node" => KeyChoice::PerNode,
            _ => match digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
                Some(key) if key != 0 => KeyChoice::One(key),
                _ => {
                    self.document.reject(
                        &entry,
                        "no management key",
                        "write \"none\", \"per-node\", or 0x and up to 16 hexadecimal digits, not all 0",
                    );
                    KeyChoice::None
                }
            },
        }
    }

    /// A path that does not depend on where the daemon was started.
    fn absolute(&self, section: &Section<'d, 'i>, key: &str) -> Option<PathBuf> {
        let entry = section.text(key)?;
        let path = Path::new(entry.value);
        if path.is_relative() {
            self.document
                .reject(&entry, "a relative path", "write a path that begins with /");
            return None;
        }
        Some(path.to_owned())
    }

    fn flag(&self, section: &Section<'d, 'i>, key: &str) -> Option<bool> {
        let entry = section.value(key)?;
        match entry.value {
            DeValue::Boolean(value) => Some(*value),
            _ => {
                self.document
                    .reject(&entry, "neither true nor false", "write true or false");
                None
            }
        }
    }

    fn external(&self, root: &Section<'d, 'i>, runtime_dir: &Path) -> External {
        let section = root.section("external", keys::EXTERNAL);
        let socket = section.and_then(|section| section.text("socket"));
        let socket = match socket {
            Some(entry) if entry.value.is_empty() => None,
            Some(entry) => {
                self.check_name(&entry);
                Some(entry.value.to_owned())
            }
            // Daemons that run at the same time have runtime directories of their own.
            None => Some(derive_name("ibvswitch", &runtime_dir.to_string_lossy())),
        };
        External { socket }
    }

    fn partitions(&mut self, root: &Section<'d, 'i>) {
        self.names
            .partitions
            .insert("default".to_owned(), DEFAULT_PARTITION);
        let Some(section) = root.section("partitions", keys::PARTITIONS) else {
            return;
        };
        let mut keys: Seen<u16> = HashMap::new();
        for (name, entry) in section.entries() {
            if name == "default" {
                self.document.reject(
                    &entry,
                    "the default partition is 0x7fff by definition",
                    "choose another name",
                );
                continue;
            }
            self.check_name(&entry.with(name));
            let base = integer(entry.value).and_then(|number| u16::try_from(number).ok());
            match base.filter(|base| (1..DEFAULT_PARTITION).contains(base)) {
                Some(base) => {
                    self.claim(&mut keys, &entry.with(base), "P_Key", name);
                    self.names.partitions.insert(name.to_owned(), base);
                }
                None => self.document.reject(
                    &entry,
                    "not a partition's P_Key",
                    "write a number from 0x0001 to 0x7ffe; the membership bit 0x8000 belongs to the members",
                ),
            }
        }
    }

    fn hypervisors(
        &mut self,
        root: &Section<'d, 'i>,
        wiring: &Wiring,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Vec<Hypervisor> {
        let sections = root.sections("hypervisor", keys::HYPERVISOR);
        let none = root
            .value("hypervisor")
            .is_none_or(|list| is_empty_array(list.value));
        if none && wiring.file.is_none() {
            self.document.reject_whole(
                "hypervisor",
                "there is none",
                "add a table [[hypervisor]] with a name and a table [[hypervisor.vf]] for each VM",
            );
        }
        let mut free = wiring.free_ports();
        sections
            .iter()
            .filter_map(|section| {
                let switch = self.switch_of(section, wiring);
                if let Some(left) = free.get_mut(switch) {
                    match left.checked_sub(1) {
                        Some(less) => *left = less,
                        None => self.document.reject_section(
                            section,
                            "name",
                            format!(
                                "no port is left for it on the switch `{}`",
                                wiring.switches[switch].name
                            ),
                            "choose another switch with `switch = \"…\"`, or add one",
                        ),
                    }
                }
                self.hypervisor(section, switch, runtime_dir, doorbells)
            })
            .collect()
    }

    fn hypervisor(
        &mut self,
        section: &Section<'d, 'i>,
        switch: usize,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Option<Hypervisor> {
        let name = section.required_text("name");
        if let Some(name) = &name {
            self.check_name(name);
            let mut seen = std::mem::take(&mut self.names.hypervisors);
            self.claim(
                &mut seen,
                &name.with(name.value.to_owned()),
                "name",
                "hypervisor",
            );
            self.names.hypervisors = seen;
        }
        let sections = section.sections("vf", keys::VF);
        if let Some(first_too_many) = sections.get(VFS_PER_HYPERVISOR_MAX) {
            self.document.reject_section(
                first_too_many,
                "name",
                format!("{} VFs on one hypervisor", sections.len()),
                format!("an adapter port has at most {VFS_PER_HYPERVISOR_MAX}; add a hypervisor"),
            );
        }
        let mut vfs: Vec<Vf> = sections
            .iter()
            .filter_map(|vf| self.vf(vf, runtime_dir, doorbells))
            .collect();
        let spares = section.integer(
            "spare_vfs",
            0..=VFS_PER_HYPERVISOR_MAX as i64,
            "write how many VFs without a VM the hypervisor has, from 0 to 127",
        );
        let name = name?;
        if let Some(spares) = spares {
            let count = sections.len() + spares.value as usize;
            if sections.len() <= VFS_PER_HYPERVISOR_MAX && count > VFS_PER_HYPERVISOR_MAX {
                self.document.reject(
                    &spares,
                    format!(
                        "{count} VFs on one hypervisor, with the {} that have a VM",
                        sections.len()
                    ),
                    format!("an adapter port has at most {VFS_PER_HYPERVISOR_MAX}"),
                );
            } else {
                let spares = 1..=spares.value;
                vfs.extend(spares.map(|number| self.spare(&name, number, runtime_dir, doorbells)));
            }
        }
        let name = name.value.to_owned();
        Some(Hypervisor {
            switch,
            vswitch_guid: self.derived("vswitch", &name),
            name,
            vfs,
        })
    }

    fn vf(
        &mut self,
        section: &Section<'d, 'i>,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Option<Vf> {
        let name = section.required_text("name");
        if let Some(name) = &name {
            self.check_name(name);
            let mut seen = std::mem::take(&mut self.names.vfs);
            self.claim(&mut seen, &name.with(name.value.to_owned()), "name", "VF");
            self.names.vfs = seen;
        }
        let label = name.as_ref().map_or("", |name| name.value);
        let lid = self.lid(section, label);
        let guid = self.guid(section, label);
        let pkeys = self.pkeys(section);
        let doorbells = self
            .one_of(section, "doorbells", &Doorbells::NAMES)
            .unwrap_or(doorbells);
        let smp = self
            .one_of(section, "smp", &SMP_ACCESS)
            .unwrap_or(SmpAccess::OwnPort);
        let mads = self.mads(section, smp);
        let cluster = self.membership(section, label, smp == SmpAccess::Fabric);
        let virtual_pkeys = self.virtual_pkeys(section, &pkeys);
        let service_levels = self.service_levels(section);
        let configured = section.text("socket");
        let name = name?;
        let socket = self.socket(&name, configured.as_ref(), runtime_dir);
        Some(Vf {
            name: name.value.to_owned(),
            lid,
            guid: guid?,
            pkeys,
            has_pkeys: section.value("pkeys").is_some(),
            doorbells,
            smp,
            mads,
            cluster,
            virtual_pkeys,
            service_levels,
            socket,
            spare: false,
        })
    }

    /// A virtual function without a VM.
    fn spare(
        &mut self,
        hypervisor: &Entry<&str>,
        number: i64,
        runtime_dir: &Path,
        doorbells: Doorbells,
    ) -> Vf {
        let name = format!("{}-spare{number}", hypervisor.value);
        let entry = hypervisor.with(name.as_str());
        self.check_name(&entry);
        let mut seen = std::mem::take(&mut self.names.vfs);
        self.claim(&mut seen, &entry.with(name.clone()), "name", "VF");
        self.names.vfs = seen;
        Vf {
            lid: None,
            guid: self.derived("VF", &name),
            pkeys: vec![PKey::DEFAULT_FULL],
            has_pkeys: false,
            doorbells,
            smp: SmpAccess::OwnPort,
            mads: MadRules {
                classes: GmpClasses::default(),
                rate: Some(MadRate::default()),
                class_rates: Vec::new(),
            },
            cluster: None,
            virtual_pkeys: Vec::new(),
            service_levels: ServiceLevels::default(),
            socket: self.socket(&entry, None, runtime_dir),
            spare: true,
            name,
        }
    }

    fn lid(&mut self, section: &Section<'d, 'i>, owner: &str) -> Option<Lid> {
        let entry = section.integer("lid", 1..=LID_MAX, LID_REMEDY)?;
        let mut seen = std::mem::take(&mut self.names.lids);
        self.claim(&mut seen, &entry, "LID", owner);
        self.names.lids = seen;
        u16::try_from(entry.value).ok().map(Lid::from)
    }

    fn guid(&mut self, section: &Section<'d, 'i>, name: &str) -> Option<Guid> {
        let Some(entry) = section.text("guid") else {
            return Some(self.derived("VF", name));
        };
        match entry.value.parse().ok().map(Guid::value) {
            Some(0) => {
                self.document.reject(
                    &entry,
                    "a GUID must not be zero: applications take such a port for unconfigured",
                    "leave the key out to have one derived from the name",
                );
                None
            }
            Some(guid) => {
                let mut seen = std::mem::take(&mut self.names.guids);
                self.claim(&mut seen, &entry.with(guid), "GUID", name);
                self.names.guids = seen;
                Some(Guid::from(guid))
            }
            None => {
                self.document.reject(&entry, "not a GUID", GUID_REMEDY);
                None
            }
        }
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

    fn pkeys(&self, section: &Section<'d, 'i>) -> Vec<PKey> {
        let default = vec![PKey::DEFAULT_FULL];
        let (Some(list), Some(whole)) = (section.array("pkeys"), section.value("pkeys")) else {
            return default;
        };
        if list.is_empty() {
            self.document.reject(
                &whole,
                "no P_Key: the port could talk to nobody",
                "leave the key out for full membership of the default partition",
            );
        }
        if list.len() > PKEYS_MAX {
            self.document.reject(
                &whole,
                format!("{} entries", list.len()),
                format!("a P_Key table has {PKEYS_MAX}"),
            );
        }
        let mut seen = Seen::new();
        list.iter()
            .filter_map(|entry| {
                let pkey = self.pkey(entry)?;
                let partition = pkey & DEFAULT_PARTITION;
                self.claim(
                    &mut seen,
                    &entry.with(partition),
                    "partition",
                    "an entry before it",
                );
                Some(PKey::from(pkey))
            })
            .collect()
    }

    fn pkey(&self, entry: &Entry<&DeValue<'_>>) -> Option<u16> {
        let pkey = match entry.value {
            DeValue::String(text) => {
                let (name, membership) = text.split_once(':').unwrap_or((text, "full"));
                let base = self.names.partitions.get(name).copied();
                match (base, membership) {
                    (Some(base), "full") => Some(base | FULL_MEMBER),
                    (Some(base), "limited") => Some(base),
                    _ => None,
                }
            }
            value => integer(value).and_then(|number| u16::try_from(number).ok()),
        };
        let valid = pkey.filter(|pkey| pkey & DEFAULT_PARTITION != 0);
        if valid.is_none() {
            self.document.reject(entry, "not a P_Key", PKEY_REMEDY);
        }
        valid
    }

    fn socket(
        &mut self,
        name: &Entry<&str>,
        configured: Option<&Entry<&str>>,
        runtime_dir: &Path,
    ) -> PathBuf {
        let file =
            configured.map_or_else(|| format!("{}.sock", name.value), |e| e.value.to_owned());
        let path = runtime_dir.join(&file);
        // The place to mend is the socket's own key where there is one, else the VF's name.
        let entry = configured.unwrap_or(name);
        if file.is_empty() || file.ends_with('/') || file.contains('\0') {
            self.document.reject(
                entry,
                "not the path of a file",
                "write a file name, which is then in the runtime directory, or a whole path",
            );
            return path;
        }
        let length = path.as_os_str().as_bytes().len();
        if length > SOCKET_PATH_MAX {
            self.document.reject(
                entry,
                too_long(&path, length),
                "choose a shorter `runtime_dir`, name or `socket`",
            );
        }
        let mut seen = std::mem::take(&mut self.names.sockets);
        self.claim(&mut seen, &entry.with(path.clone()), "socket", name.value);
        self.names.sockets = seen;
        path
    }

    /// Notes that `entry`'s value is `owner`'s, or reports whose it was already.
    pub(super) fn claim<T: Eq + Hash + Clone>(
        &self,
        seen: &mut Seen<T>,
        entry: &Entry<T>,
        noun: &str,
        owner: &str,
    ) {
        let owner = match owner {
            "" => "another table".to_owned(),
            owner => format!("{owner} (line {})", self.document.line(entry)),
        };
        match seen.get(&entry.value) {
            Some(first) => self.document.reject(
                entry,
                format!("this {noun} is already that of {first}"),
                format!("give each its own {noun}"),
            ),
            None => {
                seen.insert(entry.value.clone(), owner);
            }
        }
    }

    /// Names go into socket paths, node descriptions and QEMU identifiers.
    pub(super) fn check_name(&self, entry: &Entry<&str>) {
        let name = entry.value;
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.len() > NAME_MAX
            || !name.bytes().all(allowed)
            || !name
                .bytes()
                .next()
                .is_some_and(|byte| byte.is_ascii_alphabetic())
        {
            self.document.reject(
                entry,
                "not a name",
                format!(
                    "a name is a letter and up to {} letters, digits, `-`, `_` or `.`",
                    NAME_MAX - 1
                ),
            );
        }
    }

    fn one_of<T: Copy>(
        &self,
        section: &Section<'d, 'i>,
        key: &str,
        names: &[(&str, T)],
    ) -> Option<T> {
        let entry = section.text(key)?;
        let found = names
            .iter()
            .find(|(name, _)| *name == entry.value)
            .map(|&(_, value)| value);
        if found.is_none() {
            let names: Vec<&str> = names.iter().map(|&(name, _)| name).collect();
            self.document.reject(
                &entry,
                "unknown value",
                format!("the values are {}", list(&names)),
            );
        }
        found
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).ok(),
        _ => None,
    }
}

fn is_empty_array(value: &DeValue<'_>) -> bool {
    value.as_array().is_some_and(|array| array.is_empty())
}

fn too_long(path: &Path, length: usize) -> String {
    format!(
        "the socket {} would have a path of {length} bytes, and a UNIX socket's has at most {SOCKET_PATH_MAX}",
        path.display()
    )
}
