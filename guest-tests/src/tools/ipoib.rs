//! IPoIB interfaces of guests, and the tools of librdmacm over them.

use std::time::Duration;

use crate::error::Result;
use crate::guest::Guest;
use crate::tools::diags::expect;

/// Gives `interface` (`ib0`), once the guest has it, an address of 24 bits' prefix and waits for
/// its carrier: until then the subnet's broadcast group has not been joined. Interfaces of one network answer for their own
/// addresses alone, so that a peer connects to the HCA that a server listens at.
pub fn up(guest: &Guest, interface: &str, address: &str, limit: Duration) -> Result<()> {
    let command = format!(
        "cd /proc/sys/net/ipv4/conf/all && echo 1 >arp_ignore && echo 2 >arp_announce && modprobe ib_ipoib && \
         until [ -e /sys/class/net/{interface} ]; do usleep 50000; done && \
         ip address add {address}/24 dev {interface} && ip link set {interface} up"
    );
    guest.sh(&command, limit)?;
    await_carrier(guest, interface, limit)
}

/// Waits until `interface` has joined the broadcast group.
pub fn await_carrier(guest: &Guest, interface: &str, limit: Duration) -> Result<()> {
    let carrier = format!("/sys/class/net/{interface}/carrier");
    let command = format!("until grep -q 1 {carrier} 2>/dev/null; do usleep 50000; done");
    guest.sh(&command, limit).map(drop)
}

/// Has `interface` speak in `mode` (`datagram` or `connected`), with this MTU.
pub fn mode(guest: &Guest, interface: &str, mode: &str, mtu: u32, limit: Duration) -> Result<()> {
    let command = format!("echo {mode} >/sys/class/net/{interface}/mode");
    guest.sh(&command, limit)?;
    self::mtu(guest, interface, mtu, limit)
}

/// Gives `interface` this MTU.
pub fn mtu(guest: &Guest, interface: &str, mtu: u32, limit: Duration) -> Result<()> {
    guest.sh(&format!("ip link set {interface} mtu {mtu}"), limit)?;
    await_carrier(guest, interface, limit)
}

/// Five pings to `address`, none of which may be lost.
pub fn ping(from: &Guest, address: &str, options: &str, limit: Duration) -> Result<()> {
    let text = from.sh(&format!("ping {options} -i 0.2 -c 5 {address}"), limit)?;
    expect(&text, &["5 packets transmitted, 5 packets received"])
}

/// Runs a server, and its client when the server has printed `ready`. Both have to end well; gives
/// what they printed.
pub fn exchange(
    (server, serve, ready): (&Guest, &str, &str),
    (client, call): (&Guest, &str),
    limit: Duration,
) -> Result<[String; 2]> {
    let mut serving = server.spawn(serve)?;
    serving.await_text(ready, limit)?;
    serving.with_client(client, call, limit)
}

/// Runs a server of the connection manager, and its client when the server listens. Both have to end
/// well; gives what they printed.
pub fn connect(
    (server, serve): (&Guest, &str),
    (client, call): (&Guest, &str),
    limit: Duration,
) -> Result<[String; 2]> {
    // What the programs print comes before they listen, if anything does. The kernel knows when: it
    // lists listeners at IP addresses, and who listens at a GID then waits for an event.
    let serve = format!(
        "{serve} & p=$!; \
         until rdma resource show cm_id | grep -q 'state LISTEN.*pid '$p' ' || \
         grep -q ucma_get_event /proc/$p/wchan; do \
         kill -0 $p || exit 1; usleep 50000; done; echo listens; wait $p"
    );
    let mut serving = server.spawn(&serve)?;
    serving.await_text("listens", limit)?;
    serving.with_client(client, call, limit)
}

/// `rping` to the server's IPoIB `address`, which compares what comes back.
pub fn rping(server: &Guest, client: &Guest, address: &str, limit: Duration) -> Result<()> {
    let serve = format!("rping -s -a {address} -C 10 -v");
    let call = format!("rping -c -a {address} -C 10 -v -V");
    let [_, called] = connect((server, &serve), (client, &call), limit)?;
    expect(&called, &["ping data: rdma-ping-9"])
}

/// `ucmatose` to the server's IPoIB `address`: connects, sends 20 messages each way, disconnects.
pub fn ucmatose(server: &Guest, client: &Guest, address: &str, limit: Duration) -> Result<()> {
    let call = format!("ucmatose -C 20 -s {address}");
    for text in connect((server, "ucmatose -C 20"), (client, &call), limit)? {
        expect(&text, &["test complete", "return status 0"])?;
    }
    Ok(())
}
