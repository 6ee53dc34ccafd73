//! Objects that a driver cannot have, and invalid images.

use proptest::prelude::*;

use super::*;

#[test]
fn what_there_is_not_is_refused() {
    let mut it = Interface::new(false);
    let invalid = Some(Status::BadParameter);
    let missing = Some(Status::BadResource);
    let changed = |mut request: Vec<u8>, field: Field, at: usize, value: u32| {
        field.set(&mut request[at..], value);
        request
    };
    let table = it.table;
    let [tcp, all] = it.groups;
    let [spread, _] = it.tirs;
    let entry = |index, to| Interface::entry(table, tcp, index, (0x86dd, 6), to);
    let length = Some(Status::BadInputLength);
    let tir = it.tir(1, 0, it.rqt);
    let rqt = it.rqt(Op::CreateRqt, 0, &[it.rqs[0].number]);
    for (number, (request, status)) in [
        // Packets that go around, or to what is not there.
        (entry(1, (1, table)), invalid),
        (entry(1, (2, 0x1234)), missing),
        (entry(1, (1, 0x1234)), missing),
        (entry(1, (3, spread)), invalid),
        // Places that are taken, or of another group.
        (entry(0, (2, spread)), invalid),
        (entry(4, (2, spread)), invalid),
        (entry(0xffff_ffff, (2, spread)), invalid),
        (
            Interface::entry(table, all + 7, 1, (0, 0), (2, spread)),
            invalid,
        ),
        (
            changed(entry(1, (2, spread)), create_eq_in::OP_MOD, 0, 1),
            invalid,
        ),
        // Fields that are not matched.
        (
            changed(entry(1, (2, spread)), Field::new(0x84, 31, 31), 0, 1),
            invalid,
        ),
        (
            changed(
                Interface::group(table, [5, 6], true),
                Field::new(0x40, 31, 31),
                0,
                1,
            ),
            invalid,
        ),
        (
            changed(
                Interface::group(table, [5, 6], true),
                create_flow_group_in::MATCH_CRITERIA_ENABLE,
                0,
                2,
            ),
            invalid,
        ),
        // Groups that overlap, or do not fit.
        (Interface::group(table, [3, 5], true), invalid),
        (Interface::group(table, [6, 5], true), invalid),
        (Interface::group(table, [5, 8], true), invalid),
        (Interface::group(0x1234, [5, 6], true), missing),
        // Tables that are too large, or not of what is received.
        (
            Interface::flow_table(1, 8, None),
            Some(Status::ExceededLimits),
        ),
        (Interface::flow_table(7, 1, Some(table)), invalid),
        (Interface::flow_table(1, 1, Some(0x1234)), missing),
        (
            changed(
                Interface::flow_table(1, 1, None),
                create_flow_table_in::TABLE_TYPE,
                0,
                1,
            ),
            invalid,
        ),
        (
            changed(
                Interface::flow_table(1, 1, None),
                create_flow_table_in::OTHER_VPORT,
                0,
                1,
            ),
            invalid,
        ),
        (it.root(0x1234, false), missing),
        (
            changed(
                it.root(table, false),
                set_flow_table_root_in::UNDERLAY_QPN,
                0,
                it.sq.number,
            ),
            missing,
        ),
        // Lists of queues that are too long, empty, or not there.
        (changed(rqt.clone(), rqtc::RQT_ACTUAL_SIZE, 0x20, 2), length),
        (
            changed(rqt.clone(), rqtc::RQT_ACTUAL_SIZE, 0x20, 0xffff),
            length,
        ),
        (
            changed(rqt.clone(), rqtc::RQT_ACTUAL_SIZE, 0x20, 0),
            invalid,
        ),
        (
            changed(rqt.clone(), rqtc::RQT_MAX_SIZE, 0x20, 0xffff),
            invalid,
        ),
        (it.rqt(Op::CreateRqt, 0, &[it.sq.number]), missing),
        (it.rqt(Op::ModifyRqt, it.rqt, &[it.sq.number]), missing),
        (it.rqt(Op::ModifyRqt, 0x1234, &[it.rqs[0].number]), missing),
        (
            changed(tir.clone(), tirc::TRANSPORT_DOMAIN, 0x20, 0x1234),
            missing,
        ),
        (
            changed(tir.clone(), tirc::INDIRECT_TABLE, 0x20, 0x1234),
            missing,
        ),
        (changed(tir.clone(), tirc::DISP_TYPE, 0x20, 2), invalid),
        (changed(tir.clone(), tirc::RX_HASH_FN, 0x20, 3), invalid),
        (
            changed(tir.clone(), tirc::PACKET_MERGE_MASK, 0x20, 1),
            invalid,
        ),
        (changed(tir, tirc::TLS_EN, 0x20, 1), invalid),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(it.status(&request), status, "request {number}");
    }
    let (create, _) = it.queue_request(Op::CreateSq, 1);
    for (field, at, value) in [
        (wq::WQ_TYPE, 0x50, 0),
        (wq::WQ_SIGNATURE, 0x50, 1),
        (wq::LOG_WQ_STRIDE, 0x50, 4),
        (wq::DBR_UMEM_VALID, 0x50, 1),
        (wq::PD, 0x50, 0x1234),
        (wq::LOG_WQ_SZ, 0x50, 16),
        (wq::LOG_WQ_SZ, 0x50, 15),
        (sqc::CQN, 0x20, 0x1234),
        (sqc::TIS_NUM_0, 0x20, 0x1234),
        (sqc::TIS_LST_SZ, 0x20, 2),
        (sqc::STATE, 0x20, 1),
        (sqc::HAIRPIN, 0x20, 1),
        (sqc::TS_FORMAT, 0x20, 2),
    ] {
        let request = changed(create.clone(), field, at, value);
        assert_ne!(it.status(&request), OK, "{field:?} = {value}");
    }
    assert_eq!(it.status(&create), OK);
    let (create, _) = it.queue_request(Op::CreateRq, 1);
    for (field, at, value) in [
        (rqc::MEM_RQ_TYPE, 0x20, 1),
        (wq::LOG_WQ_STRIDE, 0x50, 12),
        (wq::LOG_WQ_SZ, 0x50, 15),
        (rqc::COUNTER_SET_ID, 0x20, 9),
    ] {
        let request = changed(create.clone(), field, at, value);
        assert_ne!(it.status(&request), OK, "{field:?} = {value}");
    }
    assert_eq!(it.status(&create), OK);
}

/// An image may say anything.
#[test]
fn images_that_cannot_be_are_refused() {
    let it = Interface::new(false);
    let image = serde_json::to_value(it.guest.function.save()).unwrap();
    let restore = |image: &serde_json::Value| {
        let mut other = Guest::with(enhanced());
        let image = serde_json::from_value(image.clone());
        image.map_or_else(
            |error| Err(error.to_string()),
            |image| {
                other
                    .function
                    .restore(image)
                    .map_err(|error| error.to_string())
            },
        )
    };
    assert_eq!(restore(&image), Ok(()));
    let network = "/v1/software/state/network";
    for (at, value) in [
        ("/tises/0/1/domain", 0x1234.into()),
        ("/send_queues/0/0", 0x1234.into()),
        ("/receive_queues/0/0", 0x1234.into()),
        ("/send_queues/0/1/tis", 0x1234.into()),
        ("/send_queues/0/1/context", serde_json::json!([1, 2])),
        ("/tables/0/1/queues/0", 0x1234.into()),
        ("/tables/0/1/queues", serde_json::json!([])),
        ("/tables/0/1/max", 0x10_0000.into()),
        ("/tirs/0/function", 7.into()),
        ("/tirs/0/key", serde_json::json!([1])),
        ("/tirs/0/domain", 0x1234.into()),
        ("/flow_tables/0/1/log_size", 1.into()),
        ("/flow_tables/0/1/level", 300.into()),
        (
            "/flow_tables/0/1/miss",
            serde_json::json!({"table": 0x1234}),
        ),
        (
            "/flow_tables/0/1/entries/0/next",
            serde_json::json!({"tir": 0x1234}),
        ),
        ("/flow_tables/0/1/entries/0/criteria/protocol", 1.into()),
        ("/roots/0/1", 0x1234.into()),
    ] {
        let mut wrong = image.clone();
        let place = wrong.pointer_mut(&format!("{network}{at}"));
        *place.unwrap_or_else(|| panic!("{at}")) = value;
        assert!(restore(&wrong).is_err(), "{at}");
    }
    // To a function without such queues.
    let mut plain = Guest::new();
    let restored = plain
        .function
        .restore(serde_json::from_value(image).unwrap());
    let refused = restored.unwrap_err().to_string();
    assert!(refused.contains("enhanced IP over InfiniBand"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever commands say: the function goes on, and its image is one that can be restored.
    #[test]
    fn any_commands_are_carried_out_or_refused(
        commands in prop::collection::vec(
            (prop::sample::select((0x770..0x93d).filter_map(Op::from_code).collect::<Vec<_>>()), any::<prop::sample::Index>(), any::<[u32; 6]>()),
            1..24,
        ),
        packet in prop::collection::vec(any::<u8>(), 1..100),
    ) {
        let mut it = Interface::new(false);
        it.receive(0, 8);
        let known = [it.table, it.tirs[0], it.tirs[1], it.rqt, it.tis, it.sq.number, it.rqs[0].number, it.underlay, 0, 1];
        for (opcode, which, dwords) in commands {
            let mut bytes = request(opcode, 0x360);
            for (at, dword) in [0x08, 0x14, 0x18, 0x20, 0x24, 0x40].into_iter().zip(dwords) {
                Field::new(at, 31, 0).set(&mut bytes, dword >> (dword & 31));
            }
            let number = *which.get(&known);
            for at in [0x08, 0x14, 0x18] {
                if dwords[0] >> at & 1 != 0 {
                    Field::new(at, 23, 0).set(&mut bytes, number);
                }
            }
            let _ = it.guest.command(&bytes, 0x200).status();
        }
        it.send(&packet, 0, true);
        it.guest.move_on();
        it.send(&packet, 0, true);
    }
}

/// Drivers allocate a transport domain for each program. All else of it is the driver's.
#[test]
fn programs_have_transport_domains_alone() {
    const UID: Field = Field::new(0, 15, 0);
    let mut guest = Guest::with(enhanced());
    guest.plain(Opcode::EnableHca, &[]);
    assert_eq!(guest.plain(Opcode::SetIssi, &[0, 1]).status(), OK);
    guest.plain(Opcode::InitHca, &[]);
    let mut context = |code: u16, number: u32| {
        let mut request = vec![0; 32];
        create_eq_in::OPCODE.set(&mut request, code.into());
        NUMBER.set(&mut request, number);
        let answer = guest.command(&request, 16);
        (answer.status(), NUMBER.get(&answer.reply))
    };
    let create = AnyOpcode::CreateUctx.code();
    let [(_, one), (_, two)] = [context(create, 0), context(create, 0)];
    let ask = |guest: &mut Guest, opcode, uid, number| {
        let mut asked = request(opcode, 0x200);
        UID.set(&mut asked, uid);
        NUMBER.set(&mut asked, number);
        let answer = guest.command(&asked, 0x200);
        (answer.status(), NUMBER.get(&answer.reply))
    };
    let foreign = Some(Status::BadResource);
    let (alloc, dealloc) = (Op::AllocTransportDomain, Op::DeallocTransportDomain);
    let (status, domain) = ask(&mut guest, alloc, one, 0);
    assert_eq!(status, OK);
    assert_eq!(ask(&mut guest, dealloc, two, domain).0, foreign);
    assert_eq!(ask(&mut guest, alloc, 99, 0).0, Some(Status::BadParameter));
    let of_interface = |opcode: &&Op| Rule::of(**opcode).is_of_interface();
    for &opcode in Op::ALL.iter().filter(of_interface) {
        if ![alloc, dealloc].contains(&opcode) {
            let refused = ask(&mut guest, opcode, one, domain).0;
            assert_eq!(refused, Some(Status::BadOperation), "{opcode:?}");
        }
    }
    // What a program leaves goes with its context.
    guest.move_on();
    let mut close = vec![0; 32];
    create_eq_in::OPCODE.set(&mut close, AnyOpcode::DestroyUctx.code().into());
    NUMBER.set(&mut close, one);
    assert_eq!(guest.command(&close, 16).status(), OK);
    assert_eq!(ask(&mut guest, dealloc, 0, domain).0, foreign);
    let (_, domain) = ask(&mut guest, alloc, two, 0);
    assert_eq!(ask(&mut guest, dealloc, two, domain).0, OK);
}

/// A packet for a group goes through the flow tables of each address in it, in one turn.
#[test]
fn few_addresses_of_a_function_are_in_a_group() {
    const MAX_UNDERLAYS: usize = 4;
    let mut it = Interface::new(false);
    let mut underlay = || {
        let mut create = Guest::request(Opcode::CreateQp, &[]);
        create.truncate(create_qp_in::SIZE);
        let context = create_qp_in::QPC.get_mut(&mut create);
        qpc::ST.set(context, 2);
        qpc::ULP_STATELESS_OFFLOAD_MODE.set(context, 2);
        it.guest.command(&create, 16).number()
    };
    let underlays: Vec<_> = (0..=MAX_UNDERLAYS).map(|_| underlay()).collect();
    let mut group = |opcode: Opcode, underlay: u32, number: u8| {
        let mut attach = Guest::request(opcode, &[]);
        attach.resize(32, 0);
        NUMBER.set(&mut attach, underlay);
        (attach[0x10], attach[0x11], attach[0x1f]) = (0xff, 0x12, number);
        attach.truncate(32);
        it.guest.command(&attach, 16).status()
    };
    let (attach, detach) = (Opcode::AttachToMcg, Opcode::DetachFromMcg);
    for underlay in &underlays[..MAX_UNDERLAYS] {
        assert_eq!(group(attach, *underlay, 1), OK);
    }
    let last = underlays[MAX_UNDERLAYS];
    assert_eq!(group(attach, last, 1), Some(Status::NoResources));
    assert_eq!(group(attach, last, 2), OK);
    // One that is in it may be told so again.
    assert_eq!(group(attach, underlays[0], 1), OK);
    assert_eq!(group(detach, underlays[0], 1), OK);
    assert_eq!(group(attach, last, 1), OK);
}
