//! The unit of the daemon under systemd: in its sandbox it serves, is handed over by a reload, comes again when it is
//! killed, and ends.

use std::{fs, path::Path, time::Duration};

use ibvswitch_guest_tests::{
    Result,
    checks::Checks,
    daemon::program,
    guest::Guest,
    image::{Image, Kernel},
    testbed::Testbed,
};
use testing::Configuration;

const LIMIT: Duration = Duration::from_secs(120);
/// The unit, and the configuration, which has it keep the ports' LIDs.
const UNIT: &str = include_str!("../../../../qemu/ibvswitch.service");
fn configuration() -> Configuration {
    Configuration::new()
        .set("sm.state_dir", "/var/lib/ibvswitch")
        .hypervisor("hv1", ["vm1"])
        .hypervisor("hv2", ["vm2"])
}

/// A guest with systemd, the programs, and the unit as the Debian package has it.
fn host(bed: &Testbed) -> Result<Guest> {
    let packages = ["systemd", "util-linux"].map(str::to_owned);
    let image = Image::with_packages(Kernel::default(), &packages)?;
    let [unit, config] = ["unit", "config"].map(|name| bed.dir().join(name));
    fs::write(&unit, UNIT.replace("/usr/local/bin/", "/usr/bin/")).expect("is written");
    fs::write(&config, configuration().to_string()).expect("is written");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/life/service");
    let script = |name| scripts.join(name);
    let files = [
        ("usr/bin/ibvswitch", program()?),
        (
            "usr/bin/ibvswitch-probe",
            env!("CARGO_BIN_EXE_ibvswitch-probe").into(),
        ),
        ("usr/lib/systemd/system/ibvswitch.service", unit),
        ("etc/ibvswitch.toml", config),
        ("usr/bin/systemd-begin", script("systemd-begin")),
        ("usr/bin/systemd-namespace", script("systemd-namespace")),
        ("usr/bin/systemd-inside", script("systemd-inside")),
    ];
    let files = files
        .each_ref()
        .map(|(name, path)| (*name, path.as_path() as &Path));
    let mut config = bed.config("host");
    config.image = image.with(&files, &[], bed.dir())?;
    config.memory = 1536;
    let host = bed.start(config)?;
    host.booted()?;
    host.sh("systemd-begin", LIMIT)?;
    Ok(host)
}

#[test]
#[ignore = "a guest of its own, for what changes rarely: a minute and a half"]
fn the_unit_serves_and_goes_on() -> Result<()> {
    let bed = Testbed::new(Kernel::default())?;
    let host = host(&bed)?;
    let sh = |command: &str| host.sh(&format!("systemd-inside {command}"), LIMIT);
    let status = || -> Result<serde_json::Value> {
        let said = sh("ibvswitch status --json")?;
        serde_json::from_str(&said).map_err(|error| host.failed(format!("{error}: {said}")))
    };
    let pid = || Ok(status()?["pid"].as_u64());
    let is_connected = || Ok(status()?["vfs"][0]["client_connected"] == true);
    let fails = |said: String| Err(host.failed(said));
    let mut checks = Checks::default();
    checks.check("it starts, in its sandbox", || {
        sh("systemctl start ibvswitch")?;
        let text = sh("ibvswitch status")?;
        if !text.contains("Sandbox: Landlock, seccomp\n") {
            return fails(text);
        }
        // The user is one that there was not before.
        let (served, user) = (pid()?.unwrap_or(0), "awk '/^Uid/ {print $2}'");
        let user = sh(&format!("{user} /proc/{served}/status"))?;
        match user.trim().parse() {
            Ok(61184..=65519) => Ok(()),
            _ => fails(format!("user {user}")),
        }
    });
    checks.check("data go between two VFs", || {
        sh("ibvswitch-probe transfer /run/ibvswitch/vm1.sock /run/ibvswitch/vm2.sock").map(drop)
    });
    let mut holds = host.spawn("systemd-inside ibvswitch-probe hold /run/ibvswitch/vm1.sock")?;
    holds.await_text("held", LIMIT)?;
    checks.check("a reload hands its VFs over", || {
        sh("systemctl reload ibvswitch")?;
        sh("systemctl is-active ibvswitch")?;
        let now = status()?;
        if now["upgraded"]["count"] == 1 && now["upgraded"]["vms"] == 1 && is_connected()? {
            return Ok(());
        }
        fails(now.to_string())
    });
    checks.check("a daemon that is killed comes again, with its VFs", || {
        let before = pid()?.unwrap_or(0);
        sh(&format!("kill -KILL {before}"))?;
        let until = "until ibvswitch status --json >/dev/null 2>&1; do sleep 0.1; done";
        sh(&format!("sh -c '{until}'"))?;
        sh("systemctl is-active ibvswitch")?;
        if pid()? != Some(before) && is_connected()? {
            return Ok(());
        }
        fails(status()?.to_string())
    });
    checks.check("it ends when it is told to", || {
        sh("systemctl stop ibvswitch")?;
        let told = sh("systemctl show -P Result -P ActiveState ibvswitch")?;
        let left = host.run("pidof ibvswitch", LIMIT)?;
        if told.split_whitespace().eq(["success", "inactive"]) && left.status != 0 {
            return Ok(());
        }
        fails(format!("{told}{}", left.text))
    });
    checks.check("LIDs are those of the last time", || {
        let lids = sh("find /var/lib/private/ibvswitch -type f")?;
        sh("systemctl start ibvswitch")?;
        if lids.is_empty() || status()?["vfs"][1]["lid"] != 4 {
            return fails(lids);
        }
        sh("systemctl stop ibvswitch").map(drop)
    });
    checks.check("a mistake in the configuration is told of", || {
        host.sh("sed -i '1i nonsense = 1' /etc/ibvswitch.toml", LIMIT)?;
        let started = host.run("systemd-inside systemctl start ibvswitch", LIMIT)?;
        let told = sh("journalctl --no-pager --unit ibvswitch --boot")?;
        if started.status != 0 && told.contains("nonsense") {
            return Ok(());
        }
        fails(told)
    });
    checks.finish();
    Ok(())
}
