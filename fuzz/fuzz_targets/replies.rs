//! Replies, events and memory of a VF that guests are passed through to: whatever it does, the daemon and the
//! guest's memory are unharmed, and a reset helps.
#![no_main]

use ibvswitch_fuzz::mediation::{Deed, Reply, Victim, bring_up};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<Reply>, Vec<Deed>)| {
    let (replies, deeds) = input;
    bring_up(replies);
    Victim::new().suffer(&deeds);
});
