//! A laboratory: an engine with a few functions, queues that are plain lists,
//! a subnet whose paths can be cut, and a clock that stands still.

// By its path: this file is also a module of another program of tests.
#[path = "lab/engines.rs"]
mod engines;
#[path = "lab/memory.rs"]
mod memory;
#[path = "lab/net.rs"]
pub mod net;
#[path = "lab/queue_format.rs"]
mod queue_format;
#[path = "lab/requests.rs"]
mod requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca::transport::{Delayed, Homes, Loopback, Lossy, MyDoor, Shared, Single};
use hca::work::{RecvWr, SendWr, Sge};
use hca::{
    AddressPath, Clock, Engine, Event, InCompletion, PortView, QpChange, QpDesc, QpState, Quota,
    RecvSide, Subnet, Transport, VfId,
};
use wire::{Gid, Lid, Mtu, PKey, Psn, Qpn, Sl};

pub use queue_format::{Cq, Events, Plain, Ring};
// Each program of tests uses its part of these.
#[allow(unused_imports)]
pub use memory::{ALIAS, ALIAS_PERIOD, Memory, base};
use net::{Line, Loss, Net};
#[allow(unused_imports)]
pub use requests::{
    QKEY, VARIANT, datagram, everything, pattern, physical, received, remote, request, sent,
};

/// A clock that tests turn.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn turn_to(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A function of the laboratory.
#[derive(Debug, Clone)]
pub struct Node {
    pub vf: VfId,
    pub memory: Memory,
    pub events: Events,
    pub pd: u32,
    /// A key to all memory with all rights.
    pub key: u32,
    pub lid: Lid,
}

/// A queue pair of the laboratory, with a completion queue of its own.
#[derive(Debug, Clone)]
pub struct Qp {
    pub node: usize,
    pub vf: VfId,
    pub qpn: Qpn,
    pub send: Ring<SendWr>,
    pub recv: Ring<RecvWr>,
    pub cq: Cq,
    pub cqn: u32,
}

/// The way of messages from one function to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In frames, over one line.
    Line,
    /// By one copy.
    Copied,
    /// In frames.
    Frames,
    /// In frames of one packet each, so many of a hundred of which get lost, by a generator in this
    /// state.
    Packets(u64, u64),
    /// Between two engines. So many of a hundred packets get lost on the way, likewise.
    Engines(u64, u64),
}

/// The subnet, once more for each engine.
pub struct Subnets(pub Box<dyn Fn() -> Box<dyn Subnet>>);

impl std::fmt::Debug for Subnets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subnets")
    }
}

#[derive(Debug)]
pub struct Lab {
    pub engine: Engine<Plain>,
    subnets: Subnets,
    /// Further ones, where functions live in several.
    pub more: Vec<Engine<Plain>>,
    pub homes: Option<Arc<Homes>>,
    pub doors: Vec<MyDoor>,
    pub net: Net,
    pub clock: Arc<ManualClock>,
    pub nodes: Vec<Node>,
}

/// Access timeout code that the laboratory uses: 4.096 µs · 2^10.
pub const TIMEOUT: u8 = 10;
/// The same in nanoseconds.
pub const TIMEOUT_NS: u64 = 4096 << 10;

impl Lab {
    /// A laboratory with this many functions.
    pub fn new(count: usize) -> Self {
        Self::with_quota(count, Quota::default())
    }

    pub fn with_quota(count: usize, quota: Quota) -> Self {
        Self::on(Net::default(), count, quota)
    }

    /// On a subnet that is not as usual.
    pub fn on(net: Net, count: usize, quota: Quota) -> Self {
        let port = |node: usize| PortView {
            lid: Lid::new(node as u16 + 1),
            lmc: 0,
            active: true,
            pkeys: vec![PKey::DEFAULT_FULL],
            gids: vec![Gid::from_bits(0xfe80 << 112 | (node as u128 + 1))],
            ..PortView::default()
        };
        let ports = (0..count).map(port).collect();
        let subnet = net.clone();
        let subnets = Subnets(Box::new(move || Box::new(subnet.clone())));
        Self::over(subnets, net, Arc::default(), ports, quota)
    }

    /// Over any subnet, with these ports.
    pub fn over(
        subnets: Subnets,
        net: Net,
        clock: Arc<ManualClock>,
        ports: Vec<PortView>,
        quota: Quota,
    ) -> Self {
        let engine = Engine::new(subnets.0(), clock.clone(), 0x1234_5678);
        let mut lab = Self {
            engine,
            subnets,
            more: Vec::new(),
            homes: None,
            doors: Vec::new(),
            net,
            clock,
            nodes: Vec::new(),
        };
        for (node, port) in ports.into_iter().enumerate() {
            let memory = Memory::new(node);
            let events = Events::default();
            let vf = lab.engine.add_vf(memory.clone(), events.clone(), quota);
            let lid = port.lid;
            lab.net.change(|net| {
                net.lids.insert(lid, vf);
            });
            lab.engine.vf_mut(vf).set_port(port);
            let pd = lab.engine.vf_mut(vf).alloc_pd().unwrap();
            let index = lab.engine.verbs(vf).create_key(physical(pd)).unwrap();
            lab.nodes.push(Node {
                vf,
                memory,
                events,
                pd,
                key: index << 8 | u32::from(VARIANT),
                lid,
            });
        }
        lab
    }

    /// Has all messages between different functions go this way.
    pub fn go(&mut self, way: Way) {
        let loss = match way {
            Way::Copied => return,
            Way::Frames => Loss::of(""),
            Way::Engines(percent, state) => {
                let homes: Vec<u16> = (0..self.nodes.len()).map(|at| at as u16 % 2).collect();
                let single = percent > 0;
                self.split_over(&homes, single);
                if percent == 0 {
                    return;
                }
                Loss::percent(percent, state)
            }
            Way::Line => {
                let wire = Delayed::new(Loopback::default());
                let shared = Shared::new(Box::new(Line::new(1)), wire);
                self.engine.set_endpoint(Box::new(Lossy(shared)));
                return self.net.change(|net| net.line = Some(1));
            }
            Way::Packets(percent, state) => {
                let wire = Delayed::new(Loopback::default());
                self.engine.set_endpoint(Box::new(Single(Lossy(wire))));
                Loss::percent(percent, state)
            }
        };
        self.net.change(|net| {
            for from in &self.nodes {
                for to in &self.nodes {
                    net.losses.insert((from.vf, to.vf), loss.clone());
                }
            }
        });
    }

    pub fn cq(&mut self, node: usize, capacity: usize) -> (u32, Cq) {
        let cq = Cq::new(capacity);
        let ring = cq.clone();
        let vf = self.nodes[node].vf;
        (self.home(vf).verbs(vf).create_cq(|_| ring).unwrap(), cq)
    }

    /// The ring of a shared receive queue.
    pub fn shared_ring(&self) -> Ring<RecvWr> {
        Ring::new()
    }

    /// A queue pair in Reset with queues of its own.
    pub fn qp(&mut self, node: usize, transport: Transport) -> Qp {
        self.qp_with(node, transport, |_| {})
    }

    pub fn qp_with(
        &mut self,
        node: usize,
        transport: Transport,
        change: impl FnOnce(&mut QpDesc<Plain>),
    ) -> Qp {
        let (cqn, cq) = self.cq(node, 4096);
        self.qp_on(node, transport, (cqn, cq), change)
    }

    pub fn qp_on(
        &mut self,
        node: usize,
        transport: Transport,
        (cqn, cq): (u32, Cq),
        change: impl FnOnce(&mut QpDesc<Plain>),
    ) -> Qp {
        let (send, recv) = (Ring::new(), Ring::new());
        let mut desc = QpDesc {
            counter_set: 0,
            user_index: None,
            in_completion: InCompletion::default(),
            transport,
            pd: self.nodes[node].pd,
            send: Some((send.clone(), cqn)),
            recv: RecvSide::Own(recv.clone()),
            recv_cqn: Some(cqn),
            source_qpn: None,
            block_multicast_loopback: false,
            offloads: false,
            polled: false,
        };
        change(&mut desc);
        let vf = self.nodes[node].vf;
        let qpn = self.home(vf).verbs(vf).create_qp(desc).unwrap();
        Qp {
            node,
            vf,
            qpn,
            send,
            recv,
            cq,
            cqn,
        }
    }

    /// Attributes that bring `qp` to Ready-to-Send with `peer`.
    pub fn attributes(&self, peer: &Qp) -> QpChange {
        QpChange {
            counter_set: None,
            pkey_index: Some(0),
            qkey: Some(QKEY),
            read: Some(true),
            write: Some(true),
            atomic: Some(true),
            mtu: Some(Mtu::B4096),
            path: Some(AddressPath {
                dlid: self.nodes[peer.node].lid,
                sl: Sl::default(),
                src_path_bits: 0,
                global: None,
            }),
            dest_qp: Some(peer.qpn),
            rq_psn: Some(Psn::new(0x123)),
            sq_psn: Some(Psn::new(0x123)),
            min_rnr_timer: Some(12),
            timeout: Some(TIMEOUT),
            retry_count: Some(3),
            rnr_retry: Some(7),
            alternate: None,
            migration: None,
            drain_sigerr: None,
        }
    }

    pub fn modify(&mut self, qp: &Qp, next: QpState, change: &QpChange) {
        let engine = self.home(qp.vf);
        engine.verbs(qp.vf).modify_qp(qp.qpn, next, change).unwrap();
    }

    /// Through Init and Ready-to-Receive to Ready-to-Send.
    pub fn bring_up(&mut self, qp: &Qp, change: &QpChange) {
        for next in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
            self.modify(qp, next, change);
        }
    }

    pub fn connect_with(&mut self, a: &Qp, b: &Qp, adjust: impl Fn(&mut QpChange)) {
        for (qp, peer) in [(a, b), (b, a)] {
            let mut change = self.attributes(peer);
            adjust(&mut change);
            self.bring_up(qp, &change);
        }
    }

    /// Connected queue pairs of functions 0 and 1.
    pub fn pair(&mut self, transport: Transport) -> (Qp, Qp) {
        self.pair_with(transport, |_| {})
    }

    pub fn pair_with(&mut self, transport: Transport, adjust: impl Fn(&mut QpChange)) -> (Qp, Qp) {
        let (a, b) = (self.qp(0, transport), self.qp(1, transport));
        self.connect_with(&a, &b, adjust);
        (a, b)
    }

    pub fn state(&self, qp: &Qp) -> QpState {
        let engine = self.look_home(qp.vf);
        engine.query_qp(qp.vf, qp.qpn).unwrap().state
    }

    /// Posts and rings; nothing is executed yet.
    pub fn post(&mut self, qp: &Qp, wr: SendWr) {
        qp.send.push(Ok(wr));
        self.home(qp.vf).ring_send(qp.vf, qp.qpn, 0);
    }

    /// Posts and lets the engine work until it has no more to do.
    pub fn execute(&mut self, qp: &Qp, wr: SendWr) {
        self.post(qp, wr);
        self.settle();
    }

    pub fn settle(&mut self) {
        let mut turns = 0;
        while self.run() {
            turns += 1;
            assert!(turns < 1_000_000, "the engine does not come to rest");
        }
    }

    /// Turns the clock.
    pub fn clock_forward(&self, nanoseconds: u64) {
        self.clock.0.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Turns the clock, and lets the engine work whenever it has to.
    pub fn advance(&mut self, nanoseconds: u64) {
        let mut now = self.clock.now();
        let end = now + nanoseconds;
        while now < end {
            let due = self.next_deadline().unwrap_or(end);
            now = due.clamp(now + 1, end);
            self.clock.turn_to(now);
            self.settle();
        }
        self.settle();
    }

    /// Scatter or gather entry in the memory of `node`, `offset` bytes in.
    pub fn sge(&self, node: usize, offset: u64, len: u32) -> Sge {
        Sge {
            addr: base(node) + offset,
            lkey: self.nodes[node].key,
            len,
        }
    }

    /// Posts a receive request.
    pub fn receive(&self, qp: &Qp, index: u16, sges: &[Sge]) {
        qp.recv.push(Ok(RecvWr {
            index,
            sges: sges.to_vec(),
            ..RecvWr::default()
        }));
    }

    pub fn memory(&self, node: usize) -> &Memory {
        &self.nodes[node].memory
    }

    pub fn events(&self, node: usize) -> Vec<Event> {
        self.nodes[node].events.take()
    }
}
