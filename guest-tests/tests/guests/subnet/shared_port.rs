//! A hybrid subnet, and one of virtual ports: of the HCAs of each guest one shares its LID with the other guest's, another has a
//! LID of its own, so that one boot shows both. A third, of another daemon, shares its LID as well, but
//! drivers are not told to use global routes.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::Testbed;
use ibvswitch_guest_tests::tools::diags::{expect, no_kernel_warning};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(180);

fn configuration(model: &str) -> Configuration {
    Configuration::new()
        .set("fabric.model", model)
        .hypervisor("hv1", ["s1"])
        .of_hypervisor("address", "shared")
        .vf("d1")
        .key("address", "dedicated")
        .vf("s2")
        .hypervisor("hv2", ["d2"])
        .of_hypervisor("address", "dedicated")
}

fn by_lid_config() -> Configuration {
    Configuration::new()
        .set("fabric.model", "shared-port")
        .set("fabric.grh_required", false)
        .hypervisor("hv3", ["l1", "l2"])
}

/// The HCAs of either guest: that with a shared LID, that with its own, and that of the other daemon.
const SHARED: &str = "mlx5_0";
const DEDICATED: &str = "mlx5_1";
const BY_LID: &str = "mlx5_2";

#[test]
fn some_share_a_lid() -> Result<()> {
    shares_a_lid("vswitch-hybrid")
}

/// With CI_LONG alone: guests see the same as above, behind ports that the manager has divided into virtual ones.
#[test]
#[ignore = "the guests are those of another test"]
fn some_virtual_ports_share_a_lid() -> Result<()> {
    shares_a_lid("virtualized")
}

fn shares_a_lid(model: &str) -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&configuration(model)))?;
    let by_lid = bed.daemon("by-lid", Some(&by_lid_config()))?;
    let devices = |vfs: [&str; 2], third| -> Result<Vec<String>> {
        let own = vfs.into_iter().map(|vf| daemon.device(vf, None));
        own.chain([by_lid.device(third, None)]).collect()
    };
    let devices = [devices(["s1", "d1"], "l1")?, devices(["s2", "d2"], "l2")?];
    let guests = bed.pair_with(0, ["one", "two"], devices)?;
    let [one, two] = &guests;
    for guest in &guests {
        for device in [SHARED, DEDICATED, BY_LID] {
            await_active(guest, device)?;
        }
    }
    let mut checks = Checks::default();

    checks.check("two have one LID and two GUIDs", || {
        let [[a, b], [c, d]] = [
            [Hca::of(one, SHARED)?, Hca::of(two, SHARED)?],
            [Hca::of(one, DEDICATED)?, Hca::of(two, DEDICATED)?],
        ];
        let shared = a.lid == b.lid && a.port_guid != b.port_guid;
        if shared && c.lid != d.lid && ![c.lid, d.lid].contains(&a.lid) {
            return Ok(());
        }
        Err(one.failed(format!("{a:?} {b:?} {c:?} {d:?}")))
    });
    for (device, options) in [(SHARED, "-g 0"), (DEDICATED, "-g 0"), (DEDICATED, "")] {
        for tool in [Pingpong::Rc, Pingpong::Ud] {
            checks.check(format_args!("{tool} {options} on {device}"), || {
                tool.between((one, two), device, false, options, LIMIT)
            });
        }
    }
    checks.check("the driver connects nobody by a shared LID alone", || {
        let mut serving = one.spawn(&format!("ibv_rc_pingpong -d {SHARED}"))?;
        serving.await_port("18515", LIMIT)?;
        let call = format!("ibv_rc_pingpong -d {SHARED} {}", one.address());
        let output = two.run(&call, LIMIT)?;
        serving.wait(LIMIT)?;
        if output.status != 0 {
            return Ok(());
        }
        Err(two.failed(output.text))
    });
    checks.check("nor does saquery get an answer", || {
        let output = one.run(&format!("saquery -C {SHARED} CPI"), LIMIT)?;
        if output.status != 0 {
            return Ok(());
        }
        Err(one.failed(output.text))
    });
    checks.check("both do where global routes are not required", || {
        let hcas = [Hca::of(one, BY_LID)?, Hca::of(two, BY_LID)?];
        for (guest, hca) in [one, two].into_iter().zip(&hcas) {
            // The switch, the hypervisor, and the subnet manager's host; and what is longer than a packet.
            let nodes = guest.sh(&format!("saquery -C {BY_LID} NR"), LIMIT)?;
            let lids = guest.sh(&format!("saquery -C {BY_LID} -p"), LIMIT)?;
            let own = format!("slid....................{}", hca.lid);
            expect(&lids, &["PathRecord dump", &own])?;
            if nodes.matches("NodeRecord dump").count() != 3 {
                return Err(guest.failed(nodes));
            }
        }
        for tool in [Pingpong::Rc, Pingpong::Uc, Pingpong::Ud] {
            tool.between((one, two), BY_LID, false, "", LIMIT)?;
        }
        if hcas[0].lid == hcas[1].lid {
            Ok(())
        } else {
            Err(one.failed(format!("{hcas:?}")))
        }
    });
    checks.check("but nobody is pinged by a shared LID", || {
        let serving = one.spawn(&format!("ibping -C {BY_LID} -S"))?;
        let lid = Hca::of(one, BY_LID)?.lid;
        let ping = two.run(&format!("ibping -C {BY_LID} -c 2 -t 300 {lid}"), LIMIT)?;
        drop(serving);
        expect(&ping.text, &["2 packets transmitted, 0 received"])
    });
    checks.check("ib_write_lat -x 0", || {
        let command = format!("ib_write_lat -x 0 -d {SHARED} -F -n 100");
        let mut serving = one.spawn(&command)?;
        serving.await_port("18515", LIMIT)?;
        let call = format!("{command} {}", one.address());
        let [_, client] = serving.with_client(two, &call, LIMIT)?;
        expect(&client, &["#bytes", "GID"])
    });
    checks.check(
        "IPoIB: a shared LID to a shared one, and to one that is not",
        || {
            for (guest, host) in [(one, 1), (two, 2)] {
                for (interface, net) in [("ib0", 0), ("ib1", 1)] {
                    ipoib::up(guest, interface, &format!("10.{net}.7.{host}"), LIMIT)?;
                }
            }
            // One's shared LID, the other's own.
            for (guest, interface, host) in [(one, "ib0", 1), (two, "ib1", 2)] {
                let add = format!("ip address add 10.2.7.{host}/24 dev {interface}");
                guest.sh(&add, LIMIT)?;
            }
            for net in [0, 1, 2] {
                ipoib::ping(two, &format!("10.{net}.7.1"), "", LIMIT)?;
                ipoib::ping(one, &format!("10.{net}.7.2"), "", LIMIT)?;
            }
            Ok(())
        },
    );
    for (net, ends) in [(0, "both shared"), (1, "neither"), (2, "one shared")] {
        let address = format!("10.{net}.7.1");
        checks.check(format_args!("rping, {ends}"), || {
            ipoib::rping(one, two, &address, LIMIT)
        });
        checks.check(format_args!("ucmatose, {ends}"), || {
            ipoib::ucmatose(one, two, &address, LIMIT)
        });
    }
    checks.check("no queue pair 0", || {
        let output = one.run(&format!("smpquery -C {SHARED} -D nodeinfo 0"), LIMIT)?;
        if output.status != 0 {
            return Ok(());
        }
        Err(one.failed(output.text))
    });
    checks.check("no kernel warning", || {
        guests
            .iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
