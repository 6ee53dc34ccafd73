//! Frames in rings.

use vm_memory::VolatileSlice;
use vmm_socket::Signaller;

use crate::memory::{DirtyLog, Memory};
use crate::net_header::{self, NetHeader};
use crate::ring::{Chain, RingError};
use crate::session::Running;
use crate::translate::{ETHERNET_HEADER, Packet};

/// The longest frame of a guest, with headers: one of 64 KiB to be segmented, and a little.
pub const MAX_FRAME: usize = 65_536 + 64;

/// Room for the buffers of frames, kept for the next ones.
#[derive(Debug, Default)]
pub struct Scratch {
    chain: Chain,
    /// Chains of a frame for the guest, each with the bytes that it has room for.
    heads: Vec<(u16, usize)>,
    buffers: Vec<(u64, u32)>,
    /// Descriptors that were looked at since somebody asked.
    work: usize,
}

impl Scratch {
    /// Returns the number of descriptors that were read since the last call: a guest decides how many there are
    /// for a frame.
    pub const fn take_work(&mut self) -> usize {
        std::mem::replace(&mut self.work, 0)
    }
}

/// Result of a look at the ring of frames that the guest sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Nothing.
    Nothing,
    /// A frame.
    Frame(NetHeader),
    /// Something that cannot be a frame: too short, or too long.
    Nonsense,
}

impl Running<'_> {
    /// Takes the next frame that the guest sends, in `packet`.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn take(&mut self, scratch: &mut Scratch, packet: &mut Packet) -> Result<Taken, RingError> {
        let chain = &mut scratch.chain;
        if !self.ring.pop(self.memory, chain)? {
            return Ok(Taken::Nothing);
        }
        scratch.work += chain.walked;
        let headers = self.header + ETHERNET_HEADER;
        let len = Chain::len_of(&chain.readable);
        let taken = if (headers..=self.header + MAX_FRAME).contains(&len) {
            let header = gather(self.memory, &chain.readable, self.header, len, packet)?;
            Taken::Frame(NetHeader::parse(&header))
        } else {
            Taken::Nonsense
        };
        self.ring.push(chain.head, 0);
        Ok(taken)
    }

    /// Gives the guest a frame; whether it had room for it.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn give(&mut self, scratch: &mut Scratch, packet: &Packet) -> Result<bool, RingError> {
        let total = self.header + ETHERNET_HEADER + packet.packet().len();
        scratch.heads.clear();
        scratch.buffers.clear();
        let mut room = 0;
        while room < total {
            let several = self.mergeable || scratch.heads.is_empty();
            if !several || !self.ring.pop(self.memory, &mut scratch.chain)? {
                self.ring.put_back(scratch.heads.len() as u16);
                return Ok(false);
            }
            scratch.work += scratch.chain.walked;
            let of_chain = Chain::len_of(&scratch.chain.writable);
            if of_chain < self.header {
                // A driver's buffers have room for a header at least (virtio 1.3, 5.1.6.3.1).
                return Err(RingError::Small(of_chain));
            }
            scratch.heads.push((scratch.chain.head, of_chain));
            scratch.buffers.append(&mut scratch.chain.writable);
            room = room.saturating_add(of_chain);
        }
        let header = NetHeader::of(packet, scratch.heads.len() as u16);
        let parts = [&header[..self.header], &packet.ethernet, packet.packet()];
        scatter(self.memory, self.log, &scratch.buffers, parts)?;
        let mut left = total;
        for &(head, room) in &scratch.heads {
            let written = room.min(left);
            left -= written;
            self.ring.push(head, written as u32);
        }
        Ok(true)
    }

    /// Shows the guest what was done, and interrupts it if it wants that.
    pub fn finish(&mut self) {
        if self.ring.publish(self.log)
            && let Some(call) = self.call
            && let Ok(signaller) = Signaller::get()
        {
            use std::os::fd::AsFd;
            signaller.signal(call.as_fd());
        }
    }
}

/// The bytes of a buffer. That it is memory was checked with its descriptor.
fn bytes(memory: &Memory, (addr, len): (u64, u32)) -> Result<VolatileSlice<'_>, RingError> {
    let slice = memory.slice(addr, len as usize);
    slice.ok_or(RingError::Memory(addr, len))
}

/// Copies a frame of so many bytes with its header, and returns the header in front of it.
fn gather(
    memory: &Memory,
    buffers: &[(u64, u32)],
    header_len: usize,
    len: usize,
    packet: &mut Packet,
) -> Result<[u8; net_header::LEN], RingError> {
    let mut fronts = [0; net_header::LEN + ETHERNET_HEADER];
    let fronts_len = header_len + ETHERNET_HEADER;
    let mut filled = 0;
    let mut rest = packet.refill(len - fronts_len);
    for &buffer in buffers {
        let mut slice = bytes(memory, buffer)?;
        if filled < fronts_len {
            let copied = slice.copy_to(&mut fronts[filled..fronts_len]);
            filled += copied;
            // A part that is there.
            slice = slice.offset(copied).unwrap_or(slice);
        }
        let copied = slice.copy_to(rest);
        rest = rest.split_at_mut(copied).1;
    }
    let (header, ethernet) = fronts[..fronts_len].split_at(header_len);
    packet.ethernet.copy_from_slice(ethernet);
    let mut whole = [0; net_header::LEN];
    whole[..header_len].copy_from_slice(header);
    Ok(whole)
}

/// Writes parts one after the other into buffers that have room for them.
fn scatter(
    memory: &Memory,
    log: Option<&DirtyLog>,
    buffers: &[(u64, u32)],
    parts: [&[u8]; 3],
) -> Result<(), RingError> {
    let mut parts = parts.into_iter().filter(|part| !part.is_empty());
    let mut part = parts.next();
    for &buffer in buffers {
        let mut slice = bytes(memory, buffer)?;
        let mut addr = buffer.0;
        while let Some(from) = part
            && !slice.is_empty()
        {
            let (now, later) = from.split_at(from.len().min(slice.len()));
            slice.copy_from(now);
            if let Some(log) = log {
                log.mark(addr, now.len());
            }
            addr += now.len() as u64;
            slice = slice.offset(now.len()).unwrap_or(slice);
            part = if later.is_empty() {
                parts.next()
            } else {
                Some(later)
            };
        }
    }
    Ok(())
}
