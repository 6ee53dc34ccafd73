use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

#[test]
fn a_file_is_taken_whole_or_not_at_all() {
    let mut settings = Settings::default();
    let right = "# a comment\nlmc 2\nm_key 0x12\nsm_priority  0xf\nmax_op_vls 3\nqos TRUE\n\
                 qos_max_vls 8\nqos_vlarb_high 0:4,1:8\nqos_swe_vlarb_low 1:1\nqos_ca_max_vls 0\nrouting_engine ftree,updn\nguid (null)\n\
                 console off\npart_enforce both\nsminfo_polling_timeout 250\n";
    let ignored = settings.parse("opensm.conf", right).expect("is right");
    assert_eq!(ignored.into_iter().collect::<Vec<_>>(), ["console"]);
    let config = settings.manager(BTreeMap::new());
    assert_eq!((config.lmc, config.priority), (2, 15));
    assert_eq!(config.m_key, KeyPolicy::One(0x12));
    assert_eq!(config.max_lanes, Some(8));
    assert_eq!(config.poll_interval, Duration::from_millis(250));
    assert!(config.enforce_partitions);
    let arbitration = Arbitration::parse(0, "0:4,1:8", LOW).expect("is right");
    assert_eq!(config.arbitration, Some(arbitration));
    let own = &config.kinds[&PortKind::SwitchExternal];
    let arbitration = Arbitration::parse(0, "0:4,1:8", "1:1").ok();
    assert_eq!(own.arbitration, arbitration);
    assert_eq!(config.kinds[&PortKind::Adapter], PortQuality::default());
    assert_eq!(settings.routing().name(), "ftree");

    let wrong = "lmc 1\nlmc 8\nqos_sl2vl 1,2\nrouting_engine torus\nqos maybe\nguid 0xq\n\
                 partition_config_file /nowhere/at/all\nm_key 0x11112222333344445\n";
    let error = settings.parse("opensm.conf", wrong).expect_err("is wrong");
    let error = error.to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 7, "{error}");
    assert_eq!(lines[0], "opensm.conf:2: lmc 8: write a number from 0 to 7");
    let engine = "opensm.conf:4: routing_engine torus: unknown routing engine `torus`; the engines are minhop, ";
    assert!(lines[2].starts_with(engine), "{error}");
    assert_eq!(settings.manager(BTreeMap::new()).lmc, 2);
}

#[test]
fn files_that_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("is written");
        path.display().to_string()
    };
    let mut settings = Settings::default();
    let mut set = |key: &str, path: &str| {
        let set = settings.parse("f", &format!("routing_engine dfsssp\n{key} {path}\n"));
        let checked = set.and_then(|_| settings.complete());
        checked.map_err(|error| error.to_string()).err()
    };
    let routes = file("routes", "# none\n0xfec0000000000001 0x11 # a router\n");
    assert_eq!(set("prefix_routes_file", &routes), None);
    let routes = file("routes", "\n* 0x11\n");
    let error = set("prefix_routes_file", &routes).expect("is wrong");
    assert!(error.starts_with(&format!(
        "f:2: prefix_routes_file {routes}: {routes}:2: write "
    )));
    assert_eq!(
        set("root_guid_file", &file("roots", "0x11 spine1\n\n0x12\n")),
        None
    );
    assert_eq!(
        set("lfts_file", &file("lfts", "Unicast lids guid 0x1\n0x1 0\n")),
        None
    );
    let error = set(
        "lid_matrix_dump_file",
        &file("hops", "Switch: guid 0x1\n0x1: 0g\n"),
    );
    assert!(
        error
            .expect("is wrong")
            .contains("hops:2: hops that are no numbers")
    );
    assert_eq!(
        set("guid_routing_order_file", &file("order", "0x12\n0x11\n")),
        None
    );
    let error = set("lfts_file", &file("lfts", "0x1 0\n"));
    assert!(
        error
            .expect("is wrong")
            .contains("lfts:1: an entry of no switch")
    );
    let error = set("lid_assignment", "color").expect("dfsssp computes the paths");
    assert!(error.contains("which routing_engine dfsssp contradicts"));
    let error = set("lid_assignment", "colour").expect("is wrong");
    assert!(error.contains("write one of port, greedy, split-merge-smallest, "));
    assert_eq!(set("lid_assignment", "port"), None);
    assert_eq!(set("path_scheme", "path-selection"), None);
    let error = set("root_guid_file", &file("roots", "0x11\nspine1\n"));
    assert!(error.expect("is wrong").contains("roots:2: "));
    assert_eq!(
        set("partition_config_file", "/etc/opensm/no-such-file"),
        None
    );
    assert_eq!(set("qos_policy_file", "/etc/opensm/no-such-file"), None);
    let error = set(
        "partition_config_file",
        &file("p", "A=0x1,sl=3: ALL=full;\n"),
    );
    let error = error.expect("is wrong");
    assert!(
        error.contains("p:1: sl=3: the routing engine dfsssp chooses "),
        "{error}"
    );
    let error = set("partition_config_file", &file("p", "A=0x1: everybody;\n"));
    assert!(error.expect("is wrong").contains("p:1: "));
    let error = set("node_name_map_name", &file("names", "0x1 a\nspine1\n"));
    assert!(
        error
            .expect("is wrong")
            .contains("names:2: no name of a node; ")
    );
}

#[test]
fn a_policy_knows_the_partitions() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("is written");
        path.display().to_string()
    };
    let group = "name: a\npartition: Default\npartition: A\n";
    let group = format!("port-groups\nport-group\n{group}end-port-group\nend-port-groups\n");
    let policy = format!("{group}qos-setup\nend-qos-setup\nqos-ulps\ndefault: 1\nend-qos-ulps\n");
    let (policy, partitions) = (file("q", &policy), file("p", "A=0x1,sl=2: ALL=full;\n"));
    let complete = |more: &str| {
        let mut settings = Settings::default();
        let text = format!("qos_policy_file {policy}\n{more}");
        settings.parse("f", &text).expect("is right");
        let told = settings.complete().map_err(|error| error.to_string());
        (told, settings.manager(BTreeMap::new()).policy.is_some())
    };
    let (told, acts) = complete("");
    assert_eq!(
        told.expect("is right"),
        [format!(
            "{policy}: the policy acts with `qos TRUE` or --qos alone"
        )]
    );
    assert!(!acts);
    let (told, acts) = complete("qos TRUE\n");
    let error = told.expect_err("is wrong");
    assert!(
        error.contains("q:5: no partition has the name A; "),
        "{error}"
    );
    assert!(!acts);
    let partitions = format!("qos TRUE\npartition_config_file {partitions}\n");
    let (told, acts) = complete(&partitions);
    let told = told.expect("is right");
    assert!(told[0].contains("q:8: qos-setup does not act"), "{told:?}");
    assert!(
        told[1].contains("p:1: sl=2: paths in the partition 0x8001 have sl=1 by line 11"),
        "{told:?}"
    );
    assert!(acts);
    for (more, error) in [
        (
            "routing_engine lash\n",
            "p:1: sl=2: the routing engine lash chooses",
        ),
        (
            "qos_sl2vl 0,15,2,3,4,5,6,7,0,1,2,3,4,5,6,7\n",
            "q:11: sl=1: qos_sl2vl has lane 15",
        ),
    ] {
        let (told, acts) = complete(&format!("{partitions}{more}"));
        assert!(told.expect_err("is wrong").contains(error));
        assert!(!acts);
    }
}

proptest! {
    #[test]
    fn any_text(lines in vec((select(KEYS), "\\PC{0,20}"), 0..20), rest in "\\PC*") {
        let lines: Vec<String> = lines.iter().map(|(key, value)| format!("{key} {value}")).collect();
        let _ = Settings::default().parse("f", &lines.join("\n"));
        let _ = Settings::default().parse("f", &rest);
    }
}

const KEYS: &[&str] = &[
    "guid",
    "m_key",
    "lmc",
    "virt_enabled",
    "max_op_vls",
    "part_enforce",
    "sweep_interval",
    "routing_engine",
    "nue_max_num_vls",
    "root_guid_file",
    "qos",
    "qos_max_vls",
    "qos_high_limit",
    "qos_vlarb_low",
    "qos_sl2vl",
    "qos_ca_max_vls",
    "qos_swe_vlarb_high",
];
