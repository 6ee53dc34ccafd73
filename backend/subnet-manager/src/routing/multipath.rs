//! Several LIDs for each destination: paths of pairs of ports, and the LIDs by which tables lead along them.
//!
//! A linear forwarding table sends each LID out of one port, so two paths to the same destination
//! that part at some node need different LIDs there; paths that never part may share one. Routing
//! is thus two problems: computing paths ([`paths`]) and giving them LIDs (the rest).
//!
//! The model, the heuristics and the exact formulation are those of "LID Assignment in InfiniBand
//! Networks" (Nienaber, Yuan, Duan); sections and figures below are of that paper. Destinations are
//! independent of each other. A [`Plan`] has the paths to all destinations, and writes the tables.
//!
//! ```
//! use ibvswitch_subnet_manager::routing::multipath::{Heuristic, Network, SplitGraph};
//! let mut network = Network::default();
//! let machines = [network.add_machine(), network.add_machine(), network.add_machine()];
//! let switches = [network.add_switch(), network.add_switch()];
//! for (machine, switch) in [(0, 0), (1, 0), (2, 1)] {
//!     network.cable(machines[machine], switches[switch]);
//! }
//! network.cable(switches[0], switches[1]);
//! network.cable(switches[0], switches[1]);
//! let path = |from, parallel| network.path(&[from, switches[0], switches[1], machines[2]], &[0, parallel, 0]);
//! let paths = [path(machines[0], 0).unwrap(), path(machines[1], 1).unwrap()];
//! let assignment = Heuristic::ColorLargest.assign(&network, &paths);
//! assert_eq!(assignment.configurations(), 2, "the paths part at the first switch");
//! ```

mod assignment;
mod choice;
mod coloring;
mod conflict;
mod equivalent_paths;
mod exact;
mod heuristic;
mod labels;
mod network;
pub mod paths;
mod plan;
mod tree;
mod wires;

pub use assignment::Assignment;
pub use choice::{LidChoice, Multipath, PathChoice};
pub use coloring::{Undecided, color};
pub use conflict::{SplitGraph, Violation};
pub use equivalent_paths::EquivalentPaths;
pub use exact::{charged, descend, fewest};
pub use heuristic::{Elsewhere, Heuristic};
pub use network::{Kind, Link, LinkId, Network, NodeIndex, Path, PathError};
pub use plan::{LidUsage, Plan};
