//! Every command that may reach the VF, with each of its dwords made wrong in many ways: what reaches the VF
//! is the guest's.

use connectx::bits::Field;
use connectx::bits::command::{Opcode, create_eq_in};
use ibvswitch_passthrough::testing::{Confines, Guest, Oracle, Scripted, Stock};
use ibvswitch_passthrough::{Isolation, Policy, Smp};

use crate::AMPLE;
use crate::policy::confined;

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

/// A function, what its guest has, and what may be said about it.
pub struct Place {
    pub guest: Guest,
    stock: Stock,
    oracle: Oracle,
    /// A LID that connections may go to.
    peer: u32,
}

impl Place {
    pub fn new(policy: Policy) -> Self {
        let strict = policy.isolation == Isolation::Strict;
        let confines = Confines {
            lids: None,
            levels: policy.service_levels.allowed,
            pkeys: None,
            manages: policy.smp == Smp::Fabric,
        };
        let guest = Guest::with(&Scripted::default(), policy, AMPLE);
        Self::with(guest, strict, confines, 9)
    }

    /// One of a cluster, whose guest has the fewest rights.
    fn confined() -> Self {
        let (guest, confines, peer) = confined();
        Self::with(guest, true, confines, peer)
    }

    fn with(mut guest: Guest, strict: bool, confines: Confines, peer: u32) -> Self {
        // The first page that the VF gave is the daemon's.
        let oracle = Oracle::new(strict, 4).confined(confines);
        let stock = guest.stock();
        let mut place = Self {
            guest,
            stock,
            oracle,
            peer,
        };
        place.check();
        place
    }

    /// What the VF got since the last time is the guest's to say.
    #[track_caller]
    pub fn check(&mut self) -> usize {
        let exchanges = self.guest.vf.exchanges();
        for (request, reply) in &exchanges {
            if let Err(wrong) = self.oracle.check(request, reply) {
                panic!("{wrong}: {request:02x?}");
            }
        }
        exchanges.len()
    }

    /// Makes anew what a command may have taken away.
    pub fn restock(&mut self, opcode: Opcode) {
        let made = match opcode {
            Opcode::DeallocPd => (0, Opcode::AllocPd),
            Opcode::DeallocXrcd => (1, Opcode::AllocXrcd),
            Opcode::DeallocQCounter => (2, Opcode::AllocQCounter),
            Opcode::DestroyMkey => (3, Opcode::CreateMkey),
            Opcode::DestroyEq => (4, Opcode::CreateEq),
            Opcode::DestroyCq => (5, Opcode::CreateCq),
            Opcode::DestroySrq => (6, Opcode::CreateSrq),
            Opcode::DestroyQp => (7, Opcode::CreateQp),
            Opcode::DeallocUar => (8, Opcode::AllocUar),
            _ => return,
        };
        let (at, create) = made;
        if !self.oracle.has(at, self.stock.numbers[at]) {
            self.stock.numbers[at] = self.guest.make(&self.stock.create(create));
            self.check();
        }
    }

    /// A request about the guest's own.
    pub fn right(&self, opcode: Opcode) -> Vec<u8> {
        let mut request = self.stock.create(opcode);
        let number = Field::new(0x08, 23, 0);
        let [pd, xrcd, counters, key, eqn, cqn, srqn, qpn, page] = self.stock.numbers;
        let named = match opcode {
            Opcode::DeallocPd => pd,
            Opcode::DeallocXrcd => xrcd,
            Opcode::DeallocQCounter => counters,
            Opcode::QueryMkey | Opcode::DestroyMkey => key,
            Opcode::DestroyEq | Opcode::QueryEq => eqn & 0xff,
            Opcode::DestroyCq | Opcode::QueryCq | Opcode::ModifyCq => cqn,
            Opcode::DestroySrq | Opcode::QuerySrq | Opcode::ArmRq => srqn,
            Opcode::DeallocUar => page,
            Opcode::QueryQCounter => {
                Field::new(0x1c, 7, 0).set(&mut request, counters);
                0
            }
            Opcode::DestroyQp
            | Opcode::Rst2Init
            | Opcode::Init2Init
            | Opcode::Init2Rtr
            | Opcode::Rtr2Rts
            | Opcode::Rts2Rts
            | Opcode::Sqerr2Rts
            | Opcode::Sqd2Rts
            | Opcode::ToErr
            | Opcode::ToRst
            | Opcode::QueryQp
            | Opcode::AttachToMcg
            | Opcode::DetachFromMcg => qpn,
            Opcode::AccessReg => {
                // What the port is like, to read it.
                Field::new(0x04, 15, 0).set(&mut request, 1);
                Field::new(0x08, 15, 0).set(&mut request, 0x5004);
                0
            }
            _ => 0,
        };
        if opcode == Opcode::Init2Rtr {
            Field::new(0x34, 15, 0).set(&mut request, self.peer);
        }
        if named != 0 {
            number.set(&mut request, named);
        }
        request
    }
}

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
                at.guest.command(&request).expect("a reply");
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
fn each_field_wrong_in_a_cluster() {
    each_field_wrong(Place::confined);
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
