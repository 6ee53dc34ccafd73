//! Refusals of a responder, and their reasons.

use super::frame::Syndrome;
use crate::memory::domain::Domain;
use crate::memory::mr::Access;
use crate::objects::page_fault::RETRY_CODE;
use crate::objects::qp::Core;
use crate::objects::reason::{KeyFault, Reason};
use crate::objects::refusal::Refusal;
use crate::objects::work::Operation;

/// A request that a responder refuses.
pub(crate) struct Refused<'a, D> {
    /// The responder.
    pub core: &'a Core,
    /// It takes from the shared receive queues of an XRC domain.
    pub xrc: bool,
    /// Where the request would be carried out.
    pub domain: Domain<'a, D>,
    pub operation: Operation,
    /// The memory that it names: address, key, and length in bytes.
    pub addr: u64,
    pub rkey: u32,
    pub len: u64,
}

impl Refusal {
    /// Refusal of a message that needs a page which does not come.
    pub const fn without_page(operation: Operation) -> Self {
        match operation {
            Operation::Send | Operation::SendImm | Operation::SendInvalidate => Self::Operation,
            _ => Self::Access,
        }
    }

    /// Syndrome for the requester.
    pub const fn syndrome(self) -> Syndrome {
        match self {
            Self::NotReady(code) => Syndrome::NotReady(code),
            Self::Absent | Self::LocalAbsent => Syndrome::NotReady(RETRY_CODE),
            Self::Void | Self::Stale => Syndrome::Sequence,
            Self::Invalid => Syndrome::InvalidRequest,
            Self::Access => Syndrome::RemoteAccess,
            Self::Operation | Self::Catastrophe | Self::Local | Self::LocalLength => {
                Syndrome::RemoteOperation
            }
        }
    }

    /// Why a request is refused.
    #[cold]
    pub fn reason<D>(self, request: &Refused<'_, D>) -> Reason {
        let Refused {
            core,
            xrc,
            domain,
            operation,
            addr,
            rkey,
            len,
        } = *request;
        let rights = core.attr.rights;
        let (granted, needed) = match operation {
            Operation::Write | Operation::WriteImm => (rights.write, Access::REMOTE_WRITE),
            Operation::Read => (rights.read, Access::REMOTE_READ),
            operation if operation.fills_list() => (rights.atomic, Access::ATOMIC),
            _ => (true, Access::LOCAL_READ),
        };
        match self {
            // The keys are in order, so it is the memory behind them.
            Self::Local => Reason::LocalKey(KeyFault::Unmapped),
            Self::LocalLength => Reason::AnswerLength,
            Self::NotReady(_) | Self::Void | Self::Stale | Self::Absent | Self::LocalAbsent => {
                Reason::Status
            }
            Self::Invalid if !granted => Reason::RemoteRight,
            Self::Invalid if needed == Access::ATOMIC => Reason::AtomicAddress,
            Self::Invalid if xrc => Reason::SharedQueue,
            Self::Invalid => Reason::ReceiveLength,
            Self::Access if operation == Operation::SendInvalidate => Reason::Invalidation,
            Self::Access => Reason::RemoteKey(
                match domain.keys.check(rkey, domain.pd, addr, len, needed) {
                    Err(error) => error.into(),
                    Ok(region) if region.qpn.is_some_and(|only| only != core.qpn) => {
                        KeyFault::Protection
                    }
                    Ok(_) => KeyFault::Unmapped,
                },
            ),
            Self::Operation | Self::Catastrophe => Reason::ReceiveRequest,
        }
    }
}
