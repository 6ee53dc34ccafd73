//! The subnet: packets in, packets out.

mod common;

mod agents;
mod arbitration;
mod exchange;
mod hostile;
mod m_key;
mod netlist;
mod paths;
mod queues;
mod rules;
mod snapshots;
mod stall;
mod traps;
mod view_fabric;
