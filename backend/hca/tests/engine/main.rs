//! The engine against the rules of the InfiniBand specification, over queues
//! and a subnet that are as simple as can be.

extern crate ibvswitch_hca as hca;

mod lab;

mod allocation;
mod connected;
mod counters;
mod data_by_sl;
mod datagrams;
mod dynamic;
mod errors;
mod held;
mod images;
mod keys;
mod lanes;
mod lending;
mod lifecycle;
mod lossy;
mod mesh;
mod migrations;
mod model;
mod moved;
mod neighbours;
mod packets;
mod paging;
mod parts;
mod progress;
mod reasons;
mod rests;
mod signatures;
mod slow;
mod stations;
mod tags;
mod trunk;
mod windows;
