//! Images of functions with changes anywhere: whatever they say, they are refused or make a function that
//! works on, can be saved and reset, and disturbs nobody.
#![no_main]

use ibvswitch_fuzz::Machine;
use ibvswitch_fuzz::images::{Change, Worker};
use ibvswitch_fuzz::machine::guest::Bystander;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|changes: Vec<Change>| {
    let mut machine = Machine::new(2);
    let mut bystander = Bystander::new(&mut machine, 1);
    let mut worker = Worker::new(&mut machine);
    worker.change(&mut machine, &changes[..changes.len().min(16)]);
    bystander.transfer(&mut machine);
});
