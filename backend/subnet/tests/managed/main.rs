//! A subnet manager and a fabric, driven in step.

mod capture;
mod harness;
mod liars;
mod migration;
mod sweep;
