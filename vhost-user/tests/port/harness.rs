//! Ports in a subnet of which the administration answers what ports ask.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use hca::PortView;
use hca::transport::Frame;
use ibvswitch_vhost_user as vhost_user;
use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::Mutex;
use tempfile::TempDir;
use vhost_user::port::{Claims, Output, Port, Surroundings};
use vhost_user::server::{Arrival, Outside, Server};
use vhost_user::translate::{self, Mac, Neighbours, Own};
use vhost_user_driver::{Driver, FEATURES, TRAINS};
use vmm_socket::{Listener, MemoryLimits, Stop};
use wire::ipoib::Address;
use wire::mad::{Mad, Method, Status};
use wire::sa::{self, McMemberRecord, PathRecord, Record};
use wire::{Gid, Lid, MadPacket, Mtu, PKey, QKey, Sl};

/// The Q_Key of groups.
const QKEY: u32 = 0xb1b;
/// The first multicast LID.
const MLID: u16 = 0xc000;

/// Arrivals for a port.
#[derive(Debug)]
struct Inbox {
    arrivals: Mutex<VecDeque<Arrival>>,
    bell: EventFd,
}

impl Inbox {
    fn put(&self, arrival: Arrival) {
        self.arrivals.lock().push_back(arrival);
        self.bell.write(1).unwrap();
    }
}

/// The subnet: who is at which LID, and in which group.
#[derive(Debug, Default)]
pub struct Net {
    ports: HashMap<u16, (Gid, Arc<Inbox>)>,
    groups: HashMap<Gid, (u16, HashSet<u16>)>,
    /// All datagrams that have left ports.
    pub seen: Vec<Frame>,
    /// Number of datagrams to groups from one LID to another.
    heard: HashMap<[u16; 2], usize>,
    /// LIDs of links that are down.
    pub down: HashSet<u16>,
    /// LIDs of ports from which nothing can be taken now.
    pub full: HashSet<u16>,
    /// LIDs of ports that take trains.
    pub trains: HashSet<u16>,
    /// Addresses that guests may claim, by LID.
    pub claims: HashMap<u16, Claims>,
}

impl Net {
    fn answer(&mut self, lid: u16, request: &MadPacket) -> MadPacket {
        let mad = Mad::new_checked(&request.mad[..]).unwrap();
        let (method, transaction) = (mad.method(), mad.transaction());
        let data = &request.mad[sa::DATA];
        let mut status = Status::OK;
        let mut answer = if mad.attribute() == McMemberRecord::ID {
            let mut record = McMemberRecord::parse(data).unwrap();
            let next = MLID + self.groups.len() as u16;
            let (mlid, members) =
                { self.groups.entry(record.mgid) }.or_insert((next, HashSet::new()));
            if method == Method::DELETE {
                members.remove(&lid);
            } else if record.join_state.receives() {
                members.insert(lid);
            }
            record.mlid = Lid::new(*mlid);
            (record.qkey, record.mtu) = (QKey::new(QKEY), Mtu::B2048.code());
            sa::with_record(Method::GET_RESPONSE, transaction, 0, &record)
        } else {
            let mut record = PathRecord::parse(data).unwrap();
            match self.ports.iter().find(|(_, (gid, _))| *gid == record.dgid) {
                Some((&lid, _)) => record.dlid = Lid::new(lid),
                None => status = Status::SA_NO_RECORDS,
            }
            sa::with_record(Method::GET_RESPONSE, transaction, 0, &record)
        };
        Mad::new_checked(&mut answer[..])
            .unwrap()
            .set_status(status);
        MadPacket {
            mad: answer,
            ..request.clone()
        }
    }

    fn send(&mut self, from: u16, frame: Frame) {
        self.seen.push(frame.clone());
        let dlid = u16::from(frame.address.dlid);
        let to: Vec<u16> = if dlid >= MLID {
            let group = self.groups.values().find(|(mlid, _)| *mlid == dlid);
            let members = group.map(|(_, members)| members.iter().copied().collect());
            members.unwrap_or_default()
        } else {
            vec![dlid]
        };
        for lid in to.into_iter().filter(|lid| *lid != from) {
            if let Some((_, inbox)) = self.ports.get(&lid) {
                if dlid >= MLID {
                    *self.heard.entry([from, lid]).or_default() += 1;
                }
                inbox.put(Arrival::Frame(frame.clone()));
            }
        }
    }
}

#[derive(Debug)]
struct Place {
    net: Arc<Mutex<Net>>,
    lid: u16,
    gid: Gid,
    inbox: Arc<Inbox>,
    begun: Instant,
}

impl Outside for Place {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn generation(&self) -> u64 {
        0
    }

    fn surroundings(&mut self) -> Surroundings {
        let claims = self.net.lock().claims.get(&self.lid).cloned();
        let claims = claims.unwrap_or_default();
        Surroundings {
            view: PortView {
                lid: Lid::new(self.lid),
                active: !self.net.lock().down.contains(&self.lid),
                pkeys: vec![PKey::DEFAULT_FULL],
                gids: vec![self.gid],
                ..PortView::default()
            },
            administration: (Lid::new(1), Sl::default()),
            mac: None,
            claims,
        }
    }

    fn presence(&mut self, _: bool) {}

    fn reset(&mut self) {}

    fn set_takes_trains(&mut self, takes: bool) {
        let mut net = self.net.lock();
        if takes {
            net.trains.insert(self.lid);
        } else {
            net.trains.remove(&self.lid);
        }
    }

    fn passes_whole(&mut self, train: &Frame) -> bool {
        self.net.lock().trains.contains(&train.address.dlid.into())
    }

    fn send(&mut self, _: u64, output: Output) -> Option<Output> {
        let mut net = self.net.lock();
        if net.full.contains(&self.lid) {
            return Some(output);
        }
        match output {
            Output::Frame(frame) => net.send(self.lid, frame),
            Output::Mad(mad) => {
                let answer = net.answer(self.lid, &mad);
                self.inbox.put(Arrival::Mad(Box::new(answer)));
            }
        }
        None
    }

    fn receive(&mut self, _: u64) -> Option<Arrival> {
        self.inbox.arrivals.lock().pop_front()
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn sleep(&mut self, _: bool) -> bool {
        !self.inbox.arrivals.lock().is_empty()
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell.as_fd()
    }
}

/// A subnet with ports on threads.
pub struct Lab {
    /// The subnet.
    pub net: Arc<Mutex<Net>>,
    dir: TempDir,
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

/// The Ethernet address of the guest of a port.
pub const fn mac(port: usize) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, port as u8])
}

impl Lab {
    /// With so many ports.
    pub fn new(ports: usize) -> Self {
        let mut lab = Self {
            net: Arc::default(),
            dir: tempfile::tempdir().unwrap(),
            stop: Stop::new().unwrap(),
            threads: Vec::new(),
        };
        for port in 0..ports {
            let inbox = Arc::new(Inbox {
                arrivals: Mutex::default(),
                bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap(),
            });
            let lid = port as u16 + 2;
            let gid = Gid::new(Gid::DEFAULT_PREFIX, mac(port).eui64());
            let place = Place {
                net: Arc::clone(&lab.net),
                lid,
                gid,
                inbox: Arc::clone(&inbox),
                begun: Instant::now(),
            };
            lab.net.lock().ports.insert(lid, (gid, inbox));
            let listener = Listener::bind(lab.socket(port)).unwrap();
            let machine = Port::new(mac(port));
            let limits = MemoryLimits::default();
            let server = Server::new(listener, machine, place, limits, 2044);
            let (mut server, stop) = (server.unwrap(), lab.stop.clone());
            let thread = std::thread::spawn(move || server.run(&stop).unwrap());
            lab.threads.push(thread);
        }
        lab
    }

    /// The socket of a port.
    pub fn socket(&self, port: usize) -> PathBuf {
        self.dir.path().join(format!("port{port}.sock"))
    }

    /// Returns the number of datagrams to groups from one port to another.
    pub fn heard(&self, ports: [usize; 2]) -> usize {
        let lids = ports.map(|port| port as u16 + 2);
        let net = self.net.lock();
        net.heard.get(&lids).copied().unwrap_or_default()
    }

    /// A guest at a port.
    pub fn guest(&self, port: usize) -> Driver {
        Driver::start(self.socket(port)).unwrap()
    }

    /// A guest at a port that takes long TCP segments.
    pub fn guest_with_trains(&self, port: usize) -> Driver {
        Driver::start_with(self.socket(port), FEATURES | TRAINS).unwrap()
    }

    /// Sets whether the link of a port is up.
    pub fn set_link(&self, port: usize, up: bool) {
        let lid = port as u16 + 2;
        let mut net = self.net.lock();
        if up {
            net.down.remove(&lid);
        } else {
            net.down.insert(lid);
        }
        net.ports[&lid].1.put(Arrival::Changed);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.signal();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(
                std::thread::panicking() || ended.is_ok(),
                "a port has failed"
            );
        }
    }
}

/// Neighbours that a port knows.
#[derive(Debug, Default)]
pub struct Known(pub Vec<Address>);

impl Neighbours for Known {
    fn find(&mut self, mac: Mac) -> Option<Address> {
        { self.0.iter() }.find(|it| Mac::of(**it) == mac).copied()
    }

    fn learn(&mut self, address: Address) {
        self.0.push(address);
    }
}

/// Returns the addresses of a port and its guest.
pub fn own(port: usize) -> Own {
    let gid = Gid::new(Gid::DEFAULT_PREFIX, mac(port).eui64());
    let qpn = translate::queue_pair_of(gid.guid());
    Own {
        mac: mac(port),
        address: Address { qpn, gid },
        pkey: PKey::DEFAULT_FULL,
    }
}
