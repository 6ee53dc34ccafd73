//! Attachment of VMs: arguments of QEMU, files of libvirt and systemd.

use super::*;

#[test]
fn qemu_arguments() {
    let dir = scratch();
    let socket = dir.path().join("vm1.sock");
    let device = format!(
        r#"{{"driver":"vfio-user-pci","id":"vm1","socket":{{"type":"unix","path":"{}"}}}}"#,
        socket.display()
    );
    let outcome = run(dir.path(), &["vf", "qemu-args", "vm1", "--memory", "2G"]);
    assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
    assert_eq!(
        outcome.out,
        format!(
            "-object memory-backend-memfd,id=ibvswitch-ram,size=2G,share=on \
             -machine q35,memory-backend=ibvswitch-ram -device '{device}'\n"
        )
    );
    let outcome = run(
        dir.path(),
        &["vf", "qemu-args", "vm1", "--device-only", "--json"],
    );
    let arguments: Vec<String> = serde_json::from_str(&outcome.out).expect("is JSON");
    assert_eq!(arguments, ["-device", device.as_str()]);
    let outcome = run(dir.path(), &["vf", "qemu-args", "vm9"]);
    assert_eq!(outcome.status, UNKNOWN);
    for memory in ["", "G", "1GG", "0", "1G,share=off", "-1G", "1.5G"] {
        let outcome = run(
            dir.path(),
            &["vf", "qemu-args", "vm1", &format!("--memory={memory}")],
        );
        assert_eq!(outcome.status, USAGE, "{memory}");
    }
}

/// The plan is that of this machine, which has at least one processor and no 1000 GiB.
#[test]
fn a_vm_that_would_overcommit_the_host_is_refused() {
    let dir = scratch();
    let file = dir.path().join("c.toml");
    let vms = "[[hypervisor]]\nname = 'h'\n[[hypervisor.vf]]\nname = 'vm1'\nbackground = true\n\
               [[hypervisor.vf]]\nname = 'vm2'\nprocessors = 288\n";
    std::fs::write(&file, vms).expect("is written");
    let run = |args: &[&str]| {
        let config = ["--config", file.to_str().expect("is text")];
        run(dir.path(), &[&config[..], args].concat())
    };
    let prefix = run(&["vf", "qemu-args", "vm1", "--prefix"]);
    assert!(prefix.out.starts_with("chrt --idle 0"), "{}", prefix.err);
    let large = run(&["vf", "qemu-args", "vm1", "--memory", "1000T"]);
    assert_eq!(large.status, FAILURE);
    assert!(
        large.err.starts_with(
            "ibvswitch: vm1: its 1048576000 MiB of memory are more than are left: of "
        ),
        "{}",
        large.err
    );
    let told = "vm2: processors of its own: 288, and left: ";
    let xml = run(&["vf", "libvirt-xml", "vm2"]);
    assert!(
        xml.status == FAILURE && xml.err.contains(told),
        "{}",
        xml.err
    );
    let plan = run(&["host", "plan"]);
    assert_eq!(plan.status, FAILURE);
    assert!(
        plan.out.contains(&format!("  refused  {told}")),
        "{}",
        plan.out
    );
    let plan = run(&["host", "plan", "--json", "--memory", "1M"]);
    let plan: serde_json::Value = serde_json::from_str(&plan.out).expect("is JSON");
    assert_eq!(plan["vms"][0]["class"], "background");
    assert_eq!(plan["memory"]["vms"], 2 << 20);
    assert_eq!(plan["refused"][0]["subject"], "vm2");
}

#[test]
fn libvirt_xml() {
    let dir = scratch();
    let outcome = run(dir.path(), &["vf", "libvirt-xml", "vm1"]);
    assert_eq!(outcome.status, SUCCESS, "{}", outcome.err);
    assert!(
        outcome.out.contains("<access mode='shared'/>"),
        "{}",
        outcome.out
    );
    assert!(
        outcome
            .out
            .contains("<qemu:arg value='{\"driver\":\"vfio-user-pci\",")
    );
}

/// The file in the source tree is what the program prints, with the socket of the systemd unit.
#[test]
fn libvirt_snippet_is_up_to_date() {
    let outcome = run(Path::new("/run/ibvswitch"), &["vf", "libvirt-xml", "vm1"]);
    let snippet = include_str!("../../../../qemu/libvirt-snippet.xml");
    assert!(
        snippet.ends_with(&outcome.out),
        "{snippet}\n{}",
        outcome.out
    );
}

/// The directories that the built-in configuration speaks of are there under the systemd unit, which lets
/// the daemon write to no others; and systemd finds nothing wrong with this unit and those beside it.
#[test]
fn the_units_fit_the_configuration() {
    let unit = include_str!("../../../../qemu/ibvswitch.service");
    let configuration = run(Path::new("/run/ibvswitch"), &["config", "default"]).out;
    let mut found = 0;
    for line in configuration.lines() {
        let keys = [
            ("state_dir", "/var/lib", "State"),
            ("runtime_dir", "/run", "Runtime"),
        ];
        for (key, base, directory) in keys {
            let value = line.strip_prefix(&format!("# {key} = \"{base}/"));
            if let Some(name) = value.and_then(|value| value.strip_suffix('"')) {
                let wanted = format!("{directory}Directory={name}");
                assert!(unit.lines().any(|line| line == wanted), "{wanted}");
                found += 1;
            }
        }
    }
    assert_eq!(found, 2);

    let dir = scratch();
    let units = [
        ("ibvswitch", unit),
        (
            "ibvswitch-metrics",
            include_str!("../../../../qemu/ibvswitch-metrics.service"),
        ),
        (
            "ibvswitch-web",
            include_str!("../../../../qemu/ibvswitch-web.service"),
        ),
        (
            "ibvswitch-opensm",
            include_str!("../../../../qemu/ibvswitch-opensm.service"),
        ),
    ];
    let files = units.map(|(name, unit)| {
        let file = dir.path().join(format!("{name}.service"));
        let here = unit.replace("/usr/local/bin/ibvswitch", env!("CARGO_BIN_EXE_ibvswitch"));
        std::fs::write(&file, here).expect("is written");
        file
    });
    let checked = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&files)
        .output()
        .expect("is installed");
    assert!(checked.status.success());
    assert_eq!(String::from_utf8_lossy(&checked.stderr), "");
}
