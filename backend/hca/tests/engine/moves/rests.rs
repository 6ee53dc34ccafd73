//! Functions that rest, for a moment or for long: nothing gets lost by that, and nobody's retries are used up.

use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;

use hca::work::{AtomicOperands, CompletionEntry, GlobalRoute, Operation, Status};
use hca::{Event, PortChange, QpState, Transport, VfId};
use serde_json::Value;
use wire::{Gid, Lid, MadPacket, Qpn};

use crate::lab::net::Loss;
use crate::lab::{
    Lab, QKEY, Qp, TIMEOUT_NS, base, datagram, pattern, received, remote, request, sent,
};

/// More than all retries take.
const LONG: u64 = 20 * TIMEOUT_NS;

/// The path between the two functions of a laboratory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Nothing: messages are copied.
    Nothing,
    /// Slow links.
    Slow,
    /// Slow links that lose so many of a hundred packets.
    Losses(u64),
    /// They live in different engines.
    Engines,
    /// The same, and links are slow.
    SlowEngines,
}

const ALL: [Between; 5] = [
    Between::Nothing,
    Between::Slow,
    Between::Losses(3),
    Between::Engines,
    Between::SlowEngines,
];

impl Between {
    fn lab(self) -> Lab {
        let mut lab = Lab::new(2);
        let ways = [(VfId(0), VfId(1)), (VfId(1), VfId(0))];
        if matches!(self, Self::Engines | Self::SlowEngines) {
            lab.split(&[0, 1]);
        }
        lab.net.change(|net| {
            if !matches!(self, Self::Nothing | Self::Engines) {
                net.delays
                    .extend(ways.into_iter().zip([1_000_000, 300_000]));
            }
            if let Self::Losses(percent) = self {
                let loss = |seed| Loss::percent(percent, seed);
                net.losses.extend(ways.into_iter().zip([loss(7), loss(11)]));
            }
        });
        lab
    }
}

/// The way in which a function goes on.
#[derive(Debug, Clone, Copy)]
enum Return {
    /// As it was.
    Same,
    /// From an image, after time has passed.
    Restored(u64),
    /// In another engine, where there is one.
    Moved,
}

impl Lab {
    /// Says to all engines that a function rests.
    fn rest(&mut self, vf: VfId) {
        self.engines().for_each(|engine| engine.quiesce(vf));
    }

    /// And that it goes on.
    fn go_on(&mut self, vf: VfId) {
        self.home(vf).resume(vf);
        self.engines().for_each(|engine| engine.resume(vf));
        self.settle();
    }

    /// Lets what is on its way to a function come there.
    pub fn drain(&mut self, vf: VfId) {
        while self.engines().any(|engine| engine.carries(vf)) {
            let now = hca::Clock::now(&*self.clock);
            let due = self.next_deadline().unwrap();
            self.advance(due.saturating_sub(now).max(1));
        }
    }

    fn rest_and_return(&mut self, node: usize, how: Return) {
        self.rest(self.nodes[node].vf);
        self.returns(node, how);
    }

    fn returns(&mut self, node: usize, how: Return) {
        let vf = self.nodes[node].vf;
        match how {
            Return::Same => {}
            Return::Restored(pause) => {
                self.drain(vf);
                let image = serde_json::to_string(&self.home(vf).save(vf)).unwrap();
                let home = self.home(vf);
                home.reset_vf(vf);
                while home.clear_away(vf) {}
                self.advance(pause);
                let restored = { self.home(vf) }.restore(vf, serde_json::from_str(&image).unwrap());
                restored.unwrap_or_else(|error| panic!("{error}: {image}"));
                let again = serde_json::to_string(&self.home(vf).save(vf)).unwrap();
                assert_eq!(again, image, "saved again it is another");
            }
            Return::Moved => {
                // Else what is sent there may overtake what was sent here.
                self.drain(vf);
                if self.homes.is_some() {
                    self.relocate(node);
                }
            }
        }
        self.go_on(vf);
    }
}

/// Traffic of function `from`.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Send,
    Write,
    Read,
    Add,
    Unreliable,
    Datagram,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Post(Kind, usize),
    Pass(u64),
    Rest(usize, Return),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(vec![
        Kind::Send,
        Kind::Write,
        Kind::Read,
        Kind::Add,
        Kind::Unreliable,
        Kind::Datagram,
    ]);
    let how = prop_oneof![
        Just(Return::Same),
        (0..LONG).prop_map(Return::Restored),
        Just(Return::Moved),
    ];
    prop_oneof![
        8 => (kind, 0..2_usize).prop_map(|(kind, from)| Step::Post(kind, from)),
        4 => (0..1_500_000_u64).prop_map(Step::Pass),
        3 => (0..2_usize, how).prop_map(|(node, how)| Step::Rest(node, how)),
    ]
}

/// Observable result of a run, without times.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    completions: Vec<Vec<CompletionEntry>>,
    memory: Vec<Vec<u8>>,
    counters: Vec<Value>,
}

struct Bench {
    lab: Lab,
    /// Reliable, unreliable, datagrams.
    pairs: Vec<[Qp; 2]>,
    posted: u16,
    completions: Vec<Vec<CompletionEntry>>,
}

impl Bench {
    fn new(between: Between) -> Self {
        let mut lab = between.lab();
        let pairs = [Transport::Rc, Transport::Uc, Transport::Ud].map(|transport| {
            let (a, b) = lab.pair(transport);
            [a, b]
        });
        for node in 0..2 {
            lab.memory(node)
                .write(base(node), &pattern(node as u64 + 5, 1 << 20));
        }
        Self {
            lab,
            pairs: pairs.into(),
            posted: 0,
            completions: vec![Vec::new(); 6],
        }
    }

    fn post(&mut self, kind: Kind, from: usize) {
        self.posted += 1;
        let to = 1 - from;
        let (index, at) = (self.posted, u64::from(self.posted) << 13);
        let len = 1 + u32::from(index) * 977 % 8000;
        let list = [self.lab.sge(from, at, len)];
        let word = [self.lab.sge(from, (4 << 20) + at, 8)];
        let (key, far) = (self.lab.nodes[to].key, base(to));
        let (pair, wr) = match kind {
            Kind::Send => (0, request(Operation::Send, index, &list)),
            Kind::Write => (
                0,
                remote(Operation::Write, index, &list, far + (3 << 20) + at, key),
            ),
            Kind::Read => {
                let into = [self.lab.sge(from, (4 << 20) + at, len)];
                (0, remote(Operation::Read, index, &into, far + at, key))
            }
            Kind::Add => {
                let mut wr = remote(Operation::FetchAdd, index, &word, far + (7 << 20), key);
                wr.atomic = AtomicOperands {
                    swap_add: 1,
                    ..AtomicOperands::default()
                };
                (0, wr)
            }
            Kind::Unreliable => (1, request(Operation::Send, index, &list)),
            Kind::Datagram => {
                let list = [self.lab.sge(from, at, len % 4000)];
                (2, datagram(&self.lab, &self.pairs[2][to], index, &list))
            }
        };
        let [sender, receiver] = [&self.pairs[pair][from], &self.pairs[pair][to]];
        if wr.operation == Operation::Send {
            let into = [self.lab.sge(to, (2 << 20) + at, 8192)];
            self.lab.receive(receiver, index, &into);
        }
        self.lab.execute(&sender.clone(), wr);
    }

    fn look(&mut self) {
        let qps = self.pairs.iter().flatten();
        for (qp, seen) in qps.zip(&mut self.completions) {
            let entries = qp.cq.poll().into_iter();
            seen.extend(entries.map(|entry| CompletionEntry { time: 0, ..entry }));
        }
    }

    fn end(mut self) -> Seen {
        self.lab.advance(1_000_000_000);
        self.look();
        // Who sends and who receives at a queue pair is in an order of its own each.
        let apart = |entries: Vec<CompletionEntry>| {
            let (sent, received): (Vec<_>, Vec<_>) = { entries.into_iter() }
                .partition(|entry| matches!(entry.side, hca::work::Side::Send { .. }));
            [sent, received]
        };
        let counters = (0..2).map(|node| {
            let vf = self.lab.nodes[node].vf;
            let image = serde_json::to_value(self.lab.look_home(vf).save(vf)).unwrap();
            image["v1"]["counters"].clone()
        });
        Seen {
            counters: counters.collect(),
            memory: (0..2)
                .map(|node| self.lab.memory(node).snapshot())
                .collect(),
            completions: self.completions.into_iter().flat_map(apart).collect(),
        }
    }
}

fn compare(between: Between, steps: &[Step]) {
    let losses = matches!(between, Between::Losses(_));
    let (mut rests, mut stays) = (Bench::new(between), Bench::new(between));
    for &step in steps {
        for bench in [&mut rests, &mut stays] {
            match step {
                // Nobody can tell what is lost of those.
                Step::Post(Kind::Unreliable | Kind::Datagram, from) if losses => {
                    bench.post(Kind::Add, from);
                }
                Step::Post(kind, from) => bench.post(kind, from),
                Step::Pass(time) => bench.lab.advance(time),
                Step::Rest(..) => {}
            }
        }
        if let Step::Rest(node, how) = step {
            rests.lab.rest_and_return(node, how);
        }
        rests.look();
        stays.look();
    }
    let (mut rests, mut stays) = (rests.end(), stays.end());
    if losses {
        // Others get lost.
        (rests.counters, stays.counters) = (Vec::new(), Vec::new());
    }
    for (rests, stays) in rests.completions.iter().zip(&stays.completions) {
        assert_eq!(rests, stays);
    }
    assert_eq!(rests.counters, stays.counters);
    assert!(rests.memory == stays.memory, "memory");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn who_rests_loses_nothing(
        between in prop::sample::select(ALL.to_vec()),
        steps in vec(step(), 1..40),
    ) {
        compare(between, &steps);
    }
}

/// A peer's requests, those that are under way and those that are posted meanwhile, wait for as long as it
/// takes, and are no failures afterwards.
#[test]
fn a_long_rest_uses_up_no_retries() {
    for between in ALL {
        for restored in [false, true] {
            let mut lab = between.lab();
            let (a, b) = lab.pair(Transport::Rc);
            let key = lab.nodes[1].key;
            let write = |lab: &Lab, index: u16| {
                let list = [lab.sge(0, 0, 8)];
                remote(Operation::Write, index, &list, base(1), key)
            };
            let first = write(&lab, 1);
            lab.post(&a, first);
            lab.run_one(0);
            lab.rest(b.vf);
            let second = write(&lab, 2);
            lab.execute(&a, second);
            lab.advance(LONG);
            assert!(sent(&a.cq.poll()).len() < 2, "{between:?}");
            if restored {
                lab.rest_and_return(1, Return::Restored(LONG));
            } else {
                lab.go_on(b.vf);
            }
            lab.advance(LONG);
            assert_eq!(lab.state(&a), QpState::ReadyToSend, "{between:?}");
            if let Between::Losses(_) = between {
                continue;
            }
            for vf in [a.vf, b.vf] {
                let retries = &lab.look_home(vf).vf(vf).counters();
                let timeouts = &retries.retries.local_ack_timeout_err;
                assert_eq!(timeouts.load(Ordering::Relaxed), 0, "{between:?}");
            }
        }
    }
}

/// A rest prolongs a wait once, by the time that it has taken: looks are as few as retries, however short the
/// rest was.
#[test]
fn a_rest_prolongs_a_wait_once() {
    for between in [Between::Losses(100), Between::SlowEngines] {
        let mut lab = between.lab();
        lab.net.change(|net| {
            let ways = [(VfId(0), VfId(1)), (VfId(1), VfId(0))];
            net.losses
                .extend(ways.map(|way| (way, Loss::percent(100, 7))));
        });
        let (a, b) = lab.pair(Transport::Rc);
        let list = [lab.sge(0, 0, 8)];
        lab.execute(&a, request(Operation::Send, 1, &list));
        lab.advance(TIMEOUT_NS / 2);
        lab.rest(b.vf);
        lab.advance(1);
        lab.go_on(b.vf);
        let mut looks = 0;
        let begin = hca::Clock::now(&*lab.clock);
        while lab.state(&a) == QpState::ReadyToSend {
            let now = hca::Clock::now(&*lab.clock);
            let due = lab.next_deadline().unwrap();
            lab.advance(due.saturating_sub(now).max(1));
            looks += 1;
            assert!(looks < 100, "{between:?}");
        }
        assert_eq!(sent(&a.cq.poll()), [(1, Status::RetryExceeded)]);
        let passed = hca::Clock::now(&*lab.clock) - begin;
        assert!(passed <= 4 * TIMEOUT_NS + 2, "{between:?}: {passed}");
    }
}

/// A function that never comes back is a dead one.
#[test]
fn who_does_not_come_back_is_dead() {
    for between in ALL {
        for reset in [false, true] {
            let mut lab = between.lab();
            let (a, b) = lab.pair(Transport::Rc);
            lab.rest(b.vf);
            let list = [lab.sge(0, 0, 8)];
            lab.execute(&a, request(Operation::Send, 1, &list));
            if reset {
                lab.advance(LONG);
                assert!(a.cq.poll().is_empty());
                lab.home(b.vf).reset_vf(b.vf);
                lab.go_on(b.vf);
                lab.advance(LONG);
            } else {
                lab.advance(59_000_000_000);
                assert!(a.cq.poll().is_empty());
                lab.advance(2_000_000_000);
            }
            let expected = [(1, Status::RetryExceeded)];
            assert_eq!(sent(&a.cq.poll()), expected, "{between:?}, reset: {reset}");
        }
    }
}

/// The memory of a function that rests may be a guest's who goes on elsewhere: nothing is written there.
#[test]
fn changes_of_its_port_are_told_when_it_goes_on() {
    for ends in [Return::Same, Return::Moved] {
        let mut lab = Between::Engines.lab();
        let vf = VfId(1);
        lab.rest(vf);
        for change in [PortChange::Down, PortChange::Lid, PortChange::Active] {
            lab.home(vf).vf_mut(vf).port_changed(change);
            lab.home(vf).vf_mut(vf).port_changed(PortChange::Pkey);
        }
        lab.home(vf).vf_mut(vf).port_changed(PortChange::Down);
        assert_eq!(lab.events(1), []);
        lab.returns(1, ends);
        let told = [
            PortChange::Lid,
            PortChange::Active,
            PortChange::Pkey,
            PortChange::Down,
        ];
        assert_eq!(lab.events(1), told.map(Event::Port));
        lab.home(vf).vf_mut(vf).port_changed(PortChange::Active);
        assert_eq!(lab.events(1), [Event::Port(PortChange::Active)]);
        // Who is reset meanwhile knows nothing of what was before.
        lab.rest(vf);
        lab.home(vf).vf_mut(vf).port_changed(PortChange::Down);
        lab.home(vf).reset_vf(vf);
        lab.returns(1, ends);
        assert_eq!(lab.events(1), []);
    }
}

/// Held datagrams are bounded, and further ones are lost as for want of receive requests. Senders do not wait.
#[test]
fn datagrams_wait_as_long_as_there_is_room() {
    const SENT: usize = 5000;
    for between in [Between::Nothing, Between::Engines, Between::Slow] {
        let mut lab = between.lab();
        let (a, b) = lab.pair(Transport::Ud);
        lab.rest(b.vf);
        for index in 0..SENT {
            lab.receive(&b, index as u16, &[lab.sge(1, 0, 64)]);
            let list = [lab.sge(0, 0, 8)];
            let wr = datagram(&lab, &b, index as u16, &list);
            lab.execute(&a, wr);
            lab.advance(2_000);
            assert_eq!(sent(&a.cq.poll()).len(), 1, "{between:?}");
        }
        lab.drain(b.vf);
        assert!(b.cq.poll().is_empty());
        lab.go_on(b.vf);
        let mut entries = b.cq.poll();
        // Those after it come behind it.
        let list = [lab.sge(0, 0, 8)];
        let mut last = datagram(&lab, &b, 1, &list);
        last.operation = Operation::SendImm;
        lab.execute(&a, last);
        lab.advance(LONG);
        entries.extend(b.cq.poll());
        let entries = received(&entries);
        let indices = entries.iter().map(|entry| usize::from(entry.0));
        assert!(indices.eq(0..=4096), "{between:?}: {}", entries.len());
        let counters = lab.look_home(b.vf).vf(b.vf).counters();
        assert_eq!(counters.passed().rcv_packets, 4097);
    }
}

/// Management's datagrams and those for groups wait as well.
#[test]
fn what_is_not_for_one_queue_pair_waits_too() {
    for between in [Between::Nothing, Between::Engines, Between::Slow] {
        for restored in [false, true] {
            let mut lab = between.lab();
            let (group, mlid) = (Gid::from_bits(0xff12 << 112 | 5), Lid::new(0xc001));
            lab.net.change(|net| {
                net.groups.insert(mlid, vec![VfId(0), VfId(1)]);
            });
            let (a, b) = lab.pair(Transport::Ud);
            { lab.home(b.vf) }
                .verbs(b.vf)
                .attach_multicast(b.qpn, group)
                .unwrap();
            lab.rest(b.vf);
            for index in 0..2 {
                lab.receive(&b, index, &[lab.sge(1, 4096 * u64::from(index), 400)]);
            }
            lab.memory(0).write(base(0), b"to the group");
            let mut wr = datagram(&lab, &a, 1, &[lab.sge(0, 0, 12)]);
            let address = wr.address.as_mut().unwrap();
            (address.dlid, address.dest_qp) = (mlid, Qpn::MULTICAST);
            address.global = Some(GlobalRoute {
                dgid: group,
                sgid_index: 0,
                flow_label: 0x12345,
                traffic_class: 9,
                hop_limit: 1,
            });
            lab.execute(&a, wr);
            lab.drain(b.vf);
            let mad = MadPacket {
                slid: Lid::new(77),
                dlid: lab.nodes[1].lid,
                sl: Default::default(),
                pkey: wire::PKey::DEFAULT_FULL,
                src_qp: Qpn::QP1,
                dst_qp: b.qpn,
                qkey: QKEY,
                grh: None,
                mad: [0x5a; 256],
            };
            assert!(lab.home(b.vf).deliver_mad(b.vf, &mad));
            assert!(b.cq.poll().is_empty());
            if restored {
                lab.rest_and_return(1, Return::Restored(LONG));
            } else {
                lab.go_on(b.vf);
            }
            assert_eq!(received(&b.cq.poll()).len(), 2, "{between:?}");
            let memory = lab.memory(1);
            assert_eq!(memory.read(base(1) + 40, 12), b"to the group");
            let header = memory.read(base(1), 8);
            assert_eq!(header, [0x60, 0x91, 0x23, 0x45, 0, 36, 0x1b, 1]);
            assert_eq!(memory.read(base(1) + 4096 + 40, 256), [0x5a; 256]);
            let counters = lab.look_home(b.vf).vf(b.vf).counters();
            assert_eq!(counters.passed().multicast_rcv_packets, 1);
        }
    }
}

/// A queue pair whose peer rests holds up nobody else of its function, and does so when the path leads to
/// somebody else by then.
#[test]
fn who_waits_finds_the_function_elsewhere() {
    let mut lab = Lab::new(3);
    let (a, b) = lab.pair(Transport::Rc);
    let (c, d) = (lab.qp(0, Transport::Rc), lab.qp(2, Transport::Rc));
    lab.connect_with(&c, &d, |_| {});
    lab.receive(&b, 9, &[lab.sge(1, 0, 64)]);
    lab.rest(b.vf);
    let list = [lab.sge(0, 0, 8)];
    lab.execute(&a, request(Operation::Send, 1, &list));
    let key = lab.nodes[2].key;
    lab.execute(&c, remote(Operation::Write, 2, &list, base(2), key));
    assert!(a.cq.poll().is_empty());
    assert_eq!(sent(&c.cq.poll()), [(2, Status::Success)]);
    lab.save_and_restore(1, true);
    lab.settle();
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    assert_eq!(received(&b.cq.poll()).len(), 1);
}

/// While a function moves, its addresses are at no port for a moment. Who sends to it then waits, as for a function
/// that rests. What goes in frames gets lost then, and is sent again.
#[test]
fn addresses_that_are_nowhere_for_a_moment_use_up_no_retries() {
    let mut lab = Lab::new(2);
    let (a, b) = lab.pair(Transport::Rc);
    let (lid, key) = (lab.nodes[1].lid, lab.nodes[1].key);
    let list = [lab.sge(0, 0, 8)];
    let write = |index| remote(Operation::Write, index, &list, base(1), key);
    lab.execute(&a, write(1));
    assert_eq!(sent(&a.cq.poll()), [(1, Status::Success)]);
    lab.rest(b.vf);
    lab.net.change(|net| {
        net.lids.remove(&lid);
    });
    lab.execute(&a, write(2));
    lab.advance(LONG);
    assert!(a.cq.poll().is_empty());
    lab.net.change(|net| {
        net.lids.insert(lid, VfId(1));
    });
    lab.go_on(b.vf);
    lab.settle();
    // At once, and not when an answer would be overdue.
    assert_eq!(sent(&a.cq.poll()), [(2, Status::Success)]);
    let counters = lab.look_home(a.vf).vf(a.vf).counters();
    let timeouts = &counters.retries.local_ack_timeout_err;
    assert_eq!(timeouts.load(Ordering::Relaxed), 0);
}

/// Frames of an image are no more than what others could have sent.
#[test]
fn frames_of_an_image_are_checked() {
    let mut lab = Between::Slow.lab();
    let (a, b) = lab.pair(Transport::Rc);
    let list = [lab.sge(0, 0, 8)];
    lab.execute(&a, request(Operation::Send, 1, &list));
    lab.rest(b.vf);
    lab.drain(b.vf);
    let image = serde_json::to_value(lab.engine.save(b.vf)).unwrap();
    assert_eq!(image["v1"]["held"].as_array().unwrap().len(), 1);
    let mut refused = |change: &dyn Fn(&mut Value), expected: &str| {
        lab.engine.reset_vf(b.vf);
        while lab.engine.clear_away(b.vf) {}
        let mut image = image.clone();
        change(&mut image["v1"]["held"]);
        let error = match serde_json::from_value(image) {
            Ok(image) => lab.engine.restore(b.vf, image).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{error}");
    };
    let payload = |it: &mut Value| it[0]["frame"]["payload"] = "abc".into();
    refused(&payload, "no bytes in hexadecimal");
    let long = |it: &mut Value| it[0]["frame"]["payload"] = "00".repeat(70_000).into();
    refused(&long, "nobody could have sent it");
    let group = |it: &mut Value| it[0]["to"] = "agent".into();
    refused(&group, "nobody could have sent it");
    let many = |it: &mut Value| {
        let first = it[0].clone();
        *it = vec![first; 70_000].into();
    };
    refused(&many, "no memory is left for frame to queue pair");
}
