//! What becomes of a guest's command: answered here, given to the VF, or refused.
//!
//! Closed by default. A command that is not listed is refused; so is one that names an object, a doorbell
//! page or a port that is not the guest's. Numbers of objects are the VF's own, since the data path
//! carries them.

use connectx::bits::capability::{
    TYPE_ATOMIC, TYPE_GENERAL, atomic_caps, cmd_hca_cap as cap, query_hca_cap_out, set_hca_cap_in,
};
use connectx::bits::command::{
    Opcode, Status, alloc_pd_out, create_eq_in, query_issi_out, set_issi_in,
};
use connectx::bits::completion::{cqc, create_cq_in, modify_cq_in, query_cq_out};
use connectx::bits::counter::query_q_counter_in;
use connectx::bits::event::{
    EQE_SIZE, STATE_ARMED, STATE_FIRED, create_eq_out, destroy_eq_in, eqc, query_eq_out,
};
use connectx::bits::memory_key::{create_mkey_in, mkc};
use connectx::bits::port::{
    REGISTER_NODE_DESC, REGISTER_PMTU, REGISTER_PTYS, REGISTER_PVLC, access_register_in,
    mad_ifc_in, modify_hca_vport_context_in, ptys_reg,
};
use connectx::bits::queue_pair::{ReceiveType, ServiceType, create_qp_in, qpc, query_qp_out};
use connectx::bits::shared_receive::{create_srq_in, srqc};
use connectx::bits::{Field, Wide};
use connectx::queue::Buffer;
use connectx::queue::event::{EventQueue, LOG_MAX_EQ_SIZE};

use crate::guest::{Guest, Kind, Stage};

/// User context that a command is from: none but the kernel's driver has any here.
const UID: Field = Field::new(0x00, 15, 0);
/// Where requests and replies have their object's number.
const NUMBER: Field = alloc_pd_out::PD;
/// Where the lists of pages begin.
const LIST: usize = 0x110;
/// Bytes behind the context of a request about a completion queue that name memory of user contexts.
const CQ_USER_MEMORY: std::ops::Range<usize> = 0x50..LIST;
/// The same behind the context of a queue pair.
const QP_USER_MEMORY: std::ops::Range<usize> = 0x100..LIST;
/// Operation of a register's access: it is read.
const READ: u32 = 1;

/// Why a command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The status in its reply.
    pub status: Status,
    /// The reason, for the log.
    pub reason: &'static str,
}

const fn refuse<T>(status: Status, reason: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, reason })
}

/// What is to be done with a command.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It is answered: the reply begins with these bytes.
    Answer(Vec<u8>),
    /// The VF gets it, as the request is now.
    Forward(After),
    /// The driver begins anew, or has gone: whatever it has left goes away.
    Clear(Stage),
}

/// What to do when the VF has done the command.
#[derive(Debug)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// The guest has a new object.
    Made(Kind),
    /// An object is gone.
    Gone(Kind, u32),
    /// The guest has a new doorbell page.
    Page,
    /// A page is gone.
    PageGone(u32),
    /// There is a new event queue: filled by the daemon, or, if not, announced by this vector.
    EventQueue(Option<Box<EventQueue>>, u32),
    /// The reply names a page, at this offset.
    ShowPage(Field, usize),
}

/// What is known of the VF to judge by.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    /// General capabilities as the guest sees them.
    pub general: &'a [u8],
    /// Capabilities of atomic operations as the guest sees them.
    pub atomic: &'a [u8],
    /// Interrupt vectors of the guest's function.
    pub vectors: u16,
    /// The daemon's own doorbell page.
    pub own_page: u32,
}

/// Judges a command, and makes of the request what the VF is to get.
pub(crate) fn judge(
    guest: &mut Guest,
    facts: &Facts<'_>,
    request: &mut [u8],
) -> Result<Verdict, Refusal> {
    let code = create_eq_in::OPCODE.get(request) as u16;
    let Some(opcode) = Opcode::from_code(code) else {
        return refuse(Status::BadOperation, "unknown command");
    };
    if UID.get(request) != 0 {
        return refuse(Status::BadParameter, "there are no user contexts");
    }
    check_stage(guest, opcode)?;
    let mut judge = Judge { guest, facts };
    judge.of(opcode, request)
}

/// Commands come in an order: a function is enabled, initialized, and then has objects.
fn check_stage(guest: &Guest, opcode: Opcode) -> Result<(), Refusal> {
    let needed = match opcode {
        Opcode::EnableHca | Opcode::DisableHca | Opcode::TeardownHca => Stage::Disabled,
        Opcode::QueryIssi
        | Opcode::SetIssi
        | Opcode::QueryPages
        | Opcode::ManagePages
        | Opcode::QueryHcaCap
        | Opcode::SetHcaCap
        | Opcode::QueryAdapter
        | Opcode::InitHca => Stage::Enabled,
        _ => Stage::Initialized,
    };
    if guest.stage >= needed {
        Ok(())
    } else {
        refuse(
            Status::BadSystemState,
            "the function is not enabled or not initialized",
        )
    }
}

struct Judge<'a> {
    guest: &'a mut Guest,
    facts: &'a Facts<'a>,
}

const DONE: Result<Verdict, Refusal> = Ok(Verdict::Answer(Vec::new()));
const FORWARD: Result<Verdict, Refusal> = Ok(Verdict::Forward(After::Nothing));

impl Judge<'_> {
    fn of(&mut self, opcode: Opcode, request: &mut [u8]) -> Result<Verdict, Refusal> {
        match opcode {
            Opcode::EnableHca => {
                self.guest.stage = self.guest.stage.max(Stage::Enabled);
                DONE
            }
            Opcode::InitHca => {
                self.guest.stage = Stage::Initialized;
                DONE
            }
            Opcode::DisableHca => Ok(Verdict::Clear(Stage::Disabled)),
            Opcode::TeardownHca => Ok(Verdict::Clear(self.guest.stage.min(Stage::Enabled))),
            Opcode::QueryIssi => {
                let mut reply = vec![0; query_issi_out::SIZE];
                query_issi_out::SUPPORTED_ISSI_DW0.set(&mut reply, 1);
                Ok(Verdict::Answer(reply))
            }
            Opcode::SetIssi if set_issi_in::CURRENT_ISSI.get(request) == 0 => DONE,
            Opcode::SetIssi => refuse(
                Status::BadParameter,
                "this version of the interface is not supported",
            ),
            // Firmware has its pages from the daemon.
            Opcode::QueryPages | Opcode::ManagePages => DONE,
            Opcode::QueryHcaCap => self.query_capabilities(request),
            Opcode::SetHcaCap => self.set_capabilities(request),
            Opcode::QueryAdapter => FORWARD,
            Opcode::QueryHcaVportContext
            | Opcode::ModifyHcaVportContext
            | Opcode::QueryHcaVportGid
            | Opcode::QueryHcaVportPkey => {
                own_port(request)?;
                FORWARD
            }
            Opcode::AccessReg => register(request),
            Opcode::MadIfc if mad_ifc_in::PORT.get(request) <= 1 => FORWARD,
            Opcode::MadIfc => refuse(Status::BadParameter, "there is one port"),
            Opcode::AllocPd => made(Kind::ProtectionDomain),
            Opcode::DeallocPd => self.gone(Kind::ProtectionDomain, request),
            Opcode::AllocXrcd => made(Kind::XrcDomain),
            Opcode::DeallocXrcd => self.gone(Kind::XrcDomain, request),
            Opcode::AllocQCounter => made(Kind::Counters),
            Opcode::DeallocQCounter => self.gone(Kind::Counters, request),
            Opcode::QueryQCounter => {
                own_port(request)?;
                self.own(
                    Kind::Counters,
                    query_q_counter_in::COUNTER_SET_ID.get(request),
                )?;
                FORWARD
            }
            Opcode::AllocUar if self.guest.has_physical_page(self.facts.own_page) => {
                Ok(Verdict::Forward(After::Page))
            }
            Opcode::AllocUar => self.share_page(),
            Opcode::DeallocUar => self.free_page(request),
            Opcode::CreateMkey => self.create_key(request),
            Opcode::QueryMkey => self.with(Kind::Key, request),
            Opcode::DestroyMkey => self.gone(Kind::Key, request),
            Opcode::CreateEq => self.create_event_queue(request),
            Opcode::QueryEq => self.query_event_queue(request),
            Opcode::DestroyEq => self.gone(Kind::EventQueue, request),
            Opcode::CreateCq => self.create_completion_queue(request),
            Opcode::ModifyCq => self.modify_completion_queue(request),
            Opcode::QueryCq => {
                self.with(Kind::CompletionQueue, request)?;
                let at = query_cq_out::CQ_CONTEXT.position().0 / 8;
                Ok(Verdict::Forward(After::ShowPage(cqc::UAR_PAGE, at)))
            }
            Opcode::DestroyCq => self.gone(Kind::CompletionQueue, request),
            Opcode::CreateSrq => self.create_shared_receive_queue(request),
            Opcode::QuerySrq | Opcode::ArmRq => self.with(Kind::SharedReceiveQueue, request),
            Opcode::DestroySrq => self.gone(Kind::SharedReceiveQueue, request),
            Opcode::CreateQp => self.create_queue_pair(request),
            Opcode::QueryQp => {
                self.with(Kind::QueuePair, request)?;
                let at = query_qp_out::QPC.position().0 / 8;
                Ok(Verdict::Forward(After::ShowPage(qpc::UAR_PAGE, at)))
            }
            Opcode::DestroyQp => self.gone(Kind::QueuePair, request),
            Opcode::Rst2Init
            | Opcode::Init2Init
            | Opcode::Init2Rtr
            | Opcode::Rtr2Rts
            | Opcode::Rts2Rts
            | Opcode::Sqerr2Rts
            | Opcode::Sqd2Rts
            | Opcode::ToErr
            | Opcode::ToRst
            | Opcode::AttachToMcg
            | Opcode::DetachFromMcg => self.with(Kind::QueuePair, request),
        }
    }

    /// The guest's own object.
    fn own(&self, kind: Kind, number: u32) -> Result<(), Refusal> {
        if self.guest.has(kind, number) {
            Ok(())
        } else {
            refuse(
                Status::BadResource,
                match kind {
                    Kind::ProtectionDomain => "no such protection domain",
                    Kind::XrcDomain => "no such XRC domain",
                    Kind::Counters => "no such set of counters",
                    Kind::Key => "no such memory key",
                    Kind::CompletionQueue => "no such completion queue",
                    Kind::SharedReceiveQueue => "no such shared receive queue",
                    Kind::QueuePair => "no such queue pair",
                    Kind::EventQueue => "no such event queue",
                },
            )
        }
    }

    /// The guest's own object, or none: drivers leave fields zero that do not count.
    fn own_or_none(&self, kind: Kind, number: u32) -> Result<(), Refusal> {
        if number == 0 {
            Ok(())
        } else {
            self.own(kind, number)
        }
    }

    /// A command about an object.
    fn with(&self, kind: Kind, request: &[u8]) -> Result<Verdict, Refusal> {
        self.own(kind, NUMBER.get(request))?;
        FORWARD
    }

    /// A command that takes an object away.
    fn gone(&self, kind: Kind, request: &[u8]) -> Result<Verdict, Refusal> {
        let number = NUMBER.get(request);
        self.own(kind, number)?;
        Ok(Verdict::Forward(After::Gone(kind, number)))
    }

    fn query_capabilities(&self, request: &[u8]) -> Result<Verdict, Refusal> {
        let modifier = create_eq_in::OP_MOD.get(request);
        let current = modifier & 1 == 1;
        let mut shown = match modifier >> 1 {
            TYPE_GENERAL => self.facts.general.to_vec(),
            TYPE_ATOMIC => self.facts.atomic.to_vec(),
            _ => return refuse(Status::BadParameter, "no such kind of capabilities"),
        };
        if modifier >> 1 == TYPE_GENERAL && current {
            if let Some(log) = self.guest.log_max_qp {
                cap::LOG_MAX_QP.set(&mut shown, log);
            }
            cap::LOG_UAR_PAGE_SZ.set(&mut shown, self.guest.log_uar_page_size);
        }
        let mut reply = vec![0; query_hca_cap_out::CAPABILITY.position().0 / 8];
        reply.extend(shown);
        Ok(Verdict::Answer(reply))
    }

    /// The driver says which of the capabilities it wants. It gets no more than there are.
    fn set_capabilities(&mut self, request: &[u8]) -> Result<Verdict, Refusal> {
        let wanted = set_hca_cap_in::CAPABILITY.get(request);
        match create_eq_in::OP_MOD.get(request) >> 1 {
            TYPE_GENERAL => {
                for field in [cap::LOG_MAX_QP, cap::PKEY_TABLE_SIZE, cap::CQE_VERSION] {
                    if field.get(wanted) > field.get(self.facts.general) {
                        return refuse(Status::ExceededLimits, "more than the device has");
                    }
                }
                self.guest.log_max_qp = Some(cap::LOG_MAX_QP.get(wanted));
                self.guest.log_uar_page_size = cap::LOG_UAR_PAGE_SZ.get(wanted);
                DONE
            }
            TYPE_ATOMIC => {
                // The VF has its mode from the daemon, which chooses as drivers do.
                let mode = atomic_caps::ATOMIC_REQ_8B_ENDIANNESS_MODE;
                if mode.get(wanted) == mode.get(self.facts.atomic) {
                    DONE
                } else {
                    refuse(Status::ExceededLimits, "the device has another mode")
                }
            }
            _ => refuse(Status::BadParameter, "no such kind of capabilities"),
        }
    }

    /// Puts the VF's page in the place of the guest's.
    fn translate_page(&self, field: Field, context: &mut [u8]) -> Result<(), Refusal> {
        match self.guest.page(field.get(context)) {
            Some(physical) => {
                field.set(context, physical);
                Ok(())
            }
            None => refuse(Status::BadResource, "no such doorbell page"),
        }
    }

    /// A doorbell page for the driver itself: the daemon's, which traps.
    fn share_page(&mut self) -> Result<Verdict, Refusal> {
        let Some(page) = self.guest.add_trapped_page(self.facts.own_page) else {
            return refuse(Status::NoResources, "no doorbell page is free");
        };
        let mut reply = vec![0; alloc_pd_out::SIZE];
        NUMBER.set(&mut reply, page);
        Ok(Verdict::Answer(reply))
    }

    fn free_page(&mut self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        let page = NUMBER.get(request);
        match self.guest.page(page) {
            // The daemon's goes on being the daemon's.
            Some(physical) if physical == self.facts.own_page => {
                self.guest.remove_page(page);
                DONE
            }
            Some(physical) => {
                NUMBER.set(request, physical);
                Ok(Verdict::Forward(After::PageGone(page)))
            }
            None => refuse(Status::BadResource, "no such doorbell page"),
        }
    }

    fn create_key(&self, request: &[u8]) -> Result<Verdict, Refusal> {
        if create_mkey_in::MKEY_UMEM_VALID.is_set(request) {
            return refuse(Status::BadParameter, "there are no user contexts");
        }
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
        self.own_or_none(Kind::ProtectionDomain, mkc::PD.get(context))?;
        made(Kind::Key)
    }

    /// A queue for completions is the VF's. One for anything else is filled by the daemon, which alone
    /// hears of such events; the VF gets a queue that stays empty, so that the number is taken.
    fn create_event_queue(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        // Of the mask's four words only the first has events.
        let mask = Wide::new(0).get(create_eq_in::EVENT_BITMASK.get(request));
        let list = request.get(LIST..).unwrap_or_default();
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
        let log_size = eqc::LOG_EQ_SIZE.get(context);
        let vector = eqc::INTR.get(context);
        if vector >= u32::from(self.facts.vectors) {
            return refuse(Status::BadParameter, "no such interrupt vector");
        }
        if log_size > LOG_MAX_EQ_SIZE {
            return refuse(Status::ExceededLimits, "the event queue is too long");
        }
        let queue = if mask == 0 {
            None
        } else {
            let (page_size, offset) = (
                eqc::LOG_PAGE_SIZE.get(context),
                eqc::PAGE_OFFSET.get(context),
            );
            let buffer = Buffer::new(list, page_size, offset, (EQE_SIZE as u64) << log_size);
            let Ok(buffer) = buffer else {
                return refuse(
                    Status::BadInputLength,
                    "the page list is shorter than the queue",
                );
            };
            let queue = EventQueue::new(buffer, log_size, vector as u16, mask, true);
            Some(Box::new(queue))
        };
        create_eq_in::EVENT_BITMASK.get_mut(request).fill(0);
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get_mut(request);
        if queue.is_some() {
            eqc::INTR.set(context, 0);
        }
        self.translate_page(eqc::UAR_PAGE, context)?;
        Ok(Verdict::Forward(After::EventQueue(queue, vector)))
    }

    fn query_event_queue(&self, request: &[u8]) -> Result<Verdict, Refusal> {
        let eqn = destroy_eq_in::EQ_NUMBER.get(request);
        self.own(Kind::EventQueue, eqn)?;
        let Some(queue) = self.guest.events.get(&(eqn as u8)) else {
            let at = query_eq_out::EQ_CONTEXT_ENTRY.position().0 / 8;
            return Ok(Verdict::Forward(After::ShowPage(eqc::UAR_PAGE, at)));
        };
        let mut reply = vec![0; query_eq_out::SIZE];
        query_eq_out::EVENT_BITMASK.set(&mut reply, queue.mask);
        let context = query_eq_out::EQ_CONTEXT_ENTRY.get_mut(&mut reply);
        let (producer, consumer) = queue.counters();
        let state = if queue.has_fired() {
            STATE_FIRED
        } else {
            STATE_ARMED
        };
        for (field, value) in [
            (eqc::ST, state),
            (eqc::LOG_EQ_SIZE, queue.log_size()),
            (eqc::INTR, u32::from(queue.vector())),
            (eqc::PRODUCER_COUNTER, producer),
            (eqc::CONSUMER_COUNTER, consumer),
        ] {
            field.set(context, value);
        }
        Ok(Verdict::Answer(reply))
    }

    fn create_completion_queue(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        clear(request, CQ_USER_MEMORY);
        let context = create_cq_in::CQ_CONTEXT.get_mut(request);
        self.own(Kind::EventQueue, cqc::C_EQN_OR_APU_ELEMENT.get(context))?;
        self.translate_page(cqc::UAR_PAGE, context)?;
        made(Kind::CompletionQueue)
    }

    fn modify_completion_queue(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        clear(request, CQ_USER_MEMORY);
        let verdict = self.with(Kind::CompletionQueue, request)?;
        let context = modify_cq_in::CQ_CONTEXT.get_mut(request);
        self.own_or_none(Kind::EventQueue, cqc::C_EQN_OR_APU_ELEMENT.get(context))?;
        if cqc::UAR_PAGE.is_set(context) {
            self.translate_page(cqc::UAR_PAGE, context)?;
        }
        Ok(verdict)
    }

    fn create_shared_receive_queue(&self, request: &[u8]) -> Result<Verdict, Refusal> {
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get(request);
        self.own(Kind::ProtectionDomain, srqc::PD.get(context))?;
        self.own_or_none(Kind::XrcDomain, srqc::XRCD.get(context))?;
        self.own_or_none(Kind::CompletionQueue, srqc::CQN.get(context))?;
        made(Kind::SharedReceiveQueue)
    }

    fn create_queue_pair(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        clear(request, QP_USER_MEMORY);
        let context = create_qp_in::QPC.get_mut(request);
        // The queue pair for changes to memory keys has none: what it changes, the keys say.
        self.own_or_none(Kind::ProtectionDomain, qpc::PD.get(context))?;
        let service = ServiceType::from_code(qpc::ST.get(context));
        let is_xrc = service == Some(ServiceType::ExtendedReliableConnection);
        let receives = ReceiveType::from_code(qpc::RQ_TYPE.get(context));
        let shares = receives == Some(ReceiveType::Shared);
        for (kind, field, counts) in [
            (
                Kind::CompletionQueue,
                qpc::CQN_SND,
                !qpc::NO_SQ.is_set(context),
            ),
            (
                Kind::CompletionQueue,
                qpc::CQN_RCV,
                shares || receives == Some(ReceiveType::Own) && !is_xrc,
            ),
            (Kind::SharedReceiveQueue, qpc::SRQN_RMPN_XRQN, shares),
            (Kind::XrcDomain, qpc::XRCD, is_xrc),
        ] {
            match self.own_or_none(kind, field.get(context)) {
                // Drivers leave anything in fields that do not count. The VF gets none of it.
                Err(_) if !counts => field.set(context, 0),
                checked => checked?,
            }
        }
        // Without a send queue there is nothing to ring: kernels leave the page of an XRC target 0.
        if !qpc::NO_SQ.is_set(context) || qpc::UAR_PAGE.is_set(context) {
            self.translate_page(qpc::UAR_PAGE, context)?;
        }
        made(Kind::QueuePair)
    }
}

const fn made(kind: Kind) -> Result<Verdict, Refusal> {
    Ok(Verdict::Forward(After::Made(kind)))
}

fn clear(request: &mut [u8], range: std::ops::Range<usize>) {
    let end = range.end.min(request.len());
    if let Some(bytes) = request.get_mut(range.start.min(end)..end) {
        bytes.fill(0);
    }
}

/// A virtual function has no say over other ports.
fn own_port(request: &[u8]) -> Result<(), Refusal> {
    if modify_hca_vport_context_in::OTHER_VPORT.is_set(request) {
        return refuse(
            Status::BadParameter,
            "a virtual function has no say over other ports",
        );
    }
    Ok(())
}

/// Registers of the port, which are read, and the node's description, which may be written.
fn register(request: &[u8]) -> Result<Verdict, Refusal> {
    let reads = access_register_in::OP_MOD.get(request) == READ;
    let data = request.get(access_register_in::SIZE..).unwrap_or_default();
    match access_register_in::REGISTER_ID.get(request) {
        REGISTER_NODE_DESC => FORWARD,
        REGISTER_PMTU | REGISTER_PTYS | REGISTER_PVLC if reads => {
            if ptys_reg::LOCAL_PORT.get(data) > 1 {
                return refuse(Status::BadParameter, "there is one port");
            }
            FORWARD
        }
        REGISTER_PMTU | REGISTER_PTYS | REGISTER_PVLC => refuse(
            Status::BadParameter,
            "the port is not the guest's to set up",
        ),
        _ => refuse(Status::BadParameter, "no such register"),
    }
}

/// The number in the reply of a command that made an object.
pub(crate) fn number_made(kind: Kind, reply: &[u8]) -> u32 {
    match kind {
        Kind::EventQueue => create_eq_out::EQ_NUMBER.get(reply),
        _ => NUMBER.get(reply),
    }
}
