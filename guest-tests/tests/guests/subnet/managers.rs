//! OpenSM in a guest whose VF may manage the subnet takes it over from the embedded manager, and
//! gives it back when it dies. Data between the guests goes on all the time. On a second subnet, of
//! another daemon and with an HCA of either guest, there is no other manager from the start. With `CI_LONG`, `ibvswitch-sm` in
//! a guest manages a subnet of a hundred nodes, and OpenSM in the other guest is its standby.

use std::fmt::Write;
use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::path_cache::program;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(180);

fn configuration() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("smp", "fabric")
        .hypervisor("hv2", ["vm2"])
}

/// The same without the embedded manager, and with other names: GUIDs derive from them.
fn unmanaged() -> Configuration {
    Configuration::new()
        .set("sm.manager", "external")
        .hypervisor("hv3", [])
        .vf("vm3")
        .key("smp", "fabric")
        .hypervisor("hv4", ["vm4"])
}

/// The HCAs on that subnet.
const SECOND: &str = "mlx5_1";

/// OpenSM at a port, which polls its master once a second. Each message of its log comes at once; nothing of it stays.
fn opensm(guid: &str, priority: u8) -> String {
    format!(
        "mkdir -p /tmp/osm && cd /tmp/osm && echo sminfo_polling_timeout 1000 >osm.conf && \
         OSM_CACHE_DIR=. OSM_TMP_DIR=. exec opensm -g {guid} -d2 -p {priority} -f - -F osm.conf"
    )
}

fn master(daemon: &Daemon) -> Result<u64> {
    Ok(daemon.status()?["fabric"]["sm_lid"].as_u64().unwrap_or(0))
}

#[test]
fn opensm_in_a_guest() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&configuration()))?;
    let unmanaged = bed.daemon("unmanaged", Some(&unmanaged()))?;
    let devices = |first, second| -> Result<Vec<String>> {
        Ok(vec![
            daemon.device(first, None)?,
            unmanaged.device(second, None)?,
        ])
    };
    let devices = [devices("vm1", "vm3")?, devices("vm2", "vm4")?];
    let [manager, other] = bed.pair_with(0, ["vm1", "vm2"], devices)?;
    for guest in [&manager, &other] {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    let embedded = master(&daemon)?;
    let before = [Hca::of(&manager, DEVICE)?.lid, Hca::of(&other, DEVICE)?.lid];

    // Few and large messages: what is tested is that they go on, not how fast doorbells can ring.
    let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 8388608 -t 2 -Q 1");
    let mut serving = manager.spawn(&run.command())?;
    serving.await_port("18515", LIMIT)?;
    let mut writing = other.spawn(&format!("{} {}", run.command(), manager.address()))?;
    writing.await_text(" 8388608 ", LIMIT)?;

    let guid = Hca::of(&manager, DEVICE)?.port_guid;
    let mut running = manager.spawn(&opensm(&guid, 15))?;
    checks.check("OpenSM takes the subnet over", || {
        running.await_text("SUBNET UP", LIMIT)?;
        let now = master(&daemon)?;
        if now == u64::from(before[0]) && now != embedded {
            return Ok(());
        }
        Err(manager.failed(format!("the master is at LID {now}, was at {embedded}")))
    });
    checks.check("ports keep their LIDs, and know the new manager", || {
        for (guest, lid) in [(&manager, before[0]), (&other, before[1])] {
            let hca = Hca::of(guest, DEVICE)?;
            let right = hca.lid == lid && hca.sm_lid == before[0] && hca.state == "Active";
            if !right {
                return Err(guest.failed(format!("{hca:?}")));
            }
        }
        Ok(())
    });
    checks.check(
        "saquery in the other guest: all nodes, in several packets",
        || {
            let text = other.sh("saquery NR", LIMIT)?;
            let count = text.matches("NodeRecord dump").count();
            // Three switches, two VFs, and the embedded manager's host.
            if count == 6 {
                return Ok(());
            }
            Err(other.failed(format!("{count} nodes\n{text}")))
        },
    );
    checks.check("the embedded manager takes it back", || {
        manager.sh("killall -9 opensm", LIMIT)?;
        // By and by: it asks its successor a few times first.
        while master(&daemon)? != embedded {
            other.sh("true", LIMIT)?;
        }
        await_active(&other, DEVICE)
    });
    checks.check("the transfer has gone on through all of it", || {
        let lines = |text: String| text.matches(" 8388608 ").count();
        let seen = lines(writing.text());
        while lines(writing.text()) <= seen {
            if !writing.running()? {
                return Err(other.failed(format!("ended:\n{}", writing.text())));
            }
        }
        Ok(())
    });
    drop((writing, serving, running));
    checks.check("payload is right under the manager that is back", || {
        Pingpong::Rc.between((&manager, &other), DEVICE, false, "", LIMIT)
    });
    let guests = [&manager, &other];
    checks.check("without a manager, no port is up", || {
        for guest in guests {
            let hca = Hca::of(guest, SECOND)?;
            if hca.state == "Active" || hca.lid != 0 {
                return Err(guest.failed(format!("{hca:?}")));
            }
        }
        Ok(())
    });
    let guid = Hca::of(&manager, SECOND)?.port_guid;
    let mut running = manager.spawn(&opensm(&guid, 15))?;
    checks.check("OpenSM brings the other subnet up", || {
        running.await_text("SUBNET UP", LIMIT)?;
        let mut hcas = Vec::new();
        for guest in guests {
            await_active(guest, SECOND)?;
            hcas.push(Hca::of(guest, SECOND)?);
        }
        let lids = [hcas[0].lid, hcas[1].lid];
        let known = hcas.iter().all(|hca| hca.sm_lid == lids[0]);
        if known && !lids.contains(&0) && lids[0] != lids[1] {
            Ok(())
        } else {
            Err(manager.failed(format!("{hcas:?}")))
        }
    });
    checks.check(
        "saquery there: switch, vSwitches, VFs, and the idle host",
        || {
            let text = other.sh(&format!("saquery -C {SECOND} NR"), LIMIT)?;
            match text.matches("NodeRecord dump").count() {
                6 => Ok(()),
                count => Err(other.failed(format!("{count} nodes\n{text}"))),
            }
        },
    );
    for tool in [Pingpong::Rc, Pingpong::Ud] {
        checks.check(format_args!("{tool} there"), || {
            tool.between((&manager, &other), SECOND, false, "", LIMIT)
        });
    }
    drop(running);
    checks.check("no kernel warning", || {
        guests
            .into_iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}

/// Five leaf switches, three spines and 88 hosts, in ibsim's form: with two vSwitches and two VFs a hundred nodes.
fn hundred() -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        writeln!(text, "{line}").expect("a string takes all");
    };
    for leaf in 0..5 {
        line(format_args!("Switch 36 \"leaf{leaf}\""));
        for spine in 0..3 {
            line(format_args!(
                "[{}] \"spine{spine}\"[{}]",
                30 + spine,
                leaf + 1
            ));
        }
        for host in (leaf..88).step_by(5) {
            line(format_args!("[{}] \"host{host}\"[1]", host / 5 + 1));
        }
    }
    for spine in 0..3 {
        line(format_args!("Switch 36 \"spine{spine}\""));
        for leaf in 0..5 {
            line(format_args!(
                "[{}] \"leaf{leaf}\"[{}]",
                leaf + 1,
                30 + spine
            ));
        }
    }
    for host in 0..88 {
        line(format_args!("Hca 1 \"host{host}\""));
        line(format_args!("[1] \"leaf{}\"[{}]", host % 5, host / 5 + 1));
    }
    text
}

/// Nodes and active links as the guest's programs see them.
fn sees_a_hundred(guest: &Guest) -> Result<()> {
    let nodes = guest.sh("saquery NR", LIMIT)?;
    let links = guest.sh("iblinkinfo --switches-only -l", LIMIT)?;
    let count = |text: &str, what: &str| text.matches(what).count();
    let active = count(&links, "Active/  LinkUp");
    // Each cable of switches has two ends there, one of an adapter one: 15 between switches, 2 to vSwitches.
    match (count(&nodes, "NodeRecord dump"), active) {
        (100, 124) => Ok(()),
        (nodes, links) => Err(guest.failed(format!("{nodes} nodes, {links} active ends"))),
    }
}

#[test]
#[ignore = "a boot of its own: minutes"]
fn our_manager_in_a_guest() -> Result<()> {
    const ADDRESSES: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
    let mut bed = Testbed::new(Kernel::default())?;
    let manager = program(env!("CARGO_BIN_EXE_ibvswitch-rds"), "ibvswitch-sm")?;
    let files = [("usr/bin/ibvswitch-sm", &*manager)];
    bed.image = bed.image.with(&files, &[], bed.dir())?;
    let nodes = bed.dir().join("hundred.net");
    std::fs::write(&nodes, hundred()).expect("the folder is there");
    let configuration = Configuration::new()
        .set("sm.manager", "external")
        .set("fabric.topology", nodes.to_str().expect("is text"))
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("smp", "fabric")
        .hypervisor("hv2", [])
        .vf("vm2")
        .key("smp", "fabric");
    let daemon = bed.daemon("hundred", Some(&configuration))?;
    let device = |vm| -> Result<Vec<String>> { Ok(vec![daemon.device(vm, None)?]) };
    let guests = bed.pair_with(0, ["vm1", "vm2"], [device("vm1")?, device("vm2")?])?;
    let [one, two] = &guests;
    let mut checks = Checks::default();
    let ours = "exec ibvswitch-sm --priority 8";
    let managed_by = |master: &Guest| -> Result<()> {
        let lid = Hca::of(master, DEVICE)?.lid;
        for guest in &guests {
            while Hca::of(guest, DEVICE)?.sm_lid != lid {}
            await_active(guest, DEVICE)?;
        }
        Ok(())
    };
    let lids =
        || -> Result<[u16; 2]> { Ok([Hca::of(one, DEVICE)?.lid, Hca::of(two, DEVICE)?.lid]) };

    let mut running = one.spawn(ours)?;
    checks.check("ibvswitch-sm brings a hundred nodes up", || {
        running.await_text("subnet up", LIMIT)?;
        managed_by(one)?;
        sees_a_hundred(two)
    });
    let before = lids()?;
    checks.check("the connection manager finds its way", || {
        for (guest, address) in guests.iter().zip(ADDRESSES) {
            ipoib::up(guest, "ib0", address, LIMIT)?;
        }
        ipoib::rping(two, one, ADDRESSES[1], LIMIT)?;
        ipoib::ucmatose(one, two, ADDRESSES[0], LIMIT)
    });
    let guid = Hca::of(two, DEVICE)?.port_guid;
    let mut standby = two.spawn(&opensm(&guid, 1))?;
    checks.check("OpenSM is the standby, and takes over", || {
        standby.await_text("Entering STANDBY state", LIMIT)?;
        managed_by(one)?;
        one.sh("killall -9 ibvswitch-sm", LIMIT)?;
        standby.await_text("Entering MASTER state", LIMIT)?;
        standby.await_text("SUBNET UP", LIMIT)?;
        managed_by(two)?;
        sees_a_hundred(one)
    });
    drop(running);
    let mut running = one.spawn(ours)?;
    checks.check("OpenSM gives the subnet back", || {
        running.await_text("subnet up", LIMIT)?;
        managed_by(one)?;
        while standby.text().matches("Entering STANDBY state").count() < 2 {
            if !standby.running()? {
                return Err(two.failed(standby.text()));
            }
        }
        sees_a_hundred(two)
    });
    checks.check("ports have kept their LIDs, and data goes on", || {
        let after = lids()?;
        if after != before {
            return Err(one.failed(format!("{before:?}, then {after:?}")));
        }
        ipoib::rping(two, one, ADDRESSES[1], LIMIT)?;
        Pingpong::Rc.between((one, two), DEVICE, false, "", LIMIT)
    });
    drop((running, standby));
    checks.check("no kernel warning", || {
        { guests.iter() }.try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
