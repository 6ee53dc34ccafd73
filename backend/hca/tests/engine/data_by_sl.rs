//! Counters of ports by service level.

use hca::work::{Operation, Status};
use hca::{Passed, QpChange, Transport};
use wire::Sl;

use crate::lab::{Lab, Qp, Way, base, datagram, remote, sent};

const THERE: Sl = Sl::new(3);
const BACK: Sl = Sl::new(7);
const DATAGRAMS: Sl = Sl::new(15);
/// LRH, BTH, ICRC and VCRC; with DETH; without half a word.
const HEADERS: u64 = 6;
const DATAGRAM_HEADERS: u64 = 8;

fn levels(lab: &Lab, node: usize) -> Vec<(Sl, Passed)> {
    let vf = lab.nodes[node].vf;
    lab.look_home(vf).vf(vf).counters().levels().collect()
}

/// A connection with a service level each way.
fn connect(lab: &mut Lab, a: &Qp, b: &Qp) {
    for (qp, peer, sl) in [(a, b, THERE), (b, a, BACK)] {
        let mut change: QpChange = lab.attributes(peer);
        change.path.as_mut().unwrap().sl = sl;
        lab.bring_up(qp, &change);
    }
}

/// A READ goes there and its data come back; a WRITE and a datagram go there.
fn work(lab: &mut Lab) {
    let (a, b) = (lab.qp(0, Transport::Rc), lab.qp(1, Transport::Rc));
    connect(lab, &a, &b);
    let key = lab.nodes[1].key;
    let (long, short) = (lab.sge(0, 0, 10_000), lab.sge(0, 0, 4000));
    lab.execute(&a, remote(Operation::Read, 1, &[long], base(1), key));
    lab.advance(1 << 20);
    lab.execute(&a, remote(Operation::Write, 2, &[short], base(1), key));
    lab.advance(1 << 20);
    let done = [(1, Status::Success), (2, Status::Success)];
    assert_eq!(sent(&a.cq.poll()), done);
    let [from, to] = [0, 1].map(|node| {
        let qp = lab.qp(node, Transport::Ud);
        let change = lab.attributes(&qp);
        let datagrams = QpChange {
            path: None,
            ..change
        };
        lab.bring_up(&qp, &datagrams);
        qp
    });
    lab.receive(&to, 3, &[lab.sge(1, 0, 1000)]);
    let mut wr = datagram(lab, &to, 3, &[lab.sge(0, 0, 400)]);
    wr.address.as_mut().unwrap().sl = DATAGRAMS;
    lab.execute(&from, wr);
    lab.advance(1 << 20);
    assert_eq!(to.cq.poll().len(), 1);
}

/// Traffic that the requester has sent, and received; the responder has the reverse.
fn expected() -> [Vec<(Sl, Passed)>; 2] {
    let there = (2, 1000 + 2 * HEADERS);
    let back = (3, 2500 + 3 * HEADERS);
    let datagrams = (1, 100 + DATAGRAM_HEADERS);
    let sent = |(xmit_packets, xmit_words)| Passed {
        xmit_packets,
        xmit_words,
        ..Passed::default()
    };
    let received = |(rcv_packets, rcv_words)| Passed {
        rcv_packets,
        rcv_words,
        ..Passed::default()
    };
    [
        vec![
            (THERE, sent(there)),
            (BACK, received(back)),
            (DATAGRAMS, sent(datagrams)),
        ],
        vec![
            (THERE, received(there)),
            (BACK, sent(back)),
            (DATAGRAMS, received(datagrams)),
        ],
    ]
}

#[test]
fn each_packet_counts_on_its_level() {
    for way in [Way::Copied, Way::Frames, Way::Line, Way::Engines(0, 0)] {
        let mut lab = Lab::new(2);
        lab.go(way);
        work(&mut lab);
        for (node, expected) in expected().into_iter().enumerate() {
            assert_eq!(levels(&lab, node), expected, "{way:?} {node}");
        }
    }
}

#[test]
fn levels_go_with_the_function() {
    let mut lab = Lab::new(2);
    work(&mut lab);
    for elsewhere in [false, true] {
        lab.save_and_restore(0, elsewhere);
        assert_eq!(levels(&lab, 0), expected()[0]);
    }
}
