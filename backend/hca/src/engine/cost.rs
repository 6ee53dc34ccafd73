//! Work of a turn is counted in *cost*: bytes that could be copied in the time. Copies cost their bytes; requests,
//! lookups of indirect keys, completions and other work that moves no bytes have their costs here.

/// Cost of a turn while nobody else has work: 10 to 20 microseconds.
pub(crate) const TURN: i64 = 128 * 1024;
/// Cost of a turn while others have work: how long each of them waits for it.
pub(crate) const SHARED_TURN: i64 = 16 * 1024;
/// Cost of a request: to fetch it, to check it, to complete it.
pub(crate) const REQUEST_COST: i64 = 1024;
/// Cost of a look at an object that is seldom in the cache.
pub(crate) const LOOK_COST: i64 = 512;
/// Cost of a timer that runs out.
pub(crate) const TIMER_COST: i64 = 1024;
/// Cost of a queue pair that fails: an event and its interrupt, and some requests that are flushed.
pub(crate) const FAILURE_COST: i64 = 8 * 1024;
/// Cost of an object that is taken away after a reset.
pub(crate) const REMOVAL_COST: i64 = 256;
