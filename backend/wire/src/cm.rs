//! Where addresses stand in messages of the communication manager (IBA 12.6).
//!
//! A connection manager tells its peer inside the message who it is and by which way it is reached;
//! these are the fields that whoever passes messages on must check, or translate.

use crate::management::mad::AttributeId;

/// Bytes of the header before a message (IBA 13.4.3).
const HEADER: usize = 24;

/// Messages (IBA 12.6).
impl AttributeId {
    /// Request for a connection (communication management).
    pub const CM_REQ: Self = Self(0x0010);
    /// More time is needed (communication management).
    pub const CM_MRA: Self = Self(0x0011);
    /// Refuses a connection (communication management).
    pub const CM_REJ: Self = Self(0x0012);
    /// Answers a request (communication management).
    pub const CM_REP: Self = Self(0x0013);
    /// The connection is ready to use (communication management).
    pub const CM_RTU: Self = Self(0x0014);
    /// Ends a connection (communication management).
    pub const CM_DREQ: Self = Self(0x0015);
    /// It has ended (communication management).
    pub const CM_DREP: Self = Self(0x0016);
    /// Answers [`AttributeId::CM_SIDR_REQ`] (communication management).
    pub const CM_SIDR_REP: Self = Self(0x0018);
    /// Loads an alternate path (communication management).
    pub const CM_LAP: Self = Self(0x0019);
    /// Answers [`AttributeId::CM_LAP`] (communication management).
    pub const CM_APR: Self = Self(0x001a);
    /// Asks for the queue pair of a service (communication management).
    pub const CM_SIDR_REQ: Self = Self(0x0017);
}

/// One end-to-end path inside a message: byte offsets within the 256 bytes of the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathPlaces {
    /// LID of the sender's port, 16 bits, big endian as all of them.
    pub local_lid: usize,
    /// LID of the receiver's port, 16 bits.
    pub remote_lid: usize,
    /// GID of the sender's port, 128 bits.
    pub local_gid: usize,
}

/// Offsets of addresses in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Its paths: primary and alternate, or the alternate one.
    pub paths: &'static [PathPlaces],
    /// Offset of the P_Key of the connection to be, 16 bits.
    pub pkey: Option<usize>,
}

/// The places in a message of this attribute (tables 106, 115 and 119 of IBA 12.6); all others carry
/// none but a [`Remedy`].
pub const fn places(attribute: AttributeId) -> Places {
    const PRIMARY: PathPlaces = PathPlaces {
        local_lid: HEADER + 52,
        remote_lid: HEADER + 54,
        local_gid: HEADER + 56,
    };
    const ALTERNATE: PathPlaces = PathPlaces {
        local_lid: HEADER + 96,
        remote_lid: HEADER + 98,
        local_gid: HEADER + 100,
    };
    const LOADED: PathPlaces = PathPlaces {
        local_lid: HEADER + 20,
        remote_lid: HEADER + 22,
        local_gid: HEADER + 24,
    };
    match attribute {
        AttributeId::CM_REQ => Places {
            paths: &[PRIMARY, ALTERNATE],
            pkey: Some(HEADER + 48),
        },
        AttributeId::CM_LAP => Places {
            paths: &[LOADED],
            pkey: None,
        },
        AttributeId::CM_SIDR_REQ => Places {
            paths: &[],
            pkey: Some(HEADER + 4),
        },
        _ => Places {
            paths: &[],
            pkey: None,
        },
    }
}

/// Remedy in a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// A LID that would do, 16 bits, at this offset.
    Lid(usize),
    /// The ClassPortInfo of somebody else to ask, at this offset.
    Redirection(usize),
}

/// The remedy that a message, the whole datagram, carries for its reason (tables 107, 116 and 120 of
/// IBA 12.6), where there are addresses in it.
pub fn remedy(attribute: AttributeId, mad: &[u8; crate::management::mad::SIZE]) -> Option<Remedy> {
    const DETAILS: usize = HEADER + 12;
    match attribute {
        AttributeId::CM_REJ => match u16::from_be_bytes([mad[HEADER + 10], mad[HEADER + 11]]) {
            // The LID of the primary or of the alternate path is not that of the receiver.
            13 | 19 => Some(Remedy::Lid(DETAILS)),
            24 => Some(Remedy::Redirection(DETAILS)),
            _ => None,
        },
        AttributeId::CM_APR => match mad[HEADER + 9] {
            4 => Some(Remedy::Redirection(DETAILS)),
            7 => Some(Remedy::Lid(DETAILS)),
            _ => None,
        },
        AttributeId::CM_SIDR_REP if mad[HEADER + 4] == 4 => Some(Remedy::Redirection(HEADER + 24)),
        _ => None,
    }
}
