//! Memory keys with signatures: two guests that write what they like into their forms, and use them in requests of
//! all kinds.

use arbitrary::Arbitrary;
use test_driver::Opcode;
use test_driver::bits::{mkc, psv, put_dword, put_qword, qpc, reply, request};

use crate::Machine;
use crate::machine::guest::{Objects, PAYLOAD, PAYLOAD_LEN, Qp, element};
use crate::machine::scene::Actors;
use crate::machine::work::{OPCODES, Piece, Request, Seldom};

/// Service types of the queue pairs here, and which share a receive queue. The last one changes keys of any domain.
const KINDS: [(u32, bool); 5] = [(0, false), (0, true), (1, false), (2, false), (0xc, false)];
const CHANGER: usize = KINDS.len() - 1;
/// Keys with signatures of each function.
const KEYS: usize = 2;
/// Stretches of a key.
const STRETCHES: usize = 4;
/// Octwords of a form.
const FORM_OCTWORDS: u32 = 4;
/// Opcodes of requests that change keys, and that set values under way.
const CHANGE_KEY: u8 = 0x25;
const SET_PSV: u8 = 0x20;
/// Rights, and whether the key is free, its length, signatures and count of errors, as bits of what changes.
const CHANGES: u64 = 0x1f << 17 | 1 << 29 | 1 << 0 | 1 << 12 | 1 << 9;

/// Check values behind the blocks of one side.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Half {
    /// Nothing, T10-DIF with a CRC or a check sum, or a CRC of 32 bits of either kind.
    pub algorithm: u8,
    /// Size of a block, by its selector.
    pub block: u8,
    /// Begins with ones; which tags escape, and whether they count.
    pub flags: u8,
    /// Application tag, its mask, reference tag.
    pub tags: (u16, u16, u32),
}

/// The form of a key's bytes.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub struct Form {
    /// In memory.
    pub memory: Half,
    /// On the wire.
    pub wire: Half,
    /// Both sides have the same structure.
    pub same: bool,
    /// Masks of bytes that are compared, and that are copied.
    pub masks: [u8; 2],
    /// Names another domain's values under way.
    pub of_others: Seldom<()>,
}

/// Operation of a guest.
#[derive(Debug, Clone, Arbitrary)]
pub enum Op {
    /// A request that gives a key a form, or takes it away.
    Shape {
        /// The function, 0 or 1.
        vf: bool,
        /// Number of the key.
        key: u8,
        /// The queue pair that changes keys of any domain, or a reliable connection.
        by_changer: bool,
        /// See there.
        form: Form,
        /// It has none any more.
        without: Seldom<()>,
        /// Where its bytes are and how many, if not as of most programs.
        stretches: Seldom<(Vec<Piece>, u16)>,
        /// Expected value of the count of errors.
        expected: bool,
        /// Changes to the request behind its first segment: where, and a bit.
        patches: Seldom<[(u8, u8); 2]>,
        /// The connection begins anew before.
        anew: bool,
    },
    /// A request to the other function.
    Send {
        /// Number of the queue pair.
        qp: u8,
        /// Kind of request.
        opcode: u8,
        /// Its flags, in place of those that ask for a completion.
        flags: Seldom<u8>,
        /// Immediate data, or a key.
        immediate: u32,
        /// Access at the other end.
        remote: Piece,
        /// Operands of atomics.
        operands: [u16; 2],
        /// Its data.
        list: Vec<Piece>,
    },
    /// A request as programs make it, by these keys.
    Work {
        /// Number of the queue pair.
        qp: u8,
        /// Kind of request.
        opcode: u8,
        /// At the other end, and here.
        keys: [u8; 2],
        /// Where by each.
        addrs: [u16; 2],
        /// Length.
        len: u16,
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
    /// A value under way is made, goes, or is set.
    Value {
        /// The function, 0 or 1.
        vf: bool,
        /// Kind of the operation.
        kind: u8,
        /// Number of an object that is not its own, seldom.
        number: Seldom<u32>,
    },
    /// Bytes of the payload change.
    Bytes {
        /// The function, 0 or 1.
        vf: bool,
        /// Where.
        addr: u16,
        /// New value.
        bytes: [u8; 8],
    },
    /// A key goes, and another one comes.
    Renew {
        /// The function, 0 or 1.
        vf: bool,
        /// Number of the key.
        key: u8,
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

impl Half {
    fn is_dif(self) -> bool {
        matches!(self.algorithm % 5, 1 | 2)
    }

    /// Selectors of its blocks and of its algorithm.
    fn selectors(self) -> (u8, u8) {
        const BLOCKS: [u8; 8] = [1, 1, 1, 2, 3, 4, 6, 5];
        let zeros = !self.flags >> 7;
        let algorithm = match self.algorithm % 5 {
            3 => 0x22 | zeros,
            4 => 0x42 | zeros,
            _ => 0,
        };
        match self.algorithm % 5 {
            0 => (0, 0),
            _ => (BLOCKS[usize::from(self.block) % BLOCKS.len()], algorithm),
        }
    }

    /// Returns the further fields of T10-DIF.
    fn part(self) -> [u8; 16] {
        let mut part = [0; 16];
        if self.is_dif() {
            let (application, mask, reference) = self.tags;
            put_dword(&mut part, 0, 0xc000 << 16 | u32::from(application));
            put_dword(&mut part, 4, reference);
            part[8] = self.algorithm % 5;
            part[9] = 0x80 | (self.flags >> 7) << 3;
            part[13] = self.flags & 0x43;
            part[14..].copy_from_slice(&mask.to_be_bytes());
        }
        part
    }
}

impl Form {
    /// As the interface has it, with these values under way of the wire and of memory.
    fn bytes(self, values: [u32; 2]) -> [u8; 64] {
        let mut bytes = [0; 64];
        let wire = if self.same {
            Half {
                block: self.memory.block,
                ..self.wire
            }
        } else {
            self.wire
        };
        let ((wire_block, wire_algorithm), (block, algorithm)) =
            (wire.selectors(), self.memory.selectors());
        bytes[0] = 2 << 6 | u8::from(self.same) << 4;
        bytes[1] = self.masks[0];
        bytes[2] = if self.same { self.masks[1] } else { wire_block };
        bytes[3] = block;
        let [of_wire, of_memory] = values;
        put_dword(&mut bytes, 8, u32::from(wire_algorithm) << 24 | of_wire);
        put_dword(&mut bytes, 12, u32::from(algorithm) << 24 | of_memory);
        bytes[32..48].copy_from_slice(&wire.part());
        bytes[48..].copy_from_slice(&self.memory.part());
        bytes
    }
}

/// Functions 0 and 1, with keys with signatures.
#[derive(Debug)]
pub struct Parties {
    machine: Machine,
    objects: [Objects; 2],
    signed: [[u32; KEYS]; 2],
    /// Values under way of the domain of all that is here, and of another one.
    values: [[u32; 2]; 2],
    qps: Vec<[Qp; 2]>,
    received: [[u16; KINDS.len()]; 2],
    taken: [u32; 2],
}

/// A key with room for a form, which is free.
fn signed_key(machine: &mut Machine, vf: usize, pd: u32) -> u32 {
    let mut input = test_driver::request(Opcode::CreateMkey, 0, request::PAGES);
    let context = &mut input[request::CONTEXT..];
    mkc::ACCESS_MODE.set(context, 2);
    mkc::FREE.set(context, 1);
    mkc::UMR_EN.set(context, 1);
    mkc::PD.set(context, pd);
    mkc::QPN.set(context, 0x00ff_ffff);
    mkc::MKEY_7_0.set(context, 0x42);
    mkc::BSF_EN.set(context, 1);
    mkc::BSF_OCTWORD_SIZE.set(context, FORM_OCTWORDS);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, STRETCHES as u32);
    put_qword(context, mkc::START_ADDR, PAYLOAD);
    machine.create(vf, &input) << 8 | 0x42
}

fn create_value(machine: &mut Machine, vf: usize, pd: u32) -> Option<u32> {
    let mut input = test_driver::request(Opcode::CreatePsv, 0, 16);
    psv::NUM_PSV.set(&mut input, 1);
    psv::PD.set(&mut input, pd);
    let reply = machine.command(vf, &input, 32);
    (reply::STATUS.get(&reply) == 0).then(|| psv::PSV0_INDEX.get(&reply))
}

impl Actors for Parties {
    type Op = Op;

    fn new(mut machine: Machine) -> Self {
        let objects = [0, 1].map(|vf| {
            machine.bring_up(vf);
            machine.guard(vf);
            machine.objects(vf)
        });
        let mut qps = Vec::new();
        for (index, (service, shared)) in KINDS.into_iter().enumerate() {
            let pair = [0, 1]
                .map(|vf| machine.queue_pair(vf, &objects[vf], index as u64, service, shared));
            qps.push(pair);
        }
        let signed =
            [0, 1].map(|vf| [(); KEYS].map(|()| signed_key(&mut machine, vf, objects[vf].pd)));
        let values = [0, 1].map(|vf| {
            let other = machine.create(vf, &test_driver::request(Opcode::AllocPd, 0, 16));
            [objects[vf].pd, other].map(|pd| create_value(&mut machine, vf, pd).unwrap_or(0))
        });
        let mut parties = Self {
            machine,
            objects,
            signed,
            values,
            qps,
            received: Default::default(),
            taken: [0; 2],
        };
        for kind in 0..KINDS.len() {
            parties.connect(kind);
        }
        parties
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Shape {
                vf,
                key,
                by_changer,
                form,
                without,
                stretches,
                expected,
                patches,
                anew,
            } => {
                let (vf, kind) = (usize::from(*vf), if *by_changer { CHANGER } else { 0 });
                if *anew {
                    self.restart(kind, false);
                }
                let key = self.signed[vf][usize::from(*key) % KEYS];
                let objects = &self.objects[vf];
                // By keys with signatures, too, and this one itself.
                let keys = [
                    objects.region,
                    objects.region,
                    objects.window,
                    self.signed[vf][0],
                ];
                let (mut stretches, len) = stretches
                    .0
                    .clone()
                    .unwrap_or((vec![Piece::of_first(0x8000, 0x7000)], 0x7000));
                stretches.truncate(STRETCHES);
                let stretches = stretches.iter().map(|piece| piece.with(&keys));
                let stretches: Vec<_> = stretches.collect();
                let value = self.values[vf][usize::from(form.of_others.0.is_some())];
                let form = without.0.is_none().then(|| form.bytes([value; 2]));
                let mut request = self.shaping((vf, kind), key, form, &stretches, len, *expected);
                let segments = request.0.len() - 16;
                for (offset, bit) in patches.0.iter().flatten() {
                    request.0[16 + usize::from(*offset) % segments] ^= 1 << (bit % 8);
                }
                let qp = &mut self.qps[kind][vf];
                self.machine.post(vf, qp, request.0);
            }
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
                let opcode = OPCODES[usize::from(*opcode) % OPCODES.len()];
                let immediate = match immediate {
                    0..4 => self.keys(vf)[*immediate as usize],
                    4..8 => self.keys(peer)[*immediate as usize - 4],
                    _ => *immediate,
                };
                let mut request = Request::new(&self.qps[kind][vf], opcode, immediate);
                if let Some(flags) = flags.0 {
                    request.flags(flags);
                }
                if KINDS[kind].0 == 2 {
                    request.to(peer as u16 + 1, self.qps[kind][peer].number, 0, false);
                }
                request.remote(remote.with(&self.keys(peer)), operands.map(u64::from));
                request.list(list, &self.keys(vf));
                let qp = &mut self.qps[kind][vf];
                self.machine.post(vf, qp, request.0);
            }
            Op::Work {
                qp,
                opcode,
                keys,
                addrs,
                len,
                anew,
            } => {
                if *anew {
                    self.restart(Self::pick(*qp).1, false);
                }
                let [remote, local] =
                    [0, 1].map(|at| Piece::of(keys[at], addrs[at] % 0x2000, *len));
                self.act(&Op::Send {
                    qp: *qp,
                    opcode: [1, 6, 3, 6][usize::from(opcode % 4)],
                    flags: Seldom::default(),
                    immediate: u32::MAX,
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
            Op::Value { vf, kind, number } => {
                let vf = usize::from(*vf);
                let number = number.0.unwrap_or(self.values[vf][usize::from(kind >> 7)]);
                match kind % 3 {
                    0 => {
                        let pd = self.objects[vf].pd;
                        if let Some(made) = create_value(&mut self.machine, vf, pd) {
                            self.values[vf][0] = made;
                        }
                    }
                    1 => {
                        let mut input = test_driver::request(Opcode::DestroyPsv, 0, 16);
                        request::OBJECT.set(&mut input, number & 0x00ff_ffff);
                        self.machine.command(vf, &input, 16);
                    }
                    _ => {
                        let qp = &mut self.qps[0][vf];
                        let mut request = Request::new(qp, SET_PSV, 0);
                        request.0.extend(number.to_be_bytes());
                        request.0.extend([0; 12]);
                        self.machine.post(vf, qp, request.0);
                    }
                }
            }
            Op::Bytes { vf, addr, bytes } => {
                let at = PAYLOAD + u64::from(*addr) % (PAYLOAD_LEN - 8);
                self.machine.guest(usize::from(*vf)).write(at, bytes);
            }
            Op::Renew { vf, key } => self.renew(usize::from(*vf), usize::from(*key) % KEYS),
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
        for vf in 0..2 {
            let (objects, taken) = (&self.objects[vf], &mut self.taken[vf]);
            self.machine.completions(vf, objects, taken);
        }
    }

    /// Keys go on to work: what another function writes by one has T10-DIF behind each block.
    fn check(&mut self) {
        const BLOCK: usize = 512;
        let half = |algorithm| Half {
            algorithm,
            block: 0,
            flags: 0x40,
            tags: (0x1234, u16::MAX, 7),
        };
        let form = Form {
            memory: half(1),
            wire: half(0),
            same: false,
            masks: [0xff, 0],
            of_others: Seldom::default(),
        };
        for vf in 0..2 {
            self.machine.check_guard(vf);
            self.restart(0, false);
            self.renew(vf, 0);
            let regions = [0, 1].map(|vf| self.machine.payload_key(vf, self.objects[vf].pd));
            // Its own values may have gone.
            let pd = self.objects[vf].pd;
            let value = create_value(&mut self.machine, vf, pd).unwrap_or(0);
            let (len, at) = (2 * (BLOCK + 8), 0x8000);
            let stretch = Piece::of_first(at, len as u16).with(&regions[vf..=vf]);
            let key = self.signed[vf][0];
            let form = Some(form.bytes([value; 2]));
            let request = self.shaping((vf, 0), key, form, &[stretch], len as u16, true);
            let qp = &mut self.qps[0][vf];
            self.machine.post(vf, qp, request.0);
            let data: Vec<u8> = (0..2 * BLOCK).map(|at| (at * 7 + vf) as u8).collect();
            self.machine.guest(1 - vf).write(PAYLOAD, &data);
            let qp = &mut self.qps[0][1 - vf];
            let mut request = Request::new(qp, 0x08, 0);
            request.remote((PAYLOAD, key, 0), [0; 2]);
            let piece = Piece::of_first(0, data.len() as u16);
            request.list(&[piece], &regions[1 - vf..=1 - vf]);
            self.machine.post(1 - vf, qp, request.0);
            self.machine.arrive();
            for (number, block) in data.chunks(BLOCK).enumerate() {
                let mut found = [0; BLOCK + 8];
                let start = PAYLOAD + u64::from(at) + (number * found.len()) as u64;
                self.machine.guest(vf).read(start, &mut found);
                let mut tuple = crc(block).to_be_bytes().to_vec();
                tuple.extend(0x1234_u16.to_be_bytes());
                tuple.extend((7 + number as u32).to_be_bytes());
                assert!(found[..BLOCK] == *block, "block {number} of function {vf}");
                assert_eq!(
                    found[BLOCK..],
                    tuple,
                    "behind block {number} of function {vf}"
                );
            }
        }
    }
}

/// The CRC of T10-DIF, a bit at a time.
fn crc(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x8bb7;
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            crc << 1 ^ if crc >> 15 == 1 { POLYNOMIAL } else { 0 }
        })
    })
}

impl Parties {
    /// Keys that requests are made with.
    fn keys(&self, vf: usize) -> [u32; 4] {
        let [one, other] = self.signed[vf];
        [one, other, self.objects[vf].region, one]
    }

    /// Function, and kind of queue pair.
    fn pick(qp: u8) -> (usize, usize) {
        let at = usize::from(qp) % (2 * KINDS.len());
        (at % 2, at / 2)
    }

    /// A request that makes a key have this form and these stretches.
    fn shaping(
        &self,
        (vf, kind): (usize, usize),
        key: u32,
        form: Option<[u8; 64]>,
        stretches: &[(u64, u32, u32)],
        len: u16,
        expected: bool,
    ) -> Request {
        let mut control = [0; 48];
        let mut context = [0; 64];
        const INLINE: u8 = 1 << 7;
        control[0] = INLINE;
        control[5] = stretches.len() as u8;
        put_qword(&mut control, 8, CHANGES);
        for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::ATOMIC] {
            right.set(&mut context, 1);
        }
        mkc::EXPECTED_SIGERR_COUNT.set(&mut context, expected.into());
        put_qword(&mut context, mkc::LEN, len.into());
        let mut request = Request::new(&self.qps[kind][vf], CHANGE_KEY, key);
        if form.is_some() {
            control[7] = FORM_OCTWORDS as u8;
            mkc::BSF_EN.set(&mut context, 1);
        }
        request.0.extend(control);
        request.0.extend(context);
        for &(addr, key, len) in stretches {
            request.0.extend(element(addr, key, len));
        }
        request.0.resize(request.0.len().next_multiple_of(64), 0);
        request.0.extend(form.into_iter().flatten());
        request
    }

    fn renew(&mut self, vf: usize, key: usize) {
        let mut input = test_driver::request(Opcode::DestroyMkey, 0, 16);
        request::OBJECT.set(&mut input, self.signed[vf][key] >> 8);
        let reply = self.machine.command(vf, &input, 16);
        if reply::STATUS.get(&reply) == 0 {
            self.signed[vf][key] = signed_key(&mut self.machine, vf, self.objects[vf].pd);
        }
    }

    fn connect(&mut self, kind: usize) {
        for vf in 0..2 {
            let [qp, peer] = [vf, 1 - vf].map(|vf| self.qps[kind][vf]);
            self.machine.connect(vf, &qp, 2 - vf as u32, peer.number);
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
        self.connect(kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_work_and_wrong_blocks_are_told_of() {
        for by_frames in [false, true] {
            let machine = if by_frames {
                Machine::by_frames(2)
            } else {
                Machine::new(2)
            };
            let mut parties = Parties::new(machine);
            parties.check();
            // A byte of the first block differs, and another function reads it.
            let vf = 1;
            parties.machine.guest(vf).write(PAYLOAD + 0x8000, &[0xee]);
            let mut taken = parties.taken[vf];
            parties.act(&Op::Work {
                qp: 0,
                opcode: 1,
                keys: [0, 2],
                addrs: [0, 0x2000],
                len: 1024,
                anew: false,
            });
            parties.machine.arrive();
            let objects = parties.objects[vf];
            let entries = parties.machine.completions(vf, &objects, &mut taken);
            let errors = entries.iter().filter(|entry| entry[63] >> 4 == 12);
            assert_eq!(errors.count(), 1, "by frames: {by_frames}");
            parties.machine.reset(0);
            parties.machine.reset(1);
        }
    }

    #[test]
    fn random_scenes_disturb_nobody() {
        crate::machine::scene::play_random::<Parties>(0x9e37_79b9_7f4a_7c15, 400);
    }
}
