//! Boots real QEMU guests and runs stock InfiniBand tools in them.
//!
//! Guests, what they are made of, and daemons for them are `ibvswitch-lab`'s, the library behind
//! `ibvswitch lab`; its modules are here under their own names. On them stand:
//!
//! - [`tools`]: stock tools, run and parsed;
//! - [`capture`], [`requests`]: packets as tshark reads them, and what guests ask of the subnet
//!   administration;
//! - [`storage`]: disks of one guest that another uses;
//! - [`outage`]: a cable that is out for a while;
//! - [`testbed`], [`checks`]: guests booted once for many named assertions;
//! - [`nested`]: a guest of a guest;
//! - [`shared_memory`]: what two guests can do without an HCA between them;
//! - [`demo`], [`report`]: what `./scripts/demo` does.

#![forbid(unsafe_code)]

pub mod capture;
pub mod checks;
pub mod demo;
pub mod driver;
pub mod moves;
pub mod nested;
pub mod outage;
pub mod report;
pub mod requests;
pub mod shared_memory;
pub mod storage;
pub mod testbed;
pub mod tools;

pub use lab::guest::{accel, console, hca, qemu};
pub use lab::nodes::daemon;
pub use lab::{Error, Result, bound, error, guest, image, paths, progress};
