//! Processes that die, are handed over or move, with guests that go on.

mod faults;
mod keeper;
mod migration;
mod service;
