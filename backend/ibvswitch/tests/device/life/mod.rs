//! Daemons, their clients and the VFs that come and go.

mod changes;
mod clients;
mod keeper;
mod moves;
mod resets;
mod upgrade;
