//! Every key acts, or is refused, or a warning says that it does not act.

use std::collections::BTreeSet;

use super::*;
use crate::scope::partition_file::PARTITION_FILE;
use crate::scope::{Elsewhere, SCOPES, Scope};

/// A key and its value.
type Setting = (&'static str, &'static str);

/// `text` with `value` at the key that `path` names, in the first table of each array.
fn with(text: &str, path: &str, value: &str) -> String {
    let mut document: toml_edit::DocumentMut = text.parse().expect("is TOML");
    let mut item = document.as_item_mut();
    let (tables, key) = path.rsplit_once('.').unwrap_or(("", path));
    for table in tables.split('.').filter(|table| !table.is_empty()) {
        let is_array = ["hypervisor", "vf", "port", "switch"].contains(&table);
        let entry = &mut item[table];
        if entry.is_none() {
            *entry = if is_array {
                toml_edit::Item::ArrayOfTables([toml_edit::Table::new()].into_iter().collect())
            } else {
                toml_edit::table()
            };
        }
        item = if is_array { &mut entry[0] } else { entry };
    }
    item[key] = toml_edit::value(value.parse::<toml_edit::Value>().expect("is a value"));
    document.to_string()
}

const LEVELS: &str = "'0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7'";

/// For each key of the embedded manager, a value that is not the default.
const OF_THE_MANAGER: &[(&str, &str)] = &[
    ("fabric.subnet_prefix", "'fec0:0:0:5::/64'"),
    ("fabric.mtu", "2048"),
    ("sm.lid", "7"),
    ("sm.lmc", "2"),
    ("sm.lids", "'color'"),
    ("sm.paths", "'path-selection'"),
    ("sm.sweep_interval", "3"),
    ("sm.priority", "5"),
    ("sm.routing", "'updn'"),
    ("sm.nue_max_num_vls", "2"),
    ("sm.use_ucast_cache", "true"),
    ("sm.lfts_file", "'lfts'"),
    ("sm.lid_matrix_file", "'hops'"),
    ("sm.guid_routing_order_file", "'order'"),
    ("sm.routing_program", "['/bin/route']"),
    ("sm.routing_timeout", "3"),
    ("sm.roots", "['0x2c903129a689c']"),
    ("sm.root_guid_file", "'roots'"),
    ("sm.cn_guid_file", "'hosts'"),
    ("sm.io_guid_file", "'hosts'"),
    ("sm.partitions_file", "'p.conf'"),
    ("sm.qos_policy_file", "'q.conf'"),
    ("sm.congestion_control_file", "'c.conf'"),
    ("sm.enforce_partitions", "true"),
    ("sm.cluster_lanes", "true"),
    ("sm.state_dir", "'state'"),
    ("sm.qos_max_vls", "4"),
    ("sm.qos_sl2vl", LEVELS),
    ("sm.qos_vlarb_high", "'0:1'"),
    ("sm.qos_vlarb_low", "'0:1'"),
    ("sm.qos_high_limit", "4"),
    ("sm.qos_ca_max_vls", "4"),
    ("sm.qos_ca_sl2vl", LEVELS),
    ("sm.qos_ca_vlarb_high", "'0:1'"),
    ("sm.qos_ca_vlarb_low", "'0:1'"),
    ("sm.qos_ca_high_limit", "4"),
    ("sm.qos_sw0_max_vls", "4"),
    ("sm.qos_sw0_sl2vl", LEVELS),
    ("sm.qos_sw0_vlarb_high", "'0:1'"),
    ("sm.qos_sw0_vlarb_low", "'0:1'"),
    ("sm.qos_sw0_high_limit", "4"),
    ("sm.qos_swe_max_vls", "4"),
    ("sm.qos_swe_sl2vl", LEVELS),
    ("sm.qos_swe_vlarb_high", "'0:1'"),
    ("sm.qos_swe_vlarb_low", "'0:1'"),
    ("sm.qos_swe_high_limit", "4"),
    ("sm.qos_rtr_max_vls", "4"),
    ("sm.qos_rtr_sl2vl", LEVELS),
    ("sm.qos_rtr_vlarb_high", "'0:1'"),
    ("sm.qos_rtr_vlarb_low", "'0:1'"),
    ("sm.qos_rtr_high_limit", "4"),
    ("sm.m_key", "'per-node'"),
    ("sm.m_key_protect", "3"),
    ("sm.m_key_lease", "9"),
    ("sm.rebalance_threshold", "150"),
    ("sm.path_caching", "true"),
    ("hypervisor.vf.lid", "0x10"),
    ("hypervisor.vf.pkeys", "['0x8010']"),
    ("hypervisor.port.lid", "17"),
    ("hypervisor.port.pkey", "0x8010"),
    ("partitions.shop", "0x10"),
];

/// [`RIGHT`] with a port.
fn right() -> String {
    format!("{RIGHT}[[hypervisor.port]]\nname = \"p1\"\nkind = \"vhost-user-net\"\n")
}

/// The page for users is the table; `UPDATE_PAGES=1` writes it.
#[test]
fn the_page_has_the_table() {
    let row = |scope: &Scope| {
        let elsewhere = scope.elsewhere.iter().map(Elsewhere::text);
        let elsewhere: Vec<String> = elsewhere.collect();
        let elsewhere = match &elsewhere[..] {
            [] => "-".to_owned(),
            several => several.join("; "),
        };
        format!("| `{}` | {} | {elsewhere} |\n", scope.key, scope.acts)
    };
    let rows = |scopes: &[Scope]| scopes.iter().map(row).collect::<String>();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/users/where-settings-act.md"
    );
    let page = std::fs::read_to_string(path).expect("is there");
    let wanted = page_with(&page, [rows(SCOPES), rows(PARTITION_FILE)]);
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(path, &wanted).expect("is written");
    }
    assert!(page == wanted, "run this test with UPDATE_PAGES=1");
}

const RULE: &str = "|---|---|---|\n";

/// `page` with these rows below its tables' heads.
fn page_with(page: &str, tables: [String; 2]) -> String {
    let mut parts = page.split(RULE);
    let mut wanted = parts.next().expect("has text").to_owned();
    for (part, rows) in parts.zip(tables) {
        let rest = part.split_once("\n\n").map_or("", |(_, rest)| rest);
        wanted.push_str(RULE);
        wanted.push_str(&rows);
        if !rest.is_empty() {
            wanted.push('\n');
            wanted.push_str(rest);
        }
    }
    wanted
}

#[test]
fn the_table_has_every_key() {
    let mut known = BTreeSet::new();
    for table in keys::TABLES {
        let path = |key: &Key| match table.path {
            "" => key.name.to_owned(),
            table => format!("{table}.{}", key.name),
        };
        known.extend(table.keys.iter().map(path));
    }
    // Tables that have keys of their own there.
    for table in ["engine", "host", "fabric", "sm", "external"] {
        known.remove(table);
    }
    let scopes: BTreeSet<String> = SCOPES.iter().map(|scope| scope.key.to_owned()).collect();
    assert_eq!(scopes, known);
}

/// The default is where the table has it, and so it is harmless to write it down.
#[test]
fn defaults_of_the_table() {
    let default: toml_edit::DocumentMut = DEFAULT.parse().expect("is TOML");
    for scope in SCOPES.iter().filter(|scope| !scope.default.is_empty()) {
        let (table, key) = scope.key.split_once('.').expect("is in a table");
        let Some(value) = default.get(table).and_then(|table| table.get(key)) else {
            continue;
        };
        let value = value.to_string();
        assert_eq!(
            value.trim().trim_matches('"'),
            scope.default,
            "{}",
            scope.key
        );
    }
}

#[test]
fn the_manager_s_keys_act_or_are_refused() {
    for scope in SCOPES {
        let is_manager_s = scope
            .elsewhere
            .iter()
            .any(|it| it.text().contains("external"));
        let listed = OF_THE_MANAGER.iter().any(|(key, _)| *key == scope.key);
        let read = [
            "fabric.model",
            "fabric.extended_lids",
            "partitions",
            "subnet",
        ];
        assert!(
            !is_manager_s || listed || read.contains(&scope.key),
            "{} has no example",
            scope.key
        );
    }
    let right = right();
    let external = with(&right, "sm.manager", "'external'");
    assert_eq!(problems(&external), Vec::<String>::new());
    for (key, value) in OF_THE_MANAGER {
        let text = with(&right, key, value);
        if *key != "partitions.shop" {
            assert_ne!(parse(&text), parse(&right), "{key} changes nothing");
        }
        let told = problems(&with(&external, key, value));
        let [one] = &told[..] else {
            panic!("{key}: {told:?}");
        };
        assert!(
            one.contains(&format!("`{key} = ")) && one.contains("external subnet manager"),
            "{one}"
        );
        assert!(one.starts_with("f.toml:") && one.contains("; "), "{one}");
    }
}

/// A copy of the built-in configuration is right with an external manager as well.
#[test]
fn defaults_that_are_written_down_are_harmless() {
    let text = DEFAULT.replace("manager = \"embedded\"", "manager = \"external\"");
    assert_ne!(text, DEFAULT);
    let config = parse(&text);
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(parse(DEFAULT).warnings, Vec::<String>::new());
}

/// A VF that shares a port has those of its P_Keys that any manager gives the port.
#[test]
fn pkeys_act_at_shared_ports_and_devices() {
    let text = with(&RIGHT.replace("vm1", "vm9"), "sm.manager", "'external'");
    let shared = with(&text, "fabric.model", "'shared-port'");
    let shared = with(&shared, "partitions.shop", "0x10");
    parse(&with(&shared, "hypervisor.vf.pkeys", "['shop:limited']"));
    let device = with(&text, "hypervisor.vf.device", "'0000:3b:00.2'");
    parse(&with(&device, "hypervisor.vf.pkeys", "[0x8010]"));
    let seen = with(&text, "hypervisor.vf.pkeys", "[0x8010]");
    let seen = parse(&with(&seen, "hypervisor.vf.virtual_pkeys", "[0xffff]"));
    let [warning] = &seen.warnings[..] else {
        panic!("{:?}", seen.warnings);
    };
    assert!(
        warning.contains("`0x") && warning.contains("with the same P_Keys"),
        "{warning}"
    );
}

#[test]
fn a_warning_where_a_key_does_nothing() {
    let cases: &[(&[Setting], &str, &[Setting])] = &[
        (
            &[("fabric.grh_required", "false")],
            "no VF shares a LID",
            &[("fabric.model", "'shared-port'")],
        ),
        (
            &[
                ("sm.manager", "'external'"),
                ("fabric.model", "'virtualized'"),
            ],
            "does not know virtual ports",
            &[("fabric.model", "'shared-port'")],
        ),
        (&[("sm.roots", "['sw1']")], "", &[]),
        (
            &[("sm.roots", "['00:02:c9:03:12:9a:68:9c']")],
            "only up*/down*, fat-tree routing and sm.lids have roots",
            &[("sm.routing", "'updn'")],
        ),
        (
            &[("sm.cn_guid_file", "'hosts'")],
            "only fat-tree routing tells compute nodes from others",
            &[("sm.routing", "'vswitch-ftree'")],
        ),
        (
            &[("sm.m_key_protect", "1")],
            "there are no management keys",
            &[("sm.m_key", "'per-node'")],
        ),
        (
            &[("sm.m_key_lease", "1")],
            "there are no management keys",
            &[("sm.m_key", "'per-node'")],
        ),
        (
            &[("sm.qos_vlarb_low", "'0:1'")],
            "links have no bandwidth",
            &[("fabric.bandwidth", "'model'")],
        ),
        (
            &[("sm.qos_vlarb_high", "'0:1'")],
            "links have no bandwidth",
            &[("fabric.bandwidth", "'model'")],
        ),
        (
            &[("sm.qos_high_limit", "1")],
            "links have no bandwidth",
            &[("fabric.bandwidth", "'model'")],
        ),
        (
            &[
                ("sm.rebalance_threshold", "150"),
                ("fabric.model", "'shared-port'"),
            ],
            "move without new paths",
            &[("fabric.model", "'vswitch-dynamic'")],
        ),
        (
            &[("host.huge_pages", "'2M'")],
            "the plan of the host has no VM",
            &[("hypervisor.vf.processors", "2")],
        ),
        (
            &[("hypervisor.vf.sl_policy", "'rewrite'")],
            "may use all service levels",
            &[("hypervisor.vf.sl", "[1]")],
        ),
        (
            &[
                ("hypervisor.vf.mad_burst", "7"),
                ("hypervisor.vf.mad_rate", "0"),
            ],
            "any number of management packets",
            &[("hypervisor.vf.mad_rate", "10")],
        ),
        (
            &[("switch.name", "'sw1'"), ("switch.extended_lids", "false")],
            "no LID has 18 bits",
            &[
                ("fabric.model", "'vswitch-dynamic'"),
                ("fabric.extended_lids", "true"),
                ("hypervisor.vf.lid", "9"),
            ],
        ),
    ];
    let all = |text: &str, settings: &[(&str, &str)]| {
        let settings = settings.iter();
        settings.fold(text.to_owned(), |text, (key, value)| {
            with(&text, key, value)
        })
    };
    for (settings, warning, remedy) in cases.iter().filter(|case| !case.1.is_empty()) {
        let text = all(RIGHT, settings);
        let warnings = parse(&text).warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(warning), "{warnings:?}");
        let right = parse(&all(&text, remedy)).warnings;
        assert_eq!(right, Vec::<String>::new(), "{settings:?}");
    }
}

#[test]
fn names_that_name_nothing() {
    let cases = [
        (
            "sm.roots",
            "['0002:c903:129a:689d']",
            "no switch has this GUID; did you mean `0002:c903:129a:689c (sw1)`?",
        ),
        (
            "sm.switch",
            "'sw2'",
            "there is no switch of this name; there is only sw1",
        ),
        (
            "hypervisor.switch",
            "'leaf'",
            "there is no switch of this name; there is only sw1",
        ),
        (
            "hypervisor.vf.cluster",
            "'c1'",
            "there is no cluster of this name; add a table [[cluster]], or write another name: the list of names is empty",
        ),
        (
            "hypervisor.vf.pkeys",
            "['defautl']",
            "there is no partition `defautl`; add it to [partitions], or write another name: did you mean `default`?",
        ),
    ];
    for (key, value, message) in cases {
        let told = problems(&with(RIGHT, key, value));
        assert!(told.len() == 1 && told[0].ends_with(message), "{told:?}");
    }
    // One of several.
    let roots = "['0002:c903:129a:689c', '0002:c903:0000:0001']";
    assert_eq!(problems(&with(RIGHT, "sm.roots", roots)).len(), 1);
}

/// Forms in which tools print addresses, and people paste them.
#[test]
fn forms_of_addresses() {
    let guid = Guid::new(0x0002_c903_0000_0101);
    for form in [
        "00:02:c9:03:00:00:01:01",
        "2:c903:0:101",
        "0x2c90300000101",
        "0002c90300000101",
    ] {
        let config = parse(&with(RIGHT, "hypervisor.vf.guid", &format!("'{form}'")));
        assert_eq!(config.hypervisors[0].vfs[0].model.guid, guid, "{form}");
    }
    for form in [
        "2001:db8:1f07:b005",
        "2001:db8:1f07:b005::/64",
        "0x20010db81f07b005",
    ] {
        let config = parse(&with(RIGHT, "fabric.subnet_prefix", &format!("'{form}'")));
        assert_eq!(config.subnets[0].prefix, 0x2001_0db8_1f07_b005, "{form}");
    }
    for form in ["16", "0x10", "'16'", "'0x10'"] {
        let config = parse(&with(RIGHT, "hypervisor.vf.lid", form));
        assert_eq!(
            config.hypervisors[0].vfs[0].model.lid,
            Some(Lid::from(16)),
            "{form}"
        );
    }
    for (form, pkey) in [
        ("0x8010", 0x8010),
        ("'0x8010'", 0x8010),
        ("0x10", 0x10),
        ("'0x10:full'", 0x8010),
        ("'shop:limited'", 0x20),
    ] {
        let text = with(RIGHT, "partitions.shop", "0x8020");
        let config = parse(&with(&text, "hypervisor.vf.pkeys", &format!("[{form}]")));
        assert_eq!(
            config.hypervisors[0].vfs[0].model.pkeys,
            [PKey::new(pkey)],
            "{form}"
        );
    }
    for form in ["52-54-00-12-34-56", "5254.0012.3456", "52:54:00:12:34:56"] {
        let text = with(&right(), "hypervisor.port.mac", &format!("'{form}'"));
        let config = parse(&text);
        let mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(
            config.hypervisors[0].vfs[1].kind,
            Kind::VhostUserNet(mac),
            "{form}"
        );
    }
}

/// A relative path begins at the folder of the configuration.
#[test]
fn paths_of_files() {
    let text = with(RIGHT, "sm.partitions_file", "'p.conf'");
    let text = with(&text, "sm.state_dir", "'state'");
    let config = Config::parse("/etc/ib/c.toml", &text, dirs()).expect("is right");
    assert_eq!(
        config.files.partitions.as_deref(),
        Some(Path::new("/etc/ib/p.conf"))
    );
    assert_eq!(
        config.files.state_dir.as_deref(),
        Some(Path::new("/etc/ib/state"))
    );
}

#[test]
fn the_directory_of_a_file_with_mistakes() {
    let folder = tempfile::tempdir().expect("is made");
    let file = folder.path().join("c.toml");
    let source = |runtime_dir| Source {
        file: Some(file.clone()),
        runtime_dir,
    };
    let text = "runtime_dir = \"/tmp/x\"\nlog = \n[sm]\nlid = 0\n";
    std::fs::write(&file, text).expect("is written");
    let (dir, mistakes) = source(None).locate().expect("is found");
    assert_eq!(dir, Path::new("/tmp/x"));
    assert!(
        mistakes
            .expect("are told")
            .to_string()
            .contains("not valid TOML")
    );
    let (dir, mistakes) = source(Some("/tmp/y".into())).locate().expect("is found");
    assert_eq!(
        (dir.as_path(), mistakes.is_none()),
        (Path::new("/tmp/y"), true)
    );

    let told = |bytes: &[u8]| {
        std::fs::write(&file, bytes).expect("is written");
        source(None).load().expect_err("is no text").to_string()
    };
    assert!(
        told(b"\xff\xfea\0=\0")
            .ends_with("c.toml: not UTF-8 (it looks like UTF-16); save the file as UTF-8")
    );
    assert!(told(b"a = 1\nb = '\xe9'").contains("c.toml:2: not UTF-8"));
}
