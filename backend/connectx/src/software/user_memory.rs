//! User memory objects: memory that a driver names once, and queues and doorbell records that lie in it.
//!
//! A request that names them is made into one with pages and addresses, as drivers without such objects
//! send it. Nothing later needs the object; it stays all the same while what lies in it does, since a driver that
//! has been told that it is gone gives the memory to others.

use std::collections::BTreeMap;

use hca::Dma;
use serde::{Deserialize, Serialize};

use super::receive_pool::{Form, umem};
use super::{Commands, LIST, NUMBER, Outcome, Refusal, refuse};
use crate::bits::command::{Opcode, Status, UserMemoryOpcode, create_eq_in as head_in};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::memory_key::{MODE_MTT, create_mkey_in, mkc};
use crate::bits::queue_pair::{create_qp_in, qpc};
use crate::bits::shared_receive::{create_srq_in, srqc};
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

    /// Puts the pages of a region into the request for its key.
    fn lay(&self, request: &mut Vec<u8>) -> Outcome {
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
        let log_page = mkc::LOG_PAGE_SIZE.get(context);
        if !(LOG_PAGE..=self.log_page).contains(&log_page) {
            return Err(refuse(
                Status::BadParameter,
                "a region over a memory object has pages of 4 KiB to those of the object",
            ));
        }
        let page = 1 << log_page;
        let within = mkc::START_ADDR.get(context) & (page - 1);
        let len = mkc::LEN.get(context);
        let at = self.position(KEY_OFFSET.get(request), len);
        let at = at.ok_or(BEYOND)? & !(page - 1);
        let count = len.checked_add(within).ok_or(BEYOND)?.div_ceil(page);
        let fits = at
            .checked_add(count << log_page)
            .filter(|end| *end <= self.end());
        if count > KEY_PAGES || fits.is_none() || mkc::LENGTH64.is_set(context) {
            return Err(BEYOND);
        }
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get_mut(request);
        let octwords = count.div_ceil(2) as u32;
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(request, octwords);
        request.truncate(LIST);
        for index in 0..count {
            let address = self.address(at + index * page).ok_or(BEYOND)?;
            request.extend(address.to_be_bytes());
        }
        if count % 2 != 0 {
            request.extend([0; 8]);
        }
        Ok(())
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

/// How a key names its object; beside [`create_mkey_in::MKEY_UMEM_VALID`].
const KEY_NUMBER: Field = Field::new(0x64, 31, 0);
/// As above: where the region begins in the object, in bytes.
const KEY_OFFSET: Wide = Wide::new(0x68);
/// Pages of the longest region over an object.
const KEY_PAGES: u64 = 1 << 20;
/// Modifier of MODIFY_CQ: another ring.
const RESIZE: u32 = 1;

fn queue(opcode: Opcode, form: Option<Form>, request: &[u8]) -> Option<&'static Queue> {
    match opcode {
        Opcode::CreateCq => Some(&COMPLETION_QUEUE),
        Opcode::ModifyCq if head_in::OP_MOD.get(request) == RESIZE => Some(&COMPLETION_QUEUE),
        Opcode::CreateQp => Some(&QUEUE_PAIR),
        Opcode::CreateSrq if form.is_some() => Some(&SHARED_QUEUE),
        _ => None,
    }
}

/// Whether a request names an object in place of pages or an address.
pub(super) fn is_named(opcode: Opcode, form: Option<Form>, request: &[u8]) -> bool {
    if opcode == Opcode::CreateMkey {
        return create_mkey_in::MKEY_UMEM_VALID.is_set(request);
    }
    queue(opcode, form, request).is_some_and(|queue| {
        queue.named.is_set(request) || queue.record_named.is_set(queue.context.get(request))
    })
}

/// A request without objects, and those that it has named.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    pub request: Vec<u8>,
    pub named: Vec<u32>,
}

const BEYOND: Refusal = refuse(
    Status::BadParameter,
    "the queue, its doorbell record or the region is not within the memory object",
);

/// Whether a key is over pages. Others are over keys, or over all memory.
pub(super) fn has_pages(request: &[u8]) -> bool {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
    mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context) == MODE_MTT
}

impl UserMemory {
    fn get(&self, number: u32) -> Result<&UserMemoryImageV1, Refusal> {
        let none = refuse(Status::BadResource, "no such memory object");
        self.0.get(&number).ok_or(none)
    }

    /// The same request without objects, of which it may name some.
    pub(super) fn resolved(
        &self,
        opcode: Opcode,
        form: Option<Form>,
        mut request: Vec<u8>,
        may: impl Fn(u32) -> bool,
    ) -> Result<Resolved, Refusal> {
        let mut named = Vec::new();
        let mut get = |number: u32| {
            let object = self.get(number)?;
            if !may(number) {
                return Err(refuse(
                    Status::BadResource,
                    "the memory object is another user context's",
                ));
            }
            named.push(number);
            Ok(object)
        };
        if opcode == Opcode::CreateMkey {
            request.resize(request.len().max(LIST), 0);
            create_mkey_in::MKEY_UMEM_VALID.set(&mut request, 0);
            if has_pages(&request) {
                get(KEY_NUMBER.get(&request))?.lay(&mut request)?;
            }
            return Ok(Resolved { request, named });
        }
        let Some(queue) = queue(opcode, form, &request) else {
            return Ok(Resolved { request, named });
        };
        request.resize(request.len().max(LIST), 0);
        let context = queue.context.get_mut(&mut request);
        if opcode == Opcode::ModifyCq {
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
        Ok(Resolved { request, named })
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
                self.state().user_memory.get(number)?;
                if self.state().user_contexts.is_used(number) {
                    return Err(refuse(
                        Status::BadResourceState,
                        "something lies in the memory object",
                    ));
                }
                self.drop_user_memory(number);
                Ok(())
            }
        }
    }

    /// Takes an object away.
    pub(super) fn drop_user_memory(&mut self, number: u32) {
        if let Some(gone) = self.state_mut().user_memory.0.remove(&number) {
            self.engine.give_memory(self.vf, gone.held());
            self.engine.discard(gone);
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
        let made = objects.resolved(Opcode::CreateQp, None, request(0x40, 0x1f40), |_| true);
        let made = made.expect("is within");
        assert_eq!(made.named, [3, 3]);
        let made = made.request;
        assert!(!is_named(Opcode::CreateQp, None, &made));
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
            let refused =
                objects.resolved(Opcode::CreateQp, None, request(offset, record), |_| true);
            assert!(refused.is_err(), "{offset:#x} {record:#x}");
        }
        let create = |objects: &UserMemory, may: bool| {
            objects
                .resolved(Opcode::CreateQp, None, request(0, 0), |_| may)
                .is_ok()
        };
        assert!(create(&objects, true));
        assert!(!create(&objects, false));
        assert!(!create(&UserMemory::default(), true));
    }
}
