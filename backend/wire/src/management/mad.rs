//! Management datagrams: the 256 bytes and the header common to all of them (IBA 13.4).

use core::fmt;

use crate::layout::Field;

/// Bytes of a management datagram.
pub const SIZE: usize = 256;

mod field {
    use core::ops::Range;

    pub const BASE_VERSION: usize = 0;
    pub const CLASS: usize = 1;
    pub const CLASS_VERSION: usize = 2;
    pub const METHOD: usize = 3;
    pub const STATUS: Range<usize> = 4..6;
    pub const TRANSACTION: Range<usize> = 8..16;
    pub const ATTRIBUTE: Range<usize> = 16..18;
    pub const MODIFIER: Range<usize> = 20..24;
}

/// A number with names for the values this crate knows: unknown ones pass through unharmed.
macro_rules! named {
    (
        $(#[$meta:meta])*
        $name:ident($inner:ty), $width:literal { $( $(#[$vmeta:meta])* $value:ident = $code:literal, $text:literal; )+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl $name {
            $( $(#[$vmeta])* pub const $value: Self = Self($code); )+

            /// The name the specification gives it, if this crate knows it.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $( $code => Some($text), )+ _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, concat!("0x{:0", $width, "x}"), self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}

named! {
    /// A management class (IBA 13.4.4).
    Class(u8), 2 {
        /// Subnet management, routed by LID.
        SUBN_LID = 0x01, "SubnLid";
        /// Subnet administration.
        SUBN_ADM = 0x03, "SubnAdm";
        /// Performance management.
        PERFORMANCE = 0x04, "Perf";
        /// Baseboard management.
        BASEBOARD = 0x05, "BM";
        /// Device management.
        DEVICE = 0x06, "DevMgt";
        /// Communication management.
        COMMUNICATION = 0x07, "ComMgt";
        /// Congestion control.
        CONGESTION = 0x21, "CongestionControl";
        /// Subnet management with a directed route.
        SUBN_DIRECTED = 0x81, "SubnDirected";
    }
}

impl Class {
    /// Whether datagrams of this class go to queue pair 0.
    pub const fn is_subnet_management(self) -> bool {
        matches!(self, Self::SUBN_LID | Self::SUBN_DIRECTED)
    }
}

named! {
    /// A method (IBA 13.4.5). The highest bit marks a response.
    Method(u8), 2 {
        /// Asks for an attribute.
        GET = 0x01, "Get";
        /// Sets an attribute and asks for what it became.
        SET = 0x02, "Set";
        /// A datagram of a dialogue without a response.
        SEND = 0x03, "Send";
        /// Tells of an event, unasked.
        TRAP = 0x05, "Trap";
        /// Passes on an event to a subscriber.
        REPORT = 0x06, "Report";
        /// Acknowledges a trap.
        TRAP_REPRESS = 0x07, "TrapRepress";
        /// Asks for several records (subnet administration).
        GET_TABLE = 0x12, "GetTable";
        /// Asks for the hops of a path (subnet administration).
        GET_TRACE_TABLE = 0x13, "GetTraceTable";
        /// Asks for several records by a request of several packets (subnet administration).
        GET_MULTI = 0x14, "GetMulti";
        /// Removes a record (subnet administration).
        DELETE = 0x15, "Delete";
        /// Answers a get or a set.
        GET_RESPONSE = 0x81, "GetResp";
        /// Acknowledges a report.
        REPORT_RESPONSE = 0x86, "ReportResp";
        /// Answers with several records.
        GET_TABLE_RESPONSE = 0x92, "GetTableResp";
        /// Answers a request of several packets.
        GET_MULTI_RESPONSE = 0x94, "GetMultiResp";
        /// Acknowledges a removal.
        DELETE_RESPONSE = 0x95, "DeleteResp";
    }
}

impl Method {
    /// Whether this answers another datagram.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }
}

named! {
    /// An attribute. Classes share the numbers up to 0x000F and give meaning of their own to the
    /// others; the names here are those of subnet management (IBA 14.2.5).
    AttributeId(u16), 4 {
        /// Capabilities of a class's agent; any class but subnet management.
        CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
        /// An event.
        NOTICE = 0x0002, "Notice";
        /// A subscription to events.
        INFORM_INFO = 0x0003, "InformInfo";
        /// A node's text.
        NODE_DESCRIPTION = 0x0010, "NodeDescription";
        /// Properties of a node.
        NODE_INFO = 0x0011, "NodeInfo";
        /// Capabilities and settings of a switch.
        SWITCH_INFO = 0x0012, "SwitchInfo";
        /// GUIDs of a port.
        GUID_INFO = 0x0014, "GUIDInfo";
        /// Capabilities and settings of a port.
        PORT_INFO = 0x0015, "PortInfo";
        /// Partitions of a port.
        P_KEY_TABLE = 0x0016, "P_KeyTable";
        /// Lane of a service level.
        SL_TO_VL = 0x0017, "SLtoVLMappingTable";
        /// Arbitration of lanes on a link.
        VL_ARBITRATION = 0x0018, "VLArbitrationTable";
        /// Where a switch sends a unicast packet.
        LINEAR_FORWARDING = 0x0019, "LinearForwardingTable";
        /// The same, as pairs of LID and port.
        RANDOM_FORWARDING = 0x001a, "RandomForwardingTable";
        /// Where a switch sends a multicast packet.
        MULTICAST_FORWARDING = 0x001b, "MulticastForwardingTable";
        /// The subnet manager at a port.
        SM_INFO = 0x0020, "SMInfo";
        /// A vendor's diagnostics.
        VENDOR_DIAG = 0x0030, "VendorDiag";
        /// A lamp.
        LED_INFO = 0x0031, "LedInfo";
        /// The LID of a port in the extended LID space ([`ExtendedLid`](crate::ExtendedLid)): a
        /// number from the range that is left to vendors, since no specification has it.
        EXTENDED_LID = 0xff41, "ExtendedLid";
        /// Speeds of a port that PortInfo does not tell apart, of Mellanox.
        MLNX_EXTENDED_PORT_INFO = 0xff90, "MlnxExtPortInfo";
        /// The virtual ports of a port; this and what follows, of NVIDIA.
        VIRTUALIZATION_INFO = 0xffb0, "VirtualizationInfo";
        /// A virtual port.
        VPORT_INFO = 0xffb1, "VPortInfo";
        /// The adapter of a virtual port.
        VNODE_INFO = 0xffb2, "VNodeInfo";
        /// States of virtual ports.
        VPORT_STATE = 0xffb3, "VPortState";
        /// The text of a virtual port's adapter.
        VNODE_DESCRIPTION = 0xffb4, "VNodeDescription";
        /// GUIDs of a virtual port.
        VPORT_GUID_INFO = 0xffb5, "VPortGUIDInfo";
        /// Partitions of a virtual port.
        VPORT_P_KEY_TABLE = 0xffb6, "VPortP_KeyTable";
    }
}

/// The outcome that a response carries (IBA 13.4.7): the lower 15 bits, the highest being the
/// direction bit of a directed route.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(pub u16);

impl Status {
    /// Done.
    pub const OK: Self = Self(0);
    /// Busy; ask again later.
    pub const BUSY: Self = Self(0x0001);
    /// Base or class version unknown.
    pub const BAD_VERSION: Self = Self(1 << 2);
    /// Method unknown.
    pub const UNSUPPORTED_METHOD: Self = Self(2 << 2);
    /// Method not possible with this attribute, or attribute unknown.
    pub const UNSUPPORTED_ATTRIBUTE: Self = Self(3 << 2);
    /// A value in the attribute or its modifier is not possible.
    pub const INVALID_FIELD: Self = Self(7 << 2);

    /// Whether the request was done.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OK => f.write_str("OK"),
            Self::BUSY => f.write_str("busy"),
            Self::BAD_VERSION => f.write_str("version not supported"),
            Self::UNSUPPORTED_METHOD => f.write_str("method not supported"),
            Self::UNSUPPORTED_ATTRIBUTE => f.write_str("method and attribute not supported"),
            Self::INVALID_FIELD => f.write_str("invalid attribute or modifier value"),
            Self(code) => write!(f, "0x{code:04x}"),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

/// A view of a management datagram: its common header in place.
#[derive(Debug, Clone, Copy)]
pub struct Mad<T>(T);

impl AttributeId {
    /// Names from 0x0010 on, which each class has for itself.
    const OF_ADMINISTRATION: [(u16, &'static str); 20] = [
        (0x11, "NodeRecord"),
        (0x12, "PortInfoRecord"),
        (0x13, "SLtoVLMappingTableRecord"),
        (0x14, "SwitchInfoRecord"),
        (0x15, "LinearForwardingTableRecord"),
        (0x16, "RandomForwardingTableRecord"),
        (0x17, "MulticastForwardingTableRecord"),
        (0x18, "SMInfoRecord"),
        (0x19, "LinkSpeedWidthPairsTableRecord"),
        (0x20, "LinkRecord"),
        (0x30, "GuidInfoRecord"),
        (0x31, "ServiceRecord"),
        (0x33, "P_KeyTableRecord"),
        (0x35, "PathRecord"),
        (0x36, "VLArbitrationTableRecord"),
        (0x38, "MCMemberRecord"),
        (0x39, "TraceRecord"),
        (0x3a, "MultiPathRecord"),
        (0x3b, "ServiceAssociationRecord"),
        (0xf3, "InformInfoRecord"),
    ];
    const OF_PERFORMANCE: [(u16, &'static str); 5] = [
        (0x10, "PortSamplesControl"),
        (0x11, "PortSamplesResult"),
        (0x12, "PortCounters"),
        (0x15, "PortRcvErrorDetails"),
        (0x1d, "PortCountersExtended"),
    ];
    const OF_COMMUNICATION: [(u16, &'static str); 11] = [
        (0x10, "ConnectRequest"),
        (0x11, "MsgRcptAck"),
        (0x12, "ConnectReject"),
        (0x13, "ConnectReply"),
        (0x14, "ReadyToUse"),
        (0x15, "DisconnectRequest"),
        (0x16, "DisconnectReply"),
        (0x17, "ServiceIDResReq"),
        (0x18, "ServiceIDResReqResp"),
        (0x19, "LoadAlternatePath"),
        (0x1a, "AlternatePathResponse"),
    ];
    const OF_DEVICE: [(u16, &'static str); 4] = [
        (0x10, "IOUnitInfo"),
        (0x11, "IOControllerProfile"),
        (0x12, "ServiceEntries"),
        (0x20, "DiagnosticTimeout"),
    ];

    const OF_CONGESTION: [(u16, &'static str); 8] = [
        (0x11, "CongestionInfo"),
        (0x12, "CongestionKeyInfo"),
        (0x13, "CongestionLog"),
        (0x14, "SwitchCongestionSetting"),
        (0x15, "SwitchPortCongestionSetting"),
        (0x16, "CACongestionSetting"),
        (0x17, "CongestionControlTable"),
        (0x18, "TimeStamp"),
    ];

    /// Its name in a class: below 0x0010 all classes have the same, from there on each has its own.
    pub fn in_class(self, class: Class) -> impl fmt::Display {
        let own: &[(u16, &str)] = match class {
            Class::SUBN_ADM => &Self::OF_ADMINISTRATION,
            Class::PERFORMANCE => &Self::OF_PERFORMANCE,
            Class::COMMUNICATION => &Self::OF_COMMUNICATION,
            Class::DEVICE => &Self::OF_DEVICE,
            Class::CONGESTION => &Self::OF_CONGESTION,
            _ => &[],
        };
        let found = own.iter().find(|(id, _)| *id == self.0);
        let shared = self.0 < 0x10 || class.is_subnet_management();
        AttributeName {
            id: self,
            name: found
                .map(|(_, name)| *name)
                .or_else(|| self.name().filter(|_| shared)),
        }
    }
}

struct AttributeName {
    id: AttributeId,
    name: Option<&'static str>,
}

impl fmt::Display for AttributeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => f.pad(name),
            None => write!(f, "0x{:04x}", self.id.0),
        }
    }
}

impl<T: AsRef<[u8]>> Mad<T> {
    /// The view, once `bytes` is known to be a datagram's 256 bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`](crate::Error::Truncated).
    pub fn new_checked(bytes: T) -> crate::Result<Self> {
        crate::layout::check::<SIZE>("MAD", bytes.as_ref())?;
        Ok(Self(bytes))
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// Base version, 1.
    pub fn base_version(&self) -> u8 {
        self.bytes()[field::BASE_VERSION]
    }

    /// Management class.
    pub fn class(&self) -> Class {
        Class(self.bytes()[field::CLASS])
    }

    /// Version of the class: 1, for subnet administration 2.
    pub fn class_version(&self) -> u8 {
        self.bytes()[field::CLASS_VERSION]
    }

    /// Method.
    pub fn method(&self) -> Method {
        Method(self.bytes()[field::METHOD])
    }

    /// Status without the direction bit of a directed route.
    pub fn status(&self) -> Status {
        Status(crate::layout::bits::get(self.bytes(), 33..48) as u16)
    }

    /// Transaction: what a response repeats of its request.
    pub fn transaction(&self) -> u64 {
        crate::layout::bits::get(self.bytes(), 64..128) as u64
    }

    /// Attribute.
    pub fn attribute(&self) -> AttributeId {
        AttributeId(crate::layout::bits::get(self.bytes(), 128..144) as u16)
    }

    /// Attribute modifier.
    pub fn modifier(&self) -> u32 {
        crate::layout::bits::get(self.bytes(), 160..192) as u32
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Mad<T> {
    fn put(&mut self, range: core::ops::Range<usize>, bytes: &[u8]) {
        self.0.as_mut()[range].copy_from_slice(bytes);
    }

    /// Writes base version 1, class and class version.
    pub fn set_class(&mut self, class: Class) {
        let version = if class == Class::SUBN_ADM { 2 } else { 1 };
        self.put(0..3, &[1, class.0, version]);
    }

    /// Writes the method.
    pub fn set_method(&mut self, method: Method) {
        self.0.as_mut()[field::METHOD] = method.0;
    }

    /// Writes the status; the direction bit stays.
    pub fn set_status(&mut self, status: Status) {
        let direction = self.bytes()[field::STATUS.start] & 0x80;
        self.put(field::STATUS, &status.0.to_be_bytes());
        self.0.as_mut()[field::STATUS.start] |= direction;
    }

    /// Writes the transaction.
    pub fn set_transaction(&mut self, transaction: u64) {
        self.put(field::TRANSACTION, &transaction.to_be_bytes());
    }

    /// Writes the attribute and its modifier.
    pub fn set_attribute(&mut self, attribute: AttributeId, modifier: u32) {
        self.put(field::ATTRIBUTE, &attribute.0.to_be_bytes());
        self.put(field::MODIFIER, &modifier.to_be_bytes());
    }
}

impl<T: AsRef<[u8]>> fmt::Display for Mad<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}({}) modifier=0x{:08x} transaction=0x{:016x} status={}",
            self.class(),
            self.method(),
            self.attribute().in_class(self.class()),
            self.modifier(),
            self.transaction(),
            self.status(),
        )
    }
}

impl Field for Method {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u8))
    }
    fn to_bits(self) -> u128 {
        u128::from(self.0)
    }
}

impl Field for AttributeId {
    fn from_bits(bits: u128) -> Option<Self> {
        Some(Self(bits as u16))
    }
    fn to_bits(self) -> u128 {
        u128::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attributes_are_of_their_class() {
        let name = |class, id| AttributeId(id).in_class(class).to_string();
        assert_eq!(name(Class::SUBN_LID, 0x12), "SwitchInfo");
        assert_eq!(name(Class::SUBN_ADM, 0x12), "PortInfoRecord");
        assert_eq!(name(Class::PERFORMANCE, 0x12), "PortCounters");
        assert_eq!(name(Class::COMMUNICATION, 0x10), "ConnectRequest");
        assert_eq!(name(Class::SUBN_ADM, 0x02), "Notice");
        assert_eq!(name(Class(0x30), 0x12), "0x0012");
    }

    #[test]
    fn header_in_place() {
        let mut bytes = [0; SIZE];
        let mut mad = Mad::new_checked(&mut bytes).unwrap();
        mad.set_class(Class::SUBN_DIRECTED);
        mad.set_method(Method::GET);
        mad.set_transaction(0x0102_0304_0506_0708);
        mad.set_attribute(AttributeId::NODE_INFO, 0x11);
        assert_eq!(
            mad.to_string(),
            "SubnDirectedGet(NodeInfo) modifier=0x00000011 transaction=0x0102030405060708 status=OK"
        );
        assert_eq!(
            bytes[..24],
            [
                1, 0x81, 1, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x11, 0, 0, 0, 0, 0, 0x11
            ]
        );
        assert!(Mad::new_checked(&bytes[..255]).is_err());
    }

    #[test]
    fn status_keeps_the_direction() {
        let mut bytes = [0; SIZE];
        bytes[4] = 0x80;
        let mut mad = Mad::new_checked(&mut bytes).unwrap();
        mad.set_status(Status::INVALID_FIELD);
        assert_eq!(mad.status(), Status::INVALID_FIELD);
        assert_eq!(bytes[4..6], [0x80, 0x1c]);
    }

    #[test]
    fn unknown_numbers_print() {
        assert_eq!(Method(0x55).to_string(), "0x55");
        assert_eq!(AttributeId(0xff91).to_string(), "0xff91");
    }
}
