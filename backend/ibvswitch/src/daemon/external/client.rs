//! A program that is attached.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ibsim::batch::{Batch, send};
use ibsim::protocol::{DATAGRAM_SIZE, Datagram, time_out};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::socket::MsgFlags;
use parking_lot::Mutex;
use vswitch::{HostPlace, HostTag, Mailbox, Sent, answers};
use wire::mad::{Mad, Method};
use wire::{Lid, MadPacket, QKey, Qpn};

/// Programs that can be attached at the same time.
pub const CLIENTS_MAX: u16 = 256;
/// Packets that wait for a program to read them; a kernel's queue has as many.
const OUTBOX: usize = 8192;
/// Requests of a program that wait for an answer.
const WAITING: usize = 8192;
/// Time limit for answers from outside the fabric. Programs repeat their requests themselves.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a program's thread stays awake for the next datagram while it yields to other threads. To sleep and to
/// be woken takes about as long, and the sender pays for half of it.
const ALERT: Duration = Duration::from_micros(50);

/// A request without its answer yet.
#[derive(Debug)]
struct Waiting {
    request: Box<[u8; DATAGRAM_SIZE]>,
    /// When nobody will answer any more, once it is known that somebody may.
    due: Option<Instant>,
}

/// A program's requests by their transactions.
#[derive(Debug, Default)]
struct Requests {
    waiting: HashMap<u64, Waiting>,
    /// The server looks again when the first of them is due.
    watched: bool,
}

/// A datagram for a program.
#[derive(Debug, Default)]
struct Outbox {
    datagrams: VecDeque<[u8; DATAGRAM_SIZE]>,
    /// The program's thread is at work, and sees to what is left here before it waits.
    served: bool,
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
    pub place: HostPlace,
    socket: UnixDatagram,
    peer: SocketAddr,
    outbox: Mutex<Outbox>,
    requests: Mutex<Requests>,
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
        place: HostPlace,
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
            place,
            socket,
            peer,
            outbox: Mutex::default(),
            requests: Mutex::default(),
            gone: AtomicBool::new(false),
            attention,
        })
    }

    /// Waits for the program's next datagrams, and sends what is left to be sent meanwhile; `None` once
    /// the program is gone.
    pub fn receive(&self, batch: &mut Batch) -> Option<()> {
        let began = Instant::now();
        loop {
            self.flush();
            let received = if began.elapsed() < ALERT {
                batch.receive(&self.socket, MsgFlags::MSG_DONTWAIT)
            } else {
                self.sleep(batch)
            };
            if self.is_gone() {
                return None;
            }
            match received {
                Ok(()) => return Some(()),
                Err(Errno::EAGAIN) => thread::yield_now(),
                Err(Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Waits as [`Client::receive`] does, without a processor.
    fn sleep(&self, batch: &mut Batch) -> Result<(), Errno> {
        // From here on who has something to send wakes the server, if that is what it takes.
        let behind = {
            let mut outbox = self.outbox.lock();
            outbox.served = !outbox.datagrams.is_empty();
            outbox.served
        };
        let received = if behind {
            self.wait_for_room()
                .and_then(|()| batch.receive(&self.socket, MsgFlags::MSG_DONTWAIT))
        } else {
            batch.receive(&self.socket, MsgFlags::empty())
        };
        self.outbox.lock().served = true;
        received
    }

    /// Waits until something can be sent, or has come.
    fn wait_for_room(&self) -> Result<(), Errno> {
        let wanted = PollFlags::POLLIN | PollFlags::POLLOUT;
        let mut waited = [PollFd::new(self.socket.as_fd(), wanted)];
        poll(&mut waited, PollTimeout::NONE).map(drop)
    }

    /// The packet that a datagram asks to send; notes a request.
    pub fn packet(&self, bytes: &[u8; DATAGRAM_SIZE]) -> Option<MadPacket> {
        let mut datagram = Datagram::parse(bytes);
        let mad = Mad::new_checked(&datagram.mad[..]).ok()?;
        let class = mad.class();
        let own = mad.transaction();
        // A packet that acknowledges a trap carries the trap's transaction.
        if is_request(&mad) {
            let waiting = &mut self.requests.lock().waiting;
            if waiting.len() >= WAITING && !waiting.contains_key(&(own & OWN)) {
                return None;
            }
            let request = Waiting {
                request: Box::new(*bytes),
                due: None,
            };
            waiting.insert(own & OWN, request);
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

    /// Notes the result of a request that was sent. A request that nobody has, and that has no answer, goes back to
    /// the program by the next [`Client::receive`].
    pub fn settle(&self, bytes: &[u8; DATAGRAM_SIZE], sent: Sent) {
        let key = transaction(&bytes[32..]) & OWN;
        let mut requests = self.requests.lock();
        match sent {
            Sent::Elsewhere => {
                // It may have been answered by now.
                let Some(waiting) = requests.waiting.get_mut(&key) else {
                    return;
                };
                waiting.due = Some(Instant::now() + ANSWER_TIMEOUT);
                // All have the same patience: those that are watched are due before this one.
                if !requests.watched {
                    requests.watched = true;
                    self.wake();
                }
            }
            Sent::Done => {
                let Some(Waiting { mut request, .. }) = requests.waiting.remove(&key) else {
                    return;
                };
                drop(requests);
                time_out(&mut request);
                self.push(*request);
            }
        }
    }

    /// Returns requests that have waited too long; when the next one will have.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        let mut requests = self.requests.lock();
        let overdue = |waiting: &Waiting| waiting.due.is_some_and(|due| due <= now);
        let overdue = requests.waiting.extract_if(|_, waiting| overdue(waiting));
        let overdue: Vec<_> = overdue.map(|(_, waiting)| waiting.request).collect();
        let dues = requests.waiting.values().filter_map(|waiting| waiting.due);
        let next = dues.min();
        requests.watched = next.is_some();
        drop(requests);
        for mut request in overdue {
            time_out(&mut request);
            self.push(*request);
        }
        self.flush();
        next
    }

    /// Whether something waits that could not be sent yet, and that the program's thread does not see to.
    pub fn is_behind(&self) -> bool {
        let outbox = self.outbox.lock();
        !outbox.served && !outbox.datagrams.is_empty()
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
        let datagrams = &mut self.outbox.lock().datagrams;
        // A datagram that does not fit is lost, as in a kernel's queue.
        if datagrams.len() < OUTBOX {
            datagrams.push_back(bytes);
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
            let Some(Waiting { request, .. }) = self.requests.lock().waiting.remove(&key) else {
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
        while !outbox.datagrams.is_empty() {
            match send(
                &self.socket,
                outbox.datagrams.iter(),
                MsgFlags::MSG_DONTWAIT,
            ) {
                Ok(sent) => drop(outbox.datagrams.drain(..sent)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    if !outbox.served {
                        self.wake();
                    }
                    return;
                }
                Err(_) => {
                    outbox.datagrams.clear();
                    self.close();
                    self.wake();
                    return;
                }
            }
        }
    }
}
