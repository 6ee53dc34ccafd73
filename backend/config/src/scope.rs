//! The places where each key acts. A key is refused where it cannot act, or a warning says that it does not: `SCOPES` is the table
//! of both, and `docs/users/where-settings-act.md` shows it.

pub mod partition_file;

use toml::de::DeValue;

use super::document::{Entry, Section};
use super::{AddressModel, Bandwidth, Config, KeyChoice, ManagerPlace, RoutingChoice};

/// The places where a key acts, and the verdict elsewhere.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// The key with its tables, or an option of the partition file.
    pub key: &'static str,
    /// The value that changes nothing; empty where there is none.
    pub default: &'static str,
    /// The places where it acts.
    pub acts: &'static str,
    /// Verdicts for the others.
    pub elsewhere: &'static [Elsewhere],
}

/// A place where a key does not act.
#[derive(Debug, Clone, Copy)]
pub struct Elsewhere {
    when: When,
    verdict: Verdict,
    why: &'static str,
    remedy: &'static str,
}

/// Verdict on a key that does not act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The configuration is wrong.
    Refused,
    /// A warning, in `config check`, in the log and in `status`.
    Warned,
}

/// Circumstances in which a key does not act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// The subnet manager is none of ours.
    External,
    /// The engine computes paths without roots.
    NoRoots,
    /// The engine is none for fat-trees.
    NoTree,
    /// The engine has an order of its own.
    NoOrder,
    /// Another engine computes the paths.
    Engine(RoutingChoice),
    /// The number of LIDs does not depend on paths.
    OnePath,
    /// There are no management keys.
    NoManagementKey,
    /// Links have no bandwidth.
    Unlimited,
    /// VFs are virtual ports, and the subnet manager is none of ours.
    VirtualPortsElsewhere,
    /// No VF shares a LID.
    NothingShared,
    /// All VFs share LIDs.
    AllShared,
    /// No LIDs of 18 bits.
    ShortLids,
    /// No VM has a place in the plan of the host.
    NothingPlanned,
    /// The table lacks this key.
    Without(&'static str),
    /// Found where the key is read.
    Read(&'static str),
}

impl When {
    fn holds(self, config: &Config) -> bool {
        let manager = &config.manager;
        match self {
            // That it does not manage several subnets is told once.
            Self::External => manager.place == ManagerPlace::External && config.subnets.len() < 2,
            Self::NoRoots => {
                let engine = manager.routing;
                let is_ranked = engine == RoutingChoice::UpDown || engine.is_tree();
                !is_ranked && !manager.multipath.is_on()
            }
            Self::OnePath => !manager.multipath.is_on(),
            Self::NoTree => !manager.routing.is_tree(),
            Self::NoOrder => !matches!(
                manager.routing,
                RoutingChoice::MinHop | RoutingChoice::UpDown | RoutingChoice::File
            ),
            Self::Engine(engine) => manager.routing != engine,
            Self::NoManagementKey => manager.m_key == KeyChoice::None,
            Self::Unlimited => config.fabric.bandwidth == Bandwidth::Unlimited,
            Self::VirtualPortsElsewhere => {
                manager.place == ManagerPlace::External
                    && config.fabric.model == AddressModel::Virtualized
            }
            Self::NothingShared => !config.fabric.model.has_shared_ports(),
            Self::AllShared => !config.fabric.model.has_vswitch(),
            Self::ShortLids => !config.fabric.extended_lids,
            Self::NothingPlanned => config.vms().all(|vm| !vm.needs.are_planned()),
            Self::Without(_) | Self::Read(_) => false,
        }
    }

    fn text(self) -> String {
        match self {
            Self::External => "with `sm.manager = \"external\"`".to_owned(),
            Self::NoRoots => format!("{}, `\"updn\"`, without `sm.lids`", Self::NoTree.text()),
            Self::NoTree => {
                "with another `sm.routing` than `\"ftree\"`, `\"vswitch-ftree\"`".to_owned()
            }
            Self::NoOrder => {
                "with another `sm.routing` than `\"minhop\"`, `\"updn\"`, `\"file\"`".to_owned()
            }
            Self::Engine(engine) => {
                format!("with another `sm.routing` than `\"{}\"`", engine.name())
            }
            Self::OnePath => "with `sm.lids = \"port\"`".to_owned(),
            Self::NoManagementKey => "with `sm.m_key = \"none\"`".to_owned(),
            Self::Unlimited => "without `fabric.bandwidth = \"model\"`".to_owned(),
            Self::VirtualPortsElsewhere => {
                "`\"virtualized\"`: with `sm.manager = \"external\"`".to_owned()
            }
            Self::NothingShared => "if no VF shares a LID".to_owned(),
            Self::AllShared => {
                "with `fabric.model = \"shared-port\"` or `\"virtualized\"`".to_owned()
            }
            Self::ShortLids => "without `fabric.extended_lids`".to_owned(),
            Self::NothingPlanned => "if no VF or port has `processors` or `background`".to_owned(),
            Self::Without(key) => format!("without `{key}`"),
            Self::Read(text) => text.to_owned(),
        }
    }
}

impl Elsewhere {
    /// The table's words for it.
    #[must_use]
    pub fn text(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Refused => "refused",
            Verdict::Warned => "a warning",
        };
        format!("{verdict} {}", self.when.text())
    }

    fn apply<T>(&self, entry: &Entry<'_, T>) {
        match self.verdict {
            Verdict::Refused => entry.reject(self.why, self.remedy),
            Verdict::Warned => entry.warn(self.why, self.remedy),
        }
    }
}

/// Refuses keys that do not act in this configuration, or warns of them.
pub(super) fn check(root: &Section<'_>, config: &Config) {
    for scope in SCOPES {
        for elsewhere in scope.elsewhere {
            let entries = match (elsewhere.when, scope.key.rsplit_once('.')) {
                (When::Without(other), Some((table, key))) => {
                    let mut tables = root.tables(table);
                    tables.retain(|table| table.value(other).is_none());
                    tables.iter().filter_map(|table| table.value(key)).collect()
                }
                (when, _) if when.holds(config) => root.at(scope.key),
                _ => continue,
            };
            for entry in entries {
                if value(entry.value) != scope.default {
                    elsewhere.apply(&entry);
                }
            }
        }
    }
}

/// A value as the table has it.
fn value(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Integer(number) => number.to_string(),
        _ => String::from("a list or a table"),
    }
}

const fn scope(
    key: &'static str,
    default: &'static str,
    acts: &'static str,
    elsewhere: &'static [Elsewhere],
) -> Scope {
    Scope {
        key,
        default,
        acts,
        elsewhere,
    }
}

const fn everywhere(key: &'static str) -> Scope {
    scope(key, "", "everywhere", &[])
}

/// A key that its reader refuses in these places.
const fn partly(key: &'static str, acts: &'static str, elsewhere: &'static [Elsewhere]) -> Scope {
    scope(key, "", acts, elsewhere)
}

const fn read(text: &'static str) -> Elsewhere {
    Elsewhere {
        when: When::Read(text),
        verdict: Verdict::Refused,
        why: "",
        remedy: "",
    }
}

const fn refused(when: When, why: &'static str, remedy: &'static str) -> Elsewhere {
    Elsewhere {
        when,
        verdict: Verdict::Refused,
        why,
        remedy,
    }
}

const fn warned(when: When, why: &'static str, remedy: &'static str) -> Elsewhere {
    Elsewhere {
        when,
        verdict: Verdict::Warned,
        why,
        remedy,
    }
}

const EMBEDDED: &str = "with the embedded subnet manager";
const MANAGER: &str = "an external subnet manager does not know this setting";

/// A key of the embedded manager alone; `remedy` says what to set at the other one.
macro_rules! manager {
    ($key:literal, $default:literal, $remedy:literal $(, $elsewhere:expr)*) => {
        scope(
            $key,
            $default,
            EMBEDDED,
            &[refused(When::External, MANAGER, concat!("remove the key; ", $remedy)) $(, $elsewhere)*],
        )
    };
}

/// A key of the embedded manager that OpenSM has by the same name.
macro_rules! of_kind {
    ($key:literal $(, $elsewhere:expr)*) => {
        manager!($key, "", "OpenSM's option has the same name" $(, $elsewhere)*)
    };
}

const NO_BANDWIDTH: Elsewhere = warned(
    When::Unlimited,
    "links have no bandwidth, so that no packet waits for its turn in a table",
    "write fabric.bandwidth = \"model\", or remove the key",
);
const NO_ROOTS: Elsewhere = warned(
    When::NoRoots,
    "only up*/down*, fat-tree routing and sm.lids have roots",
    "write sm.routing = \"updn\" or \"ftree\", or remove the key",
);
const NO_TREE: Elsewhere = warned(
    When::NoTree,
    "only fat-tree routing tells compute nodes from others",
    "write sm.routing = \"ftree\", or remove the key",
);
const NO_PROGRAM: Elsewhere = warned(
    When::Engine(RoutingChoice::External),
    "only the engine `external` starts a program",
    "write sm.routing = \"external\", or remove the key",
);
const NO_KEY: Elsewhere = warned(
    When::NoManagementKey,
    "there are no management keys",
    "set sm.m_key, or remove the key",
);
const NOT_PLANNED: Elsewhere = warned(
    When::NothingPlanned,
    "the plan of the host has no VM",
    "add `processors` or `background` to a VF or port, or remove the key",
);
const FULL_VIEW: &str = "with `view = \"full\"`";
const MANAGED: Elsewhere = read("with another `view`");
const SUBNETS: Elsewhere = read("with `[[subnet]]`");
const FILE: Elsewhere = read("with `fabric.topology`");
const SHARED_LID: Elsewhere = read("if the VF shares a LID");
const DEVICE: Elsewhere = read("with `device`");

/// Every key, and every option of the partition file.
pub const SCOPES: &[Scope] = &[
    everywhere("runtime_dir"),
    everywhere("log"),
    everywhere("socket_mode"),
    everywhere("sandbox"),
    everywhere("engine.cpu"),
    everywhere("engine.threads"),
    partly("engine.doorbells", "VFs without `device`", &[]),
    partly("engine.object_memory", "VFs without `device`", &[]),
    everywhere("host.kernel_processors"),
    everywhere("host.reserved_memory"),
    scope("host.huge_pages", "none", "VMs in the plan", &[NOT_PLANNED]),
    partly("host.io_threads", "VMs in the plan", &[NOT_PLANNED]),
    partly(
        "fabric.switch",
        "if there is one switch",
        &[read("with `[[switch]]`"), FILE],
    ),
    partly(
        "fabric.topology",
        "one subnet",
        &[read(
            "with `[[switch]]`, `[[link]]`, `[[subnet]]`, `[[router]]`, `fabric.switch` or `sm.switch`",
        )],
    ),
    partly(
        "fabric.model",
        "everywhere",
        &[
            read(
                "`\"vswitch-dynamic\"`: with `sm.manager = \"external\"`; shared LIDs: with several subnets",
            ),
            warned(
                When::VirtualPortsElsewhere,
                "OpenSM does not know virtual ports, and leaves VFs Down",
                "have `ibvswitch-sm` or NVIDIA's subnet manager manage the subnet, or write \"shared-port\"",
            ),
        ],
    ),
    scope(
        "fabric.grh_required",
        "true",
        "VFs that share a LID",
        &[warned(
            When::NothingShared,
            "no VF shares a LID, and others need no global route",
            "remove the key, or write another fabric.model",
        )],
    ),
    everywhere("fabric.strict"),
    partly(
        "fabric.extended_lids",
        "with `fabric.model = \"vswitch-dynamic\"`",
        &[read(
            "with another `fabric.model`, `sm.manager = \"external\"`, `sm.lmc` or several subnets",
        )],
    ),
    scope(
        "fabric.subnet_prefix",
        "fe80:0000:0000:0000",
        EMBEDDED,
        &[
            refused(
                When::External,
                "an external subnet manager sets the prefix",
                "remove the key; OpenSM's option is `subnet_prefix`",
            ),
            SUBNETS,
        ],
    ),
    manager!(
        "fabric.mtu",
        "4096",
        "OpenSM takes the ports' own 4096 bytes"
    ),
    partly(
        "fabric.link_width",
        "cables that `fabric.topology` does not describe",
        &[],
    ),
    partly(
        "fabric.link_speed",
        "cables that `fabric.topology` does not describe",
        &[],
    ),
    partly(
        "fabric.bandwidth",
        "data of VFs without `device`, and of ports",
        &[],
    ),
    everywhere("sm.manager"),
    partly("sm.switch", "one subnet", &[FILE, SUBNETS]),
    partly("sm.host", "with `fabric.topology`", &[read("without it")]),
    manager!("sm.lid", "1", "OpenSM keeps LIDs in `guid2lid`"),
    manager!(
        "sm.lmc",
        "0",
        "OpenSM's option is `lmc`",
        read("with `fabric.extended_lids`")
    ),
    manager!(
        "sm.lids",
        "port",
        "OpenSM has no such option",
        read(
            "with another `sm.routing` than `\"minhop\"`, `sm.lmc`, `sm.rebalance_threshold` or `fabric.extended_lids`"
        )
    ),
    manager!(
        "sm.paths",
        "shortest-widest",
        "OpenSM has no such option",
        warned(
            When::OnePath,
            "the routing engine computes the paths",
            "write sm.lids = \"color\", or remove the key",
        )
    ),
    manager!(
        "sm.sweep_interval",
        "10",
        "OpenSM's option is `sweep_interval`"
    ),
    manager!("sm.priority", "0", "OpenSM's option is `sm_priority`"),
    manager!(
        "sm.routing",
        "minhop",
        "OpenSM's option is `routing_engine`"
    ),
    manager!(
        "sm.nue_max_num_vls",
        "0",
        "OpenSM's option has the same name",
        warned(
            When::Engine(RoutingChoice::Nue),
            "only the engine `nue` has this limit",
            "write sm.routing = \"nue\", or remove the key",
        )
    ),
    manager!(
        "sm.use_ucast_cache",
        "false",
        "OpenSM's option has the same name"
    ),
    manager!(
        "sm.lfts_file",
        "",
        "OpenSM's option has the same name",
        warned(
            When::Engine(RoutingChoice::File),
            "only the engine `file` has tables from a file",
            "write sm.routing = \"file\", or remove the key",
        )
    ),
    manager!(
        "sm.lid_matrix_file",
        "",
        "OpenSM's option has the same name",
        warned(
            When::Engine(RoutingChoice::File),
            "only the engine `file` has hops from a file",
            "write sm.routing = \"file\", or remove the key",
        )
    ),
    manager!(
        "sm.guid_routing_order_file",
        "",
        "OpenSM's option has the same name",
        warned(
            When::NoOrder,
            "only min-hop and up*/down* routing have an order of ports",
            "write sm.routing = \"minhop\" or \"updn\", or remove the key",
        )
    ),
    manager!(
        "sm.routing_program",
        "",
        "OpenSM has no such option",
        NO_PROGRAM
    ),
    manager!(
        "sm.routing_timeout",
        "10",
        "OpenSM has no such option",
        NO_PROGRAM
    ),
    manager!(
        "sm.roots",
        "",
        "OpenSM's option is `root_guid_file`",
        NO_ROOTS
    ),
    manager!(
        "sm.root_guid_file",
        "",
        "OpenSM's option has the same name",
        NO_ROOTS
    ),
    manager!(
        "sm.cn_guid_file",
        "",
        "OpenSM's option has the same name",
        NO_TREE
    ),
    manager!(
        "sm.io_guid_file",
        "",
        "OpenSM's option has the same name",
        NO_TREE
    ),
    manager!(
        "sm.partitions_file",
        "",
        "OpenSM's option is `partition_config_file`"
    ),
    of_kind!("sm.qos_policy_file"),
    manager!(
        "sm.congestion_control_file",
        "",
        "OpenSM has its keys itself"
    ),
    manager!(
        "sm.enforce_partitions",
        "false",
        "OpenSM's option is `part_enforce`"
    ),
    manager!("sm.cluster_lanes", "false", "OpenSM has no clusters"),
    manager!("sm.state_dir", "", "OpenSM keeps LIDs in OSM_CACHE_DIR"),
    of_kind!("sm.qos_max_vls"),
    of_kind!("sm.qos_sl2vl"),
    manager!(
        "sm.qos_vlarb_high",
        "",
        "OpenSM's option has the same name",
        NO_BANDWIDTH
    ),
    manager!(
        "sm.qos_vlarb_low",
        "",
        "OpenSM's option has the same name",
        NO_BANDWIDTH
    ),
    manager!(
        "sm.qos_high_limit",
        "",
        "OpenSM's option has the same name",
        NO_BANDWIDTH
    ),
    of_kind!("sm.qos_ca_max_vls"),
    of_kind!("sm.qos_ca_sl2vl"),
    of_kind!("sm.qos_ca_vlarb_high", NO_BANDWIDTH),
    of_kind!("sm.qos_ca_vlarb_low", NO_BANDWIDTH),
    of_kind!("sm.qos_ca_high_limit", NO_BANDWIDTH),
    of_kind!("sm.qos_sw0_max_vls"),
    of_kind!("sm.qos_sw0_sl2vl"),
    of_kind!("sm.qos_sw0_vlarb_high", NO_BANDWIDTH),
    of_kind!("sm.qos_sw0_vlarb_low", NO_BANDWIDTH),
    of_kind!("sm.qos_sw0_high_limit", NO_BANDWIDTH),
    of_kind!("sm.qos_swe_max_vls"),
    of_kind!("sm.qos_swe_sl2vl"),
    of_kind!("sm.qos_swe_vlarb_high", NO_BANDWIDTH),
    of_kind!("sm.qos_swe_vlarb_low", NO_BANDWIDTH),
    of_kind!("sm.qos_swe_high_limit", NO_BANDWIDTH),
    of_kind!("sm.qos_rtr_max_vls"),
    of_kind!("sm.qos_rtr_sl2vl"),
    of_kind!("sm.qos_rtr_vlarb_high", NO_BANDWIDTH),
    of_kind!("sm.qos_rtr_vlarb_low", NO_BANDWIDTH),
    of_kind!("sm.qos_rtr_high_limit", NO_BANDWIDTH),
    manager!("sm.m_key", "none", "OpenSM's option is `m_key`"),
    manager!(
        "sm.m_key_protect",
        "2",
        "OpenSM's option is `m_key_protection_level`",
        NO_KEY
    ),
    manager!(
        "sm.m_key_lease",
        "60",
        "OpenSM's option is `m_key_lease_period`",
        NO_KEY
    ),
    manager!(
        "sm.rebalance_threshold",
        "",
        "OpenSM has no such option",
        warned(
            When::AllShared,
            "VMs that share LIDs move without new paths",
            "remove the key, or write another fabric.model",
        )
    ),
    manager!("sm.path_caching", "false", "OpenSM has no such option"),
    everywhere("external.socket"),
    everywhere("external.partitions_file"),
    partly(
        "partitions",
        "`pkeys` and `pkey` that name them",
        &[read(
            "with `sm.manager = \"external\"` if nothing that acts names them",
        )],
    ),
    partly("cluster", "one subnet", &[SUBNETS]),
    everywhere("cluster.name"),
    everywhere("cluster.sm_lid"),
    partly(
        "cluster.view",
        "VFs with `smp = \"own-port\"`",
        &[read(
            "`\"mirror\"`, `\"full\"`: with `fabric.extended_lids`",
        )],
    ),
    partly("cluster.full_mode_lease_s", FULL_VIEW, &[MANAGED]),
    partly("cluster.full_mode_end", FULL_VIEW, &[MANAGED]),
    partly("cluster.pkeys", FULL_VIEW, &[MANAGED]),
    partly(
        "cluster.share",
        "with `sm.cluster_lanes`",
        &[read("without it")],
    ),
    everywhere("cluster.exclusive_switches"),
    partly(
        "cluster.elsewhere",
        "clusters of VFs with `device`",
        &[read("with other VFs in the cluster")],
    ),
    everywhere("cluster.elsewhere.vlid"),
    everywhere("cluster.elsewhere.lid"),
    everywhere("cluster.elsewhere.guid"),
    partly(
        "subnet",
        "with the embedded subnet manager",
        &[
            read("several: with `sm.manager = \"external\"` or shared LIDs"),
            FILE,
        ],
    ),
    everywhere("subnet.name"),
    everywhere("subnet.prefix"),
    everywhere("subnet.sm_switch"),
    partly("switch", "everywhere", &[FILE]),
    everywhere("switch.name"),
    partly("switch.subnet", "with `[[subnet]]`", &[read("without it")]),
    scope(
        "switch.extended_lids",
        "true",
        "with `fabric.extended_lids`",
        &[warned(
            When::ShortLids,
            "no LID has 18 bits",
            "remove the key, or write fabric.extended_lids = true",
        )],
    ),
    partly("link", "everywhere", &[FILE]),
    everywhere("link.from"),
    everywhere("link.to"),
    everywhere("link.count"),
    partly("router", "with `[[subnet]]`", &[FILE]),
    everywhere("router.name"),
    everywhere("router.switches"),
    everywhere("hypervisor"),
    everywhere("hypervisor.name"),
    everywhere("hypervisor.switch"),
    partly(
        "hypervisor.address",
        "with `fabric.model = \"vswitch-hybrid\"` or `\"virtualized\"`",
        &[read("another value than the model's, with another model")],
    ),
    everywhere("hypervisor.guest_memory"),
    everywhere("hypervisor.processors"),
    everywhere("hypervisor.memory"),
    everywhere("hypervisor.spare_vfs"),
    partly(
        "hypervisor.spare_ports",
        "ports with a LID",
        &[read(
            "with `fabric.model = \"shared-port\"` or `\"virtualized\"`",
        )],
    ),
    everywhere("hypervisor.vf"),
    everywhere("hypervisor.vf.name"),
    everywhere("hypervisor.vf.device"),
    partly(
        "hypervisor.vf.isolation",
        "with `device`",
        &[read("without it")],
    ),
    partly(
        "hypervisor.vf.address",
        "with `fabric.model = \"vswitch-hybrid\"` or `\"virtualized\"`",
        &[
            read("another value than the model's, with another model"),
            DEVICE,
        ],
    ),
    manager!(
        "hypervisor.vf.lid",
        "",
        "write the VF's GUID and LID into OpenSM's `guid2lid`",
        SHARED_LID,
        DEVICE
    ),
    partly("hypervisor.vf.guid", "VFs without `device`", &[DEVICE]),
    partly("hypervisor.vf.node_guid", "VFs without `device`", &[DEVICE]),
    partly(
        "hypervisor.vf.pkeys",
        "with the embedded subnet manager; with `device`; if the VF shares a LID, as far as the port has them",
        &[read(
            "with `sm.manager = \"external\"` and a LID of its own (a warning where `virtual_pkeys` needs them)",
        )],
    ),
    partly("hypervisor.vf.doorbells", "VFs without `device`", &[DEVICE]),
    partly("hypervisor.vf.like", "VFs without `device`", &[DEVICE]),
    partly("hypervisor.vf.ipoib", "VFs without `device`", &[DEVICE]),
    partly(
        "hypervisor.vf.object_memory",
        "VFs without `device`",
        &[DEVICE],
    ),
    everywhere("hypervisor.vf.guest_memory"),
    everywhere("hypervisor.vf.processors"),
    everywhere("hypervisor.vf.background"),
    partly(
        "hypervisor.vf.smp",
        "everywhere",
        &[read("all but `\"deny\"`: if the VF shares a LID")],
    ),
    everywhere("hypervisor.vf.gmp"),
    everywhere("hypervisor.vf.mad_rate"),
    everywhere("hypervisor.vf.mad_burst"),
    everywhere("hypervisor.vf.mad_rates"),
    partly(
        "hypervisor.vf.cluster",
        "one subnet",
        &[read("with `smp = \"fabric\"`")],
    ),
    partly(
        "hypervisor.vf.vlid",
        "with `cluster`",
        &[read("without it")],
    ),
    partly(
        "hypervisor.vf.virtual_pkeys",
        "VFs without `device`",
        &[DEVICE],
    ),
    everywhere("hypervisor.vf.sl"),
    scope(
        "hypervisor.vf.sl_policy",
        "deny",
        "with `sl`",
        &[warned(
            When::Without("sl"),
            "the guest may use all service levels",
            "add `sl`, or remove the key",
        )],
    ),
    everywhere("hypervisor.vf.socket"),
    partly(
        "hypervisor.port",
        "ports with a LID",
        &[read(
            "with `fabric.model = \"shared-port\"` or `\"virtualized\"`",
        )],
    ),
    everywhere("hypervisor.port.name"),
    everywhere("hypervisor.port.kind"),
    manager!(
        "hypervisor.port.lid",
        "",
        "write the port's GUID and LID into OpenSM's `guid2lid`"
    ),
    everywhere("hypervisor.port.guid"),
    everywhere("hypervisor.port.mac"),
    everywhere("hypervisor.port.claims"),
    manager!(
        "hypervisor.port.pkey",
        "default",
        "write the port's GUID into OpenSM's partitions.conf"
    ),
    everywhere("hypervisor.port.guest_memory"),
    everywhere("hypervisor.port.processors"),
    everywhere("hypervisor.port.background"),
    partly("hypervisor.port.cluster", "one subnet", &[]),
    partly(
        "hypervisor.port.vlid",
        "with `cluster`",
        &[read("without it")],
    ),
    everywhere("hypervisor.port.socket"),
];
