//! Memory keys with signatures of two hostile guests, and requests of all kinds by them, while another function's transfer goes on.
#![no_main]

use ibvswitch_fuzz::machine::scene::Scene;
use ibvswitch_fuzz::signatures::{Op, Parties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|scene: Scene<Op>| scene.play::<Parties>());
