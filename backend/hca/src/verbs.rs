//! What the verbs are about: domains, queues and queue pairs, the work posted to them, and why it fails.
//! The verbs themselves are methods of the engine, here beside what they create and change.

pub(crate) mod connection;
pub(crate) mod counters;
pub(crate) mod dynamic;
pub(crate) mod migration;
pub(crate) mod multicast;
pub(crate) mod objects;
pub(crate) mod reserved;
