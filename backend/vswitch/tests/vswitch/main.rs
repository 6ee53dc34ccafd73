//! The vSwitch with the fabric and the subnet manager, by real packets and without a daemon.

// Engines with queues that are plain lists.
#[allow(dead_code)]
#[path = "../../../hca/tests/engine/lab.rs"]
mod guests;

mod bandwidth;
mod congestion;
mod full_mode;
mod images;
mod lab;
mod moves;
mod routing;
mod snapshot;
mod steps;
mod tenant;
mod views;
