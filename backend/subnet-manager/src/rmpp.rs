//! Datagrams of subnet administration that are longer than a packet: how they travel in segments
//! (IBA 13.6), seen from either end.

mod receiver;
mod sender;

use wire::{Lid, MadPacket, Qpn};

pub use receiver::{Receiver, Taken};
pub use sender::{Sender, TABLES};

/// Address of the other end, and the transaction.
type Key = (Lid, Qpn, u64);

/// The transfer that a packet from the other end belongs to.
fn from(packet: &MadPacket) -> Key {
    (packet.slid, packet.src_qp, packet.header().transaction())
}
