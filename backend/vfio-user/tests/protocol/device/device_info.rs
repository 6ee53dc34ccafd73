//! DEVICE_GET_INFO.

use crate::harness::{Served, words};

#[test]
fn a_pci_device_that_can_be_reset() {
    let mut served = Served::negotiated();
    let answer = served.ask(4, &words(&[16, 0, 0, 0]), &[]);
    // argsz, RESET | PCI, regions, interrupt types.
    assert_eq!(answer.payload, words(&[16, 3, 9, 5]));
    // Clients built against a newer linux/vfio.h send more.
    assert_eq!(
        served.ask(4, &words(&[24, 0, 0, 0, 0, 0]), &[]).payload,
        words(&[16, 3, 9, 5])
    );
}

#[test]
fn malformed_requests() {
    let mut served = Served::negotiated();
    for payload in [vec![], words(&[16, 0, 0]), words(&[15, 0, 0, 0]), vec![16]] {
        assert_eq!(served.ask(4, &payload, &[]).error, libc::EINVAL);
    }
    served.assert_in_step();
}
