//! Messages whose entry of a list of tags has memory that is not there when they come.

use hca::work::{RecvWr, Status, TagEvent};
use hca::{ABSENT, Half, Needed, PageFault, QpState};

use super::{ALL, EAGER, Tags, header, told};
use crate::lab::{Lab, Qp, Way, base, pattern, sent};
use crate::memory::paging::{PAGE, PAGES, at, faults, paged, resume, set};

/// Without loss: who waits is asked again very often.
fn ways() -> [Way; 4] {
    [
        Way::Copied,
        Way::Frames,
        Way::Packets(0, 1),
        Way::Engines(0, 0),
    ]
}

/// A receiver by tags whose entry for tag 1 has memory without pages; its key and index.
fn without_pages(way: Way, room: u32) -> (Lab, Tags, (Qp, Qp), u32, u16) {
    let mut lab = Lab::new(2);
    lab.go(way);
    let mut tags = lab.tags(1);
    let pair = lab.tagged_pair(0, &tags);
    let key = paged(&mut lab, 1, 4, ABSENT);
    // From the middle of the first page on.
    let slot = lab.add_to(&mut tags, 1, ALL, at(1, 0x800, room, key), 0);
    tags.on.1.poll();
    (lab, tags, pair, key, slot)
}

/// The one page fault of this queue pair: address and length of the needed memory, and the length that was present.
fn told_of(lab: &Lab, to: &Qp, half: Half, key: u32) -> (u64, u32, u32) {
    let told = faults(lab, 1);
    let [
        PageFault {
            qpn,
            half: whose,
            of,
            committed,
            ..
        },
    ] = told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((qpn, whose), (to.qpn, half));
    let Needed::Memory {
        key: named,
        addr,
        len,
        writes: true,
    } = of
    else {
        panic!("{of:?}")
    };
    assert_eq!(named, key);
    (addr - base(1) - PAGES, len, committed)
}

#[test]
fn a_message_waits_for_the_pages_of_its_entry() {
    for way in ways() {
        // Drivers bring what they are told of, so it is no more than the message has: an entry may name more than
        // its key does.
        let (mut lab, tags, (from, to), key, slot) = without_pages(way, 4 * PAGE as u32);
        let data = pattern(3, 2 * PAGE as usize);
        lab.tell(&from, 4, &header(EAGER, 0, 1), &data);
        let ended = [from.cq.poll(), tags.on.1.poll()].concat();
        assert!(ended.is_empty(), "{way:?}: {ended:?}");
        let (addr, len, committed) = told_of(&lab, &to, Half::Responder, key);
        assert_eq!((addr, committed), (0x800, 0), "{way:?}");
        assert!((1..=data.len() as u32).contains(&len), "{way:?}: {len}");
        // Some come, and the next one is told of.
        set(&mut lab, 1, key, 0..2, 0);
        assert_eq!(resume(&mut lab, &to, Half::Responder, true), Ok(()));
        lab.wait_long();
        let (addr, len, committed) = told_of(&lab, &to, Half::Responder, key);
        assert_eq!(addr, 0x800);
        assert!(
            committed <= 0x1800 && len > committed && len <= data.len() as u32,
            "{way:?}"
        );
        set(&mut lab, 1, key, 0..4, 0);
        assert_eq!(resume(&mut lab, &to, Half::Responder, true), Ok(()));
        lab.wait_long();
        assert_eq!(sent(&from.cq.poll()), [(4, Status::Success)], "{way:?}");
        let whole = (slot, TagEvent::Whole, data.len() as u32, 1);
        assert_eq!(told(&tags.on.1.poll()), [whole], "{way:?}");
        assert!(lab.memory(1).read(base(1) + PAGES + 0x800, data.len()) == data);
        assert_eq!(faults(&lab, 1), []);
    }
}

#[test]
fn a_message_that_no_entry_has_waits_for_the_pages_of_its_receive_request() {
    for way in ways() {
        let (mut lab, tags, (from, to), key, _) = without_pages(way, 0x100);
        let elements = vec![lab.sge(1, 0xa000, 20), at(1, PAGE, 0x1000, key)];
        tags.recv.push(Ok(RecvWr {
            index: 5,
            sges: elements,
            held: Vec::new(),
        }));
        let data = pattern(4, 100);
        lab.tell(&from, 4, &header(EAGER, 0, 2), &data);
        let (addr, len, committed) = told_of(&lab, &to, Half::Responder, key);
        assert_eq!((addr, len, committed), (PAGE, 96, 0), "{way:?}");
        set(&mut lab, 1, key, 0..4, 0);
        assert_eq!(resume(&mut lab, &to, Half::Responder, true), Ok(()));
        lab.wait_long();
        let unexpected = (5, TagEvent::Unexpected, 116, 0);
        assert_eq!(told(&tags.on.1.poll()), [unexpected], "{way:?}");
        assert!(lab.memory(1).read(base(1) + PAGES + PAGE, 96) == data[4..]);
        let view = lab.look_home(to.vf).query_tags(to.vf, tags.srqn).unwrap();
        assert_eq!(view.unwrap().unexpected, 1, "{way:?}: once");
    }
}

#[test]
fn what_reads_the_message_of_a_rendezvous_waits_for_the_pages_of_its_entry() {
    for way in ways() {
        let (mut lab, tags, (from, to), key, slot) = without_pages(way, 4 * PAGE as u32);
        let data = pattern(5, 0x1400);
        lab.memory(0).write(base(0) + 0x10, &data);
        lab.receive(&from, 3, &[lab.sge(0, 0x9000, 0x100)]);
        let own = lab.nodes[0].key;
        lab.rendezvous(&from, 4, 1, (0x10, data.len() as u32), own);
        let matched = (slot, TagEvent::Matched, 0, 1);
        assert_eq!(told(&tags.on.1.poll()), [matched], "{way:?}");
        assert_eq!(sent(&from.cq.poll()), [(4, Status::Success)], "{way:?}");
        let (addr, len, _) = told_of(&lab, &to, Half::Requester, key);
        assert_eq!((addr, len), (0x800, data.len() as u32), "{way:?}");
        // The other half goes on.
        lab.receive_shared(&tags, 2, (0xa000, 0x100));
        lab.tell(&from, 5, &[0], &[]);
        assert_eq!(told(&tags.on.1.poll()), [(2, TagEvent::NoTag, 1, 0)]);
        set(&mut lab, 1, key, 0..4, 0);
        assert_eq!(resume(&mut lab, &to, Half::Requester, true), Ok(()));
        lab.wait_long();
        let there = (slot, TagEvent::Received, data.len() as u32, 0);
        assert_eq!(told(&tags.on.1.poll()), [there], "{way:?}");
        assert!(lab.memory(1).read(base(1) + PAGES + 0x800, data.len()) == data);
        assert_eq!(from.cq.poll().len(), 2, "sent, and told");
    }
}

#[test]
fn a_message_whose_pages_do_not_come_fails() {
    for way in ways() {
        let (mut lab, tags, (from, to), _, slot) = without_pages(way, PAGE as u32);
        lab.tell(&from, 4, &header(EAGER, 0, 1), b"data");
        assert_eq!(resume(&mut lab, &to, Half::Responder, false), Ok(()));
        lab.wait_long();
        let failed = (4, Status::RemoteOperation);
        assert_eq!(sent(&from.cq.poll()), [failed], "{way:?}");
        let canceled = (slot, TagEvent::Canceled, 0, 1);
        assert_eq!(told(&tags.on.1.poll()), [canceled], "{way:?}");
        assert_eq!(lab.state(&to), QpState::Error, "{way:?}");

        let (mut lab, tags, (from, to), _, slot) = without_pages(way, PAGE as u32);
        let own = lab.nodes[0].key;
        lab.rendezvous(&from, 4, 1, (0x10, 0x100), own);
        assert_eq!(resume(&mut lab, &to, Half::Requester, false), Ok(()));
        lab.wait_long();
        let matched = (slot, TagEvent::Matched, 0, 1);
        let canceled = (slot, TagEvent::Canceled, 0, 0);
        assert_eq!(told(&tags.on.1.poll()), [matched, canceled], "{way:?}");
        assert_eq!(lab.state(&to), QpState::Error, "{way:?}");
    }
}

#[test]
fn images_of_queue_pairs_that_wait_for_the_pages_of_an_entry() {
    for (way, elsewhere) in [
        (Way::Copied, false),
        (Way::Copied, true),
        (Way::Frames, false),
        (Way::Packets(0, 99), true),
    ] {
        for rendezvous in [false, true] {
            let (mut lab, tags, (from, to), key, slot) = without_pages(way, PAGE as u32);
            let data = pattern(6, 0x400);
            lab.memory(0).write(base(0) + 0x10, &data);
            lab.receive(&from, 3, &[lab.sge(0, 0x9000, 0x100)]);
            let half = if rendezvous {
                let own = lab.nodes[0].key;
                lab.rendezvous(&from, 4, 1, (0x10, data.len() as u32), own);
                Half::Requester
            } else {
                lab.tell(&from, 4, &header(EAGER, 0, 1), &data);
                Half::Responder
            };
            assert_eq!(faults(&lab, 1).len(), 1, "{way:?}");
            lab.save_and_restore(1, elsewhere);
            lab.wait_long();
            assert_eq!(faults(&lab, 1), [], "{way:?}: it was told");
            tags.on.1.poll();
            set(&mut lab, 1, key, 0..4, 0);
            let to = Qp {
                vf: lab.nodes[1].vf,
                ..to
            };
            assert_eq!(resume(&mut lab, &to, half, true), Ok(()), "{way:?}");
            lab.wait_long();
            let entries = told(&tags.on.1.poll());
            let (index, _, len, _) = entries[0];
            assert_eq!((index, len), (slot, 0x400), "{way:?}: {entries:?}");
            assert!(lab.memory(1).read(base(1) + PAGES + 0x800, data.len()) == data);
        }
    }
}

/// Tags may be changed in a queue whose entries have no pages, and an entry may go before they come.
#[test]
fn entries_without_pages_may_be_removed() {
    let (mut lab, tags, (from, _), _, slot) = without_pages(Way::Copied, PAGE as u32);
    let remove = hca::work::TagOperation::Remove { index: slot };
    lab.change(&tags, remove, (0, 0), None);
    lab.receive_shared(&tags, 1, (0xa000, 0x100));
    tags.on.1.poll();
    lab.tell(&from, 4, &header(EAGER, 0, 1), b"data");
    assert_eq!(told(&tags.on.1.poll()), [(1, TagEvent::Unexpected, 20, 0)]);
    assert_eq!(faults(&lab, 1), []);
}
