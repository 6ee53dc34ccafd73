//! Where nodes run on this machine, by the plan of `ibvswitch host plan`. Nodes that would overcommit it are refused.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::guest::placement::Placement;
use crate::nodes::daemon::Daemon;

/// The plan as the program prints it.
#[derive(Debug, Deserialize)]
pub struct HostPlan {
    memory: Memory,
    vms: Vec<Vm>,
    refused: Vec<Refusal>,
}

#[derive(Debug, Deserialize)]
struct Memory {
    host: Option<u64>,
    reserved: u64,
}

#[derive(Debug, Deserialize)]
struct Vm {
    name: String,
    class: String,
    vcpus: Option<u32>,
    processors: Vec<usize>,
    node: Option<usize>,
    huge_pages: Option<u64>,
    others: Vec<usize>,
    prefix: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    subject: String,
    resource: String,
    why: String,
    remedy: String,
}

impl HostPlan {
    /// The plan of a daemon's configuration.
    pub fn of(daemon: &Daemon) -> Result<Self> {
        // It ends with 1 where it refuses something, which is looked at here.
        let output = daemon.command().args(["host", "plan", "--json"]).output();
        let text = output.map_err(|error| Error::Host(format!("ibvswitch host plan: {error}")))?;
        serde_json::from_slice(&text.stdout).map_err(|_| Error::Output {
            what: "JSON of `ibvswitch host plan`".into(),
            text: String::from_utf8_lossy(&text.stderr).into_owned(),
        })
    }

    /// Refuses these nodes, of so many MiB each, if this machine has no room for them.
    pub fn admit(&self, nodes: &[&str], memory: u32) -> Result<()> {
        let concerns = |it: &&Refusal| match it.resource.as_str() {
            "memory" => false,
            "processors" => nodes.contains(&it.subject.as_str()),
            _ => true,
        };
        if let Some(it) = self.refused.iter().find(concerns) {
            let why = format!("{}: {}; {}", it.subject, it.why, it.remedy);
            return Err(Error::Host(why));
        }
        let wanted = (nodes.len() as u64) * (u64::from(memory) << 20);
        let Some(host) = self.memory.host else {
            return Ok(());
        };
        if wanted > host.saturating_sub(self.memory.reserved) {
            return Err(Error::Host(format!(
                "{} nodes of {memory} MiB take {} MiB; this machine has {} MiB, of which {} are reserved. Give nodes less \
                 (--memory), start fewer, or lower reserved_memory under [host] of --config",
                nodes.len(),
                wanted >> 20,
                host >> 20,
                self.memory.reserved >> 20
            )));
        }
        Ok(())
    }

    /// Returns the place of a node, and the number of its processors, if the plan says them.
    pub fn placement(&self, node: &str) -> (Placement, Option<u32>) {
        let is_it = |vm: &&Vm| vm.name == node && vm.class != "shared";
        let Some(vm) = self.vms.iter().find(is_it) else {
            return (Placement::default(), None);
        };
        let pages = vm.huge_pages.map_or_else(String::new, |size| {
            format!(",hugetlb=on,hugetlbsize={}M,prealloc=on", size >> 20)
        });
        let bound = vm.node.map_or_else(String::new, |node| {
            format!(",host-nodes={node},policy=bind")
        });
        let is_dedicated = vm.class == "dedicated";
        let placement = Placement {
            prefix: vm.prefix.clone(),
            pinned: if is_dedicated {
                vm.processors.clone()
            } else {
                Vec::new()
            },
            others: vm.others.clone(),
            memory: pages + &bound,
        };
        (placement, vm.vcpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan() -> HostPlan {
        let vm = |name: &str, class: &str| {
            json!({ "name": name, "class": class, "vcpus": 2, "processors": [2, 3], "node": 0, "huge_pages": 2 << 20,
                    "others": [0], "prefix": ["taskset", "-c", "2-3"] })
        };
        let refused = |subject: &str, resource: &str| json!({ "subject": subject, "resource": resource, "why": "why", "remedy": "remedy" });
        let plan = json!({ "memory": { "host": 4u64 << 30, "reserved": 1u64 << 30, "vms": 0 },
                           "vms": [vm("n1", "dedicated"), vm("n2", "background"), vm("n3", "shared")],
                           "refused": [refused("n1", "memory"), refused("n9", "processors")] });
        serde_json::from_value(plan).unwrap()
    }

    #[test]
    fn nodes_are_placed_by_the_plan() {
        let plan = plan();
        let (n1, vcpus) = plan.placement("n1");
        assert_eq!(
            (vcpus, &n1.pinned[..], &n1.others[..]),
            (Some(2), &[2, 3][..], &[0][..])
        );
        assert_eq!(
            n1.memory,
            ",hugetlb=on,hugetlbsize=2M,prealloc=on,host-nodes=0,policy=bind"
        );
        assert!(plan.placement("n2").0.pinned.is_empty());
        assert_eq!(plan.placement("n3"), (Placement::default(), None));
    }

    #[test]
    fn nodes_without_room_are_refused() {
        plan().admit(&["n1", "n2"], 1536).unwrap();
        let error = plan().admit(&["n1", "n2"], 1537).unwrap_err().to_string();
        let told = "2 nodes of 1537 MiB take 3074 MiB; this machine has 4096 MiB, of which 1024 are reserved";
        assert!(error.starts_with(told), "{error}");
        let error = plan().admit(&["n9"], 512).unwrap_err().to_string();
        assert_eq!(error, "n9: why; remedy");
    }
}
