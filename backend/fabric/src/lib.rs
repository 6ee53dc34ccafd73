//! The subnet as a state machine: switches, links, ports and their management agents.
