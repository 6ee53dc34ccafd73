//! Messages of a client of a vhost-user-net port, and rings of its guest, in any order: only the guest's memory
//! is read or written, and each frame costs a bounded amount of work.
#![no_main]

use ibvswitch_fuzz::rings::{Guest, Op};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|ops: Vec<Op>| {
    let mut guest = Guest::default();
    for op in ops.into_iter().take(256) {
        guest.act(op);
    }
});
