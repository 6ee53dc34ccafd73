//! Objects of network interfaces of two hostile guests, which create, change and destroy them in any order and
//! send packets through them, while another function's transfer goes on.

#![no_main]

use ibvswitch_fuzz::machine::scene::Scene;
use ibvswitch_fuzz::network::{Interfaces, Op};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|scene: Scene<Op>| scene.play::<Interfaces>());
