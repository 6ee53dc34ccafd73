//! Any bytes as a listing of a subnet; what is read is written, and read again as it was.
#![no_main]

use fabric::Listing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Ok(listing) = Listing::read(text) else {
        return;
    };
    let Ok(written) = listing.topology.to_netlist() else {
        return;
    };
    let again = Listing::read(&written).expect("what is written can be read");
    // GUIDs of ports without a cable have no place in it.
    let lost = |notice: &&String| !notice.contains("is not given");
    assert_eq!(again.notices.iter().find(lost), None);
    assert_eq!(again.topology.links().len(), listing.topology.links().len());
    assert_eq!(again.topology.to_netlist().expect("is a fabric"), written);
});
