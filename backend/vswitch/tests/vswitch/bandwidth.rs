//! Guests that share links, in a time that stands still until the test goes on.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use fabric::PortRef;
use hca::work::{Operation, Status};
use hca::{Foreign, Quota, ServiceLevels, Transport, VfId};
use ibvswitch_vswitch::Model;
use ibvswitch_vswitch::model::{Bandwidth, Cluster, FullMode, LinkRate, Vf, View};
use subnet_manager::{Arbitration, Config};
use wire::attribute::{PortInfo, SlToVl};
use wire::mad::{AttributeId, Class, Method};
use wire::performance::{self, PortCountersExtended};
use wire::{Lid, LinkWidth, MadPacket, Sl};

use crate::guests::{ALIAS, Lab as Guests, Qp, Subnets, datagram, remote, sent};
use crate::lab::Lab;
use crate::tenant::{Tenant, ask, directed};

/// Bytes of a message.
const LEN: u32 = 64 << 10;
/// Bytes per second of every link, 1X SDR.
const RATE: u64 = 250_000_000;

/// The guests `a` and `b` of one hypervisor, and those of another one to which they send.
fn model(bandwidth: Bandwidth) -> Model {
    let mut model = Model::new(&["l1", "l2"]);
    model.add_cable(0, 1);
    model.add_hypervisor("h1", 0, vec![Vf::new("a"), Vf::new("b")]);
    model.add_hypervisor("h2", 1, vec![Vf::new("c"), Vf::new("d")]);
    model.fabric.bandwidth = bandwidth;
    model.fabric.link_width = LinkWidth::X1;
    model.fabric.link_speed = LinkRate::Sdr;
    model.manager.sl_to_vl = Some(SlToVl::modulo(2));
    model
}

/// The subnet in operation, and an engine on the same clock.
fn guests(model: &Model) -> (Lab, Guests) {
    let lab = Lab::new(model);
    let guests = guests_over(&lab);
    (lab, guests)
}

fn guests_over(lab: &Lab) -> Guests {
    let clock = Arc::clone(&lab.clock);
    let ports = (0..4).map(|vf| lab.vswitch.port_view(VfId(vf))).collect();
    let vswitch = Arc::clone(&lab.vswitch);
    let subnets = Subnets(Box::new(move || vswitch.for_engine(Waker::noop().clone())));
    Guests::over(subnets, Default::default(), clock, ports, Quota::default())
}

/// A connection from a guest of the first hypervisor to one of the second on a service level.
fn connect(guests: &mut Guests, from: usize, sl: u8) -> (Qp, Qp) {
    let (a, b) = (
        guests.qp(from, Transport::Rc),
        guests.qp(from + 2, Transport::Rc),
    );
    guests.connect_with(&a, &b, |change| {
        change.timeout = Some(18);
        if let Some(path) = &mut change.path {
            path.sl = Sl::new(sl);
        }
    });
    (a, b)
}

/// Posts so many messages.
fn post(guests: &mut Guests, qp: &Qp, messages: u16) {
    for index in 0..messages {
        let mut sge = guests.sge(qp.node, 0, LEN);
        sge.addr = ALIAS;
        let wr = remote(
            Operation::Write,
            index,
            &[sge],
            ALIAS,
            guests.nodes[qp.node + 2].key,
        );
        guests.post(qp, wr);
    }
}

/// Returns the shares of a link that two guests on these service levels get while both want all of it.
fn shares(guests: &mut Guests, sls: [u8; 2]) -> [f64; 2] {
    let pairs = [0, 1].map(|from| connect(guests, from, sls[from]));
    for (qp, _) in &pairs {
        post(guests, qp, 160);
    }
    // So long that neither has sent all, and the end of the last message makes no difference.
    let time = Duration::from_millis(40);
    guests.advance(time.as_nanos() as u64);
    let could = RATE as f64 * time.as_secs_f64();
    pairs.map(|(qp, _)| {
        let done = sent(&qp.cq.poll());
        assert!(done.iter().all(|(_, status)| *status == Status::Success));
        assert!(!done.is_empty() && done.len() < 160);
        done.len() as f64 * f64::from(LEN) / could
    })
}

fn close(given: [f64; 2], expected: [f64; 2]) -> bool {
    // A message is one part in 150 of what passes.
    (0..2).all(|at| (given[at] - expected[at]).abs() < 0.02)
}

#[test]
fn guests_get_the_shares_of_their_lanes() {
    for (weights, expected) in [
        ("0:64,1:192", [0.25, 0.75]),
        ("0:192,1:64", [0.75, 0.25]),
        ("0:100,1:100", [0.5, 0.5]),
    ] {
        let mut model = model(Bandwidth::Model);
        model.manager.arbitration = Some(Arbitration::parse(0, "", weights).unwrap());
        let (_lab, mut guests) = guests(&model);
        let given = shares(&mut guests, [0, 1]);
        assert!(close(given, expected), "{weights}: {given:?}");
    }
}

#[test]
fn clusters_get_their_shares() {
    clusters_get([1, 1], [0.5, 0.5]);
    clusters_get([3, 1], [0.75, 0.25]);
}

/// The clusters x of the guests a and c, and y, with these shares.
fn clusters(shares: [u8; 2]) -> Model {
    let mut model = model(Bandwidth::Model);
    model.manager.sl_to_vl = None;
    model.manager.cluster_lanes = true;
    for (name, share) in ["x", "y"].into_iter().zip(shares) {
        model.clusters.push(Cluster {
            name: name.to_owned(),
            sm_lid: Lid::new(1),
            view: View::default(),
            full_mode: FullMode::default(),
            share,
        });
    }
    for hypervisor in &mut model.hypervisors {
        for (cluster, vf) in hypervisor.vfs.iter_mut().enumerate() {
            // The same LIDs in both clusters.
            let lid = if matches!(vf.name.as_str(), "a" | "b") {
                2
            } else {
                3
            };
            vf.cluster = Some((cluster, Lid::new(lid)));
        }
    }
    model
}

/// The parts of a link that connections get which all want it, each from a guest on a service level.
fn parts(guests: &mut Guests, from: &[(usize, u8)]) -> Vec<f64> {
    let pairs: Vec<_> = { from.iter() }
        .map(|&(from, sl)| connect(guests, from, sl))
        .collect();
    for (qp, _) in &pairs {
        post(guests, qp, 160);
    }
    let time = Duration::from_millis(40);
    guests.advance(time.as_nanos() as u64);
    let could = RATE as f64 * time.as_secs_f64() / f64::from(LEN);
    { pairs.iter() }
        .map(|(qp, _)| sent(&qp.cq.poll()).len() as f64 / could)
        .collect()
}

/// Clusters have lanes of their own and their parts, whatever service level a guest names and however many queue pairs
/// it has.
fn clusters_get(shares: [u8; 2], expected_parts: [f64; 2]) {
    let model = clusters(shares);
    let (lab, mut guests) = guests(&model);
    let levels = [0, 1, 2, 3].map(|vf| lab.vswitch.port_view(VfId(vf)).service_levels);
    let expected = [1, 2, 1, 2].map(|sl| ServiceLevels {
        allowed: 1 << sl,
        foreign: Foreign::Rewritten(Sl::new(sl)),
    });
    assert_eq!(levels, expected);
    let done = parts(&mut guests, &[(0, 0), (1, 0), (1, 1), (1, 2)]);
    let given = [done[0], done[1..].iter().sum()];
    assert!(close(given, expected_parts), "{done:?}");
}

/// A tenant's manager gives its even service levels three quarters of its links, and its odd ones a quarter: of the
/// cluster's half that is, where there are lanes for it.
#[test]
fn tenants_divide_their_shares() {
    for (max_lanes, expected) in [(None, [0.375, 0.125]), (Some(3), [0.25, 0.25])] {
        let mut model = clusters([1, 1]);
        for cluster in &mut model.clusters {
            cluster.view = View::Full;
        }
        model.manager.max_lanes = max_lanes;
        for vf in model.hypervisors.iter_mut().flat_map(|it| &mut it.vfs) {
            vf.mads.rate = None;
        }
        let lab = Lab::new(&model);
        let settings = Config {
            sl_to_vl: Some(SlToVl::modulo(2)),
            arbitration: Some(Arbitration::parse(0, "", "0:192,1:64").unwrap()),
            ..Config::default()
        };
        let mut tenant = Tenant::with(&lab, 2, settings);
        tenant.pass(&lab, Duration::from_secs(2));
        let mut guests = guests_over(&lab);
        let done = parts(&mut guests, &[(0, 0), (0, 1), (1, 0)]);
        assert!(close([done[0], done[1]], expected), "{done:?}");
        assert!(close([done[2], 0.0], [0.5, 0.0]), "{done:?}");
        // Counters of the leaf have the tenant's data, which is half of all.
        let sent = read_sent(&lab, LEAF_CABLE).expect("answers");
        let all = lab.vswitch.inspect(|fabric| {
            let node = lab.plan.node(fabric, "l1").expect("is there");
            fabric.port_totals(PortRef {
                node,
                port: LEAF_CABLE,
            })
        });
        let all = all.expect("is there").xmit_words;
        assert!(
            sent * 21 > all * 10 && sent * 19 < all * 10,
            "{sent} of {all}"
        );
        // Nothing is known of cables that lead elsewhere.
        assert_eq!(read_sent(&lab, LEAF_CABLE + 1), Some(0));
    }
}

/// Port of a leaf that leads to the other one, behind the hypervisor's.
const LEAF_CABLE: u8 = 2;

/// Data that a port of the leaf of `a` has sent, as the VM `a` reads it in its cluster's network, in units of 4 bytes.
fn read_sent(lab: &Lab, port: u8) -> Option<u64> {
    let info = (AttributeId::PORT_INFO, 0);
    let (_, data) = ask(lab, 0, directed(&[1, 1]), Method::GET, info, [0; 64])?;
    let leaf = PortInfo::parse(&data).expect("is right").lid;
    let own = lab.vswitch.port_view(VfId(0));
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, Class::PERFORMANCE.0, 1, Method::GET.0]);
    mad[15] = 7;
    mad[16..18].copy_from_slice(&performance::PORT_COUNTERS_EXTENDED.0.to_be_bytes());
    mad[performance::DATA][1] = port;
    let question = MadPacket::gmp(own.lid, leaf, Sl::default(), own.pkeys[0], mad);
    let answers = lab.send(0, question);
    let [answer] = &answers[..] else { return None };
    assert_eq!((answer.slid, answer.pkey), (leaf, own.pkeys[0]));
    let counters = PortCountersExtended::parse(&answer.mad[performance::DATA]);
    Some(counters.expect("is right").xmit_data)
}

#[test]
fn guests_of_different_engines_share_the_same_links() {
    let mut model = model(Bandwidth::Model);
    model.manager.arbitration = Some(Arbitration::parse(0, "", "0:64,1:192").unwrap());
    let (_lab, mut guests) = guests(&model);
    guests.split(&[0, 1, 1, 0]);
    let given = shares(&mut guests, [0, 1]);
    assert!(close(given, [0.25, 0.75]), "{given:?}");
}

#[test]
fn in_one_lane_guests_get_the_same() {
    let (_lab, mut guests) = guests(&model(Bandwidth::Model));
    let given = shares(&mut guests, [0, 2]);
    assert!(close(given, [0.5, 0.5]), "{given:?}");
}

/// Two queue pairs of one guest on one lane, each with more to send than there is room for.
#[test]
fn queue_pairs_of_a_guest_get_the_same() {
    let (_lab, mut guests) = guests(&model(Bandwidth::Model));
    let pairs = [0, 0].map(|from| connect(&mut guests, from, 0));
    for (qp, _) in &pairs {
        post(&mut guests, qp, 160);
    }
    guests.advance(40_000_000);
    let done = pairs.map(|(qp, _)| sent(&qp.cq.poll()).len());
    assert!(done[0] + done[1] > 140, "{done:?}");
    assert!(done[0].abs_diff(done[1]) < 4, "{done:?}");
}

#[test]
fn a_guest_alone_gets_all_of_it() {
    let mut model = model(Bandwidth::Model);
    model.manager.arbitration = Some(Arbitration::parse(0, "", "0:1,1:255").unwrap());
    let (_lab, mut guests) = guests(&model);
    let (a, _) = connect(&mut guests, 0, 0);
    post(&mut guests, &a, 32);
    let whole = 32 * u64::from(LEN) * 1_000_000_000 / RATE;
    guests.advance(whole);
    assert!(sent(&a.cq.poll()).len() < 32, "faster than the link");
    guests.advance(whole / 50);
    let rest = sent(&a.cq.poll());
    assert_eq!(rest.last(), Some(&(31, Status::Success)));
}

/// No table of the ports has the lane: packets wait, and their sender hears nothing.
#[test]
fn a_lane_without_a_turn() {
    let mut model = model(Bandwidth::Model);
    model.manager.arbitration = Some(Arbitration::parse(0, "", "0:64").unwrap());
    let (_lab, mut guests) = guests(&model);
    let (a, _) = connect(&mut guests, 0, 1);
    post(&mut guests, &a, 1);
    guests.advance(60_000_000_000);
    assert_eq!(sent(&a.cq.poll()), [(0, Status::RetryExceeded)]);
}

#[test]
fn datagrams_share_links_too() {
    let (_lab, mut guests) = guests(&model(Bandwidth::Model));
    let [a, c] = [0, 2].map(|node| guests.qp(node, Transport::Ud));
    for (qp, peer) in [(&a, &c), (&c, &a)] {
        let change = guests.attributes(peer);
        guests.bring_up(qp, &change);
    }
    for index in 0..1000 {
        let wr = datagram(&guests, &c, index, &[guests.sge(0, 0, 4096)]);
        guests.post(&a, wr);
    }
    let whole = 1000 * (4096 + 32) * 1_000_000_000 / RATE;
    guests.advance(whole / 2);
    let half = sent(&a.cq.poll()).len();
    assert!((500..600).contains(&half), "{half}");
    guests.advance(whole / 2);
    assert_eq!(sent(&a.cq.poll()).len(), 1000 - half);
}

/// A guest that answers READs at the full rate of its link still sends.
#[test]
fn answers_take_nobodys_room() {
    let (_lab, mut guests) = guests(&model(Bandwidth::Model));
    let (a, c) = connect(&mut guests, 0, 0);
    for index in 0..16 {
        let mut sge = guests.sge(c.node, 0, 1 << 20);
        sge.addr = ALIAS;
        let key = guests.nodes[a.node].key;
        let wr = remote(Operation::Read, index, &[sge], ALIAS, key);
        guests.post(&c, wr);
    }
    guests.advance(8_000_000);
    post(&mut guests, &a, 8);
    guests.advance(16_000_000);
    assert_eq!(sent(&a.cq.poll()).len(), 8);
    assert!(sent(&c.cq.poll()).len() < 8, "it reads yet");
}

/// Where links do not share their bandwidth, messages are one copy each, in no time.
#[test]
fn unlimited_links_take_no_time() {
    let (_lab, mut guests) = guests(&model(Bandwidth::Unlimited));
    let (a, _) = connect(&mut guests, 0, 1);
    post(&mut guests, &a, 32);
    guests.settle();
    assert_eq!(sent(&a.cq.poll()).len(), 32);
}
