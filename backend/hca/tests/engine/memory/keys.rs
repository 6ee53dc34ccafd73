//! Memory keys: translations, updates by work requests, invalidation.

use hca::mr::{Access, Klm, KlmList, MemoryKey, Translation};
use hca::uniform::Stretches;
use hca::work::{KeyUpdate, Operation, SendWr, Status};
use hca::{PageList, QpState, Quota, RecvSide, Transport, VerbError};
use wire::Qpn;

use crate::lab::{
    Lab, Qp, VARIANT, base, everything, pattern, physical, received, remote, request, sent,
};

/// A key that work requests may change: free, without translations.
fn updatable(pd: u32, translation: Translation, capacity: usize) -> MemoryKey {
    MemoryKey {
        free: true,
        updatable: true,
        start: 0,
        len: 0,
        access: Access::NONE,
        translation,
        capacity,
        ..physical(pd)
    }
}

fn pages(log_size: u8) -> Translation {
    Translation::Pages {
        log_size,
        pages: PageList::default(),
    }
}

/// A request that changes a key; the translations are inline.
fn update(index: u16, change: KeyUpdate, translations: &[u8]) -> SendWr {
    let mut wr = request(Operation::UpdateKey, index, &[]);
    wr.is_inline = true;
    wr.inline = translations.to_vec();
    wr.key_update = Some(Box::new(KeyUpdate {
        translation_octwords: (translations.len() / 16) as u32,
        ..change
    }));
    wr
}

/// Key update of a fast registration of `len` bytes at `start`.
fn registration(mkey: u32, start: u64, len: u64) -> KeyUpdate {
    KeyUpdate {
        mkey,
        variant: Some(mkey as u8),
        free: Some(false),
        start: Some(start),
        len: Some(len),
        log_page_size: Some(12),
        local_read: Some(true),
        local_write: Some(true),
        remote_read: Some(true),
        remote_write: Some(true),
        check_free: true,
        ..KeyUpdate::default()
    }
}

fn be_pages(pages: &[u64]) -> Vec<u8> {
    pages.iter().flat_map(|page| page.to_be_bytes()).collect()
}

fn write_at(lab: &mut Lab, a: &Qp, addr: u64, len: u32, rkey: u32) -> Status {
    let sge = lab.sge(0, 0, len);
    lab.execute(a, remote(Operation::Write, 1, &[sge], addr, rkey));
    sent(&a.cq.poll())[0].1
}

#[test]
fn pages_anywhere_make_one_region() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let vf = lab.nodes[1].vf;
    let order = [7_u64, 3, 4, 0, 9];
    let key = MemoryKey {
        start: 0x7f00_0123,
        len: 4 * 4096 + 100,
        translation: Translation::Pages {
            log_size: 12,
            pages: PageList::new(12, order.map(|page| base(1) + page * 4096)),
        },
        ..physical(lab.nodes[1].pd)
    };
    let rkey = lab.engine.verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
    let data = pattern(1, 4 * 4096 + 100);
    lab.memory(0).write(base(0), &data);
    assert_eq!(
        write_at(&mut lab, &a, 0x7f00_0123, data.len() as u32, rkey),
        Status::Success
    );
    for (i, byte) in data.iter().enumerate().step_by(61) {
        let at = 0x123 + i;
        let page = order[at / 4096];
        let addr = base(1) + page * 4096 + (at % 4096) as u64;
        assert_eq!(lab.memory(1).read(addr, 1)[0], *byte, "byte {i}");
    }
    assert_eq!(
        write_at(&mut lab, &a, 0x7f00_0124, data.len() as u32, rkey),
        Status::RemoteAccess
    );
}

/// UCX begins its keys for atomics some bytes behind a stretch's size, by which connections to other processes differ.
#[test]
fn stretches_of_one_size_begin_where_their_key_does() {
    let mut lab = Lab::new(2);
    let (a, _b) = lab.pair(Transport::Rc);
    let (vf, pd, whole) = (lab.nodes[1].vf, lab.nodes[1].pd, lab.nodes[1].key);
    let mut list = Stretches::default();
    let [first, second] = [base(1) + 0x3000, base(1) + 0x1000];
    list.replace(0, [(whole, first), (whole, second)].into_iter());
    let start = 0x7f00_0018;
    let key = MemoryKey {
        start,
        len: 2 * 4096,
        translation: Translation::Uniform { log_size: 12, list },
        ..physical(pd)
    };
    let rkey = lab.engine.verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
    let data = pattern(1, 100);
    lab.memory(0).write(base(0), &data);
    let found = write_at(&mut lab, &a, start + 4096 - 6, 100, rkey);
    assert_eq!(found, Status::Success);
    assert_eq!(lab.memory(1).read(first + 4096 - 6, 6), data[..6]);
    assert_eq!(lab.memory(1).read(second, 94), data[6..]);
    let found = write_at(&mut lab, &a, start + 2 * 4096 - 99, 100, rkey);
    assert_eq!(found, Status::RemoteAccess);
}

#[test]
fn fast_registration_from_first_use_to_revocation() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let pd = lab.nodes[1].pd;
    let index = lab
        .engine
        .verbs(b.vf)
        .create_key(updatable(pd, pages(12), 16))
        .unwrap();
    let mut variant = 0x10_u32;
    for round in 0..3_u64 {
        // Each registration has another variant, which the request bears.
        variant += 1;
        let rkey = index << 8 | variant;
        let list = be_pages(&[base(1) + (5 + round) * 4096, base(1) + 2 * 4096]);
        lab.execute(&b, update(1, registration(rkey, 0x5000_0800, 4096), &list));
        assert_eq!(sent(&b.cq.poll()), [(1, Status::Success)]);
        let data = pattern(round, 4096);
        lab.memory(0).write(base(0), &data);
        assert_eq!(
            write_at(&mut lab, &a, 0x5000_0800, 4096, rkey),
            Status::Success
        );
        let memory = lab.memory(1);
        assert_eq!(
            memory.read(base(1) + (5 + round) * 4096 + 0x800, 0x800),
            data[..0x800]
        );
        assert_eq!(memory.read(base(1) + 2 * 4096, 0x800), data[0x800..]);
        // Local invalidation, as work of its own and as an update.
        if round == 0 {
            let mut wr = request(Operation::LocalInvalidate, 2, &[]);
            wr.immediate = rkey;
            lab.execute(&b, wr);
        } else {
            let revoke = KeyUpdate {
                mkey: rkey,
                free: Some(true),
                ..KeyUpdate::default()
            };
            lab.execute(&b, update(2, revoke, &[]));
        }
        assert_eq!(sent(&b.cq.poll()), [(2, Status::Success)]);
    }
    let rkey = index << 8 | variant;
    assert_eq!(
        write_at(&mut lab, &a, 0x5000_0800, 8, rkey),
        Status::RemoteAccess
    );
}

#[test]
fn a_list_in_memory_replaces_a_part() {
    let mut lab = Lab::new(1);
    let (pd, vf) = (lab.nodes[0].pd, lab.nodes[0].vf);
    let index = lab
        .engine
        .verbs(vf)
        .create_key(updatable(pd, pages(12), 8))
        .unwrap();
    let qp = lab.qp(0, Transport::KeyUpdate);
    let change = lab.attributes(&qp);
    lab.bring_up(&qp, &change);
    lab.memory(0)
        .write(base(0), &be_pages(&[0x1000, 0x2000, 0x3000, 0x4000]));
    // The driver pads lists to 64 bytes: what is beyond the key is dropped.
    for (offset, octwords, fits) in [
        (0, 2, true),
        (2, 2, true),
        (1, 1, true),
        (3, 4, true),
        (3, 6, false),
    ] {
        let list = lab.sge(0, 0, octwords * 16);
        let mut wr = request(Operation::UpdateKey, 1, &[list]);
        wr.key_update = Some(Box::new(KeyUpdate {
            mkey: index << 8 | u32::from(VARIANT),
            translation_offset: offset,
            translation_octwords: octwords,
            ..KeyUpdate::default()
        }));
        lab.execute(&qp, wr);
        let status = if fits {
            Status::Success
        } else {
            Status::MemoryBind
        };
        assert_eq!(sent(&qp.cq.poll()), [(1, status)]);
    }
    let key = lab.engine.vf(vf).keys().get(index).unwrap();
    let Translation::Pages { pages, .. } = &key.translation else {
        panic!("pages");
    };
    assert_eq!(
        pages.iter().collect::<Vec<_>>(),
        [
            0x1000, 0x2000, 0x1000, 0x2000, 0x1000, 0x2000, 0x1000, 0x2000
        ]
    );
    // A key update that fails is the end of its queue pair.
    assert_eq!(lab.state(&qp), QpState::Error);
}

#[test]
fn updates_that_are_refused_change_nothing() {
    type Spoil = fn(&mut KeyUpdate, u32);
    let spoils: [(&str, Spoil); 6] = [
        ("another key", |update, _| update.mkey ^= 0x1000_0000),
        ("stale variant", |update, _| {
            update.variant = None;
            update.mkey ^= 1;
        }),
        ("a page size", |update, _| update.log_page_size = Some(11)),
        ("into another domain", |update, other| {
            update.pd = Some(other)
        }),
        ("too far", |update, _| update.translation_offset = u64::MAX),
        ("not free", |update, _| update.check_free = true),
    ];
    for (what, spoil) in spoils {
        let mut lab = Lab::new(2);
        let (_a, b) = lab.pair(Transport::Rc);
        let (pd, other) = (
            lab.nodes[1].pd,
            lab.engine.vf_mut(lab.nodes[1].vf).alloc_pd().unwrap(),
        );
        let mut key = updatable(pd, pages(12), 16);
        key.free = false;
        let index = lab.engine.verbs(b.vf).create_key(key.clone()).unwrap();
        let mut change = registration(index << 8 | u32::from(VARIANT), 0x1000, 4096);
        change.check_free = false;
        spoil(&mut change, other);
        lab.execute(&b, update(1, change, &be_pages(&[0x1000, 0x2000])));
        assert_eq!(sent(&b.cq.poll()), [(1, Status::MemoryBind)], "{what}");
        assert_eq!(lab.engine.vf(b.vf).keys().get(index), Some(&key), "{what}");
    }
    // Keys that are not made for it, and those of other domains.
    let mut lab = Lab::new(2);
    let other = lab.engine.vf_mut(lab.nodes[1].vf).alloc_pd().unwrap();
    for (pd, may) in [(lab.nodes[1].pd, false), (other, true)] {
        let (_a, b) = lab.pair(Transport::Rc);
        let mut key = updatable(pd, pages(12), 16);
        key.updatable = may;
        let index = lab.engine.verbs(b.vf).create_key(key.clone()).unwrap();
        let change = registration(index << 8 | u32::from(VARIANT), 0x1000, 4096);
        lab.execute(&b, update(1, change, &be_pages(&[0x1000, 0x2000])));
        assert_eq!(sent(&b.cq.poll()), [(1, Status::MemoryBind)]);
        assert_eq!(lab.engine.vf(b.vf).keys().get(index), Some(&key));
        let (_a, b) = lab.pair(Transport::Rc);
        let mut wr = request(Operation::LocalInvalidate, 1, &[]);
        wr.immediate = index << 8 | u32::from(VARIANT);
        lab.execute(&b, wr);
        assert_eq!(sent(&b.cq.poll()), [(1, Status::MemoryBind)]);
    }
}

/// As libmlx5 asks it of keys of `mlx5dv`, and of memory windows of type 2.
#[test]
fn keys_are_invalidated_by_queue_pairs_that_may_use_them() {
    type Only = fn(Qpn) -> Option<Qpn>;
    let cases: [(&str, bool, Only, Status); 4] = [
        ("anybody's", false, |_| None, Status::Success),
        ("its own", false, Some, Status::Success),
        (
            "another's",
            false,
            |own| Some(Qpn::new(own.value() ^ 1)),
            Status::MemoryBind,
        ),
        ("free", true, |_| None, Status::MemoryBind),
    ];
    for (what, free, only, ends) in cases {
        let mut lab = Lab::new(2);
        let (_a, b) = lab.pair(Transport::Rc);
        let mut key = updatable(lab.nodes[1].pd, pages(12), 16);
        key.free = free;
        key.qpn = only(b.qpn);
        let index = lab.engine.verbs(b.vf).create_key(key).unwrap();
        let change = KeyUpdate {
            mkey: index << 8 | u32::from(VARIANT),
            free: Some(true),
            check_qpn: true,
            ..KeyUpdate::default()
        };
        lab.execute(&b, update(1, change, &[]));
        assert_eq!(sent(&b.cq.poll()), [(1, ends)], "{what}");
        let free = lab.engine.vf(b.vf).keys().get(index).unwrap().free;
        assert_eq!(free, what != "another's", "{what}");
    }
}

#[test]
fn the_kernels_own_queue_pair_moves_keys_between_domains() {
    let mut lab = Lab::new(1);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    let user = lab.engine.vf_mut(vf).alloc_pd().unwrap();
    let index = lab
        .engine
        .verbs(vf)
        .create_key(updatable(pd, pages(12), 16))
        .unwrap();
    let qp = lab.qp_with(0, Transport::KeyUpdate, |desc| desc.recv = RecvSide::None);
    let change = lab.attributes(&qp);
    lab.bring_up(&qp, &change);
    let mut change = registration(index << 8 | u32::from(VARIANT), 0x1000, 4096);
    change.pd = Some(user);
    lab.execute(&qp, update(1, change, &be_pages(&[base(0), 0])));
    assert_eq!(sent(&qp.cq.poll()), [(1, Status::Success)]);
    assert_eq!(
        lab.engine.vf_mut(vf).dealloc_pd(user),
        Err(VerbError::InUse)
    );
    let revoke = KeyUpdate {
        mkey: index << 8 | u32::from(VARIANT),
        free: Some(true),
        pd: Some(pd),
        ..KeyUpdate::default()
    };
    lab.execute(&qp, update(2, revoke, &[]));
    assert_eq!(sent(&qp.cq.poll()), [(2, Status::Success)]);
    assert_eq!(lab.engine.vf_mut(vf).dealloc_pd(user), Ok(()));
    // It carries no messages.
    lab.execute(&qp, request(Operation::Send, 3, &[]));
    assert_eq!(sent(&qp.cq.poll()), [(3, Status::LocalQpOperation)]);
}

#[test]
fn peers_invalidate_what_they_may() {
    for (allowed, wrong, ok) in [(true, 0, true), (false, 0, false), (true, 1, false)] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let mut key = physical(lab.nodes[1].pd);
        key.remote_invalidate = allowed;
        let rkey = lab.engine.verbs(b.vf).create_key(key).unwrap() << 8 | u32::from(VARIANT);
        lab.receive(&b, 6, &[lab.sge(1, 0, 10)]);
        let sge = lab.sge(0, 0, 10);
        let mut wr = request(Operation::SendInvalidate, 1, &[sge]);
        wr.immediate = rkey ^ wrong;
        lab.execute(&a, wr);
        let free = lab.engine.vf(b.vf).keys().get(rkey >> 8).unwrap().free;
        assert_eq!(free, ok);
        if ok {
            assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
            assert_eq!(
                received(&b.cq.poll()),
                [(
                    6,
                    Status::Success,
                    10,
                    hca::work::RecvKind::SendInvalidate,
                    rkey
                )]
            );
        } else {
            assert_eq!(sent(&a.cq.poll()), [(1, Status::RemoteAccess)]);
            assert_eq!(received(&b.cq.poll())[0].1, Status::LocalAccess);
            assert_eq!(lab.state(&b), QpState::Error);
        }
    }
}

#[test]
fn indirect_keys_reach_through_keys_that_only_the_device_may_use() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let pd = lab.nodes[1].pd;
    // As the kernel's own key of a domain: no remote rights.
    let inner = MemoryKey {
        access: Access::LOCAL_READ | Access::LOCAL_WRITE,
        ..physical(pd)
    };
    let inner = lab.engine.verbs(b.vf).create_key(inner).unwrap() << 8 | u32::from(VARIANT);
    let stretch = |addr: u64, len: u32| Klm {
        len,
        key: inner,
        addr: base(1) + addr,
    };
    let outer = MemoryKey {
        start: 0x100,
        len: 300,
        translation: Translation::Indirect(KlmList::new(vec![
            stretch(0x1001, 7),
            stretch(0x5000, 200),
            stretch(0x3003, 93),
        ])),
        ..physical(pd)
    };
    let outer = lab.engine.verbs(b.vf).create_key(outer).unwrap() << 8 | u32::from(VARIANT);
    let data = pattern(4, 300);
    lab.memory(0).write(base(0), &data);
    assert_eq!(write_at(&mut lab, &a, 0x100, 300, outer), Status::Success);
    let memory = lab.memory(1);
    let mut got = memory.read(base(1) + 0x1001, 7);
    got.extend(memory.read(base(1) + 0x5000, 200));
    got.extend(memory.read(base(1) + 0x3003, 93));
    assert_eq!(got, data);
    let sge = lab.sge(0, 0x800, 300);
    lab.execute(&a, remote(Operation::Read, 2, &[sge], 0x100, outer));
    assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
    assert_eq!(lab.memory(0).read(base(0) + 0x800, 300), data);
    // An atomic that straddles stretches, or lies off alignment, is refused.
    let sge = lab.sge(0, 0, 8);
    lab.execute(&a, remote(Operation::FetchAdd, 3, &[sge], 0x100, outer));
    assert_eq!(sent(&a.cq.poll()), [(3, Status::RemoteAccess)]);
    // The inner key goes: so does the way through.
    let (a, _b) = lab.pair(Transport::Rc);
    lab.engine.vf_mut(b.vf).destroy_key(inner >> 8).unwrap();
    assert_eq!(
        write_at(&mut lab, &a, 0x100, 300, outer),
        Status::RemoteAccess
    );
}

#[test]
fn indirect_keys_are_updated_in_part() {
    let mut lab = Lab::new(1);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    let index = lab
        .engine
        .verbs(vf)
        .create_key(updatable(pd, Translation::Indirect(KlmList::default()), 4))
        .unwrap();
    let qp = lab.qp(0, Transport::KeyUpdate);
    let change = lab.attributes(&qp);
    lab.bring_up(&qp, &change);
    let klm = |len: u32| {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend(7_u32.to_be_bytes());
        bytes.extend(9_u64.to_be_bytes());
        bytes
    };
    for (offset, lens) in [(2_u64, vec![30_u32]), (0, vec![10, 20]), (1, vec![21])] {
        let bytes: Vec<u8> = lens.into_iter().flat_map(klm).collect();
        let change = KeyUpdate {
            mkey: index << 8 | u32::from(VARIANT),
            translation_offset: offset,
            ..KeyUpdate::default()
        };
        lab.execute(&qp, update(1, change, &bytes));
        assert_eq!(sent(&qp.cq.poll()), [(1, Status::Success)]);
    }
    let key = lab.engine.vf(vf).keys().get(index).unwrap();
    let entry = |len: u32| Klm {
        len,
        key: 7,
        addr: 9,
    };
    assert_eq!(
        key.translation,
        Translation::Indirect(KlmList::new(vec![entry(10), entry(21), entry(30)]))
    );
}

#[test]
fn translations_count_against_a_quota() {
    let quota = Quota {
        memory: 1 << 20,
        ..Quota::default()
    };
    let mut lab = Lab::with_quota(1, quota);
    let (vf, pd) = (lab.nodes[0].vf, lab.nodes[0].pd);
    let with = |count: usize| MemoryKey {
        translation: Translation::Pages {
            log_size: 12,
            pages: PageList::new(12, (0..count).rev().map(|page| page as u64 * 4096)),
        },
        ..physical(pd)
    };
    assert_eq!(
        lab.engine.verbs(vf).create_key(with(300_000)),
        Err(VerbError::Exhausted)
    );
    let full = lab.engine.verbs(vf).create_key(with(200_000)).unwrap();
    let index = lab
        .engine
        .verbs(vf)
        .create_key(updatable(pd, pages(12), 1 << 40))
        .unwrap();
    let mut results = Vec::new();
    for octwords in [2, 1 << 15] {
        let qp = lab.qp(0, Transport::KeyUpdate);
        let change = lab.attributes(&qp);
        lab.bring_up(&qp, &change);
        let change = KeyUpdate {
            mkey: index << 8 | u32::from(VARIANT),
            translation_offset: octwords - 2,
            ..KeyUpdate::default()
        };
        lab.execute(&qp, update(1, change.clone(), &[0; 32]));
        results.push(sent(&qp.cq.poll())[0].1);
        // Nor is anything reserved for what an offset far away promises.
        let change = KeyUpdate {
            translation_offset: 1 << 38,
            ..change
        };
        lab.execute(&qp, update(2, change, &[0; 16]));
        assert_ne!(sent(&qp.cq.poll())[0].1, Status::Success);
    }
    assert_eq!(results, [Status::Success, Status::MemoryBind]);
    lab.engine.vf_mut(vf).destroy_key(full).unwrap();
    assert!(lab.engine.verbs(vf).create_key(with(200_000)).is_ok());
    // Sizes that no page has.
    for log_size in [0, 11, 41, 63, 64, 255] {
        let key = MemoryKey {
            translation: pages(log_size),
            access: everything(),
            ..physical(pd)
        };
        assert_eq!(
            lab.engine.verbs(vf).create_key(key),
            Err(VerbError::Invalid)
        );
    }
}
