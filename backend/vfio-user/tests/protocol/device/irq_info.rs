//! DEVICE_GET_IRQ_INFO.

use crate::harness::{Served, words};

#[test]
fn each_type() {
    let mut served = Served::negotiated();
    // EVENTFD 1, MASKABLE 2.
    for (index, flags, count) in [(0, 3, 1), (1, 0, 0), (2, 1, 40), (3, 0, 0), (4, 0, 0)] {
        let answer = served.ask(7, &words(&[16, 0, index, 0]), &[]);
        assert_eq!(answer.payload, words(&[16, flags, index, count]));
    }
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    for payload in [
        vec![],
        words(&[16, 0, 2]),
        words(&[15, 0, 2, 0]),
        words(&[16, 0, 5, 0]),
        words(&[16, 0, !0, 0]),
    ] {
        assert_eq!(served.ask(7, &payload, &[]).error, libc::EINVAL);
    }
    served.assert_in_step();
}
