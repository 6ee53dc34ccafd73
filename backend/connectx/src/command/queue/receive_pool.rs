//! Shared receive queues as drivers ask for them in version 1 of the interface (ISSI): basic ones as receive memory
//! pools (RMP), those of XRC by commands of their own. Both are the queues of version 0, in another layout. Those with
//! tags (XRQ) are so in either version, and have a few fields besides.
//!
//! A request is made into one of version 0, and a reply into one of version 1. Nothing else knows the two.

use crate::bits::command::{AnyOpcode, create_eq_in as head_in};
use crate::bits::network::wq;
use crate::bits::shared_receive::{
    ARM_SRQ, RMP_READY, TOPOLOGY_TAG_MATCHING, arm_rq_in, create_srq_in, create_xrq_in,
    modify_rmp_in, query_xrq_out, rmpc, srqc, srqc_tags as tags, srqc_umem as umem,
    tag_matching_topology_context as topology, wq_umem, xrqc,
};
use crate::command::LIST;

/// The layout in which a queue was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A receive memory pool: a basic queue.
    Pool,
    /// A queue of XRC.
    Xrc,
    /// A queue with tags.
    Tagged,
}

/// Smallest stride of version 0: 16 bytes.
const LOG_STRIDE_0: u32 = 4;

/// Makes a request of version 0, for the command `old`, of one that has another layout.
pub(crate) fn translate(opcode: AnyOpcode, old: AnyOpcode, request: &mut Vec<u8>) {
    match opcode {
        AnyOpcode::CreateRmp => create(request),
        AnyOpcode::CreateXrq => create_tagged(request),
        AnyOpcode::ModifyRmp => arm(request),
        AnyOpcode::ArmXrq => head_in::OP_MOD.set(request, ARM_SRQ),
        _ => {}
    }
    head_in::OPCODE.set(request, u32::from(old.code()));
}

fn create(request: &mut Vec<u8>) {
    request.resize(request.len().max(LIST), 0);
    let pool: [u8; rmpc::SIZE] = modify_rmp_in::CTX.array(request);
    // Without the domain and the completion queue, which only XRC has.
    let made = of_queue(&request[..8], rmpc::WQ.get(&pool));
    request[..LIST].copy_from_slice(&made);
}

/// A queue with tags. Its list of pages begins later.
fn create_tagged(request: &mut Vec<u8>) {
    request.resize(request.len().max(create_xrq_in::SIZE), 0);
    let context: [u8; xrqc::SIZE] = create_xrq_in::XRQ_CONTEXT.array(request);
    let mut made = of_queue(&request[..8], xrqc::WQ.get(&context));
    let list = xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT.get(&context);
    tags::TOPOLOGY.set(&mut made, xrqc::TOPOLOGY.get(&context));
    tags::OFFLOAD.set(&mut made, xrqc::OFFLOAD.get(&context));
    tags::LOG_SIZE.set(&mut made, topology::LOG_MATCHING_LIST_SZ.get(list));
    tags::USER_INDEX.set(&mut made, xrqc::USER_INDEX.get(&context));
    let srq = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut made);
    srqc::CQN.set(srq, xrqc::CQN.get(&context));
    request.drain(LIST..create_xrq_in::SIZE);
    request[..LIST].copy_from_slice(&made);
}

/// A request of version 0 with this head, for this queue.
fn of_queue(head: &[u8], queue: &[u8]) -> [u8; LIST] {
    let mut made = [0; LIST];
    made[..head.len()].copy_from_slice(head);
    umem::VALID.set(&mut made, wq::WQ_UMEM_VALID.get(queue));
    umem::NUMBER.set(&mut made, wq_umem::WQ_UMEM_ID.get(queue));
    umem::OFFSET.set(&mut made, wq_umem::WQ_UMEM_OFFSET.get(queue));
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut made);
    let stride = wq::LOG_WQ_STRIDE.get(queue).saturating_sub(LOG_STRIDE_0);
    for (field, value) in [
        (srqc::LOG_SRQ_SIZE, wq::LOG_WQ_SZ.get(queue)),
        (srqc::WQ_SIGNATURE, wq::WQ_SIGNATURE.get(queue)),
        (srqc::LOG_RQ_STRIDE, stride),
        (srqc::PAGE_OFFSET, wq::PAGE_OFFSET.get(queue)),
        (srqc::LOG_PAGE_SIZE, wq::LOG_WQ_PG_SZ.get(queue)),
        (srqc::PD, wq::PD.get(queue)),
        (srqc::LWM, wq::LWM.get(queue)),
        (umem::RECORD_VALID, wq::DBR_UMEM_VALID.get(queue)),
        (umem::RECORD_NUMBER, wq_umem::DBR_UMEM_ID.get(queue)),
    ] {
        field.set(context, value);
    }
    srqc::DBR_ADDR.set(context, wq::DBR_ADDR.get(queue));
    // A value that does not fit the old field is more than there may be.
    if wq::LOG_WQ_SZ.get(queue) > 0xf || wq::LOG_WQ_STRIDE.get(queue) > LOG_STRIDE_0 + 7 {
        srqc::WQ_SIGNATURE.set(context, 1);
    }
    made
}

fn arm(request: &mut Vec<u8>) {
    request.resize(request.len().max(LIST), 0);
    let pool: [u8; rmpc::SIZE] = modify_rmp_in::CTX.array(request);
    let limit = wq::LWM.get(rmpc::WQ.get(&pool));
    let changes = modify_rmp_in::CHANGES_LIMIT.is_set(request);
    request.truncate(arm_rq_in::SIZE);
    // The state, which is next to the number, is the only one that there is.
    modify_rmp_in::STATE.set(request, 0);
    head_in::OP_MOD.set(request, ARM_SRQ);
    arm_rq_in::LWM.set(request, limit);
    if !changes {
        // Nothing changes; a modifier that is not known says so to whoever carries it out.
        head_in::OP_MOD.set(request, 0);
    }
}

/// Makes the reply to a query be of the form that was asked for.
pub(crate) fn show(form: Form, reply: &mut [u8]) {
    if form == Form::Xrc {
        return;
    }
    let context: [u8; srqc::SIZE] = create_srq_in::SRQ_CONTEXT_ENTRY.array(reply);
    let list = [
        tags::OFFLOAD,
        tags::LOG_SIZE,
        tags::NEXT,
        tags::SEEN,
        tags::UNEXPECTED,
    ]
    .map(|field| field.get(reply));
    reply.get_mut(0x10..).unwrap_or_default().fill(0);
    if form == Form::Pool {
        let pool = modify_rmp_in::CTX.get_mut(reply);
        rmpc::STATE.set(pool, RMP_READY);
        show_queue(&context, rmpc::WQ.get_mut(pool));
        return;
    }
    let tagged = query_xrq_out::XRQ_CONTEXT.get_mut(reply);
    let [offload, log_size, next, seen, unexpected] = list;
    xrqc::TOPOLOGY.set(tagged, TOPOLOGY_TAG_MATCHING);
    xrqc::OFFLOAD.set(tagged, offload);
    xrqc::CQN.set(tagged, srqc::CQN.get(&context));
    let list = xrqc::TAG_MATCHING_TOPOLOGY_CONTEXT.get_mut(tagged);
    topology::LOG_MATCHING_LIST_SZ.set(list, log_size);
    topology::APPEND_NEXT_INDEX.set(list, next);
    topology::SW_PHASE_CNT.set(list, seen);
    topology::HW_PHASE_CNT.set(list, unexpected);
    show_queue(&context, xrqc::WQ.get_mut(tagged));
}

/// The layout of a queue of this context.
fn show_queue(context: &[u8], queue: &mut [u8]) {
    for (field, value) in [
        (wq::LOG_WQ_SZ, srqc::LOG_SRQ_SIZE.get(context)),
        (
            wq::LOG_WQ_STRIDE,
            srqc::LOG_RQ_STRIDE.get(context) + LOG_STRIDE_0,
        ),
        (wq::PAGE_OFFSET, srqc::PAGE_OFFSET.get(context)),
        (wq::LOG_WQ_PG_SZ, srqc::LOG_PAGE_SIZE.get(context)),
        (wq::PD, srqc::PD.get(context)),
        (wq::LWM, srqc::LWM.get(context)),
    ] {
        field.set(queue, value);
    }
    wq::DBR_ADDR.set(queue, srqc::DBR_ADDR.get(context));
}
