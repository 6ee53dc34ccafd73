//! The whole function under a driver that is only as long as its tests need.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca::{Clock, Engine, MadDatagram, NoRoute, PortView, Route, Subnet, VfId};
use proptest::prelude::*;
use wire::{Gid, Guid, Lid, LinkWidth, Mtu, PKey, PhysicalState, PortState, Sl};

use crate::bits::command::{BLOCK_DATA, Opcode, Status, create_eq_in};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::event::eqc;
use crate::bits::memory_key::{create_mkey_in, mkc};
use crate::bits::queue_pair::{State, ads, create_qp_in, qpc, query_qp_out};
use crate::bits::shared_receive::{create_srq_in, srqc};
use crate::testing::{Memory, Raised};
use crate::{
    Configuration, Effect, Function, FunctionState, MadChecks, Mlx5, Port, PortAttributes, Region,
    Software, TRAPPED_PAGES,
};

const MEMORY: usize = 8 << 20;
const QUEUE: u64 = 0x1000;
const MAILBOXES: u64 = 0x10_0000;
const REPLIES: u64 = 0x20_0000;
const FREE: u64 = 0x40_0000;

const INTERRUPTS: u64 = 1;

#[derive(Debug, Default)]
struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> u64 {
        self.0.fetch_add(1000, Ordering::Relaxed)
    }
}

/// Every LID leads back to the one function.
#[derive(Debug)]
struct Loopback(Arc<AtomicU64>);

impl Subnet for Loopback {
    fn generation(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.0)
    }
    fn resolve(&mut self, from: VfId, _dlid: Lid, _sl: Sl, _pkey: PKey) -> Result<Route, NoRoute> {
        Ok(Route {
            to: from,
            mtu: Mtu::B4096,
        })
    }
    fn resolve_multicast(&mut self, _from: VfId, _mlid: Lid, _sl: Sl, _pkey: PKey) -> Vec<Route> {
        Vec::new()
    }
    fn send_mad(&mut self, _from: VfId, _datagram: MadDatagram) {}
}

#[derive(Debug, Default)]
struct TestPort {
    description: Option<[u8; 64]>,
    capability_bits: u32,
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
            capability_mask: self.capability_bits,
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
        }
    }
    fn gid(&self, index: u16) -> Option<Gid> {
        (index == 0).then(|| Gid::new(Gid::DEFAULT_PREFIX, Guid::new(3)))
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
        self.capability_bits = self.capability_bits & !select | value & select;
    }
    fn process_mad(&mut self, mad: &[u8; 256], _checks: MadChecks) -> Option<[u8; 256]> {
        let mut answer = *mad;
        answer[3] |= 0x80;
        (mad[3] == 1).then_some(answer)
    }
}

/// A guest with its driver, and all there is below.
struct Guest {
    memory: Memory,
    function: Function,
    engine: Engine<Mlx5<Memory>>,
    vf: VfId,
    port: TestPort,
    raised: Raised,
    free: u64,
}

/// Outcome of a command: what the queue entry says, and the reply.
#[derive(Debug)]
struct Answer {
    delivery: u8,
    reply: Vec<u8>,
}

impl Answer {
    fn status(&self) -> Option<Status> {
        assert_eq!(self.delivery, 0);
        Status::from_code(self.reply[0])
    }

    #[track_caller]
    fn number(&self) -> u32 {
        assert_eq!(self.status(), Some(Status::Ok));
        super::NUMBER.get(&self.reply)
    }
}

impl Guest {
    fn new() -> Self {
        Self::with(Configuration::default())
    }

    fn with(configuration: Configuration) -> Self {
        let memory = Memory::new(MEMORY);
        let raised = Raised::default();
        let subnet = Box::new(Loopback(Arc::default()));
        let mut engine = Engine::new(subnet, Arc::new(TestClock::default()), 7);
        let state = FunctionState::new(configuration, Box::new(raised.clone()));
        let vf = engine.add_vf(memory.clone(), state, configuration.quota);
        engine.set_port(
            vf,
            PortView {
                lid: Lid::new(5),
                active: true,
                pkeys: vec![PKey::DEFAULT_FULL],
                gids: vec![Gid::new(Gid::DEFAULT_PREFIX, Guid::new(3))],
                ..PortView::default()
            },
        );
        let function = Function::new(configuration);
        let mut guest = Self {
            memory,
            function,
            engine,
            vf,
            port: TestPort::default(),
            raised,
            free: FREE,
        };
        guest.write32(0x10, 0);
        guest.write32(0x14, QUEUE as u32);
        guest
    }

    /// As [`Guest::new`], brought up to where objects may be created.
    fn initialized() -> Self {
        let mut guest = Self::new();
        guest.initialize();
        guest
    }

    fn initialize(&mut self) {
        for opcode in [Opcode::EnableHca, Opcode::InitHca] {
            assert_eq!(self.plain(opcode, &[]).status(), Some(Status::Ok));
        }
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Effect {
        let mut software = Software::new(&mut self.engine, self.vf, &mut self.port);
        let effect = self.function.write(region, offset, data, &mut software);
        while self.engine.run() {}
        effect
    }

    fn write32(&mut self, offset: u64, value: u32) {
        let _ = self.write(Region::Bar0, offset, &value.to_be_bytes());
    }

    fn read32(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.function.read(Region::Bar0, offset, &mut data, 0);
        u32::from_be_bytes(data)
    }

    fn allocate(&mut self, len: u64) -> u64 {
        let at = self.free;
        self.free += len.next_multiple_of(4096);
        assert!(self.free as usize <= MEMORY);
        at
    }

    /// Lays a chain of mailboxes for `len` bytes at `at`.
    fn chain(&self, mut at: u64, len: usize, token: u8) {
        for number in 0..len.div_ceil(BLOCK_DATA) {
            self.memory.write(at + 0x230, &(at + 1024).to_be_bytes());
            self.memory.write32(at + 0x238, number as u32);
            self.memory.write(at + 0x23d, &[token]);
            at += 1024;
        }
    }

    /// Puts a command into the queue without ringing.
    fn post(&self, request: &[u8], reply_len: usize) {
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

    fn ring(&mut self) -> u8 {
        self.write32(0x18, 1);
        let [own] = self.memory.read::<1>(QUEUE + 0x3f);
        assert_eq!(own & 1, 0, "the device keeps the command");
        own >> 1
    }

    fn command(&mut self, request: &[u8], reply_len: usize) -> Answer {
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
    fn plain(&mut self, opcode: Opcode, dwords: &[u32]) -> Answer {
        let mut request = vec![0; 16];
        create_eq_in::OPCODE.set(&mut request, u32::from(opcode.code()));
        for (at, dword) in dwords.iter().enumerate() {
            request[4 + at * 4..8 + at * 4].copy_from_slice(&dword.to_be_bytes());
        }
        self.command(&request, 0x200)
    }

    /// A request with a page list behind its fixed part.
    fn request(opcode: Opcode, pages: &[u64]) -> Vec<u8> {
        let mut request = vec![0; 0x110];
        create_eq_in::OPCODE.set(&mut request, u32::from(opcode.code()));
        request.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
        request
    }

    fn create_eq(&mut self, vector: u32, mask: u64, uar: u32) -> (u32, u64) {
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

    fn arm_eq(&mut self, uar: u32, eqn: u32, consumer: u32) {
        self.write32(u64::from(uar) * 4096 + 0x40, eqn << 24 | consumer);
    }

    /// A completion queue of 64 entries: its number, ring and record.
    fn create_cq(&mut self, eqn: u32, uar: u32) -> (u32, u64, u64) {
        let (ring, record) = (self.allocate(4096), self.allocate(64));
        self.memory.write(ring, &[0xf1; 4096]);
        let mut request = Self::request(Opcode::CreateCq, &[ring]);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut request);
        cqc::LOG_CQ_SIZE.set(context, 6);
        cqc::UAR_PAGE.set(context, uar);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
        cqc::DBR_ADDR.set(context, record);
        (self.command(&request, 16).number(), ring, record)
    }

    fn create_physical_key(&mut self, pd: u32) -> u32 {
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

    fn create_rc(&mut self, pd: u32, cqn: u32, uar: u32) -> Qp {
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
        Qp {
            qpn: self.command(&request, 16).number(),
            ring,
            record,
            uar,
            posted: 0,
            received: 0,
        }
    }

    fn modify(
        &mut self,
        opcode: Opcode,
        qpn: u32,
        change: impl FnOnce(&mut [u8]),
    ) -> Option<Status> {
        let mut request = Self::request(opcode, &[]);
        super::NUMBER.set(&mut request, qpn);
        change(create_qp_in::QPC.get_mut(&mut request));
        self.command(&request, 16).status()
    }

    fn connect(&mut self, qp: &Qp, peer: &Qp) {
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
    fn post_send(&mut self, qp: &mut Qp, opcode: u8, immediate: u32, segments: &[u8]) {
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
        let word = [head[0].to_be_bytes(), head[1].to_be_bytes()].concat();
        let _ = self.write(Region::Bar0, u64::from(qp.uar) * 4096 + 0x800, &word);
    }

    fn post_receive(&mut self, qp: &mut Qp, segment: &[u8; 16]) {
        self.memory
            .write(qp.ring + u64::from(qp.received % 16) * 16, segment);
        qp.received += 1;
        self.memory.write32(qp.record, u32::from(qp.received));
    }
}

struct Qp {
    qpn: u32,
    ring: u64,
    record: u64,
    uar: u32,
    posted: u16,
    received: u16,
}

fn data(len: u32, key: u32, addr: u64) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&len.to_be_bytes());
    segment[4..8].copy_from_slice(&key.to_be_bytes());
    segment[8..].copy_from_slice(&addr.to_be_bytes());
    segment
}

fn remote(addr: u64, key: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..8].copy_from_slice(&addr.to_be_bytes());
    segment[8..12].copy_from_slice(&key.to_be_bytes());
    segment
}

/// Two connected queue pairs of one function with everything they need.
struct Pair {
    guest: Guest,
    a: Qp,
    b: Qp,
    pd: u32,
    key: u32,
    uar: u32,
    cq: (u32, u64, u64),
    eq: (u32, u64),
}

impl Pair {
    fn new() -> Self {
        let mut guest = Guest::initialized();
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

    fn cqe(&self, index: u64) -> [u8; 64] {
        self.guest.memory.read(self.cq.1 + index * 64)
    }
}

#[test]
fn a_driver_gets_from_power_on_to_objects() {
    let mut guest = Guest::new();
    assert_eq!(guest.read32(0x04) >> 16, 5);
    assert_eq!(
        guest.plain(Opcode::AllocPd, &[]).status(),
        Some(Status::BadSystemState)
    );
    assert_eq!(
        guest.plain(Opcode::EnableHca, &[]).status(),
        Some(Status::Ok)
    );
    assert_eq!(
        guest.plain(Opcode::AllocPd, &[]).status(),
        Some(Status::BadSystemState)
    );
    let issi = guest.plain(Opcode::QueryIssi, &[]);
    assert_eq!(crate::bits::dword(&issi.reply, 0x6c), 1);
    assert_eq!(
        crate::bits::dword(&guest.plain(Opcode::QueryPages, &[1]).reply, 0x0c),
        0
    );
    let caps = guest.command(&[1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0x1010);
    assert_eq!(caps.status(), Some(Status::Ok));
    let caps = &caps.reply[0x10..];
    assert!(crate::bits::capability::cmd_hca_cap::XRC.is_set(caps));
    assert_eq!(
        crate::bits::capability::cmd_hca_cap::LOG_MAX_QP.get(caps),
        17
    );
    assert_eq!(guest.plain(Opcode::InitHca, &[]).status(), Some(Status::Ok));
    assert_eq!(
        guest.plain(Opcode::InitHca, &[]).status(),
        Some(Status::BadSystemState)
    );
    let pd = guest.plain(Opcode::AllocPd, &[]).number();
    assert_eq!(
        guest.plain(Opcode::DeallocPd, &[0, pd]).status(),
        Some(Status::Ok)
    );
    assert_eq!(
        guest.plain(Opcode::DeallocPd, &[0, pd]).status(),
        Some(Status::BadResource)
    );
    assert_eq!(
        guest.plain(Opcode::TeardownHca, &[]).status(),
        Some(Status::Ok)
    );
    assert_eq!(
        guest.plain(Opcode::AllocPd, &[]).status(),
        Some(Status::BadSystemState)
    );
    assert_eq!(
        guest.plain(Opcode::DisableHca, &[]).status(),
        Some(Status::Ok)
    );
}

#[test]
fn commands_complete_by_event_once_there_is_a_queue_for_them() {
    let mut guest = Guest::initialized();
    let uar = guest.plain(Opcode::AllocUar, &[]).number();
    let (eqn, ring) = guest.create_eq(0, 1 << 0x0a, uar);
    // Not the command that made the queue: its driver was looking.
    assert_eq!(guest.memory.read::<1>(ring + 63), [1]);
    guest.arm_eq(uar, eqn, 0);
    guest.plain(Opcode::AllocPd, &[]).number();
    let event: [u8; 64] = guest.memory.read(ring);
    assert_eq!((event[1], event[63]), (0x0a, 0));
    assert_eq!(crate::bits::dword(&event, 0x20), 1);
    assert_eq!(guest.raised.count(0), 1);
    assert_eq!(
        guest.plain(Opcode::DestroyEq, &[0, eqn]).status(),
        Some(Status::Ok)
    );
    assert_eq!(guest.memory.read::<1>(ring + 64 + 63), [1]);
}

#[test]
fn a_send_arrives_and_both_sides_complete() {
    let mut pair = Pair::new();
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.guest.memory.write(source, b"over the virtual wire");
    pair.guest
        .post_receive(&mut pair.b, &data(100, pair.key, target));
    // Armed before anything completes.
    let mut arm = vec![0; 4];
    arm.extend(pair.cq.0.to_be_bytes());
    let _ = pair
        .guest
        .write(Region::Bar0, u64::from(pair.uar) * 4096 + 0x20, &arm);
    pair.guest
        .post_send(&mut pair.a, 0x0b, 0xcafe, &data(21, pair.key, source));
    assert_eq!(
        &pair.guest.memory.read::<21>(target),
        b"over the virtual wire"
    );
    let mut opcodes = [pair.cqe(0), pair.cqe(1)]
        .map(|cqe| (cqe[63] >> 4, crate::bits::dword(&cqe, 0x38) & 0xff_ffff));
    opcodes.sort_unstable();
    assert_eq!(opcodes, [(0, pair.a.qpn), (3, pair.b.qpn)]);
    assert_eq!(pair.cqe(2)[63], 0xf1);
    let event: [u8; 64] = pair.guest.memory.read(pair.eq.1);
    assert_eq!((event[1], crate::bits::dword(&event, 0x38)), (0, pair.cq.0));
    assert_eq!(pair.guest.raised.count(INTERRUPTS as u16), 1);
}

#[test]
fn a_query_tells_what_a_queue_pair_is() {
    let mut pair = Pair::new();
    let target = pair.guest.allocate(4096);
    let segments = [remote(target, pair.key), data(8, pair.key, target + 64)].concat();
    for _ in 0..3 {
        pair.guest.post_send(&mut pair.a, 0x08, 0, &segments);
    }
    let mut request = vec![0; 16];
    create_eq_in::OPCODE.set(&mut request, u32::from(Opcode::QueryQp.code()));
    super::NUMBER.set(&mut request, pair.a.qpn);
    let answer = pair.guest.command(&request, query_qp_out::SIZE);
    let context = query_qp_out::QPC.get(&answer.reply);
    let path = qpc::PRIMARY_ADDRESS_PATH.get(context);
    assert_eq!(qpc::STATE.get(context), State::ReadyToSend.code());
    assert_eq!(qpc::NEXT_SEND_PSN.get(context), 0x114);
    assert_eq!(qpc::REMOTE_QPN.get(context), pair.b.qpn);
    assert_eq!(
        (
            qpc::MTU.get(context),
            qpc::RNR_RETRY.get(context),
            qpc::RETRY_COUNT.get(context)
        ),
        (5, 6, 7)
    );
    assert_eq!(
        (
            ads::RLID.get(path),
            ads::SL.get(path),
            ads::ACK_TIMEOUT.get(path)
        ),
        (5, 3, 14)
    );
    assert_eq!(ads::VHCA_PORT_NUM.get(path), 1);
    assert_eq!(qpc::HW_SQ_WQEBB_COUNTER.get(context), 3);
    assert_eq!(
        pair.guest.modify(Opcode::Rtr2Rts, pair.a.qpn, |_| ()),
        Some(Status::BadQpState)
    );
    assert_eq!(
        pair.guest.modify(Opcode::ToRst, pair.a.qpn, |_| ()),
        Some(Status::Ok)
    );
    let answer = pair.guest.command(&request, query_qp_out::SIZE);
    assert_eq!(
        qpc::STATE.get(query_qp_out::QPC.get(&answer.reply)),
        State::Reset.code()
    );
}

#[test]
fn a_key_registered_by_a_work_request_is_usable_and_revocable() {
    let mut pair = Pair::new();
    let buffer = pair.guest.allocate(8192);
    // A free key with room for two octwords of pages.
    let mut request = Guest::request(Opcode::CreateMkey, &[]);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut request);
    mkc::FREE.set(context, 1);
    mkc::UMR_EN.set(context, 1);
    mkc::ACCESS_MODE_1_0.set(context, 1);
    mkc::QPN.set(context, 0xff_ffff);
    mkc::PD.set(context, pair.pd);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 8);
    mkc::LOG_PAGE_SIZE.set(context, 12);
    let key = pair.guest.command(&request, 16).number() << 8;
    // Pages in the order opposite to that of the memory.
    let list = pair.guest.allocate(4096);
    pair.guest
        .memory
        .write(list, &(buffer + 4096).to_be_bytes());
    pair.guest.memory.write(list + 8, &buffer.to_be_bytes());
    let mut update = vec![0; 48 + 64];
    update[0] = 0x20;
    update[4..6].copy_from_slice(&4_u16.to_be_bytes());
    update[8..16].copy_from_slice(&0x203e_20c3_u64.to_be_bytes());
    let context = &mut update[48..];
    mkc::LR.set(context, 1);
    mkc::LW.set(context, 1);
    mkc::RW.set(context, 1);
    mkc::PD.set(context, pair.pd);
    mkc::START_ADDR.set(context, 0x7000_0000);
    mkc::LEN.set(context, 8192);
    mkc::LOG_PAGE_SIZE.set(context, 12);
    update.extend(data(64, pair.key, list));
    pair.guest.post_send(&mut pair.a, 0x25, key, &update);
    assert_eq!(pair.cqe(0)[63] >> 4, 0, "{:02x?}", pair.cqe(0));
    let source = pair.guest.allocate(4096);
    pair.guest.memory.write(source, b"twisted!");
    pair.guest.post_send(
        &mut pair.a,
        0x08,
        0,
        &[remote(0x7000_0000 + 4092, key), data(8, pair.key, source)].concat(),
    );
    assert_eq!(pair.cqe(1)[63] >> 4, 0);
    assert_eq!(&pair.guest.memory.read::<4>(buffer + 8188), b"twis");
    assert_eq!(&pair.guest.memory.read::<4>(buffer), b"ted!");
    // Revoked, it is refused at the responder.
    let mut revoke = vec![0; 48 + 64];
    revoke[0] = 0x80;
    revoke[8..16].copy_from_slice(&(1_u64 << 29).to_be_bytes());
    mkc::FREE.set(&mut revoke[48..], 1);
    pair.guest.post_send(&mut pair.a, 0x25, key, &revoke);
    assert_eq!(pair.cqe(2)[63] >> 4, 0);
    pair.guest.post_send(
        &mut pair.a,
        0x08,
        0,
        &[remote(0x7000_0000, key), data(8, pair.key, source)].concat(),
    );
    let failed = pair.cqe(3);
    assert_eq!((failed[63] >> 4, failed[0x37]), (13, 0x13));
}

#[test]
fn a_port_answers_for_itself_only() {
    let mut guest = Guest::initialized();
    let mut request = vec![0; 16];
    create_eq_in::OPCODE.set(&mut request, u32::from(Opcode::QueryHcaVportContext.code()));
    let answer = guest.command(&request, 0x210);
    assert_eq!(crate::bits::dword(&answer.reply, 0x10 + 0x60) >> 16, 5);
    request[8] = 0x80;
    assert_eq!(
        guest.command(&request, 0x210).status(),
        Some(Status::BadParameter)
    );
    let pkeys = guest.plain(Opcode::QueryHcaVportPkey, &[0, 0, 0xffff]);
    assert_eq!(crate::bits::dword(&pkeys.reply, 0x10), 0xffff);
    assert_eq!(
        guest
            .plain(Opcode::QueryHcaVportPkey, &[0, 0, 128])
            .status(),
        Some(Status::BadIndex)
    );
    assert_eq!(
        guest.plain(Opcode::QueryHcaVportGid, &[0, 0, 8]).status(),
        Some(Status::BadIndex)
    );
    let speed = guest.plain(Opcode::AccessReg, &[1, 0x5004]);
    assert_eq!(crate::bits::dword(&speed.reply, 0x10 + 0x28), 4 << 16 | 32);
    assert_eq!(
        guest.plain(Opcode::AccessReg, &[1, 0x1234]).status(),
        Some(Status::BadParameter)
    );
    // Capability bits, of which some are the guest's.
    let mut modify = vec![0; 0x210];
    create_eq_in::OPCODE.set(&mut modify, u32::from(Opcode::ModifyHcaVportContext.code()));
    modify[0x10 + 0x40..0x10 + 0x48].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    assert_eq!(guest.command(&modify, 16).status(), Some(Status::Ok));
    assert_eq!(guest.port.capability_bits, 0x1_0000);
    modify[0x10 + 0x44] = 0x80;
    assert_eq!(
        guest.command(&modify, 16).status(),
        Some(Status::BadParameter)
    );
}

#[test]
fn management_datagrams_are_answered_or_refused() {
    let mut guest = Guest::initialized();
    let mut request = vec![0; 0x110];
    create_eq_in::OPCODE.set(&mut request, u32::from(Opcode::MadIfc.code()));
    request[0x13] = 1;
    let answer = guest.command(&request, 0x110);
    assert_eq!(
        (answer.status(), answer.reply[0x13]),
        (Some(Status::Ok), 0x81)
    );
    request[0x13] = 7;
    assert_eq!(guest.command(&request, 0x110).status(), Some(Status::Ok));
    request[0x13] = 9;
    assert_eq!(
        guest.command(&request, 0x110).status(),
        Some(Status::BadParameter)
    );
}

#[test]
fn chains_that_loop_or_lead_nowhere_are_delivery_errors() {
    let mut guest = Guest::initialized();
    let request = Guest::request(Opcode::CreateCq, &[0x1000; 400]);
    // Back to its first block.
    guest.post(&request, 16);
    guest
        .memory
        .write(MAILBOXES + 0x230, &MAILBOXES.to_be_bytes());
    assert_eq!(guest.ring(), 0x03);
    // Out of memory, misaligned, all ones.
    for (next, delivery) in [
        (1 << 40, 0x05),
        (MAILBOXES + 8, 0x05),
        (u64::MAX, 0x05),
        (!0x3ff, 0x05),
    ] {
        guest.post(&request, 16);
        guest.memory.write(MAILBOXES + 0x230, &next.to_be_bytes());
        assert_eq!(guest.ring(), delivery, "{next:#x}");
    }
    guest.post(&request, 16);
    guest.memory.write(MAILBOXES + 1024 + 0x23d, &[0x33]);
    assert_eq!(guest.ring(), 0x02);
    // Lengths that nobody needs are not allocated.
    for (at, delivery) in [(0x04, 0x07), (0x38, 0x08)] {
        guest.post(&request, 16);
        guest.memory.write32(QUEUE + at, u32::MAX);
        assert_eq!(guest.ring(), delivery);
    }
    guest.post(&request, 4096);
    guest
        .memory
        .write(QUEUE + 0x30, &(1_u64 << 40).to_be_bytes());
    assert_eq!(guest.ring(), 0x04);
    guest.post(&request, 16);
    guest.memory.write(QUEUE, &[6]);
    assert_eq!(guest.ring(), 0x10);
    // A queue that is nowhere does no harm.
    guest.write32(0x10, 0xffff_ffff);
    guest.write32(0x18, u32::MAX);
}

#[test]
fn unknown_commands_are_told_so() {
    let mut guest = Guest::initialized();
    let answer = guest.command(&[0x0f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 16);
    assert_eq!(answer.status(), Some(Status::BadOperation));
    assert_eq!(guest.command(&[], 16).status(), Some(Status::BadOperation));
    assert_eq!(guest.command(&[0x05], 4).delivery, 0);
}

#[test]
fn commands_that_fail_leave_nothing_behind() {
    let mut guest = Guest::initialized();
    let before = guest.engine.object_counts(guest.vf);
    for _ in 0..1000 {
        // A queue without its event queue, a queue pair without its domain, a
        // key without its list.
        let mut cq = Guest::request(Opcode::CreateCq, &[0x1000; 16]);
        cqc::C_EQN_OR_APU_ELEMENT.set(create_cq_in::CQ_CONTEXT.get_mut(&mut cq), 9);
        assert_eq!(guest.command(&cq, 16).status(), Some(Status::BadResource));
        let qp = Guest::request(Opcode::CreateQp, &[0x1000; 16]);
        assert_eq!(guest.command(&qp, 16).status(), Some(Status::BadResource));
        let mut key = Guest::request(Opcode::CreateMkey, &[]);
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut key, u32::MAX);
        assert_eq!(
            guest.command(&key, 16).status(),
            Some(Status::BadInputLength)
        );
    }
    assert_eq!(guest.engine.object_counts(guest.vf), before);
    // Doorbell pages end, and come back.
    let mut pages = Vec::new();
    loop {
        let answer = guest.plain(Opcode::AllocUar, &[]);
        match answer.status() {
            Some(Status::Ok) => pages.push(answer.number()),
            status => {
                assert_eq!(status, Some(Status::NoResources));
                break;
            }
        }
    }
    assert_eq!(pages.len(), 2048 - 4);
    assert_eq!(
        guest.plain(Opcode::DeallocUar, &[0, pages[7]]).status(),
        Some(Status::Ok)
    );
    assert_eq!(guest.plain(Opcode::AllocUar, &[]).number(), pages[7]);
}

#[test]
fn page_lists_shorter_than_their_queue_are_refused() {
    let mut guest = Guest::initialized();
    let uar = guest.plain(Opcode::AllocUar, &[]).number();
    let (eqn, _) = guest.create_eq(0, 0, uar);
    for log_size in 0..32 {
        let mut request = Guest::request(Opcode::CreateCq, &[0x1000]);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut request);
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
        let expected = match log_size {
            0..=6 => Status::Ok,
            7..=20 => Status::BadInputLength,
            _ => Status::ExceededLimits,
        };
        assert_eq!(
            guest.command(&request, 16).status(),
            Some(expected),
            "{log_size}"
        );
    }
}

#[test]
fn every_offset_and_size_is_answered() {
    let mut guest = Guest::initialized();
    for region in [Region::Bar0, Region::Bar2, Region::Config] {
        let size = guest.function.region_size(region);
        let interesting = (0..0x2100)
            .chain(0x3ff0..0x4060)
            .chain(0x4700..0x4900)
            .chain(size - 16..size + 16);
        for offset in interesting.chain([u64::MAX - 7, u64::MAX]) {
            for len in [1, 2, 4, 8, 3, 64] {
                let mut data = vec![0; len];
                guest.function.read(region, offset, &mut data, 0);
                let _ = guest.write(region, offset, &vec![0xff; len]);
                let _ = guest.write(region, offset, &vec![0; len]);
            }
        }
    }
}

#[test]
fn a_reset_forgets_everything() {
    let mut pair = Pair::new();
    let effect = pair
        .guest
        .write(Region::Bar0, 0x14, &0x0000_1100_u32.to_be_bytes());
    assert_eq!(effect, Effect::Reset);
    assert!(
        pair.guest
            .engine
            .object_counts(pair.guest.vf)
            .iter()
            .all(|&(_, count)| count == 0)
    );
    // And the driver may begin again.
    pair.guest.write32(0x14, QUEUE as u32);
    pair.guest.initialize();
    assert_eq!(
        pair.guest.plain(Opcode::AllocUar, &[]).number(),
        crate::bits::initialization::FIRST_UAR
    );
}

#[test]
fn a_polled_function_maps_what_it_does_not_trap() {
    let configuration = Configuration {
        doorbells: crate::Doorbells::Poll,
        ..Configuration::default()
    };
    let (start, len) = configuration.mapped_area().unwrap();
    assert_eq!(
        (start, start + len),
        (u64::from(TRAPPED_PAGES) * 4096, configuration.bar_size)
    );
    assert_eq!(Configuration::default().mapped_area(), None);
    let mut guest = Guest::with(configuration);
    guest.initialize();
    let kernel = guest.plain(Opcode::AllocUar, &[]).number();
    let program = guest.plain(Opcode::AllocUar, &[]).number();
    assert!(configuration.traps(kernel) && !configuration.traps(program));
}

/// Opcodes that change something, for sequences of nonsense.
fn opcodes() -> impl Strategy<Value = u16> {
    prop_oneof![
        8 => prop::sample::select(vec![
            0x200_u16, 0x201, 0x202, 0x301, 0x302, 0x303, 0x400, 0x401, 0x402, 0x403, 0x500, 0x501, 0x502, 0x503,
            0x504, 0x505, 0x506, 0x507, 0x50a, 0x50b, 0x50c, 0x50d, 0x50e, 0x700, 0x701, 0x702, 0x703, 0x762, 0x763,
            0x764, 0x765, 0x800, 0x801, 0x802, 0x803, 0x805, 0x806, 0x807, 0x80e, 0x80f, 0x109, 0x100,
        ]),
        1 => any::<u16>(),
    ]
}

/// Requests of sparse bytes: small numbers that may name something, among
/// zeros, with noise in between.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let sparse = |byte: u8| match byte {
        0..=159 => 0,
        160..=223 => byte & 7,
        _ => byte,
    };
    (opcodes(), prop::collection::vec(any::<u8>(), 14..0x300)).prop_map(move |(opcode, rest)| {
        let mut request = opcode.to_be_bytes().to_vec();
        request.extend(rest.into_iter().map(sparse));
        request
    })
}

impl Pair {
    /// Requests that create one object each, all of them good.
    fn templates(&self) -> [Vec<u8>; 5] {
        let mut eq = Guest::request(Opcode::CreateEq, &[0x50_0000]);
        eqc::LOG_EQ_SIZE.set(create_eq_in::EQ_CONTEXT_ENTRY.get_mut(&mut eq), 6);
        let mut cq = Guest::request(Opcode::CreateCq, &[0x50_0000]);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut cq);
        cqc::LOG_CQ_SIZE.set(context, 6);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, self.eq.0);
        cqc::DBR_ADDR.set(context, 0x51_0000);
        let mut srq = Guest::request(Opcode::CreateSrq, &[0x50_0000]);
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut srq);
        srqc::LOG_SRQ_SIZE.set(context, 4);
        srqc::LOG_RQ_STRIDE.set(context, 2);
        srqc::PD.set(context, self.pd);
        srqc::DBR_ADDR.set(context, 0x51_0040);
        let mut key = Guest::request(
            Opcode::CreateMkey,
            &[0x50_0000, 0x50_1000, 0x50_2000, 0x50_3000],
        );
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut key, 2);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut key);
        mkc::ACCESS_MODE_1_0.set(context, 1);
        mkc::LW.set(context, 1);
        mkc::LOG_PAGE_SIZE.set(context, 12);
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 2);
        mkc::LEN.set(context, 0x4000);
        mkc::PD.set(context, self.pd);
        let mut qp = Guest::request(Opcode::CreateQp, &[0x50_0000]);
        let context = create_qp_in::QPC.get_mut(&mut qp);
        qpc::PD.set(context, self.pd);
        qpc::LOG_RQ_SIZE.set(context, 4);
        qpc::LOG_SQ_SIZE.set(context, 4);
        qpc::UAR_PAGE.set(context, self.uar);
        qpc::CQN_SND.set(context, self.cq.0);
        qpc::CQN_RCV.set(context, self.cq.0);
        qpc::DBR_ADDR.set(context, 0x51_0080);
        [eq, cq, srq, key, qp]
    }
}

#[test]
fn the_templates_are_good_as_they_stand() {
    let mut pair = Pair::new();
    for template in pair.templates() {
        assert_eq!(
            pair.guest.command(&template, 16).status(),
            Some(Status::Ok),
            "{:02x?}",
            &template[..2]
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn objects_that_are_almost_good_harm_nobody(
        which in 0..5_usize,
        damage in prop::collection::vec((16..0x130_usize, any::<u8>()), 0..4),
        steps in prop::collection::vec((16..0x100_usize, any::<u8>()), 3),
        counts in any::<[u32; 2]>(),
        noise in prop::collection::vec(any::<u8>(), 1024),
    ) {
        let mut pair = Pair::new();
        let mut request = pair.templates()[which].clone();
        for (at, value) in damage {
            if let Some(byte) = request.get_mut(at) {
                *byte = value;
            }
        }
        pair.guest.memory.write(0x50_0000, &noise);
        for (at, count) in counts.into_iter().enumerate() {
            pair.guest.memory.write32(0x51_0080 + at as u64 * 4, count);
        }
        let answer = pair.guest.command(&request, 16);
        if which == 4 && answer.status() == Some(Status::Ok) {
            let qpn = answer.number();
            for (opcode, (at, value)) in [Opcode::Rst2Init, Opcode::Init2Rtr, Opcode::Rtr2Rts].into_iter().zip(steps) {
                pair.guest.modify(opcode, qpn, |context| {
                    qpc::MTU.set(context, 5);
                    if let Some(byte) = context.get_mut(at) {
                        *byte = value;
                    }
                });
            }
            let word = [[0; 4], (qpn << 8).to_be_bytes()].concat();
            let _ = pair.guest.write(Region::Bar0, u64::from(pair.uar) * 4096 + 0x800, &word);
            let _ = pair.guest.modify(Opcode::ToErr, qpn, |_| ());
        }
        let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
        pair.guest.memory.write(source, b"unharmed");
        let key = pair.key;
        pair.guest.post_receive(&mut pair.b, &data(8, key, target));
        pair.guest.post_send(&mut pair.a, 0x0a, 0, &data(8, key, source));
        prop_assert_eq!(&pair.guest.memory.read::<8>(target), b"unharmed");
    }

    #[test]
    fn garbage_commands_harm_nobody(requests in prop::collection::vec(requests(), 1..60)) {
        let mut pair = Pair::new();
        for request in requests {
            let answer = pair.guest.command(&request, 0x200);
            prop_assert_eq!(answer.delivery, 0);
        }
        // Whatever became of the objects, the device still answers.
        pair.guest.plain(Opcode::DisableHca, &[]);
        pair.guest.initialize();
        pair.guest.plain(Opcode::AllocPd, &[]).number();
    }

    #[test]
    fn garbage_requests_harm_their_queue_pair_only(
        requests in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 48)), 1..16),
    ) {
        let mut pair = Pair::new();
        let mut other = pair.guest.create_rc(pair.pd, pair.cq.0, pair.uar);
        let mut peer = pair.guest.create_rc(pair.pd, pair.cq.0, pair.uar);
        pair.guest.connect(&other, &peer);
        pair.guest.connect(&peer, &other);
        for (opcode, segments) in requests {
            pair.guest.post_send(&mut pair.a, opcode % 0x28, 0, &segments);
        }
        let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
        pair.guest.memory.write(source, b"unharmed");
        pair.guest.post_receive(&mut peer, &data(8, pair.key, target));
        pair.guest.post_send(&mut other, 0x0a, 0, &data(8, pair.key, source));
        prop_assert_eq!(&pair.guest.memory.read::<8>(target), b"unharmed");
    }
}
