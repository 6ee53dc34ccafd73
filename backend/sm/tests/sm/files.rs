//! Operators' files for OpenSM, and files that OpenSM reads of this manager.

use std::collections::BTreeSet;
use std::fs;

use ibvswitch_sm::port::{Port, SimulatedPort};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use subnet_manager::Transport;
use wire::mad::{Mad, Status};
use wire::sa::{self, PathRecord, Record};
use wire::{Gid, Guid, Lid, MadPacket, PKey, Sl};

use crate::place::{Place, Program, text};

const POLICY: &str = "
port-groups
    port-group
        name: Named
        port-name: d/P1
        port-guid: 0x200000-0x200001, 0x7
    end-port-group
    port-group
        name: Own
        node-type: SELF
    end-port-group
    port-group
        name: Members
        partition: io
    end-port-group
end-port-groups
qos-levels
    qos-level
        name: DEFAULT
        sl: 1
    end-qos-level
    qos-level
        name: Small
        sl: 2
        mtu-limit: 2
        rate-limit: 2
        packet-life: 9
    end-qos-level
    qos-level
        name: Kept
        sl: 3
        pkey: 0x5-0x6
    end-qos-level
end-qos-levels
qos-match-rules
    qos-match-rule
        use: two criteria
        service-id: 0x100-0x1ff, 7
        qos-class: 2
        qos-level-name: small
    end-qos-match-rule
    qos-match-rule
        qos-class: 9-11
        qos-level-name: Kept
    end-qos-match-rule
    qos-match-rule
        source: Members
        destination: Named, Own
        qos-level-name: Small
    end-qos-match-rule
end-qos-match-rules
qos-ulps
    any, pkey 0x5 : 4
    sdp : 5
    any, service-id 0x106 : 6
    any, source-port-guid 0x100007 : 7
end-qos-ulps
";
/// Adapters of the network of [`Place::ibsim`].
const ADAPTERS: [u64; 4] = [0x10_0001, 0x10_0003, 0x10_0005, 0x10_0007];
const MANAGER: Lid = Lid::new(1);

pub type Answer = Result<(Sl, u8, u8, u8), Status>;

/// Answers to requests for paths of every kind, from one port.
fn answers(place: &Place) -> Vec<(String, Answer)> {
    let mut port = SimulatedPort::new(&place.socket, Some("b"), false).expect("a port");
    let gid = |guid| Gid::new(Gid::DEFAULT_PREFIX, Guid::new(guid));
    let mut answers = Vec::new();
    let ends = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let pairs = ADAPTERS.map(|to| (ADAPTERS[1], to));
    for (from, to) in pairs.into_iter().chain([(ADAPTERS[3], ADAPTERS[1])]) {
        for service in [None, Some(0x106), Some(0x1_0203)] {
            for class in [None, Some(2), Some(10)] {
                for key in [None, Some(0x8005), Some(0xffff)] {
                    let wanted = PathRecord {
                        sgid: gid(from),
                        dgid: gid(to),
                        numb_path: 1,
                        service_id: service.unwrap_or_default(),
                        qos_class: class.unwrap_or_default(),
                        pkey: PKey::new(key.unwrap_or_default()),
                        ..PathRecord::default()
                    };
                    let given = [
                        (service.is_some(), PathRecord::SERVICE_ID),
                        (class.is_some(), PathRecord::QOS_CLASS),
                        (key.is_some(), PathRecord::PKEY),
                    ];
                    let given = given.into_iter().filter(|(is_given, _)| *is_given);
                    let mask = given.fold(ends, |mask, (_, component)| mask | component);
                    let number = answers.len() as u64 + 1;
                    let what = format!("{from:x} {to:x} {service:x?} {class:?} {key:x?}");
                    answers.push((what, ask(&mut port, sa::get(number, mask, &wanted))));
                }
            }
        }
    }
    answers
}

pub fn ask(port: &mut SimulatedPort, mad: [u8; 256]) -> Answer {
    let request = MadPacket::gmp(Lid::NONE, MANAGER, Sl::default(), PKey::DEFAULT_FULL, mad);
    let transaction = request.header().transaction() & 0xffff_ffff;
    port.send(request);
    port.flush().expect("is sent");
    loop {
        let mut waited = [PollFd::new(port.descriptor(), PollFlags::POLLIN)];
        let ready = poll(&mut waited, PollTimeout::from(20_000u16)).expect("waits");
        assert_ne!(ready, 0, "no answer");
        port.take().expect("goes on");
        while let Some(packet) = port.receive() {
            let answer = Mad::new_checked(&packet.mad[..]).expect("is a MAD");
            if answer.transaction() & 0xffff_ffff != transaction {
                continue;
            }
            if answer.status() != Status::OK {
                return Err(answer.status());
            }
            let path = PathRecord::read(&packet.mad[sa::DATA]).expect("is a record");
            return Ok((path.sl, path.mtu, path.rate, path.packet_life_time));
        }
    }
}

/// The same policy means the same to OpenSM, and with our tables it dumps the same files.
#[test]
fn opensm_says_the_same() {
    let place = Place::ibsim();
    let file = |name: &str, text: &str| {
        let path = place.dir.path().join(name);
        fs::write(&path, text).expect("is written");
        path.display().to_string()
    };
    let folder = |name: &str| {
        let path = place.dir.path().join(name);
        fs::create_dir(&path).expect("is made");
        path.display().to_string()
    };
    let policy = file("qos-policy.conf", POLICY);
    let partitions =
        "Default=0x7fff, ipoib : ALL=full ;\nio=5, sl=2 : ALL=limited, 0x100003=full ;\n";
    let partitions = file("partitions.conf", partitions);
    let names = file("names", "0x200001 \"Leaf 2\" # the right one\n");
    let (ours, theirs) = (folder("ours"), folder("theirs"));
    let mut options = vec![
        "--qos",
        "--qos_policy_file",
        &policy,
        "--Pconfig",
        &partitions,
    ];
    options.extend(["--node-name-map", &names]);
    let named = text(place.manager(&options).arg("--no-write"));
    assert!(
        named.contains("Leaf 2 (0,3): ") || named.contains("Leaf 2 (0,1,3): "),
        "{named}"
    );
    let dumps = [
        "--dump_files_dir",
        &ours,
        "--log_flags",
        "0x43",
        "--routing_engine",
        "updn",
    ];
    text(place.manager(&options).args(dumps).arg("--once"));
    let manager = Program::start(&mut place.manager(&options));
    manager.says("subnet up");
    let ours_say = answers(&place);
    manager.end();

    let more = format!("dump_files_dir {theirs}\nnode_name_map_name {names}\n");
    let more = file("opensm.conf", &more);
    let [tables, hops] =
        ["opensm-lfts.dump", "opensm-lid-matrix.dump"].map(|it| format!("{ours}/{it}"));
    let mut arguments = vec!["opensm", "-F", &more, "-f", "-", "-D", "0x43"];
    arguments.extend(["-Q", "-Y", &policy, "-P", &partitions]);
    arguments.extend(["-R", "file", "-U", &tables, "-M", &hops]);
    let opensm = Program::start(&mut place.other(&arguments));
    opensm.says("SUBNET UP");
    let they_say = answers(&place);
    assert_eq!(ours_say.len(), 135);
    let differ = ours_say
        .iter()
        .zip(&they_say)
        .filter(|(own, other)| own != other);
    let differ: Vec<_> = differ.collect();
    assert!(differ.is_empty(), "{differ:#?}");
    let levels = ours_say
        .iter()
        .filter_map(|(_, answer)| answer.as_ref().ok());
    let levels: BTreeSet<u8> = levels.map(|(sl, ..)| sl.value()).collect();
    assert_eq!(
        levels.into_iter().collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 7]
    );

    for name in [
        "opensm-lfts.dump",
        "opensm-lid-matrix.dump",
        "opensm.fdbs",
        "opensm-subnet.lst",
    ] {
        let [own, other] = [&ours, &theirs].map(|folder| {
            let text = fs::read_to_string(format!("{folder}/{name}")).expect("is there");
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            // OpenSM sorts nodes by the bytes of their GUIDs in turn.
            if name.ends_with(".lst") {
                lines.sort();
            }
            lines
        });
        assert_eq!(own, other, "{name}");
    }
}
