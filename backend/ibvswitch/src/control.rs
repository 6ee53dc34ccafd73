//! The daemon's side of the control socket.
//!
//! A [`Server`] gets its answers from a [`StatusSource`]. The socket is for the daemon's user alone (mode 0600);
//! still, a request is bounded in size and a client in time, so that a stuck script cannot hold anything up.

mod counters;
mod duplicate_guids;
mod link;
mod lobby;
mod mads;
mod migration;
mod passthrough;
mod server;
mod sm;
mod topology;

pub use ::control::*;

pub(crate) use counters::counters_report;
pub(crate) use link::{link_action, link_report};
pub(crate) use mads::mads;
pub(crate) use migration::{Unmoved, migrated, migrations_report, move_request};
pub(crate) use passthrough::{elsewhere, passed_vf};
pub use server::{Server, StatusSource};
pub(crate) use sm::sm_status;
pub(crate) use topology::{adapters, topology, used_pkeys};
