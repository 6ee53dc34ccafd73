//! Commands: parsed from a driver's bytes, then carried out with the engine or by the port.
//!
//! A request is read with fields that are zero where the driver cut it short. [`Head::read`] reads who sends it and
//! what it is about; [`Command::parse`] checks all that can be checked without the engine, its counts before they are
//! used as such; [`Commands::act`] does the rest. A command that is refused has changed nothing.

pub(crate) mod function;
pub(crate) mod memory;
mod network;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod rule;

use hca::{Dma, Engine, PortChange, VfId};
use wire::{Gid, Qpn};

use crate::bits::command::{AnyOpcode as Op, alloc_pd_out as head_out, create_eq_in as head_in};
use crate::bits::counter::alloc_q_counter_out;
use crate::bits::dword;
use crate::bits::event::{EventType, create_eq_out};
use crate::bits::initialization::UAR_CQ;
use crate::bits::signature::create_psv_out;
use crate::bits::work::BLOCK;
use crate::configuration::Configuration;
use crate::face::Mlx5;
use crate::queue::event::Entry;
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
        Ok(match head.opcode {
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
            | Op::MadIfc => Self::Port(PortCommand::parse(head.opcode, request)?),
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
            | Op::ToRst => Self::ModifyQp(Box::new(QueuePairChange::parse(head.opcode, request)?)),
            Op::DestroyQp => Self::DestroyQp(number),
            Op::CreateSrq => Self::CreateSrq(Box::new(NewSharedQueue::parse(request, head.form)?)),
            Op::QuerySrq => Self::QuerySrq {
                srqn: number,
                form: head.form,
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
            // The head has them as commands of version 0.
            Op::CreateXrcSrq
            | Op::DestroyXrcSrq
            | Op::QueryXrcSrq
            | Op::ArmXrcSrq
            | Op::CreateXrq
            | Op::DestroyXrq
            | Op::QueryXrq
            | Op::ArmXrq
            | Op::CreateRmp
            | Op::ModifyRmp
            | Op::DestroyRmp
            | Op::QueryRmp => return Err(UNKNOWN),
        })
    }
}

/// A command that goes on in the next turn, or `None` where it is done.
pub(crate) type Rest<D> = Result<Option<Command<D>>, Refusal>;

/// A function of the engine, for as long as one access lasts. Work that its commands and doorbells
/// cause is done when the engine runs next.
#[derive(Debug)]
pub(crate) struct Commands<'a, D: Dma + 'static> {
    pub engine: &'a mut Engine<Mlx5<D>>,
    pub vf: VfId,
}

impl<D: Dma + 'static> Commands<'_, D> {
    fn state(&self) -> &FunctionState {
        self.engine.face(self.vf)
    }

    fn state_mut(&mut self) -> &mut FunctionState {
        self.engine.face_mut(self.vf).0
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
    ) -> Rest<D> {
        head.admit(self.state())?;
        let owned = head.made().is_some() && head.uid != 0;
        if owned {
            self.engine.take_memory(self.vf, HELD)?;
        }
        let rest = command.and_then(|command| self.carry_out(command, reply));
        match (&rest, owned) {
            (Ok(_), _) => self.account(head, reply),
            (Err(_), true) => self.engine.give_memory(self.vf, HELD),
            (Err(_), false) => {}
        }
        rest
    }

    /// Keeps account of the object that a command has made, or taken away.
    fn account(&mut self, head: &Head, reply: &[u8]) {
        let contexts = &mut self.state_mut().user_contexts;
        if let Some(kind) = head.made() {
            let number = number_in(kind, reply);
            if head.uid != 0 {
                contexts.give(head.uid, kind, number);
            }
            contexts.lay(kind, number, &head.named);
        }
        if let Some(cqn) = head.relaid {
            contexts.relay(cqn, &head.named);
        }
        if let Some((kind, number)) = head.gone {
            contexts.lift(kind, number);
            self.disown(kind, number);
        }
    }

    /// The object belongs to no context any more.
    fn disown(&mut self, kind: Kind, number: u32) {
        if self.state_mut().user_contexts.take(kind, number) {
            self.engine.give_memory(self.vf, HELD);
        }
    }

    fn carry_out(&mut self, command: Command<D>, reply: &mut [u8]) -> Rest<D> {
        use Command as C;
        let outcome = match command {
            C::EnableHca => self.enable_hca(),
            C::DisableHca => self.disable_hca(),
            C::InitHca => self.init_hca(),
            C::TeardownHca => self.teardown_hca(),
            C::QueryIssi => self.query_issi(reply),
            C::SetIssi(version) => self.set_issi(version),
            C::QueryPages { when } => self.query_pages(when, reply),
            C::ManagePages(pages) => self.manage_pages(pages, reply),
            C::QueryHcaCap { modifier } => self.query_hca_cap(modifier, reply),
            C::SetHcaCap(choice) => self.set_hca_cap(choice),
            C::QueryAdapter => function::device::query_adapter(reply),
            // Programs ask, whether the capabilities speak of it or not: the port is in no bond.
            C::QueryLag => Ok(()),
            // The port answers without the engine.
            C::Port(_) => Err(UNKNOWN),
            C::DumpResource(asked) => self.dump_resource(&asked, reply),
            C::AllocPd => self.alloc_pd(reply),
            C::DeallocPd(number) => self.dealloc_pd(number),
            C::AllocXrcd => self.alloc_xrcd(reply),
            C::DeallocXrcd(number) => self.dealloc_xrcd(number),
            C::AllocUar => self.alloc_uar(reply),
            C::DeallocUar(number) => self.dealloc_uar(number),
            C::AllocMemic {
                from,
                len,
                piece_len,
                log_alignment,
            } => self.alloc_memic((from, len), piece_len, log_alignment, reply),
            C::DeallocMemic(piece) => self.dealloc_memic(piece),
            C::CreateMkey(key) => self.create_mkey(*key, reply),
            C::QueryMkey(index) => self.query_mkey(index, reply),
            C::DestroyMkey(index) => self.destroy_mkey(index),
            C::CreatePsv(values) => self.create_psv(values, reply),
            C::DestroyPsv(number) => self.destroy_psv(number),
            C::CreateUmem(memory) => self.create_umem(memory, reply),
            C::DestroyUmem(number) => self.destroy_umem(number),
            C::CreateUctx { wants_rights } => self.open_context(wants_rights, reply),
            C::DestroyUctx(uid) => return self.close_context(uid),
            C::ReserveQpn => self.reserve_qpn(reply),
            C::ReleaseQpn(qpn) => self.release_qpn(qpn),
            C::AllocQCounter => self.alloc_q_counter(reply),
            C::DeallocQCounter(set) => self.dealloc_q_counter(set),
            C::QueryQCounter(query) => self.query_q_counter(query, reply),
            C::QuerySpecialContexts => function::paging::query_special_contexts(reply),
            C::PageFaultResume {
                qpn,
                half,
                is_there,
            } => self.resume_page_fault(qpn, half, is_there),
            C::CreateEq(queue) => self.create_eq(queue, reply),
            C::QueryEq(eqn) => self.query_eq(eqn, reply),
            C::DestroyEq(eqn) => self.destroy_eq(eqn),
            C::CreateCq(queue) => self.create_cq(*queue, reply),
            C::QueryCq(cqn) => self.query_cq(cqn, reply),
            C::ModifyCq(change) => self.modify_cq(change),
            C::ResizeCq(ring) => self.resize_cq(*ring),
            C::DestroyCq(cqn) => self.destroy_cq(cqn),
            C::CreateQp(queue_pair) => self.create_qp(*queue_pair, reply),
            C::QueryQp(qpn) => self.query_qp(qpn, reply),
            C::ModifyQp(change) => self.modify_qp(&change),
            C::DestroyQp(qpn) => self.destroy_qp(qpn),
            C::CreateSrq(queue) => self.create_srq(*queue, reply),
            C::QuerySrq { srqn, form } => self.query_srq(srqn, form, reply),
            C::ArmRq { srqn, limit } => self.arm_rq(srqn, limit),
            C::DestroySrq(srqn) => self.destroy_srq(srqn),
            C::CreateDct(target) => self.create_dct(*target, reply),
            C::QueryDct(dctn) => self.query_dct(dctn, reply),
            C::DrainDct(dctn) => self.drain_dct(dctn),
            C::DestroyDct(dctn) => self.destroy_dct(dctn),
            C::ArmDct(dctn) => self.arm_dct(dctn),
            C::AttachToMcg(qpn, gid) => self.attach_to_mcg(qpn, gid),
            C::DetachFromMcg(qpn, gid) => self.detach_from_mcg(qpn, gid),
            C::QueryVportCounter => self.query_vport_counter(reply),
            C::AllocTransportDomain => self.alloc_transport_domain(reply),
            C::DeallocTransportDomain(number) => self.dealloc_transport_domain(number),
            C::CreateTis(tis) => self.create_tis(tis, reply),
            C::DestroyTis(number) => self.destroy_tis(number),
            C::CreateTir(tir) => self.create_tir(*tir, reply),
            C::ModifyTir(change) => self.modify_tir(*change),
            C::DestroyTir(number) => self.destroy_tir(number),
            C::CreateRqt(table) => self.create_rqt(table, reply),
            C::ModifyRqt { number, queues } => self.modify_rqt(number, queues),
            C::DestroyRqt(number) => self.destroy_rqt(number),
            C::CreateSq(queue) => self.create_sq(*queue, reply),
            C::ModifySq(change) => self.modify_sq(change),
            C::DestroySq(sqn) => self.destroy_sq(sqn),
            C::QuerySq(sqn) => self.query_sq(sqn, reply),
            C::CreateRq(queue) => self.create_rq(*queue, reply),
            C::ModifyRq(change) => self.modify_rq(change),
            C::DestroyRq(rqn) => self.destroy_rq(rqn),
            C::QueryRq(rqn) => self.query_rq(rqn, reply),
            C::CreateFlowTable(table) => self.create_flow_table(table, reply),
            C::DestroyFlowTable(table) => self.destroy_flow_table(table),
            C::CreateFlowGroup(group) => self.create_flow_group(group, reply),
            C::DestroyFlowGroup { table, group } => self.destroy_flow_group(table, group),
            C::SetFlowTableEntry(entry) => self.set_flow_table_entry(entry),
            C::DeleteFlowTableEntry { table, index } => self.delete_flow_table_entry(table, index),
            C::SetFlowTableRoot(root) => self.set_flow_table_root(root),
        };
        outcome.map(|()| None)
    }

    /// Tells the driver that its port is Active, though nothing has changed.
    pub fn port_is_up(&mut self) {
        let (state, dma) = self.engine.face_mut(self.vf);
        state.event(dma, &crate::face::port_entry(PortChange::Active));
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
        if let Ok((queue, state, dma)) = self.engine.cq_mut(self.vf, cqn) {
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

    /// Tells the driver, by an event, that commands in entries of the queue are complete.
    pub fn command_event(&mut self, entries: u32) {
        let (state, dma) = self.engine.face_mut(self.vf);
        state.event(dma, &Entry::new(EventType::Command).with(0, entries));
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

/// The number of an object in the reply to the command that has made it.
fn number_in(kind: Kind, reply: &[u8]) -> u32 {
    let field = match kind {
        Kind::EventQueue => create_eq_out::EQ_NUMBER,
        Kind::SignatureValue => create_psv_out::PSV0_INDEX,
        Kind::CounterSet => alloc_q_counter_out::COUNTER_SET_ID,
        _ => NUMBER,
    };
    field.get(reply)
}
