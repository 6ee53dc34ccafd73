//! A port of an adapter, through the kernel's MAD device (`/dev/infiniband/umad*`).
//!
//! The kernel takes the first step of directed routes, gives requests a transaction of its own and their answers back,
//! and has the port's own agent answer what is for that one. It drops the answer to a request that it does not wait
//! for.

mod datagram;
mod kernel;
mod sysfs;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::{read, write};
use subnet_manager::Transport;
use tracing::debug;
use wire::mad::{Class, Method};
use wire::{Guid, MadPacket, PKey, mad};

use self::datagram::{Arrival, Datagram, HEADER, SHORT_HEADER};
use self::sysfs::AdapterPort;
pub use self::sysfs::PortAddress;
use super::{MAX_TAKEN, Port};

/// Class versions of subnet management packets, of the subnet administration, and of congestion control.
const VERSIONS: [(Class, u8); 4] = [
    (wire::congestion::CLASS, wire::congestion::VERSION),
    (Class::SUBN_DIRECTED, 1),
    (Class::SUBN_LID, 1),
    (Class::SUBN_ADM, 2),
];

/// Requests to a subnet manager.
const TO_MANAGER: [Method; 3] = [Method::GET, Method::SET, Method::TRAP];
/// Requests to the subnet administration.
const TO_ADMINISTRATION: [Method; 6] = [
    Method::GET,
    Method::SET,
    Method::GET_TABLE,
    Method::GET_TRACE_TABLE,
    Method::GET_MULTI,
    Method::DELETE,
];

/// Why a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No port is as wanted.
    #[error("{what}; the ports of this host are: {}", list(.ports))]
    NoPort {
        /// The ports that are wanted.
        what: String,
        /// The ports that are there, in words.
        ports: Vec<String>,
    },
    /// The kernel's module for it is not loaded.
    #[error("port {0} has no MAD device; load the kernel's module: modprobe ib_umad")]
    NoDevice(Guid),
    /// The system refuses it.
    #[error("cannot use {}: {source}; load the module ib_umad, and run this program as root", .path.display())]
    Refused {
        /// The device.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another manager of this host has the port.
    #[error(
        "another subnet manager of this host has port {0}; end it, or choose another port with --guid"
    )]
    Taken(Guid),
}

fn list(ports: &[String]) -> String {
    if ports.is_empty() {
        return "none".to_owned();
    }
    ports.join("; ")
}

/// A port of an adapter.
#[derive(Debug)]
pub struct DevicePort {
    port: AdapterPort,
    device: OwnedFd,
    /// Open as long as others see a subnet manager at this port.
    manages: Option<OwnedFd>,
    header: usize,
    agents: [(Class, u32); VERSIONS.len()],
    timeout_ms: u32,
    received: VecDeque<MadPacket>,
    /// The indexes of P_Keys that packets came with.
    pkeys: BTreeMap<PKey, u16>,
}

/// The port with this GUID, or the first one with a link.
fn find(guid: Option<Guid>) -> Result<AdapterPort, DeviceError> {
    let ports = sysfs::ports();
    let wanted = |port: &&AdapterPort| guid.map_or(port.is_up, |guid| port.guid == guid);
    if let Some(port) = ports.iter().find(wanted) {
        return Ok(port.clone());
    }
    Err(DeviceError::NoPort {
        what: match guid {
            Some(guid) => format!("no port of an adapter has the GUID {guid}"),
            None => "no port of an adapter has a link".to_owned(),
        },
        ports: ports.iter().map(ToString::to_string).collect(),
    })
}

fn device(path: &Path, more: OFlag) -> Result<OwnedFd, DeviceError> {
    let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | more;
    open(path, flags, Mode::empty()).map_err(|error| DeviceError::Refused {
        path: path.to_owned(),
        source: error.into(),
    })
}

impl DevicePort {
    /// The port with this GUID, or the first one with a link; others see a subnet manager there if it `manages`. The
    /// manager asks again after `timeout`.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(guid: Option<Guid>, manages: bool, timeout: Duration) -> Result<Self, DeviceError> {
        let port = find(guid)?;
        let none = DeviceError::NoDevice(port.guid);
        let path = port.device("umad").ok_or(none)?;
        let opened = device(&path, OFlag::O_NONBLOCK)?;
        let refused = |error: Errno| DeviceError::Refused {
            path: path.clone(),
            source: error.into(),
        };
        kernel::enable_pkeys(opened.as_fd()).map_err(refused)?;
        let mut agents = [(Class::SUBN_LID, 0); VERSIONS.len()];
        for (agent, (class, version)) in agents.iter_mut().zip(VERSIONS) {
            let (queue_pair, methods) = match class {
                Class::SUBN_ADM => (1, &TO_ADMINISTRATION[..]),
                _ if class.is_subnet_management() => (0, &TO_MANAGER[..]),
                _ => (1, &[][..]),
            };
            let methods = if manages { methods } else { &[] };
            let methods = methods
                .iter()
                .fold(0, |mask, method| mask | 1u64 << method.0);
            let class_code = (class.0, version);
            let id = kernel::register(opened.as_fd(), queue_pair, class_code, methods);
            let taken = |error| match error {
                // Another one has a method of the class.
                Errno::EINVAL | Errno::EBUSY => DeviceError::Taken(port.guid),
                error => refused(error),
            };
            *agent = (class, id.map_err(taken)?);
        }
        let managed = if manages {
            let none = DeviceError::NoDevice(port.guid);
            let path = port.device("issm").ok_or(none)?;
            // One at a time may have it open.
            Some(
                device(&path, OFlag::O_NONBLOCK).map_err(|error| match error {
                    DeviceError::Refused { source, .. }
                        if source.kind() == io::ErrorKind::WouldBlock =>
                    {
                        DeviceError::Taken(port.guid)
                    }
                    error => error,
                })?,
            )
        } else {
            None
        };
        // The kernel is to have given up before the manager asks again: it refuses a request twice. It begins to wait
        // when the packet has left, which is later than the manager does.
        let timeout_ms = (timeout.as_millis() * 3 / 4).clamp(1, u32::MAX.into()) as u32;
        Ok(Self {
            // Nothing in such a process has told libibumad to use the long header.
            header: if port.is_simulated {
                SHORT_HEADER
            } else {
                HEADER
            },
            port,
            device: opened,
            manages: managed,
            agents,
            timeout_ms,
            received: VecDeque::new(),
            pkeys: BTreeMap::new(),
        })
    }

    /// The port's address, and the address of its subnet manager.
    ///
    /// # Errors
    /// The port is gone.
    pub fn address(&self) -> Result<PortAddress, DeviceError> {
        self.port.address()
    }

    fn try_send(&self, packet: MadPacket) -> nix::Result<()> {
        let header = packet.header();
        let (class, method) = (header.class(), header.method());
        let agent = self.agents.iter().find(|(of, _)| *of == class);
        let waits = matches!(method, Method::GET | Method::SET | Method::REPORT);
        let datagram = Datagram {
            agent: agent.map_or(0, |&(_, agent)| agent),
            timeout_ms: if waits { self.timeout_ms } else { 0 },
            pkey: self.pkeys.get(&packet.pkey).copied().unwrap_or(0),
            packet,
        };
        write(&self.device, &datagram.emit(self.header)).map(drop)
    }

    fn is_readable(&self) -> io::Result<bool> {
        let mut waited = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waited, PollTimeout::ZERO) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [waited] = waited;
        let found = waited.revents().unwrap_or(PollFlags::empty());
        if found.intersects(PollFlags::POLLERR | PollFlags::POLLHUP) {
            return Err(Errno::ENODEV.into());
        }
        Ok(found.contains(PollFlags::POLLIN))
    }
}

impl Transport for DevicePort {
    fn send(&mut self, packet: MadPacket) {
        // A packet that the kernel refuses is lost, as on the wire: the manager asks again.
        if let Err(error) = self.try_send(packet) {
            debug!(%error, "a packet was not sent");
        }
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.received.pop_front()
    }
}

impl Port for DevicePort {
    fn take(&mut self) -> io::Result<()> {
        let mut bytes = [0; HEADER + mad::SIZE];
        // libumad2sim answers a read that finds nothing with something else than an error.
        while self.received.len() < MAX_TAKEN && self.is_readable()? {
            let length = match read(&self.device, &mut bytes) {
                Ok(length) => length,
                Err(Errno::EINTR | Errno::EAGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            let arrival = bytes.get(..length);
            let arrival = arrival.and_then(|bytes| Arrival::parse(bytes, self.header));
            let Some(mut arrival) = arrival.filter(|it| !it.is_timed_out) else {
                continue;
            };
            if !arrival.packet.is_smp()
                && let Some(pkey) = self.port.pkey(arrival.pkey)
            {
                arrival.packet.pkey = pkey;
                self.pkeys.insert(pkey, arrival.pkey);
            }
            self.received.push_back(arrival.packet);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn resign(&mut self) {
        self.manages = None;
    }

    fn is_behind(&self) -> bool {
        false
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
