//! Guests with the kernel of cloud images, which has no IP over InfiniBand, at vhost-user-net ports, and one with
//! an HCA and IPoIB: all reach each other by the stock drivers of Linux, through restarts of everything.

use std::time::Duration;

use ibvswitch_guest_tests::capture::Capture;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::{Config, Guest, Job};
use ibvswitch_guest_tests::image::{Image, Kernel};
use ibvswitch_guest_tests::testbed::{MLX5, Testbed};
use ibvswitch_guest_tests::tools::diags::{expect, no_kernel_warning};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::{Result, moves, progress};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(180);

/// `cloud2` has a second card, in a partition that nobody else is in.
fn configuration() -> Configuration {
    Configuration::new()
        .set("partitions.apart", 0x0003)
        .hypervisor("hv1", ["vm1"])
        .of_hypervisor("spare_ports", 1)
        .entry("hypervisor.port", "net2")
        .key("kind", "vhost-user-net")
        .key("mac", "52:54:00:12:34:57")
        .entry("hypervisor.port", "net3")
        .key("kind", "vhost-user-net")
        .key("mac", "52:54:00:12:34:58")
        .key("pkey", "apart")
        .hypervisor("hv2", [])
        .entry("hypervisor.port", "net1")
        .key("kind", "vhost-user-net")
        .key("mac", "52:54:00:12:34:56")
}

const WITH_HCA: &str = "10.9.0.1";
const CLOUD1: &str = "10.9.0.2";
const CLOUD2: &str = "10.9.0.3";

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

/// A server sends a datagram back, of several IP fragments, which is compared with what was sent. A few may be lost.
fn echo(server: &Guest, address: &str, client: &Guest) -> Result<()> {
    let _serving = server.spawn("socat -b 9000 UDP4-RECVFROM:5002,fork PIPE")?;
    server.sh(
        "until grep -q :138A /proc/net/udp; do usleep 50000; done",
        LIMIT,
    )?;
    let call = format!(
        "head -c 8000 /dev/urandom >/tmp/sent; for turn in 1 2 3 4 5; do \
         socat -b 9000 -t 2 - UDP4:{address}:5002 </tmp/sent >/tmp/back; \
         cmp /tmp/sent /tmp/back && exit 0; done; exit 1"
    );
    client.sh(&call, LIMIT).map(drop)
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

/// A guest with the kernel of cloud images and cards at these ports.
fn cloud(bed: &Testbed, daemon: &Daemon, name: &str, ports: &[&str]) -> Result<Config> {
    let mut config = bed.config(name);
    config.image = Image::get(Kernel::Cloud)?;
    config.modules = vec!["virtio_net".to_owned()];
    for port in ports {
        config.qemu_arguments.extend(daemon.card(port)?);
    }
    Ok(config)
}

/// Gives a card an address and waits for its carrier.
fn up(guest: &Guest, address: &str) -> Result<()> {
    let up = format!("ip address add {address}/24 dev eth0 && ip link set eth0 up");
    guest.sh(&up, LIMIT)?;
    ipoib::await_carrier(guest, "eth0", LIMIT)
}

/// Waits until an address answers: the first packets are lost where a group is not joined yet.
fn reach(guest: &Guest, address: &str) -> Result<()> {
    let command = format!("until ping -c 1 -W 1 {address}; do :; done");
    guest.sh(&command, LIMIT).map(drop)
}

/// Both ping each other.
fn ping_both(pair: [(&Guest, &str); 2]) -> Result<()> {
    let [one, other] = pair;
    for (from, to) in [(one.0, other.1), (other.0, one.1)] {
        reach(from, to)?;
        ipoib::ping(from, to, "", LIMIT)?;
        // The longest packet that there is.
        ipoib::ping(from, to, "-s 2016", LIMIT)?;
    }
    Ok(())
}

/// Datagrams to a group over UDP reach the listeners, which the subnet administration knows.
fn multicast(from: (&Guest, &str), to: (&Guest, &str), asks: &Guest) -> Result<()> {
    for (listen, send, mgid) in [
        (
            "UDP4-RECV:5353,ip-add-membership=239.1.2.3:",
            "UDP4-DATAGRAM:239.1.2.3:5353,ip-multicast-if=",
            "ff12:401b:ffff::f01:203",
        ),
        (
            "UDP6-RECV:5353,ipv6-join-group=[ff15::abcd]:",
            "UDP6-SENDTO:[ff15::abcd]:5353",
            "ff12:601b:ffff::abcd",
        ),
    ] {
        let listen = format!("socat -u {listen}{} -", to.1);
        let send = if send.ends_with('=') {
            let show = format!("ip -4 -o address show dev {}", from.1);
            format!("{send}$({show} | awk '{{print $4}}' | cut -d/ -f1)")
        } else {
            send.to_owned()
        };
        let mut listening = to.0.spawn(&listen)?;
        let sending =
            format!("while :; do echo for all | socat -u - {send} || exit; usleep 100000; done");
        let _sending = from.0.spawn(&sending)?;
        listening.await_text("for all", LIMIT)?;
        let groups = asks.sh("saquery -g", LIMIT)?;
        expect(&groups, &[mgid])?;
    }
    Ok(())
}

/// Script that busybox' DHCP client runs when it has a lease.
const LEASE: &str = "cat >/tmp/lease <<'END'\n#!/bin/sh\n[ \"$1\" = bound ] && ip address add $ip/24 dev $interface\nexit 0\nEND\n\
                     chmod +x /tmp/lease";

/// A guest with Ethernet asks a server for an address, and has it.
fn lease(client: &Guest, options: &str) -> Result<String> {
    client.sh(LEASE, LIMIT)?;
    client.sh("ip -4 address flush dev eth0", LIMIT)?;
    client.sh(
        &format!("udhcpc -i eth0 -n -q -t 20 -T 2 -s /tmp/lease {options} 2>&1"),
        LIMIT,
    )?;
    client.sh("ip -4 -o address show dev eth0", LIMIT)
}

#[test]
fn guests_with_and_without_a_driver_reach_each_other() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let mut daemon = bed.daemon("daemon", Some(&configuration()))?;
    let mut with_hca = bed.config("vm1");
    with_hca.modules = MLX5.map(str::to_owned).to_vec();
    with_hca.devices.push(daemon.device("vm1", None)?);
    let hca = bed.start(with_hca)?;
    let one = bed.start(cloud(&bed, &daemon, "cloud1", &["net1"])?)?;
    let two = bed.start(cloud(&bed, &daemon, "cloud2", &["net2", "net3"])?)?;
    for guest in [&hca, &one, &two] {
        guest.booted()?;
        progress::step(format_args!("{}: up", guest.name()));
    }
    ipoib::up(&hca, "ib0", WITH_HCA, LIMIT)?;
    up(&one, CLOUD1)?;
    up(&two, CLOUD2)?;

    let mut checks = Checks::default();
    checks.check("the card, and no driver of IPoIB", || {
        let text = one.sh(
            "ip link show dev eth0; uname -r; ! modprobe ib_ipoib 2>&1",
            LIMIT,
        )?;
        expect(&text, &["52:54:00:12:34:56", "mtu 2044", "cloud"])
    });
    checks.check("ping between Ethernet and IPoIB", || {
        ping_both([(&one, CLOUD1), (&hca, WITH_HCA)])
    });
    checks.check("ping from Ethernet to Ethernet", || {
        ping_both([(&one, CLOUD1), (&two, CLOUD2)])
    });
    checks.check("ping6 both ways", || {
        let [there, here] = [link_local(&hca, "ib0")?, link_local(&one, "eth0")?];
        for (from, interface, to) in [(&one, "eth0", there), (&hca, "ib0", here)] {
            reach(from, &format!("-6 {to}%{interface}"))?;
            ipoib::ping(from, &format!("{to}%{interface}"), "-6", LIMIT)?;
        }
        Ok(())
    });
    checks.check("TCP both ways", || {
        transfer(&hca, WITH_HCA, &one, 4)?;
        transfer(&one, CLOUD1, &hca, 4)
    });
    checks.check("TCP from Ethernet to Ethernet", || {
        transfer(&two, CLOUD2, &one, 16)
    });
    checks.check("UDP both ways, in fragments", || {
        echo(&hca, WITH_HCA, &one)?;
        echo(&one, CLOUD1, &hca)?;
        echo(&two, CLOUD2, &one)
    });
    checks.check("a capture at the port", || {
        let file = bed.dir().join("port.pcap");
        let capture = Capture::start(&daemon, &["--vf", "net1", "--data"], file)?;
        ipoib::ping(&one, WITH_HCA, "", LIMIT)?;
        let packets = capture.end()?;
        for (filter, count) in [("icmp.type == 8", 5), ("icmp.type == 0", 5)] {
            let found = packets.fields(filter, ["infiniband.deth.srcqp", "ip.src"])?;
            if found.len() < count {
                return Err(one.failed(format!("{filter}: {found:?}")));
            }
        }
        Ok(())
    });
    checks.check("multicast between Ethernet and IPoIB", || {
        multicast((&one, "eth0"), (&hca, "ib0"), &hca)?;
        multicast((&hca, "ib0"), (&one, "eth0"), &hca)
    });
    checks.check("multicast from Ethernet to Ethernet", || {
        multicast((&one, "eth0"), (&two, "eth0"), &hca)
    });
    checks.check("another partition hears nothing", || {
        let received = || two.sh("cat /sys/class/net/eth1/statistics/rx_packets", LIMIT);
        two.sh("ip link set eth1 up", LIMIT)?;
        ipoib::await_carrier(&two, "eth1", LIMIT)?;
        let before = received()?;
        one.run(
            "ping -c 3 -i 0.2 -W 1 10.9.0.255; ping -c 2 -i 0.2 -W 1 10.9.0.77",
            LIMIT,
        )?;
        let after = received()?;
        if before == after {
            return Ok(());
        }
        Err(two.failed(format!("received {before} packets, then {after}")))
    });
    checks.check("DHCP: a server with IPoIB", || {
        let serve = "dnsmasq -d -u root -g root -p 0 -i ib0 -z -l /tmp/leases --log-dhcp \
                     -F 10.9.0.100,10.9.0.120,10m 2>&1";
        let mut serving = hca.spawn(serve)?;
        serving.await_text("DHCP, sockets bound", LIMIT)?;
        for (guest, options) in [(&one, ""), (&two, "-C")] {
            expect(&lease(guest, options)?, &["10.9.0.1"])?;
            ipoib::ping(guest, WITH_HCA, "", LIMIT)?;
        }
        Ok(())
    });
    checks.check("DHCP: a server with Ethernet", || {
        one.sh(&format!("ip -4 address flush dev eth0; ip address add {CLOUD1}/24 dev eth0"), LIMIT)?;
        let configure = "mkdir -p /var/lib/misc; : >/tmp/leases; \
                         printf 'start 10.9.0.200\nend 10.9.0.220\ninterface eth0\nlease_file /tmp/leases\n\
                         option subnet 255.255.255.0\n' >/tmp/udhcpd.conf";
        one.sh(configure, LIMIT)?;
        let mut serving = one.spawn("udhcpd -f -S /tmp/udhcpd.conf 2>&1")?;
        serving.await_text("started", LIMIT)?;
        expect(&lease(&two, "")?, &["10.9.0.2"])?;
        ipoib::ping(&two, CLOUD1, "", LIMIT)?;
        // Debian's dhcpcd 10.1 cannot filter what it receives over IPoIB, and busybox knows Ethernet. So this is a
        // message as RFC 4390 has it, and the answer has to be such: type 32, no address, the same number.
        let ask = "{ printf '\\001\\040\\000\\000\\001\\002\\003\\004\\000\\000\\200\\000'; \
                   head -c 224 /dev/zero; \
                   printf '\\143\\202\\123\\143\\065\\001\\001\\075\\005\\377\\001\\002\\003\\004\\377'; \
                   } >/tmp/discover; until socat -t 3 - \
                   UDP4-DATAGRAM:255.255.255.255:67,broadcast,bind=:68,so-bindtodevice=ib0 \
                   </tmp/discover | od -An -v -tx1 | head -n 2 | tee /tmp/offer | grep 02; do :; done; \
                   cat /tmp/offer";
        let text = hca.sh(ask, LIMIT)?;
        expect(&text, &["02 20 00 00 01 02 03 04", "0a 09 00"])
    });
    for (guest, interface, address) in [
        (&hca, "ib0", WITH_HCA),
        (&one, "eth0", CLOUD1),
        (&two, "eth0", CLOUD2),
    ] {
        let set = format!(
            "ip -4 address flush dev {interface}; ip address add {address}/24 dev {interface}"
        );
        guest.sh(&set, LIMIT)?;
    }
    checks.check("a link that is down is a carrier that is off", || {
        daemon.ask(&["link", "down", "net1:1"])?;
        let off = "until grep -q 0 /sys/class/net/eth0/carrier; do usleep 50000; done";
        one.sh(off, LIMIT)?;
        daemon.ask(&["link", "up", "net1:1"])?;
        ipoib::await_carrier(&one, "eth0", LIMIT)?;
        reach(&one, WITH_HCA)
    });
    checks.check("a guest reboots", || {
        one.reboot()?;
        up(&one, CLOUD1)?;
        ping_both([(&one, CLOUD1), (&hca, WITH_HCA)])
    });
    checks.check("no kernel warning", || {
        no_kernel_warning(&hca, &[])?;
        no_kernel_warning(&two, &[])
    });
    // It would lose its HCA with the daemon.
    drop(hca);
    let listening = "socat -u UDP4-RECV:5354,ip-add-membership=239.1.2.4:eth0 -";
    let mut listening = two.spawn(listening)?;
    checks.check("the daemon is killed, and another one started", || {
        daemon.kill();
        for guest in [&one, &two] {
            let off = "until grep -q 0 /sys/class/net/eth0/carrier; do usleep 50000; done";
            guest.sh(off, LIMIT)?;
        }
        daemon = bed.daemon("daemon", Some(&configuration()))?;
        for guest in [&one, &two] {
            ipoib::await_carrier(guest, "eth0", LIMIT)?;
        }
        ping_both([(&one, CLOUD1), (&two, CLOUD2)])?;
        transfer(&two, CLOUD2, &one, 4)?;
        let send = format!("UDP4-DATAGRAM:239.1.2.4:5354,ip-multicast-if={CLOUD1}");
        let send =
            format!("while :; do echo again | socat -u - {send} || exit; usleep 100000; done");
        let _sending = one.spawn(&send)?;
        // The port has asked for groups that the guest has listened to since before.
        listening.await_text("again", LIMIT)
    });
    drop(listening);
    checks.check("a QEMU is killed, and another one started", || {
        one.kill();
        let one = bed.restart(one)?;
        up(&one, CLOUD1)?;
        ping_both([(&one, CLOUD1), (&two, CLOUD2)])?;
        no_kernel_warning(&one, &[])?;
        no_kernel_warning(&two, &[])
    });
    checks.finish();
    Ok(())
}

/// A transfer that goes on while its receiver moves from QEMU to QEMU.
struct Transfer<'a> {
    peer: &'a Guest,
    send: String,
    sending: Job<'a>,
}

impl<'a> Transfer<'a> {
    /// Begins one to `vm`, and waits until it is under way.
    fn begin(vm: &Guest, peer: &'a Guest) -> Result<Self> {
        // Commands that run here end with this QEMU's channels, so this one is left alone.
        let receive = "rm -f /tmp/open /tmp/sum; mkfifo /tmp/open; { sleep 1000 >/tmp/open & \
                       nc -l -p 5000 </tmp/open | md5sum >/tmp/sum; kill $!; } >/dev/null 2>&1 & \
                       until grep -q :1388.*:0000.0A /proc/net/tcp*; do usleep 50000; done; \
                       cat /sys/class/net/eth0/statistics/rx_bytes";
        let before = vm.sh(receive, LIMIT)?;
        // It goes on for as long as /tmp/more is there, however fast this machine is.
        let send = format!(
            "head -c 8388608 /dev/urandom >/tmp/data; : >/tmp/more; rm -f /tmp/copy; mkfifo /tmp/copy; \
             md5sum </tmp/copy >/tmp/sent & echo begins; \
             while [ -e /tmp/more ]; do cat /tmp/data; done | tee /tmp/copy | nc {CLOUD1} 5000; \
             wait; cat /tmp/sent"
        );
        let mut sending = peer.spawn(&send)?;
        sending.await_text("begins", LIMIT)?;
        arrives(vm, before.trim())?;
        Ok(Self {
            peer,
            send,
            sending,
        })
    }

    /// Checks that it goes on: more bytes arrive.
    fn goes_on(&self, vm: &Guest) -> Result<()> {
        let before = vm.sh("cat /sys/class/net/eth0/statistics/rx_bytes", LIMIT)?;
        arrives(vm, before.trim())
    }

    /// Ends it: all has come, as it was sent.
    fn end(self, vm: &Guest) -> Result<()> {
        self.peer.sh("rm /tmp/more", LIMIT)?;
        let sent = self.sending.wait(LIMIT)?;
        let sent = self.peer.succeeded(&self.send, sent)?;
        let sent = sent.lines().last().unwrap_or_default();
        let sum = vm.sh(
            "until [ -s /tmp/sum ]; do usleep 50000; done; cat /tmp/sum",
            LIMIT,
        )?;
        if sum.trim() != sent.trim() || sum.trim().len() < 32 {
            return Err(vm.failed(format!("sent {sent}, received {sum}")));
        }
        Ok(())
    }
}

/// Waits until a guest has received 2 MB more than `before`.
fn arrives(vm: &Guest, before: &str) -> Result<()> {
    let more = format!(
        "until [ $(cat /sys/class/net/eth0/statistics/rx_bytes) -gt $(({before} + 2000000)) ]; \
         do usleep 50000; done"
    );
    vm.sh(&more, LIMIT).map(drop)
}

/// A guest moves in the middle of a transfer to another hypervisor and back, with its addresses: when QEMU has
/// migrated it, and by the command that does both.
#[test]
fn a_guest_without_a_driver_migrates_live() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("daemon", Some(&configuration()))?;
    let mut config = cloud(&bed, &daemon, "cloud1", &["net1"])?;
    config.memory = 512;
    let vm = bed.start(config)?;
    let peer = bed.start(cloud(&bed, &daemon, "cloud2", &["net2"])?)?;
    for guest in [&vm, &peer] {
        guest.booted()?;
    }
    up(&vm, CLOUD1)?;
    up(&peer, CLOUD2)?;
    ping_both([(&vm, CLOUD1), (&peer, CLOUD2)])?;

    let transfer = Transfer::begin(&vm, &peer)?;
    let mut config = vm.config.clone();
    config.qemu_arguments = daemon.migratable("hv1-spare-port1", false)?;
    let dir = bed.dir().join("there");
    config.incoming = Some(dir.join("migration"));
    let there = Guest::start(&bed.qemu, config, &dir)?;
    vm.live_migrate(&there)?;
    drop(vm);
    let migrated = daemon.ask(&["vf", "migrate", "net1", "--to", "hv1"])?;
    progress::step(migrated.trim());
    transfer.goes_on(&there)?;
    transfer.end(&there)?;
    ping_both([(&there, CLOUD1), (&peer, CLOUD2)])?;

    let receiver = |name: &str| {
        let mut config = there.config.clone();
        config.incoming = None;
        bed.live_receiver(config, name, daemon.migratable("net1", true)?)
    };
    let transfer = Transfer::begin(&there, &peer)?;
    let unused = receiver("unused")?;
    let mut command = moves::begin(&daemon, &there, &["net1"], "hv2")?;
    // Neither fails but for a process that is already gone.
    let _ = (command.kill(), command.wait());
    moves::await_migration(&there, &["cancelled", "failed"])?;
    drop(unused);
    transfer.goes_on(&there)?;
    let back = receiver("back")?;
    let report = moves::migrate(&daemon, &["net1"], "hv2")?;
    expect(&report.to_string(), &[r#""vf":"net1""#])?;
    drop(there);
    transfer.goes_on(&back)?;
    transfer.end(&back)?;
    ping_both([(&back, CLOUD1), (&peer, CLOUD2)])?;
    no_kernel_warning(&back, &[])?;
    no_kernel_warning(&peer, &[])
}

/// Mebibytes of a measurement, and pings of one.
const MEBIBYTES: u32 = 32;
const PINGS: u32 = 2000;
/// Number of measurements of each, by turns.
const TURNS: usize = 3;

/// QEMU's arguments for a card of a stream between two QEMUs, which one of them begins. The address ends so.
fn stream(bed: &Testbed, name: &str, begins: bool, mac: u8) -> Vec<String> {
    let path = bed.dir().join(format!("{name}.sock"));
    let end = if begins {
        "server=on".to_owned()
    } else {
        "server=off,reconnect-ms=200".to_owned()
    };
    let path = path.display();
    vec![
        "-netdev".into(),
        format!("stream,id={name},{end},addr.type=unix,addr.path={path}"),
        "-device".into(),
        format!("virtio-net-pci,netdev={name},mac=52:54:00:00:00:{mac:02x},host_mtu=2044"),
    ]
}

/// The seconds between two times of `/proc/uptime`, which a command has printed.
fn seconds(guest: &Guest, text: &str) -> Result<f64> {
    let times: Vec<f64> = { text.lines() }
        .filter_map(|line| {
            line.strip_prefix("uptime ")?
                .split(' ')
                .next()?
                .parse()
                .ok()
        })
        .collect();
    match times[..] {
        [begun, ended] => Ok(ended - begun),
        _ => Err(guest.failed(format!("no two times: {text}"))),
    }
}

const UPTIME: &str = "echo uptime $(cat /proc/uptime)";

/// Megabytes per second of TCP from the first byte that arrives to the last one.
fn tcp_rate((server, address): (&Guest, &str), client: &Guest) -> Result<f64> {
    let serve = format!(
        "socat -u TCP4-LISTEN:5002,reuseaddr - | {{ head -c 1 >/dev/null; {UPTIME}; cat >/dev/null; {UPTIME}; }}"
    );
    let mut serving = server.spawn(&serve)?;
    serving.await_port("5002", LIMIT)?;
    let send = format!(
        "head -c {} /dev/zero | socat -u - TCP4:{address}:5002",
        MEBIBYTES << 20
    );
    let [served, _] = serving.with_client(client, &send, LIMIT)?;
    Ok(f64::from(MEBIBYTES << 20) / 1e6 / seconds(server, &served)?)
}

/// Round trips per second, each when the one before is complete.
fn round_trips(address: &str, client: &Guest) -> Result<f64> {
    let ping = format!("{UPTIME}; ping -q -A -c {PINGS} {address}; {UPTIME}");
    let text = client.sh(&ping, LIMIT)?;
    Ok(f64::from(PINGS) / seconds(client, &text)?)
}

/// TCP and round trips by the fabric and by a stream between the QEMUs, by turns: the medians of both, and what the
/// first has of the second.
fn compare(name: &str, server: &Guest, [fabric, stream]: [&str; 2], client: &Guest) -> Result<()> {
    let mut measured = [(); 4].map(|()| Vec::new());
    for address in [fabric, stream] {
        reach(client, address)?;
    }
    for _ in 0..TURNS {
        measured[0].push(tcp_rate((server, fabric), client)?);
        measured[1].push(tcp_rate((server, stream), client)?);
        measured[2].push(round_trips(fabric, client)?);
        measured[3].push(round_trips(stream, client)?);
    }
    let [tcp, tcp_stream, trips, trips_stream] = measured.map(|mut values| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    });
    println!(
        "{name}: TCP {tcp:.1} MB/s, by a stream {tcp_stream:.1}: vhost_tcp_over_stream {:.2}",
        tcp / tcp_stream
    );
    println!(
        "{name}: {trips:.0} round trips/s, by a stream {trips_stream:.0}: vhost_rr_over_stream {:.2}",
        trips / trips_stream
    );
    Ok(())
}

/// Prints how fast guests are over the fabric beside `-netdev stream` between the same guests.
#[test]
#[ignore = "prints figures, which mean something on a machine at rest alone"]
fn speed_beside_a_stream() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("daemon", Some(&configuration()))?;
    let mut one = cloud(&bed, &daemon, "cloud1", &["net1"])?;
    one.qemu_arguments.extend(stream(&bed, "cards", true, 0x11));
    one.qemu_arguments.extend(stream(&bed, "hca", true, 0x12));
    let mut two = cloud(&bed, &daemon, "cloud2", &["net2"])?;
    two.qemu_arguments
        .extend(stream(&bed, "cards", false, 0x13));
    let mut with_hca = bed.config("vm1");
    with_hca.modules = MLX5.map(str::to_owned).to_vec();
    with_hca.modules.push("virtio_net".to_owned());
    with_hca.devices.push(daemon.device("vm1", None)?);
    with_hca
        .qemu_arguments
        .extend(stream(&bed, "hca", false, 0x14));
    let [one, two, hca] = [bed.start(one)?, bed.start(two)?, bed.start(with_hca)?];
    for guest in [&one, &two, &hca] {
        guest.booted()?;
    }
    ipoib::up(&hca, "ib0", WITH_HCA, LIMIT)?;
    for (guest, mac, address) in [
        (&one, "52:54:00:12:34:56", CLOUD1),
        (&two, "52:54:00:12:34:57", CLOUD2),
        (&one, "52:54:00:00:00:11", "10.8.0.2"),
        (&two, "52:54:00:00:00:13", "10.8.0.3"),
        (&one, "52:54:00:00:00:12", "10.7.0.2"),
        (&hca, "52:54:00:00:00:14", "10.7.0.1"),
    ] {
        // Names of interfaces do not follow the order of QEMU's arguments.
        let set = format!(
            "cd /sys/class/net && it=$(grep -l {mac} */address | cut -d/ -f1) && \
             ip address add {address}/24 dev $it && ip link set $it up"
        );
        guest.sh(&set, LIMIT)?;
    }
    compare("Ethernet to Ethernet", &one, [CLOUD1, "10.8.0.2"], &two)?;
    compare("Ethernet to IPoIB", &hca, [WITH_HCA, "10.7.0.1"], &one)
}
