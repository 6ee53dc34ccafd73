//! Links: cables, their rates, their lanes and what is wrong with them.

pub(crate) mod arbitration;
pub(crate) mod credits;
pub(crate) mod fault;
pub(crate) mod link;
