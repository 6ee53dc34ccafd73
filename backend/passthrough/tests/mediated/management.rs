//! Management packets that a guest's queue pair 1 sends: what the VF has of them is the daemon's copy.

use std::sync::Arc;

use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status};
use ibvswitch_passthrough::policy::Sender;
use ibvswitch_passthrough::testing::{Answer, Guest, Place, Scripted, request, vf_at};
use ibvswitch_passthrough::{Isolation, ManagementFilter, Policy};
use parking_lot::Mutex;
use testing::Random;
use wire::{Gid, Lid, MadPacket};

use crate::{AMPLE, Wait, dword};

/// Where the daemon has room for such queues.
const RINGS: std::ops::Range<u64> = (1 << 38) - (256 << 20)..(1 << 38) - (192 << 20);
/// In the guest's memory: the queues, of which that to send is behind that to receive, their record, and packets.
const QUEUE: usize = 0x6000;
const SEND: usize = QUEUE + 256;
const RECORD: usize = 0x90c0;
const PACKETS: usize = 0xa000;
/// The guest's key over all memory, of which the low byte is the guest's to choose.
const VARIANT: u32 = 0x42;
/// Kinds of queue pairs: for datagrams, and queue pair 1.
const UD: u32 = 2;
const QP1: u32 = 8;
/// A Q_Key that queue pair 1 of any port hears, one that nobody hears, and one that others hear.
const WELL_KNOWN: u32 = 0x8001_0000;
const UNHEARD: u32 = 0x8000_0000;
const ORDINARY: u32 = 0x0b1b;

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    Field::new(offset, 31, 0).set(bytes, value);
}

/// Lets packets pass that begin with a 1, and takes the second byte out of them.
#[derive(Debug, Default)]
struct Ones(Mutex<Vec<Seen>>);

/// A packet, and its sender's LID, GID and number of P_Keys.
type Seen = (MadPacket, (Lid, Gid, usize));

impl ManagementFilter for Ones {
    fn passes(&self, packet: &mut MadPacket, from: &Sender<'_>) -> bool {
        let sender = (from.lid, from.gid, from.pkeys.len());
        self.0.lock().push((packet.clone(), sender));
        packet.mad[1] = 0;
        packet.mad[0] == 1
    }
}

fn policy(filter: &Arc<Ones>, isolation: Isolation) -> Policy {
    Policy {
        isolation,
        management: Some(Arc::clone(filter) as Arc<dyn ManagementFilter>),
        ..Policy::default()
    }
}

/// A guest with a queue pair 1 in the state Init.
struct Manager {
    guest: Guest,
    filter: Arc<Ones>,
    qpn: u32,
    page: u32,
    domain: u32,
    /// The guest's key, and the daemon's.
    key: u32,
    daemons: u32,
    /// Addresses of the daemon's queues, their blocks, and the record.
    queues: u64,
    blocks: u32,
    record: u64,
    posted: u16,
}

/// A request for a queue pair of a kind, with packets that say that they come from this one.
fn create(guest: &mut Guest, kind: u32, source: u32) -> Vec<u8> {
    let mut create = guest.stock().create(Opcode::CreateQp);
    for (offset, dword) in [
        (0x18, kind << 16),
        (0x98, source),
        (0xbc, RECORD as u32),
        (0x114, QUEUE as u32),
    ] {
        put(&mut create, offset, dword);
    }
    create
}

/// A key over all of a guest's memory, or so many bytes from an address on, in a protection domain.
fn key(guest: &mut Guest, domain: u32, range: Option<(u32, u32)>) -> u32 {
    let (start, len) = range.unwrap_or_default();
    let create = request(
        Opcode::CreateMkey,
        &[
            (0x10, 1 << 10),
            (0x14, 0x00ff_ffff << 8 | VARIANT),
            (0x1c, u32::from(range.is_none()) << 31 | domain),
            (0x24, start),
            (0x2c, len),
        ],
    );
    guest.make(&create) << 8 | VARIANT
}

impl Manager {
    fn new(vf: &Scripted, isolation: Isolation) -> Self {
        let filter = Arc::new(Ones::default());
        let mut guest = Guest::with(vf, policy(&filter, isolation), AMPLE);
        let create = create(&mut guest, QP1, 0);
        let (domain, page) = (dword(&create, 0x1c), dword(&create, 0x24));
        let key = key(&mut guest, domain, None);
        guest.vf.exchanges();
        let qpn = guest.number(&create);
        let exchanges = guest.vf.exchanges();
        let [(made, number), (passed, _)] = &exchanges[..] else {
            panic!("{exchanges:02x?}");
        };
        let daemons = dword(number, 8) << 8 | dword(made, 0x14) & 0xff;
        let qword = |at| u64::from(dword(passed, at)) << 32 | u64::from(dword(passed, at + 4));
        let (queues, record) = (qword(0x110), qword(0xb8));
        assert!(RINGS.contains(&queues) && RINGS.contains(&record));
        let mut manager = Self {
            guest,
            filter,
            qpn,
            page,
            domain,
            key,
            daemons,
            queues,
            blocks: 1 << (dword(passed, 0x20) >> 11 & 0xf),
            record,
            posted: 0,
        };
        assert_eq!(manager.change(WELL_KNOWN), Status::Ok);
        manager
    }

    fn change(&mut self, key: u32) -> Status {
        let change = request(
            Opcode::Rst2Init,
            &[(8, self.qpn), (0x18, QP1 << 16), (0xc0, key)],
        );
        self.guest.status(&change)
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let memory = self.guest.memory.slice(at, bytes.len());
        memory.expect("is memory").copy_from(bytes);
    }

    /// Posts segments behind the first one, and rings; the block that they begin at, and how many there are.
    fn ring(&mut self, body: &[[u8; 16]]) -> (u16, usize) {
        let segments = body.len() + 1;
        let mut blocks = vec![0; (segments * 16).next_multiple_of(64)];
        put(&mut blocks, 0, 0x0a);
        put(&mut blocks, 4, segments as u32);
        blocks[16..segments * 16].copy_from_slice(body.as_flattened());
        let first = self.posted;
        for block in blocks.chunks(64) {
            self.write(SEND + usize::from(self.posted % 16) * 64, block);
            self.posted = self.posted.wrapping_add(1);
        }
        self.write(RECORD + 4, &u32::from(self.posted).to_be_bytes());
        let doorbell = u64::from(self.qpn << 8).to_be_bytes();
        self.guest.function.doorbell(self.page, 0x800, &doorbell);
        (first, blocks.len() / 64)
    }

    /// The same; the bytes that the VF sends, unless it sends nothing (0) or fails (`0x10`).
    fn post(&mut self, body: &[[u8; 16]]) -> Result<Vec<u8>, u8> {
        let (first, blocks) = self.ring(body);
        let segments = body.len() + 1;
        while self.read(self.record + 4, 4) != u32::from(self.posted).to_be_bytes() {
            self.guest.settle(0);
        }
        let mut got = Vec::new();
        for number in 0..blocks as u64 {
            let slot = (u64::from(first) + number) % u64::from(self.blocks);
            got.extend(self.read(self.queues + 256 + slot * 64, 64));
        }
        assert_eq!(dword(&got, 0) >> 8, u32::from(first));
        let code = dword(&got, 0) as u8;
        if code != 0x10 {
            // It is as long as it was.
            assert_eq!(dword(&got, 4), self.qpn << 8 | segments as u32);
        }
        if code != 0x0a {
            return Err(code);
        }
        let list = &got[64..segments * 16];
        let mut sent = Vec::new();
        for segment in list.chunks(16) {
            assert_eq!(dword(segment, 4), self.daemons);
            let at = u64::from(dword(segment, 8)) << 32 | u64::from(dword(segment, 12));
            assert!(RINGS.contains(&at));
            sent.extend(self.read(at, dword(segment, 0) as usize));
        }
        Ok(sent)
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.guest.vf.read(at, &mut bytes);
        bytes
    }

    /// Posts one whose packet is `list`.
    fn send(&mut self, list: &[[u8; 16]]) -> Result<Vec<u8>, u8> {
        let body = [&address(9)[..], list].concat();
        self.post(&body)
    }
}

/// To queue pair 1 of a LID.
fn address(lid: u32) -> [[u8; 16]; 3] {
    let mut vector = [[0; 16]; 3];
    let bytes = vector.as_flattened_mut();
    put(bytes, 0, WELL_KNOWN);
    put(bytes, 8, 1 << 31 | 1);
    put(bytes, 12, lid);
    vector
}

fn from_memory(key: u32, at: usize, len: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    put(&mut segment, 0, len);
    put(&mut segment, 4, key);
    put(&mut segment, 12, at as u32);
    segment
}

trait Number {
    /// The number of a new object, whose reply takes a while.
    fn number(&mut self, request: &[u8]) -> u32;
}

impl Number for Guest {
    fn number(&mut self, request: &[u8]) -> u32 {
        let reply = self.answer(request);
        assert_eq!(dword(&reply, 0) >> 24, 0, "{request:02x?}");
        dword(&reply, 8) & 0x00ff_ffff
    }
}

fn packet(first: u8) -> [u8; 256] {
    let mut packet = std::array::from_fn(|at| at as u8);
    packet[0] = first;
    packet
}

#[test]
fn the_vf_sends_what_was_looked_at() {
    for isolation in [Isolation::Strict, Isolation::Sriov] {
        let vf = vf_at(0x21, 0xfe, false);
        let mut manager = Manager::new(&vf, isolation);
        let key = manager.key;
        manager.write(PACKETS, &packet(1));
        let mut expected = packet(1);
        expected[1] = 0;
        let one = [from_memory(key, PACKETS, 256)];
        assert_eq!(manager.send(&one), Ok(expected.to_vec()));
        // What the guest writes now, the VF does not send.
        manager.write(PACKETS, &[9; 256]);
        let two = [
            from_memory(key, PACKETS + 4096, 24),
            from_memory(key, PACKETS + 8192, 232),
        ];
        manager.write(PACKETS + 4096, &packet(1)[..24]);
        manager.write(PACKETS + 8192, &packet(1)[24..]);
        assert_eq!(manager.send(&two), Ok(expected.to_vec()));
        let (seen, sender) = manager.filter.0.lock().pop().expect("was looked at");
        assert_eq!(seen.mad, packet(1));
        assert_eq!(
            (seen.slid, seen.dlid, seen.dst_qp.value()),
            (Lid::new(0x21), Lid::new(9), 1)
        );
        let gid = Gid::from_bytes([0xfe; 16]);
        assert_eq!(sender, (Lid::new(0x21), gid, 1));
        // Inline, and shorter than a packet.
        let mut inline = [[0; 16]; 2];
        put(inline.as_flattened_mut(), 0, 1 << 31 | 20);
        inline.as_flattened_mut()[4..24].copy_from_slice(&[1; 20]);
        let mut expected = [0; 256];
        expected[..20].fill(1);
        expected[1] = 0;
        assert_eq!(manager.send(&inline), Ok(expected.to_vec()));
        // What the filter refuses gets lost.
        manager.write(PACKETS, &packet(2));
        assert_eq!(manager.send(&one), Err(0));
        let counts = manager.guest.function.report().lock().datagrams;
        assert_eq!((counts.passed, counts.management), (3, 1));
    }
}

#[test]
fn a_packet_that_the_guest_does_not_have_is_an_error() {
    let mut manager = Manager::new(&Scripted::default(), Isolation::Strict);
    let (key, daemons) = (manager.key, manager.daemons);
    let domain = manager.guest.make(&request(Opcode::AllocPd, &[]));
    let others = self::key(&mut manager.guest, domain, None);
    let pages = manager.guest.stock().numbers[3] << 8;
    let mut inline = [0; 16];
    put(&mut inline, 0, 1 << 31 | 13);
    for list in [
        vec![],
        // No length, which is 2^31; too long; more than there is of the request.
        vec![from_memory(key, PACKETS, 0)],
        vec![from_memory(key, PACKETS, 257)],
        vec![from_memory(key, PACKETS, 200); 2],
        vec![from_memory(key, PACKETS, u32::MAX >> 1)],
        vec![inline],
        // Another key: with another low byte, of another domain, of pages, of nobody, and the daemon's.
        vec![from_memory(key ^ 1, PACKETS, 256)],
        vec![from_memory(others, PACKETS, 256)],
        vec![from_memory(pages, PACKETS, 256)],
        vec![from_memory(0x00ff_ff00, PACKETS, 256)],
        vec![from_memory(daemons, PACKETS, 256)],
        // Where the guest has no memory.
        vec![from_memory(key, 1 << 20, 256)],
        vec![from_memory(key, (1 << 20) - 128, 256)],
    ] {
        assert_eq!(manager.send(&list), Err(0x10), "{list:02x?}");
    }
    // In the daemon's memory, which a key over all memory names.
    let mut window = from_memory(key, 0, 256);
    window[8..].copy_from_slice(&RINGS.start.to_be_bytes());
    assert_eq!(manager.send(&[window]), Err(0x10));
    assert!(manager.filter.0.lock().is_empty());
    // A key over a part of memory.
    let part = (PACKETS as u32, 4096);
    let part = self::key(&mut manager.guest, manager.domain, Some(part));
    for (at, is_sent) in [
        (0, true),
        (4096 - 256, true),
        (-1, false),
        (4096 - 255, false),
    ] {
        let list = [from_memory(part, PACKETS.strict_add_signed(at), 256)];
        manager.write(PACKETS.strict_add_signed(at), &packet(1));
        assert_eq!(manager.send(&list).is_ok(), is_sent, "{at}");
    }
    // A key that is gone.
    let destroy = request(Opcode::DestroyMkey, &[(8, key >> 8)]);
    assert_eq!(manager.guest.status(&destroy), Status::Ok);
    let one = [from_memory(key, PACKETS, 256)];
    assert_eq!(manager.send(&one), Err(0x10));
}

#[test]
fn counters_wrap() {
    let mut manager = Manager::new(&Scripted::default(), Isolation::Strict);
    let key = manager.key;
    for round in 0..33_000_u32 {
        let at = PACKETS + (round as usize % 8) * 256;
        let mut packet = packet(1);
        packet[4..8].copy_from_slice(&round.to_be_bytes());
        manager.write(at, &packet);
        let got = manager.send(&[from_memory(key, at, 256)]);
        assert_eq!(got.expect("is sent")[4..8], round.to_be_bytes());
    }
}

/// A VF that has read no request may still read copies: none is written over.
#[test]
fn copies_stay_for_half_of_a_queue() {
    let vf = Scripted::default();
    vf.follow(Box::new(|request| {
        if dword(request, 0) >> 16 == 0x50b {
            return Answer::Reply(vec![0; 0x1d0]);
        }
        Answer::Usual
    }));
    let mut manager = Manager::new(&vf, Isolation::Strict);
    let list = [from_memory(manager.key, PACKETS, 256)];
    manager.write(PACKETS, &packet(1));
    let half = manager.blocks / 2;
    for _ in 0..half / 2 {
        manager.send(&list).expect("is sent");
    }
    let body = [&address(9)[..], &list].concat();
    for _ in 0..8 {
        manager.ring(&body);
        manager.guest.settle(0);
    }
    let told = manager.read(manager.record + 4, 4);
    assert_eq!(told, half.to_be_bytes());
}

/// A key of the daemon's comes before a queue pair, and goes after it, before what the guest does next.
#[test]
fn the_daemons_key_lives_as_long_as_the_queue_pair() {
    let mut manager = Manager::new(&Scripted::default(), Isolation::Strict);
    let destroy = request(Opcode::DestroyQp, &[(8, manager.qpn)]);
    manager.guest.vf.requests();
    assert_eq!(manager.guest.status(&destroy), Status::Ok);
    let opcodes = |guest: &Guest| -> Vec<u32> {
        let requests = guest.vf.requests();
        requests.iter().map(|it| dword(it, 0) >> 16).collect()
    };
    assert_eq!(opcodes(&manager.guest), [0x501, 0x202]);
    // Where the VF has no key, there is no queue pair; where it has no queue pair, the key goes.
    let create = create(&mut manager.guest, UD, 1);
    for (refused, expected) in [(0x200, vec![0x200]), (0x500, vec![0x200, 0x500, 0x202])] {
        manager.guest.vf.requests();
        manager.guest.vf.follow(Box::new(move |request| {
            if dword(request, 0) >> 16 == refused {
                let mut reply = vec![0; 16];
                reply[0] = Status::NoResources.code();
                return Answer::Reply(reply);
            }
            Answer::Usual
        }));
        assert_eq!(manager.guest.status(&create), Status::NoResources);
        assert_eq!(opcodes(&manager.guest), expected);
    }
    let report = manager.guest.function.report();
    let commands = &report.lock().commands["CREATE_QP"];
    assert_eq!(commands.failed, 2);
}

/// The key is over copies alone, and nothing can be written by it.
#[test]
fn nothing_is_written_by_the_daemons_key() {
    let filter = Arc::new(Ones::default());
    let vf = Scripted::default();
    let mut guest = Guest::with(&vf, policy(&filter, Isolation::Sriov), AMPLE);
    let create = create(&mut guest, QP1, 0);
    guest.vf.requests();
    guest.number(&create);
    let made = guest.vf.requests().remove(0);
    // Local reads of a list of pages, without changes by work requests.
    assert_eq!(dword(&made, 0x10), 1 << 8 | 1 << 10);
    assert_eq!(dword(&made, 0x1c), dword(&create, 0x1c));
    let qword = |at| u64::from(dword(&made, at)) << 32 | u64::from(dword(&made, at + 4));
    let (start, len) = (qword(0x20), qword(0x28));
    assert!(RINGS.contains(&start) && RINGS.contains(&(start + len - 1)));
    let pages: Vec<u64> = (0..len / 4096)
        .map(|at| qword(0x110 + at as usize * 8))
        .collect();
    let expected: Vec<u64> = (start..start + len).step_by(4096).collect();
    assert_eq!(pages, expected);
}

/// Only packets that are looked at reach a queue pair 1.
#[test]
fn no_other_queue_pair_has_the_well_known_key() {
    let filter = Arc::new(Ones::default());
    let vf = Scripted::default();
    let mut guest = Guest::with(&vf, policy(&filter, Isolation::Sriov), AMPLE);
    let mut ordinary = create(&mut guest, UD, 0);
    put(&mut ordinary, 0xc0, WELL_KNOWN);
    assert_eq!(dword(&guest.passed_on(&ordinary), 0xc0), UNHEARD);
    put(&mut ordinary, 0xc0, ORDINARY);
    // Its queues are the guest's, and it is what it says.
    let passed = guest.passed_on(&ordinary);
    assert_eq!(dword(&passed, 0x114), QUEUE as u32);
    let number = guest.number(&ordinary);
    for opcode in [
        Opcode::Rst2Init,
        Opcode::Init2Init,
        Opcode::Init2Rtr,
        Opcode::Rtr2Rts,
        Opcode::Rts2Rts,
        Opcode::Sqerr2Rts,
    ] {
        let change = |key, source| {
            request(
                opcode,
                &[(8, number), (0x18, UD << 16), (0x98, source), (0xc0, key)],
            )
        };
        let passed = guest.passed_on(&change(WELL_KNOWN, 1));
        assert_eq!((dword(&passed, 0x98), dword(&passed, 0xc0)), (0, UNHEARD));
        let passed = guest.passed_on(&change(ORDINARY, 1));
        assert_eq!((dword(&passed, 0x98), dword(&passed, 0xc0)), (0, ORDINARY));
    }
    // A queue pair 1 that sends nothing has it, and its own queues.
    let mut hears = create(&mut guest, QP1, 0);
    let sizes = dword(&hears, 0x20);
    put(&mut hears, 0x20, sizes | 1 << 15);
    let passed = guest.passed_on(&hears);
    assert_eq!(dword(&passed, 0x114), QUEUE as u32);
    let number = guest.number(&hears);
    let change = request(
        Opcode::Rst2Init,
        &[(8, number), (0x18, QP1 << 16), (0xc0, WELL_KNOWN)],
    );
    assert_eq!(dword(&guest.passed_on(&change), 0xc0), WELL_KNOWN);
    // A queue pair that says that it is queue pair 1 has it.
    let sends = create(&mut guest, UD, 1);
    let number = guest.number(&sends);
    let change = request(
        Opcode::Rst2Init,
        &[(8, number), (0x18, UD << 16), (0x98, 1), (0xc0, WELL_KNOWN)],
    );
    let passed = guest.passed_on(&change);
    assert_eq!(
        (dword(&passed, 0x98), dword(&passed, 0xc0)),
        (1, WELL_KNOWN)
    );
}

/// Whatever a guest's queue pair 1 has in its queue and in memory, the VF sends packets that may be sent.
#[test]
fn noise_is_no_management_packet_to_others() {
    for isolation in [Isolation::Strict, Isolation::Sriov] {
        let mut place = Place::confined(isolation);
        let mut random = Random::new(testing::seed(0x5eed));
        let mut next = || random.number();
        let mut posted = 0_u16;
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..16).flat_map(|_| next().to_be_bytes()).collect();
            // Mostly one packet of two blocks, to a LID that there is, from memory that changes.
            put(&mut bytes, 0, 0x0a);
            put(&mut bytes, 4, 5 + next() as u32 % 8 / 7);
            put(&mut bytes, 0x18, 1 << 31 | 1);
            put(&mut bytes, 0x1c, 6 + next() as u32 % 16 / 15);
            let len = 256 - next() as u32 % 16 / 15;
            let at = 0xa000 + next() as u32 % 512;
            for (offset, dword) in [(0x40, len), (0x44, place.key()), (0x48, 0), (0x4c, at)] {
                if next() % 16 != 0 {
                    put(&mut bytes, offset, dword);
                }
            }
            let memory = place.guest.memory.slice(at as usize, 8).expect("is memory");
            memory.copy_from(&[1, next() as u8 % 3 + 5, 2, 3, 0, 0, 0, 0]);
            let block = posted as u8;
            posted = posted.wrapping_add(2);
            place.post(true, block, &bytes, [0, posted]);
            if next() % 100 == 0 {
                place.begin_datagrams(true);
                posted = 0;
            }
        }
        let counts = place.guest.function.report().lock().datagrams;
        assert!(counts.passed > 100 && counts.management > 100, "{counts:?}");
    }
}
