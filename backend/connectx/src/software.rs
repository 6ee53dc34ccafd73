//! The software backend: commands become verbs of the engine.
//!
//! One module per kind of object. A request is read with fields that are zero
//! where the driver cut it short, its counts are checked before they are used
//! as such, and a command that is refused has changed nothing.

pub mod capability;
mod completion_queue;
pub(crate) mod counter;
mod device;
mod event_queue;
mod management;
mod memory_key;
mod multicast;
mod port;
mod queue_pair;
mod resource;
mod shared_receive_queue;
#[cfg(test)]
mod tests;

use hca::mr::Translation;
use hca::{Dma, Engine, VerbError, VfId};

use crate::bits::command::{Opcode, Status, alloc_pd_out as head_out, create_eq_in as head_in};
use crate::bits::event::EventType;
use crate::bits::initialization::{UAR_CQ, UAR_EQ_ARM, UAR_EQ_UPDATE, UAR_SEND};
use crate::bits::work::BLOCK;
use crate::face::Mlx5;
use crate::function::Backend;
use crate::port::Port;
use crate::queue::BufferError;
use crate::queue::event::Entry;
use crate::state::Stage;
use port::PortCommands;

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

/// A function of the engine, with its port, for as long as one access lasts.
#[derive(Debug)]
pub struct Software<'a, D: Dma + 'static> {
    engine: &'a mut Engine<Mlx5<D>>,
    vf: VfId,
    port: PortRef<'a>,
    prepared: Option<&'a mut Prepared>,
}

/// What of a command can be done without the engine, and takes time: the list of a memory key, which
/// may have a million entries.
#[derive(Debug)]
pub struct Prepared(Option<Result<(Translation, usize), Refusal>>);

impl Prepared {
    /// What `request` needs, for [`Software::prepared`].
    #[must_use]
    pub fn of<D: Dma + 'static>(request: &[u8]) -> Self {
        let creates_key = head_in::OPCODE.get(request) as u16 == Opcode::CreateMkey.code();
        Self(creates_key.then(|| memory_key::requested::<D>(request)))
    }
}

/// Executes a command of the port, without the engine, if `request` is one. Whether it was one.
/// `is_initialized` says whether the function is.
pub fn execute_on_port(
    port: &mut dyn Port,
    is_initialized: impl FnOnce() -> bool,
    request: &[u8],
    reply: &mut [u8],
) -> bool {
    let Some(opcode) = Opcode::from_code(head_in::OPCODE.get(request) as u16) else {
        return false;
    };
    if !port::is_of_port(opcode) {
        return false;
    }
    let outcome = if is_initialized() {
        PortCommands(port).dispatch(opcode, request, reply)
    } else {
        Err(TOO_EARLY)
    };
    conclude(outcome, request, reply);
    true
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

struct PortRef<'a>(&'a mut dyn Port);

impl std::fmt::Debug for PortRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Port").field(&self.0.attributes()).finish()
    }
}

impl<'a, D: Dma + 'static> Software<'a, D> {
    /// Function `vf` of `engine`. Work that its doorbells and commands cause is
    /// done when the engine runs next.
    #[must_use]
    pub fn new(engine: &'a mut Engine<Mlx5<D>>, vf: VfId, port: &'a mut dyn Port) -> Self {
        Self {
            engine,
            vf,
            port: PortRef(port),
            prepared: None,
        }
    }

    /// The same, for a command of which some has been done before.
    #[must_use]
    pub const fn prepared(mut self, prepared: &'a mut Prepared) -> Self {
        self.prepared = Some(prepared);
        self
    }

    fn state(&self) -> &crate::state::FunctionState {
        self.engine.face(self.vf)
    }

    fn state_mut(&mut self) -> &mut crate::state::FunctionState {
        self.engine.face_mut(self.vf).0
    }

    fn dispatch(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let code = head_in::OPCODE.get(request) as u16;
        let Some(opcode) = Opcode::from_code(code) else {
            if self.state_mut().first_unknown(u32::from(code)) {
                tracing::info!("command {code:#05x} is not known; the driver is told so");
            }
            return Err(UNKNOWN);
        };
        self.check_stage(opcode)?;
        match opcode {
            Opcode::EnableHca => self.enable_hca(),
            Opcode::DisableHca => self.disable_hca(),
            Opcode::InitHca => self.init_hca(),
            Opcode::TeardownHca => self.teardown_hca(),
            Opcode::QueryIssi => query_issi(reply),
            Opcode::SetIssi => set_issi(request),
            // No page of the guest is ever needed: nothing to give or to return.
            Opcode::QueryPages | Opcode::ManagePages => Ok(()),
            Opcode::QueryHcaCap => self.query_hca_cap(request, reply),
            Opcode::SetHcaCap => self.set_hca_cap(request),
            Opcode::QueryAdapter => query_adapter(reply),
            Opcode::CreateMkey => self.create_mkey(request, reply),
            Opcode::QueryMkey => self.query_mkey(request, reply),
            Opcode::DestroyMkey => self.destroy_mkey(request),
            Opcode::CreateEq => self.create_eq(request, reply),
            Opcode::QueryEq => self.query_eq(request, reply),
            Opcode::DestroyEq => self.destroy_eq(request),
            Opcode::CreateCq => self.create_cq(request, reply),
            Opcode::QueryCq => self.query_cq(request, reply),
            Opcode::ModifyCq => self.modify_cq(request),
            Opcode::DestroyCq => self.destroy_cq(request),
            Opcode::CreateQp => self.create_qp(request, reply),
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
            Opcode::CreateSrq => self.create_srq(request, reply),
            Opcode::QuerySrq => self.query_srq(request, reply),
            Opcode::ArmRq => self.arm_rq(request),
            Opcode::DestroySrq => self.destroy_srq(request),
            Opcode::QueryHcaVportContext
            | Opcode::ModifyHcaVportContext
            | Opcode::QueryHcaVportGid
            | Opcode::QueryHcaVportPkey
            | Opcode::AccessReg
            | Opcode::MadIfc => PortCommands(self.port.0).dispatch(opcode, request, reply),
            Opcode::AllocPd => self.alloc_pd(reply),
            Opcode::DeallocPd => self.dealloc_pd(request),
            Opcode::AllocUar => self.alloc_uar(reply),
            Opcode::DeallocUar => self.dealloc_uar(request),
            Opcode::AllocQCounter => self.alloc_q_counter(reply),
            Opcode::DeallocQCounter => self.dealloc_q_counter(request),
            Opcode::QueryQCounter => self.query_q_counter(request, reply),
            Opcode::AllocXrcd => self.alloc_xrcd(reply),
            Opcode::DeallocXrcd => self.dealloc_xrcd(request),
            Opcode::AttachToMcg => self.attach_to_mcg(request),
            Opcode::DetachFromMcg => self.detach_from_mcg(request),
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

    /// Forgets all objects of the function. The port is left as it is.
    pub fn reset_objects(&mut self) {
        self.engine.reset_vf(self.vf);
        let gone = self.state_mut().reset();
        self.engine.discard(gone);
    }

    /// The first eight bytes of the last request posted, rung at any offset of
    /// the part of the page that is for them.
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

    fn ring_eq(&mut self, data: &[u8], arm: bool) {
        let word = crate::bits::dword(data, 0);
        if let Some((queue, interrupts)) = self.state_mut().event_queue((word >> 24) as u8) {
            queue.update(word, arm, interrupts);
        }
    }
}

impl<D: Dma + 'static> Backend for Software<'_, D> {
    type Dma = D;

    fn dma(&self) -> &D {
        self.engine.dma(self.vf)
    }

    fn execute(&mut self, request: &[u8], reply: &mut [u8]) {
        let outcome = self.dispatch(request, reply);
        conclude(outcome, request, reply);
    }

    fn has_command_events(&self) -> bool {
        self.state().has_command_events()
    }

    fn command_event(&mut self, entries: u32) {
        let (state, dma) = self.engine.face_mut(self.vf);
        state.event(dma, &Entry::new(EventType::Command).with(0, entries));
    }

    fn doorbell(&mut self, _uar: u32, offset: usize, data: &[u8]) {
        match offset {
            UAR_CQ if data.len() >= 8 => self.ring_cq(data),
            UAR_EQ_ARM if data.len() >= 4 => self.ring_eq(data, true),
            UAR_EQ_UPDATE if data.len() >= 4 => self.ring_eq(data, false),
            UAR_SEND.. if data.len() >= 8 => self.ring_send(data),
            _ => {}
        }
    }

    fn reset(&mut self) {
        self.reset_objects();
        self.port.0.reset();
    }
}

/// Only the first version of the interface between software and steering is
/// spoken: with it, both kinds of shared receive queues have one pair of
/// commands, and drivers are content with it.
fn query_issi(reply: &mut [u8]) -> Outcome {
    use crate::bits::command::query_issi_out as out;
    out::CURRENT_ISSI.set(reply, 0);
    out::SUPPORTED_ISSI_DW0.set(reply, 1);
    Ok(())
}

fn set_issi(request: &[u8]) -> Outcome {
    match crate::bits::command::set_issi_in::CURRENT_ISSI.get(request) {
        0 => Ok(()),
        _ => Err(refuse(
            Status::BadParameter,
            "this version of the interface is not supported",
        )),
    }
}

fn query_adapter(reply: &mut [u8]) -> Outcome {
    use crate::bits::command::{query_adapter_out, query_adapter_param_block as adapter};
    /// Organization that the vendor id names.
    const ORGANIZATION: u32 = 0x02c9;
    const BOARD_ID: &[u8; 16] = b"IBV0000000001\0\0\0";
    let out = query_adapter_out::QUERY_ADAPTER_STRUCT.get_mut(reply);
    adapter::IEEE_VENDOR_ID.set(out, ORGANIZATION);
    adapter::VSD_CONTD_PSID.set(out, BOARD_ID);
    Ok(())
}
