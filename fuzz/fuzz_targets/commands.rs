//! Commands, command queue entries and registers of a hostile guest, as a
//! sequence, while another function's transfer goes on.
#![no_main]

use arbitrary::Arbitrary;
use connectx::Region;
use connectx::bits::command::AnyOpcode;
use ibvswitch_fuzz::Machine;
use ibvswitch_fuzz::machine::guest::{Bystander, CMD_DBELL, COMMAND_QUEUE};
use libfuzzer_sys::fuzz_target;
use test_driver::bits::{Field, field, reply, request};

/// A dword of a request, where it is and what it is.
#[derive(Debug, Arbitrary)]
struct Patch {
    offset: u16,
    value: Value,
}

#[derive(Debug, Arbitrary)]
enum Value {
    Any(u32),
    /// A number that the device gave out before.
    Object(u8),
    /// An address of the guest's memory.
    Address(u8),
    Bit(u8),
}

#[derive(Debug, Arbitrary)]
enum Op {
    Command {
        opcode: Code,
        op_mod: u16,
        object: Value,
        patches: Vec<Patch>,
        len: u16,
        pages: u8,
        out: u16,
    },
    Entry {
        slot: u8,
        entry: [u8; 64],
    },
    Ring {
        entries: u32,
    },
    Memory {
        addr: u32,
        data: Vec<u8>,
    },
    Write {
        region: u8,
        offset: u64,
        data: Vec<u8>,
    },
    Read {
        region: u8,
        offset: u64,
        len: u8,
    },
    Pass {
        microseconds: u16,
    },
    Reset,
}

#[derive(Debug, Arbitrary)]
enum Code {
    Known(u8),
    Any(u16),
}

/// In each request: the user context that it is for.
const UID: Field = field(0x00, 15, 0);

fn region(index: u8) -> Region {
    match index % 3 {
        0 => Region::Bar0,
        1 => Region::Bar2,
        _ => Region::Config,
    }
}

struct Hostile {
    machine: Machine,
    objects: Vec<u32>,
}

impl Hostile {
    fn value(&self, value: &Value) -> u32 {
        match *value {
            Value::Any(value) => value,
            Value::Object(index) => match self.objects.len() {
                0 => 0,
                len => self.objects[usize::from(index) % len],
            },
            Value::Address(page) => u32::from(page) << 12,
            Value::Bit(bit) => 1 << (bit % 32),
        }
    }

    /// An offset that leaves `len` bytes of the region.
    fn within(&self, region: Region, offset: u64, len: usize) -> u64 {
        offset % (self.machine.region_size(0, region) - len as u64 + 1)
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Command {
                opcode,
                op_mod,
                object,
                patches,
                len,
                pages,
                out,
            } => {
                let opcode = match *opcode {
                    Code::Known(index) => {
                        AnyOpcode::ALL[usize::from(index) % AnyOpcode::ALL.len()].code()
                    }
                    Code::Any(opcode) => opcode,
                };
                let mut input = vec![0; usize::from(*len % 1024).max(16)];
                if *pages > 0 {
                    input.resize(request::PAGES, 0);
                }
                request::OPCODE.set(&mut input, opcode.into());
                request::OP_MOD.set(&mut input, u32::from(*op_mod % 16));
                // Contexts are numbered from 1 on.
                UID.set(&mut input, u32::from(*op_mod >> 13));
                request::OBJECT.set(&mut input, self.value(object) & 0x00ff_ffff);
                for Patch { offset, value } in patches.iter().take(32) {
                    let offset = usize::from(*offset) % (input.len() / 4) * 4;
                    let value = self.value(value);
                    input[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
                }
                for page in 0..u64::from(*pages) {
                    input.extend_from_slice(&(0x4_0000 + page % 128 * 4096).to_be_bytes());
                }
                let reply = self.machine.command(0, &input, usize::from(*out % 8192));
                let object = reply::OBJECT.get(&reply);
                if reply::STATUS.get(&reply) == 0 && object != 0 {
                    self.objects.push(object);
                }
            }
            Op::Entry { slot, entry } => {
                let at = COMMAND_QUEUE + u64::from(slot % 32) * 64;
                self.machine.guest(0).write(at, entry);
            }
            Op::Ring { entries } => {
                let word = entries.to_be_bytes();
                self.machine.write(0, Region::Bar0, CMD_DBELL, &word);
            }
            Op::Memory { addr, data } => {
                self.machine
                    .guest(0)
                    .write(u64::from(addr % (1 << 20)), data);
            }
            Op::Write {
                region: index,
                offset,
                data,
            } => {
                let region = region(*index);
                let data = &data[..data.len().min(64)];
                let offset = self.within(region, *offset, data.len());
                self.machine.write(0, region, offset, data);
            }
            Op::Read {
                region: index,
                offset,
                len,
            } => {
                let region = region(*index);
                let mut data = vec![0; usize::from(*len)];
                let offset = self.within(region, *offset, data.len());
                self.machine.read(0, region, offset, &mut data);
            }
            Op::Pass { microseconds } => self.machine.pass(u64::from(*microseconds) * 1000),
            Op::Reset => {
                self.machine.reset(0);
                self.objects.clear();
            }
        }
    }
}

fuzz_target!(|ops: Vec<Op>| {
    let mut machine = Machine::new(2);
    let mut bystander = Bystander::new(&mut machine, 1);
    machine.bring_up(0);
    let mut hostile = Hostile {
        machine,
        objects: Vec::new(),
    };
    for op in ops.iter().take(64) {
        hostile.act(op);
    }
    bystander.transfer(&mut hostile.machine);
    hostile.machine.reset(0);
    hostile.machine.bring_up(0);
    bystander.transfer(&mut hostile.machine);
});
