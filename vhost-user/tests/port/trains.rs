//! Long TCP segments that go as they are from one port to another: what the guest gets is what it would get of
//! them in datagrams, held against `etherparse`.

use std::cell::RefCell;
use std::fmt;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use vhost_user_driver::{Checksum, Driver, NetHeader, Segments};

use crate::exchange::{ip, meet, receive};
use crate::harness::{Lab, mac};

const SOURCE: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TARGET: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// The most datagrams that a segment is cut into: a guest has room for them.
const PARTS: usize = 200;

/// A long segment.
#[derive(Clone)]
struct Long {
    is_ipv4: bool,
    /// FIN, PSH, URG and CWR.
    flags: [bool; 4],
    timestamps: bool,
    sequence: u32,
    payload: Vec<u8>,
    segment: u16,
}

fn long() -> impl Strategy<Value = Long> {
    let payload = (1..61_000_usize, any::<u8>());
    let payload = payload.prop_map(|(len, salt)| {
        let byte = |at: usize| (at * 7 + at / 251) as u8 ^ salt;
        (0..len).map(byte).collect::<Vec<_>>()
    });
    let rest = (
        any::<[bool; 4]>(),
        any::<bool>(),
        any::<u32>(),
        48..1960_u16,
    );
    (any::<bool>(), payload, rest).prop_map(|(is_ipv4, payload, rest)| {
        let (flags, timestamps, sequence, segment) = rest;
        Long {
            is_ipv4,
            // Congestion is told of seldom.
            flags: [flags[0], flags[1], flags[2], flags[3] && sequence % 4 == 0],
            timestamps,
            sequence,
            segment: segment.max((payload.len() / PARTS) as u16),
            payload,
        }
    })
}

impl fmt::Debug for Long {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = format_args!("{} bytes", self.payload.len());
        f.debug_struct("Long")
            .field("is_ipv4", &self.is_ipv4)
            .field("flags", &self.flags)
            .field("timestamps", &self.timestamps)
            .field("sequence", &self.sequence)
            .field("payload", &payload)
            .field("segment", &self.segment)
            .finish()
    }
}

impl Long {
    fn frame(&self, to: usize) -> Vec<u8> {
        let mut tcp = TcpHeader::new(40_000, 5001, self.sequence, 4096);
        tcp.acknowledgment_number = 77;
        tcp.ack = true;
        [tcp.fin, tcp.psh, tcp.urg, tcp.cwr] = self.flags;
        if self.timestamps {
            let timestamps = etherparse::TcpOptionElement::Timestamp(1, 2);
            tcp.set_options(&[timestamps]).unwrap();
        }
        let builder = PacketBuilder::ethernet2(mac(0).0, mac(to).0);
        let builder = if self.is_ipv4 {
            builder.ipv4(ip(0), ip(to), 64)
        } else {
            builder.ipv6(SOURCE, TARGET, 64)
        };
        let mut frame = Vec::new();
        let builder = builder.tcp_header(tcp);
        builder.write(&mut frame, &self.payload).unwrap();
        // A guest that leaves it to its card does not compute it.
        let checksum = 14 + self.ip_header() + 16;
        frame[checksum] ^= 0x55;
        frame
    }

    fn ip_header(&self) -> usize {
        if self.is_ipv4 { 20 } else { 40 }
    }

    fn header(&self) -> NetHeader {
        let kind = if self.is_ipv4 {
            Segments::TcpIpv4
        } else {
            Segments::TcpIpv6
        };
        NetHeader {
            checksum: Some(Checksum {
                start: (14 + self.ip_header()) as u16,
                offset: 16,
            }),
            segments: Some(kind(self.segment)),
        }
    }

    fn datagrams(&self) -> usize {
        self.payload.len().div_ceil(self.segment.into())
    }
}

/// Returns a received segment that is right in itself: flags, sequence number and payload.
fn segment_of(frame: &[u8]) -> Result<(TcpHeader, Vec<u8>), TestCaseError> {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(TransportSlice::Tcp(found)) = &sliced.transport else {
        return Err(TestCaseError::fail(format!("{sliced:?}")));
    };
    let sum = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            prop_assert_eq!(header.header_checksum, header.calc_header_checksum());
            prop_assert_eq!(usize::from(header.total_len), frame.len() - 14);
            found.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
        }
        NetSlice::Ipv6(ip) => {
            prop_assert_eq!(usize::from(ip.header().payload_length()), frame.len() - 54);
            found.calc_checksum_ipv6(ip.header().source(), ip.header().destination())
        }
        other => return Err(TestCaseError::fail(format!("{other:?}"))),
    };
    prop_assert_eq!(found.checksum(), sum.unwrap());
    Ok((found.to_header(), found.payload().to_vec()))
}

/// Does what a guest does with a checksum that was left to it.
fn complete(frame: &mut [u8], Checksum { start, offset }: Checksum) {
    let counted = &mut frame[start.into()..];
    let mut sum = etherparse::checksum::Sum16BitWords::new();
    sum = sum.add_slice(counted);
    let at = usize::from(offset);
    counted[at..at + 2].copy_from_slice(&sum.ones_complement().to_ne_bytes());
}

/// Receives a long segment, whole or cut: flags that any part has, the first sequence number, all payload.
fn gather(
    guest: &mut Driver,
    long: &Long,
    takes: bool,
) -> Result<(TcpHeader, Vec<u8>), TestCaseError> {
    let whole = takes && long.datagrams() > 1 && !long.flags[3];
    let count = if whole { 1 } else { long.datagrams() };
    let mut all: Option<(TcpHeader, Vec<u8>)> = None;
    for _ in 0..count {
        let mut frame = receive(guest);
        prop_assert_eq!(
            guest.header,
            if whole {
                long.header()
            } else {
                NetHeader::default()
            }
        );
        if let Some(checksum) = guest.header.checksum {
            complete(&mut frame, checksum);
        }
        let (header, payload) = segment_of(&frame)?;
        let Some((together, before)) = &mut all else {
            all = Some((header, payload));
            continue;
        };
        let expected = together.sequence_number.wrapping_add(before.len() as u32);
        prop_assert_eq!(header.sequence_number, expected);
        before.extend(payload);
        // The last one ends it.
        (together.fin, together.psh) = (header.fin, header.psh);
    }
    all.ok_or_else(|| TestCaseError::fail("nothing"))
}

/// A datagram passes, so that there is a way.
fn pass(from: &mut Driver, to: &mut Driver, at: usize) {
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(0).0, mac(at).0).ipv4(ip(0), ip(at), 64);
    builder.udp(7, 9).write(&mut frame, b"this").unwrap();
    from.send(&frame).unwrap();
    assert_eq!(receive(to), frame);
}

#[test]
fn whole_and_cut_are_the_same_to_tcp() {
    let lab = Lab::new(3);
    let [mut a, mut b, mut c] = [lab.guest(0), lab.guest_with_trains(1), lab.guest(2)];
    meet(&lab, &mut a, &mut b, [0, 1]);
    // The third hears the question of the first one, too.
    meet(&lab, &mut a, &mut c, [0, 2]);
    // Without a way a segment is cut.
    pass(&mut a, &mut b, 1);
    pass(&mut a, &mut c, 2);
    let guests = RefCell::new([a, b, c]);
    let mut runner = TestRunner::new(Config {
        // What has come of a case that failed is in the way of the next ones.
        max_shrink_iters: 0,
        ..Config::with_source_file(file!())
    });
    let outcome = runner.run(&long(), |long| {
        let [a, b, c] = &mut *guests.borrow_mut();
        a.send_with(long.header(), &long.frame(1)).unwrap();
        let (mut whole, carried) = gather(b, &long, true)?;
        a.send_with(long.header(), &long.frame(2)).unwrap();
        let (mut cut, pieces) = gather(c, &long, false)?;
        prop_assert!(
            carried == long.payload && pieces == carried,
            "another payload"
        );
        (whole.checksum, cut.checksum) = (0, 0);
        prop_assert_eq!(&whole, &cut);
        let flags = [whole.fin, whole.psh, whole.urg, whole.cwr];
        prop_assert_eq!(flags, long.flags);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// The guest of a port is another one since a train has left for it.
#[test]
fn a_guest_that_takes_no_trains_gets_none() {
    let lab = Lab::new(2);
    let [mut a, b] = [lab.guest(0), lab.guest_with_trains(1)];
    drop(b);
    let mut b = lab.guest(1);
    meet(&lab, &mut a, &mut b, [0, 1]);
    let long = Long {
        is_ipv4: true,
        flags: [false; 4],
        timestamps: false,
        sequence: 1,
        payload: vec![7; 10_000],
        segment: 1000,
    };
    // Where the way is known, a train goes whole.
    pass(&mut a, &mut b, 1);
    lab.net.lock().trains.insert(3);
    a.send_with(long.header(), &long.frame(1)).unwrap();
    pass(&mut a, &mut b, 1);
    let net = lab.net.lock();
    assert_eq!(net.seen.iter().filter(|it| it.train.is_some()).count(), 1);
}
