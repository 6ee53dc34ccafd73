//! A disk of one guest that another uses by NVMe over RDMA, by iSER and by SRP: the kernel's own use of verbs, with memory
//! that is registered by work requests and keys that the other end invalidates.

use std::time::Duration;

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::outage::outage;
use ibvswitch_guest_tests::storage::iser::{self, Disk, Patience};
use ibvswitch_guest_tests::storage::{disk, nvme, srp};
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed, passed_through};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::{Error, Result};

const LIMIT: Duration = Duration::from_secs(180);
/// Size of the disk.
const MEBIBYTES: u32 = 16;
const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
/// The port of the guest that uses the disk.
const CLIENT: &str = "vm2:1";
/// The same of iSER, whose requests take a millisecond each where processors are emulated; so there are none of one
/// block, either.
const OF_ISER: u32 = 8;
const OF_SRP: u32 = 8;
const PIECES: [&str; 3] = ["1M", "64k", "4k"];
/// Without its cable, a disk is read in pieces that take less time.
const WITHOUT_CABLE: [&str; 2] = ["1M", "64k"];
/// So long the cable is out: the driver has told all its users by then, and connections send again.
const OUTAGE: Duration = Duration::from_secs(5);
/// Requests whose answer may have come before the cable was out. Without an outage there are thousands.
const ANSWERED: u64 = 64;

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
    let mut checks = Checks::default();
    by_nvme(&daemon, server, client, &mut checks)?;
    by_iser(&daemon, server, client, &mut checks)?;
    by_srp(&daemon, server, client, &mut checks)?;
    // A VF that is passed through has no signatures.
    if !passed_through() {
        by_guarded_iser(server, client, &mut checks)?;
    }
    // iSER tells of every event of a port in the tone of an error. The target of SRP asks for a smaller send queue
    // where the device has not one of the length that it would like.
    checks.check("no kernel warning", || {
        guests.iter().try_for_each(|guest| {
            no_kernel_warning(guest, &["iser_event_handler", "Create QP type 2 failed"])
        })
    });
    checks.finish();
    Ok(())
}

fn by_nvme(daemon: &Daemon, server: &Guest, client: &Guest, checks: &mut Checks) -> Result<()> {
    nvme::serve(server, ADDRESSES[0], MEBIBYTES, LIMIT)?;
    let verified = || {
        let disk = nvme::attach(client, ADDRESSES[0], LIMIT)?;
        disk::verify(client, &disk, MEBIBYTES, &disk::PIECES, LIMIT)?;
        nvme::detach(client, LIMIT)
    };
    checks.check("NVMe: what was written is read", verified);
    checks.check("NVMe: taken away and attached again", verified);
    checks.check("NVMe: 5 s without the cable", || {
        let disk = nvme::attach(client, ADDRESSES[0], LIMIT)?;
        without_cable(daemon, client, &disk, MEBIBYTES)?;
        nvme::detach(client, LIMIT)
    });
    Ok(())
}

fn by_iser(daemon: &Daemon, server: &Guest, client: &Guest, checks: &mut Checks) -> Result<()> {
    iser::serve(server, Disk::Plain, ADDRESSES[0], OF_ISER, LIMIT)?;
    let with = |patience, check: Check<'_>| with_disk(client, Disk::Plain, patience, check);
    checks.check("iSER: what was written is read", || {
        with(Patience::Usual, &|disk| {
            disk::verify(client, disk, OF_ISER, &PIECES, LIMIT)
        })
    });
    checks.check(
        "iSER: 5 s without the cable, by the same connection",
        || {
            with(Patience::Usual, &|disk| {
                let before = iser::lost_connections(client, LIMIT)?;
                without_cable(daemon, client, disk, OF_ISER)?;
                match iser::lost_connections(client, LIMIT)? - before {
                    0 => Ok(()),
                    lost => Err(client.failed(format!("{lost} connections were lost"))),
                }
            })
        },
    );
    checks.check("iSER: 5 s without the cable, by another connection", || {
        with(Patience::Little, &|disk| {
            let before = iser::lost_connections(client, LIMIT)?;
            without_cable(daemon, client, disk, OF_ISER)?;
            match iser::lost_connections(client, LIMIT)? - before {
                0 => Err(client.failed("no connection was lost, so that none came back".into())),
                _ => Ok(()),
            }
        })
    });
    Ok(())
}

fn by_srp(daemon: &Daemon, server: &Guest, client: &Guest, checks: &mut Checks) -> Result<()> {
    srp::serve((server, client), DEVICE, OF_SRP, LIMIT)?;
    let with = |check: Check<'_>| {
        let disk = srp::attach(client, DEVICE, LIMIT)?;
        let checked = check(&disk);
        checked.and(srp::detach(client, LIMIT))
    };
    checks.check("SRP: found, and what was written is read", || {
        with(&|disk| disk::verify(client, disk, OF_SRP, &PIECES, LIMIT))
    });
    checks.check("SRP: 5 s without the cable", || {
        with(&|disk| without_cable(daemon, client, disk, OF_SRP))
    });
    Ok(())
}

/// Check of a device file.
type Check<'a> = &'a dyn Fn(&str) -> Result<()>;

fn with_disk(client: &Guest, disk: Disk, patience: Patience, check: Check<'_>) -> Result<()> {
    let device = iser::attach(client, disk, ADDRESSES[0], patience, LIMIT)?;
    let checked = check(&device);
    // The next check attaches it again, whatever has become of this one.
    let detached = iser::detach(client, disk, ADDRESSES[0], LIMIT);
    checked.and(detached)
}

/// Blocks with check values: HCAs make, move and compare them.
fn by_guarded_iser(server: &Guest, client: &Guest, checks: &mut Checks) -> Result<()> {
    iser::serve(server, Disk::Guarded, ADDRESSES[0], OF_ISER, LIMIT)?;
    let with = |check: Check<'_>| with_disk(client, Disk::Guarded, Patience::Usual, check);
    checks.check("iSER with T10-PI: what was written is read", || {
        with(&|device| {
            let name = device.trim_start_matches("/dev/");
            let format = client.sh(&format!("cat /sys/block/{name}/integrity/format"), LIMIT)?;
            // Between kernel and HCA it is a check sum of IP, which costs processors less. On the wire it is a CRC.
            if format.trim() != "T10-DIF-TYPE1-IP" {
                return Err(client.failed(format!("the disk's check values are: {format}")));
            }
            disk::verify(client, device, OF_ISER, &PIECES, LIMIT)
        })
    });
    checks.check("iSER with T10-PI: a wrong block is not read", || {
        let file = Disk::Guarded.file();
        let spoil = format!("printf spoilt | dd of={file} bs=1 seek=5000 conv=notrunc");
        server.sh(&spoil, LIMIT)?;
        with(&|device| {
            // Of whole pages: a kernel that has a block in two of them compares its value with half of it.
            let read = |page: u32| {
                let dd =
                    format!("dd if={device} of=/dev/null bs=4k count=1 skip={page} iflag=direct");
                client.run(&dd, LIMIT)
            };
            match (read(1)?.status, read(2)?.status) {
                (0, _) => Err(client.failed("a page with a wrong block was read".into())),
                (_, 0) => Ok(()),
                _ => Err(client.failed("the page behind it was not read".into())),
            }
        })
    });
    Ok(())
}

/// The disk stands still without the cable, and what was under way comes to a good end with it.
fn without_cable(daemon: &Daemon, client: &Guest, disk: &str, mebibytes: u32) -> Result<()> {
    let mut load = client.spawn(&disk::load(disk, mebibytes, &WITHOUT_CABLE))?;
    disk::await_request(client, disk, LIMIT)?;
    let [first, last] = outage(daemon, CLIENT, OUTAGE, || {
        disk::completed(client, disk, LIMIT)
    })?;
    if last - first > ANSWERED || !load.running()? {
        return Err(client.failed(format!(
            "without its cable it got answers to {} requests",
            last - first
        )));
    }
    disk::enough(client, LIMIT)?;
    let ended = load.wait(LIMIT)?;
    if ended.status == 0 && ended.text.contains(disk::PASSED) {
        return Ok(());
    }
    Err(Error::Output {
        what: format!("\"{}\"", disk::PASSED),
        text: ended.text,
    })
}
