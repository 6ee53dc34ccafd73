//! Number of ports in a subnet that have LIDs.

use wire::Lid;

use super::AddressModel;

/// Parts of a subnet that take LIDs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Population {
    pub(super) vswitches: usize,
    /// Physical functions whose LID VFs share.
    pub(super) shared_ports: usize,
    /// VFs with a LID of their own.
    pub(super) vfs: usize,
    pub(super) switches: usize,
    /// Ports of routers.
    pub(super) routers: usize,
    /// LID mask control of shared ports, VFs and routers.
    pub(super) lmc: u8,
}

impl Population {
    /// Whether the LIDs suffice; if not, the arithmetic and a remedy.
    pub(super) fn check(
        self,
        model: AddressModel,
        external: bool,
    ) -> Result<(), (String, &'static str)> {
        let all = usize::from(Lid::UNICAST_LAST.value());
        let vfs = if model.is_dynamic(external) {
            0
        } else {
            self.vfs
        };
        let each = 1usize << self.lmc;
        let parts = [
            (self.vswitches, "vSwitches", 1),
            (self.shared_ports, "shared ports", each),
            (vfs, "VFs", each),
            (self.switches, "switches", 1),
            (self.routers, "routers", each),
        ];
        let needed = parts.iter().map(|(count, _, each)| count * each);
        let needed = needed.sum::<usize>() + 1;
        if needed <= all {
            return Ok(());
        }
        let there = parts.iter().filter(|(count, ..)| *count > 0);
        let sum: Vec<String> = there
            .map(|(count, what, each)| match each {
                1 => format!("{count} {what}"),
                _ => format!("{count} {what} of {each} LIDs each"),
            })
            .collect();
        Err((
            format!(
                "{} + 1 subnet manager take {needed} LIDs, and a subnet has {all}",
                sum.join(" + ")
            ),
            match model {
                AddressModel::Prepopulated => {
                    "configure fewer VFs, or model = \"vswitch-dynamic\", where only VFs of running \
                     VMs have a LID, or model = \"shared-port\", where a hypervisor has one"
                }
                AddressModel::Hybrid => {
                    "configure fewer hypervisors, or model = \"shared-port\", where a hypervisor \
                     has one LID and not two"
                }
                AddressModel::Dynamic | AddressModel::SharedPort => "configure fewer hypervisors",
                AddressModel::Virtualized => {
                    "configure fewer hypervisors, or fewer VFs with address = \"dedicated\""
                }
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the paper: 16 VFs per hypervisor, 2891 hypervisors, 46 256 VMs.
    #[test]
    fn the_limit_of_prepopulated_lids() {
        let with = |hypervisors: usize| Population {
            vswitches: hypervisors,
            vfs: 16 * hypervisors,
            switches: 3,
            ..Population::default()
        };
        // 2891 * 17 = 49147, and 3 switches and the manager make 49151.
        assert_eq!(with(2891).check(AddressModel::Prepopulated, false), Ok(()));
        let (what, remedy) = with(2892)
            .check(AddressModel::Prepopulated, false)
            .unwrap_err();
        assert_eq!(
            what,
            "2892 vSwitches + 46272 VFs + 3 switches + 1 subnet manager take 49168 LIDs, and a \
             subnet has 49151"
        );
        assert!(remedy.contains("vswitch-dynamic"));
        assert_eq!(with(2892).check(AddressModel::Dynamic, false), Ok(()));
        let one_more = Population {
            switches: 4,
            ..with(2891)
        };
        assert!(one_more.check(AddressModel::Prepopulated, false).is_err());
    }

    /// With an LMC each adapter's port has several.
    #[test]
    fn the_limit_of_several_lids_each() {
        let with = |vfs| Population {
            vswitches: 24,
            vfs,
            switches: 2,
            lmc: 7,
            ..Population::default()
        };
        // 383 * 128 = 49024, and 24 vSwitches, 2 switches and the manager make 49051.
        assert_eq!(with(383).check(AddressModel::Prepopulated, false), Ok(()));
        let (what, _) = with(384)
            .check(AddressModel::Prepopulated, false)
            .unwrap_err();
        assert_eq!(
            what,
            "24 vSwitches + 384 VFs of 128 LIDs each + 2 switches + 1 subnet manager take 49179 LIDs, \
             and a subnet has 49151"
        );
    }

    /// A hypervisor takes one LID however many VFs it has; two where some VFs have their own.
    #[test]
    fn the_limits_of_shared_lids() {
        let shared = |hypervisors| Population {
            shared_ports: hypervisors,
            switches: 3,
            ..Population::default()
        };
        assert_eq!(
            shared(49_147).check(AddressModel::SharedPort, false),
            Ok(())
        );
        let (what, _) = shared(49_148)
            .check(AddressModel::SharedPort, false)
            .unwrap_err();
        assert_eq!(
            what,
            "49148 shared ports + 3 switches + 1 subnet manager take 49152 LIDs, and a subnet has \
             49151"
        );
        let hybrid = |hypervisors| Population {
            vswitches: hypervisors,
            vfs: 100_000,
            ..shared(hypervisors)
        };
        assert_eq!(hybrid(24_573).check(AddressModel::Hybrid, false), Ok(()));
        // Where all ports have LIDs, so have the VFs.
        assert!(hybrid(24_573).check(AddressModel::Hybrid, true).is_err());
        let (what, remedy) = hybrid(24_574)
            .check(AddressModel::Hybrid, false)
            .unwrap_err();
        assert!(
            what.starts_with("24574 vSwitches + 24574 shared ports + 3 switches"),
            "{what}"
        );
        assert!(remedy.contains("shared-port"));
    }
}
