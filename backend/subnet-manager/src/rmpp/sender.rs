//! The sender's end: segments, as the receiver takes them (IBA 13.6.6.2).

use std::collections::HashMap;
use std::time::Duration;

use tracing::debug;
use wire::mad::SIZE;
use wire::rmpp::{self, Rmpp};
use wire::{Lid, MadPacket, sa};

use super::Key;

/// Transfers at the same time, of all receivers and of one.
const ALL: usize = 512;
const OF_A_PORT: usize = 8;
/// Bytes of all tables of a subnet on their way.
pub const TABLES: usize = 64 << 20;
/// Segments sent at once at most, however large the receiver's window is.
const BURST: u32 = 64;
/// Time to wait for an acknowledgement, and number of repetitions.
const TIMEOUT: Duration = Duration::from_secs(2);
const RETRIES: u8 = 3;

#[derive(Debug)]
struct Transfer {
    /// The first packet without the reliable protocol's header and without data.
    template: MadPacket,
    bytes: Vec<u8>,
    segments: u32,
    acknowledged: u32,
    sent: u32,
    /// The last segment that the receiver takes.
    window: u32,
    begun: Duration,
    due: Duration,
    left: u8,
}

/// Tables on their way to those who asked for them.
#[derive(Debug)]
pub struct Sender {
    all: HashMap<Key, Transfer>,
    bytes: usize,
    room: usize,
}

impl Default for Sender {
    fn default() -> Self {
        Self::new(TABLES)
    }
}

impl Sender {
    /// Has `room` bytes of tables on their way at most, half of them to one receiver.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self {
            all: HashMap::new(),
            bytes: 0,
            room,
        }
    }

    /// Whether one more to this receiver can be begun. One of its own that it has acknowledged nothing
    /// of makes room if need be: some programs never do, since they get by with the first segment.
    #[must_use]
    pub fn make_room(&mut self, to: Lid, bytes: usize) -> bool {
        let own = self.all.iter().filter(|((lid, ..), _)| *lid == to);
        if own.clone().count() >= OF_A_PORT {
            let silent = own.filter(|(_, transfer)| transfer.acknowledged == 0);
            let oldest = silent.min_by_key(|(key, transfer)| (transfer.begun, key.2));
            let Some(key) = oldest.map(|(key, _)| *key) else {
                return false;
            };
            self.end(&key);
        }
        let own = self.all.iter().filter(|((lid, ..), _)| *lid == to);
        let (count, own) = own.fold((0, 0), |(count, sum), (_, transfer)| {
            (count + 1, sum + transfer.bytes.len())
        });
        // As much as remains for all others, so that there always is something left.
        let others = (self.all.len() - count, self.bytes - own);
        count < (ALL - others.0).div_ceil(2) && own + bytes <= (self.room - others.1) / 2
    }

    /// Sends a table in answer to a request; `template` is the response but for its data. `send`
    /// takes the packets.
    pub fn begin(
        &mut self,
        template: MadPacket,
        bytes: Vec<u8>,
        now: Duration,
        send: &mut impl FnMut(MadPacket),
    ) {
        let transaction = template.header().transaction();
        let key = (template.dlid, template.dst_qp, transaction);
        // A client that asks again has given up on the first answer.
        self.end(&key);
        let segments = bytes.len().div_ceil(sa::DATA_SIZE).max(1) as u32;
        self.bytes += bytes.len();
        let mut transfer = Transfer {
            template,
            bytes,
            segments,
            acknowledged: 0,
            sent: 0,
            // The receiver says with the first acknowledgement how many more it takes.
            window: 1,
            begun: now,
            due: now + TIMEOUT,
            left: RETRIES,
        };
        transfer.advance(send);
        self.all.insert(key, transfer);
    }

    fn end(&mut self, key: &Key) {
        if let Some(transfer) = self.all.remove(key) {
            self.bytes -= transfer.bytes.len();
        }
    }

    /// Takes in what a receiver says; false when it is about no transfer of this sender. Such a
    /// packet is not answered: two ends would abort at each other for ever.
    pub fn receive(
        &mut self,
        packet: &MadPacket,
        header: &Rmpp,
        now: Duration,
        send: &mut impl FnMut(MadPacket),
    ) -> bool {
        let key = super::from(packet);
        let Some(transfer) = self.all.get_mut(&key) else {
            return false;
        };
        let failure = if header.version != Rmpp::VERSION {
            Some(Rmpp::UNSUPPORTED_VERSION)
        } else {
            match header.kind {
                Rmpp::ACK => transfer.take(header),
                Rmpp::STOP | Rmpp::ABORT => {
                    debug!(lid = %packet.slid, status = header.status, "receiver gives up");
                    self.end(&key);
                    return true;
                }
                _ => Some(Rmpp::BAD_TYPE),
            }
        };
        if let Some(status) = failure {
            transfer.abort(status, send);
            self.end(&key);
        } else if transfer.acknowledged == transfer.segments {
            self.end(&key);
        } else {
            transfer.due = now + TIMEOUT;
            transfer.advance(send);
        }
        true
    }

    /// Repeats what nobody acknowledged.
    pub fn poll(&mut self, now: Duration, send: &mut impl FnMut(MadPacket)) {
        if self.deadline().is_none_or(|due| due > now) {
            return;
        }
        let mut ended = Vec::new();
        for (key, transfer) in self.all.iter_mut().filter(|(_, t)| t.due <= now) {
            if transfer.left == 0 {
                transfer.abort(Rmpp::TOO_MANY_RETRIES, send);
                ended.push(*key);
                continue;
            }
            transfer.left -= 1;
            transfer.due = now + TIMEOUT;
            transfer.sent = transfer.acknowledged;
            transfer.advance(send);
        }
        for key in ended {
            self.end(&key);
        }
    }

    /// When [`Sender::poll`] has something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.all.values().map(|transfer| transfer.due).min()
    }
}

impl Transfer {
    /// Takes in an acknowledgement; returns the status to abort with when it makes no sense.
    fn take(&mut self, header: &Rmpp) -> Option<u8> {
        let (segment, window) = (header.segment, header.length);
        if segment > self.sent {
            return Some(Rmpp::SEGMENT_TOO_BIG);
        }
        if window < segment {
            return Some(Rmpp::WINDOW_TOO_SMALL);
        }
        if segment >= self.acknowledged {
            if segment > self.acknowledged {
                self.left = RETRIES;
            }
            self.acknowledged = segment;
            self.window = self.window.max(window.min(self.segments));
        }
        None
    }

    /// Sends what the window allows.
    fn advance(&mut self, send: &mut impl FnMut(MadPacket)) {
        let last = self.window.min(self.acknowledged.saturating_add(BURST));
        while self.sent < last {
            self.sent += 1;
            send(self.segment(self.sent));
        }
    }

    fn segment(&self, number: u32) -> MadPacket {
        let at = (number as usize - 1) * sa::DATA_SIZE;
        let end = self.bytes.len().min(at + sa::DATA_SIZE);
        let data = self.bytes.get(at..end).unwrap_or_default();
        let header = sa::HEADER.len();
        let (first, last) = (number == 1, number == self.segments);
        let mut flags = Rmpp::ACTIVE;
        let mut length = 0;
        if first {
            flags |= Rmpp::FIRST;
            length = self.segments as usize * header + self.bytes.len();
        }
        if last {
            flags |= Rmpp::LAST;
            length = header + data.len();
        }
        let mut packet = self.template.clone();
        Rmpp {
            version: Rmpp::VERSION,
            kind: Rmpp::DATA,
            response_time: Rmpp::NO_RESPONSE_TIME,
            flags,
            status: 0,
            segment: number,
            length: length as u32,
        }
        .emit(&mut packet.mad[rmpp::HEADER]);
        packet.mad[sa::DATA].fill(0);
        packet.mad[sa::DATA][..data.len()].copy_from_slice(data);
        packet
    }

    fn abort(&self, status: u8, send: &mut impl FnMut(MadPacket)) {
        let mut packet = self.template.clone();
        Rmpp {
            version: Rmpp::VERSION,
            kind: Rmpp::ABORT,
            response_time: Rmpp::NO_RESPONSE_TIME,
            flags: Rmpp::ACTIVE,
            status,
            ..Rmpp::default()
        }
        .emit(&mut packet.mad[rmpp::HEADER]);
        packet.mad[rmpp::HEADER.end..SIZE].fill(0);
        send(packet);
    }
}

#[cfg(test)]
mod tests {
    use wire::mad::Method;
    use wire::{PKey, Sl};

    use super::*;

    /// The response to a GetTable, from the port with LID 1 to that with LID 2.
    fn template(transaction: u64) -> MadPacket {
        let mad = sa::request(
            Method::GET_TABLE_RESPONSE,
            sa::id::NODE,
            transaction,
            0,
            &[],
        );
        MadPacket::gmp(
            Lid::new(1),
            Lid::new(2),
            Sl::default(),
            PKey::DEFAULT_FULL,
            mad,
        )
    }

    #[test]
    fn who_acknowledges_nothing_makes_room_for_himself() {
        let mut sender = Sender::default();
        let mut now = Duration::ZERO;
        let mut sent = Vec::new();
        for transaction in 0..OF_A_PORT as u64 {
            assert!(sender.make_room(Lid::new(2), 1000));
            sender.begin(template(transaction), vec![0; 1000], now, &mut |packet| {
                sent.push(packet)
            });
            now += Duration::from_millis(1);
        }
        let acknowledge = |sender: &mut Sender, packet: &MadPacket| {
            let mut answer = packet.clone();
            std::mem::swap(&mut answer.slid, &mut answer.dlid);
            std::mem::swap(&mut answer.src_qp, &mut answer.dst_qp);
            let header = Rmpp {
                kind: Rmpp::ACK,
                segment: 1,
                length: 1,
                ..Rmpp::of(&packet.mad).unwrap()
            };
            assert!(sender.receive(&answer, &header, Duration::ZERO, &mut |_| ()));
        };
        // The first one goes on; the second is the oldest that does not.
        acknowledge(&mut sender, &sent[0]);
        assert!(sender.make_room(Lid::new(2), 1000));
        let left = |sender: &Sender| {
            let mut left: Vec<u64> = sender.all.keys().map(|key| key.2).collect();
            left.sort_unstable();
            left
        };
        assert_eq!(left(&sender), [0, 2, 3, 4, 5, 6, 7]);
        assert_eq!(sender.bytes, 7000);
        // Where all go on, there is no room.
        sender.begin(template(8), vec![0; 1000], now, &mut |packet| {
            sent.push(packet)
        });
        for packet in &sent[2..] {
            acknowledge(&mut sender, packet);
        }
        assert!(!sender.make_room(Lid::new(2), 1000));
        assert_eq!(left(&sender).len(), OF_A_PORT);
        assert!(sender.make_room(Lid::new(3), 1000));
    }
}
