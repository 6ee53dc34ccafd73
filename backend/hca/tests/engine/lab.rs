//! A laboratory: an engine with a few functions, queues that are plain lists,
//! a subnet whose paths can be cut, and a clock that stands still.

// By its path: this file is also a module of another program of tests.
#[path = "lab/engines.rs"]
mod engines;
#[path = "lab/net.rs"]
pub mod net;

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use hca::mr::{Access, Klm, MemoryKey, Translation};
use hca::transport::{Delayed, Homes, Loopback, Lossy, MyDoor, Shared, Single};
use hca::work::{
    AddressVector, CompletionEntry, Operation, RecvKind, RecvWr, SendWr, Sge, Side, Status,
    WqeError,
};
use hca::{
    AddressPath, Attention, Clock, CqError, Dma, Engine, Event, Face, PortView, QpChange, QpDesc,
    QpState, Quota, Readable, RecvSide, Subnet, Transport, VfId,
};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};
use wire::{Gid, Lid, Mtu, PKey, Psn, QKey, Qpn, Sl};

use net::{Line, Loss, Net};

/// Bytes of ordinary memory that a function has, from [`base`] on.
pub const MEMORY: usize = 8 << 20;
/// Where memory lies that is all one page, a large range of it.
pub const ALIAS: u64 = 1 << 40;
/// Bytes that the aliased range repeats.
pub const ALIAS_PERIOD: u64 = 1 << 20;
/// Length of that range.
const ALIAS_LEN: u64 = 4 << 30;

/// DMA address of the first byte of a function's memory.
pub const fn base(node: usize) -> u64 {
    0x1000_0000 * (node as u64 + 1)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Guest memory: one region, and one aliased many times; parts can be unmapped.
#[derive(Debug, Clone)]
pub struct Memory {
    base: u64,
    region: Arc<MmapRegion>,
    alias: Arc<MmapRegion>,
    holes: Arc<RwLock<Vec<(u64, u64)>>>,
    /// Longest window given out, to see that copies cope with short ones.
    pub longest: usize,
    /// Windows given out so far, and bytes in them.
    given: Arc<[AtomicU64; 2]>,
}

impl Memory {
    fn new(node: usize) -> Self {
        Self {
            base: base(node),
            region: Arc::new(MmapRegion::new(MEMORY).unwrap()),
            alias: Arc::new(MmapRegion::new(ALIAS_PERIOD as usize).unwrap()),
            holes: Arc::default(),
            longest: usize::MAX,
            given: Arc::default(),
        }
    }

    fn window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let window = self.find(addr, len)?;
        for (count, more) in self.given.iter().zip([1, window.len() as u64]) {
            count.fetch_add(more, Ordering::Relaxed);
        }
        Some(window)
    }

    /// Windows given out so far, and bytes in them.
    pub fn given(&self) -> [u64; 2] {
        [0, 1].map(|at| self.given[at].load(Ordering::Relaxed))
    }

    fn find(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let mut len = len.min(self.longest);
        for &(start, end) in self.holes.read().unwrap().iter() {
            if (start..end).contains(&addr) {
                return None;
            }
            if addr < start {
                len = len.min((start - addr) as usize);
            }
        }
        if (ALIAS..ALIAS + ALIAS_LEN).contains(&addr) {
            let at = (addr - ALIAS) % ALIAS_PERIOD;
            let len = len.min((ALIAS_PERIOD - at) as usize);
            return self.alias.get_slice(at as usize, len).ok();
        }
        let at = addr.checked_sub(self.base)? as usize;
        let len = len.min(MEMORY.checked_sub(at)?);
        (len > 0).then(|| self.region.get_slice(at, len).ok())?
    }

    /// Takes memory away.
    pub fn unmap(&self, addr: u64, len: u64) {
        self.holes.write().unwrap().push((addr, addr + len));
    }

    pub fn write(&self, addr: u64, bytes: &[u8]) {
        hca::dma::write(self, addr, bytes).unwrap();
    }

    pub fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        hca::dma::read(self, addr, &mut bytes).unwrap();
        bytes
    }

    /// All ordinary memory.
    pub fn snapshot(&self) -> Vec<u8> {
        self.read(self.base, MEMORY)
    }
}

impl Readable for Memory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.window(addr, len)
    }
}

impl Dma for Memory {
    fn share(&self) -> Option<Arc<dyn Readable>> {
        Some(Arc::new(self.clone()))
    }

    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.window(addr, len)
    }

    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.window(addr, len)
    }
}

thread_local! {
    /// Queues by the numbers that images have of them, as real ones are by their addresses.
    static QUEUES: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Gives a queue a number.
fn register<T: Clone + 'static>(make: impl FnOnce(u64) -> T) -> T {
    QUEUES.with_borrow_mut(|queues| {
        let queue = make(queues.len() as u64);
        queues.push(Box::new(queue.clone()));
        queue
    })
}

/// The queue with this number.
fn registered<T: Clone + 'static>(number: u64) -> Result<T, String> {
    QUEUES.with_borrow(|queues| {
        let queue = queues.get(number as usize);
        let queue = queue.and_then(|queue| queue.downcast_ref());
        queue.cloned().ok_or_else(|| format!("no queue {number}"))
    })
}

/// A work queue: what is posted, or an error in its place.
#[derive(Debug)]
pub struct Ring<T>(Arc<Mutex<VecDeque<Result<T, WqeError>>>>, u64);

impl<T> Clone for Ring<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), self.1)
    }
}

impl<T: Send + 'static> Ring<T> {
    fn new() -> Self {
        register(|number| Self(Arc::default(), number))
    }

    pub fn push(&self, entry: Result<T, WqeError>) {
        locked(&self.0).push_back(entry);
    }

    pub fn len(&self) -> usize {
        locked(&self.0).len()
    }

    fn take(&self) -> Option<Result<T, WqeError>> {
        let mut ring = locked(&self.0);
        // A queue that cannot be read stays that way.
        if matches!(ring.front(), Some(Err(WqeError::Unmapped))) {
            return Some(Err(WqeError::Unmapped));
        }
        ring.pop_front()
    }
}

/// A completion queue.
#[derive(Debug, Clone)]
pub struct Cq {
    entries: Arc<Mutex<Vec<CompletionEntry>>>,
    capacity: usize,
    unmapped: Arc<AtomicBool>,
    number: u64,
}

impl Cq {
    fn new(capacity: usize) -> Self {
        register(|number| Self {
            entries: Arc::new(Mutex::new(Vec::with_capacity(capacity))),
            capacity,
            unmapped: Arc::default(),
            number,
        })
    }

    pub fn poll(&self) -> Vec<CompletionEntry> {
        locked(&self.entries).drain(..).collect()
    }

    pub fn unmap(&self) {
        self.unmapped.store(true, Ordering::Relaxed);
    }
}

/// Events of a function.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Mutex<Vec<Event>>>);

impl Events {
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *locked(&self.0))
    }
}

/// The queue formats of the laboratory.
#[derive(Debug)]
pub struct Plain;

impl Face for Plain {
    type Dma = Memory;
    type Vf = Events;
    type Send = Ring<SendWr>;
    type Recv = Ring<RecvWr>;
    type Shared = Ring<RecvWr>;
    type Completion = Cq;
    type SendImage = u64;
    type RecvImage = u64;
    type SharedImage = u64;
    type CompletionImage = u64;

    fn save_send(queue: &Ring<SendWr>) -> u64 {
        queue.1
    }

    fn save_recv(queue: &Ring<RecvWr>) -> u64 {
        queue.1
    }

    fn save_shared(queue: &Ring<RecvWr>) -> u64 {
        queue.1
    }

    fn save_completion(queue: &Cq) -> u64 {
        queue.number
    }

    fn restore_send(_: &Events, _: &Memory, image: u64) -> Result<Ring<SendWr>, String> {
        registered(image)
    }

    fn restore_recv(_: &Events, _: &Memory, image: u64) -> Result<Ring<RecvWr>, String> {
        registered(image)
    }

    fn restore_shared(_: &Events, _: &Memory, image: u64) -> Result<Ring<RecvWr>, String> {
        registered(image)
    }

    fn restore_completion(_: &Events, _: &Memory, _: u32, image: u64) -> Result<Cq, String> {
        registered(image)
    }

    fn send_posted(_: &Memory, queue: &Ring<SendWr>) -> bool {
        queue.len() > 0
    }

    fn ring_send(_: &mut Ring<SendWr>, _through: u16) {}

    fn recv_posted(_: &Memory, queue: &Ring<RecvWr>) -> bool {
        queue.len() > 0
    }

    fn take_send(_: &Memory, queue: &mut Ring<SendWr>, wr: &mut SendWr) -> Result<bool, WqeError> {
        let Some(posted) = queue.take() else {
            return Ok(false);
        };
        let mut posted = posted?;
        // Into the room that is there, as a real face does.
        let (mut sges, mut inline) = (std::mem::take(&mut wr.sges), std::mem::take(&mut wr.inline));
        sges.extend_from_slice(&posted.sges);
        inline.extend_from_slice(&posted.inline);
        std::mem::swap(&mut posted.sges, &mut sges);
        std::mem::swap(&mut posted.inline, &mut inline);
        *wr = posted;
        Ok(true)
    }

    fn take_recv(_: &Memory, queue: &mut Ring<RecvWr>, wr: &mut RecvWr) -> Result<bool, WqeError> {
        let Some(posted) = queue.take() else {
            return Ok(false);
        };
        let posted = posted?;
        wr.index = posted.index;
        wr.sges.extend_from_slice(&posted.sges);
        Ok(true)
    }

    fn take_shared(
        dma: &Memory,
        queue: &mut Ring<RecvWr>,
        wr: &mut RecvWr,
    ) -> Result<bool, WqeError> {
        Self::take_recv(dma, queue, wr)
    }

    fn shared_available(_: &Memory, queue: &Ring<RecvWr>) -> u32 {
        queue.len() as u32
    }

    fn reset_queues(send: Option<&mut Ring<SendWr>>, recv: Option<&mut Ring<RecvWr>>) {
        if let Some(send) = send {
            locked(&send.0).clear();
        }
        if let Some(recv) = recv {
            locked(&recv.0).clear();
        }
    }

    fn complete(
        _: &Memory,
        _: &mut Events,
        queue: &mut Cq,
        entry: &CompletionEntry,
    ) -> Result<Attention, CqError> {
        if queue.unmapped.load(Ordering::Relaxed) {
            return Err(CqError::Unmapped);
        }
        let mut entries = locked(&queue.entries);
        if entries.len() >= queue.capacity {
            return Err(CqError::Overrun);
        }
        entries.push(*entry);
        Ok(Attention::default())
    }

    fn recheck(_: &Memory, _: &mut Events, _: &mut Cq) -> Attention {
        Attention::default()
    }

    fn expire(_: &Memory, _: &mut Events, _: &mut Cq) {}

    fn event(_: &Memory, vf: &mut Events, event: Event) {
        locked(&vf.0).push(event);
    }

    fn decode_pages(bytes: &[u8], pages: &mut Vec<u64>) {
        pages.extend(
            bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|entry| u64::from_be_bytes(*entry)),
        );
    }

    fn decode_klms(bytes: &[u8], klms: &mut Vec<Klm>) {
        klms.extend(bytes.as_chunks::<16>().0.iter().map(|entry| Klm {
            len: u32::from_be_bytes(entry[0..4].try_into().unwrap()),
            key: u32::from_be_bytes(entry[4..8].try_into().unwrap()),
            addr: u64::from_be_bytes(entry[8..16].try_into().unwrap()),
        }));
    }
}

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

/// How messages get from one function to another.
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
            lab.engine.set_port(vf, port);
            let pd = lab.engine.alloc_pd(vf).unwrap();
            let index = lab.engine.create_key(vf, physical(pd)).unwrap();
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
                Loss::Percent(percent, state.max(1))
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
                Loss::Percent(percent, state.max(1))
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
        (self.home(vf).create_cq(vf, |_| ring).unwrap(), cq)
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
            transport,
            pd: self.nodes[node].pd,
            send: Some((send.clone(), cqn)),
            recv: RecvSide::Own(recv.clone()),
            recv_cqn: Some(cqn),
            source_qpn: None,
            block_multicast_loopback: false,
            polled: false,
        };
        change(&mut desc);
        let vf = self.nodes[node].vf;
        let qpn = self.home(vf).create_qp(vf, desc).unwrap();
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
        }
    }

    pub fn modify(&mut self, qp: &Qp, next: QpState, change: &QpChange) {
        let engine = self.home(qp.vf);
        engine.modify_qp(qp.vf, qp.qpn, next, change).unwrap();
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
        }));
    }

    pub fn memory(&self, node: usize) -> &Memory {
        &self.nodes[node].memory
    }

    pub fn events(&self, node: usize) -> Vec<Event> {
        self.nodes[node].events.take()
    }
}

/// Variant byte of the keys here.
pub const VARIANT: u8 = 0x5a;
/// Q_Key of the queue pairs here.
pub const QKEY: QKey = QKey::new(0x1111_1111);

/// All rights.
pub fn everything() -> Access {
    Access::LOCAL_READ
        | Access::LOCAL_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::ATOMIC
}

/// A key to all memory.
pub fn physical(pd: u32) -> MemoryKey {
    MemoryKey {
        variant: VARIANT,
        free: false,
        pd,
        start: 0,
        len: u64::MAX,
        access: everything(),
        remote_invalidate: false,
        updatable: false,
        qpn: None,
        translation: Translation::Physical,
        capacity: 0,
    }
}

/// A signaled request of this operation, with list and index.
pub fn request(operation: Operation, index: u16, sges: &[Sge]) -> SendWr {
    SendWr {
        operation,
        opcode: 0x40 + operation as u8,
        index,
        signaled: true,
        sges: sges.to_vec(),
        ..SendWr::default()
    }
}

/// The same with a remote address.
pub fn remote(operation: Operation, index: u16, sges: &[Sge], addr: u64, rkey: u32) -> SendWr {
    SendWr {
        remote_addr: addr,
        rkey,
        ..request(operation, index, sges)
    }
}

/// A datagram to a queue pair.
pub fn datagram(lab: &Lab, to: &Qp, index: u16, sges: &[Sge]) -> SendWr {
    SendWr {
        address: Some(AddressVector {
            dlid: lab.nodes[to.node].lid,
            sl: Sl::default(),
            src_path_bits: 0,
            dest_qp: to.qpn,
            qkey: QKEY,
            global: None,
        }),
        ..request(Operation::Send, index, sges)
    }
}

/// Index and status of send completions, in order.
pub fn sent(entries: &[CompletionEntry]) -> Vec<(u16, Status)> {
    entries
        .iter()
        .filter(|entry| matches!(entry.side, Side::Send { .. }))
        .map(|entry| (entry.index, entry.status))
        .collect()
}

/// Index, status, length, kind and immediate data of receive completions.
pub fn received(entries: &[CompletionEntry]) -> Vec<(u16, Status, u32, RecvKind, u32)> {
    entries
        .iter()
        .filter_map(|entry| match entry.side {
            Side::Recv {
                kind, immediate, ..
            } => Some((entry.index, entry.status, entry.byte_len, kind, immediate)),
            Side::Send { .. } => None,
        })
        .collect()
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}
