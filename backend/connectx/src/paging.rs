//! Paging on demand, as the interface has it: what a page table says of a page, and page faults.

use hca::{Half, NO_READ, NO_WRITE, Needed, PageFault};

use crate::bits::event::{
    EventType, PAGE_FAULT_RDMA, PAGE_FAULT_REQUESTER, PAGE_FAULT_REQUESTER_READ,
    PAGE_FAULT_REQUESTER_WRITE, PAGE_FAULT_RESPONDER, PAGE_FAULT_SHARED, PAGE_FAULT_WRITE,
    PageFaultSubtype, rdma_page_fault_event as rdma, wqe_associated_page_fault_event as wqe,
};
use crate::bits::memory_key::{MTT_READ, MTT_WRITE};
use crate::queue::event::Entry;

/// Offset of the type of a page fault, and of a number, in the event's data.
const TYPE_AND_NUMBER: usize = 0x18;
/// Offset of the token of a page fault that is about a work request: the queue pair's number. Linux
/// (`include/linux/mlx5/device.h`) has it there, the description of the interface nothing.
const TOKEN: usize = 0x0c;

/// Entries of a list of pages: their addresses, and what may not be done with them.
pub(crate) fn entries(list: &[u8]) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
    list.as_chunks::<8>().0.iter().map(|page| {
        let said = u64::from_be_bytes(*page);
        let missing = |right: u64, what: u64| if said & right == 0 { what } else { 0 };
        said & !(NO_READ | NO_WRITE) | missing(MTT_READ, NO_READ) | missing(MTT_WRITE, NO_WRITE)
    })
}

/// The entry that tells the driver of a page fault.
pub(crate) fn entry(fault: PageFault) -> Entry {
    let qpn = fault.qpn.value();
    let about = |subtype: PageFaultSubtype, kind: u32, number: u32| Entry {
        subtype: subtype.code(),
        ..Entry::new(EventType::PageFault).with(TYPE_AND_NUMBER, kind << 24 | number)
    };
    let request = |kind: u32, number: u32, index: u16| {
        let mut entry = about(PageFaultSubtype::Wqe, kind, number).with(TOKEN, qpn);
        wqe::BYTES_COMMITTED.set(&mut entry.data, fault.committed);
        wqe::WQE_INDEX.set(&mut entry.data, index.into());
        wqe::LEN.set(&mut entry.data, fault.packet.into());
        entry
    };
    match fault.of {
        Needed::Send { index, fills: true } => request(PAGE_FAULT_REQUESTER_READ, qpn, index),
        Needed::Send { index, .. } => request(PAGE_FAULT_REQUESTER_WRITE, qpn, index),
        Needed::Receive {
            index,
            srqn: Some(srqn),
        } => request(PAGE_FAULT_SHARED, srqn, index),
        Needed::Receive { index, srqn: None } => request(PAGE_FAULT_RESPONDER, qpn, index),
        Needed::Memory {
            key,
            addr,
            len,
            writes,
        } => {
            let write = if writes { PAGE_FAULT_WRITE } else { 0 };
            let who = match fault.half {
                Half::Requester => PAGE_FAULT_REQUESTER,
                Half::Responder => 0,
            };
            let kind = PAGE_FAULT_RDMA | write | who;
            let mut entry = about(PageFaultSubtype::Rdma, kind, qpn);
            rdma::BYTES_COMMITTED.set(&mut entry.data, fault.committed);
            rdma::R_KEY.set(&mut entry.data, key);
            rdma::PACKET_LEN.set(&mut entry.data, fault.packet.into());
            rdma::RDMA_OP_LEN.set(&mut entry.data, len);
            rdma::RDMA_VA.set(&mut entry.data, addr);
            entry
        }
    }
}

/// The half of a queue pair that a type of page fault is about.
pub(crate) const fn half(kind: u32) -> Half {
    if kind & PAGE_FAULT_REQUESTER != 0 {
        Half::Requester
    } else {
        Half::Responder
    }
}

#[cfg(test)]
mod tests {
    use wire::Qpn;

    use super::*;

    /// The reader of a rendezvous' message waits for memory that nobody has posted: what the driver sends back to have
    /// it go on is of the same half.
    #[test]
    fn both_halves_wait_for_memory() {
        for (side, writes, kind) in [
            (Half::Requester, true, 7),
            (Half::Responder, true, 6),
            (Half::Responder, false, 4),
        ] {
            let of = Needed::Memory {
                key: 0x1234,
                addr: 0x5678_9abc_def0,
                len: 0x1000,
                writes,
            };
            let told = entry(PageFault {
                qpn: Qpn::new(0x42),
                half: side,
                of,
                committed: 0x10,
                packet: 4096,
            });
            assert_eq!(told.subtype, 1);
            let number = u32::from_be_bytes(told.data[0x18..0x1c].try_into().unwrap());
            assert_eq!(number, kind << 24 | 0x42);
            assert_eq!(half(kind), side);
        }
    }
}
