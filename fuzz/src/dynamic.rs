//! Dynamic connections: initiators and targets of two functions, which come, are used, drain and go.

use arbitrary::Arbitrary;
use test_driver::Opcode;
use test_driver::bits::{dctc, qpc, reply, request};

use crate::Machine;
use crate::machine::guest::{INITIATOR, Objects, Qp, target};
use crate::machine::scene::Actors;
use crate::machine::work::{OPCODES, Piece, Request};

/// Initiators of each function.
const INITIATORS: usize = 2;
/// Most targets at a time.
const TARGETS: usize = 12;

/// Operation of a guest.
#[derive(Debug, Clone, Arbitrary)]
pub enum Op {
    /// A target comes, with one of few access keys or another one.
    Come {
        /// Function that owns it, 0 or 1.
        vf: bool,
        /// Its key.
        key: u8,
        /// Changes to what is asked for: where, and a bit.
        patches: Vec<(u8, u8)>,
    },
    /// A command about a target.
    Command {
        /// Number of the target.
        target: u8,
        /// Drains it, destroys it, arms it, asks for its context.
        kind: u8,
    },
    /// A request to a target.
    Send {
        /// Number of the initiator.
        initiator: u8,
        /// Number of the target.
        target: u8,
        /// Kind of request.
        opcode: u8,
        /// Its flags, in place of those that ask for a completion.
        flags: Option<u8>,
        /// An access key that need not be the target's.
        key: Option<u8>,
        /// Where it goes in place of the target's port and number.
        elsewhere: Option<(u16, u32)>,
        /// With a global route.
        global: bool,
        /// Immediate data, or a key that the target is to make free.
        immediate: u32,
        /// Access at the other end.
        remote: Piece,
        /// Operands of atomics.
        operands: [u16; 2],
        /// Its data.
        list: Vec<Piece>,
    },
    /// A request as programs make it.
    Work {
        /// Number of the initiator.
        initiator: u8,
        /// Number of the target.
        target: u8,
        /// Kind of request.
        opcode: u8,
        /// Where in the payload, at both ends.
        addr: u16,
        /// The initiator begins anew before.
        anew: bool,
    },
    /// A request that targets of a function share.
    Receive {
        /// The function, 0 or 1.
        vf: bool,
        /// Where in the queue.
        index: u8,
        /// The next one in the list.
        next: Option<u16>,
        /// Where the data goes.
        list: Vec<Piece>,
        /// Number of posted requests.
        count: u16,
    },
    /// A command that changes an initiator.
    State {
        /// Number of the initiator.
        initiator: u8,
        /// The change of state.
        opcode: u8,
    },
    /// An initiator begins anew.
    Restart {
        /// Number of the initiator.
        initiator: u8,
        /// It goes, and another one comes.
        goes: bool,
    },
    /// Events are taken.
    Events {
        /// The function, 0 or 1.
        vf: bool,
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

/// A target, which may be gone.
#[derive(Debug, Clone, Copy)]
struct Target {
    vf: usize,
    number: u32,
    key: u64,
}

/// Functions 0 and 1, which have initiators and targets.
#[derive(Debug)]
pub struct Parties {
    machine: Machine,
    objects: [Objects; 2],
    initiators: Vec<(usize, Qp)>,
    targets: Vec<Target>,
    taken: [u32; 2],
}

/// One of few access keys.
fn access_key(key: u8) -> u64 {
    u64::from(key % 4) * 0x0101_0101_0101_0101
}

impl Actors for Parties {
    type Op = Op;

    fn new(mut machine: Machine) -> Self {
        let objects = [0, 1].map(|vf| {
            machine.bring_up(vf);
            machine.objects(vf)
        });
        let mut initiators = Vec::new();
        for index in 0..INITIATORS as u64 {
            for (vf, objects) in objects.iter().enumerate() {
                let qp = machine.queue_pair(vf, objects, index, INITIATOR, false);
                machine.connect(vf, &qp, 0, 0);
                initiators.push((vf, qp));
            }
        }
        let targets = [0, 1].map(|vf| Target {
            vf,
            number: machine.target(vf, &objects[vf], access_key(1)),
            key: access_key(1),
        });
        Self {
            machine,
            objects,
            initiators,
            targets: targets.to_vec(),
            taken: [0; 2],
        }
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn act(&mut self, op: &Op) {
        let initiator = |which: &u8| usize::from(*which) % (2 * INITIATORS);
        match op {
            Op::Come { vf, key, patches } => {
                let vf = usize::from(*vf);
                let key = access_key(*key);
                let mut input = target(&self.objects[vf], key);
                for (offset, bit) in patches.iter().take(4) {
                    let offset = request::CONTEXT + usize::from(*offset) % dctc::LEN;
                    if let Some(byte) = input.get_mut(offset) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
                let reply = self.machine.command(vf, &input, 16);
                if reply::STATUS.get(&reply) == 0 {
                    let number = reply::OBJECT.get(&reply);
                    let new = Target { vf, number, key };
                    match self.targets.len() {
                        0..TARGETS => self.targets.push(new),
                        _ => self.targets[usize::from(patches.len() as u8) % TARGETS] = new,
                    }
                }
            }
            Op::Command { target, kind } => {
                let Target { vf, number, .. } = self.target(*target);
                let (opcode, len) = match kind % 4 {
                    0 => (Opcode::DrainDct, 16),
                    1 => (Opcode::DestroyDct, 16),
                    2 => (Opcode::ArmDctForKeyViolation, 16),
                    _ => (Opcode::QueryDct, dctc::LEN),
                };
                let mut input = test_driver::request(opcode, 0, 16);
                request::OBJECT.set(&mut input, number);
                self.machine.command(vf, &input, len);
            }
            Op::Send {
                initiator: which,
                target,
                opcode,
                flags,
                key,
                elsewhere,
                global,
                immediate,
                remote,
                operands,
                list,
            } => {
                let (vf, qp) = self.initiators[initiator(which)];
                let to = self.target(*target);
                let opcode = OPCODES[usize::from(*opcode) % OPCODES.len()];
                let mut request = Request::new(&qp, opcode, *immediate);
                if let Some(flags) = flags {
                    request.flags(*flags);
                }
                let (lid, number) = elsewhere.unwrap_or((to.vf as u16 + 1, to.number));
                request.to(lid, number, key.map_or(to.key, access_key), *global);
                request.remote(remote.with(&self.keys(to.vf)), operands.map(u64::from));
                request.list(list, &self.keys(vf));
                let (_, qp) = &mut self.initiators[initiator(which)];
                self.machine.post(vf, qp, request.0);
            }
            Op::Work {
                initiator: which,
                target,
                opcode,
                addr,
                anew,
            } => {
                if *anew {
                    self.restart(initiator(which), false);
                }
                let (opcode, [remote, local]) = Piece::of_work(*opcode, *addr);
                self.act(&Op::Send {
                    initiator: *which,
                    target: *target,
                    opcode,
                    flags: None,
                    key: None,
                    elsewhere: None,
                    global: false,
                    immediate: 0,
                    remote,
                    operands: [1, 2],
                    list: vec![local],
                });
            }
            Op::Receive {
                vf,
                index,
                next,
                list,
                count,
            } => {
                let vf = usize::from(*vf);
                let (keys, objects) = (self.keys(vf), self.objects[vf]);
                let next = next.unwrap_or(u16::from(index % 64) + 1);
                let list = |request: &mut Request| request.list(list, &keys);
                self.machine
                    .post_shared(vf, &objects, (*index, next), list, *count);
            }
            Op::State {
                initiator: which,
                opcode,
            } => {
                let (vf, qp) = self.initiators[initiator(which)];
                let opcode = 0x502 + u16::from(*opcode % 14);
                let mut input = test_driver::request(Opcode::from_code(opcode), 0, request::PAGES);
                request::OBJECT.set(&mut input, qp.number);
                qpc::ST.set(&mut input[request::QPC..], qp.service);
                qpc::MTU.set(&mut input[request::QPC..], 5);
                self.machine.command(vf, &input, 16);
            }
            Op::Restart {
                initiator: which,
                goes,
            } => self.restart(initiator(which), *goes),
            Op::Events { vf } => {
                let vf = usize::from(*vf);
                self.machine.events(vf, &mut self.taken[vf]);
            }
            Op::Move { vf } => self.machine.go_on_from_image(usize::from(*vf)),
            Op::Pass { microseconds } => self.machine.pass(u64::from(*microseconds) * 1000),
        }
    }
}

impl Parties {
    fn keys(&self, vf: usize) -> [u32; 4] {
        let objects = &self.objects[vf];
        [
            objects.region,
            objects.physical,
            objects.window,
            objects.free,
        ]
    }

    fn target(&self, which: u8) -> Target {
        self.targets[usize::from(which) % self.targets.len()]
    }

    fn restart(&mut self, at: usize, goes: bool) {
        let (vf, qp) = &mut self.initiators[at];
        self.machine.restart(*vf, qp, goes, |machine| {
            machine.queue_pair(*vf, &self.objects[*vf], at as u64 / 2, INITIATOR, false)
        });
        self.machine.connect(*vf, qp, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::guest::PAYLOAD;

    fn send(target: u8, key: Option<u8>) -> Op {
        Op::Send {
            initiator: 0,
            target,
            opcode: 1,
            flags: None,
            key,
            elsewhere: None,
            global: false,
            immediate: 0,
            remote: Piece::of_first(0x100, 0),
            operands: [0; 2],
            list: vec![Piece::of_first(0, 4)],
        }
    }

    /// Returns the bytes of the target's function at the written address.
    fn found(parties: &Parties) -> [u8; 4] {
        let mut found = [0; 4];
        parties.machine.guest(1).read(PAYLOAD + 0x100, &mut found);
        found
    }

    #[test]
    fn requests_reach_targets_until_they_are_drained() {
        let mut parties = Parties::new(Machine::new(2));
        let post = |parties: &mut Parties, byte: u8, key| {
            parties.machine.guest(0).write(PAYLOAD, &[byte; 4]);
            parties.act(&send(1, key));
        };
        post(&mut parties, 1, None);
        assert_eq!(found(&parties), [1; 4]);
        // Another key.
        parties.act(&Op::Command { target: 1, kind: 2 });
        post(&mut parties, 2, Some(2));
        assert_eq!(found(&parties), [1; 4]);
        let kinds = |parties: &mut Parties| {
            let events = parties.machine.events(1, &mut parties.taken[1]);
            events.iter().map(|event| event[1]).collect::<Vec<_>>()
        };
        assert!(kinds(&mut parties).contains(&0x1d), "of the wrong key");
        parties.act(&Op::Restart {
            initiator: 0,
            goes: false,
        });
        post(&mut parties, 3, None);
        assert_eq!(found(&parties), [3; 4]);
        parties.act(&Op::Move { vf: true });
        post(&mut parties, 4, None);
        assert_eq!(found(&parties), [4; 4]);
        parties.act(&Op::Command { target: 1, kind: 0 });
        assert!(kinds(&mut parties).contains(&0x1c), "that it is drained");
        post(&mut parties, 5, None);
        assert_eq!(found(&parties), [4; 4]);
        // One that comes has the number's place.
        parties.act(&Op::Command { target: 1, kind: 1 });
        parties.act(&Op::Come {
            vf: true,
            key: 3,
            patches: Vec::new(),
        });
        parties.act(&Op::Restart {
            initiator: 0,
            goes: true,
        });
        parties.machine.guest(0).write(PAYLOAD, &[6; 4]);
        parties.act(&send(2, None));
        assert_eq!(found(&parties), [6; 4]);
        parties.machine.reset(0);
        parties.machine.reset(1);
    }
}
