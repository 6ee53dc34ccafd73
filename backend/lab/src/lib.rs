//! QEMU guests on a subnet of their own, from nothing but a Debian host.
//!
//! The program `ibvswitch-lab`, which `ibvswitch lab` starts, gives them to users; the project's own tests
//! of guests and its demo stand on the same modules:
//!
//! - [`debian`]: a private apt state, so that packages of a newer Debian can be fetched and unpacked
//!   beside the system, without root; programs run from such an unpacked tree;
//! - [`image`]: a guest from Debian's own kernel and packages;
//! - [`guest`]: a QEMU that knows `vfio-user-pci`, the system's own or a fetched one; a running guest, commands in it, its
//!   monitor, its console, what it says of its HCA, folders of the host in it; whether KVM can run it, tried out rather than
//!   assumed;
//! - [`nodes`]: guests on the subnet of a daemon of theirs, and what a plan has them do;
//! - [`cli`]: the program.
//!
//! # Design
//!
//! A command's output is the text between its records on one of four serial ports ([`guest::channel`]), never a kernel message.
//! Fetched and built files are cached by a key of their recipe (`paths`). The kernel kills all processes of a lab with the
//! thread that started them (`bound`); a locked file in its folder tells a later lab whether it still lives (`nodes::rundir`). A
//! signal kills the guests (`interrupt`), and the waiting thread cleans up.
//!
//! A lab that is left running has a process of its own (`cli::up`); commands reach it by a socket, one for each connection,
//! and end with it. A node's `ibvswitch` command is a record of its channel; [`nodes::control`] holds it against a list of commands that name
//! nothing of the host. A node that moves (`nodes::moves`) keeps its channels: nothing is sent while the guest changes QEMU, because
//! unread bytes would be lost.

#![forbid(unsafe_code)]

pub mod bound;
pub mod cli;
pub mod debian;
pub mod error;
pub mod guest;
pub mod image;
pub mod interrupt;
pub mod nodes;
pub mod paths;
pub mod progress;

pub use error::{Error, Result};
