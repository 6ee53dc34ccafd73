//! A port behind its socket: messages, rings and frames, against the front end of the `vhost` crate, the
//! rings of `virtio-queue` and the packets of `etherparse`.

mod claims;
mod dhcp;
mod exchange;
mod harness;
mod malformed;
mod messages;
mod offload;
mod rings;
mod trains;
mod walk;
