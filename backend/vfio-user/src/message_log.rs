//! Somebody to go on with a client when this process dies.
//!
//! The client's socket is not read by anybody else meanwhile. The log is told of what is rare: a client
//! comes or goes, its memory, its eventfds, its configuration space. Of a message that has a reply it notes the
//! beginning, in memory that outlives this process, from before the message is taken from the socket until it
//! has been answered: so whoever comes next knows which message is left without an answer.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use serde::{Deserialize, Serialize};

use crate::Stop;

/// A part of a region as it reads while nobody serves the device. Bytes outside of all parts read as zeros.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// VFIO region index.
    pub region: u32,
    /// Where it begins in the region, in bytes.
    pub offset: u64,
    /// Bytes that it reads as.
    pub bytes: Vec<u8>,
    /// The bits of `bytes` that a client may write, which whoever serves the device again is told. Empty
    /// where that is none.
    pub writable: Vec<u8>,
}

/// Values that a client sees while its device has no server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandIn {
    /// The client's driver uses the device.
    pub at_work: bool,
    /// The device as it was when it worked.
    pub shown: Vec<Part>,
    /// In front of that: what says that the device has failed and is yet to come up.
    pub failed: Vec<Part>,
    /// A big-endian number of 24 bits, by region and offset, that changes from one reading to the next.
    pub counter: Option<(u32, u64)>,
}

/// A message of a client as it came: header, payload, descriptors.
pub type Message = (Vec<u8>, Vec<OwnedFd>);

/// A client with which another process had to do before.
#[derive(Debug)]
pub struct Resumed {
    /// Its connection.
    pub stream: UnixStream,
    /// The messages by which the device comes to know the client.
    pub messages: Vec<Message>,
    /// Values that the client has been shown.
    pub shown: StandIn,
}

/// Remembers what a client and its device have agreed on, so that another process can go on with the client when this
/// one dies. The methods return no errors: a log that fails has to handle it itself.
pub trait MessageLog: Send {
    /// A client that there is already, once it may be told that its device has failed. Called before
    /// anybody is accepted. `None` where there is no client, or `stop` is signalled.
    fn resume(&mut self, stop: &Stop) -> Option<Resumed>;

    /// A client has connected.
    fn connected(&mut self, stream: &UnixStream);

    /// A message that begins so, and that has a reply, is about to be taken from the socket.
    fn takes(&mut self, start: &[u8]);

    /// A message is about to be carried out that a later server of the client has to know.
    fn keeps(&mut self, message: &[u8], fds: &[OwnedFd]);

    /// It was refused.
    fn refused(&mut self);

    /// The reply is about to be sent.
    fn answers(&mut self);

    /// The reply was sent.
    fn answered(&mut self);

    /// The device is to be shown so from now on, where nobody serves it.
    fn shows(&mut self, stand_in: &StandIn);

    /// The client is gone; not said where the server stops.
    fn gone(&mut self);
}

/// There is no log.
#[derive(Debug)]
pub(crate) struct Nobody;

impl MessageLog for Nobody {
    fn resume(&mut self, _stop: &Stop) -> Option<Resumed> {
        None
    }
    fn connected(&mut self, _stream: &UnixStream) {}
    fn takes(&mut self, _start: &[u8]) {}
    fn keeps(&mut self, _message: &[u8], _fds: &[OwnedFd]) {}
    fn refused(&mut self) {}
    fn answers(&mut self) {}
    fn answered(&mut self) {}
    fn shows(&mut self, _stand_in: &StandIn) {}
    fn gone(&mut self) {}
}
