//! Initiators and targets of dynamic connections of two hostile guests, while another function's transfer goes on.
#![no_main]

use ibvswitch_fuzz::dynamic::{Op, Parties};
use ibvswitch_fuzz::machine::scene::Scene;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|scene: Scene<Op>| scene.play::<Parties>());
