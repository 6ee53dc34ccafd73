//! Hypervisors and their virtual functions.

use super::*;

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
        "\"default:half\"",
        "\"0x8000\"",
        "1.5",
    ] {
        vf_case(
            &format!("pkeys = [{pkey}]"),
            &format!("10: `hypervisor.vf.pkeys = {pkey}`: {REMEDY}"),
        );
    }
    vf_case(
        "pkeys = []",
        "9: `hypervisor.vf.pkeys = []`: no P_Key: the port could reach no other port; leave the key \
         out for full membership of the default partition",
    );
    vf_case(
        "pkeys = 0xffff",
        "9: `hypervisor.vf.pkeys = 0xffff`: is of the type integer; write an array",
    );
    vf_case(
        "pkeys = [0x7fff, \"default\"]",
        "18: `hypervisor.vf.pkeys = \"default\"`: this partition is already taken by an entry \
         before it (line 5); give each its own partition",
    );
}

#[test]
fn devices() {
    for device in ["", "3b:00.2", "unix:vm2.sock", "/run/vm2.sock"] {
        vf_case(
            &format!("device = \"{device}\""),
            &format!(
                "10: `hypervisor.vf.device = \"{device}\"`: not a device for passthrough; \
                 write the PCI address of a ConnectX VF as `lspci -D` prints it (0000:3b:00.2), or \
                 \"unix:\" and the whole path of the vfio-user socket of one"
            ),
        );
    }
}

/// A VF that is passed through has these rights; the VF behind decides all others.
#[test]
fn rights_of_devices() {
    let passed = |keys: &str| {
        let vf = |name: &str, keys: &str| {
            format!("[[hypervisor.vf]]\nname = \"{name}\"\ndevice = \"unix:/{name}\"\n{keys}\n")
        };
        let first = "cluster = \"a\"\nsl = [3]\nsl_policy = \"rewrite\"\n\
            gmp = { allow = [\"cm\"] }\nmad_rate = 7";
        let first = vf("v", first);
        let head = "[[cluster]]\nname = \"a\"\n[[hypervisor]]\nname = \"h\"\n";
        format!("{head}{first}{}", vf("w", keys))
    };
    let config = parse(&passed(
        "cluster = \"a\"\nsmp = \"deny\"\npkeys = [\"default:limited\", 0x8010]",
    ));
    let [v, w] = &config.hypervisors[0].hardware[..] else {
        panic!("{config:?}");
    };
    assert_eq!(
        (v.cluster, w.cluster),
        (Some((0, 1.into())), Some((0, 2.into())))
    );
    assert_eq!((v.smp, w.smp), (SmpAccess::OwnPort, SmpAccess::Deny));
    assert_eq!(v.mads.classes, GmpClasses::NONE.with(GmpClass::Cm));
    assert_eq!(v.mads.rate.map(|rate| rate.per_second), Some(7));
    assert_eq!(w.mads.classes, GmpClasses::default());
    assert_eq!(v.service_levels.admit(Sl::new(0)), Some(Sl::new(3)));
    assert_eq!(w.service_levels, ServiceLevels::default());
    let pkeys = Some([0x7fff, 0x8010].map(PKey::new).to_vec());
    assert_eq!((&v.pkeys, &w.pkeys), (&None, &pkeys));
    for (keys, what) in [
        (
            "cluster = \"a\"\nvlid = 1",
            "this virtual LID is already taken by v;",
        ),
        (
            "cluster = \"a\"\nsmp = \"fabric\"",
            "cannot manage the subnet",
        ),
        (
            "pkeys = [0x8001]\nsmp = \"fabric\"",
            "a manager of the subnet (`smp = \"fabric\"`) has all partitions of the VF behind it",
        ),
        ("pkeys = [0]", "not a P_Key"),
        (
            "lid = 7",
            "a VF that is passed through has this from the VF behind it",
        ),
        (
            "ipoib = \"enhanced\"",
            "a VF that is passed through has this from the VF behind it",
        ),
    ] {
        let problems = problems(&passed(keys));
        assert!(problems[0].contains(what), "{problems:?}");
    }
}

/// VMs of a cluster at other daemons.
#[test]
fn vms_elsewhere() {
    let text = |elsewhere: &str, vf: &str| {
        format!(
            "[[cluster]]\nname = \"a\"\n[[cluster.elsewhere]]\n{elsewhere}\n\
             [[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\ncluster = \"a\"\n{vf}\n"
        )
    };
    let right = "vlid = 1\nlid = 7\nguid = \"0002:c903:0000:0101\"";
    let config = parse(&text(right, "device = \"unix:/v\""));
    let [there] = &config.elsewhere[..] else {
        panic!("{config:?}");
    };
    assert_eq!(
        (
            there.cluster,
            there.virtual_lid,
            there.lid,
            there.guid.value()
        ),
        (0, 1.into(), 7.into(), 0x0002_c903_0000_0101)
    );
    // The next one free.
    assert_eq!(
        config.hypervisors[0].hardware[0].cluster,
        Some((0, 2.into()))
    );
    let passed = "device = \"unix:/v\"";
    for (elsewhere, vf, what) in [
        (
            right,
            "",
            "a cluster with VMs elsewhere has VFs that are passed through, and no others",
        ),
        (
            right,
            "device = \"unix:/v\"\nvlid = 1",
            "this virtual LID is already taken by a VM at another daemon (line 4); give each its own virtual LID",
        ),
        (
            "vlid = 1\nlid = 7",
            passed,
            "`cluster.elsewhere.guid`: the place of the VM is missing; write `vlid`, its LID in the cluster",
        ),
        (
            "vlid = 1\nlid = 7\nguid = \"0\"",
            passed,
            "not a port's GUID",
        ),
        (
            "vlid = 0\nlid = 7\nguid = \"0002:c903:0000:0101\"",
            passed,
            "`cluster.elsewhere.vlid = 0`",
        ),
    ] {
        let found = problems(&text(elsewhere, vf));
        assert!(found[0].contains(what), "{found:?}");
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

#[test]
fn rules_for_management_packets() {
    let config = parse(&format!(
        "{RIGHT}gmp = {{ deny = [\"vendor\"] }}\nmad_rate = 50\nmad_burst = 20\n\
         mad_rates = {{ subn-adm = 10, cm = 40 }}\n"
    ));
    let mads = &config.hypervisors[0].vfs[0].model.mads;
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
                   `application`, `vendor` and `mlx-device`";
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
fn spare_ports() {
    let config = parse(
        "[[hypervisor]]\nname = \"h\"\nspare_vfs = 1\nspare_ports = 2\n[[hypervisor.vf]]\nname = \"v\"\n",
    );
    let vfs: Vec<_> = config
        .vfs()
        .map(|(_, vf)| (vf.model.name.as_str(), vf.model.spare, vf.kind != Kind::Hca))
        .collect();
    let all = [
        ("v", false, false),
        ("h-spare1", true, false),
        ("h-spare-port1", true, true),
        ("h-spare-port2", true, true),
    ];
    assert_eq!(vfs, all);
    let socket = |index: usize| config.hypervisors[0].vfs[index].socket.clone();
    assert!(socket(3).ends_with("h-spare-port2.sock"));
    for (text, problem) in [
        (
            "[[hypervisor]]\nname = \"h\"\nspare_ports = 128\n",
            "3:15: `hypervisor.spare_ports = 128`: out of range; write how many ports without a VM the \
             hypervisor has, from 0 to 127",
        ),
        (
            "[[hypervisor]]\nname = \"h\"\nspare_vfs = 100\nspare_ports = 28\n",
            "4:15: `hypervisor.spare_ports = 28`: 128 VFs on one hypervisor, with the 0 that have a \
             VM; an adapter port has at most 127",
        ),
        (
            "[fabric]\nmodel = \"shared-port\"\n[[hypervisor]]\nname = \"h\"\nspare_ports = 1\n",
            "5:15: `hypervisor.spare_ports = 1`: a port without an HCA has a LID of its own behind a vSwitch, \
             and with this fabric.model hypervisors have no vSwitch; choose another fabric.model, such as \
             \"vswitch-hybrid\"",
        ),
    ] {
        let problems = problems(text);
        assert_eq!(problems[0], format!("f.toml:{problem}"));
    }
}

#[test]
fn spare_vfs() {
    let config =
        parse("[[hypervisor]]\nname = \"h\"\nspare_vfs = 2\n[[hypervisor.vf]]\nname = \"v\"\n");
    let vfs: Vec<_> = config
        .vfs()
        .map(|(_, vf)| (vf.model.name.as_str(), vf.model.spare))
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
            "2:8: `hypervisor.name = \"h\"`: this name is already taken by VF (line 5); give \
             each its own name",
        ),
    ] {
        let problems = problems(text);
        assert_eq!(problems[0], format!("f.toml:{problem}"));
    }
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
    let lids: Vec<_> = config.vfs().map(|(_, vf)| vf.model.cluster).collect();
    let at = |cluster, lid| Some((cluster, Lid::from(lid)));
    // In `a`, 2 is the subnet manager's.
    assert_eq!(lids, [at(0, 1), at(0, 3), at(1, 2), at(1, 1), None]);
    assert_eq!(config.clusters[1].sm_lid, Lid::UNICAST_LAST);
    let [.., y, z] = &config.hypervisors[0].vfs[..] else {
        panic!("five VFs")
    };
    assert_eq!(y.model.virtual_pkeys, [0x0007, 0xffff].map(PKey::from));
    assert_eq!(z.model.service_levels.allowed, 0b1010);
    assert_eq!(
        z.model.service_levels.foreign,
        hca::Foreign::Rewritten(wire::Sl::new(3))
    );
    for (text, message) in [
        (
            vf("v", "cluster = \"c\""),
            "10:11: `hypervisor.vf.cluster = \"c\"`: there is no cluster of this name; add a table [[cluster]], or write another name: there are a, b",
        ),
        (
            vf("v", "vlid = 1"),
            "10:8: `hypervisor.vf.vlid = 1`: a virtual LID outside of any cluster; name the VF's `cluster`, or write `lid` for the LID in the subnet",
        ),
        (
            vf("v", "cluster = \"a\"\nvlid = 2"),
            "11:8: `hypervisor.vf.vlid = 2`: this virtual LID is already taken by the subnet manager in this cluster; give each its own virtual LID",
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
fn views() {
    let text = |fabric: &str| {
        format!(
            "{fabric}[[cluster]]\nname = \"a\"\nview = \"mirror\"\n[[cluster]]\nname = \"b\"\n\
             [[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\ncluster = \"a\"\n\
             [[hypervisor.vf]]\nname = \"w\"\ncluster = \"b\"\n"
        )
    };
    let config = parse(&text(""));
    let views: Vec<View> = {
        let model = config.model();
        model.vfs().map(|(_, vf)| model.view(vf)).collect()
    };
    assert_eq!(views, [View::Mirror, View::OwnPort]);
    assert_eq!(
        problems(&text(
            "[fabric]\nextended_lids = true\nmodel = \"vswitch-dynamic\"\n"
        )),
        [
            "f.toml:6:8: `cluster.view = \"mirror\"`: switches do not show where LIDs of 18 bits lead; \
             leave the key out, or fabric.extended_lids"
        ]
    );
}

#[test]
fn full_mode() {
    let text = |keys: &str| {
        format!(
            "[[cluster]]\nname = \"a\"\nview = \"full\"\n{keys}[[hypervisor]]\nname = \"h\"\n\
             [[hypervisor.vf]]\nname = \"v\"\ncluster = \"a\"\npkeys = [\"0x8002\"]\n"
        )
    };
    let keys =
        "full_mode_lease_s = 7\nfull_mode_end = \"keep\"\npkeys = [\"0x0101\", \"0x0102\"]\n";
    let model = parse(&text(keys)).model();
    let expected = FullMode {
        lease: Duration::from_secs(7),
        end: FullModeEnd::Keep,
        pkeys: vec![PKey::new(0x8101), PKey::new(0x8102)],
    };
    assert_eq!(model.clusters[0].full_mode, expected);
    let (_, vf) = model.vfs().next().expect("is there");
    assert_eq!(vf.pkeys, [0x8002, 0x8101, 0x8102].map(PKey::new));
    for (keys, what) in [
        (
            "pkeys = [\"0x7fff\"]\n",
            "the partition of everybody; write another P_Key",
        ),
        (
            "pkeys = [5]\n[[cluster]]\nname = \"b\"\nview = \"full\"\npkeys = [5]\n",
            "this partition is already taken by the share of a cluster",
        ),
        (
            "[[cluster]]\nname = \"b\"\nfull_mode_end = \"keep\"\n",
            "the cluster has no full mode; write view = \"full\", or remove the key",
        ),
        (
            "full_mode_lease_s = 0\n",
            "the lease has 1 to 86400 seconds",
        ),
    ] {
        let found = problems(&text(keys));
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }
}

#[test]
fn shares_of_clusters() {
    let text = |lanes| {
        format!(
            "[sm]\ncluster_lanes = {lanes}\n[[cluster]]\nname = \"a\"\nshare = 3\n[[cluster]]\nname = \"b\"\n\
             [[hypervisor]]\nname = \"h\"\n[[hypervisor.vf]]\nname = \"v\"\ncluster = \"a\"\n"
        )
    };
    let model = parse(&text(true)).model();
    let shares: Vec<u8> = { model.clusters.iter() }.map(|it| it.share).collect();
    assert_eq!(shares, [3, 1]);
    let found = problems(&text(false));
    let what = "clusters have no lanes of their own; write cluster_lanes = true in [sm], or remove the key";
    assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
}
