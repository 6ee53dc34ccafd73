//! Work requests of a hostile guest and of its victim, as a sequence, on queue
//! pairs of every transport, while another function's transfer goes on.
#![no_main]

use arbitrary::Arbitrary;
use connectx::Region;
use ibvswitch_fuzz::Machine;
use ibvswitch_fuzz::machine::guest::{self, Objects, PAYLOAD, Qp, RECEIVES, SEND_BLOCKS};
use ibvswitch_fuzz::machine::scene::{Actors, Scene};
use ibvswitch_fuzz::machine::work::Request;
use libfuzzer_sys::fuzz_target;
use test_driver::Opcode;
use test_driver::bits::{put_dword, put_qword, qpc, request};

const QPS: usize = 5;

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Element {
    key: u8,
    addr: u16,
    len: u16,
    wild: Option<(u64, u32)>,
}

#[derive(Debug, Arbitrary)]
enum Op {
    /// A request as a driver would make it, but for what is in it.
    Send {
        qp: u8,
        opcode: u8,
        flags: u8,
        immediate: u32,
        remote: Element,
        operands: [u64; 2],
        list: Vec<Element>,
    },
    Inline {
        qp: u8,
        opcode: u8,
        remote: Element,
        data: Vec<u8>,
    },
    /// A memory window is bound, or bound to nothing, as libmlx5 does it.
    Window {
        qp: u8,
        two: bool,
        bound: bool,
        rights: u8,
        stretch: Element,
    },
    /// Blocks as they are.
    Raw {
        qp: u8,
        blocks: Vec<[u8; 64]>,
        more: u8,
    },
    Receive {
        qp: u8,
        list: Vec<Element>,
        more: u8,
    },
    Shared {
        index: u8,
        next: u16,
        list: Vec<Element>,
        count: u16,
    },
    Doorbell {
        page: u8,
        offset: u16,
        value: u64,
    },
    Memory {
        victim: bool,
        addr: u32,
        data: Vec<u8>,
    },
    State {
        qp: u8,
        opcode: u8,
    },
    Pass {
        microseconds: u16,
    },
}

struct Parties {
    machine: Machine,
    objects: [Objects; 2],
    qps: Vec<(usize, Qp)>,
    received: [u16; QPS * 2],
}

impl Actors for Parties {
    type Op = Op;

    fn new(mut machine: Machine) -> Self {
        let mut objects = Vec::new();
        for vf in 0..2 {
            machine.bring_up(vf);
            objects.push(machine.objects(vf));
        }
        let objects = [objects[0], objects[1]];
        let mut qps = Vec::new();
        // RC, UC, UD, RC on a shared receive queue, and one for key updates.
        for (index, (service, shared)) in
            [(0, false), (1, false), (2, false), (0, true), (0xc, false)]
                .into_iter()
                .enumerate()
        {
            let mut make =
                |vf: usize| machine.queue_pair(vf, &objects[vf], index as u64, service, shared);
            let pair = [make(0), make(1)];
            for vf in 0..2 {
                let peer = 1 - vf;
                machine.connect(vf, &pair[vf], peer as u32 + 1, pair[peer].number);
                qps.push((vf, pair[vf]));
            }
        }
        Self {
            machine,
            objects,
            qps,
            received: [0; QPS * 2],
        }
    }

    fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    fn act(&mut self, op: &Op) {
        let pick = |qp: &u8| usize::from(*qp) % (QPS * 2);
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
                const OPCODES: [u8; 13] = [
                    0x00, 0x01, 0x08, 0x09, 0x0a, 0x0b, 0x10, 0x11, 0x12, 0x14, 0x15, 0x25, 0x1b,
                ];
                let opcode = OPCODES[usize::from(*opcode) % OPCODES.len()];
                let index = pick(qp);
                let mut bytes = self.head(index, opcode, *remote);
                bytes[11] = *flags;
                let vf = self.qps[index].0;
                let key = self.key(vf, *immediate as u8);
                put_dword(
                    &mut bytes,
                    12,
                    if immediate >> 31 == 0 {
                        key
                    } else {
                        *immediate
                    },
                );
                match opcode {
                    0x11 | 0x12 => {
                        bytes.extend(operands.iter().flat_map(|word| word.to_be_bytes()))
                    }
                    0x14 | 0x15 => {
                        for _ in 0..2 {
                            bytes.extend(operands.iter().flat_map(|word| word.to_be_bytes()));
                        }
                    }
                    0x25 => {
                        let mut control = [0; 48 + 64];
                        control[0] = *flags & 0xb0;
                        put_dword(&mut control, 4, operands[0] as u32 & 0x003f_003f);
                        put_qword(&mut control, 8, operands[1]);
                        put_qword(&mut control, 48, operands[0]);
                        put_qword(&mut control, 48 + 16, PAYLOAD);
                        put_qword(&mut control, 48 + 24, operands[0] >> 8);
                        put_dword(&mut control, 48 + 0x38, 12);
                        bytes.extend_from_slice(&control);
                    }
                    _ => {}
                }
                self.list(vf, list, &mut bytes);
                self.post(index, bytes);
            }
            Op::Inline {
                qp,
                opcode,
                remote,
                data,
            } => {
                let index = pick(qp);
                let opcode = [0x08, 0x09, 0x0a, 0x0b][usize::from(*opcode) % 4];
                let mut bytes = self.head(index, opcode, *remote);
                let data = &data[..data.len().min(900)];
                bytes.extend_from_slice(&(1 << 31 | data.len() as u32).to_be_bytes());
                bytes.extend_from_slice(data);
                self.post(index, bytes);
            }
            Op::Window {
                qp,
                two,
                bound,
                rights,
                stretch,
            } => {
                let index = pick(qp);
                let (vf, owner) = self.qps[index];
                let mut bytes = self.head(index, 0x25, *stretch);
                put_dword(&mut bytes, 12, self.objects[vf].window);
                let mut parts = [0; 48 + 64 + 64];
                let (control, rest) = parts.split_at_mut(48);
                let (context, list) = rest.split_at_mut(64);
                control[0] = 0x90;
                let mut mask = 1 << 29 | 1 << 13;
                let mut only = 0x00ff_ffff;
                if *two {
                    control[0] |= if *bound { 0x20 } else { 0x08 };
                    mask |= 1 << 14;
                    only = if *bound { owner.number } else { only };
                }
                put_dword(context, 4, only << 8 | 0x42);
                if *bound {
                    let (addr, key, len) = self.element(vf, *stretch);
                    mask |= 0x3c_0041;
                    put_dword(control, 4, 4 << 16);
                    put_dword(context, 0, u32::from(rights & 0xf) << 11);
                    put_qword(context, 16, addr);
                    put_qword(context, 24, len.into());
                    put_dword(list, 0, len);
                    put_dword(list, 4, key);
                    put_qword(list, 8, addr);
                } else {
                    put_dword(context, 0, 1 << 30);
                }
                put_qword(control, 8, mask);
                let len = if *bound { 48 + 64 + 64 } else { 48 + 64 };
                bytes.extend_from_slice(&parts[..len]);
                self.post(index, bytes);
            }
            Op::Raw { qp, blocks, more } => {
                let index = pick(qp);
                let (vf, mut qp) = self.qps[index];
                for (number, block) in blocks.iter().take(16).enumerate() {
                    let slot = (u64::from(qp.posted) + number as u64) % SEND_BLOCKS;
                    let at = qp.send_queue() + slot * 64;
                    self.machine.guest(vf).write(at, block);
                }
                let blocks = blocks.len().min(16) as u16 + u16::from(*more);
                self.machine.ring(vf, &mut qp, blocks);
                self.qps[index].1 = qp;
            }
            Op::Receive { qp, list, more } => {
                let index = pick(qp);
                let (vf, qp) = self.qps[index];
                let mut bytes = Vec::new();
                self.list(vf, &list[..list.len().min(4)], &mut bytes);
                if bytes.len() < 64 {
                    bytes.extend_from_slice(&0x100u64.to_be_bytes());
                    bytes.resize(64.min(bytes.len() + 8), 0);
                }
                let posted = &mut self.received[index];
                let at = qp.ring + u64::from(*posted) % RECEIVES * 64;
                *posted = posted.wrapping_add(1).wrapping_add(u16::from(*more & 0x80));
                let record = u32::from(*posted).to_be_bytes();
                self.machine.guest(vf).write(at, &bytes);
                self.machine.guest(vf).write(qp.record, &record);
            }
            Op::Shared {
                index,
                next,
                list,
                count,
            } => {
                let objects = self.objects[0];
                let mut elements = Vec::new();
                self.list(0, list, &mut elements);
                let list = |request: &mut Request| request.0.extend(elements);
                self.machine
                    .post_shared(0, &objects, (*index, *next), list, *count);
            }
            Op::Doorbell {
                page,
                offset,
                value,
            } => {
                let offset = u64::from(4 + page % 32) * 4096 + u64::from(*offset) % 4089;
                let bytes = value.to_be_bytes();
                self.machine.write(0, Region::Bar0, offset, &bytes);
            }
            Op::Memory { victim, addr, data } => {
                let guest = self.machine.guest(usize::from(*victim));
                guest.write(u64::from(addr % (1 << 20)), data);
            }
            Op::State { qp, opcode } => {
                let (vf, qp) = self.qps[pick(qp)];
                let opcode = 0x500 + u16::from(*opcode % 16);
                let mut input = test_driver::request(Opcode::from_code(opcode), 0, request::PAGES);
                request::OBJECT.set(&mut input, qp.number);
                qpc::ST.set(&mut input[request::QPC..], qp.service);
                qpc::MTU.set(&mut input[request::QPC..], 5);
                self.machine.command(vf, &input, 16);
            }
            Op::Pass { microseconds } => self.machine.pass(u64::from(*microseconds) * 1000),
        }
    }
}

impl Parties {
    fn key(&self, vf: usize, key: u8) -> u32 {
        let objects = &self.objects[vf];
        match key % 5 {
            0 | 1 => objects.region,
            2 => objects.physical,
            3 => objects.free,
            _ => objects.window,
        }
    }

    /// Address, key and length.
    fn element(&self, vf: usize, element: Element) -> (u64, u32, u32) {
        match element.wild {
            Some((addr, key)) => (addr, key, u32::from(element.len) << 16),
            None => (
                PAYLOAD + u64::from(element.addr),
                self.key(vf, element.key),
                u32::from(element.len),
            ),
        }
    }

    fn list(&self, vf: usize, list: &[Element], bytes: &mut Vec<u8>) {
        for &element in list.iter().take(16) {
            let (addr, key, len) = self.element(vf, element);
            bytes.extend_from_slice(&guest::element(addr, key, len));
        }
    }

    /// The head of a request: control, address vector, remote address.
    fn head(&self, index: usize, opcode: u8, remote: Element) -> Vec<u8> {
        let (vf, qp) = self.qps[index];
        let peer = 1 - vf;
        let mut bytes = vec![0; 16];
        put_dword(&mut bytes, 0, u32::from(qp.posted) << 8 | u32::from(opcode));
        bytes[11] = 2 << 2;
        if qp.service == 2 {
            let mut vector = [0; 48];
            put_dword(&mut vector, 8, 1 << 31 | self.qps[index ^ 1].1.number);
            vector[15] = peer as u8 + 1;
            bytes.extend_from_slice(&vector);
        }
        if matches!(opcode, 0x08 | 0x09 | 0x10..=0x15) {
            let (addr, key, _) = self.element(peer, remote);
            let mut segment = [0; 16];
            put_qword(&mut segment, 0, addr);
            put_dword(&mut segment, 8, key);
            bytes.extend_from_slice(&segment);
        }
        bytes
    }

    fn post(&mut self, index: usize, bytes: Vec<u8>) {
        let (vf, qp) = &mut self.qps[index];
        self.machine.post(*vf, qp, bytes);
    }
}

fuzz_target!(|scene: Scene<Op>| scene.play::<Parties>());
