//! A disk of one guest that another uses by NVMe over RDMA: the kernel's own use of verbs, with memory that is
//! registered by work requests and keys that the other end invalidates.

use std::time::Duration;

use ibvswitch_guest_tests::{
    Result,
    checks::Checks,
    diags::no_kernel_warning,
    hca::await_active,
    image::Kernel,
    ipoib, nvme,
    testbed::{DEVICE, Testbed},
};

const LIMIT: Duration = Duration::from_secs(180);
/// Size of the disk.
const MEBIBYTES: u32 = 16;
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];

#[test]
fn a_disk_by_rdma() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", None)?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    let [server, client] = &guests;
    for (guest, address) in guests.iter().zip(ADDRESSES) {
        await_active(guest, DEVICE)?;
        ipoib::up(guest, "ib0", address, LIMIT)?;
    }
    nvme::serve(server, ADDRESSES[0], MEBIBYTES, LIMIT)?;
    let mut checks = Checks::default();
    checks.check("what was written is read", || {
        let disk = nvme::attach(client, ADDRESSES[0], LIMIT)?;
        nvme::verify(client, &disk, MEBIBYTES, LIMIT)
    });
    checks.check("taken away and attached again", || {
        nvme::detach(client, LIMIT)?;
        let disk = nvme::attach(client, ADDRESSES[0], LIMIT)?;
        nvme::verify(client, &disk, MEBIBYTES, LIMIT)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
