//! The subnet manager.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeValue;
use wire::Guid;

use super::{GUID_REMEDY, Reader};
use crate::config::document::Section;
use crate::config::{KeyChoice, Manager, ManagerFiles, ManagerPlace, RoutingChoice};

impl<'d, 'i> Reader<'d, 'i> {
    pub(super) fn manager(&self, section: Option<&Section<'d, 'i>>) -> (Manager, ManagerFiles) {
        let sweep_interval = section.and_then(|sm| {
            sm.integer(
                "sweep_interval",
                1..=86_400,
                "write seconds, from 1 to 86400 (a day)",
            )
        });
        let place = section.and_then(|sm| self.one_of(sm, "manager", &ManagerPlace::NAMES));
        let files = ManagerFiles {
            partitions: section.and_then(|sm| self.absolute(sm, "partitions_file")),
            state_dir: section.and_then(|sm| self.absolute(sm, "state_dir")),
        };
        let manager = Manager {
            place: place.unwrap_or_default(),
            lmc: section
                .and_then(|sm| sm.integer("lmc", 0..=7, "write 0 to 7"))
                .map_or(0, |entry| entry.value as u8),
            sweep_interval: Duration::from_secs(sweep_interval.map_or(10, |s| s.value as u64)),
            priority: section
                .and_then(|sm| sm.integer("priority", 0..=15, "write 0 to 15, 15 the highest"))
                .map_or(0, |entry| entry.value as u8),
            routing: section
                .and_then(|sm| self.one_of(sm, "routing", &RoutingChoice::NAMES))
                .unwrap_or_default(),
            roots: section.map_or_else(Vec::new, |sm| self.roots(sm)),
            enforce_partitions: section
                .and_then(|sm| self.flag(sm, "enforce_partitions"))
                .unwrap_or_default(),
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
            rebalance_threshold: section
                .and_then(|sm| {
                    let remedy = "write a percentage above 100, up to 10000";
                    sm.integer("rebalance_threshold", 101..=10_000, remedy)
                })
                .map(|entry| entry.value as u16),
            path_caching: section
                .and_then(|sm| self.flag(sm, "path_caching"))
                .unwrap_or_default(),
        };
        (manager, files)
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
}
