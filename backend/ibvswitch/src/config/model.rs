//! Which ports of a subnet have LIDs, and how many there are.

use wire::Lid;

/// How VFs come by their addresses (*Towards the InfiniBand SR-IOV vSwitch Architecture*, IV).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AddressModel {
    /// Every VF has a LID, used or not: VMs start without a single packet, and take any way.
    #[default]
    Prepopulated,
    /// A VF gets a LID when a VMM connects, and loses it when the VMM goes.
    Dynamic,
}

impl AddressModel {
    /// All models with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] = [
        ("vswitch-prepopulated", Self::Prepopulated),
        ("vswitch-dynamic", Self::Dynamic),
    ];
}

/// What a subnet has that takes a LID.
#[derive(Debug, Clone, Copy)]
pub(super) struct Population {
    pub(super) hypervisors: usize,
    pub(super) vfs: usize,
    pub(super) switches: usize,
}

impl Population {
    /// Whether the LIDs suffice; if not, the arithmetic and a remedy.
    pub(super) fn check(self, model: AddressModel) -> Result<(), (String, &'static str)> {
        let Self {
            hypervisors,
            vfs,
            switches,
        } = self;
        let all = usize::from(Lid::UNICAST_LAST.value());
        let vfs = match model {
            AddressModel::Prepopulated => vfs,
            AddressModel::Dynamic => 0,
        };
        let needed = hypervisors + vfs + switches + 1;
        if needed <= all {
            return Ok(());
        }
        Err((
            format!(
                "{hypervisors} vSwitches + {vfs} VFs + {switches} switches + 1 subnet manager take \
                 {needed} LIDs, and a subnet has {all}"
            ),
            match model {
                AddressModel::Prepopulated => {
                    "configure fewer VFs, or model = \"vswitch-dynamic\", where only VFs of running \
                     VMs have a LID"
                }
                AddressModel::Dynamic => "configure fewer hypervisors",
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
            hypervisors,
            vfs: 16 * hypervisors,
            switches: 3,
        };
        // 2891 * 17 = 49147, and 3 switches and the manager make 49151.
        assert_eq!(with(2891).check(AddressModel::Prepopulated), Ok(()));
        let (what, remedy) = with(2892).check(AddressModel::Prepopulated).unwrap_err();
        assert_eq!(
            what,
            "2892 vSwitches + 46272 VFs + 3 switches + 1 subnet manager take 49168 LIDs, and a \
             subnet has 49151"
        );
        assert!(remedy.contains("vswitch-dynamic"));
        assert_eq!(with(2892).check(AddressModel::Dynamic), Ok(()));
        let one_more = Population {
            switches: 4,
            ..with(2891)
        };
        assert!(one_more.check(AddressModel::Prepopulated).is_err());
    }
}
