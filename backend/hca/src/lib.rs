//! The device-independent host channel adapter: verbs objects and transport.
//!
//! An [`Engine`] owns every object of every virtual function of the program:
//! protection domains, memory keys, completion queues, shared receive queues,
//! queue pairs, multicast attachments. It is plain data behind `&mut`: whoever
//! holds it may create and change objects, or let it execute posted work with
//! [`Engine::run`] (after a doorbell) or [`Engine::poll`] (looking for work).
//! Messages between two functions of one engine are one copy from guest memory
//! to guest memory, in bounded slices.
//!
//! What it does not know comes in as traits: guest memory ([`Dma`]), the
//! formats of queues ([`Face`]), the subnet ([`Subnet`]), time ([`Clock`]).
//!
//! The modules are rooms; no files import each other in a circle:
//!
//! - `storage` has numbers of objects, their places, and the memory that they take;
//! - `memory` guest memory, from keys and addresses to windows of it, and scatter lists;
//! - `objects` the state of functions, queues, queue pairs, tag lists and dynamic connections, and work requests;
//! - `queue_format` and `path` the traits for formats of queues and for the subnet;
//! - [`transport`] messages in frames;
//! - `local` messages that end in the same engine, with one copy;
//! - `engine` and `verbs` the methods of the [`Engine`]: turns, completions, errors; creation and change of objects;
//! - [`image`] a function as plain data.

#![forbid(unsafe_code)]

mod engine;
pub mod image;
mod local;
mod memory;
mod objects;
mod path;
mod queue_format;
mod storage;
pub mod transport;
mod verbs;

pub use engine::paging::MAX_PAGE_FAULTS;
pub use engine::{Clock, Engine};
pub use memory::dma::{Dma, DmaFault, Readable};
pub use memory::pages::{ABSENT, NO_READ, NO_WRITE, NoPageList, PageList};
pub use memory::{dma, mr, signature, uniform};
pub use objects::counters::set::MAX_COUNTER_SETS;
pub use objects::counters::traffic::{PathId, PathTraffic};
pub use objects::counters::{
    ErrorCounters, Passed, QpCounters, RequestCounters, RetryCounters, TrafficCounters,
};
pub use objects::dynamic::{DctDesc, DctView, FarEnd, Initiator, RouteMarks};
pub use objects::ids::{VerbError, VfId};
pub use objects::page_fault::{Half, Needed, PageFault};
pub use objects::qp::QpDesc;
pub use objects::qp::attributes::{
    AddressPath, AlternatePath, InCompletion, MigrationState, QpAttr, QpChange, QpState, QpView,
    RecvSide, RemoteRights, Transport,
};
pub use objects::reason::{Failure, KeyFault, Reason, Report};
pub use objects::tags::{LOG_MAX_TAGS, TagView};
pub use objects::vf::port::{PortView, Quota};
pub use objects::vf::service_level::{Foreign, ServiceLevels};
pub use objects::work;
pub use objects::work::{MAX_IN_COMPLETION, MAX_MESSAGE};
pub use path::{
    Crossing, End, Envelope, Heading, LinkId, NoRoute, Route, Shares, Subnet, WrongKey,
};
pub use queue_format::{Attention, CqError, Event, Face, PortChange, Steering};
pub use storage::discarded::Discarded;
pub use storage::numbers;
pub use storage::share::Memory;
pub use verbs::connection::QpQueues;
pub use verbs::dynamic::MAX_CONTEXTS;
pub use verbs::multicast::MAX_GROUP_MEMBERS;
pub use verbs::objects::CqParts;
