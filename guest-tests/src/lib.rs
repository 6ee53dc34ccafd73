//! Boots real QEMU guests and runs stock InfiniBand tools in them.
//!
//! Everything around the device that a test or the demo needs, from nothing but a Debian host:
//!
//! - [`apt`]: a private apt state, so that packages of a newer Debian can be fetched and unpacked
//!   beside the system, without root;
//! - [`sysroot`]: programs run from such an unpacked tree;
//! - [`qemu`]: a QEMU that knows `vfio-user-pci`, the system's own or a fetched one;
//! - [`image`], [`initramfs`], [`modules`]: a guest from Debian's own kernel and packages;
//! - [`accel`]: whether KVM can run that guest, tried out rather than assumed;
//! - [`guest`], [`channel`], [`qmp`]: a running guest, commands in it, its monitor;
//! - [`daemon`]: the `ibvswitch` program under test;
//! - [`perftest`], [`pingpong`], [`ipoib`], [`ibacm`], [`rxe`], [`hca`], [`diags`]: stock tools, run and
//!   parsed;
//! - [`capture`], [`requests`]: packets as tshark reads them, and what guests ask of the subnet
//!   administration;
//! - [`testbed`], [`checks`]: guests booted once for many named assertions;
//! - [`demo`], [`report`], [`console`]: what `./scripts/demo` does.

#![forbid(unsafe_code)]

pub mod accel;
pub mod apt;
pub mod bound;
pub mod capture;
pub mod channel;
pub mod checks;
pub mod console;
pub mod daemon;
pub mod demo;
pub mod diags;
pub mod driver;
pub mod error;
pub mod guest;
pub mod hca;
pub mod ibacm;
pub mod image;
pub mod initramfs;
pub mod ipoib;
pub mod modules;
pub mod moves;
pub mod nvme;
pub mod paths;
pub mod perftest;
pub mod pingpong;
pub mod progress;
pub mod qemu;
pub mod qmp;
pub mod report;
pub mod requests;
pub mod rxe;
pub mod sources;
pub mod sysroot;
pub mod testbed;
pub mod ucx;

pub use error::{Error, Result};
