//! DEVICE_RESET.

use std::sync::atomic::Ordering;

use ibvswitch_vfio_user::testing::BAR;

use crate::harness::{Served, eventfd, signals};

#[test]
fn the_device_is_reset_and_keeps_its_interrupts() {
    let (mut client, served) = Served::client();
    let interrupt = eventfd();
    client
        .set_irqs(2, 5, &[std::os::fd::AsFd::as_fd(&interrupt)])
        .unwrap();
    client.region_write(BAR, 0x100, b"state").unwrap();
    client.device_reset().unwrap();
    let mut data = [1; 5];
    client.region_read(BAR, 0x100, &mut data).unwrap();
    assert_eq!(data, [0; 5]);
    assert_eq!(served.events.resets.load(Ordering::Relaxed), 1);
    client.region_write(BAR, 0, &5u32.to_le_bytes()).unwrap();
    assert_eq!(signals(&interrupt), 1);
}

#[test]
fn it_has_no_payload() {
    let mut served = Served::negotiated();
    assert_eq!(served.ask(13, &[0], &[]).error, libc::EINVAL);
    assert_eq!(served.events.resets.load(Ordering::Relaxed), 0);
    let answer = served.ask(13, &[], &[]);
    assert_eq!((answer.error, answer.payload.len()), (0, 0));
}
