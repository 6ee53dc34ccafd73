//! Queues of datagrams that the daemon keeps in the guest's place.

use std::sync::Arc;

use connectx::Backend;
use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status};
use hca::{Foreign, ServiceLevels};
use ibvswitch_passthrough::testing::{Answer, Guest, Place, Scripted, request, vf_at as vf};
use ibvswitch_passthrough::{Cluster, Isolation, Membership, Policy};
use testing::Random;

use crate::{AMPLE, Wait, dword};

/// Where the daemon has room for such queues.
const RINGS: std::ops::Range<u64> = (1 << 38) - (256 << 20)..(1 << 38) - (192 << 20);
/// In the guest's memory: the queues, of which that to send is behind that to receive, and their record.
const QUEUE: usize = 0x6000;
const SEND: usize = QUEUE + 256;
const RECORD: usize = 0x90c0;
/// Blocks of the guest's queue to send, and of the daemon's.
const BLOCKS: u32 = 16;
const DAEMONS: u32 = 64;

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    Field::new(offset, 31, 0).set(bytes, value);
}

/// A guest with a queue pair for datagrams in the state Init.
struct Sender {
    guest: Guest,
    qpn: u32,
    page: u32,
    /// Addresses of the daemon's queues, and the record.
    queues: u64,
    record: u64,
    /// Blocks that the guest has posted.
    posted: u16,
}

impl Sender {
    fn new(vf: &Scripted, policy: Policy) -> Self {
        let mut guest = Guest::with(vf, policy, AMPLE);
        let stock = guest.stock();
        let mut create = stock.create(Opcode::CreateQp);
        for (offset, dword) in [(0x18, 2 << 16), (0xbc, RECORD), (0x114, QUEUE)] {
            put(&mut create, offset, dword as u32);
        }
        vf.exchanges();
        let qpn = guest.make(&create);
        let passed = vf.requests().remove(0);
        let address = |at| u64::from(dword(&passed, at)) << 32 | u64::from(dword(&passed, at + 4));
        let (queues, record) = (address(0x110), address(0xb8));
        assert!(RINGS.contains(&queues) && RINGS.contains(&record));
        let mut sender = Self {
            guest,
            qpn,
            page: stock.numbers[8],
            queues,
            record,
            posted: 0,
        };
        sender.begin();
        sender
    }

    fn command(&mut self, opcode: Opcode) -> Status {
        let change = request(opcode, &[(8, self.qpn), (0x18, 2 << 16)]);
        self.guest.status(&change)
    }

    fn begin(&mut self) {
        assert_eq!(self.command(Opcode::Rst2Init), Status::Ok);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let memory = self.guest.memory.slice(at, bytes.len());
        memory.expect("is memory").copy_from(bytes);
    }

    /// Says that so many blocks are posted, and rings.
    fn tell(&mut self, posted: u16) {
        self.posted = posted;
        self.write(RECORD + 4, &u32::from(posted).to_be_bytes());
        let doorbell = u64::from(self.qpn << 8).to_be_bytes();
        self.guest.function.doorbell(self.page, 0x800, &doorbell);
    }

    /// Posts blocks as they are.
    fn post(&mut self, blocks: &[[u8; 64]]) {
        for (at, block) in blocks.iter().enumerate() {
            let slot = (usize::from(self.posted) + at) % BLOCKS as usize;
            self.write(SEND + slot * 64, block);
        }
        self.tell(self.posted.wrapping_add(blocks.len() as u16));
    }

    fn read(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        self.guest.vf.read(at, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    /// Blocks that the VF has been told of.
    fn told(&self) -> u32 {
        self.read(self.record + 4)
    }

    /// A block as the VF has it.
    fn block(&self, number: u32) -> [u8; 64] {
        let mut bytes = [0; 64];
        let at = self.queues + 256 + u64::from(number % DAEMONS) * 64;
        self.guest.vf.read(at, &mut bytes);
        bytes
    }

    /// Kind, segments, service level and LID of the request at a block.
    fn request(&self, number: u32) -> (u8, u8, u8, u32) {
        let block = self.block(number);
        assert_eq!(dword(&block, 0) >> 8, number & 0xffff);
        assert_eq!(dword(&block, 4) >> 8, self.qpn);
        (
            block[3],
            block[7],
            block[0x1c],
            dword(&block, 0x1c) & 0xffff,
        )
    }
}

/// A datagram of one block, by a service level to a LID.
fn datagram(level: u8, lid: u16) -> [u8; 64] {
    let mut block = [0; 64];
    // With lies about its number and its queue pair, and a signature.
    block[..8].copy_from_slice(&[9, 0x12, 0x34, 0x0a, 0x77, 0x77, 0x77, 4]);
    block[8..12].copy_from_slice(&[1, 2, 3, 8]);
    put(&mut block, 0x18, 1 << 31 | 0x11);
    put(&mut block, 0x1c, u32::from(level) << 24 | u32::from(lid));
    block
}

fn levels() -> Policy {
    Policy {
        service_levels: ServiceLevels {
            allowed: 1 << 3,
            foreign: Foreign::Denied,
        },
        ..Policy::default()
    }
}

#[test]
fn what_is_refused_gets_lost_at_its_place() {
    let mut sender = Sender::new(&Scripted::default(), levels());
    // Three segments of a second block.
    let mut long = datagram(3, 9);
    long[7] = 7;
    sender.post(&[
        datagram(3, 9),
        datagram(0, 9),
        long,
        [0x5a; 64],
        datagram(0x53, 9),
    ]);
    assert_eq!(sender.told(), 5);
    let got = [0, 1, 2, 4].map(|number| sender.request(number));
    assert_eq!(
        got,
        [
            (0x0a, 4, 3, 9),
            (0, 4, 0, 0),
            (0x0a, 7, 3, 9),
            (0x0a, 4, 0x53, 9)
        ]
    );
    assert_eq!(sender.block(0)[8..12], [0, 0, 0, 8]);
    // What is behind the last segment is nobody's.
    assert_eq!(sender.block(3)[..48], [0x5a; 48]);
    assert_eq!(sender.block(3)[48..], [0; 16]);
    let report = sender.guest.function.report();
    let counts = report.lock().datagrams;
    assert_eq!((counts.passed, counts.level, counts.malformed), (3, 1, 0));
    // The daemon rings at its own page, once for all.
    let rung = sender.guest.vf.doorbells();
    let last = sender.block(4);
    assert_eq!(rung.last(), Some(&(4 * 4096 + 0x800, last[..8].to_vec())));
    // The guest's own doorbells for it get nowhere, by whichever half.
    for (offset, bytes) in [(0x804, 4), (0x80c, 4), (0xa00, 8)] {
        let doorbell = u64::from(sender.qpn << 8).to_be_bytes();
        let function = &mut sender.guest.function;
        function.doorbell(sender.page, offset, &doorbell[8 - bytes..]);
    }
    assert!(sender.guest.vf.doorbells().is_empty());
}

#[test]
fn requests_to_receive_are_copied() {
    let mut sender = Sender::new(&Scripted::default(), levels());
    for round in 0..40_u16 {
        sender.write(QUEUE + usize::from(round % 16) * 16, &[round as u8; 16]);
        sender.write(RECORD, &u32::from(round + 1).to_be_bytes());
        sender.tell(0);
        assert_eq!(sender.read(sender.record), u32::from(round) + 1);
        let at = sender.queues + u64::from(round % 16) * 16;
        assert_eq!(sender.read(at + 12), u32::from_be_bytes([round as u8; 4]));
    }
    // A counter that jumps is the end of it, until the next reset.
    for count in [40 + 17_u32, 41] {
        sender.write(RECORD, &count.to_be_bytes());
        sender.tell(0);
        assert_eq!(sender.read(sender.record), 40);
    }
}

/// The VF is not written over what it may not have read.
#[test]
fn a_vf_that_is_slow_is_waited_for() {
    let vf = Scripted::default();
    let read = Arc::new(parking_lot::Mutex::new(0_u32));
    let told = Arc::clone(&read);
    vf.follow(Box::new(move |request| {
        if Field::new(0, 31, 16).get(request) != 0x50b {
            return Answer::Usual;
        }
        let mut reply = vec![0; 0x1d0];
        put(&mut reply, 0x18 + 0xb4, *told.lock() << 16);
        Answer::Reply(reply)
    }));
    let mut sender = Sender::new(&vf, levels());
    for _ in 0..7 {
        sender.post(&[datagram(3, 9); 10]);
        sender.guest.settle(0);
    }
    // The next one does not fit behind the last.
    assert_eq!(sender.told(), DAEMONS);
    let asked = |sender: &mut Sender| {
        let requests = sender.guest.settle(1);
        requests.iter().any(|it| dword(it, 0) >> 16 == 0x50b)
    };
    // A VF that says that it has read what it has not, or less than before, is not believed. It is asked again.
    for (says, posted, expected, is_believed) in [
        (DAEMONS + 1, 70, DAEMONS, false),
        (10, 70, 70, true),
        (9, 80, 74, false),
        (70, 80, 80, true),
    ] {
        *read.lock() = says;
        sender.tell(posted);
        let mut times = 0;
        while times < 3 && !(is_believed && sender.told() == expected) {
            times += u32::from(asked(&mut sender));
            sender.guest.settle(0);
            sender.tell(posted);
        }
        assert_eq!(sender.told(), expected, "{says}");
    }
}

#[test]
fn counters_wrap_at_sixteen_bits() {
    let mut sender = Sender::new(&Scripted::default(), levels());
    for number in 0..33_000_u32 {
        let mut long = datagram(3, number as u16);
        long[7] = 8;
        sender.post(&[long, [number as u8; 64]]);
        while sender.told() != u32::from(sender.posted) {
            sender.guest.settle(0);
        }
        let lid = number & 0xffff;
        assert_eq!(sender.request(number * 2), (0x0a, 8, 3, lid), "{number}");
        assert_eq!(sender.block(number * 2 + 1), [number as u8; 64]);
    }
}

#[test]
fn what_makes_no_sense_is_an_error() {
    const RDMA_READ: u8 = 0x10;
    let with = |kind: u8, segments: u8| {
        let mut block = datagram(3, 9);
        (block[3], block[7]) = (kind, segments);
        block
    };
    for (block, blocks, segments) in [
        (with(0x08, 4), 1, 4),
        (with(0x25, 16), 4, 16),
        (with(0x0a, 0), 1, 4),
        (with(0x0a, 3), 1, 4),
        (with(0xff, 63), 16, 63),
        // Longer than what is posted.
        (with(0x0a, 63), 2, 8),
        (with(0x0a, 9), 2, 8),
    ] {
        let mut sender = Sender::new(&Scripted::default(), levels());
        let mut posted = vec![[0xff; 64]; blocks];
        posted[0] = block;
        sender.post(&posted);
        assert_eq!(sender.told(), blocks as u32);
        let (kind, has, ..) = sender.request(0);
        assert_eq!((kind, has), (RDMA_READ, segments));
        assert_eq!(sender.block(0)[16..], [0; 48]);
        // What comes after it is after it.
        sender.post(&[datagram(3, 9)]);
        assert_eq!(sender.request(blocks as u32), (0x0a, 4, 3, 9));
    }
    // A counter that jumps: an error, and nothing more before the next reset.
    let mut sender = Sender::new(&Scripted::default(), levels());
    sender.tell(BLOCKS as u16 + 1);
    assert_eq!((sender.told(), sender.request(0).0), (1, RDMA_READ));
    sender.post(&[datagram(3, 9)]);
    assert_eq!(sender.told(), 1);
    assert_eq!(sender.command(Opcode::ToRst), Status::Ok);
    sender.tell(0);
    sender.begin();
    sender.post(&[datagram(3, 9)]);
    assert_eq!((sender.told(), sender.request(0).3), (1, 9));
}

/// The counter in the guest's record is valid from the setup of a queue pair to its reset.
#[test]
fn nothing_is_posted_between_a_reset_and_a_beginning() {
    let mut sender = Sender::new(&Scripted::default(), levels());
    sender.post(&[datagram(3, 9)]);
    assert_eq!(sender.told(), 1);
    // In another state it cannot begin again: counters stay.
    sender.begin();
    sender.post(&[datagram(3, 10)]);
    assert_eq!((sender.told(), sender.request(1).3), (2, 10));
    assert_eq!(sender.command(Opcode::ToRst), Status::Ok);
    assert_eq!(sender.told(), 0);
    sender.tell(2);
    sender.guest.settle(0);
    assert_eq!(sender.told(), 0);
    sender.tell(0);
    sender.begin();
    sender.post(&[datagram(3, 11)]);
    assert_eq!((sender.told(), sender.request(0).3), (1, 11));
    // Memory that goes away has nothing in it.
    sender.guest.function.unmap_all();
    sender.guest.function.doorbell(
        sender.page,
        0x800,
        &u64::from(sender.qpn << 8).to_be_bytes(),
    );
    sender.guest.settle(0);
    assert_eq!(sender.told(), 1);
}

#[test]
fn room_for_queues_ends() {
    let mut sender = Sender::new(&Scripted::default(), levels());
    let stock = sender.guest.stock();
    let mut create = stock.create(Opcode::CreateQp);
    // 2^15 requests to receive of 2 KiB each, which are not in its list.
    put(&mut create, 0x18, 2 << 16);
    put(&mut create, 0x20, 15 << 19 | 7 << 16 | 4 << 11);
    assert_eq!(sender.guest.status(&create), Status::BadParameter);
    create.resize(0x110 + 8 * 16_385, 0);
    assert_eq!(sender.guest.status(&create), Status::NoResources);
    // A half of it at a time.
    put(&mut create, 0x20, 14 << 19 | 7 << 16 | 4 << 11);
    let number = sender.guest.make(&create);
    assert_eq!(sender.guest.status(&create), Status::NoResources);
    let destroy = request(Opcode::DestroyQp, &[(8, number)]);
    assert_eq!(sender.guest.status(&destroy), Status::Ok);
    sender.guest.make(&create);
    // With signatures, which would be wrong.
    put(&mut create, 0x1c, 1 << 31 | stock.numbers[0]);
    assert_eq!(sender.guest.status(&create), Status::BadParameter);
}

#[test]
fn addresses_are_the_clusters() {
    let cluster: Arc<Cluster> = Arc::default();
    let (here, there) = (vf(0x21, 1, false), vf(0x22, 2, false));
    let policy = |lid| Policy {
        membership: Some(Membership {
            cluster: Arc::clone(&cluster),
            lid,
        }),
        ..Policy::default()
    };
    let _other = Guest::with(&there, policy(6), AMPLE);
    let mut sender = Sender::new(&here, policy(5));
    let to_manager = |qpn: u32| {
        let mut block = datagram(0, 0x77);
        put(&mut block, 0x18, 1 << 31 | qpn);
        block
    };
    let mut nothing = datagram(0, 6);
    nothing[3] = 0;
    for (block, kind, lid) in [
        (datagram(0, 6), 0x0a, 0x22),
        (datagram(0, 5), 0x0a, 0x21),
        (datagram(0, 0x22), 0x0a, 0x22),
        (datagram(0, 0xc001), 0x0a, 0xc001),
        (to_manager(1), 0x0a, 0x77),
        (to_manager(2), 0, 0),
        (datagram(0, 7), 0, 0),
        (datagram(0, 0), 0, 0),
        (datagram(0, 0xffff), 0, 0),
        (nothing, 0, 0),
    ] {
        let number = sender.posted.into();
        sender.post(&[block]);
        let (got, _, _, to) = sender.request(number);
        assert_eq!((got, to), (kind, lid), "{block:02x?}");
    }
    // Bits of a range of LIDs, and the order not to leave the adapter.
    let mut local = datagram(0, 6);
    local[0x1d] = 0xff;
    let number = sender.posted.into();
    sender.post(&[local]);
    assert_eq!(sender.block(number)[0x1d], 0);
}

/// Without a policy of datagrams, they are the VF's alone.
#[test]
fn nobody_looks_where_there_is_nothing_to_look_for() {
    let vf = Scripted::default();
    let mut guest = Guest::with(&vf, Policy::default(), AMPLE);
    let mut create = guest.stock().create(Opcode::CreateQp);
    put(&mut create, 0x18, 2 << 16);
    let passed = guest.passed_on(&create);
    assert_eq!(
        (dword(&passed, 0x114), dword(&passed, 0xbc)),
        (0x5000, 0x9080)
    );
}

/// Whatever is posted, what the VF has in its queue is the guest's to send.
#[test]
fn noise_is_no_datagram_to_others() {
    for isolation in [Isolation::Strict, Isolation::Sriov] {
        let mut place = Place::confined(isolation);
        let mut random = Random::new(testing::seed(0x5eed));
        let mut next = || random.number();
        let mut counters = [0_u16; 2];
        for _ in 0..5000 {
            let mut bytes: Vec<u8> = (0..32).flat_map(|_| next().to_be_bytes()).collect();
            for block in bytes.chunks_mut(64) {
                // Mostly datagrams of two blocks, to LIDs that there may be.
                let (kind, segments) = (next() as u8 % 12, next() as u8 % 9);
                block[..4].copy_from_slice(&[0, 0, 0, kind]);
                block[7] = segments;
                block[0x18] |= 0x80;
                block[0x1c..0x20].copy_from_slice(&[next() as u8 % 4, 0, 0, next() as u8 % 0x24]);
            }
            counters[0] = counters[0].wrapping_add(next() as u16 % 3);
            counters[1] = counters[1].wrapping_add(next() as u16 % 5);
            place.post(false, next() as u8, &bytes, counters);
            if next() % 100 == 0 {
                place.begin_datagrams(false);
                counters = [0; 2];
            }
        }
    }
}
