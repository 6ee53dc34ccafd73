//! Congestion control as Debian's opensm and the embedded manager set it up, and as ibccquery and ibccconfig see it.

use crate::daemon::{Daemon, HALF, Peer, connected_by};
use crate::programs::{Opensm, Programs};
use test_driver::{Data, SendRequest, Transport};
use testing::{Configuration, wait_until};

/// Switches mark soon, one packet in four, and senders go down to one part in 1 + n/4 of the link at index n.
const OPTIONS: &str = "\
congestion_control TRUE
cc_key 0x1234
cc_sw_cong_setting_control_map 0x1f
cc_sw_cong_setting_threshold 0x0f
cc_sw_cong_setting_packet_size 8
cc_sw_cong_setting_marking_rate 3
cc_ca_cong_setting_control_map 0xffff
cc_ca_cong_setting_ccti_timer 0 1000
cc_ca_cong_setting_ccti_increase 0 2
cc_ca_cong_setting_trigger_threshold 0 4
cc_cct 2:0,2:1,2:2,2:3,2:4,2:5,2:6,2:7,2:8,2:9,2:10,2:11,2:12,2:13,2:14,2:15
";
/// Messages that each guest sends, and bytes of each.
const MESSAGES: usize = 64;
const LEN: usize = 128 << 10;
/// Times that they send them at most, until vm1 is held back.
const MAX_ROUNDS: u32 = 30;

/// Returns the value that a tool prints after a field's name and its dots.
#[track_caller]
fn value<'a>(text: &'a str, field: &str) -> &'a str {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{field}:")));
    let Some(line) = line else {
        panic!("no {field}: {text}");
    };
    line.trim_start_matches('.')
}

/// The options of [`OPTIONS`], as a switch and an adapter have them.
#[track_caller]
fn assert_settings(ask: &dyn Fn(&str, &str) -> String, sw1: &str, vm1: &str) {
    // Who does not know the key sets nothing.
    let info = ask("CI", sw1);
    assert_eq!(value(&info, "CongestionInfo"), "0x7000");
    let info = ask("CI", vm1);
    assert_eq!(value(&info, "ControlTableCap"), "2");
    let setting = ask("SS", sw1);
    assert_eq!(value(&setting, "Threshold"), "0x0f");
    assert_eq!(value(&setting, "Packet_Size"), "8");
    assert_eq!(value(&setting, "Marking_Rate"), "3");
    // No switch starves its neighbours of credits.
    assert_eq!(value(&setting, "CS_Threshold"), "0x00");
    let setting = ask("CS", vm1);
    assert_eq!(value(&setting, "CCTI_Timer"), "1000");
    assert_eq!(value(&setting, "CCTI_Increase"), "2");
    assert_eq!(value(&setting, "Trigger_Threshold"), "4");
    let table = ask("CT", vm1);
    assert_eq!(value(&table, "CCTI_Limit"), "15");
    let entries = table
        .lines()
        .filter(|line| line.starts_with("CCT_Multiplier"));
    let entries: Vec<_> = entries.map(|line| value(line, "CCT_Multiplier")).collect();
    assert_eq!(entries.len(), 16);
    assert_eq!((entries[1], entries[15]), ("1", "15"));
}

fn lid(daemon: &Daemon, name: &str) -> String {
    let topology = daemon.ask(&["topology"]);
    let nodes = topology["nodes"].as_array().expect("a list");
    let node = nodes.iter().find(|node| node["name"] == name);
    node.expect("a node")["lid"].to_string()
}

#[test]
fn the_embedded_manager_sets_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("congestion.conf");
    std::fs::write(&file, OPTIONS).expect("is written");
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.congestion_control_file", file.display().to_string())
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"]),
    );
    let programs = Programs::new(&daemon);
    let (sw1, vm1) = (lid(&daemon, "sw1"), lid(&daemon, "vm1"));
    let ask = |op: &str, lid: &str| programs.run(&["ibccquery", "-c", "0x1234", op, lid]);
    // The last that an adapter gets.
    wait_until("the table is set", || {
        value(&ask("CT", &vm1), "CCTI_Limit") == "15"
    });
    assert_settings(&ask, &sw1, &vm1);
    let status = daemon.ask(&["sm", "status"]);
    assert_eq!(status["errors"], serde_json::json!([]), "{status}");
}

#[test]
fn opensm_holds_an_incast_back() {
    let daemon = Daemon::with_slow_links(
        Configuration::new()
            .set("sm.manager", "external")
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"])
            .hypervisor("hv3", ["vm3"]),
    );
    let opensm = Opensm::with_options(&daemon, OPTIONS);
    opensm.subnet_up();
    let programs = Programs::new(&daemon);
    let [vm1, vm3, sw1] = ["vm1", "vm3", "sw1"].map(|name| lid(&daemon, name));
    let ask = |op: &str, lid: &str| programs.run(&["ibccquery", "-c", "0x1234", op, lid]);
    assert_settings(&ask, &sw1, &vm1);

    let mut near = ["vm1", "vm2"].map(|name| Peer::open(&daemon, name));
    let far = Peer::open(&daemon, "vm3");
    let mut pairs = [0, 1].map(|at| {
        let (config, other) = (near[at].config(Transport::Rc), far.config(Transport::Rc));
        connected_by(&config, &other, &near[at], &far, |connection| {
            connection.ack_timeout = 20;
        })
    });
    // On a machine that has other things to do the guests may send one after the other.
    let mut rounds = 0;
    let (marked, log) = loop {
        for ((qp, _), from) in pairs.iter_mut().zip(&near) {
            let list = [from.sge(0, LEN)];
            for _ in 0..MESSAGES {
                let write = SendRequest::write(far.remote(HALF), Data::Memory(&list));
                qp.post_send(&write).expect("is posted");
            }
        }
        for (at, (qp, _)) in pairs.iter_mut().enumerate() {
            for _ in 0..MESSAGES {
                assert!(near[at].sent(qp).is_ok());
            }
        }
        let (marked, held) = (ask("CL", &sw1), ask("CL", &vm1));
        assert_eq!(value(&marked, "LogType"), "1");
        assert_eq!(value(&held, "LogType"), "2");
        if value(&held, "ThresholdCongestionEventMap") == "0x0001" {
            break (marked, held);
        }
        rounds += 1;
        assert!(rounds < MAX_ROUNDS, "{marked}{held}");
    };
    // The switch has marked packets to vm3, on its port to hv3 and no other, and vm1 has held its queue pair back.
    assert_ne!(value(&marked, "LogEventsCounter"), "0");
    assert_eq!(value(&marked, "DLID"), vm3);
    assert_eq!(value(&log, "Remote_LID_CN_Entry"), vm3);
    assert_eq!(value(&log, "Local_LID_CN"), vm1);
    let qpn = pairs[0].0.number().to_string();
    assert_eq!(value(&log, "Local_QP_CN_Entry"), qpn);

    // By hand, with a key from now on.
    let set = |arguments: &[&str]| {
        programs.run(&[&["ibccconfig"][..], arguments].concat());
    };
    set(&["CK", &vm1, "0x1234", "1", "0", "0"]);
    set(&["-c", "0x1234", "CS", &vm1, "1", "0x4", "200", "1", "9", "3"]);
    let wrong = programs.fail(&[
        "ibccconfig",
        "-t",
        "50",
        "-c",
        "5",
        "CS",
        &vm1,
        "0",
        "4",
        "1",
        "1",
        "1",
        "1",
    ]);
    assert!(wrong.contains("failed"), "{wrong}");
    let setting = ask("CS", &vm1);
    assert_eq!(value(&setting, "Port_Control"), "0x0001");
    let (_, level) = setting
        .split_once("SL:..............................2")
        .expect("level 2");
    assert_eq!(value(level, "CCTI_Timer"), "200");
    assert_eq!(value(level, "CCTI_Min"), "3");
    let key = ask("CK", &vm1);
    assert_eq!(value(&key, "CC_KeyProtectBit"), "1");
    assert_ne!(value(&key, "CC_KeyViolations"), "0");
    set(&["-c", "0x1234", "SP", &sw1, "1", "1", "0", "0x3", "1", "7"]);
    let ports = ask("SP", &sw1);
    let (_, port) = ports
        .split_once("Port:............................1\n")
        .expect("port 1");
    assert_eq!(value(port, "Threshold"), "0x03");
    assert_eq!(value(port, "Cong_Parm_Marking_Rate"), "7");
}
