//! Messages that are matched with tags, and keys with signatures: what others have, what is in use, and what there is
//! not.

use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected_by, peers};
use test_driver::bits::{psv, request, xrqc};
use test_driver::{
    Access, Config, Connection, CqeKind, Data, Error, KeyChange, KeyUpdate, Klm, MemoryRegion,
    Opcode, ProtectionDomain, QueuePair, Receive, SendRequest, Sge, SharedReceiveQueue,
    SignatureForm, SignatureValue, Status, Syndrome, TagChange, TagEvent, TagOperation, Transport,
    eager_header,
};

with_both_doorbells!(
    lists_of_tags_are_changed_by_their_own_queue_pairs,
    a_queue_with_tags_stays_while_it_is_used,
    keys_with_signatures_are_of_their_domain,
    a_wrong_block_is_told_of_before_its_request,
);

const TAG: u64 = 0x0102_0304_0506_0708;
/// Entries of lists, as a power of two.
const LOG_TAGS: u32 = 3;

fn tagged_queue(peer: &Peer) -> SharedReceiveQueue {
    let (size, cqn) = ((4, 1), peer.cq.number());
    SharedReceiveQueue::with_tags(&peer.pd, size, cqn, LOG_TAGS, true).expect("an XRQ")
}

fn config<'a>(peer: &'a Peer, queue: &'a SharedReceiveQueue) -> Config<'a> {
    Config {
        receive: Receive::Shared(queue),
        ..peer.config(Transport::Rc)
    }
}

/// A queue pair that is connected to itself.
fn changer(peer: &Peer, queue: &SharedReceiveQueue) -> QueuePair {
    let qp = QueuePair::new(&config(peer, queue)).expect("a QP");
    let itself = Connection::to(peer.port.lid, qp.number());
    qp.connect(Access::ALL, &itself).expect("connects");
    qp
}

fn append(next: u16, memory: &[Sge]) -> SendRequest<'_> {
    let operation = TagOperation::Append {
        next,
        tag: TAG,
        mask: u64::MAX,
    };
    let change = TagChange {
        operation,
        signaled: false,
        seen: None,
    };
    SendRequest::change_tags(change, memory)
}

/// Sends what matches the tag, and what the receiver is told.
fn tell(from: &mut Peer, qp: &mut QueuePair, to: &mut Peer, seed: u64) -> (TagEvent, u16, u32) {
    let mut message = eager_header(TAG).to_vec();
    message.extend([0; 100]);
    test_driver::pattern::bytes(seed, 0, &mut message[16..]);
    from.buffer.write(0, &message);
    let list = [from.sge(0, message.len())];
    from.execute(qp, &SendRequest::send(Data::Memory(&list)));
    let entry = to.cq.wait().expect("a completion");
    assert!(entry.is_ok());
    let (event, index) = entry.tag_event();
    (event, index, entry.byte_count())
}

fn lists_of_tags_are_changed_by_their_own_queue_pairs(daemon: &Daemon) {
    let bystanders = Bystanders::start(daemon);
    let (mut a, mut b) = peers(daemon);
    let (queue, other) = (tagged_queue(&b), tagged_queue(&b));
    let mut own = changer(&b, &queue);
    let mut others = changer(&b, &other);
    let (mut sender, _receiver) = connected_by(
        &a.config(Transport::Rc),
        &config(&b, &queue),
        &a,
        &b,
        |_| {},
    );
    let list = [b.sge(HALF, 100)];
    // Another queue's entry is none of this one's.
    b.execute(&mut others, &append(1, &list));
    b.execute(&mut own, &append(1, &list));
    let told = tell(&mut a, &mut sender, &mut b, 7);
    assert_eq!(told, (TagEvent::Matched, 0, 100));
    b.verify(HALF, 100, 7);
    // A queue pair without tags, one that is connected to another one, and entries that there are not.
    let plain = b.qp(Transport::Rc);
    let itself = Connection::to(b.port.lid, plain.number());
    plain.connect(Access::ALL, &itself).expect("connects");
    let (elsewhere, _far) = connected_by(
        &config(&b, &queue),
        &a.config(Transport::Rc),
        &b,
        &a,
        |_| {},
    );
    let none = changer(&b, &queue);
    for (mut qp, next) in [(plain, 2), (elsewhere, 2), (none, 1 << LOG_TAGS)] {
        qp.post_send(&append(next, &list)).expect("is posted");
        let entry = b.sent(&mut qp);
        assert_eq!(entry.syndrome(), Syndrome::LocalQpOperation);
    }
    // They have changed nothing.
    b.execute(&mut own, &append(2, &list));
    let told = tell(&mut a, &mut sender, &mut b, 8);
    assert_eq!(told, (TagEvent::Matched, 1, 100));
    b.verify(HALF, 100, 8);
    bystanders.stop();
}

fn a_queue_with_tags_stays_while_it_is_used(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let queue = tagged_queue(&b);
    let mut own = changer(&b, &queue);
    let (mut sender, receiver) = connected_by(
        &a.config(Transport::Rc),
        &config(&b, &queue),
        &a,
        &b,
        |_| {},
    );
    let mut destroy = test_driver::request(Opcode::DestroyXrq, 0, 16);
    request::OBJECT.set(&mut destroy, queue.number());
    let list = [b.sge(HALF, 100)];
    b.execute(&mut own, &append(1, &list));
    // By either command, and by another function, which has no queue of that number.
    for (peer, opcode, status) in [
        (&b, Opcode::DestroyXrq, Status::BadResState),
        (&b, Opcode::DestroySrq, Status::BadResState),
        (&a, Opcode::DestroyXrq, Status::BadResource),
    ] {
        request::OPCODE.set(&mut destroy, opcode.code().into());
        let refused = peer.device.command(&destroy, 16).expect_err("is in use");
        assert_eq!(refused.status(), Some(status), "{opcode:?}");
    }
    let told = tell(&mut a, &mut sender, &mut b, 9);
    assert_eq!(told, (TagEvent::Matched, 0, 100));
    b.verify(HALF, 100, 9);
    drop((own, receiver));
    request::OPCODE.set(&mut destroy, Opcode::DestroyXrq.code().into());
    b.device.command(&destroy, 16).expect("is not in use");
    // Nobody takes what comes now.
    let list = [a.sge(0, 16)];
    sender
        .post_send(&SendRequest::send(Data::Memory(&list)))
        .expect("is posted");
    assert!(!a.sent(&mut sender).is_ok());
    let mut query = test_driver::request(Opcode::QueryXrq, 0, 16);
    request::OBJECT.set(&mut query, queue.number());
    let gone = b.device.command(&query, xrqc::PAGES).map(drop);
    assert!(matches!(gone, Err(Error::Refused { .. })), "{gone:?}");
}

/// Gives a key these stretches, with T10-DIF in memory.
fn change(peer: &mut Peer, qp: &mut QueuePair, key: u32, value: u32) -> test_driver::Cqe {
    let form = SignatureForm {
        memory: Some(value),
        wire: None,
    };
    let stretch = Klm {
        len: 2 * 520,
        key: peer.region.key(),
        addr: peer.region.start() + HALF as u64,
    };
    let change = KeyChange::Signatures {
        access: Access::ALL,
        form: &form.to_bytes(),
        stretches: &[stretch],
    };
    qp.post_send(&SendRequest::key_update(KeyUpdate { key, change }))
        .expect("is posted");
    peer.sent(qp)
}

fn keys_with_signatures_are_of_their_domain(daemon: &Daemon) {
    let bystanders = Bystanders::start(daemon);
    let (mut a, mut b) = peers(daemon);
    let other = ProtectionDomain::new(&b.device).expect("a PD");
    let key = MemoryRegion::with_signatures(&b.pd).expect("a key");
    let theirs = MemoryRegion::with_signatures(&other).expect("a key");
    let own = SignatureValue::new(&b.pd).expect("a PSV");
    let others = SignatureValue::new(&other).expect("a PSV");
    let pair = |a: &Peer, b: &Peer| crate::daemon::connected(Transport::Rc, a, b);
    for (key, value) in [
        (theirs.key(), own.number()),
        (key.key(), others.number()),
        (key.key(), own.number() ^ 0x7f_0000),
    ] {
        let (_far, mut qp) = pair(&a, &b);
        let entry = change(&mut b, &mut qp, key, value);
        assert_eq!(
            entry.syndrome(),
            Syndrome::MemoryBind,
            "{key:#x} {value:#x}"
        );
    }
    // A value is another domain's, another function's or gone: whoever asks, it does not go.
    let mut destroy = test_driver::request(Opcode::DestroyPsv, 0, 16);
    request::OBJECT.set(&mut destroy, own.number());
    let refused = a.device.command(&destroy, 16).expect_err("is not its own");
    assert_eq!(refused.status(), Some(Status::BadResource));
    let mut create = test_driver::request(Opcode::CreatePsv, 0, 16);
    psv::PD.set(&mut create, b.pd.number());
    for count in [0, 5] {
        psv::NUM_PSV.set(&mut create, count);
        let refused = b.device.command(&create, 32).expect_err("is no number");
        assert_eq!(refused.status(), Some(Status::BadParam));
    }
    // Nobody uses it before it has a form; then others do, and not for more than there is.
    let (mut qa, mut qb) = pair(&a, &b);
    assert!(change(&mut b, &mut qb, key.key(), own.number()).is_ok());
    a.fill(0, 2 * 512, 3);
    let list = [a.sge(0, 2 * 512)];
    let remote = test_driver::Remote {
        addr: 0,
        key: key.key(),
    };
    a.execute(&mut qa, &SendRequest::write(remote, Data::Memory(&list)));
    b.verify(HALF, 512, 3);
    let mut behind = [0; 8];
    b.buffer.read(HALF + 520 + 512, &mut behind);
    assert_eq!(behind[2..], [0, 0, 0, 0, 0, 1]);
    for (remote, list) in [
        (remote, a.sge(0, 2 * 512 + 1)),
        (
            test_driver::Remote {
                key: theirs.key(),
                ..remote
            },
            a.sge(0, 16),
        ),
    ] {
        let (mut qa, _qb) = pair(&a, &b);
        let list = [list];
        qa.post_send(&SendRequest::write(remote, Data::Memory(&list)))
            .expect("is posted");
        assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::RemoteAccess);
    }
    bystanders.stop();
}

fn a_wrong_block_is_told_of_before_its_request(daemon: &Daemon) {
    let (mut a, mut b) = peers(daemon);
    let (mut qa, mut qb) = crate::daemon::connected(Transport::Rc, &a, &b);
    let key = MemoryRegion::with_signatures(&b.pd).expect("a key");
    let value = SignatureValue::new(&b.pd).expect("a PSV");
    assert!(change(&mut b, &mut qb, key.key(), value.number()).is_ok());
    b.fill(HALF, 2 * 520, 5);
    let own = [Sge {
        addr: 0,
        len: 2 * 512,
        key: key.key(),
    }];
    // Who sends is told of its own block, once, and then that it has sent.
    qa.post_receive(&[a.sge(HALF, 2 * 512)]).expect("is posted");
    qb.post_send(&SendRequest::send(Data::Memory(&own)))
        .expect("is posted");
    let entry = b.cq.wait().expect("a completion");
    assert_eq!(entry.kind(), CqeKind::SignatureError);
    assert!(b.sent(&mut qb).is_ok());
    assert!(a.cq.wait().expect("a completion").is_ok());
    // One that reads it is not its owner's business any more: the key has told, and the data go as they are.
    let into = [a.sge(HALF, 512)];
    let remote = test_driver::Remote {
        addr: 0,
        key: key.key(),
    };
    a.execute(&mut qa, &SendRequest::read(remote, &into));
    a.verify(HALF, 512, 5);
    assert!(b.cq.poll().is_none());
}
