//! Devices that go on in another daemon, from an image, under a driver that notices nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::administration::{GRH, Vm, group};
use crate::daemon::{Bystanders, Daemon, HALF, Peer, connected_by, peers};
use test_driver::{
    AddressVector, Connection, Data, Options, QueuePair, SendRequest, Syndrome, Transport,
};
use testing::Configuration;
use vfio_user::MigrationState;
use vfio_user::client::Client;

with_both_doorbells!(
    a_device_that_rested_goes_on_where_it_was,
    a_function_level_reset_ends_a_rest,
    what_the_device_has_written_is_logged,
);

/// Long enough for both devices to have moved before anybody gives up.
fn patient(connection: &mut Connection) {
    connection.ack_timeout = 18;
    connection.retry_count = 7;
}

fn connected(transport: Transport, a: &Peer, b: &Peer) -> (QueuePair, QueuePair) {
    let (to, from) = (a.config(transport), b.config(transport));
    connected_by(&to, &from, a, b, patient)
}

/// Moves both devices to the daemon `to`, at a moment that nobody chooses.
fn move_both(a: &test_driver::Device, b: &test_driver::Device, to: &Daemon) {
    let (mut first, mut second) = (a.pause().unwrap(), b.pause().unwrap());
    let images = [first.image().unwrap(), second.image().unwrap()];
    first.go_on_at(to.socket("vm1"), &images[0]).unwrap();
    second.go_on_at(to.socket("vm2"), &images[1]).unwrap();
}

/// Messages of all sizes, each received where it is to be, in their order, while both ends go from daemon to
/// daemon.
#[test]
fn connections_go_on_in_another_daemon() {
    const MOVES: u32 = 6;
    let [here, there] = [(); 2].map(|()| Daemon::start("trap"));
    let (mut a, mut b) = peers(&here);
    let (mut qa, mut qb) = connected(Transport::Rc, &a, &b);
    let (messages, moved) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (first, second) = (a.device.clone(), b.device.clone());
        let (messages, moved) = (&messages, &moved);
        let places = [&there, &here];
        scope.spawn(move || {
            for round in 0..MOVES {
                let seen = messages.load(Ordering::Relaxed);
                while messages.load(Ordering::Relaxed) < seen + 3 {
                    std::thread::yield_now();
                }
                move_both(&first, &second, places[round as usize % 2]);
            }
            moved.store(true, Ordering::Release);
        });
        let mut number = 0_u32;
        while !moved.load(Ordering::Acquire) || number < 20 {
            let len = [8, 5000, 300_000, 2_000_000][number as usize % 4];
            let seed = u64::from(number);
            a.fill(0, len, seed);
            let from = [a.sge(0, len)];
            if number.is_multiple_of(3) {
                let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
                a.execute(&mut qa, &write);
            } else {
                b.cq.arm(false).unwrap();
                qb.post_receive(&[b.sge(HALF, len)]).unwrap();
                a.execute(&mut qa, &SendRequest::send(Data::Memory(&from)));
                // One event, however often both have moved.
                assert_eq!(b.device.wait_completion(0).unwrap(), b.cq.number());
                b.cq.acknowledge();
                let entry = b.cq.wait().unwrap();
                assert!(entry.is_ok() && entry.qpn() == qb.number(), "{entry:?}");
                assert_eq!(entry.byte_count() as usize, len);
                qb.complete(&entry);
            }
            b.verify(HALF, len, seed);
            number += 1;
            messages.store(number, Ordering::Relaxed);
        }
    });
    // Commands, too.
    let (mut qa, qb) = connected(Transport::Rc, &a, &b);
    a.fill(0, 5000, 99);
    let from = [a.sge(0, 5000)];
    let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
    a.execute(&mut qa, &write);
    b.verify(HALF, 5000, 99);
    drop(qb);
}

/// A group has another LID where the device goes on. Its guest, which knows the one of before alone, is heard
/// in the group and by nobody else.
#[test]
fn a_group_goes_on_under_another_lid() {
    const QKEY: u32 = 0x1122_3344;
    const LEN: usize = 64;
    let [here, there] = [(); 2].map(|()| Daemon::start("trap"));
    let [mut mover, mut member, mut other] =
        [(&here, "vm1"), (&there, "vm2"), (&there, "vm3")].map(|(at, name)| Vm::open(at, name));
    let (told, first) = (
        group::join(&mut mover, group::gid(1)),
        group::join(&mut other, group::gid(2)),
    );
    let lid = group::join(&mut member, group::gid(1));
    assert!(
        told == first && told != lid,
        "{told:#x} {first:#x} {lid:#x}"
    );
    let attached = |vm: &Vm, number| {
        let mut qp = vm.peer.qp(Transport::Ud);
        qp.activate(0, QKEY).unwrap();
        qp.attach_multicast(group::gid(number)).unwrap();
        qp.post_receive(&[vm.peer.sge(HALF, GRH + LEN)]).unwrap();
        qp
    };
    let mut sender = mover.peer.qp(Transport::Ud);
    sender.activate(0, QKEY).unwrap();
    let (mut receiver, _stranger) = (attached(&member, 1), attached(&other, 2));
    let mut resting = mover.peer.device.pause().unwrap();
    let image = resting.image().unwrap();
    resting.go_on_at(there.socket("vm1"), &image).unwrap();
    drop(resting);
    // Until the administration has answered for it, what it sends gets nowhere.
    let to = AddressVector {
        lid: told,
        qpn: 0xff_ffff,
        qkey: QKEY,
        global: Some((group::gid(1), 0)),
        ..AddressVector::default()
    };
    let entry = loop {
        let send = SendRequest::send(Data::Inline(b"hello")).to(&to);
        mover.peer.execute(&mut sender, &send);
        if let Some(entry) = member.peer.cq.poll() {
            break entry;
        }
    };
    receiver.complete_receive(&entry);
    assert_eq!(entry.byte_count() as usize, GRH + 5);
    assert!(other.peer.cq.poll().is_none());
}

fn a_device_that_rested_goes_on_where_it_was(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    for seed in 0..3 {
        let mut resting = b.device.pause().unwrap();
        assert!(!resting.image().unwrap().is_empty());
        a.fill(0, 5000, seed);
        let from = [a.sge(0, 5000)];
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
        qa.post_send(&write).unwrap();
        // A command while it rests is one too many.
        assert!(resting.ring_commands().is_err());
        resting.resume().unwrap();
        assert!(a.sent(&mut qa).is_ok());
        b.verify(HALF, 5000, seed);
    }
}

/// A guest's kernel resets the function while it rests: it is as new, and works at once. Of what others have
/// sent to it meanwhile it gets nothing, and they are told.
fn a_function_level_reset_ends_a_rest(daemon: &Daemon) {
    let bystanders = Bystanders::start(daemon);
    let (mut a, mut b) = peers(daemon);
    for seed in 0..3 {
        let (to, from) = (a.config(Transport::Rc), b.config(Transport::Rc));
        let (mut qa, qb) = connected_by(&to, &from, &a, &b, |connection| {
            // 67 ms, once.
            (connection.ack_timeout, connection.retry_count) = (14, 0);
        });
        a.fill(0, 5000, seed);
        let from = [a.sge(0, 5000)];
        let write = SendRequest::write(b.remote(HALF), Data::Memory(&from));
        a.execute(&mut qa, &write);
        let mut resting = b.device.pause().unwrap();
        let image = resting.image().unwrap();
        assert!(!image.is_empty());
        qa.post_send(&write).unwrap();
        resting.reset_function().unwrap();
        assert_eq!(a.sent(&mut qa).syndrome(), Syndrome::RetryExceeded);
        let state = b.device.client().migration_state().unwrap();
        assert_eq!(state, MigrationState::Running);
        // Nobody's image is left to be read.
        assert!(b.device.client().read_image().is_err());
        let device = b.device.reopen(Options::default()).unwrap();
        drop((qb, std::mem::replace(&mut b, Peer::new(device))));
        a.write_to(&b);
        b.write_to(&a);
        b.device.pause().unwrap().resume().unwrap();
        a.write_to(&b);
    }
    bystanders.stop();
}

/// Where links are slow, an image waits for what is on its way to the device, and has it.
#[test]
fn what_is_on_its_way_is_in_the_image() {
    const QKEY: u32 = 0x1122_3344;
    let [here, there] = [(); 2].map(|()| Daemon::start("trap"));
    let (mut a, mut b) = peers(&here);
    let [mut qa, mut qb] = [&a, &b].map(|peer| {
        let qp = peer.qp(Transport::Ud);
        qp.activate(0, QKEY).unwrap();
        qp
    });
    qb.post_receive(&[b.sge(HALF, GRH + 64)]).unwrap();
    here.ask(&["link", "delay", "vm1:1", "300"]);
    let to = AddressVector {
        lid: b.port.lid,
        qpn: qb.number(),
        qkey: QKEY,
        ..AddressVector::default()
    };
    a.execute(&mut qa, &SendRequest::send(Data::Inline(b"late")).to(&to));
    let mut resting = b.device.pause().unwrap();
    let image = resting.image().unwrap();
    assert!(b.cq.poll().is_none());
    resting.go_on_at(there.socket("vm2"), &image).unwrap();
    drop(resting);
    let entry = b.cq.wait().unwrap();
    qb.complete_receive(&entry);
    assert_eq!(entry.byte_count() as usize, GRH + 4);
}

/// A monitor copies what it is told was written, and nothing else: the copy has it all.
fn what_the_device_has_written_is_logged(daemon: &Daemon) {
    let (mut a, b) = peers(daemon);
    let (mut qa, _qb) = connected(Transport::Rc, &a, &b);
    let pages = |from: usize, len: usize| {
        let first = (b.region.start() + from as u64) / 4096;
        let last = (b.region.start() + (from + len) as u64 - 1) / 4096;
        (first..=last).map(|page| page * 4096).collect::<Vec<u64>>()
    };
    let logged = |offset: usize| {
        let start = b.region.start();
        let mut client = b.device.client();
        let told = client.take_dirty_log(start & !4095, 2 * HALF as u64 + 4096);
        let told = told.unwrap();
        told.into_iter()
            .filter(|page| *page >= (start + offset as u64) & !4095)
            .collect::<Vec<u64>>()
    };
    let mut write = |offset: usize, len: usize| {
        let from = [a.sge(0, len)];
        let write = SendRequest::write(b.remote(offset), Data::Memory(&from));
        a.execute(&mut qa, &write);
    };
    write(HALF, 100_000);
    b.device.client().start_dirty_log().unwrap();
    assert!(logged(HALF).is_empty());
    write(HALF + 5000, 100_000);
    write(HALF + 3_000_000, 8);
    let expected = [pages(HALF + 5000, 100_000), pages(HALF + 3_000_000, 8)].concat();
    assert_eq!(logged(HALF), expected);
    assert!(logged(HALF).is_empty());
    // Whoever takes memory away is told of it, to the last write.
    write(HALF, 10_000);
    let (start, len) = (b.device.memory().iova(), b.device.memory().len());
    let mut client = b.device.client();
    let told = client.dma_unmap_written(start, len as u64).unwrap();
    let upper = (b.region.start() + HALF as u64) & !4095;
    let told = told.into_iter().filter(|page| *page >= upper);
    assert_eq!(told.collect::<Vec<_>>(), pages(HALF, 10_000));
    client.stop_dirty_log().unwrap();
    drop(client);
    // Without memory it answers no commands.
    b.device.reset().unwrap();
}

/// Images of others, and what is none: the daemon says why, the VF is as new, and nobody else notices.
#[test]
fn what_is_not_the_vfs_image_is_refused() {
    let daemon = Daemon::logging(
        Configuration::new()
            .set("log", "warn")
            .hypervisor("hv1", ["vm1", "vm2", "vm3"]),
    );
    let (mut a, b) = peers(&daemon);
    let image = a.device.pause().unwrap();
    let image = { image }.image().unwrap();
    let mut client = Client::connect(daemon.socket("vm3")).unwrap();
    let text = String::from_utf8(image).unwrap();
    for (wrong, why) in [
        (text.clone(), "which is at VF `vm1`"),
        (
            text[..text.len() / 2].to_owned(),
            "it is no image of a machine: EOF",
        ),
        (
            "{\"v2\":{}}".to_owned(),
            "unknown variant `v2`, expected `v1`",
        ),
        (
            text.replace("\"polled\":false", "\"polled\":true"),
            "doorbell pages",
        ),
    ] {
        client
            .set_migration_state(MigrationState::Resuming)
            .unwrap();
        client.write_image(wrong.as_bytes()).unwrap();
        assert!(client.set_migration_state(MigrationState::Running).is_err());
        daemon.await_log(why);
        client.device_reset().unwrap();
    }
    drop(client);
    // The one that still rests goes on.
    a.device
        .client()
        .set_migration_state(MigrationState::Running)
        .unwrap();
    a.write_to(&b);
    let mut c = Peer::open(&daemon, "vm3");
    c.write_to(&a);
}
