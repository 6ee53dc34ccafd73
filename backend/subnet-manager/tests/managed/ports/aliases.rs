//! GUIDs that ports have besides their own, as functions have them that share a port's LID.

use std::collections::BTreeMap;

use ibvswitch_subnet_manager::Config;
use wire::attribute::GuidInfo;
use wire::mad::{Method, Status};
use wire::sa::{self, GuidInfoRecord, JoinState, McMemberRecord, PathRecord};
use wire::{Gid, Guid, PKey};

use crate::guests::Bed;

const LID: u64 = 1;
const BLOCK: u64 = 1 << 1;

const fn entry(number: usize) -> u64 {
    1 << (4 + number)
}

/// A record with these GUIDs at their places in block 0, and the mask that names them.
fn record(bed: &Bed, port: usize, guids: &[(usize, Guid)]) -> (u64, GuidInfoRecord) {
    let mut entries = [Guid::NONE; GuidInfo::ENTRIES];
    let mut mask = LID | BLOCK;
    for &(at, guid) in guids {
        entries[at] = guid;
        mask |= entry(at);
    }
    let record = GuidInfoRecord {
        lid: bed.lid(port),
        block: 0,
        guid_info: GuidInfo::from_entries(entries).to_bytes(),
    };
    (mask, record)
}

fn register(bed: &mut Bed, port: usize, guids: &[(usize, Guid)]) -> Result<[Guid; 8], Status> {
    let (mask, record) = record(bed, port, guids);
    let answer = bed.set::<GuidInfoRecord>(port, mask, &record)?;
    bed.managed.settle();
    Ok(GuidInfo::parse(&answer.guid_info).unwrap().entries())
}

fn table(bed: &Bed, port: usize) -> Vec<Guid> {
    let fabric = &bed.managed.link.fabric;
    fabric.guids(bed.ports[port]).unwrap().to_vec()
}

fn path(bed: &mut Bed, asker: usize, from: Guid, to: Guid) -> Result<PathRecord, Status> {
    let wanted = PathRecord {
        sgid: Gid::new(Gid::DEFAULT_PREFIX, from),
        dgid: Gid::new(Gid::DEFAULT_PREFIX, to),
        ..PathRecord::default()
    };
    bed.get(asker, PathRecord::SGID | PathRecord::DGID, &wanted)
}

const A: Guid = Guid::new(0xa1);
const B: Guid = Guid::new(0xa2);

#[test]
fn they_are_written_to_the_port_and_lead_to_its_lid() {
    let mut bed = Bed::new(2, Config::default());
    let own = table(&bed, 0)[0];
    let other = table(&bed, 2)[0];
    assert_eq!(path(&mut bed, 2, other, A), Err(Status::SA_INVALID_GID));

    let entries = register(&mut bed, 0, &[(1, A), (3, B)]).unwrap();
    assert_eq!(entries[..4], [own, A, Guid::NONE, B]);
    assert_eq!(table(&bed, 0)[..4], [own, A, Guid::NONE, B]);
    let found = path(&mut bed, 2, other, B).unwrap();
    assert_eq!((found.dlid, found.slid), (bed.lid(0), bed.lid(2)));
    assert_eq!(found.dgid.guid(), B);
    // Only a global route header tells who is meant.
    assert_eq!(found.hop_limit, 1);
    assert_eq!(path(&mut bed, 2, other, own).unwrap().hop_limit, 0);
    // Two that share a port reach each other by its own LID.
    let loops = path(&mut bed, 0, A, B).unwrap();
    assert_eq!((loops.dlid, loops.slid), (bed.lid(0), bed.lid(0)));

    let (mask, record) = record(&bed, 0, &[(1, Guid::NONE)]);
    bed.delete::<GuidInfoRecord>(0, mask, &record).unwrap();
    bed.managed.settle();
    assert_eq!(table(&bed, 0)[..4], [own, Guid::NONE, Guid::NONE, B]);
    assert_eq!(path(&mut bed, 2, other, A), Err(Status::SA_INVALID_GID));
    // And may be had elsewhere from then on.
    assert_eq!(register(&mut bed, 2, &[(7, A)]).unwrap()[7], A);
    assert_eq!(path(&mut bed, 0, own, A).unwrap().dlid, bed.lid(2));
}

#[test]
fn what_cannot_be_had() {
    let mut bed = Bed::new(2, Config::default());
    let other = table(&bed, 2)[0];
    register(&mut bed, 0, &[(1, A)]).unwrap();
    // Another's GUID, be it its own or an alias: the entry stays as it was, the others are taken.
    let entries = register(&mut bed, 2, &[(1, A), (2, B)]).unwrap();
    assert_eq!(entries[1..3], [Guid::NONE, B]);
    assert_eq!(register(&mut bed, 0, &[(2, other)]).unwrap()[2], Guid::NONE);
    assert_eq!(table(&bed, 0)[1..3], [A, Guid::NONE]);
    // The port's own.
    assert_eq!(
        register(&mut bed, 0, &[(0, B)]),
        Err(Status::SA_REQUEST_INVALID)
    );
    // Another port's table.
    let (mask, record) = record(&bed, 2, &[(3, Guid::new(0xa3))]);
    let denied = bed.set::<GuidInfoRecord>(0, mask, &record);
    assert_eq!(denied.map(|_| ()), Err(Status::SA_DENIED));
    // A block that the port has not, and a table that is not named.
    let beyond = GuidInfoRecord {
        lid: bed.lid(0),
        block: 1,
        ..record
    };
    let answer = bed.set::<GuidInfoRecord>(0, mask, &beyond);
    assert_eq!(answer.map(|_| ()), Err(Status::SA_NO_RECORDS));
    let answer = bed.set::<GuidInfoRecord>(0, entry(1), &record);
    assert_eq!(answer.map(|_| ()), Err(Status::SA_INSUFFICIENT_COMPONENTS));
    // The manager chooses where it is left the choice, and chooses that again.
    let given = register(&mut bed, 0, &[(5, Guid::NONE)]).unwrap()[5];
    assert_ne!(given, Guid::NONE);
    assert_eq!(register(&mut bed, 0, &[(5, Guid::NONE)]).unwrap()[5], given);
}

#[test]
fn each_has_its_own_partitions_and_the_port_all_of_them() {
    let (red, blue) = (PKey::new(0x8001), PKey::new(0x8002));
    let config = Config {
        partitions: BTreeMap::from([(A, vec![red]), (B, vec![blue, PKey::new(0x0001)])]),
        ..Config::default()
    };
    let mut bed = Bed::new(2, config);
    register(&mut bed, 0, &[(1, A)]).unwrap();
    register(&mut bed, 2, &[(1, B)]).unwrap();
    let keys = |bed: &Bed, port: usize| {
        let keys = bed.managed.link.fabric.pkeys(bed.ports[port]).unwrap();
        keys.iter()
            .copied()
            .filter(|key| key.is_valid())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys(&bed, 0), [PKey::DEFAULT_FULL, red]);
    assert_eq!(keys(&bed, 2), [PKey::DEFAULT_FULL, blue, PKey::new(0x0001)]);
    // Not the default one, in which both ports are.
    assert_eq!(path(&mut bed, 0, A, B).unwrap().pkey, red);
    // Once a full member is there the port is one.
    register(&mut bed, 2, &[(1, A)]).unwrap();
    assert_eq!(keys(&bed, 2), [PKey::DEFAULT_FULL, blue, PKey::new(0x0001)]);
    let (mask, gone) = record(&bed, 0, &[(1, Guid::NONE)]);
    bed.delete::<GuidInfoRecord>(0, mask, &gone).unwrap();
    register(&mut bed, 2, &[(2, A)]).unwrap();
    assert_eq!(keys(&bed, 2), [PKey::DEFAULT_FULL, blue, red]);
    assert_eq!(keys(&bed, 0), [PKey::DEFAULT_FULL]);
}

#[test]
fn each_is_a_member_of_groups_by_itself() {
    let mut bed = Bed::new(2, Config::default());
    register(&mut bed, 0, &[(1, A), (2, B)]).unwrap();
    let member = |guid| McMemberRecord {
        mgid: Gid::from_bits(0xff12_401b_ffff_0000_0000_0000_ffff_ffff),
        port_gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
        join_state: JoinState::FULL,
        ..McMemberRecord::default()
    };
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let other = table(&bed, 2)[0];
    for (port, guid) in [(0, A), (0, B), (2, other)] {
        bed.set::<McMemberRecord>(port, mask, &member(guid))
            .unwrap();
    }
    let mlid = bed.set::<McMemberRecord>(0, mask, &member(A)).unwrap().mlid;
    let reached = |bed: &mut Bed| {
        bed.pass(0);
        let fabric = &bed.managed.link.fabric;
        let routes = fabric.resolve_multicast(bed.ports[2], mlid, wire::Sl::default(), None);
        routes.iter().any(|route| route.port == bed.ports[0])
    };
    assert!(reached(&mut bed));
    bed.delete::<McMemberRecord>(0, mask, &member(A)).unwrap();
    assert!(reached(&mut bed), "the other one is still there");
    bed.delete::<McMemberRecord>(0, mask, &member(B)).unwrap();
    assert!(!reached(&mut bed));
    let again = sa::with_record(Method::DELETE, 9, mask, &member(B));
    bed.ask(0, again);
}

#[test]
fn a_sweep_writes_them_again() {
    let mut bed = Bed::new(2, Config::default());
    register(&mut bed, 0, &[(1, A)]).unwrap();
    let port = bed.ports[0];
    bed.managed.link.fabric.set_cable(port, false);
    bed.managed.settle();
    bed.managed.link.fabric.set_cable(port, true);
    bed.managed.settle();
    assert_eq!(table(&bed, 0)[1], A);
}
