//! Keys with signatures: held against streams of bytes that are put together here, with check values computed bit
//! by bit.

mod draining;
mod hostile;
mod paging;

use hca::mr::{Klm, KlmList, MemoryKey, Translation};
use hca::signature::digest::Algorithm;
use hca::signature::format::{Escape, Format, Side as Domain, Signature, Tags};
use hca::signature::key::{SignatureError, Signed, Wrong};
use hca::work::{CompletionEntry, KeyUpdate, Operation, Side, Status};
use hca::{Transport, VerbError};
use proptest::prelude::*;

use crate::lab::{Lab, Qp, VARIANT, Way, base, pattern, physical, received, remote, request, sent};

/// Where a key's bytes are in its function's memory, and where others put what they send.
const MEMORY: u64 = 0x10_0000;
const OTHER: u64 = 0x30_0000;

/// A CRC by the book: a bit at a time.
fn crc(bytes: &[u8], (width, polynomial, reflected): (u32, u32, bool), first: u32) -> u32 {
    let mask = u32::MAX >> (32 - width);
    let mut register = first & mask;
    for byte in bytes {
        for bit in 0..8 {
            let bit = if reflected {
                byte >> bit
            } else {
                byte >> (7 - bit)
            };
            let top = register >> (width - 1) & 1;
            register = register << 1 & mask;
            if top ^ u32::from(bit & 1) != 0 {
                register ^= polynomial;
            }
        }
    }
    if reflected {
        register.reverse_bits() >> (32 - width) ^ mask
    } else {
        register
    }
}

/// Signature behind block `number` with these data.
fn behind(signature: &Signature, number: u32, data: &[u8]) -> Vec<u8> {
    let first = if signature.ones { u32::MAX } else { 0 };
    let value = match signature.algorithm {
        Algorithm::T10Dif => crc(data, (16, 0x8bb7, false), first),
        Algorithm::Crc32 => crc(data, (32, 0x04c1_1db7, true), first),
        Algorithm::Crc32c => crc(data, (32, 0x1edc_6f41, true), first),
        Algorithm::Checksum => {
            let words = data
                .chunks(2)
                .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)));
            let sum = words.fold(first & 0xffff, |sum, word| {
                let sum = sum + word;
                (sum & 0xffff) + (sum >> 16)
            });
            !sum & 0xffff
        }
    };
    let Some(tags) = signature.tags else {
        return value.to_le_bytes().to_vec();
    };
    let mut bytes = (value as u16).to_be_bytes().to_vec();
    bytes.extend(tags.application.to_be_bytes());
    let added = if tags.increments { number } else { 0 };
    bytes.extend(tags.reference.wrapping_add(added).to_be_bytes());
    bytes
}

/// The data, as one side has them.
fn stream(signature: Option<&Signature>, data: &[u8]) -> Vec<u8> {
    let Some(signature) = signature else {
        return data.to_vec();
    };
    let block = usize::from(signature.block);
    let mut bytes = Vec::new();
    for (number, data) in data.chunks(block).enumerate() {
        bytes.extend(data);
        if data.len() == block {
            bytes.extend(behind(signature, number as u32, data));
        }
    }
    bytes
}

fn dif(algorithm: Algorithm, block: u16) -> Signature {
    Signature {
        algorithm,
        ones: false,
        tags: Some(Tags {
            application: 0xabcd,
            application_mask: 0xffff,
            reference: 0xffff_fffe,
            increments: true,
            escape: Escape::Never,
        }),
        block,
    }
}

fn plain(algorithm: Algorithm, block: u16) -> Signature {
    Signature {
        ones: true,
        tags: None,
        ..dif(algorithm, block)
    }
}

/// A key of function `node` for `len` bytes of memory, which lie in two places.
fn signed(lab: &Lab, node: usize, len: usize) -> MemoryKey {
    let first = len / 3 + 1;
    let stretch = |addr: u64, len: usize| Klm {
        len: len as u32,
        key: lab.nodes[node].key,
        addr: base(node) + addr,
    };
    let list = vec![
        stretch(MEMORY, first),
        stretch(MEMORY + 0x10_0000, len - first),
    ];
    MemoryKey {
        updatable: true,
        len: 0,
        translation: Translation::Signed(Box::new(Signed {
            list: KlmList::new(list),
            ..Signed::default()
        })),
        capacity: 4,
        ..physical(lab.nodes[node].pd)
    }
}

/// The two places, one behind the other.
fn memory(lab: &Lab, node: usize, len: usize) -> Vec<u8> {
    let first = len / 3 + 1;
    let memory = lab.memory(node);
    let mut bytes = memory.read(base(node) + MEMORY, first);
    bytes.extend(memory.read(base(node) + MEMORY + 0x10_0000, len - first));
    bytes
}

fn put(lab: &Lab, node: usize, bytes: &[u8]) {
    let (first, second) = bytes.split_at(bytes.len() / 3 + 1);
    lab.memory(node).write(base(node) + MEMORY, first);
    let second_at = base(node) + MEMORY + 0x10_0000;
    lab.memory(node).write(second_at, second);
}

/// Request that makes a key use `format` for `len` bytes of memory. The next error is reported if `expected` is
/// another one than before.
fn arm(key: u32, format: Format, len: usize, expected: bool) -> KeyUpdate {
    KeyUpdate {
        mkey: key,
        free: Some(false),
        len: Some(len as u64),
        signatures: Some(Some(format)),
        expected_error: Some(expected),
        ..KeyUpdate::default()
    }
}

fn update(lab: &mut Lab, qp: &Qp, change: KeyUpdate) -> Status {
    let mut wr = request(Operation::UpdateKey, 77, &[]);
    wr.is_inline = true;
    wr.key_update = Some(Box::new(change));
    lab.execute(qp, wr);
    sent(&qp.cq.poll())[0].1
}

/// Makes a key with signatures, and readies it by a request of `qp`.
fn ready(lab: &mut Lab, qp: &Qp, format: Format, len: usize) -> u32 {
    let key = signed(lab, qp.node, len);
    let vf = lab.nodes[qp.node].vf;
    let key = lab.home(vf).verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
    assert_eq!(
        update(lab, qp, arm(key, format, len, true)),
        Status::Success
    );
    key
}

/// The blocks that completions tell of.
fn told(entries: &[CompletionEntry]) -> Vec<SignatureError> {
    let error = |entry: &CompletionEntry| match entry.side {
        Side::Signature(error) => Some(error),
        _ => None,
    };
    entries.iter().filter_map(error).collect()
}

fn algorithms() -> impl Strategy<Value = Signature> {
    let blocks = prop_oneof![Just(512_u16), Just(520), Just(4048), Just(4096), Just(4160)];
    (0..4_u8, blocks, any::<bool>(), any::<bool>()).prop_map(|(which, block, ones, increments)| {
        let mut signature = match which {
            0 => dif(Algorithm::T10Dif, block),
            1 => dif(Algorithm::Checksum, block),
            2 => plain(Algorithm::Crc32, block),
            _ => plain(Algorithm::Crc32c, block),
        };
        signature.ones = ones;
        if let Some(tags) = &mut signature.tags {
            tags.increments = increments;
        }
        signature
    })
}

/// Forms of either kind: of different structures, and of the same one with nothing that goes along.
fn formats() -> impl Strategy<Value = Format> {
    let sides = (
        proptest::option::of(algorithms()),
        proptest::option::of(algorithms()),
    );
    (sides, any::<bool>()).prop_map(|((memory, wire), same)| {
        let mut format = Format {
            memory,
            wire,
            check: 0xff,
            copy: None,
        };
        if let (Some(memory), Some(wire), true) = (memory, wire, same)
            && memory.width() == wire.width()
        {
            format.copy = Some(0);
            format.wire = Some(Signature {
                block: memory.block,
                ..wire
            });
        }
        format
    })
}

fn ways() -> impl Strategy<Value = Way> {
    prop_oneof![
        2 => Just(Way::Copied),
        1 => Just(Way::Frames),
        1 => (1..40_u64).prop_map(|state| Way::Packets(4, state)),
        1 => Just(Way::Engines(0, 0)),
    ]
}

fn run_until(lab: &mut Lab, qp: &Qp) -> Vec<CompletionEntry> {
    for _ in 0..200 {
        lab.advance(crate::lab::TIMEOUT_NS);
        let entries = qp.cq.poll();
        if !entries.is_empty() {
            return entries;
        }
    }
    Vec::new()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Data written and read by a key with signatures, in pieces of any length, equal the model's, and no error is
    /// found.
    #[test]
    fn streams_are_the_models(
        format in formats(),
        way in ways(),
        len in 1..14_000_usize,
        cuts in proptest::collection::vec(1..5000_usize, 0..6),
        seed in any::<u64>(),
        // Blocks in many smaller pieces are refused.
        longest in prop_oneof![Just(usize::MAX), 200..700_usize],
    ) {
        let mut lab = Lab::new(2);
        let vf = lab.nodes[1].vf;
        lab.engine.vf_mut(vf).dma_mut().longest = longest;
        lab.go(way);
        let (a, b) = lab.pair_with(Transport::Rc, |change| change.retry_count = Some(7));
        let data = pattern(seed, len);
        let in_memory = stream(format.memory.as_ref(), &data);
        let on_wire = stream(format.wire.as_ref(), &data);
        let key = ready(&mut lab, &b, format, in_memory.len());
        // Read in pieces.
        put(&lab, 1, &in_memory);
        let mut pieces = Vec::new();
        let mut at = 0;
        for cut in cuts.into_iter().chain([usize::MAX]) {
            let end = at + cut.min(on_wire.len() - at);
            if end > at {
                pieces.push((at, end - at));
            }
            at = end;
        }
        for &(at, len) in &pieces {
            let sge = lab.sge(0, OTHER + at as u64, len as u32);
            lab.post(&a, remote(Operation::Read, 1, &[sge], at as u64, key));
            prop_assert_eq!(sent(&run_until(&mut lab, &a)), [(1, Status::Success)]);
        }
        let got = lab.memory(0).read(base(0) + OTHER, on_wire.len());
        prop_assert!(got == on_wire, "what was read differs");
        // Written in the same pieces.
        put(&lab, 1, &vec![0xee; in_memory.len()]);
        lab.memory(0).write(base(0) + OTHER, &on_wire);
        for &(at, len) in &pieces {
            let sge = lab.sge(0, OTHER + at as u64, len as u32);
            lab.post(&a, remote(Operation::Write, 2, &[sge], at as u64, key));
            prop_assert_eq!(sent(&run_until(&mut lab, &a)), [(2, Status::Success)]);
        }
        prop_assert!(memory(&lab, 1, in_memory.len()) == in_memory, "what was written differs");
        // Sent as a whole, and received as a whole by another such key.
        let own = ready(&mut lab, &a, format, in_memory.len());
        put(&lab, 0, &in_memory);
        put(&lab, 1, &vec![0xdd; in_memory.len()]);
        let whole = |lkey| hca::work::Sge { addr: 0, lkey, len: on_wire.len() as u32 };
        lab.receive(&b, 5, &[whole(key)]);
        lab.post(&a, request(Operation::Send, 3, &[whole(own)]));
        prop_assert_eq!(sent(&run_until(&mut lab, &a)), [(3, Status::Success)]);
        prop_assert!(memory(&lab, 1, in_memory.len()) == in_memory, "what was sent differs");
        prop_assert_eq!(told(&b.cq.poll()), []);
    }
}

/// All ways that are not random.
const WAYS: [Way; 3] = [Way::Copied, Way::Frames, Way::Engines(0, 0)];

#[test]
fn a_wrong_block_in_memory_is_told_of_before_its_request_is_done_and_once() {
    for way in WAYS {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let format = Format {
            memory: Some(dif(Algorithm::T10Dif, 512)),
            wire: None,
            check: 0xff,
            copy: None,
        };
        let data = pattern(7, 4 * 512);
        let right = stream(format.memory.as_ref(), &data);
        let key = ready(&mut lab, &a, format, right.len());
        // The third block: its data, its application tag, its reference tag.
        for (round, (at, wrong)) in [
            (2 * 520 + 99, Wrong::Guard),
            (2 * 520 + 514, Wrong::Application),
            (2 * 520 + 517, Wrong::Reference),
        ]
        .into_iter()
        .enumerate()
        {
            let mut bytes = right.clone();
            bytes[at] ^= 0x40;
            put(&lab, 0, &bytes);
            let sge = hca::work::Sge {
                addr: 0,
                lkey: key,
                len: data.len() as u32,
            };
            for again in [false, true] {
                let other = lab.sge(1, OTHER, data.len() as u32);
                lab.receive(&b, 1, &[other]);
                lab.post(&a, request(Operation::Send, 2, &[sge]));
                let entries = run_until(&mut lab, &a);
                assert_eq!(sent(&entries), [(2, Status::Success)], "{way:?}");
                assert_eq!(told(&b.cq.poll()), [], "{way:?}");
                let errors = told(&entries);
                if again {
                    assert_eq!(errors, [], "{way:?} {wrong:?}: told of twice");
                    continue;
                }
                assert!(matches!(entries[0].side, Side::Signature(_)), "{way:?}");
                let block: Vec<u8> = bytes[2 * 520..][..512].to_vec();
                let said = u64::from_be_bytes(bytes[2 * 520 + 512..][..8].try_into().unwrap());
                let made = behind(&format.memory.unwrap(), 2, &block);
                let error = SignatureError {
                    key,
                    side: Domain::Memory,
                    wrong,
                    expected: said,
                    actual: u64::from_be_bytes(made.try_into().unwrap()),
                    offset: 2 * 520,
                };
                assert_eq!(errors, [error], "{way:?}");
            }
            // Made anew, the key tells of the next one.
            let next = arm(key, format, right.len(), round % 2 == 1);
            assert_eq!(update(&mut lab, &a, next), Status::Success);
        }
    }
}

#[test]
fn a_wrong_block_on_the_wire_is_told_of_where_it_comes() {
    for way in WAYS {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let format = Format {
            memory: None,
            wire: Some(plain(Algorithm::Crc32c, 512)),
            check: 0xf0,
            copy: None,
        };
        let data = pattern(9, 3 * 512);
        let mut bytes = stream(format.wire.as_ref(), &data);
        let right = u32::from_le_bytes(bytes[516 + 512..][..4].try_into().unwrap());
        bytes[516 + 513] ^= 1;
        let wrong = right ^ 0x100;
        let key = ready(&mut lab, &b, format, data.len());
        lab.memory(0).write(base(0) + OTHER, &bytes);
        let sge = lab.sge(0, OTHER, bytes.len() as u32);
        lab.post(&a, remote(Operation::Write, 1, &[sge], 0, key));
        assert_eq!(sent(&run_until(&mut lab, &a)), [(1, Status::Success)]);
        let error = SignatureError {
            key,
            side: Domain::Wire,
            wrong: Wrong::Guard,
            expected: u64::from(wrong) << 32,
            actual: u64::from(right) << 32,
            offset: 516,
        };
        assert_eq!(told(&b.cq.poll()), [error], "{way:?}");
        assert_eq!(memory(&lab, 1, data.len()), data);
        // Received, it is told of before the request is done.
        let again = arm(key, format, data.len(), false);
        assert_eq!(update(&mut lab, &b, again), Status::Success);
        let whole = hca::work::Sge {
            addr: 0,
            lkey: key,
            len: bytes.len() as u32,
        };
        lab.receive(&b, 4, &[whole]);
        lab.post(&a, request(Operation::Send, 2, &[sge]));
        assert_eq!(sent(&run_until(&mut lab, &a)), [(2, Status::Success)]);
        let entries = b.cq.poll();
        assert!(matches!(entries[0].side, Side::Signature(_)), "{way:?}");
        assert_eq!((told(&entries), received(&entries).len()), (vec![error], 1));
    }
}

/// Both ends are one function, and each of two queue pairs hears of its own key.
#[test]
fn within_a_function_who_has_used_a_key_is_told() {
    let mut lab = Lab::new(1);
    let (a, b) = (lab.qp(0, Transport::Rc), lab.qp(0, Transport::Rc));
    lab.connect_with(&a, &b, |_| {});
    let signature = plain(Algorithm::Crc32, 512);
    let format = |memory, wire| Format {
        memory,
        wire,
        check: 0xff,
        copy: None,
    };
    let from = ready(&mut lab, &a, format(Some(signature), None), 516);
    let to = ready(&mut lab, &b, format(None, None), 516);
    let sge = |lkey| hca::work::Sge {
        addr: 0,
        lkey,
        len: 512,
    };
    for operation in [Operation::Send, Operation::Read] {
        lab.receive(&b, 1, &[sge(to)]);
        let wr = match operation {
            Operation::Send => request(operation, 2, &[sge(from)]),
            _ => remote(operation, 2, &[sge(to)], 0, from),
        };
        lab.execute(&a, wr);
        let (of_a, of_b) = (a.cq.poll(), b.cq.poll());
        assert_eq!(sent(&of_a), [(2, Status::Success)]);
        let hears = if operation == Operation::Send {
            &of_a
        } else {
            &of_b
        };
        assert_eq!(told(hears).len(), 1, "{operation:?}");
        assert_eq!(told(&of_a).len() + told(&of_b).len(), 1, "{operation:?}");
        let again = arm(from, format(Some(signature), None), 516, false);
        assert_eq!(update(&mut lab, &a, again), Status::Success);
    }
}

#[test]
fn what_is_not_compared_is_not_told_of() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let mut signature = dif(Algorithm::T10Dif, 512);
    let data = pattern(11, 512);
    let right = stream(Some(&signature), &data);
    let tags = |change: &dyn Fn(&mut Tags)| {
        let mut tags = signature.tags.unwrap();
        change(&mut tags);
        Some(tags)
    };
    let cases = [
        // Which byte is wrong, what is compared, the tags of the key, whether it is told of.
        (513, 0x3f, tags(&|_| {}), false),
        (513, 0xc0, tags(&|_| {}), true),
        (512, 0x40, tags(&|_| {}), false),
        (
            515,
            0x30,
            tags(&|tags| tags.application_mask = 0xff00),
            false,
        ),
        (
            514,
            0x30,
            tags(&|tags| tags.application_mask = 0xff00),
            true,
        ),
        (519, 0x01, tags(&|_| {}), true),
        (518, 0x01, tags(&|_| {}), false),
        // Block guards are not looked at where the tag says so.
        (
            9,
            0xff,
            tags(&|tags| tags.escape = Escape::Application),
            true,
        ),
        (9, 0xff, tags(&|tags| tags.escape = Escape::Both), true),
    ];
    for (at, check, tags, expected) in cases {
        signature.tags = tags;
        let format = Format {
            memory: Some(signature),
            wire: None,
            check,
            copy: None,
        };
        let key = ready(&mut lab, &b, format, right.len());
        let mut bytes = right.clone();
        bytes[at] ^= 0x10;
        put(&lab, 1, &bytes);
        let sge = lab.sge(0, OTHER, 512);
        lab.execute(&a, remote(Operation::Read, 1, &[sge], 0, key));
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
        let errors = told(&b.cq.poll());
        assert_eq!(
            !errors.is_empty(),
            expected,
            "byte {at}, {check:#x}: {errors:?}"
        );
        // The same with the tag that escapes.
        let escape = signature.tags.unwrap().escape;
        if escape != Escape::Never {
            let again = arm(key, format, right.len(), false);
            assert_eq!(update(&mut lab, &b, again), Status::Success);
            bytes[514..516].fill(0xff);
            put(&lab, 1, &bytes);
            lab.execute(&a, remote(Operation::Read, 1, &[sge], 0, key));
            a.cq.poll();
            let errors = told(&b.cq.poll());
            assert_eq!(errors.is_empty(), escape == Escape::Application);
        }
    }
}

/// Where both sides have the same structure, bytes that are not compared go along as they are.
#[test]
fn bytes_that_go_along() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let signature = dif(Algorithm::T10Dif, 512);
    let format = Format {
        memory: Some(signature),
        wire: Some(Signature {
            algorithm: Algorithm::Checksum,
            ..signature
        }),
        check: 0xc0,
        // The application tag and the reference tag.
        copy: Some(0x3f),
    };
    let data = pattern(13, 512);
    let mut bytes = data.clone();
    bytes.extend(&behind(&signature, 0, &data)[..2]);
    bytes.extend([1, 2, 3, 4, 5, 6]);
    let key = ready(&mut lab, &b, format, bytes.len());
    put(&lab, 1, &bytes);
    let sge = lab.sge(0, OTHER, 520);
    lab.execute(&a, remote(Operation::Read, 1, &[sge], 0, key));
    let got = lab.memory(0).read(base(0) + OTHER, 520);
    let mut expected = data.clone();
    expected.extend(&behind(&format.wire.unwrap(), 0, &data)[..2]);
    expected.extend([1, 2, 3, 4, 5, 6]);
    assert_eq!(got, expected);
    put(&lab, 1, &[0; 520]);
    lab.execute(&a, remote(Operation::Write, 1, &[sge], 0, key));
    assert_eq!(memory(&lab, 1, 520), bytes);
    assert_eq!(told(&b.cq.poll()), []);
}

#[test]
fn what_keys_with_signatures_refuse() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let (vf, pd) = (b.vf, lab.nodes[1].pd);
    let format = Format {
        memory: None,
        wire: Some(dif(Algorithm::T10Dif, 512)),
        check: 0xff,
        copy: None,
    };
    let key = ready(&mut lab, &b, format, 1024);
    let sge = |lab: &Lab, len| lab.sge(0, OTHER, len);
    // To the last byte on the wire, and no further.
    let last = sge(&lab, 2 * 520);
    lab.execute(&a, remote(Operation::Read, 1, &[last], 0, key));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    let cases = [
        (Operation::Read, sge(&lab, 2 * 520 + 1), 0_u64, key),
        (Operation::Write, sge(&lab, 9), 2 * 520 - 8, key),
        (Operation::FetchAdd, sge(&lab, 8), 0, key),
    ];
    for (operation, sge, addr, rkey) in cases {
        let (a, _b) = lab.pair(Transport::Rc);
        lab.execute(&a, remote(operation, 1, &[sge], addr, rkey));
        let expected = [(1, Status::RemoteAccess)];
        assert_eq!(sent(&a.cq.poll()), expected, "{operation:?}");
    }
    // A key over a key with signatures.
    let over = MemoryKey {
        len: 64,
        translation: Translation::Indirect(KlmList::new(vec![Klm {
            len: 64,
            key,
            addr: 0,
        }])),
        ..physical(pd)
    };
    let over = lab.engine.verbs(vf).create_key(over).unwrap() << 8 | u32::from(VARIANT);
    let mut twice = signed(&lab, 1, 1024);
    if let Translation::Signed(signed) = &mut twice.translation {
        signed.list = KlmList::new(vec![Klm {
            len: 1024,
            key,
            addr: 0,
        }]);
    }
    let twice = lab.engine.verbs(vf).create_key(twice).unwrap() << 8 | u32::from(VARIANT);
    let change = arm(twice, format, 1024, true);
    assert_eq!(update(&mut lab, &b, change), Status::Success);
    for rkey in [over, twice] {
        let (a, _b) = lab.pair(Transport::Rc);
        let sge = sge(&lab, 16);
        lab.execute(&a, remote(Operation::Read, 1, &[sge], 0, rkey));
        assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteAccess)]);
    }
    // Values under way: of another domain, of none, and one's own.
    let other = lab.engine.vf_mut(vf).alloc_pd().unwrap();
    let foreign = lab.engine.vf_mut(vf).create_psv(other).unwrap();
    let own = lab.engine.vf_mut(vf).create_psv(pd).unwrap();
    assert_eq!(
        lab.engine.vf_mut(vf).dealloc_pd(other),
        Err(VerbError::InUse)
    );
    assert_eq!(
        lab.engine.vf_mut(vf).create_psv(0xff),
        Err(VerbError::NotFound)
    );
    for (value, expected) in [
        (own, Status::Success),
        (foreign, Status::MemoryBind),
        (own ^ 0x7f_0000, Status::MemoryBind),
    ] {
        let (a, b) = lab.pair(Transport::Rc);
        let change = KeyUpdate {
            signature_values: [None, Some(value)],
            ..arm(key, format, 1024, true)
        };
        assert_eq!(update(&mut lab, &b, change), expected);
        let (_a, b) = (a, lab.pair(Transport::Rc).1);
        let mut wr = request(Operation::SetSignature, 3, &[]);
        wr.immediate = value;
        lab.execute(&b, wr);
        assert_eq!(sent(&b.cq.poll()), [(3, expected)]);
    }
    lab.engine.vf_mut(vf).destroy_psv(foreign).unwrap();
    assert_eq!(
        lab.engine.vf_mut(vf).destroy_psv(foreign),
        Err(VerbError::NotFound)
    );
    lab.engine.vf_mut(vf).dealloc_pd(other).unwrap();
    // Forms that cannot be, and keys that have none.
    let zero = Format {
        wire: Some(dif(Algorithm::T10Dif, 0)),
        ..format
    };
    let lone = Format {
        copy: Some(0xff),
        ..format
    };
    let untagged = Format {
        wire: Some(plain(Algorithm::T10Dif, 512)),
        ..format
    };
    let common = MemoryKey {
        updatable: true,
        translation: Translation::Indirect(KlmList::default()),
        ..physical(pd)
    };
    let common = lab.engine.verbs(vf).create_key(common).unwrap() << 8 | u32::from(VARIANT);
    for (key, format) in [(key, zero), (key, lone), (key, untagged), (common, format)] {
        let (_a, b) = lab.pair(Transport::Rc);
        let change = arm(key, format, 1024, true);
        assert_eq!(
            update(&mut lab, &b, change),
            Status::MemoryBind,
            "{format:?}"
        );
    }
    // The memory behind goes: so do accesses.
    let (a, _b) = lab.pair(Transport::Rc);
    lab.memory(1).unmap(base(1) + MEMORY, 4096);
    let sge = sge(&lab, 16);
    lab.execute(&a, remote(Operation::Write, 1, &[sge], 0, key));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteAccess)]);
}

/// A function goes elsewhere between two halves of a check value.
#[test]
fn images_have_keys_with_signatures() {
    for elsewhere in [false, true] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let format = Format {
            memory: None,
            wire: Some(dif(Algorithm::T10Dif, 512)),
            check: 0xff,
            copy: None,
        };
        let data = pattern(3, 512);
        let mut bytes = stream(format.wire.as_ref(), &data);
        bytes[517] ^= 0x80;
        let key = ready(&mut lab, &b, format, data.len());
        let pd = lab.nodes[1].pd;
        let value = lab.engine.vf_mut(b.vf).create_psv(pd).unwrap();
        lab.memory(0).write(base(0) + OTHER, &bytes);
        let sge = lab.sge(0, OTHER, 515);
        lab.execute(&a, remote(Operation::Write, 1, &[sge], 0, key));
        lab.save_and_restore(1, elsewhere);
        let vf = lab.nodes[1].vf;
        let sge = lab.sge(0, OTHER + 515, 5);
        lab.execute(&a, remote(Operation::Write, 2, &[sge], 515, key));
        let done = [(1, Status::Success), (2, Status::Success)];
        assert_eq!(sent(&a.cq.poll()), done);
        let errors = told(&b.cq.poll());
        assert_eq!(errors.len(), 1);
        let said = u64::from_be_bytes(bytes[512..].try_into().unwrap());
        assert_eq!(
            (errors[0].expected, errors[0].wrong),
            (said, Wrong::Reference)
        );
        assert_eq!(lab.engine.vf_mut(vf).destroy_psv(value), Ok(()));
    }
}

/// A request that takes signatures away is another one than a request that says nothing of them.
#[test]
fn images_have_requests_that_take_signatures_away() {
    let of = |signatures| KeyUpdate {
        signatures,
        ..KeyUpdate::default()
    };
    let format = Format {
        memory: None,
        wire: None,
        check: 0,
        copy: None,
    };
    for update in [of(None), of(Some(None)), of(Some(Some(format)))] {
        let image = serde_json::to_string(&update).unwrap();
        let read: KeyUpdate = serde_json::from_str(&image).unwrap();
        assert_eq!(read.signatures, update.signatures, "{image}");
    }
}
