//! A VF that does what it is told to, for tests and fuzz targets: there is no adapter behind it, but the
//! memory, the command queue and the events of one.

mod guest;
mod oracle;
mod place;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use connectx::DoorbellPages;
use connectx::bits::Field;
use connectx::bits::capability::{TYPE_GENERAL, cmd_hca_cap as cap, query_hca_cap_out};
use connectx::bits::command::{
    BLOCK_DATA, BLOCK_SIZE, ENTRY_DATA, ENTRY_SIZE, EVENT_MASK, OWNER_HARDWARE, Opcode,
    PAGES_RETURNED, alloc_pd_out, create_eq_in, mlx5_cmd_layout as entry,
    mlx5_cmd_prot_block as block, query_pages_out,
};
use connectx::bits::event::{EQE_DATA, EQE_SIZE, EQE_SUBTYPE, EQE_TYPE, create_eq_out, eqc};
use connectx::bits::initialization::{FIRST_UAR, mlx5_init_seg as segment};
use connectx::bits::port::{
    hca_vport_context as vport, query_hca_vport_context_out, query_hca_vport_pkey_in,
};
use connectx::bits::queue_pair::{create_qp_in, qpc, query_qp_out};
use hca::dma;
use parking_lot::Mutex;
use vfio_user::{DmaTable, Mapping};

pub use guest::{Guest, Stock, request};
pub use oracle::{Confines, Oracle};
pub use place::{Place, vf_at};

use crate::memory::GuestMemory;
use crate::vf::physical::{Physical, PhysicalError};

/// Bytes of BAR 0.
const BAR_SIZE: u64 = 1 << 20;
const VECTORS: u16 = 8;
/// Log of the entries of the command queue, and of their size.
const QUEUE: u32 = 5 << 4 | 6;
/// Bytes before the list of pages of such a request or reply, and of CREATE_EQ.
const PAGES: usize = 0x10;
const EQ_PAGES: usize = 0x110;

/// Reaction of a VF to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The usual reaction.
    Usual,
    /// It replies with these bytes, and zeros where it asks for more.
    Reply(Vec<u8>),
    /// It could not take it: the delivery status.
    Undelivered(u8),
    /// Nothing, ever.
    Never,
}

/// Decides what becomes of a command.
pub type Script = Box<dyn FnMut(&[u8]) -> Answer + Send>;

struct Inner {
    table: DmaTable,
    script: Script,
    exchanges: Vec<(Vec<u8>, Vec<u8>)>,
    queue: u64,
    /// Pages of the event queue with events, and how many were written.
    events: Vec<u64>,
    produced: u32,
    wake: Option<OwnedFd>,
    /// Records of doorbells, by the numbers of queue pairs.
    records: HashMap<u32, u64>,
    next: u32,
    pages_allocated: u32,
    queues: u32,
    resets: u32,
    doorbells: Vec<(u64, Vec<u8>)>,
    health: [u8; 64],
    /// Pages that firmware wants to boot and to initialize, and those that it has.
    wanted: [u32; 2],
    pages: Vec<u64>,
    /// The port's P_Keys, from index 0.
    pkeys: Vec<u16>,
}

/// The VF, and what tests have of it.
#[derive(Clone)]
pub struct Scripted(Arc<Mutex<Inner>>);

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

impl Default for Scripted {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inner {
            table: DmaTable::new(),
            script: Box::new(|_| Answer::Usual),
            exchanges: Vec::new(),
            queue: 0,
            events: Vec::new(),
            produced: 0,
            wake: None,
            records: HashMap::new(),
            next: 0,
            pages_allocated: 0,
            queues: 0,
            resets: 0,
            doorbells: Vec::new(),
            health: [0; 64],
            wanted: [0; 2],
            pages: Vec::new(),
            pkeys: vec![0xffff],
        })))
    }
}

impl Scripted {
    /// The VF as somebody has it who opens it: nothing is mapped.
    #[must_use]
    pub fn open(&self) -> Box<dyn Physical> {
        self.0.lock().table = DmaTable::new();
        Box::new(self.clone())
    }

    /// Has the VF do with commands what `script` says.
    pub fn follow(&self, script: Script) {
        self.0.lock().script = script;
    }

    /// Has firmware want so many pages to boot and to initialize.
    pub fn want_pages(&self, wanted: [u32; 2]) {
        self.0.lock().wanted = wanted;
    }

    /// Has the port have these P_Keys, from index 0.
    pub fn partition(&self, pkeys: &[u16]) {
        self.0.lock().pkeys = pkeys.to_vec();
    }

    /// The requests since the last time, as the VF got them.
    pub fn requests(&self) -> Vec<Vec<u8>> {
        let exchanges = self.exchanges().into_iter();
        exchanges.map(|(request, _)| request).collect()
    }

    /// The same with the replies, which are empty where there was none.
    pub fn exchanges(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut self.0.lock().exchanges)
    }

    /// Returns the writes to doorbell pages since the last call: offset in BAR 0, and bytes.
    pub fn doorbells(&self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.0.lock().doorbells)
    }

    /// Pages that firmware has.
    pub fn pages(&self) -> Vec<u64> {
        self.0.lock().pages.clone()
    }

    /// Returns the number of resets.
    pub fn resets(&self) -> u32 {
        self.0.lock().resets
    }

    /// Has its health buffer say this.
    pub fn sicken(&self, health: [u8; 64]) {
        self.0.lock().health = health;
    }

    /// Writes an event, and raises vector 0.
    pub fn raise(&self, kind: u8, subtype: u8, data: &[u8]) {
        let mut inner = self.0.lock();
        let mut event = [0; EQE_SIZE];
        event[EQE_TYPE] = kind;
        event[EQE_SUBTYPE] = subtype;
        for (to, from) in event[EQE_DATA..EQE_SIZE - 4].iter_mut().zip(data) {
            *to = *from;
        }
        let entries = (inner.events.len() * 4096 / EQE_SIZE) as u32;
        if let Some(round) = inner.produced.checked_div(entries) {
            event[EQE_SIZE - 1] = u8::from(!round.is_multiple_of(2));
            let at = (inner.produced % entries) as usize * EQE_SIZE;
            let addr = inner.events[at / 4096] + (at % 4096) as u64;
            let _ = dma::write(&inner.memory(), addr, &event);
            inner.produced = inner.produced.wrapping_add(1);
        }
        inner.signal();
    }

    /// Reads what the VF reaches.
    pub fn read(&self, addr: u64, bytes: &mut [u8]) {
        let inner = self.0.lock();
        let _ = dma::read(&inner.memory(), addr, bytes);
    }

    /// Writes anywhere that the VF reaches: it may do anything.
    pub fn scribble(&self, addr: u64, bytes: &[u8]) {
        let inner = self.0.lock();
        let _ = dma::write(&inner.memory(), addr, bytes);
    }
}

impl Inner {
    fn memory(&self) -> GuestMemory {
        GuestMemory(self.table.view())
    }

    fn signal(&self) {
        if let Some(wake) = &self.wake {
            let _ = nix::unistd::write(wake, &1_u64.to_ne_bytes());
        }
    }

    /// Executes the command in an entry of the queue.
    fn execute(&mut self, slot: u32) {
        let memory = self.memory();
        let at = self.queue + u64::from(slot) * ENTRY_SIZE as u64;
        let mut bytes = [0; ENTRY_SIZE];
        if dma::read(&memory, at, &mut bytes).is_err() {
            return;
        }
        let len = entry::INLEN.get(&bytes) as usize;
        let mut request = entry::IN.get(&bytes)[..len.min(ENTRY_DATA)].to_vec();
        let mut next = entry::IN_PTR.get(&bytes);
        let mut mailbox = [0; BLOCK_SIZE];
        while request.len() < len && dma::read(&memory, next, &mut mailbox).is_ok() {
            let left = (len - request.len()).min(BLOCK_DATA);
            request.extend(&block::DATA.get(&mailbox)[..left]);
            next = block::NEXT.get(&mailbox);
        }
        let (delivery, mut reply) = match (self.script)(&request) {
            Answer::Usual => (0, self.usual(&request)),
            Answer::Reply(reply) => (0, reply),
            Answer::Undelivered(code) => (code, Vec::new()),
            Answer::Never => {
                self.exchanges.push((request, Vec::new()));
                return;
            }
        };
        self.exchanges.push((request, reply.clone()));
        reply.resize((entry::OUTLEN.get(&bytes) as usize).max(ENTRY_DATA), 0);
        let (first, mut rest) = reply.split_at(ENTRY_DATA);
        let _ = dma::write(&memory, at + entry::OUT.position().0 as u64 / 8, first);
        let mut next = entry::OUT_PTR.get(&bytes);
        while !rest.is_empty() && dma::read(&memory, next, &mut mailbox).is_ok() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_DATA));
            let _ = dma::write(&memory, next, now);
            rest = later;
            next = block::NEXT.get(&mailbox);
        }
        let own = delivery << 1 & !OWNER_HARDWARE;
        let _ = dma::write(&memory, at + ENTRY_SIZE as u64 - 1, &[own]);
        self.signal();
    }

    /// Returns the usual reply of a VF.
    fn usual(&mut self, request: &[u8]) -> Vec<u8> {
        let mut reply = vec![0; PAGES];
        let modifier = create_eq_in::OP_MOD.get(request);
        match Opcode::from_code(create_eq_in::OPCODE.get(request) as u16) {
            Some(Opcode::QueryHcaCap) if modifier >> 1 == TYPE_GENERAL => {
                reply.resize(query_hca_cap_out::SIZE, 0);
                let general = query_hca_cap_out::CAPABILITY.get_mut(&mut reply);
                for (field, value) in [
                    (cap::LOG_MAX_QP, 18),
                    (cap::LOG_MAX_QP_SZ, 6),
                    (cap::ATOMIC, 1),
                ] {
                    field.set(general, value);
                }
            }
            Some(Opcode::QueryPages) => {
                let wanted = self.wanted[usize::from(modifier != 1)];
                query_pages_out::NUM_PAGES.set(&mut reply, wanted);
            }
            Some(Opcode::ManagePages) => {
                let count = query_pages_out::NUM_PAGES.get(request) as usize;
                match modifier {
                    1 => {
                        let (given, _) = request[PAGES..].as_chunks::<8>();
                        let given = given.iter().take(count);
                        self.pages
                            .extend(given.map(|page| u64::from_be_bytes(*page)));
                    }
                    2 => {
                        let left = self.pages.len().saturating_sub(count);
                        let back = self.pages.split_off(left);
                        PAGES_RETURNED.set(&mut reply, back.len() as u32);
                        reply.extend(back.iter().flat_map(|page| page.to_be_bytes()));
                    }
                    _ => {}
                }
            }
            Some(Opcode::CreateEq) => {
                self.queues = self.queues % 200 + 1;
                let eqn = self.queues;
                create_eq_out::EQ_NUMBER.set(&mut reply, eqn);
                let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
                let mask = EVENT_MASK.get(request);
                if mask != 0 {
                    let len = EQE_SIZE << eqc::LOG_EQ_SIZE.get(context);
                    let (pages, _) = request[EQ_PAGES..].as_chunks::<8>();
                    let pages = pages.iter().take(len / 4096);
                    self.events = pages.map(|page| u64::from_be_bytes(*page)).collect();
                }
            }
            Some(Opcode::QueryHcaVportContext) => {
                reply.resize(query_hca_vport_context_out::SIZE, 0);
                let context = query_hca_vport_context_out::HCA_VPORT_CONTEXT.get_mut(&mut reply);
                vport::VPORT_STATE.set(context, 4);
                vport::LID.set(context, 7);
            }
            Some(Opcode::QueryHcaVportPkey) => {
                // One, or all of them.
                let asked = query_hca_vport_pkey_in::PKEY_INDEX.get(request) as usize;
                let asked = if asked == 0xffff {
                    0..128
                } else {
                    asked..asked + 1
                };
                let keys = asked.map(|at| self.pkeys.get(at).copied().unwrap_or(0));
                reply.extend(keys.flat_map(|key| u32::from(key).to_be_bytes()));
            }
            Some(Opcode::CreateQp) => {
                let number = self.number();
                alloc_pd_out::PD.set(&mut reply, number);
                let context = create_qp_in::QPC.get(request);
                self.records.insert(number, qpc::DBR_ADDR.get(context));
            }
            Some(Opcode::QueryQp) => {
                // It has done what there is to do.
                reply.resize(query_qp_out::SIZE, 0);
                let record = self.records.get(&alloc_pd_out::PD.get(request));
                let mut counter = [0; 4];
                if let Some(record) = record {
                    let _ = dma::read(&self.memory(), record + 4, &mut counter);
                }
                let context = query_qp_out::QPC.get_mut(&mut reply);
                qpc::HW_SQ_WQEBB_COUNTER.set(context, u32::from_be_bytes(counter) & 0xffff);
            }
            Some(Opcode::AllocUar) => {
                // Never one that somebody may still have.
                let page = FIRST_UAR + self.pages_allocated;
                self.pages_allocated = (self.pages_allocated + 1) % 200;
                alloc_pd_out::PD.set(&mut reply, page);
            }
            _ => {
                let number = self.number();
                alloc_pd_out::PD.set(&mut reply, number);
            }
        }
        reply
    }

    /// A number that no object has.
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

impl Physical for Scripted {
    fn bar_size(&self) -> u64 {
        BAR_SIZE
    }

    fn vectors(&self) -> u16 {
        VECTORS
    }

    fn doorbell_pages(&self, _first: u32) -> Option<DoorbellPages> {
        None
    }

    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), PhysicalError> {
        let inner = self.0.lock();
        let mut registers: HashMap<u64, u32> = HashMap::new();
        let at = |field: Field| (field.position().0 / 32 * 4) as u64;
        registers.insert(at(segment::CMDIF_REV_FW_SUB), 5 << 16);
        registers.insert(at(segment::CMDQ_ADDR_L_SZ), QUEUE);
        for (number, dword) in inner.health.as_chunks::<4>().0.iter().enumerate() {
            let at = segment::HEALTH.position().0 as u64 / 8 + number as u64 * 4;
            registers.insert(at, u32::from_be_bytes(*dword));
        }
        for (number, dword) in data.chunks_mut(4).enumerate() {
            let value = registers.get(&(offset + number as u64 * 4));
            let value = value.copied().unwrap_or(0).to_be_bytes();
            dword.copy_from_slice(&value[..dword.len()]);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), PhysicalError> {
        let mut inner = self.0.lock();
        let at = |field: Field| (field.position().0 / 32 * 4) as u64;
        let value = data
            .first_chunk()
            .map_or(0, |dword| u32::from_be_bytes(*dword));
        if offset == at(segment::CMDQ_ADDR_H) {
            inner.queue = u64::from(value) << 32;
        } else if offset == at(segment::CMDQ_ADDR_L_SZ) {
            inner.queue |= u64::from(value);
        } else if offset == at(segment::CMD_DBELL) {
            for slot in (0..32).filter(|slot| value >> slot & 1 != 0) {
                inner.execute(slot);
            }
        } else {
            inner.doorbells.push((offset, data.to_vec()));
        }
        Ok(())
    }

    fn map(&mut self, mapping: &Mapping) -> Result<(), PhysicalError> {
        let mapped = self.0.lock().table.map(mapping.clone());
        mapped.map_err(|error| PhysicalError::Unfit(error.to_string()))
    }

    fn unmap(&mut self, addr: u64, size: u64) -> Result<(), PhysicalError> {
        let unmapped = self.0.lock().table.unmap(addr, size);
        unmapped
            .map(drop)
            .map_err(|error| PhysicalError::Unfit(error.to_string()))
    }

    fn connect(
        &mut self,
        vector: u16,
        eventfd: Option<BorrowedFd<'_>>,
    ) -> Result<(), PhysicalError> {
        if vector == 0 {
            let owned = eventfd.map(|fd| fd.as_fd().try_clone_to_owned());
            self.0.lock().wake = owned.and_then(Result::ok);
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), PhysicalError> {
        let mut inner = self.0.lock();
        inner.resets += 1;
        inner.events.clear();
        inner.produced = 0;
        (inner.next, inner.pages_allocated, inner.queues) = (0, 0, 0);
        inner.health = [0; 64];
        inner.pages.clear();
        Ok(())
    }
}
