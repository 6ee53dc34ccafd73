//! What management packets say inside of whom they are from.

use wire::mad::{AttributeId, Class, Mad, Method};
use wire::{Gid, Lid, MadPacket, PKey, cm};

use super::Reason;

/// The sender's port, as a packet's contents must have it.
#[derive(Debug, Clone, Copy)]
pub(in crate::guest) struct Own<'a> {
    /// Base LID.
    pub lid: Lid,
    /// LID mask control.
    pub lmc: u8,
    /// GIDs.
    pub gids: &'a [Gid],
    /// P_Key table.
    pub pkeys: &'a [PKey],
}

impl Own<'_> {
    /// Whether `lid` is the port's own, or nobody's.
    fn lid(&self, lid: Lid) -> bool {
        !lid.is_unicast() || self.lid.covers(self.lmc, lid)
    }

    fn gid(&self, gid: Gid) -> bool {
        gid == Gid::NONE || !gid.guid().is_none() && self.gids.contains(&gid)
    }

    fn member(&self, pkey: PKey) -> bool {
        !pkey.is_valid()
            || self
                .pkeys
                .iter()
                .any(|own| own.is_valid() && own.partition() == pkey.partition())
    }
}

/// Offsets in a datagram of the subnet administration (IBA 15.2.1.1).
mod sa {
    use core::ops::Range;

    pub const SM_KEY: Range<usize> = 36..44;
    pub const RECORD: usize = 56;
}

/// Records of the subnet administration by which a port enters something in its own name: where its
/// GID stands in the record, and where its P_Key does (IBA 15.2.5).
const fn entry(attribute: AttributeId) -> Option<(usize, Option<usize>)> {
    match attribute.0 {
        // ServiceRecord: ServiceID, ServiceGID, ServiceP_Key.
        0x0031 => Some((8, Some(24))),
        // MCMemberRecord: MGID, PortGID, …, P_Key.
        0x0038 => Some((16, Some(40))),
        _ => None,
    }
}

/// PortInfo among the subnet management attributes: its M_Key is first.
const M_KEY: core::ops::Range<usize> = 64..72;

pub(super) fn examine(packet: &mut MadPacket, own: &Own<'_>, trusted: bool) -> Result<(), Reason> {
    let header = packet.header();
    let (class, method, attribute) = (header.class(), header.method(), header.attribute());
    match class {
        Class::COMMUNICATION => communication(&packet.mad, attribute, own),
        Class::SUBN_ADM if !trusted => {
            // A right to see everything is the manager's to give, not a guest's to claim.
            packet.mad[sa::SM_KEY].fill(0);
            administration(&packet.mad, method, attribute, own)
        }
        _ => Ok(()),
    }
}

fn communication(mad: &[u8; 256], attribute: AttributeId, own: &Own<'_>) -> Result<(), Reason> {
    let places = cm::places(attribute);
    for path in places.paths {
        if !own.lid(Lid::new(word(mad, path.local_lid))) || !own.gid(gid(mad, path.local_gid)) {
            return Err(Reason::Address);
        }
    }
    match places.pkey {
        Some(at) if !own.member(PKey::new(word(mad, at))) => Err(Reason::Partition),
        _ => Ok(()),
    }
}

fn administration(
    mad: &[u8; 256],
    method: Method,
    attribute: AttributeId,
    own: &Own<'_>,
) -> Result<(), Reason> {
    if !matches!(method, Method::SET | Method::DELETE) {
        return Ok(());
    }
    // GUIDs of a port are for its physical function to register.
    if attribute == wire::sa::id::GUID_INFO {
        return Err(Reason::Manager);
    }
    let Some((gid_at, pkey_at)) = entry(attribute) else {
        return Ok(());
    };
    if !own.gid(gid(mad, sa::RECORD + gid_at)) {
        return Err(Reason::Address);
    }
    match pkey_at {
        Some(at) if !own.member(PKey::new(word(mad, sa::RECORD + at))) => Err(Reason::Partition),
        _ => Ok(()),
    }
}

/// Blanks the M_Key in an answer that carries one.
pub(super) fn hide_m_key(mad: &mut [u8; 256]) {
    let Ok(header) = Mad::new_checked(&mad[..]) else {
        return;
    };
    if header.class().is_subnet_management() && header.attribute() == AttributeId::PORT_INFO {
        mad[M_KEY].fill(0);
    }
}

fn word(mad: &[u8; 256], at: usize) -> u16 {
    u16::from_be_bytes([mad[at], mad[at + 1]])
}

fn gid(mad: &[u8; 256], at: usize) -> Gid {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&mad[at..at + 16]);
    Gid::from_bytes(bytes)
}
