//! The whole function, under drivers that mean it ill.

use proptest::prelude::*;

use super::guest::{Guest, MAILBOXES, Pair, QUEUE, data};
use crate::Region;
use crate::bits::command::{Opcode, Status, create_eq_in};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::event::eqc;
use crate::bits::memory_key::{create_mkey_in, mkc};
use crate::bits::queue_pair::{create_qp_in, qpc};
use crate::bits::shared_receive::{create_srq_in, srqc};

#[test]
fn chains_that_loop_or_lead_nowhere_are_delivery_errors() {
    let mut guest = Guest::initialized();
    let request = Guest::request(Opcode::CreateCq, &[0x1000; 400]);
    // Back to its first block.
    guest.post(&request, 16);
    guest
        .memory
        .write(MAILBOXES + 0x230, &MAILBOXES.to_be_bytes());
    assert_eq!(guest.ring(), 0x03);
    // Out of memory, misaligned, all ones.
    for (next, delivery) in [
        (1 << 40, 0x05),
        (MAILBOXES + 8, 0x05),
        (u64::MAX, 0x05),
        (!0x3ff, 0x05),
    ] {
        guest.post(&request, 16);
        guest.memory.write(MAILBOXES + 0x230, &next.to_be_bytes());
        assert_eq!(guest.ring(), delivery, "{next:#x}");
    }
    guest.post(&request, 16);
    guest.memory.write(MAILBOXES + 1024 + 0x23d, &[0x33]);
    assert_eq!(guest.ring(), 0x02);
    // Lengths that nobody needs are not allocated.
    for (at, delivery) in [(0x04, 0x07), (0x38, 0x08)] {
        guest.post(&request, 16);
        guest.memory.write32(QUEUE + at, u32::MAX);
        assert_eq!(guest.ring(), delivery);
    }
    guest.post(&request, 4096);
    guest
        .memory
        .write(QUEUE + 0x30, &(1_u64 << 40).to_be_bytes());
    assert_eq!(guest.ring(), 0x04);
    guest.post(&request, 16);
    guest.memory.write(QUEUE, &[6]);
    assert_eq!(guest.ring(), 0x10);
    // A queue that is nowhere does no harm.
    guest.write32(0x10, 0xffff_ffff);
    guest.write32(0x18, u32::MAX);
}

#[test]
fn unknown_commands_are_told_so() {
    let mut guest = Guest::initialized();
    let answer = guest.command(&[0x0f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 16);
    assert_eq!(answer.status(), Some(Status::BadOperation));
    assert_eq!(guest.command(&[], 16).status(), Some(Status::BadOperation));
    assert_eq!(guest.command(&[0x05], 4).delivery, 0);
}

#[test]
fn commands_that_fail_leave_nothing_behind() {
    let mut guest = Guest::initialized();
    let before = guest.engine().vf(guest.vf).object_counts();
    for _ in 0..1000 {
        // A queue without its event queue, a queue pair without its domain, a
        // key without its list.
        let mut cq = Guest::request(Opcode::CreateCq, &[0x1000; 16]);
        cqc::C_EQN_OR_APU_ELEMENT.set(create_cq_in::CQ_CONTEXT.get_mut(&mut cq), 9);
        assert_eq!(guest.command(&cq, 16).status(), Some(Status::BadResource));
        let qp = Guest::request(Opcode::CreateQp, &[0x1000; 16]);
        assert_eq!(guest.command(&qp, 16).status(), Some(Status::BadResource));
        let mut key = Guest::request(Opcode::CreateMkey, &[]);
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut key, u32::MAX);
        assert_eq!(
            guest.command(&key, 16).status(),
            Some(Status::BadInputLength)
        );
    }
    assert_eq!(guest.engine().vf(guest.vf).object_counts(), before);
    // Doorbell pages end, and come back.
    let mut pages = Vec::new();
    loop {
        let answer = guest.plain(Opcode::AllocUar, &[]);
        match answer.status() {
            Some(Status::Ok) => pages.push(answer.number()),
            status => {
                assert_eq!(status, Some(Status::NoResources));
                break;
            }
        }
    }
    // The last ones are the memory of the device.
    assert_eq!(pages.len(), 2048 - 64 - 4);
    assert_eq!(
        guest.plain(Opcode::DeallocUar, &[0, pages[7]]).status(),
        Some(Status::Ok)
    );
    assert_eq!(guest.plain(Opcode::AllocUar, &[]).number(), pages[7]);
}

#[test]
fn page_lists_shorter_than_their_queue_are_refused() {
    let mut guest = Guest::initialized();
    let uar = guest.plain(Opcode::AllocUar, &[]).number();
    let (eqn, _) = guest.create_eq(0, 0, uar);
    for log_size in 0..32 {
        let mut request = Guest::request(Opcode::CreateCq, &[0x1000]);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut request);
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
        let expected = match log_size {
            0..=6 => Status::Ok,
            7..=20 => Status::BadInputLength,
            _ => Status::ExceededLimits,
        };
        assert_eq!(
            guest.command(&request, 16).status(),
            Some(expected),
            "{log_size}"
        );
    }
}

#[test]
fn every_offset_and_size_is_answered() {
    let mut guest = Guest::initialized();
    for region in [Region::Bar0, Region::Bar2, Region::Config] {
        let size = guest.function.region_size(region);
        let interesting = (0..0x2100)
            .chain(0x3ff0..0x4060)
            .chain(0x4700..0x4900)
            .chain(size - 16..size + 16);
        for offset in interesting.chain([u64::MAX - 7, u64::MAX]) {
            for len in [1, 2, 4, 8, 3, 64] {
                let mut data = vec![0; len];
                guest.function.read(region, offset, &mut data);
                let _ = guest.write(region, offset, &vec![0xff; len]);
                let _ = guest.write(region, offset, &vec![0; len]);
            }
        }
    }
}

/// Opcodes that change something, for sequences of nonsense.
fn opcodes() -> impl Strategy<Value = u16> {
    prop_oneof![
        8 => prop::sample::select(vec![
            0x200_u16, 0x201, 0x202, 0x205, 0x206, 0x301, 0x302, 0x303, 0x400, 0x401, 0x402, 0x403, 0x500, 0x501, 0x502, 0x503,
            0x504, 0x505, 0x506, 0x507, 0x50a, 0x50b, 0x50c, 0x50d, 0x50e, 0x700, 0x701, 0x702, 0x703, 0x762, 0x763,
            0x764, 0x765, 0x800, 0x801, 0x802, 0x803, 0x805, 0x806, 0x807, 0x80e, 0x80f, 0x109, 0x100,
        ]),
        1 => any::<u16>(),
    ]
}

/// Requests of sparse bytes: small numbers that may name something, among
/// zeros, with noise in between.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let sparse = |byte: u8| match byte {
        0..=159 => 0,
        160..=223 => byte & 7,
        _ => byte,
    };
    (opcodes(), prop::collection::vec(any::<u8>(), 14..0x300)).prop_map(move |(opcode, rest)| {
        let mut request = opcode.to_be_bytes().to_vec();
        request.extend(rest.into_iter().map(sparse));
        request
    })
}

impl Pair {
    /// Requests that create one object each, all of them good.
    fn templates(&self) -> [Vec<u8>; 5] {
        let mut eq = Guest::request(Opcode::CreateEq, &[0x50_0000]);
        eqc::LOG_EQ_SIZE.set(create_eq_in::EQ_CONTEXT_ENTRY.get_mut(&mut eq), 6);
        let mut cq = Guest::request(Opcode::CreateCq, &[0x50_0000]);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut cq);
        cqc::LOG_CQ_SIZE.set(context, 6);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, self.eq.0);
        cqc::DBR_ADDR.set(context, 0x51_0000);
        let mut srq = Guest::request(Opcode::CreateSrq, &[0x50_0000]);
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut srq);
        srqc::LOG_SRQ_SIZE.set(context, 4);
        srqc::LOG_RQ_STRIDE.set(context, 2);
        srqc::PD.set(context, self.pd);
        srqc::DBR_ADDR.set(context, 0x51_0040);
        let mut key = Guest::request(
            Opcode::CreateMkey,
            &[0x50_0000, 0x50_1000, 0x50_2000, 0x50_3000],
        );
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut key, 2);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut key);
        mkc::ACCESS_MODE_1_0.set(context, 1);
        mkc::LW.set(context, 1);
        mkc::LOG_PAGE_SIZE.set(context, 12);
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 2);
        mkc::LEN.set(context, 0x4000);
        mkc::PD.set(context, self.pd);
        let mut qp = Guest::request(Opcode::CreateQp, &[0x50_0000]);
        let context = create_qp_in::QPC.get_mut(&mut qp);
        qpc::PD.set(context, self.pd);
        qpc::LOG_RQ_SIZE.set(context, 4);
        qpc::LOG_SQ_SIZE.set(context, 4);
        qpc::UAR_PAGE.set(context, self.uar);
        qpc::CQN_SND.set(context, self.cq.0);
        qpc::CQN_RCV.set(context, self.cq.0);
        qpc::DBR_ADDR.set(context, 0x51_0080);
        [eq, cq, srq, key, qp]
    }
}

#[test]
fn the_templates_are_good_as_they_stand() {
    let mut pair = Pair::new();
    for template in pair.templates() {
        assert_eq!(
            pair.guest.command(&template, 16).status(),
            Some(Status::Ok),
            "{:02x?}",
            &template[..2]
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn objects_that_are_almost_good_harm_nobody(
        which in 0..5_usize,
        damage in prop::collection::vec((16..0x130_usize, any::<u8>()), 0..4),
        steps in prop::collection::vec((16..0x100_usize, any::<u8>()), 3),
        counts in any::<[u32; 2]>(),
        noise in prop::collection::vec(any::<u8>(), 1024),
    ) {
        let mut pair = Pair::new();
        let mut request = pair.templates()[which].clone();
        for (at, value) in damage {
            if let Some(byte) = request.get_mut(at) {
                *byte = value;
            }
        }
        pair.guest.memory.write(0x50_0000, &noise);
        for (at, count) in counts.into_iter().enumerate() {
            pair.guest.memory.write32(0x51_0080 + at as u64 * 4, count);
        }
        let answer = pair.guest.command(&request, 16);
        if which == 4 && answer.status() == Some(Status::Ok) {
            let qpn = answer.number();
            for (opcode, (at, value)) in [Opcode::Rst2Init, Opcode::Init2Rtr, Opcode::Rtr2Rts].into_iter().zip(steps) {
                pair.guest.modify(opcode, qpn, |context| {
                    qpc::MTU.set(context, 5);
                    if let Some(byte) = context.get_mut(at) {
                        *byte = value;
                    }
                });
            }
            let word = [[0; 4], (qpn << 8).to_be_bytes()].concat();
            let _ = pair.guest.write(Region::Bar0, u64::from(pair.uar) * 4096 + 0x800, &word);
            let _ = pair.guest.modify(Opcode::ToErr, qpn, |_| ());
        }
        let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
        pair.guest.memory.write(source, b"unharmed");
        let key = pair.key;
        pair.guest.post_receive(&mut pair.b, &data(8, key, target));
        pair.guest.post_send(&mut pair.a, 0x0a, 0, &data(8, key, source));
        prop_assert_eq!(&pair.guest.memory.read::<8>(target), b"unharmed");
    }

    #[test]
    fn garbage_commands_harm_nobody(requests in prop::collection::vec(requests(), 1..60)) {
        let mut pair = Pair::new();
        for request in requests {
            let answer = pair.guest.command(&request, 0x200);
            prop_assert_eq!(answer.delivery, 0);
        }
        // Whatever became of the objects, the device still answers.
        pair.guest.plain(Opcode::DisableHca, &[]);
        pair.guest.initialize();
        pair.guest.plain(Opcode::AllocPd, &[]).number();
    }

    #[test]
    fn garbage_requests_harm_their_queue_pair_only(
        requests in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 48)), 1..16),
    ) {
        let mut pair = Pair::new();
        let mut other = pair.guest.create_rc(pair.pd, pair.cq.0, pair.uar);
        let mut peer = pair.guest.create_rc(pair.pd, pair.cq.0, pair.uar);
        pair.guest.connect(&other, &peer);
        pair.guest.connect(&peer, &other);
        for (opcode, segments) in requests {
            pair.guest.post_send(&mut pair.a, opcode % 0x28, 0, &segments);
        }
        let (source, target) = (pair.guest.allocate(4096), pair.guest.allocate(4096));
        pair.guest.memory.write(source, b"unharmed");
        pair.guest.post_receive(&mut peer, &data(8, pair.key, target));
        pair.guest.post_send(&mut other, 0x0a, 0, &data(8, pair.key, source));
        prop_assert_eq!(&pair.guest.memory.read::<8>(target), b"unharmed");
    }
}
