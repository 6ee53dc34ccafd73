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

#![forbid(unsafe_code)]

mod access;
mod agenda;
mod atomic;
mod connection;
mod cq;
mod datagram;
pub mod dma;
mod engine;
mod face;
mod failure;
pub mod image;
mod key_update;
mod memory;
mod message;
pub mod mr;
mod multicast;
pub mod numbers;
mod objects;
mod pages;
mod path;
mod poll;
mod progress;
mod qp;
mod reason;
mod requester;
mod service_level;
mod shared_port;
mod slab;
mod srq;
mod subnet;
mod traffic;
pub mod transport;
mod vf;
pub mod work;

pub use agenda::Discarded;
pub use connection::QpQueues;
pub use dma::{Dma, DmaFault};
pub use engine::{Clock, Engine, VerbError, VfId};
pub use face::{Attention, CqError, Event, Face, PortChange};
pub use memory::Memory;
pub use multicast::MAX_GROUP_MEMBERS;
pub use objects::CqParts;
pub use pages::{NoPageList, PageList};
pub use qp::{
    AddressPath, QpAttr, QpChange, QpDesc, QpState, QpView, RecvSide, RemoteRights, Transport,
};
pub use reason::{Failure, KeyFault, Reason, Report};
pub use requester::MAX_MESSAGE;
pub use service_level::{Foreign, ServiceLevels};
pub use subnet::{
    Crossing, End, Envelope, Heading, LinkId, MadDatagram, NoRoute, Route, Subnet, WrongKey,
};
pub use traffic::{PathId, PathTraffic};
pub use vf::{PortView, Quota, RequestCounters, RetryCounters, TrafficCounters};
