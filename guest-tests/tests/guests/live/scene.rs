//! The VM that moves, its peer, and the daemon that both have their HCAs of.

use std::process::Child;

use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::{Config, Guest};
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, MLX5, Testbed};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::{Error, Result, moves};

use serde_json::Value;

use super::LIMIT;
use testing::Configuration;

fn subnet(of_vm: &str) -> Configuration {
    Configuration::new()
        .set("partitions.shop", 0x0010)
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("pkeys", ["default", "shop"])
        .lines(of_vm)
        .entry("hypervisor.port", "card1")
        .key("kind", "vhost-user-net")
        .hypervisor("hv2", [])
        .spare_vfs(1)
        .of_hypervisor("spare_ports", 1)
        .hypervisor("hv3", [])
        .vf("vm2")
        .key("pkeys", ["default", "shop"])
}

pub const VM: &str = "10.9.0.1";
pub const PEER: &str = "10.9.0.2";
/// The VF and the port of the VM.
pub const OF_VM: [&str; 2] = ["vm1", "card1"];
/// Where it may be: its VF and its port there.
pub const PLACES: [[&str; 2]; 2] = [OF_VM, ["hv2-spare1", "hv2-spare-port1"]];
/// The address of its card, and one for the peer in the same network.
const CARD: &str = "10.10.0.1";
const PEER_OF_CARD: &str = "10.10.0.2";

pub struct Scene {
    pub bed: Testbed,
    pub daemon: Daemon,
    pub peer: Guest,
}

impl Scene {
    /// The scene, and the VM.
    pub fn new() -> Result<(Self, Guest)> {
        Self::with(&subnet(""))
    }

    /// The same, where the VM may manage the subnet.
    pub fn of_manager() -> Result<(Self, Guest)> {
        Self::with(&subnet("smp = 'fabric'").set("sm.priority", 5))
    }

    fn with(subnet: &Configuration) -> Result<(Self, Guest)> {
        let bed = Testbed::new(Kernel::default())?;
        let daemon = bed.kept_daemon("ibvswitch", Some(subnet))?;
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
    pub fn reach_card(&self, vm: &Guest) -> Result<()> {
        ipoib::await_carrier(vm, "eth1", LIMIT)?;
        // What is sent before the port is in its groups is lost.
        let first = format!("until ping -c 1 -W 1 {CARD}; do :; done");
        self.peer.sh(&first, LIMIT)?;
        ipoib::ping(&self.peer, CARD, "", LIMIT)?;
        ipoib::ping(vm, PEER_OF_CARD, "", LIMIT)
    }

    /// A QEMU that waits at a VF and a port for a VM like this.
    pub fn receiver(&self, config: Config, [vf, port]: [&str; 2]) -> Result<Guest> {
        let mut arguments = self.daemon.migratable(vf, true)?;
        arguments.extend(self.daemon.card(port)?);
        self.bed.live_receiver(config, vf, arguments)
    }

    /// Begins to move the VM to the second hypervisor, and waits until its memory is on its way.
    pub fn begin(&self, vm: &Guest) -> Result<Child> {
        moves::begin(&self.daemon, vm, &OF_VM, "hv2")
    }

    /// That the VM is where it was and works, with the addresses `of` it.
    pub fn stays(&self, vm: &Guest, of: &Hca) -> Result<()> {
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

    /// Moves the VM to a hypervisor, where a new QEMU waits at a VF and a port. The VM there, and what the command
    /// reports.
    pub fn migrate(&self, vm: Guest, to: &str, place: [&str; 2]) -> Result<(Guest, Value)> {
        let received = self.receiver(vm.config.clone(), place)?;
        let report = moves::migrate(&self.daemon, &OF_VM, to)?;
        let moves = report["moves"].as_array().into_iter().flatten();
        if !moves.map(|moved| &moved["to"]["vf"]).eq(&place) {
            return Err(Error::Output {
                what: format!("a VM at {place:?}"),
                text: report.to_string(),
            });
        }
        Ok((received, report))
    }
}
