//! The driver's side of a split virtqueue (virtio 1.3, 2.7).

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use virtio_bindings::virtio_ring::{
    VRING_AVAIL_F_NO_INTERRUPT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE,
};
use vm_memory::{
    Bytes, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, MemoryRegionAddress,
    VolatileSlice,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::{BASE, RECEIVE};

/// Descriptors of a ring.
pub const SIZE: u16 = 256;
/// Bytes of a buffer.
pub const BUFFER: usize = 4096;

/// Bytes that a ring and its buffers take.
const PLACE: u64 = 0x20_0000;

/// A ring.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<GuestMemoryMmap>,
    base: u64,
    writes: bool,
    event_index: bool,
    /// Wakes the device.
    pub kick: EventFd,
    /// Wakes the driver.
    pub call: EventFd,
    epoll: Epoll,
    /// Descriptors that nobody has.
    free: Vec<u16>,
    /// By the first of a chain, its other descriptors.
    chains: Vec<Vec<u16>>,
    available: u16,
    kicked: u16,
    used: u16,
}

impl Queue {
    pub(crate) fn new(
        memory: Arc<GuestMemoryMmap>,
        ring: usize,
        event_index: bool,
    ) -> io::Result<Self> {
        let (epoll, call) = (Epoll::new()?, EventFd::new(EFD_NONBLOCK)?);
        let readable = EpollEvent::new(EventSet::IN, 0);
        epoll.ctl(ControlOperation::Add, call.as_raw_fd(), readable)?;
        Ok(Self {
            memory,
            base: BASE + PLACE * ring as u64,
            writes: ring == RECEIVE,
            event_index,
            kick: EventFd::new(EFD_NONBLOCK)?,
            call,
            epoll,
            free: (0..SIZE).rev().collect(),
            chains: vec![Vec::new(); SIZE.into()],
            available: 0,
            kicked: 0,
            used: 0,
        })
    }

    /// Where descriptors, available ring and used ring are, in the guest's addresses.
    #[must_use]
    pub const fn places(&self) -> [u64; 3] {
        [self.base, self.base + 0x4000, self.base + 0x8000]
    }

    /// Where the buffer of a descriptor is.
    #[must_use]
    pub const fn buffer(&self, descriptor: u16) -> u64 {
        self.base + 0x1_0000 + descriptor as u64 * BUFFER as u64
    }

    /// Returns the memory at an address of the guest's.
    fn bytes(&self, at: u64, len: usize) -> VolatileSlice<'_> {
        let region = self.memory.iter().next();
        let at = MemoryRegionAddress(at - BASE);
        let bytes = region.and_then(|region| region.get_slice(at, len).ok());
        bytes.expect("is the guest's memory")
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
        let written = self.bytes(at, size_of::<T>()).write_obj(value, 0);
        written.expect("is the guest's memory");
    }

    fn get<T: vm_memory::ByteValued>(&self, at: u64) -> T {
        let read = self.bytes(at, size_of::<T>()).read_obj(0);
        read.expect("is the guest's memory")
    }

    /// Writes a descriptor.
    pub fn describe(&self, descriptor: u16, addr: u64, len: u32, flags: u32, next: u16) {
        let at = self.places()[0] + 16 * u64::from(descriptor);
        let words = u128::from(addr)
            | u128::from(len) << 64
            | u128::from(flags as u16) << 96
            | u128::from(next) << 112;
        self.put(at, words.to_le());
    }

    /// Makes a chain available that begins with this descriptor.
    pub fn offer(&mut self, head: u16) {
        let at = self.places()[1];
        self.put(at + 4 + 2 * u64::from(self.available % SIZE), head);
        self.available = self.available.wrapping_add(1);
        self.announce(self.available);
    }

    /// Says that everything before this index is available.
    pub fn announce(&self, index: u16) {
        let place = self.bytes(self.places()[1] + 2, 2);
        let stored = place.store(index, 0, Ordering::Release);
        stored.expect("is the guest's memory");
    }

    /// Offers buffers with these bytes; whether there were enough.
    ///
    /// # Panics
    /// Where they are more than all buffers hold.
    pub fn post(&mut self, header: &[u8], frame: &[u8]) -> bool {
        while self.take().is_some() {}
        let mut left = header.len() + frame.len();
        let count = left.div_ceil(BUFFER);
        assert!(count <= SIZE.into(), "a frame of {} bytes", frame.len());
        if self.free.len() < count {
            return false;
        }
        let Some(head) = self.free.pop() else {
            return false;
        };
        let mut rest = std::mem::take(&mut self.chains[usize::from(head)]);
        rest.extend(self.free.drain(self.free.len() + 1 - count..));
        let (mut at, mut written) = (head, 0);
        for next in rest.iter().rev().copied().map(Some).chain([None]) {
            let len = left.min(BUFFER);
            let of_header = header.get(written..).unwrap_or_default();
            let of_header = &of_header[..of_header.len().min(len)];
            let start = (written + of_header.len()).saturating_sub(header.len());
            let of_frame = &frame[start..start + len - of_header.len()];
            self.fill_buffer(at, of_header, of_frame);
            let flags = next.map_or(0, |_| VRING_DESC_F_NEXT);
            self.describe(at, self.buffer(at), len as u32, flags, next.unwrap_or(0));
            (left, written) = (left - len, written + len);
            at = next.unwrap_or(at);
        }
        self.chains[usize::from(head)] = rest;
        self.offer(head);
        true
    }

    fn fill_buffer(&self, descriptor: u16, header: &[u8], frame: &[u8]) {
        let buffer = self.bytes(self.buffer(descriptor), header.len() + frame.len());
        let written = buffer.write_slice(header, 0);
        let written = written.and_then(|()| buffer.write_slice(frame, header.len()));
        written.expect("is the guest's memory");
    }

    /// Whether the device has given back all descriptors.
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        while self.take().is_some() {}
        self.free.len() == usize::from(SIZE)
    }

    /// Offers all buffers that nobody has, to be written.
    pub fn fill(&mut self) {
        while let Some(head) = self.free.pop() {
            self.describe(
                head,
                self.buffer(head),
                BUFFER as u32,
                VRING_DESC_F_WRITE,
                0,
            );
            self.offer(head);
        }
    }

    /// The next chain that the device has used, with what it has written.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.take_into(&mut bytes).then_some(bytes)
    }

    /// Appends what the device has written to the next chain that it has used; whether there is one.
    pub fn take_into(&mut self, bytes: &mut Vec<u8>) -> bool {
        self.take_behind(&mut [], bytes)
    }

    /// The same of a chain that begins with a header.
    pub(crate) fn take_behind(&mut self, header: &mut [u8], bytes: &mut Vec<u8>) -> bool {
        let at = self.places()[2];
        let index = self.bytes(at + 2, 2).load::<u16>(0, Ordering::Acquire);
        if index.expect("is the guest's memory") == self.used {
            return false;
        }
        let entry = at + 4 + 8 * u64::from(self.used % SIZE);
        let used = u64::from_le(self.get(entry));
        let (head, written) = (used as u32, (used >> 32) as u32);
        self.used = self.used.wrapping_add(1);
        self.free.push(head as u16);
        if let Some(rest) = self.chains.get_mut(head as usize) {
            self.free.append(rest);
        }
        let len = if self.writes { written as usize } else { 0 };
        assert!(len <= BUFFER, "{len} bytes in a buffer of {BUFFER}");
        let before = bytes.len();
        bytes.resize(before + len - header.len(), 0);
        let buffer = self.bytes(self.buffer(head as u16), len);
        let read = buffer.read_slice(header, 0);
        let read = read.and_then(|()| buffer.read_slice(&mut bytes[before..], header.len()));
        read.expect("is the guest's memory");
        true
    }

    /// Whether the device wants to be kicked for what was offered since it was asked last.
    pub fn wants_kick(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let used = self.places()[2];
        let before = std::mem::replace(&mut self.kicked, self.available);
        if !self.event_index {
            // VRING_USED_F_NO_NOTIFY.
            return self.get::<u16>(used) & 1 == 0;
        }
        let event: u16 = self.get(used + 4 + 8 * u64::from(SIZE));
        self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(before)
    }

    /// Asks for an interrupt with the next chain that is used. Whether there is one already.
    #[must_use]
    pub fn listen(&self) -> bool {
        let available = self.places()[1];
        if self.event_index {
            self.put(available + 4 + 2 * u64::from(SIZE), self.used);
        } else {
            let flags: u16 = self.get(available);
            self.put(available, flags & !(VRING_AVAIL_F_NO_INTERRUPT as u16));
        }
        fence(Ordering::SeqCst);
        self.get::<u16>(self.places()[2] + 2) != self.used
    }

    pub(crate) fn await_call(&self, patience: Duration) -> io::Result<()> {
        let _ = self.call.read();
        if self.get::<u16>(self.places()[2] + 2) != self.used {
            return Ok(());
        }
        let mut events = [EpollEvent::default()];
        self.epoll.wait(patience.as_millis() as i32, &mut events)?;
        Ok(())
    }
}
