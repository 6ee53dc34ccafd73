//! InfiniBand on the wire: addresses, packet headers, MADs and capture records.
//!
//! Everything here is pure: no I/O, no clock, and reading needs no allocation. Bytes are big
//! endian as on the wire; the types in this crate hold host-order values.
//!
//! * Addresses and numbers: [`Lid`], [`Guid`], [`Gid`], [`PKey`], [`QKey`], [`Qpn`], [`Psn`],
//!   [`Sl`], [`Vl`], [`Mtu`]. All parse with [`FromStr`](core::str::FromStr) what they print with
//!   [`Display`](core::fmt::Display), and other forms that tools print; nothing else in this workspace parses addresses.
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

mod address;
pub mod cm;
pub mod crc;
pub mod erf;
mod error;
pub mod header;
pub mod internet;
pub mod ipoib;
mod layout;
mod link;
mod management;
pub mod packet;
mod serial;

pub use address::extended_lid::ExtendedLid;
pub use address::gid::Gid;
pub use address::guid::{Guid, ethernet_address};
pub use address::lid::Lid;
pub use address::partition::{PKey, QKey};
pub use address::queue_pair::{Psn, Qpn};
pub use error::{Error, ParseError, Result};
pub use layout::{Kind, byte_of};
pub use link::{LinkSpeed, LinkSpeedExt, LinkWidth, Mtu, PhysicalState, PortState, Sl, Vl};
pub use management::{attribute, congestion, mad, performance, rmpp, sa, smp, vendor};
pub use packet::{MadPacket, Transport};
