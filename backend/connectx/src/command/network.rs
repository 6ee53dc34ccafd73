//! Commands of network interfaces.

pub(crate) mod flow_table;
pub(crate) mod interface;
pub(crate) mod work_queue;
