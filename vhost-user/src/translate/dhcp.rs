//! DHCP (RFC 2131). Messages of a guest tell its Ethernet address. On the fabric (RFC 4390) they tell no
//! address, since there is no room for one: answers go to all, and an option names the client.
//!
//! An answer is the guest's if it has the number of something that the guest has asked.

use std::collections::VecDeque;
use std::ops::Range;

use wire::ipoib::{self, Address};

use super::bytes::{array, checksum, u16_at};
use super::{Dropped, Mac, Own, Packet};

/// The guest's last questions, as many as are remembered.
const MAX_REQUESTS: usize = 16;

const UDP: u8 = 17;
/// More fragments follow, or there are some in front.
const FRAGMENT: u16 = 0x3fff;
/// Ports of UDP.
const SERVER: u16 = 67;
const CLIENT: u16 = 68;
/// Hardware type of Ethernet.
const ETHERNET: u8 = 1;
const INFINIBAND: u8 = ipoib::HARDWARE_TYPE as u8;

/// Places in a message (RFC 2131, 2).
const OPERATION: usize = 0;
const HARDWARE: usize = 1;
const HARDWARE_LEN: usize = 2;
const TRANSACTION: usize = 4;
const FLAGS: usize = 10;
const RELAY: usize = 24;
const CLIENT_ADDRESS: Range<usize> = 28..44;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
/// The answer is to go to all: the highest bit of the flags.
const BROADCAST: u8 = 0x80;
const MAGIC: [u8; 4] = [99, 130, 83, 99];

/// Options (RFC 2132).
const PAD: u8 = 0;
const CLIENT_IDENTIFIER: u8 = 61;
const END: u8 = 255;

/// The guest's requests to DHCP servers.
#[derive(Debug, Default)]
pub struct Transactions(VecDeque<Transaction>);

#[derive(Debug, Clone, Copy)]
struct Transaction {
    number: [u8; 4],
    /// The guest has named itself in an option; otherwise the port has done so.
    named: bool,
}

impl Transactions {
    fn note(&mut self, transaction: Transaction) {
        self.0.retain(|known| known.number != transaction.number);
        self.0.truncate(MAX_REQUESTS - 1);
        self.0.push_front(transaction);
    }

    fn find(&self, number: [u8; 4]) -> Option<Transaction> {
        self.0.iter().find(|it| it.number == number).copied()
    }
}

/// Where a message is in its packet.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// Bytes of the IP header.
    ip: usize,
    /// It is one of a client; otherwise one for a client.
    asks: bool,
}

impl Message {
    /// `None` for another packet, and for a message between servers.
    fn find(packet: &mut Packet) -> Result<Option<Self>, Dropped> {
        let bytes = packet.packet();
        let ip = usize::from(bytes.first().ok_or(Dropped::Short)? & 0xf) * 4;
        let fragment = u16_at(bytes, 6).is_none_or(|field| field & FRAGMENT != 0);
        if bytes.get(9) != Some(&UDP) || fragment || ip < 20 {
            return Ok(None);
        }
        let body = ip + 8;
        let (to, operation) = (u16_at(bytes, ip + 2), bytes.get(body + OPERATION));
        let asks = match (to, operation.copied()) {
            (Some(SERVER), Some(REQUEST)) => true,
            (Some(CLIENT), Some(REPLY)) => false,
            _ => return Ok(None),
        };
        let length = usize::from(u16_at(bytes, ip + 4).ok_or(Dropped::Short)?);
        let bytes = bytes.get(..ip + length).ok_or(Dropped::Short)?;
        if array(bytes, body + COOKIE) != Some(MAGIC) {
            return Ok(None);
        }
        let (header, datagram) = bytes.split_at(ip);
        let unsummed = u16_at(datagram, 6) == Some(0);
        if checksum(&[header]) != 0 || (!unsummed && udp_checksum(header, datagram) != 0) {
            return Err(Dropped::Checksum);
        }
        if asks && array(bytes, body + RELAY) != Some([0; 4]) {
            return Ok(None);
        }
        packet.truncate(ip + length);
        Ok(Some(Self { ip, asks }))
    }

    fn of(self, packet: &mut Packet) -> &mut [u8] {
        let body = packet.packet_mut().get_mut(self.ip + 8..);
        body.unwrap_or_default()
    }

    /// Writes whose hardware address the message tells.
    fn tell(self, packet: &mut Packet, hardware: u8, address: Option<Mac>) {
        let message = self.of(packet);
        message[HARDWARE] = hardware;
        message[HARDWARE_LEN] = if address.is_some() { 6 } else { 0 };
        let place = &mut message[CLIENT_ADDRESS];
        place.fill(0);
        if let Some(Mac(address)) = address {
            place[..6].copy_from_slice(&address);
        }
    }

    /// Makes lengths and checksums right again.
    fn seal(self, packet: &mut Packet) -> Result<(), Dropped> {
        let bytes = packet.packet_mut();
        let length = u16::try_from(bytes.len()).map_err(|_| Dropped::Long)?;
        let (header, datagram) = bytes.split_at_mut(self.ip);
        header[2..4].copy_from_slice(&length.to_be_bytes());
        header[10..12].fill(0);
        let sum = checksum(&[header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        datagram[4..6].copy_from_slice(&(length - self.ip as u16).to_be_bytes());
        datagram[6..8].fill(0);
        let sum = match udp_checksum(header, datagram) {
            // 0 would be none (RFC 768).
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        Ok(())
    }
}

fn udp_checksum(header: &[u8], datagram: &[u8]) -> u16 {
    let length = (datagram.len() as u16).to_be_bytes();
    checksum(&[&header[12..20], &[0, UDP], &length, datagram])
}

/// Options of a message: where the one that names the client is, and where their end is.
fn options(message: &[u8]) -> Result<(Option<Range<usize>>, usize), Dropped> {
    let (mut at, mut named) = (OPTIONS, None);
    loop {
        let next = match *message.get(at).ok_or(Dropped::Short)? {
            END => return Ok((named, at)),
            PAD => at + 1,
            kind => {
                let length = *message.get(at + 1).ok_or(Dropped::Short)?;
                let next = at + 2 + usize::from(length);
                if kind == CLIENT_IDENTIFIER {
                    named = Some(at..next);
                }
                next
            }
        };
        at = next;
    }
}

/// Translates a guest's packet for the fabric. Packets that are no messages of DHCP stay as they are.
pub(super) fn outbound(
    packet: &mut Packet,
    own: &Own,
    transactions: &mut Transactions,
) -> Result<(), Dropped> {
    let Some(message) = Message::find(packet)? else {
        return Ok(());
    };
    if message.asks {
        let bytes = message.of(packet);
        let hardware = (bytes[HARDWARE], bytes[HARDWARE_LEN]);
        if hardware != (ETHERNET, 6) || bytes[CLIENT_ADDRESS][..6] != own.mac.0 {
            return Err(Dropped::Spoofed);
        }
        bytes[FLAGS] |= BROADCAST;
        let number = array(bytes, TRANSACTION).ok_or(Dropped::Short)?;
        let (name, end) = options(bytes)?;
        let named = name.is_some();
        transactions.note(Transaction { number, named });
        if !named {
            let Mac([a, b, c, d, e, f]) = own.mac;
            let name = [CLIENT_IDENTIFIER, 7, ETHERNET, a, b, c, d, e, f];
            let at = ipoib::HEADER_LEN + message.ip + 8 + end;
            packet.datagram.splice(at..at, name);
        }
    }
    message.tell(packet, INFINIBAND, None);
    message.seal(packet)
}

/// Translates a packet from the fabric for the guest; it was sent by `from`. Other packets than messages of
/// DHCP, and answers to others, stay as they are. Returns whether it is a request.
pub(super) fn inbound(
    packet: &mut Packet,
    from: Option<Address>,
    own: &Own,
    transactions: &Transactions,
) -> Result<bool, Dropped> {
    let Some(message) = Message::find(packet)? else {
        return Ok(false);
    };
    let bytes = message.of(packet);
    if bytes[HARDWARE] != INFINIBAND {
        return Ok(false);
    }
    if message.asks {
        // Servers that know clients by this address alone have one for each.
        let Some(from) = from else {
            return Err(Dropped::Unknown);
        };
        message.tell(packet, ETHERNET, Some(Mac::of(from)));
    } else {
        let number = array(bytes, TRANSACTION).ok_or(Dropped::Short)?;
        let Some(transaction) = transactions.find(number) else {
            return Ok(false);
        };
        if let (Some(name), _) = options(bytes)?
            && !transaction.named
        {
            // A client that has not named itself takes no answer to somebody who has (RFC 6842).
            bytes.get_mut(name).ok_or(Dropped::Short)?.fill(PAD);
        }
        message.tell(packet, ETHERNET, Some(own.mac));
    }
    message.seal(packet)?;
    Ok(message.asks)
}
