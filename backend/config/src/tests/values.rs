//! Values of the tables that there is one of.

use super::*;

#[test]
fn all_values_arrive() {
    let config = parse(
        r#"
        runtime_dir = "/tmp/x"
        log = "info,ibvswitch_vfio_user=debug"
        socket_mode = 0o660
        [engine]
        cpu = 3
        threads = 4
        doorbells = "poll"
        object_memory = 100
        [fabric]
        switch = "leaf"
        grh_required = false
        subnet_prefix = "fec0:0000:0000:0001"
        mtu = 2048
        link_width = "1X"
        link_speed = "NDR"
        bandwidth = "model"
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
        object_memory = 3
        smp = "fabric"
        socket = "/srv/a.sock"
        [[hypervisor.vf]]
        name = "b"
        "#,
    );
    assert_eq!(config.runtime_dir, Path::new("/tmp/x"));
    assert_eq!(config.control_socket(), Path::new("/tmp/x/control.sock"));
    assert_eq!(config.log, "info,ibvswitch_vfio_user=debug");
    assert_eq!(config.socket_mode, 0o660);
    assert_eq!(config.engine.cpu, Some(3));
    assert_eq!(config.engine_count(), 4);
    assert_eq!(config.wiring.switches[0].name, "leaf");
    assert_eq!(config.subnets[0].prefix, 0xfec0_0000_0000_0001);
    assert!(!config.fabric.grh_required);
    assert_eq!(config.fabric.mtu, Mtu::B2048);
    assert_eq!(config.fabric.link_width, LinkWidth::X1);
    assert_eq!(config.fabric.link_speed, LinkRate::Ndr);
    assert_eq!(config.fabric.bandwidth, Bandwidth::Model);
    assert_eq!(config.subnets[0].manager.lid, Lid::from(0x20));
    assert_eq!(config.manager.sweep_interval, Duration::from_secs(60));
    assert!(config.manager.path_caching);
    let [a, b] = &config.hypervisors[0].vfs[..] else {
        panic!("two VFs")
    };
    assert_eq!(a.model.lid, Some(Lid::UNICAST_LAST));
    assert_eq!(a.model.guid.value(), 0x0002_c903_0000_0101);
    assert_eq!(a.model.pkeys, [0x7fff, 0x8001, 0x8005].map(PKey::from));
    assert_eq!(a.doorbells, Some(Doorbells::Adaptive));
    assert_eq!(a.socket, Path::new("/srv/a.sock"));
    assert_eq!((b.model.lid, b.doorbells), (None, Some(Doorbells::Poll)));
    assert_eq!((a.object_memory, b.object_memory), (3 << 20, 100 << 20));
    assert_eq!(
        (a.model.smp, b.model.smp),
        (SmpAccess::Fabric, SmpAccess::OwnPort)
    );
    assert_eq!(
        (a.model.mads.classes, a.model.mads.rate),
        (GmpClasses::ALL, None)
    );
    assert_eq!(b.model.mads.classes, GmpClasses::default());
    assert_eq!(b.model.mads.rate, Some(MadRate::default()));
    assert_eq!(b.model.pkeys, [PKey::DEFAULT_FULL]);
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
    head_case(
        "[external]\npartitions_file = ''",
        "2:19: `external.partitions_file = ''`: no path; write one, or leave the key out",
    );
    let config = parse(&format!("[sm]\nmanager = \"external\"\n{RIGHT}"));
    assert_eq!(config.manager.place, ManagerPlace::External);
    head_case(
        "[sm]\nmanager = \"none\"",
        "2:11: `sm.manager = \"none\"`: unknown value; the values are `embedded` and `external`",
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
            "log = \"a=b=info\"",
            "1:7: `log = \"a=b=info\"`: error parsing level filter: expected one of \"off\", \"error\", \"warn\", \"info\", \"debug\", \"trace\", or a number 0-5; write something like \"info,ibvswitch_vfio_user=debug\"",
        ),
        (
            "[log]",
            "1:1: `log`: is of the type table; write a string in double quotes",
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
            "1:15: `runtime_dir = \"run\"`: a relative path, and VMMs name the sockets in it from other directories; write a path that begins with /",
        ),
        (
            "engine = 1",
            "1:10: `engine = 1`: is of the type integer; write a table: [engine]",
        ),
        (
            "[engine]\nthreads = 0",
            "2:11: `engine.threads = 0`: out of range; write a number of engines from 1 to 64, or \"auto\"",
        ),
        (
            "[engine]\nthreads = \"all\"",
            "2:11: `engine.threads = \"all\"`: no number of engines; write a number of engines from 1 to 64, or \"auto\"",
        ),
        (
            "[engine]\ncpu = -1",
            "2:7: `engine.cpu = -1`: out of range; write the number of a processor, counted from 0",
        ),
        (
            "[engine]\nobject_memory = 0",
            "2:17: `engine.object_memory = 0`: out of range; write how many MiB of the daemon's memory a guest's objects may take, from 1 to 1048576",
        ),
        (
            "[engine]\ndoorbells = \"push\"",
            "2:13: `engine.doorbells = \"push\"`: unknown value; the values are `auto`, `trap`, `poll` and `adaptive`",
        ),
        (
            "[[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\nsmp = \"all\"",
            "5:7: `hypervisor.vf.smp = \"all\"`: unknown value; the values are `deny`, `own-port` and `fabric`",
        ),
        (
            "[[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\nsmp = true",
            "5:7: `hypervisor.vf.smp = true`: is of the type boolean; the values are `deny`, `own-port` and `fabric`",
        ),
        (
            "[fabric]\nswitch = \"\"",
            "2:10: `fabric.switch = \"\"`: not a name; a name is a letter and up to 30 letters, digits, `-`, `_` or `.`",
        ),
        (
            "[fabric]\nsubnet_prefix = \"fe80::1\"",
            "2:17: `fabric.subnet_prefix = \"fe80::1\"`: not a 64-bit subnet prefix; write 64 bits, such as \"fe80::\" or \"2001:db8:0:5\"",
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
            "2:14: `fabric.link_speed = \"fast\"`: unknown value; the values are `SDR`, `DDR`, `QDR`, `FDR`, `EDR`, `HDR`, `NDR` and `XDR`",
        ),
        (
            "[fabric]\nbandwidth = \"some\"",
            "2:13: `fabric.bandwidth = \"some\"`: unknown value; the values are `unlimited` and `model`",
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
            "2:11: `sm.routing = \"fast\"`: unknown value; the values are `minhop`, `updn`, `ftree`, `vswitch-ftree`, `dfsssp`, `lash`, `nue`, `dor`, `torus-2QoS`, `dragonfly`, `file`, `external` and `torus-2qos`",
        ),
        (
            "[sm]\nrouting = \"file\"",
            "2:11: `sm.routing = \"file\"`: needs sm.lfts_file; add it, or write another engine",
        ),
        (
            "[sm]\nrouting_program = [3]\nrouting = \"external\"",
            "2:20: `sm.routing_program = 3`: no text; write a list of texts: the program, and its arguments",
        ),
        (
            "[sm]\nroots = [\"sw1\"]",
            "2:10: `sm.roots = \"sw1\"`: not the GUID of a switch; write 16 hexadecimal digits, \
             such as \"0002:c903:0000:0101\"",
        ),
        (
            "[sm]\npartitions_file = \"\"",
            "2:19: `sm.partitions_file = \"\"`: no path; write one, or leave the key out",
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
            "[partitions]\na = 0xffff",
            "2:5: `partitions.a = 0xffff`: not a partition's P_Key; write a number from 0x0001 to 0x7ffe, with or without the membership bit 0x8000",
        ),
        (
            "[partitions]\na = 1\nb = 1",
            "3:5: `partitions.b = 1`: this P_Key is already taken by a (line 2); give each its own P_Key",
        ),
    ] {
        head_case(head, message);
    }
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
                "f.toml:1:15: `runtime_dir = \"{long}\"`: {}; choose a directory with a shorter path",
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
            "f.toml: `--runtime-dir`: {}; choose a directory with a shorter path",
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
fn the_daemon_chooses_doorbells_by_processors_and_vms() {
    let vfs = "[[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"a\"\n\
               [[hypervisor.vf]]\nname = \"b\"\ndoorbells = \"poll\"\n";
    let config = parse(&format!("[engine]\ndoorbells = \"auto\"\n{vfs}"));
    let modes = |config: &Config| -> Vec<_> { config.vfs().map(|(_, vf)| vf.doorbells).collect() };
    assert_eq!(modes(&config), [None, Some(Doorbells::Poll)]);
    // Two VMs and an engine.
    for (processors, mode) in [(2, Doorbells::Trap), (3, Doorbells::Adaptive)] {
        assert_eq!(config.suitable_doorbells(processors), mode);
        let settled = config.clone().settled(Some(mode));
        assert_eq!(modes(&settled), [Some(mode), Some(Doorbells::Poll)]);
    }
    let of_all = parse(vfs);
    assert_eq!(modes(&of_all)[0], Some(Doorbells::Trap));
}
