//! Keys of links, switches, subnets and their managers.

use super::Values::{Flag, Integer, Lid, OneOf, Other, Word};
use super::{Key, LANES, Values, key, words};
use crate::names::WIDTHS;
use crate::{
    AddressModel, Bandwidth, LidChoice, LinkRate, ManagerPlace, PathChoice, RoutingChoice,
};

/// Keys of `fabric`.
pub static FABRIC: &[Key] = &[
    key(
        "switch",
        Other("name"),
        "`\"sw1\"`",
        "Name of the switch, if there is only one. Its GUID derives from the name.",
    ),
    key(
        "topology",
        Other("path"),
        "none",
        "[File with all nodes and cables](#several-switches), in place of switches here.",
    ),
    key(
        "model",
        Word(&words(&AddressModel::NAMES)),
        "`\"vswitch-prepopulated\"`",
        "[Model of addresses](subnet.md#five-models): the way in which VFs get LIDs.",
    ),
    key(
        "grh_required",
        Flag,
        "`true`",
        "Whether drivers of VFs that share a LID hear that every packet needs a global route header, as on hardware. With `false`, \
         programs that know only LIDs can send: [five models](subnet.md#five-models).",
    ),
    key(
        "extended_lids",
        Flag,
        "`false`",
        "With `\"vswitch-dynamic\"`: VMs of clusters get [LIDs of 18 bits](virtual-clusters.md#lids-of-18-bits).",
    ),
    key(
        "strict",
        Flag,
        "`false`",
        "Switches answer as NDR switches do: extended speeds (FDR and faster) only to a PortInfo request with bit 31 of its modifier, and \
         reserved bits of that modifier are refused. For [tests of subnet managers](subnet-manager.md#strict-switches).",
    ),
    key(
        "subnet_prefix",
        Other("16 hexadecimal digits"),
        "`\"fe80:0000:0000:0000\"`",
        "Upper half of every GID, if there is one subnet. Each of [several subnets](#several-subnets) has a `prefix`.",
    ),
    key(
        "mtu",
        OneOf(&[256, 512, 1024, 2048, 4096]),
        "`4096`",
        "Maximum payload of a packet in bytes, on every link. It bounds UD messages.",
    ),
    key(
        "link_width",
        Word(&words(&WIDTHS)),
        "`\"4X\"`",
        "Lanes of every link.",
    ),
    key(
        "link_speed",
        Word(&words(&LinkRate::NAMES)),
        "`\"EDR\"`",
        "Signalling rate of a lane.",
    ),
    key(
        "bandwidth",
        Word(&words(&Bandwidth::NAMES)),
        "`\"unlimited\"`",
        "Data rate of links: as much as the machine has, or with `\"model\"` [that of width and speed](links.md#bandwidth-of-links).",
    ),
];

const OF_LEVELS: Values = Other("16 lanes, 0 to 15");
const WEIGHTS: Values = Other("`LANE:WEIGHT,…`");
const AS_ALL: &str = "as for all ports";
const ADAPTERS: &str = "The same for ports of channel adapters alone.";
const SWITCHES: &str = "The same for enhanced ports 0 of switches alone.";
const CABLES: &str = "The same for external ports of switches alone.";
const ROUTERS: &str = "The same for ports of routers alone.";

/// Keys of `sm`.
pub static SM: &[Key] = &[
    key(
        "manager",
        Word(&words(&ManagerPlace::NAMES)),
        "`\"embedded\"`",
        "The subnet manager: part of the daemon, or an external one, which is a [program of the host](#external) or of a guest with \
         `smp = \"fabric\"`. With an external one, ports come up once it has swept the subnet; settings that it does not know are \
         refused: [where settings act](where-settings-act.md).",
    ),
    key(
        "switch",
        Other("name"),
        "the first with a hypervisor",
        "Switch of the subnet manager's host. Each of [several subnets](#several-subnets) has an `sm_switch`.",
    ),
    key(
        "host",
        Other("text, GUID"),
        "the first",
        "With `fabric.topology`: description or GUID of the channel adapter that is the subnet manager's host, or the GUID of a port. The manager is \
         at that port, or at the lowest with a cable. Aggregation nodes (SHARP) are left out.",
    ),
    key(
        "lid",
        Lid,
        "`1`",
        "LID of the embedded subnet manager. Guests see it as `SM lid`. With `fabric.topology` the LID in the file goes before the default.",
    ),
    key(
        "lmc",
        Integer(0..=7),
        "`0`",
        "LID mask control: each VF, and each port that VFs share, has 2 to this power LIDs, with a path for each: \
         [several LIDs](subnet-manager.md#several-lids-for-each-vf).",
    ),
    key(
        "lids",
        Word(&words(&LidChoice::NAMES)),
        "`\"port\"`",
        "Number of LIDs of each VF: the same for all (`\"port\"`), or as many as the [paths to it](lids-by-paths.md) need.",
    ),
    key(
        "paths",
        Word(&words(&PathChoice::NAMES)),
        "`\"shortest-widest\"`",
        "With `lids`: the [paths](lids-by-paths.md) of pairs of VFs, in place of those of `routing`.",
    ),
    key(
        "sweep_interval",
        Integer(1..=86_400),
        "`10`",
        "Seconds between two light sweeps, which ask switches for changes. Traps cause a sweep at once.",
    ),
    key(
        "priority",
        Integer(0..=15),
        "`0`",
        "Priority among subnet managers. The highest is master, among equals the one with the lowest GUID; the others stand by.",
    ),
    key(
        "routing",
        Word(&words(&RoutingChoice::NAMES)),
        "`\"minhop\"`",
        "[Routing engine](subnet-manager.md#routing-engines). If it cannot route the subnet, `\"minhop\"` takes its place, and `ibvswitch \
         sm status` \
         shows the reason.",
    ),
    key(
        "nue_max_num_vls",
        Integer(0..=15),
        "`0`",
        "For `\"nue\"`: the most data lanes that it uses; 0: all that the links have. OpenSM's default is 1.",
    ),
    key(
        "use_ucast_cache",
        Flag,
        "`false`",
        "Whether paths stay as they are while [hosts or leaf switches are away](subnet-manager.md#hosts-that-boot).",
    ),
    key(
        "lfts_file",
        Other("path"),
        "none",
        "For `\"file\"`: [forwarding tables](routing-programs.md) in the form of OpenSM's `opensm-lfts.dump` and of `dump_lfts.sh`.",
    ),
    key(
        "lid_matrix_file",
        Other("path"),
        "none",
        "For `\"file\"` without `lfts_file`: [hops between switches](routing-programs.md#hops-in-a-file) in the form of OpenSM's \
         `opensm-lid-matrix.dump`.",
    ),
    key(
        "guid_routing_order_file",
        Other("path"),
        "none",
        "For `\"minhop\"` and `\"updn\"`: port GUIDs, one at the beginning of each line, whose LIDs are routed first, in this order.",
    ),
    key(
        "routing_program",
        Other("list of texts"),
        "none",
        "For `\"external\"`: [a program that computes forwarding tables](routing-programs.md), and its arguments.",
    ),
    key(
        "routing_timeout",
        Integer(1..=300),
        "`10`",
        "Seconds after which the program is killed.",
    ),
    key(
        "roots",
        Other("list of GUIDs"),
        "found",
        "For `\"updn\"` and fat-trees: the switches that are roots, as in `[\"0002:c903:0100:0000\"]`. Without them the manager finds the \
         roots of `\"updn\"` as OpenSM does (switches with the same distance to nearly all adapters, or else the switch in the middle) and \
         takes the levels of a fat-tree from the distance to adapters.",
    ),
    key(
        "root_guid_file",
        Other("path"),
        "none",
        "As `roots`, in a file in OpenSM's format, as the next two: a GUID at the beginning of each line. Acts with `roots` if both are \
         there.",
    ),
    key(
        "cn_guid_file",
        Other("path"),
        "none",
        "For [fat-trees with adapters at spines](subnet-manager.md#adapters-at-spines): port GUIDs of the compute nodes. Without this \
         key, all adapters but those of `io_guid_file`.",
    ),
    key(
        "io_guid_file",
        Other("path"),
        "none",
        "Port GUIDs of adapters that are no compute nodes. Acts where `cn_guid_file` does not name the same.",
    ),
    key(
        "partitions_file",
        Other("path"),
        "none",
        "File in the format of OpenSM's `partitions.conf`. It decides the P_Key tables of all ports except VFs with `pkeys`. A name of a \
         VF may stand for a port GUID. Mistakes that OpenSM ignores are errors. Multicast groups of the file exist from the start.",
    ),
    key(
        "qos_policy_file",
        Other("path"),
        "none",
        "File in the format of OpenSM's `qos-policy.conf`: [service levels and limits of paths](subnet-manager.md#quality-of-service-by-request). \
         OpenSM reads it with `qos TRUE` alone; here it acts once it is named.",
    ),
    key(
        "congestion_control_file",
        Other("path"),
        "none",
        "File with the keys `cc_*` of OpenSM's configuration file: [congestion control](links.md#congestion-control) of all switches and adapters.",
    ),
    key(
        "enforce_partitions",
        Flag,
        "`false`",
        "Whether switches also check P_Keys in both directions, at ports with an adapter. Adapters always do.",
    ),
    key(
        "cluster_lanes",
        Flag,
        "`false`",
        "Whether clusters have [service levels and lanes of their own](links.md#lanes-of-clusters), and shares of links.",
    ),
    key(
        "state_dir",
        Other("path"),
        "none",
        "Directory of the file `guid2lid`, in OpenSM's format, with the LIDs of ports; each of several subnets has a directory of its \
         name there. Without this key every start assigns LIDs anew.",
    ),
    key(
        "qos_max_vls",
        OneOf(&LANES),
        "the links' maximum",
        "Maximum of data lanes of a link. This key and the next four are OpenSM's options of these names.",
    ),
    key(
        "qos_sl2vl",
        OF_LEVELS,
        "not set",
        "Lane of each service level, in every port; 15 drops.",
    ),
    key(
        "qos_vlarb_high",
        WEIGHTS,
        "not set",
        "High-priority arbitration table: lanes with weights in units of 64 bytes, as in `\"0:4,1:64\"`. If only some of the three \
         arbitration keys are there, the others are `\"0:4\"`, `\"0:0,1:4\"` and 0.",
    ),
    key(
        "qos_vlarb_low",
        WEIGHTS,
        "not set",
        "Low-priority arbitration table.",
    ),
    key(
        "qos_high_limit",
        Integer(0..=255),
        "not set",
        "Data that lanes of the high-priority table may send first, in units of 4096 bytes; 0: one packet, 255: no limit.",
    ),
    key("qos_ca_max_vls", OneOf(&LANES), AS_ALL, ADAPTERS),
    key("qos_ca_sl2vl", OF_LEVELS, AS_ALL, ADAPTERS),
    key("qos_ca_vlarb_high", WEIGHTS, AS_ALL, ADAPTERS),
    key("qos_ca_vlarb_low", WEIGHTS, AS_ALL, ADAPTERS),
    key("qos_ca_high_limit", Integer(0..=255), AS_ALL, ADAPTERS),
    key("qos_sw0_max_vls", OneOf(&LANES), AS_ALL, SWITCHES),
    key("qos_sw0_sl2vl", OF_LEVELS, AS_ALL, SWITCHES),
    key("qos_sw0_vlarb_high", WEIGHTS, AS_ALL, SWITCHES),
    key("qos_sw0_vlarb_low", WEIGHTS, AS_ALL, SWITCHES),
    key("qos_sw0_high_limit", Integer(0..=255), AS_ALL, SWITCHES),
    key("qos_swe_max_vls", OneOf(&LANES), AS_ALL, CABLES),
    key("qos_swe_sl2vl", OF_LEVELS, AS_ALL, CABLES),
    key("qos_swe_vlarb_high", WEIGHTS, AS_ALL, CABLES),
    key("qos_swe_vlarb_low", WEIGHTS, AS_ALL, CABLES),
    key("qos_swe_high_limit", Integer(0..=255), AS_ALL, CABLES),
    key("qos_rtr_max_vls", OneOf(&LANES), AS_ALL, ROUTERS),
    key("qos_rtr_sl2vl", OF_LEVELS, AS_ALL, ROUTERS),
    key("qos_rtr_vlarb_high", WEIGHTS, AS_ALL, ROUTERS),
    key("qos_rtr_vlarb_low", WEIGHTS, AS_ALL, ROUTERS),
    key("qos_rtr_high_limit", Integer(0..=255), AS_ALL, ROUTERS),
    key(
        "m_key",
        Other("`\"none\"`, `\"per-node\"`, `\"0x…\"`"),
        "`\"none\"`",
        "Management keys: with them, only the subnet manager can set a port. `\"per-node\"`: each node gets a random key at each start. \
         A number is the key of all nodes. Keys are not stored, since the nodes end with the daemon.",
    ),
    key(
        "m_key_protect",
        Integer(0..=3),
        "`2`",
        "Protection of a port with a key: 0 and 1 against writing, 2 and 3 also against reading. At 0 the key itself can be read.",
    ),
    key(
        "m_key_lease",
        Integer(0..=65_535),
        "`60`",
        "Seconds from the first packet with a wrong key until the port falls back to level 0, unless its manager answers. Another manager \
         can then take over. 0: never.",
    ),
    key(
        "rebalance_threshold",
        Integer(101..=10_000),
        "off",
        "Percentage at which [migrations cause new paths](subnet-manager.md#paths-after-migrations).",
    ),
    key(
        "path_caching",
        Flag,
        "`false`",
        "Whether answers to path queries have the flag of *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets* (bit 353 of the \
         PathRecord, reserved by the specification): a client that knows the flag may cache them. Stock clients ignore it; `ibacm` \
         [caches with and without it](../../benches/HISTORY.md#what-a-client-notices).",
    ),
];

/// Keys of `subnet`.
pub static SUBNET: &[Key] = &[
    key("name", Other("name"), "required", "Unique among subnets."),
    key(
        "prefix",
        Other("16 hexadecimal digits"),
        "required",
        "Upper half of every GID of the subnet, different in each: site-local (`fec0:…`) or assigned to you. The default prefix \
         `fe80:0000:0000:0000` is link-local, and no router forwards packets to such GIDs.",
    ),
    key(
        "sm_switch",
        Other("name"),
        "its first with a hypervisor",
        "Switch of its subnet manager's host.",
    ),
];

/// Keys of `switch`.
pub static SWITCH: &[Key] = &[
    key(
        "name",
        Other("name"),
        "required",
        "Unique among switches. The GUID derives from the name.",
    ),
    key(
        "subnet",
        Other("name"),
        "the first",
        "Its subnet, if there are [several](#several-subnets).",
    ),
    key(
        "extended_lids",
        Flag,
        "`true`",
        "With `fabric.extended_lids`: whether the switch supports [LIDs of 18 bits](virtual-clusters.md#lids-of-18-bits).",
    ),
];

/// Keys of `link`.
pub static LINK: &[Key] = &[
    key("from", Other("name"), "required", "One switch."),
    key("to", Other("name"), "required", "The other switch."),
    key("count", Integer(1..=127), "`1`", "Number of cables."),
];

/// Keys of `router`.
pub static ROUTER: &[Key] = &[
    key(
        "name",
        Other("name"),
        "required",
        "Unique among routers. The GUIDs derive from the name.",
    ),
    key(
        "switches",
        Other("list of names"),
        "required",
        "Switches at its ports from 1 on: one of each subnet that it joins, two at least.",
    ),
];
