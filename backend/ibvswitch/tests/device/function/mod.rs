//! A function: its commands, its memory, its engine, and guests that ask too much of it.

mod bad_guest;
mod commands;
mod engines;
mod memory;
mod neighbours;
mod paging;
mod probe;
mod quota;
