//! Notices that agents send unasked: notices, and the details of each trap (IBA 13.4.8.2, 14.2.5.1, 15.2.5).

use crate::layout::layout;
use crate::management::smp::DATA;
use crate::{Gid, Guid, Lid, PKey, Qpn, Result, Sl};

use super::{CapabilityMask, NodeType};
use crate::management::mad::{AttributeId, Method};
use crate::management::vendor::ORGANIZATION;

layout! {
    /// Notice (IBA 13.4.8.2), as traps of the generic kind carry it. The details that follow differ
    /// from trap to trap: [`Trap`] has them all.
    Notice, 64 bytes {
        /// The specification defines this notice, not a vendor.
        generic: bool = 0..1,
        /// 0 fatal, 1 urgent, 2 security, 3 subnet management, 4 informational.
        notice_type: u8 = 1..8,
        /// Producer: 1 channel adapter, 2 switch, 3 router, 4 class manager; or the vendor.
        producer_type: u32 = 8..32,
        /// Number of the trap.
        trap_number: u16 = 32..48,
        /// LID of who reports.
        issuer_lid: Lid = 48..64,
        /// Toggles with every notice that is read.
        toggle: bool = 64..65,
        /// Notices waiting.
        count: u16 = 65..80,
        /// Details, first word of 16 bits: for traps 128 to 131 the LID of the switch.
        detail: u16 = 80..96,
        /// Details of trap 144: the LID of the port that changed.
        changed_lid: Lid = 96..112,
        /// Details of trap 144: its new capability mask.
        changed_capability_mask: u32 = 128..160,
    }
}

layout! {
    /// Details of NVIDIA's trap 1146.
    VPortStateChange, 54 bytes {
        /// LID of the physical port.
        lid: Lid = 16..32,
    }
}

impl Notice {
    /// A port came into the subnet.
    pub const GID_IN_SERVICE: u16 = 64;
    /// A port went out of the subnet.
    pub const GID_OUT_OF_SERVICE: u16 = 65;
    /// A multicast group came to be.
    pub const GROUP_CREATED: u16 = 66;
    /// A multicast group has no members any more.
    pub const GROUP_DELETED: u16 = 67;
    /// The state of a port of the switch changed.
    pub const LINK_STATE_CHANGE: u16 = 128;
    /// The threshold of physical errors was exceeded.
    pub const LINK_INTEGRITY: u16 = 129;
    /// The threshold of buffer overruns was exceeded.
    pub const BUFFER_OVERRUN: u16 = 130;
    /// The watchdog of flow control ran out.
    pub const FLOW_CONTROL_WATCHDOG: u16 = 131;
    /// Capability mask, node description or another property of a port changed.
    pub const LOCAL_CHANGE: u16 = 144;
    /// The GUID of the system changed.
    pub const SYSTEM_IMAGE_GUID_CHANGE: u16 = 145;
    /// A packet had a wrong management key.
    pub const BAD_M_KEY: u16 = 256;
    /// A packet came to a channel adapter with a partition key that it does not hold.
    pub const BAD_P_KEY: u16 = 257;
    /// A datagram had a wrong queue key.
    pub const BAD_Q_KEY: u16 = 258;
    /// A packet came to a switch's port with a partition key that is not let through there.
    pub const BAD_P_KEY_AT_SWITCH: u16 = 259;

    /// The state of a virtual port changed: of NVIDIA, whose `ib_types.h` has the details but does not tell whether the
    /// notice is a vendor's. Here it is one; both kinds are read.
    pub const VPORT_STATE_CHANGE: u16 = 1146;

    const URGENT: u8 = 1;
    const SECURITY: u8 = 2;
    const INFORMATIONAL: u8 = 4;
    /// Producer type of a class manager, such as subnet administration.
    pub const CLASS_MANAGER: u32 = 4;
    /// Where the details begin.
    const DETAILS: usize = 10;
}

/// Bytes of details.
const DETAILS: usize = DATA - Notice::DETAILS;

layout! {
    /// Details of traps 64 to 67: which port or multicast group.
    GidChange, 54 bytes {
        /// GID of the port or the group.
        gid: Gid = 48..176,
    }
}

layout! {
    /// Details of trap 128.
    LinkStateChange, 54 bytes {
        /// LID of the switch.
        switch: Lid = 0..16,
    }
}

layout! {
    /// Details of traps 129 to 131.
    LinkViolation, 54 bytes {
        /// LID of the node.
        lid: Lid = 16..32,
        /// Number of the port at it.
        port: u8 = 32..40,
    }
}

layout! {
    /// Details of trap 144.
    LocalChange, 54 bytes {
        /// LID of the port that changed.
        lid: Lid = 16..32,
        /// One of the flags below is set.
        other_changes: bool = 47..48,
        /// Its capability mask, changed or not.
        capability_mask: CapabilityMask = 48..80,
        /// CapabilityMask2 changed.
        capability_mask2_changed: bool = 90..91,
        /// HierarchyInfo changed.
        hierarchy_changed: bool = 91..92,
        /// The priority of the subnet manager changed.
        sm_priority_changed: bool = 92..93,
        /// PortInfo:LinkSpeedEnabled changed.
        link_speed_enabled_changed: bool = 93..94,
        /// PortInfo:LinkWidthEnabled changed.
        link_width_enabled_changed: bool = 94..95,
        /// The node description changed.
        node_description_changed: bool = 95..96,
        /// CapabilityMask2, changed or not.
        capability_mask2: u16 = 96..112,
    }
}

layout! {
    /// Details of trap 145.
    SystemImageChange, 54 bytes {
        /// LID of the port.
        lid: Lid = 16..32,
        /// The new GUID.
        system_image_guid: Guid = 48..112,
    }
}

layout! {
    /// Details of trap 256, but for the return path, which follows them.
    MKeyViolation, 24 bytes {
        /// Source LID of the packet.
        lid: Lid = 16..32,
        /// DrSLID of the packet, on a directed route.
        dr_slid: Lid = 32..48,
        /// Its method.
        method: Method = 48..56,
        /// Its attribute.
        attribute: AttributeId = 64..80,
        /// Its attribute modifier.
        modifier: u32 = 80..112,
        /// The key it had.
        m_key: u64 = 112..176,
        /// It followed a directed route.
        directed: bool = 184..185,
        /// The return path was longer than there is room here.
        truncated: bool = 185..186,
        /// Hops of the return path.
        hops: u8 = 186..192,
    }
}

impl MKeyViolation {
    /// Bytes of the return path in the details.
    pub const RETURN_PATH: usize = DETAILS - Self::SIZE;
}

layout! {
    /// Details of traps 257 and 258.
    KeyViolation, 54 bytes {
        /// Source LID of the packet.
        source: Lid = 16..32,
        /// Destination LID of the packet.
        destination: Lid = 32..48,
        /// The key it had; a P_Key in the lower 16 bits.
        key: u32 = 48..80,
        /// Its service level.
        sl: Sl = 80..84,
        /// The queue pair it came from, where it says so.
        source_qp: Qpn = 88..112,
        /// The queue pair it was for.
        destination_qp: Qpn = 120..144,
        /// Source GID, zero without a global route header.
        source_gid: Gid = 144..272,
        /// Destination GID, zero without a global route header.
        destination_gid: Gid = 272..400,
    }
}

layout! {
    /// Details of trap 259.
    SwitchPKeyViolation, 54 bytes {
        /// Valid fields up to `destination_gid`, a bit each in their order, the lowest the first.
        valid: u16 = 0..16,
        /// Source LID of the packet.
        source: Lid = 16..32,
        /// Destination LID of the packet.
        destination: Lid = 32..48,
        /// The key it had.
        pkey: PKey = 48..64,
        /// Its service level.
        sl: Sl = 64..68,
        /// The queue pair it came from, where it says so.
        source_qp: Qpn = 72..96,
        /// The queue pair it was for.
        destination_qp: Qpn = 104..128,
        /// Source GID.
        source_gid: Gid = 128..256,
        /// Destination GID.
        destination_gid: Gid = 256..384,
        /// LID of the switch.
        switch: Lid = 384..400,
        /// Number of the port that dropped it.
        port: u8 = 400..408,
    }
}

impl SwitchPKeyViolation {
    /// `valid` where the two queue pairs are not known either.
    pub const WITHOUT_QUEUE_PAIRS: u16 = 0x0f;
    /// `valid` of a packet without a global route header.
    pub const WITHOUT_GIDS: u16 = 0x3f;
    /// `valid` of a packet with one.
    pub const ALL: u16 = 0xff;
}

/// Content of a notice of the generic kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// 64: a port came into the subnet.
    GidInService(GidChange),
    /// 65: a port went out of it.
    GidOutOfService(GidChange),
    /// 66: a multicast group came to be.
    GroupCreated(GidChange),
    /// 67: a multicast group went.
    GroupDeleted(GidChange),
    /// 128: ports of a switch went up or down.
    LinkStateChange(LinkStateChange),
    /// 129: too many physical errors.
    LinkIntegrity(LinkViolation),
    /// 130: too many overruns.
    BufferOverrun(LinkViolation),
    /// 131: no credits for too long.
    FlowControlWatchdog(LinkViolation),
    /// 144: something at a port changed.
    LocalChange(LocalChange),
    /// 145: the system's GUID changed.
    SystemImageChange(SystemImageChange),
    /// 1146: the state of virtual ports changed.
    VPortStateChange(VPortStateChange),
    /// 256: a wrong management key.
    BadMKey(MKeyViolation, [u8; MKeyViolation::RETURN_PATH]),
    /// 257: a partition that a channel adapter's port is not in.
    BadPKey(KeyViolation),
    /// 258: a wrong queue key.
    BadQKey(KeyViolation),
    /// 259: a partition that a switch's port does not let through.
    BadPKeyAtSwitch(SwitchPKeyViolation),
}

impl Trap {
    /// The trap's number.
    pub const fn number(&self) -> u16 {
        match self {
            Self::GidInService(_) => Notice::GID_IN_SERVICE,
            Self::GidOutOfService(_) => Notice::GID_OUT_OF_SERVICE,
            Self::GroupCreated(_) => Notice::GROUP_CREATED,
            Self::GroupDeleted(_) => Notice::GROUP_DELETED,
            Self::LinkStateChange(_) => Notice::LINK_STATE_CHANGE,
            Self::LinkIntegrity(_) => Notice::LINK_INTEGRITY,
            Self::BufferOverrun(_) => Notice::BUFFER_OVERRUN,
            Self::FlowControlWatchdog(_) => Notice::FLOW_CONTROL_WATCHDOG,
            Self::LocalChange(_) => Notice::LOCAL_CHANGE,
            Self::SystemImageChange(_) => Notice::SYSTEM_IMAGE_GUID_CHANGE,
            Self::VPortStateChange(_) => Notice::VPORT_STATE_CHANGE,
            Self::BadMKey(..) => Notice::BAD_M_KEY,
            Self::BadPKey(_) => Notice::BAD_P_KEY,
            Self::BadQKey(_) => Notice::BAD_Q_KEY,
            Self::BadPKeyAtSwitch(_) => Notice::BAD_P_KEY_AT_SWITCH,
        }
    }

    /// Severity of a notice: [`Notice::notice_type`] (IBA 14.2.5.1, 15.2.5.3).
    pub const fn notice_type(&self) -> u8 {
        match self.number() {
            Notice::LINK_STATE_CHANGE..=Notice::FLOW_CONTROL_WATCHDOG => Notice::URGENT,
            Notice::BAD_M_KEY..=Notice::BAD_P_KEY_AT_SWITCH => Notice::SECURITY,
            _ => Notice::INFORMATIONAL,
        }
    }

    /// Reads a notice's details; `None` when it is a vendor's, or one that is not known here.
    ///
    /// # Errors
    /// What [`Notice::parse`] finds, and what is wrong with the details.
    pub fn parse(data: &[u8; DATA]) -> Result<Option<Self>> {
        let notice = Notice::parse(data)?;
        let kind = (notice.producer_type, notice.trap_number);
        if !notice.generic && kind != (ORGANIZATION, Notice::VPORT_STATE_CHANGE) {
            return Ok(None);
        }
        let details = &data[Notice::DETAILS..];
        let gid = || GidChange::parse(details);
        let link = || LinkViolation::parse(details);
        let key = || KeyViolation::parse(details);
        Ok(Some(match notice.trap_number {
            Notice::GID_IN_SERVICE => Self::GidInService(gid()?),
            Notice::GID_OUT_OF_SERVICE => Self::GidOutOfService(gid()?),
            Notice::GROUP_CREATED => Self::GroupCreated(gid()?),
            Notice::GROUP_DELETED => Self::GroupDeleted(gid()?),
            Notice::LINK_STATE_CHANGE => Self::LinkStateChange(LinkStateChange::parse(details)?),
            Notice::LINK_INTEGRITY => Self::LinkIntegrity(link()?),
            Notice::BUFFER_OVERRUN => Self::BufferOverrun(link()?),
            Notice::FLOW_CONTROL_WATCHDOG => Self::FlowControlWatchdog(link()?),
            Notice::LOCAL_CHANGE => Self::LocalChange(LocalChange::parse(details)?),
            Notice::SYSTEM_IMAGE_GUID_CHANGE => {
                Self::SystemImageChange(SystemImageChange::parse(details)?)
            }
            Notice::VPORT_STATE_CHANGE => Self::VPortStateChange(VPortStateChange::parse(details)?),
            Notice::BAD_M_KEY => {
                let mut path = [0; MKeyViolation::RETURN_PATH];
                path.copy_from_slice(&details[MKeyViolation::SIZE..]);
                Self::BadMKey(MKeyViolation::parse(details)?, path)
            }
            Notice::BAD_P_KEY => Self::BadPKey(key()?),
            Notice::BAD_Q_KEY => Self::BadQKey(key()?),
            Notice::BAD_P_KEY_AT_SWITCH => {
                Self::BadPKeyAtSwitch(SwitchPKeyViolation::parse(details)?)
            }
            _ => return Ok(None),
        }))
    }

    /// The notice that a node of this kind sends from the port with LID `issuer`.
    pub fn from_node(&self, producer: NodeType, issuer: Lid) -> [u8; DATA] {
        self.to_notice(producer as u32, issuer)
    }

    /// The notice, as `producer` ([`Notice::producer_type`]) with LID `issuer` sends it.
    pub fn to_notice(&self, producer: u32, issuer: Lid) -> [u8; DATA] {
        let mut data = [0; DATA];
        let generic = !matches!(self, Self::VPortStateChange(_));
        Notice {
            generic,
            notice_type: self.notice_type(),
            producer_type: if generic { producer } else { ORGANIZATION },
            trap_number: self.number(),
            issuer_lid: issuer,
            ..Notice::default()
        }
        .emit(&mut data);
        let details = &mut data[Notice::DETAILS..];
        match self {
            Self::GidInService(gid)
            | Self::GidOutOfService(gid)
            | Self::GroupCreated(gid)
            | Self::GroupDeleted(gid) => gid.emit(details),
            Self::LinkStateChange(change) => change.emit(details),
            Self::LinkIntegrity(violation)
            | Self::BufferOverrun(violation)
            | Self::FlowControlWatchdog(violation) => violation.emit(details),
            Self::LocalChange(change) => change.emit(details),
            Self::SystemImageChange(change) => change.emit(details),
            Self::VPortStateChange(change) => change.emit(details),
            Self::BadMKey(violation, path) => {
                violation.emit(details);
                details[MKeyViolation::SIZE..].copy_from_slice(path);
            }
            Self::BadPKey(violation) | Self::BadQKey(violation) => violation.emit(details),
            Self::BadPKeyAtSwitch(violation) => violation.emit(details),
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lid(value: u16) -> Lid {
        Lid::new(value)
    }

    /// Bytes put together by hand from the offsets of `ib_mad_notice_attr_t` (opensm 3.3.23,
    /// iba/ib_types.h): where each field begins, and what is in it.
    #[test]
    fn in_place() {
        let at = |fields: &[(usize, &[u8])]| {
            let mut bytes = [0; DATA];
            for (offset, field) in fields {
                bytes[*offset..offset + field.len()].copy_from_slice(field);
            }
            bytes
        };
        let gid = Gid::new(0xfe80_0000_0000_0000, Guid::new(0x0002_c903_0000_0101));
        let gid_bytes = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0xc9, 3, 0, 0, 1, 1];
        let violation = KeyViolation {
            source: lid(1),
            destination: lid(2),
            key: 0x8001_0000,
            sl: Sl::new(3),
            source_qp: Qpn::new(0x10203),
            destination_qp: Qpn::new(0x40506),
            source_gid: gid,
            destination_gid: gid,
        };
        let violation_bytes: &[(usize, &[u8])] = &[
            (12, &[0, 1, 0, 2, 0x80, 1, 0, 0]),
            (20, &[0x30, 1, 2, 3, 0, 4, 5, 6]),
            (28, &gid_bytes),
            (44, &gid_bytes),
        ];
        let head = |kind: u8, number: u16| {
            let [high, low] = number.to_be_bytes();
            [0x80 | kind, 0, 0, 2, high, low, 0, 9]
        };
        type Field<'a> = (usize, &'a [u8]);
        let cases: &[(Trap, u8, &[Field<'_>])] = &[
            (
                Trap::GidInService(GidChange { gid }),
                4,
                &[(16, &gid_bytes)],
            ),
            (
                Trap::GroupDeleted(GidChange { gid }),
                4,
                &[(16, &gid_bytes)],
            ),
            (
                Trap::LinkStateChange(LinkStateChange {
                    switch: lid(0x1234),
                }),
                1,
                &[(10, &[0x12, 0x34])],
            ),
            (
                Trap::LinkIntegrity(LinkViolation {
                    lid: lid(0x1234),
                    port: 7,
                }),
                1,
                &[(12, &[0x12, 0x34, 7])],
            ),
            (
                Trap::LocalChange(LocalChange {
                    lid: lid(0x1234),
                    other_changes: true,
                    capability_mask: CapabilityMask(0x0102_0304),
                    node_description_changed: true,
                    sm_priority_changed: true,
                    capability_mask2: 0x506,
                    ..LocalChange::default()
                }),
                4,
                &[(12, &[0x12, 0x34, 0, 1, 1, 2, 3, 4, 0, 9, 5, 6])],
            ),
            (
                Trap::SystemImageChange(SystemImageChange {
                    lid: lid(0x1234),
                    system_image_guid: Guid::new(0x0102_0304_0506_0708),
                }),
                4,
                &[(12, &[0x12, 0x34]), (16, &[1, 2, 3, 4, 5, 6, 7, 8])],
            ),
            (
                Trap::BadMKey(
                    MKeyViolation {
                        lid: lid(0x1234),
                        dr_slid: Lid::PERMISSIVE,
                        method: Method::SET,
                        attribute: AttributeId::PORT_INFO,
                        modifier: 0x0102_0304,
                        m_key: 0x1122_3344_5566_7788,
                        directed: true,
                        truncated: false,
                        hops: 2,
                    },
                    core::array::from_fn(|at| if at < 2 { 5 } else { 0 }),
                ),
                2,
                &[
                    (12, &[0x12, 0x34, 0xff, 0xff, 2, 0, 0, 0x15, 1, 2, 3, 4]),
                    (24, &[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]),
                    (33, &[0x82, 5, 5]),
                ],
            ),
            (Trap::BadPKey(violation), 2, violation_bytes),
            (Trap::BadQKey(violation), 2, violation_bytes),
            (
                Trap::BadPKeyAtSwitch(SwitchPKeyViolation {
                    valid: SwitchPKeyViolation::ALL,
                    source: lid(1),
                    destination: lid(2),
                    pkey: PKey::new(0x8003),
                    sl: Sl::new(4),
                    source_qp: Qpn::new(5),
                    destination_qp: Qpn::new(6),
                    source_gid: gid,
                    destination_gid: gid,
                    switch: lid(0x1234),
                    port: 7,
                }),
                2,
                &[
                    (10, &[0, 0xff, 0, 1, 0, 2, 0x80, 3]),
                    (18, &[0x40, 0, 0, 5, 0, 0, 0, 6]),
                    (26, &gid_bytes),
                    (42, &gid_bytes),
                    (58, &[0x12, 0x34, 7]),
                ],
            ),
        ];
        for (trap, kind, fields) in cases {
            let mut bytes = at(fields);
            bytes[..8].copy_from_slice(&head(*kind, trap.number()));
            let notice = trap.from_node(NodeType::Switch, lid(9));
            assert_eq!(notice, bytes, "{trap:?}");
            assert_eq!(Trap::parse(&bytes), Ok(Some(*trap)));
        }
    }

    #[test]
    fn unknown_ones() {
        let mut data = [0; DATA];
        assert_eq!(Trap::parse(&data), Ok(None), "a vendor's");
        data[0] = 0x80;
        assert_eq!(Trap::parse(&data), Ok(None), "no such number");
        // NVIDIA's, as a vendor's and as a generic one.
        let trap = Trap::VPortStateChange(VPortStateChange { lid: lid(7) });
        let mut data = trap.from_node(NodeType::ChannelAdapter, lid(7));
        assert_eq!(data[..6], [4, 0, 2, 0xc9, 0x04, 0x7a]);
        assert_eq!((data[12], data[13]), (0, 7));
        assert_eq!(Trap::parse(&data), Ok(Some(trap)));
        data[0] |= 0x80;
        assert_eq!(Trap::parse(&data), Ok(Some(trap)));
        (data[0], data[3]) = (4, 0xca);
        assert_eq!(Trap::parse(&data), Ok(None), "another vendor's");
    }
}
