//! The receiver's end: segments become a whole again (IBA 13.6.6.3).

use std::collections::HashMap;
use std::time::Duration;

use wire::mad::{Mad, Method, SIZE};
use wire::rmpp::{self, Rmpp};
use wire::{MadPacket, sa};

use super::Key;

/// Transfers from one port at the same time.
const OF_A_PORT: usize = 8;
/// Segments that a sender may be ahead of what has been acknowledged.
const WINDOW: u32 = 64;
/// Time without a segment after which a transfer is forgotten: longer than a sender takes to give
/// up.
const LIFE: Duration = Duration::from_secs(20);

/// Outcome of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// It is a part of something; the datagram to send back, if one is due.
    Part(Option<Box<[u8; SIZE]>>),
    /// It was the last one.
    Whole {
        /// The acknowledgement to send back.
        acknowledgement: Box<[u8; SIZE]>,
        /// The first packet, as it came.
        first: Box<MadPacket>,
        /// The data of all segments: for subnet administration, what follows its header.
        data: Vec<u8>,
    },
}

#[derive(Debug)]
struct Transfer {
    first: Box<MadPacket>,
    data: Vec<u8>,
    /// The number of the segment that is due.
    next: u32,
    until: Duration,
}

/// Datagrams on their way to here.
#[derive(Debug)]
pub struct Receiver {
    all: HashMap<Key, Transfer>,
    most: usize,
    room: usize,
    bytes: usize,
}

impl Receiver {
    /// Takes datagrams of up to `most` bytes of data each, and up to `room` bytes of all that are on
    /// their way.
    #[must_use]
    pub fn new(most: usize, room: usize) -> Self {
        Self {
            all: HashMap::new(),
            most,
            room,
            bytes: 0,
        }
    }

    /// Takes in a segment, or what else its sender says. `header` is the packet's.
    pub fn receive(&mut self, packet: &MadPacket, header: &Rmpp, now: Duration) -> Taken {
        self.expire(now);
        let key = super::from(packet);
        if header.version != Rmpp::VERSION {
            return self.give_up(&key, packet, Rmpp::ABORT, Rmpp::UNSUPPORTED_VERSION);
        }
        match header.kind {
            Rmpp::DATA => {}
            Rmpp::STOP | Rmpp::ABORT => {
                self.end(&key);
                return Taken::Part(None);
            }
            _ => return self.give_up(&key, packet, Rmpp::ABORT, Rmpp::BAD_TYPE),
        }
        if header.segment == 1 {
            // A sender that begins again has begun something else.
            self.end(&key);
            let of_port = self.all.keys().filter(|(lid, ..)| *lid == packet.slid);
            if of_port.count() >= OF_A_PORT {
                return self.give_up(&key, packet, Rmpp::STOP, Rmpp::RESOURCES);
            }
            self.all.insert(key, Transfer::new(packet, now));
        }
        let Some(transfer) = self.all.get_mut(&key) else {
            // The end of something that is complete or was given up.
            return Taken::Part(None);
        };
        transfer.until = now + LIFE;
        if header.segment != transfer.next {
            let behind = transfer.next - 1;
            return Taken::Part(Some(acknowledgement(packet, behind, behind + WINDOW)));
        }
        let data = &packet.mad[sa::DATA];
        let last = header.has(Rmpp::LAST);
        let length = if last {
            // The payload includes the header of subnet administration.
            (header.length as usize).saturating_sub(sa::HEADER.len())
        } else {
            data.len()
        };
        let data = &data[..length.min(data.len())];
        let too_much =
            transfer.data.len() + data.len() > self.most || self.bytes + data.len() > self.room;
        if too_much {
            return self.give_up(&key, packet, Rmpp::STOP, Rmpp::RESOURCES);
        }
        transfer.data.extend(data);
        transfer.next += 1;
        self.bytes += data.len();
        if last {
            let (first, data) = match self.end(&key) {
                Some(transfer) => (transfer.first, transfer.data),
                None => return Taken::Part(None),
            };
            return Taken::Whole {
                acknowledgement: acknowledgement(packet, header.segment, header.segment),
                first,
                data,
            };
        }
        let due = header.segment == 1 || header.segment.is_multiple_of(WINDOW / 2);
        Taken::Part(due.then(|| acknowledgement(packet, header.segment, header.segment + WINDOW)))
    }

    /// Forgets what its sender has given up.
    fn expire(&mut self, now: Duration) {
        let bytes = &mut self.bytes;
        self.all.retain(|_, transfer| {
            let alive = transfer.until > now;
            if !alive {
                *bytes -= transfer.data.len();
            }
            alive
        });
    }

    fn end(&mut self, key: &Key) -> Option<Transfer> {
        let transfer = self.all.remove(key)?;
        self.bytes -= transfer.data.len();
        Some(transfer)
    }

    fn give_up(&mut self, key: &Key, packet: &MadPacket, kind: u8, status: u8) -> Taken {
        self.end(key);
        let header = Rmpp {
            kind,
            status,
            ..Rmpp::default()
        };
        Taken::Part(Some(answer(packet, header)))
    }
}

impl Transfer {
    fn new(packet: &MadPacket, now: Duration) -> Self {
        Self {
            first: Box::new(packet.clone()),
            data: Vec::new(),
            next: 1,
            until: now + LIFE,
        }
    }
}

fn acknowledgement(packet: &MadPacket, segment: u32, window: u32) -> Box<[u8; SIZE]> {
    let header = Rmpp {
        kind: Rmpp::ACK,
        segment,
        length: window,
        ..Rmpp::default()
    };
    answer(packet, header)
}

/// Answers of the receiver of `packet`.
fn answer(packet: &MadPacket, header: Rmpp) -> Box<[u8; SIZE]> {
    let mut bytes = Box::new(packet.mad);
    bytes[rmpp::PAYLOAD].fill(0);
    if let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) {
        // Of the other direction than what it is about.
        mad.set_method(Method(packet.header().method().0 ^ 0x80));
    }
    Rmpp {
        version: Rmpp::VERSION,
        response_time: Rmpp::NO_RESPONSE_TIME,
        flags: Rmpp::ACTIVE,
        ..header
    }
    .emit(&mut bytes[rmpp::HEADER]);
    bytes
}

#[cfg(test)]
mod tests {
    use wire::{Lid, PKey, Sl};

    use super::super::Sender;
    use super::*;

    const NOW: Duration = Duration::ZERO;

    /// The response to a GetTable, from the port with this LID.
    fn template(from: u16) -> MadPacket {
        let mad = sa::request(Method::GET_TABLE_RESPONSE, sa::id::NODE, 7, 0, &[]);
        MadPacket::gmp(
            Lid::new(from),
            Lid::new(2),
            Sl::default(),
            PKey::DEFAULT_FULL,
            mad,
        )
    }

    /// Has a table sent and received, with one packet of `lossy` lost; 0: none.
    fn passed(bytes: &[u8], lossy: u64) -> Vec<u8> {
        let (mut sender, mut receiver) = (Sender::default(), Receiver::new(1 << 20, 1 << 20));
        let mut now = NOW;
        let mut wire = Vec::new();
        sender.begin(template(1), bytes.to_vec(), now, &mut |packet| {
            wire.push(packet)
        });
        // The same on every run; nothing regular, which could lose the same segment for ever.
        let mut random = testing::Random::new(1);
        loop {
            for packet in std::mem::take(&mut wire) {
                if lossy > 0 && random.number().is_multiple_of(lossy) {
                    continue;
                }
                let header = Rmpp::of(&packet.mad).unwrap();
                let (mad, whole) = match receiver.receive(&packet, &header, now) {
                    Taken::Part(mad) => (mad, None),
                    Taken::Whole {
                        acknowledgement,
                        first,
                        data,
                    } => {
                        assert_eq!(Rmpp::of(&first.mad).unwrap().segment, 1);
                        (Some(acknowledgement), Some(data))
                    }
                };
                if let Some(mad) = mad {
                    let header = Rmpp::of(&mad[..]).unwrap();
                    let reply = MadPacket {
                        mad: *mad,
                        ..packet.reply()
                    };
                    assert_eq!(reply.header().method(), Method::GET_TABLE);
                    sender.receive(&reply, &header, now, &mut |packet| wire.push(packet));
                }
                if let Some(data) = whole {
                    assert_eq!(sender.deadline(), None, "everything is acknowledged");
                    return data;
                }
            }
            if wire.is_empty() {
                now = sender.deadline().expect("the sender tries again");
                sender.poll(now, &mut |packet| wire.push(packet));
            }
        }
    }

    #[test]
    fn what_is_sent_is_received() {
        for length in [0, 1, 199, 200, 201, 400, 64 * 200, 30_001] {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
            for lossy in [0, 7, 13] {
                assert_eq!(passed(&bytes, lossy), bytes, "{length} bytes, {lossy}");
            }
        }
    }

    fn segment(from: u16, number: u32, flags: u8) -> (MadPacket, Rmpp) {
        let mut packet = template(from);
        let header = Rmpp {
            version: Rmpp::VERSION,
            kind: Rmpp::DATA,
            flags: Rmpp::ACTIVE | flags,
            segment: number,
            length: 220,
            ..Rmpp::default()
        };
        header.emit(&mut packet.mad[rmpp::HEADER]);
        (packet, header)
    }

    #[track_caller]
    fn says(taken: Taken) -> (u8, u8, u32) {
        let Taken::Part(Some(mad)) = taken else {
            panic!("nothing to say: {taken:?}");
        };
        let header = Rmpp::of(&mad[..]).unwrap();
        (header.kind, header.status, header.segment)
    }

    #[test]
    fn what_makes_no_sense_or_is_too_much() {
        let mut receiver = Receiver::new(1000, 1800);
        let mut take = |from, number, flags, change: fn(&mut Rmpp)| {
            let (packet, mut header) = segment(from, number, flags);
            change(&mut header);
            receiver.receive(&packet, &header, NOW)
        };
        // Nobody began this one.
        assert_eq!(take(1, 2, Rmpp::LAST, |_| ()), Taken::Part(None));
        assert_eq!(says(take(1, 1, Rmpp::FIRST, |_| ())), (Rmpp::ACK, 0, 1));
        // A segment is missing: the sender is told where it stands.
        assert_eq!(says(take(1, 3, 0, |_| ())), (Rmpp::ACK, 0, 1));
        let said = says(take(1, 2, 0, |header| header.version = 2));
        assert_eq!(said, (Rmpp::ABORT, Rmpp::UNSUPPORTED_VERSION, 0));
        let said = says(take(1, 2, 0, |header| header.kind = 9));
        assert_eq!(said, (Rmpp::ABORT, Rmpp::BAD_TYPE, 0));
        // More than 1000 bytes of one.
        take(1, 1, Rmpp::FIRST, |_| ());
        for number in 2..=5 {
            assert_eq!(take(1, number, 0, |_| ()), Taken::Part(None));
        }
        let refused = (Rmpp::STOP, Rmpp::RESOURCES, 0);
        assert_eq!(says(take(1, 6, 0, |_| ())), refused);
        // More than 1800 of all.
        for from in 1..=9 {
            assert_eq!(says(take(from, 1, Rmpp::FIRST, |_| ())), (Rmpp::ACK, 0, 1));
        }
        assert_eq!(says(take(10, 1, Rmpp::FIRST, |_| ())), refused);
        // Who gives up, and who is not heard of any more, makes room.
        take(9, 1, 0, |header| header.kind = Rmpp::ABORT);
        assert_eq!(says(take(10, 1, Rmpp::FIRST, |_| ())), (Rmpp::ACK, 0, 1));
        let (packet, header) = segment(11, 1, Rmpp::FIRST);
        let said = says(receiver.receive(&packet, &header, NOW + LIFE));
        assert_eq!(said, (Rmpp::ACK, 0, 1));
        assert_eq!(receiver.all.len(), 1);
        assert_eq!(receiver.bytes, 200);
    }

    #[test]
    fn one_port_has_so_many() {
        let mut receiver = Receiver::new(1000, 1 << 20);
        let mut begin = |transaction| {
            let (mut packet, header) = segment(1, 1, Rmpp::FIRST);
            let mut mad = Mad::new_checked(&mut packet.mad[..]).unwrap();
            mad.set_transaction(transaction);
            says(receiver.receive(&packet, &header, NOW)).0
        };
        for transaction in 0..OF_A_PORT as u64 {
            assert_eq!(begin(transaction), Rmpp::ACK);
        }
        assert_eq!(begin(100), Rmpp::STOP);
        assert_eq!(begin(3), Rmpp::ACK, "one of its own anew");
    }
}
