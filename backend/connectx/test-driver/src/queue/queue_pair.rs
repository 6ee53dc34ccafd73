//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::bits::{NO_USER_INDEX, ads, put_qword, qpc, reply, request};
use crate::error::{Error, Result};
use crate::function::bar::doorbell;
use crate::function::command::request;
use crate::function::device::{Object, append_pages};
use crate::function::opcode::Opcode;
use crate::function::uar::Uar;
use crate::memory::Buffer;
use crate::memory_key::region::{Access, ProtectionDomain, XrcDomain};
use crate::queue::completion::{CompletionQueue, Cqe};
use crate::queue::request::SendRequest;
use crate::queue::segment::{Sge, write_list};
use crate::queue::shared_receive::SharedReceiveQueue;

/// Bytes of a block of a send queue.
const BLOCK: usize = 64;

/// Transport service and kind of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Initiator of an extended reliable connection.
    XrcInitiator,
    /// Target of an extended reliable connection.
    XrcTarget,
    /// Initiator of dynamic connections.
    DynamicInitiator,
    /// QP 0.
    Smi,
    /// QP 1.
    Gsi,
    /// For changes to memory keys only.
    KeyUpdate,
}

impl Transport {
    pub(crate) const fn service_type(self) -> u32 {
        match self {
            Self::Rc => 0,
            Self::Uc => 1,
            Self::Ud => 2,
            Self::XrcInitiator | Self::XrcTarget => 3,
            Self::DynamicInitiator => 5,
            Self::Smi => 7,
            Self::Gsi => 8,
            Self::KeyUpdate => 0xc,
        }
    }

    const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Smi | Self::Gsi)
    }
}

/// Where a queue pair's receive requests come from.
#[derive(Debug, Clone, Copy)]
pub enum Receive<'a> {
    /// Its own queue of `1 << log_size` requests of up to `1 << log_sges`
    /// elements.
    Own {
        /// Number of requests as a power of two.
        log_size: u32,
        /// Elements of a request as a power of two.
        log_sges: u32,
    },
    /// A shared queue.
    Shared(&'a SharedReceiveQueue),
    /// Nowhere.
    None,
}

/// Configuration of a queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Config<'a> {
    /// Transport service.
    pub transport: Transport,
    /// Protection domain.
    pub pd: &'a Arc<ProtectionDomain>,
    /// Doorbell page.
    pub uar: &'a Arc<Uar>,
    /// Where send requests complete.
    pub send_cq: u32,
    /// Where receive requests complete.
    pub recv_cq: u32,
    /// Blocks of 64 bytes of the send queue as a power of two.
    pub log_send_blocks: u32,
    /// Receive queue.
    pub receive: Receive<'a>,
    /// XRC domain, of a target.
    pub xrcd: Option<&'a XrcDomain>,
    /// Source QP number of datagrams, where it is not its own.
    pub deth_sqpn: u32,
    /// Its datagrams are IP packets, and each request says what is done to them.
    pub offloads: bool,
    /// It is the address of a network interface's queues, and has none itself.
    pub underlay: bool,
    /// Index by which completions name it, of 24 bits, if not its number or its shared receive queue's.
    pub user_index: Option<u32>,
    /// Completions hold messages and answers of up to 64 bytes.
    pub in_completions: bool,
    /// It has no send queue: by lists of tags, such a one reads what a rendezvous says.
    pub receives_only: bool,
}

impl<'a> Config<'a> {
    /// A queue pair with queues of middling size and one completion queue for
    /// both directions.
    pub fn new(
        transport: Transport,
        pd: &'a Arc<ProtectionDomain>,
        uar: &'a Arc<Uar>,
        cq: &CompletionQueue,
    ) -> Self {
        let receive = match transport {
            Transport::XrcInitiator
            | Transport::XrcTarget
            | Transport::DynamicInitiator
            | Transport::KeyUpdate => Receive::None,
            _ => Receive::Own {
                log_size: 6,
                log_sges: 2,
            },
        };
        Self {
            transport,
            pd,
            uar,
            send_cq: cq.number(),
            recv_cq: cq.number(),
            log_send_blocks: 8,
            receive,
            xrcd: None,
            deth_sqpn: 0,
            offloads: false,
            underlay: false,
            user_index: None,
            in_completions: false,
            receives_only: false,
        }
    }
}

/// The peer and how to reach it.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    /// The peer's LID.
    pub lid: u16,
    /// The peer's queue pair.
    pub qpn: u32,
    /// The first PSN that the peer sends.
    pub receive_psn: u32,
    /// The first PSN to send.
    pub send_psn: u32,
    /// Path MTU: 1 is 256, 5 is 4096 bytes.
    pub mtu: u32,
    /// Service level.
    pub sl: u8,
    /// Timer code for acknowledgements: 4.096 µs times two to its power.
    pub ack_timeout: u32,
    /// Retries for lost packets, at most 7.
    pub retry_count: u32,
    /// Retries for a receiver that is not ready; 7 is without end.
    pub rnr_retry: u32,
    /// Timer code asked of the peer when not ready.
    pub min_rnr_nak: u32,
    /// Destination GID, for a global route.
    pub gid: Option<[u8; 16]>,
    /// Hop limit of the global route.
    pub hop_limit: u8,
}

impl Connection {
    /// To a queue pair, with parameters as applications choose them.
    pub const fn to(lid: u16, qpn: u32) -> Self {
        Self {
            lid,
            qpn,
            receive_psn: 0,
            send_psn: 0,
            mtu: 5,
            sl: 0,
            ack_timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_nak: 12,
            gid: None,
            hop_limit: 64,
        }
    }
}

#[derive(Debug)]
struct ReceiveQueue {
    log_size: u32,
    log_sges: u32,
    posted: u16,
    completed: u16,
}

/// Optional parameters of a change: the alternate path, and whether to migrate to it.
const ALTERNATE: u32 = 1 << 0;
const MIGRATION: u32 = 1 << 10;

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    object: Object,
    transport: Transport,
    ring: Buffer,
    record: Buffer,
    uar: Arc<Uar>,
    /// First word of the send queue in the ring.
    send_start: usize,
    log_send_blocks: u32,
    send_posted: u16,
    send_completed: u16,
    /// Blocks that each request takes, by its first.
    send_blocks: Vec<u8>,
    last_word: u64,
    receive: Option<ReceiveQueue>,
    _domain: Arc<ProtectionDomain>,
}

impl QueuePair {
    /// Creates a queue pair, in state Reset.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(config: &Config<'_>) -> Result<Self> {
        let device = config.pd.device();
        let has_send =
            config.transport != Transport::XrcTarget && !config.receives_only && !config.underlay;
        let send_len = if has_send {
            BLOCK << config.log_send_blocks
        } else {
            0
        };
        let (rq_type, receive) = match config.receive {
            Receive::Own { log_size, log_sges } => (
                0,
                Some(ReceiveQueue {
                    log_size,
                    log_sges,
                    posted: 0,
                    completed: 0,
                }),
            ),
            Receive::Shared(_) => (1, None),
            Receive::None => (3, None),
        };
        // Requests of the receive queue lie first.
        let receive_len = receive
            .as_ref()
            .map_or(0, |queue| 16usize << (queue.log_sges + queue.log_size));
        let receive_len = receive_len.next_multiple_of(BLOCK);
        let ring = device.allocate_pages((receive_len + send_len).max(BLOCK))?;
        let record = device.allocate_record()?;

        let mut input = request(Opcode::CreateQp, 0, request::PAGES);
        let context = &mut input[request::QPC..];
        qpc::ST.set(context, config.transport.service_type());
        qpc::PM_STATE.set(context, 3);
        qpc::PD.set(context, config.pd.number());
        if let Some(queue) = &receive {
            qpc::LOG_RQ_SIZE.set(context, queue.log_size);
            qpc::LOG_RQ_STRIDE.set(context, queue.log_sges);
        }
        // As kernels do, which name no page where there is nothing to ring.
        if has_send {
            qpc::LOG_SQ_SIZE.set(context, config.log_send_blocks);
            qpc::UAR_PAGE.set(context, config.uar.number());
        } else {
            qpc::NO_SQ.set(context, 1);
        }
        qpc::CQN_SND.set(context, config.send_cq);
        qpc::CQN_RCV.set(context, config.recv_cq);
        qpc::USER_INDEX.set(context, config.user_index.unwrap_or(NO_USER_INDEX));
        qpc::DETH_SQPN.set(context, config.deth_sqpn);
        let offloads = if config.underlay {
            2
        } else {
            config.offloads.into()
        };
        qpc::OFFLOAD_MODE.set(context, offloads);
        qpc::RQ_TYPE.set(context, rq_type);
        if let Receive::Shared(queue) = config.receive {
            qpc::SRQN.set(context, queue.number());
        }
        if config.in_completions {
            qpc::CS_REQ.set(context, 0x22);
            qpc::CS_RES.set(context, 2);
        }
        if let Some(domain) = config.xrcd {
            qpc::XRCD.set(context, domain.number());
        }
        put_qword(context, qpc::DBR_ADDR, record.iova());
        append_pages(&mut input, ring.pages(12));
        let out = device.command(&input, 16)?;
        let blocks = if has_send {
            1usize << config.log_send_blocks
        } else {
            0
        };
        Ok(Self {
            object: Object::new(device, Opcode::DestroyQp, reply::OBJECT.get(&out)),
            transport: config.transport,
            ring,
            record,
            uar: Arc::clone(config.uar),
            send_start: receive_len / 8,
            log_send_blocks: config.log_send_blocks,
            send_posted: 0,
            send_completed: 0,
            send_blocks: vec![0; blocks],
            last_word: 0,
            receive,
            _domain: Arc::clone(config.pd),
        })
    }

    /// A send queue of a network interface, of `1 << log_send_blocks` blocks from the start of `ring` on.
    pub(crate) fn of_send_queue(
        object: Object,
        (pd, uar): (&Arc<ProtectionDomain>, &Arc<Uar>),
        (ring, record): (Buffer, Buffer),
        log_send_blocks: u32,
    ) -> Self {
        Self {
            object,
            transport: Transport::Ud,
            ring,
            record,
            uar: Arc::clone(uar),
            send_start: 0,
            log_send_blocks,
            send_posted: 0,
            send_completed: 0,
            send_blocks: vec![0; 1 << log_send_blocks],
            last_word: 0,
            receive: None,
            _domain: Arc::clone(pd),
        }
    }

    /// Its number.
    #[inline]
    pub fn number(&self) -> u32 {
        self.object.number
    }

    fn modify(&self, opcode: Opcode, optional: u32, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut input = request(opcode, 0, request::PAGES);
        request::OBJECT.set(&mut input, self.object.number);
        request::OPT_PARAM_MASK.set(&mut input, optional);
        let context = &mut input[request::QPC..];
        qpc::ST.set(context, self.transport.service_type());
        qpc::PM_STATE.set(context, 3);
        fill(context);
        self.object.device.command(&input, 16).map(drop)
    }

    /// Reset to Init: what peers may do, which P_Key, and of datagrams the
    /// Q_Key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn to_init(&self, pkey_index: u32, access: Access, qkey: u32) -> Result<()> {
        self.modify(Opcode::Rst2InitQp, 0, |context| {
            let path = &mut context[qpc::PRIMARY_PATH..];
            ads::PKEY_INDEX.set(path, pkey_index);
            ads::PORT.set(path, 1);
            if self.transport.is_datagram() {
                qpc::Q_KEY.set(context, qkey);
            } else {
                set_access(context, access);
            }
        })
    }

    /// Init to Ready-to-Receive.
    ///
    /// # Errors
    /// [`Error`].
    pub fn to_ready_to_receive(&self, to: &Connection) -> Result<()> {
        self.modify(Opcode::Init2RtrQp, 0, |context| {
            qpc::LOG_MSG_MAX.set(context, 30);
            if self.transport.is_datagram() || self.transport == Transport::KeyUpdate {
                qpc::MTU.set(context, 5);
                return;
            }
            qpc::MTU.set(context, to.mtu);
            if self.transport == Transport::DynamicInitiator {
                return;
            }
            qpc::REMOTE_QPN.set(context, to.qpn);
            qpc::LOG_RRA_MAX.set(context, 4);
            qpc::MIN_RNR_NAK.set(context, to.min_rnr_nak);
            qpc::NEXT_RCV_PSN.set(context, to.receive_psn);
            set_path(&mut context[qpc::PRIMARY_PATH..], to);
        })
    }

    /// Ready-to-Receive to Ready-to-Send.
    ///
    /// # Errors
    /// [`Error`].
    pub fn to_ready_to_send(&self, to: &Connection) -> Result<()> {
        self.modify(Opcode::Rtr2RtsQp, 0, |context| {
            qpc::NEXT_SEND_PSN.set(context, to.send_psn);
            if !self.transport.is_datagram() {
                qpc::LOG_SRA_MAX.set(context, 4);
                qpc::RETRY_COUNT.set(context, to.retry_count);
                qpc::RNR_RETRY.set(context, to.rnr_retry);
                let path = &mut context[qpc::PRIMARY_PATH..];
                ads::ACK_TIMEOUT.set(path, to.ack_timeout);
            }
        })
    }

    /// From Reset to Ready-to-Send.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect(&self, access: Access, to: &Connection) -> Result<()> {
        self.to_init(0, access, 0)?;
        self.to_ready_to_receive(to)?;
        self.to_ready_to_send(to)
    }

    /// From Reset to Ready-to-Send, of datagrams.
    ///
    /// # Errors
    /// [`Error`].
    pub fn activate(&self, pkey_index: u32, qkey: u32) -> Result<()> {
        let nobody = Connection::to(0, 0);
        self.to_init(pkey_index, Access::LOCAL_READ, qkey)?;
        self.to_ready_to_receive(&nobody)?;
        self.to_ready_to_send(&nobody)
    }

    /// Ready-to-Send, with another set of counters, which a driver changes while the queue pair works.
    ///
    /// # Errors
    /// [`Error`].
    pub fn count_in(&self, set: u32) -> Result<()> {
        const COUNTER_SET_ID: u32 = 1 << 25;
        self.modify(Opcode::Rts2RtsQp, COUNTER_SET_ID, |context| {
            qpc::COUNTER_SET_ID.set(context, set);
        })
    }

    /// Arms the connection, to migrate to this path.
    ///
    /// # Errors
    /// [`Error`].
    pub fn arm(&self, to: &Connection) -> Result<()> {
        const REARM: u32 = 1;
        self.modify(Opcode::Rts2RtsQp, ALTERNATE | MIGRATION, |context| {
            qpc::PM_STATE.set(context, REARM);
            let path = &mut context[qpc::SECONDARY_PATH..];
            set_path(path, to);
            ads::ACK_TIMEOUT.set(path, to.ack_timeout);
        })
    }

    /// Has the connection migrate to its alternate path.
    ///
    /// # Errors
    /// [`Error`].
    pub fn migrate(&self) -> Result<()> {
        const MIGRATED: u32 = 3;
        self.modify(Opcode::Rts2RtsQp, MIGRATION, |context| {
            qpc::PM_STATE.set(context, MIGRATED);
        })
    }

    /// To Error: all requests are flushed.
    ///
    /// # Errors
    /// [`Error`].
    pub fn to_error(&self) -> Result<()> {
        self.modify(Opcode::ToErrQp, 0, |_| {})
    }

    /// To Reset: both queues are empty.
    ///
    /// # Errors
    /// [`Error`].
    pub fn to_reset(&mut self) -> Result<()> {
        self.modify(Opcode::ToRstQp, 0, |_| {})?;
        self.send_posted = 0;
        self.send_completed = 0;
        if let Some(queue) = &mut self.receive {
            queue.posted = 0;
            queue.completed = 0;
        }
        self.record.words()[0].store(0, Ordering::Release);
        Ok(())
    }

    /// Its context, as `mlx5_ifc_qpc`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn query(&self) -> Result<Vec<u8>> {
        let mut input = request(Opcode::QueryQp, 0, 16);
        request::OBJECT.set(&mut input, self.object.number);
        let mut out = self.object.device.command(&input, 0x110)?;
        Ok(out.split_off(reply::QPC))
    }

    /// Its state, asked of the device: 0 Reset, 1 Init, 2 RTR, 3 RTS, 4 SQE,
    /// 5 SQD, 6 Error.
    ///
    /// # Errors
    /// [`Error`].
    pub fn state(&self) -> Result<u32> {
        Ok(qpc::STATE.get(&self.query()?))
    }

    #[inline]
    fn send_words(&self) -> &[AtomicU64] {
        &self.ring.words()[self.send_start..][..8 << self.log_send_blocks]
    }

    #[inline]
    fn records(&self) -> &[AtomicU32] {
        self.record.halves()
    }

    /// Blocks of the send queue that are free.
    #[inline]
    pub fn send_room(&self) -> usize {
        self.send_blocks.len() - usize::from(self.send_posted.wrapping_sub(self.send_completed))
    }

    /// Writes a request to the send queue, and makes it known in the doorbell
    /// record; returns the number of its first block, which its completion
    /// will bear. The device need not notice before [`QueuePair::ring`].
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`].
    #[inline]
    pub fn post(&mut self, send: &SendRequest<'_>) -> Result<u16> {
        let counter = self.send_posted;
        let (word, blocks) = send.emit(
            self.send_words(),
            counter,
            self.object.number,
            self.send_room(),
        )?;
        let slot = usize::from(counter) & (self.send_blocks.len() - 1);
        self.send_blocks[slot] = blocks as u8;
        self.send_posted = counter.wrapping_add(blocks as u16);
        self.last_word = word;
        self.publish();
        Ok(counter)
    }

    /// After the requests: whoever sees the record sees them.
    #[inline]
    fn publish(&self) {
        self.records()[1].store(u32::from(self.send_posted).to_be(), Ordering::Release);
    }

    /// Rings the doorbell for everything posted.
    ///
    /// # Errors
    /// [`Error::Client`].
    #[inline]
    pub fn ring(&self) -> Result<()> {
        self.uar.ring(doorbell::SEND, self.last_word)
    }

    /// Posts a request and rings.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], [`Error::Client`].
    #[inline]
    pub fn post_send(&mut self, send: &SendRequest<'_>) -> Result<u16> {
        let counter = self.post(send)?;
        self.ring()?;
        Ok(counter)
    }

    /// Posts a request, and rings by its first block in place of a word of it (BlueFlame).
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::TooLong`], [`Error::Client`].
    #[inline]
    pub fn post_send_by_block(&mut self, send: &SendRequest<'_>) -> Result<u16> {
        let counter = self.post(send)?;
        let slot = usize::from(counter) & (self.send_blocks.len() - 1);
        let block = &self.send_words()[8 * slot..][..8];
        self.uar.ring_block(doorbell::SEND, block)?;
        Ok(counter)
    }

    /// Writes `blocks` of 64 bytes to the send queue as they are and makes
    /// them known as one request. For tests of what no driver does.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn post_raw(&mut self, blocks: &[[u8; BLOCK]]) -> Result<u16> {
        if blocks.is_empty() || blocks.len() > self.send_room() {
            return Err(Error::Full);
        }
        let counter = self.send_posted;
        let mask = self.send_blocks.len() - 1;
        for (index, block) in blocks.iter().enumerate() {
            let slot = (usize::from(counter) + index) & mask;
            self.ring.write(self.send_start * 8 + slot * BLOCK, block);
        }
        self.send_blocks[usize::from(counter) & mask] = blocks.len() as u8;
        self.send_posted = counter.wrapping_add(blocks.len() as u16);
        self.last_word = crate::bits::qword(&blocks[0], 0);
        self.publish();
        self.ring()?;
        Ok(counter)
    }

    /// The doorbell record and what lies around it: receive counter, send
    /// counter. For tests of what no driver does.
    pub fn raw_record(&self) -> &Buffer {
        &self.record
    }

    /// Gives back the room of a completed request and of all before it.
    #[inline]
    pub fn complete(&mut self, entry: &Cqe) {
        let counter = entry.wqe_counter();
        let slot = usize::from(counter) & (self.send_blocks.len() - 1);
        self.send_completed = counter.wrapping_add(u16::from(self.send_blocks[slot]));
    }

    /// Posts a receive request; returns its number.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::TooLong`] for a list that is too long, or
    /// where there is no receive queue.
    #[inline]
    pub fn post_receive(&mut self, list: &[Sge]) -> Result<u16> {
        let Some(queue) = &mut self.receive else {
            return Err(Error::TooLong(list.len()));
        };
        if usize::from(queue.posted.wrapping_sub(queue.completed)) >= 1 << queue.log_size {
            return Err(Error::Full);
        }
        let room = 1 << queue.log_sges;
        let slot = usize::from(queue.posted) & ((1 << queue.log_size) - 1);
        let words = &self.ring.words()[slot * room * 2..][..room * 2];
        write_list(words, list)?;
        let number = queue.posted;
        queue.posted = number.wrapping_add(1);
        let posted = u32::from(queue.posted);
        self.records()[0].store(posted.to_be(), Ordering::Release);
        Ok(number)
    }

    /// Gives back the room of a completed receive request.
    #[inline]
    pub fn complete_receive(&mut self, entry: &Cqe) {
        if let Some(queue) = &mut self.receive {
            queue.completed = entry.wqe_counter().wrapping_add(1);
        }
    }

    /// Makes the queue pair a member of a multicast group.
    ///
    /// # Errors
    /// [`Error`].
    pub fn attach_multicast(&self, gid: [u8; 16]) -> Result<()> {
        self.multicast(Opcode::AttachToMcg, gid)
    }

    /// Ends the membership.
    ///
    /// # Errors
    /// [`Error`].
    pub fn detach_multicast(&self, gid: [u8; 16]) -> Result<()> {
        self.multicast(Opcode::DetachFromMcg, gid)
    }

    fn multicast(&self, opcode: Opcode, gid: [u8; 16]) -> Result<()> {
        let mut input = request(opcode, 0, 32);
        request::OBJECT.set(&mut input, self.object.number);
        input[request::MULTICAST_GID..].copy_from_slice(&gid);
        self.object.device.command(&input, 16).map(drop)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // As the stock driver does before it destroys one. A send queue is none, and is destroyed as it is.
        let _ = self.modify(Opcode::ToRstQp, 0, |_| {});
    }
}

fn set_access(context: &mut [u8], access: Access) {
    qpc::RRE.set(context, access.remote_read.into());
    qpc::RWE.set(context, access.remote_write.into());
    qpc::RAE.set(context, access.remote_atomic.into());
}

fn set_path(path: &mut [u8], to: &Connection) {
    ads::RLID.set(path, to.lid.into());
    ads::SL.set(path, to.sl.into());
    ads::PORT.set(path, 1);
    if let Some(gid) = to.gid {
        ads::GRH.set(path, 1);
        ads::HOP_LIMIT.set(path, to.hop_limit.into());
        path[ads::RGID..ads::RGID + 16].copy_from_slice(&gid);
    }
}
