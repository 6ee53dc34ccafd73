//! InfiniBand on the wire: addresses, packet headers, MADs and capture records.
//!
//! Everything here is pure: no I/O, no clock, and reading needs no allocation. Bytes are big
//! endian as on the wire; the types in this crate hold host-order values.
//!
//! * Addresses and numbers: [`Lid`], [`Guid`], [`Gid`], [`PKey`], [`QKey`], [`Qpn`], [`Psn`],
//!   [`Sl`], [`Vl`], [`Mtu`]. All parse with [`FromStr`](core::str::FromStr) what they print with
//!   [`Display`](core::fmt::Display).
//! * Headers: [`header`] has the local and global route headers and the transport headers.
//! * Management: [`mad`] (the common header), [`smp`] (directed and LID routing), [`attribute`]
//!   (what subnet management packets carry), [`performance`] (what the performance agent carries),
//!   [`vendor`] (what devices tell of themselves), [`sa`] (subnet administration and its records), [`rmpp`] (how long answers travel), [`packet`]
//!   (a MAD with its addressing, as a whole packet).
//! * [`ipoib`]: addresses, groups and trains of IP over InfiniBand; [`internet`]: the checksum of what it carries.
//! * [`crc`] and [`erf`]: what makes a packet one that a packet analyser accepts.
//!
//! "IBA" with a number is a clause of *InfiniBand Architecture Specification, Volume 1*.
//!
//! ```
//! use ibvswitch_wire::{Guid, Lid, PKey};
//! let lid: Lid = "0x12".parse().unwrap();
//! assert_eq!(lid.to_string(), "18");
//! assert_eq!(format!("{lid:#}"), "18 (0x0012)");
//! let guid: Guid = "0002:c903:0000:0101".parse().unwrap();
//! assert_eq!(guid.value(), 0x0002_c903_0000_0101);
//! assert!(PKey::DEFAULT_FULL.matches(PKey::DEFAULT_LIMITED));
//! ```

#![forbid(unsafe_code)]

pub mod attribute;
mod bits;
pub mod cm;
pub mod congestion;
pub mod crc;
pub mod erf;
mod error;
mod extended_lid;
mod gid;
mod guid;
pub mod header;
pub mod internet;
pub mod ipoib;
mod layout;
mod lid;
mod link;
pub mod mad;
pub mod packet;
mod partition;
pub mod performance;
mod queue_pair;
pub mod rmpp;
pub mod sa;
mod serial;
pub mod smp;
pub mod vendor;

pub use error::{Error, ParseError, Result};
pub use extended_lid::ExtendedLid;
pub use gid::Gid;
pub use guid::Guid;
pub use layout::{Kind, byte_of};
pub use lid::Lid;
pub use link::{LinkSpeed, LinkSpeedExt, LinkWidth, Mtu, PhysicalState, PortState, Sl, Vl};
pub use packet::MadPacket;
pub use partition::{PKey, QKey};
pub use queue_pair::{Psn, Qpn};
