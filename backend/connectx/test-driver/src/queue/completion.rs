//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bits::{cqc, put_qword, reply, request};
use crate::error::{Error, Result};
use crate::function::bar::doorbell;
use crate::function::command::request;
use crate::function::device::{Device, Object, append_pages};
use crate::function::opcode::Opcode;
use crate::function::opcode::codes;
use crate::function::uar::Uar;
use crate::memory::Buffer;
use crate::wait::Patience;

/// Size of an entry, in bytes.
const CQE: usize = 64;
/// Words of 8 bytes of an entry.
const WORDS: usize = CQE / 8;
const COUNTER_MASK: u32 = 0x00ff_ffff;

codes! {
    /// Kind of a completion.
    CqeKind: u8 {
        /// A send request.
        Requester = 0,
        /// A receive request, by RDMA WRITE with immediate data.
        WriteImm = 1,
        /// A receive request, by SEND.
        Send = 2,
        /// A receive request, by SEND with immediate data.
        SendImm = 3,
        /// A receive request, by SEND with invalidate.
        SendInvalidate = 4,
        /// No message, but a change of the list of a queue with tags, or the beginning of a rendezvous.
        NoPacket = 6,
        /// A block is not as its signature says.
        SignatureError = 12,
        /// The queue was resized; more entries are in the new one.
        Resize = 5,
        /// A send request, with an error.
        RequesterError = 13,
        /// A receive request, with an error.
        ResponderError = 14,
    }
}

codes! {
    /// Why a request failed.
    Syndrome: u8 {
        /// Local length error.
        LocalLength = 0x01,
        /// Local queue pair operation error.
        LocalQpOperation = 0x02,
        /// Local protection error.
        LocalProtection = 0x04,
        /// Flushed.
        Flushed = 0x05,
        /// Memory window or key update error.
        MemoryBind = 0x06,
        /// Bad response.
        BadResponse = 0x10,
        /// Local access error.
        LocalAccess = 0x11,
        /// Remote invalid request.
        RemoteInvalidRequest = 0x12,
        /// Remote access error.
        RemoteAccess = 0x13,
        /// Remote operation error.
        RemoteOperation = 0x14,
        /// Transport retries exceeded.
        RetryExceeded = 0x15,
        /// RNR retries exceeded.
        RnrRetryExceeded = 0x16,
    }
}

/// An entry of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cqe([u64; WORDS]);

impl Cqe {
    #[inline]
    pub(crate) const fn dword(&self, offset: usize) -> u32 {
        let word = self.0[offset / 8];
        if offset.is_multiple_of(8) {
            (word >> 32) as u32
        } else {
            word as u32
        }
    }

    /// Returns the kind of the completion.
    #[inline]
    pub const fn kind(&self) -> CqeKind {
        CqeKind::from_code((self.0[7] >> 4) as u8 & 0xf)
    }

    /// Whether it completed with success.
    #[inline]
    pub const fn is_ok(&self) -> bool {
        matches!((self.0[7] >> 4) & 0xf, 0..=4 | 6)
    }

    /// The queue pair.
    #[inline]
    pub const fn qpn(&self) -> u32 {
        self.dword(0x38) & 0x00ff_ffff
    }

    /// Returns the opcode of a send request.
    pub const fn send_opcode(&self) -> u8 {
        (self.dword(0x38) >> 24) as u8
    }

    /// Returns the number of a send request's first block, or a receive request's number or place in the shared
    /// queue.
    #[inline]
    pub const fn wqe_counter(&self) -> u16 {
        (self.dword(0x3c) >> 16) as u16
    }

    /// Bytes received or, of reads and atomics, read.
    pub const fn byte_count(&self) -> u32 {
        self.dword(0x2c)
    }

    /// Immediate data, or the key that was invalidated, or of QP 1 the P_Key.
    pub const fn immediate(&self) -> u32 {
        self.dword(0x24)
    }

    /// Shared receive queue, of receive requests from one.
    pub const fn srqn(&self) -> u32 {
        self.dword(0x20) & 0x00ff_ffff
    }

    /// LID of a datagram's sender.
    pub const fn source_lid(&self) -> u16 {
        self.dword(0x14) as u16
    }

    /// QP of a datagram's sender.
    pub const fn source_qpn(&self) -> u32 {
        self.dword(0x18) & 0x00ff_ffff
    }

    /// Service level of a datagram.
    pub const fn service_level(&self) -> u8 {
        (self.dword(0x18) >> 24) as u8 & 0xf
    }

    /// Whether a datagram has a global route header.
    pub const fn has_grh(&self) -> bool {
        self.dword(0x18) >> 28 & 3 != 0
    }

    /// When it completed, by the device's free-running clock; of an error, its
    /// syndromes.
    #[inline]
    pub const fn timestamp(&self) -> u64 {
        self.0[6]
    }

    /// Returns the device's own number for the reason of an error.
    pub const fn vendor_syndrome(&self) -> u8 {
        (self.dword(0x34) >> 8) as u8
    }

    /// Returns the reason of an error.
    pub const fn syndrome(&self) -> Syndrome {
        Syndrome::from_code(self.dword(0x34) as u8)
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue {
    object: Object,
    ring: Buffer,
    record: Buffer,
    uar: Arc<Uar>,
    log_size: u32,
    taken: u32,
    arm_number: u32,
}

impl CompletionQueue {
    /// A queue of `1 << log_size` entries, whose events go to completion
    /// vector `vector` (from 0).
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(device: &Device, uar: &Arc<Uar>, log_size: u32, vector: usize) -> Result<Self> {
        Self::with(device, uar, log_size, vector, |_| {})
    }

    /// The same of compressed entries, which this driver does not read; with `overruns`, it is never full. For tests
    /// of guests that do not look at what completes.
    ///
    /// # Errors
    /// [`Error`].
    pub fn compressed(
        device: &Device,
        uar: &Arc<Uar>,
        log_size: u32,
        overruns: bool,
    ) -> Result<Self> {
        Self::with(device, uar, log_size, 0, |context| {
            cqc::CQE_COMP_EN.set(context, 1);
            cqc::OI.set(context, overruns.into());
        })
    }

    fn with(
        device: &Device,
        uar: &Arc<Uar>,
        log_size: u32,
        vector: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let eqn = device.completion_eqn(vector)?;
        let ring = allocate_ring(device, log_size)?;
        let record = device.allocate_record()?;
        let mut input = request(Opcode::CreateCq, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::UAR_PAGE.set(context, uar.number());
        cqc::C_EQN.set(context, eqn);
        put_qword(context, cqc::DBR_ADDR, record.iova());
        change(context);
        append_pages(&mut input, ring.pages(12));
        let out = device.command(&input, 16)?;
        Ok(Self {
            object: Object::new(device, Opcode::DestroyCq, reply::OBJECT.get(&out)),
            ring,
            record,
            uar: Arc::clone(uar),
            log_size,
            taken: 0,
            arm_number: 0,
        })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    /// Its number of entries.
    pub fn size(&self) -> u32 {
        1 << self.log_size
    }

    #[inline]
    fn peek(&self, index: u32) -> Option<Cqe> {
        let at = (index & (self.size() - 1)) as usize * WORDS;
        let words = &self.ring.words()[at..at + WORDS];
        let last = u64::from_be(words[7].load(Ordering::Acquire));
        if (last as u32 ^ index >> self.log_size) & 1 != 0 || last >> 4 & 0xf == 0xf {
            return None;
        }
        let mut entry = [0; WORDS];
        for (to, from) in entry[..7].iter_mut().zip(words) {
            *to = u64::from_be(from.load(Ordering::Relaxed));
        }
        entry[7] = last;
        Some(Cqe(entry))
    }

    /// The next entry, which stays where it is.
    pub fn peek_next(&self) -> Option<Cqe> {
        self.peek(self.taken)
    }

    /// Returns the number of entries to take.
    pub fn pending(&self) -> u32 {
        (0..self.size())
            .take_while(|&index| self.peek(self.taken.wrapping_add(index)).is_some())
            .count() as u32
    }

    /// Takes the next entry and gives its room back.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let entry = self.peek(self.taken)?;
        self.taken = self.taken.wrapping_add(1);
        self.give_back();
        Some(entry)
    }

    #[inline]
    fn give_back(&self) {
        self.record.halves()[0].store((self.taken & COUNTER_MASK).to_be(), Ordering::Release);
    }

    /// Waits for the next entry, polling.
    ///
    /// # Errors
    /// [`Error::Timeout`] when there is none.
    pub fn wait(&mut self) -> Result<Cqe> {
        let mut patience = Patience::new();
        loop {
            match self.poll() {
                Some(entry) => return Ok(entry),
                None if patience.is_over() => return Err(Error::Timeout("a completion")),
                None => patience.pause(),
            }
        }
    }

    /// Asks for an event at the next entry, or the next solicited one.
    ///
    /// # Errors
    /// [`Error::Client`].
    pub fn arm(&mut self, solicited_only: bool) -> Result<()> {
        let word =
            self.arm_number << 28 | u32::from(solicited_only) << 24 | self.taken & COUNTER_MASK;
        self.record.halves()[1].store(word.to_be(), Ordering::Release);
        self.uar.ring(
            doorbell::CQ,
            u64::from(word) << 32 | u64::from(self.object.number),
        )
    }

    /// Takes note of an event: the next arming is a new one.
    pub fn acknowledge(&mut self) {
        self.arm_number = (self.arm_number + 1) & 3;
    }

    /// Gives the queue `1 << log_size` entries.
    ///
    /// # Errors
    /// [`Error`].
    pub fn resize(&mut self, log_size: u32) -> Result<()> {
        // What the stock driver asks to change: size, offset, page size.
        const RESIZE: u32 = 0b111;
        const OP_MOD_RESIZE: u16 = 1;
        let device = self.object.device.clone();
        let ring = allocate_ring(&device, log_size)?;
        let mut input = request(Opcode::ModifyCq, OP_MOD_RESIZE, request::PAGES);
        request::OBJECT.set(&mut input, self.object.number);
        request::RESIZE_FIELD_SELECT.set(&mut input, RESIZE);
        cqc::LOG_CQ_SIZE.set(&mut input[request::CONTEXT..], log_size);
        append_pages(&mut input, ring.pages(12));
        device.command(&input, 16)?;
        // Entries up to the one that announces the change are in the old
        // ring: they move, one place on, because the announcement counts.
        let mut index = self.taken;
        loop {
            let entry = self
                .peek(index)
                .ok_or(Error::Unexpected("a resized CQ has no Resize entry".into()))?;
            if entry.kind() == CqeKind::Resize {
                break;
            }
            index = index.wrapping_add(1);
            let at = (index & ((1 << log_size) - 1)) as usize * WORDS;
            let words = &ring.words()[at..at + WORDS];
            for (to, from) in words.iter().zip(entry.0) {
                to.store(from.to_be(), Ordering::Relaxed);
            }
            let owner = u64::from(index >> log_size & 1);
            words[7].store((entry.0[7] & !1 | owner).to_be(), Ordering::Release);
        }
        self.taken = self.taken.wrapping_add(1);
        self.ring = ring;
        self.log_size = log_size;
        self.give_back();
        Ok(())
    }

    /// Its context, as `mlx5_ifc_cqc`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn query(&self) -> Result<Vec<u8>> {
        let mut input = request(Opcode::QueryCq, 0, 16);
        request::OBJECT.set(&mut input, self.object.number);
        let mut out = self.object.device.command(&input, 272)?;
        Ok(out.split_off(reply::BODY))
    }
}

fn allocate_ring(device: &Device, log_size: u32) -> Result<Buffer> {
    const INVALID: u8 = 0xf1;
    let ring = device.allocate_pages(CQE << log_size)?;
    for entry in 0..1usize << log_size {
        ring.write(entry * CQE + CQE - 1, &[INVALID]);
    }
    Ok(ring)
}
