//! Work requests as the guest encodes them: copied once, then taken apart here
//! without another look at guest memory.

use hca::work::{
    AddressVector, AtomicOperands, GlobalRoute, KeyUpdate, MAX_INLINE, MAX_SGE, Operation, RecvWr,
    SendWr, Sge, WqeError,
};
use wire::{Gid, Lid, QKey, Qpn, Sl};

use crate::bits::memory_key::{self, mkc, mlx5_wqe_umr_ctrl_seg as update_segment};
use crate::bits::work::{
    AV_EXTENDED, AV_GRH, INLINE, INLINE_LENGTH, SEGMENT, SendOpcode,
    mlx5_wqe_atomic_seg as atomic_segment, mlx5_wqe_av as address_vector,
    mlx5_wqe_ctrl_seg as control, mlx5_wqe_data_seg as data_segment,
    mlx5_wqe_masked_atomic_seg as masked_segment, mlx5_wqe_raddr_seg as remote_segment,
    mlx5_wqe_xrc_seg as xrc_segment,
};

/// Which segments the requests of a send queue have, by its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Connected.
    Connected,
    /// Connected, and naming the responder's shared receive queue.
    Xrc,
    /// With an address vector.
    Datagram,
}

/// Values of the completion field that ask for an entry on success.
const COMPLETE: u32 = 2;
/// Values of the fence field from which on reads and atomics are waited for
/// (1 waits for key updates, which are never in flight here).
const FENCE: u32 = 2;

/// Length in bytes that a request claims, 0 to 1008, from its first segment.
#[inline]
#[must_use]
pub fn len(first: &[u8]) -> usize {
    (control::QPN_DS.get(first) & 0x3f) as usize * SEGMENT
}

/// The segments of a request, one after the other.
struct Segments<'a>(&'a [u8]);

impl<'a> Segments<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (segment, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(segment)
    }
}

/// Decodes a send request of `bytes` (16 at least) into `wr`, which is clear.
///
/// # Errors
/// [`WqeError::Malformed`].
#[inline]
pub fn decode(bytes: &[u8], format: Format, wr: &mut SendWr) -> Result<(), WqeError> {
    let code = control::OPMOD_IDX_OPCODE.get(bytes) as u8;
    let flags = control::FM_CE_SE.get(bytes);
    wr.opcode = code;
    wr.signaled = flags >> 2 & 3 >= COMPLETE;
    wr.solicited = flags >> 1 & 1 != 0;
    wr.fence = flags >> 5 & 7 >= FENCE;
    wr.immediate = control::IMM.get(bytes);
    decode_segments(bytes, format, code, wr).ok_or(WqeError::Malformed {
        index: wr.index,
        opcode: code,
    })
}

#[inline]
fn decode_segments(bytes: &[u8], format: Format, code: u8, wr: &mut SendWr) -> Option<()> {
    let opcode = SendOpcode::from_code(code)?;
    if len(bytes) < SEGMENT {
        return None;
    }
    let mut segments = Segments(bytes.get(SEGMENT..)?);
    wr.operation = match opcode {
        SendOpcode::Nop => {
            wr.operation = Operation::Nop;
            return Some(());
        }
        SendOpcode::LocalInvalidate => {
            wr.operation = Operation::LocalInvalidate;
            return Some(());
        }
        SendOpcode::KeyUpdate => return decode_key_update(&mut segments, wr),
        SendOpcode::Send => Operation::Send,
        SendOpcode::SendImm => Operation::SendImm,
        SendOpcode::SendInvalidate => Operation::SendInvalidate,
        SendOpcode::RdmaWrite => Operation::Write,
        SendOpcode::RdmaWriteImm => Operation::WriteImm,
        SendOpcode::RdmaRead => Operation::Read,
        SendOpcode::CompareSwap => Operation::CompareSwap,
        SendOpcode::FetchAdd => Operation::FetchAdd,
        SendOpcode::MaskedCompareSwap => Operation::MaskedCompareSwap,
        SendOpcode::MaskedFetchAdd => Operation::MaskedFetchAdd,
    };
    match format {
        Format::Connected => {}
        Format::Xrc => {
            wr.xrc_srqn = xrc_segment::XRC_SRQN.get(segments.take::<16>()?) & 0x00ff_ffff
        }
        Format::Datagram => {
            if !matches!(wr.operation, Operation::Send | Operation::SendImm) {
                return None;
            }
            wr.address = Some(decode_address(&mut segments)?);
        }
    }
    if !matches!(
        wr.operation,
        Operation::Send | Operation::SendImm | Operation::SendInvalidate
    ) {
        let remote = segments.take::<16>()?;
        wr.remote_addr = remote_segment::RADDR.get(remote);
        wr.rkey = remote_segment::RKEY.get(remote);
    }
    match wr.operation {
        Operation::CompareSwap | Operation::FetchAdd => {
            let operands = segments.take::<16>()?;
            wr.atomic = AtomicOperands {
                swap_add: atomic_segment::SWAP_ADD.get(operands),
                compare: atomic_segment::COMPARE.get(operands),
                swap_mask: u64::MAX,
                compare_mask: u64::MAX,
            };
        }
        Operation::MaskedCompareSwap => {
            let operands = segments.take::<32>()?;
            wr.atomic = AtomicOperands {
                swap_add: masked_segment::SWAP_ADD.get(operands),
                compare: masked_segment::COMPARE.get(operands),
                swap_mask: masked_segment::SWAP_ADD_MASK.get(operands),
                compare_mask: masked_segment::COMPARE_MASK.get(operands),
            };
        }
        Operation::MaskedFetchAdd => {
            // The second operand has a bit set at the top of each field.
            let operands = segments.take::<16>()?;
            wr.atomic = AtomicOperands {
                swap_add: atomic_segment::SWAP_ADD.get(operands),
                compare: 0,
                swap_mask: atomic_segment::COMPARE.get(operands),
                compare_mask: 0,
            };
        }
        _ => {}
    }
    decode_data(&mut segments, wr)
}

/// The destination of a datagram: 48 bytes, or 16 if it says so.
#[inline]
fn decode_address(segments: &mut Segments<'_>) -> Option<AddressVector> {
    let dest = address_vector::DQP_DCT.get(segments.0);
    let mut vector = [0; 48];
    if dest & AV_EXTENDED != 0 {
        vector = *segments.take::<48>()?;
    } else {
        vector[..16].copy_from_slice(segments.take::<16>()?);
    }
    let flow = address_vector::GRH_GID_FL.get(&vector);
    let global = (flow & AV_GRH != 0).then(|| GlobalRoute {
        dgid: Gid::from_bytes(address_vector::RGID.array(&vector)),
        sgid_index: (flow >> 20) as u8,
        flow_label: flow & 0x000f_ffff,
        traffic_class: address_vector::TCLASS.get(&vector) as u8,
        hop_limit: address_vector::HOP_LIMIT.get(&vector) as u8,
    });
    Some(AddressVector {
        dlid: Lid::new(address_vector::RLID.get(&vector) as u16),
        sl: Sl::new(address_vector::STAT_RATE_SL.get(&vector) as u8),
        dest_qp: Qpn::new(dest),
        qkey: QKey::new(crate::bits::dword(&vector, 0)),
        global,
    })
}

/// The gather list, or the data itself.
#[inline]
fn decode_data(segments: &mut Segments<'_>, wr: &mut SendWr) -> Option<()> {
    while !segments.0.is_empty() {
        let segment = segments.0.first_chunk::<SEGMENT>()?;
        let count = data_segment::BYTE_COUNT.get(segment);
        if count & INLINE == 0 {
            if wr.is_inline || wr.sges.len() >= MAX_SGE {
                return None;
            }
            wr.sges.push(Sge {
                addr: data_segment::ADDR.get(segment),
                lkey: data_segment::LKEY.get(segment),
                len: count,
            });
            segments.0 = &segments.0[SEGMENT..];
        } else {
            let len = (count & INLINE_LENGTH) as usize;
            let data = segments.0.get(4..4 + len)?;
            if !wr.sges.is_empty() || wr.inline.len() + len > MAX_INLINE {
                return None;
            }
            wr.is_inline = true;
            wr.inline.extend_from_slice(data);
            segments.0 = segments.0.get((4 + len).next_multiple_of(SEGMENT)..)?;
        }
    }
    Some(())
}

/// A change to a memory key: what changes, to what, and the translation
/// entries, as data or where to read them. An update that revokes a key has
/// no entries.
#[cold]
fn decode_key_update(segments: &mut Segments<'_>, wr: &mut SendWr) -> Option<()> {
    let head = segments.take::<48>()?;
    let key = segments.take::<64>()?;
    let flags = update_segment::FLAGS.get(head);
    let mask = update_segment::MKEY_MASK.get(head);
    let changes = |bit: u64| mask & bit != 0;
    let right = |bit: u64, field: crate::bits::Field| changes(bit).then(|| field.is_set(key));
    let offset = if flags & memory_key::UMR_TRANSLATION_OFFSET != 0 {
        u64::from(update_segment::XLT_OFFSET_47_16.get(head)) << 16
            | u64::from(update_segment::XLT_OFFSET.get(head))
    } else {
        0
    };
    let mut update = KeyUpdate {
        mkey: wr.immediate,
        variant: changes(memory_key::MASK_KEY).then(|| mkc::MKEY_7_0.get(key) as u8),
        free: right(memory_key::MASK_FREE, mkc::FREE),
        start: changes(memory_key::MASK_START_ADDR).then(|| mkc::START_ADDR.get(key)),
        len: changes(memory_key::MASK_LEN).then(|| key_length(key)),
        log_page_size: changes(memory_key::MASK_PAGE_SIZE)
            .then(|| mkc::LOG_PAGE_SIZE.get(key) as u8),
        pd: changes(memory_key::MASK_PD).then(|| mkc::PD.get(key)),
        local_read: right(memory_key::MASK_LR, mkc::LR),
        local_write: right(memory_key::MASK_LW, mkc::LW),
        remote_read: right(memory_key::MASK_RR, mkc::RR),
        remote_write: right(memory_key::MASK_RW, mkc::RW),
        atomic: right(memory_key::MASK_A, mkc::A),
        remote_invalidate: right(memory_key::MASK_EN_RINVAL, mkc::EN_RINVAL),
        qpn: changes(memory_key::MASK_QPN).then(|| key_queue_pair(key)),
        check_free: flags & memory_key::UMR_CHECK_FREE != 0,
        translation_offset: offset,
        translation_octwords: update_segment::XLT_OCTOWORDS.get(head),
    };
    if flags & memory_key::UMR_INLINE != 0 {
        let given = segments
            .0
            .len()
            .min(update.translation_octwords as usize * SEGMENT);
        wr.is_inline = true;
        wr.inline.extend_from_slice(&segments.0[..given]);
        update.translation_octwords = (given / SEGMENT) as u32;
    } else {
        decode_data(segments, wr)?;
    }
    wr.operation = Operation::UpdateKey;
    wr.key_update = Some(Box::new(update));
    Some(())
}

/// Length of a region in bytes, [`u64::MAX`] for all memory, from the context
/// of its key.
#[must_use]
pub fn key_length(context: &[u8]) -> u64 {
    if mkc::LENGTH64.is_set(context) {
        u64::MAX
    } else {
        mkc::LEN.get(context)
    }
}

/// The one queue pair that may use a key, from its context.
#[must_use]
pub fn key_queue_pair(context: &[u8]) -> Option<Qpn> {
    let qpn = mkc::QPN.get(context);
    (qpn != memory_key::ANY_QPN).then(|| Qpn::new(qpn))
}

/// Decodes the scatter list of a receive request into `wr`, which is clear.
///
/// # Errors
/// [`WqeError::Malformed`].
#[inline]
pub fn decode_scatter(bytes: &[u8], wr: &mut RecvWr) -> Result<(), WqeError> {
    for segment in bytes.as_chunks::<SEGMENT>().0 {
        let len = data_segment::BYTE_COUNT.get(segment);
        let lkey = data_segment::LKEY.get(segment);
        if len == 0 {
            if lkey == memory_key::TERMINATOR_LKEY {
                break;
            }
            continue;
        }
        if len & INLINE != 0 || wr.sges.len() >= MAX_SGE {
            return Err(WqeError::Malformed {
                index: wr.index,
                opcode: 0,
            });
        }
        wr.sges.push(Sge {
            addr: data_segment::ADDR.get(segment),
            lkey,
            len,
        });
    }
    Ok(())
}
