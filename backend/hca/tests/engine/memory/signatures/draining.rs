//! Queue pairs that stop at a wrong block: their send queue drains, and what is behind waits.

use hca::{Event, QpChange, QpState};

use super::*;

const FORMAT: Format = Format {
    memory: Some(Signature {
        algorithm: Algorithm::Crc32,
        ones: true,
        tags: None,
        block: 512,
    }),
    wire: None,
    check: 0xff,
    copy: None,
};

/// Connects two queue pairs, of which the first one stops if `drains`.
fn pair(lab: &mut Lab, drains: bool) -> (Qp, Qp) {
    lab.pair_with(Transport::Rc, |change| change.drain_sigerr = Some(drains))
}

fn drained(lab: &Lab, qp: &Qp) -> usize {
    let events = lab.events(qp.node).into_iter();
    events
        .filter(|event| *event == Event::SendQueueDrained(qp.qpn))
        .count()
}

/// A storage target writes data, and sends a status behind it. Where the data are wrong it sends another status.
#[test]
fn what_is_behind_a_wrong_block_waits() {
    for way in WAYS {
        for (drains, wrong) in [(true, true), (true, false), (false, true)] {
            for (operation, image) in [
                (Operation::Write, false),
                (Operation::Read, false),
                (Operation::Write, true),
            ] {
                let mut lab = Lab::new(2);
                lab.go(way);
                let (a, b) = pair(&mut lab, drains);
                let data = pattern(7, 40 * 512);
                let mut format = FORMAT;
                if operation == Operation::Read {
                    // What comes from the wire is compared where it is taken.
                    (format.memory, format.wire) = (None, FORMAT.memory);
                }
                let mut stream = stream(FORMAT.memory.as_ref(), &data);
                stream[30 * 516 + 9] ^= u8::from(wrong);
                let (own, far) = match operation {
                    Operation::Read => (data.len(), stream.len() as u32),
                    _ => (stream.len(), data.len() as u32),
                };
                let key = ready(&mut lab, &a, format, own);
                match operation {
                    Operation::Read => lab.memory(1).write(base(1) + OTHER, &stream),
                    _ => put(&lab, 0, &stream),
                }
                lab.receive(&b, 5, &[lab.sge(1, 0, 64)]);
                let whole = hca::work::Sge {
                    addr: 0,
                    lkey: key,
                    len: far,
                };
                let mut transfer =
                    remote(operation, 1, &[whole], base(1) + OTHER, lab.nodes[1].key);
                transfer.signaled = false;
                let mut response = request(Operation::Send, 2, &[lab.sge(0, 0, 16)]);
                response.fence = true;
                a.send.push(Ok(transfer));
                lab.post(&a, response);
                for _ in 0..20 {
                    lab.advance(crate::lab::TIMEOUT_NS);
                }
                let entries = a.cq.poll();
                let what = format!("{way:?} {operation:?}: {entries:?}");
                assert_eq!(told(&entries).len(), usize::from(wrong), "{what}");
                let stops = drains && wrong;
                assert_eq!(sent(&entries).is_empty(), stops, "{what}");
                assert_eq!(b.cq.poll().is_empty(), stops, "{what}");
                assert_eq!(drained(&lab, &a), usize::from(stops), "{what}");
                if !stops {
                    continue;
                }
                assert_eq!(lab.state(&a), QpState::SendQueueDrain, "{what}");
                if image {
                    lab.save_and_restore(0, false);
                    lab.advance(crate::lab::TIMEOUT_NS);
                    assert!(a.cq.poll().is_empty(), "{what}");
                }
                // Somebody has looked at it.
                lab.modify(&a, QpState::ReadyToSend, &QpChange::default());
                let entries = run_until(&mut lab, &a);
                assert_eq!(sent(&entries), [(2, Status::Success)], "{what}");
                assert_eq!(b.cq.poll().len(), 1, "{what}");
                // The next one stops it again.
                let again = arm(key, format, own, false);
                assert_eq!(update(&mut lab, &a, again), Status::Success);
                let list = [whole];
                let once_more = remote(operation, 3, &list, base(1) + OTHER, lab.nodes[1].key);
                lab.post(&a, once_more);
                let mut entries = Vec::new();
                while sent(&entries).is_empty() {
                    let more = run_until(&mut lab, &a);
                    assert!(!more.is_empty(), "{what}");
                    entries.extend(more);
                }
                assert_eq!(sent(&entries), [(3, Status::Success)], "{what}");
                assert_eq!(drained(&lab, &a), 1, "{what}");
            }
        }
    }
}

/// A far end that finds a wrong block stops nobody: whose key it is has sent nothing.
#[test]
fn a_responder_that_finds_a_wrong_block_goes_on() {
    for way in WAYS {
        let mut lab = Lab::new(2);
        lab.go(way);
        let (a, b) = pair(&mut lab, true);
        let format = Format {
            memory: None,
            wire: FORMAT.memory,
            ..FORMAT
        };
        let mut bytes = stream(FORMAT.memory.as_ref(), &pattern(9, 512));
        bytes[3] ^= 1;
        lab.memory(0).write(base(0) + OTHER, &bytes);
        let key = ready(&mut lab, &b, format, 512);
        let sge = lab.sge(0, OTHER, bytes.len() as u32);
        lab.post(&a, remote(Operation::Write, 1, &[sge], 0, key));
        assert_eq!(sent(&run_until(&mut lab, &a)), [(1, Status::Success)]);
        assert_eq!(told(&b.cq.poll()).len(), 1, "{way:?}");
        for qp in [&a, &b] {
            assert_eq!(lab.state(qp), QpState::ReadyToSend, "{way:?}");
        }
    }
}
