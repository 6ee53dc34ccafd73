//! A VF whose data path is passed through to a VF that another process serves, as the vfio-user server
//! serves it. It is no part of the daemon's subnet.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use connectx::{Effect, Function};
use fabric::SmpAccess;
use hca::VfId;
use nix::errno::Errno;
use parking_lot::Mutex;
use passthrough::policy::Sender;
use passthrough::{
    Cluster, ManagementFilter, Membership, OpenError, Parts, Passthrough, Policy, Report, Smp,
};
use vfio_user::{Device, Interrupts, IrqInfo, Mapping, MemoryLimits, Region};
use vswitch::{MadFilter, Own};
use wire::MadPacket;

use crate::control::{PassedVf, passed_vf};
use crate::daemon::devices::client::ClientState;
use crate::daemon::devices::device::{connect, regions};
use config::{Cluster as Configured, Hardware, Hypervisor};

/// Time limit of a VF for a command. Drivers give up after 60 s; by then they have got an error.
const COMMAND_TIME: Duration = Duration::from_secs(40);

/// Filter of the packets that the guest's queue pair 1 sends, as for guests of software VFs.
#[derive(Debug)]
struct Filter {
    filter: MadFilter,
    begin: Instant,
}

impl Filter {
    /// The one guest that the filter has.
    const GUEST: VfId = VfId(0);

    fn new(hardware: &Hardware) -> Self {
        Self {
            filter: MadFilter::of_one(&hardware.name, hardware.smp, hardware.mads.clone()),
            begin: Instant::now(),
        }
    }
}

impl ManagementFilter for Filter {
    fn passes(&self, packet: &mut MadPacket, from: &Sender<'_>) -> bool {
        let virtual_lid = from.virtual_lid.unwrap_or(from.lid);
        let own = Own {
            lids: &[(from.lid, 0), (virtual_lid, 0)],
            gids: &[from.gid],
            pkeys: from.pkeys,
        };
        let now = self.begin.elapsed();
        self.filter.lets_pass(now, Self::GUEST, packet, &own)
    }
}

/// The function behind its socket.
#[derive(Debug)]
pub struct HardwareDevice {
    function: Function<Passthrough>,
    memory_limits: MemoryLimits,
    client: Arc<ClientState>,
    filter: Arc<Filter>,
}

impl HardwareDevice {
    /// Opens the VF behind it. Of the clusters it joins its own.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        hardware: &Hardware,
        memory_limits: MemoryLimits,
        clusters: &[Arc<Cluster>],
    ) -> Result<Self, OpenError> {
        let device = hardware.device.clone();
        let filter = Arc::new(Filter::new(hardware));
        let policy = policy(hardware, clusters, Arc::clone(&filter));
        let backend = Passthrough::new(Parts {
            name: hardware.name.clone(),
            open: Box::new(move || device.open()),
            interrupts: |vectors| Interrupts::new(&[IrqInfo::msix(vectors)]),
            time_limit: COMMAND_TIME,
            policy,
        })?;
        Ok(Self {
            function: Function::new(backend),
            memory_limits,
            client: Arc::default(),
            filter,
        })
    }

    /// Returns the state of the client and of the hardware's VF, for other threads to read.
    #[must_use]
    pub fn state(&self) -> HardwareState {
        HardwareState {
            client: Arc::clone(&self.client),
            report: self.function.backend().report(),
            filter: Arc::clone(&self.filter),
        }
    }
}

/// Returns the policy that the configuration sets for the guest.
fn policy(hardware: &Hardware, clusters: &[Arc<Cluster>], filter: Arc<Filter>) -> Policy {
    let membership = hardware.cluster.and_then(|(index, lid)| {
        let cluster = Arc::clone(clusters.get(index)?);
        let lid = lid.value();
        Some(Membership { cluster, lid })
    });
    Policy {
        isolation: hardware.isolation,
        smp: match hardware.smp {
            SmpAccess::Deny => Smp::Deny,
            SmpAccess::OwnPort => Smp::OwnPort,
            SmpAccess::Fabric => Smp::Fabric,
        },
        service_levels: hardware.service_levels,
        membership,
        management: Some(filter),
        pkeys: { hardware.pkeys.as_ref() }.map(|keys| keys.iter().map(|key| key.value()).collect()),
    }
}

/// State of a VF that is passed through. To read it waits for no VF.
#[derive(Debug, Clone)]
pub struct HardwareState {
    client: Arc<ClientState>,
    report: Arc<Mutex<Report>>,
    filter: Arc<Filter>,
}

impl HardwareState {
    /// As it is told to those who ask.
    #[must_use]
    pub fn status(&self, at: &Hypervisor, vf: &Hardware, clusters: &[Configured]) -> PassedVf {
        let connected = self.client.is_connected();
        let unshared = self.client.has_unshared_memory();
        let cluster = vf.cluster.and_then(|(index, lid)| {
            let name = clusters.get(index)?.name.clone();
            Some((name, lid))
        });
        let report = self.report.lock().clone();
        let mads = self.filter.filter.report(Filter::GUEST);
        passed_vf(at, vf, cluster, &report, (connected, unshared), mads)
    }
}

impl Device for HardwareDevice {
    fn regions(&self) -> Vec<Region> {
        self.client.set_connected(true);
        self.function.backend().revive();
        regions(&self.function)
    }

    fn irqs(&self) -> Vec<IrqInfo> {
        vec![IrqInfo::msix(self.function.configuration().vectors)]
    }

    fn interrupts(&self) -> Interrupts {
        self.function.backend().interrupts().clone()
    }

    fn irqs_set(&mut self, _index: u32, vectors: std::ops::Range<u32>) {
        let interrupts = self.interrupts();
        connect(self.function.backend_mut(), &interrupts, vectors);
    }

    fn memory_limits(&self) -> MemoryLimits {
        self.memory_limits
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let region = connectx::Region::from_vfio_index(region).ok_or(Errno::EINVAL)?;
        self.function.read(region, offset, data);
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<vfio_user::Effect, Errno> {
        let region = connectx::Region::from_vfio_index(region).ok_or(Errno::EINVAL)?;
        Ok(match self.function.write(region, offset, data) {
            Effect::None | Effect::Shown => vfio_user::Effect::None,
            Effect::Reset => {
                tracing::debug!("reset by its guest");
                vfio_user::Effect::Reset
            }
        })
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        connectx::Backend::ready(self.function.backend())
    }

    fn poll(&mut self) {
        self.function.poll();
    }

    fn dma_map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        if mapping.is_unshared_ram() {
            self.client.set_unshared_memory(true);
        }
        connectx::Backend::map(self.function.backend_mut(), mapping)
    }

    fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        connectx::Backend::unmap(self.function.backend_mut(), addr, size)
    }

    fn reset(&mut self) {
        self.function.reset();
    }

    fn disconnected(&mut self) {
        self.function.reset();
        connectx::Backend::unmap_all(self.function.backend_mut());
        self.client.set_connected(false);
        self.client.set_unshared_memory(false);
    }
}
