//! Tables that packets look at on their way, and how long that takes.

use std::hint::black_box;
use std::time::Instant;

use super::flow_table::{Fields, Group, LOG_MAX_SIZE};
use super::*;

const ROOT: u32 = 7;
const QUEUE: u32 = 9;
/// Packets of TCP over IPv4 look at the last entry of the last table.
const TCP: Fields = Fields {
    ethertype: 0x0800,
    protocol: 6,
};

/// A chain of as many tables as there may be, each as long as may be. All but the last entry match nobody.
fn chained(tables: usize) -> Network {
    let mut network = Network::default();
    let domain = network.alloc_domain().unwrap();
    let queue = Queue {
        tis: None,
        context: vec![0; crate::bits::network::rqc::SIZE],
    };
    network.add_receive_queue(QUEUE, queue);
    let tir = Tir {
        domain,
        to: Dispatched::Queue(QUEUE),
        hasher: Hasher {
            function: HashFunction::None,
            symmetric: false,
            key: [0; KEY_LEN],
            fields: 0,
        },
    };
    let tir = network.create_tir(tir).unwrap();
    let last = (1 << LOG_MAX_SIZE) - 1;
    let mut miss = Next::Drop;
    for level in (0..tables as u8).rev() {
        let table = FlowTable::new(level, LOG_MAX_SIZE, miss).unwrap();
        let number = network.create_flow_table(table).unwrap();
        let group = Group {
            first: 0,
            last,
            criteria: Fields {
                ethertype: 0xffff,
                protocol: 0xff,
            },
        };
        let group = network.flow_table_mut(number).unwrap().add_group(group);
        // In any order.
        for index in (0..=last).rev() {
            let is_last = miss == Next::Drop && index == last;
            let value = if is_last {
                TCP
            } else {
                Fields {
                    protocol: 17,
                    ..TCP
                }
            };
            let place = (index, group.unwrap());
            network
                .add_entry(number, place, value, Next::Tir(tir))
                .unwrap();
        }
        miss = Next::Table(number);
    }
    if let Next::Table(first) = miss {
        network.set_root(ROOT, Some(first)).unwrap();
    }
    network
}

fn packet(protocol: u8) -> [u8; 24] {
    let mut packet = [0; 24];
    (packet[0], packet[4], packet[4 + 9]) = (0x08, 0x45, protocol);
    packet
}

/// A packet's sender is charged for all that was looked at, wherever the packet goes.
#[test]
fn what_was_looked_at_is_counted() {
    let looked = |network: &Network, underlay, protocol| {
        let found = network.steer(Qpn::new(underlay), &packet(protocol));
        let queue = found.to.map(|(queue, _)| queue.value());
        (queue, found.tables, found.entries)
    };
    let entries = (MAX_TABLES << LOG_MAX_SIZE) as u32;
    let most = MAX_TABLES as u32;
    let network = chained(MAX_TABLES);
    assert_eq!(looked(&network, ROOT, 6), (Some(QUEUE), most, entries));
    assert_eq!(looked(&network, ROOT, 1), (None, most, entries));
    assert_eq!(looked(&network, ROOT, 17), (Some(QUEUE), 1, 1));
    assert_eq!(looked(&network, ROOT + 1, 6), (None, 0, 0));
    // However long a chain is, and after a move.
    let network = chained(MAX_TABLES + 3);
    assert_eq!(looked(&network, ROOT, 6), (None, most, entries));
    let image = network.save();
    let moved = Network::restore(&image, &mut Vec::new()).unwrap();
    assert_eq!(looked(&moved, ROOT, 6), (None, most, entries));
    assert_eq!(looked(&moved, ROOT, 17), (Some(QUEUE), 1, 1));
}

/// Prints it: over one chain of tables, and over as many as do not stay in a small cache.
#[test]
#[ignore = "it is looked at"]
fn what_the_longest_walk_takes() {
    const WALKS: usize = 100_000;
    for count in [1, 64] {
        let networks: Vec<_> = (0..count).map(|_| chained(MAX_TABLES)).collect();
        let start = Instant::now();
        for network in networks.iter().cycle().take(WALKS) {
            let found = network.steer(Qpn::new(ROOT), black_box(&packet(6)));
            assert!(black_box(found).to.is_some());
        }
        let walk = start.elapsed().as_nanos() / WALKS as u128;
        println!("over {count} chains a walk takes {walk} ns");
    }
}
