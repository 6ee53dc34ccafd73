//! VFs that are passed through to those of another daemon.

mod cluster;
mod data;
mod datagrams;
mod exits;
mod firmware;
mod isolation;
mod management;
mod partitions;
mod restart;
