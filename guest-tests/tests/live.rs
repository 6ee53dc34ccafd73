//! A VM moves from QEMU to QEMU and from hypervisor to hypervisor while its programs use the HCA, other programs
//! take the daemon's place, and nothing in the VM notices.

use std::{process::Child, time::Duration};

use ibvswitch_guest_tests::{
    Error, Result,
    checks::Checks,
    daemon::Daemon,
    diags::{expect, no_kernel_warning},
    guest::{Config, Guest},
    hca::{Hca, await_active},
    image::Kernel,
    ipoib,
    moves::{self, refusal},
    pingpong::Pingpong,
    progress,
    testbed::{DEVICE, MLX5, Testbed},
};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(240);

const SUBNET: &str = r#"
[partitions]
shop = 0x0010
[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"
pkeys = ["default", "shop"]
[[hypervisor.port]]
name = "card1"
kind = "vhost-user-net"
[[hypervisor]]
name = "hv2"
spare_vfs = 1
spare_ports = 1
[[hypervisor]]
name = "hv3"
[[hypervisor.vf]]
name = "vm2"
pkeys = ["default", "shop"]
"#;

const VM: &str = "10.9.0.1";
const PEER: &str = "10.9.0.2";
const PINGS: u32 = 40;

/// What the VM has.
const OF_VM: [&str; 2] = ["vm1", "card1"];
/// Where it may be: its VF and its port there.
const PLACES: [[&str; 2]; 2] = [OF_VM, ["hv2-spare1", "hv2-spare-port1"]];
/// The address of its card, and one for the peer in the same network.
const CARD: &str = "10.10.0.1";
const PEER_OF_CARD: &str = "10.10.0.2";

/// A program that goes on while its VM moves, and after that: its output and its end are in files of the guest.
struct Background(&'static str);

impl Background {
    fn start(guest: &Guest, name: &'static str, command: &str) -> Result<Self> {
        guest.sh(
            &format!("({command} >{name}.log 2>&1; echo $? >{name}.status) &"),
            LIMIT,
        )?;
        Ok(Self(name))
    }

    fn runs(&self, guest: &Guest) -> Result<()> {
        let name = self.0;
        let show = format!("test ! -e {name}.status || {{ cat {name}.log; exit 1; }}");
        guest.sh(&show, LIMIT).map(drop)
    }

    /// Waits for its end, which has to be a good one; what it has printed.
    fn end(&self, guest: &Guest) -> Result<String> {
        let name = self.0;
        let wait = format!(
            "until [ -e {name}.status ]; do usleep 50000; done; cat {name}.log; exit $(cat {name}.status)"
        );
        guest.sh(&wait, LIMIT)
    }
}

struct Scene {
    bed: Testbed,
    daemon: Daemon,
    peer: Guest,
}

impl Scene {
    fn new() -> Result<(Self, Guest)> {
        let bed = Testbed::new(Kernel::default())?;
        let daemon = bed.daemon("ibvswitch", Some(SUBNET))?;
        let (mut peer, mut vm) = (bed.config("vm2"), bed.config("vm1"));
        peer.devices.push(daemon.device("vm2", None)?);
        vm.qemu_arguments = daemon.migratable("vm1", false)?;
        vm.qemu_arguments.extend(daemon.card("card1")?);
        for config in [&mut peer, &mut vm] {
            config.modules = MLX5.map(str::to_owned).to_vec();
            config.modules.push("virtio_net".to_owned());
        }
        // The first one listens on the Ethernet cable, so it has to be the one that stays.
        bed.link(0, &mut peer, &mut vm);
        let (peer, vm) = (bed.start(peer)?, bed.start(vm)?);
        for (guest, address) in [(&vm, VM), (&peer, PEER)] {
            guest.booted()?;
            await_active(guest, DEVICE)?;
            ipoib::up(guest, "ib0", address, LIMIT)?;
        }
        peer.sh(&format!("ip address add {PEER_OF_CARD}/24 dev ib0"), LIMIT)?;
        let up = format!("ip address add {CARD}/24 dev eth1 && ip link set eth1 up");
        vm.sh(&up, LIMIT)?;
        let scene = Self { bed, daemon, peer };
        scene.reach_card(&vm)?;
        Ok((scene, vm))
    }

    /// The peer reaches the VM's card, and the other way round.
    fn reach_card(&self, vm: &Guest) -> Result<()> {
        ipoib::await_carrier(vm, "eth1", LIMIT)?;
        // What is sent before the port is in its groups is lost.
        let first = format!("until ping -c 1 -W 1 {CARD}; do :; done");
        self.peer.sh(&first, LIMIT)?;
        ipoib::ping(&self.peer, CARD, "", LIMIT)?;
        ipoib::ping(vm, PEER_OF_CARD, "", LIMIT)
    }

    /// A QEMU that waits at a VF and a port for a VM like this.
    fn receiver(&self, config: Config, [vf, port]: [&str; 2]) -> Result<Guest> {
        let mut arguments = self.daemon.migratable(vf, true)?;
        arguments.extend(self.daemon.card(port)?);
        self.bed.live_receiver(config, vf, arguments)
    }

    /// Begins to move the VM to the second hypervisor, and waits until its memory is on its way.
    fn begin(&self, vm: &Guest) -> Result<Child> {
        moves::begin(&self.daemon, vm, &OF_VM, "hv2")
    }

    /// That the VM is where it was and works, with the addresses `of` it.
    fn stays(&self, vm: &Guest, of: &Hca) -> Result<()> {
        let status = self.daemon.status()?;
        let vfs = status["vfs"].as_array().into_iter().flatten();
        let holders: Vec<&str> = vfs
            .filter(|vf| OF_VM.iter().any(|name| vf["holds"] == *name))
            .filter_map(|vf| vf["name"].as_str())
            .collect();
        let after = Hca::of(vm, DEVICE)?;
        if holders != OF_VM || after != *of {
            return Err(vm.failed(format!("is at {holders:?} with {after:?}, before {of:?}")));
        }
        ipoib::ping(vm, PEER, "", LIMIT)?;
        self.reach_card(vm)
    }

    /// Moves the VM to a hypervisor, where a new QEMU waits at a VF and a port.
    fn migrate(&self, vm: Guest, to: &str, place: [&str; 2]) -> Result<Guest> {
        let received = self.receiver(vm.config.clone(), place)?;
        let report = moves::migrate(&self.daemon, &OF_VM, to)?;
        let moves = report["moves"].as_array().into_iter().flatten();
        if !moves.map(|moved| &moved["to"]["vf"]).eq(&place) {
            return Err(Error::Output {
                what: format!("a VM at {place:?}"),
                text: report.to_string(),
            });
        }
        Ok(received)
    }
}

/// Whatever goes wrong on the way, the VM runs on where it is.
fn failures(scene: &Scene, vm: &Guest, checks: &mut Checks) -> Result<()> {
    let before = Hca::of(vm, DEVICE)?;
    checks.check("a QEMU with less memory gets no VM", || {
        let mut config = vm.config.clone();
        config.memory /= 2;
        let _receiver = scene.receiver(config, PLACES[1])?;
        let said = refusal(moves::start(&scene.daemon, &OF_VM, "hv2")?)?;
        expect(&said, &["did not migrate", "vm1 runs on at hv1"])?;
        scene.stays(vm, &before)
    });
    checks.check("a QEMU that is killed gets no VM", || {
        let receiver = scene.receiver(vm.config.clone(), PLACES[1])?;
        let child = scene.begin(vm)?;
        receiver.kill();
        expect(&refusal(child)?, &["vm1 runs on at hv1"])?;
        scene.stays(vm, &before)
    });
    checks.check("a command that is killed moves no VM", || {
        let _receiver = scene.receiver(vm.config.clone(), PLACES[1])?;
        let mut child = scene.begin(vm)?;
        // Neither fails but for a process that is already gone.
        let _ = child.kill();
        let _ = child.wait();
        moves::await_migration(vm, &["cancelled", "failed"])?;
        scene.stays(vm, &before)
    });
    Ok(())
}

/// One program after the other takes the daemon's place, under messages that wait for each other and such that do
/// not.
fn upgrades(scene: &Scene, vm: &Guest, checks: &mut Checks) -> Result<()> {
    const UPGRADES: u64 = 20;
    let (peer, before) = (&scene.peer, Hca::of(vm, DEVICE)?);
    let send = format!("ib_send_bw -d {DEVICE} -p 18700 -D 60 -s 65536");
    let received = Background::start(vm, "send", &send)?;
    vm.sh("await-port 18700 1", LIMIT)?;
    let sending = Background::start(peer, "send", &format!("{send} {}", vm.address()))?;
    let (mut gaps, mut upgraded) = (Vec::new(), 0);
    while upgraded < UPGRADES {
        for guest in [vm, peer] {
            guest.sh("rm -f lat.status", LIMIT)?;
        }
        let lat = format!("ib_write_lat -d {DEVICE} -p {} -n 5000", 18800 + upgraded);
        let written = Background::start(peer, "lat", &lat)?;
        peer.sh(&format!("await-port {} 1", 18800 + upgraded), LIMIT)?;
        let writing = Background::start(vm, "lat", &format!("{lat} {}", peer.address()))?;
        loop {
            let report = scene.daemon.ask(&["upgrade", "--within", "4", "--json"])?;
            upgraded += 1;
            progress::step(&report);
            expect(
                &report,
                &[
                    &format!("\"count\":{upgraded},"),
                    "\"failed\":0",
                    "\"vms\":2",
                ],
            )?;
            if upgraded == UPGRADES || vm.run("test -e lat.status", LIMIT)?.status == 0 {
                break;
            }
        }
        written.end(peer)?;
        // #bytes, iterations, then microseconds: the least, the most, …
        let text = writing.end(vm)?;
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("2 "));
        gaps.extend(line.and_then(|line| line.split_whitespace().nth(3)?.parse::<f64>().ok()));
    }
    progress::step(json!({ "longest_gaps_us": gaps }));
    checks.check("messages went on while programs took over", || {
        for (guest, program) in [(vm, &received), (peer, &sending)] {
            expect(&program.end(guest)?, &["BW average"])?;
        }
        scene.stays(vm, &before)
    });
    Ok(())
}

#[test]
fn a_vm_moves_under_traffic_and_does_not_notice() -> Result<()> {
    let (scene, mut vm) = Scene::new()?;
    let peer = &scene.peer;
    let mut checks = Checks::default();
    let before = Hca::of(&vm, DEVICE)?;
    vm.sh("dmesg -c >/dev/null", LIMIT)?;

    // The device writes into the VM's memory all the time.
    let write = format!("ib_write_bw -d {DEVICE} -p 18600 -D 60 -q 4 -s 65536");
    let written = Background::start(&vm, "write", &write)?;
    vm.sh("await-port 18600 1", LIMIT)?;
    let writing = Background::start(peer, "write", &format!("{write} {}", vm.address()))?;
    // As many messages as take seconds alone, however fast the machine is: beside the others they last longer
    // than those.
    let printed = Pingpong::Rc.printed((peer, &vm), DEVICE, false, "-n 2000", LIMIT)?;
    let time = printed[0].split_whitespace().rev().nth(1);
    let time: f64 = time.and_then(|it| it.parse().ok()).unwrap_or(1e3);
    let serve = format!("ibv_rc_pingpong -d {DEVICE} -c -n {}", (3e6 / time) as u64);
    let served = Background::start(peer, "pingpong", &serve)?;
    peer.sh("await-port 18515 1", LIMIT)?;
    let called = Background::start(&vm, "pingpong", &format!("{serve} {}", peer.address()))?;
    let pinging = Background::start(peer, "ping", &format!("ping -c {PINGS} {VM}"))?;

    for (to, place) in [("hv2", PLACES[1]), ("hv1", PLACES[0])] {
        for (guest, program) in [(&vm, &called), (&vm, &written), (peer, &writing)] {
            program.runs(guest)?;
        }
        vm = scene.migrate(vm, to, place)?;
        let name = format!("at {to} it has the LID, GUID and P_Keys that it had");
        checks.check(&name, || {
            let after = Hca::of(&vm, DEVICE)?;
            if after == before {
                return Ok(());
            }
            Err(vm.failed(format!("{after:?}, and before {before:?}")))
        });
        let name = format!("at {to} its Ethernet card is that of the port there");
        checks.check(&name, || scene.reach_card(&vm));
    }

    checks.check("ibv_rc_pingpong moved every byte", || {
        for (guest, program) in [(&vm, &called), (peer, &served)] {
            let text = program.end(guest)?;
            expect(&text, &[" bytes in "])?;
            if text.contains("invalid data") {
                return Err(guest.failed(text));
            }
        }
        Ok(())
    });
    checks.check("ib_write_bw came to its end at both ends", || {
        for (guest, program) in [(&vm, &written), (peer, &writing)] {
            expect(&program.end(guest)?, &["BW average"])?;
        }
        Ok(())
    });
    checks.check("IPoIB goes on", || {
        // A datagram that comes at the moment in which the addresses move may get lost.
        let text = pinging.end(peer)?;
        let lost = |more: u32| text.contains(&format!(" {} packets received", PINGS - more));
        if ![0, 1, 2].into_iter().any(lost) {
            return Err(peer.failed(text));
        }
        ipoib::ping(&vm, PEER, "", LIMIT)
    });
    failures(&scene, &vm, &mut checks)?;
    checks.check("connections are made as before", || {
        Pingpong::Rc.between((peer, &vm), DEVICE, true, "-n 200", LIMIT)
    });
    checks.check("the kernels have said nothing", || {
        no_kernel_warning(peer, &[])?;
        let said = vm.sh("dmesg | grep -v clocksource: || true", LIMIT)?;
        if said.trim().is_empty() {
            return Ok(());
        }
        Err(vm.failed(said))
    });
    upgrades(&scene, &vm, &mut checks)?;
    checks.finish();
    Ok(())
}
