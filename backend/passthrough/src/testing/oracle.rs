//! Rules for requests that may reach a VF, written a second time: as a list of fields by the offsets of the
//! interface, and not by the code that enforces them.

mod datagrams;

use std::collections::{HashMap, HashSet};

use self::datagrams::Queue;

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Class {
    Pd,
    Xrcd,
    Counters,
    Key,
    Events,
    Cq,
    Srq,
    Qp,
    Page,
}

use Class::{Counters, Cq, Events, Key, Page, Pd, Qp, Srq, Xrcd};

/// The daemon's memory, and in it the room for queues of datagrams.
const WINDOW: std::ops::Range<u64> = (1 << 38) - (256 << 20)..1 << 38;
const RINGS: std::ops::Range<u64> = (1 << 38) - (256 << 20)..(1 << 38) - (192 << 20);

/// A reference to an object: the byte that its dword begins at, how far it is to be shifted, its bits, and
/// whether 0 stands for none.
type Reference = (usize, u32, u32, Class, bool);

const NUMBER: u32 = 0x00ff_ffff;

/// Objects that all contexts of queue pairs name.
const QP_CONTEXT: &[Reference] = &[
    (0x1c, 0, NUMBER, Pd, true),
    (0x24, 0, NUMBER, Page, true),
    (0x24, 24, 0xff, Counters, true),
    (0x94, 0, NUMBER, Cq, true),
    (0xb0, 0, NUMBER, Xrcd, true),
    (0xb4, 0, NUMBER, Cq, true),
    (0xc4, 0, NUMBER, Srq, true),
];

/// Limits for paths of connections, and the right to manage the subnet.
#[derive(Debug, Clone)]
pub struct Confines {
    /// LIDs of the subnet that connections may go to, each with its port's GID; `None`: all.
    pub peers: Option<Vec<(u32, u128)>>,
    /// Service levels: bit `n` is level `n`.
    pub levels: u16,
    /// P_Keys that the guest may have, and the port's; `None`: all.
    pub pkeys: Option<(Vec<u16>, Vec<u16>)>,
    /// Whether it has a queue pair 0, and sets its port up.
    pub manages: bool,
    /// Whether its management packets are looked at: those whose second byte is 7 may be sent.
    pub looks_inside: bool,
}

impl Confines {
    /// Whether a queue pair may have the P_Key at an index of the port's: one of its guest's, or none.
    fn has_index(&self, index: u32) -> bool {
        let Some((granted, table)) = &self.pkeys else {
            return true;
        };
        let there = table.get(index as usize).copied().unwrap_or(0);
        index < 128 && (there & 0x7fff == 0 || granted.contains(&there))
    }
}

/// Knows what a guest has made.
#[derive(Debug)]
pub struct Oracle {
    strict: bool,
    confines: Option<Confines>,
    /// Queue pairs of connections.
    connected: HashSet<u32>,
    /// Queue pairs of datagrams, of which the daemon keeps the queues.
    datagrams: HashMap<u32, Queue>,
    /// Indexes of P_Keys that queue pairs have.
    indexes: HashMap<u32, [u32; 2]>,
    /// The daemon's doorbell page, which is the guest's as well.
    own_page: u32,
    alive: HashSet<(Class, u32)>,
    /// Keys over copies of management packets, and the one that has no queue pair yet, or no more.
    daemons_keys: HashSet<u32>,
    spare_key: Option<u32>,
    /// Queue pairs 1 that send nothing.
    receivers: HashSet<u32>,
}

fn dword(request: &[u8], at: usize) -> u32 {
    let bytes = request.get(at..at + 4).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn qword(request: &[u8], at: usize) -> u64 {
    u64::from(dword(request, at)) << 32 | u64::from(dword(request, at + 4))
}

impl Oracle {
    /// For a guest that has nothing yet.
    #[must_use]
    pub fn new(strict: bool, own_page: u32) -> Self {
        Self {
            strict,
            confines: None,
            connected: HashSet::new(),
            datagrams: HashMap::new(),
            indexes: HashMap::new(),
            own_page,
            alive: HashSet::new(),
            daemons_keys: HashSet::new(),
            spare_key: None,
            receivers: HashSet::new(),
        }
    }

    /// The same for one that is confined so.
    #[must_use]
    pub fn confined(mut self, confines: Confines) -> Self {
        self.confines = Some(confines);
        self
    }

    /// The port has these P_Keys now.
    pub fn partition(&mut self, pkeys: &[u16]) {
        let table = self.confines.iter_mut();
        for (_, table) in table.filter_map(|confines| confines.pkeys.as_mut()) {
            *table = pkeys.to_vec();
        }
    }

    /// Queue pairs that have a P_Key which is not their guest's.
    #[must_use]
    pub fn astray(&self) -> Vec<u32> {
        let Some(confines) = &self.confines else {
            return Vec::new();
        };
        let astray = self.indexes.iter();
        let astray =
            astray.filter(|(_, indexes)| !indexes.iter().all(|at| confines.has_index(*at)));
        astray.map(|(number, _)| *number).collect()
    }

    /// Whether the guest has an object of a kind, by the kind's place in [`super::Stock::numbers`].
    #[must_use]
    pub fn has(&self, kind: usize, number: u32) -> bool {
        let kinds = [Pd, Xrcd, Counters, Key, Events, Cq, Srq, Qp, Page];
        let number = if kinds[kind] == Events {
            number & 0xff
        } else {
            number
        };
        self.alive.contains(&(kinds[kind], number))
    }

    /// Looks at a request that a VF got while the guest gave its commands, and at what the VF replied.
    ///
    /// # Errors
    /// What is not the guest's to say.
    pub fn check(&mut self, request: &[u8], reply: &[u8]) -> Result<(), String> {
        let code = dword(request, 0) >> 16;
        if dword(request, 0) & 0xffff != 0 {
            return Err("a user context".to_owned());
        }
        let number = dword(request, 8) & NUMBER;
        if self.is_about_copies(code, request, reply)? {
            return Ok(());
        }
        let (named, made, context) = kind(code).ok_or(format!("command {code:#x}"))?;
        for (at, shift, bits, class, or_none) in named.iter().chain(context) {
            let number = dword(request, *at) >> shift & bits;
            let own = self.alive.contains(&(*class, number)) || *or_none && number == 0;
            let shared = *class == Page && number == self.own_page;
            if !own && !shared {
                return Err(format!("{code:#x} names {class:?} {number:#x} at {at:#x}"));
            }
        }
        if matches!(code, 0x762..=0x765 | 0x773) && dword(request, 8) >> 31 != 0 {
            return Err(format!("{code:#x} is about another port"));
        }
        if matches!(code, 0x500 | 0x502..=0x506 | 0x50c | 0x50e) {
            self.check_key(code, request)?;
        }
        self.check_addresses(code, request)?;
        self.check_confines(code, request)?;
        if self.strict {
            check_strictly(code, request)?;
        }
        let succeeded = dword(reply, 0) >> 24 == 0;
        match code {
            0x500 if succeeded && self.keeps(request) => {
                let queue = Queue::of(request, &mut self.spare_key);
                self.datagrams.insert(dword(reply, 8) & NUMBER, queue);
            }
            0x500 if succeeded && datagrams::only_hears(request) => {
                self.receivers.insert(dword(reply, 8) & NUMBER);
            }
            0x501 if succeeded => {
                self.receivers.remove(&number);
                let queue = self.datagrams.remove(&number);
                self.spare_key = queue.and_then(|queue| queue.key);
            }
            0x50a if succeeded => {
                let queue = self.datagrams.get_mut(&number);
                queue.into_iter().for_each(|queue| queue.seen = 0);
            }
            _ => {}
        }
        // Reliable or not, and those of extended connections.
        if code == 0x500 && succeeded && matches!(dword(request, 0x18) >> 16 & 0xff, 0 | 1 | 3) {
            self.connected.insert(dword(reply, 8) & NUMBER);
        }
        match code {
            0x502..=0x506 | 0x50c | 0x50e if succeeded => {
                let indexes = [0x30, 0x5c].map(|at| dword(request, at) & 0xffff);
                self.indexes.insert(dword(request, 8) & NUMBER, indexes);
            }
            // Gone, in the state Error, or begun anew.
            0x501 | 0x507 | 0x50a if succeeded => {
                self.indexes.remove(&(dword(request, 8) & NUMBER));
            }
            _ => {}
        }
        match (made, named) {
            (Some(class), _) if succeeded => {
                let bits = if class == Events { 0xff } else { NUMBER };
                self.alive.insert((class, dword(reply, 8) & bits));
            }
            (None, [(at, shift, bits, class, _), ..]) if succeeded && takes_away(code) => {
                self.alive
                    .remove(&(*class, dword(request, *at) >> shift & bits));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_confines(&self, code: u32, request: &[u8]) -> Result<(), String> {
        let Some(confines) = &self.confines else {
            return Ok(());
        };
        let of_queue_pair = matches!(code, 0x500 | 0x502..=0x506 | 0x50c | 0x50e);
        if of_queue_pair && !confines.manages && dword(request, 0x18) >> 16 & 0xff == 7 {
            return Err(format!("{code:#x} is about queue pair 0"));
        }
        if code == 0x765 && confines.pkeys.is_some() && dword(request, 0x0c) & 0xffff != 0xffff {
            return Err("the daemon hears of one P_Key alone".to_owned());
        }
        for at in [0x30, 0x5c] {
            let index = dword(request, at) & 0xffff;
            if of_queue_pair && !confines.has_index(index) {
                return Err(format!("{code:#x} has the P_Key at {index}"));
            }
        }
        let head = dword(request, 0x10);
        let of_subnet = matches!(head >> 16 & 0xff, 0x01 | 0x81);
        if code == 0x50d && !confines.manages && of_subnet && head & 0xff == 2 {
            return Err("a port is set up".to_owned());
        }
        if !of_queue_pair
            || code == 0x500
            || !self.connected.contains(&(dword(request, 8) & NUMBER))
        {
            return Ok(());
        }
        for (at, begins) in [(0x30, code == 0x503), (0x5c, false)] {
            let lid = dword(request, at + 4) & 0xffff;
            if lid == 0 && !begins {
                continue;
            }
            let level = dword(request, at + 0x24) >> 24 & 0xf;
            if confines.levels >> level & 1 == 0 {
                return Err(format!("{code:#x} has service level {level}"));
            }
            let Some(peers) = &confines.peers else {
                continue;
            };
            // A header, since ports want one; and it leaves the adapter.
            let global = dword(request, at + 4) >> 23 & 1 == 1;
            let gid =
                u128::from(qword(request, at + 0x10)) << 64 | u128::from(qword(request, at + 0x18));
            if !peers.contains(&(lid, gid)) || !global || dword(request, at) >> 31 != 0 {
                return Err(format!("{code:#x} connects to {lid:#x}, {gid:#x}"));
            }
        }
        Ok(())
    }

    fn check_addresses(&self, code: u32, request: &[u8]) -> Result<(), String> {
        let number = dword(request, 8) & NUMBER;
        let changes = matches!(code, 0x502..=0x506 | 0x50c | 0x50e);
        if changes && self.datagrams.contains_key(&number) || code == 0x500 && self.keeps(request) {
            return self.check_kept(request);
        }
        // Records, and the size of pages in lists.
        let (record, log_page) = match code {
            0x200 => (None, dword(request, 0x48) & 0x3f),
            0x301 => (None, 12 + (dword(request, 0x28) >> 24 & 0x1f)),
            0x400 | 0x403 => (Some(0x48), 12 + (dword(request, 0x28) >> 24 & 0x1f)),
            0x500 => (Some(0xb8), 12 + (dword(request, 0x2c) >> 24 & 0x1f)),
            0x502..=0x506 | 0x50c | 0x50e => (Some(0xb8), 12),
            0x700 => (Some(0x38), 12 + (dword(request, 0x20) >> 24 & 0x3f)),
            _ => return Ok(()),
        };
        if let Some(at) = record
            && WINDOW.contains(&qword(request, at))
        {
            return Err(format!("{code:#x} has a record in the daemon's memory"));
        }
        let mode = dword(request, 0x10) >> 8 & 3 | dword(request, 0x10) >> 26 << 2 & 0x1c;
        if code == 0x200 && mode != 1 {
            return Ok(());
        }
        let page = 1_u64 << log_page.clamp(12, 62);
        let list = (0x110..request.len().max(0x110)).step_by(8);
        for at in list {
            let begin = qword(request, at) & !0xfff;
            if begin < WINDOW.end && begin.saturating_add(page) > WINDOW.start {
                return Err(format!("{code:#x} has a page in the daemon's memory"));
            }
        }
        Ok(())
    }
}

/// Checks the rules of strict isolation.
fn check_strictly(code: u32, request: &[u8]) -> Result<(), String> {
    let all_memory = match code {
        0x500 | 0x502..=0x506 | 0x50c | 0x50e => dword(request, 0x20) >> 4 & 1 != 0,
        0x700 => dword(request, 0x14) >> 28 & 1 != 0,
        0x200 => {
            let context = dword(request, 0x10);
            let physical = context >> 8 & 3 == 0 && context >> 26 & 7 == 0;
            let (start, len) = (qword(request, 0x20), qword(request, 0x28));
            let inside = start < WINDOW.end && start.saturating_add(len) > WINDOW.start;
            // Free, changed by work requests, without an end, or over what it must not be over.
            context >> 30 & 1 != 0
                || context >> 15 & 1 != 0
                || dword(request, 0x1c) >> 31 != 0
                || physical && inside
        }
        _ => false,
    };
    if all_memory {
        return Err(format!("{code:#x} names all memory"));
    }
    Ok(())
}

/// Whether a command takes away what it names.
const fn takes_away(code: u32) -> bool {
    matches!(
        code,
        0x202 | 0x302 | 0x401 | 0x501 | 0x701 | 0x772 | 0x801 | 0x803 | 0x80f
    )
}

type Known = (&'static [Reference], Option<Class>, &'static [Reference]);

/// Returns the fields of a command that name objects, the object that it makes, and those that its context
/// names. `None` for a command that a guest cannot give a VF.
fn kind(code: u32) -> Option<Known> {
    const NAMED: [&[Reference]; 9] = [
        &[(8, 0, NUMBER, Pd, false)],
        &[(8, 0, NUMBER, Xrcd, false)],
        &[(8, 0, NUMBER, Counters, false)],
        &[(8, 0, NUMBER, Key, false)],
        &[(8, 0, 0xff, Events, false)],
        &[(8, 0, NUMBER, Cq, false)],
        &[(8, 0, NUMBER, Srq, false)],
        &[(8, 0, NUMBER, Qp, false)],
        &[(8, 0, NUMBER, Page, false)],
    ];
    let named = |class: Class| NAMED[class as usize];
    Some(match code {
        // The adapter, the port, its registers and its agents.
        0x101 | 0x762..=0x765 | 0x805 | 0x50d => (&[], None, &[]),
        0x800 => (&[], Some(Pd), &[]),
        0x80e => (&[], Some(Xrcd), &[]),
        0x771 => (&[], Some(Counters), &[]),
        0x802 => (&[], Some(Page), &[]),
        0x200 => (&[], Some(Key), &[(0x1c, 0, NUMBER, Pd, true)]),
        0x301 => (&[], Some(Events), &[(0x1c, 0, NUMBER, Page, false)]),
        0x400 => (
            &[],
            Some(Cq),
            &[
                (0x1c, 0, NUMBER, Page, false),
                (0x24, 0, u32::MAX, Events, false),
            ],
        ),
        0x403 => (
            named(Cq),
            None,
            &[
                (0x1c, 0, NUMBER, Page, true),
                (0x24, 0, u32::MAX, Events, true),
            ],
        ),
        0x700 => (
            &[],
            Some(Srq),
            &[
                (0x14, 0, NUMBER, Xrcd, true),
                (0x18, 0, NUMBER, Cq, true),
                (0x28, 0, NUMBER, Pd, false),
            ],
        ),
        0x500 => (&[], Some(Qp), QP_CONTEXT),
        0x502..=0x506 | 0x50c | 0x50e => (named(Qp), None, QP_CONTEXT),
        0x501 | 0x507 | 0x50a | 0x50b | 0x806 | 0x807 => (named(Qp), None, &[]),
        0x801 => (named(Pd), None, &[]),
        0x80f => (named(Xrcd), None, &[]),
        0x772 => (named(Counters), None, &[]),
        0x773 => (&[(0x1c, 0, 0xff, Counters, false)], None, &[]),
        0x201 | 0x202 => (named(Key), None, &[]),
        0x302 | 0x303 => (named(Events), None, &[]),
        0x401 | 0x402 => (named(Cq), None, &[]),
        0x701..=0x703 => (named(Srq), None, &[]),
        0x803 => (named(Page), None, &[]),
        _ => return None,
    })
}
