//! Paging on demand: requests to memory that is not there, and a guest that brings it, takes it away and answers faults
//! as it likes.

use arbitrary::Arbitrary;
use test_driver::Opcode;
use test_driver::bits::{dword, put_dword, qpc, reply, request};

use crate::Machine;
use crate::machine::guest::{INITIATOR, Objects, PAYLOAD, Qp};
use crate::machine::scene::Actors;
use crate::machine::work::{OPCODES, Piece, Request};

/// Service types of the queue pairs here, and which share a receive queue. The last one changes keys.
const KINDS: [(u32, bool); 6] = [
    (0, false),
    (0, true),
    (1, false),
    (2, false),
    (INITIATOR, false),
    (0xc, false),
];
const CHANGER: usize = KINDS.len() - 1;
/// Access key of the targets of dynamic connections.
const ACCESS: u64 = 0x0102_0304_0506_0708;
/// Pages of the payload.
const PAGES: u8 = 16;
/// Most faults that are remembered.
const FAULTS: usize = 64;
/// Type of events of pages that are away.
const PAGE_FAULT: u8 = 0x0c;

/// Operation of a guest.
#[derive(Debug, Clone, Arbitrary)]
pub enum Op {
    /// A request to the other function.
    Send {
        /// Number of the queue pair.
        qp: u8,
        /// Kind of request.
        opcode: u8,
        /// Its flags, in place of those that ask for a completion.
        flags: Option<u8>,
        /// Immediate data, or a key.
        immediate: u32,
        /// Access at the other end.
        remote: Piece,
        /// Operands of atomics.
        operands: [u16; 2],
        /// Its data.
        list: Vec<Piece>,
    },
    /// A request as programs make it, of pages that come and go.
    Work {
        /// Number of the queue pair.
        qp: u8,
        /// Kind of request.
        opcode: u8,
        /// Where in the payload, at both ends.
        addr: u16,
        /// The connection begins anew before.
        anew: bool,
    },
    /// A receive request.
    Receive {
        /// Number of the queue pair.
        qp: u8,
        /// Where the data goes.
        list: Vec<Piece>,
    },
    /// A receive request of a shared queue.
    Shared {
        /// The function, 0 or 1.
        vf: bool,
        /// Where in the queue.
        index: u8,
        /// Where the data goes.
        list: Vec<Piece>,
        /// Number of posted requests.
        count: u16,
    },
    /// Pages are brought or taken away, while requests run.
    Pages {
        /// The function, 0 or 1.
        vf: bool,
        /// The first, of pairs.
        first: u8,
        /// Number of pairs.
        pairs: u8,
        /// Rights on their memory: 1 read, 2 written.
        rights: u8,
        /// Where they are, in place of where they were.
        elsewhere: Option<u16>,
    },
    /// Events are taken, and faults remembered.
    Events {
        /// The function, 0 or 1.
        vf: bool,
    },
    /// A fault is answered.
    Resume {
        /// The function, 0 or 1.
        vf: bool,
        /// Number among the recorded faults.
        fault: u8,
        /// Whether the page is there now.
        there: bool,
        /// Changes to the answer: where, and a bit.
        patches: Vec<(u8, u8)>,
    },
    /// All pages are brought and all faults answered, as by a driver.
    Serve {
        /// The function, 0 or 1.
        vf: bool,
    },
    /// The key goes, whoever waits for its pages, and another one comes.
    Renew {
        /// The function, 0 or 1.
        vf: bool,
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

/// Fields of the answer to a fault: its type, a number, and its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    kind_and_number: u32,
    token: u32,
}

impl Fault {
    fn of(event: &[u8; 64]) -> Option<Self> {
        if event[1] != PAGE_FAULT {
            return None;
        }
        let kind_and_number = dword(event, 0x38);
        // Of memory that a peer names, the queue pair is the token.
        let token = match event[3] {
            0 => dword(event, 0x2c),
            _ => kind_and_number,
        };
        Some(Self {
            kind_and_number,
            token: token & 0x00ff_ffff,
        })
    }

    fn answer(self, there: bool) -> Vec<u8> {
        let mut input = test_driver::request(Opcode::PageFaultResume, 0, 16);
        put_dword(&mut input, 0x08, self.kind_and_number);
        request::PAGE_FAULT_ERROR.set(&mut input, u32::from(!there));
        request::PAGE_FAULT_TOKEN.set(&mut input, self.token);
        input
    }
}

/// Functions 0 and 1, with queue pairs of all transports, and memory that is not there.
#[derive(Debug)]
pub struct Parties {
    machine: Machine,
    objects: [Objects; 2],
    /// Keys of pages that come and go.
    away: [u32; 2],
    qps: Vec<[Qp; 2]>,
    targets: [u32; 2],
    received: [[u16; KINDS.len()]; 2],
    taken: [u32; 2],
    faults: [Vec<Fault>; 2],
}

impl Actors for Parties {
    type Op = Op;

    fn new(mut machine: Machine) -> Self {
        let objects = [0, 1].map(|vf| {
            machine.bring_up(vf);
            machine.objects(vf)
        });
        let mut qps = Vec::new();
        for (index, (service, shared)) in KINDS.into_iter().enumerate() {
            let pair = [0, 1]
                .map(|vf| machine.queue_pair(vf, &objects[vf], index as u64, service, shared));
            for vf in 0..2 {
                connect(&mut machine, vf, pair);
            }
            qps.push(pair);
        }
        Self {
            away: [0, 1].map(|vf| machine.on_demand(vf, &objects[vf])),
            targets: [0, 1].map(|vf| machine.target(vf, &objects[vf], ACCESS)),
            machine,
            objects,
            qps,
            received: Default::default(),
            taken: [0; 2],
            faults: Default::default(),
        }
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Send {
                qp,
                opcode,
                flags,
                immediate,
                remote,
                operands,
                list,
            } => {
                let (vf, kind) = Self::pick(*qp);
                let peer = 1 - vf;
                let qp = &self.qps[kind][vf];
                let opcode = OPCODES[usize::from(*opcode) % OPCODES.len()];
                let mut request = Request::new(qp, opcode, *immediate);
                if let Some(flags) = flags {
                    request.flags(*flags);
                }
                let (lid, there) = (peer as u16 + 1, self.qps[kind][peer].number);
                match KINDS[kind].0 {
                    2 => request.to(lid, there, 0, false),
                    INITIATOR => request.to(lid, self.targets[peer], ACCESS, false),
                    _ => {}
                }
                request.remote(remote.with(&self.keys(peer)), operands.map(u64::from));
                request.list(list, &self.keys(vf));
                self.machine.post(vf, &mut self.qps[kind][vf], request.0);
            }
            Op::Work {
                qp,
                opcode,
                addr,
                anew,
            } => {
                if *anew {
                    self.restart(Self::pick(*qp).1, false);
                }
                let (opcode, [remote, local]) = Piece::of_work(*opcode, *addr);
                self.act(&Op::Send {
                    qp: *qp,
                    opcode,
                    flags: None,
                    immediate: 0,
                    remote,
                    operands: [1, 2],
                    list: vec![local],
                });
            }
            Op::Receive { qp, list } => {
                let (vf, kind) = Self::pick(*qp);
                let (qp, keys) = (self.qps[kind][vf], self.keys(vf));
                let posted = &mut self.received[vf][kind];
                self.machine.post_receive(vf, &qp, posted, list, &keys);
            }
            Op::Shared {
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
            Op::Pages {
                vf,
                first,
                pairs,
                rights,
                elsewhere,
            } => {
                let at = elsewhere.map_or(PAYLOAD, |page| u64::from(page) << 12);
                self.set_pages(usize::from(*vf), *first, *pairs, *rights & 3, at);
            }
            Op::Events { vf } => self.hear(usize::from(*vf)),
            Op::Resume {
                vf,
                fault,
                there,
                patches,
            } => {
                let vf = usize::from(*vf);
                let faults = &self.faults[vf];
                let none = Fault {
                    kind_and_number: self.qps[0][vf].number,
                    token: self.qps[0][vf].number,
                };
                let fault = faults.get(usize::from(*fault) % faults.len().max(1));
                let mut input = fault.copied().unwrap_or(none).answer(*there);
                for (offset, bit) in patches.iter().take(4) {
                    input[8 + usize::from(offset % 8)] ^= 1 << (bit % 8);
                }
                self.machine.command(vf, &input, 16);
            }
            Op::Serve { vf } => self.serve(usize::from(*vf)),
            Op::Renew { vf } => {
                let vf = usize::from(*vf);
                let mut input = test_driver::request(Opcode::DestroyMkey, 0, 16);
                request::OBJECT.set(&mut input, self.away[vf] >> 8);
                let reply = self.machine.command(vf, &input, 16);
                if reply::STATUS.get(&reply) == 0 {
                    self.away[vf] = self.machine.on_demand(vf, &self.objects[vf]);
                }
            }
            Op::State { qp, opcode } => {
                let (vf, kind) = Self::pick(*qp);
                let opcode = 0x502 + u16::from(*opcode % 14);
                let mut input = test_driver::request(Opcode::from_code(opcode), 0, request::PAGES);
                let qp = &self.qps[kind][vf];
                request::OBJECT.set(&mut input, qp.number);
                qpc::ST.set(&mut input[request::QPC..], qp.service);
                qpc::MTU.set(&mut input[request::QPC..], 5);
                self.machine.command(vf, &input, 16);
            }
            Op::Restart { qp, goes } => self.restart(Self::pick(*qp).1, *goes),
            Op::Move { vf } => self.machine.go_on_from_image(usize::from(*vf)),
            Op::Pass { microseconds } => self.machine.pass(u64::from(*microseconds) * 1000),
        }
    }
}

impl Parties {
    /// Keys that requests are made with: most of them of pages that come and go.
    fn keys(&self, vf: usize) -> [u32; 4] {
        let objects = &self.objects[vf];
        [
            self.away[vf],
            self.away[vf],
            objects.region,
            objects.physical,
        ]
    }

    /// Function, and kind of queue pair.
    fn pick(qp: u8) -> (usize, usize) {
        let at = usize::from(qp) % (2 * KINDS.len());
        (at % 2, at / 2)
    }

    /// Says of pairs of pages of the key what may be done with them, and where they are.
    fn set_pages(&mut self, vf: usize, first: u8, pairs: u8, rights: u8, at: u64) {
        let first = first % (PAGES / 2);
        // In whole blocks of four pairs, as drivers do.
        let pairs = u16::from(pairs % (PAGES / 2) + 1).next_multiple_of(4);
        let qp = &mut self.qps[CHANGER][vf];
        let mut request = Request::new(qp, 0x25, self.away[vf]);
        let mut control = [0; 48];
        const INLINE: u8 = 1 << 7;
        const AT_AN_OFFSET: u8 = 1 << 4;
        control[0] = INLINE | AT_AN_OFFSET;
        control[4..6].copy_from_slice(&pairs.to_be_bytes());
        control[6..8].copy_from_slice(&u16::from(first).to_be_bytes());
        request.0.extend_from_slice(&control);
        request.0.extend_from_slice(&[0; 64]);
        for page in 0..u64::from(pairs) * 2 {
            let page = at + (u64::from(first) * 2 + page) * 4096;
            let entry = page | u64::from(rights);
            request.0.extend_from_slice(&entry.to_be_bytes());
        }
        self.machine.post(vf, qp, request.0);
    }

    /// Takes events and remembers faults.
    fn hear(&mut self, vf: usize) {
        let events = self.machine.events(vf, &mut self.taken[vf]);
        let faults = &mut self.faults[vf];
        faults.extend(events.iter().filter_map(Fault::of));
        faults.truncate(FAULTS);
    }

    fn serve(&mut self, vf: usize) {
        self.hear(vf);
        self.set_pages(vf, 0, PAGES / 2 - 1, 3, PAYLOAD);
        for fault in std::mem::take(&mut self.faults[vf]) {
            self.machine.command(vf, &fault.answer(true), 16);
        }
    }

    fn restart(&mut self, kind: usize, goes: bool) {
        let (service, shared) = KINDS[kind];
        for vf in 0..2 {
            let qp = &mut self.qps[kind][vf];
            self.machine.restart(vf, qp, goes, |machine| {
                machine.queue_pair(vf, &self.objects[vf], kind as u64, service, shared)
            });
            self.received[vf][kind] = 0;
        }
        for vf in 0..2 {
            connect(&mut self.machine, vf, self.qps[kind]);
        }
    }
}

/// Connects one end of a pair. While a page is away, the other end is not ready.
fn connect(machine: &mut Machine, vf: usize, pair: [Qp; 2]) {
    const WITHOUT_LIMIT: u32 = 7;
    let (lid, peer) = (2 - vf as u32, pair[1 - vf].number);
    machine.connect_by(vf, &pair[vf], lid, peer, WITHOUT_LIMIT);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write to memory that is not there, of memory that is not there.
    #[test]
    fn a_write_waits_for_pages_on_both_sides_and_goes_on() {
        for moves in [false, true] {
            let mut parties = Parties::new(Machine::new(2));
            parties.machine.guest(0).write(PAYLOAD, &[7; 4]);
            let found = |parties: &Parties| {
                let mut found = [0; 4];
                parties.machine.guest(1).read(PAYLOAD + 0x100, &mut found);
                found
            };
            parties.act(&Op::Send {
                qp: 0,
                opcode: 1,
                flags: None,
                immediate: 0,
                remote: Piece::of_first(0x100, 0),
                operands: [0; 2],
                list: vec![Piece::of_first(0, 4)],
            });
            // The sender is told first, and the receiver when something comes.
            for vf in 0..2 {
                parties.hear(vf);
                assert_eq!(parties.faults[vf].len(), 1, "moves: {moves}, {vf}");
                assert_eq!(found(&parties), [0; 4], "before all is there");
                if moves {
                    parties.act(&Op::Move { vf: vf == 1 });
                }
                parties.serve(vf);
                parties.machine.pass(1_000_000);
            }
            assert_eq!(found(&parties), [7; 4], "moves: {moves}");
            parties.machine.reset(0);
            parties.machine.reset(1);
        }
    }
}
