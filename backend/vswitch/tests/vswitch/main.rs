//! The vSwitch with the fabric and the subnet manager, by real packets and without a daemon.

mod images;
mod lab;
mod moves;
mod routing;
mod snapshot;
mod steps;
mod views;
