//! Commands about queues, queue pairs and targets of dynamic connections.

pub(crate) mod completion_queue;
pub(crate) mod dynamic;
pub(crate) mod event_queue;
pub(crate) mod multicast;
pub(crate) mod queue_pair;
pub(crate) mod receive_pool;
pub(crate) mod shared_receive_queue;
