//! A request for NodeInfo along a directed route, as a whole packet, and what a reader finds in its bytes.

use ibvswitch_wire::mad::{AttributeId, Method};
use ibvswitch_wire::smp::{DATA, Destination, Request, Route, Smp};
use ibvswitch_wire::{Lid, MadPacket, Vl};

fn main() {
    let request = Request {
        destination: Destination::Directed(Route::new(&[1, 7]).expect("few hops")),
        method: Method::GET,
        attribute: AttributeId::NODE_INFO,
        modifier: 0,
        transaction: 1,
        m_key: 0,
        data: [0; DATA],
    };
    let packet = MadPacket::smp(Lid::PERMISSIVE, request.dlid(), request.to_bytes());
    let mut bytes = [0; MadPacket::MAX_SIZE];
    let size = packet.emit(Vl::MANAGEMENT, &mut bytes);

    let read = MadPacket::parse(&bytes[..size]).expect("its check sums are right");
    let smp = Smp::new_checked(&read.mad[..]).expect("it has the size of a MAD");
    println!("{size} bytes: {smp}");
    assert_eq!(smp.mad().attribute(), AttributeId::NODE_INFO);
    assert_eq!((smp.hop_count(), smp.initial_path(2)), (2, 7));
}

#[test]
fn runs() {
    main();
}
