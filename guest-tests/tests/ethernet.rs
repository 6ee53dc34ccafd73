//! A guest without an InfiniBand driver, at a vhost-user-net port, and one with an HCA and IPoIB: each
//! reaches the other by the stock drivers of Linux.

use std::time::Duration;

use ibvswitch_guest_tests::{
    Error, Result,
    checks::Checks,
    diags::{expect, no_kernel_warning},
    guest::Guest,
    image::Kernel,
    ipoib, progress,
    testbed::{MLX5, Testbed},
};

const LIMIT: Duration = Duration::from_secs(180);

const CONFIG: &str = r#"
[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"

[[hypervisor]]
name = "hv2"
[[hypervisor.port]]
name = "net1"
kind = "vhost-user-net"
mac = "52:54:00:12:34:56"
"#;

const WITH_HCA: &str = "10.9.0.1";
const WITHOUT: &str = "10.9.0.2";

/// Sends `mebibytes` over TCP and compares the sums at both ends.
fn transfer(server: &Guest, address: &str, client: &Guest, mebibytes: u32) -> Result<()> {
    // nc ends its sending half with its input, and the other end would end with that.
    let receive = "rm -f /tmp/open && mkfifo /tmp/open && { sleep 1000 >/tmp/open & } && \
                   nc -l -p 5000 </tmp/open | md5sum; kill $!";
    let mut serving = server.spawn(receive)?;
    serving.await_port("5000", LIMIT)?;
    let send = format!(
        "head -c {} /dev/urandom >/tmp/data && md5sum </tmp/data && \
         nc {address} 5000 </tmp/data && rm /tmp/data",
        mebibytes << 20,
    );
    let [received, sent] = serving.with_client(client, &send, LIMIT)?;
    if received.trim() == sent.trim() && received.trim().len() > 32 {
        return Ok(());
    }
    Err(server.failed(format!("sent {sent}, received {received}")))
}

/// The link-local address of an interface.
fn link_local(guest: &Guest, interface: &str) -> Result<String> {
    // Not before no other host has it.
    let command = format!(
        "until ip -6 address show dev {interface} scope link | grep inet6 | grep -qv tentative; \
         do usleep 50000; done; ip -6 address show dev {interface} scope link"
    );
    let text = guest.sh(&command, LIMIT)?;
    let address = text
        .split_whitespace()
        .skip_while(|word| *word != "inet6")
        .nth(1);
    let address = address.and_then(|address| address.split('/').next());
    let address = address.ok_or_else(|| guest.failed(format!("no address: {text}")))?;
    Ok(address.to_owned())
}

#[test]
fn guests_with_and_without_a_driver_reach_each_other() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("daemon", Some(CONFIG))?;
    let mut with_hca = bed.config("vm1");
    with_hca.modules = MLX5.map(str::to_owned).to_vec();
    with_hca.devices.push(daemon.device("vm1", None)?);
    let mut without = bed.config("net1");
    without.modules = vec!["virtio_net".to_owned()];
    let arguments = daemon.ask(&["vf", "qemu-args", "net1", "--device-only", "--json"])?;
    let arguments: Vec<String> = serde_json::from_str(&arguments).map_err(|_| Error::Output {
        what: "a JSON array".into(),
        text: arguments,
    })?;
    without.qemu_arguments.extend(arguments);
    let guests = [bed.start(with_hca)?, bed.start(without)?];
    for guest in &guests {
        guest.booted()?;
        progress::step(format_args!("{}: up", guest.name()));
    }
    let [hca, card] = &guests;
    ipoib::up(hca, "ib0", WITH_HCA, LIMIT)?;
    let up = format!("ip address add {WITHOUT}/24 dev eth0 && ip link set eth0 up");
    card.sh(&up, LIMIT)?;
    ipoib::await_carrier(card, "eth0", LIMIT)?;

    let mut checks = Checks::default();
    checks.check("the card", || {
        let text = card.sh("ip link show dev eth0", LIMIT)?;
        expect(&text, &["52:54:00:12:34:56", "mtu 2044"])
    });
    checks.check("ping from Ethernet to IPoIB", || {
        // The first is lost where the group is not joined yet.
        card.sh(
            &format!("until ping -c 1 -W 1 {WITH_HCA}; do :; done"),
            LIMIT,
        )?;
        ipoib::ping(card, WITH_HCA, "", LIMIT)?;
        ipoib::ping(card, WITH_HCA, "-s 2016", LIMIT)
    });
    checks.check("ping from IPoIB to Ethernet", || {
        hca.sh(
            &format!("until ping -c 1 -W 1 {WITHOUT}; do :; done"),
            LIMIT,
        )?;
        ipoib::ping(hca, WITHOUT, "", LIMIT)?;
        ipoib::ping(hca, WITHOUT, "-s 2016", LIMIT)
    });
    checks.check("ping6 both ways", || {
        let [there, here] = [link_local(hca, "ib0")?, link_local(card, "eth0")?];
        for (from, interface, to) in [(card, "eth0", there), (hca, "ib0", here)] {
            let first = format!("until ping -6 -c 1 -W 1 {to}%{interface}; do :; done");
            from.sh(&first, LIMIT)?;
            ipoib::ping(from, &format!("{to}%{interface}"), "-6", LIMIT)?;
        }
        Ok(())
    });
    checks.check("TCP both ways", || {
        transfer(hca, WITH_HCA, card, 4)?;
        transfer(card, WITHOUT, hca, 4)
    });
    checks.check("a link that is down is a carrier that is off", || {
        daemon.ask(&["link", "down", "net1:1"])?;
        let off = "until grep -q 0 /sys/class/net/eth0/carrier; do usleep 50000; done";
        card.sh(off, LIMIT)?;
        daemon.ask(&["link", "up", "net1:1"])?;
        ipoib::await_carrier(card, "eth0", LIMIT)?;
        card.sh(
            &format!("until ping -c 1 -W 1 {WITH_HCA}; do :; done"),
            LIMIT,
        )
        .map(drop)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
