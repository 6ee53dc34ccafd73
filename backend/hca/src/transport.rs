//! Data in frames: what goes to other engines, or over links that lose, delay or show it.
//!
//! Each side of a connection owns itself: a `requester` takes requests and answers and gives frames and
//! completions, a `responder` takes frames and gives answers. Frames leave and arrive at an [`Endpoint`]; the
//! faults of links are decorators of it. Messages between functions of one engine with a clean path do not come
//! here: they are one copy (the module `message`).

pub(crate) mod arrived;
pub(crate) mod datagram;
pub(crate) mod dynamic;
pub(crate) mod endpoint;
mod exchange;
pub(crate) mod frame;
pub(crate) mod network;
pub(crate) mod payload;
pub(crate) mod refusal;
mod reply;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod room;
pub(crate) mod tagged;

pub use crate::memory::lending::Loan;
pub(crate) use datagram::frame::{framed, unframed};
pub(crate) use endpoint::InFlight;
pub use endpoint::capture::{Captured, Physical, Seen, Watch};
pub use endpoint::delay::Delayed;
pub(crate) use endpoint::exits::Exits;
pub use endpoint::injection::Injection;
pub use endpoint::links::{Links, Load, Passed};
pub use endpoint::loss::Lossy;
pub use endpoint::mesh::{Crossings, Door, Homes, Mesh, MyDoor, RING};
pub use endpoint::share::Shared;
pub use endpoint::single::Single;
pub use endpoint::station::Station;
pub use endpoint::{Destination, Endpoint, Loopback, Outside, Transmit, Wire};
pub use frame::packets::{Extract, NotAFrame, Packet};
pub use frame::{Address, Content, Frame, MAX_PAYLOAD, Session, Syndrome, Tail, Target};
pub(crate) use frame::{DATAGRAM_WORDS, HEADER_WORDS};
pub(crate) use requester::away::Away;
pub(crate) use room::Room;
