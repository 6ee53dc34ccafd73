//! Requests that end in the same engine, over a path where nothing is lost, late or watched: one copy,
//! no frame. Requests that a queue pair carries out alone, at memory keys, are here as well.

pub(crate) mod atomic;
pub(crate) mod datagram;
pub(crate) mod delivery;
pub(crate) mod key_update;
pub(crate) mod message;
mod payload;
pub(crate) mod requester;
mod steering;
