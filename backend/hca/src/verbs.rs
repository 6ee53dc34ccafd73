//! The verbs: methods of the engine that create, change and destroy domains, queues and queue pairs.

pub(crate) mod connection;
pub(crate) mod counters;
pub(crate) mod dynamic;
pub(crate) mod migration;
pub(crate) mod multicast;
pub(crate) mod objects;
pub(crate) mod reserved;
