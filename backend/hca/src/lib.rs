//! The device-independent host channel adapter: verbs objects and transport.
//!
//! An [`Engine`] owns every object of every virtual function of the program: protection domains, memory keys,
//! completion queues, shared receive queues, queue pairs, multicast attachments. It is plain data behind `&mut`: its
//! holder may create and change objects, or let it execute posted work with [`Engine::run`] (after a doorbell) or
//! [`Engine::poll`] (looking for work). Messages between two functions of one engine are one copy from guest memory
//! to guest memory, in bounded slices.
//!
//! Its environment comes in as traits: guest memory ([`Dma`]), the formats of queues ([`QueueFormat`]), the subnet
//! ([`Subnet`]), time ([`Clock`]).
//!
//! The modules are rooms. No files name each other in a circle; by re-exports some still do:
//!
//! - `storage` has numbers of objects, their places, and the memory that they take;
//! - `memory` guest memory, from keys and addresses to windows of it, and scatter lists;
//! - `objects` the state of functions, queues, queue pairs, tag lists and dynamic connections, and work requests;
//! - `queue_format` and `path` the traits for formats of queues and for the subnet;
//! - [`transport`] messages in frames;
//! - `local` messages that end in the same engine, with one copy;
//! - `engine` the parts of the [`Engine`]: turns, completions, errors; `verbs` creation and change of objects ([`Verbs`]);
//! - [`image`] a function as plain data.
//!
//! # Frames
//!
//! A path is *clean* if it ends at a function of the same engine and nothing on it loses, delays or shows packets. A message
//! over a clean path is one copy. All other messages go in frames: the headers of a message's packets once, and up to 64 KiB of
//! payload, which stand for as many packets as the path MTU makes of them.
//!
//! Each side of a connection owns itself. The `Requester` takes requests, answers and time, and gives frames, completions and
//! deadlines. The responder (`Reception`) checks a frame and gives an answer. Frames leave and arrive at an `Endpoint`; each
//! effect of a link is a decorator: `Captured`, `Lossy`, `Shared`, `Delayed`. A path to another engine ends at a link
//! (`End::Away`). A function's frames on their way are bounded.
//!
//! A frame that takes longer than a turn, as pieces of a byte each do, is carried out in steps, and the frames behind it wait
//! in line at the queue pair. Parts that have been carried out are acknowledged packet by packet.
//!
//! **Lending.** A frame to another engine with 4 KiB or more in one piece borrows the sender's memory under three leases (request,
//! key, mapped memory). The end of any lease waits for a copy in progress, and a frame that is still in the ring is
//! *void*: the requester sends again, with the bytes. A request is lent once at most.
//!
//! **Dynamic connections.** An initiator is a queue pair whose far end changes. A target has a *context* for each initiator, 1024
//! at most: a queue pair without a number. Requests in frames name access key, initiator, connection and first packet. A new
//! initiator replaces a context that was idle for 10 ms. The headers of such packets are not public; these have opcodes
//! from 0xc0 on.
//!
//! **Tag matching.** A shared receive queue has a list of 128 entries at most. The beginning of a message decides where the rest
//! goes. A queue pair without a send queue reads a rendezvous, by a READ and a message that tells the sender.
//!
//! # Turns
//!
//! VFs have turns one after the other, and within a VF its queue pairs. A turn has a *budget* in nanoseconds of a
//! calibrated machine. Copies, requests, steps of indirect keys, looks at cold objects and timers take from it. A turn has 16 µs
//! while nobody else has work, 2 µs otherwise, and less where the function's turns take longer than their budget. A message
//! that takes more continues in the next turn.
//!
//! **Pages that are away** stop one half of one queue pair. A requester keeps its request; a responder answers with an RNR NAK. The
//! owner gets an event, of 512 halves at a time at most. `Verbs::resume_fault` ends the wait.
//!
//! **Signatures.** A key with check values translates no address. The transfer goes through the engine's own memory, and nothing
//! is kept between pieces but a partial check value. Errors wait in the key table until the message's end.
//!
//! # Images
//!
//! `Engine::quiesce` lets a function rest, `save` makes plain data of its objects, `restore` makes a function of that again, in
//! parts of 256 objects. An image has objects by number, and times from the moment of saving. `restore` checks an image as
//! verbs check a guest. A rest loses nothing: others' messages wait at the function, 16 MiB at most, and no retry is
//! used up. After a minute the function is dead to the others.

#![forbid(unsafe_code)]

mod budget;
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

pub use budget::Budget;
pub use engine::Engine;
pub use engine::paging::MAX_PAGE_FAULTS;
pub use engine::scheduler::Clock;
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
pub use objects::vf::Vf;
pub use objects::vf::port::{PortView, Quota};
pub use objects::vf::service_level::{Foreign, ServiceLevels};
pub use objects::work;
pub use objects::work::{MAX_IN_COMPLETION, MAX_MESSAGE};
pub use path::{
    Crossing, End, Envelope, Heading, LinkId, NoRoute, Route, Shares, Subnet, WrongKey,
};
pub use queue_format::{Attention, CqError, Event, PortChange, QueueFormat, Steering};
pub use storage::discarded::Discarded;
pub use storage::numbers;
pub use storage::share::Memory;
pub use verbs::Verbs;
pub use verbs::connection::QpQueues;
pub use verbs::dynamic::MAX_CONTEXTS;
pub use verbs::multicast::MAX_GROUP_MEMBERS;
pub use verbs::objects::CqParts;
