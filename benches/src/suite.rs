//! The suites.

use clap::ValueEnum;

use crate::data_path::{bandwidth, engines, idle, latency, rate, registration, vhost};
use crate::management::{migration, reconfiguration, routing, sa, sm, study};
use crate::{Context, Result, Tell, exhaustion, footprint, neighbours, passthrough};

/// A suite of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// One-way time of an 8-byte WRITE, and of messages that are matched with tags.
    Latency,
    /// Rate of 8-byte WRITEs.
    Rate,
    /// Rate of 8-byte WRITEs of several pairs, each in an engine of its own.
    Engines,
    /// WRITEs of 64 KiB and 1 MiB, and what it costs that pages could be away, to record written ones, and to make
    /// signatures.
    Bandwidth,
    /// Ethernet frames of 64 bytes, and long TCP segments, from one vhost-user-net port to another.
    Vhost,
    /// Costs of idle queue pairs.
    Idle,
    /// Registration of memory.
    Registration,
    /// Memory of an idle daemon.
    Footprint,
    /// Memory of a daemon one of whose guests takes what it can get.
    Hoard,
    /// Costs of a hostile guest for its neighbours.
    Neighbours,
    /// Latency, rate, commands and memory of a VF that is passed through, beside the same VF used directly.
    Passthrough,
    /// The subnet manager on 648 and 5832 nodes.
    Sm,
    /// Path queries, answered by the embedded manager and by OpenSM.
    Sa,
    /// Packets and time to migrate a VM's addresses.
    Migration,
    /// Time to change forwarding tables for a VM that moves, in memory.
    Reconfiguration,
    /// The published study of migrations on 1024 hypervisors.
    Study,
    /// Routing engines on subnets of up to 11 664 nodes.
    Routing,
    /// The same beside OpenSM's.
    RoutingOpensm,
}

impl Suite {
    /// Runs it, and tells of each result when it is known.
    ///
    /// # Errors
    /// [`crate::BenchError`].
    pub fn run(self, context: &Context, tell: Tell<'_>) -> Result<()> {
        let results = match self {
            Self::Latency => latency::run(context)?,
            Self::Rate => rate::run(context)?,
            Self::Engines => engines::run(context)?,
            Self::Bandwidth => bandwidth::run(context)?,
            Self::Vhost => vhost::run(context)?,
            Self::Idle => idle::run(context)?,
            Self::Registration => registration::run(context)?,
            Self::Footprint => footprint::run(context)?,
            Self::Hoard => exhaustion::run(context)?,
            Self::Neighbours => return neighbours::run(context, tell),
            Self::Passthrough => return passthrough::run(context, tell),
            Self::Sm => sm::run(context)?,
            Self::Sa => sa::run(context)?,
            Self::Migration => migration::run(context)?,
            Self::Reconfiguration => reconfiguration::run(context)?,
            Self::Study => study::run(context)?,
            Self::Routing => return routing::run(context, tell),
            Self::RoutingOpensm => return routing::run_beside_opensm(context, tell),
        };
        results.into_iter().try_for_each(tell)
    }
}
