//! Links: cables, their rates, their lanes and what is wrong with them.

pub(crate) mod arbitration;
pub(crate) mod credits;
pub(crate) mod fault;
pub(crate) mod link;
pub(crate) mod loss;
pub(crate) mod marks;
pub(crate) mod queues;
pub(crate) mod rate;
pub(crate) mod starved;
