//! Faulty links, as Debian's opensm and perfquery see them.

use crate::daemon::{Daemon, Peer};
use crate::programs::{Opensm, Programs};
use test_driver::{AddressVector, Data, SendRequest, Transport};
use testing::Configuration;

#[test]
fn opensm_hears_of_links_with_errors() {
    let daemon = Daemon::configured(
        Configuration::new()
            .set("sm.manager", "external")
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"]),
    );
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let topology = daemon.ask(&["topology"]);
    let lid = |name: &str| {
        let mut nodes = topology["nodes"].as_array().expect("a list").iter();
        let node = nodes.find(|node| node["name"] == name).expect("a node");
        node["lid"].as_u64().expect("a LID")
    };
    let (mut vm1, vm2) = (Peer::open(&daemon, "vm1"), Peer::open(&daemon, "vm2"));
    let mut qp = vm1.qp(Transport::Ud);
    qp.activate(0, 1).expect("becomes ready");
    let to = AddressVector {
        lid: vm2.port.lid,
        qpn: 77,
        qkey: 1,
        ..AddressVector::default()
    };
    // One past the threshold of 8.
    let mut nine_datagrams = || {
        for _ in 0..9 {
            vm1.execute(&mut qp, &SendRequest::send(Data::Inline(b"hello")).to(&to));
        }
    };
    daemon.ask(&["link", "overrun", "vm1:1", "1"]);
    nine_datagrams();
    opensm.says(&format!(
        "num:130 (Excessive Buffer Overrun Threshold reached) Producer:2 (Switch) from LID:{} \
         Port 2",
        lid("hv1")
    ));
    daemon.ask(&["link", "stall", "vm1:1", "out"]);
    opensm.says(&format!(
        "num:131 (Flow Control Update watchdog timer expired) Producer:1 (Channel Adapter) from \
         LID:{} Port 1",
        lid("vm1")
    ));
    nine_datagrams();
    daemon.ask(&["link", "restore", "vm1:1"]);

    let programs = Programs::new(&daemon);
    let counted = |name: &str, port: &str, counter: &str| -> u64 {
        let text = programs.run(&["perfquery", &lid(name).to_string(), port]);
        let line = text.lines().find(|line| line.starts_with(counter));
        let value = line.and_then(|line| line.rsplit('.').next());
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("{counter}: {text}"))
    };
    assert_eq!(counted("hv1", "2", "ExcessiveBufferOverrunErrors:"), 1);
    assert_eq!(counted("hv1", "2", "PortRcvErrors:"), 9);
    assert_eq!(counted("vm1", "1", "PortXmitDiscards:"), 9);
    assert!(counted("vm1", "1", "PortXmitWait:") > 0);

    // In the end, for OpenSM gives a port up that it gets no answer of.
    daemon.ask(&["link", "drop", "vm1:1", "100"]);
    nine_datagrams();
    daemon.ask(&["link", "drop", "vm1:1", "0"]);
    opensm.says(&format!(
        "num:129 (Local Link integrity threshold reached) Producer:2 (Switch) from LID:{} Port 2",
        lid("hv1")
    ));
    assert!(counted("hv1", "2", "LocalLinkIntegrityErrors:") > 0);
}

/// The rate of the path from one VF to another, as saquery prints it.
fn path_rate(daemon: &Daemon) -> String {
    let programs = Programs::new(daemon);
    let lids = format!("{}:{}", daemon.lid("vm1"), daemon.lid("vm2"));
    let text = programs
        .run(&["saquery", "--src-to-dst", &lids])
        .replace('.', "");
    let rate = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("rate"));
    rate.expect("a rate").to_owned()
}

/// Switches of NDR tell extended speeds to managers that say they know them. OpenSM 3.3.23 does not say so when it looks at a
/// port first, and takes the links for slower ones; ours does.
#[test]
fn strict_switches() {
    let nodes = || {
        Configuration::new()
            .set("fabric.strict", true)
            .set("fabric.link_speed", "NDR")
            .hypervisor("hv1", ["vm1"])
            .hypervisor("hv2", ["vm2"])
    };
    let daemon = Daemon::configured(nodes());
    let [mut vm1, vm2] = ["vm1", "vm2"].map(|name| Peer::open(&daemon, name));
    vm1.write_to(&vm2);
    let ours = path_rate(&daemon);
    let daemon = Daemon::configured(nodes().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    let [mut vm1, vm2] = ["vm1", "vm2"].map(|name| Peer::open(&daemon, name));
    vm1.write_to(&vm2);
    // "Exactly" 400 Gb/s, and the 40 Gb/s of a link without extended speeds.
    assert_eq!([ours, path_rate(&daemon)], ["0x95", "0x87"]);
}
