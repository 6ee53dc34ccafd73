//! DEVICE_GET_REGION_INFO.

use ibvswitch_vfio_user::SparseArea;
use ibvswitch_vfio_user::testing::MAPPABLE;

use crate::harness::{Served, words};

fn request(argsz: u32, index: u32) -> Vec<u8> {
    words(&[argsz, 0, index, 0, 0, 0, 0, 0])
}

#[test]
fn regions_without_capabilities() {
    let mut served = Served::negotiated();
    // READ 1, WRITE 2. Size and offset are of 8 bytes.
    for (index, flags, size) in [
        (0, 3, 2 << 20),
        (1, 0, 0),
        (6, 0, 0),
        (7, 1, 4096),
        (8, 0, 0),
    ] {
        for argsz in [32, 4096, u32::MAX] {
            let answer = served.ask(5, &request(argsz, index), &[]);
            assert_eq!(answer.payload, words(&[32, flags, index, 0, size, 0, 0, 0]));
            assert!(answer.fds.is_empty());
        }
    }
}

#[test]
fn a_short_reply_says_where_the_capability_would_be() {
    let mut served = Served::negotiated();
    for argsz in [32, 33, 79] {
        let answer = served.ask(5, &request(argsz, 2), &[]);
        // argsz of all, READ | WRITE | MMAP | CAPS, cap_offset 32.
        assert_eq!(answer.payload, words(&[80, 15, 2, 32, 16384, 0, 0, 0]));
        assert!(answer.fds.is_empty());
    }
}

#[test]
fn a_full_reply_has_the_areas_and_the_file() {
    let mut served = Served::negotiated();
    for argsz in [80, 4096] {
        let answer = served.ask(5, &request(argsz, 2), &[]);
        #[rustfmt::skip]
        let expected = words(&[
            80, 15, 2, 32, 16384, 0, 0, 0,
            0x0001_0001, 0, // SPARSE_MMAP version 1, the last capability
            2, 0, // areas
            4096, 0, 4096, 0,
            12288, 0, 4096, 0,
        ]);
        assert_eq!(answer.payload, expected);
        assert_eq!(answer.fds.len(), 1);
    }
}

#[test]
fn a_client_maps_what_the_device_shares() {
    let (mut client, _served) = Served::client();
    let info = client.region_info(MAPPABLE).unwrap();
    let page = |number: u64| SparseArea {
        offset: number * 4096,
        size: 4096,
    };
    assert_eq!(info.areas, [page(1), page(3)]);
    let mapped = info.map().unwrap();
    mapped.slice(4096, 4).unwrap().copy_from(b"mmap");
    let mut data = [0; 4];
    client.region_read(MAPPABLE, 4096, &mut data).unwrap();
    assert_eq!(&data, b"mmap");
    client.region_write(MAPPABLE, 3 * 4096, b"msgs").unwrap();
    mapped.slice(3 * 4096, 4).unwrap().copy_to(&mut data);
    assert_eq!(&data, b"msgs");
}

#[test]
fn a_client_that_takes_no_descriptors_gets_nothing_to_map() {
    let mut served = Served::fresh();
    assert_eq!(
        served
            .ask(1, b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":0}}\0", &[])
            .error,
        0
    );
    let answer = served.ask(5, &request(4096, 2), &[]);
    assert_eq!(answer.payload, words(&[32, 3, 2, 0, 16384, 0, 0, 0]));
    assert!(answer.fds.is_empty());
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    for payload in [
        vec![],
        request(31, 0),
        request(0, 0),
        request(32, 9),
        request(32, u32::MAX),
        request(32, 0)[..31].to_vec(),
    ] {
        assert_eq!(served.ask(5, &payload, &[]).error, libc::EINVAL);
    }
    // GET_REGION_IO_FDS is not there at all.
    assert_eq!(
        served.ask(6, &words(&[16, 0, 0, 0]), &[]).error,
        libc::EOPNOTSUPP
    );
    served.assert_in_step();
}
