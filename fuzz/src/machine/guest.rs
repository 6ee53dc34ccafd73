//! A guest: its memory, and commands and objects as a driver makes them.

pub mod parser;

use std::sync::Arc;

use connectx::Region;
use hca::Dma;
use hca::dma::DEVICE_MEMORY;
use test_driver::bits::{cqc, eqc, mkc, put_dword, put_qword, qpc, reply, request, srqc};
use test_driver::{ENTRY, MAILBOX_DATA, MAILBOX_STRIDE, Opcode};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

use crate::Machine;

/// Bytes of memory of a guest, from DMA address 0.
pub const MEMORY: usize = 1 << 20;
/// Where a guest's command queue is. At address 0 there can be none.
pub const COMMAND_QUEUE: u64 = 0x1_f000;
/// Where mailboxes with input are.
const INPUT: u64 = 0x1000;
/// Where mailboxes for output are.
const OUTPUT: u64 = 0x1_1000;
/// Most bytes of a command that a guest here can give.
pub const MAX_INPUT: usize = 16 + 64 * MAILBOX_DATA;
/// Most bytes of a reply that a guest here can take.
pub const MAX_OUTPUT: usize = 16 + 32 * MAILBOX_DATA;
/// Where queues and payload may be.
pub const FREE: u64 = 0x2_0000;
/// The doorbell page that a function's kernel gets.
const UAR: u64 = 4;

/// Offset in BAR 0 of the upper half of the command queue's address.
const CMDQ_ADDR_H: u64 = 0x10;
/// Offset in BAR 0 of the doorbell of the command queue.
pub const CMD_DBELL: u64 = 0x18;

/// Bytes of the device's memory, and where they end in BAR 0.
const DEVICE: (usize, u64) = (256 << 10, 1 << 20);

/// Guest memory, one mapping, and the device's.
#[derive(Debug, Clone)]
pub struct GuestMemory(Arc<[MmapRegion; 2]>);

impl GuestMemory {
    /// Zeroes.
    pub fn new() -> Self {
        Self(Arc::new(
            [MEMORY, DEVICE.0].map(|size| MmapRegion::new(size).expect("memory")),
        ))
    }

    /// Writes what lies within the memory.
    pub fn write(&self, addr: u64, data: &[u8]) {
        if let Some(slice) = self.read_window(addr, data.len()) {
            slice.copy_from(data);
        }
    }

    /// Reads what lies within the memory, the rest stays as it is.
    pub fn read(&self, addr: u64, data: &mut [u8]) {
        if let Some(slice) = self.read_window(addr, data.len()) {
            slice.copy_to(data);
        }
    }
}

impl Default for GuestMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl Dma for GuestMemory {
    fn read_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        let (of_guest, of_device) = (&self.0[0], &self.0[1]);
        let begin = DEVICE_MEMORY + DEVICE.1 - DEVICE.0 as u64;
        let (region, at) = match addr.checked_sub(begin) {
            Some(at) => (of_device, at),
            None => (of_guest, addr),
        };
        let at = usize::try_from(at).ok().filter(|&at| at < region.len())?;
        region.get_slice(at, len.min(region.len() - at)).ok()
    }

    fn write_window(&self, addr: u64, len: usize) -> Option<VolatileSlice<'_>> {
        self.read_window(addr, len)
    }
}

/// A queue pair with a send queue, receive queue and completion queue, and a
/// key for all memory.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    /// Protection domain.
    pub pd: u32,
    /// Completion queue.
    pub cqn: u32,
    /// Where its ring is: [`CQ_ENTRIES`] of them.
    pub cq_ring: u64,
    /// Where its record is.
    pub cq_record: u64,
    /// Shared receive queue.
    pub srqn: u32,
    /// Where its ring is.
    pub srq_ring: u64,
    /// Where its record is.
    pub srq_record: u64,
    /// Key of a region of pages from [`PAYLOAD`] on, 64 KiB.
    pub region: u32,
    /// Key of all memory.
    pub physical: u32,
    /// A key that is free.
    pub free: u32,
    /// A memory window that is bound to nothing.
    pub window: u32,
}

/// Entries of the event queues here, which begin at [`FREE`].
pub const EVENT_ENTRIES: u64 = 64;
/// Events of pages that are away, and of targets of dynamic connections, as bits of a mask.
const PAGE_FAULT: u64 = 1 << 0x0c;
const DRAINED: u64 = 1 << 0x1c;
const KEY_VIOLATION: u64 = 1 << 0x1d;
/// Entries of the completion queues here.
pub const CQ_ENTRIES: u64 = 64;
/// Blocks of the send queues here.
pub const SEND_BLOCKS: u64 = 64;
/// Entries of the receive queues here, of 64 bytes.
pub const RECEIVES: u64 = 16;
/// Requests of the shared receive queues here, of 64 bytes.
pub const SHARED: u64 = 64;
/// Service type of an initiator of dynamic connections.
pub const INITIATOR: u32 = 5;
/// Where payload is, [`PAYLOAD_LEN`] bytes.
pub const PAYLOAD: u64 = 0xc_0000;
/// Bytes of payload.
pub const PAYLOAD_LEN: u64 = 64 << 10;
/// Bytes on either side of the memory, and their addresses.
const GUARD: [u8; 4096] = [0xa5; 4096];
const GUARDS: [u64; 2] = [PAYLOAD - GUARD.len() as u64, PAYLOAD + PAYLOAD_LEN];

/// A queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Qp {
    /// Its number.
    pub number: u32,
    /// Service type.
    pub service: u32,
    /// Where its ring is: receive queue, then send queue.
    pub ring: u64,
    /// Where its record is.
    pub record: u64,
    /// Blocks posted.
    pub posted: u16,
}

impl Qp {
    /// Where the send queue begins.
    pub fn send_queue(&self) -> u64 {
        self.ring + RECEIVES * 64
    }
}

impl Machine {
    /// Executes a command of function `vf` and returns the reply.
    pub fn command(&mut self, vf: usize, input: &[u8], output: usize) -> Vec<u8> {
        let input = &input[..input.len().min(MAX_INPUT)];
        let output = output.clamp(16, MAX_OUTPUT);
        let guest = self.guest(vf).clone();
        let mut entry = [0; ENTRY];
        entry[0] = 7;
        put_dword(&mut entry, 0x04, input.len() as u32);
        put_dword(&mut entry, 0x38, output as u32);
        let head = input.len().min(16);
        entry[0x10..0x10 + head].copy_from_slice(&input[..head]);
        if input.len() > 16 {
            put_qword(&mut entry, 0x08, INPUT);
        }
        if output > 16 {
            put_qword(&mut entry, 0x30, OUTPUT);
        }
        entry[0x3f] = 1;
        for (number, part) in input[head..].chunks(MAILBOX_DATA).enumerate() {
            guest.write(INPUT + (number * MAILBOX_STRIDE) as u64, part);
        }
        link(&guest, INPUT, (input.len() - head).div_ceil(MAILBOX_DATA));
        link(&guest, OUTPUT, (output - 16).div_ceil(MAILBOX_DATA));
        guest.write(COMMAND_QUEUE, &entry);
        self.write(vf, Region::Bar0, CMD_DBELL, &1u32.to_be_bytes());
        let mut reply = vec![0; output];
        guest.read(COMMAND_QUEUE + 0x20, &mut reply[..16]);
        for (number, part) in reply[16..].chunks_mut(MAILBOX_DATA).enumerate() {
            guest.read(OUTPUT + (number * MAILBOX_STRIDE) as u64, part);
        }
        reply
    }

    /// Executes a command that must succeed, and returns the object's number.
    ///
    /// # Panics
    /// Where it does not.
    pub fn create(&mut self, vf: usize, input: &[u8]) -> u32 {
        let out = self.command(vf, input, 16);
        assert_eq!(
            reply::STATUS.get(&out),
            0,
            "command {:#x}",
            request::OPCODE.get(input)
        );
        reply::OBJECT.get(&out)
    }

    /// Brings function `vf` up as a driver does, with an event queue for
    /// everything.
    pub fn bring_up(&mut self, vf: usize) {
        let address = COMMAND_QUEUE.to_be_bytes();
        for (half, bytes) in (0..).zip(address.chunks(4)) {
            self.write(vf, Region::Bar0, CMDQ_ADDR_H + half * 4, bytes);
        }
        self.create(vf, &test_driver::request(Opcode::EnableHca, 0, 16));
        // Version 1 of the interface, for user contexts.
        let mut issi = test_driver::request(Opcode::SetIssi, 0, 16);
        issi[0x0b] = 1;
        self.create(vf, &issi);
        self.create(vf, &test_driver::request(Opcode::InitHca, 0, 32));
        let uar = self.create(vf, &test_driver::request(Opcode::AllocUar, 0, 16));
        assert_eq!(u64::from(uar), UAR);
        // Commands complete without an event: the entry is looked at.
        const EVENTS: u64 = 0x1f_02be | PAGE_FAULT | DRAINED | KEY_VIOLATION;
        for entry in 0..EVENT_ENTRIES {
            self.guest(vf).write(FREE + entry * 64 + 63, &[1]);
        }
        let mut input = test_driver::request(Opcode::CreateEq, 0, request::PAGES);
        put_qword(&mut input, request::EVENT_BITMASK, EVENTS);
        let context = &mut input[request::CONTEXT..];
        eqc::LOG_EQ_SIZE.set(context, EVENT_ENTRIES.ilog2());
        eqc::UAR_PAGE.set(context, uar);
        input.extend_from_slice(&FREE.to_be_bytes());
        self.create(vf, &input);
    }

    /// Creates what work needs.
    pub fn objects(&mut self, vf: usize) -> Objects {
        let pd = self.create(vf, &test_driver::request(Opcode::AllocPd, 0, 16));
        let (cq_ring, srq_ring) = (FREE + 0x1000, FREE + 0x2000);
        let records = FREE + 0x3000;

        let mut input = test_driver::request(Opcode::CreateCq, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        cqc::LOG_CQ_SIZE.set(context, CQ_ENTRIES.ilog2());
        cqc::UAR_PAGE.set(context, UAR as u32);
        cqc::C_EQN.set(context, 1);
        put_qword(context, cqc::DBR_ADDR, records);
        input.extend_from_slice(&cq_ring.to_be_bytes());
        let cqn = self.create(vf, &input);
        for entry in 0..CQ_ENTRIES {
            self.guest(vf).write(cq_ring + entry * 64 + 63, &[0xf1]);
        }

        let mut input = test_driver::request(Opcode::CreateSrq, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        srqc::LOG_SRQ_SIZE.set(context, 6);
        srqc::LOG_RQ_STRIDE.set(context, 2);
        srqc::PD.set(context, pd);
        put_qword(context, srqc::DBR_ADDR, records + 64);
        input.extend_from_slice(&srq_ring.to_be_bytes());
        let srqn = self.create(vf, &input);
        for index in 0..64u16 {
            let at = srq_ring + u64::from(index) * 64 + 2;
            self.guest(vf).write(at, &(index + 1).to_be_bytes());
        }
        Objects {
            pd,
            cqn,
            cq_ring,
            cq_record: records,
            srqn,
            srq_ring,
            srq_record: records + 64,
            region: self.key(vf, pd, 1),
            physical: self.key(vf, pd, 0),
            free: self.key(vf, pd, 2),
            window: self.key(vf, pd, 3),
        }
    }

    /// A key of the payload.
    pub fn payload_key(&mut self, vf: usize, pd: u32) -> u32 {
        self.key(vf, pd, 1)
    }

    /// A memory key: 0 of all memory, 1 of the payload, 2 free, 3 a memory window.
    fn key(&mut self, vf: usize, pd: u32, kind: u32) -> u32 {
        const PAGES: u64 = 16;
        let mut input = test_driver::request(Opcode::CreateMkey, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::ATOMIC] {
            right.set(context, 1);
        }
        mkc::PD.set(context, pd);
        mkc::QPN.set(context, 0x00ff_ffff);
        mkc::MKEY_7_0.set(context, 0x42);
        if kind == 0 {
            mkc::LENGTH64.set(context, 1);
        } else if kind == 3 {
            mkc::ACCESS_MODE.set(context, 2);
            mkc::FREE.set(context, 1);
            mkc::UMR_EN.set(context, 1);
            mkc::EN_RINVAL.set(context, 1);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 4);
        } else {
            mkc::ACCESS_MODE.set(context, 1);
            mkc::UMR_EN.set(context, 1);
            mkc::FREE.set(context, u32::from(kind == 2));
            mkc::LOG_PAGE_SIZE.set(context, 12);
            mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 8);
            put_qword(context, mkc::START_ADDR, PAYLOAD);
            put_qword(context, mkc::LEN, PAGES * 4096);
            if kind == 1 {
                request::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 8);
                for page in 0..PAGES {
                    input.extend_from_slice(&(PAYLOAD + page * 4096).to_be_bytes());
                }
            }
        }
        self.create(vf, &input) << 8 | 0x42
    }

    /// A queue pair of service type `service` in state Reset, the `index`th of
    /// function `vf`; with `shared`, on the shared receive queue.
    pub fn queue_pair(
        &mut self,
        vf: usize,
        objects: &Objects,
        index: u64,
        service: u32,
        shared: bool,
    ) -> Qp {
        self.queue_pair_with(vf, objects, index, (service, shared), |_| {})
    }

    /// The same, with this change to its context.
    pub fn queue_pair_with(
        &mut self,
        vf: usize,
        objects: &Objects,
        index: u64,
        (service, shared): (u32, bool),
        change: impl FnOnce(&mut [u8]),
    ) -> Qp {
        let ring = FREE + 0x1_0000 + index * 0x2000;
        let record = FREE + 0x4000 + index * 64;
        let mut input = test_driver::request(Opcode::CreateQp, 0, request::PAGES);
        let context = &mut input[request::QPC..];
        qpc::ST.set(context, service);
        qpc::PD.set(context, objects.pd);
        qpc::LOG_RQ_SIZE.set(context, RECEIVES.ilog2());
        qpc::LOG_RQ_STRIDE.set(context, 2);
        qpc::LOG_SQ_SIZE.set(context, SEND_BLOCKS.ilog2());
        qpc::UAR_PAGE.set(context, UAR as u32);
        qpc::CQN_SND.set(context, objects.cqn);
        qpc::CQN_RCV.set(context, objects.cqn);
        let sends_only = service == INITIATOR;
        if shared {
            qpc::RQ_TYPE.set(context, 1);
            qpc::SRQN.set(context, objects.srqn);
        } else if sends_only {
            qpc::RQ_TYPE.set(context, 3);
        }
        if shared || sends_only {
            qpc::LOG_RQ_SIZE.set(context, 0);
        }
        put_qword(context, qpc::DBR_ADDR, record);
        // A shared queue takes no room, nor does none, so its ring begins with the send queue.
        let first = if shared || sends_only {
            ring + RECEIVES * 64
        } else {
            ring
        };
        qpc::PAGE_OFFSET.set(context, (first % 4096 / 64) as u32);
        change(context);
        for page in 0..2 {
            input.extend_from_slice(&((ring & !0xfff) + page * 4096).to_be_bytes());
        }
        Qp {
            number: self.create(vf, &input),
            service,
            ring,
            record,
            posted: 0,
        }
    }

    /// A target of dynamic connections with this access key.
    pub fn target(&mut self, vf: usize, objects: &Objects, key: u64) -> u32 {
        self.create(vf, &target(objects, key))
    }

    /// A key of the payload, of which no page is there.
    pub fn on_demand(&mut self, vf: usize, objects: &Objects) -> u32 {
        const PAGES: usize = 16;
        let mut input = test_driver::request(Opcode::CreateMkey, 0, request::PAGES);
        request::PG_ACCESS.set(&mut input, 1);
        request::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, PAGES as u32 / 2);
        let context = &mut input[request::CONTEXT..];
        for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::ATOMIC, mkc::UMR_EN] {
            right.set(context, 1);
        }
        mkc::ACCESS_MODE.set(context, 1);
        mkc::PD.set(context, objects.pd);
        mkc::QPN.set(context, 0x00ff_ffff);
        mkc::MKEY_7_0.set(context, 0x42);
        mkc::LOG_PAGE_SIZE.set(context, 12);
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, PAGES as u32 / 2);
        put_qword(context, mkc::START_ADDR, PAYLOAD);
        put_qword(context, mkc::LEN, PAGES as u64 * 4096);
        input.extend_from_slice(&[0; PAGES * 8]);
        self.create(vf, &input) << 8 | 0x42
    }

    /// Connects a queue pair, or makes one of datagrams ready. It gives up soon.
    pub fn connect(&mut self, vf: usize, qp: &Qp, lid: u32, remote: u32) {
        self.connect_by(vf, qp, lid, remote, 1);
    }

    /// The same with so many retries where the other end is not ready, of which 7 are no limit.
    pub fn connect_by(&mut self, vf: usize, qp: &Qp, lid: u32, remote: u32, retries: u32) {
        use test_driver::bits::ads;
        for opcode in [Opcode::Rst2InitQp, Opcode::Init2RtrQp, Opcode::Rtr2RtsQp] {
            let mut input = test_driver::request(opcode, 0, request::PAGES);
            request::OBJECT.set(&mut input, qp.number);
            let context = &mut input[request::QPC..];
            qpc::ST.set(context, qp.service);
            qpc::MTU.set(context, 5);
            qpc::LOG_MSG_MAX.set(context, 30);
            qpc::REMOTE_QPN.set(context, remote);
            qpc::RRE.set(context, 1);
            qpc::RWE.set(context, 1);
            qpc::RAE.set(context, 1);
            qpc::LOG_RRA_MAX.set(context, 4);
            qpc::LOG_SRA_MAX.set(context, 4);
            qpc::RETRY_COUNT.set(context, 1);
            qpc::RNR_RETRY.set(context, retries);
            qpc::MIN_RNR_NAK.set(context, 1);
            let path = &mut context[qpc::PRIMARY_PATH..];
            ads::RLID.set(path, lid);
            ads::PORT.set(path, 1);
            ads::ACK_TIMEOUT.set(path, 1);
            self.create(vf, &input);
        }
    }

    /// Resets a queue pair; or where it `goes`, destroys it and takes the one that is made in its place.
    pub fn restart(
        &mut self,
        vf: usize,
        qp: &mut Qp,
        goes: bool,
        make: impl FnOnce(&mut Self) -> Qp,
    ) {
        let opcode = if goes {
            Opcode::DestroyQp
        } else {
            Opcode::ToRstQp
        };
        let mut input = test_driver::request(opcode, 0, request::PAGES);
        request::OBJECT.set(&mut input, qp.number);
        self.create(vf, &input);
        self.guest(vf).write(qp.record, &[0; 8]);
        if goes {
            *qp = make(self);
        }
        qp.posted = 0;
    }

    /// Posts a request whose first segment is a control segment, and rings.
    pub fn post(&mut self, vf: usize, qp: &mut Qp, mut bytes: Vec<u8>) {
        let segments = bytes.len().div_ceil(16) as u32;
        put_dword(&mut bytes, 4, qp.number << 8 | segments & 0x3f);
        let blocks = bytes.chunks(64);
        let count = blocks.len() as u16;
        for (number, block) in blocks.enumerate() {
            let slot = (u64::from(qp.posted) + number as u64) % SEND_BLOCKS;
            self.guest(vf).write(qp.send_queue() + slot * 64, block);
        }
        self.ring(vf, qp, count);
    }

    /// Takes the completions that there are of function `vf`. `taken` of them were taken before.
    pub fn completions(&mut self, vf: usize, objects: &Objects, taken: &mut u32) -> Vec<[u8; 64]> {
        const OPCODE_INVALID: u8 = 0xf;
        let guest = self.guest(vf);
        let mut entries = Vec::new();
        for _ in 0..CQ_ENTRIES {
            let (lap, at) = (
                *taken / CQ_ENTRIES as u32,
                u64::from(*taken) % CQ_ENTRIES * 64,
            );
            let mut entry = [0; 64];
            guest.read(objects.cq_ring + at, &mut entry);
            if u32::from(entry[63] & 1) != lap & 1 || entry[63] >> 4 == OPCODE_INVALID {
                break;
            }
            *taken = taken.wrapping_add(1);
            entries.push(entry);
        }
        let consumed = (*taken & 0x00ff_ffff).to_be_bytes();
        guest.write(objects.cq_record, &consumed);
        entries
    }

    /// Writes around the payload of function `vf`, where no key of the payload reaches.
    pub fn guard(&self, vf: usize) {
        for at in GUARDS {
            self.guest(vf).write(at, &GUARD);
        }
    }

    /// Looks whether memory around the payload has changed.
    ///
    /// # Panics
    /// Where it has.
    pub fn check_guard(&self, vf: usize) {
        for at in GUARDS {
            let mut found = [0; GUARD.len()];
            self.guest(vf).read(at, &mut found);
            assert!(found == GUARD, "memory without a key");
        }
    }

    /// Takes the events of function `vf` that there are. `taken` of them were taken before.
    pub fn events(&mut self, vf: usize, taken: &mut u32) -> Vec<[u8; 64]> {
        let mut events = Vec::new();
        for _ in 0..EVENT_ENTRIES {
            let (lap, at) = (
                *taken / EVENT_ENTRIES as u32,
                u64::from(*taken) % EVENT_ENTRIES,
            );
            let mut entry = [0; 64];
            self.guest(vf).read(FREE + at * 64, &mut entry);
            if u32::from(entry[63] & 1) != lap & 1 {
                break;
            }
            *taken = taken.wrapping_add(1);
            events.push(entry);
        }
        let word = 1 << 24 | *taken & 0x00ff_ffff;
        self.write(vf, Region::Bar0, UAR * 4096 + 0x40, &word.to_be_bytes());
        events
    }

    /// Announces `blocks` more blocks of a send queue and rings.
    pub fn ring(&mut self, vf: usize, qp: &mut Qp, blocks: u16) {
        qp.posted = qp.posted.wrapping_add(blocks);
        self.guest(vf)
            .write(qp.record + 4, &u32::from(qp.posted).to_be_bytes());
        // As of a request that is the last block alone.
        let mut word = [0; 8];
        put_dword(&mut word, 0, u32::from(qp.posted.wrapping_sub(1)) << 8);
        put_dword(&mut word, 4, qp.number << 8 | 1);
        self.write(vf, Region::Bar0, UAR * 4096 + 0x800, &word);
    }
}

/// Asks for a target of dynamic connections with this access key.
pub fn target(objects: &Objects, key: u64) -> Vec<u8> {
    use test_driver::bits::dctc;
    let mut input = test_driver::request(Opcode::CreateDct, 0, dctc::LEN);
    let context = &mut input[request::CONTEXT..];
    dctc::PD.set(context, objects.pd);
    dctc::SRQN.set(context, objects.srqn);
    dctc::CQN.set(context, objects.cqn);
    dctc::RRE.set(context, 1);
    dctc::RWE.set(context, 1);
    dctc::RAE.set(context, 1);
    dctc::MTU.set(context, 5);
    put_qword(context, dctc::DC_ACCESS_KEY, key);
    input
}

/// An entry of a list of memory.
pub fn element(addr: u64, key: u32, len: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    put_dword(&mut segment, 0, len);
    put_dword(&mut segment, 4, key);
    put_qword(&mut segment, 8, addr);
    segment
}

/// Links `count` mailboxes.
fn link(guest: &GuestMemory, first: u64, count: usize) {
    for number in 0..count as u64 {
        let at = first + number * MAILBOX_STRIDE as u64;
        let mut control = [0; 12];
        if number + 1 < count as u64 {
            put_qword(&mut control, 0, at + MAILBOX_STRIDE as u64);
        }
        put_dword(&mut control, 8, number as u32);
        guest.write(at + 0x230, &control);
    }
}

/// A transfer between two functions that nobody disturbs, or should be able to.
#[derive(Debug)]
pub struct Bystander {
    vf: usize,
    objects: Objects,
    qp: Qp,
    seed: u64,
    taken: u32,
}

impl Bystander {
    /// A connection of function `vf` with itself.
    pub fn new(machine: &mut Machine, vf: usize) -> Self {
        machine.bring_up(vf);
        let objects = machine.objects(vf);
        let qp = machine.queue_pair(vf, &objects, 0, 0, false);
        machine.connect(vf, &qp, vf as u32 + 1, qp.number);
        Self {
            vf,
            objects,
            qp,
            seed: 0,
            taken: 0,
        }
    }

    /// Writes 4 KiB and checks every byte.
    ///
    /// # Panics
    /// Where one is not as it should be, or the request does not complete.
    pub fn transfer(&mut self, machine: &mut Machine) {
        const LEN: usize = 4096;
        self.seed += 1;
        let guest = machine.guest(self.vf).clone();
        let mut payload = vec![0; LEN];
        test_driver::pattern::bytes(self.seed, 0, &mut payload);
        guest.write(PAYLOAD, &payload);
        let mut block = [0; 64];
        put_dword(&mut block, 0, u32::from(self.qp.posted) << 8 | 0x08);
        put_dword(&mut block, 4, self.qp.number << 8 | 3);
        block[11] = 2 << 2;
        put_qword(&mut block, 16, PAYLOAD + LEN as u64);
        put_dword(&mut block, 24, self.objects.region);
        put_dword(&mut block, 32, LEN as u32);
        put_dword(&mut block, 36, self.objects.region);
        put_qword(&mut block, 40, PAYLOAD);
        let slot = u64::from(self.qp.posted) % SEND_BLOCKS;
        guest.write(self.qp.send_queue() + slot * 64, &block);
        let mut qp = self.qp;
        machine.ring(self.vf, &mut qp, 1);
        self.qp = qp;
        machine.run();

        let done = machine.completions(self.vf, &self.objects, &mut self.taken);
        assert_eq!(done.len(), 1, "the bystander's request did not complete");
        let mut found = vec![0; LEN];
        guest.read(PAYLOAD + LEN as u64, &mut found);
        assert!(found == payload, "the bystander's payload is damaged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bystander_alone_is_well() {
        let mut machine = Machine::new(1);
        let mut bystander = Bystander::new(&mut machine, 0);
        for _ in 0..200 {
            bystander.transfer(&mut machine);
        }
        machine.reset(0);
    }
}
