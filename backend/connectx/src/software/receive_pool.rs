//! Shared receive queues as drivers ask for them in version 1 of the interface (ISSI): basic ones as receive memory
//! pools (RMP), those of XRC by commands of their own. Both are the queues of version 0, in another layout. Those with
//! tags (XRQ) are so in either version, and have a few fields besides.
//!
//! A request is made into one of version 0, and a reply into one of version 1. Nothing else knows the two.

use super::LIST;
use crate::bits::command::{Opcode, SharedQueueOpcode, create_eq_in as head_in};
use crate::bits::shared_receive::{
    ARM_SRQ, TOPOLOGY_TAG_MATCHING, arm_rq_in, create_srq_in, create_xrq_in, query_xrq_out, srqc,
    tag_matching_topology_context as topology, xrqc,
};
use crate::bits::{Field, Span};

/// What a queue was asked for as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A receive memory pool: a basic queue.
    Pool,
    /// A queue of XRC.
    Xrc,
    /// A queue with tags.
    Tagged,
}

/// Context of a pool, in requests and replies.
const CONTEXT: Span = Span::new(0x20, 0xf0);
/// The pool's state: it works.
const STATE: Field = Field::new(0x00, 23, 20);
const READY: u32 = 1;
/// Where a pool's context has its queue.
const QUEUE: Span = Span::new(0x30, 0xc0);
/// Bits that say what MODIFY_RMP changes: the limit.
const CHANGES_LIMIT: Field = Field::new(0x14, 0, 0);

/// A queue's layout (`wq`).
mod wq {
    use crate::bits::{Field, Wide};

    pub const SIGNATURE: Field = Field::new(0x00, 27, 27);
    pub const PAGE_OFFSET: Field = Field::new(0x04, 20, 16);
    pub const LWM: Field = Field::new(0x04, 15, 0);
    pub const PD: Field = Field::new(0x08, 23, 0);
    pub const DBR_ADDR: Wide = Wide::new(0x10);
    /// In bytes, as a power of two.
    pub const LOG_STRIDE: Field = Field::new(0x20, 19, 16);
    pub const LOG_PAGE_SIZE: Field = Field::new(0x20, 12, 8);
    pub const LOG_SIZE: Field = Field::new(0x20, 4, 0);
    pub const DBR_UMEM_VALID: Field = Field::new(0x24, 31, 31);
    pub const WQ_UMEM_VALID: Field = Field::new(0x24, 30, 30);
    pub const DBR_UMEM_ID: Field = Field::new(0x28, 31, 0);
    pub const WQ_UMEM_ID: Field = Field::new(0x2c, 31, 0);
    pub const WQ_UMEM_OFFSET: Wide = Wide::new(0x30);
}

/// How a request for a queue of XRC names memory objects; a request of version 0 that was made of a pool's, too.
pub(super) mod umem {
    use crate::bits::{Field, Wide};

    pub const VALID: Field = Field::new(0x5c, 31, 31);
    pub const NUMBER: Field = Field::new(0x58, 31, 0);
    pub const OFFSET: Wide = Wide::new(0x50);
    /// In the context.
    pub const RECORD_VALID: Field = Field::new(0x08, 24, 24);
    /// In the context.
    pub const RECORD_NUMBER: Field = Field::new(0x0c, 31, 0);
}

/// What a request of version 0 that was made of one for a queue with tags has besides, and the reply to a query of
/// one.
pub(super) mod tags {
    use crate::bits::Field;

    /// Topology.
    pub const TOPOLOGY: Field = Field::new(0x60, 11, 8);
    /// Offload.
    pub const OFFLOAD: Field = Field::new(0x60, 3, 0);
    /// Entries of the list, as a power of two.
    pub const LOG_SIZE: Field = Field::new(0x64, 31, 28);
    /// The entry that is added next.
    pub const NEXT: Field = Field::new(0x64, 15, 0);
    /// Unexpected messages that software has seen.
    pub const SEEN: Field = Field::new(0x68, 31, 16);
    /// Unexpected messages.
    pub const UNEXPECTED: Field = Field::new(0x68, 15, 0);
    /// Index of its completions.
    pub const USER_INDEX: Field = Field::new(0x6c, 23, 0);
}

/// Smallest stride of version 0: 16 bytes.
const LOG_STRIDE_0: u32 = 4;

/// The request of version 0 that does the same, and in which form its reply has to be.
pub(super) fn translated(opcode: SharedQueueOpcode, request: &mut Vec<u8>) -> (Opcode, Form) {
    use SharedQueueOpcode as New;
    let (old, form) = match opcode {
        New::CreateXrcSrq => (Opcode::CreateSrq, Form::Xrc),
        New::DestroyXrcSrq => (Opcode::DestroySrq, Form::Xrc),
        New::QueryXrcSrq => (Opcode::QuerySrq, Form::Xrc),
        New::ArmXrcSrq => (Opcode::ArmRq, Form::Xrc),
        New::CreateXrq => (Opcode::CreateSrq, Form::Tagged),
        New::DestroyXrq => (Opcode::DestroySrq, Form::Tagged),
        New::QueryXrq => (Opcode::QuerySrq, Form::Tagged),
        New::ArmXrq => (Opcode::ArmRq, Form::Tagged),
        New::CreateRmp => (Opcode::CreateSrq, Form::Pool),
        New::ModifyRmp => (Opcode::ArmRq, Form::Pool),
        New::DestroyRmp => (Opcode::DestroySrq, Form::Pool),
        New::QueryRmp => (Opcode::QuerySrq, Form::Pool),
    };
    match opcode {
        New::CreateRmp => create(request),
        New::CreateXrq => create_tagged(request),
        New::ModifyRmp => arm(request),
        New::ArmXrq => head_in::OP_MOD.set(request, ARM_SRQ),
        _ => {}
    }
    head_in::OPCODE.set(request, u32::from(old.code()));
    (old, form)
}

fn create(request: &mut Vec<u8>) {
    request.resize(request.len().max(LIST), 0);
    let pool: [u8; 0xf0] = CONTEXT.array(request);
    // Without the domain and the completion queue, which only XRC has.
    let made = of_queue(&request[..8], QUEUE.get(&pool));
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
    umem::NUMBER.set(&mut made, wq::WQ_UMEM_ID.get(queue));
    umem::OFFSET.set(&mut made, wq::WQ_UMEM_OFFSET.get(queue));
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(&mut made);
    let stride = wq::LOG_STRIDE.get(queue).saturating_sub(LOG_STRIDE_0);
    for (field, value) in [
        (srqc::LOG_SRQ_SIZE, wq::LOG_SIZE.get(queue)),
        (srqc::WQ_SIGNATURE, wq::SIGNATURE.get(queue)),
        (srqc::LOG_RQ_STRIDE, stride),
        (srqc::PAGE_OFFSET, wq::PAGE_OFFSET.get(queue)),
        (srqc::LOG_PAGE_SIZE, wq::LOG_PAGE_SIZE.get(queue)),
        (srqc::PD, wq::PD.get(queue)),
        (srqc::LWM, wq::LWM.get(queue)),
        (umem::RECORD_VALID, wq::DBR_UMEM_VALID.get(queue)),
        (umem::RECORD_NUMBER, wq::DBR_UMEM_ID.get(queue)),
    ] {
        field.set(context, value);
    }
    srqc::DBR_ADDR.set(context, wq::DBR_ADDR.get(queue));
    // What does not fit the old field is more than there may be.
    if wq::LOG_SIZE.get(queue) > 0xf || wq::LOG_STRIDE.get(queue) > LOG_STRIDE_0 + 7 {
        srqc::WQ_SIGNATURE.set(context, 1);
    }
    made
}

fn arm(request: &mut Vec<u8>) {
    request.resize(request.len().max(LIST), 0);
    let pool: [u8; 0xf0] = CONTEXT.array(request);
    let limit = wq::LWM.get(QUEUE.get(&pool));
    let changes = CHANGES_LIMIT.is_set(request);
    request.truncate(arm_rq_in::SIZE);
    // The state, which is next to the number, is the only one that there is.
    Field::new(0x08, 31, 24).set(request, 0);
    head_in::OP_MOD.set(request, ARM_SRQ);
    arm_rq_in::LWM.set(request, limit);
    if !changes {
        // Nothing changes; a modifier that is not known says so to whoever carries it out.
        head_in::OP_MOD.set(request, 0);
    }
}

/// Makes the reply to a query be of the form that was asked for.
pub(super) fn show(form: Form, opcode: Opcode, reply: &mut [u8]) {
    if form == Form::Xrc || opcode != Opcode::QuerySrq {
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
        let pool = CONTEXT.get_mut(reply);
        STATE.set(pool, READY);
        show_queue(&context, QUEUE.get_mut(pool));
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
        (wq::LOG_SIZE, srqc::LOG_SRQ_SIZE.get(context)),
        (
            wq::LOG_STRIDE,
            srqc::LOG_RQ_STRIDE.get(context) + LOG_STRIDE_0,
        ),
        (wq::PAGE_OFFSET, srqc::PAGE_OFFSET.get(context)),
        (wq::LOG_PAGE_SIZE, srqc::LOG_PAGE_SIZE.get(context)),
        (wq::PD, srqc::PD.get(context)),
        (wq::LWM, srqc::LWM.get(context)),
    ] {
        field.set(queue, value);
    }
    wq::DBR_ADDR.set(queue, srqc::DBR_ADDR.get(context));
}
