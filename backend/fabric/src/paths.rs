//! Paths: what the data plane asks once and keeps.

pub(crate) mod route;
pub(crate) mod router;
