//! The daemon is killed, and the keeper has the guests: their HCAs fail and recover by themselves, and no
//! guest is started anew.

use std::time::{Duration, Instant};

use ibvswitch_guest_tests::{
    Result,
    checks::Checks,
    daemon::Daemon,
    guest::Guest,
    hca::await_active,
    image::Kernel,
    ipoib,
    perftest::{Run, Tool},
    pingpong::Pingpong,
    progress,
    testbed::{DEVICE, Testbed},
};

const LIMIT: Duration = Duration::from_secs(120);

/// One VF for each way that doorbells take.
const CONFIG: &str = r#"
[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"
doorbells = "trap"
[[hypervisor]]
name = "hv2"
[[hypervisor.vf]]
name = "vm2"
doorbells = "adaptive"
"#;

/// How often a guest's driver has recovered its device.
fn recoveries(guest: &Guest) -> Result<u32> {
    let text = guest.run("dmesg | grep -c 'health recovery succeeded'", LIMIT)?;
    Ok(text.text.trim().parse().unwrap_or(0))
}

/// Kills the daemon, and waits until both guests' drivers have recovered and their ports are Active.
fn kill_and_recover(daemon: &Daemon, guests: &[Guest; 2]) -> Result<()> {
    let before = [recoveries(&guests[0])?, recoveries(&guests[1])?];
    let killed = Instant::now();
    daemon.kill_served()?;
    for (guest, before) in guests.iter().zip(before) {
        let recovered = format!(
            "until test $(dmesg | grep -c 'health recovery succeeded') -gt {before}; do \
             usleep 50000; done"
        );
        guest.sh(&recovered, LIMIT)?;
        await_active(guest, DEVICE)?;
        let name = guest.name();
        progress::step(format_args!(
            "{name}: Active {:?} after the kill",
            killed.elapsed()
        ));
    }
    Ok(())
}

fn pingpong([server, client]: &[Guest; 2]) -> Result<()> {
    Pingpong::Rc.between((server, client), DEVICE, false, "", LIMIT)?;
    Pingpong::Rc.between((client, server), DEVICE, true, "", LIMIT)
}

/// IPoIB between the guests, whose interfaces are new each time.
fn over_ipoib(guests: &[Guest; 2]) -> Result<()> {
    for (guest, address) in guests.iter().zip(["10.9.0.1", "10.9.0.2"]) {
        ipoib::up(guest, "ib0", address, LIMIT)?;
    }
    ipoib::ping(&guests[0], "10.9.0.2", "", LIMIT)?;
    ipoib::rping(&guests[0], &guests[1], "10.9.0.1", LIMIT)
}

#[test]
fn guests_outlive_the_daemon() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.kept_daemon("ibvswitch", Some(CONFIG))?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    checks.check("verbs and IPoIB work", || {
        pingpong(&guests)?;
        over_ipoib(&guests)
    });
    checks.check("an idle daemon is killed", || {
        kill_and_recover(&daemon, &guests)
    });
    checks.check("verbs and IPoIB work again", || {
        pingpong(&guests)?;
        over_ipoib(&guests)
    });
    checks.check(
        "it is killed under traffic, before a driver may recover again",
        || {
            let [server, client] = &guests;
            let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
            let mut serving = server.spawn(&run.command())?;
            serving.await_port("18515", LIMIT)?;
            let mut writing = client.spawn(&format!("{} {}", run.command(), server.address()))?;
            writing.await_text(" 65536 ", LIMIT)?;
            let recovered = kill_and_recover(&daemon, &guests);
            drop((serving, writing));
            recovered
        },
    );
    checks.check("verbs work again, after a second time", || {
        pingpong(&guests)
    });
    checks.check("a guest that is reset has its HCA", || {
        let [server, client] = &guests;
        client.reboot()?;
        await_active(client, DEVICE)?;
        Pingpong::Rc.between((server, client), DEVICE, false, "", LIMIT)
    });
    if std::env::var_os("IBVSWITCH_KEEP").is_some() {
        for guest in &guests {
            let log = guest.sh("dmesg | grep -i mlx5", LIMIT)?;
            progress::step(format_args!("{}: {log}", guest.name()));
        }
        progress::step(daemon.log());
    }
    drop(daemon);
    checks.finish();
    Ok(())
}
