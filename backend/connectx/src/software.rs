//! The software backend: commands become verbs of the engine.
//!
//! One module per kind of object. A request is read with fields that are zero
//! where the driver cut it short, its counts are checked before they are used
//! as such, and a command that is refused has changed nothing.

mod backend;
pub mod capability;
mod completion_queue;
pub(crate) mod counter;
mod device;
mod device_memory;
mod dynamic;
mod event_queue;
pub(crate) mod firmware;
pub(crate) mod firmware_pages;
mod flow_table;
mod general_object;
mod management;
mod memory_key;
mod multicast;
mod network;
mod paging;
mod port;
mod queue_pair;
mod receive_pool;
mod resource;
mod resource_dump;
mod shared_receive_queue;
mod signature;
#[cfg(test)]
mod tests;
pub(crate) mod user_context;
pub(crate) mod user_memory;
mod work_queue;

use hca::mr::Translation;
use hca::{Dma, Engine, PortChange, QpDesc, VerbError, VfId};
use wire::vendor::{ORGANIZATION, Psid};

use crate::bits::command::{Opcode, Status, alloc_pd_out as head_out, create_eq_in as head_in};
use crate::bits::event::EventType;
use crate::bits::initialization::UAR_CQ;
use crate::bits::work::BLOCK;
use crate::configuration::Configuration;
use crate::face::Mlx5;
use crate::queue::completion::Ring;
use crate::queue::event::Entry;
use crate::queue::shared::SharedQueue;
use crate::queue::{Buffer, BufferError};
use crate::state::Stage;
use crate::state::doorbell::Doorbell;
#[cfg(test)]
pub(crate) use backend::registers;
pub use backend::{Host, Parts, Software};
use receive_pool::Form;
use shared_receive_queue::Tags;

/// Why a command is refused: the status that its reply gets, and the reason
/// for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: Status,
    reason: &'static str,
}

/// A refusal.
const fn refuse(status: Status, reason: &'static str) -> Refusal {
    Refusal { status, reason }
}

impl From<VerbError> for Refusal {
    fn from(error: VerbError) -> Self {
        match error {
            VerbError::Exhausted => refuse(Status::NoResources, "the function's quota is reached"),
            VerbError::NotFound => refuse(Status::BadResource, "no such object"),
            VerbError::InUse => refuse(Status::BadResourceState, "the object is still in use"),
            VerbError::BadState => refuse(
                Status::BadQpState,
                "the queue pair's state does not allow this",
            ),
            VerbError::Invalid => refuse(Status::BadParameter, "invalid parameter"),
        }
    }
}

impl From<BufferError> for Refusal {
    fn from(error: BufferError) -> Self {
        match error {
            BufferError::TooFewPages { .. } => refuse(
                Status::BadInputLength,
                "the page list is shorter than the queue",
            ),
            BufferError::MisalignedRecord(_) => {
                refuse(Status::BadParameter, "the doorbell record is not aligned")
            }
        }
    }
}

const TOO_EARLY: Refusal = refuse(
    Status::BadSystemState,
    "the function is not enabled or not initialized",
);
const UNKNOWN: Refusal = refuse(Status::BadOperation, "unknown command");

/// The latest version of the command interface that is spoken (ISSI). In version 1 both kinds of shared receive
/// queues have commands of their own, and there are user contexts. A plain function understands it, and does not
/// offer it.
const LATEST_INTERFACE: u32 = 1;

/// Outcome of a command.
type Outcome = Result<(), Refusal>;

/// Number of an object, in the requests and replies of most of them.
use head_out::PD as NUMBER;

/// Offset of the lists (pages, translations) behind a request's fixed part.
const LIST: usize = 0x110;

/// The list behind a request's fixed part.
fn list(request: &[u8]) -> &[u8] {
    request.get(LIST..).unwrap_or_default()
}

/// What of a command can be done without the engine, and takes time: lists of pages, which may have a
/// million entries.
#[derive(Debug)]
enum Prepared<D: Dma + 'static> {
    Nothing,
    Key(Result<(Translation, usize), Refusal>),
    Ring(Result<Ring, Refusal>),
    EventQueue(Result<Buffer, BufferError>),
    QueuePair(Result<Box<QpDesc<Mlx5<D>>>, Refusal>),
    SharedQueue(Result<(SharedQueue, Option<Tags>), Refusal>),
}

impl<D: Dma + 'static> Prepared<D> {
    fn of(
        (opcode, form): (Opcode, Option<Form>),
        request: &[u8],
        configuration: &Configuration,
    ) -> Self {
        match opcode {
            Opcode::CreateMkey => Self::Key(memory_key::requested::<D>(request)),
            Opcode::CreateCq => Self::Ring(completion_queue::requested(request)),
            Opcode::ModifyCq => {
                completion_queue::resized(request).map_or(Self::Nothing, Self::Ring)
            }
            Opcode::CreateEq => Self::EventQueue(event_queue::requested(request)),
            Opcode::CreateQp => {
                Self::QueuePair(queue_pair::requested(request, configuration).map(Box::new))
            }
            Opcode::CreateSrq => Self::SharedQueue(shared_receive_queue::requested(request, form)),
            _ => Self::Nothing,
        }
    }
}

/// Makes a reply say that its command was refused, if it was.
fn conclude(outcome: Outcome, request: &[u8], reply: &mut [u8]) {
    if let Err(refusal) = outcome {
        let opcode = head_in::OPCODE.get(request);
        tracing::debug!(status = ?refusal.status, "command {opcode:#05x} refused: {}", refusal.reason);
        reply.fill(0);
        head_out::STATUS.set(reply, u32::from(refusal.status.code()));
    }
}

/// A function of the engine, for as long as one access lasts. Work that its commands and doorbells
/// cause is done when the engine runs next.
#[derive(Debug)]
struct Commands<'a, D: Dma + 'static> {
    engine: &'a mut Engine<Mlx5<D>>,
    vf: VfId,
}

impl<D: Dma + 'static> Commands<'_, D> {
    fn state(&self) -> &crate::state::FunctionState {
        self.engine.face(self.vf)
    }

    fn state_mut(&mut self) -> &mut crate::state::FunctionState {
        self.engine.face_mut(self.vf).0
    }

    /// Logs a command that nobody knows.
    fn unknown(&mut self, code: u16) -> Refusal {
        if self.state_mut().first_unknown(u32::from(code)) {
            tracing::info!("command {code:#05x} is not known; the driver is told so");
        }
        UNKNOWN
    }

    fn dispatch(
        &mut self,
        opcode: Opcode,
        request: &[u8],
        prepared: Prepared<D>,
        reply: &mut [u8],
    ) -> Outcome {
        self.check_stage(opcode)?;
        match (opcode, prepared) {
            (Opcode::CreateMkey, Prepared::Key(key)) => {
                return self.create_mkey(request, key?, reply);
            }
            (Opcode::CreateEq, Prepared::EventQueue(buffer)) => {
                return self.create_eq(request, buffer, reply);
            }
            (Opcode::CreateCq, Prepared::Ring(ring)) => {
                return self.create_cq(request, ring?, reply);
            }
            (Opcode::ModifyCq, Prepared::Ring(ring)) => return self.resize_cq(request, ring?),
            (Opcode::CreateQp, Prepared::QueuePair(queues)) => {
                return self.create_qp(request, *queues?, reply);
            }
            (Opcode::CreateSrq, Prepared::SharedQueue(queue)) => {
                return self.create_srq(request, queue?, reply);
            }
            _ => {}
        }
        match opcode {
            Opcode::EnableHca => self.enable_hca(),
            Opcode::DisableHca => self.disable_hca(),
            Opcode::InitHca => self.init_hca(),
            Opcode::TeardownHca => self.teardown_hca(),
            Opcode::QueryIssi => self.query_issi(reply),
            Opcode::SetIssi => self.set_issi(request),
            Opcode::QueryPages => self.query_pages(request, reply),
            Opcode::ManagePages => self.manage_pages(request, reply),
            Opcode::QueryHcaCap => self.query_hca_cap(request, reply),
            Opcode::SetHcaCap => self.set_hca_cap(request),
            Opcode::QueryAdapter => query_adapter(reply),
            // Programs ask, whether the capabilities speak of it or not: the port is in no bond.
            Opcode::QueryLag => Ok(()),
            Opcode::QueryMkey => self.query_mkey(request, reply),
            Opcode::DestroyMkey => self.destroy_mkey(request),
            Opcode::AllocMemic => self.alloc_memic(request, reply),
            Opcode::DeallocMemic => self.dealloc_memic(request),
            Opcode::QueryEq => self.query_eq(request, reply),
            Opcode::DestroyEq => self.destroy_eq(request),
            Opcode::QueryCq => self.query_cq(request, reply),
            Opcode::ModifyCq => self.modify_cq(request),
            Opcode::DestroyCq => self.destroy_cq(request),
            Opcode::QueryQp => self.query_qp(request, reply),
            Opcode::DestroyQp => self.destroy_qp(request),
            Opcode::Rst2Init
            | Opcode::Init2Init
            | Opcode::Init2Rtr
            | Opcode::Rtr2Rts
            | Opcode::Rts2Rts
            | Opcode::Sqerr2Rts
            | Opcode::Sqd2Rts
            | Opcode::ToErr
            | Opcode::ToRst => self.modify_qp(opcode, request),
            Opcode::QuerySrq => self.query_srq(request, reply),
            Opcode::ArmRq => self.arm_rq(request),
            Opcode::DestroySrq => self.destroy_srq(request),
            Opcode::CreateDct => self.create_dct(request, reply),
            Opcode::DrainDct => self.drain_dct(request),
            Opcode::DestroyDct => self.destroy_dct(request),
            Opcode::QueryDct => self.query_dct(request, reply),
            Opcode::ArmDctForKeyViolation => self.arm_dct(request),
            Opcode::AllocPd => self.alloc_pd(reply),
            Opcode::DeallocPd => self.dealloc_pd(request),
            Opcode::AllocUar => self.alloc_uar(reply),
            Opcode::DeallocUar => self.dealloc_uar(request),
            Opcode::AllocQCounter => self.alloc_q_counter(reply),
            Opcode::DeallocQCounter => self.dealloc_q_counter(request),
            Opcode::QueryQCounter => self.query_q_counter(request, reply),
            Opcode::CreatePsv => self.create_psv(request, reply),
            Opcode::DestroyPsv => self.destroy_psv(request),
            Opcode::AllocXrcd => self.alloc_xrcd(reply),
            Opcode::DeallocXrcd => self.dealloc_xrcd(request),
            Opcode::CreateGeneralObject => self.create_general_object(request, reply),
            Opcode::DestroyGeneralObject => self.destroy_general_object(request),
            Opcode::AttachToMcg => self.attach_to_mcg(request),
            Opcode::DetachFromMcg => self.detach_from_mcg(request),
            // These are prepared, and those of the port are not the engine's.
            Opcode::CreateMkey
            | Opcode::CreateEq
            | Opcode::CreateCq
            | Opcode::CreateQp
            | Opcode::CreateSrq
            | Opcode::QueryHcaVportContext
            | Opcode::ModifyHcaVportContext
            | Opcode::QueryHcaVportGid
            | Opcode::QueryHcaVportPkey
            | Opcode::AccessReg
            | Opcode::MadIfc => Err(UNKNOWN),
        }
    }

    /// Commands come in an order: a function is enabled, initialized, and then
    /// has objects.
    fn check_stage(&self, opcode: Opcode) -> Outcome {
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
        if self.state().stage >= needed {
            Ok(())
        } else {
            Err(TOO_EARLY)
        }
    }

    fn query_issi(&self, reply: &mut [u8]) -> Outcome {
        use crate::bits::command::query_issi_out as out;
        out::CURRENT_ISSI.set(reply, self.state().interface);
        out::SUPPORTED_ISSI_DW0.set(reply, (2 << LATEST_INTERFACE) - 1);
        Ok(())
    }

    fn set_issi(&mut self, request: &[u8]) -> Outcome {
        let wanted = crate::bits::command::set_issi_in::CURRENT_ISSI.get(request);
        if wanted > LATEST_INTERFACE {
            return Err(refuse(
                Status::BadParameter,
                "this version of the interface is not supported",
            ));
        }
        self.state_mut().interface = wanted;
        Ok(())
    }

    /// Tells the driver that its port is Active, though nothing has changed.
    fn port_is_up(&mut self) {
        let (state, dma) = self.engine.face_mut(self.vf);
        state.event(dma, &crate::face::port_entry(PortChange::Active));
    }

    /// Forgets all objects of the function. The port is left as it is.
    fn reset_objects(&mut self) {
        self.engine.reset_vf(self.vf);
        let gone = self.state_mut().reset();
        self.engine.discard(gone);
    }

    /// The first eight bytes of the last request posted.
    fn ring_send(&mut self, data: &[u8]) {
        let first = (crate::bits::dword(data, 0) >> 8) as u16;
        let qpn = crate::bits::dword(data, 4) >> 8;
        let blocks = crate::request::len(data).div_ceil(BLOCK).max(1) as u16;
        let through = first.wrapping_add(blocks);
        self.engine.ring_send(self.vf, wire::Qpn::new(qpn), through);
    }

    fn ring_cq(&mut self, data: &[u8]) {
        let word = crate::bits::dword(data, 0);
        let cqn = crate::bits::dword(data, 4) & 0x00ff_ffff;
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
    fn command_event(&mut self, entries: u32) {
        let (state, dma) = self.engine.face_mut(self.vf);
        state.event(dma, &Entry::new(EventType::Command).with(0, entries));
    }

    /// A doorbell in page `uar`, or a half of one.
    fn doorbell(&mut self, uar: u32, doorbell: Doorbell) {
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

fn query_adapter(reply: &mut [u8]) -> Outcome {
    use crate::bits::command::{query_adapter_out, query_adapter_param_block as adapter};
    let out = query_adapter_out::QUERY_ADAPTER_STRUCT.get_mut(reply);
    adapter::IEEE_VENDOR_ID.set(out, ORGANIZATION);
    adapter::VSD_CONTD_PSID.set(out, Psid::OURS.bytes());
    Ok(())
}
