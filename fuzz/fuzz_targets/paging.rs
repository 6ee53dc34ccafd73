//! Requests to memory that is not there, of two hostile guests that bring it and take it away, while another function's transfer goes on.
#![no_main]

use ibvswitch_fuzz::machine::scene::Scene;
use ibvswitch_fuzz::paging::{Op, Parties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|scene: Scene<Op>| scene.play::<Parties>());
