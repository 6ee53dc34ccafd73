//! The addresses of VFs.

/// The way in which VFs come by their addresses (*Towards the InfiniBand SR-IOV vSwitch Architecture*, IV, and
/// *Efficient Routing and Reconfiguration in Virtualized HPC Environments with vSwitch-enabled
/// Lossless Networks*, 4.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AddressModel {
    /// Every VF has a LID, used or not: VMs start without a single packet, and take any way.
    #[default]
    Prepopulated,
    /// A VF gets a LID when a VMM connects, and loses it when the VMM goes.
    Dynamic,
    /// The VFs of a hypervisor share the LID of its port, and are told apart by their GIDs.
    SharedPort,
    /// Each VF as its [`Address`] says.
    Hybrid,
    /// The VFs of a hypervisor are virtual ports of its port, as NVIDIA's adapters have them: some with a LID, some without.
    Virtualized,
}

impl AddressModel {
    /// All models with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("vswitch-prepopulated", Self::Prepopulated),
        ("vswitch-dynamic", Self::Dynamic),
        ("shared-port", Self::SharedPort),
        ("vswitch-hybrid", Self::Hybrid),
        ("virtualized", Self::Virtualized),
    ];

    /// Whether VFs with a LID of their own have it only while a VM runs. An external subnet manager
    /// gives every port one.
    #[must_use]
    pub const fn is_dynamic(self, external: bool) -> bool {
        matches!(self, Self::Dynamic | Self::Hybrid) && !external
    }

    /// Whether a hypervisor has a vSwitch: otherwise it is an adapter with one port.
    #[must_use]
    pub const fn has_vswitch(self) -> bool {
        !matches!(self, Self::SharedPort | Self::Virtualized)
    }

    /// Whether the physical function of a hypervisor whose VFs have these addresses is a port of the
    /// subnet, whose LID VFs share.
    pub fn has_physical_function(self, addresses: impl IntoIterator<Item = Address>) -> bool {
        !self.has_vswitch() || addresses.into_iter().any(|it| it == Address::Shared)
    }

    /// Whether there are VFs that share a LID.
    #[must_use]
    pub const fn has_shared_ports(self) -> bool {
        matches!(self, Self::SharedPort | Self::Hybrid | Self::Virtualized)
    }
}

/// Whether a VF has a LID of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Address {
    /// It has.
    #[default]
    Dedicated,
    /// It shares that of its hypervisor's physical function.
    Shared,
}

impl Address {
    /// Both with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 2] =
        [("dedicated", Self::Dedicated), ("shared", Self::Shared)];
}
