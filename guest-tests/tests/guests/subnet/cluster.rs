//! Virtual clusters side by side, with the same LIDs and the same P_Key in all. Each of two guests has
//! a VF in each, so that one boot shows them and what they have to do with each other. In two clusters
//! VMs have a port with LIDs of its own, in the two others they share one, and have one of its LIDs.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::Testbed;
use ibvswitch_guest_tests::tools::diags::{expect, field, no_kernel_warning, number};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use testing::{Configuration, Toml};

const LIMIT: Duration = Duration::from_secs(180);

/// In all clusters the first guest is 1 and the second 2, and the P_Key is 0x8005.
fn configuration() -> Configuration {
    let subnet = Configuration::new()
        .set("fabric.model", "vswitch-hybrid")
        .set("sm.lmc", 2)
        .set("partitions.red", 1)
        .set("partitions.blue", 2)
        .set("partitions.green", 3)
        .set("partitions.white", 4);
    let clusters = CLUSTERS.iter().fold(subnet, |text, (cluster, ..)| {
        text.clusters([cluster]).key("view", "mirror")
    });
    (1..=2).fold(clusters, |text, host| {
        let hypervisor = text.hypervisor(&format!("hv{host}"), []);
        CLUSTERS
            .iter()
            .fold(hypervisor, |text, (cluster, partition, address)| {
                text.member(&format!("{cluster}{host}"), cluster)
                    .key("vlid", host)
                    .key("address", *address)
                    .key("pkeys", [*partition, "default:limited"])
                    .key("virtual_pkeys", Toml("[0x8005, 'default:limited']"))
            })
    })
}

/// The clusters: name, partition, and whether VMs share a port.
const CLUSTERS: [(&str, &str, &str); 4] = [
    ("a", "red", "dedicated"),
    ("b", "blue", "dedicated"),
    ("c", "green", "shared"),
    ("d", "white", "shared"),
];

/// The devices of the clusters whose VMs have ports of their own, in both guests.
const DEVICES: [&str; 2] = ["mlx5_0", "mlx5_1"];
/// Devices of VMs that share ports.
const SHARED: [&str; 2] = ["mlx5_2", "mlx5_3"];
const SM_LID: u16 = 0xbfff;

#[test]
fn two_clusters() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&configuration()))?;
    let devices = |host| -> Result<Vec<String>> {
        let names = CLUSTERS
            .iter()
            .map(|(cluster, ..)| format!("{cluster}{host}"));
        names.map(|name| daemon.device(&name, None)).collect()
    };
    let guests = bed.pair_with(0, ["one", "two"], [devices(1)?, devices(2)?])?;
    let [one, two] = &guests;
    for guest in &guests {
        for device in DEVICES.into_iter().chain(SHARED) {
            await_active(guest, device)?;
        }
    }
    let mut checks = Checks::default();

    checks.check("every port has the LIDs and P_Keys of its cluster", || {
        for (guest, lid) in [(one, 1), (two, 2)] {
            for device in SHARED {
                let hca = Hca::of(guest, device)?;
                if (hca.lid, hca.sm_lid) != (lid, SM_LID) || hca.pkeys != ["0x8005", "0x7fff"] {
                    return Err(guest.failed(format!("{hca:?}")));
                }
            }
            for device in DEVICES {
                let hca = Hca::of(guest, device)?;
                if (hca.lid, hca.sm_lid) != (lid, SM_LID) || hca.pkeys != ["0x8005", "0x7fff"] {
                    return Err(guest.failed(format!("{hca:?}")));
                }
                let info = guest.sh(&format!("smpquery -C {device} -D portinfo 0 1"), LIMIT)?;
                let lids = (number(&info, "Lid")?, number(&info, "SMLid")?);
                if lids != (u64::from(lid), u64::from(SM_LID)) {
                    return Err(guest.failed(info));
                }
                // By its LID as well, which is as virtual.
                let node = guest.sh(&format!("smpquery -C {device} nodeinfo {lid}"), LIMIT)?;
                if field(&node, "PortGuid")? != hca.port_guid {
                    return Err(guest.failed(node));
                }
            }
        }
        Ok(())
    });
    checks.check("the subnet has other LIDs", || {
        let status = daemon.status()?;
        let vfs = status["vfs"].as_array().map_or(&[][..], Vec::as_slice);
        let physical: Vec<_> = vfs.iter().map(|vf| vf["lid"].as_u64()).collect();
        let seen: Vec<_> = vfs.iter().map(|vf| vf["virtual_lid"].as_u64()).collect();
        // At a shared port the LIDs after its base, which is a multiple of 4.
        let ranged = |vf: usize, entry| physical[vf].is_some_and(|lid| lid % 4 == entry);
        let ranged = ranged(2, 1) && ranged(3, 2) && ranged(6, 1) && ranged(7, 2);
        let all = [[Some(1); 4], [Some(2); 4]].concat();
        if seen == all && physical != seen && ranged {
            return Ok(());
        }
        Err(one.failed(status.to_string()))
    });
    for device in DEVICES {
        for tool in Pingpong::ALL {
            checks.check(format_args!("{tool} on {device}"), || {
                tool.between((one, two), device, false, "", LIMIT)
            });
        }
    }
    for device in SHARED {
        for tool in Pingpong::ALL {
            checks.check(format_args!("{tool} on {device}, without a GID"), || {
                tool.between((one, two), device, false, "", LIMIT)
            });
        }
        checks.check(
            format_args!("ib_write_lat on {device}, without a GID"),
            || {
                let command = format!("ib_write_lat -d {device} -F -n 100");
                let mut serving = one.spawn(&command)?;
                serving.await_port("18515", LIMIT)?;
                let call = format!("{command} {}", one.address());
                let [_, client] = serving.with_client(two, &call, LIMIT)?;
                if client.contains("GID:") {
                    return Err(two.failed(client));
                }
                expect(&client, &["#bytes", "LID 0x02", "LID 0x01"])
            },
        );
        checks.check(format_args!("saquery on {device}, without a GID"), || {
            let path = two.sh(&format!("saquery -C {device} -p --slid 2 --dlid 1"), LIMIT)?;
            expect(
                &path,
                &[
                    "dlid....................1",
                    "slid....................2",
                    "pkey....................0x8005",
                ],
            )
        });
    }
    checks.check("IPoIB in all clusters", || {
        for interface in 0..CLUSTERS.len() {
            let name = format!("ib{interface}");
            for (guest, host) in [(one, 1), (two, 2)] {
                ipoib::up(guest, &name, &format!("10.{interface}.7.{host}"), LIMIT)?;
            }
            ipoib::ping(two, &format!("10.{interface}.7.1"), "", LIMIT)?;
        }
        Ok(())
    });
    checks.check("LID 1 of one cluster is not LID 1 of the other", || {
        let mut serving = one.spawn("timeout 20 ibv_rc_pingpong -d mlx5_0 -n 10")?;
        serving.await_port("18515", LIMIT)?;
        let call = format!("ibv_rc_pingpong -d mlx5_1 -n 10 {}", one.address());
        let output = two.run(&call, LIMIT)?;
        let lost = output.text.contains("transport retry counter exceeded");
        serving.wait(LIMIT)?;
        if output.status != 0 && lost {
            return Ok(());
        }
        Err(two.failed(output.text))
    });
    for interface in 0..CLUSTERS.len() {
        let address = format!("10.{interface}.7.1");
        checks.check(format_args!("rping on ib{interface}"), || {
            ipoib::rping(one, two, &address, LIMIT)
        });
        checks.check(format_args!("ucmatose on ib{interface}"), || {
            ipoib::ucmatose(one, two, &address, LIMIT)
        });
    }
    for device in DEVICES {
        checks.check(format_args!("saquery on {device}"), || {
            let path = two.sh(&format!("saquery -C {device} -p --slid 2 --dlid 1"), LIMIT)?;
            expect(
                &path,
                &[
                    "PathRecord dump",
                    "dlid....................1",
                    "slid....................2",
                    "pkey....................0x8005",
                ],
            )?;
            // Nodes of the own cluster, with the LIDs they have there.
            let nodes = two.sh(&format!("saquery -C {device} NR"), LIMIT)?;
            let own = [Hca::of(one, device)?, Hca::of(two, device)?];
            expect(&nodes, &[&own[0].port_guid, &own[1].port_guid])?;
            let other = DEVICES.into_iter().find(|other| *other != device);
            for guest in &guests {
                let foreign = Hca::of(guest, other.unwrap_or(device))?;
                if nodes.contains(&foreign.port_guid) {
                    return Err(two.failed(format!("it sees the other cluster:\n{nodes}")));
                }
            }
            Ok(())
        });
    }
    for device in DEVICES {
        checks.check(format_args!("the view on {device}"), || {
            view(&guests, device)
        });
    }
    checks.check(
        "vendstat: the own device, at a port of its own and at a shared one",
        || {
            for device in [DEVICES[0], SHARED[0]] {
                let own = two.sh(&format!("vendstat -C {device} -N 2"), LIMIT)?;
                expect(&own, &["fw_version:  16.35.4030"])?;
                let other = two.run(&format!("vendstat -C {device} -t 200 -N 1"), LIMIT)?;
                if other.status == 0 {
                    return Err(two.failed(other.text));
                }
            }
            Ok(())
        },
    );
    checks.check("ibping by virtual LID", || {
        let serving = one.spawn("ibping -C mlx5_1 -S")?;
        let ping = "until ibping -C mlx5_1 -c 1 -t 300 1; do :; done; ibping -C mlx5_1 -c 5 1";
        let text = two.sh(ping, LIMIT)?;
        // The other cluster's LID 1 has nobody who answers.
        let other = two.run("ibping -C mlx5_0 -c 1 -t 300 1", LIMIT)?.text;
        drop(serving);
        expect(&text, &["5 packets transmitted, 5 received"])?;
        expect(&other, &["1 packets transmitted, 0 received"])
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}

/// Checks the subnet that infiniband-diags finds in the second guest, in one of the clusters whose VMs have
/// ports of their own: the two VMs, the manager's host, and three switches between them.
fn view(guests: &[Guest], device: &str) -> Result<()> {
    let [one, two] = guests else {
        unreachable!("two were started")
    };
    let own = [Hca::of(one, device)?, Hca::of(two, device)?];
    let map = two.sh(&format!("ibnetdiscover -C {device}"), LIMIT)?;
    let kind = |kind: &str| map.lines().filter(|line| line.starts_with(kind)).count();
    if (kind("Switch"), kind("Ca")) != (3, 3) {
        return Err(two.failed(map));
    }
    expect(&map, &["lid 1 lmc 0", "lid 2 lmc 0", "\"subnet manager\""])?;
    let digits = |hca: &Hca| hca.port_guid.trim_start_matches("0x").to_owned();
    expect(&map, &[&digits(&own[0]), &digits(&own[1])])?;
    let links = two.sh(&format!("iblinkinfo -C {device}"), LIMIT)?;
    expect(&links, &["Active/", "Down/"])?;
    // Nobody of the other clusters, in whichever guest.
    for other in DEVICES.into_iter().chain(SHARED).filter(|it| *it != device) {
        for guest in guests {
            let stranger = digits(&Hca::of(guest, other)?);
            if map.contains(&stranger) || links.contains(&stranger) {
                return Err(two.failed(format!("{stranger} of {other} is seen:\n{map}{links}")));
            }
        }
    }
    let node = two.sh(&format!("smpquery -C {device} nodeinfo 1"), LIMIT)?;
    let port = two.sh(&format!("smpquery -C {device} portinfo 1 1"), LIMIT)?;
    let lids = (number(&port, "Lid")?, number(&port, "SMLid")?);
    if field(&node, "PortGuid")? != own[0].port_guid || lids != (1, u64::from(SM_LID)) {
        return Err(two.failed(format!("{node}{port}")));
    }
    // From one VM to the other over vSwitch, switch and vSwitch.
    let way = two.sh(&format!("ibtracert -C {device} 2 1"), LIMIT)?;
    expect(&way, &["From ca", "lid 2-2", "To ca", "lid 1-1"])?;
    if way.matches("-> switch port").count() != 3 {
        return Err(two.failed(way));
    }
    let to_manager = two.sh(&format!("ibtracert -C {device} 2 {SM_LID}"), LIMIT)?;
    expect(&to_manager, &["subnet manager"])?;
    let manager = two.sh(&format!("sminfo -C {device}"), LIMIT)?;
    expect(&manager, &["sm lid 49151", "SMINFO_MASTER"])?;
    // The tables of each switch lead to both VMs and to the nodes of the view.
    for switch in map.lines().filter(|line| line.starts_with("Switch")) {
        let lid = switch
            .split(" lid ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let lid = lid.ok_or_else(|| two.failed(switch.to_owned()))?;
        let table = two.sh(&format!("ibroute -C {device} {lid}"), LIMIT)?;
        expect(&table, &["0x0001 ", "0x0002 ", "6 valid lids dumped"])?;
        let device_of = two.run(&format!("vendstat -C {device} -t 100 -N {lid}"), LIMIT)?;
        if device_of.status == 0 {
            return Err(two.failed(device_of.text));
        }
    }
    // Nothing can be set.
    let set = two.run(&format!("ibportstate -C {device} -D 0,1 1 disable"), LIMIT)?;
    match set.status {
        0 => Err(two.failed(set.text)),
        _ => Ok(()),
    }
}
