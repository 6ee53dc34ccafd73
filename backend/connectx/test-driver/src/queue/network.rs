//! Objects of network interfaces: send and receive queues of their own, objects by which packets leave (TIS)
//! and arrive (TIR, and tables of receive queues), and flow tables that choose.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bits::{flow, put_qword, reply, request, rqc, steering};
use crate::error::Result;
use crate::function::command::request;
use crate::function::device::{Device, Object, append_pages};
use crate::function::opcode::Opcode;
use crate::function::uar::Uar;
use crate::memory::Buffer;
use crate::memory_key::region::ProtectionDomain;
use crate::queue::queue_pair::QueuePair;
use crate::queue::segment::{Sge, write_list};

/// Bytes of a block of a send queue, and of a receive request, as powers of two.
const LOG_BLOCK: u32 = 6;
const LOG_REQUEST: u32 = 4;

/// A transport domain.
#[derive(Debug)]
pub struct TransportDomain(Object);

impl TransportDomain {
    /// A new one.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(device: &Device) -> Result<Self> {
        let number = device.allocate(Opcode::AllocTransportDomain)?;
        Ok(Self(Object::new(
            device,
            Opcode::DeallocTransportDomain,
            number,
        )))
    }
}

/// Creates an object; `fill` makes the request, of as many bytes as most have.
fn create(
    device: &Device,
    (create, destroy): (Opcode, Opcode),
    fill: impl FnOnce(&mut Vec<u8>),
) -> Result<Object> {
    let mut input = request(create, 0, steering::LEN);
    fill(&mut input);
    let out = device.command(&input, 16)?;
    Ok(Object::new(device, destroy, reply::OBJECT.get(&out)))
}

/// Object by which packets leave.
#[derive(Debug)]
pub struct Tis(Object);

impl Tis {
    /// Packets have the address of this underlay queue pair.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(domain: &TransportDomain, underlay: &QueuePair) -> Result<Self> {
        let opcodes = (Opcode::CreateTis, Opcode::DestroyTis);
        let object = create(&domain.0.device, opcodes, |input| {
            steering::TIS_DOMAIN.set(input, domain.0.number);
            steering::UNDERLAY_QPN.set(input, underlay.number());
        })?;
        Ok(Self(object))
    }
}

/// Creates a queue of `1 << log_size` entries, and has it ready; its memory and its record.
fn queue(
    pd: &ProtectionDomain,
    opcodes: [Opcode; 3],
    (log_size, log_stride): (u32, u32),
    fill: impl FnOnce(&mut [u8]),
) -> Result<(Object, Buffer, Buffer)> {
    let device = pd.device();
    let [create_it, modify, destroy] = opcodes;
    let ring = device.allocate_pages(1 << (log_size + log_stride))?;
    let record = device.allocate_record()?;
    let object = create(device, (create_it, destroy), |input| {
        let context = &mut input[rqc::CONTEXT..];
        rqc::WQ_TYPE.set(context, 1);
        rqc::PD.set(context, pd.number());
        put_qword(context, rqc::DBR_ADDR, record.iova());
        rqc::LOG_WQ_STRIDE.set(context, log_stride);
        rqc::LOG_WQ_SZ.set(context, log_size);
        fill(context);
        append_pages(input, ring.pages(12));
    })?;
    let mut input = request(modify, 0, request::PAGES);
    request::OBJECT.set(&mut input, object.number);
    rqc::STATE_BEFORE.set(&mut input, 0);
    rqc::STATE.set(&mut input[rqc::CONTEXT..], 1);
    device.command(&input, 16)?;
    Ok((object, ring, record))
}

/// A send queue of `1 << log_blocks` blocks, which completes to completion queue `cqn`. It is used like a queue pair of
/// datagrams with offloads, but is in no state of one.
///
/// # Errors
/// [`Error`](crate::Error).
pub fn send_queue(
    (pd, uar): (&Arc<ProtectionDomain>, &Arc<Uar>),
    tis: &Tis,
    cqn: u32,
    log_blocks: u32,
) -> Result<QueuePair> {
    let opcodes = [Opcode::CreateSq, Opcode::ModifySq, Opcode::DestroySq];
    let (object, ring, record) = queue(pd, opcodes, (log_blocks, LOG_BLOCK), |context| {
        rqc::CQN.set(context, cqn);
        rqc::TIS_LST_SZ.set(context, 1);
        rqc::TIS_NUM_0.set(context, tis.0.number);
        rqc::UAR_PAGE.set(context, uar.number());
    })?;
    Ok(QueuePair::of_send_queue(
        object,
        (pd, uar),
        (ring, record),
        log_blocks,
    ))
}

/// A receive queue, of which all requests have the same memory.
#[derive(Debug)]
pub struct PlainQueue {
    object: Object,
    _ring: Buffer,
    record: Buffer,
    size: u16,
}

impl PlainQueue {
    /// A queue of `1 << log_size` requests for this memory, which completes to completion queue `cqn`.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(pd: &ProtectionDomain, cqn: u32, log_size: u32, memory: Sge) -> Result<Self> {
        let opcodes = [Opcode::CreateRq, Opcode::ModifyRq, Opcode::DestroyRq];
        let (object, ring, record) = queue(pd, opcodes, (log_size, LOG_REQUEST), |context| {
            rqc::CQN.set(context, cqn);
        })?;
        for words in ring.words()[..2 << log_size].chunks_exact(2) {
            write_list(words, &[memory])?;
        }
        Ok(Self {
            object,
            _ring: ring,
            record,
            size: 1 << log_size,
        })
    }

    /// Posts all of its requests again.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn fill(&self) -> Result<()> {
        let mut input = request(Opcode::QueryRq, 0, 16);
        request::OBJECT.set(&mut input, self.object.number);
        let out = self.object.device.command(&input, steering::LEN)?;
        let taken = rqc::HW_COUNTER.get(&out[rqc::CONTEXT..]) as u16;
        let posted = u32::from(taken.wrapping_add(self.size));
        self.record.halves()[0].store(posted.to_be(), Ordering::Release);
        Ok(())
    }
}

/// A table of receive queues.
#[derive(Debug)]
pub struct QueueTable(Object);

impl QueueTable {
    /// A table with `places`, where these queues have one after the other, over and over.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(device: &Device, queues: &[PlainQueue], places: usize) -> Result<Self> {
        let opcodes = (Opcode::CreateRqt, Opcode::DestroyRqt);
        let object = create(device, opcodes, |input| {
            steering::RQT_MAX_SIZE.set(input, places as u32);
            steering::RQT_ACTUAL_SIZE.set(input, places as u32);
            for queue in queues.iter().cycle().take(places) {
                input.extend(queue.object.number.to_be_bytes());
            }
        })?;
        Ok(Self(object))
    }
}

/// Object by which packets arrive.
#[derive(Debug)]
pub struct Tir(Object);

impl Tir {
    /// Packets go to a queue of this table, by the hash of their addresses and ports.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(domain: &TransportDomain, table: &QueueTable) -> Result<Self> {
        let opcodes = (Opcode::CreateTir, Opcode::DestroyTir);
        let object = create(&domain.0.device, opcodes, |input| {
            steering::DISP_TYPE.set(input, 1);
            steering::INDIRECT_TABLE.set(input, table.0.number);
            steering::RX_HASH_FN.set(input, 2);
            steering::TIR_DOMAIN.set(input, domain.0.number);
            input[steering::TOEPLITZ_KEY].fill(0x5a);
            steering::SELECTED_FIELDS.set(input, 0xf);
        })?;
        Ok(Self(object))
    }
}

/// Where an entry of a flow table sends packets.
#[derive(Debug, Clone, Copy)]
pub enum Next<'a> {
    /// To another table, of a higher level.
    Table(&'a FlowTable),
    /// To a TIR.
    Tir(&'a Tir),
}

/// A flow table. It stays as long as its device.
#[derive(Debug)]
pub struct FlowTable {
    device: Device,
    number: u32,
}

impl FlowTable {
    /// A table of `1 << log_size` entries. Packets that none of them matches go to `miss`, or nowhere.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(device: &Device, level: u32, log_size: u32, miss: Option<&Self>) -> Result<Self> {
        let mut input = request(Opcode::CreateFlowTable, 0, flow::TABLE_LEN);
        flow::LEVEL.set(&mut input, level);
        flow::LOG_SIZE.set(&mut input, log_size);
        if let Some(miss) = miss {
            flow::MISS_FORWARD.set(&mut input, 1);
            flow::MISS_TABLE.set(&mut input, miss.number);
        }
        let out = device.command(&input, 16)?;
        Ok(Self {
            device: device.clone(),
            number: reply::OBJECT.get(&out),
        })
    }

    /// Adds a group of the entries from `first` to `last`, which match EtherType and protocol of IP; its number.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn add_group(&self, first: u32, last: u32) -> Result<u32> {
        let mut input = request(Opcode::CreateFlowGroup, 0, flow::GROUP_LEN);
        flow::TABLE_ID.set(&mut input, self.number);
        flow::GROUP_FIRST.set(&mut input, first);
        flow::GROUP_LAST.set(&mut input, last);
        flow::CRITERIA_ENABLE.set(&mut input, 1);
        flow::ETHERTYPE_MASK.set(&mut input, 0xffff);
        flow::PROTOCOL_MASK.set(&mut input, 0xff);
        let out = self.device.command(&input, 16)?;
        Ok(reply::OBJECT.get(&out))
    }

    /// Sends packets of this EtherType and protocol on, by entry `index` of `group`.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn add_entry(
        &self,
        (group, index): (u32, u32),
        (ethertype, protocol): (u16, u8),
        next: Next<'_>,
    ) -> Result<()> {
        let (kind, number) = match next {
            Next::Table(table) => (1, table.number),
            Next::Tir(tir) => (2, tir.0.number),
        };
        let mut input = request(Opcode::SetFlowTableEntry, 0, flow::ENTRY_LEN);
        flow::TABLE_ID.set(&mut input, self.number);
        flow::INDEX.set(&mut input, index);
        flow::GROUP_ID.set(&mut input, group);
        flow::ACTION.set(&mut input, 4);
        flow::DESTINATIONS.set(&mut input, 1);
        flow::ETHERTYPE.set(&mut input, ethertype.into());
        flow::PROTOCOL.set(&mut input, protocol.into());
        flow::DESTINATION_TYPE.set(&mut input, kind);
        flow::DESTINATION_ID.set(&mut input, number);
        self.device.command(&input, 16).map(drop)
    }

    /// Has packets that come to an underlay queue pair go to this table first.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn serve(&self, underlay: &QueuePair) -> Result<()> {
        let mut input = request(Opcode::SetFlowTableRoot, 0, flow::TABLE_LEN);
        flow::TABLE_ID.set(&mut input, self.number);
        flow::ROOT_QPN.set(&mut input, underlay.number());
        self.device.command(&input, 16).map(drop)
    }
}
