//! Requests to memory that is not there, of two hostile guests that bring it and take it away, while another function's transfer goes on.
#![no_main]

use ibvswitch_fuzz::Machine;
use ibvswitch_fuzz::guest::Bystander;
use ibvswitch_fuzz::paging::{Op, Parties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|ops: Vec<Op>| {
    let mut machine = Machine::new(3);
    let mut bystander = Bystander::new(&mut machine, 2);
    let mut parties = Parties::new(machine);
    for op in ops.iter().take(64) {
        parties.act(op);
    }
    bystander.transfer(&mut parties.machine);
    // Everything that is still to happen, retries and all.
    for _ in 0..32 {
        parties.machine.pass(1_000_000_000);
    }
    bystander.transfer(&mut parties.machine);
    parties.machine.reset(0);
    parties.machine.reset(1);
    bystander.transfer(&mut parties.machine);
});
