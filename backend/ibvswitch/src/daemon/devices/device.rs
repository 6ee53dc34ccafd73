//! A VF as the vfio-user server serves it: a function of the connectx crate, whatever executes its
//! commands.

mod moving;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use connectx::{Backend, Configuration, Effect, Function};
use hca::{Engine, VfId};
use nix::errno::Errno;
use vfio_user::{
    Device, DmaTable, Interrupts, IrqInfo, Mapping, MemoryLimits, Migration, Part, Region,
    SharedMemory, SparseArea, StandIn,
};
use vmm_socket::Journal;
use vswitch::{Input, VSwitch};

use crate::daemon::devices::alarm::Alarm;
use crate::daemon::devices::client::ClientState;
use crate::daemon::devices::device_calls::DeviceCalls;
use crate::daemon::engines::dma::{DeviceMemory, Format};
use crate::daemon::engines::engine::Hints;
use crate::daemon::life::sockets::{DOORBELLS, VfSocket};
use crate::daemon::moves::vm_image::{
    IN_HAND, LONGEST, MachineError, MachineImage, MachineImageV1, Movable,
};

pub use moving::{CONFIG_WORDS, Early, MovingError, Saved};

/// One virtual function behind its socket.
pub struct VfDevice<B> {
    name: String,
    function: Function<B>,
    interrupts: Interrupts,
    memory_limits: MemoryLimits,
    client: Arc<ClientState>,
    vswitch: Arc<VSwitch>,
    vf: VfId,
    /// It is to change nothing.
    rests: bool,
    /// It is one of two between which a VM moves.
    moves: bool,
    /// Writes to BAR 0 by a guest that goes on before its device does.
    early: moving::Early,
    /// Calls from other threads.
    calls: DeviceCalls<Self>,
    /// Rings when a reply is due, where some come late.
    alarm: Option<Alarm>,
    memory: Option<DeviceMemory>,
    /// Lines that the client can cause.
    journal: Journal,
}

impl<B> std::fmt::Debug for VfDevice<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfDevice")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Parts of a [`VfDevice`].
pub struct Parts<B> {
    /// Its name in the configuration.
    pub name: String,
    /// Executes the device's commands.
    pub backend: B,
    /// The client's interrupts.
    pub interrupts: Interrupts,
    /// Hears of a client that connects and goes, and of resets.
    pub vswitch: Arc<VSwitch>,
    /// The VF.
    pub vf: VfId,
    /// Limits of the memory that a client may share.
    pub memory_limits: MemoryLimits,
    /// Calls to the device from other threads.
    pub calls: DeviceCalls<VfDevice<B>>,
    /// Wakes the device's thread when a reply of the firmware is due, if the firmware takes time; the calls wake it,
    /// too.
    pub alarm: Option<Alarm>,
    /// The memory of the device, where it is the daemon's.
    pub memory: Option<DeviceMemory>,
}

impl<B> std::fmt::Debug for Parts<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Memory for the doorbell pages of a function that are memory, and for that of the device, if it has such:
/// all of BAR 0, of which only these pages are ever touched.
///
/// A guest that a keeper has, or that the program before has left, goes on with the pages that it has mapped.
///
/// # Errors
/// When the system has no memory or descriptors left, or the keeper is gone.
pub fn doorbell_pages(
    name: &str,
    configuration: &Configuration,
    socket: Option<&mut VfSocket>,
) -> std::io::Result<Option<Arc<SharedMemory>>> {
    if configuration.mapped_area().is_none() && configuration.device_memory_area().is_none() {
        return Ok(None);
    }
    let size = configuration.bar_size as usize;
    let (left, kept) = socket.map_or((None, None), |socket| {
        (socket.left.0.take(), socket.kept.as_mut())
    });
    if let Some(left) = left {
        return Ok(Some(Arc::new(SharedMemory::adopt(left, size)?)));
    }
    let Some(kept) = kept else {
        return Ok(Some(Arc::new(SharedMemory::new(name, size)?)));
    };
    let mapped = kept.take(DOORBELLS);
    if let Some(memory) = mapped.and_then(|fd| SharedMemory::adopt(fd, size).ok()) {
        return Ok(Some(Arc::new(memory)));
    }
    let memory = SharedMemory::new(name, size)?;
    kept.hold(DOORBELLS, memory.fd().as_fd())?;
    Ok(Some(Arc::new(memory)))
}

/// Memory of BAR 0 as a function shows it.
#[must_use]
pub fn shown(
    configuration: &Configuration,
    pages: &SharedMemory,
) -> Option<connectx::DoorbellPages> {
    let (offset, len) = configuration.mapped_area()?;
    Some(connectx::DoorbellPages {
        fd: Arc::clone(pages.fd()),
        fd_offset: 0,
        offset,
        len,
    })
}

/// The regions of a function.
pub(super) fn regions<B: Backend>(function: &Function<B>) -> Vec<Region> {
    let described = |index, region| Region::trapped(index, function.region_size(region));
    let mut bar0 = described(0, connectx::Region::Bar0);
    if let Some(pages) = function.backend().doorbell_pages() {
        bar0.areas = vec![SparseArea {
            offset: pages.offset,
            size: pages.len,
        }];
        bar0.mmap = Some(pages.fd);
        bar0.fd_offset = pages.fd_offset;
    }
    vec![
        bar0,
        described(2, connectx::Region::Bar2),
        described(7, connectx::Region::Config),
    ]
}

/// Shows a backend the eventfds of these vectors.
pub(super) fn connect<B: Backend>(
    backend: &mut B,
    interrupts: &Interrupts,
    vectors: std::ops::Range<u32>,
) {
    for vector in vectors {
        let vector = vector as u16;
        interrupts.with_eventfd(vector, |eventfd| backend.connect(vector, eventfd));
    }
}

impl<B: Backend<Mapping = Mapping, Error = Errno>> VfDevice<B> {
    /// Puts a device together.
    #[must_use]
    pub fn new(parts: Parts<B>) -> Self {
        Self {
            function: Function::new(parts.backend),
            name: parts.name,
            interrupts: parts.interrupts,
            memory_limits: parts.memory_limits,
            client: Arc::default(),
            vswitch: parts.vswitch,
            vf: parts.vf,
            rests: false,
            moves: false,
            early: moving::Early::default(),
            calls: parts.calls,
            alarm: parts.alarm,
            memory: parts.memory,
            journal: Journal::default(),
        }
    }

    fn set_alarm(&self)
    where
        B: Movable,
    {
        if let Some(alarm) = &self.alarm {
            alarm.set(B::next_reply(&self.function));
        }
    }

    /// Clears the memory of the device that the guest has written.
    fn clear_memory(&self) {
        if let Some(memory) = &self.memory {
            memory.clear();
        }
    }

    /// Returns the state of the client, for other threads to read.
    #[must_use]
    pub fn client(&self) -> Arc<ClientState> {
        Arc::clone(&self.client)
    }
}

impl<B: Movable<Mapping = Mapping, Error = Errno>> Migration for VfDevice<B> {
    fn stop(&mut self) -> Result<(), Errno> {
        B::quiesce(&mut self.function);
        self.rests = true;
        if let Some(omitted) = self.journal.admit("rests") {
            let vf = &self.name;
            tracing::info!(vf, "rests, to go on elsewhere or from an image{omitted}");
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Errno> {
        B::resume(&mut self.function);
        self.rests = false;
        Ok(())
    }

    fn save(&mut self) -> Result<Vec<u8>, Errno> {
        let bytes = self.save_machine(true).map_err(|error| {
            if let Some(omitted) = self.journal.admit("unsaved") {
                tracing::warn!(vf = self.name, "it cannot be saved: {error}{omitted}");
            }
            Errno::EFBIG
        })?;
        if let Some(omitted) = self.journal.admit("saved") {
            let (vf, bytes) = (&self.name, bytes.len());
            tracing::info!(vf, bytes, "its image was made{omitted}");
        }
        Ok(bytes)
    }

    fn restore(&mut self, image: &[u8]) -> Result<(), Errno> {
        self.restore_machine(image, true).map_err(|error| {
            if let Some(omitted) = self.journal.admit("images") {
                tracing::warn!(vf = self.name, "an image is refused: {error}{omitted}");
            }
            self.function.reset();
            self.vswitch.handle(Input::Reset(self.vf));
            Errno::EINVAL
        })
    }

    fn image_size(&self) -> u64 {
        B::image_size(&self.function)
    }

    fn image_limit(&self) -> usize {
        LONGEST
    }

    fn with_mappings(&mut self, act: &mut dyn FnMut(&mut DmaTable)) {
        B::with_mappings(&mut self.function, act);
    }
}

impl<B: Movable<Mapping = Mapping, Error = Errno>> VfDevice<B> {
    /// Where the VM goes elsewhere (`leaves`), what is in the memory of the device goes along. Otherwise its
    /// guest may be writing there.
    fn save_machine(&self, leaves: bool) -> Result<Vec<u8>, MachineError> {
        let _one = IN_HAND.lock();
        let function = B::save(&self.function)?;
        let vm = self.vswitch.save(self.vf)?;
        let memory = self.memory.as_ref().filter(|_| leaves);
        let image = MachineImageV1 {
            function,
            vm,
            device_memory: memory.map(DeviceMemory::save).unwrap_or_default(),
        };
        MachineImage::V1(image).to_bytes()
    }

    fn restore_machine(&mut self, image: &[u8], comes: bool) -> Result<(), MachineError> {
        let _one = IN_HAND.lock();
        let MachineImage::V1(image) = serde_json::from_slice(image)?;
        B::restore(&mut self.function, image.function)?;
        if let Some(memory) = self.memory.as_ref().filter(|_| comes) {
            memory
                .restore(&image.device_memory)
                .map_err(MachineError::DeviceMemory)?;
        }
        // Last: what the function has counted is in the image of the VM's port, too.
        Ok(self.vswitch.restore(self.vf, &image.vm)?)
    }
}

impl<B: Movable<Mapping = Mapping, Error = Errno>> Device for VfDevice<B> {
    fn migration(&mut self) -> Option<&mut dyn Migration> {
        Some(self)
    }

    fn stand_in(&self) -> Option<StandIn> {
        let absent = self.function.absent();
        let index = |region| match region {
            connectx::Region::Bar0 => 0,
            connectx::Region::Bar2 => 2,
            connectx::Region::Config => 7,
        };
        let parts = |parts: Vec<connectx::Part>| {
            let part = |part: connectx::Part| Part {
                region: index(part.region),
                offset: part.offset,
                bytes: part.bytes,
                writable: part.writable,
            };
            parts.into_iter().map(part).collect()
        };
        let (region, offset) = absent.counter;
        Some(StandIn {
            at_work: absent.at_work,
            shown: parts(absent.working),
            failed: parts(absent.failed),
            counter: Some((index(region), offset)),
        })
    }

    fn regions(&self) -> Vec<Region> {
        if !self.client.set_connected(true) {
            self.vswitch.handle(Input::Presence(self.vf, true));
        }
        self.calls.open();
        regions(&self.function)
    }

    fn irqs(&self) -> Vec<IrqInfo> {
        vec![IrqInfo::msix(self.function.configuration().vectors)]
    }

    fn interrupts(&self) -> Interrupts {
        self.interrupts.clone()
    }

    fn irqs_set(&mut self, _index: u32, vectors: std::ops::Range<u32>) {
        connect(self.function.backend_mut(), &self.interrupts, vectors);
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
        // A doorbell for commands or work is ignored now: none of its guest's processors runs. Configuration space
        // and the table of interrupts answer (`linux/vfio.h`, "RUNNING_P2P -> STOP").
        if self.rests && region == connectx::Region::Bar0 {
            let kept = self.moves && self.early.keep(offset, data);
            return if kept {
                Ok(vfio_user::Effect::None)
            } else {
                Err(Errno::EBUSY)
            };
        }
        let effect = self.function.write(region, offset, data);
        self.set_alarm();
        Ok(match effect {
            Effect::None => vfio_user::Effect::None,
            Effect::Shown => vfio_user::Effect::Shown,
            Effect::Reset => {
                self.clear_memory();
                self.tell_reset();
                tracing::debug!(vf = self.name, "reset by its guest");
                vfio_user::Effect::Reset
            }
        })
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        let alarm = self.alarm.as_ref();
        Some(alarm.map_or_else(|| self.calls.ready(), Alarm::ready))
    }

    fn poll(&mut self) {
        let calls = self.calls.clone();
        while let Some(call) = calls.next() {
            call(self);
        }
        if self.alarm.is_some() {
            self.function.poll();
            self.set_alarm();
        }
    }

    fn dma_map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        if mapping.is_unshared_ram() {
            self.client.set_unshared_memory(true);
        }
        self.function.backend_mut().map(mapping)
    }

    fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        self.function.backend_mut().unmap(addr, size)
    }

    fn reset(&mut self) {
        self.function.reset();
        self.clear_memory();
        self.tell_reset();
    }

    fn disconnected(&mut self) {
        self.calls.close();
        self.reset();
        self.give_up_moving();
        self.function.backend_mut().unmap_all();
        // The log belongs to the client that has asked for it.
        self.end_log();
        self.client.set_connected(false);
        self.client.set_unshared_memory(false);
        self.vswitch.handle(Input::Presence(self.vf, false));
    }
}

/// Looks at the doorbell pages of the functions that have them in memory.
#[derive(Debug, Default, Clone)]
pub struct DoorbellPages {
    functions: Vec<Pages>,
}

#[derive(Debug, Clone)]
struct Pages {
    vf: VfId,
    memory: Arc<SharedMemory>,
    offset: usize,
    len: usize,
}

impl DoorbellPages {
    /// Adds a function and the memory of its pages.
    pub fn add(&mut self, vf: VfId, configuration: &Configuration, memory: Arc<SharedMemory>) {
        if let Some((offset, len)) = configuration.doorbell_area() {
            let (offset, len) = (offset as usize, len as usize);
            self.functions.push(Pages {
                vf,
                memory,
                offset,
                len,
            });
        }
    }
}

impl Hints<Format> for DoorbellPages {
    #[inline]
    fn look(&mut self, engine: &mut Engine<Format>) {
        for pages in &self.functions {
            if !engine.vf(pages.vf).is_home() {
                continue;
            }
            let Some(area) = pages.memory.slice(pages.offset, pages.len) else {
                continue;
            };
            // One page per turn: a guest that rings without pause must not keep
            // the engine here.
            if let Some(qpn) = engine.vf_mut(pages.vf).face_mut().0.next_rung(&area) {
                engine.hint(pages.vf, qpn);
            }
        }
    }
}
