//! A VF of this host's adapter, for the same driver: as a VM has it by plain vfio-pci, without a daemon between.
//!
//! The driver maps the VF's doorbell pages, the VF reaches the driver's memory, and the kernel signals the driver's
//! eventfds. What is trapped, commands first of all, goes by a thread of this process, as it goes by the monitor of a
//! VM.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use passthrough::{Physical, PhysicalError};
use tempfile::TempDir;
use vfio_user::{
    Device, Effect, Errno, Interrupts, IrqInfo, Mapping, Region, Server, SparseArea, Stop,
};

use crate::{BenchError, Result};

const BAR0: u32 = 0;
const CONFIG: u32 = 7;
/// Bytes of configuration space, and what of it drivers of these benches look at.
const CONFIG_SIZE: usize = 256;
const VENDOR: [u8; 2] = 0x15b3_u16.to_le_bytes();
const CAPABILITIES: usize = 0x34;
/// Where the only capability is, MSI-X.
const MSIX: u8 = 0x40;
const CAPABILITY_MSIX: u8 = 0x11;
/// A page that some of the VF's doorbell pages begin at, if any can be mapped.
const LAST_FIRST_PAGE: u32 = 16;

pub(super) fn directory() -> Result<TempDir> {
    tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))
}

/// The function as it is.
#[derive(Debug)]
struct Function {
    physical: Box<dyn Physical>,
    config: [u8; CONFIG_SIZE],
    interrupts: Interrupts,
    mapped: Vec<(u64, u64)>,
}

impl Function {
    fn new(physical: Box<dyn Physical>) -> std::io::Result<Self> {
        let mut config = [0; CONFIG_SIZE];
        config[..2].copy_from_slice(&VENDOR);
        config[CAPABILITIES] = MSIX;
        config[usize::from(MSIX)] = CAPABILITY_MSIX;
        Ok(Self {
            interrupts: Interrupts::new(&[IrqInfo::msix(physical.vectors())])?,
            physical,
            config,
            mapped: Vec::new(),
        })
    }
}

/// Result for the driver.
type Answer<T> = std::result::Result<T, Errno>;

/// The errno for the driver.
fn refused(error: &PhysicalError) -> Errno {
    error.refused().unwrap_or(Errno::EIO)
}

impl Device for Function {
    fn regions(&self) -> Vec<Region> {
        let pages = { 0..=LAST_FIRST_PAGE }.find_map(|first| self.physical.doorbell_pages(first));
        let bar = Region::trapped(BAR0, self.physical.bar_size());
        let bar = match pages {
            Some(pages) => Region {
                areas: vec![SparseArea {
                    offset: pages.offset,
                    size: pages.len,
                }],
                mmap: Some(Arc::clone(&pages.fd)),
                fd_offset: pages.fd_offset,
                ..bar
            },
            None => bar,
        };
        vec![bar, Region::trapped(CONFIG, CONFIG_SIZE as u64)]
    }

    fn irqs(&self) -> Vec<IrqInfo> {
        vec![IrqInfo::msix(self.physical.vectors())]
    }

    fn interrupts(&self) -> Interrupts {
        self.interrupts.clone()
    }

    fn irqs_set(&mut self, _index: u32, vectors: Range<u32>) {
        let interrupts = self.interrupts();
        for vector in vectors.filter_map(|vector| u16::try_from(vector).ok()) {
            // Without its interrupts the driver times out, and says so.
            let _ =
                interrupts.with_eventfd(vector, |eventfd| self.physical.connect(vector, eventfd));
        }
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Answer<()> {
        if region == BAR0 {
            let read = self.physical.read(offset, data);
            return read.map_err(|error| refused(&error));
        }
        data.copy_from_slice(&self.config[offset as usize..][..data.len()]);
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Answer<Effect> {
        // The kernel has enabled the function and its interrupts.
        if region == BAR0 {
            let written = self.physical.write(offset, data);
            written.map_err(|error| refused(&error))?;
        }
        Ok(Effect::None)
    }

    fn dma_map(&mut self, mapping: Mapping) -> Answer<()> {
        let mapped = self.physical.map(&mapping);
        mapped.map_err(|error| refused(&error))?;
        self.mapped.push((mapping.addr(), mapping.size()));
        Ok(())
    }

    fn dma_unmap(&mut self, addr: u64, size: u64) -> Answer<()> {
        let end = addr.saturating_add(size);
        let within = |at: &mut (u64, u64)| addr <= at.0 && at.0 < end;
        for (addr, size) in self.mapped.extract_if(.., within) {
            let unmapped = self.physical.unmap(addr, size);
            unmapped.map_err(|error| refused(&error))?;
        }
        Ok(())
    }

    fn reset(&mut self) {
        // A VF that is not reset is one that the next driver finds in use.
        let _ = self.physical.reset();
    }

    fn disconnected(&mut self) {
        self.reset();
        let _ = self.dma_unmap(0, u64::MAX);
    }
}

/// VFs without a daemon between. Dropped, they are free for one.
#[derive(Debug)]
pub(super) struct Plain {
    /// Where the driver reaches them.
    pub sockets: Vec<PathBuf>,
    stop: Arc<Stop>,
    servers: Vec<JoinHandle<()>>,
    dir: TempDir,
}

fn serve(path: &Path, device: &str, stop: &Arc<Stop>) -> Result<JoinHandle<()>> {
    let unfit = |what: String| BenchError::Daemon(format!("{device}: {what}"));
    let named: passthrough::Device = { device.parse() }
        .map_err(|error: passthrough::vf::device::NoDevice| unfit(error.to_string()))?;
    let physical = named.open().map_err(|error| unfit(error.to_string()))?;
    let mut function = Function::new(physical).map_err(BenchError::system("open a VF"))?;
    let mut server = Server::bind(path).map_err(|error| unfit(error.to_string()))?;
    let stop = Arc::clone(stop);
    Ok(std::thread::spawn(move || {
        if let Err(error) = server.run(&mut function, &stop) {
            eprintln!("a VF cannot be served any more: {error}");
        }
    }))
}

impl Plain {
    /// Opens VFs, by their PCI addresses or sockets.
    pub fn open(devices: &[String]) -> Result<Self> {
        let dir = directory()?;
        let stop = Arc::new(Stop::new().map_err(BenchError::system("create an eventfd"))?);
        let mut plain = Self {
            sockets: Vec::new(),
            stop,
            servers: Vec::new(),
            dir,
        };
        for (number, device) in devices.iter().enumerate() {
            let path = plain.dir.path().join(format!("plain{number}.sock"));
            plain.servers.push(serve(&path, device, &plain.stop)?);
            plain.sockets.push(path);
        }
        Ok(plain)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.stop.signal();
        for server in self.servers.drain(..) {
            let _ = server.join();
        }
    }
}
