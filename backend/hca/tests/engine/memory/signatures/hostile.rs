//! A guest that writes what it likes into its keys.

use super::*;
use crate::memory::paging::{PAGES, paged};
use hca::ABSENT;

/// Forms that nobody would write: any block, any algorithm with any tags.
fn wild_formats() -> impl Strategy<Value = Format> {
    let signature = (algorithms(), any::<u16>(), any::<u32>(), 0..4_u8);
    let signature = signature.prop_map(|(mut signature, block, reference, how)| {
        match how {
            0 => {}
            1 => signature.block = block,
            2 => signature.block = block % 9,
            _ => signature.tags = None,
        }
        if let Some(tags) = &mut signature.tags {
            tags.reference = reference;
        }
        signature
    });
    let signature = signature.boxed();
    let side = || proptest::option::of(signature.clone());
    let masks = (any::<u8>(), proptest::option::of(any::<u8>()));
    (side(), side(), masks).prop_map(|(memory, wire, (check, copy))| Format {
        memory,
        wire,
        check,
        copy,
    })
}

/// Lengths and offsets near whatever could go wrong.
fn wild_numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..5000_u64,
        any::<u64>(),
        Just(u64::MAX),
        (0..9000_u64).prop_map(|less| u64::MAX - less),
        (0..64_u32, 0..9000_u64).prop_map(|(bit, less)| (1_u64 << bit).wrapping_sub(less)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A guest that writes what it likes into its keys, and uses them, does itself no good, and others no harm.
    #[test]
    fn wild_keys(
        updates in proptest::collection::vec(
            (wild_formats(), wild_numbers(), 1..40_u32, any::<bool>()), 1..4),
        uses in proptest::collection::vec((wild_numbers(), 0..9000_u32, 0..4_u8), 1..12),
        way in ways(),
        // The memory behind is on pages that are not there, and never come.
        away in any::<bool>(),
    ) {
        let mut lab = Lab::new(2);
        lab.go(way);
        let vf = lab.nodes[1].vf;
        let (all, memory) = if away {
            (paged(&mut lab, 1, 2, ABSENT), PAGES)
        } else {
            (lab.nodes[1].key, MEMORY)
        };
        let key = signed(&lab, 1, 600);
        let key = lab.home(vf).verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
        for (format, len, stretch, repeats) in updates {
            let (_a, b) = lab.pair(Transport::Rc);
            // Short stretches, or a pattern of them.
            let mut list = Vec::new();
            for at in 0..4_u64 {
                let (len, key) = match (repeats, at) {
                    (true, 0) => (0, Klm::REPEATED),
                    _ => (stretch, all),
                };
                let addr = if key == all { base(1) + memory + at * 64 } else { 1 << 40 | 3 };
                list.extend(len.to_be_bytes());
                list.extend(key.to_be_bytes());
                list.extend(addr.to_be_bytes());
            }
            let mut wr = request(Operation::UpdateKey, 77, &[]);
            wr.is_inline = true;
            wr.inline = list;
            let change = KeyUpdate {
                len: Some(len),
                translation_octwords: 4,
                ..arm(key, format, 0, true)
            };
            wr.key_update = Some(Box::new(change));
            lab.post(&b, wr);
            lab.settle();
            let status = sent(&b.cq.poll())[0].1;
            prop_assert_eq!(status == Status::Success, format.is_valid());
        }
        for (addr, len, how) in uses {
            let (a, b) = lab.pair(Transport::Rc);
            let sge = lab.sge(0, OTHER, len);
            let by_key = hca::work::Sge { addr, lkey: key, len };
            let wr = match how {
                0 => remote(Operation::Read, 1, &[sge], addr, key),
                1 => remote(Operation::Write, 1, &[sge], addr, key),
                2 => request(Operation::Send, 1, &[sge]),
                _ => request(Operation::Nop, 1, &[]),
            };
            lab.receive(&b, 1, &[by_key]);
            if how == 3 {
                lab.receive(&a, 1, &[sge]);
                lab.post(&b, request(Operation::Send, 1, &[by_key]));
            }
            lab.post(&a, wr);
            lab.advance(crate::lab::TIMEOUT_NS);
        }
        // The other function goes on.
        let (a, b) = lab.pair(Transport::Rc);
        let (from, to) = (lab.sge(0, 0, 100), lab.sge(1, 0, 100));
        lab.receive(&b, 9, &[to]);
        lab.post(&a, request(Operation::Send, 9, &[from]));
        prop_assert_eq!(sent(&run_until(&mut lab, &a)), [(9, Status::Success)]);
    }
}
