//! Processors and memory of this host, divided among the kernel, engines and VMs.
//!
//! Each processor of a VM has one of the host to itself, and no two VMs share a core. VMs in the background run on
//! the processors of all others, but only while these are idle (SCHED_IDLE). VMs without a place in the plan, the
//! kernel, and the other threads of QEMU run on what is left.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;

use super::machine::{Machine, Processor};
use crate::budget::mebibytes;
use config::{Config, Doorbells, Vm};

/// Kind of a VM's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Its processors are its own.
    Dedicated,
    /// It runs while others leave processors idle.
    Background,
    /// It runs where nobody has a processor to himself.
    Shared,
}

/// Place of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Name of its VF or port.
    pub name: String,
    /// Its kind.
    pub class: Class,
    /// Number of its own processors; `None` if the plan does not set it.
    pub vcpus: Option<usize>,
    /// Processors of the host that it runs on. A dedicated VM's processor `i` is pinned to the `i`-th of these.
    pub processors: Vec<usize>,
    /// NUMA node of its memory, if the host has several and its processors are in one.
    pub node: Option<usize>,
    /// Its memory in bytes, if known.
    pub memory: Option<u64>,
    /// Bytes of a huge page of its memory.
    pub huge_pages: Option<u64>,
    /// Number of its I/O threads.
    pub io_threads: usize,
    /// Processors of QEMU's other threads.
    pub others: Vec<usize>,
    /// Words before the name of QEMU.
    pub prefix: Vec<String>,
}

/// Division of the processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Processors {
    /// Those of the kernel, of daemons, and of QEMU's other threads.
    pub kernel: Vec<usize>,
    /// Those of engines.
    pub engines: Vec<usize>,
    /// Whether engines have them to themselves.
    pub engines_apart: bool,
    /// Those that nobody has.
    pub free: Vec<usize>,
}

/// Division of the memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// That of the host, if the system tells.
    pub host: Option<u64>,
    /// That which no VM gets.
    pub reserved: u64,
    /// That of all VMs whose memory is known.
    pub vms: u64,
}

/// A resource of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Processors of VMs.
    Processors,
    /// Those of the kernel or of engines.
    HostProcessors,
    /// Memory.
    Memory,
    /// Huge pages.
    HugePages,
}

/// A need that the host does not have room for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The VM's name, or the key.
    pub subject: String,
    /// The resource that is short.
    pub resource: Resource,
    /// The numbers.
    pub why: String,
    /// The remedy.
    pub remedy: String,
}

/// The plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Division of the processors.
    pub processors: Processors,
    /// Division of the memory.
    pub memory: Memory,
    /// Places of VMs, in the order of the configuration.
    pub vms: Vec<Place>,
    /// Needs without room.
    pub refused: Vec<Refusal>,
}

/// Memory of VMs, where a command line names it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sizes<'a> {
    /// Bytes of this VM.
    pub one: Option<(&'a str, u64)>,
    /// Bytes of each VM without `guest_memory`.
    pub others: Option<u64>,
}

impl Sizes<'_> {
    fn of(&self, vm: &Vm<'_>) -> Option<u64> {
        let one = self.one.filter(|(name, _)| *name == vm.name);
        one.map(|(_, bytes)| bytes).or(vm.memory).or(self.others)
    }
}

impl Plan {
    /// Makes the plan of a configuration on this machine.
    #[must_use]
    pub fn new(config: &Config, machine: &Machine, sizes: Sizes<'_>) -> Self {
        let mut pool = Pool::new(config, machine);
        let mut vms: Vec<Place> = { config.vms() }
            .map(|vm| pool.place(config, &vm, sizes.of(&vm)))
            .collect();
        let own = vms.iter().flat_map(|vm| &vm.processors).copied();
        let mut filled: Vec<usize> = own.chain(pool.free.iter().map(|it| it.number)).collect();
        filled.extend(&pool.siblings);
        filled.sort_unstable();
        if filled.is_empty() {
            filled.clone_from(&pool.kernel);
        }
        let free = pool.free.iter().map(|it| it.number);
        let mut shared: Vec<usize> = pool.kernel.iter().copied().chain(free).collect();
        shared.sort_unstable();
        for vm in &mut vms {
            match vm.class {
                Class::Dedicated => {}
                Class::Background => {
                    vm.processors.clone_from(&filled);
                    vm.others.clone_from(&filled);
                }
                Class::Shared => vm.processors.clone_from(&shared),
            }
            vm.prefix = prefix(vm, &machine.processors);
        }
        let memory = memory(config, machine, &vms, &mut pool.refused);
        let mut free: Vec<usize> = pool.free.iter().map(|it| it.number).collect();
        free.extend(&pool.siblings);
        free.sort_unstable();
        Self {
            processors: Processors {
                kernel: pool.kernel,
                engines: pool.engines,
                engines_apart: pool.engines_apart,
                free,
            },
            memory,
            vms,
            refused: pool.refused,
        }
    }

    /// Refusals that concern a VM: its own, and those of the host.
    pub fn refused_of(&self, name: &str) -> Option<&Refusal> {
        let is_vm = |it: &Refusal| self.vms.iter().any(|vm| vm.name == it.subject);
        let concerns = |it: &&Refusal| it.subject == name || !is_vm(it);
        self.refused.iter().find(concerns)
    }

    /// The place of a VM that the plan has one for.
    #[must_use]
    pub fn place(&self, name: &str) -> Option<&Place> {
        let planned = self.vms.iter().filter(|vm| vm.class != Class::Shared);
        planned.into_iter().find(|vm| vm.name == name)
    }
}

/// Processors as they are handed out.
struct Pool {
    all: usize,
    nodes: usize,
    kernel: Vec<usize>,
    engines: Vec<usize>,
    engines_apart: bool,
    /// Those that nobody has yet.
    free: Vec<Processor>,
    /// Those that share a core with a VM's last one.
    siblings: Vec<usize>,
    /// Number of those that VMs have.
    taken: usize,
    refused: Vec<Refusal>,
}

impl Pool {
    fn new(config: &Config, machine: &Machine) -> Self {
        let all = machine.processors.len();
        let wanted = config.host.kernel_processors;
        let mut refused = Vec::new();
        if wanted > all {
            refused.push(Refusal {
                subject: "host.kernel_processors".into(),
                resource: Resource::HostProcessors,
                why: format!("{wanted} processors for the kernel, and this host has {all}"),
                remedy: "lower kernel_processors under [host]".into(),
            });
        }
        let kernel: Vec<usize> = { machine.processors.iter().take(wanted) }
            .map(|it| it.number)
            .collect();
        let mut free: Vec<Processor> = machine.processors.iter().skip(wanted).copied().collect();
        let engines = engines(config, machine, &free, &mut refused);
        let engines_apart = engines.is_some();
        let engines = engines.unwrap_or_else(|| kernel.clone());
        free.retain(|it| !engines.contains(&it.number));
        Self {
            all,
            nodes: machine.nodes(),
            kernel,
            engines,
            engines_apart,
            free,
            siblings: Vec::new(),
            taken: 0,
            refused,
        }
    }

    fn place(&mut self, config: &Config, vm: &Vm<'_>, memory: Option<u64>) -> Place {
        let class = match (vm.needs.processors, vm.needs.background) {
            (_, true) => Class::Background,
            (Some(_), false) => Class::Dedicated,
            (None, false) => Class::Shared,
        };
        let vcpus = match class {
            Class::Shared => None,
            _ => Some(vm.needs.processors.unwrap_or(1)),
        };
        let own = match (class, vcpus) {
            (Class::Dedicated, Some(count)) => self.take(vm.name, count),
            _ => Vec::new(),
        };
        let nodes: BTreeSet<usize> = own.iter().map(|it| it.node).collect();
        let is_planned = class != Class::Shared;
        Place {
            name: vm.name.to_owned(),
            class,
            vcpus,
            processors: own.iter().map(|it| it.number).collect(),
            node: nodes
                .first()
                .copied()
                .filter(|_| self.nodes > 1 && nodes.len() == 1),
            memory,
            huge_pages: config.host.huge_pages.filter(|_| is_planned),
            io_threads: if is_planned {
                config.host.io_threads
            } else {
                0
            },
            others: self.kernel.clone(),
            prefix: Vec::new(),
        }
    }

    /// Takes processors for a VM: of one node if one has enough, and whole cores.
    fn take(&mut self, name: &str, count: usize) -> Vec<Processor> {
        if count > self.free.len() {
            let left = self.free.len();
            let apart = if self.engines_apart {
                self.engines.len()
            } else {
                0
            };
            self.refused.push(Refusal {
                subject: name.to_owned(),
                resource: Resource::Processors,
                why: format!(
                    "processors of its own: {count}, and left: {left}; of {} the kernel has {}, engines {apart}, other VMs {}, \
                     and {} share a core with a VM's",
                    self.all,
                    self.kernel.len(),
                    self.taken,
                    self.siblings.len()
                ),
                remedy: "lower `processors` of VMs, put some into the `background`, or lower kernel_processors under [host]"
                    .into(),
            });
            return Vec::new();
        }
        let of_node = |node: usize| self.free.iter().filter(move |it| it.node == node).count();
        let node = (0..self.nodes).find(|&node| of_node(node) >= count);
        let used = |core: usize| self.free.iter().filter(|it| it.core == core).count();
        let mut order: Vec<Processor> = { self.free.iter().copied() }
            .filter(|it| node.is_none_or(|node| node == it.node))
            .collect();
        // Cores that the kernel or an engine has a part of come last.
        order.sort_by_key(|it| {
            (
                it.node,
                std::cmp::Reverse(used(it.core)),
                it.core,
                it.number,
            )
        });
        order.truncate(count);
        self.free.retain(|it| !order.contains(it));
        let cores: BTreeSet<usize> = order.iter().map(|it| it.core).collect();
        let siblings = self.free.extract_if(.., |it| cores.contains(&it.core));
        self.siblings.extend(siblings.map(|it| it.number));
        self.taken += count;
        order
    }
}

/// The processors of engines that have some to themselves: those that the configuration names, or the last in a row
/// for engines that poll.
fn engines(
    config: &Config,
    machine: &Machine,
    free: &[Processor],
    refused: &mut Vec<Refusal>,
) -> Option<Vec<usize>> {
    let all = machine.processors.len();
    let count = config.engine_count_on(all);
    if let Some(first) = config.engine.cpu {
        let named: Vec<usize> = (first..first + count).collect();
        let is_there = |number: &usize| machine.processors.iter().any(|it| it.number == *number);
        if let Some(other) = named.iter().find(|it| !is_there(it)) {
            let there: Vec<usize> = machine.processors.iter().map(|it| it.number).collect();
            refused.push(Refusal {
                subject: "engine.cpu".into(),
                resource: Resource::HostProcessors,
                why: format!(
                    "an engine has processor {other}, and the daemon may run on {}",
                    ranges(&there)
                ),
                remedy: "write another `cpu` under [engine]".into(),
            });
        }
        return Some(named);
    }
    let suitable = config.suitable_doorbells(all);
    let mut modes = config.vfs().map(|(_, vf)| vf.doorbells.unwrap_or(suitable));
    let polls = modes.any(|mode| mode != Doorbells::Trap);
    let numbers: Vec<usize> = free.iter().map(|it| it.number).collect();
    // One processor is left for VMs.
    let mut rows = numbers.windows(count).skip(1).rev();
    let row = rows.find(|row| row[count - 1] - row[0] == count - 1);
    row.filter(|_| polls).map(<[usize]>::to_vec)
}

fn memory(config: &Config, machine: &Machine, vms: &[Place], refused: &mut Vec<Refusal>) -> Memory {
    let reserved = config.host.reserved_memory;
    let mut sum = 0u64;
    for vm in vms {
        let Some(bytes) = vm.memory else { continue };
        let left = { machine.memory }.map(|host| host.saturating_sub(reserved).saturating_sub(sum));
        if let (Some(host), Some(left)) = (machine.memory, left)
            && bytes > left
        {
            refused.push(Refusal {
                subject: vm.name.clone(),
                resource: Resource::Memory,
                why: format!(
                    "its {} MiB of memory are more than are left: of {} MiB {} are reserved, and other VMs have {}; {} left",
                    mebibytes(bytes),
                    host >> 20,
                    mebibytes(reserved),
                    mebibytes(sum),
                    left >> 20
                ),
                remedy: "give VMs less memory (`guest_memory`, `--memory`), run fewer, or lower reserved_memory under [host]"
                    .into(),
            });
        }
        sum = sum.saturating_add(bytes);
    }
    if let Some(size) = config.host.huge_pages {
        let huge = vms.iter().filter(|vm| vm.huge_pages.is_some());
        let wanted: u64 = { huge.filter_map(|vm| vm.memory) }
            .map(|bytes| bytes.div_ceil(size))
            .sum();
        let there = machine.huge_pages.get(&size).copied().unwrap_or(0);
        if wanted > there {
            let remedy = match size >> 20 {
                2 => format!(
                    "`sysctl vm.nr_hugepages={wanted}`, or huge_pages = \"none\" under [host]"
                ),
                _ => format!(
                    "boot with hugepagesz=1G hugepages={wanted}, or write huge_pages = \"none\" under [host]"
                ),
            };
            refused.push(Refusal {
                subject: "host.huge_pages".into(),
                resource: Resource::HugePages,
                why: format!(
                    "VMs take {wanted} huge pages of {} MiB, and this host has {there}",
                    size >> 20
                ),
                remedy,
            });
        }
    }
    Memory {
        host: machine.memory,
        reserved,
        vms: sum,
    }
}

fn prefix(vm: &Place, all: &[Processor]) -> Vec<String> {
    let mut words = Vec::new();
    let idle = ["chrt", "--idle", "0"];
    if vm.class == Class::Background {
        words.extend(idle.map(str::to_owned));
    }
    if !vm.processors.is_empty() && vm.processors.len() < all.len() {
        let list = ranges(&vm.processors);
        words.extend(["taskset".to_owned(), "-c".to_owned(), list]);
    }
    words
}

/// Numbers as `taskset -c` and libvirt's `cpuset` take them: `0-3,8`.
#[must_use]
pub fn ranges(numbers: &[usize]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
}
