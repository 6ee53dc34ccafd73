//! The rules for a guest's management packets.

use fabric::SmpAccess;
use toml::de::DeValue;

use super::{Reader, integer};
use crate::config::document::{Entry, Section, list};
use crate::config::{GmpClass, GmpClasses, MadRate, MadRules, keys};

const RATE_REMEDY: &str = "write packets per second, from 1 to 1000000, or 0 for no limit";
const RATE_MAX: i64 = 1_000_000;
const BURST_REMEDY: &str = "write packets, from 1 to 1000000";

impl<'d, 'i> Reader<'d, 'i> {
    /// The rules in the table of a VF whose subnet management packets go so far.
    pub(super) fn mads(&self, section: &Section<'d, 'i>, smp: SmpAccess) -> MadRules {
        let manages = smp == SmpAccess::Fabric;
        let classes = match section.section("gmp", keys::GMP) {
            Some(gmp) => self.classes(&gmp),
            None if manages => GmpClasses::ALL,
            None => GmpClasses::default(),
        };
        let burst = section
            .integer("mad_burst", 1..=RATE_MAX, BURST_REMEDY)
            .map_or(MadRate::default().burst, |entry| entry.value as u32);
        let rate = match section.integer("mad_rate", 0..=RATE_MAX, RATE_REMEDY) {
            Some(entry) => rate(entry.value as u32, burst),
            None if manages => None,
            None => rate(MadRate::default().per_second, burst),
        };
        MadRules {
            classes,
            rate,
            class_rates: self.class_rates(section, burst),
        }
    }

    fn classes(&self, gmp: &Section<'d, 'i>) -> GmpClasses {
        let (allow, deny) = (gmp.array("allow"), gmp.array("deny"));
        if allow.is_some() && deny.is_some() {
            self.document.reject_section(
                gmp,
                "allow",
                "both `allow` and `deny`",
                "write the classes that may pass, or those that may not",
            );
        }
        match (allow, deny) {
            (Some(allow), _) => allow
                .iter()
                .filter_map(|entry| self.class(entry))
                .fold(GmpClasses::NONE, GmpClasses::with),
            (None, Some(deny)) => deny
                .iter()
                .filter_map(|entry| self.class(entry))
                .fold(GmpClasses::ALL, GmpClasses::without),
            (None, None) => GmpClasses::default(),
        }
    }

    fn class(&self, entry: &Entry<&DeValue<'_>>) -> Option<GmpClass> {
        self.named_class(entry, entry.value.as_str().unwrap_or_default())
    }

    fn named_class<T>(&self, entry: &Entry<T>, name: &str) -> Option<GmpClass> {
        let found = GmpClass::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, class)| class);
        if found.is_none() {
            let names: Vec<&str> = GmpClass::NAMES.iter().map(|&(name, _)| name).collect();
            self.document.reject(
                entry,
                format!("`{name}` is no class of management packets"),
                format!("the classes are {}", list(&names)),
            );
        }
        found
    }

    fn class_rates(&self, section: &Section<'d, 'i>, burst: u32) -> Vec<(GmpClass, MadRate)> {
        let Some(rates) = section.section("mad_rates", keys::MAD_RATES) else {
            return Vec::new();
        };
        rates
            .entries()
            .filter_map(|(name, entry)| {
                let class = self.named_class(&entry, name)?;
                match integer(entry.value).filter(|value| (1..=RATE_MAX).contains(value)) {
                    // A burst that takes longer than a second to refill is no burst.
                    Some(value) => Some((
                        class,
                        MadRate {
                            per_second: value as u32,
                            burst: burst.min(value as u32),
                        },
                    )),
                    None => {
                        self.document.reject(
                            &entry,
                            "not a rate",
                            "write packets per second, from 1 to 1000000",
                        );
                        None
                    }
                }
            })
            .collect()
    }
}

fn rate(per_second: u32, burst: u32) -> Option<MadRate> {
    (per_second > 0).then_some(MadRate { per_second, burst })
}
