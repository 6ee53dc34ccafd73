//! Failures of QEMUs and commands during a VM's migration.

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::moves::{self, refusal};
use ibvswitch_guest_tests::testbed::DEVICE;
use ibvswitch_guest_tests::tools::diags::expect;
use ibvswitch_guest_tests::tools::pingpong::Pingpong;

use super::{
    LIMIT,
    scene::{OF_VM, PLACES, Scene},
};

/// Whatever goes wrong on the way, the VM runs on where it is.
pub fn failures(scene: &Scene, vm: &Guest, checks: &mut Checks) -> Result<()> {
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

/// The daemon is killed while a VM is on its way. The VM runs on where it is, and its HCA recovers.
pub fn death_of_the_daemon(scene: &Scene, vm: &Guest, checks: &mut Checks) -> Result<()> {
    let before = Hca::of(vm, DEVICE)?;
    checks.check("a daemon that is killed moves no VM", || {
        let _receiver = scene.receiver(vm.config.clone(), PLACES[1])?;
        let child = scene.begin(vm)?;
        scene.daemon.kill_served()?;
        expect(&refusal(child)?, &["vm1 runs on at hv1"])?;
        let recovered = "until dmesg | grep -q 'health recovery succeeded'; do usleep 50000; done";
        for guest in [vm, &scene.peer] {
            guest.sh(recovered, LIMIT)?;
            await_active(guest, DEVICE)?;
        }
        let after = Hca::of(vm, DEVICE)?;
        if after != before {
            return Err(vm.failed(format!("{after:?}, and before {before:?}")));
        }
        Pingpong::Rc.between((&scene.peer, vm), DEVICE, true, "-n 200", LIMIT)
    });
    Ok(())
}
