//! A request, and how it is answered.

use wire::mad::{AttributeId, Method, Status};
use wire::sa::{self, Record};
use wire::{Gid, Guid, MadPacket};

use super::directory::{Directory, Port, PortIndex};

/// Bytes of a table that is answered at most: what is asked for by somebody who wants more can be
/// asked for in parts.
const TABLE: usize = 8 << 20;

/// A request of which the header is known to be sound.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) packet: &'a MadPacket,
    pub(super) method: Method,
    pub(super) attribute: AttributeId,
    pub(super) modifier: u32,
    pub(super) mask: u64,
    /// The template.
    pub(super) data: &'a [u8],
    /// The port that asks.
    pub(super) requester: PortIndex,
    /// The port's GUID, or that of the function at it that asks.
    pub(super) guid: Guid,
    /// Knows the subnet manager's key, or is at the subnet manager's own port.
    pub(super) trusted: bool,
}

impl Request<'_> {
    /// Whether all these components are given.
    pub(super) const fn gives(&self, components: u64) -> bool {
        self.mask & components == components
    }

    /// The template as a record.
    pub(super) fn record<R: Record>(&self) -> Result<R, Status> {
        R::read(self.data).map_err(|_| Status::SA_REQUEST_INVALID)
    }

    /// Whether the requester may know of a port: a trusted one of all, others of those they share
    /// a partition with (IBA 15.4.1).
    pub(super) fn may_see(&self, directory: &Directory, port: &Port) -> bool {
        let requester = directory.port(self.requester);
        self.trusted || port.guid == requester.guid || requester.shares(port)
    }

    /// The requester's GID.
    pub(super) fn gid(&self, directory: &Directory) -> Gid {
        directory.gid_of(self.guid)
    }
}

/// Records on their way into an answer.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) bytes: Vec<u8>,
    pub(super) stride: usize,
    pub(super) count: usize,
    /// More than this need not be found.
    enough: usize,
}

impl Table {
    /// Empties the table for the answer to `method` with records of type `R`.
    pub(super) fn begin<R: Record>(&mut self, method: Method) {
        self.bytes.clear();
        self.stride = R::STRIDE;
        self.count = 0;
        // One more than a Get may have tells that there are too many.
        self.enough = match method {
            Method::GET => 2,
            _ => TABLE / R::STRIDE,
        };
    }

    /// Whether there is no use for more.
    pub(super) const fn is_full(&self) -> bool {
        self.count >= self.enough
    }

    /// Adds a record, in whatever size.
    pub(super) fn push<R: Record>(&mut self, record: &R) {
        let at = self.bytes.len();
        self.bytes.resize(at + R::STRIDE, 0);
        record.write(&mut self.bytes[at..]);
        self.count += 1;
    }

    /// Adds a record if it shares the request's components.
    pub(super) fn offer<R: Record>(&mut self, request: &Request<'_>, record: &R) {
        let at = self.bytes.len();
        self.push(record);
        if !sa::matches(R::COMPONENTS, request.mask, request.data, &self.bytes[at..]) {
            self.bytes.truncate(at);
            self.count -= 1;
        }
    }
}
