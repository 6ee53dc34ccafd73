//! The layouts of attributes against libibmad's table of fields (rdma-core 56.1,
//! libibmad/fields.c): name there, bit offset, width.

use std::ops::Range;

use ibvswitch_wire::attribute::{NodeInfo, Notice, PortInfo, SmInfo, SwitchInfo};
use ibvswitch_wire::congestion::{
    AdapterCongestionEvent, AdapterCongestionLog, CaCongestionEntry, CaCongestionSetting,
    CongestionControlTable, CongestionInfo, CongestionKeyInfo, InjectionDelay,
    SwitchCongestionEvent, SwitchCongestionLog, SwitchCongestionSetting,
    SwitchPortCongestionElement,
};
use ibvswitch_wire::performance::{
    ClassPortInfo, PortCounters, PortCountersExtended, PortDataSl, PortRcvErrorDetails,
    PortSamplesControl, PortSamplesResult, PortXmitDiscardDetails,
};
use ibvswitch_wire::rmpp::Rmpp;
use ibvswitch_wire::sa::{McMemberRecord, PathRecord, ServiceRecord};

/// Our name, libibmad's name, offset in bits, width in bits.
type Row = (&'static str, &'static str, usize, usize);

fn compare(attribute: &str, fields: &[(&str, Range<usize>)], published: &[Row]) {
    assert_eq!(fields.len(), published.len(), "{attribute}");
    for ((name, bits), (ours, theirs, offset, width)) in fields.iter().zip(published) {
        assert_eq!(name, ours, "{attribute}:{theirs}");
        assert_eq!(*bits, *offset..offset + width, "{attribute}:{theirs}");
    }
}

#[test]
fn port_info() {
    compare(
        "PortInfo",
        PortInfo::FIELDS,
        &[
            ("m_key", "Mkey", 0, 64),
            ("gid_prefix", "GidPrefix", 64, 64),
            ("lid", "Lid", 128, 16),
            ("master_sm_lid", "SMLid", 144, 16),
            ("capability_mask", "CapMask", 160, 32),
            ("diag_code", "DiagCode", 192, 16),
            ("m_key_lease_period", "MkeyLeasePeriod", 208, 16),
            ("local_port_num", "LocalPort", 224, 8),
            ("link_width_enabled", "LinkWidthEnabled", 232, 8),
            ("link_width_supported", "LinkWidthSupported", 240, 8),
            ("link_width_active", "LinkWidthActive", 248, 8),
            ("link_speed_supported", "LinkSpeedSupported", 256, 4),
            ("port_state", "LinkState", 260, 4),
            ("port_physical_state", "PhysLinkState", 264, 4),
            ("link_down_default_state", "LinkDownDefState", 268, 4),
            ("m_key_protect_bits", "ProtectBits", 272, 2),
            ("lmc", "LMC", 277, 3),
            ("link_speed_active", "LinkSpeedActive", 280, 4),
            ("link_speed_enabled", "LinkSpeedEnabled", 284, 4),
            ("neighbor_mtu", "NeighborMTU", 288, 4),
            ("master_sm_sl", "SMSL", 292, 4),
            ("vl_cap", "VLCap", 296, 4),
            ("init_type", "InitType", 300, 4),
            ("vl_high_limit", "VLHighLimit", 304, 8),
            ("vl_arbitration_high_cap", "VLArbHighCap", 312, 8),
            ("vl_arbitration_low_cap", "VLArbLowCap", 320, 8),
            ("init_type_reply", "InitReply", 328, 4),
            ("mtu_cap", "MtuCap", 332, 4),
            ("vl_stall_count", "VLStallCount", 336, 3),
            ("hoq_life", "HoqLife", 339, 5),
            ("operational_vls", "OperVLs", 344, 4),
            ("partition_enforcement_inbound", "PartEnforceInb", 348, 1),
            ("partition_enforcement_outbound", "PartEnforceOutb", 349, 1),
            ("filter_raw_inbound", "FilterRawInb", 350, 1),
            ("filter_raw_outbound", "FilterRawOutb", 351, 1),
            ("m_key_violations", "MkeyViolations", 352, 16),
            ("p_key_violations", "PkeyViolations", 368, 16),
            ("q_key_violations", "QkeyViolations", 384, 16),
            ("guid_cap", "GuidCap", 400, 8),
            ("client_reregister", "ClientReregister", 408, 1),
            (
                "multicast_pkey_trap_suppression",
                "McastPkeyTrapSuppressionEnabled",
                409,
                2,
            ),
            ("subnet_timeout", "SubnetTimeout", 411, 5),
            ("resp_time_value", "RespTimeVal", 419, 5),
            ("local_phy_errors", "LocalPhysErr", 424, 4),
            ("overrun_errors", "OverrunErr", 428, 4),
            ("max_credit_hint", "MaxCreditHint", 432, 16),
            // Of XDR, which a later libibmad has.
            ("link_speed_ext2_active", "LinkSpeedExtActive2", 449, 2),
            (
                "link_speed_ext2_supported",
                "LinkSpeedExtSupported2",
                451,
                2,
            ),
            ("link_speed_ext2_enabled", "LinkSpeedExtEnabled2", 453, 3),
            ("link_round_trip_latency", "RoundTrip", 456, 24),
            ("capability_mask2", "CapabilityMask2", 480, 16),
            ("link_speed_ext_active", "LinkSpeedExtActive", 496, 4),
            ("link_speed_ext_supported", "LinkSpeedExtSupported", 500, 4),
            ("link_speed_ext_enabled", "LinkSpeedExtEnabled", 507, 5),
        ],
    );
}

#[test]
fn node_info() {
    compare(
        "NodeInfo",
        NodeInfo::FIELDS,
        &[
            ("base_version", "BaseVers", 0, 8),
            ("class_version", "ClassVers", 8, 8),
            ("node_type", "NodeType", 16, 8),
            ("num_ports", "NumPorts", 24, 8),
            ("system_image_guid", "SystemGuid", 32, 64),
            ("node_guid", "Guid", 96, 64),
            ("port_guid", "PortGuid", 160, 64),
            ("partition_cap", "PartCap", 224, 16),
            ("device_id", "DevId", 240, 16),
            ("revision", "Revision", 256, 32),
            ("local_port_num", "LocalPort", 288, 8),
            ("vendor_id", "VendorId", 296, 24),
        ],
    );
}

#[test]
fn switch_info() {
    compare(
        "SwitchInfo",
        SwitchInfo::FIELDS,
        &[
            ("linear_fdb_cap", "LinearFdbCap", 0, 16),
            ("random_fdb_cap", "RandomFdbCap", 16, 16),
            ("multicast_fdb_cap", "McastFdbCap", 32, 16),
            ("linear_fdb_top", "LinearFdbTop", 48, 16),
            ("default_port", "DefPort", 64, 8),
            ("default_multicast_primary_port", "DefMcastPrimPort", 72, 8),
            (
                "default_multicast_not_primary_port",
                "DefMcastNotPrimPort",
                80,
                8,
            ),
            ("lifetime_value", "LifeTime", 88, 5),
            ("port_state_change", "StateChange", 93, 1),
            ("optimized_sl_to_vl", "OptSLtoVLMapping", 94, 2),
            ("lids_per_port", "LidsPerPort", 96, 16),
            ("partition_enforcement_cap", "PartEnforceCap", 112, 16),
            ("inbound_enforcement_cap", "InboundPartEnf", 128, 1),
            ("outbound_enforcement_cap", "OutboundPartEnf", 129, 1),
            ("filter_raw_inbound_cap", "FilterRawInbound", 130, 1),
            ("filter_raw_outbound_cap", "FilterRawOutbound", 131, 1),
            ("enhanced_port0", "EnhancedPort0", 132, 1),
            ("multicast_fdb_top", "MulticastFDBTop", 144, 16),
        ],
    );
}

#[test]
fn notice() {
    compare(
        "Notice",
        Notice::FIELDS,
        &[
            ("generic", "NoticeIsGeneric", 0, 1),
            ("notice_type", "NoticeType", 1, 7),
            ("producer_type", "NoticeProducerType", 8, 24),
            ("trap_number", "NoticeTrapNumber", 32, 16),
            ("issuer_lid", "NoticeIssuerLID", 48, 16),
            ("toggle", "NoticeToggle", 64, 1),
            ("count", "NoticeCount", 65, 15),
            ("detail", "NoticeDataLID", 80, 16),
            ("changed_lid", "NoticeDataTrap144LID", 96, 16),
            (
                "changed_capability_mask",
                "NoticeDataTrap144CapMask",
                128,
                32,
            ),
        ],
    );
}

#[test]
fn port_counters() {
    compare(
        "PortCounters",
        PortCounters::FIELDS,
        &[
            ("port_select", "PortSelect", 8, 8),
            ("counter_select", "CounterSelect", 16, 16),
            ("symbol_error", "SymbolErrorCounter", 32, 16),
            ("link_error_recovery", "LinkErrorRecoveryCounter", 48, 8),
            ("link_downed", "LinkDownedCounter", 56, 8),
            ("rcv_errors", "PortRcvErrors", 64, 16),
            (
                "rcv_remote_physical_errors",
                "PortRcvRemotePhysicalErrors",
                80,
                16,
            ),
            (
                "rcv_switch_relay_errors",
                "PortRcvSwitchRelayErrors",
                96,
                16,
            ),
            ("xmit_discards", "PortXmitDiscards", 112, 16),
            ("xmit_constraint_errors", "PortXmitConstraintErrors", 128, 8),
            ("rcv_constraint_errors", "PortRcvConstraintErrors", 136, 8),
            ("counter_select2", "CounterSelect2", 144, 8),
            (
                "local_link_integrity_errors",
                "LocalLinkIntegrityErrors",
                152,
                4,
            ),
            (
                "excessive_buffer_overrun_errors",
                "ExcessiveBufferOverrunErrors",
                156,
                4,
            ),
            ("vl15_dropped", "VL15Dropped", 176, 16),
            ("xmit_data", "PortXmitData", 192, 32),
            ("rcv_data", "PortRcvData", 224, 32),
            ("xmit_packets", "PortXmitPkts", 256, 32),
            ("rcv_packets", "PortRcvPkts", 288, 32),
            ("xmit_wait", "PortXmitWait", 320, 32),
        ],
    );
}

#[test]
fn sm_info() {
    compare(
        "SmInfo",
        SmInfo::FIELDS,
        &[
            ("guid", "SmInfoGuid", 0, 64),
            ("sm_key", "SmInfoKey", 64, 64),
            ("act_count", "SmActivity", 128, 32),
            ("priority", "SmPriority", 160, 4),
            ("state", "SmState", 164, 4),
        ],
    );
}

#[test]
fn details_of_errors() {
    compare(
        "PortRcvErrorDetails",
        PortRcvErrorDetails::FIELDS,
        &[
            ("port_select", "PortSelect", 8, 8),
            ("counter_select", "CounterSelect", 16, 16),
            ("local_physical_errors", "PortLocalPhysicalErrors", 32, 16),
            ("malformed_packet_errors", "PortMalformedPktErrors", 48, 16),
            ("buffer_overrun_errors", "PortBufferOverrunErrors", 64, 16),
            ("dlid_mapping_errors", "PortDLIDMappingErrors", 80, 16),
            ("vl_mapping_errors", "PortVLMappingErrors", 96, 16),
            ("looping_errors", "PortLoopingErrors", 112, 16),
        ],
    );
    compare(
        "PortXmitDiscardDetails",
        PortXmitDiscardDetails::FIELDS,
        &[
            ("port_select", "PortSelect", 8, 8),
            ("counter_select", "CounterSelect", 16, 16),
            ("inactive_discards", "PortInactiveDiscards", 32, 16),
            ("neighbor_mtu_discards", "PortNeighborMTUDiscards", 48, 16),
            (
                "sw_lifetime_limit_discards",
                "PortSwLifetimeLimitDiscards",
                64,
                16,
            ),
            (
                "sw_hoq_lifetime_limit_discards",
                "PortSwHOQLifetimeLimitDiscards",
                80,
                16,
            ),
        ],
    );
}

/// XmtDataSL0 to XmtDataSL15, and RcvDataSL0 to RcvDataSL15.
#[test]
fn data_by_service_level() {
    let data = PortDataSl {
        port_select: 0x12,
        counter_select: 0x3456,
        data: std::array::from_fn(|sl| 0x89ab_cd00 | sl as u32),
    };
    let bytes = data.to_bytes();
    let field = |offset: usize, width: usize| {
        let field = &bytes[offset / 8..(offset + width) / 8];
        field
            .iter()
            .fold(0, |value, &byte| value << 8 | u32::from(byte))
    };
    assert_eq!((field(8, 8), field(16, 16)), (0x12, 0x3456));
    let published = [
        32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512,
    ];
    for (sl, offset) in published.into_iter().enumerate() {
        assert_eq!(field(offset, 32), data.data[sl], "{sl}");
    }
    assert_eq!(PortDataSl::parse(&bytes), Ok(data));
    assert!(PortDataSl::parse(&bytes[..PortDataSl::SIZE - 1]).is_err());
}

#[test]
fn port_samples() {
    compare(
        "PortSamplesControl",
        PortSamplesControl::FIELDS,
        &[
            ("op_code", "OpCode", 0, 8),
            ("port_select", "PortSelect", 8, 8),
            ("tick", "Tick", 16, 8),
            ("counter_width", "CounterWidth", 29, 3),
            ("counter_mask0", "CounterMask0", 34, 3),
            ("counter_masks_1_to_9", "CounterMasks1to9", 37, 27),
            ("counter_masks_10_to_14", "CounterMasks10to14", 65, 15),
            ("sample_mechanisms", "SampleMechanisms", 80, 8),
            ("sample_status", "SampleStatus", 94, 2),
            ("option_mask", "OptionMask", 96, 64),
            ("vendor_mask", "VendorMask", 160, 64),
            ("sample_start", "SampleStart", 224, 32),
            ("sample_interval", "SampleInterval", 256, 32),
            ("tag", "Tag", 288, 16),
            ("counter_select0", "CounterSelect0", 304, 16),
            ("counter_select1", "CounterSelect1", 320, 16),
            ("counter_select2", "CounterSelect2", 336, 16),
            ("counter_select3", "CounterSelect3", 352, 16),
            ("counter_select4", "CounterSelect4", 368, 16),
        ],
    );
    compare(
        "PortSamplesResult",
        PortSamplesResult::FIELDS,
        &[
            ("tag", "Tag", 0, 16),
            ("sample_status", "SampleStatus", 30, 2),
            ("counter0", "Counter0", 32, 32),
            ("counter1", "Counter1", 64, 32),
            ("counter2", "Counter2", 96, 32),
            ("counter3", "Counter3", 128, 32),
            ("counter4", "Counter4", 160, 32),
        ],
    );
}

#[test]
fn port_counters_extended() {
    compare(
        "PortCountersExtended",
        PortCountersExtended::FIELDS,
        &[
            ("port_select", "PortSelect", 8, 8),
            ("counter_select", "CounterSelect", 16, 16),
            ("xmit_data", "PortXmitData", 64, 64),
            ("rcv_data", "PortRcvData", 128, 64),
            ("xmit_packets", "PortXmitPkts", 192, 64),
            ("rcv_packets", "PortRcvPkts", 256, 64),
            ("unicast_xmit_packets", "PortUnicastXmitPkts", 320, 64),
            ("unicast_rcv_packets", "PortUnicastRcvPkts", 384, 64),
            ("multicast_xmit_packets", "PortMulticastXmitPkts", 448, 64),
            ("multicast_rcv_packets", "PortMulticastRcvPkts", 512, 64),
        ],
    );
}

#[test]
fn class_port_info() {
    compare(
        "ClassPortInfo",
        ClassPortInfo::FIELDS,
        &[
            ("base_version", "BaseVersion", 0, 8),
            ("class_version", "ClassVersion", 8, 8),
            ("capability_mask", "CapabilityMask", 16, 16),
            ("capability_mask2", "CapabilityMask2", 32, 27),
            ("resp_time_value", "RespTimeVal", 59, 5),
            ("redirect_gid", "RedirectGID", 64, 128),
            ("redirect_traffic_class", "RedirectTC", 192, 8),
            ("redirect_sl", "RedirectSL", 200, 4),
            ("redirect_flow_label", "RedirectFL", 204, 20),
            ("redirect_lid", "RedirectLID", 224, 16),
            ("redirect_pkey", "RedirectPKey", 240, 16),
            ("redirect_qp", "RedirectQP", 264, 24),
            ("redirect_qkey", "RedirectQKey", 288, 32),
            ("trap_gid", "TrapGID", 320, 128),
            ("trap_traffic_class", "TrapTC", 448, 8),
            ("trap_sl", "TrapSL", 456, 4),
            ("trap_flow_label", "TrapFL", 460, 20),
            ("trap_lid", "TrapLID", 480, 16),
            ("trap_pkey", "TrapPKey", 496, 16),
            ("trap_hop_limit", "TrapHL", 512, 8),
            ("trap_qp", "TrapQP", 520, 24),
            ("trap_qkey", "TrapQKey", 544, 32),
        ],
    );
}

/// The fields of `published` are where they are there; others may be besides.
fn among(attribute: &str, fields: &[(&str, Range<usize>)], published: &[Row]) {
    for (ours, theirs, offset, width) in published {
        let place = fields.iter().find(|(name, _)| name == ours);
        let (_, bits) = place.unwrap_or_else(|| panic!("{attribute} has no {ours}"));
        assert_eq!(*bits, *offset..offset + width, "{attribute}:{theirs}");
    }
}

/// libibmad counts from the datagram's start; ours from byte 24.
#[test]
fn rmpp() {
    among(
        "RMPP",
        Rmpp::FIELDS,
        &[
            ("version", "RmppVers", 0, 8),
            ("kind", "RmppType", 8, 8),
            ("response_time", "RmppResp", 16, 5),
            ("flags", "RmppFlags", 21, 3),
            ("status", "RmppStatus", 24, 8),
            ("segment", "RmppData1", 32, 32),
            ("length", "RmppData2", 64, 32),
        ],
    );
}

#[test]
fn sa_records() {
    among(
        "PathRecord",
        PathRecord::FIELDS,
        &[
            ("dgid", "PathRecDGid", 64, 128),
            ("sgid", "PathRecSGid", 192, 128),
            ("dlid", "PathRecDLid", 320, 16),
            ("slid", "PathRecSLid", 336, 16),
            ("numb_path", "PathRecNumPath", 393, 7),
            ("sl", "PathRecSL", 428, 4),
        ],
    );
    among(
        "MCMemberRecord",
        McMemberRecord::FIELDS,
        &[
            ("mgid", "McastMemMGid", 0, 128),
            ("port_gid", "McastMemPortGid", 128, 128),
            ("qkey", "McastMemQkey", 256, 32),
            ("mlid", "McastMemMLid", 288, 16),
            ("sl", "McastMemSL", 352, 4),
            ("mtu", "McastMemMTU", 306, 6),
            ("rate", "McastMemRate", 338, 6),
            ("traffic_class", "McastMemTClass", 312, 8),
            ("pkey", "McastMemPkey", 320, 16),
            ("flow_label", "McastMemFlowLbl", 356, 20),
            ("join_state", "McastMemJoinState", 388, 4),
            ("proxy_join", "McastMemProxyJoin", 392, 1),
        ],
    );
    among(
        "ServiceRecord",
        ServiceRecord::FIELDS,
        &[
            ("service_id", "ServRecID", 0, 64),
            ("service_gid", "ServRecGid", 64, 128),
            ("service_pkey", "ServRecPkey", 192, 16),
            ("lease", "ServRecLease", 224, 32),
            ("service_key", "ServRecKey", 256, 128),
        ],
    );
}

/// Masks of 256 bits are two numbers here.
#[test]
fn congestion_control() {
    type Fields = &'static [(&'static str, Range<usize>)];
    let all: [(&str, Fields, &[Row]); 12] = [
        (
            "CongestionInfo",
            CongestionInfo::FIELDS,
            &[
                ("congestion_info", "CongestionInfo", 0, 16),
                ("control_table_cap", "ControlTableCap", 16, 8),
            ],
        ),
        (
            "CongestionKeyInfo",
            CongestionKeyInfo::FIELDS,
            &[
                ("key", "CC_Key", 0, 64),
                ("protect", "CC_KeyProtectBit", 64, 1),
                ("lease_period", "CC_KeyLeasePeriod", 80, 16),
                ("violations", "CC_KeyViolations", 96, 16),
            ],
        ),
        (
            "CongestionLog of a switch",
            SwitchCongestionLog::FIELDS,
            &[
                ("log_type", "LogType", 0, 8),
                ("flags", "CongestionFlags", 8, 8),
                ("events", "LogEventsCounter", 16, 16),
                ("now", "CurrentTimeStamp", 32, 32),
                ("ports_high", "PortMap", 64, 128),
                ("ports_low", "PortMap", 192, 128),
            ],
        ),
        (
            "CongestionLogEvent of a switch",
            SwitchCongestionEvent::FIELDS,
            &[
                ("slid", "SLID", 0, 16),
                ("dlid", "DLID", 16, 16),
                ("sl", "SL", 32, 4),
                ("time", "Timestamp", 64, 32),
            ],
        ),
        (
            "CongestionLog of a channel adapter",
            AdapterCongestionLog::FIELDS,
            &[
                ("log_type", "LogType", 0, 8),
                ("flags", "CongestionFlags", 8, 8),
                ("events", "ThresholdEventCounter", 16, 16),
                ("levels", "ThresholdCongestionEventMap", 32, 16),
                ("now", "CurrentTimeStamp", 64, 32),
            ],
        ),
        (
            "CongestionLogEvent of a channel adapter",
            AdapterCongestionEvent::FIELDS,
            &[
                ("local_qp", "Local_QP_CN_Entry", 0, 24),
                ("sl", "SL_CN_Entry", 24, 4),
                ("service", "Service_Type_CN_Entry", 28, 4),
                ("remote_qp", "Remote_QP_Number_CN_Entry", 32, 24),
                ("local_lid", "Local_LID_CN", 64, 16),
                ("remote_lid", "Remote_LID_CN_Entry", 80, 16),
                ("time", "Timestamp_CN_Entry", 96, 32),
            ],
        ),
        (
            "SwitchCongestionSetting",
            SwitchCongestionSetting::FIELDS,
            &[
                ("control_map", "Control_Map", 0, 32),
                ("victim_mask_high", "Victim_Mask", 32, 128),
                ("victim_mask_low", "Victim_Mask", 160, 128),
                ("credit_mask_high", "Credit_Mask", 288, 128),
                ("credit_mask_low", "Credit_Mask", 416, 128),
                ("threshold", "Threshold", 544, 4),
                ("packet_size", "Packet_Size", 552, 8),
                ("starvation_threshold", "CS_Threshold", 560, 4),
                ("starvation_return_delay", "CS_ReturnDelay", 576, 16),
                ("marking_rate", "Marking_Rate", 592, 16),
            ],
        ),
        (
            "SwitchPortCongestionSettingElement",
            SwitchPortCongestionElement::FIELDS,
            &[
                ("valid", "Valid", 0, 1),
                ("starvation", "Control_Type", 1, 1),
                ("threshold", "Threshold", 4, 4),
                ("packet_size", "Packet_Size", 8, 8),
                ("parameter", "Cong_Parm_Marking_Rate", 16, 16),
            ],
        ),
        (
            "CACongestionSetting",
            CaCongestionSetting::FIELDS,
            &[
                ("port_control", "Port_Control", 0, 16),
                ("control_map", "Control_Map", 16, 16),
            ],
        ),
        (
            "CACongestionEntry",
            CaCongestionEntry::FIELDS,
            &[
                ("timer", "CCTI_Timer", 0, 16),
                ("increase", "CCTI_Increase", 16, 8),
                ("trigger_threshold", "Trigger_Threshold", 24, 8),
                ("min", "CCTI_Min", 32, 8),
            ],
        ),
        (
            "CongestionControlTable",
            CongestionControlTable::FIELDS,
            &[("limit", "CCTI_Limit", 0, 16)],
        ),
        (
            "CongestionControlTableEntry",
            InjectionDelay::FIELDS,
            &[
                ("shift", "CCT_Shift", 0, 2),
                ("multiplier", "CCT_Multiplier", 2, 14),
            ],
        ),
    ];
    for (name, fields, published) in all {
        compare(name, fields, published);
    }
}
