//! Options, files, and what is printed.

use std::path::Path;
use std::process::Command;

use crate::place::{Place, Program, beside, refused, text};

#[test]
fn a_rehearsal_changes_nothing() {
    let place = Place::ibsim();
    let rehearse = |more: &[&str]| text(place.manager(&["--no-write"]).args(more));
    let all = rehearse(&[]);
    for line in [
        "left (0,): PortInfo 0x0: lid 0 -> 1, sm_lid 0 -> 1, ",
        "left (0,): PortInfo 0x3: state Initialize -> Active",
        "left (0,): LinearForwardingTable 0x0: ",
        "d (0,3,2): PortInfo 0x1: lid 0 -> ",
    ] {
        assert!(all.contains(line), "{line}: {all}");
    }
    assert!(all.ends_with(" changes; nothing was written\n"), "{all}");
    assert_eq!(rehearse(&[]), all);
    let links = place.output(&["iblinkinfo"]);
    assert!(!links.contains("Active/"), "{links}");

    // OpenSM's own settings, as it writes them; the subnet as it leaves it.
    let options = place.dir.path().join("options");
    let options = options.to_str().expect("is text");
    place.output(&["opensm", "-c", options]);
    let opensm = Program::start(
        place
            .other(&["opensm", "-d2", "-f", "-"])
            .env("SIM_HOST", "d"),
    );
    opensm.says("SUBNET UP");
    let kept = rehearse(&["--config", options]);
    assert!(
        kept.contains("another subnet manager is at port "),
        "{kept}"
    );
    assert!(kept.contains(": Master, priority 0\n"), "{kept}");
    assert!(!kept.contains(" lid "), "{kept}");
    assert!(!kept.contains("state "), "{kept}");
}

#[test]
fn lids_are_kept() {
    let place = Place::ibsim();
    let dir = place.dir.path().to_str().expect("is text");
    let once = ["--once", "--cache-dir", dir];
    text(&mut place.manager(&once));
    let file = place.dir.path().join("guid2lid");
    let kept = std::fs::read_to_string(&file).expect("is there");
    assert_eq!(
        kept.lines().filter(|line| !line.is_empty()).count(),
        6,
        "{kept}"
    );
    // Another subnet of the same shape, in which ports have no LIDs.
    let other = Place::ibsim();
    let moved = kept.replace("0x0006 0x0006", "0x0123 0x0123");
    std::fs::write(&file, &moved).expect("is written");
    text(&mut other.manager(&once));
    assert_eq!(std::fs::read_to_string(&file).expect("is there"), moved);
    let links = other.output(&["iblinkinfo"]);
    assert!(links.contains(" 291 "), "{links}");

    std::fs::write(&file, "0x11 5 4\n").expect("is written");
    let error = refused(&mut place.manager(&once), 1);
    assert!(error.contains("guid2lid: line 1: LIDs are "), "{error}");
    assert!(error.contains("remove the file to begin anew"), "{error}");
}

#[test]
fn mistakes_have_their_remedy() {
    let place = Place::ibsim();
    for (arguments, status, wanted) in [
        (
            &["--lmc", "9"][..],
            3,
            "ibvswitch-sm: --lmc 9: write a number from 0 to 7\n",
        ),
        (
            &["--config", "nowhere"],
            3,
            "ibvswitch-sm: cannot read nowhere: No such file or directory (os error 2); name a text file that this \
             user may read\n",
        ),
        (
            &["--node", "nobody"],
            1,
            "refuses to attach this program to node `nobody`; its log says why\n",
        ),
        (
            &["--ibsim", "nothing-there"],
            1,
            "cannot reach the subnet at the sockets `nothing-there`: Connection refused (os error 111); start ibsim \
             or the daemon, as this user or root, or write the name that its sockets have\n",
        ),
        (
            &["--ibsim=", "--guid", "0x1"],
            1,
            "ibvswitch-sm: no port of an adapter has the GUID 0000:0000:0000:0001; the ports of this host are: ",
        ),
    ] {
        let error = refused(&mut place.manager(arguments), status);
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn the_manual_and_the_unit() {
    let place = Place::ibsim();
    let page = place.dir.path().join("ibvswitch-sm.8");
    std::fs::write(&page, text(&mut place.manager(&["--manual"]))).expect("is written");
    let page = text(
        Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-P-cbou"])
            .arg(page),
    );
    assert!(page.contains("ibvswitch-sm(8)"), "{page}");
    assert!(page.contains("--no-write"), "{page}");

    let unit = include_str!("../../../../qemu/ibvswitch-sm.service");
    let unit = unit.replace(
        "/usr/local/bin/ibvswitch-sm",
        env!("CARGO_BIN_EXE_ibvswitch-sm"),
    );
    let file = place.dir.path().join("ibvswitch-sm.service");
    std::fs::write(&file, unit).expect("is written");
    text(
        Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(file),
    );
}

/// The Debian package: the program, its manual and its unit, and nothing that the daemon's has.
#[test]
fn the_package() {
    let dir = tempfile::tempdir().expect("a directory");
    let program = beside("ibvswitch-sm");
    let from = program.parent().expect("is in a folder");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut packages = Command::new(repository.join("scripts/package"));
    packages
        .args(["--manager", "--from"])
        .arg(from)
        .arg("--out")
        .arg(dir.path());
    let package = text(packages.env("IBVSWITCH_PACKAGE_LEVEL", "0"));
    let package = package.trim();
    let deb = |option: &str, package: &str| text(Command::new("dpkg-deb").args([option, package]));
    let files = |package: &str| -> Vec<String> {
        let contents = deb("--contents", package);
        let lines = contents.lines().filter(|line| line.starts_with('-'));
        let name = |line: &str| line.rsplit(' ').next().map(str::to_owned);
        lines.filter_map(name).collect()
    };
    let own = files(package);
    let wanted = [
        "./usr/bin/ibvswitch-sm",
        "./usr/lib/systemd/system/ibvswitch-sm.service",
        "./usr/share/doc/ibvswitch-sm/NEWS.gz",
        "./usr/share/doc/ibvswitch-sm/changelog.gz",
        "./usr/share/doc/ibvswitch-sm/copyright",
        "./usr/share/man/man8/ibvswitch-sm.8.gz",
    ];
    assert_eq!(own, wanted);
    let tree = dir.path().join("tree");
    text(
        Command::new("dpkg-deb")
            .arg("--raw-extract")
            .arg(package)
            .arg(&tree),
    );
    text(
        Command::new("md5sum")
            .args(["--check", "--quiet", "DEBIAN/md5sums"])
            .current_dir(&tree),
    );
    let unit = std::fs::read_to_string(tree.join(&wanted[1][2..])).expect("is there");
    assert!(unit.contains("ExecStart=/usr/bin/ibvswitch-sm "), "{unit}");
    for script in ["postinst", "prerm", "postrm"] {
        text(
            Command::new("sh")
                .arg("-n")
                .arg(tree.join("DEBIAN").join(script)),
        );
    }
    let fields = deb("--field", package);
    assert!(fields.contains("Package: ibvswitch-sm\n"), "{fields}");
    assert!(fields.contains("Depends: libc6 (>= 2."), "{fields}");
}
