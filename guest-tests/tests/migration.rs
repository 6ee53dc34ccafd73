//! A VM is migrated live between two QEMUs, from one hypervisor's VF to another's, and keeps its
//! addresses.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use ibvswitch_guest_tests::{
    Error, Result,
    checks::Checks,
    daemon::Daemon,
    diags::no_kernel_warning,
    guest::Guest,
    hca::{Hca, await_active},
    image::Kernel,
    ipoib,
    pingpong::Pingpong,
    progress,
    testbed::{DEVICE, Testbed},
};

const LIMIT: Duration = Duration::from_secs(120);

const SUBNET: &str = r#"
[partitions]
shop = 0x0010
[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"
pkeys = ["default", "shop"]
[[hypervisor]]
name = "hv2"
spare_vfs = 1
[[hypervisor]]
name = "hv3"
[[hypervisor.vf]]
name = "vm2"
pkeys = ["default", "shop"]
"#;

/// The guest's HCA on PCI, as `0000:00:04.0`.
fn address(guest: &Guest) -> Result<String> {
    let link = format!("basename $(readlink /sys/class/infiniband/{DEVICE}/device)");
    Ok(guest.sh(&link, LIMIT)?.trim().to_owned())
}

fn gid(guest: &Guest) -> Result<String> {
    let file = format!("cat /sys/class/infiniband/{DEVICE}/ports/1/gids/0");
    guest.sh(&file, LIMIT)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, before: &T, after: &T) -> Result<()> {
    match before == after {
        true => Ok(()),
        false => Err(Error::Output {
            what: format!("the same {what} as before ({before:?})"),
            text: format!("{after:?}"),
        }),
    }
}

/// Detaches the guest's HCA, moves its addresses if so wanted and the guest, and attaches the HCA
/// of the destination.
fn migrate(bed: &Testbed, daemon: &Daemon, vm: Guest, addresses: bool) -> Result<Guest> {
    let device = daemon.device("hv2-spare1", None)?;
    let received = bed.receiver(&vm, "received", device)?;
    let started = Instant::now();
    let pci = address(&vm)?;
    vm.sh(
        &format!("echo 1 > /sys/bus/pci/devices/{pci}/remove"),
        LIMIT,
    )?;
    let detached = started.elapsed();
    if addresses {
        let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2"])?;
        progress::step(moved.trim());
    }
    vm.live_migrate(&received)?;
    drop(vm);
    let migrated = started.elapsed();
    received.sh("echo 1 > /sys/bus/pci/rescan", LIMIT)?;
    await_active(&received, DEVICE)?;
    progress::step(format_args!(
        "detached after {:.1} s, at the destination after {:.1} s, Active after {:.1} s",
        detached.as_secs_f64(),
        migrated.as_secs_f64(),
        started.elapsed().as_secs_f64()
    ));
    Ok(received)
}

#[test]
fn a_vm_keeps_its_addresses() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(SUBNET))?;
    // The first one listens on the Ethernet cable, so it has to be the one that stays.
    let [peer, vm] = bed.pair(0, ["vm2", "vm1"], Some(&daemon))?;
    for guest in [&peer, &vm] {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    let pingpong = |vm: &Guest| Pingpong::Rc.between((&peer, vm), DEVICE, false, "", LIMIT);
    checks.check("the VM reaches its peer", || pingpong(&vm));
    let before = Hca::of(&vm, DEVICE)?;
    let gid_before = gid(&vm)?;

    let vm = migrate(&bed, &daemon, vm, true)?;

    checks.check("LID, GUID and P_Keys are the same", || {
        same("HCA", &before, &Hca::of(&vm, DEVICE)?)
    });
    checks.check("so is the GID", || same("GID", &gid_before, &gid(&vm)?));
    checks.check("the peer finds it where it was", || pingpong(&vm));
    checks.check("no kernel warning", || {
        [&peer, &vm]
            .into_iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}

/// The server's IPoIB address.
const SERVER: &str = "10.9.0.1";

/// Connects to the server over and over, and says when it has worked, in the guest's own time.
const CLIENT: &str = "while :; do if rping -c -a 10.9.0.1 -C 3 >/dev/null 2>&1; then \
     read -r now rest </proc/uptime; echo \"worked $now;\"; else echo failed; fi; \
     sleep 1; done";

fn uptime(guest: &Guest) -> Result<f64> {
    let text = guest.sh("cat /proc/uptime", LIMIT)?;
    let now = text
        .split_whitespace()
        .next()
        .and_then(|now| now.parse().ok());
    now.ok_or_else(|| guest.failed(format!("no time in {text:?}")))
}

/// What a migration did to the server's client.
#[derive(Debug)]
struct Outage {
    /// From the detach to the first connection that worked again.
    seconds: f64,
    /// Requests to the subnet administration in that time, by the server's VM and by the client's.
    queries: [usize; 2],
}

/// A server's VM migrates while a client connects to it over and over.
fn outage(addresses: bool) -> Result<Outage> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(SUBNET))?;
    let [peer, vm] = bed.pair(0, ["vm2", "vm1"], Some(&daemon))?;
    for (guest, address) in [(&vm, SERVER), (&peer, "10.9.0.2")] {
        await_active(guest, DEVICE)?;
        ipoib::up(guest, "ib0", address, LIMIT)?;
    }
    let file = bed.dir().join("sa.pcap");
    let capturing = daemon
        .command()
        .args(["capture", "--manager", "--write"])
        .arg(&file)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| Error::Host(format!("cannot start a capture: {error}")))?;
    let capturing = Capturing(capturing);
    let serving = vm.spawn("rping -s -P -a 0.0.0.0")?;
    let mut client = peer.spawn(CLIENT)?;
    client.await_text("worked", LIMIT)?;
    drop(serving);

    let client_lid = Hca::of(&peer, DEVICE)?.lid;
    let began = SystemTime::now();
    let detached = uptime(&peer)?;
    let vm = migrate(&bed, &daemon, vm, addresses)?;
    ipoib::up(&vm, "ib0", SERVER, LIMIT)?;
    // The first word from the VM: by it the peer learns the VM's new queue pair, and GID if need be.
    // A connection alone would use what it knew, for as long as nothing else is sent.
    vm.sh(
        "until ping -c 1 -W 1 10.9.0.2 >/dev/null; do :; done",
        LIMIT,
    )?;
    let attached = uptime(&peer)?;
    let _serving = vm.spawn("rping -s -P -a 0.0.0.0")?;
    let worked = loop {
        let text = client.text();
        let times = text
            .split("worked ")
            .skip(1)
            .filter_map(|rest| rest.split_once(';')?.0.parse::<f64>().ok());
        if let Some(time) = times.into_iter().find(|&time| time > attached) {
            break time;
        }
        // Whatever comes next: the time limit is that of the test.
        client.ends_within(Duration::from_millis(500))?;
    };
    let ended = SystemTime::now();
    drop(client);
    drop(capturing);
    let queries = queries(&file, began, ended, client_lid)?;
    Ok(Outage {
        seconds: worked - detached,
        queries,
    })
}

/// `ibvswitch capture`; ends as by Ctrl-C when dropped.
struct Capturing(Child);

impl Drop for Capturing {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.0.id().cast_signed());
        let _ = kill(pid, Signal::SIGINT);
        let _ = self.0.wait();
    }
}

/// SubnAdmGet, Set, GetTable and Delete (IBA 15.2.2).
const REQUESTS: [u16; 4] = [0x01, 0x02, 0x12, 0x15];

/// Requests to the subnet administration between two moments: those of others than the client, and
/// the client's.
fn queries(file: &Path, from: SystemTime, to: SystemTime, client: u16) -> Result<[usize; 2]> {
    let fields = [
        "frame.time_epoch",
        "infiniband.lrh.slid",
        "infiniband.mad.method",
    ];
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-T", "fields"]);
    command.args(["-Y", "infiniband.mad.mgmtclass == 0x03"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command
        .output()
        .map_err(|error| Error::Host(format!("cannot start tshark: {error}; install it")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let unexpected = || Error::Output {
        what: format!("packets of the subnet administration from tshark {fields:?}"),
        text: text.clone(),
    };
    let number = |field: &str| match field.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => field.parse().ok(),
    };
    let mut counts = [0, 0];
    let mut any = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [time, slid, method] = words[..] else {
            return Err(unexpected());
        };
        let time: f64 = time.parse().map_err(|_| unexpected())?;
        let (slid, method) = (number(slid), number(method));
        let (Some(slid), Some(method)) = (slid, method) else {
            return Err(unexpected());
        };
        any = true;
        let time = UNIX_EPOCH + Duration::from_secs_f64(time);
        if REQUESTS.contains(&method) && (from..to).contains(&time) {
            counts[usize::from(slid == client)] += 1;
        }
    }
    match any {
        true => Ok(counts),
        false => Err(unexpected()),
    }
}

fn report(case: &str, outage: &Outage) {
    let [server, client] = outage.queries;
    progress::step(format_args!(
        "addresses {case}: {:.1} s from the detach to the next connection; requests to the subnet \
         administration: {server} by the server's VM, {client} by the client's",
        outage.seconds
    ));
}

/// The first case of *A Novel Query Caching Scheme for Dynamic InfiniBand Subnets*, IV.
#[test]
fn an_outage_where_addresses_change() -> Result<()> {
    report("change", &outage(false)?);
    Ok(())
}

/// The second one.
#[test]
fn an_outage_where_addresses_are_kept() -> Result<()> {
    report("are kept", &outage(true)?);
    Ok(())
}
