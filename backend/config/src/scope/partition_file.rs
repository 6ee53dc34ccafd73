//! Options of the file of partitions.

use super::{Elsewhere, Scope, Verdict, When, everywhere, partly, read};

/// Every option of the file that `sm.partitions_file` names, with the embedded subnet manager.
pub const PARTITION_FILE: &[Scope] = &[
    everywhere("NAME=P_KEY"),
    everywhere("ipoib"),
    partly(
        "mtu=",
        "IPoIB's group, and groups without their own",
        &[read("in a line `mgid=` of an IP group")],
    ),
    partly(
        "rate=",
        "IPoIB's group, and groups without their own",
        &[read("in a line `mgid=` of an IP group")],
    ),
    partly(
        "sl=",
        "groups, and paths (PathRecord, MultiPathRecord), with or without the keys `qos_…`",
        &[read(
            "other than 0: with `sm.routing` `\"dfsssp\"`, `\"lash\"`, `\"nue\"`, `\"dor\"`, `\"dragonfly\"` or, 8 excepted, `\"torus-2QoS\"`, which choose levels; two values for a partition",
        )],
    ),
    everywhere("scope="),
    everywhere("Q_Key="),
    everywhere("TClass="),
    everywhere("FlowLabel="),
    everywhere("defmember="),
    everywhere("indx0"),
    everywhere("mgid="),
    everywhere("ALL, ALL_CAS, ALL_SWITCHES, ALL_ROUTERS, SELF"),
    partly(
        "a port by GUID",
        "ports of the subnet",
        &[Elsewhere {
            when: When::Read("for a GUID that no port has"),
            verdict: Verdict::Warned,
            why: "",
            remedy: "",
        }],
    ),
    partly(
        "a VF by name",
        "VFs without `device`",
        &[read("for a name that no VF has")],
    ),
];
