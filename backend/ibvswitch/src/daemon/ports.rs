//! Ports for guests without an InfiniBand driver. Each is a function that lives in no engine, on a thread
//! of its own, joined to the engines as another engine would be.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use hca::transport::{Frame, Mesh, MyDoor, Station, Watch};
use hca::{Clock, TrafficCounters, VfId};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use vhost_user::port::{Claims, Output, Port, Store, Surroundings};
use vhost_user::server::{Arrival, Outside, Server};
use vhost_user::translate::Mac;
use vmm_socket::{Listener, MemoryLimits, Stop};
use vswitch::{Function, Input, VSwitch};
use wire::MadPacket;
use wire::mad::{Class, Mad};

use crate::daemon::devices::client::ClientState;
use crate::daemon::life::abort::Abort;

/// Management packets and changes that wait for a port's thread, at most.
const WAITING: usize = 256;

/// Time limit for a port's thread, which itself waits for nobody.
const PORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Something for a port's thread.
#[derive(Debug)]
enum Notice {
    /// For the port.
    Arrival(Arrival),
    /// Watcher that is told of datagrams from now on; the sender hears that it is set.
    Watch(Option<Box<dyn Watch>>, Sender<()>),
}

/// Messages of management for a port.
#[derive(Debug)]
pub struct Inbox {
    notices: Mutex<VecDeque<Notice>>,
    /// There may be some: who looks for each frame takes no lock.
    any: AtomicBool,
    bell: EventFd,
    /// It was rung since the port's thread slept last: frame after frame comes before the thread runs.
    rung: AtomicBool,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// Where the process has no file descriptors left.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            notices: Mutex::default(),
            any: AtomicBool::new(false),
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            rung: AtomicBool::new(false),
        }))
    }

    /// Wakes the port's thread, which looks at everything that was there before.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // Fails where the counter is full: then it has been rung.
            let _ = self.bell.write(1);
        }
    }

    /// The port's thread is awake, and looks at everything from now on.
    fn answer(&self) {
        self.rung.swap(false, Ordering::AcqRel);
    }

    fn put(&self, arrival: Arrival) {
        let mut notices = self.notices.lock();
        // A port asks again for what it does not get.
        if notices.len() < WAITING || matches!(arrival, Arrival::Changed) {
            notices.push_back(Notice::Arrival(arrival));
            self.any.store(true, Ordering::Release);
        }
        drop(notices);
        self.ring();
    }

    /// Has datagrams at the port watched from now on, or not any more. When they are, what is returned ends.
    fn set_watch(&self, watch: Option<Box<dyn Watch>>) -> Receiver<()> {
        let (taken, end) = bounded(0);
        let notice = Notice::Watch(watch, taken);
        let mut notices = self.notices.lock();
        notices.push_back(notice);
        self.any.store(true, Ordering::Release);
        drop(notices);
        self.ring();
        end
    }

    /// The next one.
    fn next(&self) -> Option<Notice> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut notices = self.notices.lock();
        let next = notices.pop_front();
        // A thread that puts a notice has the lock.
        self.any.store(!notices.is_empty(), Ordering::Relaxed);
        next
    }

    /// Something has happened at the port.
    pub fn changed(&self) {
        self.put(Arrival::Changed);
    }

    /// Takes a management packet that is the port's: an answer of the subnet administration. Whether it is.
    pub fn take(&self, packet: &MadPacket) -> bool {
        let header = Mad::new_checked(&packet.mad[..]);
        let answers =
            header.is_ok_and(|mad| mad.class() == Class::SUBN_ADM && mad.method().is_response());
        if answers {
            self.put(Arrival::Mad(Box::new(packet.clone())));
        }
        answers
    }
}

/// Has datagrams at ports watched, or not any more, and waits until they are.
pub fn watch(ports: &HashMap<VfId, Arc<Inbox>>, watch: impl Fn() -> Option<Box<dyn Watch>>) {
    let ends: Vec<_> = ports.values().map(|port| port.set_watch(watch())).collect();
    let patience = Instant::now() + PORT_TIMEOUT;
    for end in ends {
        // The port's thread drops the other end, or has itself ended.
        let _ = end.recv_deadline(patience);
    }
}

impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// The guest of a port as it is configured.
#[derive(Debug, Clone)]
pub struct Guest {
    /// Its Ethernet address.
    pub mac: Mac,
    /// The IP addresses that it may say are its own.
    pub claims: Claims,
}

/// Guests by the names of their ports.
pub type Guests = Arc<HashMap<String, Guest>>;

/// The ports of a daemon, until their threads are started.
#[derive(Debug, Default)]
pub struct Ports {
    /// By function.
    pub inboxes: Arc<HashMap<VfId, Arc<Inbox>>>,
    meshes: HashMap<VfId, Mesh>,
    /// Buffers of all.
    store: Arc<Store>,
}

impl Ports {
    /// These functions, each with its inbox and what joins it to the engines.
    #[must_use]
    pub fn new(ports: &[VfId], inboxes: Vec<Arc<Inbox>>, meshes: Vec<Mesh>) -> Self {
        Self {
            inboxes: Arc::new(ports.iter().copied().zip(inboxes).collect()),
            meshes: ports.iter().copied().zip(meshes).collect(),
            store: Arc::default(),
        }
    }

    /// Starts the thread of a port.
    ///
    /// # Errors
    /// Where the system has no thread or file descriptor left.
    pub fn start(
        &mut self,
        parts: Parts,
        stop: &Stop,
        abort: Abort,
    ) -> io::Result<thread::JoinHandle<()>> {
        let Parts {
            name,
            vf,
            mac,
            guests,
            mtu,
            listener,
            limits,
            vswitch,
            clock,
            counters,
            client,
        } = parts;
        let found = self.inboxes.get(&vf).zip(self.meshes.remove(&vf));
        let (Some((inbox, mesh)), Some(function)) = (found, vswitch.function(vf)) else {
            return Err(io::Error::other("there is no such port"));
        };
        let door = mesh.door();
        // The vSwitch is woken at once: nobody waits for this thread.
        let woken = Arc::clone(&vswitch);
        let subnet = vswitch.for_engine(Waker::from(Arc::new(Bellhop(woken))));
        let place = Place {
            vf,
            station: Station::new(vf, subnet, mesh, counters),
            function,
            vswitch,
            clock,
            inbox: Arc::clone(inbox),
            door,
            client,
            own: mac,
            guests,
        };
        let port = Port::new(mac).with_store(Arc::clone(&self.store));
        let mut server = Server::new(listener, port, place, limits, mtu)?;
        let stop = stop.clone();
        thread::Builder::new()
            .name(format!("port {name}"))
            .spawn(move || {
                let _port = tracing::error_span!("port", name).entered();
                if let Err(error) = vmm_socket::shorten_slice() {
                    tracing::debug!("the port's thread has long slices: {error}");
                }
                if let Err(error) = server.run(&stop) {
                    abort.raise(format!("port `{name}` cannot be served: {error}"));
                }
            })
    }
}

/// Wakes the vSwitch.
struct Bellhop(Arc<VSwitch>);

impl Wake for Bellhop {
    fn wake(self: Arc<Self>) {
        self.0.wake_now();
    }
}

/// Parts of a port.
#[derive(Debug)]
pub struct Parts {
    /// Its name in the configuration.
    pub name: String,
    /// The function that it is.
    pub vf: VfId,
    /// The Ethernet address of its guest.
    pub mac: Mac,
    /// All guests, which may come here from their ports.
    pub guests: Guests,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
    /// Its socket.
    pub listener: Listener,
    /// Limits of the memory that a client may share.
    pub limits: MemoryLimits,
    /// The vSwitch.
    pub vswitch: Arc<VSwitch>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Counters of the port.
    pub counters: Arc<TrafficCounters>,
    /// Whether there is a client.
    pub client: Arc<ClientState>,
}

/// The subnet around a port.
struct Place {
    vf: VfId,
    station: Station,
    function: Function,
    vswitch: Arc<VSwitch>,
    clock: Arc<dyn Clock>,
    inbox: Arc<Inbox>,
    door: MyDoor,
    client: Arc<ClientState>,
    /// The address of the guest that the port is configured for.
    own: Mac,
    guests: Guests,
}

impl Place {
    /// The VM that has its addresses here.
    fn guest(&self) -> Guest {
        let holder = { self.vswitch.holders() }.into_iter().nth(self.vf.0.into());
        let guest = holder.flatten().and_then(|vm| self.guests.get(&vm));
        guest.cloned().unwrap_or(Guest {
            mac: self.own,
            claims: Claims::Any,
        })
    }
}

impl Outside for Place {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn generation(&self) -> u64 {
        self.station.generation()
    }

    fn surroundings(&mut self) -> Surroundings {
        let facts = self.function.facts();
        let view = self.vswitch.port_view(self.vf);
        self.station.set_port(view.clone());
        let Guest { mac, claims } = self.guest();
        Surroundings {
            view,
            administration: (facts.sm_lid, facts.port.master_sm_sl),
            mac: Some(mac),
            claims,
        }
    }

    fn presence(&mut self, present: bool) {
        self.client.set_connected(present);
        self.vswitch.handle(Input::Presence(self.vf, present));
    }

    fn reset(&mut self) {
        self.vswitch.handle(Input::Reset(self.vf));
    }

    fn set_takes_trains(&mut self, takes: bool) {
        self.station.set_takes_trains(takes);
    }

    fn passes_whole(&mut self, train: &Frame) -> bool {
        self.station.passes_whole(train)
    }

    fn send(&mut self, now: u64, output: Output) -> Option<Output> {
        match output {
            Output::Frame(frame) => self.station.send(now, frame).map(Output::Frame),
            Output::Mad(datagram) => {
                self.station.send_mad(*datagram);
                None
            }
        }
    }

    fn receive(&mut self, now: u64) -> Option<Arrival> {
        loop {
            match self.inbox.next() {
                Some(Notice::Arrival(arrival)) => return Some(arrival),
                Some(Notice::Watch(watch, _taken)) => self.station.set_watch(watch),
                None => break,
            }
        }
        self.station.receive(now).map(Arrival::Frame)
    }

    fn deadline(&self) -> Option<u64> {
        self.station.deadline()
    }

    fn sleep(&mut self, asleep: bool) -> bool {
        if asleep {
            self.station.announce();
        } else {
            self.inbox.answer();
        }
        self.door.sleep(asleep) || !self.inbox.notices.lock().is_empty()
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell.as_fd()
    }
}
