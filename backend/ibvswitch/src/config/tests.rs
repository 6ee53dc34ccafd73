//! Each mistake against its whole message: the wording is what a user gets to work with.

use std::path::Path;

use super::*;

fn dirs() -> Directories<'static> {
    Directories {
        chosen: None,
        fallback: Path::new("/run/ibvswitch"),
    }
}

/// A configuration that is right, to which the cases add.
const RIGHT: &str = "\
[[hypervisor]]
name = \"hv1\"
[[hypervisor.vf]]
name = \"vm1\"
";

fn problems(text: &str) -> Vec<String> {
    match Config::parse("f.toml", text, dirs()) {
        Ok(_) => Vec::new(),
        Err(ConfigError::Invalid(problems)) => problems.iter().map(Problem::to_string).collect(),
        Err(other) => panic!("{other}"),
    }
}

fn parse(text: &str) -> Config {
    Config::parse("f.toml", text, dirs()).unwrap_or_else(|error| panic!("{error}"))
}

/// The one message for `RIGHT` with `vf` added to its VF.
#[track_caller]
fn vf_case(vf: &str, message: &str) {
    assert_eq!(
        problems(&format!("{RIGHT}{vf}\n")),
        [format!("f.toml:5:{message}")],
        "{vf}"
    );
}

/// The one message for `RIGHT` with `head` put before it.
#[track_caller]
fn head_case(head: &str, message: &str) {
    assert_eq!(
        problems(&format!("{head}\n{RIGHT}")),
        [format!("f.toml:{message}")],
        "{head}"
    );
}

#[test]
fn built_in_configuration() {
    let config = Config::parse(DEFAULT_ORIGIN, DEFAULT, dirs()).expect("is right");
    let names: Vec<_> = config
        .vfs()
        .map(|(hypervisor, vf)| (hypervisor.name.as_str(), vf.name.as_str()))
        .collect();
    assert_eq!(names, [("hv1", "vm1"), ("hv2", "vm2")]);
    assert_eq!(
        config.vf("vm2").expect("is there").1.socket,
        Path::new("/run/ibvswitch/vm2.sock")
    );
    // A configuration with the tables alone is the same: the built-in one shows the defaults.
    let bare = "[[hypervisor]]\nname='hv1'\n[[hypervisor.vf]]\nname='vm1'\n\
                [[hypervisor]]\nname='hv2'\n[[hypervisor.vf]]\nname='vm2'\n";
    assert_eq!(parse(bare), config);
}

/// What is commented out in the built-in configuration is right too, and so are its defaults.
#[test]
fn commented_keys_of_the_built_in_configuration() {
    let shown: String = DEFAULT
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(key) if key.contains(" = ") && !key.contains(". ") => format!("{key}\n"),
            Some(table) if table.starts_with("[[") => format!("{table}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let config = parse(&shown);
    let vf = &config.hypervisors[0].vfs[0];
    assert_eq!(vf.lid, Some(Lid::from(16)));
    assert_eq!(vf.guid.to_string(), "0002:c903:0000:0101");
    assert_eq!(vf.pkeys, [PKey::DEFAULT_FULL]);
    assert_eq!(vf.socket, Path::new("/run/ibvswitch/vm1.sock"));
    assert_eq!(config.engine.cpu, Some(1));
    assert_eq!(config.external.socket.as_deref(), Some("ibvswitch"));
}

#[test]
fn programs_of_the_host() {
    let socket = |text: &str| parse(&format!("{text}\n{RIGHT}")).external.socket;
    assert_eq!(socket("[external]\nsocket = \"\""), None);
    // Always the same for a runtime directory, and another for another.
    let derived = socket("").expect("has a default");
    assert_eq!(
        socket("runtime_dir = \"/run/ibvswitch\""),
        Some(derived.clone())
    );
    assert_ne!(socket("runtime_dir = \"/run/other\""), Some(derived));
    head_case(
        "[external]\nsocket = \"a/b\"",
        "2:10: `external.socket = \"a/b\"`: not a name; \
         a name is a letter and up to 30 letters, digits, `-`, `_` or `.`",
    );
    let config = parse(&format!("[sm]\nmanager = \"external\"\n{RIGHT}"));
    assert_eq!(config.manager.place, ManagerPlace::External);
    head_case(
        "[sm]\nmanager = \"none\"",
        "2:11: `sm.manager = \"none\"`: unknown value; the values are `embedded` and `external`",
    );
}

#[test]
fn every_key_is_documented_and_shown() {
    let documentation = include_str!("../../../../docs/users/configuration.md");
    for (table, keys) in [
        ("", keys::ROOT),
        ("engine", keys::ENGINE),
        ("fabric", keys::FABRIC),
        ("sm", keys::SM),
        ("external", keys::EXTERNAL),
        ("cluster", keys::CLUSTER),
        ("switch", keys::SWITCH),
        ("link", keys::LINK),
        ("hypervisor", keys::HYPERVISOR),
        ("hypervisor.vf", keys::VF),
    ] {
        for key in keys {
            let shown = [
                format!("{key} = "),
                format!("[{key}]"),
                format!("[hypervisor.{key}]"),
            ];
            assert!(
                shown.iter().any(|form| DEFAULT.contains(form)),
                "{table}.{key} is not shown"
            );
            let explained = [
                format!("| `{key}` |"),
                format!("## `[{key}]`"),
                format!("`[[{key}]]`"),
            ];
            assert!(
                explained.iter().any(|form| documentation.contains(form)),
                "{table}.{key} is not in docs/users/configuration.md"
            );
        }
    }
}

#[test]
fn the_example_of_the_documentation_is_right() {
    let documentation = include_str!("../../../../docs/users/configuration.md");
    let example = documentation.rsplit("```toml\n").next().expect("has one");
    let config = parse(example.split("```").next().expect("ends"));
    let pkeys: Vec<_> = config
        .vfs()
        .map(|(_, vf)| vf.pkeys[0].to_string())
        .collect();
    assert_eq!(pkeys, ["0x0010", "0x8020", "0x8010"]);
}

#[test]
fn all_values_arrive() {
    let config = parse(
        r#"
        runtime_dir = "/tmp/x"
        log = "info,vfio_user=debug"
        socket_mode = 0o660
        [engine]
        cpu = 3
        doorbells = "poll"
        [fabric]
        switch = "leaf"
        subnet_prefix = "fec0:0000:0000:0001"
        mtu = 2048
        link_width = "1X"
        link_speed = "NDR"
        [sm]
        lid = 0x20
        sweep_interval = 60
        path_caching = true
        [partitions]
        storage = 0x0001
        [[hypervisor]]
        name = "h"
        [[hypervisor.vf]]
        name = "a"
        lid = 0xbfff
        guid = "0x0002c90300000101"
        pkeys = ["default:limited", "storage", 0x8005]
        doorbells = "adaptive"
        smp = "fabric"
        socket = "/srv/a.sock"
        [[hypervisor.vf]]
        name = "b"
        "#,
    );
    assert_eq!(config.runtime_dir, Path::new("/tmp/x"));
    assert_eq!(config.control_socket(), Path::new("/tmp/x/control.sock"));
    assert_eq!(config.log, "info,vfio_user=debug");
    assert_eq!(config.socket_mode, 0o660);
    assert_eq!(config.engine.cpu, Some(3));
    assert_eq!(config.wiring.switches[0].name, "leaf");
    assert_eq!(config.fabric.subnet_prefix, 0xfec0_0000_0000_0001);
    assert_eq!(config.fabric.mtu, Mtu::B2048);
    assert_eq!(config.fabric.link_width, LinkWidth::X1);
    assert_eq!(config.fabric.link_speed, LinkRate::Ndr);
    assert_eq!(config.manager.lid, Lid::from(0x20));
    assert_eq!(config.manager.sweep_interval, Duration::from_secs(60));
    assert!(config.manager.path_caching);
    let [a, b] = &config.hypervisors[0].vfs[..] else {
        panic!("two VFs")
    };
    assert_eq!(a.lid, Some(Lid::UNICAST_LAST));
    assert_eq!(a.guid.value(), 0x0002_c903_0000_0101);
    assert_eq!(a.pkeys, [0x7fff, 0x8001, 0x8005].map(PKey::from));
    assert_eq!(a.doorbells, Doorbells::Adaptive);
    assert_eq!(a.socket, Path::new("/srv/a.sock"));
    assert_eq!((b.lid, b.doorbells), (None, Doorbells::Poll));
    assert_eq!((a.smp, b.smp), (SmpAccess::Fabric, SmpAccess::OwnPort));
    assert_eq!((a.mads.classes, a.mads.rate), (GmpClasses::ALL, None));
    assert_eq!(b.mads.classes, GmpClasses::default());
    assert_eq!(b.mads.rate, Some(MadRate::default()));
    assert_eq!(b.pkeys, [PKey::DEFAULT_FULL]);
}

#[test]
fn derived_guids_are_the_same_every_time_and_everywhere() {
    let config = Config::parse(DEFAULT_ORIGIN, DEFAULT, dirs()).expect("is right");
    let guids: Vec<_> = config.vfs().map(|(_, vf)| vf.guid.to_string()).collect();
    // Users write these into their own files; they must not change between versions.
    assert_eq!(guids, GUIDS_OF_VM1_AND_VM2);
    let moved = parse("[[hypervisor]]\nname='other'\n[[hypervisor.vf]]\nname='vm1'\n");
    assert_eq!(
        moved.hypervisors[0].vfs[0].guid,
        config.hypervisors[0].vfs[0].guid
    );
}

const GUIDS_OF_VM1_AND_VM2: [&str; 2] = ["0002:c903:2214:8cd5", "0002:c903:372a:d426"];

#[test]
fn lids() {
    const REMEDY: &str = "out of range; a unicast LID is 0x0001 to 0xbfff (1 to 49151)";
    for lid in [
        "0",
        "0xc000",
        "49152",
        "-1",
        "70000",
        "99999999999999999999",
    ] {
        vf_case(
            &format!("lid = {lid}"),
            &format!("7: `hypervisor.vf.lid = {lid}`: {REMEDY}"),
        );
    }
    vf_case(
        "lid = \"7\"",
        "7: `hypervisor.vf.lid = \"7\"`: is of the type string; write an integer",
    );
    vf_case(
        "lid = 1",
        "7: `hypervisor.vf.lid = 1`: this LID is already that of the subnet manager; \
         give each its own LID",
    );
}

#[test]
fn guids() {
    const REMEDY: &str = "not a GUID; write 16 hexadecimal digits, such as \"0002:c903:0000:0101\"";
    for guid in [
        "",
        "101",
        "0002:c903:0000",
        "0002:c903:0000:010g",
        "0002-c903-0000-0101",
    ] {
        vf_case(
            &format!("guid = \"{guid}\""),
            &format!("8: `hypervisor.vf.guid = \"{guid}\"`: {REMEDY}"),
        );
    }
    vf_case(
        "guid = \"0000:0000:0000:0000\"",
        "8: `hypervisor.vf.guid = \"0000:0000:0000:0000\"`: a GUID must not be zero: applications \
         take such a port for unconfigured; leave the key out to have one derived from the name",
    );
}

#[test]
fn pkeys() {
    const REMEDY: &str = "not a P_Key; write a name from [partitions], optionally with \":full\" \
                          or \":limited\", or a number from 0x0001 to 0xffff whose lower 15 bits \
                          are not zero";
    for pkey in [
        "0",
        "0x8000",
        "0x10000",
        "-1",
        "\"storage\"",
        "\"default:half\"",
        "\"0xffff\"",
        "1.5",
    ] {
        vf_case(
            &format!("pkeys = [{pkey}]"),
            &format!("10: `hypervisor.vf.pkeys = {pkey}`: {REMEDY}"),
        );
    }
    vf_case(
        "pkeys = []",
        "9: `hypervisor.vf.pkeys = []`: no P_Key: the port could talk to nobody; leave the key \
         out for full membership of the default partition",
    );
    vf_case(
        "pkeys = 0xffff",
        "9: `hypervisor.vf.pkeys = 0xffff`: is of the type integer; write an array",
    );
    vf_case(
        "pkeys = [0x7fff, \"default\"]",
        "18: `hypervisor.vf.pkeys = \"default\"`: this partition is already that of an entry \
         before it (line 5); give each its own partition",
    );
}

#[test]
fn duplicates() {
    let second = |rest: &str| {
        format!("{RIGHT}lid = 5\nguid = \"0002:c903:0000:0101\"\n[[hypervisor.vf]]\n{rest}\n")
    };
    assert_eq!(
        problems(&second("name = \"vm1\"")),
        [
            "f.toml:8:8: `hypervisor.vf.name = \"vm1\"`: this name is already that of VF (line 4); give each its own name",
            "f.toml:8:8: `hypervisor.vf.name = \"vm1\"`: this socket is already that of vm1 (line 4); give each its own socket",
        ]
    );
    assert_eq!(
        problems(&second("name = \"vm2\"\nlid = 5")),
        [
            "f.toml:9:7: `hypervisor.vf.lid = 5`: this LID is already that of vm1 (line 5); give each its own LID"
        ]
    );
    assert_eq!(
        problems(&second("name = \"vm2\"\nguid = \"0x0002c90300000101\"")),
        [
            "f.toml:9:8: `hypervisor.vf.guid = \"0x0002c90300000101\"`: this GUID is already that of vm1 (line 6); give each its own GUID"
        ]
    );
    assert_eq!(
        problems(&second("name = \"vm2\"\nsocket = \"vm1.sock\"")),
        [
            "f.toml:9:10: `hypervisor.vf.socket = \"vm1.sock\"`: this socket is already that of vm1 (line 4); give each its own socket"
        ]
    );
    assert_eq!(
        problems(&format!("{RIGHT}[[hypervisor]]\nname = \"hv1\"\n")),
        [
            "f.toml:6:8: `hypervisor.name = \"hv1\"`: this name is already that of hypervisor (line 2); give each its own name"
        ]
    );
}

/// A GUID that is configured for one VF and derived for another, in either order.
#[test]
fn a_configured_guid_may_not_be_a_derived_one() {
    let taken = GUIDS_OF_VM1_AND_VM2[1];
    let first = format!("{RIGHT}guid = \"{taken}\"\n[[hypervisor.vf]]\nname = \"vm2\"\n");
    assert_eq!(
        problems(&first),
        [format!(
            "f.toml: `hypervisor.vf.guid`: the GUID {taken} derived for the VF `vm2` is also that of vm1 (line 5); rename one of them, or configure another GUID"
        )]
    );
    let second = format!(
        "{RIGHT}[[hypervisor.vf]]\nname = \"x\"\nguid = \"{}\"\n",
        GUIDS_OF_VM1_AND_VM2[0]
    );
    assert_eq!(
        problems(&second),
        [format!(
            "f.toml:7:8: `hypervisor.vf.guid = \"{}\"`: this GUID is already that of the VF `vm1`, whose GUID is derived from its name; give each its own GUID",
            GUIDS_OF_VM1_AND_VM2[0]
        )]
    );
}

#[test]
fn unknown_keys() {
    vf_case(
        "lidd = 3",
        "1: `hypervisor.vf.lidd`: unknown key; did you mean `lid`?",
    );
    vf_case(
        "password = 3",
        "1: `hypervisor.vf.password`: unknown key; the keys here are `name`, `lid`, `guid`, \
         `pkeys`, `doorbells`, `smp`, `gmp`, `mad_rate`, `mad_burst`, `mad_rates`, `cluster`, `vlid`, `virtual_pkeys`, `sl`, `sl_policy` and `socket`",
    );
    head_case(
        "[engin]",
        "1:2: `engin`: unknown key; did you mean `engine`?",
    );
    head_case(
        "[sm]\nsweep = 3",
        "2:1: `sm.sweep`: unknown key; the keys here are `manager`, `switch`, `host`, `lid`, \
         `sweep_interval`, `priority`, `routing`, `roots`, `partitions_file`, `enforce_partitions`, \
         `state_dir`, `qos_max_vls`, \
         `qos_sl2vl`, `qos_vlarb_high`, `qos_vlarb_low`, `qos_high_limit`, `m_key`, `m_key_protect`, `m_key_lease` and `path_caching`",
    );
}

#[test]
fn values_of_the_other_tables() {
    for (head, message) in [
        (
            "log = \"loud\"",
            "1:7: `log = \"loud\"`: `loud` is no log level; the levels are `off`, `error`, `warn`, `info`, `debug` and `trace`; a directive is LEVEL or MODULE=LEVEL, separated by commas",
        ),
        (
            "log = 3",
            "1:7: `log = 3`: is of the type integer; write a string in double quotes",
        ),
        (
            "socket_mode = 0o1777",
            "1:15: `socket_mode = 0o1777`: out of range; write octal permission bits such as 0o660, of which 0o600 for the owner",
        ),
        (
            "socket_mode = 0o440",
            "1:15: `socket_mode = 0o440`: out of range; write octal permission bits such as 0o660, of which 0o600 for the owner",
        ),
        (
            "runtime_dir = \"run\"",
            "1:15: `runtime_dir = \"run\"`: a relative path; write a path that begins with /",
        ),
        (
            "engine = 1",
            "1:10: `engine = 1`: is of the type integer; write a table: [engine]",
        ),
        (
            "[engine]\ncpu = -1",
            "2:7: `engine.cpu = -1`: out of range; write the number of a processor, counted from 0",
        ),
        (
            "[engine]\ndoorbells = \"push\"",
            "2:13: `engine.doorbells = \"push\"`: unknown value; the values are `trap`, `poll` and `adaptive`",
        ),
        (
            "[[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\nsmp = \"all\"",
            "5:7: `hypervisor.vf.smp = \"all\"`: unknown value; the values are `deny`, `own-port` and `fabric`",
        ),
        (
            "[fabric]\nswitch = \"\"",
            "2:10: `fabric.switch = \"\"`: not a name; a name is a letter and up to 30 letters, digits, `-`, `_` or `.`",
        ),
        (
            "[fabric]\nsubnet_prefix = \"fe80::\"",
            "2:17: `fabric.subnet_prefix = \"fe80::\"`: not a 64-bit subnet prefix; write 16 hexadecimal digits, such as \"fe80:0000:0000:0000\"",
        ),
        (
            "[fabric]\nmtu = 1500",
            "2:7: `fabric.mtu = 1500`: not an InfiniBand MTU; the MTUs are 256, 512, 1024, 2048 and 4096",
        ),
        (
            "[fabric]\nmtu = 65536",
            "2:7: `fabric.mtu = 65536`: out of range; the MTUs are 256, 512, 1024, 2048 and 4096",
        ),
        (
            "[fabric]\nlink_width = \"3X\"",
            "2:14: `fabric.link_width = \"3X\"`: unknown value; the values are `1X`, `2X`, `4X`, `8X` and `12X`",
        ),
        (
            "[fabric]\nlink_speed = \"fast\"",
            "2:14: `fabric.link_speed = \"fast\"`: unknown value; the values are `SDR`, `DDR`, `QDR`, `FDR`, `EDR`, `HDR` and `NDR`",
        ),
        (
            "[sm]\nlid = 0",
            "2:7: `sm.lid = 0`: out of range; a unicast LID is 0x0001 to 0xbfff (1 to 49151)",
        ),
        (
            "[sm]\nqos_max_vls = 3",
            "2:15: `sm.qos_max_vls = 3`: no link has so many; write 1, 2, 4, 8 or 15",
        ),
        (
            "[sm]\nqos_vlarb_low = \"0:300\"",
            "2:17: `sm.qos_vlarb_low = \"0:300\"`: no arbitration table (0:300 is no lane with a \
             weight; write 0:0 to 14:255, as in 0:4,1:64); write lanes with weights, as in \
             \"0:4,1:64\"",
        ),
        (
            "[sm]\nqos_sl2vl = \"0,1\"",
            "2:13: `sm.qos_sl2vl = \"0,1\"`: not a lane for each service level; write 16 lanes from 0 \
             to 15, as in \"0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7\"",
        ),
        (
            "[sm]\nm_key = \"secret\"",
            "2:9: `sm.m_key = \"secret\"`: no management key; write \"none\", \"per-node\", or 0x and \
             up to 16 hexadecimal digits, not all 0",
        ),
        (
            "[sm]\nrouting = \"fast\"",
            "2:11: `sm.routing = \"fast\"`: unknown value; the values are `minhop`, `updn`, `ftree` and `vswitch-ftree`",
        ),
        (
            "[sm]\nroots = [\"sw1\"]",
            "2:10: `sm.roots = \"sw1\"`: not the GUID of a switch; write 16 hexadecimal digits, \
             such as \"0002:c903:0000:0101\"",
        ),
        (
            "[sm]\npartitions_file = \"partitions.conf\"",
            "2:19: `sm.partitions_file = \"partitions.conf\"`: a relative path; write a path that \
             begins with /",
        ),
        (
            "[sm]\nenforce_partitions = 1",
            "2:22: `sm.enforce_partitions = 1`: neither true nor false; write true or false",
        ),
        (
            "[sm]\npriority = 16",
            "2:12: `sm.priority = 16`: out of range; write 0 to 15, 15 the highest",
        ),
        (
            "[sm]\nsweep_interval = 0",
            "2:18: `sm.sweep_interval = 0`: out of range; write seconds, from 1 to 86400 (a day)",
        ),
        (
            "[partitions]\ndefault = 0x7fff",
            "2:11: `partitions.default = 0x7fff`: the default partition is 0x7fff by definition; choose another name",
        ),
        (
            "[partitions]\na = 0x8001",
            "2:5: `partitions.a = 0x8001`: not a partition's P_Key; write a number from 0x0001 to 0x7ffe; the membership bit 0x8000 belongs to the members",
        ),
        (
            "[partitions]\na = 1\nb = 1",
            "3:5: `partitions.b = 1`: this P_Key is already that of a (line 2); give each its own P_Key",
        ),
    ] {
        head_case(head, message);
    }
}

#[test]
fn names() {
    for name in [
        "",
        "1vm",
        "vm 1",
        "vm/1",
        "vm\\\"1",
        "a23456789012345678901234567890123",
    ] {
        let text = format!("[[hypervisor]]\nname = \"hv\"\n[[hypervisor.vf]]\nname = \"{name}\"\n");
        assert_eq!(
            problems(&text),
            [format!(
                "f.toml:4:8: `hypervisor.vf.name = \"{name}\"`: not a name; a name is a letter and up to 30 letters, digits, `-`, `_` or `.`"
            )],
        );
    }
}

#[test]
fn what_must_be_there() {
    assert_eq!(
        problems(""),
        [
            "f.toml: `hypervisor`: there is none; add a table [[hypervisor]] with a name and a table [[hypervisor.vf]] for each VM"
        ]
    );
    assert_eq!(
        problems("[[hypervisor]]\n[[hypervisor.vf]]\n"),
        [
            "f.toml:1:1: `hypervisor.name`: missing; add `name = \"…\"` to this table",
            "f.toml:2:1: `hypervisor.vf.name`: missing; add `name = \"…\"` to this table",
        ]
    );
    assert_eq!(
        problems("[hypervisor]\nname = \"a\""),
        [
            "f.toml:1:1: `hypervisor = [hypervisor]`: is of the type table; write an array of tables: [[hypervisor]]"
        ]
    );
}

#[test]
fn syntax_errors_say_where() {
    let found = problems("[[hypervisor]]\nname = \n");
    let [only] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(only.starts_with("f.toml:2:"), "{only}");
    assert!(only.contains("not valid TOML: "), "{only}");
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_file() {
    let found = problems(
        "log = \"x\"\nfoo = 1\n[[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\nlid = 0\nguid = \"0\"\n",
    );
    let places: Vec<_> = found
        .iter()
        .filter_map(|line| line.split(": ").next())
        .collect();
    assert_eq!(
        places,
        ["f.toml:1:7", "f.toml:2:1", "f.toml:7:7", "f.toml:8:8"]
    );
}

#[test]
fn paths_too_long_for_a_socket() {
    let long = format!("/{}", "d".repeat(100));
    let what = |file: &str, length: usize| {
        format!(
            "the socket {long}/{file} would have a path of {length} bytes, and a UNIX socket's has at most 107"
        )
    };
    let configured = format!("runtime_dir = \"{long}\"\n{RIGHT}");
    assert_eq!(
        problems(&configured),
        [
            format!(
                "f.toml:1:15: `runtime_dir = \"{long}\"`: {}; choose a shorter directory",
                what("control.sock", 114)
            ),
            format!(
                "f.toml:5:8: `hypervisor.vf.name = \"vm1\"`: {}; choose a shorter `runtime_dir`, name or `socket`",
                what("vm1.sock", 110)
            ),
        ]
    );
    let chosen = Directories {
        chosen: Some(Path::new(&long)),
        fallback: Path::new("/x"),
    };
    let Err(ConfigError::Invalid(found)) = Config::parse("f.toml", RIGHT, chosen) else {
        panic!("accepted");
    };
    assert_eq!(
        found[1].to_string(),
        format!(
            "f.toml: `--runtime-dir`: {}; choose a shorter directory",
            what("control.sock", 114)
        )
    );
    // The longest that fits, and one byte more.
    for (count, fits) in [(93, true), (94, false)] {
        let dir = format!("/{}", "d".repeat(count));
        let found = problems(&format!("runtime_dir = \"{dir}\"\n{RIGHT}"));
        assert_eq!(found.is_empty(), fits, "{found:?}");
        let vf = format!("socket = \"/{}\"", "s".repeat(count + 13));
        assert_eq!(problems(&format!("{RIGHT}{vf}\n")).is_empty(), fits);
    }
}

#[test]
fn too_many_vfs_and_hypervisors() {
    let vfs: String = (0..128)
        .map(|n| format!("[[hypervisor.vf]]\nname = \"v{n}\"\n"))
        .collect();
    let found = problems(&format!("[[hypervisor]]\nname = \"h\"\n{vfs}"));
    assert_eq!(
        found,
        [
            "f.toml:257:1: `hypervisor.vf.name`: 128 VFs on one hypervisor; an adapter port has at most 127; add a hypervisor"
        ]
    );
    let hypervisors: String = (0..254)
        .map(|n| format!("[[hypervisor]]\nname = \"h{n}\"\n"))
        .collect();
    assert_eq!(
        problems(&hypervisors),
        [
            "f.toml:507:1: `hypervisor.name`: no port is left for it on the switch `sw1`; choose another switch with `switch = \"…\"`, or add one"
        ]
    );
}

proptest::proptest! {
    /// Whatever the text, reading it ends in a configuration or in problems that point into it.
    #[test]
    fn no_text_is_too_strange(text in ".{0,200}", tail in "[a-z\\[\\]=\"0-9x\\n. ]{0,200}") {
        let text = format!("{text}\n{tail}");
        if let Err(ConfigError::Invalid(problems)) = Config::parse("f", &text, dirs()) {
            proptest::prop_assert!(!problems.is_empty());
            let lines = text.lines().count().max(1);
            for problem in problems {
                if let Some((line, _)) = problem.place {
                    proptest::prop_assert!((1..=lines + 1).contains(&line));
                }
            }
        }
    }
}

#[test]
fn rules_for_management_packets() {
    let config = parse(&format!(
        "{RIGHT}gmp = {{ deny = [\"vendor\"] }}\nmad_rate = 50\nmad_burst = 20\n\
         mad_rates = {{ subn-adm = 10, cm = 40 }}\n"
    ));
    let mads = &config.hypervisors[0].vfs[0].mads;
    assert_eq!(mads.classes, GmpClasses::ALL.without(GmpClass::Vendor));
    let rate = |per_second, burst| MadRate { per_second, burst };
    assert_eq!(mads.rate, Some(rate(50, 20)));
    assert_eq!(
        mads.class_rates,
        [
            (GmpClass::Cm, rate(40, 20)),
            (GmpClass::SubnAdm, rate(10, 10))
        ]
    );
    let classes = "the classes are `subn-adm`, `perf`, `bm`, `dev-mgt`, `cm`, `snmp`, `cong-mgt`, \
                   `application` and `vendor`";
    vf_case(
        "gmp = { allow = [\"sa\"] }",
        &format!(
            "18: `hypervisor.vf.gmp.allow = \"sa\"`: `sa` is no class of management packets; {classes}"
        ),
    );
    vf_case(
        "mad_rates = { mad = 1 }",
        &format!(
            "21: `hypervisor.vf.mad_rates.mad = 1`: `mad` is no class of management packets; {classes}"
        ),
    );
    vf_case(
        "mad_rates = { cm = 0 }",
        "20: `hypervisor.vf.mad_rates.cm = 0`: not a rate; write packets per second, from 1 to 1000000",
    );
    vf_case(
        "mad_rate = -1",
        "12: `hypervisor.vf.mad_rate = -1`: out of range; write packets per second, from 1 to 1000000, or 0 for no limit",
    );
    vf_case(
        "gmp = { allow = [], deny = [] }",
        "7: `hypervisor.vf.gmp.allow`: both `allow` and `deny`; write the classes that may pass, or those that may not",
    );
}

#[test]
fn spare_vfs() {
    let config =
        parse("[[hypervisor]]\nname = \"h\"\nspare_vfs = 2\n[[hypervisor.vf]]\nname = \"v\"\n");
    let vfs: Vec<_> = config
        .vfs()
        .map(|(_, vf)| (vf.name.as_str(), vf.spare))
        .collect();
    assert_eq!(vfs, [("v", false), ("h-spare1", true), ("h-spare2", true)]);
    let socket = |index: usize| config.hypervisors[0].vfs[index].socket.clone();
    assert!(socket(2).ends_with("h-spare2.sock"));
    for (text, problem) in [
        (
            "[[hypervisor]]\nname = \"h\"\nspare_vfs = 128\n",
            "3:13: `hypervisor.spare_vfs = 128`: out of range; write how many VFs without a VM the \
             hypervisor has, from 0 to 127",
        ),
        (
            "[[hypervisor]]\nname = \"h\"\nspare_vfs = 127\n[[hypervisor.vf]]\nname = \"v\"\n",
            "3:13: `hypervisor.spare_vfs = 127`: 128 VFs on one hypervisor, with the 1 that have a \
             VM; an adapter port has at most 127",
        ),
        (
            "[[hypervisor]]\nname = \"h\"\nspare_vfs = 1\n[[hypervisor.vf]]\nname = \"h-spare1\"\n",
            "2:8: `hypervisor.name = \"h\"`: this name is already that of VF (line 5); give \
             each its own name",
        ),
    ] {
        let problems = problems(text);
        assert_eq!(problems[0], format!("f.toml:{problem}"));
    }
}

#[test]
fn models_of_addresses() {
    let model = |text: &str| parse(&format!("{text}{RIGHT}")).fabric.model;
    assert_eq!(model(""), AddressModel::Prepopulated);
    assert_eq!(
        model("[fabric]\nmodel = \"vswitch-dynamic\"\n"),
        AddressModel::Dynamic
    );
    let problems = problems(&format!(
        "[fabric]\nmodel = \"vswitch-dynamic\"\n[sm]\nmanager = \"external\"\n{RIGHT}"
    ));
    assert_eq!(
        problems,
        [
            "f.toml: `fabric.model`: an external subnet manager gives every port a LID; write \
             \"vswitch-prepopulated\", or sm.manager = \"embedded\""
        ]
    );
}

#[test]
fn clusters() {
    let two = "[[cluster]]\nname = \"a\"\nsm_lid = 2\n[[cluster]]\nname = \"b\"\n";
    let vf = |name: &str, rest: &str| format!("[[hypervisor.vf]]\nname = \"{name}\"\n{rest}\n");
    let config = parse(&format!(
        "{two}[[hypervisor]]\nname = \"h\"\n{}{}{}{}{}",
        vf("v", "cluster = \"a\""),
        vf("w", "cluster = \"a\""),
        vf("x", "cluster = \"b\"\nvlid = 2"),
        vf(
            "y",
            "cluster = \"b\"\npkeys = [1, 2]\nvirtual_pkeys = [7, \"default\"]"
        ),
        vf("z", "sl = [3, 1]\nsl_policy = \"rewrite\""),
    ));
    let lids: Vec<_> = config.vfs().map(|(_, vf)| vf.cluster).collect();
    let at = |cluster, lid| Some((cluster, Lid::from(lid)));
    // In `a`, 2 is the subnet manager's.
    assert_eq!(lids, [at(0, 1), at(0, 3), at(1, 2), at(1, 1), None]);
    assert_eq!(config.clusters[1].sm_lid, Lid::UNICAST_LAST);
    let [.., y, z] = &config.hypervisors[0].vfs[..] else {
        panic!("five VFs")
    };
    assert_eq!(y.virtual_pkeys, [0x0007, 0xffff].map(PKey::from));
    assert_eq!(z.service_levels.allowed, 0b1010);
    assert_eq!(
        z.service_levels.foreign,
        hca::Foreign::Rewritten(wire::Sl::new(3))
    );
    for (text, message) in [
        (
            vf("v", "cluster = \"c\""),
            "10:11: `hypervisor.vf.cluster = \"c\"`: no such cluster; add a table [[cluster]] of this name",
        ),
        (
            vf("v", "vlid = 1"),
            "10:8: `hypervisor.vf.vlid = 1`: a virtual LID outside of any cluster; name the VF's `cluster`, or write `lid` for the LID in the subnet",
        ),
        (
            vf("v", "cluster = \"a\"\nvlid = 2"),
            "11:8: `hypervisor.vf.vlid = 2`: this virtual LID is already that of the subnet manager in this cluster; give each its own virtual LID",
        ),
        (
            vf("v", "cluster = \"a\"\nsmp = \"fabric\""),
            "10:11: `hypervisor.vf.cluster = \"a\"`: a VM of a cluster sees virtual LIDs and cannot manage the subnet (`smp = \"fabric\"`); leave one of the two out",
        ),
        (
            vf("v", "virtual_pkeys = [1, 2]"),
            "10:17: `hypervisor.vf.virtual_pkeys = [1, 2]`: 2 entries, but `pkeys` has 1; write one for each entry of `pkeys`, in their order",
        ),
        (
            vf("v", "sl = [16]"),
            "10:7: `hypervisor.vf.sl = 16`: not a service level; the service levels are 0 to 15",
        ),
        (
            vf("v", "sl = []"),
            "10:6: `hypervisor.vf.sl = []`: no service level: the port could send nothing; leave the key out to allow all",
        ),
    ] {
        let text = format!("{two}[[hypervisor]]\nname = \"h\"\n{text}");
        assert_eq!(problems(&text), [format!("f.toml:{message}")]);
    }
}

#[test]
fn several_switches() {
    let config = parse(
        r#"
        [sm]
        switch = "spine"
        [[switch]]
        name = "leaf1"
        [[switch]]
        name = "leaf2"
        [[switch]]
        name = "spine"
        [[link]]
        from = "leaf1"
        to = "spine"
        count = 2
        [[link]]
        from = "leaf2"
        to = "spine"
        [[hypervisor]]
        name = "a"
        [[hypervisor]]
        name = "b"
        switch = "leaf2"
        "#,
    );
    let names: Vec<&str> = config
        .wiring
        .switches
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(names, ["leaf1", "leaf2", "spine"]);
    assert_eq!(config.wiring.cables, [(0, 2), (0, 2), (1, 2)]);
    assert_eq!(config.wiring.manager, 2);
    let of: Vec<usize> = config.hypervisors.iter().map(|it| it.switch).collect();
    assert_eq!(of, [0, 1]);

    for (head, message) in [
        (
            "[[switch]]\nname = \"a\"\n[[switch]]\nname = \"a\"",
            "4:8: `switch.name = \"a\"`: this name is already that of switch (line 2); give each its own name",
        ),
        (
            "[[link]]\nfrom = \"sw1\"\nto = \"sw2\"",
            "3:6: `link.to = \"sw2\"`: there is no switch of this name; the switches are sw1",
        ),
        (
            "[fabric]\nswitch = \"x\"\n[[switch]]\nname = \"a\"",
            "2:10: `fabric.switch = \"x\"`: there are tables [[switch]]; remove this key; the first of them takes its place",
        ),
        (
            "[sm]\nhost = \"x\"",
            "2:8: `sm.host = \"x\"`: there is no file of nodes; remove this key, or name the file in `fabric.topology`",
        ),
        (
            "[[link]]\nfrom = \"sw1\"\nto = \"sw1\"\ncount = 200",
            "4:9: `link.count = 200`: out of range; write how many cables there are, from 1 to 127",
        ),
        (
            "[fabric]\ntopology = \"no such file\"",
            "2:12: `fabric.topology = \"no such file\"`: no such file: No such file or directory (os error 2); name a file in the form that `ibnetdiscover` prints",
        ),
    ] {
        head_case(head, message);
    }
}

#[test]
fn nodes_of_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let net = dir.path().join("a.net");
    let text = "\
Switch 3 \"S\" # \"leaf\" base port 0 lid 0 lmc 0
[2] \"H\"[1]
[3] \"G\"[1]
Ca 1 \"H\" # \"one\"
[1] \"S\"[2]
Ca 1 \"G\" # \"two\"
[1] \"S\"[3]
";
    std::fs::write(&net, text).expect("is written");
    let origin = dir.path().join("f.toml");
    let parse = |text: &str| Config::parse(&origin.display().to_string(), text, dirs());
    let config =
        parse("[fabric]\ntopology = \"a.net\"\n").unwrap_or_else(|error| panic!("{error}"));
    let file = config.wiring.file.as_ref().expect("a file");
    assert_eq!(file.names, ["leaf", "one", "two"]);
    assert_eq!(config.manager.guid, Guid::from(0x0010_0001));
    let one = "[[hypervisor]]\nname = \"a\"\nswitch = \"leaf\"\n";
    let both = format!("[fabric]\ntopology = \"a.net\"\n[sm]\nhost = \"two\"\n{one}");
    let config = parse(&both).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.manager.guid, Guid::from(0x0010_0003));
    // Port 1 was the last one free.
    let error = parse(&format!("{both}{}", one.replace("\"a\"", "\"b\""))).expect_err("is full");
    assert!(
        error.to_string().ends_with(
            ":8:1: `hypervisor.name`: no port is left for it on the switch `leaf`; choose another \
             switch with `switch = \"…\"`, or add one"
        ),
        "{error}"
    );
    std::fs::write(&net, text.replace("\"G\"[1]", "\"G\"[2]")).expect("is written");
    let error = parse("[fabric]\ntopology = \"a.net\"\n").expect_err("is wrong");
    assert!(
        error
            .to_string()
            .contains("line 3: `G` has no cable at port 2 that leads back here"),
        "{error}"
    );
}
