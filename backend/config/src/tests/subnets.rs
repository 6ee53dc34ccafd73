//! Several subnets and routers.

use super::*;

const TWO: &str = r#"
[[subnet]]
name = "red"
prefix = "fec0:0000:0000:0001"
[[subnet]]
name = "blue"
prefix = "fec0:0000:0000:0002"
sm_switch = "sw3"
[[switch]]
name = "sw1"
[[switch]]
name = "sw2"
subnet = "blue"
[[switch]]
name = "sw3"
subnet = "blue"
[[link]]
from = "sw2"
to = "sw3"
[[router]]
name = "r1"
switches = ["sw1", "sw3"]
[[hypervisor]]
name = "hv1"
[[hypervisor.vf]]
name = "vm1"
lid = 7
[[hypervisor]]
name = "hv2"
switch = "sw2"
[[hypervisor.vf]]
name = "vm2"
lid = 7
"#;

#[test]
fn two_subnets() {
    let config = parse(TWO);
    let [red, blue] = &config.subnets[..] else {
        panic!("{:?}", config.subnets)
    };
    assert_eq!(red.name.as_deref(), Some("red"));
    assert_eq!(blue.prefix, 0xfec0_0000_0000_0002);
    assert_eq!((red.manager.switch, blue.manager.switch), (0, 2));
    assert_eq!(blue.manager.name, "subnet manager blue");
    assert_ne!(red.manager.guid, blue.manager.guid);
    let of = config.hypervisors.iter().map(|it| config.subnet_of(it));
    assert_eq!(of.collect::<Vec<_>>(), [0, 1]);
    let [router] = &config.wiring.routers[..] else {
        panic!("{:?}", config.wiring.routers)
    };
    let at: Vec<usize> = router.ports.iter().map(|port| port.switch).collect();
    assert_eq!(at, [0, 2]);
}

/// The one message for `TWO` with `from` in it replaced.
#[track_caller]
fn case(from: &str, to: &str, message: &str) {
    assert!(TWO.contains(from), "{from}");
    let text = TWO.replacen(from, to, 1);
    assert_eq!(problems(&text), [format!("f.toml{message}")], "{to}");
}

#[test]
fn mistakes_about_subnets() {
    const SITE: &str = "write a site-local prefix, such as \"fec0:0000:0000:0001\", or one that you \
         were assigned";
    case(
        ":0002\"",
        ":0001\"",
        ":7:10: `subnet.prefix = \"fec0:0000:0000:0001\"`: this prefix is already taken by red (line 4); give each its own prefix",
    );
    case(
        "fec0:0000:0000:0002",
        "fe80:0000:0000:0000",
        &format!(
            ":7:10: `subnet.prefix = \"fe80:0000:0000:0000\"`: GIDs of this prefix are valid only in their \
            own subnet: no router forwards packets to them; {SITE}"
        ),
    );
    case(
        "fec0:0000:0000:0002",
        "ff02:0000:0000:0000",
        &format!(
            ":7:10: `subnet.prefix = \"ff02:0000:0000:0000\"`: not the prefix of a subnet; {SITE}"
        ),
    );
    case(
        "prefix = \"fec0:0000:0000:0002\"",
        "",
        ":5:1: `subnet.prefix`: missing; add `prefix = \"…\"` to this table",
    );
    // More is wrong with these.
    for (from, to, message) in [
        (
            "name = \"blue\"",
            "name = \"red\"",
            "6:8: `subnet.name = \"red\"`: this name is already taken by subnet (line 3); give each its own name",
        ),
        (
            "subnet = \"blue\"",
            "subnet = \"green\"",
            "13:10: `switch.subnet = \"green\"`: there is no subnet of this name; there are red, blue",
        ),
    ] {
        let all = problems(&TWO.replacen(from, to, 1));
        let message = format!("f.toml:{message}");
        assert!(all.contains(&message), "{all:?}");
    }
    case(
        "sm_switch = \"sw3\"",
        "sm_switch = \"sw1\"",
        ":8:13: `subnet.sm_switch = \"sw1\"`: this switch is in another subnet; name one of this subnet, or leave the key out for the first of it with a hypervisor",
    );
    case(
        "to = \"sw3\"",
        "to = \"sw1\"",
        ":19:6: `link.to = \"sw1\"`: the two switches are in different subnets; join the subnets by a table [[router]] with a switch of each",
    );
    case(
        "[\"sw1\", \"sw3\"]",
        "[\"sw2\", \"sw3\"]",
        ":22:20: `router.switches = \"sw3\"`: the router is in this switch's subnet already; name one switch of each subnet",
    );
    case(
        "[\"sw1\", \"sw3\"]",
        "[\"sw1\"]",
        ":20:1: `router.switches`: a router joins two subnets at least; name a switch of each",
    );
    case(
        "switches = [\"sw1\", \"sw3\"]",
        "",
        ":20:1: `router.switches`: missing; add `switches = [\"…\", \"…\"]` to this table: one of each subnet that it joins",
    );
    case(
        "switch = \"sw2\"",
        "switch = \"sw3\"\n[[hypervisor.vf]]\nname = \"vm3\"\nlid = 7",
        ":36:7: `hypervisor.vf.lid = 7`: this LID is already taken by vm3 (line 33); give each its own LID",
    );
}

#[test]
fn a_subnet_needs_a_switch() {
    let text = "[[subnet]]\nname = \"a\"\nprefix = \"fec0:0000:0000:0001\"\n\
                [[subnet]]\nname = \"b\"\nprefix = \"fec0:0000:0000:0002\"";
    head_case(
        text,
        "4:1: `subnet.name`: no switch is in this subnet; name it as the `subnet` of a table [[switch]]",
    );
}

#[test]
fn what_does_not_go_along_with_several_subnets() {
    for (head, message) in [
        (
            "[sm]\nmanager = \"external\"",
            ": `sm.manager`: an external subnet manager manages one subnet, and there are several; write \"embedded\", which gives each a manager of its own, or configure one subnet",
        ),
        (
            "[sm]\nswitch = \"sw1\"",
            ":2:10: `sm.switch = \"sw1\"`: there are tables [[subnet]]; remove this key; `sm_switch` in each of them says where its manager is",
        ),
        (
            "[fabric]\nsubnet_prefix = \"fec0:0000:0000:0009\"",
            ":2:17: `fabric.subnet_prefix = \"fec0:0000:0000:0009\"`: there are tables [[subnet]]; remove this key; each of them has a `prefix`",
        ),
        (
            "[fabric]\nmodel = \"vswitch-hybrid\"",
            ": `fabric.model`: routers do not find VFs that share a LID; write \"vswitch-prepopulated\" or \"vswitch-dynamic\", or configure one subnet",
        ),
        (
            "[[cluster]]\nname = \"c\"",
            ": `cluster`: the LIDs of a virtual cluster are of one subnet, and there are several; remove the clusters, or configure one subnet",
        ),
    ] {
        let text = format!("{head}\n{TWO}");
        assert_eq!(problems(&text), [format!("f.toml{message}")], "{head}");
    }
    // One subnet may have a table, and then nothing is special.
    let one = "[[subnet]]\nname = \"a\"\nprefix = \"fe80:0000:0000:0000\"\n";
    assert_eq!(problems(&format!("{one}{RIGHT}")), Vec::<String>::new());
}
