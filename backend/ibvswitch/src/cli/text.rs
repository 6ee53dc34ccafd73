//! Numbers, sizes and findings as people write and read them.

pub(super) mod bytes;
pub(super) mod finding;
pub(super) mod fraction;
pub(super) mod number;
