//! Rights that an operator leaves a guest: service levels, a cluster, subnet management.

use std::sync::Arc;

use connectx::bits::command::{Opcode, Status};
use connectx::bits::{Field, Span};
use hca::{Foreign, ServiceLevels};
use ibvswitch_passthrough::testing::{Answer, Guest, Scripted, request, vf_at as vf};
use ibvswitch_passthrough::{Cluster, Membership, Policy, Smp};

use crate::{AMPLE, Wait, dword};

/// In requests and replies about a queue pair: its context, in there the paths, and in each the dword of the
/// LID, the GID and the dword of the service level.
const CONTEXT: usize = 0x18;
const PRIMARY: usize = CONTEXT + 0x18;
const SECONDARY: usize = PRIMARY + 0x2c;
const LID: usize = 0x04;
const HOPS: usize = 0x08;
const GID: usize = 0x10;
const LEVEL: usize = 0x24;
const GRH: u32 = 1 << 23;

fn put(bytes: &mut [u8], offset: usize, value: u32) {
    Field::new(offset, 31, 0).set(bytes, value);
}

/// A member of a cluster: its VM is known there by this LID.
fn member(cluster: &Arc<Cluster>, lid: u16, vf: &Scripted) -> Guest {
    let policy = Policy {
        membership: Some(Membership {
            cluster: Arc::clone(cluster),
            lid,
        }),
        ..Policy::default()
    };
    Guest::with(vf, policy, AMPLE)
}

/// A new queue pair of a service type.
fn queue_pair(guest: &mut Guest, service: u32) -> u32 {
    let stock = guest.stock();
    let mut create = stock.create(Opcode::CreateQp);
    put(&mut create, CONTEXT, service << 16);
    guest.make(&create)
}

/// INIT2RTR with what a path has in its dwords.
fn connect(qpn: u32, path: &[(usize, u32)]) -> Vec<u8> {
    let mut change = request(Opcode::Init2Rtr, &[(8, qpn)]);
    for (at, value) in path {
        put(&mut change, PRIMARY + at, *value);
    }
    change
}

#[test]
fn connections_are_by_the_lids_of_the_cluster() {
    let cluster = Arc::default();
    let (here, there) = (vf(0x21, 1, false), vf(0x22, 2, false));
    let mut guest = member(&cluster, 5, &here);
    let _other = member(&cluster, 6, &there);
    let qpn = queue_pair(&mut guest, 0);
    // By the cluster's LID, with a range's bits and the order not to leave the adapter.
    let change = connect(qpn, &[(0, 1 << 31 | 3), (LID, 7 << 16 | 6)]);
    let passed = guest.passed_on(&change);
    assert_eq!(
        (dword(&passed, PRIMARY), dword(&passed, PRIMARY + LID)),
        (3, 0x22)
    );
    // By the subnet's LID, as the subnet administration tells it.
    let passed = guest.passed_on(&connect(qpn, &[(LID, 0x22)]));
    assert_eq!(dword(&passed, PRIMARY + LID), 0x22);
    // To itself.
    let passed = guest.passed_on(&connect(qpn, &[(LID, 5)]));
    assert_eq!(dword(&passed, PRIMARY + LID), 0x21);
    // The alternate path, in each command that may have one.
    for opcode in [
        Opcode::Init2Rtr,
        Opcode::Rtr2Rts,
        Opcode::Rts2Rts,
        Opcode::Sqd2Rts,
    ] {
        let mut change = request(
            opcode,
            &[(8, qpn), (PRIMARY + LID, 6), (SECONDARY + LID, 6)],
        );
        let passed = guest.passed_on(&change);
        let lids = [PRIMARY, SECONDARY].map(|path| dword(&passed, path + LID));
        assert_eq!(lids, [0x22, 0x22]);
        put(&mut change, SECONDARY + LID, 7);
        assert_eq!(guest.status(&change), Status::BadParameter, "{opcode:?}");
    }
    // Nobody's, none, the manager's, and a GID of somebody else.
    for path in [
        &[(LID, 7)][..],
        &[(LID, 0)],
        &[(LID, 0x77)],
        &[(LID, GRH | 6), (GID, 0x0909_0909)],
    ] {
        let refused = guest.status(&connect(qpn, path));
        assert_eq!(refused, Status::BadParameter, "{path:x?}");
    }
    // A change without a path has none.
    let passed = guest.passed_on(&request(Opcode::Rtr2Rts, &[(8, qpn)]));
    assert_eq!(dword(&passed, PRIMARY + LID), 0);
    // Datagrams have theirs in work requests.
    let datagrams = queue_pair(&mut guest, 2);
    guest.passed_on(&connect(datagrams, &[]));
}

/// Where the port shares its LID, packets say by a header whom they are for.
#[test]
fn a_header_is_added_where_the_port_wants_it() {
    let cluster = Arc::default();
    let (here, there) = (vf(0x21, 1, true), vf(0x21, 2, true));
    let mut guest = member(&cluster, 5, &here);
    let _other = member(&cluster, 6, &there);
    let qpn = queue_pair(&mut guest, 1);
    let passed = guest.passed_on(&connect(qpn, &[(LID, 6)]));
    assert_eq!(dword(&passed, PRIMARY + LID), GRH | 0x21);
    assert_eq!(dword(&passed, PRIMARY + HOPS), 64);
    assert_eq!(passed[PRIMARY + GID..][..16], [2; 16]);
    // In queries it is not to be seen, and the LID is the cluster's.
    let shown = query(&mut guest, qpn, &passed);
    assert_eq!(dword(&shown, PRIMARY + LID), 6);
    assert_eq!(shown[PRIMARY + GID..][..16], [0; 16]);
    // A header of the guest's own stays, and tells those apart that share the LID.
    let own = [(GID, 0x0202_0202); 4].into_iter().enumerate();
    let own = own.map(|(at, (gid, value))| (gid + 4 * at, value));
    let own: Vec<_> = own.chain([(LID, GRH | 0x21), (HOPS, 9)]).collect();
    let passed = guest.passed_on(&connect(qpn, &own));
    assert_eq!(
        (
            dword(&passed, PRIMARY + LID),
            dword(&passed, PRIMARY + HOPS)
        ),
        (GRH | 0x21, 9)
    );
    let shown = query(&mut guest, qpn, &passed);
    assert_eq!(dword(&shown, PRIMARY + LID), GRH | 6);
    assert_eq!(shown[PRIMARY + GID..][..16], [2; 16]);
    // Without one that LID is two's.
    assert_eq!(
        guest.status(&connect(qpn, &[(LID, 0x21)])),
        Status::BadParameter
    );
}

/// Returns the guest's query of a queue pair. The VF has the context that was passed on.
fn query(guest: &mut Guest, qpn: u32, passed: &[u8]) -> Vec<u8> {
    let context = Span::new(CONTEXT, 0xe8).get(passed).to_vec();
    guest.vf.follow(Box::new(move |request| {
        if dword(request, 0) >> 16 != 0x50b {
            return Answer::Usual;
        }
        let mut reply = vec![0; CONTEXT];
        reply.extend(&context);
        Answer::Reply(reply)
    }));
    guest.answer(&request(Opcode::QueryQp, &[(8, qpn)]))
}

#[test]
fn the_port_has_its_lid_of_the_cluster() {
    let cluster = Arc::default();
    let mut guest = member(&cluster, 5, &vf(0x21, 1, false));
    let context = guest.answer(&request(Opcode::QueryHcaVportContext, &[]));
    // The manager's is the subnet's, since datagrams go to it.
    assert_eq!(
        (dword(&context, 0x70), dword(&context, 0x74) >> 16),
        (5 << 16, 0x77)
    );
    // The port's agent, asked for PortInfo and for P_Keys.
    guest.vf.follow(Box::new(|request| {
        let mut reply = vec![0; 0x110];
        let len = request.len().min(0x110);
        reply[0x10..len].copy_from_slice(&request[0x10..len]);
        Answer::Reply(reply)
    }));
    let ask = |attribute: u32| {
        let mut ask = request(
            Opcode::MadIfc,
            &[(0x10, 0x0181_0101), (0x20, attribute << 16)],
        );
        put(&mut ask, 0x10 + 0x40 + 0x10, 0x21_0077);
        put(&mut ask, 0x10 + 0x40 + 0x20, 0xffff);
        ask
    };
    let answer = guest.answer(&ask(0x15));
    assert_eq!(
        (dword(&answer, 0x60), dword(&answer, 0x70)),
        (0x5_0077, 0xf8ff)
    );
    let answer = guest.answer(&ask(0x16));
    assert_eq!(
        (dword(&answer, 0x60), dword(&answer, 0x70)),
        (0x21_0077, 0xffff)
    );
}

#[test]
fn service_levels_are_denied_or_rewritten() {
    for (foreign, expected) in [
        (Foreign::Denied, None),
        (Foreign::Rewritten(wire::Sl::new(2)), Some(2)),
    ] {
        let policy = Policy {
            service_levels: ServiceLevels {
                allowed: 1 << 2 | 1 << 3,
                foreign,
            },
            ..Policy::default()
        };
        let mut guest = Guest::with(&Scripted::default(), policy, AMPLE);
        let qpn = queue_pair(&mut guest, 0);
        let passed = guest.passed_on(&connect(qpn, &[(LID, 7), (LEVEL, 3 << 24)]));
        assert_eq!(dword(&passed, PRIMARY + LEVEL) >> 24 & 0xf, 3);
        let foreign = connect(qpn, &[(LID, 7), (LEVEL, 4 << 24)]);
        match expected {
            None => assert_eq!(guest.status(&foreign), Status::BadParameter),
            Some(level) => {
                let passed = guest.passed_on(&foreign);
                assert_eq!(dword(&passed, PRIMARY + LEVEL) >> 24 & 0xf, level);
            }
        }
        // The level of datagrams is not in the context.
        let datagrams = queue_pair(&mut guest, 2);
        guest.passed_on(&connect(datagrams, &[]));
    }
}

/// A guest may query the kind of its device; registers are for managers of the subnet.
#[test]
fn registers_of_the_device_are_out_of_reach() {
    const GENERAL_INFO: u32 = 0x17;
    const CONFIG_SPACE: u32 = 0x50;
    let head = |class: u32, method: u32| 0x0100_0100 | class << 16 | method;
    for smp in [Smp::Deny, Smp::OwnPort, Smp::Fabric] {
        let policy = Policy {
            smp,
            ..Policy::default()
        };
        let mut guest = Guest::with(&Scripted::default(), policy, AMPLE);
        let manages = smp == Smp::Fabric;
        for (class, method, attribute, passes) in [
            (0x0a, 1, 1, true),
            (0x0a, 1, GENERAL_INFO, true),
            (0x0a, 2, GENERAL_INFO, manages),
            (0x0a, 1, CONFIG_SPACE, manages),
            (0x0a, 2, CONFIG_SPACE, manages),
            (0x0a, 3, GENERAL_INFO, manages),
            (0x09, 1, GENERAL_INFO, manages),
            (0x09, 2, 1, manages),
            (0x0b, 2, CONFIG_SPACE, true),
        ] {
            let fields = [(0x10, head(class, method)), (0x20, attribute << 16)];
            guest.vf.requests();
            let answer = guest.answer(&request(Opcode::MadIfc, &fields));
            let passed = !guest.vf.requests().is_empty();
            assert_eq!(passed, passes, "{smp:?} {class:#x} {method} {attribute:#x}");
            if !passed {
                let heads = (dword(&answer, 0x10), dword(&answer, 0x14));
                assert_eq!(heads, (head(class, 0x81), 0xc_0000));
            }
        }
    }
}

#[test]
fn subnet_management_goes_as_far_as_it_may() {
    const GET: u32 = 0x0181_0101;
    const SET: u32 = 0x0101_0102;
    const PERFORMANCE: u32 = 0x0104_0102;
    for (smp, get, set, service) in [
        (Smp::Deny, false, false, 2),
        (Smp::OwnPort, true, false, 2),
        (Smp::Fabric, true, true, 7),
    ] {
        let policy = Policy {
            smp,
            ..Policy::default()
        };
        let mut guest = Guest::with(&Scripted::default(), policy, AMPLE);
        // A port that has a queue pair 0.
        guest.vf.follow(Box::new(|request| {
            if dword(request, 0) >> 16 != 0x762 {
                return Answer::Usual;
            }
            let mut reply = vec![0; 0x210];
            put(&mut reply, 0x10 + 0x20, 1 << 30);
            Answer::Reply(reply)
        }));
        let context = guest.answer(&request(Opcode::QueryHcaVportContext, &[]));
        assert_eq!(dword(&context, 0x30) >> 30 & 1, u32::from(get), "{smp:?}");
        for (head, passes) in [
            (GET, get),
            (SET, set),
            (SET | 0x80_0000, set),
            (PERFORMANCE, true),
        ] {
            guest.vf.requests();
            let answer = guest.answer(&request(Opcode::MadIfc, &[(0x10, head)]));
            let passed = !guest.vf.requests().is_empty();
            assert_eq!(passed, passes, "{smp:?} {head:#x}");
            if !passed {
                // An answer on its way back, which says that it is not supported.
                let heads = (dword(&answer, 0x10), dword(&answer, 0x14));
                let directed = head >> 16 & 0xff == 0x81;
                let status = u32::from(directed) << 31 | 0xc_0000;
                assert_eq!(heads, (head & !0xff | 0x81, status));
            }
        }
        let mut create = guest.stock().create(Opcode::CreateQp);
        put(&mut create, CONTEXT, 7 << 16);
        let passed = guest.passed_on(&create);
        assert_eq!(dword(&passed, CONTEXT) >> 16, service, "{smp:?}");
        let qpn = guest.make(&create);
        let change = request(Opcode::Rst2Init, &[(8, qpn), (CONTEXT, 7 << 16)]);
        let passed = guest.passed_on(&change);
        assert_eq!(dword(&passed, CONTEXT) >> 16, service, "{smp:?}");
        // Queue pair 1 is as it is.
        put(&mut create, CONTEXT, 8 << 16);
        assert_eq!(dword(&guest.passed_on(&create), CONTEXT) >> 16, 8);
    }
}
