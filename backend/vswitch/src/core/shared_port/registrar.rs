//! Registering the GUIDs of a port's functions with the subnet administration, by records of GUIDInfo
//! (IBA 15.2.5.18).

use std::collections::BTreeMap;
use std::time::Duration;

use tracing::warn;
use wire::attribute::{GuidInfo, PortInfo};
use wire::mad::{Method, SIZE};
use wire::sa::{self, GuidInfoRecord, Record};
use wire::{Guid, Lid, MadPacket, PortState};

use super::{REGISTRAR, TRANSACTION};

/// First time to wait for an answer; each further time is twice as long, up to the longest.
const TIMEOUT: Duration = Duration::from_millis(500);
const MAX_TIMEOUT: Duration = Duration::from_secs(8);
/// Pause before a refused request is repeated.
const REFUSAL_PAUSE: Duration = Duration::from_secs(5);

const ENTRIES: usize = GuidInfo::ENTRIES;
/// Components of the record.
const LID: u64 = 1;
const BLOCK: u64 = 1 << 1;
const GUID0: usize = 4;

/// The subnet administration does not let a port have a GUID: another one has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Nobody knows what the subnet administration has there.
    Unknown,
    /// It has this.
    Holds(Guid),
    /// It has refused this.
    Refused(Guid),
}

#[derive(Debug)]
struct Request {
    method: Method,
    block: u8,
    mask: u64,
    guids: [Guid; ENTRIES],
    transaction: u64,
    due: Duration,
    timeout: Duration,
}

/// The GUIDs that one port's table is to hold, and those that are registered.
#[derive(Debug, Default)]
pub(super) struct Registrar {
    wanted: BTreeMap<u8, Guid>,
    known: BTreeMap<u8, Entry>,
    asked: Option<Request>,
    /// Not before this: something was refused.
    pause: Option<Duration>,
    last_transaction: u64,
}

impl Registrar {
    pub(super) fn want(&mut self, entry: u8, guid: Guid) {
        self.wanted.insert(entry, guid);
        self.pause = None;
    }

    pub(super) fn wanted(&self, entry: u8) -> Guid {
        self.wanted.get(&entry).copied().unwrap_or_default()
    }

    fn known(&self, entry: u8) -> Entry {
        self.known.get(&entry).copied().unwrap_or(Entry::Unknown)
    }

    pub(super) fn is_registered(&self, entry: u8) -> Result<bool, Refused> {
        match (self.known(entry), self.wanted(entry)) {
            (Entry::Holds(held), wanted) => Ok(held == wanted),
            (Entry::Refused(refused), wanted) if refused == wanted => Err(Refused),
            (Entry::Unknown | Entry::Refused(_), _) => Ok(false),
        }
    }

    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.asked = None;
        self.pause = None;
    }

    /// The request that is due at a port with this state.
    pub(super) fn poll(&mut self, now: Duration, port: &PortInfo) -> Option<[u8; SIZE]> {
        if port.port_state != PortState::Active || !port.master_sm_lid.is_unicast() {
            return None;
        }
        if let Some(asked) = &mut self.asked {
            if asked.due > now {
                return None;
            }
            asked.timeout = (2 * asked.timeout).min(MAX_TIMEOUT);
            asked.due = now + asked.timeout;
            return Some(asked.mad(port.lid));
        }
        if self.pause.is_some_and(|until| until > now) {
            return None;
        }
        self.pause = None;
        let request = self.next(now)?;
        let mad = request.mad(port.lid);
        self.asked = Some(request);
        Some(mad)
    }

    /// The next request. GUIDs are given up before others are taken: one may move from entry to
    /// entry.
    fn next(&mut self, now: Duration) -> Option<Request> {
        let stale = |known: Entry, wanted: Guid| matches!(known, Entry::Holds(held) if held != wanted && !held.is_none());
        let missing =
            |known: Entry, wanted: Guid| !wanted.is_none() && known != Entry::Holds(wanted);
        let find = |differs: &dyn Fn(Entry, Guid) -> bool| -> Option<Vec<(u8, Guid)>> {
            let mut all = self.wanted.iter().map(|(&entry, &guid)| (entry, guid));
            let differs = |&(entry, guid): &(u8, Guid)| differs(self.known(entry), guid);
            let (first, _) = all.clone().find(differs)?;
            let block = first / ENTRIES as u8;
            Some(
                all.by_ref()
                    .filter(|&(entry, _)| entry / ENTRIES as u8 == block)
                    .filter(differs)
                    .collect(),
            )
        };
        let (method, entries) = match find(&stale) {
            Some(entries) => (Method::DELETE, entries),
            None => (Method::SET, find(&missing)?),
        };
        let mut request = Request {
            method,
            block: entries.first()?.0 / ENTRIES as u8,
            mask: LID | BLOCK,
            guids: [Guid::NONE; ENTRIES],
            transaction: u64::from(REGISTRAR) << 56 | (self.last_transaction + 1),
            due: now + TIMEOUT,
            timeout: TIMEOUT,
        };
        self.last_transaction += 1;
        for (entry, guid) in entries {
            let at = usize::from(entry) % ENTRIES;
            request.mask |= 1 << (GUID0 + at);
            if method == Method::SET {
                request.guids[at] = guid;
            }
        }
        Some(request)
    }

    pub(super) fn answered(&mut self, packet: &MadPacket, now: Duration) {
        let header = packet.header();
        let asked = self
            .asked
            .take_if(|asked| asked.transaction == header.transaction());
        let Some(asked) = asked else { return };
        let record = GuidInfoRecord::read(&packet.mad[sa::DATA]).ok();
        let given = record.and_then(|record| GuidInfo::parse(&record.guid_info).ok());
        let given = given
            .filter(|_| header.status().is_ok())
            .map(|given| given.entries());
        if given.is_none() {
            warn!(
                status = %header.status(),
                "the subnet administration does not register the GUIDs of functions that share a port"
            );
        }
        for (at, &guid) in asked.guids.iter().enumerate() {
            if asked.mask & 1 << (GUID0 + at) == 0 {
                continue;
            }
            let entry = asked.block * ENTRIES as u8 + at as u8;
            let known = match given {
                // An entry that was deleted need not be told of.
                Some(_) if asked.method == Method::DELETE => Entry::Holds(Guid::NONE),
                Some(given) if given[at] == guid => Entry::Holds(guid),
                _ => Entry::Refused(guid),
            };
            if let Entry::Refused(guid) = known {
                self.pause = Some(now + REFUSAL_PAUSE);
                if given.is_some() {
                    warn!(%guid, "the subnet administration has this GUID elsewhere");
                }
            }
            self.known.insert(entry, known);
        }
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let asked = self.asked.as_ref().map(|asked| asked.due);
        asked.or(self.pause)
    }
}

impl Request {
    fn mad(&self, lid: Lid) -> [u8; SIZE] {
        let record = GuidInfoRecord {
            lid,
            block: self.block,
            guid_info: GuidInfo::from_entries(self.guids).to_bytes(),
        };
        let mad = sa::with_record(self.method, self.transaction, self.mask, &record);
        debug_assert_eq!(mad[TRANSACTION], REGISTRAR);
        mad
    }
}
