//! Neighbour discovery (RFC 4861): options with link-layer addresses, which have 8 bytes with Ethernet
//! (4.6.1) and 24 with InfiniBand (RFC 4391, 9.3). Behind extension headers it is dropped. All other IPv6 packets stay as they are.

use wire::ipoib::{ADDRESS_LEN, Address};

use super::{Dropped, ICMPV6, Mac, Neighbours, Own, bytes, ipv6_checksum};

const HEADER: usize = 40;

/// Source and target link-layer address.
const SOURCE: u8 = 1;
const TARGET: u8 = 2;

/// Bytes of an option's type and length, and what pads it in front of an address of 20 bytes.
const OPTION_HEADER: usize = 2;
const PADDING: usize = 2;

/// Bytes of a message in front of its options, by its type; `None` for all but neighbour discovery.
const fn fixed(kind: u8) -> Option<usize> {
    match kind {
        // Router solicitation and advertisement, neighbour solicitation and advertisement, redirect.
        133 => Some(8),
        134 => Some(16),
        135 | 136 => Some(24),
        137 => Some(40),
        _ => None,
    }
}

/// Whether neighbour discovery is behind extension headers (RFC 8200, 4), of which the first is `next`. Nobody needs
/// that, but who would tell of others' addresses.
fn is_hidden(mut next: u8, mut rest: &[u8]) -> bool {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    loop {
        let &[after, units, ..] = rest else {
            return false;
        };
        let length = match next {
            ICMPV6 => return fixed(after).is_some(),
            HOP_BY_HOP | ROUTING | DESTINATION => 8 + 8 * usize::from(units),
            FRAGMENT => 8,
            AUTHENTICATION => 8 + 4 * usize::from(units),
            _ => return false,
        };
        (next, rest) = (after, rest.get(length..).unwrap_or_default());
    }
}

/// The parts of a packet of neighbour discovery.
struct Message<'a> {
    header: &'a [u8; HEADER],
    fixed: &'a [u8],
    options: &'a [u8],
}

impl<'a> Message<'a> {
    /// `None` for another packet.
    fn parse(packet: &'a [u8]) -> Result<Option<Self>, Dropped> {
        let (header, body) = packet.split_first_chunk().ok_or(Dropped::Short)?;
        if header[6] != ICMPV6 {
            return if is_hidden(header[6], body) {
                Err(Dropped::Hidden)
            } else {
                Ok(None)
            };
        }
        let Some(length) = body.first().copied().and_then(fixed) else {
            return Ok(None);
        };
        let (fixed, options) = body.split_at_checked(length).ok_or(Dropped::Short)?;
        if ipv6_checksum(header, ICMPV6, body) != 0 {
            return Err(Dropped::Checksum);
        }
        Ok(Some(Self {
            header,
            fixed,
            options,
        }))
    }

    /// Writes the message with other options. `translate` writes one with a link-layer address.
    fn rewrite(
        &self,
        mut translate: impl FnMut(u8, &[u8], &mut Vec<u8>) -> Result<(), Dropped>,
    ) -> Result<Vec<u8>, Dropped> {
        let mut to = super::datagram(HEADER + self.fixed.len() + 3 * self.options.len());
        let start = to.len();
        to.extend_from_slice(self.header);
        to.extend_from_slice(self.fixed);
        let mut options = self.options;
        while !options.is_empty() {
            let units = *options.get(1).ok_or(Dropped::Short)?;
            let length = usize::from(units) * 8;
            let (option, rest) = options.split_at_checked(length).ok_or(Dropped::Short)?;
            // An option of no length would have no end (4.6).
            let kind = *option.first().ok_or(Dropped::Short)?;
            if matches!(kind, SOURCE | TARGET) {
                translate(kind, &option[OPTION_HEADER..], &mut to)?;
            } else {
                to.extend_from_slice(option);
            }
            options = rest;
        }
        let (header, body) = to[start..]
            .split_first_chunk_mut::<HEADER>()
            .ok_or(Dropped::Short)?;
        let length = u16::try_from(body.len()).map_err(|_| Dropped::Long)?;
        header[4..6].copy_from_slice(&length.to_be_bytes());
        body[2..4].fill(0);
        let checksum = ipv6_checksum(header, ICMPV6, body);
        body[2..4].copy_from_slice(&checksum.to_be_bytes());
        Ok(to)
    }
}

/// Translates a guest's packet for the fabric; `None` if it stays as it is.
pub(super) fn outbound(packet: &[u8], own: &Own) -> Result<Option<Vec<u8>>, Dropped> {
    let Some(message) = Message::parse(packet)? else {
        return Ok(None);
    };
    let rewritten = message.rewrite(|kind, address, to| {
        // A redirect tells of somebody else, which only routers may.
        if Mac(bytes::array(address, 0).ok_or(Dropped::Short)?) != own.mac {
            return Err(Dropped::Spoofed);
        }
        to.extend_from_slice(&[kind, 3, 0, 0]);
        to.extend_from_slice(&own.address.to_bytes());
        Ok(())
    });
    rewritten.map(Some)
}

/// A datagram, and who has told of itself in it.
type Heard = (Vec<u8>, Option<Address>);

/// Translates a packet from the fabric for the guest, and returns the sender's own address in it; `None` if it
/// stays as it is.
pub(super) fn inbound(
    packet: &[u8],
    own: &Own,
    neighbours: &mut impl Neighbours,
) -> Result<Option<Heard>, Dropped> {
    let Some(message) = Message::parse(packet)? else {
        return Ok(None);
    };
    let mut told = None;
    let rewritten = message.rewrite(|kind, option, to| {
        let address = bytes::array::<ADDRESS_LEN>(option, PADDING).ok_or(Dropped::Short)?;
        let address = Address::from_bytes(address);
        let mac = if address == own.address {
            own.mac
        } else {
            told = Some(address);
            Mac::of(address)
        };
        to.extend_from_slice(&[kind, 1]);
        to.extend_from_slice(&mac.0);
        Ok(())
    })?;
    if let Some(address) = told {
        neighbours.learn(address);
    }
    Ok(Some((rewritten, told)))
}
