//! Changes of lists of tags.

use hca::work::{Operation, SendWr, TagChange, TagOperation};

use super::{Format, Segments, decode_data};
use crate::bits::memory_key::TERMINATOR_LKEY;
use crate::bits::work::{
    INLINE, SEGMENT, TAG_COMPLETES, TAG_COUNT, TagChangeOpcode, mlx5_wqe_data_seg as data_segment,
    mlx5_wqe_tm_seg as tag_segment,
};

/// A change of a list of tags, and the memory of an entry that is added. It may be none.
#[inline(never)]
pub(super) fn decode(segments: &mut Segments<'_>, format: Format, wr: &mut SendWr) -> Option<()> {
    let change = segments.take::<32>()?;
    let index = tag_segment::INDEX.get(change) as u16;
    let operation = match TagChangeOpcode::from_code(tag_segment::OPCODE.get(change) >> 4)? {
        TagChangeOpcode::Nop => TagOperation::Nop,
        TagChangeOpcode::Remove => TagOperation::Remove { index },
        TagChangeOpcode::Append => {
            let list = segments.take::<SEGMENT>()?;
            let (len, lkey) = (
                data_segment::BYTE_COUNT.get(list),
                data_segment::LKEY.get(list),
            );
            if len & INLINE != 0 {
                return None;
            }
            if len != 0 || lkey != TERMINATOR_LKEY {
                decode_data(&mut Segments(list), wr)?;
            }
            TagOperation::Append {
                next: index,
                tag: tag_segment::APPEND_TAG.get(change),
                mask: tag_segment::APPEND_MASK.get(change),
            }
        }
    };
    if format != Format::Connected {
        return None;
    }
    let flags = tag_segment::FLAGS.get(change);
    wr.operation = Operation::ChangeTags;
    wr.tags = TagChange {
        operation,
        signaled: flags & TAG_COMPLETES != 0,
        seen: (flags & TAG_COUNT != 0).then(|| tag_segment::SW_CNT.get(change) as u16),
    };
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request;
    use crate::testing::vector;

    #[test]
    fn changes_of_tags_name_entries_and_memory() {
        let change = |operation, signaled, seen| TagChange {
            operation,
            signaled,
            seen,
        };
        let append = TagOperation::Append {
            next: 5,
            tag: 0x0102_0304_0506_0708,
            mask: 0xffff_ffff_0000_0000,
        };
        let remove = TagOperation::Remove { index: 5 };
        for (name, expected, memory) in [
            ("tag_append", change(append, true, Some(0x1234)), 0x1000),
            ("tag_append_empty", change(append, true, None), 0),
            ("tag_remove", change(remove, true, None), 0),
            (
                "tag_sync",
                change(TagOperation::Nop, false, Some(0x1234)),
                0,
            ),
        ] {
            let mut wr = SendWr::with_capacity();
            request::decode(&vector(name), Format::Connected, &mut wr).unwrap();
            assert_eq!((wr.operation, wr.tags), (Operation::ChangeTags, expected));
            assert_eq!(wr.payload_len(), memory, "{name}");
            for format in [Format::Xrc, Format::Datagram, Format::Dynamic] {
                let mut wr = SendWr::with_capacity();
                assert!(request::decode(&vector(name), format, &mut wr).is_err());
            }
        }
        // An entry's memory is not inline, and there is no other change.
        for (at, byte) in [(48, 0x80), (16, 0x30)] {
            let mut bytes = vector("tag_append");
            bytes[at] = byte;
            let mut wr = SendWr::with_capacity();
            assert!(request::decode(&bytes, Format::Connected, &mut wr).is_err());
        }
    }
}
