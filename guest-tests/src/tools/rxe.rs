//! Soft-RoCE between guests: what a developer without hardware has today, and so what the device
//! is compared with.

use std::time::Duration;

use crate::{
    error::{Error, Result},
    guest::Guest,
};

const LIMIT: Duration = Duration::from_secs(60);

/// The name of the device that [`set_up`] makes.
pub const DEVICE: &str = "rxe0";

/// Makes a Soft-RoCE device of the guest's Ethernet interface; gives the index of the GID made
/// from its IPv4 address.
pub fn set_up(guest: &Guest) -> Result<u8> {
    // The kernel's checksum, which rdma_rxe of some kernels asks for without depending on it.
    let command = format!(
        "modprobe -q crc32_generic; modprobe rdma_rxe && modprobe ib_uverbs && \
         rdma link add {DEVICE} type rxe netdev eth0 && \
         cat /sys/class/infiniband/{DEVICE}/ports/1/gids/[0-3]"
    );
    let gids = guest.sh(&command, LIMIT)?;
    let address = guest.address();
    let index = gids
        .lines()
        .position(|gid| mapped_ipv4(gid).as_deref() == Some(address));
    index
        .and_then(|index| u8::try_from(index).ok())
        .ok_or_else(|| Error::Output {
            what: format!("GID of {address}"),
            text: gids,
        })
}

/// The IPv4 address in a GID of the form `0000:…:0000:ffff:0a00:0001`.
fn mapped_ipv4(gid: &str) -> Option<String> {
    let rest = gid.trim().strip_prefix("0000:0000:0000:0000:0000:ffff:")?;
    let (high, low) = rest.split_once(':')?;
    let high = u16::from_str_radix(high, 16).ok()?.to_be_bytes();
    let low = u16::from_str_radix(low, 16).ok()?.to_be_bytes();
    Some(format!("{}.{}.{}.{}", high[0], high[1], low[0], low[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_of_a_mapped_gid() {
        let gid = "0000:0000:0000:0000:0000:ffff:0a00:0001";
        assert_eq!(mapped_ipv4(gid).as_deref(), Some("10.0.0.1"));
        assert_eq!(mapped_ipv4("fe80:0000:0000:0000:5054:00ff:fe1b:0001"), None);
    }
}
