//! Differences between two configurations, in an operator's words.

use std::fmt;

use serde::Serialize;

use super::{Config, Hypervisor};

/// Kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It is new.
    Added,
    /// It goes.
    Removed,
    /// It stays, and is another.
    Changed,
}

/// Something that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Kind of the difference.
    pub change: Change,
    /// Name of the part.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.change {
            Change::Added => '+',
            Change::Removed => '-',
            Change::Changed => '~',
        };
        write!(f, "{sign} {}", self.what)
    }
}

/// Things of one kind: how each is called, and all that it is.
type Named = Vec<(String, String)>;

/// All that differs, in this order: tables, clusters, hypervisors, VFs and ports.
#[must_use]
pub fn differences(before: &Config, after: &Config) -> Vec<Difference> {
    let kinds: [fn(&Config) -> Named; 4] = [tables, clusters, hypervisors, functions];
    let kinds = kinds.into_iter().map(|kind| (kind(before), kind(after)));
    kinds
        .flat_map(|(before, after)| compared(&before, &after))
        .collect()
}

fn compared(before: &Named, after: &Named) -> Vec<Difference> {
    let told = |change, what: &str| Difference {
        change,
        what: what.to_owned(),
    };
    let find = |list: &Named, name: &str| list.iter().position(|(other, _)| other == name);
    let gone = before
        .iter()
        .filter(|(name, _)| find(after, name).is_none());
    let gone = gone.map(|(name, _)| told(Change::Removed, name));
    let others = after.iter().filter_map(|(name, is)| {
        let change = match find(before, name) {
            None => Change::Added,
            Some(at) if before[at].1 != *is => Change::Changed,
            Some(_) => return None,
        };
        Some(told(change, name))
    });
    gone.chain(others).collect()
}

/// Returns the tables that a configuration has once.
fn tables(config: &Config) -> Named {
    let Config {
        runtime_dir,
        log,
        socket_mode,
        sandbox,
        engine,
        host,
        fabric,
        manager,
        files,
        subnets,
        external,
        wiring,
        ..
    } = config;
    [
        ("runtime_dir", format!("{runtime_dir:?}")),
        ("log", log.clone()),
        ("socket_mode", format!("{socket_mode:o}")),
        ("sandbox", format!("{sandbox:?}")),
        ("table [engine]", format!("{engine:?}")),
        ("table [host]", format!("{host:?}")),
        ("table [fabric]", format!("{fabric:?}")),
        ("table [sm]", format!("{manager:?} {files:?} {subnets:?}")),
        ("table [external]", format!("{external:?}")),
        ("switches and links", format!("{wiring:?}")),
    ]
    .map(|(name, is)| (name.to_owned(), is))
    .into()
}

fn clusters(config: &Config) -> Named {
    let named = config.clusters.iter().enumerate().map(|(at, cluster)| {
        let elsewhere = config.elsewhere.iter().filter(|vm| vm.cluster == at);
        let elsewhere: Vec<_> = elsewhere
            .map(|vm| (vm.virtual_lid, vm.lid, vm.guid))
            .collect();
        (
            format!("cluster {}", cluster.name),
            format!(
                "{cluster:?} {elsewhere:?} {:?}",
                config.exclusive_switches[at]
            ),
        )
    });
    named.collect()
}

fn hypervisors(config: &Config) -> Named {
    let named = config.hypervisors.iter().map(|hypervisor| {
        let bare = Hypervisor {
            // By its name: the number of a switch is no property of a hypervisor.
            switch: 0,
            vfs: Vec::new(),
            hardware: Vec::new(),
            ..hypervisor.clone()
        };
        let switch = &config.wiring.switches[hypervisor.switch].name;
        (
            format!("hypervisor {} at switch {switch}", hypervisor.name),
            format!("{bare:?}"),
        )
    });
    named.collect()
}

fn functions(config: &Config) -> Named {
    let software = config.vfs().map(|(hypervisor, vf)| {
        let kind = match vf.kind {
            super::Kind::Hca => "VF",
            super::Kind::VhostUserNet(_) => "port",
        };
        let name = format!("{kind} {} on {}", vf.model.name, hypervisor.name);
        (name, format!("{vf:?}"))
    });
    let hardware = config.hardware_of().map(|(hypervisor, vf)| {
        let name = format!("VF {} on {}, passed through", vf.name, hypervisor.name);
        (name, format!("{vf:?}"))
    });
    software.chain(hardware).collect()
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

    const BEFORE: &str = "[[hypervisor]]\nname = 'hv1'\n[[hypervisor.vf]]\nname = 'vm1'\n\
         [[hypervisor.vf]]\nname = 'vm2'\n[[hypervisor]]\nname = 'hv2'\n[[hypervisor.vf]]\nname = 'vm3'\n";

    #[test]
    fn what_is_the_same_does_not_differ() {
        let one = config(BEFORE);
        assert_eq!(differences(&one, &one), []);
        assert_eq!(differences(&one, &config(&BEFORE.replace('\'', "\""))), []);
    }

    #[test]
    fn what_comes_goes_and_changes_is_told() {
        let after = "[engine]\ndoorbells = 'trap'\nthreads = 2\n[[cluster]]\nname = 'c'\nsm_lid = 40\n\
             [[hypervisor]]\nname = 'hv1'\n[[hypervisor.vf]]\nname = 'vm1'\nlid = 30\n\
             [[hypervisor]]\nname = 'hv3'\n[[hypervisor.vf]]\nname = 'vm3'\ncluster = 'c'\nvlid = 41\n";
        let told = differences(&config(BEFORE), &config(after));
        let told: Vec<_> = told.iter().map(ToString::to_string).collect();
        assert_eq!(
            told,
            [
                "~ table [engine]",
                "+ cluster c",
                "- hypervisor hv2 at switch sw1",
                "+ hypervisor hv3 at switch sw1",
                "- VF vm2 on hv1",
                "- VF vm3 on hv2",
                "~ VF vm1 on hv1",
                "+ VF vm3 on hv3",
            ]
        );
    }
}
