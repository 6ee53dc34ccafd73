//! LIDs, GUIDs, and the models by which VFs come by them.

use super::*;

#[test]
fn derived_guids_are_the_same_every_time_and_everywhere() {
    let config = Config::parse(DEFAULT_ORIGIN, DEFAULT, dirs()).expect("is right");
    let guids: Vec<_> = config
        .vfs()
        .map(|(_, vf)| vf.model.guid.to_string())
        .collect();
    // Users write these into their own files; they must not change between versions.
    assert_eq!(guids, GUIDS_OF_VM1_AND_VM2);
    let moved = parse("[[hypervisor]]\nname='other'\n[[hypervisor.vf]]\nname='vm1'\n");
    assert_eq!(
        moved.hypervisors[0].vfs[0].model.guid,
        config.hypervisors[0].vfs[0].model.guid
    );
}

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
        "lid = \"c000\"",
        "7: `hypervisor.vf.lid = \"c000\"`: not a LID; a unicast LID is 0x0001 to 0xbfff (1 to 49151)",
    );
    vf_case(
        "lid = 1",
        "7: `hypervisor.vf.lid = 1`: this LID is already taken by the subnet manager; \
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
        "0002-c903-0000_0101",
    ] {
        vf_case(
            &format!("guid = \"{guid}\""),
            &format!("8: `hypervisor.vf.guid = \"{guid}\"`: {REMEDY}"),
        );
    }
    vf_case(
        "guid = \"0000:0000:0000:0000\"",
        "8: `hypervisor.vf.guid = \"0000:0000:0000:0000\"`: a GUID must not be zero: applications regard \
        such a port as not configured; leave the key out to have one derived from the name",
    );
}

#[test]
fn guids_of_nodes() {
    let of = |rest: &str| {
        let config = parse(&format!("{RIGHT}guid = \"0x2c90300000101\"\n{rest}\n"));
        config.hypervisors[0].vfs[0].model.node_guid
    };
    assert_eq!(of(""), None);
    assert_eq!(of("node_guid = \"00:02:c9:03:00:00:01:01\""), None);
    let other = Some(Guid::new(0x0002_c903_0000_0100));
    assert_eq!(of("node_guid = \"00:02:c9:03:00:00:01:00\""), other);
    let second = "[[hypervisor.vf]]\nname = \"vm2\"\nguid = \"0x2c90300000100\"";
    assert_eq!(
        problems(&format!(
            "{RIGHT}node_guid = \"0x2c90300000100\"\n{second}\n"
        )),
        [
            "f.toml:8:8: `hypervisor.vf.guid = \"0x2c90300000100\"`: this GUID is already taken by vm1 (line 5); give each its own GUID"
        ]
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
            "f.toml:8:8: `hypervisor.vf.name = \"vm1\"`: this name is already taken by VF (line 4); give each its own name",
            "f.toml:8:8: `hypervisor.vf.name = \"vm1\"`: this socket is already taken by vm1 (line 4); give each its own socket",
        ]
    );
    assert_eq!(
        problems(&second("name = \"vm2\"\nlid = 5")),
        [
            "f.toml:9:7: `hypervisor.vf.lid = 5`: this LID is already taken by vm1 (line 5); give each its own LID"
        ]
    );
    assert_eq!(
        problems(&second("name = \"vm2\"\nguid = \"0x0002c90300000101\"")),
        [
            "f.toml:9:8: `hypervisor.vf.guid = \"0x0002c90300000101\"`: this GUID is already taken by vm1 (line 6); give each its own GUID"
        ]
    );
    assert_eq!(
        problems(&second("name = \"vm2\"\nsocket = \"vm1.sock\"")),
        [
            "f.toml:9:10: `hypervisor.vf.socket = \"vm1.sock\"`: this socket is already taken by vm1 (line 4); give each its own socket"
        ]
    );
    assert_eq!(
        problems(&format!("{RIGHT}[[hypervisor]]\nname = \"hv1\"\n")),
        [
            "f.toml:6:8: `hypervisor.name = \"hv1\"`: this name is already taken by hypervisor (line 2); give each its own name"
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
            "f.toml:7:8: `hypervisor.vf.guid = \"{}\"`: this GUID is already taken by the VF `vm1`, whose GUID is derived from its name; give each its own GUID",
            GUIDS_OF_VM1_AND_VM2[0]
        )]
    );
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
             \"vswitch-prepopulated\", \"vswitch-hybrid\" or \"shared-port\", or sm.manager = \
             \"embedded\""
        ]
    );
}

/// The addresses of all VFs, and how far their subnet management packets go.
fn addresses(text: &str) -> Vec<(Address, SmpAccess)> {
    let config = parse(text);
    let vfs = config.vfs().map(|(_, vf)| (vf.model.address, vf.model.smp));
    vfs.collect()
}

#[test]
fn shared_and_dedicated() {
    const SHARED: (Address, SmpAccess) = (Address::Shared, SmpAccess::Deny);
    const DEDICATED: (Address, SmpAccess) = (Address::Dedicated, SmpAccess::OwnPort);
    assert_eq!(addresses(RIGHT), [DEDICATED]);
    let shared = "[fabric]\nmodel = \"shared-port\"\n";
    assert_eq!(addresses(&format!("{shared}{RIGHT}")), [SHARED]);
    let hybrid = "[fabric]\nmodel = \"vswitch-hybrid\"\n\
        [[hypervisor]]\nname = \"hv1\"\naddress = \"shared\"\nspare_vfs = 1\n\
        [[hypervisor.vf]]\nname = \"vm1\"\n\
        [[hypervisor.vf]]\nname = \"vm2\"\naddress = \"dedicated\"\n\
        [[hypervisor]]\nname = \"hv2\"\n\
        [[hypervisor.vf]]\nname = \"vm3\"\n";
    assert_eq!(addresses(hybrid), [SHARED, DEDICATED, SHARED, DEDICATED]);
    let config = parse(hybrid);
    let physical = |at: usize| {
        let addresses = config.hypervisors[at].vfs.iter().map(|vf| vf.model.address);
        config.fabric.model.has_physical_function(addresses)
    };
    assert_eq!([physical(0), physical(1)], [true, false]);
    vf_case(
        "address = \"shared\"",
        "11: `hypervisor.vf.address = \"shared\"`: `fabric.model` decides for all VFs; leave the key \
         out, or write fabric.model = \"vswitch-hybrid\"",
    );
    let remedy = "(`address = \"dedicated\"` with fabric.model = \"vswitch-hybrid\")";
    for (key, what) in [
        ("lid = 5", "a VF that shares a LID has none of its own"),
        (
            "smp = \"fabric\"",
            "queue pair 0 of a shared port belongs to its physical function",
        ),
        (
            "smp = \"own-port\"",
            "queue pair 0 of a shared port belongs to its physical function",
        ),
    ] {
        let found = problems(&format!("{shared}{RIGHT}{key}\n"));
        let [problem] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(
            problem.contains(what) && problem.ends_with(remedy),
            "{problem}"
        );
    }
}

/// A VF of a cluster takes one of its port's LIDs where it shares the port.
#[test]
fn clusters_on_shared_ports() {
    let text = |sm: &str, vfs: usize| {
        let vf = |at| format!("[[hypervisor.vf]]\nname = \"vm{at}\"\ncluster = \"c\"\n");
        let vfs: String = (0..vfs).map(vf).collect();
        format!(
            "[[cluster]]\nname = \"c\"\n[fabric]\nmodel = \"shared-port\"\n[sm]\n{sm}\n\
             [[hypervisor]]\nname = \"hv1\"\n{vfs}"
        )
    };
    for (lmc, most) in [(1, 1), (2, 3), (7, 127)] {
        parse(&text(&format!("lmc = {lmc}"), most));
    }
    for (lmc, vfs, range) in [(0, 1, 0), (1, 2, 1), (3, 9, 7)] {
        assert_eq!(
            problems(&text(&format!("lmc = {lmc}"), vfs)),
            [format!(
                "f.toml:7:1: `hypervisor.name`: {vfs} of its VFs share a port and are in a \
                 cluster, where each needs a LID beside the port's own, but with sm.lmc = {lmc} the port \
                 has 2^{lmc} - 1 = {range} such LIDs; raise sm.lmc (7 gives 127), or move VFs to other \
                 hypervisors"
            )]
        );
    }
    // What a manager from outside will do is not known here.
    parse(&text("manager = \"external\"", 100));
}

#[test]
fn lids_of_18_bits() {
    let extended = |fabric: &str, rest: &str| {
        let text = format!("[fabric]\nextended_lids = true\n{fabric}\n{rest}");
        Config::parse("test.toml", &text, dirs()).map_err(|error| error.to_string())
    };
    let dynamic = "model = \"vswitch-dynamic\"";
    let vms = "[[cluster]]\nname='a'\n[[switch]]\nname='s1'\nextended_lids=false\n\
               [[switch]]\nname='s2'\n[[hypervisor]]\nname='hv1'\nswitch='s1'\n\
               [[hypervisor.vf]]\nname='vm1'\ncluster='a'\n\
               [[hypervisor.vf]]\nname='vm2'\nlid=9\n";
    let config = extended(dynamic, vms).expect("is right");
    assert!(config.fabric.extended_lids);
    let speaks = config.wiring.switches.iter().map(|it| it.extended_lids);
    assert_eq!(speaks.collect::<Vec<_>>(), [false, true]);
    for (fabric, rest, expected) in [
        (
            "",
            vms.to_owned(),
            "VMs get such LIDs when they start; write false, or model = \"vswitch-dynamic\"",
        ),
        (
            dynamic,
            format!("[sm]\nmanager=\"external\"\n{vms}"),
            "no external subnet manager knows LIDs of 18 bits; write false, or sm.manager = \
             \"embedded\"",
        ),
        (
            dynamic,
            format!("[sm]\nlmc=1\n{vms}"),
            "a VM has one LID of 18 bits; write false, or sm.lmc = 0",
        ),
        (
            dynamic,
            vms.replace("lid=9", ""),
            "`vm2` would get a LID of 18 bits, and a guest's registers have 16; put it in a \
             `cluster`, where it sees another LID, or give it a `lid`, which is of 16",
        ),
    ] {
        let problems = extended(fabric, &rest).expect_err("is wrong");
        let expected = format!("test.toml: `fabric.extended_lids`: {expected}");
        assert!(problems.contains(&expected), "{problems}");
    }
}
