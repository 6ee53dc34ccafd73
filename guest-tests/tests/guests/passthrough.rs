//! Guests of a daemon that passes their data path through to VFs of another daemon: the stock driver and
//! stock tools find what they find at a VF of software.
//!
//! With `IBVSWITCH_TEST_PASSTHROUGH` all other tests of guests are done so, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed};
use ibvswitch_guest_tests::tools::diags::{expect, no_kernel_warning, number};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::{Error, Result, driver};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(180);

/// The daemon that has the VFs. One of them may manage the subnet.
fn configuration() -> Configuration {
    Configuration::new()
        .set("engine.doorbells", "adaptive")
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", [])
        .vf("vm2")
        .key("smp", "fabric")
        .vf("software")
}

const VFS: [&str; 2] = ["vm1", "vm2"];
/// A VF that one guest has beside, of software, and its device there.
const BESIDE: &str = "software";
const OF_SOFTWARE: &str = "mlx5_1";
/// Addresses of the guests' IPoIB interfaces.
const ADDRESSES: [&str; 2] = ["10.0.7.1", "10.0.7.2"];

/// Runs of perftest: every operation and transport.
const PERFTEST: [(Tool, &str); 12] = [
    (Tool::SendLat, "-n 100"),
    (Tool::SendLat, "-c UD -n 100 -e"),
    (Tool::SendLat, "-c XRC -n 100"),
    (Tool::SendBw, "-a -n 5 -t 4"),
    (Tool::SendBw, "--use-srq -n 100"),
    (Tool::WriteLat, "-I 64 -s 64 -n 100"),
    (Tool::WriteBw, "-q 8 -n 100"),
    (Tool::WriteBw, "-c UC -n 100"),
    (Tool::ReadLat, "-n 50"),
    (Tool::ReadBw, "-b -n 50"),
    (Tool::AtomicLat, "-n 50"),
    (Tool::AtomicBw, "-A FETCH_AND_ADD -n 50"),
];

fn pingpong(guests: &[Guest; 2]) -> Result<()> {
    Pingpong::Rc.between((&guests[0], &guests[1]), DEVICE, true, "-n 100", LIMIT)
}

/// Returns the state of the VF behind a guest's.
fn behind(inner: &Daemon, vf: usize) -> Result<serde_json::Value> {
    Ok(inner.status()?["vfs"][vf].clone())
}

/// Waits until the VF behind has nothing left but the event queue of the daemon before it, or not even that.
fn await_empty(inner: &Daemon, vf: usize, queues: u64) -> Result<()> {
    loop {
        let objects = behind(inner, vf)?["objects"].clone();
        let count = |kind: &str| objects[kind].as_u64().unwrap_or(u64::MAX);
        let left = ["qp", "cq", "mr", "pd"].map(count);
        if left == [0; 4] && count("eq") == queues {
            return Ok(());
        }
    }
}

/// The VF that may not manage sees nothing but its own port; the other sees all, and OpenSM at it takes the
/// subnet over.
fn rights(inner: &Daemon, [denied, allowed]: &[Guest; 2]) -> Result<()> {
    let seen = denied.run("ibnetdiscover -t 100", LIMIT)?.text;
    if seen.contains("Switch\t") || seen.contains("subnet manager") {
        return Err(denied.failed(seen));
    }
    for target in ["-D nodeinfo 0,1", "nodeinfo 1", "-D pkeys 0,1,1 1"] {
        let query = format!("smpquery -t 100 --m_key 0x1 {target}");
        let output = denied.run(&query, LIMIT)?;
        if output.status == 0 {
            return Err(denied.failed(format!("{query} has worked:\n{}", output.text)));
        }
    }
    let all = allowed.sh("ibnetdiscover", LIMIT)?;
    expect(&all, &["\"sw1\"", "\"hv1\"", "\"vm1\"", "subnet manager"])?;
    let guid = Hca::of(allowed, DEVICE)?.port_guid;
    let opensm = format!(
        "mkdir -p /tmp/osm && cd /tmp/osm && OSM_CACHE_DIR=. OSM_TMP_DIR=. \
         exec opensm -g {guid} -d2 -p 15 -f - -F none.conf"
    );
    let mut running = allowed.spawn(&opensm)?;
    running.await_text("SUBNET UP", LIMIT)?;
    let own = Hca::of(allowed, DEVICE)?.lid;
    let hca = Hca::of(denied, DEVICE)?;
    let master = inner.status()?["fabric"]["sm_lid"].clone();
    if hca.sm_lid != own || hca.state != "Active" || master != u64::from(own) {
        return Err(denied.failed(format!("{hca:?}, the master is at LID {master}")));
    }
    let records = denied.sh("saquery NR", LIMIT)?;
    if records.matches("NodeRecord dump").count() < 4 {
        return Err(denied.failed(records));
    }
    allowed.sh("killall -9 opensm", LIMIT)?;
    // By and by: the manager of the daemon asks its successor a few times first.
    while inner.status()?["fabric"]["sm_lid"] == master {
        denied.sh("true", LIMIT)?;
    }
    await_active(denied, DEVICE)
}

/// Returns a guest's description of a device, by name: the output of ibv_devinfo, its configuration space, and
/// the sizes of its BARs.
fn description(guest: &Guest, device: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let verbs = guest.sh(&format!("ibv_devinfo -v -d {device}"), LIMIT)?;
    let mut of = "";
    for line in verbs.lines().map(str::trim) {
        // Flags come in lines of their own, below what they are flags of.
        let (name, value) = match line.split_once(':') {
            Some((name, value)) => {
                of = name;
                (name.to_owned(), value)
            }
            None => (format!("{of}: {line}"), ""),
        };
        found.insert(name, value.trim().to_owned());
    }
    let sysfs = format!("/sys/class/infiniband/{device}/device");
    let space = guest.sh(&format!("od -An -v -tx4 -w4 {sysfs}/config"), LIMIT)?;
    for (number, word) in space.lines().enumerate() {
        let name = format!("configuration space {:#05x}", 4 * number);
        found.insert(name, word.trim().to_owned());
    }
    let resources = guest.sh(&format!("cat {sysfs}/resource"), LIMIT)?;
    for (number, line) in resources.lines().enumerate() {
        let words = line.split_whitespace().map(|word| {
            let digits = word.strip_prefix("0x").unwrap_or(word);
            u64::from_str_radix(digits, 16).unwrap_or(0)
        });
        if let [start, end, flags] = words.collect::<Vec<_>>()[..] {
            let size = end - start;
            found.insert(
                format!("resource {number}"),
                format!("{size:#x} {flags:#x}"),
            );
        }
    }
    Ok(found)
}

/// Names of what may differ between a VF of software and one that is passed through to such: who it is,
/// where it lies, and that its guest registers memory by commands alone (`isolation = "strict"`). Paging on
/// demand, offloads of IP over InfiniBand and tag matching are not passed through, either.
const OWN: [&str; 26] = [
    "hca_id",
    "node_guid",
    "sys_image_guid",
    "port_lid",
    "GID[  0]",
    "configuration space 0x010",
    "configuration space 0x018",
    "device_cap_flags",
    "device_cap_flags: AUTO_PATH_MIG",
    "device_cap_flags: MEM_MGT_EXTENSIONS",
    "device_cap_flags: MEM_WINDOW",
    "device_cap_flags: MEM_WINDOW_TYPE_2B",
    "device_cap_flags: UD_IP_CSUM",
    "max_mw",
    "maximum available device memory",
    "maximum available device memory:",
    "device_cap_flags_ex",
    // Of tag matching, and of the lines around it.
    "qp_rate_limit_max: tag matching not supported",
    "qp_rate_limit_max:",
    "max_rndv_hdr_size",
    "max_num_tags",
    "max_ops",
    "max_sge",
    "flags",
    "flags: IBV_TM_CAP_RC",
    "flags:",
];

fn same_but_for_itself(guest: &Guest) -> Result<()> {
    let [passed, software] = [DEVICE, OF_SOFTWARE].map(|device| description(guest, device));
    let (passed, software) = (passed?, software?);
    let names: BTreeSet<&String> = passed.keys().chain(software.keys()).collect();
    let differ = names
        .into_iter()
        .filter(|name| passed.get(*name) != software.get(*name));
    let differ: Vec<_> = differ
        .filter(|name| !OWN.contains(&name.trim()) && !name.contains("_odp_caps"))
        .map(|name| {
            format!(
                "{name}: {:?}, software {:?}",
                passed.get(name),
                software.get(name)
            )
        })
        .collect();
    if differ.is_empty() {
        return Ok(());
    }
    Err(guest.failed(differ.join("\n")))
}

#[test]
fn data_are_passed_through() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let inner = bed.single_daemon("inner", Some(&configuration()))?;
    let outer = bed.before("outer", &inner, &VFS, "strict")?;
    let [first, second] = VFS.map(|name| outer.device(name, None));
    let devices = [vec![first?, inner.device(BESIDE, None)?], vec![second?]];
    let guests = bed.pair_with(0, VFS, devices)?;
    let [one, two] = &guests;
    await_active(one, OF_SOFTWARE)?;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    checks.check("the port is the one behind", || {
        let hca = Hca::of(one, DEVICE)?;
        let vf = behind(&inner, 0)?;
        if vf["lid"] == u64::from(hca.lid) && hca.pkeys == ["0xffff"] {
            return Ok(());
        }
        Err(one.failed(format!("{hca:?} {vf}")))
    });
    checks.check("the device is as one of software", || {
        same_but_for_itself(one)
    });
    for tool in Pingpong::ALL {
        for events in [false, true] {
            let how = if events { "events" } else { "polling" };
            checks.check(format_args!("{tool}, {how}"), || {
                tool.between((one, two), DEVICE, events, "-n 100", LIMIT)
            });
        }
    }
    for (tool, options) in PERFTEST {
        checks.check(format_args!("{tool} {options}"), || {
            let run = Run::new(tool, DEVICE).with(options);
            run.between(one, two, LIMIT).map(drop)
        });
    }
    checks.check("perfquery moves with the traffic", || {
        let sent = || number(&one.sh("perfquery", LIMIT)?, "PortXmitData");
        let before = sent()?;
        pingpong(&guests)?;
        let words = sent()? - before;
        // 100 messages of 4096 bytes, in units of 4.
        if words >= 100 * 4096 / 4 {
            return Ok(());
        }
        Err(one.failed(format!("counters grew by {words}")))
    });
    checks.check("vendstat: what the device is, and no register", || {
        let lid = Hca::of(one, DEVICE)?.lid;
        let said = one.sh(&format!("vendstat -N {lid}"), LIMIT)?;
        expect(&said, &["hw_dev_id:   0x1017", "fw_version:  16.35.4030"])?;
        let said = one.run(&format!("vendstat -R 10013c {lid}"), LIMIT)?.text;
        expect(&said, &["cannot get config space records"])?;
        if said.contains("timed out") {
            return Err(one.failed(said));
        }
        Ok(())
    });
    checks.check("IPoIB and the connection manager", || {
        for (guest, address) in guests.iter().zip(ADDRESSES) {
            ipoib::up(guest, "ib0", address, LIMIT)?;
        }
        ipoib::ping(two, ADDRESSES[0], "", LIMIT)?;
        ipoib::rping(one, two, ADDRESSES[0], LIMIT)?;
        ipoib::ucmatose(one, two, ADDRESSES[0], LIMIT)
    });
    checks.check("rights are those of the VF behind", || {
        rights(&inner, &guests)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.check("the driver comes again", || {
        driver::reload(one, LIMIT)?;
        pingpong(&guests)
    });
    checks.check("a function is reset under its driver", || {
        driver::reset_in_mid_transfer(one, two, LIMIT)
    });
    checks.check("a guest boots again, from inside and from outside", || {
        two.reboot()?;
        await_active(two, DEVICE)?;
        pingpong(&guests)?;
        one.reset()?;
        await_active(one, DEVICE)?;
        pingpong(&guests)
    });
    checks.check("both daemons end cleanly on SIGTERM", || {
        guests.iter().for_each(Guest::kill);
        for daemon in [outer, inner] {
            let status = daemon.terminate()?;
            if !status.success() {
                return Err(one.failed(format!("ibvswitch: {status}")));
            }
        }
        Ok(())
    });
    checks.finish();
    Ok(())
}

/// LIDs in a cluster.
const FAR: [u16; 2] = [300, 301];

/// Datagrams of programs and of the kernel, in a cluster: by its LIDs, and by those that the subnet administration
/// tells.
#[test]
fn datagrams_are_by_lids_of_a_cluster() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let inner = bed.single_daemon("inner", Some(&configuration()))?;
    let config = inner.passed(&VFS, "strict");
    // No port of the subnet has these LIDs: the subnet administration tells the kernel of those.
    let config = FAR.iter().fold(config, |config, lid| {
        let in_cluster = format!("cluster = \"a\"\nvlid = {lid}\nsl = [0, 1]\n");
        config.replacen("smp = \"fabric\"\n", &in_cluster, 1)
    });
    let config = format!("[[cluster]]\nname = \"a\"\n{config}");
    let outer = bed.single_daemon("outer", Some(&config))?;
    let guests = bed.pair(0, VFS, Some(&outer))?;
    let [one, two] = &guests;
    for (guest, lid) in guests.iter().zip(FAR) {
        await_active(guest, DEVICE)?;
        assert_eq!(Hca::of(guest, DEVICE)?.lid, lid);
    }
    let mut checks = Checks::default();
    for events in [false, true] {
        checks.check(format_args!("pingpong, events: {events}"), || {
            Pingpong::Ud.between((one, two), DEVICE, events, "-n 100", LIMIT)
        });
    }
    checks.check("perftest", || {
        let run = Run::new(Tool::SendLat, DEVICE).with("-c UD -n 100 -e");
        run.between(one, two, LIMIT).map(drop)
    });
    checks.check("IPoIB and the connection manager", || {
        for (guest, address) in guests.iter().zip(ADDRESSES) {
            ipoib::up(guest, "ib0", address, LIMIT)?;
        }
        ipoib::ping(two, ADDRESSES[0], "", LIMIT)?;
        ipoib::rping(one, two, ADDRESSES[0], LIMIT)
    });
    checks.check("management packets are looked at", || {
        let mads = || Ok(outer.status()?["passthrough"][0]["mads"].clone());
        let before = mads()?;
        let asked = one.run(&format!("perfquery -t 100 {} 1", FAR[1]), LIMIT)?;
        let after = mads()?;
        // What the kernel asks and says is its own to say.
        let is_right = before["passed"].as_u64() > Some(0)
            && before["refused"] == serde_json::json!({})
            && asked.status != 0
            && after["refused"]["class"].as_u64() > Some(0);
        if is_right {
            return Ok(());
        }
        Err(one.failed(format!("{before}\n{after}\n{}", asked.text)))
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    eprintln!("{}", outer.status()?["passthrough"][0]["datagrams"]);
    checks.finish();
    Ok(())
}

/// Has one guest write to the other without end, in the middle of which something happens; it has to end with
/// an error.
fn in_mid_transfer([server, client]: &[Guest; 2], happens: impl FnOnce()) -> Result<()> {
    let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
    let mut serving = server.spawn(&run.command())?;
    serving.await_port("18515", LIMIT)?;
    let mut writing = client.spawn(&format!("{} {}", run.command(), server.address()))?;
    writing.await_text(" 65536 ", LIMIT)?;
    happens();
    let output = writing.wait(LIMIT)?;
    if output.status != 0 {
        return Ok(());
    }
    Err(client.failed(format!("ended with status 0:\n{}", output.text)))
}

/// Starts both guests anew, and has them talk.
fn started_anew(bed: &Testbed, guests: [Guest; 2]) -> Result<[Guest; 2]> {
    guests.iter().for_each(Guest::kill);
    let [one, two] = guests;
    let guests = [bed.restart(one)?, bed.restart(two)?];
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    pingpong(&guests)?;
    Ok(guests)
}

/// Whether a driver has said that its device is not well.
const TOLD: &str = "dmesg | grep -q 'mlx5_core.*health'";

#[test]
fn each_of_three_is_killed() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let mut inner = bed.single_daemon("inner", Some(&configuration()))?;
    let mut outer = bed.before("outer", &inner, &VFS, "strict")?;
    let mut guests = bed.pair(0, VFS, Some(&outer))?;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();

    checks.check(
        "QEMU: its VF is free again, and nothing is left in it",
        || {
            let victim = &guests[0];
            in_mid_transfer(&guests, || victim.kill())?;
            await_empty(&inner, 0, 1)?;
            await_active(&guests[1], DEVICE)
        },
    );
    let [victim, survivor] = guests;
    guests = [bed.restart(victim)?, survivor];
    checks.check("a new QEMU takes the VF over", || {
        await_active(&guests[0], DEVICE)?;
        pingpong(&guests)
    });

    checks.check(
        "the server of the VFs behind: guests live on without their HCA",
        || {
            for guest in &guests {
                guest.sh(&format!("! {TOLD}"), LIMIT)?;
            }
            inner.kill();
            for guest in &guests {
                guest.sh(&format!("until {TOLD}; do usleep 50000; done"), LIMIT)?;
            }
            expect(&outer.log(), &["the VF behind it is lost"])
        },
    );
    inner = bed.single_daemon("inner", Some(&configuration()))?;
    guests = started_anew(&bed, guests)?;

    checks.check("the daemon between: VFs behind are free again", || {
        outer.kill();
        for vf in [0, 1] {
            await_empty(&inner, vf, 0)?;
        }
        for guest in &guests {
            match guest.sh("true", LIMIT) {
                // QEMU ends where it loses its server with a request under way.
                Ok(_) | Err(Error::Guest { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    outer = bed.before("outer", &inner, &VFS, "strict")?;
    guests = started_anew(&bed, guests)?;
    checks.check("no kernel warning of guests that were started anew", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    drop(outer);
    checks.finish();
    Ok(())
}
