//! User contexts: CREATE_UCTX, DESTROY_UCTX.

use hca::{Dma, VerbError};
use wire::Qpn;

use crate::bits::command::{Status, UCTX, UCTX_RIGHTS};
use crate::command::memory::user_memory::drop_umem;
use crate::command::{Command, Commands, Continuation};
use crate::refusal::{Outcome, refuse};
use crate::state::network::Network;
use crate::state::user_context::{HELD, Kind};

/// Objects that are taken away while others wait.
const OBJECTS_PER_TURN: usize = 64;

/// Reads a CREATE_UCTX.
pub(crate) fn parse_opening<D: Dma + 'static>(request: &[u8]) -> Command<D> {
    Command::CreateUctx {
        wants_rights: UCTX_RIGHTS.is_set(request),
    }
}

/// Reads a DESTROY_UCTX.
pub(crate) fn parse_closing<D: Dma + 'static>(request: &[u8]) -> Command<D> {
    Command::DestroyUctx(UCTX.get(request) as u16)
}

pub(crate) fn open_context<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    wants_rights: bool,
    reply: &mut [u8],
) -> Outcome {
    if commands.state().interface == 0 {
        return Err(refuse(
            Status::BadSystemState,
            "user contexts need version 1 of the interface (ISSI)",
        ));
    }
    if wants_rights {
        return Err(refuse(
            Status::BadParameter,
            "contexts may not have rights that the capabilities do not offer",
        ));
    }
    let full = commands.state().user_contexts.is_full();
    if full {
        return Err(refuse(Status::NoResources, "too many user contexts"));
    }
    commands.engine.vf_mut(commands.vf).take_memory(HELD)?;
    let uid = commands.state_mut().user_contexts.open();
    UCTX.set(reply, u32::from(uid));
    Ok(())
}

/// Closes a context, some of its objects at a time.
pub(crate) fn close_context<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    uid: u16,
) -> Continuation<D> {
    if !commands.state().user_contexts.is_open(uid) {
        return Err(refuse(Status::BadResource, "no such user context"));
    }
    if clear_context(commands, uid) {
        return Ok(Some(Command::DestroyUctx(uid)));
    }
    commands.state_mut().user_contexts.close(uid);
    commands.engine.vf_mut(commands.vf).give_memory(HELD);
    Ok(None)
}

/// Takes objects of a context away, in the order in which they can go; true where more are left. One that
/// an object of the driver still uses becomes the driver's.
fn clear_context<D: Dma + 'static>(commands: &mut Commands<'_, D>, uid: u16) -> bool {
    let some = commands
        .state()
        .user_contexts
        .objects(uid, OBJECTS_PER_TURN);
    for &(kind, number) in &some {
        match remove(commands, kind, number) {
            Ok(()) => commands.state_mut().user_contexts.lift(kind, number),
            Err(error) => {
                tracing::debug!("object {number:#x} of user context {uid} stays: {error}");
            }
        }
        commands.disown(kind, number);
    }
    some.len() == OBJECTS_PER_TURN
}

fn remove<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    kind: Kind,
    number: u32,
) -> Result<(), VerbError> {
    let vf = commands.vf;
    match kind {
        Kind::QueuePair => {
            commands.engine.verbs(vf).destroy_qp(Qpn::new(number))?;
            commands.state_mut().contexts.qps.remove(&number);
        }
        Kind::Target => {
            let dctn = Qpn::new(number);
            // It is taken away when it has drained.
            let _ = commands.engine.verbs(vf).drain_dct(dctn);
            commands.engine.verbs(vf).destroy_dct(dctn)?;
            commands.state_mut().contexts.dcts.remove(&number);
        }
        Kind::ReservedNumber => commands.engine.vf_mut(vf).release_qpn(Qpn::new(number))?,
        Kind::SharedReceiveQueue => {
            commands.engine.verbs(vf).destroy_srq(number)?;
            commands.state_mut().contexts.srqs.remove(&number);
        }
        Kind::CompletionQueue => {
            let gone = commands.engine.verbs(vf).destroy_cq(number)?;
            commands.engine.discard(gone);
        }
        Kind::MemoryKey => {
            let gone = commands.engine.vf_mut(vf).destroy_key(number)?;
            commands.engine.discard(gone);
        }
        Kind::SignatureValue => commands.engine.vf_mut(vf).destroy_psv(number)?,
        Kind::UserMemory if commands.state().user_contexts.is_used(number) => {
            return Err(VerbError::InUse);
        }
        Kind::UserMemory => drop_umem(commands, number),
        Kind::CounterSet => commands.engine.vf_mut(vf).dealloc_counters(number as u8)?,
        Kind::XrcDomain => commands.engine.vf_mut(vf).dealloc_xrcd(number)?,
        Kind::ProtectionDomain => commands.engine.vf_mut(vf).dealloc_pd(number)?,
        Kind::TransportDomain => {
            let freed = commands.state_mut().network.dealloc_domain(number);
            freed.map_err(|_| VerbError::InUse)?;
            commands.engine.vf_mut(vf).give_memory(Network::held(0));
        }
        Kind::Page => {
            commands.state_mut().uars.free(number);
        }
        // Of contexts there are none.
        Kind::EventQueue => {}
    }
    Ok(())
}
