//! The keys of each table. `docs/users/configuration.md` explains every one; a test holds the two
//! together.

pub(super) const ROOT: &[&str] = &[
    "runtime_dir",
    "log",
    "socket_mode",
    "sandbox",
    "engine",
    "fabric",
    "sm",
    "external",
    "partitions",
    "cluster",
    "subnet",
    "switch",
    "link",
    "router",
    "hypervisor",
];
pub(super) const ENGINE: &[&str] = &["cpu", "threads", "doorbells", "object_memory"];
pub(super) const FABRIC: &[&str] = &[
    "switch",
    "topology",
    "model",
    "grh_required",
    "extended_lids",
    "subnet_prefix",
    "mtu",
    "link_width",
    "link_speed",
    "bandwidth",
];
pub(super) const SM: &[&str] = &[
    "manager",
    "switch",
    "host",
    "lid",
    "lmc",
    "sweep_interval",
    "priority",
    "routing",
    "roots",
    "partitions_file",
    "enforce_partitions",
    "state_dir",
    "qos_max_vls",
    "qos_sl2vl",
    "qos_vlarb_high",
    "qos_vlarb_low",
    "qos_high_limit",
    "m_key",
    "m_key_protect",
    "m_key_lease",
    "rebalance_threshold",
    "path_caching",
];
pub(super) const EXTERNAL: &[&str] = &["socket"];
pub(super) const SUBNET: &[&str] = &["name", "prefix", "sm_switch"];
pub(super) const SWITCH: &[&str] = &["name", "subnet", "extended_lids"];
pub(super) const LINK: &[&str] = &["from", "to", "count"];
pub(super) const ROUTER: &[&str] = &["name", "switches"];
/// Partition names are the user's own.
pub(super) const PARTITIONS: &[&str] = &[];
pub(super) const CLUSTER: &[&str] = &["name", "sm_lid", "view", "elsewhere"];
pub(super) const ELSEWHERE: &[&str] = &["vlid", "lid", "guid"];
pub(super) const HYPERVISOR: &[&str] = &[
    "name",
    "switch",
    "address",
    "guest_memory",
    "spare_vfs",
    "spare_ports",
    "vf",
    "port",
];
pub(super) const VF: &[&str] = &[
    "name",
    "device",
    "isolation",
    "address",
    "lid",
    "guid",
    "pkeys",
    "doorbells",
    "like",
    "ipoib",
    "object_memory",
    "guest_memory",
    "smp",
    "gmp",
    "mad_rate",
    "mad_burst",
    "mad_rates",
    "cluster",
    "vlid",
    "virtual_pkeys",
    "sl",
    "sl_policy",
    "socket",
];
pub(super) const PORT: &[&str] = &[
    "name",
    "kind",
    "lid",
    "guid",
    "mac",
    "claims",
    "pkey",
    "guest_memory",
    "cluster",
    "vlid",
    "socket",
];
/// In the table `gmp` of a VF.
pub(super) const GMP: &[&str] = &["allow", "deny"];
/// The classes' names, which are checked as values are.
pub(super) const MAD_RATES: &[&str] = &[];
