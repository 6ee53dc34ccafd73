//! Requests that change memory keys.

use hca::signature::format::Format;
use hca::work::{KeyUpdate, Operation, SendWr};

use super::{Segments, decode_data, key_length, key_queue_pair};
use crate::bits::memory_key::{self, mkc, mlx5_wqe_umr_ctrl_seg as update_segment};
use crate::bits::work::{BLOCK, SEGMENT};

/// A change to a memory key: what changes, to what, and the translation
/// entries, as data or where to read them. An update that revokes a key has
/// no entries.
#[cold]
pub(super) fn decode(segments: &mut Segments<'_>, wr: &mut SendWr) -> Option<()> {
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
        check_qpn: flags & memory_key::UMR_CHECK_QPN != 0,
        translation_offset: offset,
        translation_octwords: update_segment::XLT_OCTOWORDS.get(head),
        signatures: None,
        signature_values: [None; 2],
        expected_error: right(
            memory_key::MASK_EXPECTED_SIGERR_COUNT,
            mkc::EXPECTED_SIGERR_COUNT,
        ),
        gathered: Vec::new(),
        laid: 0,
    };
    if changes(memory_key::MASK_BSF_EN) {
        update.signatures = Some(None);
        if mkc::BSF_EN.is_set(key) {
            let (format, values) = decode_signatures(segments.0, head, flags)?;
            update.signatures = Some(Some(format));
            update.signature_values = values;
        }
    }
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
        if wr.is_mixed() {
            return None;
        }
    }
    wr.operation = Operation::UpdateKey;
    wr.key_update = Some(Box::new(update));
    Some(())
}

/// The form of the key's bytes, which follows inline entries and what fills up their last block.
fn decode_signatures(inline: &[u8], head: &[u8], flags: u32) -> Option<(Format, [Option<u32>; 2])> {
    let has_no_form = memory_key::UMR_TRANSLATION_OFFSET;
    if flags & memory_key::UMR_INLINE == 0 || flags & has_no_form != 0 {
        return None;
    }
    let entries = update_segment::XLT_OCTOWORDS.get(head) as usize;
    let start = (entries * SEGMENT).next_multiple_of(BLOCK);
    let len = update_segment::BSF_OCTOWORDS.get(head) as usize * SEGMENT;
    super::signature::decode(inline.get(start..)?.get(..len)?)
}
