use proptest::prelude::*;

use super::*;

/// OpenSM's documentation has one of each.
const FULL: &str = "
port-groups
    port-group # by GUID
        name: Storage
        use: targets: SRP, \"and # others\"
        port-guid: 0x10, 0x20-0x2f
        port-guid: 48
    end-port-group
    port-group
        name: Virtual Servers
        port-name: vs1 HCA-1/P1, \"vs2, HCA-1/p2\"
    end-port-group
    port-group
        name: Partitions
        partition: Part1
        pkey: 0x9234
    end-port-group
    port-group
        name: Kinds
        node-type: router, SELF
    end-port-group
end-port-groups
qos-setup
    vlarb-tables
    end-vlarb-tables
end-qos-setup
qos-levels
    qos-level
        name: Default
        sl: 0
    end-qos-level
    qos-level
        name: WholeSet
        sl: 1
        mtu-limit: 4
        rate-limit: 3
        pkey: 0x1234, 5
        packet-life: 8
    end-qos-level
    qos-level
        name: Kinds
        sl: 2
    end-qos-level
end-qos-levels
qos-match-rules
    qos-match-rule
        use: all that there is
        qos-class: 7-9,11
        source: VirtualServers, Partitions
        destination: storage
        service-id: 0x10000-0x1ffff
        pkey: 0x0F00-0x0FFF
        qos-level-name: WHOLESET
    end-qos-match-rule
    qos-match-rule
        source: Kinds
        qos-level-name: Kinds
    end-qos-match-rule
end-qos-match-rules
qos-ulps
    ipoib : 5
end-qos-ulps
";

fn parse(text: &str) -> Result<Policy, Vec<Mistake>> {
    Policy::parse(text, |name| (name == "Part1").then_some(PKey::new(0x8abc)))
}

struct Port {
    guid: u64,
    kind: NodeType,
    name: &'static str,
    number: u8,
    pkeys: Vec<PKey>,
    is_own: bool,
}

const PORT: Port = Port {
    guid: 1,
    kind: NodeType::ChannelAdapter,
    name: "a",
    number: 1,
    pkeys: Vec::new(),
    is_own: false,
};

impl Port {
    fn end(&self) -> End<'_> {
        End {
            guids: [Guid::new(self.guid), Guid::NONE],
            kind: self.kind,
            name: self.name.into(),
            number: self.number,
            pkeys: &self.pkeys,
            is_own: self.is_own,
        }
    }
}

/// The service level for a request of (service, class, P_Key), as far as they are given.
fn level(
    policy: &Policy,
    from: &Port,
    to: &Port,
    asked: (Option<u64>, Option<u16>, Option<u16>),
) -> u8 {
    let (service, class, pkey) = asked;
    let wanted = PathRecord {
        service_id: service.unwrap_or_default(),
        qos_class: class.unwrap_or_default(),
        pkey: PKey::new(pkey.unwrap_or_default()),
        ..PathRecord::default()
    };
    let given = [
        (service.is_some(), PathRecord::SERVICE_ID),
        (class.is_some(), PathRecord::QOS_CLASS),
        (pkey.is_some(), PathRecord::PKEY),
    ];
    let mask = given.into_iter().filter(|(is_given, _)| *is_given);
    let query = Query {
        source: from.end(),
        destination: to.end(),
        wanted: &wanted,
        mask: mask.fold(0, |mask, (_, component)| mask | component),
    };
    policy.level(&query).sl.value()
}

#[test]
fn the_full_form() {
    let policy = parse(FULL).unwrap();
    let idle: Vec<usize> = policy.idle().iter().map(|it| it.line).collect();
    assert_eq!(idle, [23]);
    assert_eq!(policy.named(), [(6, Guid::new(0x10)), (7, Guid::new(48))]);
    let server = Port {
        name: "vs1 HCA-1",
        ..PORT
    };
    let storage = Port { guid: 0x2a, ..PORT };
    let all = (Some(0x1_0005), Some(8), Some(0x8f01));
    assert_eq!(level(&policy, &server, &storage, all), 1);
    let other = Port {
        name: "vs2, HCA-1",
        number: 2,
        ..PORT
    };
    assert_eq!(level(&policy, &other, &storage, all), 1);
    let member = Port {
        pkeys: vec![PKey::new(0x0abc)],
        ..PORT
    };
    assert_eq!(level(&policy, &member, &storage, all), 1);
    let stranger = Port {
        pkeys: vec![PKey::new(0x8abd)],
        ..PORT
    };
    // One criterion after the other is missed.
    for (from, to, asked) in [
        (&stranger, &storage, all),
        (&server, &server, all),
        (&server, &storage, (Some(5), Some(8), Some(0xf01))),
        (&server, &storage, (Some(0x1_0005), Some(10), Some(0xf01))),
        (&server, &storage, (Some(0x1_0005), Some(8), Some(0x1))),
        (&server, &storage, (None, Some(8), Some(0xf01))),
        (&server, &storage, (Some(0x1_0005), Some(8), None)),
    ] {
        assert_eq!(level(&policy, from, to, asked), 0, "{asked:x?}");
    }
    let router = Port {
        kind: NodeType::Router,
        ..PORT
    };
    let own = Port {
        is_own: true,
        ..PORT
    };
    for end in [&router, &own] {
        assert_eq!(level(&policy, end, &PORT, (None, None, Some(0xffff))), 2);
        assert_eq!(level(&policy, &PORT, end, (None, None, Some(0xffff))), 5);
    }
    assert_eq!(policy.partition_level(PKey::DEFAULT_FULL), Some(Sl::new(5)));
    assert_eq!(policy.partition_level(PKey::new(0x0f01)), None);
    let whole = policy
        .levels
        .iter()
        .find(|level| level.mtu.is_some())
        .unwrap();
    assert_eq!(
        (whole.mtu, whole.rate, whole.life),
        (Some(4), Some(Rate(3)), Some(8))
    );
    let shared = [0x8001, 0x9234, 0x8005].map(PKey::new);
    assert_eq!(whole.choose(shared.into_iter()), Some(PKey::new(0x8005)));
    assert_eq!(whole.choose(shared[..1].iter().copied()), None);
    let partitions = "a=0x7fff, sl=4 : ;\nb=0x0f01, sl=0: ;";
    let partitions = Partitions::parse(partitions, |_| None).unwrap();
    let overridden: Vec<(usize, String)> = policy.overridden(&partitions).collect();
    assert_eq!(overridden.len(), 1);
    assert_eq!(overridden[0].0, 1);
    let what =
        "sl=4: paths in the partition 0xffff have sl=5 by line 61 of the policy file; write a rule";
    assert!(overridden[0].1.starts_with(what), "{}", overridden[0].1);
}

#[test]
fn the_simplified_form() {
    let text = "qos-ulps
        default                       : 9
        sdp, port-num 30000           : 0
        SDP, port-num 10000-20000     : 1
        sdp                           : 2
        rds                           : 3
        iser, port-num 900            : 4
        iser                          : 5
        ipoib, pkey 0x0001            : 6
        ipoib                         : 7
        any, service-id 0x6234, 0x7   : 8
        any,pkey 0x0ABC               : 10
        srp, target-port-guid 0x1234  : 11
        any, target-port-guid 0x0ABC-0xFFF : 12
        any, source-port-guid 0x5678  : 13
        any, source-target-port-guid 0x9abcd : 14
    end-qos-ulps";
    let policy = parse(text).unwrap();
    assert_eq!(policy.idle(), []);
    let service = |id| level(&policy, &PORT, &PORT, (Some(id), None, None));
    let ids = [
        0x1_7530, 0x1_3000, 0x1_0001, 0x106_48ca, 0x106_0384, 0x106_0cbc, 0x6234, 7, 8,
    ];
    assert_eq!(ids.map(service), [0, 1, 2, 3, 4, 5, 8, 8, 9]);
    let partition = |pkey| level(&policy, &PORT, &PORT, (None, None, Some(pkey)));
    assert_eq!(
        [0x8001, 0x7fff, 0xffff, 0x8abc, 2].map(partition),
        [6, 7, 7, 10, 9]
    );
    let ends = |from, to| {
        let port = |guid| Port { guid, ..PORT };
        level(&policy, &port(from), &port(to), (None, None, None))
    };
    assert_eq!(
        [ends(2, 0x1234), ends(2, 0xabc), ends(0x5678, 2)],
        [11, 12, 13]
    );
    assert_eq!(
        [ends(0x9abcd, 2), ends(2, 0x9abcd), ends(2, 3)],
        [14, 14, 9]
    );
}

#[test]
fn sections_of_both_forms() {
    let text = "qos-ulps\ndefault : 3\nany, pkey 1 : 4\nend-qos-ulps
qos-levels\nqos-level\nname: DEFAULT\nsl: 5\npath-bits: 2,4\nend-qos-level\nend-qos-levels
qos-match-rules\nqos-match-rule\npkey: 1\nqos-level-name: default\nend-qos-match-rule\nend-qos-match-rules\n";
    let policy = parse(text).unwrap();
    // Rules of the full form come first, and so does its default.
    assert_eq!(level(&policy, &PORT, &PORT, (None, None, Some(1))), 5);
    assert_eq!(level(&policy, &PORT, &PORT, (None, None, None)), 5);
    let idle: Vec<String> = policy.idle().iter().map(ToString::to_string).collect();
    assert_eq!(
        idle,
        [
            "line 9: path-bits does not act, as in OpenSM; remove it",
            "line 2: default does not act, since line 6 has the qos-level DEFAULT; remove one of the two"
        ]
    );
    let lines: Vec<(usize, u8)> = policy
        .levels()
        .map(|(line, sl)| (line, sl.value()))
        .collect();
    assert_eq!(lines, [(2, 3), (3, 4), (8, 5)]);
}

#[test]
fn mistakes_have_lines_and_remedies() {
    let level =
        |fields: &str| format!("qos-levels\nqos-level\n{fields}\nend-qos-level\nend-qos-levels\n");
    let group = |fields: &str| {
        format!("port-groups\nport-group\n{fields}\nend-port-group\nend-port-groups\n")
    };
    let rule = |fields: &str| {
        format!(
            "qos-match-rules\nqos-match-rule\n{fields}\nend-qos-match-rule\nend-qos-match-rules\n"
        )
    };
    let ulp = |line: &str| format!("qos-ulps\n{line}\nend-qos-ulps\n");
    for (text, mistake) in [
        (
            "# nothing\n".to_owned(),
            "line 1: no level for requests that no rule matches; write",
        ),
        (
            "qos-level\n".to_owned(),
            "line 1: qos-level: no section; the sections are",
        ),
        (
            "qos-levels\nqos-level\n".to_owned(),
            "line 1: qos-levels does not end; write end-qos-levels",
        ),
        (
            "qos-levels\nqos-level\nend-qos-levels\n".to_owned(),
            "line 2: qos-level does not end; write end-qos-level",
        ),
        (
            "qos-levels\nsl: 3\nend-qos-levels\n".to_owned(),
            "line 2: sl: 3: write qos-level or the section's end",
        ),
        (
            level("name: DEFAULT"),
            "line 2: a qos-level without a service level; write `sl: 0`",
        ),
        (
            level("sl: 1"),
            "line 2: a qos-level without a name; write `name: NAME`",
        ),
        (
            level("name: DEFAULT\nsl: 16"),
            "line 4: sl 16: write a number from 0 to 15",
        ),
        (
            level("name: DEFAULT\nsl: 1\nsl: 2"),
            "line 5: sl is in line 4, too; remove one",
        ),
        (
            level("name: DEFAULT\nsl 1"),
            "line 4: sl 1: write a name, a colon and a value",
        ),
        (
            level("name: DEFAULT\nsl: 1\nmtu-limit: 6"),
            "line 5: mtu-limit 6: write a number from 1 to 5",
        ),
        (
            level("name: DEFAULT\nsl: 1\nrate: 6"),
            "line 5: rate: no such field; there are name, ",
        ),
        (
            level("name: DEFAULT\nsl: 1\npkey: 0"),
            "line 5: pkey 0: write numbers and ranges from 0x1 to 0xffff",
        ),
        (
            level("name: DEFAULT\nsl: 1\nend-qos-level\nqos-level\nname: default\nsl: 2"),
            "line 6: the qos-level of line 2 has this name, too; write another one",
        ),
        (
            group("name: a\nport-name: vs1"),
            "line 4: port-name vs1: write a node's name and its port, as in vs1/P1",
        ),
        (
            group("name: a\nport-name: vs1/P0"),
            "line 4: port-name vs1/P0: write",
        ),
        (
            group("name: a\nnode-type: HCA"),
            "line 4: node-type HCA: write CA, SWITCH, ROUTER, ALL or SELF",
        ),
        (
            group("name: a\npartition: Part2"),
            "line 4: no partition has the name Part2; write one of",
        ),
        (
            group("name: a\nport-guid: vs1"),
            "line 4: port-guid vs1: write numbers and ranges from 0x1 to",
        ),
        (
            rule("pkey: 1"),
            "line 2: a qos-match-rule without a level; write `qos-level-name: NAME`",
        ),
        (
            rule("qos-class: 0x1000\nqos-level-name: a"),
            "line 3: qos-class 0x1000: write numbers",
        ),
        (
            rule("qos-level-name: none"),
            "line 3: no qos-level has the name none; write one",
        ),
        (
            rule("source: x\nqos-level-name: none"),
            "line 3: no port-group has the name x; write one",
        ),
        (
            ulp("default : 1\ndefault : 2"),
            "line 3: default is in line 2, too; remove one",
        ),
        (ulp("ftp : 2"), "line 2: ftp : 2: write default, sdp"),
        (ulp("srp : 2"), "line 2: srp : 2: write default, sdp"),
        (ulp("default 2"), "line 2: default 2: write default, sdp"),
        (
            ulp("sdp, port-num 65536 : 2"),
            "line 2: port-num 65536: write numbers and ranges from 0x0 to 0xffff",
        ),
    ] {
        let mistakes = parse(&text).unwrap_err();
        assert!(
            mistakes[0].to_string().starts_with(mistake),
            "{text}: {mistakes:?}"
        );
    }
}

proptest! {
    #[test]
    fn any_text(lines in proptest::collection::vec("\\PC{0,20}|[a-z-]{2,14}: ?[0-9x,-]{0,9}", 0..20), at in 0usize..70) {
        let mut all: Vec<&str> = FULL.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let at = (at * (number + 1)) % all.len();
            all[at] = line;
        }
        if let Ok(policy) = parse(&all.join("\n")) {
            level(&policy, &PORT, &PORT, (Some(0x1_0005), Some(8), Some(0x8f01)));
        }
        let _ = parse(&lines.join("\n"));
    }

    #[test]
    fn ranges_hold_what_was_written(ranges in proptest::collection::vec((0u64..40, 0u64..8), 0..8), number in 0u64..50) {
        let pairs: Vec<(u64, u64)> = ranges.iter().map(|&(first, more)| (first, first + more)).collect();
        let mut all = Ranges::default();
        for &pair in &pairs {
            all.add(Ranges(vec![pair]));
        }
        let wanted = pairs.iter().any(|&(first, last)| (first..=last).contains(&number));
        prop_assert_eq!(all.holds(number), wanted);
    }
}
