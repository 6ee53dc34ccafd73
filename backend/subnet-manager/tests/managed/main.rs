//! A subnet manager and a fabric, driven in step.

mod administration;
mod capture;
mod cloud;
mod dumps;
mod guests;
mod harness;
mod keys;
mod liars;
mod mastery;
mod partitions;
mod subnets;
mod sweep;
mod traps;
mod twins;

mod ports {
    mod aliases;
    mod cluster_lanes;
    mod congestion;
    mod vports;
}

mod moves {
    mod dynamic_lids;
    mod extended;
    mod migration;
    mod migration_tables;
    mod rounds;
}

mod routes {
    mod balance;
    mod clusters;
    mod failures;
    mod least;
    mod multipath;
    mod pairs;
    pub mod routing;
    mod several_paths;
    mod walks;
}
