//! Lists of tags of two hostile guests that send one another messages which begin as they like, while another function's transfer goes on.
#![no_main]

use ibvswitch_fuzz::machine::scene::Scene;
use ibvswitch_fuzz::tags::{Op, Parties};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|scene: Scene<Op>| scene.play::<Parties>());
