//! Trains: a TCP segment that is longer than a datagram may be, as one piece with the headers once. It stands
//! for datagrams that all have as much payload, but for the last one. Network cards know it as segmentation
//! offload, where it is made by one side and cut by the other.
//!
//! Nothing is believed of such a segment: its headers are read, and each datagram that is cut from it has
//! lengths and checksums of its own, whatever there was.

use core::ops::Range;

use super::HEADER_LEN;
use crate::internet::{checksum, folded, partial, prepared};

const TCP: u8 = 6;
/// Bytes of the shortest header of TCP, and of IPv4.
const SHORTEST: usize = 20;
/// Bytes of an IPv6 header.
const IPV6_HEADER: usize = 40;
/// Bytes of payload of the shortest segments that there are: Linux has none shorter (`TCP_MIN_SND_MSS`). A train
/// stands for a bounded number of datagrams thereby.
const SHORTEST_SEGMENT: u16 = 48;

/// More fragments follow, or there are some in front.
const FRAGMENT: u16 = 0x3fff;

/// Where TCP has its checksum.
const CHECKSUM: Range<usize> = 16..18;
/// Flags of TCP that the first segment alone has, and those that the last one has.
const CWR: u8 = 0x80;
const FIN_PSH: u8 = 0x09;

/// Why a datagram is no train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotATrain {
    /// It is shorter than its headers say.
    Short,
    /// It is no TCP segment, or one that cannot be cut like this.
    Segments,
}

/// Division of a train into datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train {
    /// Bytes in front of the TCP header.
    ip: u16,
    /// Bytes of all headers.
    headers: u16,
    /// Bytes of payload of each datagram.
    segment: u16,
    /// Bytes of payload.
    payload: u32,
}

impl Train {
    /// Reads a datagram that is to be cut into some with so much payload each.
    ///
    /// # Errors
    /// [`NotATrain`].
    pub fn new(datagram: &[u8], segment: u16) -> Result<Self, NotATrain> {
        let train = Self::of(datagram, 0, segment)?;
        let payload = datagram.len() - usize::from(train.headers);
        let payload = u32::try_from(payload).map_err(|_| NotATrain::Segments)?;
        Ok(Self { payload, ..train })
    }

    /// Reads the headers of a train that has so much payload behind them. Bytes behind the headers are not looked
    /// at.
    ///
    /// # Errors
    /// [`NotATrain`].
    pub fn of(headers: &[u8], payload: u32, segment: u16) -> Result<Self, NotATrain> {
        let packet = headers.get(HEADER_LEN..).unwrap_or_default();
        let version = packet.first().ok_or(NotATrain::Short)?;
        let (ip, protocol) = match version >> 4 {
            4 => {
                let ip = usize::from(version & 0xf) * 4;
                let fragment = packet.get(6..).and_then(<[u8]>::first_chunk);
                let fragment = u16::from_be_bytes(*fragment.ok_or(NotATrain::Short)?);
                if fragment & FRAGMENT != 0 || ip < SHORTEST {
                    return Err(NotATrain::Segments);
                }
                (ip, packet.get(9))
            }
            6 => (IPV6_HEADER, packet.get(6)),
            _ => return Err(NotATrain::Segments),
        };
        if protocol != Some(&TCP) || segment < SHORTEST_SEGMENT {
            return Err(NotATrain::Segments);
        }
        let tcp = usize::from(packet.get(ip + 12).ok_or(NotATrain::Short)? >> 4) * 4;
        let len = HEADER_LEN + ip + tcp;
        if headers.len() < len {
            return Err(NotATrain::Short);
        }
        if tcp < SHORTEST {
            return Err(NotATrain::Segments);
        }
        Ok(Self {
            ip: (HEADER_LEN + ip) as u16,
            headers: len as u16,
            segment,
            payload,
        })
    }

    /// Number of datagrams that it stands for.
    #[must_use]
    pub const fn datagrams(&self) -> u32 {
        let full = self.payload.div_ceil(self.segment as u32);
        if full == 0 { 1 } else { full }
    }

    /// Bytes of the longest of them.
    #[must_use]
    pub fn longest(&self) -> u32 {
        u32::from(self.headers) + self.payload.min(self.segment.into())
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.datagrams() * u32::from(self.headers) + self.payload
    }

    /// Bytes of the train itself.
    #[must_use]
    pub fn length(&self) -> u32 {
        u32::from(self.headers) + self.payload
    }

    /// Bytes of the payload in one of the datagrams; an empty range for one that it does not stand for.
    #[must_use]
    pub fn part(&self, number: u32) -> Range<u32> {
        let at = |number: u32| number.saturating_mul(self.segment.into()).min(self.payload);
        at(number)..at(number.saturating_add(1))
    }

    /// Bytes of all headers.
    #[must_use]
    pub fn start(&self) -> usize {
        self.headers.into()
    }

    /// Bytes of the headers of IP and TCP together.
    #[must_use]
    pub const fn headers(&self) -> u16 {
        self.headers - HEADER_LEN as u16
    }

    /// Bytes of the IP header.
    #[must_use]
    pub const fn ip_header(&self) -> u16 {
        self.ip - HEADER_LEN as u16
    }

    /// Bytes of payload of each datagram.
    #[must_use]
    pub const fn segment(&self) -> u16 {
        self.segment
    }

    /// Whether the first datagram alone may have the flags that the train has: it tells that congestion was met
    /// (RFC 3168, 6.1.2).
    #[must_use]
    pub fn has_cwr(&self, train: &[u8]) -> bool {
        { train.get(usize::from(self.ip) + 13) }.is_some_and(|flags| flags & CWR != 0)
    }

    /// Appends one of the datagrams. If the train has changed since it was read, it appends the bytes that are
    /// there.
    pub fn write(&self, train: &[u8], number: u32, to: &mut Vec<u8>) {
        if let Some(sums) = self.sums(train) {
            self.write_with(&sums, train, number, to);
        }
    }

    /// The same with the sums of the train, for a train of which all datagrams are wanted.
    pub fn write_with(&self, sums: &Sums, train: &[u8], number: u32, to: &mut Vec<u8>) {
        let start = to.len();
        let part = self.part(number);
        let at = |byte: u32| usize::from(self.headers) + byte as usize;
        let payload = train.get(at(part.start)..at(part.end));
        let (Some(headers), Some(payload)) = (train.get(..self.headers.into()), payload) else {
            return;
        };
        to.reserve(headers.len() + payload.len());
        to.extend_from_slice(headers);
        to.extend_from_slice(payload);
        self.complete(sums, &mut to[start..], number, partial(payload));
    }

    /// Makes one of the datagrams of the train's headers and its own [part](Self::part) of the payload. Does
    /// nothing where that is not long enough for the headers.
    pub fn finish(&self, datagram: &mut [u8], number: u32) {
        if let Some(sums) = self.sums(datagram) {
            let payload = partial(&datagram[self.headers.into()..]);
            self.complete(&sums, datagram, number, payload);
        }
    }

    /// Returns the sums of the headers of this train; `None` where there are not as many bytes.
    #[must_use]
    pub fn sums(&self, train: &[u8]) -> Option<Sums> {
        let headers = train.get(..self.headers.into())?;
        let (ip, tcp) = headers.split_at(self.ip.into());
        let ip = &ip[HEADER_LEN..];
        let (ip, addresses) = if ip[0] >> 4 == 4 {
            let ip_sum = partial(&ip[..2]) + partial(&ip[6..10]) + partial(&ip[12..]);
            (ip_sum, partial(&ip[12..20]))
        } else {
            (0, partial(ip.get(8..40).unwrap_or_default()))
        };
        let tcp =
            partial(&tcp[..4]) + partial(&tcp[8..12]) + partial(&tcp[14..16]) + partial(&tcp[18..]);
        Some(Sums {
            ip,
            tcp: addresses + half(TCP.into()) + tcp,
        })
    }

    /// Makes a datagram of the headers of the train in front of a payload with this sum.
    fn complete(&self, sums: &Sums, datagram: &mut [u8], number: u32, payload: u64) {
        let (ip, tcp) = datagram.split_at_mut(self.ip.into());
        let ip = &mut ip[HEADER_LEN..];
        let tcp_length = tcp.len() as u16;
        if ip[0] >> 4 == 4 {
            let length = ip.len() as u16 + tcp_length;
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(number as u16);
            let sum = folded(sums.ip + half(length) + half(id));
            ip[2..4].copy_from_slice(&length.to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&tcp_length.to_be_bytes());
        }
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add(self.part(number).start).to_be_bytes();
        let mut flags = [tcp[12], tcp[13]];
        if number > 0 {
            flags[1] &= !CWR;
        }
        if number + 1 < self.datagrams() {
            flags[1] &= !FIN_PSH;
        }
        let fields = half(tcp_length) + partial(&sequence) + partial(&flags);
        let sum = folded(sums.tcp + fields + payload);
        tcp[4..8].copy_from_slice(&sequence);
        tcp[12..14].copy_from_slice(&flags);
        tcp[CHECKSUM].copy_from_slice(&sum.to_be_bytes());
    }

    /// Makes lengths and the checksum of IP those of the train as it is, and has TCP's checksum be what a network
    /// card finds there that fills it in: the sum of the pseudo header.
    pub fn settle(&self, train: &mut [u8]) {
        let Some((ip, tcp)) = train.split_at_mut_checked(self.ip.into()) else {
            return;
        };
        let pseudo = set_length(&mut ip[HEADER_LEN..], tcp.len());
        if let Some(place) = tcp.get_mut(CHECKSUM) {
            place.copy_from_slice(&prepared(pseudo).to_be_bytes());
        }
    }
}

/// Sums ([`partial`]) of the fields of a train's headers that all of its datagrams have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// IPv4 without length, identification and checksum.
    ip: u64,
    /// TCP with its pseudo header, without length, sequence number, flags and checksum.
    tcp: u64,
}

/// Sum of a field.
fn half(field: u16) -> u64 {
    partial(&field.to_be_bytes())
}

/// Writes the length of an IP packet with so many bytes of TCP, and the checksum of IPv4. Returns the sum of TCP's
/// pseudo header.
fn set_length(ip: &mut [u8], tcp: usize) -> u64 {
    let addresses = if ip[0] >> 4 == 4 {
        let length = (ip.len() + tcp) as u16;
        ip[2..4].copy_from_slice(&length.to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum(&[ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        partial(&ip[12..20])
    } else {
        ip[4..6].copy_from_slice(&(tcp as u16).to_be_bytes());
        partial(&ip[8..40])
    };
    addresses + half(TCP.into()) + half(tcp as u16)
}
