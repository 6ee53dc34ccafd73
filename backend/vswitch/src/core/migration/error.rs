//! Why VMs stay where they are.

use std::fmt;
use std::time::Duration;

use subnet_manager::MigrationError;
use wire::PortState;

use crate::names::near;

/// The kind of place that a VM needs at a hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A VF with a LID of its own.
    Dedicated,
    /// A VF that shares its LID.
    Shared,
    /// A port for an Ethernet card.
    Port,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dedicated | Self::Shared => "VF",
            Self::Port => "port",
        })
    }
}

impl Need {
    /// One more, and how to get it.
    fn spare(self) -> String {
        let key = match self {
            Self::Dedicated | Self::Shared => "spare_vfs",
            Self::Port => "spare_ports",
        };
        format!("a spare {self} (`{key}`), which takes a restart of the daemon")
    }

    /// That a hypervisor has so many and none is free, and what to do.
    fn lacking(self, count: usize) -> String {
        let spare = self.spare();
        let none = match self {
            Self::Dedicated => "no VF with a LID of its own",
            Self::Shared => "no VF that shares its LID",
            Self::Port => "no port",
        };
        match count {
            0 => format!("{none}; name another hypervisor, or give this one {spare}"),
            _ => {
                let s = if count == 1 { "" } else { "s" };
                format!(
                    "{count} {self}{s} and none is free; move a VM away from it, name another \
                     hypervisor, or give this one {spare}"
                )
            }
        }
    }
}

/// The manager has not made a port Active.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the VM's addresses are at `{vf}`, whose port is {state}: no subnet manager has made it Active \
     within {allowed:?}. Start one, or have it sweep; to have the VM where it was, migrate it back"
)]
pub struct NotActive {
    pub(super) vf: String,
    pub(super) state: PortState,
    pub(super) allowed: Duration,
}

/// Why a GUID is where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuidMoveError {
    /// It was to leave a place that it had left already, or go to one that is taken.
    #[error("another migration was faster; `ibvswitch vf show` says where the VM's addresses are")]
    Overtaken,
    /// The subnet administration does not register it at the destination.
    #[error("the subnet administration does not let the destination's port have the VM's GUID")]
    Refused,
    /// The subnet manager does not answer, or does not write the tables.
    #[error("the subnet manager has not moved the VM's GUID within 30 s; is there one?")]
    Silent,
}

/// Why a VM did not move.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Nothing has this name.
    #[error("there is no {what} `{name}`; {}", near(.name, .known, "`ibvswitch status` shows all"))]
    Unknown {
        /// The kind of thing that was looked for.
        what: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A spare VF has no addresses to move.
    #[error("`{0}` is a spare VF and no VM; name a VM")]
    Spare(String),
    /// VMs that each need a place that another of them has.
    #[error(
        "there is room for it only where `{blocker}` is, and `{blocker}` needs a place that one of \
         these VMs has; move one of these VMs to a hypervisor with a free {need} first and then the \
         others, or give one of the hypervisors {}",
        .need.spare()
    )]
    Circular {
        /// A VM that has such a place.
        blocker: String,
        /// The kind of place that such VMs need.
        need: Need,
    },
    /// The VF named is another hypervisor's.
    #[error("the VF `{vf}` is on {hypervisor}; name one of the destination, or leave it out")]
    Elsewhere {
        /// The VF.
        vf: String,
        /// Its hypervisor.
        hypervisor: String,
    },
    /// A VM can go to one place.
    #[error("`{0}` is to move twice; name each VM once")]
    Twice(String),
    /// The hypervisor has no spare VF left.
    #[error("{hypervisor} has {}", .need.lacking(*.functions))]
    Full {
        /// The hypervisor.
        hypervisor: String,
        /// Its places that the VM could have, if they were free.
        functions: usize,
        /// The kind of place that the VM needs.
        need: Need,
    },
    /// The VF named has a VM.
    #[error("the VF `{vf}` has the addresses of `{vm}`; name a free one, or leave it out")]
    Occupied {
        /// The VF.
        vf: String,
        /// The VM.
        vm: String,
    },
    /// The VF named has a LID of its own and the VM shares one, or the other way round.
    #[error(
        "the VF `{0}` and the VM differ in whether they share a LID (`address`); name another one"
    )]
    OtherAddress(String),
    /// The VF named is a port and the VM has an HCA, or the other way round.
    #[error(
        "`{0}` and the VM differ in whether they are an HCA or an Ethernet card; name another one"
    )]
    OtherKind(String),
    /// No free VF of the hypervisor has a LID for a VM that is to have one for itself.
    #[error(
        "the VM `{vm}` of a virtual cluster needs a LID of its own at {hypervisor}, but the free VF \
         has place {place} there, and with an LMC of {lmc} the first {} places have one; raise \
         `sm.lmc`, or move another VM away from there", (1u16 << lmc) - 1
    )]
    Range {
        /// The VM.
        vm: String,
        /// The hypervisor.
        hypervisor: String,
        /// The VF's place at its port.
        place: u8,
        /// LID mask control of the port.
        lmc: u8,
    },
    /// Options for forwarding tables, where none changes.
    #[error(
        "the LID of `{0}` is one of its hypervisor's port, so that no forwarding table changes when it moves; \
         leave out --method, --drop-first, --every-switch and --destination-routed"
    )]
    NoTables(String),
    /// The VM's GUID is at no port.
    #[error(
        "the GUID of `{0}` is registered at no port yet; `ibvswitch topology` says what the subnet \
         manager has done"
    )]
    NotThere(String),
    /// A VM that shares a LID stays where it was.
    #[error(transparent)]
    Guid(GuidMoveError),
    /// The subnet manager says no.
    #[error(transparent)]
    Manager(MigrationError),
    /// Options for forwarding tables, which another subnet manager changes.
    #[error(
        "another subnet manager changes the forwarding tables; leave out --method, --drop-first, \
         --every-switch and --destination-routed"
    )]
    NotOurs,
    /// Options for forwarding tables, where the VM goes to another subnet.
    #[error(
        "{hypervisor} is in another subnet than `{vm}`, where it gets another LID and no forwarding \
         table changes for its former one; leave out --method, --drop-first, --every-switch and \
         --destination-routed"
    )]
    Crossing {
        /// The VM.
        vm: String,
        /// Where it is to go.
        hypervisor: String,
    },
    /// Another subnet manager has not done its part.
    #[error(transparent)]
    NotActive(NotActive),
}
