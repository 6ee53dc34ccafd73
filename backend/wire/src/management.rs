//! Management datagrams: what is common to all of them, and the data of each class.

pub mod attribute;
pub mod congestion;
pub mod mad;
pub mod performance;
pub mod rmpp;
pub mod sa;
pub mod smp;
pub mod vendor;
