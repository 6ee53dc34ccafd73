//! The rules one by one, on packets as a guest could make them.

use wire::mad::{AttributeId, Class, Mad, Method, SIZE};
use wire::{Gid, Guid, Lid, MadPacket, PKey, Sl};

use super::*;
use crate::model::{GmpClasses, Vf};

const NOW: Duration = Duration::from_secs(1);
const VF: VfId = VfId(0);

/// The filter of two guests, the first of which is as `vf` says.
fn filter(vf: impl FnOnce(&mut Vf)) -> MadFilter {
    let mut first = Vf::new("a");
    vf(&mut first);
    let mut model = Model::new(&["sw1"]);
    model.add_hypervisor("h", 0, vec![first, Vf::new("b")]);
    MadFilter::new(&model)
}

/// A guest as guests are.
const ORDINARY: fn(&mut Vf) = |_| {};

/// A guest that may manage the subnet.
const MANAGES: fn(&mut Vf) = |vf| {
    vf.smp = SmpAccess::Fabric;
    vf.mads.classes = GmpClasses::ALL;
    vf.mads.rate = None;
};

/// A guest that may send as fast as it can.
const FAST: fn(&mut Vf) = |vf| vf.mads.rate = None;

fn mad(class: u8, method: Method, attribute: u16) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut mad = Mad::new_checked(&mut bytes).expect("has the size");
    mad.set_class(Class(class));
    mad.set_method(method);
    mad.set_attribute(AttributeId(attribute), 0);
    bytes
}

fn gmp(class: u8, method: Method, attribute: u16) -> MadPacket {
    let mad = mad(class, method, attribute);
    MadPacket::gmp(
        Lid::new(7),
        Lid::new(9),
        Sl::default(),
        PKey::DEFAULT_FULL,
        mad,
    )
}

fn smp(method: Method) -> MadPacket {
    let mad = mad(0x81, method, 0x0011);
    MadPacket::smp(Lid::PERMISSIVE, Lid::PERMISSIVE, mad)
}

/// Why a packet is refused, if it is.
fn verdict(of_guests: &MadFilter, packet: &MadPacket) -> Option<Reason> {
    let before: u64 = of_guests.report(VF).refused.iter().map(|(_, n)| n).sum();
    if of_guests.admit(NOW, VF, packet) {
        of_guests.taken(VF);
        let after: u64 = of_guests.report(VF).refused.iter().map(|(_, n)| n).sum();
        assert_eq!(before, after);
        return None;
    }
    Some(
        of_guests
            .report(VF)
            .last
            .last()
            .expect("is remembered")
            .reason,
    )
}

#[test]
fn subnet_management_packets() {
    for (access, get, set) in [
        (SmpAccess::Deny, Some(Reason::Smp), Some(Reason::Smp)),
        (SmpAccess::OwnPort, None, Some(Reason::Smp)),
        (SmpAccess::Fabric, None, None),
    ] {
        let rule = format!("{access:?}");
        let of_guests = filter(|vf| vf.smp = access);
        assert_eq!(verdict(&of_guests, &smp(Method::GET)), get, "{rule}");
        assert_eq!(verdict(&of_guests, &smp(Method::SET)), set, "{rule}");
        assert_eq!(verdict(&of_guests, &smp(Method::TRAP)), set, "{rule}");
        assert_eq!(
            verdict(&of_guests, &smp(Method::GET_RESPONSE)),
            set,
            "{rule}"
        );
    }
    // A general packet is none, whatever queue pair it goes to.
    let mut disguised = smp(Method::GET);
    disguised.mad[1] = 0x04;
    assert_eq!(verdict(&filter(MANAGES), &disguised), Some(Reason::Smp));
    // And the other way round.
    let disguised = gmp(0x81, Method::GET, 0x11);
    assert_eq!(verdict(&filter(MANAGES), &disguised), Some(Reason::Class));
}

#[test]
fn classes() {
    let class = Some(Reason::Class);
    let all_but = GmpClasses::ALL
        .without(GmpClass::Vendor)
        .without(GmpClass::Cm);
    for (classes, perf, cm, vendor) in [
        (GmpClasses::default(), class, None, None),
        (GmpClasses::NONE.with(GmpClass::Perf), None, class, class),
        (all_but, None, class, class),
        (GmpClasses::ALL, None, None, None),
    ] {
        let rule = format!("{classes:?}");
        let of_guests = filter(|vf| vf.mads.classes = classes);
        assert_eq!(
            verdict(&of_guests, &gmp(4, Method::GET, 0x12)),
            perf,
            "{rule}"
        );
        assert_eq!(
            verdict(&of_guests, &gmp(7, Method::SEND, 0x10)),
            cm,
            "{rule}"
        );
        assert_eq!(
            verdict(&of_guests, &gmp(0x32, Method(1), 0)),
            vendor,
            "{rule}"
        );
        // An answer belongs to a question that somebody was allowed to ask.
        assert_eq!(
            verdict(&of_guests, &gmp(4, Method::GET_RESPONSE, 0x12)),
            None
        );
        // So do one's own counters to oneself.
        let mut own = gmp(4, Method::GET, 0x12);
        own.dlid = own.slid;
        assert_eq!(verdict(&of_guests, &own), None);
        // Of devices a guest asks its own, unless it may ask others.
        let device = (!classes.contains(GmpClass::Device)).then_some(Reason::Class);
        for class in [0x09, 0x0a] {
            for method in [Method::GET, Method::SET] {
                let mut asked = gmp(class, method, 0x17);
                assert_eq!(verdict(&of_guests, &asked), device, "{rule}");
                asked.dlid = asked.slid;
                assert_eq!(verdict(&of_guests, &asked), None);
            }
        }
        for reserved in [0, 2, 0x50, 0xff] {
            assert_eq!(verdict(&of_guests, &gmp(reserved, Method::GET, 1)), class);
        }
    }
}

#[test]
fn what_only_managers_say() {
    let answer = gmp(3, Method::GET_RESPONSE, 0x35);
    let table = gmp(3, Method::GET_TABLE_RESPONSE, 0x11);
    let report = gmp(3, Method::REPORT, 2);
    let receipt = gmp(3, Method::REPORT_RESPONSE, 2);
    let question = gmp(3, Method::GET, 0x35);
    let guest = filter(ORDINARY);
    for packet in [&answer, &table, &report] {
        assert_eq!(verdict(&guest, packet), Some(Reason::Manager));
        assert_eq!(verdict(&filter(MANAGES), packet), None);
    }
    for packet in [&receipt, &question] {
        assert_eq!(verdict(&guest, packet), None);
    }
}

#[test]
fn rates() {
    let of_guests = filter(|vf| {
        let rate = |per_second, burst| MadRate { per_second, burst };
        vf.mads.rate = Some(rate(100, 10));
        vf.mads.class_rates = vec![(GmpClass::SubnAdm, rate(3, 3))];
    });
    let question = gmp(3, Method::GET, 0x35);
    let call = gmp(7, Method::SEND, 0x10);
    let passed = |packet, tries| {
        (0..tries)
            .filter(|_| verdict(&of_guests, packet).is_none())
            .count()
    };
    // The class first, then all together; tries of the class count among all.
    assert_eq!(passed(&question, 5), 3);
    assert_eq!(passed(&call, 20), 5);
    let report = of_guests.report(VF);
    assert_eq!(report.refused, [(Reason::Rate, 2 + 15)]);
    // The other guest has rates of its own.
    assert!(of_guests.admit(NOW, VfId(1), &call));
    // A port's own agents count as well.
    let own = mad(4, Method::GET, 0x12);
    assert!(!of_guests.admit_local(NOW, VF, &own));
    assert!(of_guests.admit_local(NOW + Duration::from_millis(10), VF, &own));
}

#[test]
fn those_that_wait_are_few() {
    let of_guests = filter(FAST);
    let call = gmp(7, Method::SEND, 0x10);
    let admitted = (0..10_000)
        .filter(|_| of_guests.admit(NOW, VF, &call))
        .count();
    assert_eq!(admitted, MAX_WAITING);
    assert_eq!(
        of_guests.report(VF).refused,
        [(Reason::Queue, 10_000 - MAX_WAITING as u64)]
    );
    // One that no longer waits makes room for one.
    of_guests.taken(VF);
    assert!(of_guests.admit(NOW, VF, &call));
    assert!(!of_guests.admit(NOW, VF, &call));
    // Nobody else feels it.
    assert!(of_guests.admit(NOW, VfId(1), &call));
    // What is remembered is bounded too.
    assert!(of_guests.report(VF).last.len() < 100);
}

/// The port that the packets below are examined for: LIDs 8 and 9.
fn examined(mad: [u8; SIZE], trusted: bool) -> (Option<Reason>, [u8; SIZE]) {
    let gids = [Gid::new(0xfe80 << 48, Guid::from(0x1234)), Gid::NONE];
    let own = Own {
        lids: &[(Lid::new(8), 1)],
        gids: &gids,
        pkeys: &[PKey::new(0x8005), PKey::INVALID],
    };
    let of_guests = filter(if trusted { MANAGES } else { ORDINARY });
    let mut packet = gmp(0, Method::SEND, 0);
    packet.mad = mad;
    let passed = of_guests.examine(NOW, VF, &mut packet, &own);
    let report = of_guests.report(VF);
    assert_eq!(report.passed == 1, passed);
    (
        report.refused.first().map(|&(reason, _)| reason),
        packet.mad,
    )
}

const OWN_GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34];

/// A request for a connection; offsets are those of the specification's table
/// 106 behind a header of 24 bytes.
fn request() -> [u8; SIZE] {
    let mut mad = mad(7, Method::SEND, 0x10);
    mad[24 + 48..24 + 50].copy_from_slice(&[0x80, 0x05]);
    mad[24 + 52..24 + 54].copy_from_slice(&[0, 9]);
    mad[24 + 54..24 + 56].copy_from_slice(&[0, 77]);
    mad[24 + 56..24 + 72].copy_from_slice(&OWN_GID);
    mad[24 + 72..24 + 88].fill(0x77);
    mad
}

#[test]
fn a_connection_is_asked_for_in_ones_own_name() {
    assert_eq!(examined(request(), false).0, None);
    let changed = |at: usize, byte: u8| {
        let mut mad = request();
        mad[24 + at] = byte;
        examined(mad, false).0
    };
    // LID, GID, and both of the alternate path.
    assert_eq!(changed(53, 10), Some(Reason::Address));
    assert_eq!(changed(71, 0x35), Some(Reason::Address));
    assert_eq!(changed(97, 10), Some(Reason::Address));
    assert_eq!(changed(115, 1), Some(Reason::Address));
    // The other's addresses are the other's business.
    assert_eq!(changed(55, 10), None);
    assert_eq!(changed(87, 10), None);
    // Limited membership in the same partition, and another partition.
    assert_eq!(changed(48, 0x00), None);
    assert_eq!(changed(49, 0x06), Some(Reason::Partition));
    // In other messages these bytes are something else.
    let mut mad = request();
    mad[24 + 53] = 10;
    mad[17] = 0x13;
    assert_eq!(examined(mad, false).0, None);
}

#[test]
fn alternate_paths_and_services() {
    let mut lap = mad(7, Method::SEND, 0x19);
    lap[24 + 20..24 + 22].copy_from_slice(&[0, 10]);
    assert_eq!(examined(lap, false).0, Some(Reason::Address));
    lap[24 + 21] = 8;
    assert_eq!(examined(lap, false).0, None);
    let mut sidr = mad(7, Method::SEND, 0x17);
    sidr[24 + 4..24 + 6].copy_from_slice(&[0x80, 0x06]);
    assert_eq!(examined(sidr, false).0, Some(Reason::Partition));
}

#[test]
fn the_subnet_administration_is_told_of_oneself() {
    // MCMemberRecord and ServiceRecord in the name of another port.
    for (attribute, gid_at) in [(0x38, 16), (0x31, 8)] {
        let mut set = mad(3, Method::SET, attribute);
        let gid = 56 + gid_at..56 + gid_at + 16;
        set[gid.clone()].copy_from_slice(&OWN_GID);
        assert_eq!(examined(set, false).0, None);
        set[gid.end - 1] ^= 1;
        assert_eq!(examined(set, false).0, Some(Reason::Address));
        let mut delete = set;
        delete[3] = Method::DELETE.0;
        assert_eq!(examined(delete, false).0, Some(Reason::Address));
        let mut get = set;
        get[3] = Method::GET.0;
        assert_eq!(examined(get, false).0, None);
        // The manager's own guest may act for others.
        assert_eq!(examined(set, true).0, None);
    }
    let mut join = mad(3, Method::SET, 0x38);
    join[56 + 40..56 + 42].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(examined(join, false).0, Some(Reason::Partition));
}

#[test]
fn nobody_claims_trust() {
    let mut question = mad(3, Method::GET_TABLE, 0x11);
    question[36..44].fill(0x5a);
    assert_eq!(examined(question, false).1[36..44], [0; 8]);
    assert_eq!(examined(question, true).1[36..44], [0x5a; 8]);
}

#[test]
fn keys_of_ports_are_not_shown() {
    let mut answer = mad(0x81, Method::GET_RESPONSE, 0x15);
    answer[64..80].fill(0x5a);
    let mut shown = answer;
    filter(ORDINARY).clean(VF, &mut shown);
    assert_eq!(
        (&shown[64..72], &shown[72..80]),
        (&[0; 8][..], &[0x5a; 8][..])
    );
    let mut shown = answer;
    filter(MANAGES).clean(VF, &mut shown);
    assert_eq!(shown, answer);
}

proptest::proptest! {
    /// Nothing in a packet makes the filter panic; refusals print.
    #[test]
    fn any_bytes(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, SIZE),
        class in proptest::option::of(proptest::sample::select(vec![3_u8, 7, 0x81, 4])),
    ) {
        let of_guests = filter(FAST);
        let mut packet = gmp(0, Method::GET, 0);
        packet.mad.copy_from_slice(&bytes);
        if let Some(class) = class {
            packet.mad[1] = class;
            packet.mad[16] = 0;
            packet.mad[17] &= 0x3f;
        }
        if of_guests.admit(NOW, VF, &packet) {
            let own = Own { lids: &[(Lid::new(8), 7)], gids: &[], pkeys: &[] };
            of_guests.examine(NOW, VF, &mut packet, &own);
        }
        of_guests.clean(VF, &mut packet.mad);
        for last in of_guests.report(VF).last {
            assert!(!last.to_string().is_empty());
        }
    }
}
