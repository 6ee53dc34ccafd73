//! Topologies by their parameters: fat-trees, tori, dragonflies, irregular networks, hypervisors around a switch.
//!
//! Each generator is a value that is checked when it is made and then gives a [`fabric::Topology`]. The
//! same parameters and the same seed give the same nodes, GUIDs and cables.
//!
//! ```
//! use ibvswitch_topologies::{FatTree, Hosts};
//! let tree: FatTree = "XGFT(2;4,2;2,1)".parse().unwrap();
//! let topology = tree.topology(Hosts::Adapters);
//! assert_eq!(topology.nodes().len(), 8 + 2 + 2);
//! ```

#![forbid(unsafe_code)]

mod cables;
mod dragonfly;
mod fat_tree;
mod hosts;
mod hypervisors;
mod irregular;
mod parts;
mod torus;

pub use cables::{TooManyBroken, break_cables, trunks};
pub use dragonfly::{Dragonfly, DragonflyError};
pub use fat_tree::{FatTree, FatTreeError};
pub use hosts::Hosts;
pub use hypervisors::{Hypervisors, TooMany};
pub use irregular::{Irregular, IrregularError};
pub use torus::{Torus, TorusError};
