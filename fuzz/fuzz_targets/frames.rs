//! Frames that say anything, at the ports of functions whose queue pairs are connected with each other,
//! while another function's transfer goes on. They reach no memory but that of keys which are named.
#![no_main]

use arbitrary::Arbitrary;
use ibvswitch_fuzz::Machine;
use ibvswitch_fuzz::frames::{Addressee, Said};
use ibvswitch_fuzz::machine::guest::Bystander;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Arbitrary)]
enum Op {
    Frame(Addressee, Said),
    /// A packet as it is.
    Packet(u8, Vec<u8>),
    Receive(u8),
    Pass(u16),
}

fuzz_target!(|ops: Vec<Op>| {
    let mut machine = Machine::new(3);
    let mut bystander = Bystander::new(&mut machine, 2);
    let mut parties = ibvswitch_fuzz::frames::Parties::new(machine);
    for op in ops.iter().take(64) {
        match op {
            Op::Frame(to, said) => parties.frame(to, said),
            Op::Packet(vf, bytes) => parties.packet(*vf, bytes),
            Op::Receive(qp) => parties.receive(*qp),
            Op::Pass(microseconds) => parties.machine.pass(u64::from(*microseconds) * 1000),
        }
    }
    parties.check();
    bystander.transfer(&mut parties.machine);
    for _ in 0..8 {
        parties.machine.pass(1_000_000_000);
    }
    parties.machine.reset(0);
    parties.machine.reset(1);
    bystander.transfer(&mut parties.machine);
});
