//! The engine against the rules of the InfiniBand specification, over queues
//! and a subnet that are as simple as can be.

extern crate ibvswitch_hca as hca;

mod lab;

mod allocation;
mod counters;
mod data_by_sl;
mod datagrams;
mod lifecycle;
mod neighbours;

mod connections {
    mod connected;
    mod dynamic;
    mod errors;
    mod held;
    mod migrations;
    mod model;
    mod progress;
    mod reasons;
    mod tags;
}

mod frames {
    mod lanes;
    mod lossy;
    mod mesh;
    mod packets;
    mod slow;
    mod stations;
    mod trunk;
}

mod memory {
    mod keys;
    mod lending;
    pub mod paging;
    mod signatures;
    mod windows;
}

mod moves {
    mod images;
    mod moved;
    mod parts;
    mod rests;
}
