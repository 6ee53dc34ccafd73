//! Addresses and partitions inside management packets.

use wire::mad::{AttributeId, Class, Mad, Method};
use wire::sa::{self, McMemberRecord, Record, ServiceRecord};
use wire::{Gid, Lid, MadPacket, PKey, cm};

use super::Reason;

/// The sender's port, as a packet's contents must have it.
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
    /// Base LIDs, each with its LID mask control.
    pub lids: &'a [(Lid, u8)],
    /// GIDs.
    pub gids: &'a [Gid],
    /// P_Key table.
    pub pkeys: &'a [PKey],
}

impl Own<'_> {
    /// Whether `lid` is the port's own, or nobody's.
    fn lid(&self, lid: Lid) -> bool {
        !lid.is_unicast() || self.lids.iter().any(|(base, lmc)| base.covers(*lmc, lid))
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

/// SM_Key of a datagram of the subnet administration (IBA 15.2.1.1).
const SM_KEY: std::ops::Range<usize> = 36..44;

/// The GID and partition that a port enters by a record of the subnet administration (IBA 15.2.5): `None` of
/// records by which nothing is entered.
fn entry(attribute: AttributeId, data: &[u8]) -> Option<wire::Result<(Gid, PKey)>> {
    Some(match attribute {
        sa::id::SERVICE => {
            let record = ServiceRecord::read(data);
            record.map(|record| (record.service_gid, record.service_pkey))
        }
        sa::id::MC_MEMBER => {
            let record = McMemberRecord::read(data);
            record.map(|record| (record.port_gid, record.pkey))
        }
        _ => return None,
    })
}

/// PortInfo among the subnet management attributes: its M_Key is first.
const M_KEY: std::ops::Range<usize> = 64..72;

/// Looks inside a packet, and takes out a right that only the manager gives. A trusted guest manages the
/// subnet.
///
/// # Errors
/// The reason why it must not enter the subnet.
pub(crate) fn examine(packet: &mut MadPacket, own: &Own<'_>, trusted: bool) -> Result<(), Reason> {
    let header = packet.header();
    let (class, method, attribute) = (header.class(), header.method(), header.attribute());
    match class {
        Class::COMMUNICATION => communication(&packet.mad, attribute, own),
        Class::SUBN_ADM if !trusted => {
            // A right to see everything is the manager's to give, not a guest's to claim.
            packet.mad[SM_KEY].fill(0);
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
    if attribute == sa::id::GUID_INFO {
        return Err(Reason::Manager);
    }
    match entry(attribute, &mad[sa::DATA]) {
        None => Ok(()),
        // Nobody knows whose name is in it.
        Some(Err(_)) => Err(Reason::Address),
        Some(Ok((gid, _))) if !own.gid(gid) => Err(Reason::Address),
        Some(Ok((_, pkey))) if !own.member(pkey) => Err(Reason::Partition),
        Some(Ok(_)) => Ok(()),
    }
}

/// Blanks the M_Key in an answer that carries one.
pub(crate) fn hide_m_key(mad: &mut [u8; 256]) {
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
