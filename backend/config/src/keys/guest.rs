//! Keys of hypervisors, VFs, ports and virtual clusters.

use super::Values::{Flag, Integer, Lid, Other, Tables, Word};
use super::{Key, MAD_RATE_MAX, key, words};
use crate::names::SL_POLICY;
use crate::{
    Address, Doorbells, FullModeEnd, IPOIB, ISOLATION, LIKENESSES, SMP_ACCESS,
    VFS_PER_HYPERVISOR_MAX, View,
};

const VFS_MAX: i64 = VFS_PER_HYPERVISOR_MAX as i64;
/// The most processors of a host.
const PROCESSORS_MAX: i64 = 1 << 16;
pub(super) const SIZE: &str = "`\"1M\"` to `\"64T\"`";

/// Keys of `cluster`.
pub static CLUSTER: &[Key] = &[
    key("name", Other("name"), "required", "Unique among clusters."),
    key(
        "sm_lid",
        Lid,
        "`0xbfff`",
        "LID of the subnet manager, as VMs of the cluster see it.",
    ),
    key(
        "view",
        Word(&words(&View::NAMES)),
        "`\"own-port\"`",
        "Nodes that VMs of the cluster can query (queue pair 0): their own port, or the part of the subnet that \
         [serves the cluster](virtual-clusters.md#views). With `\"full\"` a VM may [manage this part](full-mode.md).",
    ),
    key(
        "full_mode_lease_s",
        Integer(1..=86_400),
        "`60`",
        "Seconds without a packet of a subnet manager in a VM after which [full mode](full-mode.md) ends.",
    ),
    key(
        "full_mode_end",
        Word(&words(&FullModeEnd::NAMES)),
        "`\"drop\"`",
        "Fate of that manager's settings then: dropped, so that the cluster is managed as at first, or kept in force.",
    ),
    key(
        "pkeys",
        Other("list"),
        "`[]`",
        "P_Keys that stand for partitions of the cluster's own, in full mode, at most 32. All VMs of the cluster \
         are full members, and no other cluster has them.",
    ),
    key(
        "share",
        Integer(1..=255),
        "`1`",
        "With `sm.cluster_lanes`: [part of each link](links.md#lanes-of-clusters) that the cluster gets, against those of the other clusters \
         there.",
    ),
    key(
        "exclusive_switches",
        Flag,
        "`false`",
        "Whether [placement](clusters.md#placement) keeps switches with hypervisors of the cluster free of VMs of other clusters.",
    ),
    key(
        "elsewhere",
        Tables,
        "none",
        "VMs of the cluster with VFs at other daemons. All VFs of such a cluster are \
         [passed through](passthrough.md#rights-and-clusters).",
    ),
];

/// Keys of `cluster.elsewhere`.
pub static ELSEWHERE: &[Key] = &[
    key("vlid", Lid, "required", "LID of the VM in the cluster."),
    key("lid", Lid, "required", "LID of its port in the subnet."),
    key("guid", Other("GUID"), "required", "GUID of its port."),
];

/// Keys of `hypervisor`.
pub static HYPERVISOR: &[Key] = &[
    key(
        "name",
        Other("name"),
        "required",
        "Unique among hypervisors.",
    ),
    key(
        "switch",
        Other("name"),
        "a leaf",
        "Switch that the hypervisor is cabled to. Hypervisors without this key go to leaves, evenly: the switches with adapters, or else \
         with the fewest neighbours.",
    ),
    key(
        "address",
        Word(&words(&Address::NAMES)),
        "`\"dedicated\"`; with `\"virtualized\"` `\"shared\"`",
        "With `fabric.model = \"vswitch-hybrid\"` or `\"virtualized\"`: `address` of its VFs without one, and of spare VFs. In a hybrid \
         subnet a hypervisor with a `\"shared\"` VF has a physical function, named `HYPERVISOR-pf`.",
    ),
    key(
        "guest_memory",
        Other(SIZE),
        "[see here](engines.md#memory-of-guests)",
        "`guest_memory` of its VFs without one, and of spare VFs.",
    ),
    key(
        "processors",
        Integer(1..=PROCESSORS_MAX),
        "no limit",
        "Processors for VMs, for the [placement](clusters.md#placement) of clusters.",
    ),
    key(
        "memory",
        Other(SIZE),
        "no limit",
        "Memory for VMs, for the [placement](clusters.md#placement) of clusters: their `guest_memory` together.",
    ),
    key(
        "spare_vfs",
        Integer(0..=VFS_MAX),
        "`0`",
        "Number of VFs without a VM, for VMs that [move](migrate-a-vm.md) here: named `HYPERVISOR-spare1` and so on, each with a socket. \
         A hypervisor has at most 127 VFs and ports, spare ones among them.",
    ),
    key(
        "spare_ports",
        Integer(0..=VFS_MAX),
        "`0`",
        "Number of ports without a VM, for VMs without an InfiniBand driver: named `HYPERVISOR-spare-port1` and so on.",
    ),
    key(
        "vf",
        Tables,
        "none",
        "VFs: tables `[[hypervisor.vf]]` after it.",
    ),
    key(
        "port",
        Tables,
        "none",
        "Ports for VMs without an InfiniBand driver: tables `[[hypervisor.port]]` after it.",
    ),
];

/// Keys of `hypervisor.vf`.
pub static VF: &[Key] = &[
    key(
        "name",
        Other("name"),
        "required",
        "Unique among VFs and ports: in `ibvswitch vf … NAME`, in the node description, and in the name of the socket.",
    ),
    key(
        "device",
        Other("PCI address, or `\"unix:PATH\"`"),
        "none",
        "A ConnectX VF of this host, bound to vfio-pci (`\"0000:3b:00.2\"`, as `lspci -D` prints it), or the vfio-user socket of a VF, \
         as of another ibvswitch. The data path of this VF is [passed through](passthrough.md) to that one, and this VF is no part of the \
         subnet. Keys that act here have [these meanings](passthrough.md#rights-and-clusters) then.",
    ),
    key(
        "isolation",
        Word(&words(&ISOLATION)),
        "`\"strict\"`",
        "Only with `device`: protection of the memory through which the daemon sends commands to the VF behind. `\"strict\"`: the daemon \
         keeps the guest from it; the guest's kernel then cannot register memory by work requests, as NFS over RDMA, iSER and NVMe over \
         RDMA do. `\"sriov\"`: no protection; at worst the guest has [all rights of the VF behind](../security.md#passthrough).",
    ),
    key(
        "address",
        Word(&words(&Address::NAMES)),
        "as its hypervisor",
        "With `fabric.model = \"vswitch-hybrid\"` or `\"virtualized\"`: a LID of its own, or the LID of the hypervisor's physical function. Not `\"shared\"` with \
         `lid`; with `cluster` only where [the port's LIDs suffice](virtual-clusters.md#clusters-on-shared-ports).",
    ),
    key(
        "lid",
        Lid,
        "chosen by the subnet manager",
        "LID of the port, unique.",
    ),
    key(
        "guid",
        Other("16 hexadecimal digits"),
        "derived from `name`",
        "GUID of the port, and of its node in the subnet: unique and not zero. The derived GUID is the same on every start \
         and every machine.",
    ),
    key(
        "node_guid",
        Other("16 hexadecimal digits"),
        "as `guid`",
        "GUID of the node that the guest sees (`node_guid` of `ibv_devinfo`), as `ip link set … vf … node_guid` sets it: \
         unique. It moves with the VM. The subnet manager sees `guid`.",
    ),
    key(
        "pkeys",
        Other("list of P_Keys"),
        "`[\"default\"]`",
        "P_Key table from index 0: names from `[partitions]`, with `:limited` for limited membership (`\"storage:limited\"`), or numbers \
         with the membership bit (`0x8001`). At most 128, no partition twice.",
    ),
    key(
        "doorbells",
        Word(&words(&Doorbells::NAMES)),
        "as `[engine]`",
        "[Doorbell mode](engines.md#doorbells).",
    ),
    key(
        "like",
        Word(&words(&LIKENESSES)),
        "`\"plain\"`",
        "Device that the function imitates. `\"plain\"`: what drivers need. `\"connectx-5\"`: a virtual function of a ConnectX-5, for \
         programs that test one: device 15b3:1018, the MSI-X structures in BAR 0, pages of memory that firmware asks of its driver, and \
         commands that take time or are lost, [on command](commands.md#firmware). rdma-core's own tests of a VF under VFIO pass with it.",
    ),
    key(
        "ipoib",
        Word(&words(&IPOIB)),
        "`\"basic\"`",
        "[Offloads for IP over InfiniBand](capabilities.md#ip-over-infiniband). `\"basic\"`: checksums and segments of TCP, datagram and \
         connected mode. `\"enhanced\"`, as on a ConnectX-5: mlx5_core has `ib0` with queues for each processor (RSS), `ethtool -S` and \
         `-l`, MTUs of up to 4092 bytes, and no connected mode.",
    ),
    key(
        "object_memory",
        Integer(1..=1 << 20),
        "as `[engine]`",
        "MiB of the daemon's memory for the [objects of the guest](engines.md#memory-that-guests-take).",
    ),
    key(
        "guest_memory",
        Other(SIZE),
        "as its hypervisor",
        "Maximum of [memory that its VMM shares](engines.md#memory-of-guests): a number and `K`, `M`, `G` or `T`.",
    ),
    key(
        "processors",
        Integer(1..=288),
        "none",
        "Number of the VM's processors, in the [plan of the host](host-plan.md): each has a processor of the host to \
         itself, unless the VM is in the `background`.",
    ),
    key(
        "background",
        Flag,
        "`false`",
        "Whether the VM runs only while VMs with `processors` leave theirs idle (SCHED_IDLE).",
    ),
    key(
        "smp",
        Word(&words(&SMP_ACCESS)),
        "`\"own-port\"`",
        "Destinations of the guest's subnet management packets (queue pair 0): none; its own port, to read it; or all, with all rights. A \
         guest with `\"fabric\"` can change the whole subnet: only for a VM that runs the subnet manager. A VF that shares a LID always \
         has `\"deny\"`, since queue pair 0 is the physical function's.",
    ),
    key(
        "gmp",
        Other("`{ allow = […] }`, `{ deny = […] }`"),
        "all but `perf`, `bm`, `cong-mgt`, `mlx-device`",
        "Classes of general management packets (queue pair 1) that the guest may send to other ports: `subn-adm` (queries to the SA), \
         `perf`, `bm`, `dev-mgt`, `cm` (rdma_cm), `snmp`, `cong-mgt`, `application`, `vendor` (ibping, ibsysstat), `mlx-device` (vendstat; \
         on hardware also registers). Queries to its own port, and answers, always pass. With `dev-mgt` the guest may announce a storage \
         target (SRP) at its port. With `smp = \"fabric\"` the default is all.",
    ),
    key(
        "mad_rate",
        Integer(0..=MAD_RATE_MAX),
        "`10000`",
        "Management packets per second that the guest may send; `0`: no limit, and the default with `smp = \"fabric\"`.",
    ),
    key(
        "mad_burst",
        Integer(1..=MAD_RATE_MAX),
        "`1000`",
        "Management packets that the guest may send at one time.",
    ),
    key(
        "mad_rates",
        Other("table of rates"),
        "none",
        "Management packets per second of single classes, as in `{ subn-adm = 2000 }`.",
    ),
    key(
        "cluster",
        Other("name"),
        "none",
        "Its [virtual cluster](virtual-clusters.md).",
    ),
    key(
        "vlid",
        Lid,
        "the next free from 1",
        "Its LID in the cluster, unique there.",
    ),
    key(
        "virtual_pkeys",
        Other("list of P_Keys"),
        "as `pkeys`",
        "P_Keys that the guest sees, one for each of `pkeys`, in the same order and form. Packets on the wire always have `pkeys`, since a \
         guest names partitions by their index. P_Keys inside management packets are translated.",
    ),
    key(
        "sl",
        Other("list, 0 to 15"),
        "all",
        "Service levels that the guest may use, as in `[0, 1]`.",
    ),
    key(
        "sl_policy",
        Word(&words(&SL_POLICY)),
        "`\"deny\"`",
        "Treatment of other service levels. `\"deny\"`: a connection with one cannot be set up, a datagram with one is dropped. \
         `\"rewrite\"`: the first of `sl` takes its place.",
    ),
    key(
        "socket",
        Other("path, or name in `runtime_dir`"),
        "`NAME.sock`",
        "Its vfio-user socket.",
    ),
];

/// Keys of `hypervisor.port`.
pub static PORT: &[Key] = &[
    key("name", Other("name"), "required", "As of a VF."),
    key(
        "kind",
        Word(&["vhost-user-net"]),
        "required",
        "The only kind of port.",
    ),
    key(
        "lid",
        Lid,
        "chosen by the subnet manager",
        "LID of the port, unique.",
    ),
    key(
        "guid",
        Other("16 hexadecimal digits"),
        "EUI-64 of `mac`",
        "Node and port GUID. The default lets VMs at other such ports see this VM's own address.",
    ),
    key(
        "mac",
        Other("Ethernet address"),
        "derived from `name`",
        "Ethernet address of the VM, as in `\"52:54:00:12:34:56\"`. The derived address is the same on every start and every machine. \
         Frames from another address are dropped.",
    ),
    key(
        "claims",
        Other("`\"any\"`, `\"unclaimed\"`, list"),
        "`\"any\"`; in a cluster `\"unclaimed\"`",
        "IP addresses that the VM may say are its own, in ARP, in neighbour discovery and as source. `\"any\"`: all, for routers. \
         `\"unclaimed\"`: those that [no other port answers for](guests-without-a-driver.md#addresses-of-others). A list, as in \
         `[\"10.0.0.2\", \"fe80::/64\"]`: these addresses and networks alone.",
    ),
    key(
        "pkey",
        Other("P_Key"),
        "`\"default\"`",
        "Partition of the port: a name with or without `:limited`, or a number with the membership bit.",
    ),
    key(
        "guest_memory",
        Other(SIZE),
        "as its hypervisor",
        "As of a VF.",
    ),
    key("processors", Integer(1..=288), "none", "As of a VF."),
    key("background", Flag, "`false`", "As of a VF."),
    key("cluster", Other("name"), "none", "As of a VF."),
    key("vlid", Lid, "the next free from 1", "As of a VF."),
    key(
        "socket",
        Other("path, or name in `runtime_dir`"),
        "`NAME.sock`",
        "Its vhost-user socket.",
    ),
];

/// Keys of the table `gmp` of a VF.
pub static GMP: &[Key] = &[
    key("allow", Other("list of classes"), "", ""),
    key("deny", Other("list of classes"), "", ""),
];

/// The classes' names, which are checked as values are.
pub static MAD_RATES: &[Key] = &[];
