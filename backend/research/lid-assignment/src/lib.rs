//! LID assignment: which LIDs a destination needs so that given paths can be forwarded.
//!
//! A linear forwarding table sends each LID out of one port, so two paths to the same destination
//! that part at some node need different LIDs there; paths that never part may share one. Routing
//! is thus two problems: computing paths ([`paths`]) and giving them LIDs (everything else here).
//!
//! The model, the heuristics and the exact formulation are those of "LID Assignment in InfiniBand
//! Networks" (Nienaber, Yuan, Duan); sections and figures below are of that paper. Destinations are
//! independent of each other: everything here works on the paths to one destination, in parallel
//! over destinations if the caller likes.
//!
//! ```
//! use ibvswitch_lid_assignment::{Heuristic, Network, SplitGraph};
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

#![forbid(unsafe_code)]

mod assignment;
mod coloring;
mod conflict;
mod equivalent_paths;
mod exact;
mod forwarding;
mod heuristic;
mod network;
pub mod paths;
mod range;

pub use assignment::Assignment;
pub use conflict::{SplitGraph, Violation};
pub use equivalent_paths::EquivalentPaths;
pub use exact::{ExactError, Formulation, fewest_lids, optimum};
pub use forwarding::{Destination, Forwarding, ForwardingError};
pub use heuristic::{Elsewhere, Heuristic};
pub use network::{Kind, Link, LinkId, Network, NodeIndex, Path, PathError};
pub use range::{LidRanges, RangeError, charged, lmc};
