//! Memory behind keys with signatures that is not there when somebody needs it. A driver brings what it is told of,
//! and no more.

use hca::{ABSENT, Half, Needed, PageFault, QpState};

use super::*;
use crate::memory::paging::{PAGE, PAGES, faults, paged, resume, set};

/// Pages of a function's key, and where in them the two places of a key with signatures are.
const COUNT: u64 = 16;
const PLACES: [u64; 2] = [0xf00, 0x8800];

/// A key with signatures whose memory is on pages of another key that are not there.
struct OnDemand {
    node: usize,
    key: u32,
    pages: u32,
    len: usize,
}

impl OnDemand {
    fn new(lab: &mut Lab, qp: &Qp, format: Format, len: usize) -> Self {
        let node = qp.node;
        let pages = paged(lab, node, COUNT, ABSENT);
        let first = len / 3 + 1;
        let mut key = signed(lab, node, len);
        let stretch = |place: u64, len: usize| Klm {
            len: len as u32,
            key: pages,
            addr: base(node) + PAGES + place,
        };
        if let Translation::Signed(signed) = &mut key.translation {
            signed.list = KlmList::new(vec![
                stretch(PLACES[0], first),
                stretch(PLACES[1], len - first),
            ]);
        }
        let vf = lab.nodes[node].vf;
        let key = lab.home(vf).verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
        let armed = update(lab, qp, arm(key, format, len, true));
        assert_eq!(armed, Status::Success);
        Self {
            node,
            key,
            pages,
            len,
        }
    }

    fn put(&self, lab: &Lab, bytes: &[u8]) {
        let (first, second) = bytes.split_at(bytes.len() / 3 + 1);
        for (place, bytes) in PLACES.into_iter().zip([first, second]) {
            lab.memory(self.node)
                .write(base(self.node) + PAGES + place, bytes);
        }
    }

    fn get(&self, lab: &Lab) -> Vec<u8> {
        let first = self.len / 3 + 1;
        let lens = [first, self.len - first];
        let places = PLACES.into_iter().zip(lens);
        places
            .flat_map(|(place, len)| {
                lab.memory(self.node)
                    .read(base(self.node) + PAGES + place, len)
            })
            .collect()
    }

    fn take_away(&self, lab: &mut Lab) {
        set(lab, self.node, self.pages, 0..COUNT, ABSENT);
    }

    /// Brings what a page fault tells of.
    fn bring(&self, lab: &mut Lab, fault: &PageFault) {
        let Needed::Memory { key, addr, len, .. } = fault.of else {
            panic!("{fault:?}")
        };
        assert_eq!((key, fault.committed), (self.pages, 0));
        assert!(len > 0);
        let at = addr - base(self.node) - PAGES;
        let last = (at + u64::from(len) - 1) / PAGE;
        assert!(last < COUNT, "{fault:?}");
        // Changes of a key are of pairs.
        set(
            lab,
            self.node,
            self.pages,
            (at / PAGE) & !1..last / 2 * 2 + 2,
            0,
        );
    }
}

/// Runs until a request of `qp` is done, with drivers of both ends.
fn run(lab: &mut Lab, [a, b]: [&Qp; 2], keys: &[&OnDemand]) -> (Vec<CompletionEntry>, usize) {
    let mut count = 0;
    for _ in 0..400 {
        lab.advance(crate::lab::TIMEOUT_NS);
        for qp in [a, b] {
            for fault in faults(lab, qp.node) {
                let key = keys.iter().find(|key| key.node == qp.node).unwrap();
                key.bring(lab, &fault);
                assert_eq!(fault.qpn, qp.qpn);
                resume(lab, qp, fault.half, true).unwrap();
                count += 1;
            }
        }
        let entries = a.cq.poll();
        if !entries.is_empty() {
            return (entries, count);
        }
    }
    (Vec::new(), count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Streams are what they are with all pages there, and each page is told of where it is needed.
    #[test]
    fn streams_wait_for_their_pages(
        format in formats(),
        way in prop_oneof![Just(Way::Copied), Just(Way::Frames), Just(Way::Engines(0, 0))],
        len in 1..14_000_usize,
        cut in any::<proptest::sample::Index>(),
        seed in any::<u64>(),
    ) {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let data = pattern(seed, len);
        let in_memory = stream(format.memory.as_ref(), &data);
        let on_wire = stream(format.wire.as_ref(), &data);
        let far = OnDemand::new(&mut lab, &b, format, in_memory.len());
        let own = OnDemand::new(&mut lab, &a, format, in_memory.len());
        let both = [&a, &b];
        // In two pieces, which may part a block.
        let cut = cut.index(on_wire.len() + 1);
        let pieces = [(0, cut), (cut, on_wire.len() - cut)];
        let pieces = pieces.into_iter().filter(|(_, len)| *len > 0);
        for operation in [Operation::Read, Operation::Write] {
            let before = if operation == Operation::Read {
                in_memory.clone()
            } else {
                lab.memory(0).write(base(0) + OTHER, &on_wire);
                vec![0xee; in_memory.len()]
            };
            far.put(&lab, &before);
            for (at, len) in pieces.clone() {
                far.take_away(&mut lab);
                let sge = lab.sge(0, OTHER + at as u64, len as u32);
                lab.post(&a, remote(operation, 1, &[sge], at as u64, far.key));
                let (entries, told) = run(&mut lab, both, &[&far]);
                prop_assert_eq!(sent(&entries), [(1, Status::Success)], "{:?}", operation);
                prop_assert!((1..=COUNT as usize).contains(&told), "{}", told);
            }
            if operation == Operation::Read {
                let got = lab.memory(0).read(base(0) + OTHER, on_wire.len());
                prop_assert!(got == on_wire, "what was read differs");
            } else {
                prop_assert!(far.get(&lab) == in_memory, "what was written differs");
            }
        }
        // Both ends wait.
        far.put(&lab, &vec![0xdd; in_memory.len()]);
        own.put(&lab, &in_memory);
        far.take_away(&mut lab);
        let whole = |lkey| hca::work::Sge { addr: 0, lkey, len: on_wire.len() as u32 };
        lab.receive(&b, 5, &[whole(far.key)]);
        lab.post(&a, request(Operation::Send, 3, &[whole(own.key)]));
        let (entries, told_of) = run(&mut lab, both, &[&far, &own]);
        prop_assert_eq!(sent(&entries), [(3, Status::Success)]);
        prop_assert!(told_of >= 2);
        prop_assert!(far.get(&lab) == in_memory, "what was sent differs");
        // Read back to where it was: the requester writes what it waits for.
        own.put(&lab, &vec![0xcc; in_memory.len()]);
        own.take_away(&mut lab);
        far.take_away(&mut lab);
        lab.post(&a, remote(Operation::Read, 4, &[whole(own.key)], 0, far.key));
        let (entries, _) = run(&mut lab, both, &[&far, &own]);
        prop_assert_eq!(sent(&entries), [(4, Status::Success)]);
        prop_assert!(own.get(&lab) == in_memory, "what was read back differs");
        prop_assert_eq!(told(&b.cq.poll()), []);
    }
}

/// A wrong block is told of once, however often its request waits.
#[test]
fn a_wrong_block_is_told_of_once() {
    for way in WAYS {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = lab.pair(Transport::Rc);
        let format = Format {
            memory: Some(dif(Algorithm::T10Dif, 4096)),
            wire: Some(plain(Algorithm::Crc32, 512)),
            check: 0xff,
            copy: None,
        };
        let data = pattern(3, 3 * 4096);
        let mut in_memory = stream(format.memory.as_ref(), &data);
        in_memory[9] ^= 1;
        in_memory[5000] ^= 1;
        let own = OnDemand::new(&mut lab, &a, format, in_memory.len());
        own.put(&lab, &in_memory);
        let on_wire = stream(format.wire.as_ref(), &data).len() as u32;
        lab.receive(&b, 5, &[lab.sge(1, OTHER, on_wire)]);
        let whole = hca::work::Sge {
            addr: 0,
            lkey: own.key,
            len: on_wire,
        };
        lab.post(&a, request(Operation::Send, 3, &[whole]));
        let (mut entries, mut waits) = (Vec::new(), 0);
        while sent(&entries).is_empty() {
            let (more, told_of) = run(&mut lab, [&a, &b], &[&own]);
            assert!(!more.is_empty(), "{way:?}");
            entries.extend(more);
            waits += told_of;
        }
        assert!(waits > 1, "{way:?}");
        assert_eq!(sent(&entries), [(3, Status::Success)], "{way:?}");
        let errors = told(&entries);
        assert_eq!(errors.len(), 1, "{way:?}: {errors:?}");
        assert_eq!(errors[0].offset, 0);
    }
}

#[test]
fn a_request_whose_pages_do_not_come_fails() {
    for way in WAYS {
        let mut lab = Lab::new(2);
        lab.go(way);
        let format = Format {
            memory: Some(dif(Algorithm::T10Dif, 512)),
            wire: None,
            check: 0xff,
            copy: None,
        };
        let (a, b) = lab.pair(Transport::Rc);
        let own = OnDemand::new(&mut lab, &a, format, 520);
        lab.receive(&b, 5, &[lab.sge(1, OTHER, 512)]);
        let whole = hca::work::Sge {
            addr: 0,
            lkey: own.key,
            len: 512,
        };
        lab.post(&a, request(Operation::Send, 3, &[whole]));
        lab.advance(crate::lab::TIMEOUT_NS);
        assert_eq!(faults(&lab, 0).len(), 1);
        resume(&mut lab, &a, Half::Requester, false).unwrap();
        let entries = run_until(&mut lab, &a);
        assert_eq!(sent(&entries), [(3, Status::LocalProtection)], "{way:?}");

        let (a, b) = lab.pair(Transport::Rc);
        let far = OnDemand::new(&mut lab, &b, format, 520);
        let sge = lab.sge(0, OTHER, 512);
        lab.post(&a, remote(Operation::Write, 3, &[sge], 0, far.key));
        lab.advance(crate::lab::TIMEOUT_NS);
        assert_eq!(faults(&lab, 1).len(), 1);
        resume(&mut lab, &b, Half::Responder, false).unwrap();
        let entries = run_until(&mut lab, &a);
        assert_eq!(sent(&entries), [(3, Status::RemoteAccess)], "{way:?}");
        assert_eq!(lab.state(&b), QpState::Error);
    }
}
