//! Timer codes of the InfiniBand specification.

/// Time until a queue pair without a local ACK timeout looks for its path again, in nanoseconds.
const NO_TIMEOUT_RECHECK: u64 = 100_000_000;

/// RNR NAK timer field in units of 10 µs (specification table 45).
const RNR_TIMER: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Local ACK timeout in nanoseconds (specification 9.7.6.1.3).
pub(crate) const fn local_ack_timeout(code: u8) -> u64 {
    if code == 0 {
        NO_TIMEOUT_RECHECK
    } else {
        4096 << (code & 31)
    }
}

/// Time until a receiver that was not ready is asked again, in nanoseconds.
pub(crate) fn rnr_time(code: u8) -> u64 {
    u64::from(RNR_TIMER[usize::from(code & 31)]) * 10_000
}
