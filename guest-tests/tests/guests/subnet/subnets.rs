//! Guests in two subnets of one daemon, with a router between them; then one moves to the other's.

use std::time::Duration;

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed};
use ibvswitch_guest_tests::tools::diags::{expect, field, no_kernel_warning};
use ibvswitch_guest_tests::tools::ipoib::connect;
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::{Error, Result};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(120);

/// The guests' LIDs are nobody else's in the other subnet.
fn subnets() -> Configuration {
    Configuration::new()
        .entry("subnet", "red")
        .key("prefix", "fec0:0000:0000:0001")
        .entry("subnet", "blue")
        .key("prefix", "fec0:0000:0000:0002")
        .switches(["sw1"])
        .key("subnet", "red")
        .switches(["sw2"])
        .key("subnet", "blue")
        .entry("router", "r1")
        .key("switches", ["sw1", "sw2"])
        .hypervisor("hv1", [])
        .at("sw1")
        .vf("vm1")
        .key("lid", 0x30)
        .hypervisor("hv2", [])
        .at("sw2")
        .spare_vfs(1)
        .vf("vm2")
        .key("lid", 0x40)
}

const PREFIXES: [&str; 2] = ["fec0:0000:0000:0001:", "fec0:0000:0000:0002:"];

fn gid(guest: &Guest) -> Result<String> {
    let file = format!("cat /sys/class/infiniband/{DEVICE}/ports/1/gids/0");
    Ok(guest.sh(&file, LIMIT)?.trim().to_owned())
}

/// The PathRecord between two guests, as the first one's subnet administration answers.
fn path(from: &Guest, to: &Guest) -> Result<String> {
    let (sgid, dgid) = (gid(from)?, gid(to)?);
    from.sh(&format!("saquery -p --sgid {sgid} --dgid {dgid}"), LIMIT)
}

/// The LID to which a guest sends what is for another.
fn dlid(from: &Guest, to: &Guest) -> Result<String> {
    let record = path(from, to)?;
    let value = field(&record, "dlid")?;
    let lid = value.split_whitespace().next().unwrap_or_default();
    Ok(lid.to_owned())
}

/// A program of perftest: it exchanges LIDs, of which the other end's is no use, so that each end is
/// told the router's.
fn perftest(server: &Guest, client: &Guest, command: &str) -> Result<()> {
    let serve = format!("{command} -x 0 --dlid {}", dlid(server, client)?);
    let call = format!(
        "{command} -x 0 --dlid {} {}",
        dlid(client, server)?,
        server.address()
    );
    let mut serving = server.spawn(&serve)?;
    serving.await_port("18515", LIMIT)?;
    let [_, called] = serving.with_client(client, &call, LIMIT)?;
    expect(&called, &["#bytes"])
}

/// `ucmatose` by GIDs: the kernel's connection manager asks for the path and sends through the router.
fn ucmatose(server: &Guest, client: &Guest) -> Result<()> {
    let (there, here) = (gid(server)?, gid(client)?);
    let serve = format!("ucmatose -C 20 -f gid -b {there}");
    let call = format!("ucmatose -C 20 -f gid -b {here} -s {there}");
    for text in connect((server, &serve), (client, &call), LIMIT)? {
        expect(&text, &["test complete", "return status 0"])?;
    }
    Ok(())
}

#[test]
fn two_subnets() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&subnets()))?;
    // The first one listens on the Ethernet cable, so it has to be the one that stays.
    let [peer, vm] = bed.pair(0, ["vm2", "vm1"], Some(&daemon))?;
    for guest in [&peer, &vm] {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    let wrong = |what: &str, came: String| Error::Output {
        what: what.to_owned(),
        text: came,
    };
    checks.check("each guest has its subnet's prefix", || {
        for (guest, prefix) in [(&vm, PREFIXES[0]), (&peer, PREFIXES[1])] {
            let gid = gid(guest)?;
            if !gid.starts_with(prefix) {
                return Err(wrong(prefix, gid));
            }
        }
        Ok(())
    });
    checks.check(
        "saquery: the path to the other subnet leads to the router",
        || {
            for (from, to) in [(&vm, &peer), (&peer, &vm)] {
                let record = path(from, to)?;
                let other = Hca::of(to, DEVICE)?.lid.to_string();
                let hops = field(&record, "hop_flow_raw")?;
                if dlid(from, to)? == other || !hops.ends_with("0xFF") {
                    return Err(wrong("the router's LID and hop limit 255", record));
                }
            }
            Ok(())
        },
    );
    for command in [
        "ib_send_lat -n 1000",
        "ib_write_bw -n 1000",
        "ib_send_lat -c UD -n 1000",
    ] {
        checks.check(format_args!("{command}"), || perftest(&peer, &vm, command));
    }
    checks.check("ucmatose by GIDs", || ucmatose(&peer, &vm));
    checks.check("ucmatose by GIDs, the other way", || ucmatose(&vm, &peer));

    // The VM moves to the other subnet.
    let device = daemon.device("hv2-spare1", None)?;
    let moved = bed.receiver(&vm, "moved", device)?;
    let pci = format!("basename $(readlink /sys/class/infiniband/{DEVICE}/device)");
    let pci = vm.sh(&pci, LIMIT)?.trim().to_owned();
    let before = gid(&vm)?;
    vm.sh(
        &format!("echo 1 > /sys/bus/pci/devices/{pci}/remove"),
        LIMIT,
    )?;
    daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"])?;
    vm.live_migrate(&moved)?;
    drop(vm);
    moved.sh("echo 1 > /sys/bus/pci/rescan", LIMIT)?;
    await_active(&moved, DEVICE)?;
    checks.check("a VM that moved has the other prefix, and its GUID", || {
        let after = gid(&moved)?;
        if after == before.replacen(PREFIXES[0], PREFIXES[1], 1) {
            return Ok(());
        }
        Err(wrong(&before, after))
    });
    checks.check("it reaches its peer without a router", || {
        Pingpong::Rc.between((&peer, &moved), DEVICE, false, "-g 0", LIMIT)
    });
    checks.check("no kernel warning", || {
        [&peer, &moved]
            .into_iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
