//! User contexts: CREATE_UCTX, DESTROY_UCTX.

use hca::{Dma, VerbError};
use wire::Qpn;

use crate::bits::command::{Status, UCTX, UCTX_RIGHTS};
use crate::command::{Command, Commands, Rest};
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

impl<D: Dma + 'static> Commands<'_, D> {
    pub(crate) fn open_context(&mut self, wants_rights: bool, reply: &mut [u8]) -> Outcome {
        if self.state().interface == 0 {
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
        let full = self.state().user_contexts.is_full();
        if full {
            return Err(refuse(Status::NoResources, "too many user contexts"));
        }
        self.engine.take_memory(self.vf, HELD)?;
        let uid = self.state_mut().user_contexts.open();
        UCTX.set(reply, u32::from(uid));
        Ok(())
    }

    /// Closes a context, some of its objects at a time.
    pub(crate) fn close_context(&mut self, uid: u16) -> Rest<D> {
        if !self.state().user_contexts.is_open(uid) {
            return Err(refuse(Status::BadResource, "no such user context"));
        }
        if self.clear_context(uid) {
            return Ok(Some(Command::DestroyUctx(uid)));
        }
        self.state_mut().user_contexts.close(uid);
        self.engine.give_memory(self.vf, HELD);
        Ok(None)
    }

    /// Takes objects of a context away, in the order in which they can go; true where more are left. One that
    /// an object of the driver still uses becomes the driver's.
    fn clear_context(&mut self, uid: u16) -> bool {
        let some = self.state().user_contexts.objects(uid, OBJECTS_PER_TURN);
        for &(kind, number) in &some {
            match self.remove(kind, number) {
                Ok(()) => self.state_mut().user_contexts.lift(kind, number),
                Err(error) => {
                    tracing::debug!("object {number:#x} of user context {uid} stays: {error}");
                }
            }
            self.disown(kind, number);
        }
        some.len() == OBJECTS_PER_TURN
    }

    fn remove(&mut self, kind: Kind, number: u32) -> Result<(), VerbError> {
        let vf = self.vf;
        match kind {
            Kind::QueuePair => {
                self.engine.destroy_qp(vf, Qpn::new(number))?;
                self.state_mut().contexts.qps.remove(&number);
            }
            Kind::Target => {
                let dctn = Qpn::new(number);
                // It is taken away when it has drained.
                let _ = self.engine.drain_dct(vf, dctn);
                self.engine.destroy_dct(vf, dctn)?;
                self.state_mut().contexts.dcts.remove(&number);
            }
            Kind::ReservedNumber => self.engine.release_qpn(vf, Qpn::new(number))?,
            Kind::SharedReceiveQueue => {
                self.engine.destroy_srq(vf, number)?;
                self.state_mut().contexts.srqs.remove(&number);
            }
            Kind::CompletionQueue => {
                let gone = self.engine.destroy_cq(vf, number)?;
                self.engine.discard(gone);
            }
            Kind::MemoryKey => {
                let gone = self.engine.destroy_key(vf, number)?;
                self.engine.discard(gone);
            }
            Kind::SignatureValue => self.engine.destroy_psv(vf, number)?,
            Kind::UserMemory if self.state().user_contexts.is_used(number) => {
                return Err(VerbError::InUse);
            }
            Kind::UserMemory => self.drop_umem(number),
            Kind::CounterSet => self.engine.dealloc_counters(vf, number as u8)?,
            Kind::XrcDomain => self.engine.dealloc_xrcd(vf, number)?,
            Kind::ProtectionDomain => self.engine.dealloc_pd(vf, number)?,
            Kind::TransportDomain => {
                let freed = self.state_mut().network.dealloc_domain(number);
                freed.map_err(|_| VerbError::InUse)?;
                self.engine.give_memory(vf, Network::held(0));
            }
            Kind::Page => {
                self.state_mut().uars.free(number);
            }
            // Of contexts there are none.
            Kind::EventQueue => {}
        }
        Ok(())
    }
}
