//! Boots real QEMU guests and runs stock InfiniBand tools in them.
//!
//! Guests, what they are made of, and daemons for them are `ibvswitch-lab`'s, the library behind
//! `ibvswitch lab`; its modules are here under their own names. On them stand:
//!
//! - [`perftest`], [`pingpong`], [`ipoib`], [`ibacm`], [`rxe`], [`diags`]: stock tools, run and parsed;
//! - [`capture`], [`requests`]: packets as tshark reads them, and what guests ask of the subnet
//!   administration;
//! - [`disk`], [`nvme`], [`iser`], [`srp`]: disks of one guest that another uses;
//! - [`rds`]: messages of the kernel's reliable datagram sockets;
//! - [`outage`]: a cable that is out for a while;
//! - [`testbed`], [`checks`]: guests booted once for many named assertions;
//! - [`nested`]: a guest of a guest;
//! - [`shared_memory`]: what two guests can do without an HCA between them;
//! - [`demo`], [`report`]: what `./scripts/demo` does.

#![forbid(unsafe_code)]

pub mod capture;
pub mod checks;
pub mod demo;
pub mod diags;
pub mod disk;
pub mod driver;
pub mod ibacm;
pub mod ipoib;
pub mod iser;
pub mod moves;
pub mod nested;
pub mod nvme;
pub mod outage;
pub mod perftest;
pub mod pingpong;
pub mod rds;
pub mod report;
pub mod requests;
pub mod rxe;
pub mod shared_memory;
pub mod srp;
pub mod tcp;
pub mod testbed;
pub mod ucx;

pub use lab::{
    Error, Result, accel, bound, console, daemon, error, guest, hca, image, paths, progress, qemu,
};
