//! Why requests fail, whichever way they go.

use std::sync::{Arc, Mutex};

use hca::mr::{Access, MemoryKey};
use hca::work::{Operation, RecvWr, SendWr, Sge, Side, Status, WqeError};
use hca::{Event, Failure, Reason, Report, Transport, VfId};
use proptest::prelude::*;

use crate::lab::{Lab, VARIANT, Way, base, everything, physical, remote};

/// Bytes of memory that the keys reach, of which the upper half is not mapped.
const SPACE: u64 = 1 << 20;

/// State of the receive request, if there is one.
#[derive(Debug, Clone, Copy)]
enum Receive {
    None,
    Of(u32),
    BadKey,
    Malformed,
    Unmapped,
}

#[derive(Debug, Clone)]
struct Case {
    operation: Operation,
    len: u32,
    offset: u64,
    /// The responder's key, and the one to invalidate.
    key: usize,
    /// The requester's.
    local: usize,
    rights: [bool; 3],
    receive: Receive,
}

fn case() -> impl Strategy<Value = Case> {
    let operation = prop::sample::select(vec![
        Operation::Send,
        Operation::SendImm,
        Operation::SendInvalidate,
        Operation::Write,
        Operation::WriteImm,
        Operation::Read,
        Operation::CompareSwap,
        Operation::FetchAdd,
    ]);
    let len = prop_oneof![Just(8_u32), 1_u32..200, 60_000_u32..200_000];
    let offset = prop_oneof![
        4 => (0_u64..64).prop_map(|at| at * 8),
        1 => Just(4),
        1 => Just(SPACE / 2 - 8),
        1 => Just(SPACE / 2),
        1 => Just(SPACE - 4),
    ];
    let receive = prop_oneof![
        1 => Just(Receive::None),
        4 => Just(Receive::Of(200_000)),
        1 => (0_u32..100_000).prop_map(Receive::Of),
        1 => Just(Receive::BadKey),
        1 => Just(Receive::Malformed),
        1 => Just(Receive::Unmapped),
    ];
    let local = prop_oneof![3 => Just(0_usize), 1 => 0_usize..6];
    let rights = prop::array::uniform3(prop::bool::weighted(0.8));
    (operation, len, offset, 0_usize..6, local, rights, receive).prop_map(
        |(operation, len, offset, key, local, rights, receive)| Case {
            operation,
            len: match operation {
                Operation::CompareSwap | Operation::FetchAdd => 8,
                _ => len,
            },
            offset,
            key,
            local,
            rights,
            receive,
        },
    )
}

#[derive(Debug, Clone, Default)]
struct Failures(Arc<Mutex<Vec<Failure>>>);

impl Report for Failures {
    fn failed(&mut self, failure: Failure) {
        self.0.lock().unwrap().push(failure);
    }
}

/// Reports to both ends.
type Told = (
    Vec<(VfId, Status, Reason)>,
    Vec<(bool, Status, Reason)>,
    Vec<Vec<Event>>,
);

/// A key of each kind, in the order of their numbers: with all rights; without rights of others; of another
/// protection domain; for another queue pair; to be invalidated; none.
fn keys(lab: &mut Lab, node: usize) -> Vec<u32> {
    let (vf, pd) = (lab.nodes[node].vf, lab.nodes[node].pd);
    let other = lab.home(vf).vf_mut(vf).alloc_pd().unwrap();
    let whole = MemoryKey {
        start: base(node),
        len: SPACE,
        ..physical(pd)
    };
    let kinds = [
        whole.clone(),
        MemoryKey {
            access: Access::LOCAL_READ | Access::LOCAL_WRITE,
            ..whole.clone()
        },
        MemoryKey {
            pd: other,
            ..whole.clone()
        },
        MemoryKey {
            qpn: Some(wire::Qpn::new(0x7777)),
            access: everything(),
            ..whole.clone()
        },
        MemoryKey {
            remote_invalidate: true,
            ..whole
        },
    ];
    let made =
        kinds.map(|key| lab.home(vf).verbs(vf).create_key(key).unwrap() << 8 | u32::from(VARIANT));
    made.into_iter().chain([0xdead_0000]).collect()
}

fn told(way: Way, case: &Case) -> Told {
    let mut lab = Lab::new(2);
    lab.go(way);
    let [near, far] = [0, 1].map(|node| keys(&mut lab, node));
    for node in 0..2 {
        // Beyond what the list of a request reaches.
        lab.memory(node).unmap(base(node) + SPACE / 2, 8 << 20);
    }
    let [read, write, atomic] = case.rights;
    let (a, b) = lab.pair_with(Transport::Rc, |change| {
        change.rnr_retry = Some(0);
        (change.read, change.write, change.atomic) = (Some(read), Some(write), Some(atomic));
    });
    let failures = Failures::default();
    for engine in lab.engines() {
        engine.set_report(Box::new(failures.clone()));
    }
    let receive = |lkey, len| {
        let addr = base(1);
        let sges = vec![Sge { addr, lkey, len }];
        Ok(RecvWr {
            index: 1,
            sges,
            ..RecvWr::default()
        })
    };
    match case.receive {
        Receive::None => {}
        Receive::Of(len) => b.recv.push(receive(far[0], len)),
        Receive::BadKey => b.recv.push(receive(0xdead_0000, 200_000)),
        Receive::Malformed => b.recv.push(Err(WqeError::Malformed {
            index: 1,
            opcode: 0,
            reason: Reason::Segments,
        })),
        Receive::Unmapped => b.recv.push(Err(WqeError::Unmapped)),
    }
    let sge = Sge {
        addr: base(0),
        lkey: near[case.local],
        len: case.len,
    };
    let addr = base(1) + case.offset;
    let wr = remote(case.operation, 1, &[sge], addr, far[case.key]);
    lab.execute(
        &a,
        SendWr {
            immediate: far[case.key],
            ..wr
        },
    );
    let failures = failures.0.lock().unwrap();
    let failures = failures.iter().map(|it| (it.vf, it.status, it.reason));
    let entries = [&a, &b].into_iter().flat_map(|qp| qp.cq.poll());
    let entries = entries.map(|it| {
        let sends = matches!(it.side, Side::Send { .. });
        (sends, it.status, it.reason)
    });
    (
        failures.collect(),
        entries.collect(),
        (0..2).map(|node| lab.events(node)).collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// A copy and frames, within an engine and between two, say the same of what fails, to both ends.
    #[test]
    fn frames_say_what_a_copy_says(case in case()) {
        let copied = told(Way::Copied, &case);
        prop_assert_eq!(&told(Way::Frames, &case), &copied);
        prop_assert_eq!(&told(Way::Engines(0, 0), &case), &copied);
    }
}
