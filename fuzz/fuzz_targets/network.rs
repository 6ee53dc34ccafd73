//! What network interfaces are made of, of two hostile guests that make, change and take it away in any order and send packets through it, while another function's transfer goes on.
#![no_main]

use ibvswitch_fuzz::network::{Interfaces, Op};
use ibvswitch_fuzz::scene::Scene;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|scene: Scene<Op>| scene.play::<Interfaces>());
