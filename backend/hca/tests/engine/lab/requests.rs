//! Keys, requests and what comes of them.

use hca::mr::{Access, MemoryKey, Translation};
use hca::work::{AddressVector, CompletionEntry, Operation, RecvKind, SendWr, Sge, Side, Status};
use wire::{QKey, Sl};

use super::{Lab, Qp};

/// Variant byte of the keys here.
pub const VARIANT: u8 = 0x5a;
/// Q_Key of the queue pairs here.
pub const QKEY: QKey = QKey::new(0x1111_1111);

/// All rights.
pub fn everything() -> Access {
    Access::LOCAL_READ
        | Access::LOCAL_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::ATOMIC
}

/// A key to all memory.
pub fn physical(pd: u32) -> MemoryKey {
    MemoryKey {
        variant: VARIANT,
        free: false,
        pd,
        start: 0,
        len: u64::MAX,
        access: everything(),
        remote_invalidate: false,
        updatable: false,
        qpn: None,
        translation: Translation::Physical,
        capacity: 0,
    }
}

/// A signaled request of this operation, with list and index.
pub fn request(operation: Operation, index: u16, sges: &[Sge]) -> SendWr {
    SendWr {
        operation,
        opcode: 0x40 + operation as u8,
        index,
        signaled: true,
        sges: sges.to_vec(),
        ..SendWr::default()
    }
}

/// The same with a remote address.
pub fn remote(operation: Operation, index: u16, sges: &[Sge], addr: u64, rkey: u32) -> SendWr {
    SendWr {
        remote_addr: addr,
        rkey,
        ..request(operation, index, sges)
    }
}

/// A datagram to a queue pair.
pub fn datagram(lab: &Lab, to: &Qp, index: u16, sges: &[Sge]) -> SendWr {
    SendWr {
        address: Some(AddressVector {
            dlid: lab.nodes[to.node].lid,
            sl: Sl::default(),
            src_path_bits: 0,
            dest_qp: to.qpn,
            qkey: QKEY,
            global: None,
        }),
        ..request(Operation::Send, index, sges)
    }
}

/// Index and status of send completions, in order.
pub fn sent(entries: &[CompletionEntry]) -> Vec<(u16, Status)> {
    entries
        .iter()
        .filter(|entry| matches!(entry.side, Side::Send { .. }))
        .map(|entry| (entry.index, entry.status))
        .collect()
}

/// Index, status, length, kind and immediate data of receive completions.
pub fn received(entries: &[CompletionEntry]) -> Vec<(u16, Status, u32, RecvKind, u32)> {
    entries
        .iter()
        .filter_map(|entry| match entry.side {
            Side::Recv {
                kind, immediate, ..
            } => Some((entry.index, entry.status, entry.byte_len, kind, immediate)),
            _ => None,
        })
        .collect()
}

pub use testing::payload as pattern;
