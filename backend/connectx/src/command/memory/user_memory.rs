//! User memory objects: CREATE_UMEM, DESTROY_UMEM, and requests that name an object for a queue or a doorbell record.
//!
//! A request that names them is made into one with pages and addresses, as drivers without such objects
//! send it. Nothing later needs the object; it stays all the same while what lies in it does, since a driver that
//! has been told that it is gone gives the memory to others.

use hca::Dma;

use crate::bits::command::{AnyOpcode, Status, create_eq_in as head_in, create_umem_in as given};
use crate::bits::completion::{
    CQ_DBR_UMEM_ID, CQ_RESIZE, CQ_UMEM_ID, CQ_UMEM_OFFSET, cqc, create_cq_in,
};
use crate::bits::memory_key::{
    MKEY_UMEM_ID, MKEY_UMEM_OFFSET, MODE_MTT, access_mode, create_mkey_in, mkc,
};
use crate::bits::queue_pair::{DBR_UMEM_ID, create_qp_in, qpc};
use crate::bits::shared_receive::{create_srq_in, srqc, srqc_umem as umem};
use crate::bits::{Field, Span, Wide};
use crate::command::rule::Rule;
use crate::command::{Commands, LIST, NUMBER};
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::user_memory::{LOG_MAX_PAGE, LOG_PAGE, UserMemory, UserMemoryImageV1};

/// Pages of the longest queue, and one.
const QUEUE_PAGES: u64 = (1 << 27 >> LOG_PAGE) + 1;
/// Where queues may begin, in bytes.
const QUEUE_ALIGNMENT: u64 = 64;
/// Bytes of a doorbell record.
const RECORD: u64 = 8;
/// Pages of the longest region over an object.
const KEY_PAGES: u64 = 1 << 20;

/// Fields of a request that say where a queue lies.
struct Queue {
    named: Field,
    number: Field,
    offset: Wide,
    context: Span,
    record_named: Field,
    record_number: Field,
    record: Wide,
    log_page_size: Field,
    page_offset: Field,
}

const COMPLETION_QUEUE: Queue = Queue {
    named: create_cq_in::CQ_UMEM_VALID,
    number: CQ_UMEM_ID,
    offset: CQ_UMEM_OFFSET,
    context: create_cq_in::CQ_CONTEXT,
    record_named: cqc::DBR_UMEM_VALID,
    record_number: CQ_DBR_UMEM_ID,
    record: cqc::DBR_ADDR,
    log_page_size: cqc::LOG_PAGE_SIZE,
    page_offset: cqc::PAGE_OFFSET,
};

const QUEUE_PAIR: Queue = Queue {
    named: create_qp_in::WQ_UMEM_VALID,
    number: create_qp_in::WQ_UMEM_ID,
    offset: create_qp_in::WQ_UMEM_OFFSET,
    context: create_qp_in::QPC,
    record_named: qpc::DBR_UMEM_VALID,
    record_number: DBR_UMEM_ID,
    record: qpc::DBR_ADDR,
    log_page_size: qpc::LOG_PAGE_SIZE,
    page_offset: qpc::PAGE_OFFSET,
};

const SHARED_QUEUE: Queue = Queue {
    named: umem::VALID,
    number: umem::NUMBER,
    offset: umem::OFFSET,
    context: create_srq_in::SRQ_CONTEXT_ENTRY,
    record_named: umem::RECORD_VALID,
    record_number: umem::RECORD_NUMBER,
    record: srqc::DBR_ADDR,
    log_page_size: srqc::LOG_PAGE_SIZE,
    page_offset: srqc::PAGE_OFFSET,
};

fn queue(rule: Rule, request: &[u8]) -> Option<&'static Queue> {
    match rule.opcode {
        AnyOpcode::CreateCq => Some(&COMPLETION_QUEUE),
        AnyOpcode::ModifyCq if head_in::OP_MOD.get(request) == CQ_RESIZE => Some(&COMPLETION_QUEUE),
        AnyOpcode::CreateQp => Some(&QUEUE_PAIR),
        AnyOpcode::CreateSrq if rule.form.is_some() => Some(&SHARED_QUEUE),
        _ => None,
    }
}

/// Whether a request names an object in place of pages or an address.
pub(crate) fn is_named(rule: Rule, request: &[u8]) -> bool {
    if rule.opcode == AnyOpcode::CreateMkey {
        return create_mkey_in::MKEY_UMEM_VALID.is_set(request);
    }
    queue(rule, request).is_some_and(|queue| {
        queue.named.is_set(request) || queue.record_named.is_set(queue.context.get(request))
    })
}

const NO_OBJECT: Refusal = refuse(Status::BadResource, "no such memory object");
const BEYOND: Refusal = refuse(
    Status::BadParameter,
    "the queue, its doorbell record or the region is not within the memory object",
);

/// Whether a key is over pages. Others are over keys, or over all memory.
fn has_pages(request: &[u8]) -> bool {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
    access_mode(context) == MODE_MTT
}

/// Puts the pages of a region into the request for its key.
fn lay(object: &UserMemoryImageV1, request: &mut Vec<u8>) -> Outcome {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
    let log_page = mkc::LOG_PAGE_SIZE.get(context);
    if !(LOG_PAGE..=object.log_page).contains(&log_page) {
        return Err(refuse(
            Status::BadParameter,
            "a region over a memory object has pages of 4 KiB to those of the object",
        ));
    }
    let page = 1 << log_page;
    let within = mkc::START_ADDR.get(context) & (page - 1);
    let len = mkc::LEN.get(context);
    let at = object.position(MKEY_UMEM_OFFSET.get(request), len);
    let at = at.ok_or(BEYOND)? & !(page - 1);
    let count = len.checked_add(within).ok_or(BEYOND)?.div_ceil(page);
    let fits = at
        .checked_add(count << log_page)
        .filter(|end| *end <= object.end());
    if count > KEY_PAGES || fits.is_none() || mkc::LENGTH64.is_set(context) {
        return Err(BEYOND);
    }
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(request);
    let octwords = count.div_ceil(2) as u32;
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(request, octwords);
    request.truncate(LIST);
    for index in 0..count {
        let address = object.address(at + index * page).ok_or(BEYOND)?;
        request.extend(address.to_be_bytes());
    }
    if count % 2 != 0 {
        request.extend([0; 8]);
    }
    Ok(())
}

/// The same request without objects, and those that it has named. `may` says of each whether its sender may name it.
pub(crate) fn resolved(
    memory: &UserMemory,
    rule: Rule,
    mut request: Vec<u8>,
    may: impl Fn(u32) -> bool,
) -> Result<(Vec<u8>, Vec<u32>), Refusal> {
    let mut named = Vec::new();
    let mut get = |number: u32| {
        let object = memory.get(number).ok_or(NO_OBJECT)?;
        if !may(number) {
            return Err(refuse(
                Status::BadResource,
                "the memory object is another user context's",
            ));
        }
        named.push(number);
        Ok(object)
    };
    if rule.opcode == AnyOpcode::CreateMkey {
        request.resize(request.len().max(LIST), 0);
        create_mkey_in::MKEY_UMEM_VALID.set(&mut request, 0);
        if has_pages(&request) {
            lay(get(MKEY_UMEM_ID.get(&request))?, &mut request)?;
        }
        return Ok((request, named));
    }
    let Some(queue) = queue(rule, &request) else {
        return Ok((request, named));
    };
    request.resize(request.len().max(LIST), 0);
    let context = queue.context.get_mut(&mut request);
    if rule.opcode == AnyOpcode::ModifyCq {
        // It stays where it is.
        queue.record_named.set(context, 0);
    }
    if queue.record_named.is_set(context) {
        let object = get(queue.record_number.get(context))?;
        let at = object.position(queue.record.get(context), RECORD);
        let at = at.filter(|at| at.is_multiple_of(RECORD)).ok_or(BEYOND)?;
        queue.record.set(context, object.address(at).ok_or(BEYOND)?);
        queue.record_named.set(context, 0);
    }
    if queue.named.is_set(&request) {
        let object = get(queue.number.get(&request))?;
        let at = object.position(queue.offset.get(&request), 1);
        let at = at.filter(|at| at.is_multiple_of(QUEUE_ALIGNMENT));
        let at = at.ok_or(BEYOND)?;
        queue.named.set(&mut request, 0);
        let context = queue.context.get_mut(&mut request);
        queue.log_page_size.set(context, 0);
        let within = at & ((1 << LOG_PAGE) - 1);
        queue
            .page_offset
            .set(context, (within / QUEUE_ALIGNMENT) as u32);
        request.truncate(LIST);
        let pages = at >> LOG_PAGE..object.end() >> LOG_PAGE;
        for page in pages.take(QUEUE_PAGES as usize) {
            let address = object.address(page << LOG_PAGE).ok_or(BEYOND)?;
            request.extend(address.to_be_bytes());
        }
    }
    Ok((request, named))
}

/// The object that a CREATE_UMEM asks for; it has no number yet.
#[derive(Debug)]
pub(crate) struct NewMemory(UserMemoryImageV1);

impl NewMemory {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let log_page = given::LOG_PAGE_SIZE.get(request) + LOG_PAGE;
        let offset = u64::from(given::PAGE_OFFSET.get(request));
        if log_page > LOG_MAX_PAGE || offset >> log_page != 0 {
            return Err(refuse(
                Status::BadParameter,
                "pages have 4 KiB to 2 GiB, and the object begins in the first",
            ));
        }
        let list = request.get(given::SIZE..).unwrap_or_default();
        let list = list.as_chunks::<8>().0;
        let count = usize::try_from(given::NUM_OF_MTT.get(request)).unwrap_or(usize::MAX);
        let list = list.get(..count).filter(|list| !list.is_empty());
        let list = list.ok_or(refuse(
            Status::BadInputLength,
            "the list of pages is shorter than it says",
        ))?;
        // The lowest bits say how the memory may be accessed.
        let address = |entry: &[u8; 8]| u64::from_be_bytes(*entry) >> log_page << log_page;
        Ok(Self(UserMemoryImageV1 {
            number: 0,
            log_page,
            offset,
            pages: list.iter().map(address).collect(),
        }))
    }
}

pub(crate) fn create_umem<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewMemory(mut object): NewMemory,
    reply: &mut [u8],
) -> Outcome {
    let number = commands.state().user_memory.free_number();
    let number = number.ok_or(refuse(Status::NoResources, "too many memory objects"))?;
    object.number = number;
    commands
        .engine
        .vf_mut(commands.vf)
        .take_memory(object.held())?;
    commands.state_mut().user_memory.insert(object);
    NUMBER.set(reply, number);
    Ok(())
}

pub(crate) fn destroy_umem<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    number: u32,
) -> Outcome {
    commands.state().user_memory.get(number).ok_or(NO_OBJECT)?;
    if commands.state().user_contexts.is_used(number) {
        return Err(refuse(
            Status::BadResourceState,
            "something lies in the memory object",
        ));
    }
    drop_umem(commands, number);
    Ok(())
}

/// Takes an object away.
pub(crate) fn drop_umem<D: Dma + 'static>(commands: &mut Commands<'_, D>, number: u32) {
    if let Some(gone) = commands.state_mut().user_memory.remove(number) {
        commands.engine.vf_mut(commands.vf).give_memory(gone.held());
        commands.engine.discard(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(image: UserMemoryImageV1) -> UserMemory {
        UserMemory::restore(&[image], &mut Vec::new()).expect("is sound")
    }

    /// A request that names object 3 for a queue from byte `offset` on, and for its record at `record`.
    fn request(offset: u64, record: u64) -> Vec<u8> {
        let mut request = vec![0; LIST];
        QUEUE_PAIR.named.set(&mut request, 1);
        QUEUE_PAIR.number.set(&mut request, 3);
        QUEUE_PAIR.offset.set(&mut request, offset);
        let context = QUEUE_PAIR.context.get_mut(&mut request);
        QUEUE_PAIR.record_named.set(context, 1);
        QUEUE_PAIR.record_number.set(context, 3);
        QUEUE_PAIR.record.set(context, record);
        request
    }

    #[test]
    fn a_queue_lies_where_its_object_does() {
        let objects = objects(UserMemoryImageV1 {
            number: 3,
            log_page: 13,
            offset: 0x1040,
            pages: vec![0x10_0000, 0x40_0000],
        });
        let rule = Rule::of(AnyOpcode::CreateQp);
        let made = resolved(&objects, rule, request(0x40, 0x1f40), |_| true);
        let made = made.expect("is within");
        let (made, named) = made;
        assert_eq!(named, [3, 3]);
        assert!(!is_named(rule, &made));
        let context = QUEUE_PAIR.context.get(&made);
        assert_eq!(qpc::PAGE_OFFSET.get(context), 2);
        // 0x1040 and 0x1f40 is 0x2f80: in the second page of 8 KiB.
        assert_eq!(qpc::DBR_ADDR.get(context), 0x40_0f80);
        let pages: Vec<u64> = made[LIST..]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|it| u64::from_be_bytes(*it))
            .collect();
        assert_eq!(pages, [0x10_1000, 0x40_0000, 0x40_1000]);
        for (offset, record) in [
            (0x2fc0, 0),
            (0x20, 0),
            (u64::MAX, 0),
            (0, 0x2fc0),
            (0, 4),
            (0, u64::MAX - 0x1040),
        ] {
            let refused = resolved(&objects, rule, request(offset, record), |_| true);
            assert!(refused.is_err(), "{offset:#x} {record:#x}");
        }
        let create = |objects: &UserMemory, may: bool| {
            let made = resolved(objects, rule, request(0, 0), |_| may);
            made.is_ok()
        };
        assert!(create(&objects, true));
        assert!(!create(&objects, false));
        assert!(!create(&UserMemory::default(), true));
    }
}
