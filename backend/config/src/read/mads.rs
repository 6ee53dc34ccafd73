//! The rules for a guest's management packets.

use fabric::SmpAccess;
use toml::de::DeValue;

use crate::document::{Entry, Section};
use crate::{GmpClass, GmpClasses, MadRate, MadRules, keys};

const RATE_REMEDY: &str = "write packets per second, from 1 to 1000000, or 0 for no limit";
const BURST_REMEDY: &str = "write packets, from 1 to 1000000";

/// The rules in the table of a VF whose subnet management packets go so far.
pub(super) fn mads(section: &Section<'_>, smp: SmpAccess) -> MadRules {
    let manages = smp == SmpAccess::Fabric;
    let classes = if section.value("gmp").is_some() {
        classes(&section.section("gmp", keys::GMP))
    } else if manages {
        GmpClasses::ALL
    } else {
        GmpClasses::default()
    };
    let usual = MadRate::default();
    let burst = section.number("mad_burst", BURST_REMEDY);
    let burst = burst.unwrap_or(usual.burst);
    let rate = match section.number("mad_rate", RATE_REMEDY) {
        Some(per_second) => rate(per_second, burst),
        None if manages => None,
        None => rate(usual.per_second, burst),
    };
    let class_rates = class_rates(section, burst);
    if let (Some(entry), None, []) = (section.value("mad_burst"), rate, &class_rates[..]) {
        let what = "the guest may send any number of management packets at once";
        entry.warn(what, "set `mad_rate`, or remove the key");
    }
    MadRules {
        classes,
        rate,
        class_rates,
    }
}

fn classes(gmp: &Section<'_>) -> GmpClasses {
    let (allow, deny) = (gmp.array("allow"), gmp.array("deny"));
    if allow.is_some() && deny.is_some() {
        gmp.reject(
            "allow",
            "both `allow` and `deny`",
            "write the classes that may pass, or those that may not",
        );
    }
    let fold = |list: Entry<'_, Vec<Entry<'_, &DeValue<'_>>>>, none, add: fn(_, _) -> _| {
        let list = list.value.iter();
        list.filter_map(|entry| class(entry, entry.value.as_str().unwrap_or_default()))
            .fold(none, add)
    };
    match (allow, deny) {
        (Some(allow), _) => fold(allow, GmpClasses::NONE, GmpClasses::with),
        (None, Some(deny)) => fold(deny, GmpClasses::ALL, GmpClasses::without),
        (None, None) => GmpClasses::default(),
    }
}

fn class_rates(section: &Section<'_>, burst: u32) -> Vec<(GmpClass, MadRate)> {
    let rates = section.section("mad_rates", keys::MAD_RATES);
    let rate = |(name, entry): (&str, Entry<'_, &DeValue<'_>>)| {
        let class = class(&entry, name)?;
        let remedy = "write packets per second, from 1 to 1000000";
        let per_second =
            entry.meaning(entry.integer(1..=keys::MAD_RATE_MAX), "not a rate", remedy)? as u32;
        // A burst that takes longer than a second to refill is no burst.
        let burst = burst.min(per_second);
        Some((class, MadRate { per_second, burst }))
    };
    rates.entries().filter_map(rate).collect()
}

/// The class of this name.
fn class<T>(entry: &Entry<'_, T>, name: &str) -> Option<GmpClass> {
    let what = format!("`{name}` is no class of management packets");
    entry.find(name, &GmpClass::NAMES, &what, "the classes")
}

fn rate(per_second: u32, burst: u32) -> Option<MadRate> {
    (per_second > 0).then_some(MadRate { per_second, burst })
}
