//! Files that are right, and mistakes with their lines.

use super::*;
use crate::config::Config;
use testing::Random;

fn read(text: &str) -> Partitions {
    let named = |name: &str| (name == "vm1").then(|| Guid::new(0x101));
    Partitions::parse(text, named).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
}

fn table(partitions: &Partitions, guid: u64) -> Vec<u16> {
    let port = Candidate {
        guid: Guid::new(guid),
        kind: match guid {
            0x5000.. => NodeType::Switch,
            _ => NodeType::ChannelAdapter,
        },
        is_own: guid == OWN,
    };
    let keys = partitions.table(&port);
    keys.into_iter().map(PKey::value).collect()
}

const OWN: u64 = 1;
const SWITCH: u64 = 0x5000;

#[test]
fn nothing_said() {
    let partitions = read("");
    assert_eq!(table(&partitions, OWN), [0xffff]);
    assert_eq!(table(&partitions, 2), [0x7fff]);
}

/// The examples of OpenSM's documentation, doc/partition-config.txt of OpenSM 3.3.23.
#[test]
fn the_examples_of_the_documentation() {
    let partitions = read("Default=0x7fff : ALL, SELF=full ;");
    assert_eq!(table(&partitions, 2), [0x7fff]);
    let partitions = read("Default=0x7fff : ALL, ALL_SWITCHES=full, SELF=full ;");
    assert_eq!(table(&partitions, SWITCH), [0xffff]);
    assert_eq!(table(&partitions, 2), [0x7fff]);
    let partitions = read(
        " NewPartition , ipoib : 0x123456=full, 0x3456789034=limi, 0x2134af2306 ;

         YetAnotherOne = 0x300 : SELF=full ;
         YetAnotherOne = 0x300 : ALL=limited ;

         ShareIO = 0x80 , defmember=full : 0x123451, 0x123452;
         # 0x123453, 0x123454 will be limited
         ShareIO = 0x80 : 0x123453, 0x123454, 0x123455=full;
         # 0x123456, 0x123457 will be limited
         ShareIO = 0x80 , defmember=limited : 0x123456, 0x123457, 0x123458=full;
         ShareIO = 0x80 , defmember=full : 0x123459, 0x12345a;
         ShareIO = 0x80 , defmember=full : 0x12345b, 0x12345c=limited, 0x12345d;
        ",
    );
    // Keys: the default's, 0x0001 for the new one, 0x0300, 0x0080.
    assert_eq!(table(&partitions, 0x12_3456), [0x7fff, 0x8001, 0x300, 0x80]);
    assert_eq!(table(&partitions, 0x34_5678_9034), [0x7fff, 1, 0x300]);
    assert_eq!(table(&partitions, 0x21_34af_2306), [0x7fff, 1, 0x300]);
    assert_eq!(table(&partitions, 0x12_3451), [0x7fff, 0x300, 0x8080]);
    assert_eq!(table(&partitions, 0x12_3455), [0x7fff, 0x300, 0x8080]);
    assert_eq!(table(&partitions, 0x12_345c), [0x7fff, 0x300, 0x80]);
    // The manager is a full member of all.
    assert_eq!(table(&partitions, OWN), [0xffff, 0x8001, 0x8300, 0x8080]);
    let groups = partitions.groups();
    assert_eq!(groups.len(), 1);
    assert_eq!(groups[0], PresetGroup::ipoib(PKey::new(1)));

    let partitions = read(
        "Default=0x7fff,ipoib:
            mgid=ff12:401b::0707,sl=1 # random IPv4 group
            mgid=ff12:601b::16    # MLDv2-capable routers
            mgid=ff12:401b::16    # IGMP
            mgid=ff12:601b::2     # All routers
            mgid=ff12::1,sl=1,Q_Key=0xDEADBEEF,rate=3,mtu=2 # random group
            ALL=full;
        ",
    );
    assert_eq!(table(&partitions, 2), [0xffff]);
    let groups: Vec<_> = partitions
        .groups()
        .iter()
        .map(|group| {
            let record = &group.record;
            let (sl, mtu) = (record.sl.value(), record.mtu);
            (record.mgid.to_string(), sl, record.qkey.value(), mtu)
        })
        .collect();
    let group = |gid: &str, sl, qkey, mtu| {
        let gid: Gid = gid.parse().unwrap();
        (gid.to_string(), sl, qkey, mtu)
    };
    assert_eq!(
        groups,
        [
            group("ff12:401b:ffff::ffff:ffff", 0, 0xb1b, 4),
            group("ff12:401b:ffff::707", 1, 0xb1b, 4),
            group("ff12:601b:ffff::16", 0, 0xb1b, 4),
            group("ff12:401b:ffff::16", 0, 0xb1b, 4),
            group("ff12:601b:ffff::2", 0, 0xb1b, 4),
            group("ff12::1", 1, 0xdead_beef, 2),
        ]
    );
}

#[test]
fn names_both_and_index_zero() {
    let partitions = read(
        "storage=0x8002, indx0 : vm1=full ;\n\
         0x3 : vm1=both, ALL_CAS ;\n\
         Default : ALL=full ;",
    );
    // Of 0x3, ALL_CAS came last.
    assert_eq!(table(&partitions, 0x101), [0x8002, 0xffff, 3]);
    let partitions = read("a=5 : ALL_CAS, vm1=both ;");
    assert_eq!(table(&partitions, 0x101), [0x7fff, 0x8005, 5]);
    let names: Vec<_> = partitions.names().collect();
    assert_eq!(names[1], ("a", PKey::new(0x8005)));
}

/// Paths and groups of a partition have the same level, wherever the file gives it.
#[test]
fn service_levels() {
    let levels = |text: &str| {
        let partitions = read(text);
        let own = partitions.level(PKey::new(5)).map(Sl::value);
        assert_eq!(own, partitions.level(PKey::new(0x8005)).map(Sl::value));
        let config = Config {
            partition_file: Some(partitions),
            ..Config::default()
        };
        let groups = config.preset_groups().into_iter();
        (own, groups.map(|group| group.record.sl.value()).collect())
    };
    assert_eq!(levels("a=5, ipoib : ;"), (None, vec![0u8]));
    assert_eq!(levels("a=5, ipoib, sl=3 : ;"), (Some(3), vec![3]));
    assert_eq!(
        levels("a=5, ipoib : ; a=5, sl=3 : vm1 ;"),
        (Some(3), vec![3])
    );
    let own = "a=5, ipoib, sl=3 : mgid=ff12::1,sl=4\n mgid=ff12::2\n ;";
    assert_eq!(levels(own), (Some(3), vec![3, 4, 3]));
    assert_eq!(read(own).levels().count(), 1);
    let two = Partitions::parse("a=5, sl=3 : ;\na=5, sl=4 : ;", |_| None);
    assert_eq!(
        two.unwrap_err()[0].to_string(),
        "line 2: sl=4: line 1 gives the same partition sl=3; write one of the two"
    );
}

/// GUIDs in the forms of the rest of the program; OpenSM's decimal numbers are refused.
#[test]
fn members_by_guid() {
    let text = "a=5 : 0x2c90300000101=full, 0002c90300000102\n ;";
    let guids: Vec<_> = read(text).named().to_vec();
    let guid = |last: u64| Guid::new(0x0002_c903_0000_0100 | last);
    assert_eq!(guids, [(1, guid(1)), (1, guid(2))]);
    let decimal = Partitions::parse("a=5 : 784598236856577 ;", |_| None);
    assert_eq!(
        decimal.unwrap_err()[0].unknown.as_deref(),
        Some("784598236856577")
    );
}

#[test]
fn several_scopes() {
    let partitions = read("a=5, ipoib, scope=2, scope=5, rate=7 : ;");
    // IPoIB's group is there without the flag as well.
    let groups = read("a=5, rate=7 : ;");
    assert_eq!(groups.groups()[0].record.rate, 7);
    let groups = partitions.groups().iter();
    let groups: Vec<_> = groups
        .map(|one| (one.record.scope, one.record.rate))
        .collect();
    assert_eq!(groups, [(2, 7), (5, 7)]);
    let mgid = partitions.groups()[1].record.mgid;
    assert_eq!(mgid, "ff15:401b:8005::ffff:ffff".parse().unwrap());
}

#[test]
fn mistakes_have_lines_and_remedies() {
    let mistakes = |text: &str| -> Vec<String> {
        let mistakes = Partitions::parse(text, |_| None).unwrap_err();
        mistakes.iter().map(Mistake::to_string).collect()
    };
    assert_eq!(
        mistakes("# nothing\n\na=0x10000 : ALL ;\nb : vm9 ;"),
        [
            "line 3: 0x10000 is no P_Key; write 0x0001 to 0x7fff",
            "line 4: vm9 is no port; write a port GUID such as 0x0002c90300000101, a VF's name, \
             ALL, ALL_CAS, ALL_SWITCHES or SELF",
        ]
    );
    assert_eq!(
        mistakes("a=1 :\n ALL=most\n;\nfoo ;\nb=2, sl=16, colour=3 : ALL"),
        [
            "line 2: ALL=most: write full, limited or both",
            "line 4: no partition definition; write NAME=P_KEY : members ;",
            "line 5: this rule does not end; write \";\" after it",
            "line 5: sl=16: write 0 to 15",
            "line 5: colour: no such flag; there are ipoib, indx0, defmember=, mtu=, rate=, sl=, \
             scope=, Q_Key=, TClass= and FlowLabel=",
        ]
    );
    assert_eq!(
        mistakes("a=1 : mgid=fe80::1\n mgid=ff12:401b:8002::5\n mgid=ff12:401b::5,mtu=5\n ALL ;"),
        [
            "line 1: mgid=fe80::1: no multicast GID; write one such as ff12:401b::1",
            "line 2: mgid=ff12:401b:8002::5: has the P_Key 0x8002, the partition has 0x8001; \
             write that, or 0",
            "line 3: mgid=ff12:401b::5: rate and mtu of an IP group are those of the \
             partition, 3 and 4",
        ]
    );
    let many = "x ;\n".repeat(100);
    assert_eq!(mistakes(&many).len(), MISTAKES);
}

#[test]
fn anything_is_read_without_a_panic() {
    let mut random = Random::new(7);
    let alphabet: Vec<char> = "a=:;,#\n 0x7fmgidALL\u{e9}".chars().collect();
    for _ in 0..2000 {
        let text: String = (0..40).map(|_| random.one_of(&alphabet)).collect();
        let _ = Partitions::parse(&text, |_| None);
    }
}
