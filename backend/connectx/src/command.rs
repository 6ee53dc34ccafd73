//! Commands: parsed from a driver's bytes, then carried out with the engine or by the port.
//!
//! A request is read with fields that are zero where the driver cut it short. [`Head::read`] reads who sends it and
//! what it is about; [`Command::parse`] checks all that can be checked without the engine, its counts before they are
//! used as such; [`Commands::act`] does the rest. A command that is refused has changed nothing.

pub(crate) mod function;
pub(crate) mod memory;
mod network;
pub(crate) mod queue;
#[cfg(test)]
pub(crate) mod refusals;
pub(crate) mod request;
pub(crate) mod rule;

use hca::{Dma, Engine, PortChange, VfId};
use wire::{Gid, Qpn};

use crate::bits::command::{
    AnyOpcode as Op, Status, alloc_pd_out as head_out, create_eq_in as head_in,
};
use crate::bits::dword;
use crate::bits::initialization::UAR_CQ;
use crate::bits::work::BLOCK;
use crate::configuration::Configuration;
use crate::queue_format::Mlx5;
use crate::refusal::{Refusal, UNKNOWN};
use crate::state::FunctionState;
use crate::state::doorbell::Doorbell;
use crate::state::network::{QueueTable, Tir};
use crate::state::user_context::{HELD, Kind};

use function::capability::Choice;
use function::counter::QueryCounters;
use function::firmware_pages::Pages;
use function::port::PortCommand;
use memory::device_memory::Piece;
use memory::memory_key::NewKey;
use memory::signature::NewValues;
use memory::user_memory::NewMemory;
use network::flow_table::{NewEntry, NewGroup, NewTable, Root};
use network::interface::{NewTir, NewTis};
use network::work_queue::{NewReceiveQueue, NewSendQueue, QueueChange};
use queue::completion_queue::{CompletionQueueChange, NewCompletionQueue, NewRing};
use queue::dynamic::NewTarget;
use queue::event_queue::NewEventQueue;
use queue::queue_pair::{NewQueuePair, QueuePairChange};
use queue::receive_pool::Form;
use queue::shared_receive_queue::NewSharedQueue;
use request::Head;

/// In each request: the user context that it is for.
pub(crate) use head_in::UID;
/// Number of an object, in the requests and replies of most of them.
pub(crate) use head_out::PD as NUMBER;
/// Offset of the lists (pages, translations) behind a request's fixed part.
pub(crate) const LIST: usize = head_in::SIZE;

/// The list behind a request's fixed part.
fn list(request: &[u8]) -> &[u8] {
    request.get(LIST..).unwrap_or_default()
}

/// A command, with all that it says.
#[derive(Debug)]
pub(crate) enum Command<D: Dma + 'static> {
    EnableHca,
    DisableHca,
    InitHca,
    TeardownHca,
    QueryIssi,
    SetIssi(u32),
    QueryPages {
        when: u32,
    },
    ManagePages(Pages),
    QueryHcaCap {
        modifier: u32,
    },
    SetHcaCap(Choice),
    QueryAdapter,
    QueryLag,
    Port(PortCommand),
    DumpResource(Box<[u8; 256]>),
    AllocPd,
    DeallocPd(u32),
    AllocXrcd,
    DeallocXrcd(u32),
    AllocUar,
    DeallocUar(u32),
    AllocMemic {
        from: u64,
        len: u32,
        piece_len: u64,
        log_alignment: u32,
    },
    DeallocMemic(Piece),
    CreateMkey(Box<NewKey>),
    QueryMkey(u32),
    DestroyMkey(u32),
    CreatePsv(NewValues),
    DestroyPsv(u32),
    CreateUmem(NewMemory),
    DestroyUmem(u32),
    CreateUctx {
        wants_rights: bool,
    },
    DestroyUctx(u16),
    ReserveQpn,
    ReleaseQpn(Qpn),
    AllocQCounter,
    DeallocQCounter(u8),
    QueryQCounter(QueryCounters),
    QuerySpecialContexts,
    PageFaultResume {
        qpn: Qpn,
        half: hca::Half,
        is_there: bool,
    },
    CreateEq(NewEventQueue),
    QueryEq(u8),
    DestroyEq(u8),
    CreateCq(Box<NewCompletionQueue>),
    QueryCq(u32),
    ModifyCq(CompletionQueueChange),
    ResizeCq(Box<NewRing>),
    DestroyCq(u32),
    CreateQp(Box<NewQueuePair<D>>),
    QueryQp(u32),
    ModifyQp(Box<QueuePairChange>),
    DestroyQp(u32),
    CreateSrq(Box<NewSharedQueue>),
    QuerySrq {
        srqn: u32,
        form: Option<Form>,
    },
    ArmRq {
        srqn: u32,
        limit: u32,
    },
    DestroySrq(u32),
    CreateDct(Box<NewTarget>),
    QueryDct(u32),
    DrainDct(Qpn),
    DestroyDct(u32),
    ArmDct(Qpn),
    AttachToMcg(Qpn, Gid),
    DetachFromMcg(Qpn, Gid),
    QueryVportCounter,
    AllocTransportDomain,
    DeallocTransportDomain(u32),
    CreateTis(NewTis),
    DestroyTis(u32),
    CreateTir(Box<Tir>),
    ModifyTir(Box<NewTir>),
    DestroyTir(u32),
    CreateRqt(QueueTable),
    ModifyRqt {
        number: u32,
        queues: Option<Vec<u32>>,
    },
    DestroyRqt(u32),
    CreateSq(Box<NewSendQueue>),
    ModifySq(QueueChange),
    DestroySq(u32),
    QuerySq(u32),
    CreateRq(Box<NewReceiveQueue>),
    ModifyRq(QueueChange),
    DestroyRq(u32),
    QueryRq(u32),
    CreateFlowTable(NewTable),
    DestroyFlowTable(u32),
    CreateFlowGroup(NewGroup),
    DestroyFlowGroup {
        table: u32,
        group: u32,
    },
    SetFlowTableEntry(NewEntry),
    DeleteFlowTableEntry {
        table: u32,
        index: u32,
    },
    SetFlowTableRoot(Root),
}

impl<D: Dma + 'static> Command<D> {
    /// Parses a request whose head was read, and whose memory objects were replaced by their pages.
    ///
    /// # Errors
    /// [`Refusal`]. The driver hears of it where the head gives no reason to refuse the command.
    pub fn parse(
        head: &Head,
        request: &[u8],
        configuration: &Configuration,
    ) -> Result<Self, Refusal> {
        let number = NUMBER.get(request);
        let qpn = Qpn::new(number);
        Ok(match head.rule.opcode {
            Op::EnableHca => Self::EnableHca,
            Op::DisableHca => Self::DisableHca,
            Op::InitHca => Self::InitHca,
            Op::TeardownHca => Self::TeardownHca,
            Op::QueryIssi => Self::QueryIssi,
            Op::SetIssi => Self::SetIssi(function::device::parse_version(request)?),
            Op::QueryPages => Self::QueryPages {
                when: head_in::OP_MOD.get(request),
            },
            Op::ManagePages => Self::ManagePages(Pages::parse(request, configuration)?),
            Op::QueryHcaCap => Self::QueryHcaCap {
                modifier: head_in::OP_MOD.get(request),
            },
            Op::SetHcaCap => Self::SetHcaCap(Choice::parse(request)?),
            Op::QueryAdapter => Self::QueryAdapter,
            Op::QueryLag => Self::QueryLag,
            Op::AccessReg if head.rule.class == rule::Class::Turn => {
                Self::DumpResource(function::resource_dump::parse(request))
            }
            Op::QueryHcaVportContext
            | Op::ModifyHcaVportContext
            | Op::QueryHcaVportGid
            | Op::QueryHcaVportPkey
            | Op::AccessReg
            | Op::MadIfc => Self::Port(PortCommand::parse(head.rule.opcode, request)?),
            Op::AllocPd => Self::AllocPd,
            Op::DeallocPd => Self::DeallocPd(number),
            Op::AllocXrcd => Self::AllocXrcd,
            Op::DeallocXrcd => Self::DeallocXrcd(number),
            Op::AllocUar => Self::AllocUar,
            Op::DeallocUar => Self::DeallocUar(number),
            Op::AllocMemic => memory::device_memory::parse_request(request),
            Op::DeallocMemic => Self::DeallocMemic(Piece::parse(request)),
            Op::CreateMkey => Self::CreateMkey(Box::new(NewKey::parse::<D>(request)?)),
            Op::QueryMkey => Self::QueryMkey(number),
            Op::DestroyMkey => Self::DestroyMkey(number),
            Op::CreatePsv => Self::CreatePsv(NewValues::parse(request)?),
            Op::DestroyPsv => Self::DestroyPsv(number),
            Op::CreateUmem => Self::CreateUmem(NewMemory::parse(request)?),
            Op::DestroyUmem => Self::DestroyUmem(number),
            Op::CreateUctx => function::user_context::parse_opening(request),
            Op::DestroyUctx => function::user_context::parse_closing(request),
            Op::CreateGeneralObject => function::general_object::parse_creation(request)?,
            Op::DestroyGeneralObject => function::general_object::parse_destruction(request)?,
            Op::AllocQCounter => Self::AllocQCounter,
            Op::DeallocQCounter => Self::DeallocQCounter(function::counter::parse_set(request)),
            Op::QueryQCounter => Self::QueryQCounter(QueryCounters::parse(request)?),
            Op::QuerySpecialContexts => Self::QuerySpecialContexts,
            Op::PageFaultResume => function::paging::parse_resume(request),
            Op::CreateEq => Self::CreateEq(NewEventQueue::parse(request, configuration)?),
            Op::QueryEq => Self::QueryEq(queue::event_queue::parse_number(request)),
            Op::DestroyEq => Self::DestroyEq(queue::event_queue::parse_number(request)),
            Op::CreateCq => Self::CreateCq(Box::new(NewCompletionQueue::parse(request)?)),
            Op::QueryCq => Self::QueryCq(number),
            Op::ModifyCq => match NewRing::parse(request)? {
                Some(ring) => Self::ResizeCq(Box::new(ring)),
                None => Self::ModifyCq(CompletionQueueChange::parse(request)?),
            },
            Op::DestroyCq => Self::DestroyCq(number),
            Op::CreateQp => Self::CreateQp(Box::new(NewQueuePair::parse(request, configuration)?)),
            Op::QueryQp => Self::QueryQp(number),
            Op::Rst2Init
            | Op::Init2Init
            | Op::Init2Rtr
            | Op::Rtr2Rts
            | Op::Rts2Rts
            | Op::Sqerr2Rts
            | Op::Sqd2Rts
            | Op::ToErr
            | Op::ToRst => {
                Self::ModifyQp(Box::new(QueuePairChange::parse(head.rule.opcode, request)?))
            }
            Op::DestroyQp => Self::DestroyQp(number),
            Op::CreateSrq => {
                Self::CreateSrq(Box::new(NewSharedQueue::parse(request, head.rule.form)?))
            }
            Op::QuerySrq => Self::QuerySrq {
                srqn: number,
                form: head.rule.form,
            },
            Op::ArmRq => queue::shared_receive_queue::parse_limit(request)?,
            Op::DestroySrq => Self::DestroySrq(number),
            Op::CreateDct => Self::CreateDct(Box::new(NewTarget::parse(request)?)),
            Op::QueryDct => Self::QueryDct(number),
            Op::DrainDct => Self::DrainDct(qpn),
            Op::DestroyDct => Self::DestroyDct(number),
            Op::ArmDctForKeyViolation => Self::ArmDct(qpn),
            Op::AttachToMcg => {
                let (qpn, gid) = queue::multicast::parse_member(request)?;
                Self::AttachToMcg(qpn, gid)
            }
            Op::DetachFromMcg => {
                let (qpn, gid) = queue::multicast::parse(request);
                Self::DetachFromMcg(qpn, gid)
            }
            Op::QueryVportCounter => {
                network::interface::check_own_port(request)?;
                Self::QueryVportCounter
            }
            Op::AllocTransportDomain => Self::AllocTransportDomain,
            Op::DeallocTransportDomain => Self::DeallocTransportDomain(number),
            Op::CreateTis => Self::CreateTis(NewTis::parse(request)?),
            Op::DestroyTis => Self::DestroyTis(number),
            Op::CreateTir => Self::CreateTir(Box::new(network::interface::parse_tir(request)?)),
            Op::ModifyTir => Self::ModifyTir(Box::new(NewTir::parse(request)?)),
            Op::DestroyTir => Self::DestroyTir(number),
            Op::CreateRqt => Self::CreateRqt(network::interface::parse_table(request)?),
            Op::ModifyRqt => Self::ModifyRqt {
                number,
                queues: network::interface::parse_queues(request)?,
            },
            Op::DestroyRqt => Self::DestroyRqt(number),
            Op::CreateSq => Self::CreateSq(Box::new(NewSendQueue::parse(request, configuration)?)),
            Op::ModifySq => Self::ModifySq(QueueChange::parse(request)),
            Op::DestroySq => Self::DestroySq(number),
            Op::QuerySq => Self::QuerySq(number),
            Op::CreateRq => Self::CreateRq(Box::new(NewReceiveQueue::parse(request)?)),
            Op::ModifyRq => Self::ModifyRq(QueueChange::parse(request)),
            Op::DestroyRq => Self::DestroyRq(number),
            Op::QueryRq => Self::QueryRq(number),
            Op::CreateFlowTable => Self::CreateFlowTable(NewTable::parse(request)?),
            Op::DestroyFlowTable => network::flow_table::parse_table(request)?,
            Op::CreateFlowGroup => Self::CreateFlowGroup(NewGroup::parse(request)?),
            Op::DestroyFlowGroup => network::flow_table::parse_group(request)?,
            Op::SetFlowTableEntry => Self::SetFlowTableEntry(NewEntry::parse(request)?),
            Op::DeleteFlowTableEntry => network::flow_table::parse_entry(request)?,
            Op::SetFlowTableRoot => Self::SetFlowTableRoot(Root::parse(request)?),
            // In another layout: the rule has the command of version 0 in its place.
            _ => return Err(UNKNOWN),
        })
    }
}

/// Parses a request as a function of this configuration does, and forgets the command.
///
/// # Errors
/// The status that the driver would hear.
pub fn parse_command<D: Dma + 'static>(
    mut request: Vec<u8>,
    configuration: &Configuration,
) -> Result<(), Status> {
    let head = Head::read(&mut request, configuration);
    let parsed = head.and_then(|head| Command::<D>::parse(&head, &request, configuration));
    parsed.map(drop).map_err(|refusal| refusal.status)
}

/// A command that goes on in the next turn, or `None` where it is done.
pub(crate) type Continuation<D> = Result<Option<Command<D>>, Refusal>;

/// A function of the engine, for as long as one access lasts. Work that its commands and doorbells
/// cause is done when the engine runs next.
#[derive(Debug)]
pub(crate) struct Commands<'a, D: Dma + 'static> {
    pub engine: &'a mut Engine<Mlx5<D>>,
    pub vf: VfId,
}

impl<D: Dma + 'static> Commands<'_, D> {
    fn state(&self) -> &FunctionState {
        self.engine.vf(self.vf).face()
    }

    fn state_mut(&mut self) -> &mut FunctionState {
        self.engine.vf_mut(self.vf).face_mut().0
    }

    /// Logs a command that the function does not know.
    pub fn log_unknown(&mut self, code: u32) {
        if self.state_mut().first_unknown(code) {
            tracing::info!("command {code:#05x} is not known; the driver is told so");
        }
    }

    /// Carries a command out, and keeps account of the owner of its object.
    pub fn act(
        &mut self,
        head: &Head,
        command: Result<Command<D>, Refusal>,
        reply: &mut [u8],
    ) -> Continuation<D> {
        head.admit(self.state())?;
        let made = head.made();
        let owned = made.is_some() && head.uid != 0;
        if owned {
            self.engine.vf_mut(self.vf).take_memory(HELD)?;
        }
        let rest = command.and_then(|command| self.carry_out(command, reply));
        if rest.is_err() {
            if owned {
                self.engine.vf_mut(self.vf).give_memory(HELD);
            }
            return rest;
        }
        let contexts = &mut self.state_mut().user_contexts;
        if let Some((kind, number)) = made {
            let number = number.get(reply);
            if owned {
                contexts.give(head.uid, kind, number);
            }
            contexts.lay(kind, number, &head.named);
        }
        if head.rule.opcode == Op::ModifyCq && !head.named.is_empty() {
            contexts.relay(head.number, &head.named);
        }
        if let Some((kind, number)) = head.gone {
            contexts.lift(kind, number);
            self.disown(kind, number);
        }
        rest
    }

    /// The object belongs to no context any more.
    fn disown(&mut self, kind: Kind, number: u32) {
        if self.state_mut().user_contexts.take(kind, number) {
            self.engine.vf_mut(self.vf).give_memory(HELD);
        }
    }

    fn carry_out(&mut self, command: Command<D>, reply: &mut [u8]) -> Continuation<D> {
        use Command as C;
        let outcome = match command {
            C::EnableHca => function::device::enable_hca(self),
            C::DisableHca => function::device::disable_hca(self),
            C::InitHca => function::device::init_hca(self),
            C::TeardownHca => function::device::teardown_hca(self),
            C::QueryIssi => function::device::query_issi(self, reply),
            C::SetIssi(version) => function::device::set_issi(self, version),
            C::QueryPages { when } => function::firmware_pages::query_pages(self, when, reply),
            C::ManagePages(pages) => function::firmware_pages::manage_pages(self, pages, reply),
            C::QueryHcaCap { modifier } => {
                function::capability::query_hca_cap(self, modifier, reply)
            }
            C::SetHcaCap(choice) => function::capability::set_hca_cap(self, choice),
            C::QueryAdapter => function::device::query_adapter(reply),
            // Programs ask, whether the capabilities speak of it or not: the port is in no bond.
            C::QueryLag => Ok(()),
            // The port answers without the engine.
            C::Port(_) => Err(UNKNOWN),
            C::DumpResource(asked) => function::resource_dump::dump_resource(self, &asked, reply),
            C::AllocPd => function::resource::alloc_pd(self, reply),
            C::DeallocPd(number) => function::resource::dealloc_pd(self, number),
            C::AllocXrcd => function::resource::alloc_xrcd(self, reply),
            C::DeallocXrcd(number) => function::resource::dealloc_xrcd(self, number),
            C::AllocUar => function::resource::alloc_uar(self, reply),
            C::DeallocUar(number) => function::resource::dealloc_uar(self, number),
            C::AllocMemic {
                from,
                len,
                piece_len,
                log_alignment,
            } => memory::device_memory::alloc_memic(
                self,
                (from, len),
                piece_len,
                log_alignment,
                reply,
            ),
            C::DeallocMemic(piece) => memory::device_memory::dealloc_memic(self, piece),
            C::CreateMkey(key) => memory::memory_key::create_mkey(self, *key, reply),
            C::QueryMkey(index) => memory::memory_key::query_mkey(self, index, reply),
            C::DestroyMkey(index) => memory::memory_key::destroy_mkey(self, index),
            C::CreatePsv(values) => memory::signature::create_psv(self, values, reply),
            C::DestroyPsv(number) => memory::signature::destroy_psv(self, number),
            C::CreateUmem(memory) => memory::user_memory::create_umem(self, memory, reply),
            C::DestroyUmem(number) => memory::user_memory::destroy_umem(self, number),
            C::CreateUctx { wants_rights } => {
                function::user_context::open_context(self, wants_rights, reply)
            }
            C::DestroyUctx(uid) => return function::user_context::close_context(self, uid),
            C::ReserveQpn => function::general_object::reserve_qpn(self, reply),
            C::ReleaseQpn(qpn) => function::general_object::release_qpn(self, qpn),
            C::AllocQCounter => function::counter::alloc_q_counter(self, reply),
            C::DeallocQCounter(set) => function::counter::dealloc_q_counter(self, set),
            C::QueryQCounter(query) => function::counter::query_q_counter(self, query, reply),
            C::QuerySpecialContexts => function::paging::query_special_contexts(reply),
            C::PageFaultResume {
                qpn,
                half,
                is_there,
            } => function::paging::resume_page_fault(self, qpn, half, is_there),
            C::CreateEq(queue) => queue::event_queue::create_eq(self, queue, reply),
            C::QueryEq(eqn) => queue::event_queue::query_eq(self, eqn, reply),
            C::DestroyEq(eqn) => queue::event_queue::destroy_eq(self, eqn),
            C::CreateCq(queue) => queue::completion_queue::create_cq(self, *queue, reply),
            C::QueryCq(cqn) => queue::completion_queue::query_cq(self, cqn, reply),
            C::ModifyCq(change) => queue::completion_queue::modify_cq(self, change),
            C::ResizeCq(ring) => queue::completion_queue::resize_cq(self, *ring),
            C::DestroyCq(cqn) => queue::completion_queue::destroy_cq(self, cqn),
            C::CreateQp(queue_pair) => queue::queue_pair::create_qp(self, *queue_pair, reply),
            C::QueryQp(qpn) => queue::queue_pair::query_qp(self, qpn, reply),
            C::ModifyQp(change) => queue::queue_pair::modify_qp(self, &change),
            C::DestroyQp(qpn) => queue::queue_pair::destroy_qp(self, qpn),
            C::CreateSrq(queue) => queue::shared_receive_queue::create_srq(self, *queue, reply),
            C::QuerySrq { srqn, form } => {
                queue::shared_receive_queue::query_srq(self, srqn, form, reply)
            }
            C::ArmRq { srqn, limit } => queue::shared_receive_queue::arm_rq(self, srqn, limit),
            C::DestroySrq(srqn) => queue::shared_receive_queue::destroy_srq(self, srqn),
            C::CreateDct(target) => queue::dynamic::create_dct(self, *target, reply),
            C::QueryDct(dctn) => queue::dynamic::query_dct(self, dctn, reply),
            C::DrainDct(dctn) => queue::dynamic::drain_dct(self, dctn),
            C::DestroyDct(dctn) => queue::dynamic::destroy_dct(self, dctn),
            C::ArmDct(dctn) => queue::dynamic::arm_dct(self, dctn),
            C::AttachToMcg(qpn, gid) => queue::multicast::attach_to_mcg(self, qpn, gid),
            C::DetachFromMcg(qpn, gid) => queue::multicast::detach_from_mcg(self, qpn, gid),
            C::QueryVportCounter => network::interface::query_vport_counter(self, reply),
            C::AllocTransportDomain => network::interface::alloc_transport_domain(self, reply),
            C::DeallocTransportDomain(number) => {
                network::interface::dealloc_transport_domain(self, number)
            }
            C::CreateTis(tis) => network::interface::create_tis(self, tis, reply),
            C::DestroyTis(number) => network::interface::destroy_tis(self, number),
            C::CreateTir(tir) => network::interface::create_tir(self, *tir, reply),
            C::ModifyTir(change) => network::interface::modify_tir(self, *change),
            C::DestroyTir(number) => network::interface::destroy_tir(self, number),
            C::CreateRqt(table) => network::interface::create_rqt(self, table, reply),
            C::ModifyRqt { number, queues } => network::interface::modify_rqt(self, number, queues),
            C::DestroyRqt(number) => network::interface::destroy_rqt(self, number),
            C::CreateSq(queue) => network::work_queue::create_sq(self, *queue, reply),
            C::ModifySq(change) => network::work_queue::modify_sq(self, change),
            C::DestroySq(sqn) => network::work_queue::destroy_sq(self, sqn),
            C::QuerySq(sqn) => network::work_queue::query_sq(self, sqn, reply),
            C::CreateRq(queue) => network::work_queue::create_rq(self, *queue, reply),
            C::ModifyRq(change) => network::work_queue::modify_rq(self, change),
            C::DestroyRq(rqn) => network::work_queue::destroy_rq(self, rqn),
            C::QueryRq(rqn) => network::work_queue::query_rq(self, rqn, reply),
            C::CreateFlowTable(table) => network::flow_table::create_flow_table(self, table, reply),
            C::DestroyFlowTable(table) => network::flow_table::destroy_flow_table(self, table),
            C::CreateFlowGroup(group) => network::flow_table::create_flow_group(self, group, reply),
            C::DestroyFlowGroup { table, group } => {
                network::flow_table::destroy_flow_group(self, table, group)
            }
            C::SetFlowTableEntry(entry) => network::flow_table::set_flow_table_entry(self, entry),
            C::DeleteFlowTableEntry { table, index } => {
                network::flow_table::delete_flow_table_entry(self, table, index)
            }
            C::SetFlowTableRoot(root) => network::flow_table::set_flow_table_root(self, root),
        };
        outcome.map(|()| None)
    }

    /// Tells the driver that its port is Active, though nothing has changed.
    pub fn port_is_up(&mut self) {
        let (state, dma) = self.engine.vf_mut(self.vf).face_mut();
        state.event(dma, &crate::queue_format::port_entry(PortChange::Active));
    }

    /// Forgets all objects of the function. The port is left as it is.
    pub fn reset_objects(&mut self) {
        self.engine.reset_vf(self.vf);
        let gone = self.state_mut().reset();
        self.engine.discard(gone);
    }

    /// The first eight bytes of the last request posted.
    fn ring_send(&mut self, data: &[u8]) {
        let first = (dword(data, 0) >> 8) as u16;
        let qpn = dword(data, 4) >> 8;
        let blocks = crate::request::len(data).div_ceil(BLOCK).max(1) as u16;
        let through = first.wrapping_add(blocks);
        self.engine.ring_send(self.vf, Qpn::new(qpn), through);
    }

    fn ring_cq(&mut self, data: &[u8]) {
        let word = dword(data, 0);
        let cqn = dword(data, 4) & 0x00ff_ffff;
        if let Ok((queue, state, dma)) = self.engine.verbs(self.vf).cq_mut(cqn) {
            let hold = queue.request_notification(word).act(dma, state, queue);
            if hold > 0 {
                self.engine.hold_armed(self.vf, cqn, hold);
            }
        }
    }

    fn ring_eq(&mut self, word: u32, arm: bool) {
        if let Some((queue, interrupts)) = self.state_mut().event_queue((word >> 24) as u8) {
            queue.update(word, arm, interrupts);
        }
    }

    /// A doorbell in page `uar`, or a half of one.
    pub fn doorbell(&mut self, uar: u32, doorbell: Doorbell) {
        match doorbell {
            Doorbell::Events { word, arm } => self.ring_eq(word, arm),
            Doorbell::Queue { register, part } => {
                let Some(data) = self.state_mut().halves.join(uar, register, part) else {
                    return;
                };
                if usize::from(register) == UAR_CQ {
                    self.ring_cq(&data);
                } else {
                    self.ring_send(&data);
                }
            }
        }
    }
}
