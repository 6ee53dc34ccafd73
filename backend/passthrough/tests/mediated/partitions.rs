//! A guest that has some of the port's partitions, by indexes of its own.

use connectx::bits::command::{Opcode, Status};
use ibvswitch_passthrough::Policy;
use ibvswitch_passthrough::testing::{Answer, Guest, Scripted, request};

use crate::{AMPLE, Wait, dword};

/// In requests and replies about a queue pair: the dwords with the indexes of both paths, and in requests the
/// optional parameters.
const PRIMARY: usize = 0x30;
const ALTERNATE: usize = 0x5c;
const OPTIONAL: usize = 0x10;
const SAYS_INDEX: u32 = 1 << 4;
const SAYS_ALTERNATE: u32 = 1 << 0;
const PORT_CHANGE: u8 = 9;

/// A guest with three partitions, and a port that has two of them.
fn guest() -> Guest {
    let vf = Scripted::default();
    vf.partition(&[0xffff, 0x8001, 0, 0x8003]);
    let policy = Policy {
        pkeys: Some(vec![0x8003, 0x8002, 0x8001]),
        ..Policy::default()
    };
    Guest::with(&vf, policy, AMPLE)
}

/// A request for one entry of the table, or for all.
fn ask(index: u32) -> Vec<u8> {
    request(Opcode::QueryHcaVportPkey, &[(0x0c, index)])
}

fn change(opcode: Opcode, qpn: u32, optional: u32, indexes: [u32; 2]) -> Vec<u8> {
    let [primary, alternate] = indexes;
    let dwords = [
        (8, qpn),
        (OPTIONAL, optional),
        (PRIMARY, primary),
        (ALTERNATE, alternate),
    ];
    request(opcode, &dwords)
}

/// The VF's indexes in what it got.
fn indexes(request: &[u8]) -> [u32; 2] {
    [PRIMARY, ALTERNATE].map(|at| dword(request, at) & 0xffff)
}

/// Returns the indexes that the guest sees of a queue pair with these indexes at the VF.
fn told(guest: &mut Guest, qpn: u32, at_the_vf: [u32; 2]) -> [u32; 2] {
    guest.vf.follow(Box::new(move |request| {
        if dword(request, 0) >> 16 != u32::from(Opcode::QueryQp.code()) {
            return Answer::Usual;
        }
        let mut reply = vec![0; 0x100];
        for (at, index) in [PRIMARY, ALTERNATE].into_iter().zip(at_the_vf) {
            reply[at..at + 4].copy_from_slice(&index.to_be_bytes());
        }
        Answer::Reply(reply)
    }));
    let reply = guest.answer(&request(Opcode::QueryQp, &[(8, qpn)]));
    guest.vf.follow(Box::new(|_| Answer::Usual));
    indexes(&reply)
}

#[test]
fn the_table_is_the_guests() {
    let mut guest = guest();
    for (index, key) in [(0, 0x8003), (1, 0), (2, 0x8001), (3, 0), (127, 0)] {
        let reply = guest.answer(&ask(index));
        assert_eq!((dword(&reply, 0), dword(&reply, 0x10)), (0, key), "{index}");
    }
    let reply = guest.answer(&ask(0xffff));
    let keys: Vec<u32> = (0..124).map(|at| dword(&reply, 0x10 + 4 * at)).collect();
    assert_eq!(keys[..3], [0x8003, 0, 0x8001]);
    assert!(keys[3..].iter().all(|key| *key == 0));
    assert_eq!(guest.status(&ask(128)), Status::BadIndex);
    assert_eq!(guest.function.report().lock().pkeys, [0x8003, 0, 0x8001]);
    // By the port's agent, which has the VF's table.
    guest.vf.follow(Box::new(|request| {
        let mut reply = vec![0xff; 0x110];
        reply[..0x50].copy_from_slice(&request[..0x50]);
        reply[..0x10].fill(0);
        Answer::Reply(reply)
    }));
    for (block, expected) in [(0, [0x8003, 0, 0x8001]), (1, [0; 3]), (0xffff, [0; 3])] {
        let get = [(0x10, 0x0181_0101), (0x20, 0x16 << 16), (0x24, block)];
        let answer = guest.answer(&request(Opcode::MadIfc, &get));
        let (keys, _) = answer[0x50..0x90].as_chunks::<2>();
        let keys: Vec<u16> = keys.iter().map(|key| u16::from_be_bytes(*key)).collect();
        assert_eq!(keys[..3], expected, "{block}");
        assert!(keys[3..].iter().all(|key| *key == 0));
        // What follows the block is as it was.
        assert_eq!(answer[0x90..0x110], [0xff; 0x80]);
    }
}

#[test]
fn queue_pairs_have_indexes_of_the_guests_partitions() {
    let mut guest = guest();
    let stock = guest.stock();
    let mut create = stock.create(Opcode::CreateQp);
    create[PRIMARY + 3] = 1;
    assert_eq!(indexes(&guest.passed_on(&create)), [3, 3]);
    let qpn = guest.make(&create);
    // Said by the first change of all, and kept by one that does not say it.
    let passed = guest.passed_on(&change(Opcode::Rst2Init, qpn, 0, [2, 0]));
    assert_eq!(indexes(&passed), [1, 1]);
    let passed = guest.passed_on(&change(Opcode::Init2Rtr, qpn, 0, [0, 3]));
    assert_eq!(indexes(&passed), [1, 1]);
    assert_eq!(told(&mut guest, qpn, [1, 1]), [2, 0]);
    // Another one, of each path, in each command that may say it.
    for opcode in [
        Opcode::Init2Init,
        Opcode::Init2Rtr,
        Opcode::Rtr2Rts,
        Opcode::Rts2Rts,
        Opcode::Sqerr2Rts,
        Opcode::Sqd2Rts,
    ] {
        let passed = guest.passed_on(&change(opcode, qpn, SAYS_INDEX, [0, 2]));
        assert_eq!(indexes(&passed)[0], 3, "{opcode:?}");
        let passed = guest.passed_on(&change(opcode, qpn, SAYS_ALTERNATE, [9, 2]));
        assert_eq!(indexes(&passed), [3, 1], "{opcode:?}");
        assert_eq!(told(&mut guest, qpn, [3, 1]), [0, 2], "{opcode:?}");
    }
    // Of a partition that the port does not have, and of none.
    for index in [1, 3, 0x7fff] {
        let passed = guest.passed_on(&change(Opcode::Rts2Rts, qpn, SAYS_INDEX, [index, 0]));
        assert_eq!(indexes(&passed), [127, 1], "{index}");
        assert_eq!(told(&mut guest, qpn, [127, 1]), [index, 2]);
    }
    // What the VF does not do has not been done.
    guest.vf.follow(Box::new(|_| Answer::Reply(vec![4; 16])));
    guest.answer(&change(Opcode::Rts2Rts, qpn, SAYS_INDEX, [0, 0]));
    assert_eq!(told(&mut guest, qpn, [127, 1]), [0x7fff, 2]);
    // A port without room for who has nothing.
    guest.vf.partition(&[0x8001; 128]);
    guest.answer(&ask(0));
    let nobody = change(Opcode::Rst2Init, qpn, 0, [0, 0]);
    assert_eq!(guest.status(&nobody), Status::BadIndex);
    let passed = guest.passed_on(&change(Opcode::Rst2Init, qpn, SAYS_ALTERNATE, [2, 2]));
    assert_eq!(indexes(&passed), [0, 0]);
}

/// The manager of the subnet gives the port other partitions. A queue pair stops when its index is somebody else's.
#[test]
fn queue_pairs_stop_where_another_partition_comes() {
    let mut guest = guest();
    let create = guest.stock().create(Opcode::CreateQp);
    let [stays, stops, later] = [(); 3].map(|()| guest.make(&create));
    for (qpn, index) in [(stays, 2), (stops, 0), (later, 1)] {
        guest.answer(&change(Opcode::Rst2Init, qpn, 0, [index, 0]));
    }
    guest.vf.exchanges();
    guest.vf.partition(&[0xffff, 0x8001, 0, 0x8009]);
    guest.vf.raise(PORT_CHANGE, 6, &[]);
    // The port's context, its GID, its table, and the command.
    let requests = guest.settle(4);
    let to_error = |qpn| request(Opcode::ToErr, &[(8, qpn)])[..16].to_vec();
    assert_eq!(requests[3..], [to_error(stops)]);
    assert_eq!(guest.function.report().lock().pkeys, [0, 0, 0x8001]);
    // A guest that asks before the event is there.
    let mut table = [0; 128];
    (table[1], table[127]) = (0x8001, 0x7fff);
    guest.vf.partition(&table);
    let reply = guest.answer(&ask(2));
    assert_eq!(dword(&reply, 0x10), 0x8001);
    assert_eq!(guest.settle(2)[1..], [to_error(later)]);
    // Once.
    guest.answer(&ask(2));
    assert_eq!(guest.settle(1).len(), 1);
}
