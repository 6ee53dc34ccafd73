//! A device that does nothing useful, for tests and fuzz targets of the
//! server itself, and a relay that counts what a client does.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::{
    Device, DmaTable, Effect, End, Errno, Interrupts, IrqInfo, Mapping, Migration, Region,
    SharedMemory, SparseArea, Stop, serve,
};
use vmm_socket::socket::Socket;

pub use relay::{Access, Relay};

mod relay;

/// Region index of the trapped BAR of [`Dummy`], which reads back what was
/// written and acts on the registers below.
pub const BAR: u32 = 0;
/// Size of [`BAR`], in bytes.
pub const BAR_SIZE: u64 = 2 << 20;
/// Register of [`BAR`]: a write of 4 bytes raises that MSI-X vector.
pub const TRIGGER: u64 = 0x00;
/// Register of [`BAR`]: a write of 8 bytes makes the device write
/// [`DMA_DATA`] at that DMA address.
pub const DMA_WRITE: u64 = 0x08;
/// Register of [`BAR`]: a write of 8 bytes makes the device copy 8 bytes from
/// that DMA address to [`DMA_RESULT`].
pub const DMA_READ: u64 = 0x10;
/// Register of [`BAR`]: what [`DMA_READ`] read.
pub const DMA_RESULT: u64 = 0x18;
/// Register of [`BAR`]: a write resets the device, as a function-level reset does.
pub const RESET: u64 = 0x20;
/// Bytes that [`DMA_WRITE`] writes.
pub const DMA_DATA: [u8; 8] = *b"vfiouser";
/// Region index of the BAR of [`Dummy`] of which the client can map pages 1
/// and 3.
pub const MAPPABLE: u32 = 2;
/// Size of [`MAPPABLE`], in bytes.
pub const MAPPABLE_SIZE: u64 = 4 * 4096;
/// Region index of configuration space, 4096 bytes that only can be read.
pub const CONFIG: u32 = 7;
/// Number of MSI-X vectors.
pub const VECTORS: u16 = 40;

/// Events of a [`Dummy`], for observers.
#[derive(Debug, Default)]
pub struct Events {
    /// Number of resets.
    pub resets: AtomicU32,
    /// Number of clients that were lost.
    pub disconnects: AtomicU32,
    /// The device rests: it neither raises interrupts nor touches memory.
    pub rests: AtomicBool,
}

/// The device.
#[derive(Debug)]
pub struct Dummy {
    bar: Vec<u8>,
    mappable: SharedMemory,
    interrupts: Interrupts,
    dma: Arc<Mutex<DmaTable>>,
    events: Arc<Events>,
    movable: bool,
}

impl Dummy {
    /// A device as it is at power-on.
    ///
    /// # Errors
    /// Where the system has no memory or no file descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            bar: vec![0; BAR_SIZE as usize],
            mappable: SharedMemory::new("dummy-bar", MAPPABLE_SIZE as usize)?,
            interrupts: Interrupts::new(&Self::IRQS)?,
            dma: Arc::default(),
            events: Arc::default(),
            movable: true,
        })
    }

    /// The same, as a device that cannot go on elsewhere.
    #[must_use]
    pub fn immovable(self) -> Self {
        Self {
            movable: false,
            ..self
        }
    }

    /// INTx can be masked, MSI-X is as usual.
    const IRQS: [IrqInfo; 2] = [
        IrqInfo {
            index: 0,
            count: 1,
            maskable: true,
        },
        IrqInfo {
            index: 2,
            count: VECTORS as u32,
            maskable: false,
        },
    ];

    /// The memory its client shared.
    pub fn dma(&self) -> Arc<Mutex<DmaTable>> {
        Arc::clone(&self.dma)
    }

    /// Returns its events.
    pub fn events(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    fn act(&mut self, register: u64, value: &[u8]) {
        if self.events.rests.load(Ordering::Relaxed) {
            return;
        }
        let dma = self.dma.lock();
        if let (TRIGGER, Ok(vector)) = (register, value.try_into()) {
            let vector = u32::from_le_bytes(vector);
            self.interrupts
                .trigger(vector.try_into().unwrap_or(u16::MAX));
        } else if let (DMA_WRITE, Ok(addr)) = (register, value.try_into()) {
            if let Some(window) = dma.write_window(u64::from_le_bytes(addr), DMA_DATA.len()) {
                window.copy_from(&DMA_DATA);
            }
        } else if let (DMA_READ, Ok(addr)) = (register, value.try_into())
            && let Some(window) = dma.read_window(u64::from_le_bytes(addr), 8)
        {
            window.copy_to(&mut self.bar[DMA_RESULT as usize..][..8]);
        }
    }
}

impl Device for Dummy {
    fn regions(&self) -> Vec<Region> {
        let page = |number: u64| SparseArea {
            offset: number * 4096,
            size: 4096,
        };
        vec![
            Region::trapped(BAR, BAR_SIZE),
            Region {
                areas: vec![page(1), page(3)],
                mmap: Some(Arc::clone(self.mappable.fd())),
                ..Region::trapped(MAPPABLE, MAPPABLE_SIZE)
            },
            Region {
                write: false,
                ..Region::trapped(CONFIG, 4096)
            },
        ]
    }

    fn irqs(&self) -> Vec<IrqInfo> {
        Self::IRQS.to_vec()
    }

    fn interrupts(&self) -> Interrupts {
        self.interrupts.clone()
    }

    fn migration(&mut self) -> Option<&mut dyn Migration> {
        if self.movable { Some(self) } else { None }
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let offset = offset as usize;
        match region {
            BAR => data.copy_from_slice(&self.bar[offset..][..data.len()]),
            MAPPABLE => {
                self.mappable
                    .slice(offset, data.len())
                    .ok_or(Errno::EINVAL)?
                    .copy_to(data);
            }
            _ => data.fill(0xc0),
        }
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<Effect, Errno> {
        match region {
            BAR if offset == RESET => {
                self.reset();
                return Ok(Effect::Reset);
            }
            BAR => {
                self.bar[offset as usize..][..data.len()].copy_from_slice(data);
                self.act(offset, data);
            }
            _ => self
                .mappable
                .slice(offset as usize, data.len())
                .ok_or(Errno::EINVAL)?
                .copy_from(data),
        }
        Ok(Effect::None)
    }

    fn dma_map(&mut self, mapping: Mapping) -> Result<(), Errno> {
        Ok(self.dma.lock().map(mapping)?)
    }

    fn dma_unmap(&mut self, addr: u64, size: u64) -> Result<(), Errno> {
        let gone = self.dma.lock().unmap(addr, size)?;
        drop(gone);
        Ok(())
    }

    fn reset(&mut self) {
        self.bar.fill(0);
        self.events.resets.fetch_add(1, Ordering::Relaxed);
    }

    fn disconnected(&mut self) {
        let gone = self.dma.lock().clear();
        drop(gone);
        self.events.disconnects.fetch_add(1, Ordering::Relaxed);
    }
}

/// Its image is what [`BAR`] holds, which is more than one message takes.
impl Migration for Dummy {
    fn stop(&mut self) -> Result<(), Errno> {
        self.events.rests.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn resume(&mut self) -> Result<(), Errno> {
        self.events.rests.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn save(&mut self) -> Result<Vec<u8>, Errno> {
        Ok(self.bar.clone())
    }

    fn restore(&mut self, image: &[u8]) -> Result<(), Errno> {
        self.bar.fill(0);
        if image.len() != self.bar.len() {
            return Err(Errno::EINVAL);
        }
        self.bar.copy_from_slice(image);
        Ok(())
    }

    fn image_size(&self) -> u64 {
        BAR_SIZE
    }

    fn image_limit(&self) -> usize {
        BAR_SIZE as usize + 1
    }

    fn with_mappings(&mut self, act: &mut dyn FnMut(&mut DmaTable)) {
        act(&mut self.dma.lock());
    }
}

/// Bytes that a client sends at once, and descriptors with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The bytes; with none, nothing is sent.
    pub bytes: Vec<u8>,
    /// Number of descriptors in them, at most 253: memory of 64 KiB and the socket itself by turns.
    pub fds: u8,
}

/// Serves a [`Dummy`] to a client that sends `chunks` and then hangs up, and
/// returns how that ended and the bytes it was answered. For fuzz targets:
/// whatever is sent, this returns, and the device has no mapping left.
///
/// # Errors
/// Where the system has no memory or no file descriptors left.
pub fn feed(chunks: &[Chunk]) -> std::io::Result<(End, Vec<u8>)> {
    let mut device = Dummy::new()?;
    let dma = device.dma();
    let stop = Stop::new()?;
    let memory = SharedMemory::new("fed", 64 << 10)?;
    let (mine, theirs) = UnixStream::pair()?;
    let (end, answer) = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(theirs, &mut device, &stop));
        let sender = Socket::new(mine.try_clone()?);
        // Apart from reading, or both sides could wait for each other.
        scope.spawn(move || {
            for Chunk { bytes, fds } in chunks {
                let turns: [BorrowedFd<'_>; 2] = [memory.fd().as_fd(), sender.stream().as_fd()];
                let fds: Vec<_> = turns
                    .into_iter()
                    .cycle()
                    .take(usize::from(*fds).min(253))
                    .collect();
                if sender.send(bytes, &[], &fds, None).is_err() {
                    break;
                }
            }
            sender.stream().shutdown(Shutdown::Write)
        });
        let mut answer = Vec::new();
        // The server may close the socket with bytes unread: that resets it.
        let _ = (&mine).read_to_end(&mut answer);
        let end = server
            .join()
            .map_err(|_| std::io::Error::other("the server panicked"))?;
        std::io::Result::Ok((end, answer))
    })?;
    assert!(dma.lock().is_empty(), "mappings outlive their client");
    Ok((end, answer))
}
