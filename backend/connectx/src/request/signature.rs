//! Forms of streams of bytes with signatures (BSF), as requests that change memory keys have them.

use hca::signature::digest::Algorithm;
use hca::signature::format::{Escape, Format, Signature, Tags};

use crate::bits::signature::{
    BLOCKS, DIF_CHECKSUM, DIF_CRC, DIF_ESCAPE_APPLICATION, DIF_ESCAPE_BOTH, DIF_INCREMENT,
    DIF_ONES, DIF_REFRESH, DIF_REPEAT, DIF_VALID, FORM, PSV_MASK, SAME_STRUCTURE, SELECT_CRC32,
    SELECT_CRC32C, SELECT_REPEAT, SELECT_ZEROS, SELECTOR_SHIFT, SIZE_SHIFT, SIZE_WITH_INLINE,
    mlx5_bsf_basic as basic, mlx5_bsf_ext as all_blocks, mlx5_bsf_inl as dif,
};

/// Bytes of each part of a form.
const PART: usize = 16;

/// A form, and the values under way that it names; `None` where it is none that the device knows: of another length,
/// with something behind all blocks together, with encryption, or with algorithms that are not there.
pub(super) fn decode(bytes: &[u8]) -> Option<(Format, [Option<u32>; 2])> {
    let bytes: &[u8; FORM] = bytes.try_into().ok()?;
    let head = basic::BSF_SIZE_SBS.get(bytes);
    let same = head & SAME_STRUCTURE != 0;
    if head & !SAME_STRUCTURE != SIZE_WITH_INLINE << SIZE_SHIFT {
        return None;
    }
    let (behind_all, sides) = bytes[PART..].split_at(PART);
    let fields = [
        all_blocks::T_INIT_GEN_PRO_SIZE,
        all_blocks::RSVD_EPI_SIZE,
        all_blocks::W_TFS_PSV,
        all_blocks::M_TFS_PSV,
    ];
    if fields.iter().any(|field| field.is_set(behind_all)) {
        return None;
    }
    let (of_wire, of_memory) = sides.split_at(PART);
    let size = |selector: u32| BLOCKS.get(selector as usize).copied();
    let memory_block = size(basic::MEM.get(bytes))?;
    let (wire_block, copy) = if same {
        (memory_block, Some(basic::WIRE.get(bytes) as u8))
    } else {
        (size(basic::WIRE.get(bytes))?, None)
    };
    let (memory_value, wire_value) = (basic::M_BFS_PSV.get(bytes), basic::W_BFS_PSV.get(bytes));
    let format = Format {
        memory: side(memory_block, memory_value >> SELECTOR_SHIFT, of_memory)?,
        wire: side(wire_block, wire_value >> SELECTOR_SHIFT, of_wire)?,
        check: basic::CHECK_BYTE_MASK.get(bytes) as u8,
        copy,
    };
    let named = |side: Option<Signature>, value: u32| side.map(|_| value & PSV_MASK);
    let values = [
        named(format.memory, memory_value),
        named(format.wire, wire_value),
    ];
    format.is_valid().then_some((format, values))
}

/// Signature of one side; `Some(None)` is nothing.
fn side(block: u16, selector: u32, part: &[u8]) -> Option<Option<Signature>> {
    let is_dif = dif::VLD_REFRESH.is_set(part);
    match (block, selector, is_dif) {
        (0, 0, false) => Some(None),
        (0, ..) => None,
        (_, 0, true) => protection(block, part).map(Some),
        (_, _, false) => crc(block, selector).map(Some),
        _ => None,
    }
}

/// A CRC of 32 bits behind each block.
fn crc(block: u16, selector: u32) -> Option<Signature> {
    let algorithm = match selector & !SELECT_ZEROS {
        kind if kind == SELECT_CRC32 | SELECT_REPEAT => Algorithm::Crc32,
        kind if kind == SELECT_CRC32C | SELECT_REPEAT => Algorithm::Crc32c,
        _ => return None,
    };
    Some(Signature {
        algorithm,
        ones: selector & SELECT_ZEROS == 0,
        tags: None,
        block,
    })
}

/// T10-DIF behind each block. Each use of the key begins with the tags that are here.
fn protection(block: u16, part: &[u8]) -> Option<Signature> {
    let how = dif::RP_INV_SEED.get(part);
    let flags = dif::DIF_INC_REF_GUARD_CHECK.get(part);
    let known = DIF_INCREMENT | DIF_ESCAPE_APPLICATION | DIF_ESCAPE_BOTH;
    if dif::VLD_REFRESH.get(part) != DIF_VALID | DIF_REFRESH
        || how & !DIF_ONES != DIF_REPEAT
        || flags & !known != 0
    {
        return None;
    }
    Some(Signature {
        algorithm: match dif::SIG_TYPE.get(part) {
            DIF_CRC => Algorithm::T10Dif,
            DIF_CHECKSUM => Algorithm::Checksum,
            _ => return None,
        },
        ones: how & DIF_ONES != 0,
        tags: Some(Tags {
            application: dif::DIF_APPTAG.get(part) as u16,
            application_mask: dif::DIF_APP_BITMASK_CHECK.get(part) as u16,
            reference: dif::DIF_REFTAG.get(part),
            increments: flags & DIF_INCREMENT != 0,
            escape: if flags & DIF_ESCAPE_BOTH != 0 {
                Escape::Both
            } else if flags & DIF_ESCAPE_APPLICATION != 0 {
                Escape::Application
            } else {
                Escape::Never
            },
        }),
        block,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::Field;

    /// A form with these fields of its first part, and of the parts of the wire and of memory.
    fn form(head: &[(Field, u32)], wire: &[(Field, u32)], memory: &[(Field, u32)]) -> [u8; FORM] {
        let mut bytes = [0; FORM];
        for (at, fields) in [(0, head), (32, wire), (48, memory)] {
            for (field, value) in fields {
                field.set(&mut bytes[at..at + PART], *value);
            }
        }
        bytes
    }

    const HEAD: (Field, u32) = (basic::BSF_SIZE_SBS, SIZE_WITH_INLINE << SIZE_SHIFT);
    const SAME: (Field, u32) = (
        basic::BSF_SIZE_SBS,
        SIZE_WITH_INLINE << SIZE_SHIFT | SAME_STRUCTURE,
    );

    /// Fields that Linux' `mlx5_fill_inl_bsf` writes.
    fn of_linux(tag: u32) -> Vec<(Field, u32)> {
        vec![
            (dif::VLD_REFRESH, DIF_VALID | DIF_REFRESH),
            (dif::DIF_APPTAG, 0xabcd),
            (dif::DIF_REFTAG, tag),
            (dif::SIG_TYPE, DIF_CRC),
            (dif::RP_INV_SEED, DIF_REPEAT),
            (dif::DIF_INC_REF_GUARD_CHECK, DIF_INCREMENT),
            (dif::DIF_APP_BITMASK_CHECK, 0xffff),
        ]
    }

    #[test]
    fn forms_that_drivers_write() {
        let signature = Signature {
            algorithm: Algorithm::T10Dif,
            ones: false,
            tags: Some(Tags {
                application: 0xabcd,
                application_mask: 0xffff,
                reference: 7,
                increments: true,
                escape: Escape::Never,
            }),
            block: 512,
        };
        // Linux, both sides the same.
        let head = [
            SAME,
            (basic::CHECK_BYTE_MASK, 0xcf),
            (basic::WIRE, 0xf0),
            (basic::MEM, 1),
            (basic::W_BFS_PSV, 0x1234),
            (basic::M_BFS_PSV, 0x5678),
        ];
        let bytes = form(&head, &of_linux(9), &of_linux(7));
        let mut of_wire = signature;
        of_wire.tags.as_mut().unwrap().reference = 9;
        let format = Format {
            memory: Some(signature),
            wire: Some(of_wire),
            check: 0xcf,
            copy: Some(0xf0),
        };
        assert_eq!(decode(&bytes), Some((format, [Some(0x5678), Some(0x1234)])));
        // libmlx5, a CRC on the wire alone, with a seed of ones and with one of zeros.
        for (selector, algorithm, ones) in [
            (0x22, Algorithm::Crc32, true),
            (0x23, Algorithm::Crc32, false),
            (0x42, Algorithm::Crc32c, true),
        ] {
            let head = [
                HEAD,
                (basic::CHECK_BYTE_MASK, 0xf0),
                (basic::WIRE, 6),
                (basic::W_BFS_PSV, selector << 24 | 0x1234),
            ];
            let format = Format {
                memory: None,
                wire: Some(Signature {
                    algorithm,
                    ones,
                    tags: None,
                    block: 4048,
                }),
                check: 0xf0,
                copy: None,
            };
            let bytes = form(&head, &[], &[]);
            assert_eq!(decode(&bytes), Some((format, [None, Some(0x1234)])));
        }
    }

    #[test]
    fn forms_that_the_device_does_not_know() {
        let memory = (basic::MEM, 1);
        let dif = of_linux(7);
        let without = |field: Field| -> Vec<_> {
            let kept = dif.iter().filter(|(of, _)| *of != field);
            kept.copied().collect()
        };
        for (what, bytes) in [
            ("another length", form(&[memory], &[], &dif)),
            ("no block", form(&[HEAD], &[], &dif)),
            ("no such block", form(&[HEAD, (basic::MEM, 5)], &[], &dif)),
            ("a long block", form(&[HEAD, (basic::MEM, 0xff)], &[], &dif)),
            ("no signature", form(&[HEAD, memory], &[], &[])),
            ("a lone side", form(&[SAME, memory], &[], &dif)),
            (
                "two signatures",
                form(&[HEAD, memory, (basic::M_BFS_PSV, 0x2200_0000)], &[], &dif),
            ),
            (
                "no such CRC",
                form(&[HEAD, memory, (basic::M_BFS_PSV, 0x5200_0000)], &[], &[]),
            ),
            (
                "one block",
                form(&[HEAD, memory, (basic::M_BFS_PSV, 0x2000_0000)], &[], &[]),
            ),
            (
                "one block of T10-DIF",
                form(&[HEAD, memory], &[], &without(super::dif::RP_INV_SEED)),
            ),
            (
                "no guard",
                form(&[HEAD, memory], &[], &without(super::dif::SIG_TYPE)),
            ),
        ] {
            assert_eq!(decode(&bytes), None, "{what}");
        }
        let bytes = form(&[HEAD, memory], &[], &dif);
        assert!(decode(&bytes).is_some());
        assert_eq!(decode(&bytes[..48]), None);
        for at in 16..32 {
            let mut bytes = bytes;
            bytes[at] = 1;
            assert_eq!(decode(&bytes), None, "something behind all blocks");
        }
    }
}
