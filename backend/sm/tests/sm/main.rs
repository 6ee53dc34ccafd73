//! The program on subnets of Debian's ibsim and of the daemon, beside Debian's OpenSM and infiniband-diags.

mod command_line;
mod files;
mod lanes;
mod managers;
mod place;
mod restarts;
