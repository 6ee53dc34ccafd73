//! A client that takes what it can get: objects of each kind until the device
//! refuses, with lists of pages as long and scattered as they may be. For tests
//! and benches of what that costs the device.

use std::sync::Arc;

use crate::Uar;
use crate::bits::{cqc, eqc, mkc, psv, qpc, request, srqc, xrqc};
use crate::error::{Error, Result};
use crate::function::command::request;
use crate::function::device::Device;
use crate::function::opcode::{Opcode, Status};
use crate::memory_key::region::{Access, Klm, MemoryRegion, ProtectionDomain};
use crate::queue::completion::CompletionQueue;
use crate::queue::queue_pair::{Config, Connection, QueuePair, Receive, Transport};
use crate::queue::request::{Data, SendRequest};
use crate::queue::segment::Sge;

/// Kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// Protection domains.
    Domains,
    /// XRC domains.
    XrcDomains,
    /// Memory keys without a list.
    Keys,
    /// Memory keys with lists of so many pages.
    Pages(usize),
    /// Memory keys made of so many stretches.
    Stretches(usize),
    /// Completion queues of two to this power of entries.
    CompletionQueues(u32),
    /// Event queues.
    EventQueues,
    /// Shared receive queues.
    SharedQueues,
    /// Shared receive queues with lists of tags.
    TaggedQueues,
    /// Keys with signatures.
    SignedKeys,
    /// Signature values under way.
    SignatureValues,
    /// Queue pairs with long queues.
    QueuePairs,
    /// Connected queue pairs, each of which waits for a receiver with the
    /// longest request.
    Waiting,
    /// Multicast attachments.
    Attachments,
}

impl ObjectKind {
    /// All kinds, with lists of many lengths.
    pub const ALL: [Self; 18] = [
        Self::Attachments,
        Self::EventQueues,
        Self::QueuePairs,
        Self::SharedQueues,
        Self::TaggedQueues,
        Self::CompletionQueues(20),
        Self::Pages(1_000_000),
        Self::Pages(1 << 15),
        Self::Stretches(1 << 16),
        Self::CompletionQueues(12),
        Self::Stretches(100),
        Self::Pages(100),
        Self::Waiting,
        Self::SignedKeys,
        Self::SignatureValues,
        Self::Keys,
        Self::XrcDomains,
        Self::Domains,
    ];

    /// All kinds, beginning with another one in each round.
    pub fn round(number: usize) -> impl Iterator<Item = Self> {
        let kinds = Self::ALL.into_iter().cycle().skip(number * 5);
        kinds.take(Self::ALL.len())
    }
}

/// An open device, and what was taken there by means of the usual driver.
#[derive(Debug)]
pub struct Exhaustion {
    device: Device,
    domain: Arc<ProtectionDomain>,
    region: MemoryRegion,
    uar: Arc<Uar>,
    cq: CompletionQueue,
    lid: u16,
    waiting: Vec<QueuePair>,
    datagrams: Option<QueuePair>,
    taken: u64,
}

impl Exhaustion {
    /// Takes nothing yet of what `device` has to give.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(device: &Device) -> Result<Self> {
        let uar = Uar::new(device)?;
        let domain = ProtectionDomain::new(device)?;
        Ok(Self {
            region: MemoryRegion::physical(&domain, Access::ALL)?,
            domain,
            cq: CompletionQueue::new(device, &uar, 6, 0)?,
            lid: device.wait_active()?.lid,
            uar,
            device: device.clone(),
            waiting: Vec::new(),
            datagrams: None,
            taken: 0,
        })
    }

    /// Takes one more; `false` when the device refuses it for want of resources.
    ///
    /// # Errors
    /// [`Error`], also if it is refused for another reason.
    pub fn take(&mut self, what: ObjectKind) -> Result<bool> {
        self.taken += 1;
        match self.create(what) {
            Ok(()) => Ok(true),
            Err(Error::Refused {
                status: Status::NoResources,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn create(&mut self, what: ObjectKind) -> Result<()> {
        let input = match what {
            ObjectKind::Domains => request(Opcode::AllocPd, 0, 16),
            ObjectKind::XrcDomains => request(Opcode::AllocXrcd, 0, 16),
            ObjectKind::Keys => self.key(0, Vec::new()),
            ObjectKind::Pages(count) => self.key(1, scattered(count)),
            ObjectKind::Stretches(count) => {
                let klm = Klm {
                    len: 1,
                    key: 0,
                    addr: 0,
                };
                self.key(2, klm.to_bytes().repeat(count))
            }
            ObjectKind::CompletionQueues(log_size) => self.cq(log_size)?,
            ObjectKind::EventQueues => self.eq(),
            ObjectKind::SharedQueues => self.srq(),
            ObjectKind::TaggedQueues => self.xrq(),
            ObjectKind::SignedKeys => self.signed_key(),
            ObjectKind::SignatureValues => {
                let mut input = request(Opcode::CreatePsv, 0, 16);
                psv::NUM_PSV.set(&mut input, 4);
                psv::PD.set(&mut input, self.domain.number());
                return self.device.command(&input, 32).map(drop);
            }
            ObjectKind::QueuePairs => self.qp(),
            ObjectKind::Waiting => return self.wait(),
            ObjectKind::Attachments => return self.attach(),
        };
        self.device.command(&input, 16).map(drop)
    }

    fn key(&self, mode: u32, list: Vec<u8>) -> Vec<u8> {
        let mut input = request(Opcode::CreateMkey, 0, request::PAGES);
        let octwords = list.len().div_ceil(16) as u32;
        request::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, octwords);
        let context = &mut input[request::CONTEXT..];
        mkc::ACCESS_MODE.set(context, mode);
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
        mkc::LOG_PAGE_SIZE.set(context, 12);
        mkc::LENGTH64.set(context, 1);
        mkc::PD.set(context, self.domain.number());
        input.extend(list);
        input.resize(input.len().next_multiple_of(16), 0);
        input
    }

    fn cq(&self, log_size: u32) -> Result<Vec<u8>> {
        let mut input = request(Opcode::CreateCq, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::UAR_PAGE.set(context, self.uar.number());
        cqc::C_EQN.set(context, self.device.completion_eqn(0)?);
        input.extend(scattered((64 << log_size) / 4096 + 1));
        Ok(input)
    }

    fn eq(&self) -> Vec<u8> {
        const LOG_SIZE: u32 = 16;
        let mut input = request(Opcode::CreateEq, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        eqc::LOG_EQ_SIZE.set(context, LOG_SIZE);
        eqc::UAR_PAGE.set(context, self.device.control_uar());
        input.extend(scattered((64 << LOG_SIZE) / 4096));
        input
    }

    fn srq(&self) -> Vec<u8> {
        // 2^15 requests of 2 KiB.
        let mut input = request(Opcode::CreateSrq, 0, request::PAGES);
        let context = &mut input[request::CONTEXT..];
        srqc::LOG_SRQ_SIZE.set(context, 15);
        srqc::LOG_RQ_STRIDE.set(context, 7);
        srqc::PD.set(context, self.domain.number());
        input.extend(scattered(1 << 14));
        input
    }

    fn xrq(&self) -> Vec<u8> {
        let mut input = request(Opcode::CreateXrq, 0, xrqc::PAGES);
        let context = &mut input[request::CONTEXT..];
        xrqc::TOPOLOGY.set(context, 1);
        xrqc::CQN.set(context, self.cq.number());
        xrqc::LOG_MATCHING_LIST_SZ.set(context, 7);
        xrqc::PD.set(context, self.domain.number());
        xrqc::LOG_WQ_STRIDE.set(context, 5);
        input.extend(scattered(1));
        input
    }

    fn signed_key(&self) -> Vec<u8> {
        let mut input = self.key(2, Vec::new());
        let context = &mut input[request::CONTEXT..];
        mkc::UMR_EN.set(context, 1);
        mkc::BSF_EN.set(context, 1);
        mkc::BSF_OCTWORD_SIZE.set(context, 4);
        input
    }

    fn qp(&self) -> Vec<u8> {
        // 2^15 requests of 2 KiB to receive, and 2^15 blocks to send.
        let mut input = request(Opcode::CreateQp, 0, request::PAGES);
        let context = &mut input[request::QPC..];
        qpc::ST.set(context, Transport::Rc.service_type());
        qpc::PM_STATE.set(context, 3);
        qpc::PD.set(context, self.domain.number());
        qpc::LOG_RQ_SIZE.set(context, 15);
        qpc::LOG_RQ_STRIDE.set(context, 7);
        qpc::LOG_SQ_SIZE.set(context, 15);
        qpc::UAR_PAGE.set(context, self.uar.number());
        qpc::CQN_SND.set(context, self.cq.number());
        qpc::CQN_RCV.set(context, self.cq.number());
        input.extend(scattered((1 << 14) + (1 << 9)));
        input
    }

    fn wait(&mut self) -> Result<()> {
        let config = Config {
            receive: Receive::Own {
                log_size: 0,
                log_sges: 0,
            },
            log_send_blocks: 4,
            ..Config::new(Transport::Rc, &self.domain, &self.uar, &self.cq)
        };
        let mut qp = QueuePair::new(&config)?;
        qp.connect(Access::ALL, &Connection::to(self.lid, qp.number()))?;
        let sge = Sge {
            addr: self.device.memory().iova(),
            len: 1,
            key: self.region.key(),
        };
        qp.post_send(&SendRequest::send(Data::Memory(&[sge; 60])))?;
        self.waiting.push(qp);
        Ok(())
    }

    fn attach(&mut self) -> Result<()> {
        if self.datagrams.is_none() {
            let config = Config::new(Transport::Ud, &self.domain, &self.uar, &self.cq);
            self.datagrams = Some(QueuePair::new(&config)?);
        }
        let mut gid = [0; 16];
        gid[0] = 0xff;
        gid[8..].copy_from_slice(&self.taken.to_be_bytes());
        self.datagrams
            .as_ref()
            .map_or(Ok(()), |qp| qp.attach_multicast(gid))
    }
}

/// A list of so many pages, none beside another.
fn scattered(count: usize) -> Vec<u8> {
    (0..count as u64)
        .flat_map(|page| (0x1_0000_0000 + page * 0x2000).to_be_bytes())
        .collect()
}
