//! Commands that show or change the subnet of a running daemon.

pub(super) mod capture;
pub(super) mod counters;
pub(super) mod external;
pub(super) mod link;
pub(super) mod sm;
pub(super) mod topology;
