//! Settings that are right and do not do what they look like, for `config check`, the log and `status`.

use std::collections::{BTreeMap, HashMap};

use config::{Config, ManagerPlace};
use fabric::{Fabric, PortRef};
use vswitch::{Cause, ManagerStatus, NodeKind, Plan};
use wire::PKey;

/// All warnings about a configuration, with the P_Key tables that ports have in `fabric`.
pub(crate) fn of(config: &Config, plan: &Plan, fabric: &Fabric) -> Vec<String> {
    let mut all = config.warnings.clone();
    all.extend_from_slice(&config.file_warnings);
    all.extend(unreached(plan));
    if config.manager.place == ManagerPlace::Embedded {
        all.extend(limited_alone(&tables(plan, fabric)));
    }
    all
}

/// Errors of the subnet managers' last sweeps, such as an engine that gave way.
pub(crate) fn of_managers(managers: &[ManagerStatus]) -> impl Iterator<Item = String> + '_ {
    const SHOWN: usize = 8;
    managers.iter().flat_map(|manager| {
        let of = manager.subnet.as_ref();
        let of = of.map_or(String::new(), |subnet| format!(" of {subnet}"));
        let errors = manager.report.errors.iter().take(SHOWN);
        errors.map(move |error| format!("subnet manager{of}: {error}"))
    })
}

/// The first names of a list.
pub(crate) fn first(names: &[impl AsRef<str>]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(AsRef::as_ref);
    let shown = shown.collect::<Vec<&str>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn unreached(plan: &Plan) -> Option<String> {
    let names = plan.unreached();
    (!names.is_empty()).then(|| {
        format!(
            "no cables join these switches to the subnet manager's host, so that it does not find them: {}; add \
             a [[link]]",
            first(&names)
        )
    })
}

/// The ports that stay in Initialize or Armed, with the reason: once managers have swept.
pub(crate) fn waiting(config: &Config, plan: &Plan, fabric: &Fabric) -> Vec<String> {
    let waiting = plan.waiting(fabric, config.manager.place);
    if waiting.is_empty() {
        return Vec::new();
    }
    let names = plan
        .nodes()
        .iter()
        .map(|node| (node.id, node.name.as_str()));
    let names: HashMap<_, _> = names.collect();
    let mut ports: BTreeMap<(Cause, String), Vec<String>> = BTreeMap::new();
    for (port, state, cause) in waiting {
        let name = names.get(&port.node).copied().unwrap_or_default();
        let of = ports.entry((cause, state.to_string())).or_default();
        of.push(format!("{name}:{}", port.port));
    }
    let lines = ports.iter().map(|((cause, state), ports)| {
        format!("ports that stay in {state}: {}; {cause}", first(ports))
    });
    lines.collect()
}

/// The P_Key tables of adapters and VFs, with their names. The manager's port is a member of everything, and nobody
/// whom others talk to.
pub(crate) fn tables<'p>(plan: &'p Plan, fabric: &Fabric) -> Vec<(&'p str, Vec<PKey>)> {
    let nodes = plan.nodes().iter();
    let adapters = nodes.filter(|node| matches!(node.kind, NodeKind::Host | NodeKind::Vf));
    let own = adapters.map(|node| {
        let port = PortRef {
            node: node.id,
            port: 1,
        };
        (
            node.name.as_str(),
            fabric.pkeys(port).unwrap_or_default().to_vec(),
        )
    });
    let functions = plan.functions().iter();
    let shared = functions.filter_map(|vf| Some((vf.name.as_str(), plan.pkeys(fabric, vf.place?))));
    let all = own.chain(shared);
    let used = all.map(|(name, mut table)| {
        table.retain(|pkey| pkey.is_valid());
        (name, table)
    });
    used.collect()
}

/// Partitions of which all members are limited: none of them hears another. The default partition serves those that
/// have others for reaching the subnet administration.
fn limited_alone(tables: &[(&str, Vec<PKey>)]) -> Vec<String> {
    let mut partitions: BTreeMap<u16, (bool, Vec<&str>)> = BTreeMap::new();
    for (name, table) in tables {
        let default = PKey::DEFAULT_FULL.partition();
        let has_others = table.iter().any(|pkey| pkey.partition() != default);
        for pkey in table {
            let (has_full, members) = partitions.entry(pkey.partition()).or_default();
            *has_full |= pkey.is_full() || (has_others && pkey.partition() == default);
            members.push(name);
        }
    }
    let alone = partitions
        .into_iter()
        .filter(|(_, (has_full, _))| !has_full);
    alone
        .map(|(partition, (_, members))| {
            let full = PKey::new(partition | 0x8000);
            let partition = PKey::new(partition);
            format!(
                "partition {partition} has limited members alone, which do not reach each other: {}; make one of \
                 them a full member ({full})",
                first(&members)
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_without_a_full_member() {
        let told = |tables: &[(&'static str, &[u16])]| -> Vec<String> {
            let table = |keys: &[u16]| keys.iter().copied().map(PKey::new).collect();
            let tables: Vec<_> = tables
                .iter()
                .map(|(name, keys)| (*name, table(keys)))
                .collect();
            limited_alone(&tables)
        };
        let none = Vec::<String>::new();
        assert_eq!(told(&[("a", &[0xffff]), ("b", &[0xffff])]), none);
        assert_eq!(told(&[("a", &[0x10]), ("b", &[0x8010])]), none);
        // For the subnet administration.
        assert_eq!(
            told(&[("a", &[0x8010, 0x7fff]), ("b", &[0x8010, 0x7fff])]),
            none
        );
        let alone = told(&[("a", &[0x10]), ("b", &[0x10, 0xffff])]);
        assert_eq!(
            alone,
            [
                "partition 0x0010 has limited members alone, which do not reach each other: a, b; make one of them a \
              full member (0x8010)"
            ]
        );
        assert_eq!(told(&[("a", &[0x7fff]), ("b", &[0x7fff])]).len(), 1);
    }
}
