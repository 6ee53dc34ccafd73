//! The tests' own machinery, on guests without the device: where this fails, the fault is not the
//! device's.

use std::{path::Path, time::Duration};

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::Testbed;
use ibvswitch_guest_tests::tools::perftest::{Figures, Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::tools::rxe;
use ibvswitch_guest_tests::{Error, Result, shared_memory};

const LIMIT: Duration = Duration::from_secs(60);

fn wrong(guest: &Guest, what: impl std::fmt::Debug) -> Result<()> {
    Err(guest.failed(format!("{what:?}")))
}

#[test]
fn two_guests_over_soft_roce() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let program = Path::new(env!("CARGO_BIN_EXE_ibvswitch-demo"));
    let image = shared_memory::image(&bed.image, program, bed.dir())?;
    let configs = ["vm1", "vm2"].map(|name| {
        let mut config = bed.config(name);
        config.image = image.clone();
        shared_memory::attach(&mut config, &bed.dir().join("shared"));
        config
    });
    let guests = bed.pair_of(0, configs)?;
    let [server, client] = &guests;
    let mut checks = Checks::default();
    checks.check("kernel is the image's", || {
        let release = server.sh("uname -r", LIMIT)?;
        if release.trim() != bed.image.release {
            wrong(server, release)
        } else {
            Ok(())
        }
    });
    checks.check("status and both streams of a command arrive", || {
        let output = server.run("echo out; echo err >&2; printf 'no newline'; exit 7", LIMIT)?;
        let right = output.status == 7 && output.text == "out\nerr\nno newline";
        if right { Ok(()) } else { wrong(server, output) }
    });
    checks.check(
        "a command past its limit is killed with its children",
        || {
            let endless = server.run("sleep 1000 & sleep 1000", Duration::from_millis(500));
            if !matches!(endless, Err(Error::TimeLimit { .. })) {
                return wrong(server, endless);
            }
            let left = server.run("pidof sleep", LIMIT)?;
            if left.status == 1 {
                Ok(())
            } else {
                wrong(server, left)
            }
        },
    );
    checks.check("a line of a running command is awaited", || {
        let mut job = server.spawn("echo begun; read line </dev/console; echo never")?;
        job.await_text("begun", LIMIT)?;
        if job.running()? {
            Ok(())
        } else {
            wrong(server, job.text())
        }
    });
    checks.check("every channel is free again", || {
        let jobs: Result<Vec<_>> = (0..4).map(|n| server.spawn(&format!("echo {n}"))).collect();
        for job in jobs? {
            let output = job.wait(LIMIT)?;
            server.succeeded("echo", output)?;
        }
        Ok(())
    });
    checks.check("large output arrives whole", || {
        let text = server.sh("seq 1 20000", LIMIT)?;
        if text.lines().count() == 20000 {
            Ok(())
        } else {
            wrong(server, text.len())
        }
    });
    checks.check("memory of both guests is measured, again too", || {
        for _ in 0..2 {
            let figures = shared_memory::measure(&guests)?;
            if figures.median_us <= 0.0 || figures.mib_per_s <= 0.0 {
                return wrong(client, figures);
            }
        }
        Ok(())
    });

    let index = rxe::set_up(server)?;
    assert_eq!(index, rxe::set_up(client)?);
    checks.check("ib_send_lat", || {
        let mut run = Run::new(Tool::SendLat, rxe::DEVICE).with("-n 200");
        run.gid_index = Some(index);
        let rows = run.between(server, client, LIMIT)?;
        match rows[0].figures {
            Figures::Latency { median_us, .. } if median_us > 0.0 => Ok(()),
            other => wrong(client, other),
        }
    });
    checks.check("ibv_rc_pingpong with events", || {
        let options = format!("-g {index} -n 200");
        Pingpong::Rc.between((server, client), rxe::DEVICE, true, &options, LIMIT)
    });
    checks.check("a failing server is an error", || {
        let run = Run::new(Tool::SendLat, "no_such_device");
        match run.between(server, client, LIMIT) {
            Err(Error::Command { guest, .. }) if guest == server.name() => Ok(()),
            other => wrong(server, other),
        }
    });
    checks.check("a client whose server fails is not waited for", || {
        let serving = server.spawn("exit 3")?;
        let both = serving.with_client(client, "sleep 1000", Duration::from_secs(600));
        match both {
            Err(Error::Exchange { server, .. }) if server.contains("status 3") => Ok(()),
            other => wrong(server, other),
        }
    });
    checks.check("reboot from inside", || {
        client.sh("touch /run/before", LIMIT)?;
        client.reboot()?;
        client.sh("test ! -e /run/before", LIMIT).map(drop)
    });
    checks.check("reset from outside", || {
        client.sh("touch /run/before", LIMIT)?;
        client.reset()?;
        client.sh("test ! -e /run/before", LIMIT).map(drop)
    });
    checks.check(
        "a killed QEMU is reported at once, and leaves no process",
        || {
            let pid = client.pid();
            let job = client.spawn("sleep 1000")?;
            client.kill();
            let lost = job.wait(LIMIT);
            let gone = !Path::new(&format!("/proc/{pid}")).exists();
            if gone
                && matches!(&lost, Err(Error::Guest { what, .. }) if what.contains("QEMU ended"))
            {
                return Ok(());
            }
            wrong(client, lost)
        },
    );
    checks.finish();
    Ok(())
}
