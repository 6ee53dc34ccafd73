//! A daemon in this process, and drivers on its VFs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{Config, Directories};
use ibvswitch::daemon::life::abort::Abort;
use ibvswitch::daemon::life::assembly::Assembly;
use ibvswitch::daemon::life::sockets::{ControlSocket, Lock, Sockets};
use tempfile::TempDir;
use test_driver::{
    Access, Buffer, CompletionQueue, Device, MemoryRegion, Options, Port, ProtectionDomain, Remote,
    Sge, Uar,
};

use crate::{BenchError, Processors, Result};
use testing::Configuration;

/// Names of the VFs, each on a hypervisor of its own.
const VFS: [&str; 2] = ["vm1", "vm2"];

/// The configuration of a daemon with two VFs, whose engine runs on processor
/// `engine`, where one is given.
pub(crate) fn two_vfs(engine: Option<usize>, doorbells: &str) -> Configuration {
    on_processor(engine)
        .set("engine.doorbells", doorbells)
        .hypervisor("hv0", [VFS[0]])
        .hypervisor("hv1", [VFS[1]])
}

/// The configuration of a daemon with so many engines, the first on processor `first` and the others on
/// those after it, where one is given. In each lives a pair of VFs, or one of a pair and the other one of the pair before.
pub(crate) fn pairs(first: Option<usize>, engines: usize, between: bool) -> Configuration {
    let daemon = on_processor(first)
        .set("engine.threads", engines)
        .set("engine.doorbells", "poll");
    (0..engines).fold(daemon, |it, pair| {
        let [near, mut far] = names_of_pair(pair);
        if between {
            [_, far] = names_of_pair((pair + engines - 1) % engines);
        }
        it.hypervisor(&format!("hv{pair}"), [&near, &far])
    })
}

fn on_processor(engine: Option<usize>) -> Configuration {
    let daemon = Configuration::new().set("log", "warn");
    match engine {
        Some(cpu) => daemon.set("engine.cpu", cpu),
        None => daemon,
    }
}

fn names_of_pair(pair: usize) -> [String; 2] {
    ["near", "far"].map(|end| format!("{end}{pair}"))
}

/// The configuration of a daemon with two VFs. The daemon's sockets are in `dir`.
///
/// # Errors
/// [`crate::BenchError::Config`] where the system's limits forbid it, as for
/// a path too long for a socket.
pub fn configuration(engine: Option<usize>, doorbells: &str, dir: &Path) -> Result<Config> {
    parsed(&two_vfs(engine, doorbells), dir)
}

fn parsed(text: &Configuration, dir: &Path) -> Result<Config> {
    let dirs = Directories {
        chosen: Some(dir),
        fallback: dir,
    };
    Ok(Config::parse("the bench's", &text.to_string(), dirs)?)
}

/// A daemon's parts, at work in this process until dropped.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    // In this order: who serves, its sockets, and the directory they are in.
    _assembly: Assembly,
    _control: ControlSocket,
    _lock: Lock,
    _dir: TempDir,
}

impl Daemon {
    /// Starts it with an engine that polls, on its processor.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn start(processors: Processors) -> Result<Self> {
        Self::with(&two_vfs(Some(processors.engine), "poll"))
    }

    /// Starts it with a configuration.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(crate) fn with(text: &Configuration) -> Result<Self> {
        let dir =
            tempfile::tempdir().map_err(BenchError::system("create a directory for sockets"))?;
        let config = parsed(text, dir.path())?;
        let Sockets { control, vfs, lock } = Sockets::create(&config, None)?;
        let abort = Abort::new().map_err(BenchError::system("create an event descriptor"))?;
        Ok(Self {
            _assembly: Assembly::start(&config, vfs, None, None, &abort)?,
            config,
            _control: control,
            _lock: lock,
            _dir: dir,
        })
    }

    /// Opens both VFs, each with `buffer` bytes to send from and receive to.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub fn peers(&self, buffer: usize) -> Result<[Peer; 2]> {
        Ok([self.peer(VFS[0], buffer)?, self.peer(VFS[1], buffer)?])
    }

    /// The same of a pair of [`pairs`].
    pub(crate) fn pair(&self, pair: usize, buffer: usize) -> Result<[Peer; 2]> {
        let [near, far] = names_of_pair(pair);
        Ok([self.peer(&near, buffer)?, self.peer(&far, buffer)?])
    }

    /// The socket of a VF or port.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        let vf = self.config.vf(name);
        vf.map_or_else(|| name.into(), |(_, vf)| vf.socket.clone())
    }

    /// Opens a VF.
    pub(crate) fn peer(&self, name: &str, buffer: usize) -> Result<Peer> {
        let socket = self.config.vf(name).map(|(_, vf)| vf.socket.as_path());
        Peer::open(socket.unwrap_or_else(|| name.as_ref()), buffer)
    }
}

/// Opens the VF at `socket`, with memory for queues and `buffers` bytes.
pub(crate) fn device_with(socket: &Path, buffers: usize) -> Result<Device> {
    let options = Options {
        memory: Peer::QUEUES + buffers,
        ..Options::default()
    };
    Ok(Device::open_with(socket, options)?)
}

/// An open VF, with what every suite needs.
#[derive(Debug)]
pub struct Peer {
    /// Where requests complete.
    pub cq: CompletionQueue,
    /// The buffer, registered.
    pub region: MemoryRegion,
    /// To send from and to receive to.
    pub buffer: Buffer,
    /// Doorbell page.
    pub uar: Arc<Uar>,
    /// Protection domain.
    pub pd: Arc<ProtectionDomain>,
    /// Its port, Active.
    pub port: Port,
    /// The device.
    pub device: Device,
}

impl Peer {
    /// Memory for queues, besides buffers: enough for ten thousand queue pairs.
    const QUEUES: usize = 192 << 20;
    /// Completion queue entries, as a power of two.
    const LOG_CQ: u32 = 10;

    /// Opens the VF at `socket` and waits until its port is Active.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub fn open(socket: &Path, buffer: usize) -> Result<Self> {
        Self::on(device_with(socket, buffer)?, buffer)
    }

    /// One of several on the same VF, which has to have memory for all of them.
    ///
    /// # Errors
    /// [`BenchError::Driver`].
    pub(crate) fn on(device: Device, buffer: usize) -> Result<Self> {
        let port = device.wait_active()?;
        let pd = ProtectionDomain::new(&device)?;
        let uar = Uar::new(&device)?;
        let cq = CompletionQueue::new(&device, &uar, Self::LOG_CQ, 0)?;
        let buffer = device.allocate_pages(buffer)?;
        let region = MemoryRegion::new(&pd, &buffer, Access::ALL)?;
        Ok(Self {
            cq,
            region,
            buffer,
            uar,
            pd,
            port,
            device,
        })
    }

    /// The first `len` bytes of the buffer, to send from.
    #[must_use]
    pub fn sge(&self, len: usize) -> Sge {
        Sge {
            addr: self.region.start(),
            len: len as u32,
            key: self.region.key(),
        }
    }

    /// The buffer from `offset` on, for a peer.
    #[inline]
    #[must_use]
    pub fn remote(&self, offset: usize) -> Remote {
        Remote {
            addr: self.region.start() + offset as u64,
            key: self.region.key(),
        }
    }
}
