//! Capabilities of a function, and those that its driver has chosen.

use hca::Quota;
use serde::{Deserialize, Serialize};

use super::device_memory::UNIT;
use super::network::{self, flow_table};
use super::user_context::LOG_MAX as LOG_MAX_USER_CONTEXTS;
use super::user_memory::LOG_MAX as LOG_MAX_USER_MEMORY;
use crate::bits::capability::{
    atomic_caps as atomic_cap, cmd_hca_cap as cap, device_mem_cap as memory_cap,
    flow_table_fields_supported as matched, flow_table_nic_cap,
    flow_table_prop_layout as properties, odp_cap,
    per_protocol_networking_offload_caps as offload_caps,
};
use crate::bits::command::RESERVED_QPN;
use crate::configuration::{Configuration, Likeness, MAX_DEVICE_MEMORY};
use crate::queue::completion::MAX_COMPRESSED;
use crate::queue::event::LOG_MAX_EQ_SIZE;

/// Largest send and receive queue, as a power of two of blocks and requests.
pub const LOG_MAX_QP_SIZE: u32 = 15;
/// Largest shared receive queue, as a power of two of requests.
pub const LOG_MAX_SRQ_SIZE: u32 = 15;
/// Largest completion queue, as a power of two of entries.
pub const LOG_MAX_CQ_SIZE: u32 = 20;
/// Most event queues, as a power of two.
pub const LOG_MAX_EQ: u32 = 6;
/// The device counts nanoseconds.
const FREQUENCY_KHZ: u32 = 1_000_000;

/// Completions carry user indices.
const CQE_VERSION: u32 = 1;

/// Compare and swap, fetch and add, plain and under masks.
const ATOMIC_OPERATIONS: u32 = 0b1111;
/// Operands of four and of eight bytes: each bit's value is a size.
const ATOMIC_SIZES: u32 = 1 << 2 | 1 << 3;

/// General capabilities of a function.
///
/// A bit that is not set here stands for a missing capability, and drivers do without: Ethernet and its
/// offloads, write-combining doorbells.
pub(crate) fn general(configuration: &Configuration, quota: &Quota) -> Box<[u8; cap::SIZE]> {
    let mut caps = Box::new([0; cap::SIZE]);
    let values = [
        // A plain function needs no page of the guest's memory, and its driver no queue of such requests.
        (cap::PAGE_REQUEST_DISABLE, 1),
        (cap::HCA_CAP_2, 1),
        (cap::LOG_MAX_SRQ_SZ, LOG_MAX_SRQ_SIZE),
        (cap::LOG_MAX_QP_SZ, LOG_MAX_QP_SIZE),
        (cap::LOG_MAX_QP, u32::from(quota.log_qps)),
        (cap::LOG_MAX_SRQ, u32::from(quota.log_srqs)),
        (cap::LOG_MAX_CQ_SZ, LOG_MAX_CQ_SIZE),
        (cap::LOG_MAX_CQ, u32::from(quota.log_cqs)),
        (cap::LOG_MAX_EQ_SZ, LOG_MAX_EQ_SIZE),
        (cap::LOG_MAX_MKEY, u32::from(quota.log_keys)),
        (cap::LOG_MAX_EQ, LOG_MAX_EQ),
        // Pages of memory may be away, and stretches of it.
        (cap::PG, 1),
        (cap::NULL_MKEY, 1),
        (cap::FIXED_BUFFER_SIZE, 1),
        (cap::UMR_EXTENDED_TRANSLATION_OFFSET, 1),
        (cap::MAX_INDIRECTION, u32::from(hca::mr::MAX_INDIRECTION)),
        (cap::LOG_MAX_MRW_SZ, 0x40),
        (cap::LOG_MAX_KLM_LIST_SIZE, 16),
        (cap::LOG_MAX_RA_REQ_DC, 4),
        (cap::LOG_MAX_RA_RES_DC, 4),
        (cap::LOG_MAX_RA_REQ_QP, 4),
        (cap::LOG_MAX_RA_RES_QP, 4),
        // Codes: 8 GIDs, 128 P_Keys.
        (cap::GID_TABLE_SIZE, 0),
        (cap::PKEY_TABLE_SIZE, 0),
        (cap::OUT_OF_SEQ_CNT, 1),
        (cap::RETRANSMISSION_Q_COUNTERS, 1),
        (cap::ENHANCED_ERROR_Q_COUNTERS, 1),
        // Dumps of resources.
        (cap::DEBUG, 1),
        // Programs' own commands, with contexts and memory objects of theirs; memory objects of the kernel, too.
        (cap::LOG_MAX_UCTX, LOG_MAX_USER_CONTEXTS),
        (cap::LOG_MAX_UMEM, LOG_MAX_USER_MEMORY),
        (cap::UMEM_UID_0, 1),
        (cap::MAX_QP_CNT, u32::from(hca::MAX_COUNTER_SETS)),
        // A queue pair may change its set while it sends.
        (cap::RTS2RTS_QP_COUNTERS_SET_ID, 1),
        (cap::IB_VIRT, 1),
        (
            cap::DEVICE_MEMORY,
            configuration.offered_device_memory().is_some().into(),
        ),
        (cap::LOCAL_CA_ACK_DELAY, 16),
        // InfiniBand.
        (cap::PORT_TYPE, 0),
        (cap::NUM_PORTS, 1),
        (cap::LOG_MAX_MSG, 30),
        (cap::CQE_VERSION, CQE_VERSION),
        (cap::COMPACT_ADDRESS_VECTOR, 1),
        // Queue pairs of IP over InfiniBand leave checksums and segments of TCP to the HCA.
        (cap::IPOIB_BASIC_OFFLOADS, 1),
        // Memory keys are changed by work requests: fast registration.
        (cap::UMR_MODIFY_ENTITY_SIZE_DISABLED, 0),
        // Completions hold short messages, where the driver asks for that.
        (cap::SCTR_DATA_CQE, 1),
        (cap::DCT, 1),
        // Shared receive queues match messages with tags; rendezvous by the device, of reliable connections.
        (cap::TAG_MATCHING, 1),
        (cap::RNDV_OFFLOAD_RC, 1),
        (cap::LOG_TAG_MATCHING_LIST_SZ, hca::LOG_MAX_TAGS.into()),
        (cap::LOG_MAX_XRQ, u32::from(quota.log_srqs)),
        // Keys with signatures. A completion tells of a block that is wrong, and says on which side.
        (cap::SHO, 1),
        (cap::SIGERR_CQE, 1),
        (cap::DRAIN_SIGERR, 1),
        (cap::SIGERR_DOMAIN_AND_SIG_TYPE, 1),
        (cap::SIG_CRC32C, 1),
        (cap::SIG_BLOCK_4048, 1),
        (cap::ATOMIC, 1),
        (cap::CQ_OI, 1),
        (cap::CQ_RESIZE, 1),
        // Completions may be padded to 128 bytes.
        (cap::CQE_128_ALWAYS, 1),
        // Several completions in one, of either length, for programs that ask for it. Each format of those of received
        // messages has something that they do not.
        (cap::CQE_COMPRESSION, 1),
        (cap::CQE_COMPRESSION_128, 1),
        (cap::CQE_COMPRESSION_MAX_NUM, MAX_COMPRESSED as u32),
        (cap::MINI_CQE_RESP_STRIDE_INDEX, 1),
        (cap::CQ_MODERATION, 1),
        (cap::BLOCK_LB_MC, 1),
        // Connections migrate to an alternate path.
        (cap::APM, 1),
        // Memory windows, and regions of stretches that begin and end anywhere.
        (cap::IMAICL, 1),
        (cap::QKV, 1),
        (cap::PKV, 1),
        (cap::SET_DETH_SQPN, 1),
        (cap::XRC, 1),
        (cap::UD, 1),
        (cap::UC, 1),
        (cap::RC, 1),
        (cap::UAR_4K, 1),
        (cap::LOG_PG_SZ, 12),
        (cap::LOG_BF_REG_SIZE, 9),
        (cap::MAX_WQE_SZ_SQ, 1024),
        (cap::MAX_WQE_SZ_RQ, 512),
        (
            cap::MAX_QP_MCG,
            (1 << quota.log_multicast.min(23)).min(hca::MAX_GROUP_MEMBERS as u32),
        ),
        (cap::LOG_MAX_MCG, u32::from(quota.log_multicast)),
        (cap::LOG_MAX_PD, u32::from(quota.log_pds)),
        (cap::LOG_MAX_XRCD, u32::from(quota.log_pds)),
        (cap::DEVICE_FREQUENCY_MHZ, FREQUENCY_KHZ / 1000),
        (cap::DEVICE_FREQUENCY_KHZ, FREQUENCY_KHZ),
        (cap::NUM_OF_UARS_PER_PAGE, 1),
        // Pages of doorbells: a power of two of MiB.
        (cap::UAR_SZ, (configuration.bar_size >> 20).max(1).ilog2()),
    ];
    for (field, value) in values {
        field.set(caps.as_mut_slice(), value);
    }
    cap::GENERAL_OBJ_TYPES.set(caps.as_mut_slice(), 1 << RESERVED_QPN);
    if configuration.has_network_queues() {
        let log_qps = u32::from(quota.log_qps);
        for (field, value) in [
            (cap::IPOIB_ENHANCED_OFFLOADS, 1),
            (cap::LOG_MAX_TRANSPORT_DOMAIN, network::LOG_MAX),
            (cap::LOG_MAX_RQ, log_qps),
            (cap::LOG_MAX_SQ, log_qps),
            (cap::LOG_MAX_TIR, network::LOG_MAX),
            (cap::LOG_MAX_TIS, network::LOG_MAX),
            (cap::BASIC_CYCLIC_RCV_WQE, 1),
            (cap::LOG_MAX_RQT, network::LOG_MAX),
            (cap::LOG_MAX_RQT_SIZE, network::LOG_MAX_TABLE),
            // One.
            (cap::LOG_MAX_TIS_PER_SQ, 0),
        ] {
            field.set(caps.as_mut_slice(), value);
        }
    }
    if configuration.like == Likeness::ConnectX5 {
        cap::PAGE_REQUEST_DISABLE.set(caps.as_mut_slice(), 0);
    }
    caps
}

/// Capabilities of atomic operations.
///
/// The requester's mode of endianness says in which order the eight bytes of an answer come: 0, which a
/// function has after a reset, is big-endian, 1 is the host's order. Answers of this device come in the host's
/// order in either, but those that completions hold, which are big-endian. Linux chooses 1 before there are queue pairs, and says of a device in mode 0 that it has
/// no atomics (`mlx5_ib`, `get_atomic_caps`).
pub(crate) fn atomic() -> Box<[u8; atomic_cap::SIZE]> {
    let mut caps = Box::new([0; atomic_cap::SIZE]);
    atomic_cap::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1.set(caps.as_mut_slice(), 1);
    atomic_cap::ATOMIC_OPERATIONS.set(caps.as_mut_slice(), ATOMIC_OPERATIONS);
    atomic_cap::ATOMIC_SIZE_QP.set(caps.as_mut_slice(), ATOMIC_SIZES);
    atomic_cap::ATOMIC_SIZE_DC.set(caps.as_mut_slice(), ATOMIC_SIZES);
    caps
}

/// Capabilities of memory of the device: pieces of 64 bytes and more, and no operations by the addresses of its
/// own that later devices have.
pub(crate) fn device_memory(configuration: &Configuration) -> Box<[u8; memory_cap::SIZE]> {
    let mut caps = Box::new([0; memory_cap::SIZE]);
    if let Some((offset, len)) = configuration.offered_device_memory() {
        let bytes = caps.as_mut_slice();
        memory_cap::MEMIC.set(bytes, 1);
        memory_cap::LOG_MIN_MEMIC_ALLOC_SIZE.set(bytes, UNIT.ilog2());
        // Pieces begin at a multiple of 64 bytes, or of a page of 4 KiB at most.
        memory_cap::LOG_MAX_MEMIC_ADDR_ALIGNMENT.set(bytes, 6);
        memory_cap::MEMIC_BAR_START_ADDR.set(bytes, offset);
        memory_cap::MEMIC_BAR_SIZE.set(bytes, len as u32);
        memory_cap::MAX_MEMIC_SIZE.set(bytes, MAX_DEVICE_MEMORY as u32);
    }
    caps
}

/// Capabilities of paging on demand, by transport. Unreliable connections have none, and who receives datagrams
/// into memory that is away loses them.
pub(crate) fn paging() -> Box<[u8; odp_cap::SIZE]> {
    const SEND: u32 = 1 << 31;
    const RECEIVE: u32 = 1 << 30;
    const WRITE: u32 = 1 << 29;
    const READ: u32 = 1 << 28;
    const ATOMIC: u32 = 1 << 27;
    const SRQ_RECEIVE: u32 = 1 << 26;
    let reliable = SEND | RECEIVE | WRITE | READ | ATOMIC | SRQ_RECEIVE;
    let mut caps = Box::new([0; odp_cap::SIZE]);
    odp_cap::RC_ODP_CAPS.set(caps.as_mut_slice(), reliable);
    odp_cap::XRC_ODP_CAPS.set(caps.as_mut_slice(), reliable);
    odp_cap::DC_ODP_CAPS.set(caps.as_mut_slice(), reliable);
    odp_cap::UD_ODP_CAPS.set(caps.as_mut_slice(), SEND);
    caps
}

/// Offloads of IP over InfiniBand by queues of network interfaces: checksums, and segments of TCP of packets of 64 KiB.
/// No header has to be in the request itself.
pub(crate) fn enhanced_ipoib() -> [u8; offload_caps::SIZE] {
    /// Code: no header is required inline.
    const INLINE_NOT_REQUIRED: u32 = 2;
    let mut caps = [0; offload_caps::SIZE];
    offload_caps::CSUM_CAP.set(&mut caps, 1);
    offload_caps::MAX_LSO_CAP.set(&mut caps, 16);
    offload_caps::WQE_INLINE_MODE.set(&mut caps, INLINE_NOT_REQUIRED);
    offload_caps::RSS_IND_TBL_CAP.set(&mut caps, network::LOG_MAX_TABLE);
    caps
}

/// Bytes of the capabilities of flow tables that are of any use here.
const FLOW_TABLE_CAPS: usize = 0x80;

/// Flow tables of what is received: as drivers need them to tell protocols apart, in as many levels as they count.
pub(crate) fn flow_tables() -> [u8; FLOW_TABLE_CAPS] {
    /// The driver lays its tables out in levels, most of which stay empty; it gives up where they do not suffice.
    const LEVELS: u32 = 64;
    let mut caps = [0; FLOW_TABLE_CAPS];
    let receive = flow_table_nic_cap::FLOW_TABLE_PROPERTIES_NIC_RECEIVE.get_mut(&mut caps);
    properties::FT_SUPPORT.set(receive, 1);
    properties::MODIFY_ROOT.set(receive, 1);
    properties::LOG_MAX_FT_SIZE.set(receive, flow_table::LOG_MAX_SIZE);
    properties::MAX_FT_LEVEL.set(receive, LEVELS);
    properties::LOG_MAX_FT_NUM.set(receive, network::LOG_MAX);
    properties::LOG_MAX_DESTINATION.set(receive, 0);
    properties::LOG_MAX_FLOW.set(receive, flow_table::LOG_MAX_SIZE);
    let fields = properties::FT_FIELD_SUPPORT.get_mut(receive);
    matched::OUTER_ETHER_TYPE.set(fields, 1);
    matched::OUTER_IP_PROTOCOL.set(fields, 1);
    caps
}

/// Capabilities that a driver has chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChosenImageV1 {
    log_max_qp: u32,
    log_uar_page_size: u32,
    atomic_mode: u32,
    /// A driver that has been told of version 0 goes on with it.
    #[serde(default)]
    cqe_version: u32,
}

impl ChosenImageV1 {
    pub fn save(general: &[u8], atomic: &[u8]) -> Self {
        Self {
            log_max_qp: cap::LOG_MAX_QP.get(general),
            log_uar_page_size: cap::LOG_UAR_PAGE_SZ.get(general),
            atomic_mode: atomic_cap::ATOMIC_REQ_8B_ENDIANNESS_MODE.get(atomic),
            cqe_version: cap::CQE_VERSION.get(general),
        }
    }

    /// Chooses the same, of capabilities as they are after a reset.
    pub fn restore(&self, general: &mut [u8], atomic: &mut [u8]) -> Result<(), String> {
        let most = cap::LOG_MAX_QP.get(general);
        let unknown = self.log_uar_page_size > 0xffff
            || self.atomic_mode > 1
            || self.cqe_version > CQE_VERSION;
        if self.log_max_qp > most || unknown {
            let asked = self.log_max_qp;
            return Err(format!(
                "the driver counts on 2^{asked} queue pairs, and this function has 2^{most}, \
                 or it has chosen what there is not"
            ));
        }
        cap::LOG_MAX_QP.set(general, self.log_max_qp);
        cap::LOG_UAR_PAGE_SZ.set(general, self.log_uar_page_size);
        cap::CQE_VERSION.set(general, self.cqe_version);
        atomic_cap::ATOMIC_REQ_8B_ENDIANNESS_MODE.set(atomic, self.atomic_mode);
        Ok(())
    }
}
