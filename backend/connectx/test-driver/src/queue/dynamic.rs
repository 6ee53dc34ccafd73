//! Targets of dynamic connections.

use std::sync::Arc;

use crate::bits::{NO_USER_INDEX, dctc, put_qword, reply, request};
use crate::error::Result;
use crate::function::command::request;
use crate::function::device::Object;
use crate::function::opcode::Opcode;
use crate::memory_key::region::{Access, ProtectionDomain};
use crate::queue::completion::CompletionQueue;
use crate::queue::shared_receive::SharedReceiveQueue;

/// Configuration of a target.
#[derive(Debug, Clone, Copy)]
pub struct TargetConfig<'a> {
    /// Protection domain.
    pub pd: &'a Arc<ProtectionDomain>,
    /// Where receive requests come from.
    pub queue: &'a SharedReceiveQueue,
    /// Where they complete.
    pub cq: &'a CompletionQueue,
    /// Rights of initiators.
    pub access: Access,
    /// Access key.
    pub key: u64,
    /// Longest path MTU: 1 is 256, 5 is 4096 bytes.
    pub mtu: u32,
    /// Timer code asked of initiators when not ready.
    pub min_rnr_nak: u32,
}

/// A target of dynamic connections.
#[derive(Debug)]
pub struct DynamicTarget {
    object: Object,
    _domain: Arc<ProtectionDomain>,
}

impl DynamicTarget {
    /// Creates a target.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn new(config: &TargetConfig<'_>) -> Result<Self> {
        let device = config.pd.device();
        let mut input = request(Opcode::CreateDct, 0, dctc::LEN);
        let context = &mut input[request::CONTEXT..];
        dctc::USER_INDEX.set(context, NO_USER_INDEX);
        dctc::CQN.set(context, config.cq.number());
        dctc::RRE.set(context, config.access.remote_read.into());
        dctc::RWE.set(context, config.access.remote_write.into());
        dctc::RAE.set(context, config.access.remote_atomic.into());
        dctc::MIN_RNR_NAK.set(context, config.min_rnr_nak);
        dctc::SRQN.set(context, config.queue.number());
        dctc::PD.set(context, config.pd.number());
        put_qword(context, dctc::DC_ACCESS_KEY, config.key);
        dctc::MTU.set(context, config.mtu);
        dctc::PORT.set(context, 1);
        dctc::HOP_LIMIT.set(context, 64);
        let out = device.command(&input, 16)?;
        Ok(Self {
            object: Object::new(device, Opcode::DestroyDct, reply::OBJECT.get(&out)),
            _domain: Arc::clone(config.pd),
        })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    fn command(&self, opcode: Opcode, len: usize) -> Result<Vec<u8>> {
        let mut input = request(opcode, 0, 16);
        request::OBJECT.set(&mut input, self.object.number);
        self.object.device.command(&input, len)
    }

    /// Lets nobody in any more; an event says when nobody is left.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn drain(&self) -> Result<()> {
        self.command(Opcode::DrainDct, 16).map(drop)
    }

    /// Asks for an event when somebody has a wrong key.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn arm(&self) -> Result<()> {
        self.command(Opcode::ArmDctForKeyViolation, 16).map(drop)
    }

    /// Its context, as `mlx5_ifc_dctc`.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn query(&self) -> Result<Vec<u8>> {
        let mut out = self.command(Opcode::QueryDct, dctc::LEN)?;
        Ok(out.split_off(reply::BODY))
    }
}
