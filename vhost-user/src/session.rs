//! A client's session: what its messages make of features, memory and rings. QEMU enables rings before it
//! says which features it uses, so that requests are taken in any order that makes sense.

use std::fs::File;
use std::os::fd::OwnedFd;

use thiserror::Error;
use tracing::debug;
use vmm_socket::{Files, MapError};

use crate::memory::{DirtyLog, Memory, MemoryError, Window};
use crate::message::{
    EventFor, Header, MessageError, Request, RingAddresses, feature, protocol_feature,
};
use crate::net_header;
use crate::ring::{MAX_SIZE, Ring, RingFeatures};

/// Features that are offered.
pub const FEATURES: u64 = feature::CHECKSUM
    | TRAINS
    | feature::SEGMENTS_IPV4
    | feature::SEGMENTS_IPV6
    | feature::MTU
    | feature::MERGEABLE
    | feature::GUEST_ANNOUNCE
    | feature::LOG_ALL
    | feature::INDIRECT
    | feature::EVENT_INDEX
    | feature::PROTOCOL
    | feature::VERSION_1;
/// Features that a guest has to use to be given trains of datagrams as they are.
const TRAINS: u64 =
    feature::GUEST_CHECKSUM | feature::GUEST_SEGMENTS_IPV4 | feature::GUEST_SEGMENTS_IPV6;
/// Features of the protocol that are offered.
pub const PROTOCOL_FEATURES: u64 =
    protocol_feature::LOG_SHMFD | protocol_feature::REPLY_ACK | protocol_feature::NET_MTU;

/// The ring of receive buffers.
pub const RECEIVE: usize = 0;
/// The ring of frames that the guest sends.
pub const TRANSMIT: usize = 1;
/// Rings of a port.
pub const RINGS: usize = 2;

/// Why a session ends.
#[derive(Debug, Error)]
pub enum SessionError {
    /// A message makes no sense.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Descriptors that do not belong to the message, or are missing.
    #[error("{0} file descriptors came with request {1}")]
    Descriptors(usize, u32),
    /// Features that were not offered.
    #[error("features {0:#x} were not offered")]
    Features(u64),
    /// There is no such ring.
    #[error("there is no ring {0}; there are {RINGS}")]
    Ring(usize),
    /// A ring cannot have this many descriptors, or this base.
    #[error("a ring cannot have {0} descriptors, or begin there")]
    RingSize(u32),
    /// A ring was started that is not in memory, or has no size.
    #[error("ring {0} is not in the guest's memory, or has no size")]
    RingPlace(usize),
    /// The memory table cannot be used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The dirty log cannot be used.
    #[error("the dirty log: {0}")]
    Log(MapError),
    /// The dirty log is too small for its memory, or not all in its file.
    #[error("a dirty log of {0} bytes at {1:#x} is too small, or not all in its file")]
    LogSize(u64, u64),
}

/// A ring as the client has described it.
#[derive(Debug, Default)]
struct RingState {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u16,
    enabled: bool,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    /// The ring at work: it has started.
    ring: Option<Ring>,
}

/// Change by a message that concerns others.
#[derive(Debug)]
pub enum Change {
    /// A ring has another descriptor that kicks it, or none ([`Session::kick`]), in place of this one.
    Kick(usize, Option<OwnedFd>),
}

/// A client's session.
#[derive(Debug)]
pub struct Session {
    /// The MTU that the guest may have.
    mtu: u16,
    features: u64,
    protocol_features: u64,
    memory: Memory,
    files: Files,
    log: Option<DirtyLog>,
    rings: [RingState; RINGS],
}

/// An answer: its payload.
pub type Answer = Option<Vec<u8>>;

impl Session {
    /// With a client that shares its memory in `files`. `mtu` is what the guest is to be told.
    #[must_use]
    pub fn new(files: Files, mtu: u16) -> Self {
        Self {
            mtu,
            features: 0,
            protocol_features: 0,
            memory: Memory::default(),
            files,
            log: None,
            rings: Default::default(),
        }
    }

    /// Takes a message with the descriptors that came with it. Returns the answer, and what has changed.
    ///
    /// # Errors
    /// [`SessionError`]: the connection is to be closed.
    pub fn handle(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<(Answer, Option<Change>), SessionError> {
        let request = Request::parse(header, payload)?;
        let (least, most) = request.descriptors();
        if fds.len() < least || fds.len() > most {
            return Err(SessionError::Descriptors(fds.len(), header.request));
        }
        debug!(?request, "message");
        let mut done = Ok(());
        let mut change = None;
        let answer = match request {
            Request::GetFeatures => Some(number(FEATURES)),
            Request::GetProtocolFeatures => Some(number(PROTOCOL_FEATURES)),
            Request::GetRingBase(ring) => {
                let state = self.ring_mut(ring)?;
                if let Some(stopped) = state.ring.take() {
                    state.base = stopped.base();
                }
                state.call = None;
                change = Some(Change::Kick(ring, state.kick.take()));
                let base = u64::from(state.base);
                Some(number(ring as u64 | base << 32))
            }
            Request::SetLogBase(len, offset) => {
                self.set_log(len, offset, fds)?;
                // With a file there is always an answer.
                Some(number(0))
            }
            Request::SetRingKick(EventFor { ring, .. }) => {
                let kick = fds.into_iter().next();
                let old = std::mem::replace(&mut self.ring_mut(ring)?.kick, kick);
                change = Some(Change::Kick(ring, old));
                self.start(ring)?;
                None
            }
            Request::SetMtu(mtu) => {
                // The guest would send frames that are too long.
                done = if mtu <= u64::from(self.mtu) {
                    Ok(())
                } else {
                    Err(())
                };
                None
            }
            request => {
                self.set(request, fds)?;
                None
            }
        };
        let acknowledges = self.protocol_features & protocol_feature::REPLY_ACK != 0;
        let answer = match answer {
            None if acknowledges && header.needs_reply() => Some(number(u64::from(done.is_err()))),
            answer => answer,
        };
        Ok((answer, change))
    }

    /// Does what is answered by nothing.
    fn set(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        match request {
            Request::SetFeatures(features) => {
                if features & !FEATURES != 0 {
                    return Err(SessionError::Features(features));
                }
                self.features = features;
                if features & feature::LOG_ALL == 0 {
                    self.log = None;
                }
                self.restart()?;
            }
            Request::SetProtocolFeatures(features) => {
                if features & !PROTOCOL_FEATURES != 0 {
                    return Err(SessionError::Features(features));
                }
                self.protocol_features = features;
            }
            Request::SetMemTable(table) => {
                // Mappings that exist already stay.
                let files = fds.into_iter().map(File::from);
                self.memory = Memory::new(table.into_iter().zip(files), &mut self.files)?;
                self.restart()?;
            }
            Request::SetRingSize(ring, size) => {
                let fits = size.is_power_of_two() && size <= u32::from(MAX_SIZE);
                let stopped = self.ring_mut(ring)?.ring.is_none();
                if !fits || !stopped {
                    return Err(SessionError::RingSize(size));
                }
                self.ring_mut(ring)?.size = size as u16;
            }
            Request::SetRingAddresses(ring, addresses) => {
                self.ring_mut(ring)?.addresses = Some(addresses);
                self.move_ring(ring)?;
            }
            Request::SetRingBase(ring, base) => {
                let state = self.ring_mut(ring)?;
                let (Ok(base), None) = (u16::try_from(base), &state.ring) else {
                    return Err(SessionError::RingSize(base));
                };
                state.base = base;
            }
            Request::SetRingCall(event) => {
                self.ring_mut(event.ring)?.call = fds.into_iter().next();
            }
            Request::SetRingEnable(ring, enabled) => self.ring_mut(ring)?.enabled = enabled,
            // A ring that fails ends the connection, so that nobody is told by an event.
            Request::SetRingError(event) => drop(self.ring_mut(event.ring)?),
            _ => {}
        }
        Ok(())
    }

    fn set_log(&mut self, len: u64, offset: u64, fds: Vec<OwnedFd>) -> Result<(), SessionError> {
        let wrong = SessionError::LogSize(len, offset);
        let end = offset.checked_add(len);
        let Some((file, end)) = fds.into_iter().next().zip(end) else {
            return Err(wrong);
        };
        if len < self.memory.log_len() {
            return Err(wrong);
        }
        let file = self.files.map(File::from(file), end, true);
        let file = file.map_err(SessionError::Log)?;
        let window = Window::new(file, offset as usize, len as usize);
        self.log = Some(DirtyLog::new(window.ok_or(wrong)?));
        Ok(())
    }

    fn ring_mut(&mut self, ring: usize) -> Result<&mut RingState, SessionError> {
        self.rings.get_mut(ring).ok_or(SessionError::Ring(ring))
    }

    fn ring_features(&self) -> RingFeatures {
        RingFeatures {
            indirect: self.features & feature::INDIRECT != 0,
            event_index: self.features & feature::EVENT_INDEX != 0,
        }
    }

    /// Starts a ring.
    fn start(&mut self, ring: usize) -> Result<(), SessionError> {
        let features = self.ring_features();
        let state = &mut self.rings[ring];
        let base = match &state.ring {
            Some(running) => running.base(),
            None => state.base,
        };
        let addresses = state.addresses.ok_or(SessionError::RingPlace(ring))?;
        let started = Ring::new(&self.memory, state.size, &addresses, base, features);
        state.ring = Some(started.ok_or(SessionError::RingPlace(ring))?);
        Ok(())
    }

    /// A ring that is at work is elsewhere now.
    fn move_ring(&mut self, ring: usize) -> Result<(), SessionError> {
        match self.rings[ring].ring {
            Some(_) => self.start(ring),
            None => Ok(()),
        }
    }

    /// The memory or the features have changed under the rings at work.
    fn restart(&mut self) -> Result<(), SessionError> {
        (0..RINGS).try_for_each(|ring| self.move_ring(ring))
    }

    /// Returns the eventfd that kicks a ring.
    #[must_use]
    pub fn kick(&self, ring: usize) -> Option<&OwnedFd> {
        self.rings.get(ring)?.kick.as_ref()
    }

    /// A ring that passes frames, with what it needs for that; `None` where it has not started or is not
    /// enabled.
    pub fn running(&mut self, ring: usize) -> Option<Running<'_>> {
        // Without protocol features a ring is enabled when it starts.
        let enabled_by_itself = self.features & feature::PROTOCOL == 0;
        let state = self.rings.get_mut(ring)?;
        let enabled = state.enabled || enabled_by_itself;
        Some(Running {
            ring: state.ring.as_mut().filter(|_| enabled)?,
            memory: &self.memory,
            log: self.log.as_ref(),
            call: state.call.as_ref(),
            mergeable: self.features & feature::MERGEABLE != 0,
            header: net_header::len(self.features),
        })
    }

    /// Whether the guest takes long TCP segments, over IPv4 and IPv6.
    #[must_use]
    pub const fn takes_trains(&self) -> bool {
        self.features & TRAINS == TRAINS
    }

    /// Whether the guest's driver has both rings at work.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.rings.iter().all(|state| state.ring.is_some())
    }
}

/// A ring at work, and what it needs.
#[derive(Debug)]
pub struct Running<'a> {
    /// The ring.
    pub ring: &'a mut Ring,
    /// The guest's memory.
    pub memory: &'a Memory,
    /// Where what is written is marked.
    pub log: Option<&'a DirtyLog>,
    /// Eventfd to signal when buffers were used.
    pub call: Option<&'a OwnedFd>,
    /// Frames may take several receive buffers.
    pub mergeable: bool,
    /// Bytes of the header of each frame.
    pub header: usize,
}

fn number(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}
