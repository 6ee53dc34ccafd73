//! REGION_READ and REGION_WRITE.

use ibvswitch_vfio_user::testing::{
    BAR, BAR_SIZE, CONFIG, DMA_DATA, DMA_READ, DMA_RESULT, DMA_WRITE,
};
use ibvswitch_vfio_user::{MAX_DATA_XFER_SIZE, Protection};

use crate::harness::{Served, content, memory, message};

fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend_from_slice(&region.to_le_bytes());
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn written_bytes_are_read_back() {
    let mut served = Served::negotiated();
    let request = [
        0x04, 0x01, 0, 0, 0, 0, 0, 0, // offset
        0, 0, 0, 0, // region
        3, 0, 0, 0, // count
        0xaa, 0xbb, 0xcc,
    ];
    assert_eq!(served.ask(10, &request, &[]).payload, request[..16]);
    assert_eq!(served.ask(9, &request[..16], &[]).payload, request);
    assert_eq!(
        served.ask(9, &access(0x106, 0, 2, &[]), &[]).payload,
        access(0x106, 0, 2, &[0xcc, 0])
    );
}

#[test]
fn all_of_configuration_space() {
    let mut served = Served::negotiated();
    let answer = served.ask(9, &access(0, 7, 4096, &[]), &[]);
    assert_eq!(answer.payload, access(0, 7, 4096, &[0xc0; 4096]));
}

#[test]
fn posted_writes_are_done_in_order_and_not_answered() {
    let mut served = Served::negotiated();
    for value in 0..100u8 {
        let write = access(0x200, 0, 1, &[value]);
        served.send(&message(value.into(), 10, 0x10, &write), &[]);
        // Not even when they fail.
        let write = access(BAR_SIZE, 0, 1, &[value]);
        served.send(&message(value.into(), 10, 0x10, &write), &[]);
    }
    assert_eq!(
        served.ask(9, &access(0x200, 0, 1, &[]), &[]).payload,
        access(0x200, 0, 1, &[99])
    );
}

#[test]
fn one_mebibyte_and_no_more() {
    let mut served = Served::negotiated();
    let data: Vec<u8> = (0..MAX_DATA_XFER_SIZE)
        .map(|index| (index % 251) as u8)
        .collect();
    let count = MAX_DATA_XFER_SIZE;
    assert_eq!(
        served.ask(10, &access(64, 0, count, &data), &[]).payload,
        access(64, 0, count, &[])
    );
    assert_eq!(
        served.ask(9, &access(64, 0, count, &[]), &[]).payload,
        access(64, 0, count, &data)
    );
    assert_eq!(
        served.ask(9, &access(0, 0, count + 1, &[]), &[]).error,
        libc::E2BIG
    );
    assert_eq!(
        served.ask(9, &access(0, 0, u32::MAX, &[]), &[]).error,
        libc::E2BIG
    );
    served.assert_in_step();
}

#[test]
fn accesses_outside_of_a_region_are_refused() {
    let mut served = Served::negotiated();
    for (offset, region, count) in [
        (BAR_SIZE, BAR, 1),
        (BAR_SIZE - 1, BAR, 2),
        (u64::MAX, BAR, 1),
        (u64::MAX - 3, BAR, 4),
        (1 << 63, BAR, 4),
        (4096, CONFIG, 1),
        (0, 1, 1),
        (0, 8, 1),
        (0, 9, 1),
        (0, u32::MAX, 1),
    ] {
        let read = served.ask(9, &access(offset, region, count, &[]), &[]);
        assert_eq!(read.error, libc::EINVAL, "read {region} at {offset:#x}");
        let data = vec![0; count as usize];
        let write = served.ask(10, &access(offset, region, count, &data), &[]);
        assert_eq!(write.error, libc::EINVAL, "write {region} at {offset:#x}");
    }
    assert_eq!(
        served.ask(10, &access(0, CONFIG, 1, &[0]), &[]).error,
        libc::EINVAL
    );
    served.assert_in_step();
}

#[test]
fn nothing_at_all_is_accepted() {
    let mut served = Served::negotiated();
    assert_eq!(
        served.ask(9, &access(BAR_SIZE, 0, 0, &[]), &[]).payload,
        access(BAR_SIZE, 0, 0, &[])
    );
    assert_eq!(
        served.ask(10, &access(0, 0, 0, &[]), &[]).payload,
        access(0, 0, 0, &[])
    );
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    for payload in [
        vec![],
        access(0, 0, 4, &[])[..15].to_vec(),
        access(0, 0, 4, &[1, 2, 3]),
        access(0, 0, 4, &[1, 2, 3, 4, 5]),
        access(0, 0, u32::MAX, &[1]),
        access(0, 0, 0, &[1]),
    ] {
        assert_eq!(
            served.ask(10, &payload, &[]).error,
            libc::EINVAL,
            "{payload:x?}"
        );
    }
    assert_eq!(
        served.ask(9, &access(0, 0, 1, &[1]), &[]).error,
        libc::EINVAL
    );
    assert_eq!(served.ask(9, &[0; 15], &[]).error, libc::EINVAL);
    // Several writes in one message were not offered.
    assert_eq!(served.ask(15, &[0; 32], &[]).error, libc::EOPNOTSUPP);
    served.assert_in_step();
}

#[test]
fn an_access_can_make_the_device_do_dma() {
    let (mut client, _served) = Served::client();
    let memory = memory(0x2000, 0);
    let fd = std::os::fd::AsFd::as_fd(memory.fd());
    client
        .dma_map(
            Some(fd),
            0x1000,
            0x7000_0000,
            0x1000,
            Protection::READ_WRITE,
        )
        .unwrap();
    client
        .region_post(BAR, DMA_WRITE, &0x7000_0010u64.to_le_bytes())
        .unwrap();
    client
        .region_post(BAR, DMA_READ, &0x7000_0010u64.to_le_bytes())
        .unwrap();
    let mut result = [0; 8];
    client.region_read(BAR, DMA_RESULT, &mut result).unwrap();
    assert_eq!(result, DMA_DATA);
    assert_eq!(content(&memory, 0x1010, 8), DMA_DATA);
    client.dma_unmap_all().unwrap();
    client
        .region_write(BAR, DMA_WRITE, &0x7000_0020u64.to_le_bytes())
        .unwrap();
    assert_eq!(content(&memory, 0x1020, 8), [0; 8]);
}
