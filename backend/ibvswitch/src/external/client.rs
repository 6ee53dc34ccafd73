//! A program that is attached.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabric::PortRef;
use nix::errno::Errno;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{MsgFlags, send};
use parking_lot::Mutex;
use wire::mad::{Mad, Method};
use wire::{Lid, MadPacket, QKey, Qpn};

use super::protocol::{DATAGRAM_SIZE, Datagram, time_out};
use crate::management::{HostTag, Mailbox, answers};

/// Programs that can be attached at the same time.
pub const CLIENTS_MAX: u16 = 256;
/// Packets that wait for a program to read them; a kernel's queue has as many.
const OUTBOX: usize = 8192;
/// Requests of a program that wait for an answer.
const WAITING: usize = 8192;
/// How long somebody outside the fabric may take to answer. Programs ask again by themselves.
const PATIENCE: Duration = Duration::from_secs(1);

/// A request without its answer yet.
#[derive(Debug)]
struct Waiting {
    request: Box<[u8; DATAGRAM_SIZE]>,
    /// When nobody will answer any more, once it is known that somebody may.
    due: Option<Instant>,
}

/// An attached program.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: u16,
    /// Its process, as the kernel knows it.
    pub pid: i32,
    /// Its transactions' upper bits.
    pub tag: HostTag,
    /// Where it is attached.
    pub port: PortRef,
    socket: UnixDatagram,
    peer: SocketAddr,
    outbox: Mutex<VecDeque<[u8; DATAGRAM_SIZE]>>,
    waiting: Mutex<HashMap<u64, Waiting>>,
    gone: AtomicBool,
    /// Tells the server that something waits that could not be sent, or to be answered.
    attention: Arc<EventFd>,
}

/// The part of a transaction that a program chooses.
const OWN: u64 = u64::MAX >> 16;

fn transaction(mad: &[u8]) -> u64 {
    Mad::new_checked(mad).map_or(0, |mad| mad.transaction())
}

/// Whether whoever sends this waits for an answer.
fn is_request(mad: &Mad<&[u8]>) -> bool {
    let method = mad.method();
    !answers(method) && method != Method::SEND
}

impl Client {
    /// A program whose socket is that of `name` in the abstract namespace.
    ///
    /// # Errors
    /// Those of a socket; connection refused where there is none of that name.
    pub fn new(
        id: u16,
        pid: i32,
        port: PortRef,
        names: (&str, &str),
        attention: Arc<EventFd>,
    ) -> io::Result<Self> {
        let (own, peer) = names;
        let socket = UnixDatagram::unbound()?;
        let peer = SocketAddr::from_abstract_name(peer)?;
        // Connected before it has a name: from then on nobody else can send to it.
        socket.connect_addr(&peer)?;
        let own = SocketAddr::from_abstract_name(own)?;
        let socket = bind_connected(socket, &own)?;
        Ok(Self {
            id,
            pid,
            tag: HostTag::new(id),
            port,
            socket,
            peer,
            outbox: Mutex::default(),
            waiting: Mutex::default(),
            gone: AtomicBool::new(false),
            attention,
        })
    }

    /// Waits for the program's next datagram; `None` once it is gone.
    pub fn receive(&self, bytes: &mut [u8; DATAGRAM_SIZE]) -> Option<()> {
        // One byte more, so that a longer datagram shows.
        let mut buffer = [0; DATAGRAM_SIZE + 1];
        loop {
            let received = self.socket.recv(&mut buffer);
            if self.is_gone() {
                return None;
            }
            match received {
                Ok(DATAGRAM_SIZE) => {
                    bytes.copy_from_slice(&buffer[..DATAGRAM_SIZE]);
                    return Some(());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// The packet that a datagram asks to send; notes a request.
    pub fn packet(&self, bytes: &[u8; DATAGRAM_SIZE]) -> Option<MadPacket> {
        let mut datagram = Datagram::parse(bytes);
        let mad = Mad::new_checked(&datagram.mad[..]).ok()?;
        let class = mad.class();
        let own = mad.transaction();
        // What acknowledges a trap carries the trap's transaction.
        if is_request(&mad) {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= WAITING && !waiting.contains_key(&(own & OWN)) {
                return None;
            }
            let request = Waiting {
                request: Box::new(*bytes),
                due: None,
            };
            waiting.insert(own & OWN, request);
            drop(waiting);
            let marked = self.tag.mark(own);
            Mad::new_checked(&mut datagram.mad[..])
                .ok()?
                .set_transaction(marked);
        }
        let (slid, dlid) = (Lid::new(datagram.slid), Lid::new(datagram.dlid));
        Some(if class.is_subnet_management() {
            MadPacket::smp(slid, dlid, datagram.mad)
        } else {
            MadPacket {
                dst_qp: Qpn::new(datagram.dqp),
                src_qp: Qpn::QP1,
                qkey: QKey::QP1,
                ..MadPacket::smp(slid, dlid, datagram.mad)
            }
        })
    }

    /// What became of a request that was sent: with somebody who may answer it, or with nobody.
    /// Where it is with nobody and has no answer either, the program gets it back.
    pub fn settle(&self, bytes: &[u8; DATAGRAM_SIZE], elsewhere: bool) {
        let key = transaction(&bytes[32..]) & OWN;
        let mut waiting = self.waiting.lock();
        if elsewhere {
            if let Some(waiting) = waiting.get_mut(&key) {
                waiting.due = Some(Instant::now() + PATIENCE);
                self.wake();
            }
            return;
        }
        let Some(Waiting { mut request, .. }) = waiting.remove(&key) else {
            return;
        };
        drop(waiting);
        time_out(&mut request);
        self.push(*request);
        self.flush();
    }

    /// Returns requests that have waited too long; when the next one will have.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        let mut waiting = self.waiting.lock();
        let overdue = waiting.extract_if(|_, waiting| waiting.due.is_some_and(|due| due <= now));
        let overdue: Vec<_> = overdue.map(|(_, waiting)| waiting.request).collect();
        let next = waiting.values().filter_map(|waiting| waiting.due).min();
        drop(waiting);
        for mut request in overdue {
            time_out(&mut request);
            self.push(*request);
        }
        self.flush();
        next
    }

    /// Whether something waits that could not be sent yet.
    pub fn is_behind(&self) -> bool {
        !self.outbox.lock().is_empty()
    }

    /// Whether the program has gone, or has been sent away.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the program's socket is still there: one that was killed says nothing.
    pub fn is_reachable(&self) -> bool {
        self.socket.connect_addr(&self.peer).is_ok()
    }

    /// Ends its thread.
    pub fn close(&self) {
        self.gone.store(true, Ordering::Release);
        // Wakes who waits for the program's datagrams.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// The descriptor to send by.
    pub fn socket(&self) -> &UnixDatagram {
        &self.socket
    }

    fn push(&self, bytes: [u8; DATAGRAM_SIZE]) {
        let mut outbox = self.outbox.lock();
        // What does not fit is lost, as in a kernel's queue.
        if outbox.len() < OUTBOX {
            outbox.push_back(bytes);
        }
    }

    fn wake(&self) {
        // It can only fail with a counter at its end, and then the server is awake anyway.
        let _ = self.attention.write(1);
    }
}

/// Gives a socket that is connected a name.
fn bind_connected(socket: UnixDatagram, name: &SocketAddr) -> io::Result<UnixDatagram> {
    let name = name.as_abstract_name().unwrap_or_default();
    let address = nix::sys::socket::UnixAddr::new_abstract(name)?;
    nix::sys::socket::bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

impl Mailbox for Client {
    fn put(&self, packet: &MadPacket) {
        let mut datagram = Datagram {
            dlid: packet.dlid.value(),
            slid: packet.slid.value(),
            dqp: packet.dst_qp.value(),
            sqp: packet.src_qp.value(),
            mad: packet.mad,
        };
        let mad = packet.header();
        if answers(mad.method()) {
            // An answer that nobody waits for any more is dropped, as kernels do.
            let key = mad.transaction() & OWN;
            let Some(Waiting { request, .. }) = self.waiting.lock().remove(&key) else {
                return;
            };
            let own = transaction(&request[32..]);
            if let Ok(mut mad) = Mad::new_checked(&mut datagram.mad[..]) {
                mad.set_transaction(own);
            }
        }
        self.push(datagram.emit());
    }

    fn flush(&self) {
        let mut outbox = self.outbox.lock();
        while let Some(bytes) = outbox.front() {
            match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(_) => {
                    outbox.pop_front();
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    self.wake();
                    return;
                }
                Err(_) => {
                    outbox.clear();
                    self.close();
                    self.wake();
                    return;
                }
            }
        }
    }
}
