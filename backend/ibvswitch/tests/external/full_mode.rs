//! Two tenants, each with Debian's opensm in one of its VMs: clusters in full mode.

use crate::daemon::{Daemon, Peer, connected};
use crate::programs::{Opensm, Programs};
use serde_json::json;
use test_driver::Transport;
use testing::{Configuration, wait_until};

/// Two leaves and two spines, with a VM of each tenant at each leaf.
fn cloud() -> Configuration {
    let tenant = |it: Configuration, name: &str| {
        it.entry("cluster", name)
            .key("view", "full")
            .key("full_mode_lease_s", 3)
    };
    let fabric = Configuration::new()
        .switches(["l1", "l2", "s1", "s2"])
        .link("l1", "s1")
        .link("l1", "s2")
        .link("l2", "s1")
        .link("l2", "s2");
    tenant(tenant(fabric, "t1"), "t2")
        .entry("hypervisor", "h1")
        .at("l1")
        .member("a1", "t1")
        .member("a2", "t2")
        .entry("hypervisor", "h2")
        .at("l2")
        .member("b1", "t1")
        .member("b2", "t2")
}

#[test]
fn opensm_manages_its_tenants_cluster_and_no_other() {
    let daemon = Daemon::logging(cloud());
    let programs = Programs::new(&daemon);
    let discover = |at: &str| programs.run(&["--host", at, "ibnetdiscover"]);
    let mirror = discover("t1/b1");
    assert!(mirror.contains("\"subnet manager\""), "{mirror}");
    let managers = ["t1/a1", "t2/a2"].map(|at| Opensm::start(&daemon, Some(at), &["-s", "1"]));
    for opensm in &managers {
        opensm.subnet_up();
    }
    for (tenant, [a, b], other) in [("t1", ["a1", "b1"], "a2"), ("t2", ["a2", "b2"], "a1")] {
        let at = format!("{tenant}/{b}");
        let found = discover(&at);
        for hidden in [other, "subnet manager"] {
            assert!(!found.contains(&format!("\"{hidden}\"")), "{found}");
        }
        for shown in [a, b, &format!("{tenant} switch 2")] {
            assert!(found.contains(&format!("\"{shown}\"")), "{found}");
        }
        let (mut from, to) = (Peer::open(&daemon, a), Peer::open(&daemon, b));
        let (own, peer) = (from.port.lid, to.port.lid);
        assert!(found.contains(&format!("# lid {peer} lmc 0")), "{found}");
        let run = |program: &[&str]| programs.run(&[&["--host", &at], program].concat());
        let [own, peer] = [own, peer].map(|lid| lid.to_string());
        let trace = run(&["ibtracert", &peer, &own]);
        assert!(trace.contains("To ca"), "{trace}");
        let path = run(&["saquery", "PR", "--slid", &peer, "--dlid", &own]);
        assert!(path.contains("PathRecord"), "{path}");
        let master = run(&["sminfo"]);
        assert!(
            master.contains(&format!("sm lid {own} ")) && master.contains("SMINFO_MASTER"),
            "{master}"
        );
        let (mut qp, _other) = connected(Transport::Rc, &from, &to);
        from.write_by(&mut qp, &to, 4096, 7);
        // Its switches count for it.
        let text = run(&["ibqueryerrors", "--details", "-k"]);
        assert!(
            text.contains("8 nodes checked, 0 bad nodes found"),
            "{text}"
        );
        let switch = found.lines().find(|line| line.starts_with("Switch"));
        let lid = switch.and_then(|line| line.split(" lid ").nth(1)?.split(' ').next());
        let counters = run(&["perfquery", "-x", "-a", lid.expect("a LID")]);
        assert!(counters.contains("PortXmitData:"), "{counters}");
    }
    let full = |daemon: &Daemon| daemon.ask(&["status"])["full_mode"].clone();
    assert_eq!(full(&daemon), json!(["t1", "t2"]));
    // Both tenants hear of a cable that is gone.
    daemon.ask(&["link", "down", "l1:2"]);
    for opensm in &managers {
        opensm.says("num:128 (Link state change)");
    }
    daemon.ask(&["link", "up", "l1:2"]);
    drop(managers);
    for tenant in ["t1", "t2"] {
        daemon.await_line(&["managed again", tenant]);
    }
    assert_eq!(full(&daemon), serde_json::Value::Null);
    let (mut from, to) = (Peer::open(&daemon, "a1"), Peer::open(&daemon, "b1"));
    from.write_to(&to);
    assert!(discover("t1/b1").contains("\"subnet manager\""));
}

/// A tenant's opensm with quality of service, on a ring on which shortest ways could deadlock: it divides the cluster's share of
/// links, and logs that its tables are refused.
#[test]
fn opensm_divides_a_share_and_hears_of_a_refusal() {
    let switches = ["l1", "l2", "l3", "l4", "l5"];
    let mut ring = Configuration::new()
        .set("sm.routing", "updn")
        .set("sm.cluster_lanes", true)
        .entry("cluster", "t1")
        .key("view", "full")
        .switches(switches);
    for (at, switch) in switches.into_iter().enumerate() {
        ring = ring
            .link(switch, switches[(at + 1) % 5])
            .entry("hypervisor", &format!("h{at}"))
            .at(switch)
            .member(&format!("vm{at}"), "t1");
    }
    let daemon = Daemon::logging(ring);
    let options = "qos TRUE\nqos_sl2vl 0,1,0,1,0,1,0,1,0,1,0,1,0,1,0,1\n\
        qos_vlarb_high 0:0\nqos_vlarb_low 0:192,1:64\n";
    let opensm = Opensm::start_with(&daemon, Some("t1/vm0"), &[], options);
    opensm.subnet_up();
    opensm.says("error status = 0x1C");
    // It goes on all the same.
    opensm.sweep();
    opensm.subnet_up();
    let state = || daemon.ask(&["status"])["clusters"][0].clone();
    wait_until("levels of the tenant's lanes", || {
        state()["own_levels"] == json!([1, 2])
    });
    assert_eq!(
        (&state()["name"], &state()["levels"]),
        (&json!("t1"), &json!([1, 2]))
    );
    let refusals = state()["refusals"].to_string();
    assert!(refusals.contains("could wait for each other"), "{refusals}");
    let shown = daemon.run(&["cluster", "show", "--config", &daemon.config()], "");
    for text in ["  1, 2 for its lanes  ", "could wait for each other"] {
        assert!(shown.out.contains(text), "{}{}", shown.out, shown.err);
    }
}
