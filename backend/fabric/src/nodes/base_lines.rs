//! Where the counters of a port began.

use crate::nodes::counters::DataBySl;

/// Counters of PortCounters, in the order of its selection bits; the last one's is in
/// CounterSelect2.
pub(crate) const SHORT: usize = 17;
/// Counters of PortCountersExtended, in the order of its selection bits.
pub(crate) const LONG: usize = 8;
/// Counters of PortRcvErrorDetails, in the order of its selection bits.
pub(crate) const ERRORS: usize = 6;
/// Counters of PortXmitDiscardDetails, in the order of its selection bits.
pub(crate) const DISCARDS: usize = 4;

/// Where each counter of the attributes began: what a Set moves.
#[derive(Debug, Clone, Default)]
pub(crate) struct BaseLines {
    pub(crate) short: [u64; SHORT],
    pub(crate) long: [u64; LONG],
    pub(crate) errors: [u64; ERRORS],
    pub(crate) discards: [u64; DISCARDS],
    /// Base lines of PortXmitDataSL and PortRcvDataSL; none until somebody writes them.
    pub(crate) by_sl: Option<Box<DataBySl>>,
}
