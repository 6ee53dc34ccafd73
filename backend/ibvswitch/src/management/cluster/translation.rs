//! LIDs and P_Keys inside management datagrams, from a guest's view to the wire's and back.

use wire::attribute::Notice;
use wire::mad::{AttributeId, Class, Mad, Method, Status};
use wire::rmpp::Rmpp;
use wire::{Gid, Lid, PKey, cm, sa};

use super::Cluster;

/// Which way a packet goes.
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
    /// Which way.
    pub direction: Direction,
}

/// Byte offsets in an attribute or record of 16-bit LIDs and P_Keys, and of multicast GIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Places {
    lids: &'static [usize],
    pkeys: &'static [usize],
    mgids: &'static [usize],
}

const NOWHERE: Places = Places {
    lids: &[],
    pkeys: &[],
    mgids: &[],
};

const fn lids(lids: &'static [usize]) -> Places {
    Places { lids, ..NOWHERE }
}

/// A P_KeyTable's 32 entries from `first`.
const fn table(first: usize) -> [usize; 32] {
    let mut places = [0; 32];
    let mut at = 0;
    while at < places.len() {
        places[at] = first + 2 * at;
        at += 1;
    }
    places
}

/// Attributes of subnet management (IBA 14.2.5).
const fn attribute(attribute: AttributeId) -> Places {
    const P_KEYS: [usize; 32] = table(0);
    match attribute {
        // LID, MasterSMLID.
        AttributeId::PORT_INFO => lids(&[16, 18]),
        AttributeId::P_KEY_TABLE => Places {
            pkeys: &P_KEYS,
            ..NOWHERE
        },
        _ => NOWHERE,
    }
}

/// ClassPortInfo of any class (IBA 13.4.8.1): RedirectLID and TrapLID, each with its P_Key.
const CLASS_PORT_INFO: Places = Places {
    lids: &[28, 60],
    pkeys: &[30, 62],
    mgids: &[],
};

/// Records of the subnet administration (IBA 15.2.5).
const fn record(attribute: AttributeId) -> Places {
    // The record's own LID, then RID fields up to 8 bytes, then the table.
    const P_KEYS: [usize; 32] = table(8);
    match attribute {
        AttributeId::CLASS_PORT_INFO => CLASS_PORT_INFO,
        // InformInfo: LIDRangeBegin, LIDRangeEnd.
        AttributeId(0x0003) => lids(&[16, 18]),
        // NodeRecord, SLtoVL, SwitchInfo, LFT, MFT, SMInfo, GUIDInfo, VLArbitration.
        AttributeId(0x0011 | 0x0013 | 0x0014 | 0x0015 | 0x0017 | 0x0018 | 0x0030 | 0x0036) => {
            lids(&[0])
        }
        // PortInfoRecord: EndportLID, then PortInfo from byte 4.
        AttributeId(0x0012) => lids(&[0, 20, 22]),
        // LinkRecord: FromLID, ToLID.
        AttributeId(0x0020) => lids(&[0, 4]),
        // ServiceRecord: ServiceP_Key.
        AttributeId(0x0031) => Places {
            pkeys: &[24],
            ..NOWHERE
        },
        AttributeId(0x0033) => Places {
            lids: &[0],
            pkeys: &P_KEYS,
            mgids: &[],
        },
        // PathRecord: DLID, SLID; P_Key.
        AttributeId(0x0035) => Places {
            lids: &[40, 42],
            pkeys: &[50],
            mgids: &[],
        },
        // MCMemberRecord: P_Key, MGID; its MLID is everybody's.
        AttributeId(0x0038) => Places {
            pkeys: &[40],
            mgids: &[0],
            ..NOWHERE
        },
        // MultiPathRecord: P_Key.
        AttributeId(0x003a) => Places {
            pkeys: &[6],
            ..NOWHERE
        },
        // InformInfoRecord: InformInfo from byte 24.
        AttributeId(0x00f3) => lids(&[40, 42]),
        _ => NOWHERE,
    }
}

/// A notice (IBA 13.4.8.2): IssuerLID, and the LIDs in the details of its trap (14.2.5.1).
const fn notice(trap: u16) -> Places {
    match trap {
        128 => lids(&[6, 10]),
        129..=131 | 144 | 145 => lids(&[6, 12]),
        256..=258 => lids(&[6, 12, 14]),
        259 => lids(&[6, 12, 14, 58]),
        _ => lids(&[6]),
    }
}

/// Where an attribute of a class begins in the datagram.
const GENERAL: usize = 64;
const COMMUNICATION: usize = 24;
const ADMINISTRATION: usize = sa::DATA.start;
/// In a notice: number of the trap.
const TRAP_NUMBER: usize = 4;
/// In one of the traps 64 to 67: the GID of the port or group.
const TRAP_GID: usize = 16;

/// The component mask of a datagram of the subnet administration.
const MASK: core::ops::Range<usize> = 48..56;

/// One end of a PathRecord: where its GID and LID stand, and which components they are.
struct End {
    gid: usize,
    lid: usize,
    has_gid: u64,
    has_lid: u64,
}

const PATH_ENDS: [End; 2] = [
    End {
        gid: 8,
        lid: 40,
        has_gid: sa::PathRecord::DGID,
        has_lid: sa::PathRecord::DLID,
    },
    End {
        gid: 24,
        lid: 42,
        has_gid: sa::PathRecord::SGID,
        has_lid: sa::PathRecord::SLID,
    },
];

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

    /// Translates all of a datagram.
    pub fn mad(&self, mad: &mut [u8; 256]) {
        let Ok(header) = Mad::new_checked(&mad[..]) else {
            return;
        };
        let (class, method, id) = (header.class(), header.method(), header.attribute());
        match class {
            class if class.is_subnet_management() => {
                self.at(&mut mad[GENERAL..GENERAL + 64], attribute(id));
            }
            Class::SUBN_ADM => self.administration(mad, method, id),
            Class::COMMUNICATION => self.communication(mad, id),
            _ if id == AttributeId::CLASS_PORT_INFO => {
                self.at(&mut mad[GENERAL..], CLASS_PORT_INFO);
            }
            _ => {}
        }
    }

    /// Translates one attribute or record; whether it named a LID that the other side knows not.
    fn at(&self, bytes: &mut [u8], places: Places) -> bool {
        let mut unknown = false;
        for &at in places.lids {
            let lid = Lid::new(word(bytes, at));
            let translated = self.lid(lid);
            unknown |= translated == Lid::NONE && lid != Lid::NONE;
            set_word(bytes, at, translated.value());
        }
        for &at in places.pkeys {
            let pkey = PKey::new(word(bytes, at));
            set_word(bytes, at, self.pkey(pkey).value());
        }
        for &at in places.mgids {
            self.group(bytes.get_mut(at..).unwrap_or_default());
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
    }

    fn administration(&self, mad: &mut [u8; 256], method: Method, id: AttributeId) {
        if id == AttributeId::NOTICE {
            let trap = word(mad, ADMINISTRATION + TRAP_NUMBER);
            self.at(&mut mad[ADMINISTRATION..], notice(trap));
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
        if header.is_active() && (header.kind != Rmpp::DATA || header.segment != 1) {
            return;
        }
        let id = match method {
            // What is asked for is a path.
            Method::GET_TRACE_TABLE => sa::id::PATH,
            _ => id,
        };
        if id == sa::id::PATH && self.direction == Direction::ToWire {
            self.name_ends(mad);
        }
        let unknown = self.record(&mut mad[ADMINISTRATION..], id);
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
        let strange = self.direction == Direction::ToGuest && !self.is_known(bytes, id);
        let unknown = self.at(bytes, record(id));
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
            // MGID, PortGID: not everybody is told who is in a group.
            sa::id::MC_MEMBER => groups.knows(gid(0)) && (gid(16) == Gid::NONE || is_vm(gid(16))),
            // ServiceGID.
            sa::id::SERVICE => is_vm(gid(8)),
            // SubscriberGID.
            sa::id::INFORM_INFO => is_vm(gid(0)),
            // DGID.
            sa::id::PATH => !gid(8).is_multicast() || groups.knows(gid(8)),
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
        let is_generic = report[0] & 0x80 != 0;
        let trap = word(report, TRAP_NUMBER);
        let gid = gid(report, TRAP_GID);
        let lids = notice(trap).lids.iter();
        let mut lids = lids.map(|&at| Lid::new(word(report, at)));
        is_generic
            && match trap {
                Notice::GID_IN_SERVICE | Notice::GID_OUT_OF_SERVICE => {
                    vms.lid(gid.guid()).is_some()
                }
                Notice::GROUP_CREATED => groups.knows(gid),
                Notice::GROUP_DELETED => groups.knew(gid),
                128..=131 | 144 | 145 | 256..=259 => lids.all(|lid| map.seen(lid).is_some()),
                _ => false,
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
    /// guest does not know are left out, and so are the nodes on a path: switches are none of its
    /// business.
    pub fn table(&self, id: AttributeId, size: usize, table: &mut Vec<u8>) {
        if size == 0 || id == sa::id::TRACE && self.cluster.is_some() {
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
