//! perftest on the device: every program with every transport it knows, and what its options ask
//! of a device.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed, passed_through};
use ibvswitch_guest_tests::tools::diags::no_kernel_warning;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};

const LIMIT: Duration = Duration::from_secs(90);

/// The transports that a program knows.
fn transports(tool: Tool) -> &'static [&'static str] {
    match tool {
        Tool::SendLat | Tool::SendBw => &["RC", "UC", "UD", "XRC", "DC"],
        Tool::WriteLat | Tool::WriteBw => &["RC", "UC", "XRC", "DC"],
        Tool::ReadLat | Tool::ReadBw | Tool::AtomicLat | Tool::AtomicBw => &["RC", "XRC", "DC"],
    }
}

/// Options that a program is run with besides its defaults, over a transport.
fn variants(tool: Tool, transport: &str) -> Vec<&'static str> {
    let atomic = matches!(tool, Tool::AtomicLat | Tool::AtomicBw);
    let sends = matches!(tool, Tool::SendLat | Tool::SendBw);
    let reads = matches!(tool, Tool::ReadLat | Tool::ReadBw);
    let mut variants = vec!["-n 500"];
    if !atomic {
        variants.push("-s 1 -n 500");
    }
    if transport == "RC" {
        // Latency takes the ways of bandwidth through the device, and its table takes perftest 13 s.
        if !atomic && (sends || !tool.is_latency()) {
            // 2 bytes to 8 MiB
            variants.push("-a -n 5 -t 4");
        }
        if !matches!(tool, Tool::WriteLat | Tool::WriteBw) {
            // Writes raise no event at their target; perftest does not offer it for them.
            variants.push("-e -n 500");
        }
        // Pages of the buffer come when they are needed.
        variants.push(if atomic {
            "--odp -n 100"
        } else {
            "--odp -s 100000 -n 100"
        });
        if !tool.is_latency() {
            variants.extend(["-b -n 500", "-q 8 -n 200"]);
        }
        if !atomic && !reads {
            variants.push("-I 64 -s 64 -n 500");
        }
        if sends {
            variants.push("--use-srq -n 500");
        }
    }
    if transport == "UD" {
        variants.push("-s 2048 -n 500");
    }
    if atomic {
        variants.push("-A FETCH_AND_ADD -n 500");
    }
    variants
}

#[test]
fn every_program_and_transport() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", None)?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    let [server, client] = &guests;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    for tool in Tool::ALL {
        for transport in transports(tool) {
            for variant in variants(tool, transport) {
                // A VF that is passed through has neither dynamic connections nor paging on demand.
                if passed_through() && (*transport == "DC" || variant.contains("--odp")) {
                    continue;
                }
                let run = Run::new(tool, DEVICE).with(&format!("-c {transport} {variant}"));
                checks.check(run.command(), || {
                    run.between(server, client, LIMIT).map(drop)
                });
            }
        }
    }
    // The driver reads registers of the device several times a second: they wait behind the
    // doorbells that are on their way.
    checks.check("the device answers under a load without a pause", || {
        let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
        let mut serving = server.spawn(&run.command())?;
        serving.await_port("18515", LIMIT)?;
        let mut writing = client.spawn(&format!("{} {}", run.command(), server.address()))?;
        while writing.text().matches(" 65536 ").count() < 8 {
            await_active(client, DEVICE)?;
            if !writing.running()? {
                return Err(client.failed(format!("ended:\n{}", writing.text())));
            }
        }
        Ok(())
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
