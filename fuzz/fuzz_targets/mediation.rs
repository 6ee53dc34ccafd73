//! Commands and doorbells of a guest whose VF is passed through: whatever it says, the VF behind gets nothing
//! but what is the guest's to say, with many rights and with few.
#![no_main]

use ibvswitch_fuzz::mediation::{Hostile, Rights, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Rights, Vec<Step>)| {
    let (rights, steps) = input;
    Hostile::new(rights).run(&steps);
});
