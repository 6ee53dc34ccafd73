//! Queues, what is posted to them, and their completions.

pub(crate) mod completion;
pub(crate) mod dynamic;
pub(crate) mod network;
pub(crate) mod queue_pair;
pub(crate) mod request;
pub(crate) mod segment;
pub(crate) mod shared_receive;
pub(crate) mod tags;
