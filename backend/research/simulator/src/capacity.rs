//! Number of hypervisors and virtual machines for which a subnet has enough LIDs, by address model.
//!
//! The models are those of "Towards the InfiniBand SR-IOV vSwitch Architecture" and of "Efficient
//! Routing and Reconfiguration in Virtualized HPC Environments with vSwitch-enabled Lossless Networks"
//! (section 4). A vSwitch shares the LID of its hypervisor's physical function.

use serde::Serialize;
use topologies::{FatTree, FatTreeError};
use wire::Lid;
use wire::attribute::LinearBlock;

/// Unicast LIDs: 49 151.
pub const LIDS: u64 = Lid::UNICAST_LAST.value() as u64;

/// LIDs for VMs where two of the reserved bits of source and of destination make LIDs of 18 bits: as
/// many as the secondary forwarding table has entries.
pub const VIRTUAL_LIDS: u64 = 192 * 1024;

/// Address model of VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// All VMs of a hypervisor share its LID.
    SharedPort,
    /// A LID for every virtual function, used or not.
    Prepopulated,
    /// A LID for every VM that runs.
    Dynamic,
    /// A LID of 18 bits for every VM that runs, of 16 bits for everything else.
    Extended,
}

impl Model {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::SharedPort,
        Self::Prepopulated,
        Self::Dynamic,
        Self::Extended,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SharedPort => "shared-port",
            Self::Prepopulated => "prepopulated",
            Self::Dynamic => "dynamic",
            Self::Extended => "extended",
        }
    }

    /// LIDs of 16 bits that so many hypervisors take, of which each runs so many VMs of so many
    /// functions.
    fn lids(self, hypervisors: u64, functions: u64, running: u64) -> u64 {
        match self {
            Self::SharedPort | Self::Extended => hypervisors,
            Self::Prepopulated => hypervisors * (functions + 1),
            Self::Dynamic => hypervisors * (running + 1),
        }
    }

    /// Whether the LIDs are enough.
    fn fits(self, hypervisors: u64, functions: u64, running: u64, switches: u64) -> bool {
        let virtual_lids = match self {
            Self::Extended => hypervisors * running,
            _ => 0,
        };
        self.lids(hypervisors, functions, running) + switches <= LIDS
            && virtual_lids <= VIRTUAL_LIDS
    }
}

/// Virtual functions, and how many of them run a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Virtual functions of a hypervisor, 1 to 253.
    pub functions: u8,
    /// VMs that run on each hypervisor, in percent of its functions, 1 to 100; rounded up.
    pub population: u8,
    /// Ports of the switches of the fat-tree that the hypervisors are cabled by.
    pub ports: u32,
}

/// Capacity of a subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Address model of VMs.
    pub model: Model,
    /// Virtual functions of a hypervisor.
    pub functions: u8,
    /// VMs that run on each.
    pub running: u64,
    /// Hypervisors, were there no switches: what the papers count.
    pub hypervisors: u64,
    /// VMs that run on these.
    pub vms: u64,
    /// With the switches of a fat-tree.
    pub tree: Tree,
}

/// The largest fat-tree that the LIDs are enough for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tree {
    /// Hypervisors.
    pub hypervisors: u64,
    /// VMs that run.
    pub vms: u64,
    /// Switches.
    pub switches: u64,
    /// LIDs of 16 bits.
    pub lids: u64,
    /// Blocks of a switch's table, and packets that fill the tables of all switches.
    pub blocks: u64,
    /// Packets that fill the tables of all switches.
    pub packets: u64,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapacityError {
    /// Out of range.
    #[error("{0} virtual functions of a hypervisor; give 1 to 253")]
    Functions(u8),
    /// Out of range.
    #[error("population of {0} %; give 1 to 100")]
    Population(u8),
    /// There is no fat-tree of such switches.
    #[error(transparent)]
    FatTree(#[from] FatTreeError),
}

/// Computes the capacity of a subnet with each model.
///
/// # Errors
/// [`CapacityError`].
pub fn capacity(question: Question) -> Result<Vec<Row>, CapacityError> {
    let Question {
        functions,
        population,
        ports,
    } = question;
    if !(1..=253).contains(&functions) {
        return Err(CapacityError::Functions(functions));
    }
    if !(1..=100).contains(&population) {
        return Err(CapacityError::Population(population));
    }
    FatTree::rlft(ports, 1)?;
    let running = (u64::from(functions) * u64::from(population)).div_ceil(100);
    let row = |model: Model| {
        let fits =
            |hypervisors, switches| model.fits(hypervisors, functions.into(), running, switches);
        let hypervisors = most(|hypervisors| fits(hypervisors, 0));
        // A tree of more hosts has no fewer switches, but for the tree's own rounding: `switches`
        // asks for those of exactly so many.
        let in_tree = most(|hypervisors| {
            switches(ports, hypervisors).is_some_and(|switches| fits(hypervisors, switches))
        });
        let switches = switches(ports, in_tree).unwrap_or(0);
        let lids = model.lids(in_tree, functions.into(), running) + switches;
        // A table begins with LID 0, which nobody has.
        let blocks = (lids + 1).div_ceil(LinearBlock::LIDS.into());
        Row {
            model,
            functions,
            running,
            hypervisors,
            vms: hypervisors * running,
            tree: Tree {
                hypervisors: in_tree,
                vms: in_tree * running,
                switches,
                lids,
                blocks,
                packets: switches * blocks,
            },
        }
    };
    Ok(Model::ALL.map(row).to_vec())
}

/// The largest number for which something holds that holds for all smaller ones.
fn most(holds: impl Fn(u64) -> bool) -> u64 {
    let (mut good, mut bad) = (0, LIDS + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if holds(middle) {
            good = middle
        } else {
            bad = middle
        }
    }
    good
}

/// Switches of the fat-tree for so many hosts; `None` if there is none.
fn switches(ports: u32, hosts: u64) -> Option<u64> {
    let tree = FatTree::rlft(ports, u32::try_from(hosts.max(1)).ok()?).ok()?;
    Some(tree.switches() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(functions: u8, population: u8) -> Vec<Row> {
        capacity(Question {
            functions,
            population,
            ports: 36,
        })
        .unwrap()
    }

    /// "16 VFs: 2891 hypervisors, 46 256 VMs".
    #[test]
    fn published_limits() {
        let rows = rows(16, 100);
        let of = |model: Model| rows.iter().find(|row| row.model == model).unwrap();
        let prepopulated = of(Model::Prepopulated);
        assert_eq!((prepopulated.hypervisors, prepopulated.vms), (2891, 46_256));
        assert_eq!(of(Model::SharedPort).hypervisors, 49_151);
        // All functions in use, there is no difference.
        assert_eq!(of(Model::Dynamic).hypervisors, 2891);
        assert_eq!(of(Model::Extended).hypervisors, 192 * 1024 / 16);
    }

    #[test]
    fn dynamic_lids_are_for_those_that_run() {
        let rows = rows(16, 25);
        let dynamic = &rows[2];
        assert_eq!((dynamic.running, dynamic.hypervisors), (4, 49_151 / 5));
        assert_eq!(rows[1].hypervisors, 2891);
    }

    #[test]
    fn one_more_would_be_too_many() {
        for functions in [1, 4, 16, 253] {
            for row in rows(functions, 50) {
                let Tree {
                    hypervisors, lids, ..
                } = row.tree;
                assert!(lids <= LIDS && hypervisors <= row.hypervisors, "{row:?}");
                let more = hypervisors + 1;
                let switches = switches(36, more).unwrap_or(u64::MAX / 2);
                let fits = row
                    .model
                    .fits(more, functions.into(), row.running, switches);
                assert!(!fits, "{row:?}");
            }
        }
    }

    #[test]
    fn wrong_questions() {
        let ask = |functions, population, ports| {
            let question = Question {
                functions,
                population,
                ports,
            };
            capacity(question).unwrap_err().to_string()
        };
        assert!(ask(0, 50, 36).contains("0 virtual functions"));
        assert!(ask(1, 0, 36).contains("population of 0 %"));
        assert!(ask(1, 50, 35).contains("switches of 35 ports"));
    }
}
