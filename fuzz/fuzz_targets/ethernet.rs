//! Frames of a guest, datagrams of the fabric and answers of the subnet administration that say anything, at
//! a vhost-user-net port: it sends from its own address alone, bounded in number, and works afterwards.
#![no_main]

use ibvswitch_fuzz::ports::{Op, Place};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|ops: Vec<Op>| {
    let mut place = Place::default();
    for op in ops.into_iter().take(256) {
        place.act(op);
    }
    place.works();
});
