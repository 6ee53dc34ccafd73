//! The address resolution protocol (RFC 826; over InfiniBand RFC 4391, 9.1.1).

use wire::ipoib::{self, Address};

use super::{Dropped, Mac, Neighbours, Own, bytes};

const ETHERNET: u16 = 1;
const IPV4: u16 = 0x0800;

/// Operations that ask; all others answer.
const REQUEST: u16 = 1;

/// Where things are that follow an address of `N` bytes.
struct Layout<const N: usize>;

impl<const N: usize> Layout<N> {
    const SENDER: usize = 8;
    const SENDER_IP: usize = Self::SENDER + N;
    const TARGET: usize = Self::SENDER_IP + 4;
    const TARGET_IP: usize = Self::TARGET + N;

    /// Hardware address and address of the sender, and of the target, where it is a packet for this
    /// link.
    fn parse(packet: &[u8], hardware: u16) -> Result<Fields<N>, Dropped> {
        let number = |at| bytes::u16_at(packet, at).ok_or(Dropped::Short);
        let lengths = u16::from_be_bytes([N as u8, 4]);
        if (number(0)?, number(2)?, number(4)?) != (hardware, IPV4, lengths) {
            return Err(Dropped::Protocol);
        }
        let ip = |at| bytes::array::<4>(packet, at).ok_or(Dropped::Short);
        let address = |at| bytes::array::<N>(packet, at).ok_or(Dropped::Short);
        Ok(Fields {
            operation: number(6)?,
            sender: address(Self::SENDER)?,
            sender_ip: ip(Self::SENDER_IP)?,
            target: address(Self::TARGET)?,
            target_ip: ip(Self::TARGET_IP)?,
        })
    }
}

struct Fields<const N: usize> {
    operation: u16,
    sender: [u8; N],
    sender_ip: [u8; 4],
    target: [u8; N],
    target_ip: [u8; 4],
}

impl<const N: usize> Fields<N> {
    fn emit(&self, hardware: u16) -> Vec<u8> {
        let mut to = super::datagram(8 + 2 * (N + 4));
        for number in [
            hardware,
            IPV4,
            u16::from_be_bytes([N as u8, 4]),
            self.operation,
        ] {
            to.extend_from_slice(&number.to_be_bytes());
        }
        to.extend_from_slice(&self.sender);
        to.extend_from_slice(&self.sender_ip);
        to.extend_from_slice(&self.target);
        to.extend_from_slice(&self.target_ip);
        to
    }
}

/// Translates a guest's packet for the fabric.
pub(super) fn outbound(
    packet: &[u8],
    own: &Own,
    neighbours: &mut impl Neighbours,
) -> Result<Vec<u8>, Dropped> {
    let fields = Layout::<6>::parse(packet, ETHERNET)?;
    if Mac(fields.sender) != own.mac {
        return Err(Dropped::Spoofed);
    }
    let target = match Mac(fields.target) {
        mac if mac == own.mac => own.address.to_bytes(),
        // A request need not contain the address that it asks for.
        _ if fields.operation == REQUEST => [0; ipoib::ADDRESS_LEN],
        Mac::BROADCAST => Address::broadcast(ipoib::broadcast_group(own.pkey)).to_bytes(),
        // An answer names its receiver by the address of IP as well.
        mac => { neighbours.find(mac) }.map_or([0; ipoib::ADDRESS_LEN], Address::to_bytes),
    };
    let translated = Fields {
        operation: fields.operation,
        sender: own.address.to_bytes(),
        sender_ip: fields.sender_ip,
        target,
        target_ip: fields.target_ip,
    };
    Ok(translated.emit(ipoib::HARDWARE_TYPE))
}

/// Translates a packet from the fabric for the guest, and returns its sender.
pub(super) fn inbound(
    packet: &[u8],
    own: &Own,
    neighbours: &mut impl Neighbours,
) -> Result<(Vec<u8>, Address), Dropped> {
    let fields = Layout::<{ ipoib::ADDRESS_LEN }>::parse(packet, ipoib::HARDWARE_TYPE)?;
    let sender = Address::from_bytes(fields.sender);
    if sender == own.address {
        return Err(Dropped::Spoofed);
    }
    neighbours.learn(sender);
    let target = match Address::from_bytes(fields.target) {
        address if address == own.address => own.mac,
        _ if fields.operation == REQUEST => Mac::default(),
        address => Mac::of(address),
    };
    let translated = Fields {
        operation: fields.operation,
        sender: Mac::of(sender).0,
        sender_ip: fields.sender_ip,
        target: target.0,
        target_ip: fields.target_ip,
    };
    Ok((translated.emit(ETHERNET), sender))
}
