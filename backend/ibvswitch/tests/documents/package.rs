//! The Debian package: what is in it, of this build's program alone. Whether it installs, `scripts/package-check` says.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

fn output(command: &mut Command) -> String {
    let output = command.output().expect("it is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("is text")
}

#[test]
fn what_is_in_it() {
    let dir = TempDir::new().expect("a directory");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (from, tree) = (dir.path().join("from"), dir.path().join("tree"));
    fs::create_dir(&from).expect("a directory");
    fs::copy(env!("CARGO_BIN_EXE_ibvswitch"), from.join("ibvswitch")).expect("is copied");
    let printed = output(
        Command::new(repository.join("scripts/package"))
            .args([Path::new("--from"), &from, Path::new("--out"), dir.path()])
            // Nobody keeps it.
            .env("IBVSWITCH_PACKAGE_LEVEL", "0"),
    );
    let package = printed.trim();
    let field = |name| output(Command::new("dpkg-deb").args(["--field", package, name]));
    assert_eq!(field("Package").trim(), "ibvswitch");
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION"));
    let depends = field("Depends");
    assert!(depends.contains("libc6 (>= 2."), "{depends}");
    output(
        Command::new("dpkg-deb")
            .arg("--raw-extract")
            .arg(package)
            .arg(&tree),
    );
    for file in [
        "usr/share/man/man1/ibvswitch.1.gz",
        "usr/share/man/man1/ibvswitch-vf-migrate.1.gz",
        "usr/share/man/man1/ibvswitch-sm-command.1.gz",
        "usr/share/bash-completion/completions/ibvswitch",
        "usr/share/zsh/vendor-completions/_ibvswitch",
        "usr/share/fish/vendor_completions.d/ibvswitch.fish",
        "usr/share/doc/ibvswitch/copyright",
        "usr/share/doc/ibvswitch/changelog.gz",
    ] {
        let length = fs::metadata(tree.join(file)).map_or(0, |it| it.len());
        assert!(length > 0, "{file}");
    }
    let config = tree.join("etc/ibvswitch.toml");
    let program = tree.join("usr/bin/ibvswitch");
    let checked = Command::new(&program)
        .args(["config", "check", "--config"])
        .arg(&config)
        .output();
    assert!(checked.expect("a program").status.success());
    let unit = fs::read_to_string(tree.join("usr/lib/systemd/system/ibvswitch.service"));
    let unit = unit.expect("a unit");
    assert!(unit.contains("ExecStart=/usr/bin/ibvswitch run"), "{unit}");
    assert!(!unit.contains("/usr/local"), "{unit}");
    for (name, command) in [
        ("metrics", " metrics"),
        ("web", " web"),
        ("opensm", " external run"),
    ] {
        let unit = format!("usr/lib/systemd/system/ibvswitch-{name}.service");
        let unit = fs::read_to_string(tree.join(unit)).expect("a unit");
        let start = format!("ExecStart=/usr/bin/ibvswitch{command} ");
        assert!(unit.contains(&start), "{unit}");
    }
    // The subnet manager alone has its own package, and its manual page no double here.
    assert!(
        !tree
            .join("usr/lib/systemd/system/ibvswitch-sm.service")
            .exists()
    );
    assert!(!tree.join("usr/share/man/man1/ibvswitch-sm.1.gz").exists());
    let conffiles = fs::read_to_string(tree.join("DEBIAN/conffiles")).expect("is there");
    assert_eq!(conffiles, "/etc/ibvswitch.toml\n");
    let sums = Command::new("md5sum")
        .args(["--check", "--quiet", "DEBIAN/md5sums"])
        .current_dir(&tree)
        .output();
    assert!(sums.expect("is installed").status.success());
    for script in ["postinst", "prerm", "postrm"] {
        output(
            Command::new("sh")
                .arg("-n")
                .arg(tree.join("DEBIAN").join(script)),
        );
    }
}
