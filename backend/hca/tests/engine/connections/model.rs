//! Random sequences of requests against a model that knows memory as bytes and
//! a message as one step.

mod bench;

use std::collections::VecDeque;

use proptest::prelude::*;

use hca::mr::Access;
use hca::work::{Operation, RecvKind, RecvWr, Status};
use hca::{ABSENT, NO_READ, NO_WRITE, QpState};

use bench::Bench;

use crate::lab::{Way, base, everything, received, sent};

/// Bytes of each function's memory that the keys here reach.
const SPACE: u64 = 1 << 14;
const NODES: usize = 3;
const QPS: usize = 4;
/// Keys of each function that the requests choose from.
const KEYS: usize = 4;

/// A piece of memory by key, address and length, within the key or not.
#[derive(Debug, Clone, Copy)]
struct Piece {
    key: usize,
    offset: u64,
    len: u32,
}

#[derive(Debug, Clone)]
enum Step {
    Receive {
        qp: usize,
        pieces: Vec<Piece>,
    },
    Send {
        qp: usize,
        operation: Operation,
        pieces: Vec<Piece>,
        remote: Piece,
        operand: u64,
        signaled: bool,
    },
    /// Executes a bounded part of what is posted.
    Run,
    /// Cuts all paths, or restores them.
    Cut(bool),
    /// A page of a key goes away, wholly or as far as these bits say, until somebody needs it.
    Evict {
        node: usize,
        key: usize,
        page: u64,
        missing: u64,
    },
    /// Saves a function, or all of them, and restores them.
    Save(usize, Restored),
}

/// Where a function is restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restored {
    /// Where it was.
    Here,
    /// As another function.
    Elsewhere,
    /// In another engine, all of them.
    Anew,
}

fn piece() -> impl Strategy<Value = Piece> {
    let offset = prop_oneof![
        8 => 0_u64..SPACE,
        1 => Just(SPACE - 1),
        1 => SPACE..SPACE + 64,
    ];
    let len = prop_oneof![6 => 0_u32..64, 3 => 0_u32..1000, 2 => Just(8_u32), 1 => 0_u32..12_000];
    (0..KEYS, offset, len).prop_map(|(key, offset, len)| Piece { key, offset, len })
}

fn step() -> impl Strategy<Value = Step> {
    let operation = prop_oneof![
        4 => Just(Operation::Send),
        2 => Just(Operation::SendImm),
        6 => Just(Operation::Write),
        2 => Just(Operation::WriteImm),
        4 => Just(Operation::Read),
        2 => Just(Operation::CompareSwap),
        2 => Just(Operation::FetchAdd),
        1 => Just(Operation::Nop),
    ];
    let send = (
        0..QPS,
        operation,
        prop::collection::vec(piece(), 0..4),
        piece(),
        any::<u64>(),
        any::<bool>(),
    );
    prop_oneof![
        6 => (0..QPS, prop::collection::vec(piece(), 0..4))
            .prop_map(|(qp, pieces)| Step::Receive { qp, pieces }),
        12 => send.prop_map(|(qp, operation, pieces, remote, operand, signaled)| {
            // Atomics mostly as they should be.
            let (pieces, remote) = match operation {
                Operation::CompareSwap | Operation::FetchAdd if operand % 8 != 0 => (
                    vec![Piece { len: 8, offset: remote.offset / 2, key: 0 }],
                    Piece { offset: remote.offset & !7, key: remote.key % 2, ..remote },
                ),
                _ => (pieces, remote),
            };
            Step::Send { qp, operation, pieces, remote, operand, signaled }
        }),
        3 => Just(Step::Run),
        1 => any::<bool>().prop_map(Step::Cut),
        6 => (0..NODES, 0..KEYS, 0..SPACE / 4096, prop::sample::select(vec![
            ABSENT,
            NO_READ,
            NO_WRITE,
        ])).prop_map(|(node, key, page, missing)| Step::Evict { node, key, page, missing }),
        2 => (0..NODES, prop::sample::select(vec![
            Restored::Here,
            Restored::Elsewhere,
            Restored::Anew,
        ])).prop_map(|(node, restored)| Step::Save(node, restored)),
    ]
}

/// The keys of every function: all rights; all rights over scattered pages; no
/// remote rights; read only.
fn rights(key: usize) -> Access {
    match key {
        0 | 1 => everything(),
        2 => Access::LOCAL_READ | Access::LOCAL_WRITE,
        _ => Access::LOCAL_READ | Access::REMOTE_READ,
    }
}

/// Where a byte of a key lies in memory; beyond the key, nowhere.
fn place(key: usize, offset: u64) -> usize {
    if key == 1 && offset < SPACE {
        // Pages in reverse order.
        let pages = SPACE / 4096;
        ((pages - 1 - offset / 4096) * 4096 + offset % 4096) as usize
    } else {
        offset as usize
    }
}

/// A byte of memory, or [`UNDEFINED`].
type Cell = u16;
/// Content of memory after a message that failed half-way.
const UNDEFINED: Cell = 0x100;

struct Model {
    memory: Vec<Vec<Cell>>,
    qps: Vec<ModelQp>,
    /// No packet arrives anywhere.
    cut: bool,
    way: Way,
    net: Net,
    /// A message is too long for its receive request, and what that names is not allowed: either may be found first.
    is_open: bool,
}

/// Connections among the queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Net {
    /// Each queue pair with its peer.
    Pairs,
    /// Each initiator with whatever target its request names.
    Dynamic,
}

#[derive(Default)]
struct ModelQp {
    sends: VecDeque<SendStep>,
    receives: VecDeque<(u16, Vec<Piece>)>,
    sent: Vec<(u16, Status)>,
    received: Vec<(u16, Status, u32, RecvKind, u32)>,
    failed: bool,
}

#[derive(Clone)]
struct SendStep {
    index: u16,
    operation: Operation,
    pieces: Vec<Piece>,
    remote: Piece,
    operand: u64,
    signaled: bool,
    /// Node with the receive queue and the memory.
    to: usize,
    /// The data is there; the receive request for the immediate data is not.
    written: bool,
}

/// Pairs: 0 with 1 between functions 0 and 1, 2 with 3 between 1 and 2.
const fn peer(qp: usize) -> usize {
    qp ^ 1
}

const fn node(qp: usize) -> usize {
    [0, 1, 1, 2][qp]
}

fn allowed(piece: &Piece, needed: Access) -> bool {
    rights(piece.key).grants(needed) && piece.offset + u64::from(piece.len) <= SPACE
}

fn list_allowed(pieces: &[Piece], needed: Access) -> bool {
    pieces
        .iter()
        .all(|piece| piece.len == 0 || allowed(piece, needed))
}

fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.len)).sum()
}

/// Every byte of a list, as a place in memory.
fn places(pieces: &[Piece]) -> Vec<usize> {
    pieces
        .iter()
        .flat_map(|piece| (0..u64::from(piece.len)).map(|at| place(piece.key, piece.offset + at)))
        .collect()
}

impl Model {
    fn copy(&mut self, from: usize, sources: &[usize], to: usize, targets: &[usize]) {
        for (source, target) in sources.iter().zip(targets) {
            self.memory[to][*target] = self.memory[from][*source];
        }
    }

    /// A list that was being filled turned out not to be allowed: what may be written of it may
    /// have been, and nothing else.
    fn spoil(&mut self, node: usize, pieces: &[Piece]) {
        for &Piece { key, offset, len } in pieces {
            for offset in offset..offset + u64::from(len) {
                let byte = Piece {
                    key,
                    offset,
                    len: 1,
                };
                if allowed(&byte, Access::LOCAL_WRITE) {
                    self.memory[node][place(key, offset)] = UNDEFINED;
                }
            }
        }
    }

    /// Executes what is posted to `qp`, one message after the other.
    fn run(&mut self, qp: usize) {
        while !self.qps[qp].failed {
            let Some(mut wr) = self.qps[qp].sends.front().cloned() else {
                return;
            };
            let Some((requester, responder)) = self.execute(qp, &mut wr) else {
                self.qps[qp].sends[0] = wr;
                return;
            };
            self.qps[qp].sends.pop_front();
            if wr.signaled || requester != Status::Success {
                self.qps[qp].sent.push((wr.index, requester));
            }
            if responder && self.net == Net::Pairs {
                self.fail(wr.to);
            }
            if requester != Status::Success {
                self.fail(qp);
            }
        }
        // What comes late is flushed too.
        self.fail(qp);
    }

    fn fail(&mut self, qp: usize) {
        let qp = &mut self.qps[qp];
        qp.failed = true;
        for wr in qp.sends.drain(..) {
            qp.sent.push((wr.index, Status::Flushed));
        }
        if self.net == Net::Dynamic {
            return;
        }
        for (index, _) in qp.receives.drain(..) {
            qp.received
                .push((index, Status::Flushed, 0, RecvKind::Send, 0));
        }
    }

    /// The requester's status and whether the responder fails; `None` when the
    /// responder is not ready.
    fn execute(&mut self, qp: usize, wr: &mut SendStep) -> Option<(Status, bool)> {
        use Operation::{CompareSwap, FetchAdd, Nop, Read, Send, SendImm, Write, WriteImm};
        let (here, there) = (node(qp), node(wr.to));
        let gone = self.net == Net::Pairs && self.qps[wr.to].failed;
        let len = total(&wr.pieces);
        let local = if wr.operation.fills_list() {
            Access::LOCAL_WRITE
        } else {
            Access::LOCAL_READ
        };
        let remote = Piece {
            len: len as u32,
            ..wr.remote
        };
        if wr.operation == Nop {
            return Some((Status::Success, false));
        }
        if matches!(wr.operation, CompareSwap | FetchAdd) && len != 8 {
            return Some((Status::LocalLength, false));
        }
        if gone || self.cut {
            // Local faults are found all the same; otherwise nobody answers.
            return (!list_allowed(&wr.pieces, local)).then_some((Status::LocalProtection, false));
        }
        if !list_allowed(&wr.pieces, local) {
            if wr.operation == Read {
                self.spoil(here, &wr.pieces);
            }
            return Some((Status::LocalProtection, false));
        }
        let mine = places(&wr.pieces);
        match wr.operation {
            Send | SendImm => {
                let (index, pieces) = self.qps[wr.to].receives.front().cloned()?;
                self.qps[wr.to].receives.pop_front();
                let kind = if wr.operation == Send {
                    RecvKind::Send
                } else {
                    RecvKind::SendImm
                };
                let completions = &mut self.qps[wr.to].received;
                let mut refuse = |status| completions.push((index, status, 0, RecvKind::Send, 0));
                let fits = total(&pieces);
                // Of single packets the first ones are taken.
                let taken = match self.way {
                    Way::Packets(..) | Way::Engines(1.., _) if fits < len => fits / 4096 * 4096,
                    _ => 0,
                };
                if fits < len && taken == 0 {
                    refuse(Status::LocalLength);
                    // A message in many pieces goes in several frames, of which the first ones may be taken.
                    if self.way == Way::Frames && len > 4096 {
                        let allowed = |piece| allowed(piece, Access::LOCAL_WRITE);
                        self.is_open |= !pieces.iter().all(allowed);
                        self.spoil(there, &pieces);
                    }
                    return Some((Status::RemoteInvalidRequest, true));
                }
                // Buffers are looked at as far as the message goes.
                let mut left = if taken > 0 { taken } else { len };
                for piece in &pieces {
                    let used = left.min(u64::from(piece.len));
                    let part = Piece {
                        len: used as u32,
                        ..*piece
                    };
                    if used > 0 && !allowed(&part, Access::LOCAL_WRITE) {
                        for at in places(&pieces) {
                            if let Some(cell) = self.memory[there].get_mut(at) {
                                *cell = UNDEFINED;
                            }
                        }
                        refuse(Status::LocalProtection);
                        return Some((Status::RemoteOperation, true));
                    }
                    left -= used;
                }
                if taken > 0 {
                    refuse(Status::LocalLength);
                    self.spoil(there, &pieces);
                    return Some((Status::RemoteInvalidRequest, true));
                }
                self.copy(here, &mine, there, &places(&pieces));
                let entry = (index, Status::Success, len as u32, kind, wr.immediate());
                self.qps[wr.to].received.push(entry);
            }
            Write | WriteImm => {
                if len > 0 && !allowed(&remote, Access::REMOTE_WRITE) {
                    return Some((Status::RemoteAccess, true));
                }
                // What the responder has not acknowledged for want of a receive request comes again. Between
                // engines it may, since a function that moves may come to its peer's engine, or leave it.
                let again = match self.way {
                    Way::Copied => len,
                    Way::Frames | Way::Line | Way::Engines(..) => 0,
                    Way::Packets(..) => len.saturating_sub(1) / 4096 * 4096,
                } as usize;
                let targets = places(&[remote]);
                match self.way {
                    // It stays undefined.
                    Way::Engines(..) if wr.written => {}
                    _ => {
                        let from = if wr.written { again } else { 0 };
                        self.copy(here, &mine[from..], there, &targets[from..]);
                    }
                }
                wr.written = true;
                if wr.operation == WriteImm {
                    if self.qps[wr.to].receives.is_empty() {
                        for at in &targets[again..] {
                            self.memory[there][*at] = UNDEFINED;
                        }
                    }
                    let (index, _) = self.qps[wr.to].receives.pop_front()?;
                    let kind = RecvKind::WriteImm;
                    let entry = (index, Status::Success, len as u32, kind, wr.immediate());
                    self.qps[wr.to].received.push(entry);
                }
            }
            Read => {
                if len > 0 && !allowed(&remote, Access::REMOTE_READ) {
                    return Some((Status::RemoteAccess, true));
                }
                self.copy(there, &places(&[remote]), here, &mine);
            }
            CompareSwap | FetchAdd => {
                if !remote.offset.is_multiple_of(8) {
                    return Some((Status::RemoteInvalidRequest, true));
                }
                if !allowed(&remote, Access::ATOMIC) {
                    return Some((Status::RemoteAccess, true));
                }
                let at = place(remote.key, remote.offset);
                let cells: [Cell; 8] = self.memory[there][at..at + 8].try_into().unwrap();
                let next = if cells.contains(&UNDEFINED) {
                    [UNDEFINED; 8]
                } else {
                    let value = u64::from_le_bytes(cells.map(|cell| cell as u8));
                    let next = match wr.operation {
                        FetchAdd => value.wrapping_add(wr.operand),
                        _ if value == wr.operand >> 32 => wr.operand,
                        _ => value,
                    };
                    next.to_le_bytes().map(Cell::from)
                };
                self.memory[there][at..at + 8].copy_from_slice(&next);
                for (target, cell) in mine.iter().zip(cells) {
                    self.memory[here][*target] = cell;
                }
            }
            _ => unreachable!("not among the steps"),
        }
        Some((Status::Success, false))
    }
}

impl SendStep {
    fn immediate(&self) -> u32 {
        match self.operation {
            Operation::SendImm | Operation::WriteImm => self.operand as u32,
            _ => 0,
        }
    }
}

/// Whether pieces that are written lie on one another: which of them wins is
/// not defined.
fn ambiguous(pieces: &[Piece]) -> bool {
    let mut all = places(pieces);
    all.sort_unstable();
    all.windows(2).any(|pair| pair[0] == pair[1])
}

/// Takes the steps. At any time at most one queue pair has something to do
/// (others wait for receive requests), so that there is one order of events.
fn check(steps: Vec<Step>, longest: usize, way: Way) {
    check_in(steps, longest, way, Net::Pairs);
}

fn check_in(steps: Vec<Step>, longest: usize, way: Way, net: Net) {
    let mut bench = Bench::new(longest, way, net);
    let cells = |bench: &Bench, node| -> Vec<Cell> {
        let bytes = bench.lab.memory(node).read(base(node), 2 * SPACE as usize);
        bytes.into_iter().map(Cell::from).collect()
    };
    let mut model = Model {
        memory: (0..NODES).map(|node| cells(&bench, node)).collect(),
        qps: (0..QPS).map(|_| ModelQp::default()).collect(),
        cut: false,
        way,
        net,
        is_open: false,
    };
    let mut active = 0;
    for (index, step) in steps.into_iter().enumerate() {
        let index = index as u16;
        match step {
            Step::Receive { qp, pieces } => {
                if ambiguous(&pieces) || model.cut {
                    continue;
                }
                rest(&mut bench, &mut model);
                let list = bench.list(node(qp), &pieces);
                match bench.targets.get(qp) {
                    Some(target) => target.recv.push(Ok(RecvWr {
                        index,
                        sges: list,
                        ..RecvWr::default()
                    })),
                    None => bench.lab.receive(&bench.qps[qp], index, &list),
                }
                model.qps[qp].receives.push_back((index, pieces));
                rest(&mut bench, &mut model);
            }
            Step::Send {
                qp,
                operation,
                pieces,
                remote,
                operand,
                signaled,
            } => {
                if operation.fills_list() && ambiguous(&pieces) {
                    continue;
                }
                if active != qp {
                    rest(&mut bench, &mut model);
                    // One queue has several users, whose order would be open.
                    let one_at_a_time = model.cut || net == Net::Dynamic;
                    if one_at_a_time && model.qps.iter().any(|qp| !qp.sends.is_empty()) {
                        continue;
                    }
                    active = qp;
                }
                let wr = SendStep {
                    index,
                    operation,
                    pieces,
                    remote,
                    operand,
                    signaled,
                    to: match net {
                        Net::Pairs => peer(qp),
                        Net::Dynamic => {
                            let others: &[usize] = match node(qp) {
                                1 => &[0, 3],
                                0 => &[1, 2, 3],
                                _ => &[0, 1, 2],
                            };
                            others[operand as usize / 8 % others.len()]
                        }
                    },
                    written: false,
                };
                bench.post(qp, &wr);
                model.qps[qp].sends.push_back(wr);
            }
            Step::Run => {
                bench.lab.run_one(usize::from(index));
            }
            Step::Evict {
                node,
                key,
                page,
                missing,
            } => {
                // Targets of dynamic connections do without.
                if net == Net::Pairs {
                    bench.change(node, key, page, missing);
                }
            }
            Step::Save(node, restored) => bench.save_and_restore(node, restored, way),
            Step::Cut(cut) => {
                rest(&mut bench, &mut model);
                bench.cut(cut);
                model.cut = cut;
                rest(&mut bench, &mut model);
            }
        }
    }
    // What the engine has found out while paths were cut the model has to find out then, too.
    rest(&mut bench, &mut model);
    bench.cut(false);
    model.cut = false;
    rest(&mut bench, &mut model);
    if model.is_open {
        return;
    }
    for node in 0..NODES {
        let got = cells(&bench, node);
        let differs = (0..got.len()).find(|&at| {
            let expected = model.memory[node][at];
            expected != UNDEFINED && got[at] != expected
        });
        if let Some(at) = differs {
            panic!("memory of function {node} differs at byte {at:#x}");
        }
    }
    for (qp, expected) in bench.qps.iter().zip(&model.qps) {
        let entries = qp.cq.poll();
        let done = sent(&entries);
        if let Way::Packets(percent, _) | Way::Engines(percent, _) = way
            && percent > 0
            && let Some((index, _)) =
                { expected.sent.iter().skip(done.len()) }.find(|end| is_refusal(end.1))
            && bench.lab.state(qp) != QpState::Error
        {
            // The refusal got lost, and a responder in error does not say it again, nor what it carried out before.
            assert_eq!(done, expected.sent[..done.len()], "before {index}");
            continue;
        }
        assert_eq!(done, expected.sent);
        assert_eq!(received(&entries), expected.received);
        let state = bench.lab.state(qp);
        assert_eq!(state == QpState::Error, expected.failed);
    }
}

fn is_refusal(status: Status) -> bool {
    matches!(
        status,
        Status::RemoteInvalidRequest | Status::RemoteAccess | Status::RemoteOperation
    )
}

/// Lets both come to rest: whoever waits for a timer gets two turns.
fn rest(bench: &mut Bench, model: &mut Model) {
    bench.lab.settle();
    let turns = match model.way {
        Way::Copied | Way::Frames | Way::Line => 2,
        // What is lost last is missed by a timer, and a receiver that is not ready says to wait for longer than a turn.
        Way::Packets(..) | Way::Engines(..) => 32,
    };
    let mut left = turns;
    while left > 0 {
        left -= 1;
        bench.lab.advance(100_000_000);
        if bench.page() {
            left = turns;
        }
    }
    for _ in 0..2 {
        for qp in 0..QPS {
            model.run(qp);
        }
    }
}

/// So many cases, or as many as `PROPTEST_CASES` says: faults have been found after a hundred thousand.
fn cases(usual: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config,
        None => ProptestConfig {
            cases: usual,
            ..config
        },
    }
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn the_engine_does_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        // Short windows use up turns, so that messages go in slices. (An atomic
        // needs eight bytes at once, which real memory always has.)
        longest in prop::sample::select(vec![usize::MAX, 61, 9]),
    ) {
        check(steps, longest, Way::Copied);
    }

    #[test]
    fn frames_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        longest in prop::sample::select(vec![usize::MAX, 61, 9]),
    ) {
        check(steps, longest, Way::Frames);
    }

    #[test]
    fn frames_that_wait_at_links_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        check(steps, usize::MAX, Way::Line);
    }

    #[test]
    fn packets_that_get_lost_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        percent in 0..5_u64,
        seed in 1..u64::MAX,
    ) {
        check(steps, usize::MAX, Way::Packets(percent, seed));
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn two_engines_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        longest in prop::sample::select(vec![usize::MAX, 61, 9]),
    ) {
        check(steps, longest, Way::Engines(0, 0));
    }

    #[test]
    fn two_engines_with_lossy_links_between_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        percent in 1..5_u64,
        seed in 1..u64::MAX,
    ) {
        check(steps, usize::MAX, Way::Engines(percent, seed));
    }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn dynamic_connections_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        longest in prop::sample::select(vec![usize::MAX, 61, 9]),
    ) {
        check_in(steps, longest, Way::Copied, Net::Dynamic);
    }

    #[test]
    fn dynamic_connections_in_frames_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        longest in prop::sample::select(vec![usize::MAX, 61, 9]),
    ) {
        check_in(steps, longest, Way::Frames, Net::Dynamic);
    }

    #[test]
    fn dynamic_connections_over_lossy_links_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        percent in 0..5_u64,
        seed in 1..u64::MAX,
    ) {
        check_in(steps, usize::MAX, Way::Packets(percent, seed), Net::Dynamic);
    }

    #[test]
    fn dynamic_connections_between_engines_do_what_the_model_does(
        steps in prop::collection::vec(step(), 1..80),
        percent in 0..5_u64,
        seed in 1..u64::MAX,
    ) {
        check_in(steps, usize::MAX, Way::Engines(percent, seed), Net::Dynamic);
    }
}
