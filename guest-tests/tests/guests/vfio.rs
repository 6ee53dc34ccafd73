//! A guest that plays a host: with a virtual IOMMU, VFs of the daemon outside as the VFs of its adapter,
//! and a daemon of its own that has them by the kernel's VFIO.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::{Daemon, program};
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::image::userland::{RDMA_CORE_TESTS, Userland, rdma_core_tests};
use ibvswitch_guest_tests::image::{Image, Kernel};
use ibvswitch_guest_tests::testbed::Testbed;
use ibvswitch_guest_tests::tools::diags::no_warning_among;
use ibvswitch_guest_tests::{Error, Result, nested};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(120);
/// Memory of the daemon inside that its two VFs reach, in KiB: 192 MiB each.
const OWN: u64 = 2 * (192 << 10);

/// The daemon outside: what the guest takes for an adapter.
fn outside() -> Configuration {
    Configuration::new()
        .set("engine.doorbells", "adaptive")
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", [])
        .vf("vm2")
        .key("like", "connectx-5")
        .vf("vm3")
        .key("like", "connectx-5")
}

/// The daemon inside. Each root port has a bus of its own.
fn inside() -> Configuration {
    Configuration::new()
        .hypervisor("hw", [])
        .vf("one")
        .key("device", "0000:01:00.0")
        .vf("two")
        .key("device", "0000:02:00.0")
        .key("isolation", "sriov")
}

/// The daemon outside of a host with a guest of its own, and the one inside.
fn outside_of_one() -> Configuration {
    Configuration::new()
        .set("engine.doorbells", "adaptive")
        .hypervisor("hv1", ["vm1"])
}
fn inside_of_one() -> Configuration {
    Configuration::new()
        .hypervisor("hw", [])
        .vf("one")
        .key("device", "0000:01:00.0")
}

/// Time limit for the guest of an emulated guest: it needs some 4 minutes of a processor, and the machine may
/// be busy.
const NESTED_LIMIT: Duration = Duration::from_secs(80 * 60);

/// The program of the benches, which is built with the tests of all packages.
fn bench() -> Result<PathBuf> {
    let own = std::env::current_exe().expect("this program has a path");
    let near = own.ancestors().skip(1).take(2);
    let mut programs = near.map(|dir| dir.join("ibvswitch-bench"));
    let missing = "no ibvswitch-bench: cargo build --package ibvswitch-benches";
    { programs.find(|program| program.is_file()) }.ok_or_else(|| Error::Host(missing.to_owned()))
}

/// Starts the daemon inside, which is to say why it cannot go on.
fn refusal(host: &Guest, why: &str) -> Result<()> {
    let output = host.run("ibvswitch run --config /etc/inside.toml", LIMIT)?;
    if output.status != 0 && output.text.contains(why) {
        return Ok(());
    }
    Err(host.failed(format!("not {why:?}, but {}", output.text)))
}

/// Hands the VFs to vfio-pci.
const BIND: &str = "modprobe vfio-pci && for at in /sys/bus/pci/devices/0000:0[1-3]:00.0; do \
                    echo vfio-pci >$at/driver_override && echo ${at##*/} >/sys/bus/pci/drivers_probe; done";

/// Boots a guest with an IOMMU and VFs, each at a root port of its own.
fn host(bed: &Testbed, image: Image, memory: u32, daemon: &Daemon, vfs: &[&str]) -> Result<Guest> {
    let mut config = bed.config("host");
    config.image = image;
    config.memory = memory;
    // The benches need one for the driver and one for the engine.
    config.processors = 2;
    // The IOMMU comes first: it has what comes later.
    config.devices = vec!["intel-iommu,intremap=off,caching-mode=on".into()];
    for (number, vf) in (1..).zip(vfs) {
        let port = format!("pcie-root-port,id=rp{number},chassis={number},slot={number}");
        config
            .devices
            .push(format!("{port},addr=0x{:x}", 0x10 + number));
        let bus = format!("rp{number}");
        config.devices.push(daemon.device(vf, Some(&bus))?);
    }
    config.qemu_arguments = ["-machine", "kernel-irqchip=split"]
        .map(str::to_owned)
        .to_vec();
    config.kernel_arguments = ["intel_iommu=on", "iommu=pt"].map(str::to_owned).to_vec();
    let host = bed.start(config)?;
    host.booted()?;
    Ok(host)
}

/// Makes a host such that a daemon can have VFs.
fn ready(host: &Guest) -> Result<()> {
    let sh = |command: &str| host.sh(command, LIMIT);
    // There is no interrupt remapping that QEMU could have with devices of other processes.
    sh("echo 1 >/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts")?;
    // Each mapping of the virtual IOMMU is an exit; so memory is mapped in pages of 2 MiB.
    sh(
        "cd /sys/kernel/mm/transparent_hugepage && echo always >enabled && echo always >shmem_enabled",
    )
    .map(drop)
}

#[test]
fn a_daemon_has_vfs_by_the_kernels_vfio() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let outside = bed.daemon("outside", Some(&outside()))?;
    let file = bed.dir().join("inside.toml");
    fs::write(&file, inside().to_string()).expect("is written");
    let files = [
        ("usr/bin/ibvswitch", program()?),
        (
            "usr/bin/ibvswitch-probe",
            env!("CARGO_BIN_EXE_ibvswitch-probe").into(),
        ),
        ("usr/bin/ibvswitch-bench", bench()?),
        ("etc/inside.toml", file),
    ];
    let files = files
        .each_ref()
        .map(|(name, path)| (*name, path.as_path() as &Path));
    let image = bed
        .image
        .with(&files, &[&rdma_core_tests(Userland::Trixie)?], bed.dir())?;
    let host = host(&bed, image, 2048, &outside, &["vm1", "vm2", "vm3"])?;
    let mut checks = Checks::default();
    let sh = |command: &str| host.sh(command, LIMIT);
    checks.check("the host is found wanting", || {
        let said = host.run("ibvswitch host check", LIMIT)?;
        let all = [
            "ok       IOMMU: on",
            "error    interrupts: not remapped",
            "error    binding: 0000:03:00.0 has no driver, not vfio-pci",
        ];
        if said.status == 1 && all.iter().all(|it| said.text.contains(it)) {
            return Ok(());
        }
        Err(host.failed(said.text))
    });
    checks.check("a VF without vfio-pci is told of", || {
        refusal(
            &host,
            "0000:01:00.0 has no driver, not vfio-pci: `driverctl",
        )
    });
    checks.check("interrupts that are not remapped are told of", || {
        sh(BIND)?;
        refusal(&host, "VFIO is not loaded")?;
        sh("modprobe vfio_iommu_type1")?;
        refusal(&host, "interrupts are not remapped")
    });
    checks.check("each VF has a group of its own", || {
        let groups = sh(
            "for at in 1 2 3; do ls /sys/bus/pci/devices/0000:0$at:00.0/iommu_group/devices; done",
        )?;
        if groups
            .split_whitespace()
            .eq(["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"])
        {
            return Ok(());
        }
        Err(host.failed(groups))
    });
    ready(&host)?;
    checks.check("the host is found ready", || {
        let said = sh("ibvswitch host check")?;
        let all = [
            "warning  interrupts: not remapped, and allow_unsafe",
            "ok       port: Active",
            "ok       partitions: 0xffff",
        ];
        if all.iter().all(|it| said.contains(it)) {
            return Ok(());
        }
        Err(host.failed(said))
    });
    checks.check("the benches have a VF without a daemon, and with one", || {
        let said = sh(
            "ibvswitch bench passthrough --smoke --plain --device 0000:01:00.0 --device 0000:02:00.0",
        )?;
        if said.contains("passthrough_write_8b_over_direct") {
            return Ok(());
        }
        Err(host.failed(said))
    });
    let mut daemon = host.spawn("ibvswitch run --config /etc/inside.toml")?;
    daemon.await_text("ready", LIMIT)?;
    checks.check("rdma-core's own tests of a VF under VFIO", || {
        let run = format!(
            "cd {RDMA_CORE_TESTS} && python3 run_tests.py -v --pci-dev 0000:03:00.0 -k Mlx5Vfio 2>&1"
        );
        let said = host.sh(&run, 3 * LIMIT)?;
        if said.contains("Ran 2 tests") && !said.contains("skipped") {
            return Ok(());
        }
        Err(host.failed(said))
    });
    checks.check("data go between two VFs", || {
        let said = sh("ibvswitch-probe transfer /run/ibvswitch/one.sock /run/ibvswitch/two.sock")?;
        if said.contains("with interrupts") {
            return Ok(());
        }
        Err(host.failed(said))
    });
    let queue_pairs = || -> Result<u64> {
        let status = outside.status()?;
        let count = status["vfs"][0]["objects"]["qp"].as_u64();
        count.ok_or_else(|| host.failed(status.to_string()))
    };
    // Of memory that the kernel has locked for the daemon, in KiB.
    let locked = || -> Result<u64> {
        let said = sh("awk '/^VmLck/ {print $2}' /proc/$(pidof ibvswitch)/status")?;
        said.trim().parse().map_err(|_| host.failed(said.clone()))
    };
    // When the daemon sees that a probe has gone, nobody tells.
    let none_of_guests = || {
        let until = format!("until grep -q 'VmLck:.* {OWN} kB' /proc/$(pidof ibvswitch)/status");
        sh(&format!("{until}; do sleep 0.1; done")).map(drop)
    };
    none_of_guests()?;
    checks.check("the next guest finds a VF that was reset", || {
        let mut first = host.spawn("ibvswitch-probe hold /run/ibvswitch/one.sock")?;
        first.await_text("held", LIMIT)?;
        if queue_pairs()? != 1 {
            return Err(host.failed("no queue pair is seen outside".into()));
        }
        if locked()? <= OWN {
            return Err(host.failed("a guest's memory is not locked".into()));
        }
        // Killed: it destroys nothing itself.
        drop(first);
        sh("ibvswitch-probe port /run/ibvswitch/one.sock")?;
        match queue_pairs()? {
            0 => Ok(()),
            left => Err(host.failed(format!("{left} queue pairs are left"))),
        }
    });
    checks.check("nothing stays locked", none_of_guests);
    checks.check("what is not the guest's is out of reach", || {
        // Where the kernel of this host lies. No key is refused here: the IOMMU has to stop it.
        sh("ibvswitch-probe beyond /run/ibvswitch/two.sock 0x1000000").map(drop)
    });
    checks.check("a group that is taken is told of", || {
        refusal(&host, "in use")
    });
    println!("{}", daemon.text());
    let mut holds = host.spawn("ibvswitch-probe hold /run/ibvswitch/one.sock")?;
    holds.await_text("held", LIMIT)?;
    sh("kill -KILL $(pidof ibvswitch)")?;
    daemon.wait(LIMIT)?;
    drop(holds);
    let mut daemon = host.spawn("ibvswitch run --config /etc/inside.toml")?;
    daemon.await_text("ready", LIMIT)?;
    checks.check("a daemon that is killed leaves nothing", || {
        if queue_pairs()? != 0 {
            return Err(host.failed("something is left of the daemon before".into()));
        }
        none_of_guests()?;
        sh("ibvswitch-probe transfer /run/ibvswitch/one.sock /run/ibvswitch/two.sock").map(drop)
    });
    checks.finish();
    println!("{}", daemon.text());
    Ok(())
}

#[test]
#[ignore = "emulates a guest in an emulated guest: minutes"]
fn the_guest_of_a_guest_has_a_vf_by_the_kernels_vfio() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let outside = bed.single_daemon("outside", Some(&outside_of_one()))?;
    let inside = bed.dir().join("inside.toml");
    fs::write(&inside, inside_of_one().to_string()).expect("is written");
    let program = program()?;
    let files = [
        ("usr/bin/ibvswitch", program.as_path()),
        ("etc/inside.toml", &inside),
    ];
    let image = nested::host(&bed.image, &files, bed.dir())?;
    let host = host(&bed, image, 3072, &outside, &["vm1"])?;
    host.sh(&format!("{BIND}; modprobe vfio_iommu_type1"), LIMIT)?;
    ready(&host)?;
    let mut daemon = host.spawn("ibvswitch run --config /etc/inside.toml")?;
    daemon.await_text("ready", LIMIT)?;
    let mut checks = Checks::default();
    let mut guest = host.spawn(&nested::boot("/run/ibvswitch/one.sock"))?;
    checks.check("its stock driver finds the port", || {
        guest.await_text("State: Active", NESTED_LIMIT)
    });
    for data in nested::DATA {
        checks.check(data, || guest.await_text(data, NESTED_LIMIT));
    }
    checks.check("its driver ends, without a warning", || {
        guest.await_text(nested::DONE, NESTED_LIMIT)?;
        no_warning_among(&guest.text(), &[]).map_err(|warnings| host.failed(warnings))
    });
    checks.check("nothing of it is left in the VF", || {
        let ended = guest.wait(LIMIT)?;
        let left = outside.status()?["vfs"][0]["objects"].clone();
        if ended.status == 0 && left["qp"] == 0 {
            return Ok(());
        }
        Err(host.failed(format!("{}\n{left}", ended.text)))
    });
    checks.finish();
    println!("{}", daemon.text());
    Ok(())
}
