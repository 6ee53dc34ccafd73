//! Mistakes of whoever uses the program: what it says, word for word, and its exit status.

use std::fs;

use crate::daemon::Daemon;

const CONFIGURATION: &str = "[[hypervisor]]\nname = \"hv1\"\n[[hypervisor.vf]]\nname = \"vm1\"\n";

/// The program without a daemon, in a directory of the test's own: status, output and message.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    run_in(dir.path().to_str().expect("is text"), arguments)
}

fn run_in(dir: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .env_remove("IBVSWITCH_CONFIG")
        .env_remove("RUST_LOG")
        .args(["--runtime-dir", dir])
        .args(arguments)
        .output()
        .expect("starts");
    let text = |bytes| String::from_utf8(bytes).expect("is text");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Options that environment variables set are no part of the usage.
#[test]
fn a_usage_line_beside_environment_variables() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .env("IBVSWITCH_RUNTIME_DIR", "/run/ibvswitch")
        .env("IBVSWITCH_CONFIG", "/etc/ibvswitch.toml")
        .args(["vf", "qemu-args"])
        .output()
        .expect("starts");
    let told = String::from_utf8(output.stderr).expect("is text");
    assert!(
        told.contains("\nUsage: ibvswitch vf qemu-args <NAME>\n"),
        "{told}"
    );
    assert_eq!(output.status.code(), Some(2));
}

/// `config check` refuses what `run` would refuse, with the same words and status; nothing is created.
#[test]
fn files_that_the_configuration_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let config = path("c.toml");
    fs::create_dir(path("memory")).expect("is created");
    fs::write(path("memory/guid2lid"), "0x1 0x2 0x1\n").expect("is written");
    fs::write(
        path("partitions.conf"),
        "Default : ALL=full ;\nblue=0x10 : vm9 ;\n",
    )
    .expect("is written");
    for (sm, message) in [
        (
            format!("partitions_file = \"{}\"", path("none.conf")),
            format!(
                "cannot read {}: No such file or directory (os error 2)",
                path("none.conf")
            ),
        ),
        (
            format!("partitions_file = \"{}\"", path("partitions.conf")),
            format!("{}:2: ", path("partitions.conf")),
        ),
        (
            format!("state_dir = \"{}\"", path("memory")),
            format!("{}: line 1: ", path("memory/guid2lid")),
        ),
    ] {
        fs::write(&config, format!("[sm]\n{sm}\n{CONFIGURATION}")).expect("is written");
        let mut said = Vec::new();
        for command in [
            &["config", "check"][..],
            &["run"],
            &["topology", "--planned"],
        ] {
            let sockets = path("run");
            let (status, out, err) = run_in(&sockets, &[command, &["--config", &config]].concat());
            assert_eq!(status, Some(3), "{command:?} {err}");
            assert_eq!(out, "");
            let wanted = format!("ibvswitch: the subnet cannot be set up: {message}");
            assert!(err.starts_with(&wanted), "{err}");
            assert!(!fs::exists(&sockets).expect("is readable"));
            said.push(err);
        }
        assert!(said.iter().all(|other| *other == said[0]), "{said:?}");
    }
}

#[test]
fn programs_of_the_host() {
    let (status, out, err) = run(&["external", "run", "ibnetdiscover"]);
    assert_eq!((status, out.as_str()), (Some(4), ""), "{err}");
    assert!(err.starts_with("ibvswitch: no daemon answers on "), "{err}");

    let daemon = Daemon::configured(CONFIGURATION);
    let external = |arguments: &[&str]| {
        let outcome = daemon.run(&[&["external", "run"], arguments].concat(), "");
        assert_eq!(outcome.out, "");
        (outcome.status, outcome.err)
    };
    assert_eq!(
        external(&["--host", "vm9", "ibnetdiscover"]),
        (
            Some(5),
            "ibvswitch: there is no node `vm9`; there are sw1, hv1, vm1, subnet manager\n"
                .to_owned()
        )
    );
    assert_eq!(
        external(&["nosuchprog"]),
        (
            Some(1),
            "ibvswitch: nosuchprog cannot be run: No such file or directory (os error 2); name a \
             program that is installed (Debian: opensm, infiniband-diags), or write its path\n"
                .to_owned()
        )
    );
    drop(daemon);

    let daemon = Daemon::configured(format!("[external]\nsocket = \"\"\n{CONFIGURATION}"));
    // Asked with the built-in configuration, which serves programs.
    let refused = daemon.run(&["external", "run", "ibnetdiscover"], "");
    assert_eq!(
        (refused.status, refused.err.as_str()),
        (
            Some(1),
            "ibvswitch: the daemon refused: `external.socket = \"\"`: programs of the host are not \
             served; remove the key, or write a name\n"
        )
    );
    drop(daemon);

    // The daemon says where its sockets are, and not the configuration of who asks.
    let socket = format!("mistakes-{}", std::process::id());
    let daemon = Daemon::configured(format!(
        "[external]\nsocket = \"{socket}\"\n{CONFIGURATION}"
    ));
    let host = daemon.run(
        &[
            "external",
            "run",
            "sh",
            "-c",
            "unset LD_PRELOAD; echo $IBSIM_SOCKNAME",
        ],
        "",
    );
    assert_eq!((host.status, host.out.trim()), (Some(0), socket.as_str()));
}

#[test]
fn a_file_of_metrics_that_cannot_be_written() {
    let daemon = Daemon::configured(CONFIGURATION);
    let outcome = daemon.run(&["metrics", "--write", "/nowhere/x.prom"], "");
    assert_eq!(
        (outcome.status, outcome.err.as_str()),
        (
            Some(1),
            "ibvswitch: cannot write /nowhere/x.prom: No such file or directory (os error 2); name a \
             file in a directory where this user may write\n"
        )
    );
}

/// The file for Prometheus says that there is no daemon; the command fails all the same.
#[test]
fn a_file_of_metrics_without_a_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("x.prom");
    let path = |path: &std::path::Path| path.to_str().expect("is text").to_owned();
    let (dir, written) = (path(dir.path()), path(&file));
    let (status, _, err) = run(&["metrics", "--runtime-dir", &dir, "--write", &written]);
    assert_eq!(status, Some(4), "{err}");
    let text = std::fs::read_to_string(&file).expect("is written");
    assert!(text.ends_with("\nibvswitch_up 0\n"), "{text}");
}

/// A VM without a place to go to is a mistake of the command line, with a daemon and without.
#[test]
fn a_migration_without_a_destination() {
    let (status, out, err) = run(&["vf", "migrate", "vm1"]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    let wanted = "error: `vm1` has no destination; write `vm1=HYPERVISOR`, or add --to HYPERVISOR\n\n\
                  Usage: ibvswitch vf migrate [OPTIONS] [VM[=HYPERVISOR]]...\n";
    assert!(err.starts_with(wanted), "{err}");
}

/// QEMU's `-m` counts in MiB, and its `size=` in bytes.
#[test]
fn memory_is_in_mebibytes() {
    for (memory, size) in [("1536", "1536M"), ("1536M", "1536M"), ("2g", "2g")] {
        let (status, out, err) = run(&["vf", "qemu-args", "vm1", "--memory", memory]);
        assert_eq!(status, Some(0), "{err}");
        assert!(
            out.contains(&format!(",size={size},share=on ")),
            "{memory}: {out}"
        );
    }
    let (status, _, err) = run(&["vf", "qemu-args", "vm1", "--memory", "1.5G"]);
    assert_eq!(status, Some(2));
    let wanted = "error: invalid value '1.5G' for '--memory <SIZE>': write a number of MiB, or one with \
                  K, M, G or T after it, such as 2G\n";
    assert!(err.starts_with(wanted), "{err}");
}

/// A subnet that is no tree, where Graphviz is not installed.
#[test]
fn a_picture_without_graphviz() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("c.toml");
    let ring = "[[switch]]\nname = \"a\"\n[[switch]]\nname = \"b\"\n[[link]]\nfrom = \"a\"\nto = \"b\"\n\
                [[hypervisor]]\nname = \"hv1\"\n[[hypervisor]]\nname = \"hv2\"\nswitch = \"b\"\n";
    fs::write(&config, ring).expect("is written");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ibvswitch"))
        .args(["topology", "--planned", "--format", "svg", "--config"])
        .arg(&config)
        .env("PATH", dir.path())
        .output()
        .expect("starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "ibvswitch: `neato` cannot be run: No such file or directory (os error 2); a drawing of a subnet \
        that is not a tree needs Graphviz (Debian: apt-get install graphviz); --format text does not\n"
    );
}
