//! The daemon is killed, and the keeper has the guests: their HCAs fail and recover by themselves, and no
//! guest is started anew.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::{BOOT_LIMIT, Guest, Job};
use ibvswitch_guest_tests::hca::await_active;
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, MLX5, Testbed};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use ibvswitch_guest_tests::{Error, Result, progress};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(240);

/// So long after a recovery the keeper has a driver believe that its device works.
const HOLD: Duration = Duration::from_secs(45);

/// In each pair one VF that traps doorbells, and a second one with doorbells of another kind.
fn configuration(second: &str) -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("doorbells", "trap")
        .vf("vm3")
        .key("doorbells", "trap")
        .hypervisor("hv2", [])
        .vf("vm2")
        .key("doorbells", second)
        .vf("vm4")
        .key("doorbells", second)
}

type Pair = [Guest; 2];

/// Does the same with all at the same time.
fn each<'a, T: Sync, R: Send>(
    all: &'a [T],
    act: impl Fn(&'a T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let act = &act;
        let acts: Vec<_> = all.iter().map(|it| scope.spawn(move || act(it))).collect();
        let done = acts.into_iter().map(|act| {
            let panicked = |_| Error::Host("a thread has panicked".into());
            act.join().map_err(panicked)?
        });
        done.collect()
    })
}

/// Returns the number of recoveries of a guest's device by its driver.
fn recoveries(guest: &Guest) -> Result<u32> {
    let text = guest.run("dmesg | grep -c 'health recovery succeeded'", LIMIT)?;
    Ok(text.text.trim().parse().unwrap_or(0))
}

/// Kills the daemon, and waits until the drivers of all guests have recovered and their ports are Active: how
/// long that took.
fn kill_and_recover(daemon: &Daemon, guests: &[&Guest]) -> Result<Vec<Duration>> {
    let guests: Vec<_> = guests
        .iter()
        .map(|guest| Ok((*guest, recoveries(guest)? + 1)))
        .collect::<Result<_>>()?;
    let killed = Instant::now();
    daemon.kill_served()?;
    each(&guests, |&(guest, times)| {
        let said = format!("grep -m {times} 'health recovery succeeded' /dev/kmsg >/dev/null");
        guest.sh(&said, LIMIT)?;
        await_active(guest, DEVICE)?;
        let took = killed.elapsed();
        progress::step(format_args!(
            "{}: Active {took:.1?} after the kill",
            guest.name()
        ));
        Ok(took)
    })
}

fn pingpong([server, client]: &Pair) -> Result<()> {
    Pingpong::Rc.between((server, client), DEVICE, false, "", LIMIT)?;
    Pingpong::Rc.between((client, server), DEVICE, true, "", LIMIT)
}

/// IPoIB between the guests, at addresses like those of their cable. The interfaces are new each time.
fn over_ipoib([server, client]: &Pair) -> Result<()> {
    let [served, called] =
        [server, client].map(|guest| guest.address().replacen("10.0", "10.9", 1));
    ipoib::up(server, "ib0", &served, LIMIT)?;
    ipoib::up(client, "ib0", &called, LIMIT)?;
    ipoib::ping(server, &called, "", LIMIT)?;
    ipoib::rping(server, client, &served, LIMIT)
}

/// RDMA writes without end, which polls for completions.
fn write([server, client]: &Pair) -> Result<[Job<'_>; 2]> {
    let run = Run::new(Tool::WriteBw, DEVICE).with("--run_infinitely -D 1 -s 65536");
    let mut serving = server.spawn(&run.command())?;
    serving.await_port("18515", LIMIT)?;
    let mut writing = client.spawn(&format!("{} {}", run.command(), server.address()))?;
    writing.await_text(" 65536 ", LIMIT)?;
    Ok([serving, writing])
}

#[test]
fn guests_outlive_the_daemon() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.kept_daemon("ibvswitch", Some(&configuration("adaptive")))?;
    let guests = bed.pair(0, ["vm1", "vm2"], Some(&daemon))?;
    for guest in &guests {
        await_active(guest, DEVICE)?;
    }
    let all: Vec<_> = guests.iter().collect();
    let mut checks = Checks::default();
    checks.check("verbs and IPoIB work", || {
        pingpong(&guests)?;
        over_ipoib(&guests)
    });
    checks.check("an idle daemon is killed", || {
        kill_and_recover(&daemon, &all).map(drop)
    });
    checks.check("verbs and IPoIB work again", || {
        pingpong(&guests)?;
        over_ipoib(&guests)
    });
    checks.check(
        "it is killed under traffic, before a driver may recover again",
        || {
            let writing = write(&guests)?;
            let recovered = kill_and_recover(&daemon, &all);
            drop(writing);
            recovered.map(drop)
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

/// Fewer daemons that die.
const KILLS: &str = "IBVSWITCH_TEST_KILLS";

/// When the daemon is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// Under traffic, when the last recovery is long over.
    Settled,
    /// Under traffic, before a driver may recover again.
    Early,
    /// While one driver of each pair loads.
    Loading,
}

fn unlike(what: &str, now: &impl std::fmt::Debug, before: &impl std::fmt::Debug) -> Error {
    Error::Output {
        what: what.to_owned(),
        text: format!("{now:?}, and before {before:?}"),
    }
}

/// By what a guest and its HCA are the same: the boot, the LID, the GID.
fn identity(guest: &Guest) -> Result<String> {
    let port = format!("/sys/class/infiniband/{DEVICE}/ports/1");
    let command = format!("cat /proc/sys/kernel/random/boot_id {port}/lid {port}/gids/0");
    guest.sh(&command, LIMIT)
}

/// Returns the daemon's processes by their commands, with the number of their descriptors.
fn left(daemon: &Daemon) -> Vec<(String, usize)> {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let first = daemon.pid();
    let children = read(format!("/proc/{first}/task/{first}/children"));
    let children = children.split_whitespace().filter_map(|it| it.parse().ok());
    let describe = |pid: u32| {
        let arguments = read(format!("/proc/{pid}/cmdline"));
        let role = arguments.trim_end_matches('\0').rsplit('\0').next();
        let role = role.unwrap_or_default().to_owned();
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let lives_on = role != "--kept";
        (role, if lives_on { descriptors } else { 0 })
    };
    [first].into_iter().chain(children).map(describe).collect()
}

/// Has the driver of one guest of each pair load anew, kills the daemon meanwhile, and prints what becomes of
/// it. The other guests recover.
fn kill_while_loading(daemon: &Daemon, pairs: &[Pair]) -> Result<()> {
    let load = format!(
        "basename $(readlink /sys/class/infiniband/{DEVICE}/device) >/tmp/hca; \
         cd /sys/bus/pci/drivers/mlx5_core; cat /tmp/hca >unbind; echo loading; \
         cat /tmp/hca >bind && echo well || echo in vain"
    );
    let bind = "cd /sys/bus/pci/drivers/mlx5_core; cat /tmp/hca >unbind; cat /tmp/hca >bind";
    let mut loading = each(pairs, |[guest, _]| Ok((guest, guest.spawn(&load)?)))?;
    for (_, job) in &mut loading {
        job.await_text("loading", LIMIT)?;
    }
    let others: Vec<_> = pairs.iter().map(|[_, other]| other).collect();
    kill_and_recover(daemon, &others)?;
    for (guest, job) in loading {
        let ended = job.wait(LIMIT)?.text.replace('\n', ": ");
        let by = if await_active(guest, DEVICE).is_ok() {
            "by itself"
        } else {
            guest.run(bind, LIMIT)?;
            await_active(guest, DEVICE)?;
            "once it is bound again"
        };
        progress::step(format_args!("{}: {ended}Active {by}", guest.name()));
        // Its port may be Active before programs can open it.
        let opens =
            format!("until ibv_devinfo -d {DEVICE} >/dev/null 2>&1; do usleep 200000; done");
        guest.sh(&opens, LIMIT)?;
    }
    Ok(())
}

/// Starts a pair of guests, without waiting for them to boot.
fn start(bed: &Testbed, link: u8, names: [&str; 2], daemon: &Daemon) -> Result<Pair> {
    let mut configs = names.map(|name| bed.config(name));
    for (config, name) in configs.iter_mut().zip(names) {
        config.modules = MLX5.map(str::to_owned).to_vec();
        config.devices.push(daemon.device(name, None)?);
    }
    let [mut first, mut second] = configs;
    bed.link(link, &mut first, &mut second);
    Ok([bed.start(first)?, bed.start(second)?])
}

/// Prints how long it took: in the middle, and at worst.
fn print(what: &str, mut took: Vec<Duration>) {
    took.sort();
    if let Some(worst) = took.last() {
        let (count, median) = (took.len(), took[took.len() / 2]);
        println!(
            "{what}: {count} recoveries, Active after {median:.1?} (median), {worst:.1?} (worst)"
        );
    }
}

/// Four guests on two kernels, and twenty daemons that die.
#[test]
#[ignore = "twenty minutes"]
fn guests_outlive_twenty_daemons() -> Result<()> {
    const UNDER_TRAFFIC: [When; 3] = [When::Settled, When::Settled, When::Early];
    let beds = [Testbed::new(Kernel::V6_12)?, Testbed::new(Kernel::V6_1)?];
    // The two ways that have the least in common.
    let daemon = beds[0].kept_daemon("ibvswitch", Some(&configuration("poll")))?;
    let pairs = [
        start(&beds[0], 0, ["vm1", "vm2"], &daemon)?,
        start(&beds[1], 1, ["vm3", "vm4"], &daemon)?,
    ];
    let guests: Vec<_> = pairs.iter().flatten().collect();
    // All four at the same time, which takes longer.
    let deadline = Instant::now() + 2 * BOOT_LIMIT;
    for guest in &guests {
        guest.booted_by(deadline)?;
        await_active(guest, DEVICE)?;
        progress::step(format_args!("{}: Active", guest.name()));
    }
    let works = || {
        let pair_works = |pair| {
            pingpong(pair)?;
            over_ipoib(pair)
        };
        each(&pairs, pair_works).map(drop)
    };
    let all_same = || each(&guests, |guest| identity(guest));
    let before = all_same()?;
    let mut checks = Checks::default();
    checks.check("verbs and IPoIB work", works);
    let most = std::env::var(KILLS).ok().and_then(|text| text.parse().ok());
    let under_traffic = UNDER_TRAFFIC.into_iter().cycle().take(18);
    let kills = [When::Loading; 2].into_iter().chain(under_traffic);
    let kills = kills.take(most.unwrap_or(20));
    let (mut settled, mut early, mut first) = (Vec::new(), Vec::new(), None);
    let mut recovered = None;
    for (number, when) in (1..).zip(kills) {
        checks.check(format_args!("kill {number}, {when:?}"), || {
            if let Some(recovered) = recovered.filter(|_| when != When::Early) {
                // Nobody says when a driver is ready to recover again.
                thread::sleep(HOLD.saturating_sub(Instant::elapsed(&recovered)));
            }
            if when == When::Loading {
                kill_while_loading(&daemon, &pairs)?;
            } else {
                let writing = each(&pairs, write)?;
                let took = kill_and_recover(&daemon, &guests)?;
                drop(writing);
                let kind = if when == When::Early {
                    &mut early
                } else {
                    &mut settled
                };
                kind.extend(took);
            }
            recovered = Some(Instant::now());
            works()?;
            let now = all_same()?;
            if now != before {
                return Err(unlike("the same guests", &now, &before));
            }
            let now = left(&daemon);
            let first = first.get_or_insert_with(|| now.clone());
            if now.len() != 3 || now != *first {
                return Err(unlike("nothing of the dead daemon", &now, first));
            }
            Ok(())
        });
    }
    print("killed under traffic", settled);
    print("killed again before a driver may recover again", early);
    progress::step(format_args!("{:?}", left(&daemon)));
    drop(daemon);
    checks.finish();
    Ok(())
}
