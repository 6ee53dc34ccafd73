//! A local service for paths: it answers the kernel's path queries out of a [`PathCache`].
//!
//! Linux' `ib_sa` asks such a service, over netlink, before it asks the subnet administration: for the connection manager,
//! IPoIB and storage. The service asks the subnet administration in the kernel's place, and keeps the records that may be kept.
//! When a port has another LID or another subnet manager, or is gone, the service forgets all paths of the port.

mod message;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};
use subnet_manager::{PathCache, Transport};
use wire::mad::{Method, Status};
use wire::sa::{self, PathRecord, Record};
use wire::{Gid, Guid, MadPacket, PKey};

use self::message::{Message, Question};
use crate::port::{DeviceError, DevicePort, Port, PortAddress};

/// `RDMA_NL_GROUP_LS`, as a bit of the address.
const GROUP: u32 = 1 << (3 - 1);
/// The kernel waits for 2 s, and then asks by itself.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(700);
/// Requests for a path, each after the time-out of the one before.
const MAX_REQUESTS: u32 = 2;
/// Kinds of questions that are kept: beyond that, all are forgotten.
const MAX_QUESTIONS: usize = 1024;

/// Serves until the kernel's socket fails.
#[must_use]
pub fn main() -> ExitCode {
    match Service::new().and_then(|mut service| service.serve()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ibvswitch-path-cache: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A port and the paths from it.
struct CachingPort {
    port: DevicePort,
    /// The addresses with which the paths were asked for.
    address: PortAddress,
    caches: HashMap<Question, PathCache>,
    transaction: u64,
}

struct Service {
    netlink: OwnedFd,
    ports: HashMap<Guid, CachingPort>,
}

impl Service {
    fn new() -> io::Result<Self> {
        let netlink = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRDMA,
        );
        let refused = |error: nix::Error| {
            io::Error::other(format!(
                "cannot hear the kernel's path queries: {error}; load the module ib_core, and run this program as root"
            ))
        };
        let netlink = netlink.map_err(refused)?;
        bind(netlink.as_raw_fd(), &NetlinkAddr::new(0, GROUP)).map_err(refused)?;
        println!("path queries are answered");
        Ok(Self {
            netlink,
            ports: HashMap::new(),
        })
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut bytes = [0; 8192];
        loop {
            let length = match recv(self.netlink.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
                Ok(length) => length,
                // Queries were lost; the kernel asks for them by itself.
                Err(nix::Error::EINTR | nix::Error::ENOBUFS) => continue,
                Err(error) => return Err(error.into()),
            };
            let Some(message) = bytes.get(..length).and_then(Message::parse) else {
                continue;
            };
            let Some((question, dgid)) = message.asked else {
                continue;
            };
            let path = self.path(question, dgid).unwrap_or_else(|error| {
                println!("{dgid}: {error}; the kernel asks by itself");
                self.ports.remove(&question.sgid.guid());
                None
            });
            let answer = message.answer(path.as_ref());
            let kernel = NetlinkAddr::new(0, 0);
            // The kernel has given up if it takes the answer no more.
            let _ = sendto(
                self.netlink.as_raw_fd(),
                &answer,
                &kernel,
                MsgFlags::empty(),
            );
        }
    }

    /// The path for a question, out of the cache or from the subnet administration.
    fn path(&mut self, question: Question, dgid: Gid) -> Result<Option<PathRecord>, DeviceError> {
        let guid = question.sgid.guid();
        let port = match self.ports.entry(guid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(CachingPort::new(guid)?),
        };
        let address = port.port.address()?;
        if address != port.address {
            println!("port {guid} has other addresses: its paths are forgotten");
            port.address = address;
            port.caches.clear();
        }
        if let Some(path) = port.caches.get(&question).and_then(|it| it.path(dgid)) {
            println!("{dgid}: from the cache");
            return Ok(Some(*path));
        }
        let path = port.ask(question, dgid).ok().flatten();
        let Some(path) = path else {
            println!("{dgid}: no answer of the subnet administration");
            return Ok(None);
        };
        let kept = if path.cacheable { "kept" } else { "not kept" };
        println!("{dgid}: from the subnet administration, {kept}");
        if port.caches.len() >= MAX_QUESTIONS {
            port.caches.clear();
        }
        port.caches.entry(question).or_default().answered(path);
        Ok(Some(path))
    }
}

impl CachingPort {
    fn new(guid: Guid) -> Result<Self, DeviceError> {
        let port = DevicePort::new(Some(guid), false, ANSWER_TIMEOUT)?;
        Ok(Self {
            address: port.address()?,
            port,
            caches: HashMap::new(),
            transaction: 0,
        })
    }

    /// Asks the subnet administration; `None` if it does not answer with a path.
    fn ask(&mut self, question: Question, dgid: Gid) -> io::Result<Option<PathRecord>> {
        let (mask, template) = question.request(dgid);
        for _ in 0..MAX_REQUESTS {
            self.transaction = (self.transaction + 1) & u64::from(u32::MAX);
            let mad = sa::get(self.transaction, mask, &template);
            let PortAddress {
                lid, sm_lid, sm_sl, ..
            } = self.address;
            let pkey = PKey::DEFAULT_FULL;
            self.port
                .send(MadPacket::gmp(lid, sm_lid, sm_sl, pkey, mad));
            if let Some(answer) = self.await_answer()? {
                let status = answer.header().status();
                let path = PathRecord::read(&answer.mad[sa::DATA]).ok();
                return Ok(path.filter(|_| status == Status::OK));
            }
        }
        Ok(None)
    }

    fn await_answer(&mut self) -> io::Result<Option<MadPacket>> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            self.port.take()?;
            while let Some(packet) = self.port.receive() {
                let header = packet.header();
                // The kernel writes the number of the agent into the upper half.
                let transaction = header.transaction() & u64::from(u32::MAX);
                if header.method() == Method::GET_RESPONSE && transaction == self.transaction {
                    return Ok(Some(packet));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let left = PollTimeout::try_from(left + Duration::from_millis(1));
            let descriptor = self.port.descriptor();
            let mut waited = [PollFd::new(descriptor, PollFlags::POLLIN)];
            poll(&mut waited, left.unwrap_or(PollTimeout::ZERO))?;
        }
    }
}
