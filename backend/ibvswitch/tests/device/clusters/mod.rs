//! Virtual clusters, and the LIDs of their VMs.

mod administration;
mod extended_lids;
mod lid_range;
mod lid_spaces;
mod shared_port;
mod view;
