//! Fields of the interface's structures: big-endian dwords, bits counted from
//! the least significant, as in the kernel's `mlx5_ifc.h`.
//!
//! This is the driver's own reading of the interface, made apart from the
//! device's, so that each checks the other.

/// A field of at most 32 bits within one dword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    offset: usize,
    low: u32,
    width: u32,
}

/// The field in bits `high` to `low` of the dword at byte `offset`.
pub const fn field(offset: usize, high: u32, low: u32) -> Field {
    Field {
        offset,
        low,
        width: high - low + 1,
    }
}

impl Field {
    const fn mask(self) -> u32 {
        u32::MAX >> (32 - self.width)
    }

    /// Its value in `bytes`.
    ///
    /// # Panics
    /// Where `bytes` end before it.
    pub fn get(self, bytes: &[u8]) -> u32 {
        dword(bytes, self.offset) >> self.low & self.mask()
    }

    /// Sets its value in `bytes`.
    ///
    /// # Panics
    /// Where `bytes` end before it, or the value has more bits than the field.
    pub fn set(self, bytes: &mut [u8], value: u32) {
        assert!(value <= self.mask(), "{value:#x} does not fit {self:?}");
        let kept = dword(bytes, self.offset) & !(self.mask() << self.low);
        put_dword(bytes, self.offset, kept | value << self.low);
    }
}

/// The dword at `offset`.
pub fn dword(bytes: &[u8], offset: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_be_bytes(value)
}

/// Sets the dword at `offset`.
pub fn put_dword(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
}

/// The 8 bytes at `offset` as a number.
pub fn qword(bytes: &[u8], offset: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_be_bytes(value)
}

/// Sets 8 bytes at `offset`.
pub fn put_qword(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_be_bytes());
}

/// Fields of all commands, `mlx5_ifc_mbox_in`.
pub mod request {
    use super::{Field, field};

    /// Command.
    pub const OPCODE: Field = field(0x00, 31, 16);
    /// Variant of the command.
    pub const OP_MOD: Field = field(0x04, 15, 0);
    /// The object that the command is about, of most commands that have one.
    pub const OBJECT: Field = field(0x08, 23, 0);
    /// Where contexts start in most requests.
    pub const CONTEXT: usize = 0x10;
    /// Where page lists start in all requests that have one.
    pub const PAGES: usize = 0x110;
    /// Length of the list in CREATE_MKEY, in units of 16 bytes.
    pub const TRANSLATIONS_OCTWORD_ACTUAL_SIZE: Field = field(0x60, 31, 0);
    /// Flag in CREATE_MKEY: entries of the list say whether their pages are there.
    pub const PG_ACCESS: Field = field(0x0c, 31, 31);
    /// Flag in PAGE_FAULT_RESUME: the page is not there.
    pub const PAGE_FAULT_ERROR: Field = field(0x08, 31, 31);
    /// Kind of the waiting party in PAGE_FAULT_RESUME.
    pub const PAGE_FAULT_TYPE: Field = field(0x08, 26, 24);
    /// Token of the event in PAGE_FAULT_RESUME.
    pub const PAGE_FAULT_TOKEN: Field = field(0x0c, 23, 0);
    /// Events to deliver, in CREATE_EQ; the first 64 of a bit array whose quadwords are numbered from the
    /// lowest.
    pub const EVENT_BITMASK: usize = 0x58;
    /// Fields to change, in MODIFY_CQ.
    pub const RESIZE_FIELD_SELECT: Field = field(0x0c, 31, 0);
    /// Offset of the QP context in QP commands.
    pub const QPC: usize = 0x18;
    /// Optional parameters that are given, in QP commands.
    pub const OPT_PARAM_MASK: Field = field(0x10, 31, 0);
    /// The limit in ARM_RQ.
    pub const LWM: Field = field(0x0c, 15, 0);
    /// The port in port queries.
    pub const PORT_NUM: Field = field(0x08, 19, 16);
    /// Index in the table, in QUERY_HCA_VPORT_GID and _PKEY.
    pub const TABLE_INDEX: Field = field(0x0c, 15, 0);
    /// The register in ACCESS_REG.
    pub const REGISTER_ID: Field = field(0x08, 15, 0);
    /// The port in MAD_IFC.
    pub const MAD_PORT: Field = field(0x08, 7, 0);
    /// The group in ATTACH_TO_MCG and DETACH_FROM_MCG.
    pub const MULTICAST_GID: usize = 0x10;
}

/// Memory of the device: its capabilities, ALLOC_MEMIC and DEALLOC_MEMIC.
pub mod dm {
    use super::{Field, field};

    /// Modifier of a query: what of these capabilities is in use.
    pub const CURRENT: u16 = 0xf << 1 | 1;
    /// There is any.
    pub const MEMIC: Field = field(0x00, 31, 31);
    /// Where in BAR 0.
    pub const BAR_START: usize = 0x08;
    /// Number of bytes of BAR 0.
    pub const BAR_SIZE: Field = field(0x10, 31, 0);

    /// Minimum address in ALLOC_MEMIC.
    pub const RANGE_START: usize = 0x10;
    /// Length of the allowed pages in ALLOC_MEMIC.
    pub const RANGE_SIZE: Field = field(0x18, 31, 0);
    /// Length of the memory in ALLOC_MEMIC.
    pub const SIZE: Field = field(0x1c, 31, 0);
    /// In the reply: where it begins.
    pub const ALLOCATED: usize = 0x08;
    /// Address of the memory in DEALLOC_MEMIC.
    pub const FREED: usize = 0x10;
    /// Length of the memory in DEALLOC_MEMIC.
    pub const FREED_SIZE: Field = field(0x18, 31, 0);
}

/// Fields of all replies, `mlx5_ifc_mbox_out`.
pub mod reply {
    use super::{Field, field};

    /// Key of absent memory, in QUERY_SPECIAL_CONTEXTS.
    pub const NULL_KEY: Field = field(0x10, 31, 0);

    /// Outcome.
    pub const STATUS: Field = field(0x00, 31, 24);
    /// Why it failed.
    pub const SYNDROME: Field = field(0x04, 31, 0);
    /// The number of what was created.
    pub const OBJECT: Field = field(0x08, 23, 0);
    /// Number of pages, in QUERY_PAGES.
    pub const NUM_PAGES: Field = field(0x0c, 31, 0);
    /// Supported versions as bits, in QUERY_ISSI.
    pub const SUPPORTED_ISSI: Field = field(0x6c, 31, 0);
    /// Where the answer starts in most replies that have one.
    pub const BODY: usize = 0x10;
    /// Offset of the QP context in QUERY_QP.
    pub const QPC: usize = 0x18;
}

/// `mlx5_ifc_cmd_hca_cap`, where this driver looks at it.
pub mod cap {
    use super::{Field, field};

    /// The device does not ask for pages by events.
    pub const PAGE_REQUEST_DISABLE: Field = field(0x000, 25, 25);
    /// Largest QP.
    pub const LOG_MAX_QP_SZ: Field = field(0x010, 23, 16);
    /// Most QPs.
    pub const LOG_MAX_QP: Field = field(0x010, 4, 0);
    /// Largest CQ.
    pub const LOG_MAX_CQ_SZ: Field = field(0x018, 23, 16);
    /// P_Key table, as a code.
    pub const PKEY_TABLE_SIZE: Field = field(0x030, 15, 0);
    /// Port queries by QUERY_HCA_VPORT_*.
    pub const IB_VIRT: Field = field(0x034, 29, 29);
    /// 0: InfiniBand.
    pub const PORT_TYPE: Field = field(0x034, 9, 8);
    /// CQ entry format.
    pub const CQE_VERSION: Field = field(0x03c, 3, 0);
    /// Signatures of commands.
    pub const CMDIF_CHECKSUM: Field = field(0x040, 15, 14);
    /// Atomic operations.
    pub const ATOMIC: Field = field(0x040, 1, 1);
    /// Reliable connections through XRC domains.
    pub const XRC: Field = field(0x044, 3, 3);
    /// Size of a UAR page.
    pub const LOG_UAR_PAGE_SZ: Field = field(0x090, 15, 0);
    /// Atomic capability: operands in host byte order are supported.
    pub const ATOMIC_8B_MODE_1_SUPPORTED: Field = field(0x008, 25, 25);
    /// Atomic capability: the mode in force.
    pub const ATOMIC_8B_MODE: Field = field(0x008, 31, 30);
}

/// `mlx5_ifc_eqc`.
pub mod eqc {
    use super::{Field, field};

    /// Entries as a power of two.
    pub const LOG_EQ_SIZE: Field = field(0x0c, 28, 24);
    /// Doorbell page.
    pub const UAR_PAGE: Field = field(0x0c, 23, 0);
    /// Interrupt vector.
    pub const INTR: Field = field(0x14, 11, 0);
    /// Page size as a power of two times 4096.
    pub const LOG_PAGE_SIZE: Field = field(0x18, 28, 24);
}

/// `mlx5_ifc_cqc`.
pub mod cqc {
    use super::{Field, field};

    /// State of the queue: 0 is well.
    pub const STATUS: Field = field(0x00, 31, 28);
    /// Size of an entry: 0 is 64 bytes.
    pub const CQE_SZ: Field = field(0x00, 23, 21);
    /// Overruns are not checked.
    pub const OI: Field = field(0x00, 17, 17);
    /// Entries may be compressed.
    pub const CQE_COMP_EN: Field = field(0x00, 14, 14);
    /// Start within the first page, in units of 1/64 page.
    pub const PAGE_OFFSET: Field = field(0x08, 11, 6);
    /// Entries as a power of two.
    pub const LOG_CQ_SIZE: Field = field(0x0c, 28, 24);
    /// Doorbell page.
    pub const UAR_PAGE: Field = field(0x0c, 23, 0);
    /// Moderation: how long to wait, in microseconds.
    pub const CQ_PERIOD: Field = field(0x10, 27, 16);
    /// Moderation: for how many entries to wait.
    pub const CQ_MAX_COUNT: Field = field(0x10, 15, 0);
    /// Event queue.
    pub const C_EQN: Field = field(0x14, 31, 0);
    /// Page size as a power of two times 4096.
    pub const LOG_PAGE_SIZE: Field = field(0x18, 28, 24);
    /// Address of the doorbell record.
    pub const DBR_ADDR: usize = 0x38;
}

/// `mlx5_ifc_qpc`.
pub mod qpc {
    use super::{Field, field};

    /// State.
    pub const STATE: Field = field(0x00, 31, 28);
    /// Service type.
    pub const ST: Field = field(0x00, 23, 16);
    /// Path migration state: 3 is migrated.
    pub const PM_STATE: Field = field(0x00, 12, 11);
    /// Multicast packets do not come back.
    pub const BLOCK_LB_MC: Field = field(0x04, 30, 30);
    /// Protection domain.
    pub const PD: Field = field(0x04, 23, 0);
    /// Path MTU, as in the specification: 1 is 256, 5 is 4096 bytes.
    pub const MTU: Field = field(0x08, 31, 29);
    /// Longest message as a power of two.
    pub const LOG_MSG_MAX: Field = field(0x08, 28, 24);
    /// Receive queue entries as a power of two.
    pub const LOG_RQ_SIZE: Field = field(0x08, 22, 19);
    /// Size of a receive queue entry as a power of two times 16.
    pub const LOG_RQ_STRIDE: Field = field(0x08, 18, 16);
    /// There is no send queue.
    pub const NO_SQ: Field = field(0x08, 15, 15);
    /// Send queue blocks of 64 bytes as a power of two.
    pub const LOG_SQ_SIZE: Field = field(0x08, 14, 11);
    /// The reserved local key may be used.
    pub const RLKY: Field = field(0x08, 4, 4);
    /// `ulp_stateless_offload_mode`: 1 for IP packets, 2 for the address of a network interface's queues.
    pub const OFFLOAD_MODE: Field = field(0x08, 3, 0);
    /// Set of counters.
    pub const COUNTER_SET_ID: Field = field(0x0c, 31, 24);
    /// Doorbell page.
    pub const UAR_PAGE: Field = field(0x0c, 23, 0);
    /// Page size as a power of two times 4096.
    pub const LOG_PAGE_SIZE: Field = field(0x14, 28, 24);
    /// The peer.
    pub const REMOTE_QPN: Field = field(0x14, 23, 0);
    /// Where the primary path starts, an [`super::ads`].
    pub const PRIMARY_PATH: usize = 0x18;
    /// Where the alternate path starts.
    pub const SECONDARY_PATH: usize = 0x44;
    /// Reads and atomics that may be outstanding as a power of two.
    pub const LOG_SRA_MAX: Field = field(0x70, 23, 21);
    /// Retries for lost packets.
    pub const RETRY_COUNT: Field = field(0x70, 18, 16);
    /// Retries for a receiver that is not ready; 7 is without end.
    pub const RNR_RETRY: Field = field(0x70, 15, 13);
    /// Next PSN to send.
    pub const NEXT_SEND_PSN: Field = field(0x78, 23, 0);
    /// Send completion queue.
    pub const CQN_SND: Field = field(0x7c, 23, 0);
    /// Source QP number in datagrams, where it is not the QP's own.
    pub const DETH_SQPN: Field = field(0x80, 23, 0);
    /// Reads and atomics that the peer may have outstanding as a power of two.
    pub const LOG_RRA_MAX: Field = field(0x90, 23, 21);
    /// The peer may read.
    pub const RRE: Field = field(0x90, 15, 15);
    /// The peer may write.
    pub const RWE: Field = field(0x90, 14, 14);
    /// The peer may use atomics.
    pub const RAE: Field = field(0x90, 13, 13);
    /// Start within the first page, in units of 1/64 page.
    pub const PAGE_OFFSET: Field = field(0x90, 11, 6);
    /// Timer code of an RNR NAK.
    pub const MIN_RNR_NAK: Field = field(0x94, 28, 24);
    /// Next PSN expected.
    pub const NEXT_RCV_PSN: Field = field(0x94, 23, 0);
    /// XRC domain.
    pub const XRCD: Field = field(0x98, 23, 0);
    /// Receive completion queue.
    pub const CQN_RCV: Field = field(0x9c, 23, 0);
    /// Address of the doorbell record.
    pub const DBR_ADDR: usize = 0xa0;
    /// Q_Key.
    pub const Q_KEY: Field = field(0xa8, 31, 0);
    /// Kind of receive queue.
    pub const RQ_TYPE: Field = field(0xac, 26, 24);
    /// Shared receive queue.
    pub const SRQN: Field = field(0xac, 23, 0);
    /// Index by which completions name the queue pair; all ones: by its number.
    pub const USER_INDEX: Field = field(0x10, 23, 0);
    /// Completions hold answers: 0x22 of up to 64 bytes.
    pub const CS_REQ: Field = field(0xc4, 15, 8);
    /// Completions hold received messages: 2 of up to 64 bytes.
    pub const CS_RES: Field = field(0xc4, 7, 0);
}

/// `mlx5_ifc_ads`, an address path.
pub mod ads {
    use super::{Field, field};

    /// Index in the P_Key table.
    pub const PKEY_INDEX: Field = field(0x00, 15, 0);
    /// Packets have a global route.
    pub const GRH: Field = field(0x04, 23, 23);
    /// Destination LID.
    pub const RLID: Field = field(0x04, 15, 0);
    /// Timer code for acknowledgements.
    pub const ACK_TIMEOUT: Field = field(0x08, 31, 27);
    /// Index in the GID table.
    pub const SRC_ADDR_INDEX: Field = field(0x08, 23, 16);
    /// Hop limit.
    pub const HOP_LIMIT: Field = field(0x08, 7, 0);
    /// Where the destination GID is.
    pub const RGID: usize = 0x10;
    /// Service level.
    pub const SL: Field = field(0x24, 27, 24);
    /// Port.
    pub const PORT: Field = field(0x24, 23, 16);
}

/// `mlx5_ifc_mkc`.
pub mod mkc {
    use super::{Field, field};

    /// The key cannot be used.
    pub const FREE: Field = field(0x00, 30, 30);
    /// The key can be changed by work requests.
    pub const UMR_EN: Field = field(0x00, 15, 15);
    /// Remote atomics.
    pub const ATOMIC: Field = field(0x00, 14, 14);
    /// Remote write.
    pub const RW: Field = field(0x00, 13, 13);
    /// Remote read.
    pub const RR: Field = field(0x00, 12, 12);
    /// Local write.
    pub const LW: Field = field(0x00, 11, 11);
    /// Local read.
    pub const LR: Field = field(0x00, 10, 10);
    /// Kind of translation.
    pub const ACCESS_MODE: Field = field(0x00, 9, 8);
    /// Its upper bits.
    pub const ACCESS_MODE_HIGH: Field = field(0x00, 28, 26);
    /// Queue pair that may use it, or all ones.
    pub const QPN: Field = field(0x04, 31, 8);
    /// Variant, chosen by the driver.
    pub const MKEY_7_0: Field = field(0x04, 7, 0);
    /// The key covers all memory.
    pub const LENGTH64: Field = field(0x0c, 31, 31);
    /// Its bytes may have signatures.
    pub const BSF_EN: Field = field(0x0c, 30, 30);
    /// Number of signature errors after the next one.
    pub const EXPECTED_SIGERR_COUNT: Field = field(0x0c, 26, 26);
    /// A peer may invalidate it.
    pub const EN_RINVAL: Field = field(0x0c, 24, 24);
    /// Protection domain.
    pub const PD: Field = field(0x0c, 23, 0);
    /// Address of the first byte.
    pub const START_ADDR: usize = 0x10;
    /// Length in bytes.
    pub const LEN: usize = 0x18;
    /// Room of the form of its bytes, in units of 16 bytes.
    pub const BSF_OCTWORD_SIZE: Field = field(0x20, 31, 0);
    /// Room of the translation list, in units of 16 bytes.
    pub const TRANSLATIONS_OCTWORD_SIZE: Field = field(0x34, 31, 0);
    /// Page size as a power of two.
    pub const LOG_PAGE_SIZE: Field = field(0x38, 5, 0);
}

/// Value of the user index in contexts whose completions name their object by its number.
pub const NO_USER_INDEX: u32 = 0x00ff_ffff;

/// `mlx5_ifc_dctc`.
pub mod dctc {
    use super::{Field, field};

    /// Index by which completions name the target; all ones: by its number.
    pub const USER_INDEX: Field = field(0x04, 23, 0);
    /// Bytes of a request to create a target, and of the reply to a query of one.
    pub const LEN: usize = 0x80;
    /// State: 2 is drained.
    pub const STATE: Field = field(0x00, 27, 24);
    /// Completion queue.
    pub const CQN: Field = field(0x08, 23, 0);
    /// Set of counters.
    pub const COUNTER_SET_ID: Field = field(0x0c, 31, 24);
    /// Initiators may read.
    pub const RRE: Field = field(0x0c, 19, 19);
    /// Initiators may write.
    pub const RWE: Field = field(0x0c, 18, 18);
    /// Initiators may do atomics.
    pub const RAE: Field = field(0x0c, 17, 17);
    /// Messages of up to 64 bytes are copied into completions.
    pub const CS_RES: Field = field(0x10, 23, 16);
    /// Timer code asked of initiators when not ready.
    pub const MIN_RNR_NAK: Field = field(0x10, 12, 8);
    /// Shared receive queue.
    pub const SRQN: Field = field(0x14, 23, 0);
    /// Protection domain.
    pub const PD: Field = field(0x18, 23, 0);
    /// Access key, a quadword.
    pub const DC_ACCESS_KEY: usize = 0x20;
    /// Longest path MTU, as a code.
    pub const MTU: Field = field(0x28, 26, 24);
    /// Port.
    pub const PORT: Field = field(0x28, 23, 16);
    /// P_Key.
    pub const PKEY_INDEX: Field = field(0x28, 15, 0);
    /// Hop limit of answers.
    pub const HOP_LIMIT: Field = field(0x2c, 7, 0);
    /// Requests with another key.
    pub const DC_ACCESS_KEY_VIOLATION_COUNT: Field = field(0x30, 31, 0);
}

/// Queues of network interfaces: `mlx5_ifc_sqc` and `mlx5_ifc_rqc`, and the work queue in them, `mlx5_ifc_wq`.
pub mod rqc {
    use super::{Field, field};

    /// Offset of the context in CREATE_SQ, CREATE_RQ and the commands that modify them.
    pub const CONTEXT: usize = 0x20;
    /// Former state in commands that modify a queue.
    pub const STATE_BEFORE: Field = field(0x08, 31, 28);
    /// State: 1 is ready.
    pub const STATE: Field = field(0x00, 23, 20);
    /// Completion queue.
    pub const CQN: Field = field(0x08, 23, 0);
    /// Number of TIS of a send queue; the first one follows.
    pub const TIS_LST_SZ: Field = field(0x20, 31, 16);
    /// The first of them.
    pub const TIS_NUM_0: Field = field(0x2c, 23, 0);
    /// Type of the work queue: 1 is cyclic.
    pub const WQ_TYPE: Field = field(0x30, 31, 28);
    /// Protection domain.
    pub const PD: Field = field(0x38, 23, 0);
    /// Doorbell page.
    pub const UAR_PAGE: Field = field(0x3c, 23, 0);
    /// Address of the doorbell record.
    pub const DBR_ADDR: usize = 0x40;
    /// Requests that the device has taken.
    pub const HW_COUNTER: Field = field(0x48, 31, 0);
    /// Bytes of an entry as a power of two.
    pub const LOG_WQ_STRIDE: Field = field(0x50, 19, 16);
    /// Entries as a power of two.
    pub const LOG_WQ_SZ: Field = field(0x50, 4, 0);
}

/// Objects by which packets of network interfaces leave and arrive: `mlx5_ifc_tisc`, `mlx5_ifc_tirc` and
/// `mlx5_ifc_rqtc`, in requests that create them.
pub mod steering {
    use super::{Field, field};

    /// Bytes of a request, behind which a table of receive queues has its list.
    pub const LEN: usize = 0x110;
    /// Transport domain of a TIS.
    pub const TIS_DOMAIN: Field = field(0x44, 23, 0);
    /// Underlay queue pair of a TIS.
    pub const UNDERLAY_QPN: Field = field(0x48, 23, 0);
    /// Destination of packets of a TIR: 1 is a table of receive queues.
    pub const DISP_TYPE: Field = field(0x24, 31, 28);
    /// Table of receive queues of a TIR.
    pub const INDIRECT_TABLE: Field = field(0x40, 23, 0);
    /// Hash function of a TIR: 2 is Toeplitz.
    pub const RX_HASH_FN: Field = field(0x44, 31, 28);
    /// Transport domain of a TIR.
    pub const TIR_DOMAIN: Field = field(0x44, 23, 0);
    /// Key of a TIR's hash.
    pub const TOEPLITZ_KEY: std::ops::Range<usize> = 0x48..0x70;
    /// Fields in a TIR's hash: addresses and ports.
    pub const SELECTED_FIELDS: Field = field(0x70, 29, 0);
    /// Maximum size of a table of receive queues.
    pub const RQT_MAX_SIZE: Field = field(0x34, 15, 0);
    /// Size of a table of receive queues.
    pub const RQT_ACTUAL_SIZE: Field = field(0x38, 15, 0);
}

/// Flow tables: their commands.
pub mod flow {
    use super::{Field, field};

    /// Bytes of CREATE_FLOW_TABLE and SET_FLOW_TABLE_ROOT.
    pub const TABLE_LEN: usize = 0x40;
    /// Flag in CREATE_FLOW_TABLE: packets without a match go to another table.
    pub const MISS_FORWARD: Field = field(0x18, 27, 24);
    /// Level of the table in CREATE_FLOW_TABLE; packets go to tables of higher levels.
    pub const LEVEL: Field = field(0x18, 23, 16);
    /// Number of entries in CREATE_FLOW_TABLE, as a power of two.
    pub const LOG_SIZE: Field = field(0x18, 7, 0);
    /// Table for packets without a match, in CREATE_FLOW_TABLE.
    pub const MISS_TABLE: Field = field(0x1c, 23, 0);
    /// The table in the other commands.
    pub const TABLE_ID: Field = field(0x14, 23, 0);
    /// The queue pair in SET_FLOW_TABLE_ROOT.
    pub const ROOT_QPN: Field = field(0x18, 23, 0);
    /// Bytes of CREATE_FLOW_GROUP.
    pub const GROUP_LEN: usize = 0x400;
    /// The first entry in CREATE_FLOW_GROUP.
    pub const GROUP_FIRST: Field = field(0x1c, 31, 0);
    /// The last entry in CREATE_FLOW_GROUP.
    pub const GROUP_LAST: Field = field(0x24, 31, 0);
    /// Flag in CREATE_FLOW_GROUP: headers outside of tunnels are matched.
    pub const CRITERIA_ENABLE: Field = field(0x3c, 7, 0);
    /// Bits of the EtherType that count, in CREATE_FLOW_GROUP.
    pub const ETHERTYPE_MASK: Field = field(0x44, 15, 0);
    /// Bits of IP's protocol that count, in CREATE_FLOW_GROUP.
    pub const PROTOCOL_MASK: Field = field(0x50, 31, 24);
    /// Bytes of SET_FLOW_TABLE_ENTRY with a destination.
    pub const ENTRY_LEN: usize = 0x348;
    /// Number of the entry in SET_FLOW_TABLE_ENTRY.
    pub const INDEX: Field = field(0x20, 31, 0);
    /// Group of the entry in SET_FLOW_TABLE_ENTRY.
    pub const GROUP_ID: Field = field(0x44, 31, 0);
    /// Action in SET_FLOW_TABLE_ENTRY; 4 forwards packets.
    pub const ACTION: Field = field(0x4c, 15, 0);
    /// Number of destinations in SET_FLOW_TABLE_ENTRY.
    pub const DESTINATIONS: Field = field(0x50, 23, 0);
    /// EtherType in SET_FLOW_TABLE_ENTRY.
    pub const ETHERTYPE: Field = field(0x84, 15, 0);
    /// Protocol of IP in SET_FLOW_TABLE_ENTRY.
    pub const PROTOCOL: Field = field(0x90, 31, 24);
    /// Kind of the destination in SET_FLOW_TABLE_ENTRY; 1 is a table, 2 a TIR.
    pub const DESTINATION_TYPE: Field = field(0x340, 31, 24);
    /// The destination in SET_FLOW_TABLE_ENTRY.
    pub const DESTINATION_ID: Field = field(0x340, 23, 0);
}

/// `mlx5_ifc_srqc`, and `mlx5_ifc_xrc_srqc` where they agree.
pub mod srqc {
    use super::{Field, field};

    /// State: 1 is error.
    pub const STATE: Field = field(0x00, 31, 28);
    /// Entries as a power of two.
    pub const LOG_SRQ_SIZE: Field = field(0x00, 27, 24);
    /// Size of an entry as a power of two times 16.
    pub const LOG_RQ_STRIDE: Field = field(0x04, 26, 24);
    /// XRC domain.
    pub const XRCD: Field = field(0x04, 23, 0);
    /// Start within the first page, in units of 1/64 page.
    pub const PAGE_OFFSET: Field = field(0x08, 31, 26);
    /// Completion queue.
    pub const CQN: Field = field(0x08, 23, 0);
    /// Page size as a power of two times 4096.
    pub const LOG_PAGE_SIZE: Field = field(0x10, 29, 24);
    /// Index by which completions name a queue of XRC; all ones: by its number.
    pub const USER_INDEX: Field = field(0x10, 23, 0);
    /// Protection domain.
    pub const PD: Field = field(0x18, 23, 0);
    /// Limit.
    pub const LWM: Field = field(0x1c, 31, 16);
    /// Entries posted.
    pub const WQE_CNT: Field = field(0x1c, 15, 0);
    /// Address of the doorbell record.
    pub const DBR_ADDR: usize = 0x28;
}

/// `mlx5_ifc_xrqc`, a shared receive queue with tags, and `mlx5_ifc_wq` in it.
pub mod xrqc {
    use super::{Field, field};

    /// Where page lists start in a request to create one.
    pub const PAGES: usize = 0x150;
    /// Kind of the queue: 1 matches tags.
    pub const TOPOLOGY: Field = field(0x00, 11, 8);
    /// Offload of the queue: 1 reads the data of a rendezvous.
    pub const OFFLOAD: Field = field(0x00, 3, 0);
    /// Index by which completions name it; all ones: by its number.
    pub const USER_INDEX: Field = field(0x04, 23, 0);
    /// Completion queue.
    pub const CQN: Field = field(0x08, 23, 0);
    /// Entries of the list as a power of two.
    pub const LOG_MATCHING_LIST_SZ: Field = field(0x20, 31, 28);
    /// The entry that is added next.
    pub const APPEND_NEXT_INDEX: Field = field(0x20, 15, 0);
    /// Unexpected messages that software has seen.
    pub const SW_PHASE_CNT: Field = field(0x24, 31, 16);
    /// Unexpected messages.
    pub const HW_PHASE_CNT: Field = field(0x24, 15, 0);
    /// Protection domain.
    pub const PD: Field = field(0x88, 23, 0);
    /// Address of the doorbell record.
    pub const DBR_ADDR: usize = 0x90;
    /// Size of an entry in bytes as a power of two.
    pub const LOG_WQ_STRIDE: Field = field(0xa0, 19, 16);
    /// Entries as a power of two.
    pub const LOG_WQ_SZ: Field = field(0xa0, 4, 0);
}

/// CREATE_PSV and DESTROY_PSV: signature values under way.
pub mod psv {
    use super::{Field, field};

    /// Number of PSVs.
    pub const NUM_PSV: Field = field(0x08, 31, 28);
    /// Protection domain.
    pub const PD: Field = field(0x08, 23, 0);
    /// In the reply: the first one's number.
    pub const PSV0_INDEX: Field = field(0x10, 23, 0);
}

/// `mlx5_ifc_hca_vport_context`.
pub mod vport {
    use super::{Field, field};

    /// Physical state: 5 is LinkUp.
    pub const PORT_PHYSICAL_STATE: Field = field(0x20, 15, 12);
    /// Logical state: 4 is Active.
    pub const VPORT_STATE: Field = field(0x20, 3, 0);
    /// The port has a subnet management interface.
    pub const HAS_SMI: Field = field(0x20, 30, 30);
    /// Packets need a global route header.
    pub const GRH_REQUIRED: Field = field(0x20, 28, 28);
    /// System image GUID.
    pub const SYSTEM_IMAGE_GUID: usize = 0x28;
    /// Port GUID.
    pub const PORT_GUID: usize = 0x30;
    /// Node GUID.
    pub const NODE_GUID: usize = 0x38;
    /// PortInfo:CapabilityMask.
    pub const CAP_MASK1: Field = field(0x40, 31, 0);
    /// Bits of the capability mask that are set, or may be.
    pub const CAP_MASK1_FIELD_SELECT: Field = field(0x44, 31, 0);
    /// LID.
    pub const LID: Field = field(0x60, 31, 16);
    /// LID mask control.
    pub const LMC: Field = field(0x60, 7, 5);
    /// LID of the subnet manager.
    pub const SM_LID: Field = field(0x64, 31, 16);
    /// Service level to the subnet manager.
    pub const SM_SL: Field = field(0x64, 15, 12);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_neighbours() {
        let mut bytes = [0xff; 8];
        let field = field(4, 23, 8);
        field.set(&mut bytes, 0x1234);
        assert_eq!(bytes, [0xff, 0xff, 0xff, 0xff, 0xff, 0x12, 0x34, 0xff]);
        assert_eq!(field.get(&bytes), 0x1234);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn a_value_that_does_not_fit_is_a_mistake() {
        field(0, 3, 0).set(&mut [0; 4], 16);
    }
}
