//! Functions that are saved and restored under their driver.

use super::guest::{Guest, INTERRUPTS, Pair, data, remote};
use crate::bits::capability::cmd_hca_cap as cap;
use crate::bits::command::{Opcode, Status, create_eq_in};
use crate::bits::queue_pair::qpc;
use crate::{Configuration, Doorbells, Region, TRAPPED_PAGES};

/// A guest whose function is another one, in another engine, after each access.
pub(super) fn moving() -> Guest {
    let mut guest = Guest::new();
    guest.moves = true;
    guest.initialize();
    guest
}

#[test]
fn a_driver_does_not_notice() {
    let mut pair = Pair::of(moving());
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.guest.memory.write(source, b"over the virtual wire");
    // The receive request comes when the message has waited for it.
    pair.guest
        .post_send(&mut pair.a, 0x0b, 0xcafe, &data(21, pair.key, source));
    assert_eq!(pair.cqe(0)[63], 0xf1);
    let mut arm = vec![0; 4];
    arm.extend(pair.cq.0.to_be_bytes());
    let _ = pair
        .guest
        .write(Region::Bar0, u64::from(pair.uar) * 4096 + 0x20, &arm);
    pair.guest
        .post_receive(&mut pair.b, &data(100, pair.key, target));
    for _ in 0..10_000 {
        while pair.guest.engine().run() {}
    }
    assert_eq!(
        &pair.guest.memory.read::<21>(target),
        b"over the virtual wire"
    );
    let event: [u8; 64] = pair.guest.memory.read(pair.eq.1);
    assert_eq!((event[1], crate::bits::dword(&event, 0x38)), (0, pair.cq.0));
    assert_eq!(pair.guest.raised.count(INTERRUPTS as u16), 1);
    // As many requests as the queue goes round, one after the other.
    for number in 0..40_u8 {
        pair.guest.memory.write(source, &[number; 64]);
        let segments = [remote(target, pair.key), data(64, pair.key, source)].concat();
        pair.guest.post_send(&mut pair.a, 0x08, 0, &segments);
        assert_eq!(pair.guest.memory.read::<64>(target), [number; 64]);
        let consumer = u32::from(number) + 3;
        pair.guest.memory.write32(pair.cq.2, consumer);
    }
    // The commands' queue, too.
    let pd = pair.guest.plain(Opcode::AllocPd, &[]).number();
    let ok = Some(Status::Ok);
    assert_eq!(pair.guest.plain(Opcode::DeallocPd, &[0, pd]).status(), ok);
    let (a, b, cq) = (pair.a.qpn, pair.b.qpn, pair.cq.0);
    for (opcode, number) in [
        (Opcode::DestroyQp, a),
        (Opcode::DestroyQp, b),
        (Opcode::DestroyCq, cq),
        (Opcode::DestroyEq, pair.eq.0),
        (Opcode::DeallocUar, pair.uar),
    ] {
        assert_eq!(
            pair.guest.plain(opcode, &[0, number]).status(),
            ok,
            "{opcode:?}"
        );
    }
}

const MESSAGE: &[u8; 21] = b"over the virtual wire";

/// A pair whose message waits for somebody to receive it.
fn waiting() -> (Pair, u64) {
    let mut pair = Pair::of(Guest::initialized());
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.guest.memory.write(source, MESSAGE);
    let segment = data(MESSAGE.len() as u32, pair.key, source);
    pair.guest.post_send(&mut pair.a, 0x0b, 0xcafe, &segment);
    assert_eq!(pair.cqe(0)[63], 0xf1);
    (pair, target)
}

/// This version restores an image of the first one, and the message arrives.
#[test]
fn a_stored_image_of_version_1_goes_on() {
    const STORED: &str = include_str!("images/function_v1.json");
    let (mut pair, target) = waiting();
    let image = serde_json::from_str(STORED).unwrap();
    pair.guest.function.restore(image).unwrap();
    // As it was saved, with the defaults of what later versions have added, and later timers.
    let again = serde_json::to_value(pair.guest.function.save()).unwrap();
    let stored: serde_json::Value = serde_json::from_str(STORED).unwrap();
    for part in ["config", "msix", "segment"] {
        assert_eq!(again["v1"][part], stored["v1"][part], "{part}");
    }
    let segment = data(100, pair.key, target);
    pair.guest.post_receive(&mut pair.b, &segment);
    for _ in 0..10_000 {
        while pair.guest.engine().run() {}
    }
    assert_eq!(&pair.guest.memory.read::<21>(target), MESSAGE);
    assert_ne!(pair.cqe(0)[63], 0xf1);
}

/// A driver that has been told of version 0 of completions has given no indices, and gives none in new contexts: the
/// field means nothing there.
#[test]
fn a_driver_from_before_user_indices_has_numbers() {
    let mut pair = Pair::new();
    assert_eq!(version(&mut pair), 1);
    let mut image = serde_json::to_value(pair.guest.function.save()).unwrap();
    let chosen = image["v1"].pointer_mut("/software/state/chosen").unwrap();
    chosen.as_object_mut().unwrap().remove("cqe_version");
    pair.guest.move_to(&image.to_string());
    assert_eq!(version(&mut pair), 0);
    let unread = |context: &mut [u8]| qpc::USER_INDEX.set(context, 5);
    let mut qps = [(); 2].map(|()| {
        pair.guest
            .create_rc_with(pair.pd, pair.cq.0, pair.uar, unread)
    });
    let [sender, receiver] = &mut qps;
    pair.guest.connect(sender, receiver);
    pair.guest.connect(receiver, sender);
    let memory = pair.guest.allocate(4096);
    let segment = data(8, pair.key, memory);
    pair.guest.post_receive(receiver, &segment);
    pair.guest.post_send(sender, 0x0a, 0, &segment);
    for at in 0..2 {
        assert_eq!(crate::bits::dword(&pair.cqe(at), 0x20), 0);
    }
}

fn version(pair: &mut Pair) -> u32 {
    let request = Guest::request(Opcode::QueryHcaCap, &[]);
    let mut request = request[..16].to_vec();
    create_eq_in::OP_MOD.set(&mut request, 1);
    let reply = pair.guest.command(&request, 272).reply;
    cap::CQE_VERSION.get(&reply[0x10..])
}

/// Where doorbells are memory, a request that was posted right before the move is known by its record
/// alone.
#[test]
fn what_was_posted_without_a_doorbell_is_found() {
    let mut guest = Guest::with(Configuration {
        doorbells: Doorbells::Poll,
        ..Configuration::default()
    });
    guest.initialize();
    // The first pages are trapped all the same.
    for _ in 0..TRAPPED_PAGES {
        guest.plain(Opcode::AllocUar, &[]).number();
    }
    let mut pair = Pair::of(guest);
    assert!(pair.uar >= TRAPPED_PAGES);
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    for number in 1..5_u8 {
        pair.guest.memory.write(source, &[number; 64]);
        let segments = [remote(target, pair.key), data(64, pair.key, source)].concat();
        pair.guest.enqueue(&mut pair.a, 0x08, 0, &segments);
        pair.guest.move_on();
        for _ in 0..1000 {
            pair.guest.engine().poll();
            while pair.guest.engine().run() {}
        }
        assert_eq!(pair.guest.memory.read::<64>(target), [number; 64]);
    }
}

#[test]
fn an_image_of_another_kind_of_function_is_refused() {
    let image = serde_json::to_string(&Pair::new().guest.function.save()).unwrap();
    let mut other = Guest::with(Configuration {
        vectors: 8,
        ..Configuration::default()
    });
    let error = other
        .function
        .restore(serde_json::from_str(&image).unwrap());
    assert_eq!(
        error.unwrap_err().to_string(),
        "the image is of a function with interrupt vectors: 32, and this one has 8; configure both alike"
    );
    let mut guest = Guest::new();
    for (what, with, expected) in [
        ("\"eqn\":1", "\"eqn\":0", "event queue 0 is there twice"),
        ("\"log_max_qp\":17", "\"log_max_qp\":20", "2^20 queue pairs"),
        (
            "\"uars\":[4]",
            "\"uars\":[4,4]",
            "doorbell page 4 is there twice",
        ),
        ("\"log_blocks\":4", "\"log_blocks\":31", "of 2^31"),
    ] {
        assert!(image.contains(what), "{what} is not in {image}");
        let changed = serde_json::from_str(&image.replace(what, with)).unwrap();
        let error = guest.function.restore(changed).unwrap_err().to_string();
        assert!(error.contains(expected), "{what}: {error}");
        let counts = guest.engine().vf(guest.vf).object_counts();
        assert!(counts.iter().all(|(_, count)| *count == 0));
    }
    guest
        .function
        .restore(serde_json::from_str(&image).unwrap())
        .unwrap();
}
