//! Command by command: what the VF gets when all is right, and what the guest is told when one field is wrong.

use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status, alloc_pd_out};
use ibvswitch_passthrough::testing::Place;
use ibvswitch_passthrough::{Isolation, Policy};

use crate::fields::BEGINNINGS;

/// A number that no object of the guest has, and the same for kinds of which there are few.
const STRANGER: u32 = 0x12_3456;
const FEW: u32 = 0x77;
/// The upper half of an address of the daemon's memory; the lower one.
const WINDOW: (u32, u32) = (0x3f, 0xf800_0000);

/// A field: the offset of its dword, its uppermost and lowest bit; what it is not to be, and the answer to that.
type Wrong = ((usize, u32, u32), u32, Status);

const fn number(at: usize) -> Wrong {
    ((at, 23, 0), STRANGER, Status::BadResource)
}

const fn few(at: usize, high: u32, low: u32) -> Wrong {
    ((at, high, low), FEW, Status::BadResource)
}

const fn never(at: usize, high: u32, low: u32, value: u32) -> Wrong {
    ((at, high, low), value, Status::BadParameter)
}

/// An address. The request has set its lower half to the daemon's memory already.
const fn address(at: usize) -> Wrong {
    never(at, 31, 0, WINDOW.0)
}

const OBJECT: &[Wrong] = &[number(0x08)];
/// Another port, and the port of another function.
const PORT: &[Wrong] = &[never(0x08, 19, 16, 2), never(0x08, 31, 31, 1)];
const QUEUE_PAIR: &[Wrong] = &[
    number(0x08),
    number(0x1c),
    few(0x24, 31, 24),
    never(0x54, 23, 16, 2),
    never(0x80, 23, 16, 2),
    number(0x94),
    number(0xb0),
    number(0xb4),
    address(0xb8),
    number(0xc4),
];

/// Commands that may reach the VF, with every field that names an object.
const FORWARDED: &[(Opcode, &[Wrong])] = &[
    (Opcode::QueryAdapter, &[]),
    (
        Opcode::CreateMkey,
        &[
            // Work requests fill it; it is of a kind that nobody knows; it has no end.
            never(0x10, 30, 30, 1),
            never(0x10, 28, 26, 1),
            number(0x1c),
            never(0x1c, 31, 31, 1),
            never(0x48, 5, 0, 63),
            address(0x110),
        ],
    ),
    (Opcode::QueryMkey, OBJECT),
    (Opcode::DestroyMkey, OBJECT),
    (
        Opcode::CreateEq,
        &[
            number(0x1c),
            ((0x1c, 28, 24), 31, Status::ExceededLimits),
            never(0x24, 7, 0, 0xff),
            address(0x110),
        ],
    ),
    (Opcode::QueryEq, &[few(0x08, 7, 0)]),
    (Opcode::DestroyEq, &[few(0x08, 7, 0)]),
    (
        Opcode::CreateCq,
        &[
            number(0x1c),
            few(0x24, 31, 0),
            address(0x48),
            address(0x110),
        ],
    ),
    (
        Opcode::ModifyCq,
        &[
            number(0x08),
            number(0x1c),
            few(0x24, 31, 0),
            address(0x48),
            address(0x110),
        ],
    ),
    (Opcode::QueryCq, OBJECT),
    (Opcode::DestroyCq, OBJECT),
    (
        Opcode::CreateSrq,
        &[
            number(0x14),
            number(0x18),
            number(0x28),
            address(0x38),
            address(0x110),
        ],
    ),
    (Opcode::QuerySrq, OBJECT),
    (Opcode::ArmRq, OBJECT),
    (Opcode::DestroySrq, OBJECT),
    (
        Opcode::CreateQp,
        &[
            // A service that there is not, and a receive queue.
            never(0x18, 23, 16, 0x55),
            never(0xc4, 26, 24, 5),
            number(0x1c),
            number(0x24),
            few(0x24, 31, 24),
            never(0x54, 23, 16, 2),
            never(0x80, 23, 16, 2),
            number(0x94),
            number(0xb4),
            address(0xb8),
            address(0x110),
        ],
    ),
    (Opcode::Rst2Init, QUEUE_PAIR),
    (Opcode::Init2Init, QUEUE_PAIR),
    (Opcode::Init2Rtr, QUEUE_PAIR),
    (Opcode::Rtr2Rts, QUEUE_PAIR),
    (Opcode::Rts2Rts, QUEUE_PAIR),
    (Opcode::Sqerr2Rts, QUEUE_PAIR),
    (Opcode::Sqd2Rts, QUEUE_PAIR),
    (Opcode::ToErr, OBJECT),
    (Opcode::ToRst, OBJECT),
    (Opcode::QueryQp, OBJECT),
    (Opcode::AttachToMcg, OBJECT),
    (Opcode::DetachFromMcg, OBJECT),
    (Opcode::DestroyQp, OBJECT),
    (Opcode::MadIfc, &[never(0x08, 7, 0, 2)]),
    (Opcode::QueryHcaVportContext, PORT),
    (Opcode::QueryHcaVportGid, PORT),
    (Opcode::QueryHcaVportPkey, PORT),
    (
        Opcode::ModifyHcaVportContext,
        &[
            PORT[0],
            PORT[1],
            // A GUID or a state.
            never(0x10, 31, 0, 1),
        ],
    ),
    (
        Opcode::AccessReg,
        &[
            // To set the port up, registers of others, the port of others.
            never(0x04, 15, 0, 0),
            never(0x08, 15, 0, 0x7004),
            never(0x10, 23, 16, 2),
        ],
    ),
    (Opcode::AllocPd, &[]),
    (Opcode::DeallocPd, OBJECT),
    (Opcode::AllocXrcd, &[]),
    (Opcode::DeallocXrcd, OBJECT),
    (Opcode::AllocUar, &[]),
    (Opcode::DeallocUar, OBJECT),
    (Opcode::AllocQCounter, &[]),
    (Opcode::DeallocQCounter, OBJECT),
    (
        Opcode::QueryQCounter,
        &[few(0x1c, 7, 0), never(0x08, 31, 31, 1)],
    ),
];

/// Commands that the daemon answers.
const ANSWERED: &[Opcode] = &[
    Opcode::QueryHcaCap,
    Opcode::SetHcaCap,
    Opcode::QueryPages,
    Opcode::ManagePages,
    Opcode::QueryIssi,
    Opcode::SetIssi,
    Opcode::QueryLag,
];

/// Commands that the daemon always refuses.
const REFUSED: &[Opcode] = &[
    Opcode::AllocMemic,
    Opcode::DeallocMemic,
    Opcode::CreateDct,
    Opcode::DestroyDct,
    Opcode::DrainDct,
    Opcode::QueryDct,
    Opcode::ArmDctForKeyViolation,
    Opcode::CreatePsv,
    Opcode::DestroyPsv,
    Opcode::CreateGeneralObject,
    Opcode::DestroyGeneralObject,
];

fn place(isolation: Isolation) -> Place {
    Place::new(Policy {
        isolation,
        ..Policy::default()
    })
}

/// Gives a command. Its status, and how many requests the VF got of it.
fn give(at: &mut Place, request: &[u8]) -> (Status, usize) {
    let reply = at.guest.command(request).expect("a reply");
    let status = Status::from_code(alloc_pd_out::STATUS.get(&reply) as u8);
    (status.expect("is one"), at.check())
}

#[test]
fn every_command_is_in_one_of_the_lists() {
    for opcode in (0..=u16::MAX >> 4).filter_map(Opcode::from_code) {
        let forwarded = FORWARDED.iter().filter(|(of, _)| *of == opcode).count();
        let others = [ANSWERED, REFUSED, &BEGINNINGS].concat();
        let answered = others.iter().filter(|of| **of == opcode).count();
        assert_eq!(forwarded + answered, 1, "{opcode:?}");
    }
}

#[test]
fn what_is_right_passes_and_what_is_not_is_refused() {
    for isolation in [Isolation::Strict, Isolation::Sriov] {
        for &(opcode, wrongs) in FORWARDED {
            let mut at = place(isolation);
            // A doorbell page of a program's, too: the driver's own is the daemon's.
            at.restock(opcode);
            let right = at.right(opcode);
            assert_eq!(give(&mut at, &right), (Status::Ok, 1), "{opcode:?}");
            for &((offset, high, low), value, expected) in wrongs {
                at.restock(opcode);
                let mut request = at.right(opcode);
                if value == WINDOW.0 {
                    Field::new(offset + 4, 31, 0).set(&mut request, WINDOW.1);
                }
                Field::new(offset, high, low).set(&mut request, value);
                let what = format!("{opcode:?} {offset:#x} [{high}:{low}] {isolation:?}");
                let (status, passed) = give(&mut at, &request);
                // What keys are like is the guest's to say where nothing but the VF keeps it from the daemon's
                // memory.
                let of_keys = opcode == Opcode::CreateMkey && matches!(offset, 0x10 | 0x1c);
                if isolation == Isolation::Sriov && of_keys && expected == Status::BadParameter {
                    assert_eq!((status, passed), (Status::Ok, 1), "{what}");
                } else {
                    assert_eq!((status, passed), (expected, 0), "{what}");
                }
            }
        }
    }
}

#[test]
fn what_is_answered_does_not_reach_the_vf() {
    for &opcode in ANSWERED {
        let mut at = place(Isolation::Strict);
        let right = at.right(opcode);
        assert_eq!(give(&mut at, &right), (Status::Ok, 0), "{opcode:?}");
    }
}

#[test]
fn what_is_refused_does_not_reach_the_vf() {
    for &opcode in REFUSED {
        let mut at = place(Isolation::Sriov);
        let right = at.right(opcode);
        assert_eq!(
            give(&mut at, &right),
            (Status::BadOperation, 0),
            "{opcode:?}"
        );
    }
}

/// Nothing is done for a user context, and nothing before the function is initialized. What Linux allocates for all
/// user contexts, whether there are any or not, is the guest's.
#[test]
fn each_command_has_its_stage() {
    for opcode in (0..=u16::MAX >> 4).filter_map(Opcode::from_code) {
        for uid in [1, 0xffff] {
            let mut at = place(Isolation::Strict);
            let mut request = at.right(opcode);
            Field::new(0x00, 15, 0).set(&mut request, uid);
            if (opcode, uid) == (Opcode::AllocQCounter, 0xffff) {
                assert_eq!(give(&mut at, &request), (Status::Ok, 1));
            } else {
                let refused = (Status::BadParameter, 0);
                assert_eq!(give(&mut at, &request), refused, "{opcode:?} of {uid:#x}");
            }
        }
        if FORWARDED.iter().any(|(of, _)| *of == opcode) && opcode != Opcode::QueryAdapter {
            let at = place(Isolation::Strict);
            let request = at.right(opcode);
            let mut guest = at.guest;
            connectx::Backend::reset(&mut guest.function);
            guest.vf.exchanges();
            let reply = guest.command(&request).expect("a reply");
            let status = Status::from_code(alloc_pd_out::STATUS.get(&reply) as u8);
            assert_eq!(status, Some(Status::BadSystemState), "{opcode:?}");
            assert!(guest.vf.exchanges().is_empty(), "{opcode:?}");
        }
    }
}
