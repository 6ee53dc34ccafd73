//! A VM moves from QEMU to QEMU and from hypervisor to hypervisor while its programs use the HCA, and nothing
//! in it notices.

use std::{
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use ibvswitch_guest_tests::{
    Error, Result,
    checks::Checks,
    daemon::Daemon,
    diags::{expect, no_kernel_warning},
    guest::{Config, Guest},
    hca::{Hca, await_active},
    image::Kernel,
    ipoib,
    pingpong::Pingpong,
    progress,
    testbed::{DEVICE, MLX5, Testbed},
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(240);

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

const VM: &str = "10.9.0.1";
const PEER: &str = "10.9.0.2";

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
        for config in [&mut peer, &mut vm] {
            config.modules = MLX5.map(str::to_owned).to_vec();
        }
        // The first one listens on the Ethernet cable, so it has to be the one that stays.
        bed.link(0, &mut peer, &mut vm);
        let (peer, vm) = (bed.start(peer)?, bed.start(vm)?);
        for (guest, address) in [(&vm, VM), (&peer, PEER)] {
            guest.booted()?;
            await_active(guest, DEVICE)?;
            ipoib::up(guest, "ib0", address, LIMIT)?;
        }
        Ok((Self { bed, daemon, peer }, vm))
    }

    /// A QEMU that waits at a VF for a VM like this.
    fn receiver(&self, config: Config, vf: &str) -> Result<Guest> {
        let arguments = self.daemon.migratable(vf, true)?;
        self.bed.live_receiver(config, vf, arguments)
    }

    /// Begins to move the VM to the second hypervisor, and waits until its memory is on its way.
    fn begin(&self, vm: &Guest) -> Result<Child> {
        let mut command = self.daemon.command();
        command.args(["vm", "migrate", "vm1", "--to", "hv2"]);
        let command = { command.stdout(Stdio::null()) }.stderr(Stdio::piped());
        let child = { command.spawn() }.map_err(|error| Error::Host(error.to_string()))?;
        await_migration(vm, &["active"])?;
        Ok(child)
    }

    /// That the VM is where it was and works, with the addresses `of` it.
    fn stays(&self, vm: &Guest, of: &Hca) -> Result<()> {
        let status = self.daemon.status()?;
        let vfs = status["vfs"].as_array().into_iter().flatten();
        let holders: Vec<&str> = vfs
            .filter(|vf| vf["holds"] == "vm1")
            .filter_map(|vf| vf["name"].as_str())
            .collect();
        let after = Hca::of(vm, DEVICE)?;
        if holders != ["vm1"] || after != *of {
            return Err(vm.failed(format!("is at {holders:?} with {after:?}, before {of:?}")));
        }
        ipoib::ping(vm, PEER, "", LIMIT)
    }

    /// Moves the VM to a hypervisor, where a new QEMU waits at a VF.
    fn migrate(&self, vm: Guest, to: &str, vf: &str) -> Result<Guest> {
        let received = self.receiver(vm.config.clone(), vf)?;
        let text = self
            .daemon
            .ask(&["vm", "migrate", "vm1", "--to", to, "--json"])?;
        let report: Value = serde_json::from_str(&text).map_err(|_| Error::Output {
            what: "JSON".into(),
            text: text.clone(),
        })?;
        progress::step(&report);
        if report["to"]["vf"] != vf {
            return Err(Error::Output {
                what: format!("a VM at {vf}"),
                text,
            });
        }
        Ok(received)
    }
}

/// Waits until QEMU says that the migration of a VM is in one of these states.
fn await_migration(vm: &Guest, states: &[&str]) -> Result<()> {
    loop {
        let info = vm.monitor("query-migrate", json!({}))?;
        if info["status"]
            .as_str()
            .is_some_and(|it| states.contains(&it))
        {
            return Ok(());
        }
        thread::yield_now();
    }
}

/// What a command that has to fail says.
fn refusal(child: Child) -> Result<String> {
    let output = { child.wait_with_output() }.map_err(|error| Error::Host(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(1) {
        return Ok(said);
    }
    Err(Error::Output {
        what: "a refusal".into(),
        text: format!("{}: {said}", output.status),
    })
}

/// Whatever goes wrong on the way, the VM runs on where it is.
fn failures(scene: &Scene, vm: &Guest, checks: &mut Checks) -> Result<()> {
    let before = Hca::of(vm, DEVICE)?;
    checks.check("a QEMU with less memory gets no VM", || {
        let mut config = vm.config.clone();
        config.memory /= 2;
        let _receiver = scene.receiver(config, "hv2-spare1")?;
        let mut command = scene.daemon.command();
        command.args(["vm", "migrate", "vm1", "--to", "hv2"]);
        let command = { command.stdout(Stdio::null()) }.stderr(Stdio::piped());
        let child = { command.spawn() }.map_err(|error| Error::Host(error.to_string()))?;
        let said = refusal(child)?;
        expect(&said, &["did not migrate", "vm1 runs on at hv1"])?;
        scene.stays(vm, &before)
    });
    checks.check("a QEMU that is killed gets no VM", || {
        let receiver = scene.receiver(vm.config.clone(), "hv2-spare1")?;
        let child = scene.begin(vm)?;
        receiver.kill();
        expect(&refusal(child)?, &["vm1 runs on at hv1"])?;
        scene.stays(vm, &before)
    });
    checks.check("a command that is killed moves no VM", || {
        let _receiver = scene.receiver(vm.config.clone(), "hv2-spare1")?;
        let mut child = scene.begin(vm)?;
        // Neither fails but for a process that is already gone.
        let _ = child.kill();
        let _ = child.wait();
        await_migration(vm, &["cancelled", "failed"])?;
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

    let serve = format!("ibv_rc_pingpong -d {DEVICE} -c -n 6000");
    let served = Background::start(peer, "pingpong", &serve)?;
    peer.sh("await-port 18515 1", LIMIT)?;
    let called = Background::start(&vm, "pingpong", &format!("{serve} {}", peer.address()))?;
    // The device writes into the VM's memory all the time.
    let write = format!("ib_write_bw -d {DEVICE} -p 18600 -D 60 -q 4 -s 65536");
    let written = Background::start(&vm, "write", &write)?;
    vm.sh("await-port 18600 1", LIMIT)?;
    let writing = Background::start(peer, "write", &format!("{write} {}", vm.address()))?;
    let pinging = Background::start(peer, "ping", &format!("ping -c 40 {VM}"))?;

    for (to, vf) in [("hv2", "hv2-spare1"), ("hv1", "vm1")] {
        for (guest, program) in [(&vm, &called), (&vm, &written), (peer, &writing)] {
            program.runs(guest)?;
        }
        vm = scene.migrate(vm, to, vf)?;
        let name = format!("at {to} it has the LID, GUID and P_Keys that it had");
        checks.check(&name, || {
            let after = Hca::of(&vm, DEVICE)?;
            if after == before {
                return Ok(());
            }
            Err(vm.failed(format!("{after:?}, and before {before:?}")))
        });
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
        expect(&pinging.end(peer)?, &[" 0% packet loss"])?;
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
    checks.finish();
    Ok(())
}
