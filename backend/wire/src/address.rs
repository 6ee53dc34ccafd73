//! Addresses, keys and numbers that packets carry.

pub(crate) mod extended_lid;
pub(crate) mod gid;
pub(crate) mod guid;
pub(crate) mod lid;
pub(crate) mod partition;
pub(crate) mod queue_pair;
