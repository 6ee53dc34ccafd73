//! From a document to a checked [`Config`].

mod clusters;
mod daemon;
mod fabric;
mod hypervisors;
mod mads;
mod manager;
mod partitions;
mod ports;
mod subnets;

use std::collections::HashMap;
use std::path::PathBuf;

use toml::de::DeValue;
use vswitch::model::derive_guid;
use wire::{Guid, Lid};

use self::hypervisors::Defaults;
use super::document::{Document, Entry, Problem, Section, Seen, list};
use super::{Address, Config, Directories, keys};

/// The highest unicast LID (IBA 4.1.3).
const LID_MAX: i64 = 0xbfff;
const LID_REMEDY: &str = "a unicast LID is 0x0001 to 0xbfff (1 to 49151)";
const GUID_REMEDY: &str = "write 16 hexadecimal digits, such as \"0002:c903:0000:0101\"";
const PREFIX_REMEDY: &str = "write 16 hexadecimal digits, such as \"fe80:0000:0000:0000\"";
const NAME_MAX: usize = 31;

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
            nodes_unknown: false,
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
pub(super) struct Names {
    hypervisors: Seen<String>,
    vfs: Seen<String>,
    /// By subnet.
    lids: Seen<(usize, i64)>,
    pub(super) guids: Seen<u64>,
    sockets: Seen<PathBuf>,
    clusters: clusters::Clusters,
    partitions: HashMap<String, u16>,
}

#[derive(Debug)]
pub(super) struct Reader<'d, 'i> {
    pub(super) document: &'d Document<'i>,
    pub(super) names: Names,
    /// Whether the file of nodes cannot be used, so that nothing can be said of what should be in it.
    pub(super) nodes_unknown: bool,
}

impl<'d, 'i> Reader<'d, 'i> {
    /// `None` only along with a recorded problem.
    fn config(mut self, root: &Section<'d, 'i>, dirs: Directories<'_>) -> Option<Config> {
        let runtime_dir = self.runtime_dir(root, dirs);
        let log = self.log(root);
        let socket_mode = self.socket_mode(root);
        let (engine, doorbells, object_memory) = self.engine(root);
        let sm = root.section("sm", keys::SM);
        let (manager, files) = self.manager(sm.as_ref());
        let external = self.external(root, &runtime_dir);
        let section = root.section("fabric", keys::FABRIC);
        let fabric = self.fabric(section.as_ref());
        let mut subnets = self.subnets(root, section.as_ref(), sm.as_ref());
        let wiring = self.wiring(root, section.as_ref(), sm.as_ref(), &mut subnets);
        self.partitions(root);
        let extended_lids = fabric.as_ref().is_some_and(|fabric| fabric.extended_lids);
        self.clusters(root, extended_lids);
        let defaults = Defaults {
            runtime_dir: &runtime_dir,
            doorbells,
            object_memory,
            model: fabric
                .as_ref()
                .map(|fabric| fabric.model)
                .unwrap_or_default(),
            address: Address::default(),
            guest_memory: None,
            subnet: 0,
        };
        let hypervisors = self.hypervisors(root, (&wiring, &subnets), &manager, defaults);
        self.check_guest_memory(&hypervisors);
        if let Some(fabric) = &fabric {
            self.check_several_subnets(&subnets, fabric, &manager);
            self.addresses(fabric, (&wiring, &subnets), &manager, &hypervisors);
        }
        Some(Config {
            runtime_dir,
            log,
            socket_mode,
            engine,
            fabric: fabric?,
            manager,
            files,
            subnets,
            external,
            clusters: self.names.clusters.found,
            wiring,
            hypervisors,
        })
    }

    pub(super) fn lid(
        &mut self,
        section: &Section<'d, 'i>,
        owner: &str,
        subnet: usize,
    ) -> Option<Lid> {
        let entry = section.integer("lid", 1..=LID_MAX, LID_REMEDY)?;
        self.document.claim(
            &mut self.names.lids,
            &entry.with((subnet, entry.value)),
            "LID",
            owner,
        );
        u16::try_from(entry.value).ok().map(Lid::from)
    }

    pub(super) fn guid(&mut self, section: &Section<'d, 'i>, name: &str) -> Option<Guid> {
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
                self.document
                    .claim(&mut self.names.guids, &entry.with(guid), "GUID", name);
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

    pub(super) fn flag(&self, section: &Section<'d, 'i>, key: &str) -> Option<bool> {
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
