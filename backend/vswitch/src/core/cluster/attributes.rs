//! The management attributes that pass between a virtual cluster and the subnet, and the places of addresses in them.
//! Attributes that are not listed here do not pass.

use wire::attribute::{
    GidChange, KeyViolation, LinkStateChange, LinkViolation, LocalChange, MKeyViolation, NodeInfo,
    Notice, PKeyBlock, PortInfo, SmInfo, SwitchInfo, SwitchPKeyViolation, SystemImageChange,
};
use wire::mad::{AttributeId, Class};
use wire::performance::ClassPortInfo;
use wire::sa::{self, Record};
use wire::{Kind, byte_of, performance};

/// The fields in an attribute: the byte at which each structure begins, and for each of its
/// fields the bit at which that begins and its kind.
pub(super) type Parts = &'static [(usize, &'static [(usize, Kind)])];

/// No addresses.
const NONE: Parts = &[];

/// ClassPortInfo of any class.
pub(super) const CLASS_PORT_INFO: Parts = &[(0, ClassPortInfo::KINDS)];

/// DrSLID and DrDLID of a directed route, from byte 32 of the datagram (IBA 14.2.1.2).
pub(super) const DIRECTED_ROUTE: Parts = &[(0, &[(0, Kind::Lid), (16, Kind::Lid)])];

/// Attributes of subnet management (IBA 14.2.5). `clustered`: for a VM that has LIDs of its own, to
/// which those of switches, tables by LID and LIDs of 18 bits are no attributes of its port.
pub(super) fn subnet_management(id: AttributeId, clustered: bool) -> Option<Parts> {
    Some(match id {
        AttributeId::NODE_INFO => &[(0, NodeInfo::KINDS)],
        AttributeId::PORT_INFO => &[(0, PortInfo::KINDS)],
        AttributeId::P_KEY_TABLE => &[(0, PKeyBlock::KINDS)],
        AttributeId::SM_INFO => &[(0, SmInfo::KINDS)],
        AttributeId::NODE_DESCRIPTION
        | AttributeId::GUID_INFO
        | AttributeId::SL_TO_VL
        | AttributeId::VL_ARBITRATION
        | AttributeId::LED_INFO
        | AttributeId::MLNX_EXTENDED_PORT_INFO => NONE,
        // Of LIDs in them it sees those there are, and their P_Keys are translated as a notice's.
        AttributeId::SWITCH_INFO
        | AttributeId::LINEAR_FORWARDING
        | AttributeId::RANDOM_FORWARDING
        | AttributeId::MULTICAST_FORWARDING
        | AttributeId::EXTENDED_LID
        | AttributeId::VENDOR_DIAG
        | AttributeId::NOTICE
            if !clustered =>
        {
            NONE
        }
        _ => return None,
    })
}

/// A record of the subnet administration, and its size.
pub(super) struct Listed {
    pub(super) parts: Parts,
    pub(super) size: usize,
}

const fn listed<R: Record>(parts: Parts) -> Listed {
    Listed {
        parts,
        size: R::SIZE,
    }
}

/// Records of the subnet administration (IBA 15.2.5), but for notices.
pub(super) fn record(id: AttributeId) -> Option<Listed> {
    Some(match id {
        AttributeId::CLASS_PORT_INFO => Listed {
            parts: CLASS_PORT_INFO,
            size: ClassPortInfo::SIZE,
        },
        AttributeId::INFORM_INFO => Listed {
            parts: &[(0, sa::InformInfo::KINDS)],
            size: sa::InformInfo::SIZE,
        },
        sa::id::NODE => {
            listed::<sa::NodeRecord>(&[(0, sa::NodeRecord::KINDS), (4, NodeInfo::KINDS)])
        }
        sa::id::PORT_INFO => {
            listed::<sa::PortInfoRecord>(&[(0, sa::PortInfoRecord::KINDS), (4, PortInfo::KINDS)])
        }
        sa::id::SL_TO_VL => listed::<sa::SlToVlRecord>(&[(0, sa::SlToVlRecord::KINDS)]),
        sa::id::SWITCH_INFO => listed::<sa::SwitchInfoRecord>(&[
            (0, sa::SwitchInfoRecord::KINDS),
            (4, SwitchInfo::KINDS),
        ]),
        sa::id::LINEAR_FORWARDING => {
            listed::<sa::LinearForwardingRecord>(&[(0, sa::LinearForwardingRecord::KINDS)])
        }
        sa::id::MULTICAST_FORWARDING => {
            listed::<sa::MulticastForwardingRecord>(&[(0, sa::MulticastForwardingRecord::KINDS)])
        }
        sa::id::SM_INFO => {
            listed::<sa::SmInfoRecord>(&[(0, sa::SmInfoRecord::KINDS), (4, SmInfo::KINDS)])
        }
        sa::id::LINK => listed::<sa::LinkRecord>(&[(0, sa::LinkRecord::KINDS)]),
        sa::id::GUID_INFO => listed::<sa::GuidInfoRecord>(&[(0, sa::GuidInfoRecord::KINDS)]),
        sa::id::SERVICE => listed::<sa::ServiceRecord>(&[(0, sa::ServiceRecord::KINDS)]),
        sa::id::P_KEY_TABLE => {
            listed::<sa::PKeyTableRecord>(&[(0, sa::PKeyTableRecord::KINDS), (8, PKeyBlock::KINDS)])
        }
        sa::id::PATH => listed::<sa::PathRecord>(&[(0, sa::PathRecord::KINDS)]),
        sa::id::VL_ARBITRATION => {
            listed::<sa::VlArbitrationRecord>(&[(0, sa::VlArbitrationRecord::KINDS)])
        }
        sa::id::MC_MEMBER => listed::<sa::McMemberRecord>(&[(0, sa::McMemberRecord::KINDS)]),
        sa::id::TRACE => listed::<sa::TraceRecord>(&[(0, sa::TraceRecord::KINDS)]),
        sa::id::MULTI_PATH => listed::<sa::MultiPathRecord>(&[(0, sa::MultiPathRecord::KINDS)]),
        sa::id::INFORM_INFO => listed::<sa::InformInfoRecord>(&[
            (0, sa::InformInfoRecord::KINDS),
            (24, sa::InformInfo::KINDS),
        ]),
        _ => return None,
    })
}

/// Where the details of a notice begin.
pub(super) const DETAILS: usize = byte_of(Notice::FIELDS, "detail");

/// A notice (IBA 13.4.8.2) of the generic kind: IssuerLID, and the details of its trap (14.2.5.1).
pub(super) fn notice(trap: u16) -> Option<Parts> {
    const ISSUER: (usize, &[(usize, Kind)]) =
        (byte_of(Notice::FIELDS, "issuer_lid"), &[(0, Kind::Lid)]);
    // The key that a packet had, in the lower half of 32 bits.
    const P_KEY: (usize, &[(usize, Kind)]) = (
        DETAILS + byte_of(KeyViolation::FIELDS, "key") + 2,
        &[(0, Kind::PKey)],
    );
    Some(match trap {
        Notice::GID_IN_SERVICE
        | Notice::GID_OUT_OF_SERVICE
        | Notice::GROUP_CREATED
        | Notice::GROUP_DELETED => &[ISSUER, (DETAILS, GidChange::KINDS)],
        Notice::LINK_STATE_CHANGE => &[ISSUER, (DETAILS, LinkStateChange::KINDS)],
        Notice::LINK_INTEGRITY | Notice::BUFFER_OVERRUN | Notice::FLOW_CONTROL_WATCHDOG => {
            &[ISSUER, (DETAILS, LinkViolation::KINDS)]
        }
        Notice::LOCAL_CHANGE => &[ISSUER, (DETAILS, LocalChange::KINDS)],
        Notice::SYSTEM_IMAGE_GUID_CHANGE => &[ISSUER, (DETAILS, SystemImageChange::KINDS)],
        Notice::BAD_M_KEY => &[ISSUER, (DETAILS, MKeyViolation::KINDS)],
        Notice::BAD_P_KEY => &[ISSUER, (DETAILS, KeyViolation::KINDS), P_KEY],
        Notice::BAD_Q_KEY => &[ISSUER, (DETAILS, KeyViolation::KINDS)],
        Notice::BAD_P_KEY_AT_SWITCH => &[ISSUER, (DETAILS, SwitchPKeyViolation::KINDS)],
        _ => return None,
    })
}

/// Whether an attribute is a message of the communication manager (IBA 12.6). [`wire::cm`] has the places of its
/// addresses.
pub(super) fn is_cm_message(id: AttributeId) -> bool {
    matches!(
        id,
        AttributeId::CM_REQ
            | AttributeId::CM_MRA
            | AttributeId::CM_REJ
            | AttributeId::CM_REP
            | AttributeId::CM_RTU
            | AttributeId::CM_DREQ
            | AttributeId::CM_DREP
            | AttributeId::CM_SIDR_REQ
            | AttributeId::CM_SIDR_REP
            | AttributeId::CM_LAP
            | AttributeId::CM_APR
    )
}

/// Attributes of the other classes of the specification.
pub(super) fn general(class: Class, id: AttributeId) -> Option<Parts> {
    const SNMP: Class = Class(0x08);
    const CONGESTION: Class = Class(0x21);
    if id == AttributeId::CLASS_PORT_INFO {
        let known = [Class::PERFORMANCE, Class::BASEBOARD, Class::DEVICE];
        let known = known.contains(&class) || [SNMP, CONGESTION].contains(&class);
        return known.then_some(CLASS_PORT_INFO);
    }
    let has_none = match class {
        Class::PERFORMANCE => matches!(
            id,
            performance::PORT_SAMPLES_CONTROL
                | performance::PORT_SAMPLES_RESULT
                | performance::PORT_COUNTERS
                | performance::PORT_RCV_ERROR_DETAILS
                | performance::PORT_XMIT_DISCARD_DETAILS
                | performance::PORT_COUNTERS_EXTENDED
        ),
        // BKeyInfo.
        Class::BASEBOARD => id.0 == 0x10,
        // IOUnitInfo, IOControllerProfile, ServiceEntries; DiagnosticTimeout to DiagCode.
        Class::DEVICE => matches!(id.0, 0x10..=0x12 | 0x20..=0x24),
        // CommunityInfo, PduInfo.
        SNMP => matches!(id.0, 0x10 | 0x11),
        // CongestionInfo, CongestionKeyInfo, settings and tables; not CongestionLog, which has LIDs.
        CONGESTION => matches!(id.0, 0x11 | 0x12 | 0x14..=0x18),
        _ => false,
    };
    has_none.then_some(NONE)
}

/// Whether a class is its users' own (IBA 13.4.4): vendors' and applications'. Only their sender and their receiver
/// know the contents.
pub(super) fn is_opaque(class: Class) -> bool {
    matches!(class.0, 0x09..=0x20 | 0x22..=0x4f)
}
