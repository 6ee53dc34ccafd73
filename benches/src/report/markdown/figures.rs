//! The figures of docs/performance.md: reader, limit, and text of each.

use std::fmt;

/// The reader of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Runs programs in a VM.
    Guest,
    /// Runs the daemon.
    Operator,
    /// Changes the program.
    Developer,
}

/// The limit of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Limit {
    /// The value may be this or less.
    AtMost(f64),
    /// The value may be this or more.
    AtLeast(f64),
    /// No limit is set: the figure stands beside its reference, which it must have.
    Beside,
}

impl Limit {
    /// Whether a value keeps the limit.
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
            Self::Beside => true,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "≤ {}", super::number(*limit)),
            Self::AtLeast(limit) => write!(f, "≥ {}", super::number(*limit)),
            Self::Beside => Ok(()),
        }
    }
}

/// One row of a table.
#[derive(Debug)]
pub(super) struct Figure {
    /// The table that has it.
    pub(super) reader: Reader,
    /// The name of the result.
    pub(super) name: &'static str,
    /// Its text in the table.
    pub(super) what: &'static str,
    /// Its limit.
    pub(super) limit: Limit,
}

const fn figure(reader: Reader, name: &'static str, what: &'static str, limit: Limit) -> Figure {
    Figure {
        reader,
        name,
        what,
        limit,
    }
}

/// All rows, in their order.
pub(super) const FIGURES: &[Figure] = &[
    figure(
        Reader::Guest,
        "guest_send_2b_us",
        "SEND of 2 bytes, one way",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_write_2b_us",
        "WRITE of 2 bytes, one way",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_read_2b_us",
        "READ of 2 bytes",
        Limit::Beside,
    ),
    figure(Reader::Guest, "guest_atomic_8b_us", "atomic", Limit::Beside),
    figure(
        Reader::Guest,
        "guest_send_64k",
        "SEND of 64 KiB",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_write_64k",
        "WRITE of 64 KiB",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_read_64k",
        "READ of 64 KiB",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_write_lat_over_shared_memory",
        "WRITE over a write to shared memory",
        Limit::AtMost(3.0),
    ),
    figure(
        Reader::Guest,
        "guest_write_bw_over_shared_memory",
        "WRITE of 64 KiB over copies to shared memory",
        Limit::AtLeast(0.8),
    ),
    figure(
        Reader::Guest,
        "guest_poll_send_2b_us",
        "SEND of 2 bytes, `poll`",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_poll_write_2b_us",
        "WRITE of 2 bytes, `poll`",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_poll_read_2b_us",
        "READ of 2 bytes, `poll`",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_poll_write_64k",
        "WRITE of 64 KiB, `poll`",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "guest_poll_write_lat_over_shared_memory",
        "WRITE over a write to shared memory, `poll`",
        Limit::AtMost(3.0),
    ),
    figure(
        Reader::Guest,
        "guest_poll_write_bw_over_shared_memory",
        "WRITE of 64 KiB over copies, `poll`",
        Limit::AtLeast(0.8),
    ),
    figure(
        Reader::Guest,
        "ipoib_tcp_datagram_2044",
        "TCP over IPoIB datagrams, MTU 2044",
        Limit::AtLeast(507.0),
    ),
    figure(
        Reader::Guest,
        "ipoib_tcp_datagram_4092",
        "TCP over IPoIB datagrams, MTU 4092",
        Limit::AtLeast(507.0),
    ),
    figure(
        Reader::Guest,
        "ipoib_tcp_connected",
        "TCP over connected IPoIB",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "vhost_tcp_over_stream",
        "TCP between virtio-net cards",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "vhost_rr_over_stream",
        "pings between virtio-net cards",
        Limit::Beside,
    ),
    figure(
        Reader::Guest,
        "outage_same_address_s",
        "cold migration: from detach to a client's next connection",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "daemon_rss_mib",
        "memory of a daemon with two VFs",
        Limit::AtMost(40.0),
    ),
    figure(
        Reader::Operator,
        "daemon_worst_mib_per_vf",
        "memory that one guest can take",
        Limit::AtMost(64.0),
    ),
    figure(
        Reader::Operator,
        "register_1g_ms",
        "registration of 1 GiB",
        Limit::AtMost(50.0),
    ),
    figure(
        Reader::Operator,
        "idle_qp_cost",
        "latency beside 10 000 idle queue pairs over 10",
        Limit::AtMost(1.15),
    ),
    figure(
        Reader::Operator,
        "opensm_648_over_ibsim",
        "OpenSM's sweep of 648 nodes, over ibsim's",
        Limit::AtMost(1.0),
    ),
    figure(
        Reader::Operator,
        "opensm_5832_over_ibsim",
        "OpenSM's sweep of 5832 nodes, over ibsim's",
        Limit::AtMost(1.0),
    ),
    figure(
        Reader::Operator,
        "sm_648_over_opensm",
        "embedded manager's cold start, 648 nodes, over OpenSM's",
        Limit::AtMost(0.1),
    ),
    figure(
        Reader::Operator,
        "sm_light_5832_ms",
        "light sweep of 5832 nodes",
        Limit::AtMost(100.0),
    ),
    figure(
        Reader::Operator,
        "sa_rate_over_opensm",
        "path queries answered, over OpenSM's",
        Limit::AtLeast(20.0),
    ),
    figure(
        Reader::Operator,
        "full_5832_smps",
        "packets to reconfigure 5832 nodes",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "migration_5832_max_smps",
        "packets to migrate one address, at most",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "vhost_64b_mpps",
        "Ethernet frames of 64 bytes, port to port",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "vhost_tso_gb_per_s",
        "TCP segments of 61 752 bytes, whole",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "vhost_tso_cut_gb_per_s",
        "the same, cut into datagrams",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "passthrough_write_8b_over_direct",
        "passthrough: 8-byte WRITE over direct",
        Limit::AtMost(1.03),
    ),
    figure(
        Reader::Operator,
        "passthrough_mops_over_direct",
        "passthrough: rate over direct",
        Limit::AtLeast(0.97),
    ),
    figure(
        Reader::Operator,
        "passthrough_command_us",
        "passthrough: a command (limit: direct + 10)",
        Limit::AtMost(43.0),
    ),
    figure(
        Reader::Operator,
        "passthrough_qps_per_s",
        "passthrough: queue pairs created",
        Limit::Beside,
    ),
    figure(
        Reader::Operator,
        "passthrough_exits_per_op",
        "passthrough: daemon's accesses for each WRITE",
        Limit::AtMost(0.0),
    ),
    figure(
        Reader::Operator,
        "passthrough_daemon_wakeups_per_1e5",
        "passthrough: wake-ups in 100 000 WRITEs",
        Limit::AtMost(0.0),
    ),
    figure(
        Reader::Developer,
        "write_8b_over_cacheline",
        "8-byte WRITE over a cache line's way",
        Limit::AtMost(6.0),
    ),
    figure(
        Reader::Developer,
        "write_8b_mops",
        "8-byte WRITEs, one queue pair",
        Limit::AtLeast(10.0),
    ),
    figure(
        Reader::Developer,
        "write_8b_over_spsc",
        "the same over a bare ring",
        Limit::AtLeast(0.25),
    ),
    figure(
        Reader::Developer,
        "write_8b_mops_64qp",
        "8-byte WRITEs, 64 queue pairs",
        Limit::AtLeast(15.2),
    ),
    figure(
        Reader::Developer,
        "write_64k_over_memcpy",
        "WRITE of 64 KiB over `memcpy`",
        Limit::AtLeast(0.9),
    ),
    figure(
        Reader::Developer,
        "write_1m_over_memcpy",
        "WRITE of 1 MiB over `memcpy`",
        Limit::AtLeast(0.9),
    ),
    figure(
        Reader::Developer,
        "dirty_log_64k_over_off",
        "64 KiB with the dirty log over without",
        Limit::AtLeast(0.95),
    ),
    figure(
        Reader::Developer,
        "odp_over_pinned",
        "on-demand paging over pinned memory",
        Limit::AtMost(1.05),
    ),
    figure(
        Reader::Developer,
        "dc_over_rc",
        "dynamic connection over RC",
        Limit::AtMost(1.1),
    ),
    figure(
        Reader::Developer,
        "full_mode_over_plain",
        "8-byte WRITE in a cluster in full mode over plain",
        Limit::AtMost(1.02),
    ),
    figure(
        Reader::Developer,
        "tag_matching_over_srq",
        "tag matching over an ordinary queue",
        Limit::AtMost(1.5),
    ),
    figure(
        Reader::Developer,
        "signature_over_plain",
        "T10-DIF over a plain key, 64 KiB",
        Limit::Beside,
    ),
    figure(
        Reader::Developer,
        "route_ftree_11664_s",
        "fat-tree routing, 11 664 nodes",
        Limit::AtMost(1.0),
    ),
    figure(
        Reader::Developer,
        "route_vswitchftree_11664_s",
        "vSwitchFatTree, 11 664 nodes",
        Limit::AtMost(1.0),
    ),
    figure(
        Reader::Developer,
        "route_minhop_11664_s",
        "min-hop, 11 664 nodes",
        Limit::AtMost(2.0),
    ),
    figure(
        Reader::Developer,
        "route_updn_11664_s",
        "up\\*/down\\*, 11 664 nodes",
        Limit::AtMost(2.0),
    ),
    figure(
        Reader::Developer,
        "route_dfsssp_11664_s",
        "DFSSSP, 11 664 nodes",
        Limit::AtMost(20.0),
    ),
    figure(
        Reader::Developer,
        "route_lash_11664_s",
        "LASH, 11 664 nodes",
        Limit::AtMost(60.0),
    ),
    figure(
        Reader::Developer,
        "ftree_over_opensm",
        "fat-tree over OpenSM",
        Limit::AtMost(0.1),
    ),
    figure(
        Reader::Developer,
        "minhop_over_opensm",
        "min-hop over OpenSM",
        Limit::AtMost(0.1),
    ),
    figure(
        Reader::Developer,
        "updn_over_opensm",
        "up\\*/down\\* over OpenSM",
        Limit::AtMost(0.1),
    ),
    figure(
        Reader::Developer,
        "dfsssp_5832_over_opensm",
        "DFSSSP over OpenSM, 5832 nodes",
        Limit::AtMost(0.1),
    ),
    figure(
        Reader::Developer,
        "lash_648_over_opensm",
        "LASH over OpenSM, 648 nodes",
        Limit::AtMost(0.1),
    ),
    figure(
        Reader::Developer,
        "nue_648_over_opensm",
        "Nue over OpenSM, 648 nodes",
        Limit::AtMost(0.033),
    ),
    figure(
        Reader::Developer,
        "ftree_broken_over_opensm",
        "fat-tree over OpenSM, 1 % of cables broken",
        Limit::AtMost(0.033),
    ),
    figure(
        Reader::Developer,
        "ftree_broken_load_over_opensm",
        "its busiest cable's paths over OpenSM's",
        Limit::AtMost(1.0),
    ),
    figure(
        Reader::Developer,
        "mark_972_us",
        "FTreeMinRC marks 972 switches",
        Limit::Beside,
    ),
    figure(
        Reader::Developer,
        "mark_1620_us",
        "FTreeMinRC marks 1620 switches",
        Limit::Beside,
    ),
    figure(
        Reader::Developer,
        "mark_6912_us",
        "FTreeMinRC marks 6912 switches",
        Limit::Beside,
    ),
    figure(
        Reader::Developer,
        "migrate_1620_us",
        "mark and change tables, 1620 switches",
        Limit::AtMost(200.0),
    ),
    figure(
        Reader::Developer,
        "migrate_6912_us",
        "mark and change tables, 6912 switches",
        Limit::AtMost(5000.0),
    ),
    figure(
        Reader::Developer,
        "migrations_per_s_1024",
        "migrations on 1024 nodes",
        Limit::AtLeast(10_000.0),
    ),
    figure(
        Reader::Developer,
        "study_1024_s",
        "21 published simulations of 1024 hypervisors",
        Limit::AtMost(120.0),
    ),
];

/// The attacks of the suite `neighbours`, and their text.
pub(super) const NEIGHBOURS: &[(&str, &str)] = &[
    ("errored", "110 000 queue pairs in error"),
    ("klm", "keys whose stretches have one byte each"),
    ("lossy_klm", "the same over a link that loses packets"),
    ("commands", "commands of 8 MiB, a queue full"),
    ("bulk", "1024 queue pairs with messages of 1 GiB"),
    ("death", "a guest with 110 000 queue pairs dies"),
    ("mads", "management packets to all"),
    ("start", "a VM starts and registers 3 GiB"),
    ("sweep", "the manager routes 5832 nodes"),
    ("managers", "OpenSMs of 100 tenants sweep"),
    ("vhost", "floods at a vhost-user-net port"),
    ("packets", "TCP segments to be cut"),
    ("paging", "requests for pages that are away"),
    ("tags", "127 tags, the last matches"),
    ("signatures", "T10-DIF of 1 GiB"),
    ("scattered_signatures", "the same in pieces of one byte"),
    ("completions", "compressed completions nobody reads"),
    ("ipoib", "chains of eight flow tables"),
    ("passthrough", "commands to a VF that is passed through"),
    ("passthrough_mads", "management packets by such a VF"),
];
