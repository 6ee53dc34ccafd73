//! Management packets of guests, ports, and the administration of subnets.

mod datagrams;
mod port;
mod proxy;
mod registrations;
mod subnets;
