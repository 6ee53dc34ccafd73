//! The keys of each table: values, default and meaning of every key stand here alone.
//!
//! The reader takes known keys and ranges of integers from here, and `docs/users/configuration.md` has its section "Keys"
//! from here.

mod daemon;
mod guest;
mod subnet;

use std::fmt;
use std::ops::RangeInclusive;

pub use daemon::{ENGINE, EXTERNAL, HOST, PARTITIONS, ROOT};
pub use guest::{CLUSTER, ELSEWHERE, GMP, HYPERVISOR, MAD_RATES, PORT, VF};
pub use subnet::{FABRIC, LINK, ROUTER, SM, SUBNET, SWITCH};

/// The highest unicast LID (IBA 4.1.3).
pub const LID_MAX: i64 = 0xbfff;

/// Packets per second, or at one time, that a limit of management packets can name.
pub const MAD_RATE_MAX: i64 = 1_000_000;

/// Numbers of data lanes that a link can have.
pub const LANES: [i64; 5] = [1, 2, 4, 8, 15];

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    /// Name of the key.
    pub name: &'static str,
    /// Values that the key takes.
    pub values: Values,
    /// The default: TOML in backquotes, or words.
    pub default: &'static str,
    /// Meaning, in Markdown, with links from `docs/users`.
    pub meaning: &'static str,
}

/// Values of a key.
#[derive(Debug)]
pub enum Values {
    /// `true` or `false`.
    Flag,
    /// An integer.
    Integer(RangeInclusive<i64>),
    /// An integer, or this word.
    IntegerOr(RangeInclusive<i64>, &'static str),
    /// One of these integers, which are in ascending order.
    OneOf(&'static [i64]),
    /// A unicast LID.
    Lid,
    /// Permission bits.
    Mode,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A value that these words describe.
    Other(&'static str),
    /// A table of its own.
    Table,
    /// Tables of their own.
    Tables,
}

impl Values {
    /// The integers among the values.
    pub fn range(&self) -> Option<RangeInclusive<i64>> {
        match self {
            Self::Integer(range) | Self::IntegerOr(range, _) => Some(range.clone()),
            Self::OneOf(numbers) => Some(*numbers.first()?..=*numbers.last()?),
            Self::Lid => Some(1..=LID_MAX),
            Self::Mode => Some(0..=0o777),
            _ => None,
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("`true`, `false`"),
            Self::Integer(range) => write!(f, "{} to {}", range.start(), range.end()),
            Self::IntegerOr(range, word) => {
                write!(f, "{} to {}, `\"{word}\"`", range.start(), range.end())
            }
            Self::Lid => write!(f, "LID, `0x0001` to `{LID_MAX:#06x}`"),
            Self::OneOf(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
                f.write_str(&numbers.join(", "))
            }
            Self::Mode => f.write_str("octal bits"),
            Self::Word(words) => {
                let words: Vec<String> = words.iter().map(|it| format!("`\"{it}\"`")).collect();
                f.write_str(&words.join(", "))
            }
            Self::Other(words) => f.write_str(words),
            Self::Table => f.write_str("table"),
            Self::Tables => f.write_str("tables"),
        }
    }
}

/// A table of the configuration.
#[derive(Debug)]
pub struct Table {
    /// Path of the table, such as `hypervisor.vf`; empty for the outermost one.
    pub path: &'static str,
    /// Whether there may be several.
    pub is_list: bool,
    /// Meaning, in Markdown.
    pub about: &'static str,
    /// Keys of the table; none where names are free.
    pub keys: &'static [Key],
}

/// All tables.
pub static TABLES: &[Table] = &[
    Table {
        path: "",
        is_list: false,
        about: "",
        keys: ROOT,
    },
    Table {
        path: "engine",
        is_list: false,
        about: "Threads that execute work requests. See [engines](engines.md).",
        keys: ENGINE,
    },
    Table {
        path: "host",
        is_list: false,
        about: "Processors and memory of this host, which [`ibvswitch host plan`](host-plan.md) divides among VMs \
                with `processors` or `background`.",
        keys: HOST,
    },
    Table {
        path: "fabric",
        is_list: false,
        about: "Links and LIDs.",
        keys: FABRIC,
    },
    Table {
        path: "sm",
        is_list: false,
        about: "The subnet manager. See [the embedded subnet manager](subnet-manager.md).",
        keys: SM,
    },
    Table {
        path: "external",
        is_list: false,
        about: "Programs of the host, such as `opensm` and those of infiniband-diags, that reach the subnet through Debian's \
                libumad2sim: see [`ibvswitch external`](commands.md#programs-of-the-host).",
        keys: EXTERNAL,
    },
    Table {
        path: "partitions",
        is_list: false,
        about: "Names of P_Keys, for `pkeys`. Each key is a name; its value is the P_Key without the membership bit, `0x0001` to \
                `0x7ffe`. The partition `default` is always there, with 0x7fff.",
        keys: PARTITIONS,
    },
    Table {
        path: "cluster",
        is_list: true,
        about: "A [virtual cluster](virtual-clusters.md): VMs with a LID space of their own. At most as many as VFs, and none by \
                default.",
        keys: CLUSTER,
    },
    Table {
        path: "cluster.elsewhere",
        is_list: true,
        about: "A VM of the cluster above that has its VF at another daemon.",
        keys: ELSEWHERE,
    },
    Table {
        path: "subnet",
        is_list: true,
        about: "One of [several subnets](#several-subnets), at most 64.",
        keys: SUBNET,
    },
    Table {
        path: "switch",
        is_list: true,
        about: "One of [several switches](#several-switches), at most 1024.",
        keys: SWITCH,
    },
    Table {
        path: "link",
        is_list: true,
        about: "Cables between two switches.",
        keys: LINK,
    },
    Table {
        path: "router",
        is_list: true,
        about: "A router between [several subnets](#several-subnets); at most 64.",
        keys: ROUTER,
    },
    Table {
        path: "hypervisor",
        is_list: true,
        about: "A hypervisor: a vSwitch with VFs behind it. At least one, and as many as the switches have ports: 253 on one switch. \
                VMs of different hypervisors reach each other through the switches.",
        keys: HYPERVISOR,
    },
    Table {
        path: "hypervisor.vf",
        is_list: true,
        about: "One virtual function of the hypervisor above, for one VM.",
        keys: VF,
    },
    Table {
        path: "hypervisor.port",
        is_list: true,
        about: "A port of the hypervisor above, for one VM without an InfiniBand driver: the VM has an Ethernet card, the subnet a port \
                with [IPoIB](guests-without-a-driver.md).",
        keys: PORT,
    },
];

const fn key(
    name: &'static str,
    values: Values,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key {
        name,
        values,
        default,
        meaning,
    }
}

/// The words of a list of words and their meanings.
const fn words<T, const N: usize>(names: &'static [(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut at = 0;
    while at < N {
        words[at] = names[at].0;
        at += 1;
    }
    words
}
