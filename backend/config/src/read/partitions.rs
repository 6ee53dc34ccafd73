//! Partitions and P_Key tables.

use toml::de::DeValue;
use wire::PKey;

use super::Reader;
use crate::document::{Entry, Section, Seen};
use crate::{PKEYS_MAX, keys};

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
            let base = entry.integer(1..=i64::from(DEFAULT_PARTITION) - 1);
            let base = entry.meaning(
                base,
                "not a partition's P_Key",
                "write a number from 0x0001 to 0x7ffe; the membership bit 0x8000 belongs to the members",
            );
            if let Some(base) = base.map(|base| base as u16) {
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
            _ => entry.integer(0..=0xffff).map(|number| number as u16),
        };
        let valid = pkey.filter(|pkey| pkey & DEFAULT_PARTITION != 0);
        entry.meaning(valid, "not a P_Key", PKEY_REMEDY)
    }
}
