//! Functions that are saved, are gone, and are restored, as themselves or elsewhere.

use std::sync::Arc;

use hca::image::{ImageError, VfImage};
use hca::mr::{Klm, KlmList, MemoryKey, Translation};
use hca::transport::{Delayed, Loopback, Lossy, Single};
use hca::work::{Operation, Sge, Status};
use hca::{
    Engine, PageList, PortView, QpChange, QpState, Quota, RecvSide, Transport, VerbError, VfId,
};
use wire::{Gid, Qpn};

use crate::lab::net::NetState;
use crate::lab::{
    Lab, Plain, Qp, Way, base, datagram, pattern, physical, received, remote, request, sent,
};
use crate::neighbours::chain;

/// Renames a function in the settings of ways from and to it.
fn rename(net: &mut NetState, old: VfId, new: VfId) {
    let named = |vf: VfId| if vf == old { new } else { vf };
    let pair = |(from, to): (VfId, VfId)| (named(from), named(to));
    net.cut = net.cut.drain().map(pair).collect();
    let losses: Vec<_> = net.losses.drain().collect();
    let losses = losses.into_iter().map(|(way, loss)| (pair(way), loss));
    net.losses = losses.collect();
}

impl Lab {
    fn image(&self, node: usize) -> String {
        serde_json::to_string(&self.engine.save(self.nodes[node].vf)).unwrap()
    }

    fn empty(&mut self, vf: VfId) {
        self.engine.reset_vf(vf);
        while self.engine.clear_away(vf) {}
        drop(self.engine.take_discarded());
    }

    /// A function is saved as text, leaves nothing behind, and is restored: `elsewhere` as another
    /// function of the engine, which the subnet takes for it from then on, else as itself.
    pub fn save_and_restore(&mut self, node: usize, elsewhere: bool) {
        let (old, lid) = (self.nodes[node].vf, self.nodes[node].lid);
        self.engine.quiesce(old);
        self.drain(old);
        let image = self.image(node);
        self.empty(old);
        let port = self.engine.vf(old).port().clone();
        let mut new = old;
        if elsewhere {
            let memory = self.engine.vf(old).dma().clone();
            let events = self.nodes[node].events.clone();
            new = self.engine.add_vf(memory, events, Quota::default());
            self.engine.quiesce(new);
            self.nodes[node].vf = new;
            self.net.change(|net| {
                net.lids.insert(lid, new);
                rename(net, old, new);
            });
        }
        let restored = self
            .engine
            .restore(new, serde_json::from_str(&image).unwrap());
        restored.unwrap_or_else(|error| panic!("{error}: {image}"));
        assert_eq!(self.image(node), image, "saved again it is another");
        if elsewhere {
            self.engine.vf_mut(old).set_port(PortView::default());
            let active = true;
            self.engine
                .vf_mut(new)
                .set_port(PortView { active, ..port });
        }
        self.engine.resume(new);
    }

    /// All functions are saved, and restored in another engine.
    pub fn restart(&mut self, way: Way) {
        let images: Vec<String> = (0..self.nodes.len()).map(|node| self.image(node)).collect();
        let subnet = Box::new(self.net.clone());
        let engine = Engine::new(subnet, self.clock.clone(), 0x8765_4321);
        let earlier = std::mem::replace(&mut self.engine, engine);
        if let Way::Packets(..) = way {
            let wire = Delayed::new(Loopback::default());
            self.engine.set_endpoint(Box::new(Single(Lossy(wire))));
        }
        let last = self.nodes.iter().map(|node| node.vf.0).max().unwrap();
        for vf in (0..=last).map(VfId) {
            let face = earlier.vf(vf).face().clone();
            self.engine
                .add_vf(earlier.vf(vf).dma().clone(), face, Quota::default());
            self.engine
                .vf_mut(vf)
                .set_port(earlier.vf(vf).port().clone());
        }
        for (node, image) in images.iter().enumerate() {
            let vf = self.nodes[node].vf;
            let restored = self
                .engine
                .restore(vf, serde_json::from_str(image).unwrap());
            restored.unwrap_or_else(|error| panic!("{error}: {image}"));
            assert_eq!(&self.image(node), image, "saved again it is another");
        }
    }
}

/// Two functions with one of everything, in the middle of work: a request that waits for a receive
/// request, one that is flushed, a queue pair in error, a shared receive queue whose limit is armed, an
/// XRC pair, a group, keys of all kinds.
fn with_everything() -> (Lab, Vec<Qp>) {
    let mut lab = Lab::new(2);
    let (vf, pd, key) = (lab.nodes[0].vf, lab.nodes[0].pd, lab.nodes[0].key);
    let pages = PageList::new(12, [base(0) + 0x5000, base(0), base(0) + 0x1000]);
    let translation = Translation::Pages {
        log_size: 12,
        pages,
    };
    let (len, capacity) = (3 << 12, 4);
    let scattered = MemoryKey {
        len,
        capacity,
        translation,
        updatable: true,
        ..physical(pd)
    };
    lab.engine.verbs(vf).create_key(scattered).unwrap();
    let addr = base(0);
    let stretches = vec![Klm { len: 64, key, addr }, Klm { len: 32, key, addr }];
    let indirect = MemoryKey {
        len: 96,
        translation: Translation::Indirect(KlmList::new(stretches)),
        qpn: Some(Qpn::new(7)),
        ..physical(pd)
    };
    lab.engine.verbs(vf).create_key(indirect).unwrap();
    let xrcd = lab.engine.vf_mut(vf).alloc_xrcd().unwrap();
    let ring = lab.shared_ring();
    let srqn = lab.engine.verbs(vf).create_srq(pd, None, ring).unwrap();
    let receiver = lab.qp_with(0, Transport::Rc, |desc| desc.recv = RecvSide::Shared(srqn));
    let (cqn, _) = lab.cq(0, 16);
    let ring = lab.shared_ring();
    let xrc = Some((xrcd, cqn));
    lab.engine.verbs(vf).create_srq(pd, xrc, ring).unwrap();
    let target = lab.qp_with(0, Transport::Xrc, |desc| desc.recv = RecvSide::Xrc(xrcd));
    let sender = lab.qp(1, Transport::Rc);
    lab.connect_with(&sender, &receiver, |_| {});
    let (a, b) = lab.pair(Transport::Rc);
    let list = [lab.sge(0, 0, 100)];
    lab.execute(&a, request(Operation::Send, 1, &list));
    let group = Gid::from_bits(0xff12 << 112 | 5);
    let member = lab.qp(0, Transport::Ud);
    lab.engine
        .verbs(vf)
        .attach_multicast(member.qpn, group)
        .unwrap();
    lab.bring_up(&member, &QpChange::default());
    let failed = lab.qp(0, Transport::Uc);
    lab.modify(&failed, QpState::Error, &QpChange::default());
    lab.clock_forward(1000);
    (lab, vec![receiver, target, sender, a, b, member, failed])
}

#[test]
fn one_of_everything_is_what_it_was() {
    for elsewhere in [false, true] {
        let (mut lab, mut qps) = with_everything();
        let counts = lab.engine.vf(lab.nodes[0].vf).object_counts();
        lab.save_and_restore(0, elsewhere);
        let vf = lab.nodes[0].vf;
        assert_eq!(lab.engine.vf(vf).object_counts(), counts);
        for qp in qps.iter_mut().filter(|qp| qp.node == 0) {
            qp.vf = vf;
        }
        // The message that waited for a receive request goes on.
        let [_, _, _, a, b, ..] = &qps[..] else {
            unreachable!()
        };
        let list = [lab.sge(1, 4096, 100)];
        lab.receive(b, 9, &list);
        lab.advance(1_000_000_000);
        assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
        assert_eq!(received(&b.cq.poll())[0].0, 9);
        // And so does everything else.
        let key = lab.nodes[0].key;
        let list = [lab.sge(1, 0, 64)];
        lab.execute(b, remote(Operation::Read, 3, &list, base(0), key));
        assert_eq!(sent(&b.cq.poll()), [(3, Status::Success)]);
        let from = lab.qp(1, Transport::Ud);
        lab.bring_up(
            &from,
            &QpChange {
                qkey: Some(crate::lab::QKEY),
                ..QpChange::default()
            },
        );
        let list = [lab.sge(1, 0, 64)];
        let wr = datagram(&lab, &qps[5], 4, &list);
        lab.execute(&from, wr);
        assert_eq!(sent(&from.cq.poll()), [(4, Status::Success)]);
        // Nothing of the old one is left.
        lab.empty(vf);
        assert!(
            lab.engine
                .vf(vf)
                .object_counts()
                .iter()
                .all(|(_, count)| *count == 0)
        );
    }
}

#[test]
fn a_stored_image_of_version_1_is_restored() {
    const STORED: &str = include_str!("images/v1.json");
    let (mut lab, _) = with_everything();
    let vf = lab.nodes[0].vf;
    let counts = lab.engine.vf(vf).object_counts();
    let image: VfImage<Plain> = serde_json::from_str(STORED).unwrap();
    // With the defaults of what later versions have added.
    let completed = serde_json::to_string(&image).unwrap();
    lab.empty(vf);
    lab.engine.restore(vf, image).unwrap();
    assert_eq!(lab.engine.vf(vf).object_counts(), counts);
    assert_eq!(lab.image(0), completed);
}

#[test]
fn an_image_that_says_what_cannot_be_is_refused() {
    let (mut lab, _) = with_everything();
    let vf = lab.nodes[0].vf;
    let image = lab.image(0);
    let parsed = |text: &str| -> VfImage<Plain> { serde_json::from_str(text).unwrap() };
    let occupied = lab.engine.restore(vf, parsed(&image));
    assert_eq!(occupied, Err(ImageError::Occupied));
    lab.empty(vf);
    let mut refused = |what: &str, change: &dyn Fn(&mut serde_json::Value), expected: &str| {
        let mut value: serde_json::Value = serde_json::from_str(&image).unwrap();
        change(&mut value["v1"]);
        let error = match serde_json::from_value::<VfImage<Plain>>(value) {
            Ok(image) => lab.engine.restore(vf, image).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{what}: {error}");
        let counts = lab.engine.vf(vf).object_counts();
        assert!(counts.iter().all(|(_, count)| *count == 0), "{what}");
        while lab.engine.clear_away(vf) {}
    };
    refused(
        "no domains",
        &|it| it["pds"] = [0; 0].as_slice().into(),
        "names protection domain",
    );
    refused(
        "no queues",
        &|it| it["cqs"] = [0; 0].as_slice().into(),
        "names completion queue",
    );
    refused(
        "a field",
        &|it| it["qps"][0]["more"] = 1.into(),
        "unknown field",
    );
    refused(
        "a number",
        &|it| it["cqs"][0]["cqn"] = 0.into(),
        "has no place",
    );
    refused(
        "a PSN",
        &|it| it["qps"][0]["attr"]["rq_psn"] = u32::MAX.into(),
        "is above",
    );
    refused(
        "rights",
        &|it| it["keys"][0]["access"] = 255.into(),
        "rights that there are not",
    );
    refused(
        "a turn",
        &|it| it["ready"] = [77].as_slice().into(),
        "names queue pair 0x4d",
    );
    let twice = |it: &mut serde_json::Value| {
        let first = it["qps"][0].clone();
        it["qps"].as_array_mut().unwrap().push(first);
    };
    refused("twice", &twice, "has no place");
    let far = |it: &mut serde_json::Value| {
        it["qps"][0]["responder"]["received"] = u64::MAX.into();
    };
    refused("too far", &far, "more of a message");
    lab.engine.restore(vf, parsed(&image)).unwrap();
}

#[test]
fn a_number_that_is_taken_at_the_port_is_refused() {
    let mut lab = Lab::new(2);
    let [a, b] = [lab.nodes[0].vf, lab.nodes[1].vf];
    let qp = lab.qp(0, Transport::Rc);
    let image = lab.image(0);
    lab.engine.share_port(&[a, b]);
    lab.empty(b);
    let error = lab.engine.restore(b, serde_json::from_str(&image).unwrap());
    let error = error.unwrap_err().to_string();
    let number = qp.qpn.value();
    let expected = format!("queue pair {number:#x} is another function's at port 2; restore the");
    assert!(error.starts_with(&expected), "{error}");
}

/// Numbers that are nobody's stay so where their function goes, and no queue pair at their port gets one.
#[test]
fn reserved_numbers_of_queue_pairs() {
    for elsewhere in [false, true] {
        let mut lab = Lab::new(2);
        let vf = lab.nodes[0].vf;
        let numbers: Vec<_> = (0..20)
            .map(|_| lab.engine.verbs(vf).reserve_qpn().unwrap())
            .collect();
        let qp = lab.qp(0, Transport::Rc);
        lab.save_and_restore(0, elsewhere);
        let vf = lab.nodes[0].vf;
        assert!(!numbers.contains(&lab.qp(0, Transport::Rc).qpn) && !numbers.contains(&qp.qpn));
        for number in numbers {
            assert_eq!(
                lab.engine.verbs(vf).destroy_qp(number),
                Err(VerbError::NotFound)
            );
            assert!(lab.engine.query_qp(vf, number).is_err());
            assert_eq!(lab.engine.vf_mut(vf).release_qpn(number), Ok(()));
            assert_eq!(
                lab.engine.vf_mut(vf).release_qpn(number),
                Err(VerbError::NotFound)
            );
        }
        assert_eq!(
            lab.engine.vf_mut(vf).release_qpn(qp.qpn),
            Err(VerbError::NotFound)
        );
        // They count as queue pairs do, and a reset takes them.
        let count = (0..)
            .take_while(|_| lab.engine.verbs(vf).reserve_qpn().is_ok())
            .count();
        assert!(count > 100, "{count}");
        lab.engine.reset_vf(vf);
        assert!(lab.engine.verbs(vf).reserve_qpn().is_ok());
    }
}

#[test]
fn who_is_quiet_does_nothing_and_hears_nothing() {
    let mut lab = Lab::new(2);
    let clocks = Arc::strong_count(&lab.clock);
    let (a, b) = lab.pair(Transport::Rc);
    let list = [lab.sge(1, 0, 64)];
    lab.receive(&b, 1, &list);
    lab.engine.quiesce(b.vf);
    let list = [lab.sge(0, 0, 64)];
    lab.execute(&a, request(Operation::Send, 1, &list));
    lab.execute(&b, request(Operation::Send, 2, &[]));
    lab.receive(&a, 3, &[]);
    assert!(a.cq.poll().is_empty() && b.cq.poll().is_empty());
    lab.engine.resume(b.vf);
    lab.advance(2 * crate::lab::TIMEOUT_NS);
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(sent(&b.cq.poll()), [(2, Status::Success)]);
    assert_eq!(Arc::strong_count(&lab.clock), clocks);
}

#[test]
fn a_message_goes_on_where_it_was() {
    const LEN: u32 = 1 << 20;
    for (node, elsewhere) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut lab = Lab::new(2);
        let (a, b) = lab.pair(Transport::Rc);
        let payload = crate::lab::pattern(7, LEN as usize);
        lab.memory(0).write(base(0), &payload);
        let list = [lab.sge(1, 0, LEN)];
        lab.receive(&b, 1, &list);
        let list = [lab.sge(0, 0, LEN)];
        lab.post(&a, request(Operation::Send, 2, &list));
        assert!(lab.engine.run());
        assert_ne!(lab.memory(1).read(base(1), LEN as usize), payload);
        assert!(lab.image(1).contains("\"inbound\":{"));
        lab.save_and_restore(node, elsewhere);
        lab.advance(2 * crate::lab::TIMEOUT_NS);
        assert_eq!(lab.memory(1).read(base(1), LEN as usize), payload);
        assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
        let entries = received(&b.cq.poll());
        assert_eq!((entries.len(), entries[0].0, entries[0].2), (1, 1, LEN));
    }
}

/// An image of either end has a frame that is carried out in part, and the frames behind it.
#[test]
fn frames_in_line_go_along_in_images() {
    const LEN: u32 = 8 << 10;
    let mut lab = Lab::new(3);
    lab.go(Way::Frames);
    let far = chain(&mut lab, 1, LEN);
    let own = chain(&mut lab, 0, LEN);
    let bytes = pattern(6, LEN as usize);
    let operations = [Operation::Write, Operation::Send, Operation::Read];
    for (operation, node) in operations.into_iter().flat_map(|it| [(it, 0), (it, 1)]) {
        let (a, b) = lab.pair(Transport::Rc);
        let (from, to) = match operation {
            Operation::Read => (1, 0),
            _ => (0, 1),
        };
        lab.memory(from).write(base(from), &bytes);
        lab.memory(to).write(base(to), &vec![0; LEN as usize]);
        let sge = |lkey| Sge {
            addr: 0,
            lkey,
            len: LEN,
        };
        for index in [1, 2] {
            lab.receive(&b, index, &[sge(far)]);
            lab.post(&a, remote(operation, index, &[sge(own)], 0, far));
        }
        for _ in 0..8 {
            for _ in 0..200 {
                lab.engine.run();
            }
            assert!(a.cq.poll().is_empty(), "{operation:?}: too early");
            lab.save_and_restore(node, true);
        }
        lab.settle();
        let done = [1, 2].map(|index| (index, Status::Success));
        assert_eq!(sent(&a.cq.poll()), done, "{operation:?}, {node}");
        let got = lab.memory(to).read(base(to), LEN as usize);
        assert!(got == bytes, "{operation:?}, {node}");
        b.cq.poll();
    }
}
