//! Packets as other people's programs read and write them.

mod libibmad;
mod tshark;
