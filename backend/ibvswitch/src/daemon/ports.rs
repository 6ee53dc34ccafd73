//! Ports for guests without an InfiniBand driver. Each is a function that lives in no engine, on a thread
//! of its own, joined to the engines as another engine would be.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

use hca::transport::{Mesh, MyDoor, Station};
use hca::{Clock, MadDatagram, TrafficCounters, VfId};
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use vhost_user::port::{Output, Port, Surroundings};
use vhost_user::server::{Arrival, Outside, Server};
use vhost_user::translate::Mac;
use vmm::{Listener, MemoryLimits, Stop};
use vswitch::{Function, Input, VSwitch};
use wire::mad::{Class, Mad};

use crate::daemon::abort::Abort;
use crate::daemon::client::ClientState;

/// Management packets and changes that wait for a port's thread, at most.
const WAITING: usize = 256;

/// What management has for a port.
#[derive(Debug)]
pub struct Inbox {
    arrivals: Mutex<VecDeque<Arrival>>,
    bell: EventFd,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// Where the process has no file descriptors left.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            arrivals: Mutex::default(),
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
        }))
    }

    /// Wakes the port's thread.
    pub fn ring(&self) {
        // Fails where the counter is full: then it has been rung.
        let _ = self.bell.write(1);
    }

    fn put(&self, arrival: Arrival) {
        let mut arrivals = self.arrivals.lock();
        // A port asks again for what it does not get.
        if arrivals.len() < WAITING || matches!(arrival, Arrival::Changed) {
            arrivals.push_back(arrival);
        }
        drop(arrivals);
        self.ring();
    }

    /// Something has happened at the port.
    pub fn changed(&self) {
        self.put(Arrival::Changed);
    }

    /// Takes a management packet that is the port's: an answer of the subnet administration. Whether it is.
    pub fn take(&self, datagram: &MadDatagram) -> bool {
        let header = Mad::new_checked(&datagram.mad[..]);
        let answers =
            header.is_ok_and(|mad| mad.class() == Class::SUBN_ADM && mad.method().is_response());
        if answers {
            self.put(Arrival::Mad(Box::new(datagram.clone())));
        }
        answers
    }
}

impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// The ports of a daemon, until their threads are started.
#[derive(Debug, Default)]
pub struct Ports {
    /// By function.
    pub inboxes: Arc<HashMap<VfId, Arc<Inbox>>>,
    meshes: HashMap<VfId, Mesh>,
}

impl Ports {
    /// These functions, each with its inbox and what joins it to the engines.
    #[must_use]
    pub fn new(ports: &[VfId], inboxes: Vec<Arc<Inbox>>, meshes: Vec<Mesh>) -> Self {
        Self {
            inboxes: Arc::new(ports.iter().copied().zip(inboxes).collect()),
            meshes: ports.iter().copied().zip(meshes).collect(),
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
            station: Station::new(vf, subnet, mesh, Arc::clone(&clock), counters),
            function,
            vswitch,
            clock,
            inbox: Arc::clone(inbox),
            door,
            client,
        };
        let mut server = Server::new(listener, Port::new(mac), place, limits, mtu)?;
        let stop = stop.clone();
        thread::Builder::new()
            .name(format!("port {name}"))
            .spawn(move || {
                let _port = tracing::error_span!("port", name).entered();
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

/// What a port is made of.
#[derive(Debug)]
pub struct Parts {
    /// Its name in the configuration.
    pub name: String,
    /// The function that it is.
    pub vf: VfId,
    /// The Ethernet address of its guest.
    pub mac: Mac,
    /// The longest IP packet, in bytes.
    pub mtu: u16,
    /// Its socket.
    pub listener: Listener,
    /// How much memory a client may share.
    pub limits: MemoryLimits,
    /// The vSwitch.
    pub vswitch: Arc<VSwitch>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What its port counts in.
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
        Surroundings {
            view,
            administration: (facts.sm_lid, facts.port.master_sm_sl),
        }
    }

    fn presence(&mut self, present: bool) {
        self.client.set_connected(present);
        self.vswitch.handle(Input::Presence(self.vf, present));
    }

    fn reset(&mut self) {
        self.vswitch.handle(Input::Reset(self.vf));
    }

    fn send(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Frame(frame) => self.station.send(frame).map(Output::Frame),
            Output::Mad(datagram) => {
                self.station.send_mad(datagram);
                None
            }
        }
    }

    fn receive(&mut self) -> Option<Arrival> {
        if let Some(arrival) = self.inbox.arrivals.lock().pop_front() {
            return Some(arrival);
        }
        let frame = self.station.receive()?;
        Some(Arrival::Frame(frame))
    }

    fn deadline(&self) -> Option<u64> {
        self.station.deadline()
    }

    fn sleep(&mut self, asleep: bool) -> bool {
        self.door.sleep(asleep) || !self.inbox.arrivals.lock().is_empty()
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell.as_fd()
    }
}
