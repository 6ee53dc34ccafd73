//! Virtual InfiniBand HCAs for QEMU guests: the program's parts, as a library.
//!
//! # Life
//!
//! `cli` reads the command line, crate `config` the configuration. `daemon::life::run` is the life of a daemon, in an order that leaves
//! nothing behind if a start fails: log, signals, sockets, subnet, devices, control socket, `ready`; and back at a signal.
//! `daemon::life::assembly` puts the parts together. `daemon::life::sandbox` confines the process before its second thread; later needs
//! are on that module's lists. The control socket speaks JSON lines, one request and one response each.
//!
//! # Several engines
//!
//! Each engine has all functions; a function lives in one of them, and the others know its port only. A message to
//! another engine goes in frames by a ring of 256 (`rtrb`), of which each engine has one to each other engine. A full ring makes queue pairs
//! wait; answers wait beside it. A `Door` wakes a sleeping engine after the sender has released its own. To move a
//! function, all engines are held: `relocate` empties the rings, makes an image and restores it. VFs of one port live
//! together.
//!
//! # The engine's lock
//!
//! A thread has it for one turn or one command. Commands are fetched, decoded and answered without it, and destroyed objects
//! are freed after it. Guest memory is a table of the socket thread and an immutable view (`vfio_user::DmaView`); a map or
//! unmap exchanges the view. Interrupts are signalled after the lock.
//!
//! # Upgrade
//!
//! `daemon::moves::upgrade` replaces the program by execve(2), with its descriptors, and for each client the connection, its
//! messages and the image of its machine. The new program first runs as a trial process that maps memory and restores
//! everything, but changes nothing shared. Only then is it executed: the point of no return. Before it, any failure
//! lets the devices continue. After it, a device that cannot be restored is as after a reset. A device that continues raises all
//! its interrupts once.
//!
//! # Live migration
//!
//! Both devices rest before the addresses move, so that senders wait for one of them. The image is taken before the move
//! and restored after guests have been told, because a device is told of the addresses at its own place. A doorbell that a
//! guest rings before its device works again is kept (`Early`).
//!
//! # Captures
//!
//! A tap shows management packets. Data passes in frames while somebody watches, and the decorator `Captured` tells the
//! watcher; the client's thread makes packets and pcap records. Without a watcher this costs nothing.
//!
//! # Failure
//!
//! | cause | consequence |
//! |---|---|
//! | a bad work request | its queue pair goes to error; the completion has the reason |
//! | a bad command | a status in the reply |
//! | a malformed vfio-user message | an error reply, or the end of that client |
//! | a VMM that dies | its maps and objects are dropped; peers see retries, then an error |
//! | memory truncated by its owner | zeros in place of SIGBUS |
//! | an upgrade that fails | the daemon serves on |
//! | a daemon that dies | with a keeper it restarts and drivers recover; without, VMs need a restart |

#![forbid(unsafe_code)]

pub mod budget;
pub mod capture;
pub mod cli;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod finding;
pub mod host;
pub mod monitor;
pub mod qemu;
mod status;
mod warnings;
