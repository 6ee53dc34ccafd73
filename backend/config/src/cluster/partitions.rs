//! Partition files in OpenSM's form, one partition for each cluster: for an external subnet manager.

use std::collections::BTreeSet;
use std::fmt::Write;

use vswitch::model::derive_guid;

use crate::{Address, Config};

/// Bit of full membership in a P_Key.
const FULL: u16 = 0x8000;

/// The file. Each cluster has a partition with the ports of its VMs. The P_Key is that of the VMs where all have the same one,
/// else it derives from the cluster's name; no two clusters have the same.
#[must_use]
pub fn file(config: &Config) -> String {
    let mut text = "# Partitions of virtual clusters, by ibvswitch.\n\
                    Default=0x7fff, ipoib, defmember=limited: ALL, SELF=full;\n"
        .to_owned();
    let mut taken: BTreeSet<u16> = config.partitions.values().copied().collect();
    for (_, vf) in config.vfs() {
        taken.extend(vf.model.pkeys.iter().map(|pkey| pkey.value() & !FULL));
    }
    for (at, cluster) in config.clusters.iter().enumerate() {
        let members = config.vfs().filter(|(_, vf)| {
            let of = vf.model.cluster;
            of.is_some_and(|(of, _)| of == at)
        });
        let members: Vec<_> = members.collect();
        let number = own_key(config, at).unwrap_or_else(|| free_key(&cluster.name, &mut taken));
        let _ = writeln!(text, "\n# {}", cluster.name);
        let mut guids = BTreeSet::new();
        for (hypervisor, vf) in &members {
            // Writing to a string does not fail.
            let _ = writeln!(text, "#   {} : {}", vf.model.name, hypervisor.name);
            guids.insert(match vf.model.address {
                Address::Shared if !vf.model.requires_lid => hypervisor.physical_guid,
                _ => vf.model.guid,
            });
        }
        let guids: Vec<String> = { guids.iter() }
            .map(|guid| format!("0x{:016x}", guid.value()))
            .collect();
        let pkey = number | FULL;
        let name = partition_name(&cluster.name);
        let _ = match guids[..] {
            [] => writeln!(text, "# no VMs: {name}={pkey:#06x}"),
            _ => writeln!(
                text,
                "{name}={pkey:#06x}, ipoib, defmember=full: {};",
                guids.join(", ")
            ),
        };
    }
    text
}

/// The P_Key, without the bit of membership, that all VMs of a cluster have first in their tables, unless it is the default one.
fn own_key(config: &Config, cluster: usize) -> Option<u16> {
    let members = config.vfs().filter(|(_, vf)| {
        let of = vf.model.cluster;
        of.is_some_and(|(of, _)| of == cluster)
    });
    let keys = members.map(|(_, vf)| {
        vf.model
            .pkeys
            .first()
            .map_or(0, |pkey| pkey.value() & !FULL)
    });
    let keys: BTreeSet<u16> = keys.collect();
    let of_others = |key: u16| {
        config.vfs().any(|(_, vf)| {
            vf.model.cluster.is_none_or(|(of, _)| of != cluster)
                && vf
                    .model
                    .pkeys
                    .iter()
                    .any(|pkey| pkey.value() & !FULL == key)
        })
    };
    match keys.iter().copied().collect::<Vec<_>>()[..] {
        [key @ 1..0x7fff] if !of_others(key) => Some(key),
        _ => None,
    }
}

/// A number from the cluster's name that nobody has.
fn free_key(name: &str, taken: &mut BTreeSet<u16>) -> u16 {
    let first = (u64::from(derive_guid("partition", name)) % 0x7ffe) as u16;
    let numbers = (0..0x7ffe_u16).map(|more| 1 + (first + more) % 0x7ffe);
    let free = { numbers }.find(|number| !taken.contains(number));
    let free = free.unwrap_or(1);
    taken.insert(free);
    free
}

/// A name as OpenSM takes it: letters, digits, `_` and `-`.
fn partition_name(name: &str) -> String {
    let plain = |it: char| {
        if it.is_ascii_alphanumeric() || it == '-' {
            it
        } else {
            '_'
        }
    };
    name.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Directories;

    fn config(text: &str) -> Config {
        let dirs = Directories {
            chosen: None,
            fallback: Path::new("/run/ibvswitch"),
        };
        Config::parse("test", text, dirs).expect("is right")
    }

    /// The P_Key of the only partition in a file besides the default one.
    fn key(text: &str) -> String {
        let file = file(&config(text));
        let line = file.lines().find(|line| line.contains("defmember=full"));
        let (_, rest) = line
            .expect("has a partition")
            .split_once('=')
            .expect("has a key");
        rest.split(',').next().expect("ends").to_owned()
    }

    #[test]
    fn keys_are_the_vms_or_their_clusters() {
        let nodes = |keys: &str, more: &str| {
            format!(
                "{more}\n[[cluster]]\nname = 'red one'\n[[hypervisor]]\nname = 'hv1'\n[[hypervisor.vf]]\nname = 'vm1'\n\
                 cluster = 'red one'\n{keys}\n[[hypervisor.vf]]\nname = 'vm2'\n"
            )
            .replace("red one", "red.one")
        };
        assert_eq!(key(&nodes("pkeys = [0x8012]", "")), "0x8012");
        let derived = key(&nodes("", ""));
        assert_eq!(derived, key(&nodes("", "")));
        let number = u16::from_str_radix(&derived[2..], 16).expect("is hexadecimal") & !FULL;
        // Where somebody has that number, the cluster has the next one.
        let taken = key(&nodes("", &format!("[partitions]\nother = {number}")));
        assert_eq!(taken, format!("{:#06x}", (number % 0x7ffe + 1) | FULL));
        let file = file(&config(&nodes("", "")));
        assert!(file.contains("\nred_one=0x"), "{file}");
        assert!(
            file.contains("#   vm1 : hv1\n") && !file.contains("vm2"),
            "{file}"
        );
    }
}
