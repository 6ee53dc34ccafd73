//! Three guests in two partitions: IPoIB, rdma_cm, multicast and the subnet administration between
//! those who share one, and nothing for the third.

use std::time::Duration;

use ibvswitch_guest_tests::{
    Result,
    checks::Checks,
    diags::{expect, no_kernel_warning},
    guest::Guest,
    hca::{Hca, await_active},
    image::Kernel,
    ipoib, progress,
    testbed::{DEVICE, MLX5, Testbed},
};

const LIMIT: Duration = Duration::from_secs(180);

/// `vm1` and `vm2` share a partition that `vm3` is not in. All may ask the subnet administration,
/// as limited members of the default partition.
const CONFIG: &str = r#"
[partitions]
red = 0x0001
blue = 0x0002

[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"
pkeys = ["red", "default:limited"]
[[hypervisor.vf]]
name = "vm3"
pkeys = ["blue", "default:limited"]

[[hypervisor]]
name = "hv2"
[[hypervisor.vf]]
name = "vm2"
pkeys = ["red", "default:limited"]
"#;

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
        guest.sh(
            &format!("echo {mode} >/sys/class/net/ib0/mode && ip link set ib0 mtu {mtu}"),
            LIMIT,
        )?;
        ipoib::await_carrier(guest, "ib0", LIMIT)?;
    }
    Ok(())
}

#[test]
fn three_guests() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(CONFIG))?;
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
            if address == crate::address(2) && output.status == 0 {
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
    checks.check("rping", || ipoib::rping(one, two, &address(0), LIMIT));
    checks.check("ucmatose", || ipoib::ucmatose(one, two, &address(0), LIMIT));
    for (tool, options) in [
        ("ib_send_bw", "-n 200"),
        ("ib_write_lat", "-n 200"),
        ("ib_send_lat", "-c UD -n 200"),
    ] {
        checks.check(format_args!("{tool} -R {options}"), || {
            let [_, client] = ipoib::exchange(
                (
                    one,
                    &format!("{tool} -R -F {options}"),
                    "Waiting for client",
                ),
                (two, &format!("{tool} -R -F {options} 10.9.0.1")),
                LIMIT,
            )?;
            expect(&client, &["#bytes"])
        });
    }
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
        let lid = hca.lid;
        let ping = format!("until ibping -c 1 -t 300 {lid}; do :; done; ibping -c 5 {lid}");
        let text = two.sh(&ping, LIMIT)?;
        drop(serving);
        expect(&text, &["5 packets transmitted, 5 received"])
    });
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
