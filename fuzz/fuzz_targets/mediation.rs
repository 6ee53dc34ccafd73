//! Commands and doorbells of a guest whose VF is passed through: whatever it says, the VF behind gets nothing
//! but what is the guest's to say, with either isolation.
#![no_main]

use ibvswitch_fuzz::mediation::{Hostile, Step};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (strict, steps) = input;
    Hostile::new(strict).run(&steps);
});
