//! `ibacm` of rdma-core in a guest: a cache of path records that Linux' `ib_sa` asks, over netlink,
//! before it asks the subnet administration.

use std::time::Duration;

use crate::{error::Result, guest::Guest};

/// Starts it for the HCAs that are there, and waits until it answers for the IPoIB `address` of
/// this guest: by then it has joined its multicast groups.
///
/// It knows the HCAs and IPoIB addresses that it finds at its start, so that it has to be stopped
/// before an HCA goes and started anew when one comes.
pub fn start(guest: &Guest, address: &str, limit: Duration) -> Result<()> {
    // Its log goes to /var, which the guest has not.
    let command = format!(
        "mkdir -p /etc/rdma && echo log_file /tmp/ibacm.log >/etc/rdma/ibacm_opts.cfg && ibacm && \
         until ib_acme -f i -s {address} -d {address} | grep -q 'Path information'; do \
         pidof ibacm >/dev/null || exit 1; usleep 50000; done"
    );
    guest.sh(&command, limit).map(drop)
}

/// Ends it, with all that it remembers.
pub fn stop(guest: &Guest, limit: Duration) -> Result<()> {
    let command = "killall ibacm && while pidof ibacm >/dev/null; do usleep 20000; done";
    guest.sh(command, limit).map(drop)
}
