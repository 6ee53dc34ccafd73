//! Everything that a function is, as plain data: to be kept in a file, sent to another host, and made a
//! function of again.
//!
//! Objects are named by their numbers, and times count from the moment of saving. Results of look-ups (paths,
//! peers, records, requests fetched ahead) are not in an image: they are looked up again. Management sets the port
//! where the function comes to be ([`Vf::set_port`](crate::Vf::set_port)); frames on their way belong to
//! the wire until they arrive. Packets held for a quiesced function are in its image.
//!
//! An image may come from anywhere. Restoring checks every number and length in it and charges the function's quota
//! as the verbs do.
//!
//! Fields of the structures here, and of those that they are made of (work requests, attributes), are
//! the format. Version 1 only ever gets further fields, each with a default.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Debug, Display};
use thiserror::Error;
use wire::{Gid, Qpn};

use crate::objects::tags::TagListImageV1;
use crate::queue_format::QueueFormat;

mod counters;
mod held;
mod keys;
mod qp;
mod relocation;
pub(crate) mod restore;
mod restoring;
mod save;

pub use crate::memory::page_image::{BlockImageV1, PagesImageV1};
pub use counters::{CounterSetImageV1, CountersImageV1, QpCountersImageV1};
pub use held::{FrameImageV1, HeldImageV1};
pub use keys::{KeyImageV1, TranslationImageV1};
pub use qp::{
    AwayImageV1, ContextImageV1, FinishedImageV1, InboundImageV1, QpImageV1, RecvImageV1,
    RequestImageV1, RequesterImageV1, ResponderImageV1, TargetImageV1,
};

pub use restoring::Restoring;
pub use save::Saving;

/// The image of a function, in the version that its first key names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", rename_all = "snake_case")]
pub enum VfImage<F: QueueFormat> {
    /// Version 1.
    V1(VfImageV1<F>),
}

impl<F: QueueFormat> VfImage<F> {
    /// Has all queue pairs count in one set, as functions did before they had several. It begins at zero.
    pub fn count_all_in(&mut self, number: u8) {
        let Self::V1(image) = self;
        image.counter_sets = vec![CounterSetImageV1 {
            number,
            counts: QpCountersImageV1::default(),
        }];
        for qp in &mut image.qps {
            qp.counter_set = number;
        }
    }
}

/// Version 1 of the image of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct VfImageV1<F: QueueFormat> {
    /// Numbers of protection domains.
    pub(crate) pds: Vec<u32>,
    /// Numbers of XRC domains.
    pub(crate) xrcds: Vec<u32>,
    /// Signature values under way: number, protection domain.
    #[serde(default)]
    pub(crate) psvs: Vec<(u32, u32)>,
    pub(crate) keys: Vec<KeyImageV1>,
    pub(crate) cqs: Vec<CqImageV1<F>>,
    pub(crate) srqs: Vec<SrqImageV1<F>>,
    pub(crate) qps: Vec<QpImageV1<F>>,
    /// Numbers of queue pairs that are nobody's.
    #[serde(default)]
    pub(crate) reserved_qpns: Vec<u32>,
    pub(crate) multicast: Vec<GroupImageV1>,
    /// Queue pairs whose turn comes, in that order.
    pub(crate) ready: Vec<Qpn>,
    /// Queue pairs in error, in the order in which they are looked at.
    pub(crate) errored: Vec<ErroredImageV1>,
    /// Users of completion queues that failed are yet to be found.
    pub(crate) searching: bool,
    pub(crate) counters: CountersImageV1,
    /// Sets of counters of queue pairs.
    #[serde(default)]
    pub(crate) counter_sets: Vec<CounterSetImageV1>,
    /// Packets that have come for the function while it was quiesced, in that order.
    #[serde(default)]
    pub(crate) held: Vec<HeldImageV1>,
}

impl<F: QueueFormat> Default for VfImageV1<F> {
    fn default() -> Self {
        Self {
            pds: Vec::new(),
            xrcds: Vec::new(),
            psvs: Vec::new(),
            keys: Vec::new(),
            cqs: Vec::new(),
            srqs: Vec::new(),
            qps: Vec::new(),
            reserved_qpns: Vec::new(),
            multicast: Vec::new(),
            ready: Vec::new(),
            errored: Vec::new(),
            searching: false,
            counters: CountersImageV1::default(),
            counter_sets: Vec::new(),
            held: Vec::new(),
        }
    }
}

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct CqImageV1<F: QueueFormat> {
    pub(crate) cqn: u32,
    pub(crate) failed: bool,
    /// Its arming is looked at.
    pub(crate) watched: bool,
    /// Its event waits for more entries, no longer than so many nanoseconds.
    pub(crate) held: Option<u64>,
    pub(crate) ring: F::CompletionImage,
}

/// A shared receive queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound = "", deny_unknown_fields)]
pub struct SrqImageV1<F: QueueFormat> {
    pub(crate) srqn: u32,
    pub(crate) pd: u32,
    /// XRC domain and completion queue of an XRC one.
    pub(crate) xrc: Option<(u32, u32)>,
    /// Tags that messages are matched with.
    #[serde(default)]
    pub(crate) tags: Option<TagListImageV1>,
    /// The limit event is due when fewer requests remain; 0: not armed.
    pub(crate) limit: u32,
    pub(crate) failed: bool,
    #[serde(default)]
    pub(crate) user_index: Option<u32>,
    pub(crate) ring: F::SharedImage,
}

/// A multicast group, and who is attached to it, in that order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupImageV1 {
    pub(crate) gid: Gid,
    pub(crate) members: Vec<Qpn>,
}

/// A queue pair in error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErroredImageV1 {
    pub(crate) qpn: Qpn,
    /// Nanoseconds to the next look for requests posted to it.
    pub(crate) due: u64,
    /// Nanoseconds from there to the next one.
    pub(crate) pause: u64,
}

/// An object of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: &'static str,
    /// Its number.
    pub number: u32,
}

impl Object {
    pub(crate) const fn new(kind: &'static str, number: u32) -> Self {
        Self { kind, number }
    }
}

impl Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.kind, self.number)
    }
}

/// Why an image cannot be restored. The function has no objects then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ImageError {
    /// The function has objects of its own.
    #[error("the function has objects already; reset it before an image is restored")]
    Occupied,
    /// Another function at the same port has a queue pair of this number.
    #[error(
        "queue pair {number:#x} is another function's at port {lid}; restore the image at a port \
         where no function has that number"
    )]
    Taken {
        /// The number.
        number: u32,
        /// LID of the port.
        lid: wire::Lid,
    },
    /// A number that the function's tables have no place for.
    #[error(
        "{0} has no place in the function's table: it is there twice, or the function's quota is \
         smaller than where the image was saved; raise the quota"
    )]
    NoPlace(Object),
    /// The quota of memory does not suffice.
    #[error("no memory is left for {0}: raise the function's quota of memory")]
    Exhausted(Object),
    /// It names something that the image does not have.
    #[error("{of} names {what}, which the image does not have; save the image anew")]
    Missing {
        /// The object that names the other.
        of: Object,
        /// The object that is named.
        what: Object,
    },
    /// It makes no sense.
    #[error("{of}: {what}; save the image anew")]
    Invalid {
        /// The object at fault.
        of: Object,
        /// The fault.
        what: String,
    },
}
