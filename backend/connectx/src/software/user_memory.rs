//! User memory objects: memory that a driver names once, and queues and doorbell records that lie in it.
//!
//! A request that names them is made into one with pages and addresses, as drivers without such objects
//! send it. Nothing later needs the object: it may go before the queue does.

use std::collections::BTreeMap;

use hca::Dma;
use serde::{Deserialize, Serialize};

use super::{Commands, LIST, NUMBER, Outcome, Refusal, refuse};
use crate::bits::command::{Opcode, Status, UserMemoryOpcode};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::queue_pair::{create_qp_in, qpc};
use crate::bits::{Field, Span, Wide};

/// Request of CREATE_UMEM: the page size, as a power of two of 4 KiB.
const LOG_PAGE_SIZE: Field = Field::new(0x20, 4, 0);
/// As above: where the object begins in the first page, in bytes.
const PAGE_OFFSET: Field = Field::new(0x24, 31, 0);
/// As above: how many pages follow.
const NUM_OF_MTT: Wide = Wide::new(0x28);
/// As above: where the pages are.
const PAGES: usize = 0x30;

/// Largest page, as a power of two.
const LOG_MAX_PAGE: u32 = 31;
/// Smallest page, as a power of two; queues are told of in such pages.
const LOG_PAGE: u32 = 12;
/// Objects that a function may have, as a power of two.
pub(crate) const LOG_MAX: u32 = 12;
/// Objects that a function may have.
const MOST: usize = 1 << LOG_MAX;
/// Bytes of the host's memory that an object takes beside its list.
const HEAD: usize = 64;
/// Pages of the longest queue, and one.
const QUEUE_PAGES: u64 = (1 << 27 >> LOG_PAGE) + 1;
/// Where queues may begin, in bytes.
const QUEUE_ALIGNMENT: u64 = 64;
/// Bytes of a doorbell record.
const RECORD: u64 = 8;

/// An object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserMemoryImageV1 {
    number: u32,
    log_page: u32,
    offset: u64,
    pages: Vec<u64>,
}

impl UserMemoryImageV1 {
    fn held(&self) -> usize {
        HEAD + 8 * self.pages.len()
    }

    fn end(&self) -> u64 {
        (self.pages.len() as u64) << self.log_page
    }

    /// Where byte `at` of the object is, in bytes from the first page's start, if `len` bytes are there.
    fn position(&self, at: u64, len: u64) -> Option<u64> {
        let begin = self.offset.checked_add(at)?;
        (begin.checked_add(len)? <= self.end()).then_some(begin)
    }

    /// DMA address of a byte from the first page's start.
    fn address(&self, position: u64) -> Option<u64> {
        let page = self.pages.get((position >> self.log_page) as usize)?;
        Some(page | position & ((1 << self.log_page) - 1))
    }
}

/// A function's objects, by number.
#[derive(Debug, Default)]
pub(crate) struct UserMemory(BTreeMap<u32, UserMemoryImageV1>);

/// How requests name where a queue lies.
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
    number: Field::new(0x58, 31, 0),
    offset: Wide::new(0x50),
    context: create_cq_in::CQ_CONTEXT,
    record_named: cqc::DBR_UMEM_VALID,
    record_number: Field::new(0x04, 31, 0),
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
    record_number: Field::new(0xe4, 31, 0),
    record: qpc::DBR_ADDR,
    log_page_size: qpc::LOG_PAGE_SIZE,
    page_offset: qpc::PAGE_OFFSET,
};

const fn queue(opcode: Opcode) -> Option<&'static Queue> {
    match opcode {
        Opcode::CreateCq => Some(&COMPLETION_QUEUE),
        Opcode::CreateQp => Some(&QUEUE_PAIR),
        _ => None,
    }
}

/// Whether a request names an object in place of pages or an address.
pub(super) fn is_named(opcode: Opcode, request: &[u8]) -> bool {
    queue(opcode).is_some_and(|queue| {
        queue.named.is_set(request) || queue.record_named.is_set(queue.context.get(request))
    })
}

const BEYOND: Refusal = refuse(
    Status::BadParameter,
    "the queue or its doorbell record is not within the memory object",
);

impl UserMemory {
    fn get(&self, number: u32) -> Result<&UserMemoryImageV1, Refusal> {
        let none = refuse(Status::BadResource, "no such memory object");
        self.0.get(&number).ok_or(none)
    }

    /// The same request without objects.
    pub fn resolved(&self, opcode: Opcode, mut request: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let Some(queue) = queue(opcode) else {
            return Ok(request);
        };
        request.resize(request.len().max(LIST), 0);
        let context = queue.context.get_mut(&mut request);
        if queue.record_named.is_set(context) {
            let object = self.get(queue.record_number.get(context))?;
            let at = object.position(queue.record.get(context), RECORD);
            let at = at.filter(|at| at.is_multiple_of(RECORD)).ok_or(BEYOND)?;
            queue.record.set(context, object.address(at).ok_or(BEYOND)?);
            queue.record_named.set(context, 0);
        }
        if queue.named.is_set(&request) {
            let object = self.get(queue.number.get(&request))?;
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
        Ok(request)
    }

    /// What an image has of them.
    pub fn save(&self) -> Vec<UserMemoryImageV1> {
        self.0.values().cloned().collect()
    }

    /// Those of an image; what they take of the host's memory goes to `held`.
    pub fn restore(
        images: &[UserMemoryImageV1],
        held: &mut Vec<usize>,
    ) -> Result<Self, &'static str> {
        let mut objects = BTreeMap::new();
        for image in images.iter().take(MOST) {
            let sound = (LOG_PAGE..=LOG_MAX_PAGE).contains(&image.log_page)
                && image.offset < 1 << image.log_page
                && !image.pages.is_empty();
            if !sound || objects.insert(image.number, image.clone()).is_some() {
                return Err("a memory object is there twice, or cannot be");
            }
            held.push(image.held());
        }
        Ok(Self(objects))
    }
}

impl<D: Dma + 'static> Commands<'_, D> {
    /// Carries out a command about a memory object.
    pub(super) fn user_memory(
        &mut self,
        opcode: UserMemoryOpcode,
        request: &[u8],
        reply: &mut [u8],
    ) -> Outcome {
        if !self.state().is_initialized() {
            return Err(super::TOO_EARLY);
        }
        match opcode {
            UserMemoryOpcode::Create => self.create_user_memory(request, reply),
            UserMemoryOpcode::Destroy => {
                let number = NUMBER.get(request);
                let held = self.state().user_memory.get(number)?.held();
                let gone = self.state_mut().user_memory.0.remove(&number);
                self.engine.discard(gone);
                self.engine.give_memory(self.vf, held);
                Ok(())
            }
        }
    }

    fn create_user_memory(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let log_page = LOG_PAGE_SIZE.get(request) + LOG_PAGE;
        let offset = u64::from(PAGE_OFFSET.get(request));
        if log_page > LOG_MAX_PAGE || offset >> log_page != 0 {
            return Err(refuse(
                Status::BadParameter,
                "pages have 4 KiB to 2 GiB, and the object begins in the first",
            ));
        }
        let list = request.get(PAGES..).unwrap_or_default().as_chunks::<8>().0;
        let count = usize::try_from(NUM_OF_MTT.get(request)).unwrap_or(usize::MAX);
        let list = list.get(..count).filter(|list| !list.is_empty());
        let list = list.ok_or(refuse(
            Status::BadInputLength,
            "the list of pages is shorter than it says",
        ))?;
        let taken = &self.state().user_memory.0;
        if taken.len() >= MOST {
            return Err(refuse(Status::NoResources, "too many memory objects"));
        }
        let last = taken.last_key_value().map_or(0, |(number, _)| *number);
        let number = if last < u32::from(u16::MAX) {
            last + 1
        } else {
            (1..).find(|it| !taken.contains_key(it)).unwrap_or(1)
        };
        // The lowest bits say how the memory may be accessed.
        let address = |entry: &[u8; 8]| u64::from_be_bytes(*entry) >> log_page << log_page;
        let object = UserMemoryImageV1 {
            number,
            log_page,
            offset,
            pages: list.iter().map(address).collect(),
        };
        self.engine.take_memory(self.vf, object.held())?;
        self.state_mut().user_memory.0.insert(number, object);
        NUMBER.set(reply, number);
        Ok(())
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
        let made = objects.resolved(Opcode::CreateQp, request(0x40, 0x1f40));
        let made = made.expect("is within");
        assert!(!is_named(Opcode::CreateQp, &made));
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
            let refused = objects.resolved(Opcode::CreateQp, request(offset, record));
            assert!(refused.is_err(), "{offset:#x} {record:#x}");
        }
        assert!(
            UserMemory::default()
                .resolved(Opcode::CreateQp, request(0, 0))
                .is_err()
        );
    }
}
