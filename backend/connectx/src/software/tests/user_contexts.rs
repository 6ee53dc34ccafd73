//! User contexts: whose objects are whose, and what becomes of them.

use std::collections::BTreeSet;

use super::guest::Guest;
use crate::bits::capability::cmd_hca_cap;
use crate::bits::command::{AnyOpcode, Opcode, Status, create_eq_in};
use crate::bits::command::{LOG_OBJ_RANGE, RESERVED_QPN, general_obj_in_cmd_hdr};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::memory_key::{MODE_KLM, MODE_MTT, MODE_PHYSICAL, create_mkey_in, mkc};
use crate::bits::queue_pair::{create_qp_in, qpc};
use crate::bits::shared_receive::{arm_rq_in, create_srq_in, srqc};
use crate::bits::signature::{create_psv_in, create_psv_out};
use crate::bits::{Field, Wide};
use crate::command::NUMBER;
use crate::command::queue::receive_pool;
use crate::command::rule::Rule;

const UID: Field = Field::new(0, 15, 0);
const OK: Option<Status> = Some(Status::Ok);
const FOREIGN: Option<Status> = Some(Status::BadResource);

/// A request of this code, as long as the longest without a list.
fn request(code: u16, uid: u32, number: u32) -> Vec<u8> {
    let mut request = vec![0; 0x110];
    create_eq_in::OPCODE.set(&mut request, code.into());
    UID.set(&mut request, uid);
    NUMBER.set(&mut request, number);
    request
}

/// Programs and their driver.
struct Programs {
    guest: Guest,
    uar: u32,
    eqn: u32,
}

impl Programs {
    fn new() -> Self {
        let mut guest = Guest::new();
        guest.plain(Opcode::EnableHca, &[]);
        assert_eq!(guest.plain(Opcode::SetIssi, &[0, 1]).status(), OK);
        guest.plain(Opcode::InitHca, &[]);
        let uar = guest.plain(Opcode::AllocUar, &[]).number();
        let ring = guest.allocate(4096);
        let mut create = Guest::request(Opcode::CreateEq, &[ring]);
        UID.set(&mut create, 0xffff);
        crate::bits::event::eqc::LOG_EQ_SIZE
            .set(create_eq_in::EQ_CONTEXT_ENTRY.get_mut(&mut create), 6);
        let eqn = guest.command(&create, 16).number() & 0xff;
        Self { guest, uar, eqn }
    }

    fn status(&mut self, request: &[u8]) -> Option<Status> {
        self.guest.command(request, 0x200).status()
    }

    fn ask(&mut self, code: u16, uid: u32, number: u32) -> Option<Status> {
        self.status(&request(code, uid, number))
    }

    fn make(&mut self, request: &[u8]) -> u32 {
        let answer = self.guest.command(request, 0x200);
        assert_eq!(answer.status(), OK);
        answer.number()
    }

    fn open(&mut self) -> u32 {
        self.make(&request(AnyOpcode::CreateUctx.code(), 0, 0))
    }

    fn close(&mut self, uid: u32) -> Option<Status> {
        self.ask(AnyOpcode::DestroyUctx.code(), 0, uid)
    }

    /// A memory object of so many pages.
    fn memory(&mut self, uid: u32, pages: u64) -> (u32, u64) {
        let at = self.guest.allocate(4096 * pages);
        let mut create = request(AnyOpcode::CreateUmem.code(), uid, 0);
        create.truncate(0x30);
        Wide::new(0x28).set(&mut create, pages);
        create.extend((0..pages).flat_map(|page| ((at + page * 4096) | 3).to_be_bytes()));
        (self.make(&create), at)
    }

    fn cq(&self, uid: u32, uar: u32, memory: u32) -> Vec<u8> {
        let mut create = request(Opcode::CreateCq.code(), uid, 0);
        create_cq_in::CQ_UMEM_VALID.set(&mut create, 1);
        Field::new(0x58, 31, 0).set(&mut create, memory);
        let context = create_cq_in::CQ_CONTEXT.get_mut(&mut create);
        cqc::LOG_CQ_SIZE.set(context, 4);
        cqc::UAR_PAGE.set(context, uar);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, self.eqn);
        cqc::DBR_UMEM_VALID.set(context, 1);
        Field::new(0x04, 31, 0).set(context, memory);
        cqc::DBR_ADDR.set(context, 4096);
        create
    }

    fn pool(&self, uid: u32, pd: u32, memory: u32) -> Vec<u8> {
        let mut create = request(AnyOpcode::CreateRmp.code(), uid, 0);
        let wq = 0x50;
        for (at, value) in [
            // 16 requests of 32 bytes.
            (wq + 0x08, pd),
            (wq + 0x20, 5 << 16 | 4),
            (wq + 0x24, 3 << 30),
            (wq + 0x28, memory),
            (wq + 0x2c, memory),
        ] {
            Field::new(at, 31, 0).set(&mut create, value);
        }
        Wide::new(wq + 0x10).set(&mut create, 4096);
        create
    }

    fn qp(&self, (uid, uar): (u32, u32), (pd, cqn, srqn): (u32, u32, u32), memory: u32) -> Vec<u8> {
        let mut create = request(Opcode::CreateQp.code(), uid, 0);
        create_qp_in::WQ_UMEM_VALID.set(&mut create, 1);
        create_qp_in::WQ_UMEM_ID.set(&mut create, memory);
        let context = create_qp_in::QPC.get_mut(&mut create);
        for (field, value) in [
            (qpc::PD, pd),
            (qpc::RQ_TYPE, 1),
            (qpc::SRQN_RMPN_XRQN, srqn),
            (qpc::LOG_SQ_SIZE, 4),
            (qpc::UAR_PAGE, uar),
            (qpc::CQN_SND, cqn),
            (qpc::CQN_RCV, cqn),
            (qpc::DBR_UMEM_VALID, 1),
            (Field::new(0xe4, 31, 0), memory),
        ] {
            field.set(context, value);
        }
        qpc::DBR_ADDR.set(context, 4096 + 64);
        create
    }

    fn key(&self, uid: u32, pd: u32, mode: u32) -> Vec<u8> {
        let mut create = request(Opcode::CreateMkey.code(), uid, 0);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(&mut create);
        for (field, value) in [
            (mkc::PD, pd),
            (mkc::ACCESS_MODE_1_0, mode),
            (mkc::LR, 1),
            (mkc::QPN, 0xff_ffff),
            (mkc::LOG_PAGE_SIZE, 12),
        ] {
            field.set(context, value);
        }
        mkc::LEN.set(context, 4096);
        create
    }
}

/// Everything that a program has, of one context.
#[derive(Debug, Clone, Copy)]
struct Program {
    uid: u32,
    uar: u32,
    pd: u32,
    memory: u32,
    cqn: u32,
    srqn: u32,
    qpn: u32,
    key: u32,
}

impl Program {
    fn new(programs: &mut Programs) -> Self {
        let uid = programs.open();
        let uar = programs.make(&request(Opcode::AllocUar.code(), uid, 0));
        let pd = programs.make(&request(Opcode::AllocPd.code(), uid, 0));
        let (memory, _) = programs.memory(uid, 2);
        let cqn = programs.make(&programs.cq(uid, uar, memory));
        let srqn = programs.make(&programs.pool(uid, pd, memory));
        let qpn = programs.make(&programs.qp((uid, uar), (pd, cqn, srqn), memory));
        let key = programs.make(&programs.key(uid, pd, MODE_KLM));
        Self {
            uid,
            uar,
            pd,
            memory,
            cqn,
            srqn,
            qpn,
            key,
        }
    }

    /// Commands that take each object away, in an order in which that can be.
    fn ends(&self) -> [(u16, u32); 7] {
        [
            (Opcode::DestroyQp.code(), self.qpn),
            (AnyOpcode::DestroyRmp.code(), self.srqn),
            (Opcode::DestroyCq.code(), self.cqn),
            (Opcode::DestroyMkey.code(), self.key),
            (AnyOpcode::DestroyUmem.code(), self.memory),
            (Opcode::DeallocPd.code(), self.pd),
            (Opcode::DeallocUar.code(), self.uar),
        ]
    }
}

#[test]
fn a_program_takes_its_objects_down_itself() {
    let mut programs = Programs::new();
    let one = Program::new(&mut programs);
    for (code, number) in one.ends() {
        assert_eq!(programs.ask(code, one.uid, number), OK, "{code:#x}");
        assert_eq!(programs.ask(code, one.uid, number), FOREIGN, "{code:#x}");
    }
    assert_eq!(programs.close(one.uid), OK);
    assert_eq!(programs.close(one.uid), FOREIGN);
}

#[test]
fn contexts_do_not_reach_what_is_of_others() {
    let mut programs = Programs::new();
    let (one, two) = (Program::new(&mut programs), Program::new(&mut programs));
    programs.guest.move_on();
    for (code, number) in one.ends() {
        assert_eq!(programs.ask(code, two.uid, number), FOREIGN, "{code:#x}");
    }
    for opcode in [
        Opcode::QueryQp,
        Opcode::Rst2Init,
        Opcode::ToErr,
        Opcode::AttachToMcg,
        Opcode::DetachFromMcg,
    ] {
        assert_eq!(programs.ask(opcode.code(), two.uid, one.qpn), FOREIGN);
    }
    let (uid, own) = (two.uid, (two.pd, two.cqn, two.srqn));
    let by = (uid, two.uar);
    // Each of what a new object names, by turns the other's; and all of them its own.
    let kernels = programs.guest.plain(Opcode::AllocPd, &[]).number();
    let requests = [
        programs.qp((uid, one.uar), own, two.memory),
        programs.qp(by, (one.pd, own.1, own.2), two.memory),
        programs.qp(by, (kernels, own.1, own.2), two.memory),
        programs.qp(by, (own.0, one.cqn, own.2), two.memory),
        programs.qp(by, (own.0, own.1, one.srqn), two.memory),
        programs.qp(by, own, one.memory),
        programs.cq(uid, one.uar, two.memory),
        programs.cq(uid, two.uar, one.memory),
        programs.pool(uid, one.pd, two.memory),
        programs.pool(uid, two.pd, one.memory),
        programs.key(uid, one.pd, MODE_KLM),
        programs.key(uid, kernels, MODE_KLM),
    ];
    for (at, request) in requests.iter().enumerate() {
        assert_eq!(programs.status(request), FOREIGN, "{at}");
    }
    // Drivers that allocate doorbell pages for themselves have programs use them.
    let cqn = programs.make(&programs.cq(uid, programs.uar, two.memory));
    assert_eq!(programs.ask(Opcode::DestroyCq.code(), uid, cqn), OK);
    let fourth = programs.qp((uid, programs.uar), own, two.memory);
    let fourth = programs.make(&fourth);
    assert_eq!(programs.ask(Opcode::DestroyQp.code(), uid, fourth), OK);
    // The driver may do all of that.
    for (code, number) in one.ends() {
        assert_eq!(programs.ask(code, 0, number), OK, "{code:#x}");
    }
    assert_eq!(programs.close(one.uid), OK);
    let gone = programs.ask(Opcode::AllocPd.code(), one.uid, 0);
    assert_eq!(gone, Some(Status::BadParameter));
}

#[test]
fn contexts_name_no_memory_by_its_address() {
    let mut programs = Programs::new();
    let one = Program::new(&mut programs);
    let bad = Some(Status::BadParameter);
    for mode in [MODE_PHYSICAL, MODE_MTT] {
        let key = programs.key(one.uid, one.pd, mode);
        assert_eq!(programs.status(&key), bad, "{mode}");
    }
    // Over a memory object they do, within its bounds.
    let over = |memory, offset| {
        let mut key = programs.key(one.uid, one.pd, MODE_MTT);
        create_mkey_in::MKEY_UMEM_VALID.set(&mut key, 1);
        Field::new(0x64, 31, 0).set(&mut key, memory);
        Wide::new(0x68).set(&mut key, offset);
        key
    };
    let keys = [
        over(one.memory, 4096),
        over(one.memory, 4097),
        over(one.memory, u64::MAX),
        over(one.memory + 1, 0),
    ];
    let [right, wrong @ ..] = keys;
    let key = programs.make(&right);
    for request in wrong {
        assert_ne!(programs.status(&request), OK);
    }
    assert_eq!(programs.ask(Opcode::DestroyMkey.code(), one.uid, key), OK);
    // Nor by a queue whose pages nobody could tell to be the driver's words.
    let mut old = request(Opcode::CreateSrq.code(), one.uid, 0);
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut old);
    srqc::PD.set(context, one.pd);
    old.extend(0x1000_u64.to_be_bytes());
    assert_eq!(programs.status(&old), Some(Status::BadOperation));
    // Queue pairs of management, and those that change any key, are the driver's.
    for service in [0x7, 0x8, 0xc] {
        let mut qp = programs.qp((one.uid, one.uar), (one.pd, one.cqn, one.srqn), one.memory);
        qpc::ST.set(create_qp_in::QPC.get_mut(&mut qp), service);
        assert_eq!(programs.status(&qp), bad, "{service:#x}");
    }
    for opcode in [
        Opcode::CreateEq,
        Opcode::TeardownHca,
        Opcode::SetHcaCap,
        Opcode::MadIfc,
        Opcode::AccessReg,
        Opcode::ModifyHcaVportContext,
    ] {
        let refused = programs.ask(opcode.code(), one.uid, 0);
        assert_eq!(refused, Some(Status::BadOperation), "{opcode:?}");
    }
    for code in [AnyOpcode::CreateUctx, AnyOpcode::DestroyUctx] {
        assert_eq!(programs.ask(code.code(), one.uid, one.uid), bad);
    }
}

#[test]
fn memory_objects_stay_while_something_lies_in_them() {
    let mut programs = Programs::new();
    let one = Program::new(&mut programs);
    let [ends @ .., _, _] = one.ends();
    let (memory, rest) = ends.split_last().expect("there are some");
    programs.guest.move_on();
    for (code, number) in rest {
        let refused = programs.ask(memory.0, one.uid, memory.1);
        // The key is not over it.
        if *code != Opcode::DestroyMkey.code() {
            assert_eq!(refused, Some(Status::BadResourceState));
            assert_eq!(programs.ask(*code, one.uid, *number), OK);
        }
    }
    assert_eq!(programs.ask(memory.0, one.uid, memory.1), FOREIGN);
}

#[test]
fn a_context_that_is_closed_leaves_nothing() {
    let mut programs = Programs::new();
    let vf = programs.guest.vf;
    let before = programs.guest.engine().vf(vf).memory_taken();
    let other = Program::new(&mut programs);
    for _ in 0..3 {
        let one = Program::new(&mut programs);
        for _ in 0..200 {
            programs.make(&request(Opcode::AllocPd.code(), one.uid, 0));
        }
        assert_eq!(programs.close(one.uid), OK);
        for (code, number) in one.ends() {
            assert_eq!(programs.ask(code, 0, number), FOREIGN, "{code:#x}");
        }
    }
    // The neighbour's are all there.
    for (code, number) in other.ends() {
        assert_eq!(programs.ask(code, other.uid, number), OK, "{code:#x}");
    }
    assert_eq!(programs.close(other.uid), OK);
    // Tables keep the room that they have grown to; what is counted for contexts is back.
    let after = programs.guest.engine().vf(vf).memory_taken();
    let again = Program::new(&mut programs);
    assert_eq!(programs.close(again.uid), OK);
    assert_eq!(programs.guest.engine().vf(vf).memory_taken(), after);
    assert!(after >= before);
}

#[test]
fn contexts_are_counted() {
    let mut programs = Programs::new();
    let open: Vec<u32> = (0..4096).map(|_| programs.open()).collect();
    let create = AnyOpcode::CreateUctx.code();
    assert_eq!(programs.ask(create, 0, 0), Some(Status::NoResources));
    assert_eq!(programs.close(open[7]), OK);
    programs.open();
    // Without version 1 of the interface there are none.
    let mut guest = Guest::initialized();
    let refused = guest.command(&request(create, 0, 0), 16).status();
    assert_eq!(refused, Some(Status::BadSystemState));
}

/// Offsets are those of `query_rmp_out`, `modify_rmp_in` and `wq` in Linux' `mlx5_ifc.h`.
#[test]
fn pools_say_what_they_are() {
    let mut programs = Programs::new();
    let one = Program::new(&mut programs);
    let mut arm = request(AnyOpcode::ModifyRmp.code(), one.uid, one.srqn);
    arm[0x08] = 0x10;
    arm[0x17] = 1;
    arm[0x56..0x58].copy_from_slice(&3_u16.to_be_bytes());
    assert_eq!(programs.status(&arm), OK);
    let mut old = arm.clone();
    let opcode = Rule::of(AnyOpcode::ModifyRmp).opcode;
    assert_eq!(opcode, AnyOpcode::ArmRq);
    receive_pool::translate(AnyOpcode::ModifyRmp, opcode, &mut old);
    assert_eq!(arm_rq_in::LWM.get(&old), 3);
    assert_eq!(arm_rq_in::SRQ_NUMBER.get(&old), one.srqn);
    // Nothing that is known changes.
    arm[0x17] = 0;
    assert_eq!(programs.status(&arm), Some(Status::BadParameter));
    let query = request(AnyOpcode::QueryRmp.code(), one.uid, one.srqn);
    let reply = programs.guest.command(&query, 0x200).reply;
    let dword = |at| crate::bits::dword(&reply, at);
    assert_eq!(dword(0x20), 1 << 20);
    let wq = 0x50;
    assert_eq!(dword(wq + 0x08), one.pd);
    assert_eq!(dword(wq + 0x20), 5 << 16 | 4);
    // One that is longer than a queue may be.
    let mut long = programs.pool(one.uid, one.pd, one.memory);
    long[wq + 0x23] = 0x14;
    assert_ne!(programs.status(&long), OK);
}

/// Offsets are those of `create_xrq_in`, `xrqc` and `wq` in Linux' `mlx5_ifc.h`.
#[test]
fn queues_with_tags_lie_in_memory_objects_of_their_contexts() {
    let mut programs = Programs::new();
    let [one, other] = [Program::new(&mut programs), Program::new(&mut programs)];
    let queue = |program: &Program, cqn: u32, memory: u32| {
        let mut create = request(AnyOpcode::CreateXrq.code(), program.uid, 0);
        create.resize(0x150, 0);
        let wq = 0x90;
        for (at, value) in [
            (0x10, 1 << 8 | 1),
            (0x18, cqn),
            (0x30, 6 << 28),
            (wq + 0x08, program.pd),
            (wq + 0x20, 5 << 16 | 4),
            (wq + 0x24, 3 << 30),
            (wq + 0x28, memory),
            (wq + 0x2c, memory),
        ] {
            Field::new(at, 31, 0).set(&mut create, value);
        }
        Wide::new(wq + 0x10).set(&mut create, 4096);
        create
    };
    let xrqn = programs.make(&queue(&one, one.cqn, one.memory));
    for refused in [
        queue(&one, other.cqn, one.memory),
        queue(&one, one.cqn, other.memory),
    ] {
        assert_eq!(programs.status(&refused), Some(Status::BadResource));
    }
    // Another context's is none.
    let query = request(AnyOpcode::QueryXrq.code(), other.uid, xrqn);
    assert_eq!(programs.status(&query), Some(Status::BadResource));
    let query = request(AnyOpcode::QueryXrq.code(), one.uid, xrqn);
    let reply = programs.guest.command(&query, 0x200).reply;
    assert_eq!(crate::bits::dword(&reply, 0x30), 6 << 28);
    // It goes with its context.
    assert_eq!(programs.close(one.uid), OK);
    let destroy = request(AnyOpcode::DestroyXrq.code(), 0, xrqn);
    assert_eq!(programs.status(&destroy), Some(Status::BadResource));
}

/// Queries of programs before they use more of a device (`mlx5dv_dr_domain_create`).
#[test]
fn programs_hear_that_there_are_no_flow_tables() {
    let mut programs = Programs::new();
    let uid = programs.open();
    let mut capabilities = |kind: u32| {
        let mut query = request(Opcode::QueryHcaCap.code(), uid, 0);
        create_eq_in::OP_MOD.set(&mut query, kind << 1 | 1);
        programs.guest.command(&query, 0x1010)
    };
    let general = capabilities(0).reply;
    assert_eq!(cmd_hca_cap::LOG_MAX_UCTX.get(&general[0x10..]), 12);
    for kind in [1, 4, 7, 8, 9, 12, 0x20] {
        let answer = capabilities(kind);
        assert_eq!(answer.status(), OK, "{kind}");
        assert!(answer.reply[0x10..].iter().all(|&byte| byte == 0), "{kind}");
    }
    assert_eq!(capabilities(0x7f).status(), Some(Status::BadParameter));
}

/// UCX asks by the command of programs, and prints an error where it gets none.
#[test]
fn programs_hear_that_their_port_is_in_no_bond() {
    let mut programs = Programs::new();
    let uid = programs.open();
    let query = request(Opcode::QueryLag.code(), uid, 0);
    let answer = programs.guest.command(&query, 0x20);
    assert_eq!(answer.status(), OK);
    assert!(answer.reply[8..].iter().all(|&byte| byte == 0));
}

#[test]
fn signature_values_of_programs_are_their_own() {
    let mut programs = Programs::new();
    let (one, two) = (programs.open(), programs.open());
    let pd = programs.make(&request(Opcode::AllocPd.code(), one, 0));
    let create = |uid: u32, count: u32, pd: u32| {
        let mut create = request(Opcode::CreatePsv.code(), uid, 0);
        create_psv_in::NUM_PSV.set(&mut create, count);
        create_psv_in::PD.set(&mut create, pd);
        create
    };
    for (uid, count, of, expected) in [
        (two, 1, pd, FOREIGN),
        (0, 1, pd ^ 1, FOREIGN),
        (one, 2, pd, Some(Status::BadParameter)),
        (one, 0, pd, Some(Status::BadParameter)),
        (0, 5, pd, Some(Status::BadParameter)),
    ] {
        assert_eq!(
            programs.status(&create(uid, count, of)),
            expected,
            "{count}"
        );
    }
    let answer = programs.guest.command(&create(one, 1, pd), 0x20);
    let value = create_psv_out::PSV0_INDEX.get(&answer.reply);
    let destroy = Opcode::DestroyPsv.code();
    assert_eq!(programs.ask(destroy, two, value), FOREIGN);
    assert_ne!(programs.ask(Opcode::DeallocPd.code(), one, pd), OK);
    assert_eq!(programs.ask(destroy, one, value), OK);
    assert_eq!(programs.ask(destroy, one, value), FOREIGN);
    // What is left goes with the context, and its domain after it.
    programs.make(&create(one, 1, pd));
    assert_eq!(programs.close(one), OK);
    // The kernel has up to four at a time.
    let kernels = programs.guest.plain(Opcode::AllocPd, &[]).number();
    let answer = programs.guest.command(&create(0, 4, kernels), 0x20);
    assert_eq!(answer.status(), OK);
    let fields = [
        create_psv_out::PSV0_INDEX,
        create_psv_out::PSV1_INDEX,
        create_psv_out::PSV2_INDEX,
        create_psv_out::PSV3_INDEX,
    ];
    for field in fields {
        assert_ne!(programs.ask(Opcode::DeallocPd.code(), 0, kernels), OK);
        assert_eq!(programs.ask(destroy, 0, field.get(&answer.reply)), OK);
    }
    assert_eq!(programs.ask(Opcode::DeallocPd.code(), 0, kernels), OK);
}

/// A number that is nobody's is its context's, and no queue pair is made, changed or taken away by it.
#[test]
fn reserved_numbers_of_programs_are_their_own() {
    let mut programs = Programs::new();
    let (one, two) = (programs.open(), programs.open());
    let object = |opcode: Opcode, uid: u32, number: u32| {
        let mut request = request(opcode.code(), uid, number);
        general_obj_in_cmd_hdr::OBJ_TYPE.set(&mut request, RESERVED_QPN);
        request
    };
    let create = |uid: u32| object(Opcode::CreateGeneralObject, uid, 0);
    let destroy = |uid: u32, number: u32| object(Opcode::DestroyGeneralObject, uid, number);
    let number = programs.make(&create(one));
    for opcode in [
        Opcode::DestroyQp,
        Opcode::QueryQp,
        Opcode::ToErr,
        Opcode::DestroyDct,
    ] {
        assert_eq!(programs.ask(opcode.code(), one, number), FOREIGN);
        assert_eq!(programs.ask(opcode.code(), 0, number), FOREIGN);
    }
    assert_eq!(programs.status(&destroy(two, number)), FOREIGN);
    // Of another type, of many at a time, and with more than a number has.
    let mut other = destroy(one, number);
    general_obj_in_cmd_hdr::OBJ_TYPE.set(&mut other, RESERVED_QPN + 1);
    assert_eq!(programs.status(&other), Some(Status::BadOperation));
    let mut other = create(one);
    general_obj_in_cmd_hdr::OBJ_TYPE.set(&mut other, RESERVED_QPN + 1);
    assert_eq!(programs.status(&other), Some(Status::BadOperation));
    let mut many = create(one);
    LOG_OBJ_RANGE.set(&mut many, 3);
    assert_eq!(programs.status(&many), Some(Status::ExceededLimits));
    let mut longer = destroy(one, number);
    general_obj_in_cmd_hdr::OBJ_ID.set(&mut longer, 1 << 24 | number);
    assert_eq!(programs.status(&longer), FOREIGN);
    assert_eq!(programs.status(&destroy(one, number)), OK);
    assert_eq!(programs.status(&destroy(one, number)), FOREIGN);
    // Many, all of them different, and what is left goes with its context.
    let many: BTreeSet<u32> = (0..300).map(|_| programs.make(&create(two))).collect();
    assert_eq!(many.len(), 300);
    while programs.close(two) != OK {}
    for number in many {
        assert_eq!(programs.status(&destroy(0, number)), FOREIGN);
    }
}
