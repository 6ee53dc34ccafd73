//! Reliable multi-packet transactions: how what is longer than one datagram travels (IBA 13.6).
//!
//! The header follows the common one in every datagram of a class that can use it; the flags tell whether it is
//! reliable.

use core::ops::Range;

use crate::layout::layout;
use crate::management::mad::SIZE;

/// Where the header lies in a datagram.
pub const HEADER: Range<usize> = 24..36;
/// Bytes of a datagram that the header's payload length counts: all after this header.
pub const PAYLOAD: Range<usize> = 36..SIZE;

layout! {
    /// The header (IBA 13.6.2.1).
    Rmpp, 12 bytes {
        /// Version, 1; where the protocol is not in use nobody looks.
        version: u8 = 0..8,
        /// One of the constants here; 0 where the protocol is not in use.
        kind: u8 = 8..16,
        /// The sender's longest time to answer: 4.096 us * 2^value; 31: not said.
        response_time: u8 = 16..21,
        /// Set of the flags here.
        flags: u8 = 21..24,
        /// Why a transfer is stopped or aborted.
        status: u8 = 24..32,
        /// The segment's number, from 1, in data and in an acknowledgement.
        segment: u32 = 32..64,
        /// PayloadLength or NewWindowLast: the bytes of all payloads in the first segment, the bytes
        /// of its own payload in the last segment, the highest segment that may be sent in an
        /// acknowledgement.
        length: u32 = 64..96,
    }
}

impl Rmpp {
    /// Version of the protocol.
    pub const VERSION: u8 = 1;

    /// A segment.
    pub const DATA: u8 = 1;
    /// Takes in segments.
    pub const ACK: u8 = 2;
    /// Wants no more for want of resources.
    pub const STOP: u8 = 3;
    /// Gives up for an error.
    pub const ABORT: u8 = 4;

    /// The protocol is in use.
    pub const ACTIVE: u8 = 1;
    /// The first segment.
    pub const FIRST: u8 = 2;
    /// The last segment.
    pub const LAST: u8 = 4;

    /// "Response time not said".
    pub const NO_RESPONSE_TIME: u8 = 31;

    /// Status of a stop: no resources.
    pub const RESOURCES: u8 = 1;
    /// Status of an abort: the kind is none of the four.
    pub const BAD_TYPE: u8 = 121;
    /// Status of an abort: the window shrinks.
    pub const WINDOW_TOO_SMALL: u8 = 122;
    /// Status of an abort: no such segment was sent.
    pub const SEGMENT_TOO_BIG: u8 = 123;
    /// Status of an abort: version unknown.
    pub const UNSUPPORTED_VERSION: u8 = 125;
    /// Status of an abort: nobody acknowledged.
    pub const TOO_MANY_RETRIES: u8 = 126;

    /// The header in a datagram.
    ///
    /// # Errors
    /// [`Error::Truncated`](crate::Error::Truncated).
    pub fn of(mad: &[u8]) -> crate::Result<Self> {
        crate::layout::check::<SIZE>("RMPP datagram", mad)?;
        Self::parse(&mad[HEADER])
    }

    /// Whether the protocol is in use in this datagram.
    pub const fn is_active(&self) -> bool {
        self.flags & Self::ACTIVE != 0
    }

    /// Whether these flags are set.
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}
