//! The subnet manager.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use subnet_manager::{PortKind, PortQuality};
use toml::de::DeValue;
use wire::Guid;

use super::GUID_REMEDY;
use crate::document::{Entry, Section};
use crate::{
    Hypervisor, KeyChoice, LidChoice, Manager, ManagerFiles, ManagerPlace, Multipath, PathChoice,
    RoutingChoice, Wiring, keys,
};

pub(super) fn manager(sm: &Section<'_>) -> (Manager, ManagerFiles) {
    let files = ManagerFiles {
        partitions: path(sm, "partitions_file"),
        policy: path(sm, "qos_policy_file"),
        congestion: path(sm, "congestion_control_file"),
        roots: path(sm, "root_guid_file"),
        compute: path(sm, "cn_guid_file"),
        io: path(sm, "io_guid_file"),
        tables: path(sm, "lfts_file"),
        hops: path(sm, "lid_matrix_file"),
        order: path(sm, "guid_routing_order_file"),
        routing_program: routing_program(sm),
        routing_timeout: sm
            .number("routing_timeout", "write seconds, 1 to 300")
            .map_or(ROUTING_TIMEOUT, Duration::from_secs),
        state_dir: path(sm, "state_dir"),
    };
    let seconds = "write seconds, from 1 to 86400 (a day)";
    let percentage = "write a percentage above 100, up to 10000";
    let manager = Manager {
        place: sm
            .one_of("manager", &ManagerPlace::NAMES)
            .unwrap_or_default(),
        lmc: sm.number("lmc", "write 0 to 7").unwrap_or(0),
        multipath: Multipath {
            lids: sm.one_of("lids", &LidChoice::NAMES).unwrap_or_default(),
            paths: sm.one_of("paths", &PathChoice::NAMES).unwrap_or_default(),
        },
        sweep_interval: Duration::from_secs(sm.number("sweep_interval", seconds).unwrap_or(10)),
        priority: sm
            .number("priority", "write 0 to 15, 15 the highest")
            .unwrap_or(0),
        routing: sm.one_of("routing", &engines()).unwrap_or_default(),
        nue_lanes: sm
            .number("nue_max_num_vls", "write 0 to 15")
            .filter(|&lanes| lanes > 0),
        ucast_cache: sm.flag("use_ucast_cache").unwrap_or_default(),
        roots: roots(sm),
        enforce_partitions: sm.flag("enforce_partitions").unwrap_or_default(),
        cluster_lanes: sm.flag("cluster_lanes").unwrap_or_default(),
        max_lanes: max_lanes(sm, "qos_max_vls"),
        sl_to_vl: service_lanes(sm, "qos_sl2vl"),
        arbitration: arbitration(sm, "qos_"),
        kinds: kinds(sm),
        m_key: m_key(sm),
        m_key_protect: sm.number("m_key_protect", "write 0 to 3").unwrap_or(2),
        m_key_lease: sm
            .number("m_key_lease", "write seconds, 0 to 65535")
            .unwrap_or(60),
        rebalance_threshold: sm.number("rebalance_threshold", percentage),
        path_caching: sm.flag("path_caching").unwrap_or_default(),
    };
    if manager.multipath.is_on() {
        lids_by_paths(sm, &manager);
    }
    let needed = match manager.routing {
        RoutingChoice::File => "lfts_file",
        RoutingChoice::External => "routing_program",
        _ => return (manager, files),
    };
    let is_empty = |list: &DeValue<'_>| list.as_array().is_some_and(|list| list.is_empty());
    let has_hops = needed == "lfts_file" && sm.value("lid_matrix_file").is_some();
    let lacks = !has_hops && sm.value(needed).is_none_or(|entry| is_empty(entry.value));
    if let (true, Some(entry)) = (lacks, sm.value("routing")) {
        entry.reject(
            format!("needs sm.{needed}"),
            "add it, or write another engine",
        );
    }
    (manager, files)
}

/// Whether nothing else says which paths there are, or how many LIDs.
fn lids_by_paths(sm: &Section<'_>, manager: &Manager) {
    let others = [
        (manager.routing != RoutingChoice::default(), "routing"),
        (manager.lmc > 0, "lmc"),
        (manager.rebalance_threshold.is_some(), "rebalance_threshold"),
    ];
    for (_, key) in others.iter().filter(|(is_set, _)| *is_set) {
        if let Some(entry) = sm.value("lids") {
            entry.reject(
                format!("LIDs follow the paths of `sm.paths`, which sm.{key} contradicts"),
                format!("remove `lids`, or {key}"),
            );
        }
    }
}

/// Time limit of a program that computes paths.
const ROUTING_TIMEOUT: Duration = Duration::from_secs(10);

/// The program, whose path may be relative to the configuration, and its arguments.
fn routing_program(section: &Section<'_>) -> Vec<String> {
    let entries = section
        .array("routing_program")
        .map_or_else(Vec::new, |list| list.value);
    let words = entries.iter().filter_map(|entry| {
        let word = entry.value.as_str().map(str::to_owned);
        entry.meaning(
            word,
            "no text",
            "write a list of texts: the program, and its arguments",
        )
    });
    let mut words: Vec<String> = words.collect();
    if let Some(program) = words.first_mut() {
        let path = section.document().path(program);
        let path = std::path::absolute(&path).unwrap_or(path);
        *program = path.display().to_string();
    }
    words
}

fn roots(section: &Section<'_>) -> Vec<Guid> {
    let Some(entries) = section.array("roots") else {
        return Vec::new();
    };
    let guid = |entry: &Entry<'_, &DeValue<'_>>| {
        let guid = entry.value.as_str().and_then(|text| text.parse().ok());
        entry.meaning(guid, "not the GUID of a switch", GUID_REMEDY)
    };
    entries.value.iter().filter_map(guid).collect()
}

/// Lanes of kinds of ports, by keys such as `qos_ca_max_vls`.
fn kinds(section: &Section<'_>) -> BTreeMap<PortKind, PortQuality> {
    let kinds = PortKind::NAMES.map(|(name, kind)| {
        let prefix = format!("qos_{name}_");
        let own = PortQuality {
            max_lanes: max_lanes(section, &format!("{prefix}max_vls")),
            sl_to_vl: service_lanes(section, &format!("{prefix}sl2vl")),
            arbitration: arbitration(section, &prefix),
        };
        (kind, own)
    });
    let differ = |(_, own): &(_, PortQuality)| *own != PortQuality::default();
    kinds.into_iter().filter(differ).collect()
}

fn max_lanes(section: &Section<'_>, key: &str) -> Option<u8> {
    let remedy = "write 1, 2, 4, 8 or 15";
    let entry = section.integer(key, remedy)?;
    let is_possible = keys::LANES.contains(&entry.value);
    let lanes = is_possible.then_some(entry.value as u8);
    entry.meaning(lanes, "no link has so many", remedy)
}

/// The routing engines by their names, and by one in small letters.
fn engines() -> Vec<(&'static str, RoutingChoice)> {
    let small = [("torus-2qos", RoutingChoice::TorusTwoQos)];
    [&RoutingChoice::NAMES[..], &small].concat()
}

fn service_lanes(section: &Section<'_>, key: &str) -> Option<wire::attribute::SlToVl> {
    let entry = section.text(key)?;
    let remedy = "write 16 lanes from 0 to 15, as in \"0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7\"";
    let lanes = subnet_manager::parse_lanes(entry.value).ok();
    entry.meaning(lanes, "not a lane for each service level", remedy)
}

/// Returns the arbitration that keys with this prefix set. Those that are left out are as for all ports, and else have
/// OpenSM's defaults for so many lanes.
fn arbitration(section: &Section<'_>, prefix: &str) -> Option<subnet_manager::Arbitration> {
    let text = |key: &str| section.text(&format!("{prefix}{key}"));
    let [high, low] = ["vlarb_high", "vlarb_low"].map(text);
    let limit = section.integer(&format!("{prefix}high_limit"), "write 0 to 255");
    if high.is_none() && low.is_none() && limit.is_none() {
        return None;
    }
    let mut tables = [String::new(), String::new()];
    let defaults = [("qos_vlarb_high", "0:4"), ("qos_vlarb_low", "0:0,1:4")];
    let all = |key: &str| section.value(key).and_then(|entry| entry.value.as_str());
    for ((table, entry), (key, default)) in tables.iter_mut().zip([high, low]).zip(defaults) {
        let default = all(key).unwrap_or(default);
        let text = entry.as_ref().map_or(default, |entry| entry.value);
        match (subnet_manager::Arbitration::parse(0, text, ""), &entry) {
            (Err(error), Some(entry)) => {
                let what = format!("no arbitration table ({error})");
                entry.reject(what, "write lanes with weights, as in \"0:4,1:64\"");
            }
            _ => text.clone_into(table),
        }
    }
    let limit = limit.or_else(|| section.integer("qos_high_limit", "write 0 to 255"));
    let limit = limit.map_or(0, |entry| entry.value as u8);
    subnet_manager::Arbitration::parse(limit, &tables[0], &tables[1]).ok()
}

fn m_key(section: &Section<'_>) -> KeyChoice {
    let Some(entry) = section.text("m_key") else {
        return KeyChoice::None;
    };
    let number = || {
        let digits = entry.value.strip_prefix("0x")?;
        let key = u64::from_str_radix(digits, 16).ok()?;
        (key != 0).then_some(KeyChoice::One(key))
    };
    let key = match entry.value {
        "none" => Some(KeyChoice::None),
        "per-node" => Some(KeyChoice::PerNode),
        _ => number(),
    };
    const REMEDY: &str =
        "write \"none\", \"per-node\", or 0x and up to 16 hexadecimal digits, not all 0";
    let key = entry.meaning(key, "no management key", REMEDY);
    key.unwrap_or(KeyChoice::None)
}

/// A path; a relative one begins at the configuration file.
pub(super) fn path(section: &Section<'_>, key: &str) -> Option<PathBuf> {
    let entry = section.text(key)?;
    let path = section.document().path(entry.value);
    let whole = std::path::absolute(&path).unwrap_or(path);
    let path = Some(whole).filter(|_| !entry.value.is_empty());
    entry.meaning(path, "no path", "write one, or leave the key out")
}

/// Whether each root is a switch or a vSwitch of the subnet.
pub(super) fn roots_exist(sm: &Section<'_>, wiring: &Wiring, hypervisors: &[Hypervisor]) {
    if sm.value("roots").is_none() {
        return;
    }
    let switches = wiring.switches.iter().map(|it| (it.guid, &it.name));
    let vswitches = hypervisors.iter().map(|it| (it.vswitch_guid, &it.name));
    let known: Vec<(Guid, &String)> = switches.chain(vswitches).collect();
    for entry in sm.array("roots").map_or_else(Vec::new, |list| list.value) {
        let Some(guid) = entry.value.as_str().and_then(|text| text.parse().ok()) else {
            continue;
        };
        if known.iter().any(|&(other, _)| other == guid) {
            continue;
        }
        let guids: Vec<String> = known
            .iter()
            .map(|(guid, name)| format!("{guid} ({name})"))
            .collect();
        let remedy = vswitch::near(&guid.to_string(), guids, "");
        entry.reject("no switch has this GUID", remedy);
    }
}
