//! A guest whose driver is only as long as the tests need.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use hca::{Clock, End, Engine, Heading, NoRoute, PortView, Quota, Route, Subnet, VfId};
use wire::{Gid, Guid, Lid, LinkWidth, MadPacket, Mtu, PKey, PhysicalState, PortState, Sl};

use crate::bits::command::{BLOCK_DATA, Opcode, Status, create_eq_in};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::event::eqc;
use crate::bits::memory_key::{create_mkey_in, mkc};
use crate::bits::queue_pair::{NO_USER_INDEX, ads, create_qp_in, qpc};
use crate::command::NUMBER;
use crate::testing::{Memory, Raised};
use crate::{
    Configuration, Effect, Function, FunctionState, Host, Mlx5, Parts, Port, PortAttributes,
    Region, Software, Turn,
};

pub const MEMORY: usize = 8 << 20;
pub const QUEUE: u64 = 0x1000;
pub const MAILBOXES: u64 = 0x10_0000;
pub const REPLIES: u64 = 0x20_0000;
pub const FREE: u64 = 0x40_0000;

pub const INTERRUPTS: u64 = 1;

#[derive(Debug, Default)]
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
}

/// Every LID leads back to the one function.
#[derive(Debug)]
pub struct Loopback(Arc<AtomicU64>);

impl Subnet for Loopback {
    fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }
    fn resolve(&mut self, from: VfId, _heading: &Heading) -> Result<Route, NoRoute> {
        Ok(Route::clean(End::Here(from), Mtu::B4096))
    }
    fn resolve_multicast(&mut self, _from: VfId, _mlid: Lid, _sl: Sl, _pkey: PKey) -> Vec<Route> {
        Vec::new()
    }
    fn send_mad(&mut self, _from: VfId, _datagram: MadPacket) {}
}

#[derive(Debug, Default)]
pub struct TestPort {
    pub description: Option<[u8; 64]>,
    pub capability_bits: Arc<AtomicU32>,
}

impl Port for TestPort {
    fn attributes(&self) -> PortAttributes {
        PortAttributes {
            lid: Lid::new(5),
            lmc: 0,
            sm_lid: Lid::new(1),
            sm_sl: Sl::new(0),
            state: PortState::Active,
            physical_state: PhysicalState::LinkUp,
            system_image_guid: Guid::new(1),
            node_guid: Guid::new(2),
            port_guid: Guid::new(3),
            capability_mask: self.capability_bits.load(Ordering::Relaxed),
            capability_mask_writable: 0x0001_0002,
            subnet_timeout: 18,
            init_type_reply: 0,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B4096,
            active_width: LinkWidth::X4,
            active_speed: 32,
            vl_cap: 4,
            operational_vls: 4,
            qkey_violations: 0,
            pkey_violations: 0,
            has_smi: true,
            grh_required: false,
        }
    }
    fn gid(&self, index: u16) -> Gid {
        let guid = if index == 0 { Guid::new(3) } else { Guid::NONE };
        Gid::new(Gid::DEFAULT_PREFIX, guid)
    }
    fn pkey(&self, index: u16) -> PKey {
        if index == 0 {
            PKey::DEFAULT_FULL
        } else {
            PKey::INVALID
        }
    }
    fn node_description(&self) -> [u8; 64] {
        self.description.unwrap_or([b'x'; 64])
    }
    fn set_node_description(&mut self, description: &[u8; 64]) {
        self.description = Some(*description);
    }
    fn set_capability_mask(&mut self, value: u32, select: u32) {
        let bits = self.capability_bits.load(Ordering::Relaxed);
        self.capability_bits
            .store(bits & !select | value & select, Ordering::Relaxed);
    }
    fn reset(&mut self) {
        self.capability_bits.store(0, Ordering::Relaxed);
    }
    fn process_mad(&mut self, mad: &[u8; 256]) -> Option<[u8; 256]> {
        let mut answer = *mad;
        answer[3] |= 0x80;
        (mad[3] == 1).then_some(answer)
    }
}

/// An engine of one thread.
#[derive(Debug)]
pub struct Alone {
    engine: Arc<Mutex<Engine<Mlx5<Memory>>>>,
    vf: VfId,
    memory: Memory,
}

impl Host for Alone {
    type Dma = Memory;
    type Mapping = ();
    type Error = ();

    fn dma(&self) -> &Memory {
        &self.memory
    }
    fn map(&mut self, (): ()) -> Result<(), ()> {
        Err(())
    }
    fn unmap(&mut self, _addr: u64, _size: u64) -> Result<(), ()> {
        Err(())
    }
    fn unmap_all(&mut self) {}
    fn with<R, A>(&self, _turn: Turn, act: A) -> R
    where
        A: FnOnce(&mut Engine<Mlx5<Memory>>) -> R,
    {
        act(&mut self.engine.lock().unwrap())
    }
    fn clear_away(&self) {
        while self.engine.lock().unwrap().clear_away(self.vf) {}
    }
    fn release_memory(&self) {}
}

/// A guest with its driver, and all there is below.
pub struct Guest {
    pub memory: Memory,
    pub function: Function<Software<Alone>>,
    engine: Arc<Mutex<Engine<Mlx5<Memory>>>>,
    pub vf: VfId,
    /// Capability bits that the driver has set at the port.
    pub capability_bits: Arc<AtomicU32>,
    pub raised: Raised,
    pub free: u64,
    clock: Arc<TestClock>,
    /// After each access the function is saved, and restored in another engine.
    pub moves: bool,
}

/// The device below a guest.
struct Device {
    function: Function<Software<Alone>>,
    engine: Arc<Mutex<Engine<Mlx5<Memory>>>>,
    vf: VfId,
    capability_bits: Arc<AtomicU32>,
}

impl Device {
    fn new(
        configuration: Configuration,
        memory: &Memory,
        raised: &Raised,
        clock: &Arc<TestClock>,
        seed: u64,
    ) -> Self {
        let subnet = Box::new(Loopback(Arc::default()));
        let mut engine = Engine::new(subnet, clock.clone(), seed);
        let quota = Quota::default();
        let state = FunctionState::new(configuration, quota, Box::new(raised.clone()));
        let vf = engine.add_vf(memory.clone(), state, quota);
        engine.vf_mut(vf).set_port(PortView {
            lid: Lid::new(5),
            active: true,
            pkeys: vec![PKey::DEFAULT_FULL],
            gids: vec![Gid::new(Gid::DEFAULT_PREFIX, Guid::new(3))],
            ..PortView::default()
        });
        let engine = Arc::new(Mutex::new(engine));
        let port = TestPort::default();
        let capability_bits = Arc::clone(&port.capability_bits);
        let host = Alone {
            engine: Arc::clone(&engine),
            vf,
            memory: memory.clone(),
        };
        let function = Function::new(Software::new(Parts {
            host,
            vf,
            configuration,
            doorbell_pages: None,
            clock: clock.clone(),
            port: Box::new(port),
        }));
        Self {
            function,
            engine,
            vf,
            capability_bits,
        }
    }
}

/// Outcome of a command: what the queue entry says, and the reply.
#[derive(Debug)]
pub struct Answer {
    pub delivery: u8,
    pub reply: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> Option<Status> {
        assert_eq!(self.delivery, 0);
        Status::from_code(self.reply[0])
    }

    #[track_caller]
    pub fn number(&self) -> u32 {
        assert_eq!(self.status(), Some(Status::Ok));
        NUMBER.get(&self.reply)
    }
}

impl Guest {
    pub fn new() -> Self {
        Self::with(Configuration::default())
    }

    pub fn with(configuration: Configuration) -> Self {
        let memory = Memory::new(MEMORY);
        let raised = Raised::default();
        let clock = Arc::new(TestClock::default());
        let device = Device::new(configuration, &memory, &raised, &clock, 7);
        let mut guest = Self {
            memory,
            vf: device.vf,
            function: device.function,
            engine: device.engine,
            capability_bits: device.capability_bits,
            raised,
            free: FREE,
            clock,
            moves: false,
        };
        guest.write32(0x10, 0);
        guest.write32(0x14, QUEUE as u32);
        guest
    }

    /// As [`Guest::new`], brought up to where objects may be created.
    pub fn initialized() -> Self {
        let mut guest = Self::new();
        guest.initialize();
        guest
    }

    /// Time of the clock, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.clock.0.load(Ordering::Relaxed)
    }

    pub fn initialize(&mut self) {
        for opcode in [Opcode::EnableHca, Opcode::InitHca] {
            assert_eq!(self.plain(opcode, &[]).status(), Some(Status::Ok));
        }
    }

    pub fn engine(&self) -> MutexGuard<'_, Engine<Mlx5<Memory>>> {
        self.engine.lock().unwrap()
    }

    pub fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Effect {
        let effect = self.function.write(region, offset, data);
        if self.moves {
            self.move_on();
        }
        while self.engine().run() {}
        effect
    }

    /// The function is saved as text, and restored as another one of another engine.
    pub fn move_on(&mut self) {
        let image = serde_json::to_string(&self.function.save()).unwrap();
        self.move_to(&image);
    }

    /// The function becomes another one of another engine, restored from this text.
    pub fn move_to(&mut self, image: &str) {
        let configuration = *self.function.configuration();
        let seed = self.now();
        let device = Device::new(configuration, &self.memory, &self.raised, &self.clock, seed);
        (self.function, self.engine) = (device.function, device.engine);
        (self.vf, self.capability_bits) = (device.vf, device.capability_bits);
        let restored = self.function.restore(serde_json::from_str(image).unwrap());
        restored.unwrap_or_else(|error| panic!("{error}: {image}"));
    }

    /// A reset from outside the guest.
    pub fn reset(&mut self) {
        self.function.reset();
    }

    pub fn write32(&mut self, offset: u64, value: u32) {
        let _ = self.write(Region::Bar0, offset, &value.to_be_bytes());
    }

    pub fn read32(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.function.read(Region::Bar0, offset, &mut data);
        u32::from_be_bytes(data)
    }

    pub fn allocate(&mut self, len: u64) -> u64 {
        let at = self.free;
        self.free += len.next_multiple_of(4096);
        assert!(self.free as usize <= MEMORY);
        at
    }

    /// Lays a chain of mailboxes for `len` bytes at `at`.
    pub fn chain(&self, mut at: u64, len: usize, token: u8) {
        for number in 0..len.div_ceil(BLOCK_DATA) {
            self.memory.write(at + 0x230, &(at + 1024).to_be_bytes());
            self.memory.write32(at + 0x238, number as u32);
            self.memory.write(at + 0x23d, &[token]);
            at += 1024;
        }
    }

    /// Puts a command into the queue without ringing.
    pub fn post(&self, request: &[u8], reply_len: usize) {
        const TOKEN: u8 = 0x5a;
        let (first, rest) = request.split_at(request.len().min(16));
        self.chain(MAILBOXES, rest.len(), TOKEN);
        for (at, chunk) in rest.chunks(BLOCK_DATA).enumerate() {
            self.memory.write(MAILBOXES + at as u64 * 1024, chunk);
        }
        self.chain(REPLIES, reply_len.saturating_sub(16), TOKEN);
        self.memory.write(QUEUE, &[0; 64]);
        self.memory.write(QUEUE, &[7]);
        self.memory.write32(QUEUE + 0x04, request.len() as u32);
        self.memory.write(QUEUE + 0x08, &MAILBOXES.to_be_bytes());
        self.memory.write(QUEUE + 0x10, first);
        self.memory.write(QUEUE + 0x30, &REPLIES.to_be_bytes());
        self.memory.write32(QUEUE + 0x38, reply_len as u32);
        self.memory.write(QUEUE + 0x3c, &[TOKEN, 0, 0, 1]);
    }

    pub fn ring(&mut self) -> u8 {
        self.write32(0x18, 1);
        let [own] = self.memory.read::<1>(QUEUE + 0x3f);
        assert_eq!(own & 1, 0, "the device keeps the command");
        own >> 1
    }

    pub fn command(&mut self, request: &[u8], reply_len: usize) -> Answer {
        self.post(request, reply_len);
        let delivery = self.ring();
        let mut reply = self.memory.read::<16>(QUEUE + 0x20).to_vec();
        let mut at = REPLIES;
        while reply.len() < reply_len {
            let left = (reply_len - reply.len()).min(BLOCK_DATA);
            reply.extend_from_slice(&self.memory.read::<BLOCK_DATA>(at)[..left]);
            at += 1024;
        }
        Answer { delivery, reply }
    }

    /// A command whose request is a few dwords.
    pub fn plain(&mut self, opcode: Opcode, dwords: &[u32]) -> Answer {
        let mut request = vec![0; 16];
        create_eq_in::OPCODE.set(&mut request, u32::from(opcode.code()));
        for (at, dword) in dwords.iter().enumerate() {
            request[4 + at * 4..8 + at * 4].copy_from_slice(&dword.to_be_bytes());
        }
        self.command(&request, 0x200)
    }

    /// A request with a page list behind its fixed part.
    pub fn request(opcode: Opcode, pages: &[u64]) -> Vec<u8> {
        let mut request = vec![0; 0x110];
        create_eq_in::OPCODE.set(&mut request, u32::from(opcode.code()));
        request.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
        request
    }

    pub fn create_eq(&mut self, vector: u32, mask: u64, uar: u32) -> (u32, u64) {
        let ring = self.allocate(4096);
        for at in 0..64 {
            self.memory.write(ring + at * 64 + 63, &[1]);
        }
        let mut request = Self::request(Opcode::CreateEq, &[ring]);
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get_mut(&mut request);
        eqc::LOG_EQ_SIZE.set(context, 6);
        eqc::UAR_PAGE.set(context, uar);
        eqc::INTR.set(context, vector);
        request[0x58..0x60].copy_from_slice(&mask.to_be_bytes());
        (self.command(&request, 16).number() & 0xff, ring)
    }

    pub fn arm_eq(&mut self, uar: u32, eqn: u32, consumer: u32) {
        self.write32(u64::from(uar) * 4096 + 0x40, eqn << 24 | consumer);
    }

    /// A completion queue of 64 entries: its number, ring and record.
    pub fn create_cq(&mut self, eqn: u32, uar: u32) -> (u32, u64, u64) {
        self.create_cq_with(eqn, uar, |context| cqc::LOG_CQ_SIZE.set(context, 6))
    }

    /// One whose context has something of its own, of a page.
    pub fn create_cq_with(
        &mut self,
        eqn: u32,
        uar: u32,
        more: impl FnOnce(&mut [u8]),
    ) -> (u32, u64, u64) {
        let (ring, record) = (self.allocate(4096), self.allocate(64));
        self.memory.write(ring, &[0xf1; 4096]);
        let mut request = Self::request(Opcode::CreateCq, &[ring]);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut request);
        more(context);
        cqc::UAR_PAGE.set(context, uar);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
        cqc::DBR_ADDR.set(context, record);
        (self.command(&request, 16).number(), ring, record)
    }

    pub fn create_physical_key(&mut self, pd: u32) -> u32 {
        let mut request = Self::request(Opcode::CreateMkey, &[]);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut request);
        for field in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::A, mkc::LENGTH64] {
            field.set(context, 1);
        }
        mkc::QPN.set(context, 0xff_ffff);
        mkc::MKEY_7_0.set(context, 0x42);
        mkc::PD.set(context, pd);
        self.command(&request, 16).number() << 8 | 0x42
    }

    pub fn create_rc(&mut self, pd: u32, cqn: u32, uar: u32) -> Qp {
        self.create_rc_with(pd, cqn, uar, |context| {
            qpc::USER_INDEX.set(context, NO_USER_INDEX);
        })
    }

    /// A queue pair whose context has something of its own.
    pub fn create_rc_with(
        &mut self,
        pd: u32,
        cqn: u32,
        uar: u32,
        more: impl FnOnce(&mut [u8]),
    ) -> Qp {
        let (ring, record) = (self.allocate(4096), self.allocate(64));
        let mut request = Self::request(Opcode::CreateQp, &[ring]);
        let context = create_qp_in::QPC.get_mut(&mut request);
        qpc::PD.set(context, pd);
        qpc::LOG_RQ_SIZE.set(context, 4);
        qpc::LOG_RQ_STRIDE.set(context, 0);
        qpc::LOG_SQ_SIZE.set(context, 4);
        qpc::UAR_PAGE.set(context, uar);
        qpc::CQN_SND.set(context, cqn);
        qpc::CQN_RCV.set(context, cqn);
        qpc::DBR_ADDR.set(context, record);
        more(context);
        Qp {
            qpn: self.command(&request, 16).number(),
            ring,
            record,
            uar,
            posted: 0,
            received: 0,
        }
    }

    pub fn modify(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        change: impl FnOnce(&mut [u8]),
    ) -> Option<Status> {
        let mut request = Self::request(opcode, &[]);
        NUMBER.set(&mut request, qpn);
        change(create_qp_in::QPC.get_mut(&mut request));
        self.command(&request, 16).status()
    }

    pub fn connect(&mut self, qp: &Qp, peer: &Qp) {
        let ok = Some(Status::Ok);
        assert_eq!(
            self.modify(Opcode::Rst2Init, qp.qpn, |context| {
                for field in [qpc::RRE, qpc::RWE, qpc::RAE] {
                    field.set(context, 1);
                }
            }),
            ok
        );
        assert_eq!(
            self.modify(Opcode::Init2Rtr, qp.qpn, |context| {
                qpc::MTU.set(context, 5);
                qpc::REMOTE_QPN.set(context, peer.qpn);
                qpc::NEXT_RCV_PSN.set(context, 0x111);
                qpc::MIN_RNR_NAK.set(context, 12);
                qpc::LOG_RRA_MAX.set(context, 4);
                let path = qpc::PRIMARY_ADDRESS_PATH.get_mut(context);
                ads::RLID.set(path, 5);
                ads::SL.set(path, 3);
                ads::VHCA_PORT_NUM.set(path, 1);
            }),
            ok
        );
        assert_eq!(
            self.modify(Opcode::Rtr2Rts, qp.qpn, |context| {
                qpc::NEXT_SEND_PSN.set(context, 0x111);
                qpc::RETRY_COUNT.set(context, 7);
                qpc::RNR_RETRY.set(context, 6);
                ads::ACK_TIMEOUT.set(qpc::PRIMARY_ADDRESS_PATH.get_mut(context), 14);
            }),
            ok
        );
    }

    /// Posts one request of one block and rings.
    pub fn post_send(&mut self, qp: &mut Qp, opcode: u8, immediate: u32, segments: &[u8]) {
        let word = self.enqueue(qp, opcode, immediate, segments);
        let _ = self.write(Region::Bar0, u64::from(qp.uar) * 4096 + 0x800, &word);
    }

    /// Posts one request of one block; what to ring with.
    pub fn enqueue(&mut self, qp: &mut Qp, opcode: u8, immediate: u32, segments: &[u8]) -> Vec<u8> {
        let at = qp.ring + 16 * 16 + u64::from(qp.posted % 16) * 64;
        let units = 1 + segments.len() as u32 / 16;
        let blocks = units.div_ceil(4) as u16;
        let head = [
            u32::from(qp.posted) << 8 | u32::from(opcode),
            qp.qpn << 8 | units,
            2 << 2,
            immediate,
        ];
        for (index, dword) in head.into_iter().enumerate() {
            self.memory.write32(at + index as u64 * 4, dword);
        }
        self.memory.write(at + 16, segments);
        qp.posted += blocks;
        self.memory.write32(qp.record + 4, u32::from(qp.posted));
        [head[0].to_be_bytes(), head[1].to_be_bytes()].concat()
    }

    pub fn post_receive(&mut self, qp: &mut Qp, segment: &[u8; 16]) {
        self.memory
            .write(qp.ring + u64::from(qp.received % 16) * 16, segment);
        qp.received += 1;
        self.memory.write32(qp.record, u32::from(qp.received));
    }
}

pub struct Qp {
    pub qpn: u32,
    pub ring: u64,
    pub record: u64,
    pub uar: u32,
    pub posted: u16,
    pub received: u16,
}

pub fn data(len: u32, key: u32, addr: u64) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&len.to_be_bytes());
    segment[4..8].copy_from_slice(&key.to_be_bytes());
    segment[8..].copy_from_slice(&addr.to_be_bytes());
    segment
}

pub fn remote(addr: u64, key: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..8].copy_from_slice(&addr.to_be_bytes());
    segment[8..12].copy_from_slice(&key.to_be_bytes());
    segment
}

/// Two connected queue pairs of one function with everything they need.
pub struct Pair {
    pub guest: Guest,
    pub a: Qp,
    pub b: Qp,
    pub pd: u32,
    pub key: u32,
    pub uar: u32,
    pub cq: (u32, u64, u64),
    pub eq: (u32, u64),
}

impl Pair {
    pub fn new() -> Self {
        Self::of(Guest::initialized())
    }

    pub fn of(mut guest: Guest) -> Self {
        let uar = guest.plain(Opcode::AllocUar, &[]).number();
        let pd = guest.plain(Opcode::AllocPd, &[]).number();
        let eq = guest.create_eq(1, 0, uar);
        guest.arm_eq(uar, eq.0, 0);
        let cq = guest.create_cq(eq.0, uar);
        let key = guest.create_physical_key(pd);
        let a = guest.create_rc(pd, cq.0, uar);
        let b = guest.create_rc(pd, cq.0, uar);
        guest.connect(&a, &b);
        guest.connect(&b, &a);
        Self {
            guest,
            a,
            b,
            pd,
            key,
            uar,
            cq,
            eq,
        }
    }

    pub fn cqe(&self, index: u64) -> [u8; 64] {
        self.guest.memory.read(self.cq.1 + index * 64)
    }
}
