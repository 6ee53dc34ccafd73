//! Guests that meet congestion, in a time that stands still until the test goes on.

use std::sync::Arc;
use std::task::Waker;

use fabric::{PortRef, SmpAccess};
use hca::work::{Operation, Status};
use hca::{Quota, Transport, VfId};
use ibvswitch_vswitch::Model;
use ibvswitch_vswitch::model::{Bandwidth, GmpClasses, LinkRate, Vf};
use wire::mad::{Mad, SIZE};
use wire::{Lid, LinkWidth, MadPacket, PKey, Sl};

use crate::guests::{ALIAS, Lab as Guests, Qp, Subnets, datagram, remote, sent};
use crate::lab::Lab;

/// Bytes of a message.
const LEN: u32 = 64 << 10;
/// Bytes per second of every link, 1X SDR.
const RATE: u64 = 250_000_000;
/// Guests that send to one, on hypervisors of their own.
const SENDERS: usize = 3;
/// Node that gets it all, and node that looks on.
const SINK: usize = SENDERS;
const BYSTANDER: usize = SENDERS + 1;
const MILLISECOND: u64 = 1_000_000;

struct Incast {
    lab: Lab,
    guests: Guests,
    /// Senders' ends of their connections with the sink.
    senders: Vec<Qp>,
    posted: u16,
}

impl Incast {
    /// Guests of one switch. `engines` says in which engine each lives.
    fn new(engines: [u16; 5]) -> Self {
        let mut model = Model::new(&["leaf"]);
        for (at, name) in ["a", "b", "c", "sink", "bystander"].into_iter().enumerate() {
            let mut vf = Vf::new(name);
            if at == BYSTANDER {
                (vf.smp, vf.mads.classes) = (SmpAccess::Fabric, GmpClasses::ALL);
            }
            model.add_hypervisor(&format!("h{at}"), 0, vec![vf]);
        }
        model.fabric.bandwidth = Bandwidth::Model;
        model.fabric.link_width = LinkWidth::X1;
        model.fabric.link_speed = LinkRate::Sdr;
        let lab = Lab::new(&model);
        let clock = Arc::clone(&lab.clock);
        let ports = (0..5).map(|vf| lab.vswitch.port_view(VfId(vf))).collect();
        let vswitch = Arc::clone(&lab.vswitch);
        let subnets = Subnets(Box::new(move || vswitch.for_engine(Waker::noop().clone())));
        let mut guests = Guests::over(subnets, Default::default(), clock, ports, Quota::default());
        if engines != [0; 5] {
            guests.split(&engines);
        }
        let mut senders = Vec::new();
        for from in 0..SENDERS {
            let (a, b) = (
                guests.qp(from, Transport::Rc),
                guests.qp(SINK, Transport::Rc),
            );
            guests.connect_with(&a, &b, |change| change.timeout = Some(20));
            senders.push(a);
        }
        Self {
            lab,
            guests,
            senders,
            posted: 0,
        }
    }

    fn lid(&self, vf: usize) -> Lid {
        self.lab.vswitch.port_view(VfId(vf as u16)).lid
    }

    /// A congestion control request of the bystander, who manages the subnet; the answer's bytes.
    fn ask(&self, lid: Lid, attribute: u8, modifier: u8, set: bool, data: &[u8]) -> [u8; SIZE] {
        let mut mad = [0; SIZE];
        mad[..4].copy_from_slice(&[1, 0x21, 2, if set { 2 } else { 1 }]);
        (mad[17], mad[23]) = (attribute, modifier);
        mad[64..64 + data.len()].copy_from_slice(data);
        let own = self.lid(BYSTANDER);
        let packet = MadPacket::gmp(own, lid, Sl::new(0), PKey::DEFAULT_FULL, mad);
        let received = self.lab.send(BYSTANDER, packet);
        let answer = received.first().expect("an answer");
        let status = Mad::new_checked(&answer.mad[..]).unwrap().status();
        assert_eq!(status, wire::mad::Status::OK);
        answer.mad
    }

    /// LID of the switch that all hypervisors are at.
    fn switch(&self) -> Lid {
        let sink = self.lab.vswitch.port(VfId(SINK as u16)).unwrap();
        let info = self.lab.vswitch.inspect(|fabric| {
            let vswitch = fabric.peer(sink)?;
            let switch = fabric.peer(PortRef { port: 1, ..vswitch })?;
            fabric.port_info(PortRef { port: 0, ..switch })
        });
        info.unwrap().lid
    }

    /// Has the switch mark one packet in sixteen of those behind 80 KiB, and senders go down to one part in 1 + n/8 of the link at index n.
    /// An index rises by two at a notification, and falls by one in two milliseconds.
    fn control(&self, by_level: bool) {
        let mut setting = [0; 76];
        (setting[3], setting[68], setting[75]) = (0x14, 0x60, 15);
        self.ask(self.switch(), 0x14, 0, true, &setting);
        for sender in 0..SENDERS {
            let lid = self.lid(sender);
            let mut table = [0; 132];
            table[1] = 63;
            for entry in 0..64 {
                table[4 + 2 * entry..][..2].copy_from_slice(&[3 << 6, entry as u8]);
            }
            self.ask(lid, 0x17, 0, true, &table);
            let mut setting = [0; 132];
            (setting[1], setting[3]) = (u8::from(by_level), 1);
            // Timer, increase and threshold of service level 0.
            setting[4..8].copy_from_slice(&[0x07, 0xd0, 2, 2]);
            self.ask(lid, 0x16, 0, true, &setting);
        }
        self.lab.vswitch.poll();
    }

    fn post(&mut self, sender: usize, messages: u16) {
        let key = self.guests.nodes[SINK].key;
        let qp = &self.senders[sender];
        for _ in 0..messages {
            self.posted += 1;
            let mut sge = self.guests.sge(qp.node, 0, LEN);
            sge.addr = ALIAS;
            let wr = remote(Operation::Write, self.posted, &[sge], ALIAS, key);
            self.guests.post(qp, wr);
        }
    }

    /// Bytes of a queue pair's messages that were done in a time.
    fn done(&mut self, qps: &[&Qp], time: u64) -> Vec<u64> {
        self.guests.advance(time);
        let done = |qp: &&Qp| {
            let done = sent(&qp.cq.poll());
            assert!(done.iter().all(|(_, status)| *status == Status::Success));
            done.len() as u64 * u64::from(LEN)
        };
        qps.iter().map(done).collect()
    }

    /// Returns the time that a small message of the bystander takes to the sink and back, in microseconds, some time
    /// later.
    fn latency(&mut self, to_sink: &Qp) -> u64 {
        self.guests.advance(777_000);
        let key = self.guests.nodes[SINK].key;
        let mut sge = self.guests.sge(BYSTANDER, 0, 64);
        sge.addr = ALIAS;
        let wr = remote(Operation::Write, 0, &[sge], ALIAS, key);
        self.guests.post(to_sink, wr);
        for passed in 1..100_000 {
            self.guests.advance(1000);
            if !sent(&to_sink.cq.poll()).is_empty() {
                return passed;
            }
        }
        panic!("nothing comes back");
    }

    /// A connection of one guest with another.
    fn connect(&mut self, from: usize, to: usize) -> Qp {
        let guests = &mut self.guests;
        let (a, b) = (guests.qp(from, Transport::Rc), guests.qp(to, Transport::Rc));
        guests.connect_with(&a, &b, |change| change.timeout = Some(20));
        a
    }
}

/// Returns the part of a link that this is.
fn part(bytes: u64, time: u64) -> f64 {
    bytes as f64 * 1e9 / (RATE as f64 * time as f64)
}

/// Three guests send to one. Its link is full with and without congestion control; what waits for it is not.
#[test]
fn an_incast_waits_at_its_senders() {
    for engines in [[0; 5], [0, 1, 2, 0, 1]] {
        let mut latencies = Vec::new();
        for controlled in [false, true] {
            let mut incast = Incast::new(engines);
            if controlled {
                incast.control(false);
            }
            let probe = incast.connect(BYSTANDER, SINK);
            for sender in 0..SENDERS {
                incast.post(sender, 2000);
            }
            let time = 200 * MILLISECOND;
            let senders = incast.senders.clone();
            let senders: Vec<_> = senders.iter().collect();
            incast.done(&senders, 50 * MILLISECOND);
            let parts: Vec<_> = incast.done(&senders, time);
            let parts: Vec<_> = parts.iter().map(|bytes| part(*bytes, time)).collect();
            println!("{engines:?}, controlled: {controlled}, {parts:.2?}");
            let all: f64 = parts.iter().sum();
            assert!(all > 0.85, "{all}");
            assert!(parts.iter().all(|part| (0.2..0.45).contains(part)));
            let taken: Vec<_> = (0..20).map(|_| incast.latency(&probe)).collect();
            println!("{taken:?}");
            latencies.push(taken.iter().sum::<u64>() / 20);
            let log = incast.ask(incast.lid(0), 0x13, 0, false, &[]);
            assert_eq!(
                (log[32], log[37]),
                (2, u8::from(controlled)),
                "service level 0"
            );
            assert_eq!(log[34..36] != [0, 0], controlled);
            if controlled {
                // The queue pair that is held back, and the sink's LID.
                let qpn = u32::from_be_bytes([0, log[44], log[45], log[46]]);
                assert_eq!(qpn, incast.senders[0].qpn.value());
                let remote = u16::from_be_bytes([log[54], log[55]]);
                assert_eq!(Lid::new(remote), incast.lid(SINK));
            }
            let log = incast.ask(incast.switch(), 0x13, 0, false, &[]);
            assert_eq!(log[34..36] != [0, 0], controlled);
        }
        println!("{engines:?}: {latencies:?} us");
        assert!(latencies[1] * 10 < latencies[0]);
    }
}

/// When the others are done, who is left gets all of the link again.
#[test]
fn senders_recover() {
    let mut incast = Incast::new([0; 5]);
    incast.control(false);
    incast.post(0, 2000);
    for sender in 1..SENDERS {
        incast.post(sender, 200);
    }
    let senders = incast.senders.clone();
    let senders: Vec<_> = senders.iter().collect();
    let mut left = 400 * u64::from(LEN);
    while left > 0 {
        let done = incast.done(&senders, 10 * MILLISECOND);
        left -= done[1] + done[2];
    }
    // The index that the senders had together is less than 64.
    incast.done(&senders, 64 * MILLISECOND);
    let time = 50 * MILLISECOND;
    let alone = part(incast.done(&senders, time)[0], time);
    assert!(alone > 0.95, "{alone}");
}

/// Queue pairs are held back one by one, or all of a service level together.
#[test]
fn others_of_the_same_guest() {
    let mut parts = Vec::new();
    for by_level in [false, true] {
        let mut incast = Incast::new([0; 5]);
        incast.control(by_level);
        for sender in 0..SENDERS {
            incast.post(sender, 2000);
        }
        let other = incast.connect(0, BYSTANDER);
        let key = incast.guests.nodes[BYSTANDER].key;
        for _ in 0..2000 {
            let mut sge = incast.guests.sge(0, 0, LEN);
            sge.addr = ALIAS;
            let wr = remote(Operation::Write, 1, &[sge], ALIAS, key);
            incast.guests.post(&other, wr);
        }
        incast.done(&[&other], 50 * MILLISECOND);
        let time = 200 * MILLISECOND;
        let to_sink = incast.senders.clone();
        let both = incast.done(&[&other, &to_sink[0]], time);
        parts.push([0, 1].map(|at| part(both[at], time)));
    }
    println!("{parts:.2?}");
    // Beside a third of the link to the sink the rest is the other's, where it is not held back along.
    let [[other, _], [along, to_sink]] = parts[..] else {
        panic!("two");
    };
    assert!(other > 0.55, "{parts:?}");
    assert!(along < 0.4 && (along - to_sink).abs() < 0.1, "{parts:?}");
}

/// Datagrams are held back as well: those to the sink.
#[test]
fn datagrams_meet_congestion_too() {
    let mut incast = Incast::new([0; 5]);
    incast.control(false);
    let qps: Vec<_> = (0..=SINK)
        .map(|node| incast.guests.qp(node, Transport::Ud))
        .collect();
    for (qp, peer) in [(0, SINK), (1, SINK), (2, SINK), (SINK, 0)] {
        let change = incast.guests.attributes(&qps[peer]);
        incast.guests.bring_up(&qps[qp], &change);
    }
    for from in 0..SENDERS {
        for index in 0..8000 {
            let wr = datagram(
                &incast.guests,
                &qps[SINK],
                index,
                &[incast.guests.sge(from, 0, 4096)],
            );
            incast.guests.post(&qps[from], wr);
        }
    }
    let time = 100 * MILLISECOND;
    incast.guests.advance(time);
    let sent: usize = { qps[..SINK].iter() }
        .map(|qp| sent(&qp.cq.poll()).len())
        .sum();
    let part = part(sent as u64 * 4096, time);
    // Without control each sender's own link is the limit.
    assert!((0.8..1.2).contains(&part), "{part}");
}
