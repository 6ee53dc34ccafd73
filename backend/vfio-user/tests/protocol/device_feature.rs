//! DEVICE_FEATURE.

use crate::harness::{Served, words};

const GET: u32 = 1 << 16;
const SET: u32 = 1 << 17;
const PROBE: u32 = 1 << 18;

#[test]
fn there_are_none() {
    let mut served = Served::negotiated();
    for feature in 0..=12 {
        for method in [GET, SET, PROBE, PROBE | GET, PROBE | SET, PROBE | GET | SET] {
            let answer = served.ask(16, &words(&[8, method | feature]), &[]);
            assert_eq!(answer.error, libc::ENOTTY, "feature {feature}");
        }
    }
    // With data, as for DMA_LOGGING_START.
    assert_eq!(
        served
            .ask(16, &words(&[32, SET | 6, 4096, 0, 0, 0, 0, 0]), &[])
            .error,
        libc::ENOTTY
    );
    served.assert_in_step();
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    for payload in [
        vec![],
        words(&[8]),
        words(&[7, GET | 1]),
        words(&[8, 1]),
        words(&[8, GET | SET | 1]),
        words(&[8, GET | 1 << 19]),
    ] {
        assert_eq!(
            served.ask(16, &payload, &[]).error,
            libc::EINVAL,
            "{payload:x?}"
        );
    }
    served.assert_in_step();
}
