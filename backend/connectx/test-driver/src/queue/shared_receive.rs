//! Shared receive queues: basic, of XRC, and with lists of tags (XRQ).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bits::{NO_USER_INDEX, put_qword, reply, request, srqc, xrqc};
use crate::error::{Error, Result};
use crate::function::command::request;
use crate::function::device::{Object, append_pages};
use crate::function::opcode::Opcode;
use crate::memory::Buffer;
use crate::memory_key::region::{ProtectionDomain, XrcDomain};
use crate::queue::completion::{CompletionQueue, Cqe};
use crate::queue::segment::{Sge, write_list};

/// A shared receive queue: a list of requests, linked by their indexes.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    object: Object,
    ring: Buffer,
    record: Buffer,
    log_size: u32,
    log_stride: u32,
    /// The next free request to post.
    head: u16,
    /// The last free request.
    tail: u16,
    posted: u16,
    _domain: Arc<ProtectionDomain>,
}

impl SharedReceiveQueue {
    /// A queue of `1 << log_size` requests of up to `sges` elements; with
    /// `xrc`, one for that domain that completes to that queue.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(
        pd: &Arc<ProtectionDomain>,
        log_size: u32,
        sges: usize,
        xrc: Option<(&XrcDomain, &CompletionQueue)>,
    ) -> Result<Self> {
        Self::create(
            pd,
            log_size,
            sges,
            Opcode::DestroySrq,
            |log_stride, record| {
                let mut input = request(Opcode::CreateSrq, 0, request::PAGES);
                let context = &mut input[request::CONTEXT..];
                srqc::LOG_SRQ_SIZE.set(context, log_size);
                srqc::LOG_RQ_STRIDE.set(context, log_stride);
                srqc::USER_INDEX.set(context, NO_USER_INDEX);
                srqc::PD.set(context, pd.number());
                if let Some((domain, cq)) = xrc {
                    srqc::XRCD.set(context, domain.number());
                    srqc::CQN.set(context, cq.number());
                }
                put_qword(context, srqc::DBR_ADDR, record);
                input
            },
        )
    }

    /// A queue of `1 << log_size` requests of up to `sges` elements, with a list of `1 << log_tags` entries. It
    /// completes to completion queue `cqn`. With `rendezvous`, the device reads what a rendezvous says.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn with_tags(
        pd: &Arc<ProtectionDomain>,
        (log_size, sges): (u32, usize),
        cqn: u32,
        log_tags: u32,
        rendezvous: bool,
    ) -> Result<Self> {
        Self::create(
            pd,
            log_size,
            sges,
            Opcode::DestroyXrq,
            |log_stride, record| {
                let mut input = request(Opcode::CreateXrq, 0, xrqc::PAGES);
                let context = &mut input[request::CONTEXT..];
                xrqc::TOPOLOGY.set(context, 1);
                xrqc::OFFLOAD.set(context, rendezvous.into());
                xrqc::USER_INDEX.set(context, NO_USER_INDEX);
                xrqc::CQN.set(context, cqn);
                xrqc::LOG_MATCHING_LIST_SZ.set(context, log_tags);
                xrqc::PD.set(context, pd.number());
                put_qword(context, xrqc::DBR_ADDR, record);
                xrqc::LOG_WQ_STRIDE.set(context, log_stride + 4);
                xrqc::LOG_WQ_SZ.set(context, log_size);
                input
            },
        )
    }

    /// A queue that the request asks for which `input` makes of its stride, as a power of two times 16 bytes, and
    /// the address of its record. A list of pages follows it.
    pub(crate) fn create(
        pd: &Arc<ProtectionDomain>,
        log_size: u32,
        sges: usize,
        destroy: Opcode,
        input: impl FnOnce(u32, u64) -> Vec<u8>,
    ) -> Result<Self> {
        let device = pd.device();
        // One segment is for the link.
        let log_stride = (sges + 1).next_power_of_two().ilog2().max(1);
        let ring = device.allocate_pages(16 << (log_stride + log_size))?;
        let record = device.allocate_record()?;
        let mut input = input(log_stride, record.iova());
        append_pages(&mut input, ring.pages(12));
        let out = device.command(&input, 16)?;
        let queue = Self {
            object: Object::new(device, destroy, reply::OBJECT.get(&out)),
            ring,
            record,
            log_size,
            log_stride,
            head: 0,
            tail: (1 << log_size) - 1,
            posted: 0,
            _domain: Arc::clone(pd),
        };
        for index in 0..queue.tail {
            queue.link(index, index + 1);
        }
        Ok(queue)
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    fn offset(&self, index: u16) -> usize {
        usize::from(index) << (self.log_stride + 4)
    }

    /// Writes the link of request `index`. Public for tests of lists that no
    /// driver makes.
    pub fn link(&self, index: u16, next: u16) {
        self.ring.write(self.offset(index) + 2, &next.to_be_bytes());
    }

    fn next(&self, index: u16) -> u16 {
        let mut next = [0; 2];
        self.ring.read(self.offset(index) + 2, &mut next);
        u16::from_be_bytes(next)
    }

    /// Posts a receive request; returns its index, which its completion will
    /// bear.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`].
    pub fn post(&mut self, list: &[Sge]) -> Result<u16> {
        if self.head == self.tail {
            return Err(Error::Full);
        }
        let index = self.head;
        let first = self.offset(index) / 8 + 2;
        let words = &self.ring.words()[first..first + (2 << self.log_stride) - 2];
        write_list(words, list)?;
        self.head = self.next(index);
        self.posted = self.posted.wrapping_add(1);
        self.publish(self.posted);
        Ok(index)
    }

    /// Announces that so many requests were posted in all. Public for tests
    /// of counters that no driver writes.
    pub fn publish(&self, posted: u16) {
        self.record.halves()[0].store(u32::from(posted).to_be(), Ordering::Release);
    }

    /// The index of the request that is posted next.
    pub fn next_index(&self) -> u16 {
        self.head
    }

    /// Most requests that can be posted at a time.
    pub fn capacity(&self) -> usize {
        (1 << self.log_size) - 1
    }

    /// Gives a completed request back.
    pub fn complete(&mut self, entry: &Cqe) {
        self.give_back(entry.wqe_counter());
    }

    /// Gives the request with this index back.
    pub fn give_back(&mut self, index: u16) {
        let index = index & ((1 << self.log_size) - 1);
        self.link(self.tail, index);
        self.tail = index;
    }

    /// Asks for an event once fewer than `limit` requests are left.
    ///
    /// # Errors
    /// [`Error`].
    pub fn arm(&self, limit: u16) -> Result<()> {
        const OP_MOD_SRQ: u16 = 1;
        let mut input = request(Opcode::ArmRq, OP_MOD_SRQ, 16);
        request::OBJECT.set(&mut input, self.object.number);
        request::LWM.set(&mut input, limit.into());
        self.object.device.command(&input, 16).map(drop)
    }

    /// Its context, as `mlx5_ifc_srqc`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn query(&self) -> Result<Vec<u8>> {
        let mut input = request(Opcode::QuerySrq, 0, 16);
        request::OBJECT.set(&mut input, self.object.number);
        let mut out = self.object.device.command(&input, 272)?;
        Ok(out.split_off(reply::BODY))
    }
}
