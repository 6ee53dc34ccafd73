//! A subnet manager and a fabric, driven in step.

mod administration;
mod aliases;
mod balance;
mod capture;
mod cloud;
mod dynamic_lids;
mod extended;
mod failures;
mod guests;
mod harness;
mod keys;
mod liars;
mod mastery;
mod migration;
mod migration_tables;
mod multipath;
mod partitions;
mod rounds;
mod routing;
mod several_paths;
mod subnets;
mod sweep;
mod traps;
mod twins;
mod walks;
