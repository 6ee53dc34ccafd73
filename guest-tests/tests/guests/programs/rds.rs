//! Reliable datagram sockets over RDMA: the kernel's messages come once each, in their order, and as they were sent,
//! whatever becomes of the connection that they go by.

use std::{path::Path, time::Duration};

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::outage::outage;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::rds::{self, Exchange};

const LIMIT: Duration = Duration::from_secs(180);
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
const MESSAGES: u64 = 3000;
/// Messages that may have arrived before the cable was out, and are read and told of after that.
const ARRIVED: u64 = 600;
/// So long the cable is out: a connection of RDS has been given up by then, after two times 2.15 seconds.
const OUTAGE: Duration = Duration::from_secs(6);

#[test]
fn messages_by_rds() -> Result<()> {
    let mut bed = Testbed::new(Kernel::default())?;
    let program = Path::new(env!("CARGO_BIN_EXE_ibvswitch-rds"));
    bed.image = bed.image.with(&[(rds::PROGRAM, program)], &[], bed.dir())?;
    let daemon = bed.daemon("ibvswitch", None)?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    for (guest, address) in guests.iter().zip(ADDRESSES) {
        await_active(guest, DEVICE)?;
        ipoib::up(guest, "ib0", address, LIMIT)?;
    }
    let [server, client] = &guests;
    let begin = || Exchange::begin([server, client], ADDRESSES, MESSAGES, LIMIT);
    let mut checks = Checks::default();
    checks.check("messages of all lengths, both ways", || {
        let before = rds::sent(client, DEVICE, LIMIT)?;
        let bytes = begin()?.finish(LIMIT)?;
        let sent = rds::sent(client, DEVICE, LIMIT)? - before;
        if sent > bytes {
            return Ok(());
        }
        Err(client.failed(format!(
            "its HCA has sent {sent} bytes, where there were {bytes} of messages"
        )))
    });
    checks.check("a cable that is out, and another connection", || {
        let before = rds::connections(client, LIMIT)?;
        let mut exchange = begin()?;
        exchange.await_messages(500, LIMIT)?;
        let [first, last] = outage(&daemon, "vm2:1", OUTAGE, || exchange.progress())?;
        if last - first > ARRIVED {
            return Err(client.failed(format!(
                "without its cable {} messages have come",
                last - first
            )));
        }
        exchange.finish(LIMIT)?;
        if rds::connections(client, LIMIT)? > before {
            return Ok(());
        }
        Err(client.failed("the connection is the same: the cable was not out for long".into()))
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
