//! Path computation: which way packets between machines shall go.
//!
//! The schemes compared in "LID Assignment in InfiniBand Networks" (Nienaber, Yuan, Duan). They work
//! on a [`Network`](crate::Network) and answer with paths, whose LIDs a [`Heuristic`](crate::Heuristic) then
//! finds. Up*/down* keeps the paths of a scheme free of deadlock.

mod load;
mod renaming;
mod selection;
mod shortest;
mod single;
mod up_down;

pub use load::{LinkLoads, maximum_load};
pub use renaming::{DestinationRenaming, Renamed};
pub use selection::{CANDIDATES, PathSelection};
pub use shortest::{ShortestWidest, repair};
pub use single::SingleLid;
pub use up_down::{Legality, NotConnected, UpDown};
