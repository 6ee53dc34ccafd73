//! Messages that are matched with tags.

#[path = "tags/paging.rs"]
mod paging;

use hca::work::{
    CompletionEntry, Operation, RecvKind, RecvWr, SendWr, Sge, Side, Status, TagChange, TagEvent,
    TagOperation,
};
use hca::{QpState, RecvSide, Transport, VerbError};

use crate::lab::{Cq, Lab, Qp, Ring, Way, base, pattern, received, request, sent};

/// A shared receive queue with tags, and the queue pair that changes them.
struct Tags {
    node: usize,
    srqn: u32,
    recv: Ring<RecvWr>,
    on: (u32, Cq),
    command: Qp,
    /// Indices that are free, the next one first.
    free: Vec<u16>,
}

const EAGER: u8 = 3;
const RENDEZVOUS: u8 = 1;
const ALL: u64 = u64::MAX;

fn ways() -> [Way; 6] {
    [
        Way::Copied,
        Way::Frames,
        Way::Packets(0, 1),
        Way::Packets(8, 12345),
        Way::Engines(0, 0),
        Way::Engines(8, 777),
    ]
}

fn header(opcode: u8, context: u32, tag: u64) -> [u8; 16] {
    let mut header = [0; 16];
    header[0] = opcode;
    header[4..8].copy_from_slice(&context.to_be_bytes());
    header[8..].copy_from_slice(&tag.to_be_bytes());
    header
}

impl Lab {
    fn tags(&mut self, node: usize) -> Tags {
        let on = self.cq(node, 4096);
        let recv = self.shared_ring();
        let (vf, pd) = (self.nodes[node].vf, self.nodes[node].pd);
        let home = self.home(vf);
        let list = (on.0, 7, true);
        let srqn = home
            .verbs(vf)
            .create_tagged_srq(pd, list, recv.clone())
            .unwrap();
        let command = self.qp_on(node, Transport::Rc, on.clone(), |desc| {
            desc.recv = RecvSide::Shared(srqn);
        });
        let change = self.attributes(&command);
        self.bring_up(&command, &change);
        Tags {
            node,
            srqn,
            recv,
            on,
            command,
            free: (0..128).collect(),
        }
    }

    /// A sender, and its far end, which receives by tags and reads what rendezvous say.
    fn tagged_pair(&mut self, sender: usize, tags: &Tags) -> (Qp, Qp) {
        let from = self.qp(sender, Transport::Rc);
        let to = self.qp_on(tags.node, Transport::Rc, tags.on.clone(), |desc| {
            desc.recv = RecvSide::Shared(tags.srqn);
            desc.send = None;
        });
        // A wire that loses packets may lose some of the many attempts until there is a receive request.
        self.connect_with(&from, &to, |change| change.retry_count = Some(7));
        (from, to)
    }

    fn change(
        &mut self,
        tags: &Tags,
        operation: TagOperation,
        (at, len): (u64, u32),
        seen: Option<u16>,
    ) {
        let memory = self.sge(tags.node, at, len);
        self.change_to(tags, operation, memory, seen);
    }

    fn change_to(&mut self, tags: &Tags, operation: TagOperation, to: Sge, seen: Option<u16>) {
        let wr = SendWr {
            tags: TagChange {
                operation,
                signaled: true,
                seen,
            },
            signaled: false,
            ..request(Operation::ChangeTags, 77, &[to])
        };
        self.execute(&tags.command, wr);
    }

    /// Adds an entry for memory at this offset; its index.
    fn add(&mut self, tags: &mut Tags, tag: u64, mask: u64, at: (u64, u32), seen: u16) -> u16 {
        let memory = self.sge(tags.node, at.0, at.1);
        self.add_to(tags, tag, mask, memory, seen)
    }

    fn add_to(&mut self, tags: &mut Tags, tag: u64, mask: u64, to: Sge, seen: u16) -> u16 {
        let index = tags.free.remove(0);
        let next = tags.free[0];
        let append = TagOperation::Append { next, tag, mask };
        self.change_to(tags, append, to, Some(seen));
        index
    }

    /// Sends a header, and data after it, from offset 0x8000 on.
    fn tell(&mut self, from: &Qp, index: u16, header: &[u8], data: &[u8]) {
        let memory = self.memory(from.node);
        memory.write(base(from.node) + 0x8000, header);
        memory.write(base(from.node) + 0x8000 + header.len() as u64, data);
        let len = (header.len() + data.len()) as u32;
        let list = [self.sge(from.node, 0x8000, len)];
        self.execute(from, request(Operation::Send, index, &list));
        self.wait_long();
    }

    fn wait_long(&mut self) {
        for _ in 0..12 {
            self.advance(100_000_000);
        }
    }

    fn rendezvous(&mut self, from: &Qp, index: u16, tag: u64, (at, len): (u64, u32), key: u32) {
        let mut said = header(RENDEZVOUS, 0xc0de, tag).to_vec();
        said.extend((base(from.node) + at).to_be_bytes());
        said.extend(key.to_be_bytes());
        said.extend(len.to_be_bytes());
        self.tell(from, index, &said, b"and what software says of it");
    }
}

/// Tags in completions: index, event, length, tag.
fn told(entries: &[CompletionEntry]) -> Vec<(u16, TagEvent, u32, u64)> {
    let of = |entry: &CompletionEntry| match entry.side {
        Side::Tagged { event, header, .. } => {
            let tag = u64::from_be_bytes(header[8..].try_into().unwrap());
            Some((entry.index, event, entry.byte_len, tag))
        }
        _ => None,
    };
    entries.iter().filter_map(of).collect()
}

/// Changes in completions: whether it was made, and unexpected messages until then.
fn changed(entries: &[CompletionEntry]) -> Vec<(bool, u16)> {
    let of = |entry: &CompletionEntry| match entry.side {
        Side::Tags {
            done, unexpected, ..
        } => Some((done, unexpected)),
        _ => None,
    };
    entries.iter().filter_map(of).collect()
}

#[test]
fn a_message_goes_to_the_entry_that_its_tag_matches() {
    for way in ways() {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, _) = lab.tagged_pair(0, &tags);
        let one = lab.add(&mut tags, 0x11, 0xff, (0, 0x4000), 0);
        let other = lab.add(&mut tags, 0x22, 0xff, (0x4000, 0x4000), 0);
        assert_eq!(changed(&tags.on.1.poll()), [(true, 0), (true, 0)]);
        for (count, (index, tag, at, len)) in [
            (other, 0xab22, 0x4000_u64, 0x2fff_usize),
            (one, 0x0011, 0, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let data = pattern(tag, len);
            lab.tell(&from, 9, &header(EAGER, 5, tag), &data);
            assert_eq!(sent(&from.cq.poll()), [(9, Status::Success)], "{way:?}");
            let entries = tags.on.1.poll();
            let whole = (index, TagEvent::Whole, len as u32, tag);
            assert_eq!(told(&entries), [whole], "{way:?}: {entries:?}");
            assert_eq!(lab.memory(1).read(base(1) + at, len), data, "{way:?}");
            // Each entry takes one message.
            lab.receive_shared(&tags, count as u16, (0xa000, 0x100));
            lab.tell(&from, 9, &header(EAGER, 5, tag), b"more");
            assert_eq!(sent(&from.cq.poll()), [(9, Status::Success)], "{way:?}");
            let unexpected = (count as u16, TagEvent::Unexpected, 20, 0);
            assert_eq!(told(&tags.on.1.poll()), [unexpected], "{way:?}");
            let taken = lab.memory(1).read(base(1) + 0xa000, 20);
            assert_eq!(taken[16..], *b"more", "{way:?}");
        }
    }
}

impl Lab {
    fn receive_shared(&self, tags: &Tags, index: u16, (at, len): (u64, u32)) {
        tags.recv.push(Ok(RecvWr {
            index,
            sges: vec![self.sge(tags.node, at, len)],
            held: Vec::new(),
        }));
    }
}

#[test]
fn messages_without_a_tag_take_receive_requests_and_are_not_counted() {
    for way in ways() {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, _) = lab.tagged_pair(0, &tags);
        lab.add(&mut tags, 0, 0, (0, 0x100), 0);
        let short = header(EAGER, 0, 0);
        let finished = header(2, 7, 0);
        let said: [&[u8]; 5] = [&[0], &[], &short[..15], &finished, &[RENDEZVOUS; 31]];
        for (index, said) in (0..).zip(said) {
            lab.receive_shared(&tags, index, (0xa000, 0x100));
            lab.tell(&from, index, said, &[]);
            let entries = tags.on.1.poll();
            let no_tag = (index, TagEvent::NoTag, said.len() as u32, 0);
            assert_eq!(told(&entries), [no_tag], "{way:?}");
        }
        // A write with immediate data takes a request, too.
        lab.receive_shared(&tags, 6, (0xa000, 0x100));
        let key = lab.nodes[1].key;
        let wr = SendWr {
            immediate: 0x1234,
            ..crate::lab::remote(Operation::WriteImm, 6, &[], base(1), key)
        };
        lab.execute(&from, wr);
        lab.wait_long();
        let entries = tags.on.1.poll();
        assert_eq!(told(&entries), [(6, TagEvent::NoTag, 0, 0)], "{way:?}");
        assert!(matches!(
            entries[0].side,
            Side::Tagged {
                kind: RecvKind::WriteImm,
                immediate: 0x1234,
                ..
            }
        ));
        let view = lab.look_home(tags.command.vf);
        let view = view
            .query_tags(tags.command.vf, tags.srqn)
            .unwrap()
            .unwrap();
        assert_eq!((view.unexpected, view.listed), (0, 1));
    }
}

#[test]
fn the_adapter_reads_what_a_rendezvous_says_and_tells_the_sender() {
    for way in ways() {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, _) = lab.tagged_pair(0, &tags);
        let mut slots = Vec::new();
        for (at, len) in [(0, 0x7000), (0x7000, 0x100), (0x7100, 0)] {
            slots.push((lab.add(&mut tags, at, ALL, (at, len), 0), at, len));
        }
        assert_eq!(changed(&tags.on.1.poll()).len(), 3);
        for (slot, at, room) in slots {
            let len = room - room / 16;
            let data = pattern(at, len as usize);
            lab.memory(0).write(base(0) + 0x10, &data);
            lab.receive(&from, 3, &[lab.sge(0, 0x9000, 0x100)]);
            let key = lab.nodes[0].key;
            lab.rendezvous(&from, 4, at, (0x10, len), key);
            let entries = from.cq.poll();
            assert_eq!(sent(&entries), [(4, Status::Success)], "{way:?}");
            let finished = (3, Status::Success, 16, RecvKind::Send, 0);
            assert_eq!(received(&entries), [finished], "{way:?}");
            let said = lab.memory(0).read(base(0) + 0x9000, 16);
            assert_eq!(said, header(2, 0xc0de, at), "{way:?}");
            let matched = (slot, TagEvent::Matched, 0, at);
            let there = (slot, TagEvent::Received, len, 0);
            assert_eq!(told(&tags.on.1.poll()), [matched, there], "{way:?}");
            let taken = lab.memory(1).read(base(1) + at, len as usize);
            assert!(taken == data, "{way:?}: {len} bytes");
        }
    }
}

#[test]
fn entries_match_in_the_order_in_which_they_were_added() {
    let mut lab = Lab::new(2);
    let mut tags = lab.tags(1);
    let (from, _) = lab.tagged_pair(0, &tags);
    let wild = lab.add(&mut tags, 0, 0, (0, 0x100), 0);
    let exact = lab.add(&mut tags, 5, ALL, (0x100, 0x100), 0);
    for index in [wild, exact] {
        lab.tell(&from, 1, &header(EAGER, 0, 5), b"data");
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries, [(index, TagEvent::Whole, 4, 5)]);
    }
}

#[test]
fn entries_that_software_adds_before_it_has_seen_all_unexpected_messages_match_nothing() {
    let mut lab = Lab::new(2);
    let mut tags = lab.tags(1);
    let (from, _) = lab.tagged_pair(0, &tags);
    let before = lab.add(&mut tags, 1, ALL, (0, 0x100), 0);
    for index in 0..4 {
        lab.receive_shared(&tags, index, (0xa000, 0x100));
    }
    let send = |lab: &mut Lab, tags: &Tags, tag| {
        tags.on.1.poll();
        lab.tell(&from, 1, &header(EAGER, 0, tag), b"data");
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries.len(), 1);
        (entries[0].0, entries[0].1)
    };
    assert_eq!(send(&mut lab, &tags, 7), (0, TagEvent::Unexpected));
    // Software adds it for the message that it has not seen.
    let late = lab.add(&mut tags, 7, ALL, (0x100, 0x100), 0);
    assert_eq!(changed(&tags.on.1.poll()), [(true, 1)]);
    assert_eq!(send(&mut lab, &tags, 7), (1, TagEvent::Unexpected));
    // What was there before goes on.
    assert_eq!(send(&mut lab, &tags, 1), (before, TagEvent::Whole));
    lab.change(&tags, TagOperation::Nop, (0, 0), Some(1));
    assert_eq!(send(&mut lab, &tags, 7), (2, TagEvent::Unexpected));
    // Both are told in one: the entry goes, and what is added later matches again.
    lab.change(&tags, TagOperation::Remove { index: late }, (0, 0), Some(3));
    assert_eq!(changed(&tags.on.1.poll()), [(true, 3)]);
    assert_eq!(send(&mut lab, &tags, 7), (3, TagEvent::Unexpected));
    let last = lab.add(&mut tags, 7, ALL, (0, 0x100), 4);
    assert_eq!(send(&mut lab, &tags, 7), (last, TagEvent::Whole));
    // It is not there any more.
    lab.change(&tags, TagOperation::Remove { index: last }, (0, 0), None);
    assert_eq!(changed(&tags.on.1.poll()), [(false, 4)]);
}

#[test]
fn a_list_takes_no_more_than_it_has_room_for() {
    let mut lab = Lab::new(2);
    let mut tags = lab.tags(1);
    for _ in 0..127 {
        lab.add(&mut tags, 1, ALL, (0, 0x100), 0);
    }
    assert_eq!(changed(&tags.on.1.poll()).len(), 127);
    let (next, tag, mask) = (0, 1, ALL);
    let append = TagOperation::Append { next, tag, mask };
    lab.change(&tags, append, (0, 0x100), None);
    assert_eq!(changed(&tags.on.1.poll()), [(true, 0)]);
    // The next one is in use.
    lab.change(&tags, append, (0, 0x100), None);
    let entries = tags.on.1.poll();
    assert_eq!(changed(&entries), []);
    assert_eq!(sent(&entries), [(77, Status::LocalQpOperation)]);
    assert_eq!(lab.state(&tags.command), QpState::Error);

    // One that there cannot be.
    let tags = lab.tags(0);
    let next = 128;
    let append = TagOperation::Append { next, tag, mask };
    lab.change(&tags, append, (0, 0x100), None);
    assert_eq!(sent(&tags.on.1.poll()), [(77, Status::LocalQpOperation)]);
}

#[test]
fn only_a_queue_pair_that_is_connected_to_itself_changes_tags() {
    let mut lab = Lab::new(2);
    let tags = lab.tags(1);
    let other = lab.qp_on(1, Transport::Rc, tags.on.clone(), |desc| {
        desc.recv = RecvSide::Shared(tags.srqn);
    });
    let plain = lab.qp(0, Transport::Rc);
    lab.connect_with(&plain, &other, |_| {});
    let wr = || SendWr {
        signaled: false,
        ..request(Operation::ChangeTags, 8, &[])
    };
    for qp in [&other, &plain] {
        lab.execute(qp, wr());
        let entries = qp.cq.poll();
        assert_eq!(sent(&entries), [(8, Status::LocalQpOperation)]);
        assert_eq!(lab.state(qp), QpState::Error);
    }
    // Others than reliable connections have none.
    let (vf, pd) = (lab.nodes[1].vf, lab.nodes[1].pd);
    for transport in [Transport::Uc, Transport::Ud] {
        let refused = lab.engine.verbs(vf).create_qp(hca::QpDesc {
            counter_set: 0,
            user_index: None,
            in_completion: hca::InCompletion::default(),
            transport,
            pd,
            send: None,
            recv: RecvSide::Shared(tags.srqn),
            recv_cqn: Some(tags.on.0),
            source_qpn: None,
            block_multicast_loopback: false,
            offloads: false,
            polled: false,
        });
        assert_eq!(refused, Err(VerbError::Invalid));
    }
    // Queue and completion queue are in use.
    assert_eq!(
        lab.engine.verbs(vf).destroy_srq(tags.srqn),
        Err(VerbError::InUse)
    );
    assert!(lab.engine.verbs(vf).destroy_cq(tags.on.0).is_err());
}

#[test]
fn a_rendezvous_with_a_wrong_key_is_canceled() {
    for way in ways() {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, to) = lab.tagged_pair(0, &tags);
        let slot = lab.add(&mut tags, 1, ALL, (0, 0x1000), 0);
        lab.rendezvous(&from, 4, 1, (0x10, 0x800), 0xdead_0000);
        assert_eq!(sent(&from.cq.poll())[0], (4, Status::Success), "{way:?}");
        let matched = (slot, TagEvent::Matched, 0, 1);
        let canceled = (slot, TagEvent::Canceled, 0, 0);
        assert_eq!(told(&tags.on.1.poll()), [matched, canceled], "{way:?}");
        assert_eq!(lab.state(&to), QpState::Error, "{way:?}");
        // Nobody else suffers, and the entry is free.
        let (from, _) = lab.tagged_pair(0, &tags);
        tags.free.retain(|index| *index != slot);
        tags.free.insert(1, slot);
        lab.add(&mut tags, 2, ALL, (0, 0x1000), 0);
        lab.add(&mut tags, 3, ALL, (0, 0x1000), 0);
        lab.tell(&from, 1, &header(EAGER, 0, 3), b"data");
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries, [(slot, TagEvent::Whole, 4, 3)], "{way:?}");
    }
}

#[test]
fn what_has_no_room_in_its_entry_does_not_get_there() {
    for way in ways() {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, to) = lab.tagged_pair(0, &tags);
        let slot = lab.add(&mut tags, 1, ALL, (0, 0x1000), 0);
        lab.memory(1).write(base(1) + 0x1000, &[0x5a; 16]);
        // A rendezvous is left to software.
        lab.receive_shared(&tags, 2, (0xa000, 0x100));
        let key = lab.nodes[0].key;
        lab.rendezvous(&from, 4, 1, (0x10, 0x1001), key);
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries.last().unwrap().1, TagEvent::Unexpected, "{way:?}");
        assert_eq!(sent(&from.cq.poll()), [(4, Status::Success)], "{way:?}");
        // Other messages fail, as those that do not fit a receive request.
        lab.tell(&from, 5, &header(EAGER, 0, 1), &pattern(1, 0x1001));
        let failed = (5, Status::RemoteInvalidRequest);
        assert_eq!(sent(&from.cq.poll()), [failed], "{way:?}");
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries, [(slot, TagEvent::Canceled, 0, 1)], "{way:?}");
        assert_eq!(lab.state(&to), QpState::Error, "{way:?}");
        assert_eq!(lab.memory(1).read(base(1) + 0x1000, 16), [0x5a; 16]);
    }
}

#[test]
fn a_queue_pair_with_a_send_queue_leaves_rendezvous_to_software() {
    let mut lab = Lab::new(2);
    let mut tags = lab.tags(1);
    let from = lab.qp(0, Transport::Rc);
    let to = lab.qp_on(1, Transport::Rc, tags.on.clone(), |desc| {
        desc.recv = RecvSide::Shared(tags.srqn);
    });
    lab.connect_with(&from, &to, |_| {});
    lab.add(&mut tags, 1, ALL, (0, 0x1000), 0);
    lab.receive_shared(&tags, 2, (0xa000, 0x100));
    let key = lab.nodes[0].key;
    lab.rendezvous(&from, 4, 1, (0x10, 0x10), key);
    let entries = told(&tags.on.1.poll());
    assert_eq!(entries, [(2, TagEvent::Unexpected, 60, 0)]);
}

#[test]
fn an_unexpected_message_waits_for_a_receive_request_and_is_matched_anew() {
    for way in ways() {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, _) = lab.tagged_pair(0, &tags);
        let list = [lab.sge(0, 0x8000, 20)];
        let said = [&header(EAGER, 0, 1)[..], b"data"].concat();
        lab.memory(0).write(base(0) + 0x8000, &said);
        lab.execute(&from, request(Operation::Send, 1, &list));
        lab.advance(1_000_000);
        assert_eq!(told(&tags.on.1.poll()), [], "{way:?}");
        // It was not counted: nobody has seen it.
        let slot = lab.add(&mut tags, 1, ALL, (0, 0x100), 0);
        lab.wait_long();
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries, [(slot, TagEvent::Whole, 4, 1)], "{way:?}");
    }
}

#[test]
fn a_queue_pair_that_is_reset_gives_back_the_entries_of_its_messages() {
    let mut lab = Lab::new(2);
    let mut tags = lab.tags(1);
    let (from, to) = lab.tagged_pair(0, &tags);
    let slot = lab.add(&mut tags, 1, ALL, (0, 0x1000), 0);
    // The sender has no receive request for the last message.
    let key = lab.nodes[0].key;
    lab.rendezvous(&from, 4, 1, (0x10, 0x800), key);
    let matched = (slot, TagEvent::Matched, 0, 1);
    assert_eq!(told(&tags.on.1.poll()), [matched]);
    lab.modify(&to, QpState::Reset, &hca::QpChange::default());
    tags.free.insert(1, slot);
    lab.add(&mut tags, 1, ALL, (0, 0x1000), 0);
    lab.add(&mut tags, 2, ALL, (0, 0x1000), 0);
    assert_eq!(changed(&tags.on.1.poll()).len(), 2);
}

#[test]
fn an_image_has_tags_and_what_is_being_read() {
    for (way, elsewhere) in [
        (Way::Copied, false),
        (Way::Copied, true),
        (Way::Frames, false),
        (Way::Packets(8, 99), true),
    ] {
        let mut lab = Lab::new(2);
        lab.go(way);
        let mut tags = lab.tags(1);
        let (from, _) = lab.tagged_pair(0, &tags);
        let (first, second) = (
            lab.add(&mut tags, 1, ALL, (0, 0x1000), 0),
            lab.add(&mut tags, 2, ALL, (0x1000, 0x1000), 0),
        );
        tags.on.1.poll();
        let data = pattern(1, 0x800);
        lab.memory(0).write(base(0) + 0x10, &data);
        let key = lab.nodes[0].key;
        // It waits for a receive request at the sender.
        lab.rendezvous(&from, 4, 1, (0x10, 0x800), key);
        let matched = (first, TagEvent::Matched, 0, 1);
        assert_eq!(told(&tags.on.1.poll()), [matched], "{way:?}");
        lab.save_and_restore(1, elsewhere);
        lab.receive(&from, 3, &[lab.sge(0, 0x9000, 0x100)]);
        lab.wait_long();
        let there = (first, TagEvent::Received, 0x800, 0);
        assert_eq!(told(&tags.on.1.poll()), [there], "{way:?}");
        assert!(lab.memory(1).read(base(1), 0x800) == data, "{way:?}");
        lab.tell(&from, 1, &header(EAGER, 0, 2), b"data");
        let entries = told(&tags.on.1.poll());
        assert_eq!(entries, [(second, TagEvent::Whole, 4, 2)], "{way:?}");
    }
}
