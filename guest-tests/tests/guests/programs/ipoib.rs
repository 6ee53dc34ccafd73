//! Three guests in two partitions: IPoIB, rdma_cm, multicast and the subnet administration between
//! those who share one, and nothing for the third. They are on a ring of switches, where paths need
//! service levels and every port has two LIDs.

use std::collections::BTreeSet;
use std::time::Duration;

use ibvswitch_guest_tests::capture::{Capture, Packets};
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::daemon::Daemon;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, MLX5, Testbed, passed_through};
use ibvswitch_guest_tests::tools::diags::{expect, no_kernel_warning, number};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::{Error, Result, driver, progress};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(180);

/// `vm1` and `vm2` share a partition that `vm3` is not in. All may ask the subnet administration,
/// as limited members of the default partition. They are opposite each other on a ring of six
/// switches, so that there is a way on either side for their two LIDs.
fn configuration() -> Configuration {
    Configuration::new()
        .set("sm.lmc", 1)
        .set("sm.routing", "dfsssp")
        .set("partitions.red", 0x0001)
        .set("partitions.blue", 0x0002)
        .hypervisor("hv1", [])
        .at("sw1")
        .vf("vm1")
        .key("pkeys", ["red", "default:limited"])
        .vf("vm3")
        .key("pkeys", ["blue", "default:limited"])
        .hypervisor("hv2", [])
        .at("sw4")
        .vf("vm2")
        .key("pkeys", ["red", "default:limited"])
}

const SWITCHES: usize = 6;

/// The service level of the paths between `vm1` and `vm2`: on that of others they would close a circle.
const LEVEL: u16 = 1;

/// The configuration, with the ring, and hosts at all of its switches: without paths between them none
/// could wait for another in a circle.
fn on_a_ring() -> Configuration {
    (1..=SWITCHES).fold(configuration(), |text, this| {
        let [name, next] = [this, this % SWITCHES + 1].map(|it| format!("sw{it}"));
        let text = text.switches([&name]).link(&name, &next);
        if [1, 4].contains(&this) {
            return text;
        }
        text.hypervisor(&format!("idle{this}"), [])
            .at(&name)
            .spare_vfs(1)
    })
}

/// Address of a guest's IPoIB interface.
fn address(number: usize) -> String {
    format!("10.9.0.{}", number + 1)
}

/// Sends `mebibytes` over TCP and compares the sums at both ends.
fn transfer(server: &Guest, client: &Guest, mebibytes: u32) -> Result<()> {
    // nc ends its sending half with its input, and the other end would end with that.
    let receive = "rm -f /tmp/open && mkfifo /tmp/open && { sleep 1000 >/tmp/open & } && \
                   nc -l -p 5000 </tmp/open | md5sum; kill $!";
    let mut serving = server.spawn(receive)?;
    serving.await_port("5000", LIMIT)?;
    let send = format!(
        "head -c {} /dev/urandom >/tmp/data && md5sum </tmp/data && \
         nc {} 5000 </tmp/data && rm /tmp/data",
        mebibytes << 20,
        address(0)
    );
    let [received, sent] = serving.with_client(client, &send, LIMIT)?;
    if received.trim() == sent.trim() && received.trim().len() > 32 {
        return Ok(());
    }
    Err(server.failed(format!("sent {sent}, received {received}")))
}

fn mode(guests: &[Guest], mode: &str, mtu: u32) -> Result<()> {
    for guest in guests {
        ipoib::mode(guest, "ib0", mode, mtu, LIMIT)?;
    }
    Ok(())
}

/// Returns the packets that the VF `vm1` sends and receives in `traffic`.
fn captured(
    bed: &Testbed,
    daemon: &Daemon,
    traffic: impl FnOnce() -> Result<()>,
) -> Result<Packets> {
    let file = bed.dir().join("vm1.pcap");
    let capture = Capture::start(daemon, &["--vf", "vm1", "--data"], file)?;
    traffic()?;
    capture.end()
}

/// Has `traffic` go, all of which has to be on [`LEVEL`], both ways; gives the LIDs that packets of the VF
/// `vm1` went from and to.
fn on_the_level(
    bed: &Testbed,
    daemon: &Daemon,
    traffic: impl FnOnce() -> Result<()>,
) -> Result<BTreeSet<[u16; 2]>> {
    let packets = captured(bed, daemon, traffic)?;
    let fields = [
        "infiniband.lrh.slid",
        "infiniband.lrh.dlid",
        "infiniband.lrh.sl",
    ];
    // Those of reliable connections; IPoIB's are datagrams.
    let packets = packets.numbers("infiniband.bth.opcode < 0x20", fields)?;
    let ends: BTreeSet<_> = packets.iter().map(|&[from, to, _]| [from, to]).collect();
    if packets.iter().all(|&[_, _, level]| level == LEVEL) && ends.len() == 2 {
        Ok(ends)
    } else {
        Err(Error::Output {
            what: format!("packets of both ends on service level {LEVEL} alone"),
            text: format!("{packets:?}"),
        })
    }
}

#[test]
fn three_guests() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&on_a_ring()))?;
    let mut guests = Vec::new();
    for name in ["vm1", "vm2", "vm3"] {
        let mut config = bed.config(name);
        config.devices.push(daemon.device(name, None)?);
        config.modules = MLX5.map(str::to_owned).to_vec();
        guests.push(bed.start(config)?);
    }
    for guest in &guests {
        guest.booted()?;
        await_active(guest, DEVICE)?;
        progress::step(format_args!("{}: up", guest.name()));
    }
    let [one, two, three] = &guests[..] else {
        unreachable!("three were started")
    };
    let mut checks = Checks::default();

    checks.check("IPoIB: carrier", || {
        for (number, guest) in guests.iter().enumerate() {
            ipoib::up(guest, "ib0", &address(number), LIMIT)?;
        }
        Ok(())
    });
    checks.check("IPoIB: ping", || {
        ipoib::ping(two, &address(0), "", LIMIT)?;
        ipoib::ping(one, &address(1), "-s 2000", LIMIT)
    });
    checks.check("IPoIB: the third hears nothing", || {
        let received = || three.sh("cat /sys/class/net/ib0/statistics/rx_packets", LIMIT);
        let before = received()?;
        for address in [address(2), "10.9.0.255".to_owned()] {
            let output = one.run(&format!("ping -c 3 -W 1 {address} 2>&1"), LIMIT)?;
            if address == self::address(2) && output.status == 0 {
                return Err(one.failed(output.text));
            }
        }
        let after = received()?;
        if before == after {
            return Ok(());
        }
        Err(three.failed(format!("received {before} packets, then {after}")))
    });
    checks.check("IPoIB: TCP, datagram mode", || transfer(one, two, 20));
    checks.check(
        "IPoIB: the HCA cuts segments and computes checksums",
        || {
            let requests = || -> Result<u64> {
                let text = two.sh("cat /sys/class/net/ib0/statistics/tx_packets", LIMIT)?;
                let count = text.trim().parse();
                count.map_err(|_| two.failed(format!("no number of packets: {text}")))
            };
            let before = requests()?;
            let packets = captured(&bed, &daemon, || transfer(one, two, 2))?;
            let requested = requests()? - before;
            // As tshark finds them: 1 is a right one.
            let sums = ["ip.checksum.status", "tcp.checksum.status"];
            let wrong = packets
                .numbers("tcp", sums)?
                .iter()
                .filter(|sums| **sums != [1, 1])
                .count();
            let sent = packets.numbers("tcp.len > 0", ["tcp.len"])?.len() as u64;
            let text = one.sh("grep Tcp: /proc/net/snmp", LIMIT)?;
            let refused = text.split_whitespace().next_back() != Some("0");
            // A request is of several packets, where nothing is lost; not so at a VF that is passed through.
            let cut = requested < sent || passed_through();
            if wrong == 0 && !refused && cut {
                return Ok(());
            }
            Err(two.failed(format!(
                "{sent} packets of {requested} requests, {wrong} with wrong checksums\n{text}"
            )))
        },
    );
    checks.check("rping", || ipoib::rping(one, two, &address(0), LIMIT));
    checks.check("ucmatose", || ipoib::ucmatose(one, two, &address(0), LIMIT));
    for (tool, options) in [
        ("ib_send_bw", "-n 200"),
        ("ib_write_lat", "-n 200"),
        ("ib_send_lat", "-c UD -n 200"),
    ] {
        checks.check(format_args!("{tool} -R {options}"), || {
            let [_, client] = ipoib::connect(
                (one, &format!("{tool} -R -F {options}")),
                (two, &format!("{tool} -R -F {options} 10.9.0.1")),
                LIMIT,
            )?;
            expect(&client, &["#bytes"])
        });
    }
    checks.check("ucmatose goes on its path's service level", || {
        let traffic = || ipoib::ucmatose(one, two, &address(0), LIMIT);
        on_the_level(&bed, &daemon, traffic).map(drop)
    });
    checks.check("ib_write_bw --sl, to second LIDs", || {
        let lids = [Hca::of(one, DEVICE)?.lid, Hca::of(two, DEVICE)?.lid];
        let ends = on_the_level(&bed, &daemon, || {
            let command = format!("ib_write_bw -d {DEVICE} -F -n 100 --sl {LEVEL} --dlid");
            let mut serving = one.spawn(&format!("{command} {}", lids[1] + 1))?;
            serving.await_port("18515", LIMIT)?;
            let call = format!("{command} {} {}", lids[0] + 1, address(0));
            let [_, client] = serving.with_client(two, &call, LIMIT)?;
            expect(&client, &["#bytes"])
        })?;
        let wanted = [[lids[0], lids[1] + 1], [lids[1], lids[0] + 1]];
        if ends == BTreeSet::from(wanted) {
            Ok(())
        } else {
            Err(one.failed(format!("packets went {ends:?}, not {wanted:?}")))
        }
    });
    checks.check("mckey", || {
        let [receiver, _] = ipoib::exchange(
            (
                one,
                "mckey -m 239.1.2.3 -b 10.9.0.1 -C 10",
                "receiving data transfers",
            ),
            (two, "mckey -m 239.1.2.3 -b 10.9.0.2 -C 10 -s"),
            LIMIT,
        )?;
        expect(&receiver, &["data transfers complete", "return status 0"])
    });
    checks.check("ibping", || {
        let hca = Hca::of(one, DEVICE)?;
        let serving = one.spawn("ibping -S")?;
        for lid in [hca.lid, hca.lid + 1] {
            let ping = format!("until ibping -c 1 -t 300 {lid}; do :; done; ibping -c 2 -L {lid}");
            let text = two.sh(&ping, LIMIT)?;
            expect(&text, &["2 packets transmitted, 2 received"])?;
        }
        drop(serving);
        Ok(())
    });
    checks.check("two LIDs: ibstat, ibv_devinfo, smpquery", || {
        let hca = Hca::of(one, DEVICE)?;
        let verbs: String = one
            .sh("ibv_devinfo -v", LIMIT)?
            .split_whitespace()
            .collect();
        let port = one.sh("smpquery -D portinfo 0 1", LIMIT)?;
        expect(&verbs, &["port_lmc:0x01"])?;
        if hca.lmc == 1 && hca.lid % 2 == 0 && number(&port, "LMC")? == 1 {
            Ok(())
        } else {
            Err(one.failed(format!("{hca:?}\n{port}")))
        }
    });
    checks.check(
        "saquery: a path to each LID, with its service level",
        || {
            let [from, to] = [Hca::of(one, DEVICE)?, Hca::of(two, DEVICE)?];
            let text = one.sh("saquery -p", LIMIT)?;
            let mut paths = Vec::new();
            for record in text.split("PathRecord dump:").skip(1) {
                let [slid, dlid] = [number(record, "slid")?, number(record, "dlid")?];
                let [there, here] = [dlid, slid].map(|lid| lid & !1);
                if (here, there) == (from.lid.into(), to.lid.into()) {
                    paths.push((dlid - there, number(record, "sl")?));
                }
            }
            paths.sort_unstable();
            if paths == [(0, LEVEL.into()), (1, LEVEL.into())] {
                Ok(())
            } else {
                Err(one.failed(format!("{paths:?} in\n{text}")))
            }
        },
    );
    checks.check("saquery", || {
        let hcas = [Hca::of(one, DEVICE)?, Hca::of(two, DEVICE)?];
        let path = one.sh(
            &format!("saquery -p --slid {} --dlid {}", hcas[0].lid, hcas[1].lid),
            LIMIT,
        )?;
        expect(
            &path,
            &[
                "PathRecord dump",
                &format!("dlid....................{}", hcas[1].lid),
                "pkey....................0x8001",
            ],
        )?;
        let nodes = one.sh("saquery NR", LIMIT)?;
        expect(&nodes, &["NodeRecord dump", &hcas[1].port_guid])?;
        let third = Hca::of(three, DEVICE)?;
        if nodes.contains(&third.port_guid) {
            return Err(one.failed(format!("it sees a node of another partition:\n{nodes}")));
        }
        for (what, expected) in [
            ("CPI", "SA ClassPortInfo"),
            ("PIR", "PortInfoRecord dump"),
            ("LR", "LinkRecord dump"),
            ("MCMR", "MCMember Record dump"),
            ("SWIR", "SwitchInfo"),
            ("SMIR", "SMInfoRecord"),
            ("GIR", "GUIDInfo Record dump"),
            ("LFTR", "LFT Record dump"),
            ("MFTR", "MFT Record dump"),
        ] {
            let text = one.sh(&format!("saquery {what}"), LIMIT)?;
            expect(&text, &[expected])?;
        }
        Ok(())
    });
    checks.check("IPoIB: TCP, connected mode", || {
        mode(&guests[..2], "connected", 65520)?;
        ipoib::ping(two, &address(0), "-s 30000", LIMIT)?;
        transfer(one, two, 50)?;
        mode(&guests[..2], "datagram", 2044)?;
        ipoib::ping(two, &address(0), "", LIMIT)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}

/// Two guests whose interfaces are `mlx5_core`'s, and one with an ordinary one.
fn enhanced() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", [])
        .vf("vm1")
        .key("ipoib", "enhanced")
        .vf("vm2")
        .key("ipoib", "enhanced")
        .hypervisor("hv2", ["vm3"])
}

/// Processors of the first guest, and so queues of its interface.
const PROCESSORS: u32 = 2;

#[test]
fn enhanced_interfaces() -> Result<()> {
    if passed_through() {
        progress::step("skipped: a VF that is passed through has none of it");
        return Ok(());
    }
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&enhanced()))?;
    let mut guests = Vec::new();
    for name in ["vm1", "vm2", "vm3"] {
        let mut config = bed.config(name);
        config.devices.push(daemon.device(name, None)?);
        config.modules = MLX5.map(str::to_owned).to_vec();
        if name == "vm1" {
            config.processors = PROCESSORS;
        }
        guests.push(bed.start(config)?);
    }
    for guest in &guests {
        guest.booted()?;
        await_active(guest, DEVICE)?;
        progress::step(format_args!("{}: up", guest.name()));
    }
    let [one, two, three] = &guests[..] else {
        unreachable!("three were started")
    };
    let up = |guest: &Guest, number| ipoib::up(guest, "ib0", &address(number), LIMIT);
    let mut checks = Checks::default();
    checks.check("enhanced IPoIB: carrier", || {
        let numbered = guests.iter().enumerate();
        numbered
            .into_iter()
            .try_for_each(|(number, guest)| up(guest, number))
    });
    checks.check("enhanced IPoIB: a queue for each processor", || {
        let count = |guest: &Guest| guest.sh("ls -d /sys/class/net/ib0/queues/rx-* | wc -l", LIMIT);
        for (guest, queues) in [(one, PROCESSORS), (two, 1), (three, 1)] {
            expect(
                &format!("{} queues", count(guest)?.trim()),
                &[&format!("{queues} queues")],
            )?;
        }
        Ok(())
    });
    checks.check("enhanced IPoIB: ping", || {
        ipoib::ping(one, &address(1), "", LIMIT)?;
        ipoib::ping(one, &address(2), "-s 2000", LIMIT)?;
        ipoib::ping(three, &address(0), "-s 3000", LIMIT)?;
        ipoib::ping(two, &address(0), "-s 20000", LIMIT)
    });
    checks.check("enhanced IPoIB: TCP", || {
        for client in [two, three] {
            transfer(one, client, 10)?;
        }
        Ok(())
    });
    checks.check("enhanced IPoIB: the sums are right", || {
        for guest in &guests {
            let text = guest.sh("grep Tcp: /proc/net/snmp", LIMIT)?;
            if text.split_whitespace().next_back() != Some("0") {
                return Err(guest.failed(text));
            }
        }
        Ok(())
    });
    checks.check("enhanced IPoIB: multicast", || {
        for (sender, hearer) in [(one, three), (three, one), (one, two)] {
            let heard = || hearer.sh("cat /sys/class/net/ib0/statistics/rx_packets", LIMIT);
            let before = heard()?;
            sender.sh(
                "ping -c 3 -W 1 -I ib0 224.0.0.1 >/dev/null 2>&1; true",
                LIMIT,
            )?;
            if heard()? == before {
                return Err(hearer.failed("it heard nothing of the group of all hosts".into()));
            }
        }
        Ok(())
    });
    checks.check("enhanced IPoIB: down and up, with another MTU", || {
        one.sh("ip link set ib0 down && ip link set ib0 mtu 2044 up", LIMIT)?;
        ipoib::await_carrier(one, "ib0", LIMIT)?;
        ipoib::ping(two, &address(0), "-s 1500", LIMIT)?;
        transfer(one, two, 2)
    });
    checks.check("enhanced IPoIB: the modules go and come back", || {
        driver::reload(one, LIMIT)?;
        up(one, 0)?;
        // Its hardware address is another one, which others hear of when it asks for theirs.
        ipoib::ping(one, &address(2), "", LIMIT)
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
