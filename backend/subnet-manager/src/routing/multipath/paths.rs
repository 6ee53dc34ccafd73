//! Path computation: which way packets between machines shall go.
//!
//! The schemes compared in "LID Assignment in InfiniBand Networks" (Nienaber, Yuan, Duan). They work
//! on a [`Network`](super::Network) and answer with paths, whose LIDs a [`Heuristic`](super::Heuristic) then
//! finds. Up*/down* keeps the paths of a scheme free of deadlock.

mod load;
mod renaming;
mod selection;
mod shortest;
mod up_down;

pub use load::{LinkLoads, maximum_load};
pub use renaming::{DestinationRenaming, Renamed};
pub use selection::{CANDIDATES, PathSelection};
pub(super) use shortest::lightest;
pub use shortest::{ShortestWidest, repair};
pub(super) use up_down::Distances;
pub use up_down::{Legality, NotConnected, UpDown};
