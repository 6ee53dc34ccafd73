//! Tag matching: shared receive queues with lists of tags, of two guests that send one another messages which begin as
//! they like.

use arbitrary::Arbitrary;
use test_driver::Opcode;
use test_driver::bits::{put_dword, put_qword, qpc, reply, request, xrqc};

use crate::Machine;
use crate::machine::guest::{Objects, PAYLOAD, Qp, SHARED};
use crate::machine::scene::Actors;
use crate::machine::work::{OPCODES, Piece, Request, Seldom};

/// Entries of a list, as a power of two.
const LOG_ENTRIES: u32 = 3;
const ENTRIES: u16 = 1 << LOG_ENTRIES;
/// Queue pairs of each function: the one that changes its list; two that receive by it, of which the first has no
/// send queue and reads what a rendezvous says; and those that send to the other function's two.
const CHANGER: usize = 0;
const READER: usize = 1;
const RECEIVER: usize = 2;
const SENDERS: usize = 3;
const QPS: usize = 5;
/// Opcode of requests that change a list.
const CHANGE_TAGS: u8 = 0x28;
/// State of a queue pair that is ready to send.
const READY: u32 = 3;

/// A change of a list.
#[derive(Debug, Clone, Arbitrary)]
pub enum Change {
    /// An entry is added.
    Add {
        /// Tag, one of few.
        tag: u8,
        /// Mask, one of few.
        mask: u8,
        /// Its memory.
        memory: Piece,
    },
    /// An entry goes.
    Remove {
        /// Index of the entry.
        index: u8,
    },
    /// As it is.
    Raw {
        /// Operation and flags.
        head: u16,
        /// An entry.
        index: u16,
        /// Unexpected messages.
        seen: u16,
        /// Tag, mask, memory.
        rest: [u64; 4],
        /// Segments of the request, in place of as many as there are.
        segments: Seldom<u8>,
    },
}

/// Number of unexpected messages that software reports to have seen.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Seen {
    /// As many as there were.
    All,
    /// It does not say.
    Silent,
    /// So many, seldom.
    Some(Seldom<u8>),
}

/// Operation of a guest.
#[derive(Debug, Clone, Arbitrary)]
pub enum Op {
    /// A change of a list.
    Change {
        /// The function, 0 or 1.
        vf: bool,
        /// The change of the list.
        change: Change,
        /// See there.
        seen: Seen,
        /// The queue pair begins anew before.
        anew: bool,
    },
    /// A message to the other function.
    Tell {
        /// Number of the queue pair.
        qp: u8,
        /// Kind in its header.
        kind: u8,
        /// Tag, one of few.
        tag: u8,
        /// Where a rendezvous lies.
        lies: Piece,
        /// A change to the header: where, and a bit.
        patch: Seldom<(u8, u8)>,
        /// Bytes of the header, if not all.
        len: Seldom<u8>,
        /// The header is in memory, where it may change.
        in_memory: bool,
        /// List of pieces behind it.
        list: Vec<Piece>,
        /// The connection begins anew before.
        anew: bool,
    },
    /// Another request to the other function.
    Send {
        /// Number of the queue pair.
        qp: u8,
        /// Kind of request.
        opcode: u8,
        /// Access at the other end.
        remote: Piece,
        /// Its data.
        list: Vec<Piece>,
    },
    /// A request of the queue that messages without a tag take.
    Receive {
        /// The function, 0 or 1.
        vf: bool,
        /// Where in the queue.
        index: u8,
        /// Where the data goes.
        list: Vec<Piece>,
        /// Number of posted requests.
        count: u16,
    },
    /// A command about the queue.
    Command {
        /// The function, 0 or 1.
        vf: bool,
        /// Asks for its context, arms it, tries to destroy it.
        kind: u8,
        /// The limit.
        limit: u8,
    },
    /// A command that changes a queue pair.
    State {
        /// Number of the queue pair.
        qp: u8,
        /// The change of state.
        opcode: u8,
    },
    /// A queue pair and its peer begin anew.
    Restart {
        /// Number of the queue pair.
        qp: u8,
        /// They go, and others come.
        goes: bool,
    },
    /// An image is made of a function, and it goes on from that.
    Move {
        /// The function, 0 or 1.
        vf: bool,
    },
    /// Time passes.
    Pass {
        /// Time that passes.
        microseconds: u16,
    },
}

/// Functions 0 and 1, each with a list of tags.
#[derive(Debug)]
pub struct Parties {
    machine: Machine,
    /// The shared queues here are those with tags.
    objects: [Objects; 2],
    /// Keys of memory that is not there: what is to be read or written by them waits.
    away: [u32; 2],
    qps: [[Qp; QPS]; 2],
    /// The entry that each function's software adds next.
    next: [u16; 2],
    taken: [u32; 2],
}

/// One of few tags.
fn tag(tag: u8) -> u64 {
    u64::from(tag % 4) << 32 | u64::from(tag % 3)
}

/// The queue pair that this one is connected to: its function, and which.
const fn peer((vf, at): (usize, usize)) -> (usize, usize) {
    match at {
        CHANGER => (vf, CHANGER),
        READER | RECEIVER => (1 - vf, at - READER + SENDERS),
        _ => (1 - vf, at - SENDERS + READER),
    }
}

fn queue_pair(machine: &mut Machine, vf: usize, objects: &Objects, at: usize) -> Qp {
    let has_tags = at < SENDERS;
    machine.queue_pair_with(vf, objects, at as u64, (0, has_tags), |context| {
        qpc::NO_SQ.set(context, u32::from(at == READER));
        if at == READER {
            qpc::LOG_SQ_SIZE.set(context, 0);
        }
    })
}

/// A queue with tags in place of the shared one, in the same memory.
fn with_tags(machine: &mut Machine, vf: usize, objects: Objects) -> Objects {
    let mut input = test_driver::request(Opcode::CreateXrq, 0, xrqc::PAGES);
    let context = &mut input[request::CONTEXT..];
    xrqc::TOPOLOGY.set(context, 1);
    xrqc::OFFLOAD.set(context, 1);
    xrqc::USER_INDEX.set(context, 0x51);
    xrqc::CQN.set(context, objects.cqn);
    xrqc::LOG_MATCHING_LIST_SZ.set(context, LOG_ENTRIES);
    xrqc::PD.set(context, objects.pd);
    put_qword(context, xrqc::DBR_ADDR, objects.srq_record);
    xrqc::LOG_WQ_STRIDE.set(context, 6);
    xrqc::LOG_WQ_SZ.set(context, SHARED.ilog2());
    input.extend_from_slice(&objects.srq_ring.to_be_bytes());
    Objects {
        srqn: machine.create(vf, &input),
        ..objects
    }
}

impl Actors for Parties {
    type Op = Op;

    fn new(mut machine: Machine) -> Self {
        let objects = [0, 1].map(|vf| {
            machine.bring_up(vf);
            machine.guard(vf);
            let objects = machine.objects(vf);
            with_tags(&mut machine, vf, objects)
        });
        let mut make = |vf: usize, at| queue_pair(&mut machine, vf, &objects[vf], at);
        let qps = [0, 1].map(|vf| std::array::from_fn(|at| make(vf, at)));
        let away = [0, 1].map(|vf| machine.on_demand(vf, &objects[vf]));
        let mut parties = Self {
            machine,
            objects,
            away,
            qps,
            next: [0; 2],
            taken: [0; 2],
        };
        for vf in 0..2 {
            for at in 0..QPS {
                parties.connect((vf, at));
            }
        }
        parties
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Change {
                vf,
                change,
                seen,
                anew,
            } => {
                let vf = usize::from(*vf);
                if *anew {
                    self.restart((vf, CHANGER), false);
                }
                self.change(vf, change, *seen);
            }
            Op::Tell {
                qp,
                kind,
                tag: of,
                lies,
                patch,
                len,
                in_memory,
                list,
                anew,
            } => {
                let (vf, at) = Self::sender(*qp);
                if *anew {
                    self.restart((vf, at), false);
                }
                let (addr, key, length) = lies.with(&self.keys(vf));
                let mut header = [0; 32];
                // Without a tag, a rendezvous, one that is done, and eager.
                header[0] = kind % 5;
                put_qword(&mut header, 8, tag(*of));
                put_qword(&mut header, 16, addr);
                put_dword(&mut header, 24, key);
                put_dword(&mut header, 28, length);
                if let Some((offset, bit)) = patch.0 {
                    header[usize::from(offset % 32)] ^= 1 << (bit % 8);
                }
                let whole = if header[0] == 1 { 32 } else { 16 };
                let header = &header[..len.0.map_or(whole, |len| usize::from(len % 33))];
                let mut request = Request::new(&self.qps[vf][at], 0x0a, 0);
                if *in_memory {
                    self.machine.guest(vf).write(PAYLOAD, header);
                    let header = Piece::of_first(0, header.len() as u16);
                    request.list(&[header], &self.keys(vf));
                } else {
                    request.inline(header);
                }
                request.list(list, &self.keys(vf));
                let qp = &mut self.qps[vf][at];
                self.machine.post(vf, qp, request.0);
            }
            Op::Send {
                qp,
                opcode,
                remote,
                list,
            } => {
                let (vf, at) = Self::sender(*qp);
                let opcode = OPCODES[usize::from(*opcode) % OPCODES.len()];
                let mut request = Request::new(&self.qps[vf][at], opcode, 0);
                request.remote(remote.with(&self.keys(1 - vf)), [1, 2]);
                request.list(list, &self.keys(vf));
                let qp = &mut self.qps[vf][at];
                self.machine.post(vf, qp, request.0);
            }
            Op::Receive {
                vf,
                index,
                list,
                count,
            } => {
                let vf = usize::from(*vf);
                let (keys, objects) = (self.keys(vf), self.objects[vf]);
                let next = u16::from(index % 64) + 1;
                let list = |request: &mut Request| request.list(list, &keys);
                self.machine
                    .post_shared(vf, &objects, (*index, next), list, *count);
            }
            Op::Command { vf, kind, limit } => {
                let vf = usize::from(*vf);
                let opcode = match kind % 3 {
                    0 => Opcode::QueryXrq,
                    1 => Opcode::ArmXrq,
                    _ => Opcode::DestroyXrq,
                };
                let mut input = test_driver::request(opcode, 0, 16);
                request::OBJECT.set(&mut input, self.objects[vf].srqn);
                request::LWM.set(&mut input, u32::from(*limit));
                let reply = self.machine.command(vf, &input, xrqc::PAGES);
                if opcode == Opcode::DestroyXrq {
                    assert_ne!(reply::STATUS.get(&reply), 0, "a queue went that is in use");
                }
            }
            Op::State { qp, opcode } => {
                let (vf, at) = Self::any(*qp);
                let qp = &self.qps[vf][at];
                let opcode = 0x502 + u16::from(*opcode % 14);
                let mut input = test_driver::request(Opcode::from_code(opcode), 0, request::PAGES);
                request::OBJECT.set(&mut input, qp.number);
                qpc::ST.set(&mut input[request::QPC..], qp.service);
                qpc::MTU.set(&mut input[request::QPC..], 5);
                self.machine.command(vf, &input, 16);
            }
            Op::Restart { qp, goes } => self.restart(Self::any(*qp), *goes),
            Op::Move { vf } => self.machine.go_on_from_image(usize::from(*vf)),
            Op::Pass { microseconds } => self.machine.pass(u64::from(*microseconds) * 1000),
        }
        for vf in 0..2 {
            let (objects, taken) = (&self.objects[vf], &mut self.taken[vf]);
            self.machine.completions(vf, objects, taken);
        }
    }

    /// No entry is lost: when no message is under way, all of a list can be removed and added again.
    fn check(&mut self) {
        for vf in 0..2 {
            self.machine.check_guard(vf);
            for at in 0..QPS {
                self.restart((vf, at), false);
            }
            for index in 0..ENTRIES as u8 {
                self.change(vf, &Change::Remove { index }, Seen::Silent);
            }
            let query = self.query(vf);
            let first = xrqc::APPEND_NEXT_INDEX.get(&query[request::CONTEXT..]) as u16;
            self.next[vf] = first;
            for _ in 0..ENTRIES {
                let add = Change::Add {
                    tag: 0,
                    mask: 0,
                    memory: Piece::of_first(0, 16),
                };
                self.change(vf, &add, Seen::All);
            }
            let changer = self.qps[vf][CHANGER].number;
            let mut input = test_driver::request(Opcode::QueryQp, 0, 16);
            request::OBJECT.set(&mut input, changer);
            let reply = self.machine.command(vf, &input, request::PAGES);
            let state = qpc::STATE.get(&reply[reply::QPC..]);
            assert_eq!(state, READY, "an entry of function {vf} is lost");
        }
    }
}

impl Parties {
    /// A sender: its function, and which.
    fn sender(qp: u8) -> (usize, usize) {
        let at = usize::from(qp % 4);
        (at / 2, SENDERS + at % 2)
    }

    /// Any queue pair.
    fn any(qp: u8) -> (usize, usize) {
        let at = usize::from(qp) % (2 * QPS);
        (at / QPS, at % QPS)
    }

    /// Keys that requests are made with.
    fn keys(&self, vf: usize) -> [u32; 4] {
        let objects = &self.objects[vf];
        [
            objects.region,
            objects.region,
            objects.window,
            self.away[vf],
        ]
    }

    fn query(&mut self, vf: usize) -> Vec<u8> {
        let mut input = test_driver::request(Opcode::QueryXrq, 0, 16);
        request::OBJECT.set(&mut input, self.objects[vf].srqn);
        self.machine.command(vf, &input, xrqc::PAGES)
    }

    /// Posts a change to a function's list. What is not raw does not complete.
    fn change(&mut self, vf: usize, change: &Change, seen: Seen) {
        const COUNTS: u16 = 1 << 6;
        let (counts, seen) = match seen {
            Seen::All => {
                let query = self.query(vf);
                let unexpected = xrqc::HW_PHASE_CNT.get(&query[request::CONTEXT..]);
                (COUNTS, unexpected as u16)
            }
            Seen::Some(Seldom(Some(seen))) => (COUNTS, seen.into()),
            Seen::Silent | Seen::Some(_) => (0, 0),
        };
        let mut segment = [0; 32];
        let mut memory = Vec::new();
        let (head, index) = match change {
            Change::Add {
                tag: of,
                mask,
                memory: piece,
            } => {
                let masks = [u64::MAX, 0, u32::MAX.into(), 1 << 32];
                put_qword(&mut segment, 16, tag(*of));
                put_qword(&mut segment, 24, masks[usize::from(mask % 4)]);
                let (addr, key, len) = piece.with(&self.keys(vf));
                memory.extend(crate::machine::guest::element(addr, key, len));
                self.next[vf] = (self.next[vf] + 1) % ENTRIES;
                (1 << 12 | counts, self.next[vf])
            }
            Change::Remove { index } => (2 << 12 | counts, u16::from(*index) % ENTRIES),
            Change::Raw {
                head, index, rest, ..
            } => {
                for (number, word) in rest.iter().enumerate() {
                    let at = 16 + number * 8;
                    match segment.get_mut(at..at + 8) {
                        Some(place) => place.copy_from_slice(&word.to_be_bytes()),
                        None => memory.extend(word.to_be_bytes()),
                    }
                }
                (*head, *index)
            }
        };
        put_dword(&mut segment, 0, u32::from(head) << 16 | u32::from(index));
        put_dword(&mut segment, 4, u32::from(seen));
        if let Change::Raw { seen, .. } = change {
            put_dword(&mut segment, 4, u32::from(*seen));
        }
        let qp = &mut self.qps[vf][CHANGER];
        let mut request = Request::new(qp, CHANGE_TAGS, 0);
        request.flags(0);
        request.0.extend(segment);
        request.0.extend(memory);
        if let Change::Raw {
            segments: Seldom(Some(segments)),
            ..
        } = change
        {
            request.0.resize(16 + usize::from(segments % 12) * 16, 0);
        }
        self.machine.post(vf, qp, request.0);
    }

    /// Connects one end of a connection. Where no receive request is posted, the other end is not ready.
    fn connect(&mut self, (vf, at): (usize, usize)) {
        let (to, there) = peer((vf, at));
        let (qp, remote) = (self.qps[vf][at], self.qps[to][there].number);
        self.machine.connect(vf, &qp, to as u32 + 1, remote);
    }

    /// A connection begins anew at both ends.
    fn restart(&mut self, one: (usize, usize), goes: bool) {
        let mut ends = vec![one];
        if peer(one) != one {
            ends.push(peer(one));
        }
        for &(vf, at) in &ends {
            let objects = self.objects[vf];
            let make = |machine: &mut Machine| queue_pair(machine, vf, &objects, at);
            self.machine.restart(vf, &mut self.qps[vf][at], goes, make);
        }
        for end in ends {
            self.connect(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(qp: u8, kind: u8, tag: u8) -> Op {
        Op::Tell {
            qp,
            kind,
            tag,
            lies: Piece::of_first(0x300, 5),
            patch: Seldom::default(),
            len: Seldom::default(),
            in_memory: false,
            list: vec![Piece::of_first(0x200, 5)],
            anew: false,
        }
    }

    fn add(tag: u8) -> Op {
        Op::Change {
            vf: true,
            change: Change::Add {
                tag,
                mask: 0,
                memory: Piece::of_first(0x100, 64),
            },
            seen: Seen::All,
            anew: false,
        }
    }

    #[test]
    fn messages_go_to_the_entries_that_their_tags_match() {
        for by_frames in [false, true] {
            let machine = if by_frames {
                Machine::by_frames(2)
            } else {
                Machine::new(2)
            };
            let mut parties = Parties::new(machine);
            parties.machine.guest(0).write(PAYLOAD + 0x200, b"eager");
            parties.machine.guest(0).write(PAYLOAD + 0x300, b"there");
            let mut act = |op: Op| {
                parties.act(&op);
                parties.machine.arrive();
                let mut found = [0; 5];
                parties.machine.guest(1).read(PAYLOAD + 0x100, &mut found);
                found
            };
            act(add(1));
            assert_eq!(
                act(tell(0, 3, 2)),
                [0; 5],
                "another tag waits for a request"
            );
            act(Op::Restart { qp: 3, goes: false });
            assert_eq!(act(tell(0, 3, 1)), *b"eager", "by frames: {by_frames}");
            act(add(2));
            act(Op::Move { vf: true });
            assert_eq!(act(tell(0, 1, 2)), *b"there", "by frames: {by_frames}");
            act(add(1));
            assert_eq!(act(tell(1, 3, 1)), *b"eager", "by frames: {by_frames}");
            parties.check();
            parties.machine.reset(0);
            parties.machine.reset(1);
        }
    }

    /// Whatever becomes of a message that has matched an entry whose memory is not there.
    #[test]
    fn no_entry_is_lost_whose_memory_is_not_there() {
        for machine in [Machine::new(2), Machine::by_frames(2)] {
            let mut parties = Parties::new(machine);
            let away = Change::Add {
                tag: 1,
                mask: 0,
                memory: Piece::of(3, 0x100, 64),
            };
            parties.change(1, &away, Seen::All);
            parties.act(&tell(0, 3, 1));
            parties.machine.arrive();
            parties.check();
        }
    }

    #[test]
    fn random_scenes_disturb_nobody() {
        crate::machine::scene::play_random::<Parties>(0x9e37_79b9_7f4a_7c15, 400);
    }
}
