//! Every command that may reach the VF, with each of its dwords made wrong in many ways: what reaches the VF
//! is the guest's.

use connectx::bits::Field;
use connectx::bits::command::{Opcode, create_eq_in};
use ibvswitch_passthrough::testing::Place;
use ibvswitch_passthrough::{Isolation, Policy, Smp};

/// Whatever stands for an object of somebody else, an address of the daemon, or a bit.
const WRONG: [u32; 23] = [
    0,
    1,
    2,
    0xff,
    0x100,
    0xffff,
    0x1_0000,
    0xff_ffff,
    u32::MAX,
    1 << 31,
    1 << 30,
    1 << 28,
    1 << 25,
    1 << 24,
    1 << 15,
    1 << 4,
    // The upper half of the window's addresses, and two lower ones.
    0x3f,
    0xf800_0000,
    0xffff_f000,
    // Queue pair 0.
    7 << 16,
    // Pages of all sizes.
    31,
    40,
    63,
];

/// Where requests have something.
const END: usize = 0x120;

/// Commands that begin anew what there is.
pub const BEGINNINGS: [Opcode; 4] = [
    Opcode::EnableHca,
    Opcode::DisableHca,
    Opcode::InitHca,
    Opcode::TeardownHca,
];

fn each_field_wrong(place: impl Fn() -> Place) {
    let (mut passed, mut refused) = (0, 0);
    let opcodes = (0..=u16::MAX >> 4).filter_map(Opcode::from_code);
    for opcode in opcodes.filter(|opcode| !BEGINNINGS.contains(opcode)) {
        let mut at = place();
        for offset in (0..END).step_by(4) {
            let old = Field::new(offset, 31, 0).get(&at.right(opcode));
            for wrong in WRONG.into_iter().chain([old + 1, old ^ 1 << 12]) {
                let mut request = at.right(opcode);
                let field = Field::new(offset, 31, 0);
                let code = create_eq_in::OPCODE.get(&request);
                field.set(&mut request, wrong);
                // Of the first dword the lower half, since the upper one is the command.
                create_eq_in::OPCODE.set(&mut request, code);
                at.guest.execute(&request);
                match at.check() {
                    0 => refused += 1,
                    _ => passed += 1,
                }
                at.restock(opcode);
            }
        }
    }
    // Neither is all refused nor is nothing.
    assert!(passed > 1000 && refused > 1000, "{passed} {refused}");
}

#[test]
fn each_field_wrong_with_strict_isolation() {
    each_field_wrong(|| Place::new(Policy::default()));
}

#[test]
fn each_field_wrong_without() {
    each_field_wrong(|| {
        Place::new(Policy {
            isolation: Isolation::Sriov,
            smp: Smp::Fabric,
            ..Policy::default()
        })
    });
}

#[test]
fn each_field_wrong_with_the_fewest_rights() {
    each_field_wrong(|| Place::confined(Isolation::Strict));
}

/// Requests that are cut short. A VF may take what is not there for zeros, as this one's oracle does: what the daemon
/// puts in their place has to get there.
#[test]
fn each_length_wrong() {
    for isolation in [Isolation::Strict, Isolation::Sriov] {
        for opcode in (0..=u16::MAX >> 4).filter_map(Opcode::from_code) {
            if BEGINNINGS.contains(&opcode) {
                continue;
            }
            let mut at = Place::confined(isolation);
            for len in 0..END {
                let mut request = at.right(opcode);
                request.truncate(len);
                at.guest.command(&request);
                at.check();
                at.restock(opcode);
            }
        }
    }
}

/// A port that gets other P_Keys, before a queue pair has one and after.
#[test]
fn each_change_of_a_table() {
    const CHANGES: [Opcode; 3] = [Opcode::Rst2Init, Opcode::Rtr2Rts, Opcode::ToErr];
    const TABLES: [&[u16]; 4] = [
        &[0x8020, 0x8020, 0xffff, 0xffff, 0xffff],
        &[0xffff, 0, 0x8010, 0x8020, 0x8030],
        &[0x8030, 0x8010],
        &[],
    ];
    let mut at = Place::confined(Isolation::Strict);
    for table in TABLES.iter().cycle().take(12) {
        at.partition(table);
        for opcode in CHANGES {
            let request = at.right(opcode);
            at.guest.command(&request).expect("a reply");
            at.check();
            at.partition(table);
        }
    }
    for (before, after) in TABLES
        .iter()
        .flat_map(|a| TABLES.iter().map(move |b| (a, b)))
    {
        at.partition(before);
        let request = at.right(Opcode::Rst2Init);
        at.guest.command(&request).expect("a reply");
        at.check();
        at.partition(after);
    }
    // One that no change has given an index.
    let mut at = Place::confined(Isolation::Strict);
    let request = at.right(Opcode::Rtr2Rts);
    at.guest.command(&request).expect("a reply");
    at.partition(TABLES[0]);
}

/// Addresses have two dwords, and both may be wrong at a time.
#[test]
fn each_address_wrong() {
    const WINDOW: u64 = (1 << 38) - (128 << 20);
    for isolation in [Isolation::Strict, Isolation::Sriov] {
        for opcode in (0..=u16::MAX >> 4).filter_map(Opcode::from_code) {
            if BEGINNINGS.contains(&opcode) {
                continue;
            }
            let mut at = Place::new(Policy {
                isolation,
                ..Policy::default()
            });
            for offset in (8..END - 4).step_by(4) {
                for addr in [
                    WINDOW,
                    WINDOW - 4096 + 1,
                    WINDOW + 0x400_0008,
                    (1 << 38) - 8,
                ] {
                    let mut request = at.right(opcode);
                    request[offset..offset + 8].copy_from_slice(&addr.to_be_bytes());
                    at.guest.command(&request).expect("a reply");
                    at.check();
                    at.restock(opcode);
                }
            }
        }
    }
}
