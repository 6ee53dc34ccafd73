//! Images of functions with thousands of objects: others have the engine between the parts.

use hca::image::{Restoring, Saving};
use hca::mr::{MemoryKey, Translation};
use hca::work::{Operation, Status};
use hca::{PageList, QpChange, QpState, Transport};
use wire::Gid;

use crate::lab::{Lab, Qp, base, datagram, physical, received, remote, sent};

/// Objects of a part.
const MAX_PART_OBJECTS: usize = 256;
const MANY: usize = 1500;

/// Functions 0 and 1 talk, 2 has many objects, 3 sends to it.
fn crowd() -> (Lab, [Qp; 2], Qp) {
    let mut lab = Lab::new(4);
    let (a, b) = lab.pair(Transport::Rc);
    let (vf, pd) = (lab.nodes[2].vf, lab.nodes[2].pd);
    let (cqn, cq) = lab.cq(2, 4096);
    for at in 0..MANY {
        let qp = lab.qp_on(2, Transport::Ud, (cqn, cq.clone()), |_| {});
        if at % 3 == 0 {
            lab.modify(&qp, QpState::Error, &QpChange::default());
        }
        let group = Gid::from_bits((0xff12 << 112) | (at as u128 % 50));
        lab.engine
            .verbs(vf)
            .attach_multicast(qp.qpn, group)
            .unwrap();
        lab.engine.verbs(vf).create_key(physical(pd)).unwrap();
        lab.cq(2, 16);
    }
    // Pages in several blocks.
    let pages = (0..100_000_u32).map(|at| base(2) + ((u64::from(at) * 7919 % 1000) << 12));
    let pages = PageList::new(12, pages);
    let translation = Translation::Pages {
        log_size: 12,
        pages,
    };
    let len = 100_000 << 12;
    lab.engine
        .verbs(vf)
        .create_key(MemoryKey {
            len,
            translation,
            ..physical(pd)
        })
        .unwrap();
    let member = lab.qp(2, Transport::Ud);
    let change = lab.attributes(&member);
    lab.bring_up(&member, &change);
    lab.receive(&member, 7, &[lab.sge(2, 0, 64)]);
    lab.advance(1_000_000);
    (lab, [a, b], member)
}

/// The neighbours' message is done at once.
fn exchange(lab: &mut Lab, a: &Qp, index: u16) {
    let list = [lab.sge(0, 0, 8)];
    let key = lab.nodes[1].key;
    lab.post(a, remote(Operation::Write, index, &list, base(1), key));
    lab.engine.run();
    assert_eq!(sent(&a.cq.poll()), [(index, Status::Success)]);
}

#[test]
fn neighbours_work_between_the_parts() {
    let (mut lab, [a, _b], member) = crowd();
    let vf = lab.nodes[2].vf;
    let sender = lab.qp(3, Transport::Ud);
    let change = lab.attributes(&member);
    lab.bring_up(&sender, &change);
    lab.engine.quiesce(vf);
    let whole = serde_json::to_string(&lab.engine.save(vf)).unwrap();
    let (mut saving, mut before, mut parts) = (Saving::default(), 0, 0);
    while lab.engine.save_part(vf, &mut saving) {
        let objects = saving.objects();
        assert!(
            objects - before <= MAX_PART_OBJECTS,
            "{} at once",
            objects - before
        );
        (before, parts) = (objects, parts + 1);
        exchange(&mut lab, &a, parts);
    }
    assert!(
        usize::from(parts) >= 3 * MANY / MAX_PART_OBJECTS,
        "{parts} parts"
    );
    let image = saving.finish();
    assert!(
        serde_json::to_string(&image).unwrap() == whole,
        "in parts it is another"
    );
    lab.engine.reset_vf(vf);
    while lab.engine.clear_away(vf) {}

    let count = |lab: &Lab| -> usize {
        let counts = lab.engine.vf(vf).object_counts();
        counts.iter().map(|(_, count)| count).sum()
    };
    let (mut restoring, mut before) = (Restoring::new(image).unwrap(), 0);
    while lab.engine.restore_part(vf, &mut restoring).unwrap() {
        let objects = count(&lab);
        assert!(
            objects - before <= MAX_PART_OBJECTS,
            "{} at once",
            objects - before
        );
        (before, parts) = (objects, parts + 1);
        exchange(&mut lab, &a, parts);
        // What others send meanwhile waits, and finds its queue pair.
        if parts % 8 == 0 {
            let list = [lab.sge(3, 0, 8)];
            let wr = datagram(&lab, &member, parts, &list);
            lab.execute(&sender, wr);
            assert!(member.cq.poll().is_empty());
        }
    }
    lab.engine.resume(vf);
    lab.settle();
    assert_eq!(received(&member.cq.poll()).len(), 1);
    lab.engine.quiesce(vf);
    assert_eq!(count(&lab), count_of(&whole));
}

fn count_of(image: &str) -> usize {
    let image: serde_json::Value = serde_json::from_str(image).unwrap();
    let kinds = ["pds", "keys", "cqs", "srqs", "qps"];
    let lengths = kinds.map(|kind| image["v1"][kind].as_array().unwrap().len());
    lengths.iter().sum()
}

/// An image that turns out to be wrong in a later part leaves nothing behind.
#[test]
fn a_later_part_may_be_wrong() {
    let (mut lab, _, _) = crowd();
    let vf = lab.nodes[2].vf;
    lab.engine.quiesce(vf);
    let mut image = serde_json::to_value(lab.engine.save(vf)).unwrap();
    lab.engine.reset_vf(vf);
    while lab.engine.clear_away(vf) {}
    image["v1"]["ready"] = [77].as_slice().into();
    let mut restoring = Restoring::new(serde_json::from_value(image).unwrap()).unwrap();
    let mut parts = 0;
    let error = loop {
        match lab.engine.restore_part(vf, &mut restoring) {
            Ok(true) => parts += 1,
            Ok(false) => panic!("it is restored"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        parts > 10 && error.contains("names queue pair 0x4d"),
        "{error}"
    );
    let counts = lab.engine.vf(vf).object_counts();
    assert!(counts.iter().all(|(_, count)| *count == 0));
}
