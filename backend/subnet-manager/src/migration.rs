//! A VM's addresses move with it: what is asked, and what it took.

use std::fmt;

use wire::{ExtendedLid, Guid, Lid};

/// Method by which forwarding tables follow a VM (*Towards the InfiniBand SR-IOV vSwitch Architecture*, V).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The entries of the VM's LID and of the LID that the destination has are exchanged in each
    /// switch: for subnets where every function has a LID, used or not.
    Swap,
    /// The VM's LID gets the entry of the destination's vSwitch in each switch: for subnets where
    /// functions without a VM have no LID.
    Copy,
    /// All paths are computed anew and all blocks sent, as a subnet manager does that knows of no
    /// vSwitches: to compare with.
    Full,
}

impl Method {
    /// All methods with their names on the command line.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("swap", Self::Swap),
        ("copy", Self::Copy),
        ("full", Self::Full),
    ];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::NAMES.iter();
        let name = names.find(|(_, method)| method == self);
        f.pad(name.map_or("", |(name, _)| name))
    }
}

/// Where a VM is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Any free function of the hypervisor with the vSwitch of this node GUID: rather one whose LID
    /// is in the same block of forwarding tables as the VM's, so that one packet per switch does.
    Hypervisor(Guid),
    /// The function of this node GUID.
    Function(Guid),
}

/// A VM's move from one function to another, as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Migration {
    /// Port GUID of the VM.
    pub vm: Guid,
    /// Where it is to go.
    pub to: Target,
    /// Method by which forwarding tables follow it; `None` for the one that the destination allows: swap if it has
    /// a LID, else copy.
    pub method: Option<Method>,
    /// Has the switches that will be changed drop packets to the VM first, so that old and new
    /// paths never exist side by side.
    pub drop_first: bool,
    /// Changes all switches that send the LIDs different ways, instead of as few as do: in a fat-tree those of FTreeMinRC
    /// (*Efficient Routing and Reconfiguration in Virtualized HPC Environments with vSwitch-enabled Lossless Networks*,
    /// section 6), elsewhere a skyline. [`Moved::not_fewest`] says where it is all the same.
    pub every_switch: bool,
    /// Reaches switches by their LIDs, which spares the directed route's work in each switch on the
    /// way.
    pub destination_routed: bool,
    /// Has it found out whether packets can wait for each other for ever while tables change, which
    /// takes a walk through all of them.
    pub check_deadlock: bool,
}

impl Migration {
    /// The move of `vm` to `to` by what the destination allows.
    pub fn new(vm: Guid, to: Target) -> Self {
        Self {
            vm,
            to,
            method: None,
            drop_first: false,
            every_switch: false,
            destination_routed: false,
            check_deadlock: false,
        }
    }
}

/// Packets sent, repetitions included, and how many of them were confirmed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packets {
    /// Sent.
    pub sent: u64,
    /// Confirmed: what they set is set.
    pub updated: u64,
}

impl Packets {
    pub(crate) fn count(&mut self, sent: u32, done: bool) {
        self.sent += u64::from(sent);
        self.updated += u64::from(done);
    }
}

/// Forwarding table blocks sent to one switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchPackets {
    /// The switch.
    pub guid: Guid,
    /// Whether it is the vSwitch of a hypervisor.
    pub is_vswitch: bool,
    /// Blocks.
    pub packets: Packets,
}

/// Identity of a function that has come from another subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// No VM has it: one may move there.
    pub is_spare: bool,
    /// It is to have a LID.
    pub has_lid: bool,
}

/// Result of a VM's migration, start or end, in packets really sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Port GUID of the VM.
    pub vm: Guid,
    /// Its LID, which a migration does not change.
    pub lid: Lid,
    /// Its LID in the extended LID space, where it has one: then `lid` is none.
    pub virtual_lid: Option<ExtendedLid>,
    /// Node GUID of the function that it left.
    pub from: Guid,
    /// Node GUID of the function that it has now; the same when it started or ended.
    pub to: Guid,
    /// Method by which forwarding tables followed.
    pub method: Method,
    /// To the two functions: LIDs, GUIDs, P_Key tables.
    pub functions: Packets,
    /// To switches, so that they drop packets to the VM.
    pub drops: Packets,
    /// To vSwitches: forwarding table blocks.
    pub vswitches: Packets,
    /// To the other switches: forwarding table blocks.
    pub switches: Packets,
    /// Each switch that was sent blocks, dropping ones included, by rising GUID.
    pub per_switch: Vec<SwitchPackets>,
    /// Possible deadlock of packets meanwhile, where that was asked: while this move and all others of its round
    /// were made.
    pub deadlock: Option<Deadlock>,
    /// The round that it was made in: moves of one round change no block of a switch's table in common and are made at
    /// the same time.
    pub round: u64,
    /// Why not in the round before, where others were made that were asked for with it.
    pub waited: Option<Wait>,
    /// Why all switches were changed that send the LIDs different ways, unless that was asked for.
    pub not_fewest: Option<NotFewest>,
}

/// Why a move changed more switches than as few as do, though not [`Migration::every_switch`] was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFewest {
    /// With those alone packets could wait for each other for ever.
    Deadlock,
    /// The VM has a LID of 18 bits, whose tables are others.
    Extended,
    /// With those alone some switch would lose its way to the VM.
    Lost,
    /// The method sends all tables.
    Full,
}

impl fmt::Display for NotFewest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadlock => "with those alone packets could wait for each other for ever",
            Self::Extended => "the VM has a LID of 18 bits",
            Self::Lost => "a switch would lose its way to the VM",
            Self::Full => "the method full computes all paths anew",
        })
    }
}

/// Cause of a move's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A switch of which another VM's move changed the same block, or took the function.
    Switch {
        /// Node GUID of the switch.
        switch: Guid,
        /// Port GUID of that VM.
        vm: Guid,
    },
    /// The place that another VM had at the destination.
    Place {
        /// Port GUID of that VM.
        vm: Guid,
    },
    /// The end of the same VM's move before.
    Itself,
    /// Something that is done alone: another VM's start or end, or a full reconfiguration.
    Turn,
}

/// Whether packets can wait for each other for ever while tables change: some switches send a LID
/// the old way yet and others the new one, in any mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deadlock {
    /// They cannot.
    Free,
    /// They can, if the mixture is an unlucky one; not with the new tables alone.
    Possible(LinkCircle),
    /// The new tables allow it, and those there were before did not.
    Lasting(LinkCircle),
    /// The paths there were before allow it already.
    Standing(LinkCircle),
    /// The subnet is not the one that the paths are of, or the VM has a vLID.
    Unknown,
}

/// Links whose packets would wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkCircle {
    /// The virtual lane.
    pub lane: u8,
    /// The links, each as a switch's node GUID and a port.
    pub channels: Vec<(Guid, u8)>,
}

/// Why a VM did not move.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// No port has this GUID, or it is not a function behind a switch.
    #[error("no function of the subnet has the GUID {vm}; name a VM that is on the subnet")]
    NoSuchVm {
        /// The GUID.
        vm: Guid,
    },
    /// The destination is not there.
    #[error("there is no {what} {guid} in the subnet")]
    NoSuchTarget {
        /// The kind of object.
        what: &'static str,
        /// Its GUID.
        guid: Guid,
    },
    /// All functions of the hypervisor have a VM.
    #[error(
        "none of the {functions} functions of the hypervisor with vSwitch {hypervisor} is free; \
         move a VM away from it, or give it spare functions"
    )]
    NoFreeFunction {
        /// Node GUID of the vSwitch.
        hypervisor: Guid,
        /// Functions that it has.
        functions: usize,
    },
    /// The named function has a VM.
    #[error("the function {function} has a VM; name a free one")]
    Occupied {
        /// Node GUID of the function.
        function: Guid,
    },
    /// VMs that each need a place that another of them has.
    #[error(
        "there is room for it only where the VM {blocker} is, whose own move needs a place that one of \
         these VMs has; give one of the hypervisors a spare function, or move one of the VMs elsewhere \
         first"
    )]
    Circular {
        /// Port GUID of a VM that has such a place.
        blocker: Guid,
    },
    /// The VM is where it is to go.
    #[error("the VM is there already")]
    AlreadyThere,
    /// Nothing can be exchanged.
    #[error("the function {function} has no LID to exchange; use the method copy")]
    NothingToSwap {
        /// Node GUID of the function at the destination.
        function: Guid,
    },
    /// The function's own LID would lead nowhere.
    #[error("the function {function} has a LID of its own; use the method swap")]
    HasLid {
        /// Node GUID of the function at the destination.
        function: Guid,
    },
    /// It has no LID that could move along.
    #[error("the VM {vm} does not run: it has no LID; start it first")]
    NotRunning {
        /// Port GUID of the VM.
        vm: Guid,
    },
    /// All LIDs are taken.
    #[error(
        "no LID for the VM {vm}: all {} unicast LIDs are taken, {pinned} of them reserved by the \
         configuration; end a VM, or use shared LIDs",
        Lid::UNICAST_LAST.value()
    )]
    NoFreeLid {
        /// Port GUID of the VM.
        vm: Guid,
        /// LIDs that are kept for ports that may be absent.
        pinned: usize,
    },
    /// All LIDs of the extended space are taken.
    #[error("no vLID for the VM {vm}: all 196608 are taken; end a VM")]
    NoFreeVirtualLid {
        /// Port GUID of the VM.
        vm: Guid,
    },
    /// The content of the switches' tables is not known: no sweep has filled them.
    #[error("the forwarding tables of switch {switch} are not known; wait for the next sweep")]
    UnknownTables {
        /// Node GUID of the switch.
        switch: Guid,
    },
    /// This manager may change nothing.
    #[error("another subnet manager is the subnet's master; migrate while this one is")]
    NotMaster,
    /// A packet was not answered, or refused. A sweep has put things in order since.
    #[error(
        "interrupted: {reason}; {}",
        match .now_at {
            Some(function) => format!("the VM's addresses are at the function {function}"),
            None => "no function has the VM's addresses; mend the links and try again".to_owned(),
        }
    )]
    Interrupted {
        /// The round that it was to be made in.
        round: u64,
        /// The error.
        reason: String,
        /// Node GUID of the function that has the VM's GUID after the sweep.
        now_at: Option<Guid>,
    },
}
