//! A guest that wants to know and change what is not its own: with root, stock tools and a subnet
//! manager of its own. One guest has both a VF with the default rules and one that may manage, so
//! that each attack is seen to fail by the one and to succeed by the other.

use std::time::Duration;

use ibvswitch_guest_tests::Result;
use ibvswitch_guest_tests::checks::Checks;
use ibvswitch_guest_tests::guest::Guest;
use ibvswitch_guest_tests::hca::{Hca, await_active};
use ibvswitch_guest_tests::image::Kernel;
use ibvswitch_guest_tests::testbed::{MLX5, Testbed};
use ibvswitch_guest_tests::tools::diags::{expect, field};
use serde_json::Value;
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(180);

fn configuration() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["guest"])
        .vf("manager")
        .key("smp", "fabric")
        .hypervisor("hv2", ["victim"])
}

/// By the VF with the default rules, and by the one that may manage.
const DENIED: &str = "mlx5_0";
const ALLOWED: &str = "mlx5_1";

fn fails(guest: &Guest, command: &str) -> Result<()> {
    let output = guest.run(command, LIMIT)?;
    if output.status != 0 {
        return Ok(());
    }
    Err(guest.failed(format!("{command} has worked:\n{}", output.text)))
}

/// Returns the properties of a VF that other VFs may not change.
fn identity(status: &Value, name: &str) -> Vec<Value> {
    let vfs = status["vfs"].as_array().map_or(&[][..], Vec::as_slice);
    vfs.iter()
        .filter(|vf| vf["name"] == name)
        .flat_map(|vf| ["state", "lid", "sm_lid", "pkeys"].map(|part| vf[part].clone()))
        .collect()
}

/// Has OpenSM sweep once by a device; what it printed, and its log.
fn opensm(guest: &Guest, device: &str, options: &str) -> Result<(String, String)> {
    let guid = Hca::of(guest, device)?.port_guid;
    let run = format!(
        "mkdir -p /tmp/{device} && cd /tmp/{device} && OSM_CACHE_DIR=. OSM_TMP_DIR=. \
         timeout 100 opensm -o -g {guid} -p 15 -f /tmp/{device}/log {options}"
    );
    let output = guest.run(&run, LIMIT)?.text;
    let log = guest.sh(&format!("cat /tmp/{device}/log"), LIMIT)?;
    Ok((output, log))
}

#[test]
fn second_manager_discovery_and_queries() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let daemon = bed.daemon("ibvswitch", Some(&configuration()))?;
    let mut config = bed.config("guest");
    for vf in ["guest", "manager"] {
        config.devices.push(daemon.device(vf, None)?);
    }
    config.modules = MLX5.map(str::to_owned).to_vec();
    let guest = bed.start(config)?;
    guest.booted()?;
    for device in [DENIED, ALLOWED] {
        await_active(&guest, device)?;
    }
    let guest = &guest;
    let before = daemon.status()?;
    let mut checks = Checks::default();

    checks.check(
        "ibnetdiscover finds the own port, and without rules all",
        || {
            let denied = guest.run(&format!("ibnetdiscover -C {DENIED} -t 100"), LIMIT)?;
            if denied.text.contains("Switch\t") || denied.text.contains("subnet manager") {
                return Err(guest.failed(denied.text));
            }
            let text = guest.sh(&format!("ibnetdiscover -C {ALLOWED}"), LIMIT)?;
            expect(
                &text,
                &[
                    "\"sw1\"",
                    "\"hv1\"",
                    "\"hv2\"",
                    "\"victim\"",
                    "subnet manager",
                ],
            )
        },
    );
    for (what, target) in [
        ("a neighbour", "-D nodeinfo 0,1"),
        ("the manager", "nodeinfo 1"),
        ("a port's partitions", "-D pkeys 0,1,1 1"),
    ] {
        checks.check(format_args!("smpquery of {what}"), || {
            fails(guest, &format!("smpquery -C {DENIED} -t 100 {target}"))?;
            for key in ["0x1", "0x1234567890abcdef"] {
                let guess = format!("smpquery -C {DENIED} -t 100 --m_key {key} {target}");
                fails(guest, &guess)?;
            }
            let text = guest.sh(&format!("smpquery -C {ALLOWED} {target}"), LIMIT)?;
            if text.contains("pkeys") || text.contains("0x") || text.contains("Type") {
                return Ok(());
            }
            Err(guest.failed(text))
        });
    }
    checks.check("a port's M_Key is not shown", || {
        let text = guest.sh(
            &format!("smpquery --show_keys -C {DENIED} -D portinfo 0 1"),
            LIMIT,
        )?;
        match field(&text, "Mkey")? {
            "0x0000000000000000" => Ok(()),
            _ => Err(guest.failed(text)),
        }
    });
    checks.check("counters of others", || {
        let vswitch = guest.sh(&format!("smpquery -C {ALLOWED} -D portinfo 0,1 0"), LIMIT)?;
        let switch = field(&vswitch, "Lid")?;
        fails(guest, &format!("perfquery -C {DENIED} -t 100 {switch} 1"))?;
        fails(
            guest,
            &format!("perfquery -C {DENIED} -t 100 -R {switch} 1"),
        )?;
        guest
            .sh(&format!("perfquery -C {ALLOWED} {switch} 1"), LIMIT)
            .map(drop)
    });
    checks.check("devices of others", || {
        let vswitch = guest.sh(&format!("smpquery -C {ALLOWED} -D portinfo 0,1 0"), LIMIT)?;
        let lid = field(&vswitch, "Lid")?;
        fails(guest, &format!("vendstat -C {DENIED} -t 100 -N {lid}"))?;
        let own = Hca::of(guest, DENIED)?.lid;
        for (device, lid) in [(DENIED, own.to_string()), (ALLOWED, lid.to_owned())] {
            let text = guest.sh(&format!("vendstat -C {device} -N {lid}"), LIMIT)?;
            expect(&text, &["hw_uptime:", "fw_version:"])?;
        }
        Ok(())
    });
    checks.check("a second subnet manager finds and changes nothing", || {
        let (output, log) = opensm(guest, DENIED, "-t 100 --retries 1")?;
        // It could not even say that it is there.
        let refused = log.contains("setting IS_SM capmask: cannot open file");
        if !refused || log.contains("victim") || output.contains("SUBNET UP") {
            return Err(guest.failed(format!("{output}\n{log}")));
        }
        let after = daemon.status()?;
        for vf in ["guest", "manager", "victim"] {
            if identity(&before, vf) != identity(&after, vf) {
                return Err(guest.failed(format!("{before}\n{after}")));
            }
        }
        Ok(())
    });
    checks.check(
        "a port is taken down by who may, and by nobody else",
        || {
            let state = || -> Result<Value> {
                Ok(identity(&daemon.status()?, "victim")
                    .first()
                    .cloned()
                    .unwrap_or_default())
            };
            // From the guest's own vSwitch by port 1 to the switch, by its port 2 to the other
            // vSwitch, whose port 2 is the victim's.
            let disable = |device| format!("ibportstate -C {device} -t 100 -D 0,1,1,2 2 disable");
            fails(guest, &disable(DENIED))?;
            let untouched = state()?;
            guest.sh(&disable(ALLOWED), LIMIT)?;
            let down = state()?;
            if untouched == "Active" && down == "Down" {
                return Ok(());
            }
            Err(guest.failed(format!("{untouched} before, {down} after")))
        },
    );
    checks.check("what was refused is counted and told", || {
        let status = daemon.status()?;
        let refused = |vf: usize, reason: &str| {
            status["vfs"][vf]["mads"]["refused"][reason]
                .as_u64()
                .unwrap_or(0)
        };
        if refused(0, "smp") > 10 && refused(0, "class") > 0 && refused(1, "smp") == 0 {
            return Ok(());
        }
        Err(guest.failed(status.to_string()))
    });
    checks.check("a second subnet manager that may takes over", || {
        let (output, log) = opensm(guest, ALLOWED, "-v")?;
        if output.contains("Entering MASTER state") && log.contains("SUBNET UP") {
            return Ok(());
        }
        Err(guest.failed(format!("{output}\n{log}")))
    });
    checks.finish();
    Ok(())
}
