//! LIDs and P_Keys inside management datagrams, from a guest's view to the wire's and back.

use wire::attribute::{GidChange, Notice};
use wire::cm::Remedy;
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::rmpp::Rmpp;
use wire::sa::{InformInfoRecord, McMemberRecord, PathRecord, ServiceRecord};
use wire::{Gid, Kind, Lid, PKey, byte_of, cm, sa};

use super::Cluster;
use super::attributes::{self, CLASS_PORT_INFO, DIRECTED_ROUTE, Listed, Parts};

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From a guest.
    ToWire,
    /// To a guest.
    ToGuest,
}

/// Translates for one VF, one way.
#[derive(Debug, Clone, Copy)]
pub struct Translator<'a> {
    /// Its cluster, if it is in one.
    pub cluster: Option<&'a Cluster>,
    /// P_Keys that the guest sees otherwise: that of the port, and what it sees.
    pub pkeys: &'a [(PKey, PKey)],
    /// The direction.
    pub direction: Direction,
}

/// Where an attribute of a class begins in the datagram.
const GENERAL: usize = 64;
const COMMUNICATION: usize = 24;
const ADMINISTRATION: usize = sa::DATA.start;
/// DrSLID and DrDLID of a directed route.
const ROUTE: std::ops::Range<usize> = 32..36;
/// In a notice: number of the trap.
const TRAP_NUMBER: usize = byte_of(Notice::FIELDS, "trap_number");
/// Bytes of a notice with its IssuerGID.
const NOTICE_SIZE: usize = 80;
/// In one of the traps 64 to 67: the GID of the port or group.
const TRAP_GID: usize = attributes::DETAILS + byte_of(GidChange::FIELDS, "gid");

/// The component mask of a datagram of the subnet administration.
const MASK: std::ops::Range<usize> = 48..56;

/// One end of a PathRecord: where its GID and LID stand, and which components they are.
struct End {
    gid: usize,
    lid: usize,
    has_gid: u64,
    has_lid: u64,
}

const PATH_ENDS: [End; 2] = [
    End {
        gid: byte_of(PathRecord::FIELDS, "dgid"),
        lid: byte_of(PathRecord::FIELDS, "dlid"),
        has_gid: PathRecord::DGID,
        has_lid: PathRecord::DLID,
    },
    End {
        gid: byte_of(PathRecord::FIELDS, "sgid"),
        lid: byte_of(PathRecord::FIELDS, "slid"),
        has_gid: PathRecord::SGID,
        has_lid: PathRecord::SLID,
    },
];

/// GIDs by which a record is known to be about somebody.
const GROUP: usize = byte_of(McMemberRecord::FIELDS, "mgid");
const MEMBER: usize = byte_of(McMemberRecord::FIELDS, "port_gid");
const SERVER: usize = byte_of(ServiceRecord::FIELDS, "service_gid");
const SUBSCRIBER: usize = byte_of(InformInfoRecord::FIELDS, "subscriber_gid");

impl Translator<'_> {
    fn lid(&self, lid: Lid) -> Lid {
        let found = match (self.cluster, self.direction) {
            (None, _) => Some(lid),
            (Some(cluster), Direction::ToWire) => cluster.map.physical(lid),
            (Some(cluster), Direction::ToGuest) => cluster.map.seen(lid),
        };
        found.unwrap_or(Lid::NONE)
    }

    /// The P_Key on the other side; membership stays as it is said.
    pub(super) fn pkey(&self, pkey: PKey) -> PKey {
        const MEMBERSHIP: u16 = 0x8000;
        let mut pairs = self.pkeys.iter().map(|&(own, shown)| match self.direction {
            Direction::ToWire => (shown, own),
            Direction::ToGuest => (own, shown),
        });
        let found = pairs.find(|(from, _)| pkey.is_valid() && from.partition() == pkey.partition());
        found.map_or(pkey, |(_, to)| {
            PKey::new(to.partition() | pkey.value() & MEMBERSHIP)
        })
    }

    /// Whether it is known of a datagram's class, method and attribute where addresses stand in it:
    /// others do not pass. Vendors' and applications' classes count as known.
    #[must_use]
    pub fn knows(&self, mad: &[u8; 256]) -> bool {
        let Ok(header) = Mad::new_checked(&mad[..]) else {
            return false;
        };
        let (class, id) = (header.class(), header.attribute());
        if attributes::is_opaque(class) {
            return true;
        }
        let clustered = self.cluster.is_some();
        header.method().name().is_some()
            && match class {
                Class::SUBN_LID | Class::SUBN_DIRECTED => {
                    attributes::subnet_management(id, clustered).is_some()
                }
                // Of an event that nobody knows nothing passes but that there is one.
                Class::SUBN_ADM => id == AttributeId::NOTICE || attributes::record(id).is_some(),
                Class::COMMUNICATION => {
                    id == AttributeId::CLASS_PORT_INFO || attributes::is_cm_message(id)
                }
                _ => attributes::general(class, id).is_some(),
            }
    }

    /// Translates all of a datagram. False, and nothing is done, if [`Translator::knows`] it not: it
    /// must not pass.
    #[must_use]
    pub fn mad(&self, mad: &mut [u8; 256]) -> bool {
        if !self.knows(mad) {
            return false;
        }
        let Ok(header) = Mad::new_checked(&mad[..]) else {
            return false;
        };
        let (class, method, id) = (header.class(), header.method(), header.attribute());
        match class {
            Class::SUBN_LID | Class::SUBN_DIRECTED => {
                if class == Class::SUBN_DIRECTED {
                    self.at(&mut mad[ROUTE], DIRECTED_ROUTE);
                }
                let clustered = self.cluster.is_some();
                let parts = attributes::subnet_management(id, clustered);
                self.at(&mut mad[GENERAL..GENERAL + 64], parts.unwrap_or_default());
            }
            Class::SUBN_ADM => self.administration(mad, method, id),
            Class::COMMUNICATION => self.communication(mad, id),
            _ if id == AttributeId::CLASS_PORT_INFO => {
                self.at(&mut mad[GENERAL..], CLASS_PORT_INFO);
            }
            _ => {
                let parts = attributes::general(class, id);
                self.at(&mut mad[GENERAL..], parts.unwrap_or_default());
            }
        }
        true
    }

    /// Translates one attribute or record; whether it named a LID that the other side knows not.
    fn at(&self, bytes: &mut [u8], parts: Parts) -> bool {
        let mut unknown = false;
        for &(start, fields) in parts {
            for &(bit, kind) in fields {
                let at = start + bit / 8;
                match kind {
                    Kind::Lid => {
                        let lid = Lid::new(word(bytes, at));
                        let translated = self.lid(lid);
                        unknown |= translated == Lid::NONE && lid != Lid::NONE;
                        set_word(bytes, at, translated.value());
                    }
                    Kind::PKey => {
                        let pkey = PKey::new(word(bytes, at));
                        set_word(bytes, at, self.pkey(pkey).value());
                    }
                    Kind::Gid => self.group(bytes.get_mut(at..).unwrap_or_default()),
                    Kind::Other => {}
                }
            }
        }
        unknown
    }

    /// The groups of IP over InfiniBand have a partition's P_Key in their GID (RFC 4391, 4).
    fn group(&self, gid: &mut [u8]) {
        const IPV4: u16 = 0x401b;
        const IPV6: u16 = 0x601b;
        if gid.first() == Some(&0xff) && matches!(word(gid, 2), IPV4 | IPV6) {
            let pkey = PKey::new(word(gid, 4));
            set_word(gid, 4, self.pkey(pkey).value());
        }
    }

    fn communication(&self, mad: &mut [u8; 256], id: AttributeId) {
        let places = cm::places(id);
        for path in places.paths {
            for at in [path.local_lid, path.remote_lid] {
                let lid = Lid::new(word(mad, at));
                set_word(mad, at, self.lid(lid).value());
            }
        }
        if let Some(at) = places.pkey {
            let pkey = PKey::new(word(mad, at));
            set_word(mad, at, self.pkey(pkey).value());
        }
        if id == AttributeId::CLASS_PORT_INFO {
            self.at(&mut mad[COMMUNICATION..], CLASS_PORT_INFO);
        }
        match cm::remedy(id, mad) {
            Some(Remedy::Lid(at)) => {
                let lid = Lid::new(word(mad, at));
                set_word(mad, at, self.lid(lid).value());
            }
            Some(Remedy::Redirection(at)) => {
                self.at(&mut mad[at..], CLASS_PORT_INFO);
            }
            None => {}
        }
    }

    fn administration(&self, mad: &mut [u8; 256], method: Method, id: AttributeId) {
        if id == AttributeId::NOTICE {
            match notice(mad) {
                Some(parts) => {
                    self.at(&mut mad[ADMINISTRATION..], parts);
                }
                None if self.cluster.is_some() => mad[ADMINISTRATION..].fill(0),
                None => {}
            }
            mad[ADMINISTRATION + NOTICE_SIZE..].fill(0);
            return;
        }
        let Ok(header) = Rmpp::of(&mad[..]) else {
            return;
        };
        if header.is_active() && self.direction == Direction::ToGuest {
            // Tables for guests are translated as a whole; all else about them has no records.
            mad[ADMINISTRATION..].fill(0);
            return;
        }
        // Of requests those for paths between several ports alone have more than one packet, and GIDs in all but the
        // first. Any other is a request, whatever it says of its segments.
        let follows = header.segment != 1 && method == Method::GET_MULTI;
        if header.is_active() && (header.kind != Rmpp::DATA || follows) {
            return;
        }
        let is_table = matches!(
            method,
            Method::GET_TABLE_RESPONSE | Method::GET_MULTI_RESPONSE
        );
        if is_table && self.direction == Direction::ToGuest && self.cluster.is_some() {
            // Records that come without a header for their segments are nobody's to sort.
            mad[ADMINISTRATION..].fill(0);
            return;
        }
        let id = match method {
            // The request asks for a path.
            Method::GET_TRACE_TABLE => sa::id::PATH,
            _ => id,
        };
        if id == sa::id::PATH && self.direction == Direction::ToWire {
            self.name_ends(mad);
        }
        let unknown = self.record(&mut mad[ADMINISTRATION..], id);
        if let Some(Listed { size, .. }) = attributes::record(id)
            && method.is_response()
        {
            mad[ADMINISTRATION + size..].fill(0);
        }
        let answers = matches!(method, Method::GET_RESPONSE | Method::DELETE_RESPONSE);
        let header = Mad::new_checked(&mad[..]);
        let is_record = answers && header.is_ok_and(|header| header.status().is_ok());
        // A record about somebody whom the guest does not know is none to it.
        if unknown && is_record && self.direction == Direction::ToGuest {
            mad[ADMINISTRATION..].fill(0);
            if let Ok(mut header) = Mad::new_checked(&mut mad[..]) {
                header.set_status(Status::SA_NO_RECORDS);
            }
        }
    }

    /// Translates one record; whether it is about somebody whom the other side knows not.
    fn record(&self, bytes: &mut [u8], id: AttributeId) -> bool {
        if self.direction == Direction::ToGuest && id == sa::id::PATH {
            self.begin_at_vm(bytes);
        }
        let Some(Listed { parts, .. }) = attributes::record(id) else {
            return true;
        };
        let strange = self.direction == Direction::ToGuest && !self.is_known(bytes, id);
        let unknown = self.at(bytes, parts);
        strange || unknown || id == sa::id::PATH && !self.is_path(bytes)
    }

    /// Has a path to a group begin at the LID of the VM at whose GID it begins: to the subnet
    /// administration that is the base LID of its port.
    fn begin_at_vm(&self, path: &mut [u8]) {
        let Some(Cluster { map, vms, .. }) = self.cluster else {
            return;
        };
        let [to, from] = PATH_ENDS;
        let own = vms.lid(gid(path, from.gid).guid());
        if gid(path, to.gid).is_multicast()
            && let Some(lid) = own.and_then(|lid| map.physical(lid))
        {
            set_word(path, from.lid, lid.value());
        }
    }

    /// Whether a record, as the wire has it, is about nobody but whom the guest may know, by the GIDs
    /// in it.
    fn is_known(&self, record: &[u8], id: AttributeId) -> bool {
        let Some(Cluster { vms, groups, .. }) = self.cluster else {
            return true;
        };
        let gid = |at| gid(record, at);
        let is_vm = |gid: Gid| vms.lid(gid.guid()).is_some();
        match id {
            // Not everybody is told who is in a group.
            sa::id::MC_MEMBER => {
                let member = gid(MEMBER);
                groups.knows(gid(GROUP)) && (member == Gid::NONE || is_vm(member))
            }
            sa::id::SERVICE => is_vm(gid(SERVER)),
            sa::id::INFORM_INFO => is_vm(gid(SUBSCRIBER)),
            sa::id::PATH => {
                let [to, _] = PATH_ENDS;
                !gid(to.gid).is_multicast() || groups.knows(gid(to.gid))
            }
            // Switches are none of its business.
            sa::id::TRACE => false,
            _ => true,
        }
    }

    /// Whether a report, as the wire has it, is of an event that the guest may know of.
    pub fn concerns(&self, mad: &[u8; 256]) -> bool {
        let Some(Cluster {
            map, vms, groups, ..
        }) = self.cluster
        else {
            return true;
        };
        let report = &mad[ADMINISTRATION..];
        let Some(parts) = notice(mad) else {
            return false;
        };
        let gid = gid(report, TRAP_GID);
        let fields = parts.iter().flat_map(|&(start, fields)| {
            fields
                .iter()
                .map(move |&(bit, kind)| (start + bit / 8, kind))
        });
        let lids = fields.filter(|&(_, kind)| kind == Kind::Lid);
        let mut lids = lids.map(|(at, _)| Lid::new(word(report, at)));
        match word(report, TRAP_NUMBER) {
            Notice::GID_IN_SERVICE | Notice::GID_OUT_OF_SERVICE => vms.lid(gid.guid()).is_some(),
            Notice::GROUP_CREATED => groups.knows(gid),
            Notice::GROUP_DELETED => groups.knew(gid),
            _ => lids.all(|lid| map.seen(lid).is_some()),
        }
    }

    /// Has a question for paths name both the GID and the LID of a VM that it names by one of them.
    /// Several VMs may be at one port, whose paths have any GID of the port together with any LID.
    fn name_ends(&self, mad: &mut [u8; 256]) {
        let Some(Cluster { vms, .. }) = self.cluster else {
            return;
        };
        let mut mask = mad[MASK]
            .iter()
            .fold(0, |mask, &byte| mask << 8 | u64::from(byte));
        let record = &mut mad[ADMINISTRATION..];
        for end in PATH_ENDS {
            match (mask & end.has_gid != 0, mask & end.has_lid != 0) {
                (true, false) => {
                    if let Some(lid) = vms.lid(gid(record, end.gid).guid()) {
                        set_word(record, end.lid, lid.value());
                        mask |= end.has_lid;
                    }
                }
                (false, true) => {
                    if let Some(guid) = vms.guid(Lid::new(word(record, end.lid))) {
                        let gid = Gid::new(Gid::DEFAULT_PREFIX, guid);
                        record[end.gid..end.gid + 16].copy_from_slice(&gid.to_bytes());
                        mask |= end.has_gid;
                    }
                }
                _ => {}
            }
        }
        mad[MASK].copy_from_slice(&mask.to_be_bytes());
    }

    /// Whether a path, as the guest sees it, is between VMs and not between one's LID and another's
    /// GID.
    fn is_path(&self, record: &[u8]) -> bool {
        let Some(Cluster { vms, .. }) = self.cluster else {
            return true;
        };
        let fits = |end: &End| vms.fits(gid(record, end.gid), Lid::new(word(record, end.lid)));
        self.direction == Direction::ToWire || PATH_ENDS.iter().all(fits)
    }

    /// Translates a table for a guest, of records of `size` bytes. Records about those whom the
    /// guest does not know are left out, and so are the nodes on a path.
    pub fn table(&self, id: AttributeId, size: usize, table: &mut Vec<u8>) {
        if size == 0 {
            return table.clear();
        }
        let mut kept = 0;
        for at in (0..table.len() / size).map(|record| record * size) {
            let unknown = self.record(&mut table[at..at + size], id);
            if !unknown {
                table.copy_within(at..at + size, kept);
                kept += size;
            }
        }
        table.truncate(kept);
    }
}

/// Where addresses stand in the notice of a datagram of the subnet administration, if that is known.
fn notice(mad: &[u8; 256]) -> Option<Parts> {
    let notice = &mad[ADMINISTRATION..];
    let is_generic = notice[0] & 0x80 != 0;
    let trap = word(notice, TRAP_NUMBER);
    attributes::notice(trap).filter(|_| is_generic)
}

fn gid(bytes: &[u8], at: usize) -> Gid {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map_or(Gid::NONE, |bytes| Gid::from_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> u16 {
    match bytes.get(at..at + 2) {
        Some(&[high, low]) => u16::from_be_bytes([high, low]),
        _ => 0,
    }
}

fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}
