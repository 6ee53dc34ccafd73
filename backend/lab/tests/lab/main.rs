//! `ibvswitch lab` as users have it.

#[path = "../../../ibvswitch/tests/page/mod.rs"]
mod page;
mod place;

mod documentation;
mod examples;
mod left_running;
mod moves;
mod nodes;
