//! A QEMU or the daemon dies, in the middle of transfers; the others go on.

use std::{thread, time::Duration};

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::{Error, Result, progress};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(120);

fn four_vfs() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["a1", "b1"])
        .hypervisor("hv2", ["a2", "b2"])
}

fn pingpong(pair: &[Guest; 2], options: &str) -> Result<()> {
    Pingpong::Rc.between((&pair[0], &pair[1]), DEVICE, false, options, LIMIT)
}

#[test]
fn qemu_is_killed_in_mid_transfer() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&four_vfs()))?;
    let bystanders = bed.pair(0, ["a1", "a2"], Some(&daemon))?;
    let [survivor, victim] = bed.pair(1, ["b1", "b2"], Some(&daemon))?;
    for guest in bystanders.iter().chain([&survivor, &victim]) {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();

    // Both ends of the transfer are followed by their output, so the kill is in the middle of it.
    let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
    let mut serving = victim.spawn(&run.command())?;
    serving.await_port("18515", LIMIT)?;
    let mut writing = survivor.spawn(&format!("{} {}", run.command(), victim.address()))?;
    writing.await_text(" 65536 ", LIMIT)?;

    thread::scope(|scope| {
        let bystanders = &bystanders;
        let going_on = scope.spawn(move || pingpong(bystanders, "-n 20000"));
        victim.kill();
        drop(serving);
        checks.check("the peer's transfer ends with an error", || {
            let output = writing.wait(LIMIT)?;
            if output.status != 0 {
                return Ok(());
            }
            Err(survivor.failed(format!("ended with status 0:\n{}", output.text)))
        });
        checks.check("the other pair's payload stays right", || {
            let lost = || Error::Host("the thread of the other pair has panicked".into());
            going_on.join().map_err(|_| lost())?
        });
    });
    checks.check("the port stays Active for the survivor", || {
        await_active(&survivor, DEVICE)
    });
    checks.check("a new QEMU takes the VF over", || {
        let victim = bed.restart(victim)?;
        await_active(&victim, DEVICE)?;
        pingpong(&[survivor, victim], "")
    });
    checks.check("no kernel warning at the bystanders", || {
        bystanders
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}

/// QEMU does not connect to a vfio-user server again: guests live on without their HCA until they
/// reboot, which aborts QEMU, and get one back when they are started anew. QEMU 11.1.3 aborts at
/// once (`error_setv: Assertion *errp == NULL`) if it loses the server with a request under way: at
/// any time, before or while the guest is asked.
#[test]
fn daemon_is_killed_in_mid_transfer() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let mut daemon = bed.daemon("ibvswitch", None)?;
    let [server, client] = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    for guest in [&server, &client] {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
    let mut serving = server.spawn(&run.command())?;
    serving.await_port("18515", LIMIT)?;
    let mut writing = client.spawn(&format!("{} {}", run.command(), server.address()))?;
    writing.await_text(" 65536 ", LIMIT)?;
    daemon.kill();
    checks.check("guests live on, or end at once", || {
        for guest in [&server, &client] {
            match guest.sh("true", LIMIT) {
                Ok(_) => progress::step(format_args!("{} lives on", guest.name())),
                Err(Error::Guest { what, .. })
                    if what.starts_with("QEMU ended") && what.contains("SIGABRT") =>
                {
                    progress::step(what);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    drop((serving, writing));

    let daemon = bed.daemon("ibvswitch", None)?;
    checks.check("guests started anew have their HCA back", || {
        let pair = [bed.restart(server)?, bed.restart(client)?];
        for guest in &pair {
            await_active(guest, DEVICE)?;
        }
        pingpong(&pair, "")
    });
    drop(daemon);
    checks.finish();
    Ok(())
}
