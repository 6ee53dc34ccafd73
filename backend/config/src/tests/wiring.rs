//! Switches and cables.

use super::*;

#[test]
fn several_switches() {
    let config = parse(
        r#"
        [sm]
        switch = "spine"
        [[switch]]
        name = "leaf1"
        [[switch]]
        name = "leaf2"
        [[switch]]
        name = "spine"
        [[link]]
        from = "leaf1"
        to = "spine"
        count = 2
        [[link]]
        from = "leaf2"
        to = "spine"
        [[hypervisor]]
        name = "a"
        [[hypervisor]]
        name = "b"
        switch = "leaf2"
        "#,
    );
    let names: Vec<&str> = config
        .wiring
        .switches
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(names, ["leaf1", "leaf2", "spine"]);
    assert_eq!(config.wiring.cables, [(0, 2), (0, 2), (1, 2)]);
    assert_eq!(config.subnets[0].manager.switch, 2);
    let of: Vec<usize> = config.hypervisors.iter().map(|it| it.switch).collect();
    assert_eq!(of, [0, 1]);

    // Left out, the manager's host is where the first hypervisor is, whatever is named first.
    let spine_first = |hypervisor: &str| {
        let text = format!(
            "[[switch]]\nname = \"spine\"\n[[switch]]\nname = \"leaf\"\n\
             [[link]]\nfrom = \"leaf\"\nto = \"spine\"\n\
             [[hypervisor]]\nname = \"a\"\n{hypervisor}"
        );
        parse(&text).subnets[0].manager.switch
    };
    assert_eq!(spine_first("switch = \"leaf\""), 1);
    assert_eq!(spine_first(""), 0);

    // Hypervisors without a switch are at leaves, evenly.
    let text = ["s1", "s2", "l1", "l2", "l3"].map(|it| format!("[[switch]]\nname = \"{it}\"\n"));
    let cable = |(leaf, spine)| format!("[[link]]\nfrom = \"l{leaf}\"\nto = \"s{spine}\"\n");
    let cables = (1..=3).flat_map(|leaf| [(leaf, 1), (leaf, 2)]).map(cable);
    let hypervisors = (1..=6).map(|it| format!("[[hypervisor]]\nname = \"h{it}\"\n"));
    let text = text.concat() + &cables.collect::<String>() + &hypervisors.collect::<String>();
    let config = parse(&text);
    let of: Vec<usize> = config.hypervisors.iter().map(|it| it.switch).collect();
    assert_eq!(of, [2, 3, 4, 2, 3, 4]);
    assert_eq!(config.subnets[0].manager.switch, 2);

    for (head, message) in [
        (
            "[[switch]]\nname = \"a\"\n[[switch]]\nname = \"a\"",
            "4:8: `switch.name = \"a\"`: this name is already taken by switch (line 2); give each its own name",
        ),
        (
            "[[link]]\nfrom = \"sw1\"\nto = \"sw2\"",
            "3:6: `link.to = \"sw2\"`: there is no switch of this name; there is only sw1",
        ),
        (
            "[fabric]\nswitch = \"x\"\n[[switch]]\nname = \"a\"",
            "2:10: `fabric.switch = \"x\"`: there are tables [[switch]]; remove this key; the first of them takes its place",
        ),
        (
            "[sm]\nhost = \"x\"",
            "2:8: `sm.host = \"x\"`: there is no file of nodes; remove this key, or name the file in `fabric.topology`",
        ),
        (
            "[[link]]\nfrom = \"sw1\"\nto = \"sw1\"\ncount = 200",
            "4:9: `link.count = 200`: out of range; write how many cables there are, from 1 to 127",
        ),
        (
            "[fabric]\ntopology = \"no such file\"",
            "2:12: `fabric.topology = \"no such file\"`: no such file: No such file or directory (os error 2); name a file in the form that `ibnetdiscover` prints",
        ),
    ] {
        head_case(head, message);
    }
}

/// A file that cannot be used is one mistake; its missing contents are no others.
#[test]
fn a_file_that_cannot_be_used_is_one_mistake() {
    let file = "[fabric]\ntopology = \"no such file\"\n";
    let hypervisor = "[[hypervisor]]\nname = \"hv1\"\nswitch = \"leaf\"\n";
    for text in [file.to_owned(), format!("{file}{hypervisor}")] {
        assert_eq!(
            problems(&text),
            [
                "f.toml:2:12: `fabric.topology = \"no such file\"`: no such file: No such file or \
                 directory (os error 2); name a file in the form that `ibnetdiscover` prints"
            ]
        );
    }
}

#[test]
fn nodes_of_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let net = dir.path().join("a.net");
    let text = "\
Switch 3 \"S\" # \"leaf\" base port 0 lid 0 lmc 0
[2] \"H\"[1]
[3] \"G\"[1]
Ca 1 \"H\" # \"one\"
[1] \"S\"[2]
Ca 1 \"G\" # \"two\"
[1] \"S\"[3]
";
    std::fs::write(&net, text).expect("is written");
    let origin = dir.path().join("f.toml");
    let parse = |text: &str| Config::parse(&origin.display().to_string(), text, dirs());
    let config =
        parse("[fabric]\ntopology = \"a.net\"\n").unwrap_or_else(|error| panic!("{error}"));
    let file = config.wiring.file.expect("a file");
    assert_eq!(file.names, ["leaf", "one", "two"]);
    assert_eq!(config.subnets[0].manager.guid, Guid::from(0x0010_0001));
    let one = "[[hypervisor]]\nname = \"a\"\nswitch = \"leaf\"\n";
    let both = format!("[fabric]\ntopology = \"a.net\"\n[sm]\nhost = \"two\"\n{one}");
    let config = parse(&both).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.subnets[0].manager.guid, Guid::from(0x0010_0003));
    // Port 1 was the last one free.
    let error = parse(&format!("{both}{}", one.replace("\"a\"", "\"b\""))).expect_err("is full");
    assert!(
        error.to_string().ends_with(
            ":8:1: `hypervisor.name`: no port is left for it on the switch `leaf`; choose another \
             switch with `switch = \"…\"`, or add one"
        ),
        "{error}"
    );
    // A GUID of the file, of a node or of its port, is nobody else's.
    let guids = file.topology.nodes()[1].clone();
    for guid in [guids.guid, guids.port_guids[0]] {
        let vf = format!("[[hypervisor.vf]]\nname = \"vm1\"\nguid = \"{guid}\"\n");
        let text = format!("[fabric]\ntopology = \"a.net\"\n{one}{vf}");
        let error = parse(&text).expect_err("is taken");
        let expected = format!(
            ":8:8: `hypervisor.vf.guid = \"{guid}\"`: this GUID is already taken by the node `one` in \
             {}; give each its own GUID",
            net.display()
        );
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
    std::fs::write(&net, text.replace("\"G\"[1]", "\"G\"[2]")).expect("is written");
    let error = parse("[fabric]\ntopology = \"a.net\"\n").expect_err("is wrong");
    assert!(
        error
            .to_string()
            .contains("line 3: `G` has no cable at port 2 that leads back here"),
        "{error}"
    );
}

/// The manager takes a port with a cable, of the adapter that is named or of the first that runs programs.
#[test]
fn the_managers_port() {
    let dir = tempfile::tempdir().expect("a directory");
    let file =
        |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("is written");
    file(
        "net",
        "Switch 8 \"S-0000000000000010\" # \"sw1\" base port 0 lid 1 lmc 0
[1] \"H-0000000000000050\"[1](50) # \"Mellanox Technologies Aggregation Node\" lid 7 4x???
[2] \"H-0000000000000020\"[2](22) # \"node2 HCA-1\" lid 3 4xFDR
[3] \"H-0000000000000030\"[1](31) # \"node3 HCA-1\" lid 4 4xFDR
[4] \"H-0000000000000030\"[2](32) # \"node3 HCA-1\" lid 5 4xFDR

Ca 1 \"H-0000000000000050\" # \"Mellanox Technologies Aggregation Node\"
[1](50) \"S-0000000000000010\"[1] # lid 7 lmc 0 \"sw1\" lid 1 4x???

Ca 1 \"H-0000000000000040\" # \"node4 HCA-1\"

Ca 2 \"H-0000000000000020\" # \"node2 HCA-1\"
[2](22) \"S-0000000000000010\"[2] # lid 3 lmc 0 \"sw1\" lid 1 4xFDR

Ca 2 \"H-0000000000000030\" # \"node3 HCA-1\"
[1](31) \"S-0000000000000010\"[3] # lid 4 lmc 0 \"sw1\" lid 1 4xFDR
[2](32) \"S-0000000000000010\"[4] # lid 5 lmc 0 \"sw1\" lid 1 4xFDR
",
    );
    file("alone", "Switch 8 \"a\"\nCa 1 \"b\"\n");
    let parse = |text: &str| {
        let origin = dir.path().join("f.toml");
        Config::parse(&origin.display().to_string(), text, dirs())
    };
    let net = "[fabric]\ntopology = \"net\"\n";
    let of = |sm: &str| {
        let config = parse(&format!("{net}[sm]\n{sm}")).unwrap_or_else(|error| panic!("{error}"));
        let manager = &config.subnets[0].manager;
        let port = config.wiring.file.expect("a file").manager.port;
        (manager.guid.value(), manager.lid.value(), port)
    };
    assert_eq!(of(""), (0x22, 3, 2));
    assert_eq!(of("host = \"node3 HCA-1\"\n"), (0x31, 4, 1));
    assert_eq!(of("host = \"0x0000000000000030\"\nlid = 9\n"), (0x31, 9, 1));
    assert_eq!(of("host = \"00:00:00:00:00:00:00:32\"\n"), (0x32, 5, 2));
    let refused = |text: &str| parse(text).expect_err(text).to_string();
    let error = refused(&format!("{net}[sm]\nhost = \"node4 HCA-1\"\n"));
    assert!(
        error.ends_with(
            "`sm.host = \"node4 HCA-1\"`: no port of this adapter has a cable; name one with a cable, \
             or lay one in the file"
        ),
        "{error}"
    );
    let error = refused(&format!("{net}[sm]\nhost = \"0x21\"\n"));
    assert!(
        error.contains("`sm.host = \"0x21\"`: this port of the adapter has no cable; "),
        "{error}"
    );
    let error = refused("[fabric]\ntopology = \"alone\"\n");
    assert!(
        error.ends_with(
            "no channel adapter with a cable is in the file; add one: it is the subnet manager's host"
        ),
        "{error}"
    );
    let warnings = parse(net).expect("is right").warnings;
    let warning = format!(
        "{}: line 2 and 1 more: `4x???` is no rate",
        dir.path().join("net").display()
    );
    assert!(warnings[0].starts_with(&warning), "{warnings:?}");
}
