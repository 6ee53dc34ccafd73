//! The whole function, under a driver.

mod device_memory;
mod guest;
mod held;
mod hostile;
mod images;
mod likeness;
mod moderation;
mod network;
mod resource_dump;
mod shared;
mod tags;
mod user_contexts;

use std::sync::atomic::Ordering;

use guest::{Guest, INTERRUPTS, Pair, QUEUE, data, remote};

use vm_memory::{Bytes, VolatileSlice};
use wire::Qpn;

use crate::bits::command::{Opcode, Status, create_eq_in};
use crate::bits::memory_key::{create_mkey_in, mkc};
use crate::bits::queue_pair::{State, ads, create_qp_in, qpc, query_qp_out};
use crate::{Configuration, Effect, Region, TRAPPED_PAGES};

#[test]
fn a_driver_gets_from_power_on_to_objects() {
    let mut guest = Guest::new();
    assert_eq!(guest.read32(0x04) >> 16, 5);
    assert_eq!(
        guest.plain(Opcode::AllocPd, &[]).status(),
        Some(Status::BadSystemState)
    );
    assert_eq!(
        guest.plain(Opcode::EnableHca, &[]).status(),
        Some(Status::Ok)
    );
    assert_eq!(
        guest.plain(Opcode::AllocPd, &[]).status(),
        Some(Status::BadSystemState)
    );
    let issi = guest.plain(Opcode::QueryIssi, &[]);
    assert_eq!(crate::bits::dword(&issi.reply, 0x6c), 0b11);
    assert_eq!(
        crate::bits::dword(&guest.plain(Opcode::QueryPages, &[1]).reply, 0x0c),
        0
    );
    let caps = guest.command(&[1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 0x1010);
    assert_eq!(caps.status(), Some(Status::Ok));
    let caps = &caps.reply[0x10..];
    assert!(crate::bits::capability::cmd_hca_cap::XRC.is_set(caps));
    assert_eq!(
        crate::bits::capability::cmd_hca_cap::LOG_MAX_QP.get(caps),
        17
    );
    assert_eq!(guest.plain(Opcode::InitHca, &[]).status(), Some(Status::Ok));
    assert_eq!(
        guest.plain(Opcode::InitHca, &[]).status(),
        Some(Status::BadSystemState)
    );
    let pd = guest.plain(Opcode::AllocPd, &[]).number();
    assert_eq!(
        guest.plain(Opcode::DeallocPd, &[0, pd]).status(),
        Some(Status::Ok)
    );
    assert_eq!(
        guest.plain(Opcode::DeallocPd, &[0, pd]).status(),
        Some(Status::BadResource)
    );
    assert_eq!(
        guest.plain(Opcode::TeardownHca, &[]).status(),
        Some(Status::Ok)
    );
    assert_eq!(
        guest.plain(Opcode::AllocPd, &[]).status(),
        Some(Status::BadSystemState)
    );
    assert_eq!(
        guest.plain(Opcode::DisableHca, &[]).status(),
        Some(Status::Ok)
    );
}

#[test]
fn commands_complete_by_event_once_there_is_a_queue_for_them() {
    let mut guest = Guest::initialized();
    let uar = guest.plain(Opcode::AllocUar, &[]).number();
    let (eqn, ring) = guest.create_eq(0, 1 << 0x0a, uar);
    // Not the command that made the queue: its driver was looking.
    assert_eq!(guest.memory.read::<1>(ring + 63), [1]);
    guest.arm_eq(uar, eqn, 0);
    guest.plain(Opcode::AllocPd, &[]).number();
    let event: [u8; 64] = guest.memory.read(ring);
    assert_eq!((event[1], event[63]), (0x0a, 0));
    assert_eq!(crate::bits::dword(&event, 0x20), 1);
    assert_eq!(guest.raised.count(0), 1);
    assert_eq!(
        guest.plain(Opcode::DestroyEq, &[0, eqn]).status(),
        Some(Status::Ok)
    );
    assert_eq!(guest.memory.read::<1>(ring + 64 + 63), [1]);
}

#[test]
fn a_send_arrives_and_both_sides_complete() {
    let mut pair = Pair::new();
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    pair.guest.memory.write(source, b"over the virtual wire");
    pair.guest
        .post_receive(&mut pair.b, &data(100, pair.key, target));
    // Armed before anything completes.
    let mut arm = vec![0; 4];
    arm.extend(pair.cq.0.to_be_bytes());
    let _ = pair
        .guest
        .write(Region::Bar0, u64::from(pair.uar) * 4096 + 0x20, &arm);
    pair.guest
        .post_send(&mut pair.a, 0x0b, 0xcafe, &data(21, pair.key, source));
    assert_eq!(
        &pair.guest.memory.read::<21>(target),
        b"over the virtual wire"
    );
    let mut opcodes = [pair.cqe(0), pair.cqe(1)]
        .map(|cqe| (cqe[63] >> 4, crate::bits::dword(&cqe, 0x38) & 0xff_ffff));
    opcodes.sort_unstable();
    assert_eq!(opcodes, [(0, pair.a.qpn), (3, pair.b.qpn)]);
    assert_eq!(pair.cqe(2)[63], 0xf1);
    let event: [u8; 64] = pair.guest.memory.read(pair.eq.1);
    assert_eq!((event[1], crate::bits::dword(&event, 0x38)), (0, pair.cq.0));
    assert_eq!(pair.guest.raised.count(INTERRUPTS as u16), 1);
}

#[test]
fn a_queue_pair_whose_completions_would_have_another_clocks_time_is_refused() {
    let mut pair = Pair::new();
    let ring = pair.guest.allocate(4096);
    for (format, status) in [
        (0, Status::Ok),
        (1, Status::Ok),
        (2, Status::BadParameter),
        (3, Status::BadParameter),
    ] {
        let mut request = Guest::request(Opcode::CreateQp, &[ring]);
        let context = create_qp_in::QPC.get_mut(&mut request);
        qpc::PD.set(context, pair.pd);
        qpc::UAR_PAGE.set(context, pair.uar);
        qpc::CQN_SND.set(context, pair.cq.0);
        qpc::CQN_RCV.set(context, pair.cq.0);
        // ts_format, of which the device announces the first only.
        context[0x0b] |= format << 6;
        assert_eq!(pair.guest.command(&request, 16).status(), Some(status));
    }
}

#[test]
fn a_query_tells_what_a_queue_pair_is() {
    let mut pair = Pair::new();
    let target = pair.guest.allocate(4096);
    let segments = [remote(target, pair.key), data(8, pair.key, target + 64)].concat();
    for _ in 0..3 {
        pair.guest.post_send(&mut pair.a, 0x08, 0, &segments);
    }
    let mut request = vec![0; 16];
    create_eq_in::OPCODE.set(&mut request, u32::from(Opcode::QueryQp.code()));
    crate::command::NUMBER.set(&mut request, pair.a.qpn);
    let answer = pair.guest.command(&request, query_qp_out::SIZE);
    let context = query_qp_out::QPC.get(&answer.reply);
    let path = qpc::PRIMARY_ADDRESS_PATH.get(context);
    assert_eq!(qpc::STATE.get(context), State::ReadyToSend.code());
    assert_eq!(qpc::NEXT_SEND_PSN.get(context), 0x114);
    assert_eq!(qpc::REMOTE_QPN.get(context), pair.b.qpn);
    assert_eq!(
        (
            qpc::MTU.get(context),
            qpc::RNR_RETRY.get(context),
            qpc::RETRY_COUNT.get(context)
        ),
        (5, 6, 7)
    );
    assert_eq!(
        (
            ads::RLID.get(path),
            ads::SL.get(path),
            ads::ACK_TIMEOUT.get(path)
        ),
        (5, 3, 14)
    );
    assert_eq!(ads::VHCA_PORT_NUM.get(path), 1);
    assert_eq!(qpc::HW_SQ_WQEBB_COUNTER.get(context), 3);
    assert_eq!(
        pair.guest.modify(Opcode::Rtr2Rts, pair.a.qpn, |_| ()),
        Some(Status::BadQpState)
    );
    assert_eq!(
        pair.guest.modify(Opcode::ToRst, pair.a.qpn, |_| ()),
        Some(Status::Ok)
    );
    let answer = pair.guest.command(&request, query_qp_out::SIZE);
    assert_eq!(
        qpc::STATE.get(query_qp_out::QPC.get(&answer.reply)),
        State::Reset.code()
    );
}

#[test]
fn a_key_registered_by_a_work_request_is_usable_and_revocable() {
    let mut pair = Pair::new();
    let buffer = pair.guest.allocate(8192);
    // A free key with room for two octwords of pages.
    let mut request = Guest::request(Opcode::CreateMkey, &[]);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut request);
    mkc::FREE.set(context, 1);
    mkc::UMR_EN.set(context, 1);
    mkc::ACCESS_MODE_1_0.set(context, 1);
    mkc::QPN.set(context, 0xff_ffff);
    mkc::PD.set(context, pair.pd);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 8);
    mkc::LOG_PAGE_SIZE.set(context, 12);
    let key = pair.guest.command(&request, 16).number() << 8;
    // Pages in the order opposite to that of the memory.
    let list = pair.guest.allocate(4096);
    pair.guest
        .memory
        .write(list, &((buffer + 4096) | 3).to_be_bytes());
    let second = (buffer | 3).to_be_bytes();
    pair.guest.memory.write(list + 8, &second);
    let mut update = vec![0; 48 + 64];
    update[0] = 0x20;
    update[4..6].copy_from_slice(&4_u16.to_be_bytes());
    update[8..16].copy_from_slice(&0x203e_20c3_u64.to_be_bytes());
    let context = &mut update[48..];
    mkc::LR.set(context, 1);
    mkc::LW.set(context, 1);
    mkc::RW.set(context, 1);
    mkc::PD.set(context, pair.pd);
    mkc::START_ADDR.set(context, 0x7000_0000);
    mkc::LEN.set(context, 8192);
    mkc::LOG_PAGE_SIZE.set(context, 12);
    update.extend(data(64, pair.key, list));
    pair.guest.post_send(&mut pair.a, 0x25, key, &update);
    assert_eq!(pair.cqe(0)[63] >> 4, 0, "{:02x?}", pair.cqe(0));
    let source = pair.guest.allocate(4096);
    pair.guest.memory.write(source, b"twisted!");
    pair.guest.post_send(
        &mut pair.a,
        0x08,
        0,
        &[remote(0x7000_0000 + 4092, key), data(8, pair.key, source)].concat(),
    );
    assert_eq!(pair.cqe(1)[63] >> 4, 0);
    assert_eq!(&pair.guest.memory.read::<4>(buffer + 8188), b"twis");
    assert_eq!(&pair.guest.memory.read::<4>(buffer), b"ted!");
    // Revoked, it is refused at the responder.
    let mut revoke = vec![0; 48 + 64];
    revoke[0] = 0x80;
    revoke[8..16].copy_from_slice(&(1_u64 << 29).to_be_bytes());
    mkc::FREE.set(&mut revoke[48..], 1);
    pair.guest.post_send(&mut pair.a, 0x25, key, &revoke);
    assert_eq!(pair.cqe(2)[63] >> 4, 0);
    pair.guest.post_send(
        &mut pair.a,
        0x08,
        0,
        &[remote(0x7000_0000, key), data(8, pair.key, source)].concat(),
    );
    let failed = pair.cqe(3);
    assert_eq!((failed[63] >> 4, failed[0x37]), (13, 0x13));
}

#[test]
fn a_port_answers_for_itself_only() {
    let mut guest = Guest::initialized();
    let mut request = vec![0; 16];
    create_eq_in::OPCODE.set(&mut request, u32::from(Opcode::QueryHcaVportContext.code()));
    let answer = guest.command(&request, 0x210);
    assert_eq!(crate::bits::dword(&answer.reply, 0x10 + 0x60) >> 16, 5);
    request[8] = 0x80;
    assert_eq!(
        guest.command(&request, 0x210).status(),
        Some(Status::BadParameter)
    );
    let pkeys = guest.plain(Opcode::QueryHcaVportPkey, &[0, 0, 0xffff]);
    assert_eq!(crate::bits::dword(&pkeys.reply, 0x10), 0xffff);
    assert_eq!(
        guest
            .plain(Opcode::QueryHcaVportPkey, &[0, 0, 128])
            .status(),
        Some(Status::BadIndex)
    );
    assert_eq!(
        guest.plain(Opcode::QueryHcaVportGid, &[0, 0, 8]).status(),
        Some(Status::BadIndex)
    );
    let unused = guest.plain(Opcode::QueryHcaVportGid, &[0, 0, 7]);
    assert_eq!(crate::bits::dword(&unused.reply, 0x10), 0xfe80_0000);
    assert_eq!(unused.reply[0x18..0x20], [0; 8]);
    let speed = guest.plain(Opcode::AccessReg, &[1, 0x5004]);
    assert_eq!(crate::bits::dword(&speed.reply, 0x10 + 0x28), 4 << 16 | 32);
    assert_eq!(
        guest.plain(Opcode::AccessReg, &[1, 0x1234]).status(),
        Some(Status::BadParameter)
    );
    // Capability bits, of which some are the guest's.
    let mut modify = vec![0; 0x210];
    create_eq_in::OPCODE.set(&mut modify, u32::from(Opcode::ModifyHcaVportContext.code()));
    modify[0x10 + 0x40..0x10 + 0x48].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    assert_eq!(guest.command(&modify, 16).status(), Some(Status::Ok));
    assert_eq!(guest.capability_bits.load(Ordering::Relaxed), 0x1_0000);
    modify[0x10 + 0x44] = 0x80;
    assert_eq!(
        guest.command(&modify, 16).status(),
        Some(Status::BadParameter)
    );
}

#[test]
fn management_datagrams_are_answered_or_refused() {
    let mut guest = Guest::initialized();
    let mut request = vec![0; 0x110];
    create_eq_in::OPCODE.set(&mut request, u32::from(Opcode::MadIfc.code()));
    request[0x13] = 1;
    let answer = guest.command(&request, 0x110);
    assert_eq!(
        (answer.status(), answer.reply[0x13]),
        (Some(Status::Ok), 0x81)
    );
    request[0x13] = 7;
    assert_eq!(guest.command(&request, 0x110).status(), Some(Status::Ok));
    request[0x13] = 9;
    assert_eq!(
        guest.command(&request, 0x110).status(),
        Some(Status::BadParameter)
    );
}

#[test]
fn a_reset_forgets_everything() {
    let mut pair = Pair::new();
    let effect = pair
        .guest
        .write(Region::Bar0, 0x14, &0x0000_1100_u32.to_be_bytes());
    assert_eq!(effect, Effect::Reset);
    assert!(
        pair.guest
            .engine()
            .vf(pair.guest.vf)
            .object_counts()
            .iter()
            .all(|&(_, count)| count == 0)
    );
    // And the driver may begin again.
    pair.guest.write32(0x14, QUEUE as u32);
    pair.guest.initialize();
    assert_eq!(
        pair.guest.plain(Opcode::AllocUar, &[]).number(),
        crate::bits::initialization::FIRST_UAR
    );
}

#[test]
fn a_function_level_reset_shows_and_stops_commands_until_there_is_a_queue() {
    for reset in [
        |guest: &mut Guest| guest.write(Region::Config, 0x59, &[0x80]),
        |guest: &mut Guest| {
            guest.reset();
            Effect::Reset
        },
    ] {
        let mut guest = Pair::new().guest;
        assert_eq!(guest.read32(0x14), QUEUE as u32 | 0x46);
        assert_eq!(reset(&mut guest), Effect::Reset);
        assert_eq!(guest.read32(0x14), 1 << 8 | 0x46);
        // A driver that knows nothing of it: neither at its queue, nor where a
        // queue at address 0 would be.
        guest.post(&[0x01, 0x04, 0, 0], 16);
        let entry = guest.memory.read::<64>(QUEUE);
        guest.memory.write(0, &entry);
        guest.write32(0x18, u32::MAX);
        assert_eq!(guest.memory.read::<64>(QUEUE), entry);
        assert_eq!(guest.memory.read::<64>(0), entry);
        // It looks, and begins again.
        guest.write32(0x10, 0);
        guest.write32(0x14, QUEUE as u32);
        assert_eq!(guest.read32(0x14), QUEUE as u32 | 0x46);
        guest.initialize();
    }
}

#[test]
fn a_polled_function_maps_what_it_does_not_trap() {
    let configuration = Configuration {
        doorbells: crate::Doorbells::Poll,
        ..Configuration::default()
    };
    let (start, len) = configuration.mapped_area().unwrap();
    assert_eq!(
        (start, start + len),
        (u64::from(TRAPPED_PAGES) * 4096, configuration.bar_size)
    );
    let (memory, len) = configuration.device_memory_area().unwrap();
    assert_eq!(configuration.doorbell_area(), Some((start, memory - start)));
    // One that traps has nothing mapped, so that its doorbells wait for no answer.
    let trapped = Configuration::default();
    assert_eq!(trapped.device_memory_area(), Some((memory, len)));
    assert_eq!(trapped.mapped_area(), None);
    assert_eq!(trapped.doorbell_area(), None);
    let mut guest = Guest::with(configuration);
    guest.initialize();
    let kernel = guest.plain(Opcode::AllocUar, &[]).number();
    let program = guest.plain(Opcode::AllocUar, &[]).number();
    assert!(configuration.traps(kernel) && !configuration.traps(program));
}

/// The first doorbell after a reset may be the last one before it, and no doorbell is missed.
#[test]
fn a_queue_pair_that_was_reset_rings_as_before() {
    let mut guest = Guest::with(Configuration {
        doorbells: crate::Doorbells::Poll,
        ..Configuration::default()
    });
    guest.initialize();
    let kernel = guest.plain(Opcode::AllocUar, &[]).number();
    let program = guest.plain(Opcode::AllocUar, &[]).number();
    let pd = guest.plain(Opcode::AllocPd, &[]).number();
    let (eqn, _) = guest.create_eq(1, 0, kernel);
    let (cqn, ..) = guest.create_cq(eqn, kernel);
    let qp = guest.create_rc(pd, cqn, program);
    let mut pages = vec![0_u8; 16 * 4096];
    let area = VolatileSlice::from(&mut pages[..]);
    let at = (program - TRAPPED_PAGES) as usize * 4096 + 0x800;
    let word = [[0, 0, 0, 0x0a], (qp.qpn << 8 | 3).to_be_bytes()].concat();
    for _ in 0..2 {
        guest.connect(&qp, &qp);
        let vf = guest.vf;
        let look = |guest: &Guest| guest.engine().vf_mut(vf).face_mut().0.next_rung(&area);
        while look(&guest).is_some() {}
        area.write_slice(&word, at).unwrap();
        let found: Vec<_> = (0..8).filter_map(|_| look(&guest)).collect();
        assert_eq!(found, [Qpn::new(qp.qpn)]);
        let reset = guest.modify(Opcode::ToRst, qp.qpn, |_| ());
        assert_eq!(reset, Some(Status::Ok));
    }
}

/// A whole request behind its doorbell, as BlueFlame has it, in stores of eight bytes or of four.
#[test]
fn doorbells_come_whole_or_in_halves() {
    let mut pair = Pair::new();
    let page = u64::from(pair.uar) * 4096;
    let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
    let rounds = [(0x800, 8), (0x900, 4), (0x800, 4), (0xf00, 8), (0x900, 4)];
    for (round, (register, size)) in (1_u64..).zip(rounds) {
        pair.guest.memory.write(source, &round.to_be_bytes());
        let write = [remote(target, pair.key), data(8, pair.key, source)].concat();
        let word = pair.guest.enqueue(&mut pair.a, 0x08, 0, &write);
        // What looks like a doorbell of the queue pair, before and behind.
        for (at, dword) in [(8, 4), (0x7f8, 4)] {
            let _ = pair.guest.write(Region::Bar0, page + at, &word);
            let _ = pair
                .guest
                .write(Region::Bar0, page + at + dword, &word[4..]);
        }
        let mut written = 0;
        for part in [&word[..], &[0; 8], &word, &word].concat().chunks(size) {
            let at = page + register + written as u64;
            let _ = pair.guest.write(Region::Bar0, at, part);
            written += size;
            let done = u64::from_be_bytes(pair.guest.memory.read(target));
            assert_eq!(
                done == round,
                written >= 8,
                "{register:#x} {size} {written}"
            );
        }
    }
    // A VM that moves between two stores.
    pair.guest.memory.write(source, b"moved on");
    let write = [remote(target, pair.key), data(8, pair.key, source)].concat();
    let word = pair.guest.enqueue(&mut pair.a, 0x08, 0, &write);
    let _ = pair.guest.write(Region::Bar0, page + 0x800, &word[..4]);
    let image = serde_json::to_string(&pair.guest.function.save()).unwrap();
    assert!(image.contains(r#""halves":[{"#), "{image}");
    pair.guest.move_to(&image);
    let _ = pair.guest.write(Region::Bar0, page + 0x804, &word[4..]);
    assert_eq!(pair.guest.memory.read::<8>(target), *b"moved on");
}

#[test]
fn connections_are_armed_and_migrate() {
    let mut guest = Guest::initialized();
    let uar = guest.plain(Opcode::AllocUar, &[]).number();
    let pd = guest.plain(Opcode::AllocPd, &[]).number();
    let (eqn, _) = guest.create_eq(1, 0, uar);
    let (cqn, ..) = guest.create_cq(eqn, uar);
    let (a, b) = (guest.create_rc(pd, cqn, uar), guest.create_rc(pd, cqn, uar));
    guest.connect(&a, &b);
    guest.moves = true;
    const ALTERNATE_PATH: u32 = 1 << 0;
    const MIGRATION_STATE: u32 = 1 << 10;
    let (armed, rearm, migrated) = (0, 1, 3);
    let modify = |guest: &mut Guest, mask, migration| {
        let mut request = Guest::request(Opcode::Rts2Rts, &[]);
        crate::command::NUMBER.set(&mut request, a.qpn);
        create_qp_in::OPT_PARAM_MASK.set(&mut request, mask);
        let context = create_qp_in::QPC.get_mut(&mut request);
        qpc::PM_STATE.set(context, migration);
        let path = qpc::SECONDARY_ADDRESS_PATH.get_mut(context);
        ads::RLID.set(path, 9);
        ads::SL.set(path, 2);
        ads::ACK_TIMEOUT.set(path, 17);
        guest.command(&request, 16).status()
    };
    // State, and where the first path leads, by what service level, and for how long it is waited.
    let shown = |guest: &mut Guest| {
        let mut query = Guest::request(Opcode::QueryQp, &[]);
        crate::command::NUMBER.set(&mut query, a.qpn);
        let reply = guest.command(&query, query_qp_out::SIZE).reply;
        let context = query_qp_out::QPC.get(&reply);
        let path = qpc::PRIMARY_ADDRESS_PATH.get(context);
        [
            qpc::PM_STATE.get(context),
            ads::RLID.get(path),
            ads::SL.get(path),
            ads::ACK_TIMEOUT.get(path),
        ]
    };
    let before = shown(&mut guest);
    assert_eq!(before[0], migrated);
    // Nothing to arm it with; no such state; nothing to do.
    for (mask, state, answer) in [
        (MIGRATION_STATE, armed, Status::BadParameter),
        (MIGRATION_STATE, rearm, Status::BadParameter),
        (MIGRATION_STATE | ALTERNATE_PATH, 2, Status::BadParameter),
        (MIGRATION_STATE, migrated, Status::Ok),
        (0, rearm, Status::Ok),
    ] {
        assert_eq!(modify(&mut guest, mask, state), Some(answer), "{state}");
        assert_eq!(shown(&mut guest), before);
    }
    let armed_by = modify(&mut guest, ALTERNATE_PATH | MIGRATION_STATE, rearm);
    assert_eq!(armed_by, Some(Status::Ok));
    assert_eq!(shown(&mut guest), [armed, before[1], before[2], before[3]]);
    let told = modify(&mut guest, MIGRATION_STATE, migrated);
    assert_eq!(told, Some(Status::Ok));
    assert_eq!(shown(&mut guest), [migrated, 9, 2, 17]);
}
