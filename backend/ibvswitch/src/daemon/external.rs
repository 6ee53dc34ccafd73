//! Programs of the host on the subnet, by the client protocol of the InfiniBand fabric simulator
//! ibsim.
//!
//! Its library libumad2sim, loaded before a program, takes the place of the kernel's MAD
//! devices: what an unmodified `opensm` or `ibnetdiscover` sends to them arrives here as
//! datagrams, and enters the subnet at the port of the node the program attached to. As a kernel
//! would, this side tells programs at one port apart by their transactions, hands requests to
//! those that serve them, and returns a request that nobody answers.
//!
//! The sockets are in the abstract namespace, where there are no permissions: whoever attaches
//! must be root or the daemon's own user, which the kernel vouches for.

mod client;
mod server;

use std::path::{Path, PathBuf};

pub use client::CLIENTS_MAX;
pub use server::{ExternalServer, StartError};

/// File name of libumad2sim, and the directories that may have it.
pub(crate) const LIBRARY: &str = "umad2sim/libumad2sim.so";
pub(crate) const DIRECTORIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// Why no program can attach, where the configuration says so.
pub(crate) const NOT_SERVED: &str = "`external.socket = \"\"`: programs of the host are not served; \
     remove the key, or write a name";

/// Where libumad2sim is, if it is installed.
#[must_use]
pub fn library() -> Option<PathBuf> {
    DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(LIBRARY))
        .find(|path| path.exists())
}
