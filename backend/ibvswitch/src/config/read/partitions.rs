//! Partitions and P_Key tables.

use std::collections::HashMap;

use toml::de::DeValue;
use wire::PKey;

use super::{Reader, Seen, integer};
use crate::config::document::{Entry, Section};
use crate::config::{PKEYS_MAX, keys};

const PKEY_REMEDY: &str = "write a name from [partitions], optionally with \":full\" or \
     \":limited\", or a number from 0x0001 to 0xffff whose lower 15 bits are not zero";
/// The default partition's P_Key without the membership bit (IBA 10.9.1.2).
const DEFAULT_PARTITION: u16 = 0x7fff;
const FULL_MEMBER: u16 = 0x8000;

impl<'d, 'i> Reader<'d, 'i> {
    pub(super) fn partitions(&mut self, root: &Section<'d, 'i>) {
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
                    self.document.claim(&mut keys, &entry.with(base), "P_Key", name);
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

    pub(super) fn pkeys(&self, section: &Section<'d, 'i>) -> Vec<PKey> {
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
        self.memberships(&list)
    }

    /// The P_Keys of a list, of which no two may be of one partition.
    pub(super) fn memberships(&self, list: &[Entry<&DeValue<'_>>]) -> Vec<PKey> {
        let mut seen = Seen::new();
        list.iter()
            .filter_map(|entry| {
                let pkey = self.pkey(entry)?;
                let partition = pkey & DEFAULT_PARTITION;
                self.document.claim(
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
}
