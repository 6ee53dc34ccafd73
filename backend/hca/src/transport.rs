//! Data in frames: what goes to other engines, or over links that lose, delay or show it.
//!
//! Each side of a connection owns itself: a `requester` takes requests and answers and gives frames and
//! completions, a `responder` takes frames and gives answers. Frames leave and arrive at an
//! [`Endpoint`]; what links do to them are decorators of it. Messages between functions of one engine
//! with a clean path do not come here: they are one copy (the module `message`).

pub(crate) mod away;
mod capture;
pub(crate) mod datagram;
mod datagrams;
pub(crate) mod dynamic;
mod endpoint;
mod exchange;
mod exits;
mod frame;
mod held;
mod injection;
mod lanes;
mod mesh;
mod packets;
mod paging;
mod payload;
pub(crate) mod receiving;
pub(crate) mod refusal;
mod reply;
pub(crate) mod requester;
pub(crate) mod responder;
mod room;
mod single;
mod station;
pub(crate) mod tagged;

pub use crate::memory::lending::Loan;
pub(crate) use away::Away;
pub use capture::{Captured, Physical, Seen, Watch};
pub(crate) use datagrams::{framed, unframed};
pub(crate) use endpoint::Afloat;
pub use endpoint::{Delayed, Destination, Endpoint, Loopback, Lossy, Outside, Transmit, Wire};
pub(crate) use exits::Exits;
pub use frame::{Address, Content, Frame, MAX_PAYLOAD, Session, Syndrome, Tail, Target};
pub(crate) use frame::{DATAGRAM_WORDS, HEADER_WORDS};
pub use injection::Injection;
pub use lanes::{Links, Load, Passed, Shared};
pub use mesh::{Crossings, Door, Homes, Mesh, MyDoor, RING};
pub use packets::{Extract, NotAFrame, Packet};
pub(crate) use room::Room;
pub use single::Single;
pub use station::Station;
