//! Each mistake against its whole message: the wording is what a user gets to work with.

mod addresses;
mod functions;
mod scopes;
mod subnets;
mod values;
mod wiring;

use std::path::Path;
use std::time::Duration;

use fabric::SmpAccess;
use wire::{Lid, LinkWidth, Mtu, PKey, Sl};

use super::keys::Key;
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
        .map(|(hypervisor, vf)| (hypervisor.name.as_str(), vf.model.name.as_str()))
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

/// The built-in configuration, with its commented keys and tables.
fn shown() -> String {
    let lines = DEFAULT.lines().map(|line| match line.strip_prefix("# ") {
        Some(key) if key.contains(" = ") && !key.contains(". ") => format!("{key}\n"),
        Some(table) if table.starts_with("[[") => format!("{table}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// The commented keys of the built-in configuration are right, too, and have their defaults.
#[test]
fn commented_keys_of_the_built_in_configuration() {
    let config = parse(&shown());
    let vf = &config.hypervisors[0].vfs[0];
    assert_eq!(vf.model.lid, Some(Lid::from(16)));
    assert_eq!(vf.model.guid.to_string(), "0002:c903:0000:0101");
    assert_eq!(vf.model.pkeys, [PKey::DEFAULT_FULL]);
    assert_eq!(vf.socket, Path::new("/run/ibvswitch/vm1.sock"));
    assert_eq!(config.engine.cpu, Some(1));
    assert_eq!(config.external.socket.as_deref(), Some("ibvswitch"));
}

/// The built-in configuration shows each key. Where it shows the default, that is the one of the reference.
#[test]
fn every_key_is_shown() {
    let shown: toml::Table = shown().parse().expect("is TOML");
    for table in keys::TABLES {
        let mut tables = vec![&shown];
        for part in table.path.split('.').filter(|part| !part.is_empty()) {
            let values = tables.iter().filter_map(|table| table.get(part));
            let inner = values.flat_map(|value| match value {
                toml::Value::Array(list) => list.iter().filter_map(|it| it.as_table()).collect(),
                value => Vec::from_iter(value.as_table()),
            });
            tables = inner.collect();
        }
        for key in table.keys {
            let path = format!("{}.{}", table.path, key.name);
            let values: Vec<_> = tables.iter().filter_map(|it| it.get(key.name)).collect();
            // Tables that the subnet does without are shown in prose.
            let is_named = DEFAULT.contains(&format!("[{}]", key.name))
                || DEFAULT.contains(&format!("{} = ", key.name));
            assert!(!values.is_empty() || is_named, "{path} is not shown");
            let literal = key
                .default
                .strip_prefix('`')
                .and_then(|it| it.strip_suffix('`'));
            let literal = literal.filter(|it| !it.contains('`') && *it != "NAME.sock");
            if let (Some(literal), Some(shown)) = (literal, values.first()) {
                let default: toml::Table = format!("key = {literal}").parse().expect("is TOML");
                assert_eq!(**shown, default["key"], "{path}");
            }
        }
    }
}

/// The page has the keys of all tables. With `IBVSWITCH_WRITE_DOCS` set, they are written anew.
#[test]
fn the_page_has_all_keys() {
    const PAGE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/users/configuration.md"
    );
    let page = std::fs::read_to_string(PAGE).expect("is readable");
    let (text, _) = page.split_once("\n## Keys\n").expect("has the section");
    let expected = format!("{text}\n## Keys\n{}", reference());
    if std::env::var_os("IBVSWITCH_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &expected).expect("is writable");
    } else {
        assert_eq!(page, expected, "run this test with IBVSWITCH_WRITE_DOCS=1");
    }
}

/// All tables and keys in Markdown.
fn reference() -> String {
    let mut text = "\nThe program's own description of each key makes this section (`backend/config/src/keys`).\n".to_owned();
    for table in keys::TABLES {
        let heading = match table.path {
            "" => "At the top".to_owned(),
            path if table.is_list => format!("`[[{path}]]`"),
            path => format!("`[{path}]`"),
        };
        text += &format!("\n### {heading}\n");
        if !table.about.is_empty() {
            text += &format!("\n{}\n", table.about);
        }
        let keys = table.keys.iter().filter(|key| !key.meaning.is_empty());
        let rows: Vec<String> = keys
            .map(
                |Key {
                     name,
                     values,
                     default,
                     meaning,
                 }| format!("| `{name}` | {values} | {default} | {meaning} |\n"),
            )
            .collect();
        if !rows.is_empty() {
            text += "\n| key | values | default | meaning |\n|---|---|---|---|\n";
            text += &rows.concat();
        }
    }
    text
}

#[test]
fn the_example_of_the_documentation_is_right() {
    let documentation = include_str!("../../../docs/users/configuration.md");
    let example = documentation.rsplit("```toml\n").next().expect("has one");
    let config = parse(example.split("```").next().expect("ends"));
    let pkeys: Vec<_> = config
        .vfs()
        .map(|(_, vf)| vf.model.pkeys[0].to_string())
        .collect();
    assert_eq!(pkeys, ["0x0010", "0x8020", "0x8010"]);
}

const GUIDS_OF_VM1_AND_VM2: [&str; 2] = ["0002:c903:2214:8cd5", "0002:c903:372a:d426"];

#[test]
fn unknown_keys() {
    vf_case(
        "lidd = 3",
        "1: `hypervisor.vf.lidd`: unknown key; did you mean `lid`?",
    );
    vf_case(
        "port_guid = \"0x2c90300000101\"",
        "1: `hypervisor.vf.port_guid`: unknown key; the GUID of the port is `guid`",
    );
    vf_case(
        "password = 3",
        "1: `hypervisor.vf.password`: unknown key; the keys here are `name`, `device`, `isolation`, `address`, `lid`, `guid`, \
         `node_guid`, `pkeys`, `doorbells`, `like`, `ipoib`, `object_memory`, `guest_memory`, `processors`, `background`, `smp`, `gmp`, `mad_rate`, `mad_burst`, `mad_rates`, `cluster`, `vlid`, `virtual_pkeys`, `sl`, `sl_policy` and `socket`",
    );
    head_case(
        "[engin]",
        "1:2: `engin`: unknown key; did you mean `engine`?",
    );
    head_case(
        "[sm]\nsweep = 3",
        "2:1: `sm.sweep`: unknown key; the keys here are `manager`, `switch`, `host`, `lid`, `lmc`, `lids`, `paths`, \
         `sweep_interval`, `priority`, `routing`, `nue_max_num_vls`, `use_ucast_cache`, `lfts_file`, `lid_matrix_file`, `guid_routing_order_file`, `routing_program`, `routing_timeout`, `roots`, `root_guid_file`, `cn_guid_file`, `io_guid_file`, `partitions_file`, `qos_policy_file`, `congestion_control_file`, `enforce_partitions`, `cluster_lanes`, \
         `state_dir`, `qos_max_vls`, \
         `qos_sl2vl`, `qos_vlarb_high`, `qos_vlarb_low`, `qos_high_limit`, \
         `qos_ca_max_vls`, `qos_ca_sl2vl`, `qos_ca_vlarb_high`, `qos_ca_vlarb_low`, `qos_ca_high_limit`, `qos_sw0_max_vls`, `qos_sw0_sl2vl`, `qos_sw0_vlarb_high`, `qos_sw0_vlarb_low`, `qos_sw0_high_limit`, `qos_swe_max_vls`, `qos_swe_sl2vl`, `qos_swe_vlarb_high`, `qos_swe_vlarb_low`, `qos_swe_high_limit`, `qos_rtr_max_vls`, `qos_rtr_sl2vl`, `qos_rtr_vlarb_high`, `qos_rtr_vlarb_low`, `qos_rtr_high_limit`, `m_key`, `m_key_protect`, `m_key_lease`, \
         `rebalance_threshold` and `path_caching`",
    );
}

#[test]
fn what_must_be_there() {
    assert_eq!(
        problems(""),
        [
            "f.toml: `hypervisor`: missing; add a table [[hypervisor]] with a name and a table [[hypervisor.vf]] for each VM"
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
            "f.toml:1:1: `hypervisor`: is of the type table; write an array of tables: [[hypervisor]]"
        ]
    );
}

/// The built-in configuration is where people look for what may be written.
#[test]
fn the_built_in_configuration_names_all_values() {
    fn names<T>(values: &[(&'static str, T)]) -> Vec<&'static str> {
        values.iter().map(|&(name, _)| name).collect()
    }
    for (key, values) in [
        ("routing", names(&RoutingChoice::NAMES)),
        ("doorbells", names(&Doorbells::NAMES)),
        ("model", names(&AddressModel::NAMES)),
        ("address", names(&Address::NAMES)),
        ("manager", names(&ManagerPlace::NAMES)),
        ("view", names(&View::NAMES)),
        ("full_mode_end", names(&FullModeEnd::NAMES)),
        ("like", names(&LIKENESSES)),
        ("ipoib", names(&IPOIB)),
        ("smp", names(&SMP_ACCESS)),
        ("isolation", names(&ISOLATION)),
    ] {
        for value in values {
            let quoted = format!("\"{value}\"");
            assert!(DEFAULT.contains(&quoted), "`{key}` may be {quoted}");
        }
    }
}

/// A table of VFs that is under no hypervisor.
#[test]
fn a_vf_without_a_hypervisor() {
    assert_eq!(
        problems("[[hypervisor.vf]]\nname = \"vm1\"\n"),
        [
            "f.toml:1:3: `hypervisor`: is of the type table; write an array of tables: [[hypervisor]]"
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

/// A generator's one mistake hides no other.
#[test]
fn thousands_of_mistakes_of_a_kind_are_not_printed() {
    let hypervisors: String = (0..300)
        .map(|number| format!("[[hypervisor]]\nname = \"h{number}\"\nports = 2\n"))
        .collect();
    let error = Config::parse("f.toml", &format!("log = \"x\"\n{hypervisors}"), dirs());
    let text = error
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    let of = |key: &str| text.lines().filter(|line| line.contains(key)).count();
    assert_eq!(of("`log = \"x\"`"), 1, "{text}");
    assert_eq!(of("`hypervisor.ports`"), 11, "{text}");
    assert!(
        text.contains("290 more mistakes at `hypervisor.ports`"),
        "{text}"
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
