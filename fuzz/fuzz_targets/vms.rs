//! Images of VMs with changes anywhere: whatever they say, they are refused or enter what their guest could
//! have entered itself, can be saved again, and change nothing for others.
#![no_main]

use ibvswitch_fuzz::images::Change;
use ibvswitch_fuzz::vms::Cluster;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|changes: Vec<Change>| {
    Cluster::default().change(&changes[..changes.len().min(16)]);
});
