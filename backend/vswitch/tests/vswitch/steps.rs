//! Changes of guests' management packets on their way, step by step.

use fabric::{Direction, Tap};
use hca::VfId;
use ibvswitch_vswitch::model::{AddressModel, Vf, View};
use ibvswitch_vswitch::{Model, Output, Reason};
use wire::mad::{AttributeId, Mad, Method, Status};
use wire::sa::{self, PathRecord, Record};
use wire::{Gid, Lid, MadPacket, PKey, Sl};

use crate::lab::Lab;

const MANAGER: Lid = Lid::new(9);

/// Two VMs of a cluster with the LIDs 2 and 3, and one of none; two hypervisors.
fn clustered() -> Model {
    let mut model = Model::new(&["sw1"]);
    model.add_cluster("c", MANAGER, View::OwnPort);
    let stranger = Vf {
        lid: Some(Lid::new(0x20)),
        ..Vf::new("s")
    };
    let vfs = vec![Vf::new("a").in_cluster(0, 2), stranger];
    model.add_hypervisor("h1", 0, vfs);
    model.add_hypervisor("h2", 0, vec![Vf::new("b").in_cluster(0, 3)]);
    model
}

/// A question to the subnet administration, as the guest with this LID sends it.
fn ask(from: Lid, to: Lid, mad: [u8; 256]) -> MadPacket {
    MadPacket::gmp(from, to, Sl::default(), PKey::DEFAULT_FULL, mad)
}

/// A question for the path between two VMs by their LIDs.
fn path(from: Lid, to: Lid, transaction: u64) -> [u8; 256] {
    let record = PathRecord {
        slid: from,
        dlid: to,
        ..PathRecord::default()
    };
    let mask = PathRecord::SLID | PathRecord::DLID;
    sa::with_record(Method::GET, transaction, mask, &record)
}

/// The packets that crossed links since the last time.
fn on_the_wire(lab: &Lab) -> Vec<MadPacket> {
    let outputs = lab.outputs().into_iter();
    outputs
        .filter_map(|output| match output {
            Output::Tapped {
                direction: Direction::Sent,
                packet,
                ..
            } => Some(*packet),
            _ => None,
        })
        .collect()
}

#[test]
fn a_guest_of_a_cluster_and_the_wire_see_different_lids() {
    let lab = Lab::new(&clustered());
    let [a, b] = [0, 2].map(|vf| lab.vswitch.physical_lid(VfId(vf)));
    let port = lab.vswitch.port(VfId(0)).expect("is there");
    lab.vswitch.set_tap(Some(Tap::Ports([port].into())));
    let (own, other) = (Lid::new(2), Lid::new(3));
    let answers = lab.send(0, ask(own, MANAGER, path(own, other, 7)));
    let [answer] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!((answer.slid, answer.dlid), (MANAGER, own));
    assert_eq!(answer.header().status(), Status::OK);
    let record = PathRecord::read(&answer.mad[sa::DATA]).expect("is one");
    assert_eq!((record.slid, record.dlid), (own, other));
    assert_eq!(
        record.dgid.guid(),
        ibvswitch_vswitch::model::derive_guid("VF", "b")
    );
    let wire = on_the_wire(&lab);
    let question = wire.first().expect("it was sent");
    assert_eq!((question.slid, question.dlid), (a, Lid::new(1)));
    let asked = PathRecord::read(&question.mad[sa::DATA]).expect("is one");
    assert_eq!((asked.slid, asked.dlid), (a, b));
    // Whom the guest does not know, it cannot mean.
    let answers = lab.send(
        0,
        ask(own, lab.vswitch.physical_lid(VfId(1)), path(own, other, 8)),
    );
    assert_eq!((answers, on_the_wire(&lab)), (vec![], vec![]));
    let refused = lab.vswitch.filter_report(VfId(0)).refused;
    assert_eq!(refused, [(Reason::Cluster, 1)]);
}

/// All numbers of attributes of the subnet administration: either it is known where addresses stand in
/// one, and the question leaves the port, or it is refused.
#[test]
fn what_is_not_known_does_not_leave_a_cluster() {
    let lab = Lab::new(&clustered());
    let port = lab.vswitch.port(VfId(0)).expect("is there");
    lab.vswitch.set_tap(Some(Tap::Ports([port].into())));
    let mut known = Vec::new();
    let mut refused = 0;
    for id in 0..=u16::MAX {
        if id.is_multiple_of(64) {
            // No faster than a guest may be.
            lab.pass(std::time::Duration::from_millis(100));
            let _ = on_the_wire(&lab);
        }
        let mut mad = [0; 256];
        let mut header = Mad::new_checked(&mut mad[..]).expect("is long enough");
        header.set_class(wire::mad::Class::SUBN_ADM);
        header.set_method(Method::GET);
        header.set_attribute(AttributeId(id), 0);
        header.set_transaction(u64::from(id) + 1);
        let _ = lab.send(0, ask(Lid::new(2), MANAGER, mad));
        let sent = on_the_wire(&lab);
        let left = { sent.iter() }.any(|it| it.header().transaction() == u64::from(id) + 1);
        if left {
            known.push(id);
        } else {
            refused += 1;
        }
    }
    let report = lab.vswitch.filter_report(VfId(0)).refused;
    assert_eq!(report, [(Reason::Attribute, refused)]);
    // ClassPortInfo, Notice and InformInfo; NodeRecord to MultiPathRecord, as IBA 15.2.5 numbers them.
    let expected = [
        0x01, 0x02, 0x03, 0x11, 0x12, 0x13, 0x14, 0x15, 0x17, 0x18, 0x20, 0x30, 0x31, 0x33, 0x35,
        0x36, 0x38, 0x39, 0x3a, 0xf3,
    ];
    assert_eq!(known, expected, "{known:x?}");
}

/// A guest may enter something only in its own name: the record is checked as the guest writes it, before anything is
/// translated.
#[test]
fn nobody_enters_anything_for_others() {
    let lab = Lab::new(&clustered());
    let port = lab.vswitch.port(VfId(0)).expect("is there");
    lab.vswitch.set_tap(Some(Tap::Ports([port].into())));
    let strange = lab.vswitch.function(VfId(2)).expect("is there").gid(0);
    for (gid, passes) in [(strange, false), (Gid::new(1, strange.guid()), false)] {
        let record = sa::McMemberRecord {
            port_gid: gid,
            ..sa::McMemberRecord::default()
        };
        let mad = sa::with_record(Method::SET, 7, 0, &record);
        let answers = lab.send(0, ask(Lid::new(2), MANAGER, mad));
        assert_eq!(
            (answers.is_empty(), !on_the_wire(&lab).is_empty()),
            (true, passes)
        );
    }
    let refused = lab.vswitch.filter_report(VfId(0)).refused;
    assert_eq!(refused, [(Reason::Address, 2)]);
}

/// Two functions of a port ask the same at the same time, and each gets its own answer.
#[test]
fn functions_that_share_a_port_get_their_own_answers() {
    let mut model = Model::new(&["sw1"]);
    model.fabric.model = AddressModel::SharedPort;
    let vfs = vec![Vf::new("a").shared(), Vf::new("b").shared()];
    model.add_hypervisor("h1", 0, vfs);
    let lab = Lab::new(&model);
    let lid = lab.vswitch.physical_lid(VfId(0));
    let port = lab.vswitch.port(VfId(0)).expect("is there");
    lab.vswitch.set_tap(Some(Tap::Ports([port].into())));
    for vf in [0, 1] {
        let answers = lab.send(vf, ask(lid, Lid::new(1), path(lid, Lid::new(1), 7)));
        let [answer] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!(answer.header().transaction(), 7);
        // On the wire the function's place is in it.
        let wire = on_the_wire(&lab);
        let transaction = wire.first().map(|it| it.header().transaction());
        assert_eq!(transaction, Some((vf as u64 + 1) << 56 | 7));
    }
    let answers = lab.send(0, ask(lid, Lid::new(1), path(lid, Lid::new(1), 1 << 56)));
    assert_eq!((answers, on_the_wire(&lab)), (vec![], vec![]));
    let refused = lab.vswitch.filter_report(VfId(0)).refused;
    assert_eq!(refused, [(Reason::Transaction, 1)]);
}
