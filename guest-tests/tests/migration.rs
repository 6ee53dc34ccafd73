//! A VM is migrated live between two QEMUs, from one hypervisor's VF to another's, and keeps its
//! addresses.

use std::time::{Duration, Instant};

use ibvswitch_guest_tests::{
    Error, Result,
    checks::Checks,
    diags::no_kernel_warning,
    guest::Guest,
    hca::{Hca, await_active},
    image::Kernel,
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

    progress::step("detach, migrate, attach");
    let device = daemon.device("hv2-spare1", None)?;
    let received = bed.receiver(&vm, "received", device)?;
    let started = Instant::now();
    let pci = address(&vm)?;
    vm.sh(
        &format!("echo 1 > /sys/bus/pci/devices/{pci}/remove"),
        LIMIT,
    )?;
    let detached = started.elapsed();
    let moved = daemon.ask(&["vf", "migrate", "vm1", "--to", "hv2", "--json"])?;
    vm.live_migrate(&received)?;
    drop(vm);
    let migrated = started.elapsed();
    let vm = received;
    vm.sh("echo 1 > /sys/bus/pci/rescan", LIMIT)?;
    await_active(&vm, DEVICE)?;
    let attached = started.elapsed();
    progress::step(format_args!(
        "detached after {:.1} s, at the destination after {:.1} s, Active after {:.1} s",
        detached.as_secs_f64(),
        migrated.as_secs_f64(),
        attached.as_secs_f64()
    ));
    progress::step(moved.trim());

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
