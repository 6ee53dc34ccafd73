//! UCX on the device: requests that libibverbs does not write.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed, passed_through};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ucx::Transport;

const LIMIT: Duration = Duration::from_secs(120);

/// Messages of sizes that go inline, by a copy, and from where they lie: with a header inline, in
/// one packet and in several, and by rendezvous; and every other operation.
const TESTS: [&str; 22] = [
    "-t tag_lat -s 1 -n 20 -w 2",
    "-t tag_lat -s 2000 -n 20 -w 2",
    "-t tag_lat -s 8204 -n 20 -w 2",
    "-t tag_bw -s 1048576 -n 10 -w 2",
    "-t tag_sync_lat -s 100 -n 20 -w 2",
    "-t tag_sync_bw -s 20000 -n 20 -w 2",
    "-t ucp_am_lat -s 3000 -H 26 -n 20 -w 2",
    "-t ucp_am_lat -D iov -s 100,2000,37 -i 4096 -n 20 -w 2",
    "-t ucp_am_bw -s 20000 -n 20 -w 2",
    "-t stream_lat -s 100 -n 20 -w 2",
    "-t stream_bw -s 20000 -n 20 -w 2",
    "-t ucp_put_lat -s 100000 -n 20 -w 2",
    "-t ucp_put_bw -s 20000 -n 20 -w 2",
    "-t ucp_get -s 100000 -n 20 -w 2",
    "-t ucp_add -s 4 -n 20 -w 2",
    "-t ucp_add -s 8 -n 20 -w 2",
    "-t ucp_fadd -s 4 -n 20 -w 2",
    "-t ucp_fadd -s 8 -n 20 -w 2",
    "-t ucp_swap -s 4 -n 20 -w 2",
    "-t ucp_swap -s 8 -n 20 -w 2",
    "-t ucp_cswap -s 4 -n 20 -w 2",
    "-t ucp_cswap -s 8 -n 20 -w 2",
];

#[test]
fn every_transport() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", None)?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    let [server, client] = &guests;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    // A VF that is passed through has no dynamic connections, and no tags.
    let is_there = |transport: &Transport| {
        let of_software = matches!(transport, Transport::DcMlx5 | Transport::RcTags);
        !(passed_through() && of_software)
    };
    for transport in Transport::ALL.into_iter().filter(is_there) {
        checks.check(format_args!("ucx_perftest, {transport}"), || {
            transport.perftest((server, client), DEVICE, &TESTS, LIMIT)
        });
    }
    // What UCX writes itself; every byte is compared.
    let of_io = [
        Transport::RcMlx5,
        Transport::RcTags,
        Transport::DcMlx5,
        Transport::UdMlx5,
    ];
    for transport in of_io.into_iter().filter(is_there) {
        checks.check(format_args!("io_demo, {transport}"), || {
            transport.io_demo((server, client), DEVICE, "1:300000", LIMIT)
        });
    }
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
