use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use config::Directories;
use testing::Configuration;

/// A made-up host.
struct Made(tempfile::TempDir);

const QEMU: &str = "bin/qemu-system-x86_64";

impl Made {
    /// Nothing is there but what every Linux has.
    fn bare() -> Self {
        let made = Self(tempfile::tempdir().expect("a directory"));
        made.write("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme sse2\n");
        made.write("proc/sys/vm/max_map_count", "65530\n");
        made.write("proc/interrupts", " 1: 0 IO-APIC 1-edge i8042\n");
        made.write("proc/self/status", "CapEff:\t000001ffffffffff\n");
        made
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("is made");
        fs::write(path, text).expect("is written");
    }

    /// A program. A shell writes it: a file that this process has open, another thread's child may have
    /// open as well, and then it cannot be run.
    fn program(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("is made");
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut input = shell.stdin.take().expect("is piped");
        input.write_all(text.as_bytes()).expect("is read");
        drop(input);
        assert!(shell.wait().expect("ends").success());
    }

    fn qemu(&self, version: &str, devices: &str) {
        let text = format!(
            "#!/bin/sh\ncase $1 in\n-version) echo 'QEMU emulator version {version} (Debian)';;\n\
             -device) echo 'name \"{devices}\", bus PCI';;\n*) exit 1;;\nesac\n"
        );
        self.program(QEMU, &text);
    }

    fn doctor(&self) -> Doctor {
        let root = self.0.path();
        Doctor {
            root: root.to_owned(),
            path: root.join("bin").into(),
            patience: Duration::from_secs(60),
            qemu: None,
            processors: 2,
            allowed: vec![0, 1],
            open_files: 4096,
            available: Some(Available::Machine(8 << 30)),
            host: Host::at(root),
        }
    }

    fn config(&self, text: impl Display) -> Config {
        let dir = self.0.path().join("sockets");
        let dirs = Directories {
            chosen: Some(&dir),
            fallback: Path::new("/run/ibvswitch"),
        };
        Config::parse("f", &text.to_string(), dirs).expect("is right")
    }

    fn examine(&self, text: impl Display) -> Report {
        self.doctor().examine(&self.config(text))
    }
}

fn two() -> Configuration {
    Configuration::new().hypervisor("hv1", ["vm1", "vm2"])
}

fn all(report: &Report) -> impl Iterator<Item = &Finding> {
    report.checks.iter().chain(&report.passthrough.checks)
}

fn of<'a>(report: &'a Report, what: &str) -> &'a Finding {
    let found = all(report).find(|it| it.what == what);
    found.unwrap_or_else(|| panic!("no {what} in {report:?}"))
}

fn verdicts(report: &Report) -> Vec<(&'static str, Verdict)> {
    all(report).map(|it| (it.what, it.verdict)).collect()
}

#[test]
fn a_host_is_made_ready_step_by_step() {
    use Verdict::{Error, Note, Ok, Warning};
    let made = Made::bare();
    let report = made.examine(two());
    let bare = [
        ("QEMU", Error),
        ("KVM", Warning),
        ("memory", Ok),
        ("shared memory", Ok),
        ("huge pages", Note),
        ("open files", Ok),
        ("mappings", Ok),
        ("doorbells", Ok),
        ("runtime directory", Ok),
        ("daemon", Note),
        ("service", Note),
        ("IOMMU", Note),
        ("interrupts", Note),
        ("locked memory", Ok),
        ("VFIO", Note),
    ];
    assert_eq!(verdicts(&report), bare);
    assert!(report.has_errors());
    // Whatever is not as it has to be says what to do; nothing says twice what it is about.
    for check in all(&report) {
        assert!(!check.found.starts_with(check.what), "{check:?}");
        assert!(check.verdict == Ok || check.remedy.is_some(), "{check:?}");
    }

    made.qemu("10.0.13", "vfio-pci");
    let report = made.examine(two());
    let old = "is 10.0.13 and has no vfio-user-pci";
    assert!(of(&report, "QEMU").found.ends_with(old), "{report:?}");
    assert!(report.has_errors());
    made.qemu("11.1.3", "vfio-user-pci");
    let report = made.examine(two());
    let new = format!(
        "{} is 11.1.3 and has vfio-user-pci",
        made.0.path().join(QEMU).display()
    );
    assert_eq!(of(&report, "QEMU").found, new);
    assert!(!report.has_errors(), "{report:?}");

    made.write("proc/cpuinfo", "flags\t\t: fpu vmx sse2\n");
    let report = made.examine(two());
    let remedy = of(&report, "KVM").remedy.as_deref();
    let module = "`modprobe kvm_intel`; a container has to be given /dev/kvm as well";
    assert_eq!(remedy, Some(module));
    made.write("dev/kvm", "");
    assert_eq!(of(&made.examine(two()), "KVM").verdict, Ok);
    made.write("proc/cpuinfo", "flags\t\t: fpu sse2\n");
    assert_eq!(of(&made.examine(two()), "KVM").verdict, Warning);

    let pools = "sys/kernel/mm/hugepages";
    made.write(
        &format!("{pools}/hugepages-1048576kB/free_hugepages"),
        "2\n",
    );
    made.write(&format!("{pools}/hugepages-2048kB/free_hugepages"), "64\n");
    let report = made.examine(two());
    let found = &of(&report, "huge pages").found;
    assert_eq!(found, "64 of 2 MiB, 2 of 1024 MiB free");
}

#[test]
fn a_qemu_that_does_not_run_says_why() {
    let made = Made::bare();
    made.program(QEMU, "#!/bin/sh\necho 'no such library' >&2\nexit 127\n");
    let report = made.examine(two());
    let found = &of(&report, "QEMU").found;
    assert!(
        found.ends_with("does not run: exit status: 127: no such library"),
        "{found}"
    );
    assert!(report.has_errors());
    // Another one is named.
    made.program(
        "else",
        "#!/bin/sh\necho 'version 11.0.0 \"vfio-user-pci\"'\n",
    );
    let doctor = Doctor {
        qemu: Some(made.0.path().join("else")),
        ..made.doctor()
    };
    let report = doctor.examine(&made.config(two()));
    assert_eq!(of(&report, "QEMU").verdict, Verdict::Ok);
}

/// The child of the script outlives it, with what the script printed to.
#[test]
fn a_program_that_hangs_is_killed() {
    let made = Made::bare();
    let hangs = "#!/bin/sh\nwhile :; do sleep 1; done\n";
    made.program(QEMU, hangs);
    made.program("bin/systemctl", hangs);
    fs::create_dir_all(made.0.path().join("run/systemd/system")).expect("is made");
    let doctor = Doctor {
        patience: Duration::from_millis(10),
        ..made.doctor()
    };
    let report = doctor.examine(&made.config(two()));
    let qemu = of(&report, "QEMU");
    assert_eq!(qemu.verdict, Verdict::Error);
    let killed = "it had not ended after 0.01 s, and was killed";
    let expected = format!("{QEMU} does not run: {killed}");
    assert!(qemu.found.ends_with(&expected), "{qemu:?}");
    let service = of(&report, "service");
    assert_eq!(service.verdict, Verdict::Warning);
    let expected = format!("systemctl does not show its state: {killed}");
    assert_eq!(service.found, expected);
}

/// A VM with an Ethernet card is for any QEMU.
#[test]
fn cards_need_no_vfio_user() {
    let made = Made::bare();
    made.qemu("7.2.0", "vfio-pci");
    let cards = Configuration::new().hypervisor("h", []).port("p", 1);
    let report = made.examine(cards);
    assert_eq!(of(&report, "QEMU").verdict, Verdict::Note);
    assert!(!report.checks.iter().any(|it| it.what == "doorbells"));
    assert!(!report.has_errors(), "{report:?}");
}

#[test]
fn where_to_get_qemu_depends_on_the_system() {
    let made = Made::bare();
    for (release, expected) in [
        (
            "ID=debian\nVERSION_CODENAME=bookworm\n",
            "no suite of this Debian",
        ),
        (
            "ID=debian\nVERSION_CODENAME=trixie\n",
            "-t trixie-backports",
        ),
        ("ID=debian\nVERSION_CODENAME=forky\n", "`apt install qemu"),
        ("ID=\"fedora\"\nVERSION_ID=44\n", "Debian has it in"),
        ("", "Debian has it in"),
    ] {
        made.write("etc/os-release", release);
        let report = made.examine(two());
        let remedy = of(&report, "QEMU").remedy.as_deref().expect("one");
        assert!(remedy.contains(expected), "{release}: {remedy}");
    }
}

#[test]
fn doorbells_by_number_of_processors() {
    use Verdict::{Note, Ok, Warning};
    let made = Made::bare();
    for (engine, processors, verdict, found) in [
        (
            "",
            2,
            Ok,
            "\"trap\" suits 2 processors: 2 VMs of one each and 1 engine that polls would take 3; \
             configured: trap",
        ),
        (
            "",
            3,
            Note,
            "\"poll\" suits 3 processors: 2 VMs of one each and 1 engine that polls would take 3; \
             configured: trap",
        ),
        (
            "doorbells = 'poll'",
            2,
            Warning,
            "\"trap\" suits 2 processors: 2 VMs of one each and 1 engine that polls would take 3; \
             configured: 2 of 2 VFs poll",
        ),
        (
            "doorbells = 'adaptive'",
            2,
            Warning,
            "\"trap\" suits 2 processors: 2 VMs of one each and 1 engine that polls would take 3; \
             configured: 2 of 2 VFs poll",
        ),
        (
            "doorbells = 'poll'",
            8,
            Note,
            "\"poll\" suits 8 processors: 2 VMs of one each and 1 engine that polls would take 3; \
             configured: 2 of 2 VFs poll",
        ),
        (
            "doorbells = 'poll'\ncpu = 7",
            8,
            Ok,
            "\"poll\" suits 8 processors: 2 VMs of one each and 1 engine that polls would take 3; \
             configured: 2 of 2 VFs poll",
        ),
        (
            "threads = 2",
            3,
            Ok,
            "\"trap\" suits 3 processors: 2 VMs of one each and 2 engines that poll would take 4; \
             configured: trap",
        ),
    ] {
        let config = made.config(format!("[engine]\n{engine}\n{}", two()));
        let allowed: Vec<usize> = (0..processors).collect();
        let check = doorbells::check(&config, processors, &allowed).expect("one");
        assert_eq!(check.verdict, verdict, "{engine} {processors}: {check:?}");
        assert_eq!(check.found, found);
        if let Some(remedy) = check.remedy.filter(|_| verdict == Note) {
            let last = format!("`cpu = {}`", processors - 1);
            assert!(remedy.contains(&last), "{remedy}");
        }
    }
}

/// Processors that the process may use, may be any.
#[test]
fn engines_are_put_where_the_process_may_run() {
    let made = Made::bare();
    for (engine, allowed, expected) in [
        ("", &[4, 5, 9][..], "`cpu = 9`"),
        ("doorbells = 'poll'", &[4, 5, 9], "`cpu = 9`"),
        ("threads = 2", &[4, 5, 6, 9], "`cpu = 5`"),
        (
            "threads = 2\ndoorbells = 'poll'",
            &[1, 3, 5, 7],
            "let the daemon run on 2 processors with successive numbers",
        ),
    ] {
        let config = made.config(format!("[engine]\n{engine}\n{}", two()));
        let check = doorbells::check(&config, allowed.len(), allowed).expect("one");
        let remedy = check.remedy.expect("one");
        assert!(remedy.contains(expected), "{engine} {allowed:?}: {remedy}");
    }
    let config = made.config(two().set("engine.threads", 2));
    let check = doorbells::check(&config, 4, &[1, 3, 5, 7]).expect("one");
    let remedy = check.remedy.expect("one");
    assert!(!remedy.contains("cpu"), "{remedy}");
    // The affinity of this thread alone.
    let last = *crate::host::machine::allowed().last().expect("one");
    let mut set = nix::sched::CpuSet::new();
    set.set(last).expect("is a number of a processor");
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).expect("is its own");
    assert_eq!(super::allowed(), [last]);
}

#[test]
fn limits_are_those_of_so_many_vfs() {
    let made = Made::bare();
    let need = |config: &Config| {
        let found = limits::open_files(config, u64::MAX).found;
        let words: Vec<&str> = found.split(' ').collect();
        let number = words.iter().find_map(|word| word.parse::<u64>().ok());
        number.unwrap_or_else(|| panic!("no number in {found}"))
    };
    let config = made.config(two());
    let need = need(&config);
    assert_eq!(limits::open_files(&config, need).verdict, Verdict::Ok);
    let short = limits::open_files(&config, need - 1);
    assert_eq!(short.verdict, Verdict::Warning);
    assert!(short.remedy.expect("one").contains("LimitNOFILE"));
    made.write("proc/sys/vm/max_map_count", "100\n");
    let report = made.examine(two());
    let mappings = of(&report, "mappings");
    assert_eq!(mappings.verdict, Verdict::Warning);
    assert!(
        mappings.found.starts_with("a process may have 100, "),
        "{mappings:?}"
    );
}

#[test]
fn too_little_memory_is_what_a_configuration_check_says() {
    let made = Made::bare();
    let doctor = Doctor {
        available: Some(Available::ControlGroup(1 << 20)),
        ..made.doctor()
    };
    let report = doctor.examine(&made.config(two()));
    let memory = of(&report, "memory");
    assert_eq!(memory.verdict, Verdict::Warning);
    assert!(
        memory.found.starts_with("guests can make the daemon take "),
        "{memory:?}"
    );
    assert!(memory.remedy.as_deref().expect("one").contains("MemoryMax"));
}

#[test]
fn a_runtime_directory_that_cannot_be() {
    let made = Made::bare();
    let config = made.config(two());
    let found = service::runtime_dir(&config.runtime_dir, false);
    assert!(
        found.found.ends_with("is made when the daemon starts"),
        "{found:?}"
    );
    assert!(!config.runtime_dir.exists());
    made.write("sockets", "");
    assert_eq!(
        service::runtime_dir(&config.runtime_dir, false).verdict,
        Verdict::Error
    );
    let serves = service::runtime_dir(&config.runtime_dir, true);
    assert_eq!(serves.verdict, Verdict::Ok);
    // Below a file there can be none.
    let below = config.runtime_dir.join("below");
    assert_eq!(service::runtime_dir(&below, false).verdict, Verdict::Error);
}

/// The daemon refuses it, and who runs the doctor may have another user's in mind.
#[test]
fn a_runtime_directory_of_another_user() {
    let made = Made::bare();
    let dir = made.0.path();
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can give a directory away");
        return;
    }
    std::os::unix::fs::chown(dir, Some(65534), None).expect("root may");
    let other = service::runtime_dir(dir, false);
    assert_eq!(other.verdict, Verdict::Warning);
    assert!(
        other
            .found
            .ends_with("belongs to user 65534, and this is user 0")
    );
    let remedy = other.remedy.expect("one");
    assert!(remedy.starts_with("run the daemon as that user, or "));
}

#[test]
fn access_to_kvm_is_its_groups() {
    let made = Made::bare();
    made.write("kvm", "");
    let device = made.0.path().join("kvm");
    let mode = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(&device, permissions).expect("is its own");
    };
    mode(0o600);
    let closed = accelerator::permission(&device);
    assert!(
        closed.starts_with("as root: `chgrp kvm /dev/kvm"),
        "{closed}"
    );
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root can give a device to another group");
    } else {
        std::os::unix::fs::chown(&device, None, Some(65534)).expect("root may");
        mode(0o660);
        let open = accelerator::permission(&device);
        assert!(
            open.starts_with("put the user who runs QEMU into"),
            "{open}"
        );
    }
}

#[test]
fn the_service_as_systemd_says() {
    let made = Made::bare();
    fs::create_dir_all(made.0.path().join("run/systemd/system")).expect("is made");
    let unit = || service::unit(made.doctor().programs(), &made.doctor().root);
    assert_eq!(unit().verdict, Verdict::Warning);
    for (states, verdict, found) in [
        (
            "not-found inactive dead",
            Verdict::Note,
            "there is no ibvswitch.service",
        ),
        (
            "loaded active running",
            Verdict::Ok,
            "ibvswitch.service is active (running)",
        ),
        (
            "loaded inactive dead",
            Verdict::Note,
            "ibvswitch.service is inactive (dead)",
        ),
        (
            "loaded failed failed",
            Verdict::Error,
            "ibvswitch.service has failed (failed)",
        ),
    ] {
        let [load, active, sub] = states.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{states}");
        };
        // As systemctl prints them, in an order of its own.
        made.program(
            "bin/systemctl",
            &format!(
                "#!/bin/sh\n[ \"$3\" = ibvswitch.service ] || exit 1\n\
                 echo LoadState={load}\necho ActiveState={active}\necho SubState={sub}\n"
            ),
        );
        let unit = unit();
        assert_eq!((unit.verdict, &*unit.found), (verdict, found));
    }
}

#[test]
fn what_is_passed_through_needs_more() {
    let made = Made::bare();
    made.qemu("11.1.3", "vfio-user-pci");
    let passed = two().vf("vm3").key("device", "0000:3b:00.2");
    let report = made.examine(&passed);
    assert!(report.passthrough.configured);
    assert_eq!(of(&report, "IOMMU").verdict, Verdict::Error);
    assert_eq!(of(&report, "VFIO").verdict, Verdict::Error);
    assert!(report.has_errors());
    // One that another process serves needs none of that.
    let served = two().vf("vm3").key("device", "unix:/x.sock");
    assert_eq!(of(&made.examine(served), "IOMMU").verdict, Verdict::Note);
    for path in [
        "sys/bus/pci/drivers/vfio-pci/x",
        "sys/module/vfio_iommu_type1/x",
    ] {
        made.write(path, "");
    }
    assert_eq!(of(&made.examine(passed), "VFIO").verdict, Verdict::Ok);
}
