//! DEVICE_FEATURE: which there are, and what is malformed. States and logs have files of their own.

use ibvswitch_vfio_user::testing::Dummy;

use crate::harness::{Served, words};

pub const GET: u32 = 1 << 16;
pub const SET: u32 = 1 << 17;
const PROBE: u32 = 1 << 18;

/// Features of `linux/vfio.h` that there are here, with what can be done with them.
const KNOWN: [(u32, u32); 6] = [
    // MIGRATION, MIG_DEVICE_STATE, DMA_LOGGING_START, _STOP and _REPORT, MIG_DATA_SIZE.
    (1, GET),
    (2, GET | SET),
    (6, SET),
    (7, SET),
    (8, GET),
    (9, GET),
];

#[test]
fn which_there_are() {
    let mut served = Served::negotiated();
    for feature in 0..=20 {
        let known = KNOWN.iter().find(|(number, _)| *number == feature);
        for asked in [0, GET, SET, GET | SET] {
            let request = words(&[8, PROBE | asked | feature]);
            let answer = served.ask(16, &request, &[]);
            match known {
                None => assert_eq!(answer.error, libc::ENOTTY, "feature {feature}"),
                Some((_, can)) if asked & !can == 0 => {
                    assert_eq!((answer.error, answer.payload), (0, request), "{feature}");
                }
                Some(_) => assert_eq!(answer.error, libc::EINVAL, "feature {feature}"),
            }
        }
        if known.is_none() {
            for method in [GET, SET] {
                let answer = served.ask(16, &words(&[64, method | feature]), &[]);
                assert_eq!(answer.error, libc::ENOTTY, "feature {feature}");
            }
        }
    }
    served.assert_in_step();
}

/// A device can be stopped and copied. That it can run is never said.
#[test]
fn how_it_migrates() {
    let mut served = Served::negotiated();
    let answer = served.ask(16, &words(&[16, GET | 1]), &[]);
    assert_eq!(answer.payload, words(&[16, GET | 1, 1, 0]));
    // As much room as the answer needs.
    assert_eq!(
        served.ask(16, &words(&[15, GET | 1]), &[]).error,
        libc::EINVAL
    );
    served.assert_in_step();
}

/// VFIO says `ENOTTY` of features that a device has not; QEMU asks for some all the same.
#[test]
fn a_device_that_cannot_move_has_none() {
    let device = Dummy::new().unwrap().immovable();
    let mut served = Served::of(device).negotiate();
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
        // What cannot be set, and what cannot be got.
        words(&[16, SET | 1, 0, 0]),
        words(&[32, GET | 6, 0, 0]),
    ] {
        assert_eq!(
            served.ask(16, &payload, &[]).error,
            libc::EINVAL,
            "{payload:x?}"
        );
    }
    served.assert_in_step();
}
