//! QEMU guests on a subnet of their own, from nothing but a Debian host.
//!
//! The program `ibvswitch-lab`, which `ibvswitch lab` starts, gives them to users; the project's own tests
//! of guests and its demo stand on the same modules:
//!
//! - [`apt`]: a private apt state, so that packages of a newer Debian can be fetched and unpacked
//!   beside the system, without root;
//! - [`sysroot`]: programs run from such an unpacked tree;
//! - [`qemu`]: a QEMU that knows `vfio-user-pci`, the system's own or a fetched one;
//! - [`image`], [`packages`], [`alternatives`], [`initramfs`], [`modules`]: a guest from Debian's own kernel and
//!   packages;
//! - [`accel`]: whether KVM can run that guest, tried out rather than assumed;
//! - [`guest`], [`channel`], [`qmp`], [`log`]: a running guest, commands in it, its monitor, what it says;
//! - [`daemon`]: a daemon for these guests;
//! - [`share`], [`root`]: folders of the host in guests;
//! - [`ssh`]: keys by which guests reach each other;
//! - [`hca`]: what a guest says about its HCA;
//! - [`console`]: a guest's serial console in this terminal;
//! - [`cli`], [`plan`], [`nodes`], [`everywhere`], [`control`], [`moves`], [`outcome`], [`desk`]: the program.
//!
//! # Design
//!
//! A command's output is the text between its records on one of four serial ports ([`channel`]), never a kernel message.
//! Fetched and built files are cached by a key of their recipe (`paths`). The kernel kills all processes of a lab with the
//! thread that started them (`bound`); a locked file in its folder tells a later lab whether it still lives (`rundir`). A
//! signal kills the guests (`interrupt`), and the waiting thread cleans up.
//!
//! A lab that is left running has a process of its own (`cli::up`); commands reach it by a socket, one for each connection,
//! and end with it. A node's `ibvswitch` command is a record of its channel; [`control`] holds it against a list of commands that name
//! nothing of the host. A node that moves (`moves`) keeps its channels: nothing is sent while the guest changes QEMU, because
//! unread bytes would be lost.

#![forbid(unsafe_code)]

pub mod accel;
pub mod alternatives;
pub mod apt;
pub mod bound;
pub mod channel;
pub mod cli;
pub mod console;
pub mod control;
pub mod daemon;
pub mod desk;
mod elf;
pub mod error;
pub mod everywhere;
pub mod guest;
pub mod hca;
pub mod image;
pub mod initramfs;
pub mod interrupt;
pub mod linux;
pub mod log;
pub mod modules;
pub mod moves;
pub mod nodes;
pub mod outcome;
pub mod packages;
pub mod paths;
pub mod plan;
pub mod progress;
pub mod qemu;
pub mod qmp;
pub mod quantity;
pub mod root;
pub mod rundir;
pub mod share;
pub mod sources;
pub mod ssh;
pub mod sysroot;
pub mod vmlinux;

pub use error::{Error, Result};
