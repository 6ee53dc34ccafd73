//! MIG_DATA_READ and MIG_DATA_WRITE: the image of a device that moves.

use ibvswitch_vfio_user::MigrationState::{Resuming, Running, Stop, StopCopy};
use ibvswitch_vfio_user::testing::{BAR, BAR_SIZE};
use ibvswitch_vfio_user::{MAX_DATA_XFER_SIZE, MigrationState};

use crate::device_feature::{GET, SET};
use crate::harness::{Served, words};

const READ: u16 = 17;
const WRITE: u16 = 18;

fn go(served: &mut Served, to: MigrationState) -> i32 {
    let request = words(&[16, SET | 2, to as u32, 0]);
    served.ask(16, &request, &[]).error
}

#[test]
fn an_image_goes_in_parts() {
    let mut served = Served::negotiated();
    // "0123" at offset 4 of the BAR.
    let write = [&words(&[4, 0, BAR, 4])[..], b"0123"].concat();
    assert_eq!(served.ask(10, &write, &[]).error, 0);
    assert_eq!(go(&mut served, StopCopy), 0);
    let answer = served.ask(READ, &words(&[24, 16]), &[]);
    assert_eq!(answer.payload[..8], words(&[24, 16])[..]);
    assert_eq!(&answer.payload[8..], b"\0\0\0\x000123\0\0\0\0\0\0\0\0");
    // MIG_DATA_SIZE says what is left.
    let left = served.ask(16, &words(&[16, GET | 9]), &[]);
    assert_eq!(left.payload, words(&[16, GET | 9, BAR_SIZE as u32 - 16, 0]));
    let most = MAX_DATA_XFER_SIZE;
    let mut rest = Vec::new();
    loop {
        let answer = served.ask(READ, &words(&[most + 8, most]), &[]);
        let size = answer.payload.len() as u32 - 8;
        assert_eq!(answer.payload[..8], words(&[size + 8, size])[..]);
        if size == 0 {
            break;
        }
        rest.extend_from_slice(&answer.payload[8..]);
    }
    assert_eq!(rest.len() as u64, BAR_SIZE - 16);
    // From the beginning again.
    assert_eq!((go(&mut served, Stop), go(&mut served, StopCopy)), (0, 0));
    let again = served.ask(READ, &words(&[16, 8]), &[]);
    assert_eq!(&again.payload[8..], b"\0\0\0\x000123");
    served.assert_in_step();
}

#[test]
fn a_device_becomes_another() {
    let (mut client, served) = Served::client();
    client.region_write(BAR, 0x100, b"what it was").unwrap();
    client.set_migration_state(StopCopy).unwrap();
    let image = client.read_image().unwrap();
    assert_eq!(image.len() as u64, BAR_SIZE);
    assert!(client.read_image().unwrap().is_empty());
    drop(client);
    served.end();
    let (mut client, served) = Served::client();
    client.set_migration_state(Resuming).unwrap();
    client.write_image(&image).unwrap();
    client.set_migration_state(Running).unwrap();
    assert_eq!(client.migration_state().unwrap(), Running);
    let mut read = [0; 11];
    client.region_read(BAR, 0x100, &mut read).unwrap();
    assert_eq!(&read, b"what it was");
    drop(client);
    served.end();
}

/// An image that is none: the device is nothing until it is reset.
#[test]
fn what_is_no_image() {
    let (mut client, served) = Served::client();
    client.region_write(BAR, 0, &[1; 8]).unwrap();
    client.set_migration_state(Resuming).unwrap();
    client.write_image(b"short").unwrap();
    assert!(client.set_migration_state(Running).is_err());
    assert_eq!(client.migration_state().unwrap(), MigrationState::Error);
    for state in [Stop, Running, StopCopy, Resuming] {
        assert!(client.set_migration_state(state).is_err());
    }
    client.device_reset().unwrap();
    assert_eq!(client.migration_state().unwrap(), Running);
    // Longer than any.
    client.set_migration_state(Resuming).unwrap();
    client.write_image(&vec![0; BAR_SIZE as usize]).unwrap();
    client.write_image(&[0]).unwrap();
    assert!(client.write_image(&[0]).is_err());
    drop(client);
    served.end();
}

#[test]
fn data_in_other_states() {
    let mut served = Served::negotiated();
    for (state, reads, writes) in [
        (Running, false, false),
        (Stop, false, false),
        (StopCopy, true, false),
        (Resuming, false, true),
    ] {
        assert_eq!(go(&mut served, state), 0);
        for (command, request, can) in [
            (READ, words(&[12, 4]), reads),
            (WRITE, words(&[12, 4, 0]), writes),
        ] {
            let error = served.ask(command, &request, &[]).error;
            assert_eq!(error, if can { 0 } else { libc::EINVAL }, "{state:?}");
        }
    }
    served.assert_in_step();
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    assert_eq!(go(&mut served, StopCopy), 0);
    let most = MAX_DATA_XFER_SIZE;
    for (payload, error) in [
        (vec![], libc::EINVAL),
        (words(&[8]), libc::EINVAL),
        (words(&[11, 4]), libc::EINVAL),
        (words(&[8, u32::MAX]), libc::EINVAL),
        (words(&[12, 4, 0]), libc::EINVAL),
        (words(&[most + 9, most + 1]), libc::E2BIG),
    ] {
        assert_eq!(served.ask(READ, &payload, &[]).error, error, "{payload:?}");
    }
    assert_eq!(go(&mut served, Resuming), 0);
    for payload in [
        vec![],
        words(&[16, 8, 0]),
        words(&[12, 4, 0, 0]),
        words(&[8, 4, 0]),
    ] {
        let error = served.ask(WRITE, &payload, &[]).error;
        assert_eq!(error, libc::EINVAL, "{payload:?}");
    }
    served.assert_in_step();
}
