//! Names of objects within an engine, and why a verb fails.

use thiserror::Error;

/// A virtual function of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VfId(pub u16);

/// Engine-wide index of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QpIndex(pub u32);

/// Engine-wide index of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CqIndex(pub u32);

/// Engine-wide index of a shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SrqIndex(pub u32);

/// Why a verb failed. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VerbError {
    /// The function has as many of these as it may have.
    #[error("no more objects of this kind: the function's quota is reached")]
    Exhausted,
    /// No such object.
    #[error("no such object")]
    NotFound,
    /// Others still use it.
    #[error("the object is still in use")]
    InUse,
    /// The queue pair's state does not allow it.
    #[error("the queue pair's state does not allow this")]
    BadState,
    /// A parameter makes no sense.
    #[error("invalid parameter")]
    Invalid,
}
