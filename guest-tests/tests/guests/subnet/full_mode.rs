//! OpenSM in a guest manages the guest's virtual cluster: LIDs, paths and groups of the cluster are its own until it dies.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{DEVICE, Testbed};
use ibvswitch_guest_tests::tools::diags::{expect, no_kernel_warning};
use ibvswitch_guest_tests::tools::ipoib;
use ibvswitch_guest_tests::tools::perftest::{Run, Tool};
use ibvswitch_guest_tests::tools::pingpong::Pingpong;
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(120);

fn configuration() -> Configuration {
    Configuration::new()
        .entry("cluster", "t1")
        .key("view", "full")
        .key("full_mode_lease_s", 15)
        .hypervisor("hv1", [])
        .member("vm1", "t1")
        .key("vlid", 0x101)
        .hypervisor("hv2", [])
        .member("vm2", "t1")
        .key("vlid", 0x102)
}

/// OpenSM at a port. Each message of its log comes at once; nothing of it stays.
fn opensm(guid: &str) -> String {
    format!(
        "mkdir -p /tmp/osm && cd /tmp/osm && OSM_CACHE_DIR=. OSM_TMP_DIR=. \
         exec opensm -g {guid} -d2 -f - -F none.conf"
    )
}

#[test]
#[ignore = "a boot of its own: a minute"]
fn opensm_in_a_guest_of_a_cluster() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&configuration()))?;
    let device = |vm| -> Result<Vec<String>> { Ok(vec![daemon.device(vm, None)?]) };
    let [manager, other] = bed.pair_with(0, ["vm1", "vm2"], [device("vm1")?, device("vm2")?])?;
    let guests = [&manager, &other];
    for guest in guests {
        await_active(guest, DEVICE)?;
    }
    let mut checks = Checks::default();
    let lids = || -> Result<[u16; 2]> {
        Ok([Hca::of(&manager, DEVICE)?.lid, Hca::of(&other, DEVICE)?.lid])
    };
    checks.check(
        "managed: LIDs of the configuration, the provider's manager",
        || {
            let text = other.sh("ibnetdiscover", LIMIT)?;
            expect(&text, &["\"subnet manager\""])?;
            match lids()? {
                [0x101, 0x102] => Ok(()),
                lids => Err(other.failed(format!("{lids:?}"))),
            }
        },
    );
    let guid = Hca::of(&manager, DEVICE)?.port_guid;
    let mut running = manager.spawn(&opensm(&guid))?;
    checks.check("OpenSM brings the cluster up", || {
        running.await_text("SUBNET UP", LIMIT)?;
        for guest in guests {
            await_active(guest, DEVICE)?;
        }
        let hcas = [Hca::of(&manager, DEVICE)?, Hca::of(&other, DEVICE)?];
        let known = hcas.iter().all(|hca| hca.sm_lid == hcas[0].lid);
        if known && hcas[0].lid < 0x100 && hcas[1].lid < 0x100 && hcas[0].lid != hcas[1].lid {
            return Ok(());
        }
        Err(manager.failed(format!("{hcas:?}")))
    });
    checks.check("ibnetdiscover: the cluster and nobody else", || {
        let text = other.sh("ibnetdiscover", LIMIT)?;
        let lids = lids()?.map(|lid| format!("lid {lid} lmc 0"));
        expect(&text, &[&lids[0], &lids[1], "\"t1 switch 2\""])?;
        if text.contains("subnet manager") {
            return Err(other.failed(text));
        }
        Ok(())
    });
    checks.check("saquery: a switch, two vSwitches, two VMs", || {
        let text = other.sh("saquery NR", LIMIT)?;
        match text.matches("NodeRecord dump").count() {
            5 => Ok(()),
            count => Err(other.failed(format!("{count} nodes\n{text}"))),
        }
    });
    for tool in [Pingpong::Rc, Pingpong::Ud] {
        checks.check(tool, || {
            tool.between((&manager, &other), DEVICE, false, "", LIMIT)
        });
    }
    checks.check("ib_write_lat", || {
        let run = Run::new(Tool::WriteLat, DEVICE);
        run.between(&manager, &other, LIMIT).map(drop)
    });
    checks.check("IP over InfiniBand, by groups of OpenSM", || {
        ipoib::up(&manager, "ib0", "10.1.0.1", LIMIT)?;
        ipoib::up(&other, "ib0", "10.1.0.2", LIMIT)?;
        ipoib::ping(&other, "10.1.0.1", "", LIMIT)?;
        ipoib::rping(&manager, &other, "10.1.0.1", LIMIT)
    });
    checks.check("managed again when it is gone", || {
        manager.sh("killall -9 opensm", LIMIT)?;
        other.sh(
            "until ibnetdiscover 2>/dev/null | grep -q 'subnet manager'; do usleep 200000; done",
            LIMIT,
        )?;
        for guest in guests {
            await_active(guest, DEVICE)?;
        }
        match lids()? {
            [0x101, 0x102] => Pingpong::Rc.between((&manager, &other), DEVICE, false, "", LIMIT),
            lids => Err(other.failed(format!("{lids:?}"))),
        }
    });
    drop(running);
    checks.check("no kernel warning", || {
        guests
            .into_iter()
            .try_for_each(|guest| no_kernel_warning(guest, &[]))
    });
    checks.finish();
    Ok(())
}
