//! Partitions and P_Key tables.

use toml::de::DeValue;
use wire::{Guid, PKey};

use super::{Names, Reader};
use crate::document::{Entry, Section, Seen};
use crate::{Manager, ManagerPlace, PKEYS_MAX, keys};

const PKEY_REMEDY: &str = "write a name from [partitions], optionally with \":full\" or \
     \":limited\", or a number from 0x0001 to 0xffff whose lower 15 bits are not zero";
/// The default partition's P_Key without the membership bit (IBA 10.9.1.2).
const DEFAULT_PARTITION: u16 = 0x7fff;
const FULL_MEMBER: u16 = 0x8000;

impl<'d> Reader<'d> {
    pub(super) fn partitions(&mut self, root: &Section<'d>) {
        self.names
            .partitions
            .insert("default".to_owned(), DEFAULT_PARTITION);
        let section = root.section("partitions", keys::PARTITIONS);
        let mut keys: Seen<u16> = Seen::new();
        for (name, entry) in section.entries() {
            if name == "default" {
                entry.reject(
                    "the default partition is 0x7fff by definition",
                    "choose another name",
                );
                continue;
            }
            entry.with(name).check_name();
            let base = number(&entry).map(|pkey| pkey & DEFAULT_PARTITION);
            let base = entry.meaning(
                base.filter(|base| (1..DEFAULT_PARTITION).contains(base)),
                "not a partition's P_Key",
                "write a number from 0x0001 to 0x7ffe, with or without the membership bit 0x8000",
            );
            if let Some(base) = base {
                entry.with(base).claim(&mut keys, "P_Key", name);
                self.names.partitions.insert(name.to_owned(), base);
            }
        }
    }

    pub(super) fn pkeys(&self, section: &Section<'d>) -> Vec<PKey> {
        let Some(list) = section.array("pkeys") else {
            return vec![PKey::DEFAULT_FULL];
        };
        let count = list.value.len();
        if count == 0 {
            list.reject(
                "no P_Key: the port could reach no other port",
                "leave the key out for full membership of the default partition",
            );
        }
        if count > PKEYS_MAX {
            list.reject(
                format!("{count} entries"),
                format!("a P_Key table has {PKEYS_MAX}"),
            );
        }
        self.memberships(&list.value)
    }

    /// The P_Keys of a list, of which no two may be of one partition.
    pub(super) fn memberships(&self, list: &[Entry<'d, &DeValue<'d>>]) -> Vec<PKey> {
        let mut seen = Seen::new();
        list.iter()
            .filter_map(|entry| {
                let pkey = self.pkey(entry)?;
                let partition = pkey & DEFAULT_PARTITION;
                entry
                    .with(partition)
                    .claim(&mut seen, "partition", "an entry before it");
                Some(PKey::from(pkey))
            })
            .collect()
    }

    fn pkey(&self, entry: &Entry<'d, &DeValue<'d>>) -> Option<u16> {
        let pkey = match (number(entry), entry.value) {
            (None, DeValue::String(text)) => {
                let (name, membership) = text.split_once(':').unwrap_or((text, "full"));
                let numbered = || name.parse().ok().map(|pkey: PKey| pkey.partition());
                let base = { self.names.partitions.get(name).copied() }.or_else(numbered);
                match (base, membership) {
                    (Some(base), "full") => Some(base | FULL_MEMBER),
                    (Some(base), "limited") => Some(base),
                    (None, "full" | "limited") if !name.is_empty() => {
                        let known = self.names.partitions.keys().map(String::as_str);
                        let what = format!("there is no partition `{name}`");
                        let remedy = vswitch::near(name, known, "");
                        entry.reject(
                            what,
                            format!("add it to [partitions], or write another name: {remedy}"),
                        );
                        return None;
                    }
                    _ => None,
                }
            }
            (number, _) => number,
        };
        let valid = pkey.filter(|pkey| pkey & DEFAULT_PARTITION != 0);
        let valid = entry.meaning(valid, "not a P_Key", PKEY_REMEDY)?;
        let mut used = self.names.used_partitions.borrow_mut();
        used.insert(valid & DEFAULT_PARTITION);
        Some(valid)
    }
}

/// A P_Key as a number, also in quotes.
fn number(entry: &Entry<'_, &DeValue<'_>>) -> Option<u16> {
    let quoted = || entry.value.as_str()?.parse().ok().map(PKey::value);
    let number = entry.integer(0..=0xffff).map(|number| number as u16);
    number.or_else(quoted)
}

/// Whether the partitions that have names are there for anybody: an external manager does not know them.
pub(super) fn check_partitions(names: &Names, root: &Section<'_>, manager: &Manager) {
    if manager.place == ManagerPlace::Embedded {
        return;
    }
    let used = names.used_partitions.borrow();
    for (name, entry) in root.section("partitions", keys::PARTITIONS).entries() {
        let known = names.partitions.get(name);
        if known.is_some_and(|partition| !used.contains(partition)) {
            entry.reject(
                "an external subnet manager does not know these partitions",
                "remove the name; OpenSM has partitions in its partitions.conf",
            );
        }
    }
}

/// The P_Keys of a VF in a subnet that an external manager manages: a port has those that the manager gives it.
pub(super) fn check_external_pkeys(section: &Section<'_>, guid: Option<Guid>) {
    let (Some(list), Some(guid)) = (section.value("pkeys"), guid) else {
        return;
    };
    let what = "an external subnet manager gives this VF its P_Keys, and does not know these";
    let remedy = format!(
        "write the VF into that manager's file (OpenSM's partitions.conf: `{guid:#}=full` or `=limited`)"
    );
    match section.value("virtual_pkeys") {
        None => list.reject(what, format!("remove the key; {remedy}")),
        Some(_) => list.warn(what, format!("{remedy}, with the same P_Keys")),
    }
}
