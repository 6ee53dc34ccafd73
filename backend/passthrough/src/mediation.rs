//! Decides on a guest's command: answered here, given to the VF, or refused.
//!
//! Closed by default. A command that is not listed is refused; so is one that names an object, a doorbell
//! page or a port that is not the guest's. Numbers of objects are the VF's own, since the data path
//! carries them.

pub(crate) mod address_path;
pub(crate) mod capability;
mod datagram;
pub(crate) mod guest;
pub(crate) mod memory_key;
mod pages;
pub(crate) mod partition;
pub(crate) mod partitions;
pub(crate) mod port;
mod queue;

pub use connectx::Refusal;
use connectx::bits::Field;
use connectx::bits::capability::{
    TYPE_ATOMIC, TYPE_GENERAL, atomic_caps, cmd_hca_cap as cap, query_hca_cap_out, set_hca_cap_in,
};
use connectx::bits::command::{
    Opcode, Status, alloc_pd_out, create_eq_in, query_issi_out, set_issi_in,
};
use connectx::bits::completion::{cqc, query_cq_out};
use connectx::bits::counter::query_q_counter_in;
use connectx::bits::event::create_eq_out;
use connectx::queue::event::EventQueue;
use connectx::{Stage, needed_stage};

use self::port::{manage, modify_port, own_port, register};
use crate::mediation::guest::{Guest, Kind, WholeKey};
use crate::mediation::partitions::{Partitions, Place};
use crate::policy::{Isolation, Policy};
use crate::shadow::Shadow;

/// All user contexts together: here, none but the kernel's driver has any.
const SHARED: u32 = 0xffff;
/// Where requests and replies have their object's number.
const NUMBER: Field = alloc_pd_out::PD;
/// Bytes of the shortest requests.
const HEAD: usize = alloc_pd_out::SIZE;
/// Where the lists of pages begin.
pub(crate) const LIST: usize = create_eq_in::SIZE;

const fn refuse<T>(status: Status, reason: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, reason })
}

/// Decision on a command.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It is answered: the reply begins with these bytes.
    Answer(Vec<u8>),
    /// The VF gets it, as the request is now.
    Forward(After),
    /// The driver begins anew, or has gone: whatever it has left goes away.
    Clear(Stage),
}

/// Action when the VF has executed the command.
#[derive(Debug)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// The guest has a new object.
    Made(Kind),
    /// The guest has a new key over DMA addresses.
    WholeKey(WholeKey),
    /// The guest has a new queue pair, for a connection or not.
    QueuePair {
        /// Whether it has a path to one other queue pair.
        connects: bool,
        /// Whether it may have the Q_Key of queue pair 1.
        manages: bool,
        /// The daemon keeps its queues.
        shadow: Option<Box<Shadow>>,
    },
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
    /// A queue pair is reset.
    Emptied(u32),
    /// The reply has the context of this queue pair.
    ShowQueuePair(u32),
    /// A queue pair has these indexes of P_Keys.
    Placed(u32, [Option<Place>; 2]),
    /// The reply has the port's context.
    ShowPort,
    /// The reply has the VF's P_Key table; the guest has asked for this index, or for all.
    ShowPartitions(u32),
    /// The reply is of the port's own agent.
    ShowAgent,
}

/// Facts about the VF that decisions need.
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
    /// Rights of the guest.
    pub policy: &'a Policy,
    /// The guest's P_Key table, where it is not the VF's.
    pub partitions: Option<&'a Partitions>,
    /// The port needs a global route header.
    pub grh_required: bool,
    /// Where a key over all of the guest's memory ends.
    pub covered: u64,
}

/// Judges a command, and makes of the request what the VF is to get.
pub(crate) fn judge(
    guest: &mut Guest,
    facts: &Facts<'_>,
    request: &mut Vec<u8>,
) -> Result<Verdict, Refusal> {
    let code = create_eq_in::OPCODE.get(request) as u16;
    let Some(opcode) = Opcode::from_code(code) else {
        return refuse(Status::BadOperation, "unknown command");
    };
    match create_eq_in::UID.get(request) {
        0 => {}
        // Linux says of sets of counters that all user contexts have them, and asks nobody whether there are any.
        SHARED if opcode == Opcode::AllocQCounter => create_eq_in::UID.set(request, 0),
        _ => return refuse(Status::BadParameter, "there are no user contexts"),
    }
    // Commands come in an order: a function is enabled, initialized, and then has objects.
    if guest.stage < needed_stage(opcode.into()) {
        return refuse(
            Status::BadSystemState,
            "the function is not enabled or not initialized",
        );
    }
    // A driver may cut a request short, and a device take the rest for zeros. The values that the VF is to have in
    // their place need room.
    request.resize(request.len().max(shortest(opcode)), 0);
    let is_full = guest.is_full();
    let mut judge = Judge { guest, facts };
    match judge.of(opcode, request)? {
        Verdict::Forward(
            After::Made(_) | After::WholeKey(_) | After::QueuePair { .. } | After::EventQueue(..),
        ) if is_full => refuse(Status::NoResources, "the guest has too many objects"),
        verdict => Ok(verdict),
    }
}

/// Bytes that a request has at least, apart from a list.
const fn shortest(opcode: Opcode) -> usize {
    match opcode {
        Opcode::CreateMkey
        | Opcode::CreateEq
        | Opcode::CreateCq
        | Opcode::ModifyCq
        | Opcode::CreateSrq
        | Opcode::CreateQp
        | Opcode::Rst2Init
        | Opcode::Init2Init
        | Opcode::Init2Rtr
        | Opcode::Rtr2Rts
        | Opcode::Rts2Rts
        | Opcode::Sqerr2Rts
        | Opcode::Sqd2Rts => LIST,
        _ => HEAD,
    }
}

struct Judge<'a> {
    guest: &'a mut Guest,
    facts: &'a Facts<'a>,
}

const DONE: Result<Verdict, Refusal> = Ok(Verdict::Answer(Vec::new()));
const FORWARD: Result<Verdict, Refusal> = Ok(Verdict::Forward(After::Nothing));

impl Judge<'_> {
    fn of(&mut self, opcode: Opcode, request: &mut Vec<u8>) -> Result<Verdict, Refusal> {
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
            // In which bond the host has the port is not the guest's matter.
            Opcode::QueryLag => DONE,
            Opcode::QueryHcaVportContext => {
                own_port(request)?;
                Ok(Verdict::Forward(After::ShowPort))
            }
            Opcode::QueryHcaVportGid => {
                own_port(request)?;
                FORWARD
            }
            Opcode::QueryHcaVportPkey => self.query_partitions(request),
            Opcode::ModifyHcaVportContext => modify_port(request),
            Opcode::AccessReg => register(request),
            Opcode::MadIfc => manage(self.facts.policy.smp, request),
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
            // Memory of the VF's own. Whether it is cleared between guests is the VF's matter.
            Opcode::AllocMemic | Opcode::DeallocMemic => refuse(
                Status::BadOperation,
                "memory of the device is not for guests",
            ),
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
                Ok(Verdict::Forward(After::ShowQueuePair(NUMBER.get(request))))
            }
            Opcode::DestroyQp => self.gone(Kind::QueuePair, request),
            Opcode::Rst2Init
            | Opcode::Init2Init
            | Opcode::Init2Rtr
            | Opcode::Rtr2Rts
            | Opcode::Rts2Rts
            | Opcode::Sqerr2Rts
            | Opcode::Sqd2Rts => self.modify_queue_pair(opcode, request),
            Opcode::ToRst => self.reset_queue_pair(request),
            Opcode::ToErr | Opcode::AttachToMcg | Opcode::DetachFromMcg => {
                self.with(Kind::QueuePair, request)
            }
            // The guest is told by its capabilities that there are none: each request of an initiator has an
            // address of its own, which nobody would translate.
            Opcode::CreateDct
            | Opcode::DestroyDct
            | Opcode::DrainDct
            | Opcode::QueryDct
            | Opcode::ArmDctForKeyViolation => refuse(
                Status::BadOperation,
                "dynamic connections are not passed through",
            ),
            // Nor of signatures: what keys with them lead to, nobody looks through.
            Opcode::CreatePsv | Opcode::DestroyPsv => {
                refuse(Status::BadOperation, "signatures are not passed through")
            }
            // Nor of these: of what programs make by themselves, nobody would know what it leads to.
            Opcode::CreateGeneralObject | Opcode::DestroyGeneralObject => refuse(
                Status::BadOperation,
                "general objects are not passed through",
            ),
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
        if modifier >> 1 == TYPE_GENERAL && self.facts.policy.isolation == Isolation::Strict {
            capability::hide_key_updates(&mut shown);
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
}

const fn made(kind: Kind) -> Result<Verdict, Refusal> {
    Ok(Verdict::Forward(After::Made(kind)))
}

/// The number in the reply of a command that made an object.
pub(crate) fn number_made(kind: Kind, reply: &[u8]) -> u32 {
    match kind {
        Kind::EventQueue => create_eq_out::EQ_NUMBER.get(reply),
        _ => NUMBER.get(reply),
    }
}
