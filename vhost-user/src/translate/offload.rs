//! What a guest leaves to its network card (virtio 1.3, 5.1.6.2): checksums to be filled in, and TCP segments
//! that are longer than the MTU to be cut.
//!
//! Nothing is believed that the guest says of a segment: its headers are read, and each datagram that is cut
//! from it has checksums of its own, whatever the guest has put there.

use std::ops::Range;

use super::Dropped;
use super::bytes::{checksum, partial, u16_at};

const TCP: u8 = 6;
/// Bytes of the shortest header of TCP, and of IPv4.
const SHORTEST: usize = 20;
/// Bytes of an IPv6 header.
const IPV6_HEADER: usize = 40;
/// Bytes of payload of the shortest segments that there are: Linux has none shorter (`TCP_MIN_SND_MSS`). A frame
/// stands for a bounded number of datagrams thereby.
const SHORTEST_SEGMENT: usize = 48;

/// More fragments follow, or there are some in front.
const FRAGMENT: u16 = 0x3fff;

/// Flags of TCP that the first segment alone has, and those that the last one has.
const CWR: u8 = 0x80;
const FIN_PSH: u8 = 0x09;

/// Fills in the checksum of a packet from `start` on, at `offset` from there. The place has the sum of the
/// pseudo header already.
///
/// # Errors
/// [`Dropped::Short`] where there is no such place.
pub fn complete(packet: &mut [u8], start: usize, offset: usize) -> Result<(), Dropped> {
    let counted = packet.get_mut(start..).ok_or(Dropped::Short)?;
    let sum = checksum(&[counted]);
    let place = counted.get_mut(offset..).and_then(<[u8]>::first_chunk_mut);
    // 0 would be none (RFC 768); both stand for the same.
    let sum = if sum == 0 { 0xffff } else { sum };
    *place.ok_or(Dropped::Short)? = sum.to_be_bytes();
    Ok(())
}

/// How a TCP segment is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of the IP header.
    ip: usize,
    /// Bytes of all headers.
    headers: usize,
    /// Bytes of payload of each part.
    segment: usize,
    /// Bytes of payload.
    payload: usize,
}

impl Cut {
    /// A packet with a TCP segment that is to be cut into parts with so much payload each.
    ///
    /// # Errors
    /// [`Dropped`] where it is no such packet, or the parts would be too short.
    pub fn new(packet: &[u8], segment: usize) -> Result<Self, Dropped> {
        let version = packet.first().ok_or(Dropped::Short)?;
        let (ip, protocol) = match version >> 4 {
            4 => {
                let ip = usize::from(version & 0xf) * 4;
                if u16_at(packet, 6).ok_or(Dropped::Short)? & FRAGMENT != 0 || ip < SHORTEST {
                    return Err(Dropped::Segments);
                }
                (ip, packet.get(9))
            }
            6 => (IPV6_HEADER, packet.get(6)),
            _ => return Err(Dropped::Segments),
        };
        if protocol != Some(&TCP) || segment < SHORTEST_SEGMENT {
            return Err(Dropped::Segments);
        }
        let tcp = usize::from(packet.get(ip + 12).ok_or(Dropped::Short)? >> 4) * 4;
        let headers = ip + tcp;
        let payload = packet.len().checked_sub(headers).ok_or(Dropped::Short)?;
        if tcp < SHORTEST {
            return Err(Dropped::Segments);
        }
        Ok(Self {
            ip,
            headers,
            segment,
            payload,
        })
    }

    /// Bytes of the longest part.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.headers + self.segment.min(self.payload)
    }

    /// How many parts there are.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.payload.div_ceil(self.segment).max(1)
    }

    fn payload_of(&self, part: usize) -> Range<usize> {
        let from = self.headers + part * self.segment;
        from..(from + self.segment).min(self.headers + self.payload)
    }

    /// Appends a part of the packet, a packet of its own.
    pub fn write(&self, packet: &[u8], part: usize, to: &mut Vec<u8>) {
        let start = to.len();
        let (Some(headers), Some(payload)) = (
            packet.get(..self.headers),
            packet.get(self.payload_of(part)),
        ) else {
            return;
        };
        to.reserve(self.headers + payload.len());
        to.extend_from_slice(headers);
        to.extend_from_slice(payload);
        let whole = &mut to[start..];
        let (length, last) = (whole.len(), part + 1 == self.parts());
        let (ip, tcp) = whole.split_at_mut(self.ip);
        let pseudo = if ip[0] >> 4 == 4 {
            ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(part as u16);
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let sum = checksum(&[ip]);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            partial(&ip[12..20])
        } else {
            ip[4..6].copy_from_slice(&((length - IPV6_HEADER) as u16).to_be_bytes());
            partial(&ip[8..40])
        };
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        let sequence = sequence.wrapping_add((part * self.segment) as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if part > 0 {
            tcp[13] &= !CWR;
        }
        if !last {
            tcp[13] &= !FIN_PSH;
        }
        tcp[16..18].fill(0);
        let pseudo = pseudo + partial(&[0, TCP]) + partial(&(tcp.len() as u16).to_be_bytes());
        let sum = super::bytes::folded(pseudo + partial(tcp));
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}
