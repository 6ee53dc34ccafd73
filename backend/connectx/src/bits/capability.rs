//! Capabilities: QUERY_HCA_CAP and SET_HCA_CAP.

use super::structures;

/// Bytes of a capability structure in its command, of which most are unused.
pub const CAPABILITY_SIZE: usize = 4096;

/// General device capabilities (type 0).
pub const TYPE_GENERAL: u32 = 0;
/// Debugging (type 13).
pub const TYPE_DEBUG: u32 = 13;
/// Paging on demand (type 2).
pub const TYPE_ODP: u32 = 2;
/// Memory of the device (type 15).
pub const TYPE_DEVICE_MEMORY: u32 = 15;
/// Atomic operations (type 3).
pub const TYPE_ATOMIC: u32 = 3;
/// Enhanced offloads of IP over InfiniBand (type 6).
pub const TYPE_IPOIB_ENHANCED: u32 = 6;
/// Flow tables (type 7).
pub const TYPE_FLOW_TABLE: u32 = 7;
/// Types of capabilities that devices with InfiniBand links alone do not have: Ethernet offloads, RoCE, offloads of IP over InfiniBand,
/// flow tables, flow tables of the embedded switch, that switch, and quality of service.
pub const TYPES_ABSENT: [u32; 7] = [1, 4, 5, 7, 8, 9, 12];
/// More general device capabilities (type 0x20).
pub const TYPE_GENERAL_2: u32 = 0x20;

structures! {
    /// General device capabilities.
    cmd_hca_cap(256) {
        PAGE_REQUEST_DISABLE: 0x000 [25:25];
        HCA_CAP_2: 0x004 [31:31];
        VHCA_ID: 0x004 [15:0];
        LOG_MAX_SRQ_SZ: 0x010 [31:24];
        LOG_MAX_QP_SZ: 0x010 [23:16];
        LOG_MAX_QP: 0x010 [4:0];
        LOG_MAX_SRQ: 0x014 [20:16];
        LOG_MAX_CQ_SZ: 0x018 [23:16];
        LOG_MAX_CQ: 0x018 [4:0];
        LOG_MAX_EQ_SZ: 0x01c [31:24];
        LOG_MAX_MKEY: 0x01c [21:16];
        FAST_TEARDOWN: 0x01c [4:4];
        LOG_MAX_EQ: 0x01c [3:0];
        MAX_INDIRECTION: 0x020 [31:24];
        LOG_MAX_MRW_SZ: 0x020 [22:16];
        FORCE_TEARDOWN: 0x020 [15:15];
        FIXED_BUFFER_SIZE: 0x020 [23:23];
        UMR_EXTENDED_TRANSLATION_OFFSET: 0x020 [7:7];
        NULL_MKEY: 0x020 [6:6];
        LOG_MAX_BSF_LIST_SIZE: 0x020 [13:8];
        LOG_MAX_KLM_LIST_SIZE: 0x020 [5:0];
        LOG_MAX_RA_REQ_DC: 0x024 [21:16];
        LOG_MAX_RA_RES_DC: 0x024 [5:0];
        SIG_CRC32C: 0x028 [23:23];
        LOG_MAX_RA_REQ_QP: 0x028 [21:16];
        LOG_MAX_RA_RES_QP: 0x028 [5:0];
        RTS2RTS_QP_COUNTERS_SET_ID: 0x02c [22:22];
        GID_TABLE_SIZE: 0x02c [15:0];
        OUT_OF_SEQ_CNT: 0x030 [31:31];
        RETRANSMISSION_Q_COUNTERS: 0x030 [29:29];
        DEBUG: 0x030 [28:28];
        MAX_QP_CNT: 0x030 [25:16];
        PKEY_TABLE_SIZE: 0x030 [15:0];
        IB_VIRT: 0x034 [29:29];
        DEVICE_MEMORY: 0x034 [23:23];
        LOCAL_CA_ACK_DELAY: 0x034 [20:16];
        ENHANCED_ERROR_Q_COUNTERS: 0x034 [14:14];
        PORT_TYPE: 0x034 [9:8];
        NUM_PORTS: 0x034 [7:0];
        LOG_MAX_MSG: 0x038 [28:24];
        SIG_BLOCK_4048: 0x03c [15:15];
        CQE_VERSION: 0x03c [3:0];
        COMPACT_ADDRESS_VECTOR: 0x040 [31:31];
        IPOIB_ENHANCED_OFFLOADS: 0x040 [28:28];
        IPOIB_BASIC_OFFLOADS: 0x040 [27:27];
        UMR_MODIFY_ATOMIC_DISABLED: 0x040 [23:23];
        UMR_INDIRECT_MKEY_DISABLED: 0x040 [22:22];
        CMDIF_CHECKSUM: 0x040 [15:14];
        UMR_MODIFY_ENTITY_SIZE_DISABLED: 0x040 [24:24];
        DRAIN_SIGERR: 0x040 [16:16];
        SIGERR_CQE: 0x040 [13:13];
        SCTR_DATA_CQE: 0x040 [10:10];
        SHO: 0x040 [8:8];
        DCT: 0x040 [5:5];
        ATOMIC: 0x040 [1:1];
        CQ_OI: 0x044 [31:31];
        CQ_RESIZE: 0x044 [30:30];
        CQ_MODERATION: 0x044 [29:29];
        PG: 0x044 [24:24];
        BLOCK_LB_MC: 0x044 [23:23];
        APM: 0x044 [17:17];
        IMAICL: 0x044 [14:14];
        QKV: 0x044 [9:9];
        PKV: 0x044 [8:8];
        SET_DETH_SQPN: 0x044 [7:7];
        XRC: 0x044 [3:3];
        UD: 0x044 [2:2];
        UC: 0x044 [1:1];
        RC: 0x044 [0:0];
        UAR_4K: 0x048 [31:31];
        UAR_SZ: 0x048 [21:16];
        LOG_PG_SZ: 0x048 [7:0];
        LOG_BF_REG_SIZE: 0x04c [20:16];
        MAX_WQE_SZ_SQ: 0x050 [15:0];
        MAX_WQE_SZ_RQ: 0x054 [15:0];
        MAX_QP_MCG: 0x05c [24:0];
        LOG_MAX_MCG: 0x060 [7:0];
        LOG_MAX_TRANSPORT_DOMAIN: 0x064 [28:24];
        LOG_MAX_PD: 0x064 [20:16];
        LOG_MAX_XRCD: 0x064 [4:0];
        LOG_MAX_RQ: 0x06c [28:24];
        LOG_MAX_SQ: 0x06c [20:16];
        LOG_MAX_TIR: 0x06c [12:8];
        LOG_MAX_TIS: 0x06c [4:0];
        BASIC_CYCLIC_RCV_WQE: 0x070 [31:31];
        LOG_MAX_RQT: 0x070 [20:16];
        LOG_MAX_RQT_SIZE: 0x070 [12:8];
        LOG_MAX_TIS_PER_SQ: 0x070 [4:0];
        MAX_NUM_EQS: 0x08c [15:0];
        SIGERR_DOMAIN_AND_SIG_TYPE: 0x090 [31:31];
        LOG_UAR_PAGE_SZ: 0x090 [15:0];
        MINI_CQE_RESP_STRIDE_INDEX: 0x0b4 [3:3];
        CQE_128_ALWAYS: 0x0b4 [2:2];
        CQE_COMPRESSION_128: 0x0b4 [1:1];
        CQE_COMPRESSION: 0x0b4 [0:0];
        CQE_COMPRESSION_MAX_NUM: 0x0b8 [15:0];
        DEVICE_FREQUENCY_MHZ: 0x098 [31:0];
        DEVICE_FREQUENCY_KHZ: 0x09c [31:0];
        NUM_OF_UARS_PER_PAGE: 0x0a4 [31:0];
        GENERAL_OBJ_TYPES: 0x080 wide;
        TAG_MATCHING: 0x0bc [15:15];
        RNDV_OFFLOAD_RC: 0x0bc [14:14];
        LOG_TAG_MATCHING_LIST_SZ: 0x0bc [12:8];
        LOG_MAX_XRQ: 0x0bc [4:0];
        UMEM_UID_0: 0x048 [13:13];
        LOG_MAX_UMEM: 0x08c [20:16];
        LOG_MAX_UCTX: 0x08c [28:24];
    }

    /// Capabilities of enhanced offloads of IP over InfiniBand.
    per_protocol_networking_offload_caps(256) {
        CSUM_CAP: 0x000 [31:31];
        MAX_LSO_CAP: 0x000 [20:16];
        WQE_INLINE_MODE: 0x000 [13:12];
        RSS_IND_TBL_CAP: 0x000 [11:8];
    }

    /// Capabilities of flow tables, by what they are for.
    flow_table_nic_cap(4096) {
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE: 0x040 (64);
    }

    /// Capabilities of flow tables for one purpose.
    flow_table_prop_layout(64) {
        FT_SUPPORT: 0x000 [31:31];
        MODIFY_ROOT: 0x000 [27:27];
        LOG_MAX_FT_SIZE: 0x004 [29:24];
        MAX_FT_LEVEL: 0x004 [7:0];
        LOG_MAX_FT_NUM: 0x00c [7:0];
        LOG_MAX_DESTINATION: 0x010 [7:0];
        LOG_MAX_FLOW: 0x014 [7:0];
        FT_FIELD_SUPPORT: 0x020 (16);
    }

    /// Fields that flow tables match.
    flow_table_fields_supported(16) {
        OUTER_ETHER_TYPE: 0x000 [29:29];
        OUTER_IP_PROTOCOL: 0x000 [16:16];
    }

    /// Capabilities of paging on demand.
    odp_cap(256) {
        RC_ODP_CAPS: 0x010 [31:0];
        UD_ODP_CAPS: 0x018 [31:0];
        XRC_ODP_CAPS: 0x01c [31:0];
        DC_ODP_CAPS: 0x020 [31:0];
    }

    /// Capabilities of atomic operations.
    atomic_caps(256) {
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x008 [31:30];
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x008 [25:25];
        ATOMIC_OPERATIONS: 0x010 [15:0];
        ATOMIC_SIZE_QP: 0x014 [15:0];
        ATOMIC_SIZE_DC: 0x018 [15:0];
    }

    /// Capabilities of debugging.
    debug_cap(256) {
        RESOURCE_DUMP: 0x000 [22:22];
    }

    /// Capabilities of memory of the device.
    device_mem_cap(256) {
        MEMIC: 0x000 [31:31];
        LOG_MIN_MEMIC_ALLOC_SIZE: 0x004 [20:16];
        LOG_MAX_MEMIC_ADDR_ALIGNMENT: 0x004 [7:0];
        MEMIC_BAR_START_ADDR: 0x008 wide;
        MEMIC_BAR_SIZE: 0x010 [31:0];
        MAX_MEMIC_SIZE: 0x014 [31:0];
    }

    /// Reply of QUERY_HCA_CAP.
    query_hca_cap_out(4112) {
        CAPABILITY: 0x010 (4096);
    }

    /// Request of SET_HCA_CAP.
    set_hca_cap_in(4112) {
        CAPABILITY: 0x010 (4096);
    }
}
