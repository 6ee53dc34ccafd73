//! A vhost-user session with a guest's memory and rings, which fuzz targets drive.

use std::fs::File;
use std::os::fd::OwnedFd;

use arbitrary::Arbitrary;
use vhost_user::frames::{Scratch, Taken};
use vhost_user::message::Header;
use vhost_user::ring::MAX_SIZE;
use vhost_user::session::{RECEIVE, RINGS, Session, TRANSMIT};
use vhost_user::translate::Packet;
use vm_memory::Bytes;
use vmm_socket::{Files, MemoryLimits, SharedMemory};

/// Bytes of the guest's memory.
const MEMORY: u64 = 0x4_0000;
/// Where the guest has it, and where the client has it.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000;
/// Descriptors of each ring.
const SIZE: u64 = 16;
/// Where a ring is in the memory: descriptors, available ring and used ring.
const PLACE: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;

/// Something that a client or its guest does.
#[derive(Debug, Arbitrary)]
pub enum Op {
    /// A message, with so many descriptors of the memory.
    Message(u8, Vec<u8>, u8),
    /// The messages that start everything, from one of them on.
    Start(u8),
    /// Bytes in memory.
    Write(u32, Vec<u8>),
    /// A descriptor of a ring: index, place in memory, length, flags, next.
    Descriptor(bool, u8, u32, u16, u8, u8),
    /// An entry of the available ring.
    Offer(bool, u8),
    /// The available index itself.
    Index(bool, u16),
    /// The port takes what the guest sends.
    Take,
    /// The port has a frame for the guest.
    Give(u16),
}

/// A guest and its client.
#[derive(Debug)]
pub struct Guest {
    memory: SharedMemory,
    session: Session,
    available: [u16; RINGS],
    scratch: Scratch,
    packet: Packet,
}

impl Default for Guest {
    fn default() -> Self {
        let size = MEMORY as usize;
        let mut guest = Self {
            memory: SharedMemory::new("guest", size).expect("the system has memory"),
            session: Self::session(),
            available: [0; RINGS],
            scratch: Scratch::default(),
            packet: Packet::default(),
        };
        guest.start(0);
        guest
    }
}

impl Guest {
    fn session() -> Session {
        Session::new(Files::new(MemoryLimits::default(), None), 2044)
    }

    /// Says all that starts two rings, from a message on.
    fn start(&mut self, from: u8) {
        let features = vhost_user::session::FEATURES;
        let numbers = |numbers: &[u64]| -> Vec<u8> {
            { numbers.iter() }.flat_map(|it| it.to_le_bytes()).collect()
        };
        let table = numbers(&[1, GUEST, MEMORY, USER, 0]);
        let mut messages = vec![(2, numbers(&[features]), 0), (5, table, 1)];
        for ring in 0..RINGS as u64 {
            let at = USER + ring * PLACE;
            let places = numbers(&[ring, at, at + USED, at + AVAILABLE, 0]);
            messages.extend([
                (8, numbers(&[ring | SIZE << 32]), 0),
                (9, places, 0),
                (10, numbers(&[ring]), 0),
                (12, numbers(&[ring | 0x100]), 0),
                (18, numbers(&[ring | 1 << 32]), 0),
            ]);
        }
        for (request, payload, fds) in messages.into_iter().skip(usize::from(from)) {
            self.say(request, &payload, fds);
        }
    }

    fn say(&mut self, request: u32, payload: &[u8], fds: u8) {
        let header = Header {
            request,
            flags: 9,
            size: payload.len() as u32,
        };
        let file = || File::from(self.memory.fd().try_clone().expect("there are descriptors"));
        let fds = (0..fds).map(|_| OwnedFd::from(file())).collect();
        if self.session.handle(header, payload, fds).is_err() {
            self.end();
        }
    }

    /// The connection is closed, and another client comes.
    fn end(&mut self) {
        self.session = Self::session();
        self.available = [0; RINGS];
        self.write(0, &[0; PLACE as usize * RINGS]);
        self.start(0);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let at = at % MEMORY;
        let len = bytes.len().min((MEMORY - at) as usize);
        let slice = self.memory.slice(at as usize, len);
        let slice = slice.expect("is the guest's memory");
        slice.write_slice(&bytes[..len], 0).expect("there is room");
    }

    fn ring(ring: bool) -> u64 {
        u64::from(ring) * PLACE
    }

    /// Does something.
    ///
    /// # Panics
    /// Where a frame costs more work than it may.
    pub fn act(&mut self, op: Op) {
        match op {
            Op::Message(request, payload, fds) => {
                self.say(u32::from(request % 32), &payload, fds % 10);
            }
            Op::Start(from) => self.start(from % 12),
            Op::Write(at, bytes) => self.write(u64::from(at), &bytes),
            Op::Descriptor(ring, index, at, len, flags, next) => {
                // Beyond the end, now and then.
                let addr = GUEST + u64::from(at) % (MEMORY + 64);
                let bits = u128::from(addr)
                    | u128::from(len) << 64
                    | u128::from(flags & 7) << 96
                    | u128::from(next % 18) << 112;
                let index = u64::from(index) % SIZE;
                self.write(Self::ring(ring) + 16 * index, &bits.to_le_bytes());
            }
            Op::Offer(ring, head) => {
                let at = Self::ring(ring) + AVAILABLE;
                let next = &mut self.available[usize::from(ring)];
                let slot = u64::from(*next) % SIZE;
                *next = next.wrapping_add(1);
                let index = next.to_le_bytes();
                self.write(at + 4 + 2 * slot, &u16::from(head % 17).to_le_bytes());
                self.write(at + 2, &index);
            }
            Op::Index(ring, index) => {
                self.available[usize::from(ring)] = index;
                self.write(Self::ring(ring) + AVAILABLE + 2, &index.to_le_bytes());
            }
            Op::Take => self.take(),
            Op::Give(len) => self.give(usize::from(len)),
        }
    }

    fn take(&mut self) {
        for _ in 0..MAX_SIZE {
            let Some(mut running) = self.session.running(TRANSMIT) else {
                return;
            };
            let taken = running.take(&mut self.scratch, &mut self.packet);
            assert!(self.scratch.take_work() <= usize::from(MAX_SIZE));
            match taken {
                Ok(Taken::Nothing) => break,
                Ok(_) => {}
                Err(_) => return self.end(),
            }
            assert!(self.packet.packet().len() <= vhost_user::frames::MAX_FRAME);
        }
        if let Some(mut running) = self.session.running(TRANSMIT) {
            running.finish();
            let _ = running.ring.listen(true);
        }
    }

    fn give(&mut self, len: usize) {
        let frame = vec![0xa5; 14 + len];
        let packet = Packet::from_frame(&frame).expect("has a header");
        let Some(mut running) = self.session.running(RECEIVE) else {
            return;
        };
        let given = running.give(&mut self.scratch, &packet);
        // As many chains as the ring has, each as long as one may be.
        assert!(self.scratch.take_work() <= usize::from(MAX_SIZE) * usize::from(MAX_SIZE));
        match given {
            Ok(_) => running.finish(),
            Err(_) => self.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guest is one whose frames pass, so that targets get that far.
    #[test]
    fn frames_pass() {
        let mut guest = Guest::default();
        guest.act(Op::Descriptor(true, 0, 0x3_0000, 100, 0, 0));
        guest.act(Op::Offer(true, 0));
        guest.act(Op::Write(0x3_0000 + 12 + 14, b"hello".to_vec()));
        guest.take();
        assert!(guest.packet.packet().starts_with(b"hello"));
        guest.act(Op::Descriptor(false, 0, 0x3_0000, 1000, 2, 0));
        guest.act(Op::Offer(false, 0));
        guest.act(Op::Give(500));
        let mut bytes = [0; 527];
        let slice = guest.memory.slice(0x3_0000, 527).unwrap();
        slice.read_slice(&mut bytes, 0).unwrap();
        assert_eq!(bytes[12..526], [0xa5; 514]);
        assert_ne!(bytes[526], 0xa5);
    }
}
