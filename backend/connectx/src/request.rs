//! Work requests as the guest encodes them: copied once, then taken apart here
//! without another look at guest memory.

mod tags;

use hca::Reason;
use hca::work::{
    AddressVector, AtomicOperands, GlobalRoute, MAX_SGE, Offload, Operation, RecvWr, Segmentation,
    SendWr, Sge, WqeError,
};
use wire::{Gid, Lid, QKey, Qpn, Sl};

use crate::bits::memory_key::{self, mkc};
use crate::bits::signature::mlx5_wqe_set_psv_seg as value_segment;
use crate::bits::work::{
    AV_EXTENDED, AV_GRH, INLINE, INLINE_LENGTH, NETWORK_CHECKSUM, PATH_BITS, SEGMENT, SendOpcode,
    TRANSPORT_CHECKSUM, mlx5_wqe_atomic_seg as atomic_segment, mlx5_wqe_av as address_vector,
    mlx5_wqe_ctrl_seg as control, mlx5_wqe_data_seg as data_segment,
    mlx5_wqe_eth_seg as packet_segment, mlx5_wqe_masked_atomic_seg as masked_segment,
    mlx5_wqe_raddr_seg as remote_segment, mlx5_wqe_xrc_seg as xrc_segment,
};

mod key_update;
mod signature;

/// Segments of a send queue's requests, by its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Format {
    /// Connected.
    Connected,
    /// Connected, and naming the responder's shared receive queue.
    Xrc,
    /// With an address vector.
    Datagram,
    /// With an address vector, and what is done to the IP packet.
    Packet,
    /// Connected, with an address vector and an access key.
    Dynamic,
}

/// Values of the completion field that ask for an entry on success.
const COMPLETE: u32 = 2;
/// Values of the fence field from which on reads and atomics are waited for
/// (1 waits for key updates, which are never in flight here).
const FENCE: u32 = 2;
/// Modifiers of the opcode of a masked atomic that say the size of its operands: 8 or 4 bytes. Zero says nothing, as 8
/// bytes did before there were other sizes.
const EXTENDED_ATOMIC_8: u8 = 8 | (3 - 2);
const EXTENDED_ATOMIC_4: u8 = 8;

/// Length in bytes that a request claims, 0 to 1008, from its first segment.
#[inline]
#[must_use]
pub fn len(first: &[u8]) -> usize {
    (control::QPN_DS.get(first) & 0x3f) as usize * SEGMENT
}

/// The modifier of the opcode.
#[inline]
fn modifier(bytes: &[u8]) -> u8 {
    (control::OPMOD_IDX_OPCODE.get(bytes) >> 24) as u8
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
    decode_segments(bytes, format, code, wr).ok_or_else(|| malformed(bytes, wr.index))
}

#[cold]
fn malformed(bytes: &[u8], index: u16) -> WqeError {
    let opcode = control::OPMOD_IDX_OPCODE.get(bytes) as u8;
    let masked = matches!(
        SendOpcode::from_code(opcode),
        Some(SendOpcode::MaskedCompareSwap | SendOpcode::MaskedFetchAdd)
    );
    let unknown = SendOpcode::from_code(opcode).is_none()
        || masked && !matches!(modifier(bytes), 0 | EXTENDED_ATOMIC_8);
    WqeError::Malformed {
        index,
        opcode,
        reason: if unknown {
            Reason::Opcode
        } else {
            Reason::Segments
        },
    }
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
        SendOpcode::KeyUpdate => return key_update::decode(&mut segments, wr),
        SendOpcode::TagMatching => return tags::decode(&mut segments, format, wr),
        SendOpcode::SetPsv => {
            wr.immediate = value_segment::PSV_INDEX.get(segments.take::<16>()?);
            wr.operation = Operation::SetSignature;
            return Some(());
        }
        SendOpcode::Send => Operation::Send,
        SendOpcode::SendStretch if format == Format::Packet => Operation::Send,
        SendOpcode::SendStretch => return None,
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
        Format::Datagram | Format::Packet | Format::Dynamic => {
            decode_destination(&mut segments, format, wr)?;
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
                half: false,
            };
        }
        Operation::MaskedCompareSwap | Operation::MaskedFetchAdd => {
            wr.atomic = decode_masked(&mut segments, modifier(bytes), wr.operation)?;
        }
        _ => {}
    }
    decode_data(&mut segments, wr)
}

/// Operands of a masked atomic, of the size that the opcode's modifier says.
#[inline(never)]
fn decode_masked(
    segments: &mut Segments<'_>,
    modifier: u8,
    operation: Operation,
) -> Option<AtomicOperands> {
    Some(match (operation, modifier) {
        (Operation::MaskedCompareSwap, 0 | EXTENDED_ATOMIC_8) => {
            let operands = segments.take::<32>()?;
            AtomicOperands {
                swap_add: masked_segment::SWAP_ADD.get(operands),
                compare: masked_segment::COMPARE.get(operands),
                swap_mask: masked_segment::SWAP_ADD_MASK.get(operands),
                compare_mask: masked_segment::COMPARE_MASK.get(operands),
                half: false,
            }
        }
        // The second operand has a bit set at the top of each field.
        (_, 0 | EXTENDED_ATOMIC_8) => {
            let operands = segments.take::<16>()?;
            AtomicOperands {
                swap_add: atomic_segment::SWAP_ADD.get(operands),
                swap_mask: atomic_segment::COMPARE.get(operands),
                ..AtomicOperands::default()
            }
        }
        (_, EXTENDED_ATOMIC_4) => {
            let (operands, _) = segments.take::<16>()?.as_chunks::<4>();
            let [first, second, third, fourth] =
                [0, 1, 2, 3].map(|at| u64::from(u32::from_be_bytes(operands[at])));
            if operation == Operation::MaskedCompareSwap {
                AtomicOperands {
                    swap_add: first,
                    compare: second,
                    swap_mask: third,
                    compare_mask: fourth,
                    half: true,
                }
            } else {
                AtomicOperands {
                    swap_add: first,
                    swap_mask: second,
                    half: true,
                    ..AtomicOperands::default()
                }
            }
        }
        _ => return None,
    })
}

/// Where a request goes that does not go to its queue pair's peer. Not inlined, for the sake of those that do.
#[inline(never)]
fn decode_destination(segments: &mut Segments<'_>, format: Format, wr: &mut SendWr) -> Option<()> {
    if format == Format::Dynamic {
        let key = segments.0.first_chunk::<8>()?;
        wr.access_key = u64::from_be_bytes(*key);
    } else if !matches!(wr.operation, Operation::Send | Operation::SendImm) {
        return None;
    }
    wr.address = Some(decode_address(segments)?);
    if format == Format::Packet {
        decode_offload(segments, wr)?;
    }
    Some(())
}

/// Offloads of the packet, behind a segment that says nothing, and the inline headers.
fn decode_offload(segments: &mut Segments<'_>, wr: &mut SendWr) -> Option<()> {
    segments.take::<SEGMENT>()?;
    let bytes = segments.0;
    let segment = bytes.first_chunk::<SEGMENT>()?;
    let header = packet_segment::INLINE_HDR_SZ.get(segment) as usize;
    let (start, _) = packet_segment::INLINE_HDR_START.position();
    let end = start / 8 + header;
    wr.push_inline(bytes.get(start / 8..end)?).ok()?;
    segments.0 = bytes.get(end.next_multiple_of(SEGMENT)..)?;
    let flags = packet_segment::CS_FLAGS.get(segment);
    let cut = wr.opcode == SendOpcode::SendStretch.code();
    wr.offload = Some(Offload {
        network_checksum: flags & NETWORK_CHECKSUM != 0,
        transport_checksum: flags & TRANSPORT_CHECKSUM != 0,
        segmentation: cut.then(|| Segmentation {
            header: header as u16,
            mss: packet_segment::MSS.get(segment) as u16,
        }),
    });
    Some(())
}

/// The destination of a datagram, or of a dynamic connection's request: 48 bytes, or 16 if it says so.
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
        src_path_bits: address_vector::FL_MLID.get(&vector) as u8 & PATH_BITS,
        dest_qp: Qpn::new(dest),
        qkey: QKey::new(crate::bits::dword(&vector, 0)),
        global,
    })
}

/// The payload: inline data and elements of a gather list, in any order.
#[inline]
fn decode_data(segments: &mut Segments<'_>, wr: &mut SendWr) -> Option<()> {
    while !segments.0.is_empty() {
        let segment = segments.0.first_chunk::<SEGMENT>()?;
        let count = data_segment::BYTE_COUNT.get(segment);
        if count & INLINE == 0 {
            wr.push_memory(Sge {
                addr: data_segment::ADDR.get(segment),
                lkey: data_segment::LKEY.get(segment),
                len: count,
            })
            .ok()?;
            segments.0 = &segments.0[SEGMENT..];
        } else {
            let len = (count & INLINE_LENGTH) as usize;
            wr.push_inline(segments.0.get(4..4 + len)?).ok()?;
            segments.0 = segments.0.get((4 + len).next_multiple_of(SEGMENT)..)?;
        }
    }
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

/// Decodes the scatter list of a receive request into `wr`, which is clear. Bits of lengths that are `ignored` mean
/// nothing.
///
/// # Errors
/// [`WqeError::Malformed`].
#[inline]
pub fn decode_scatter(bytes: &[u8], ignored: u32, wr: &mut RecvWr) -> Result<(), WqeError> {
    for segment in bytes.as_chunks::<SEGMENT>().0 {
        let len = data_segment::BYTE_COUNT.get(segment) & !ignored;
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
                reason: Reason::Segments,
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use hca::work::{KeyUpdate, MAX_INLINE, Piece};

    use super::*;
    use crate::testing::vector;

    fn decoded(name: &str, format: Format) -> SendWr {
        let mut wr = SendWr::with_capacity();
        let bytes = vector(name);
        assert_eq!(len(&bytes), bytes.len());
        decode(&bytes, format, &mut wr).unwrap();
        wr
    }

    #[test]
    fn a_send_has_a_gather_list() {
        let wr = decoded("send", Format::Connected);
        assert_eq!(wr.operation, Operation::Send);
        assert_eq!((wr.signaled, wr.solicited, wr.fence), (true, false, false));
        assert_eq!(
            wr.sges,
            [
                Sge {
                    addr: 0x7f00_0000_1000,
                    lkey: 0x1234,
                    len: 0x1000
                },
                Sge {
                    addr: 0x7f00_0000_9000,
                    lkey: 0x5678,
                    len: 0x20
                }
            ]
        );
        assert_eq!(wr.opcode, 0x0a);
    }

    #[test]
    fn inline_data_is_found_in_every_segment() {
        let wr = decoded("send_imm_inline", Format::Connected);
        assert_eq!(wr.inline, b"thirteen byte");
        assert_eq!(
            (wr.operation, wr.immediate),
            (Operation::SendImm, 0xcafe_0001)
        );
        assert_eq!((wr.signaled, wr.solicited), (false, true));

        let wr = decoded("send_inval_inline_twice", Format::Connected);
        assert_eq!(wr.inline, b"a first stretch of inline dataand another");
        assert_eq!(
            (wr.operation, wr.immediate, wr.fence),
            (Operation::SendInvalidate, 0x0a42, true)
        );
        assert!(wr.is_inline);
    }

    #[test]
    fn one_sided_operations_name_remote_memory() {
        for (name, operation) in [
            ("write", Operation::Write),
            ("write_imm_empty", Operation::WriteImm),
            ("read", Operation::Read),
            ("compare_swap", Operation::CompareSwap),
            ("fetch_add", Operation::FetchAdd),
        ] {
            let wr = decoded(name, Format::Connected);
            assert_eq!(wr.operation, operation, "{name}");
            assert_eq!(
                (wr.remote_addr, wr.rkey),
                (0x1122_3344_5566_7788, 0x99aa_bbcc),
                "{name}"
            );
        }
        // A key update in flight is not what this fence waits for.
        assert!(!decoded("read", Format::Connected).fence);
        assert_eq!(
            decoded("write_imm_empty", Format::Connected).payload_len(),
            0
        );
        let swap = decoded("compare_swap", Format::Connected).atomic;
        assert_eq!(
            (swap.swap_add, swap.compare),
            (0x0102_0304_0506_0708, 0x1112_1314_1516_1718)
        );
        assert_eq!((swap.swap_mask, swap.compare_mask), (u64::MAX, u64::MAX));
        assert_eq!(decoded("fetch_add", Format::Connected).atomic.swap_add, 5);
    }

    #[test]
    fn datagrams_have_an_address_of_either_length() {
        let address = decoded("datagram_global", Format::Datagram)
            .address
            .unwrap();
        assert_eq!(address.dlid, Lid::new(0xbeef));
        assert_eq!((address.sl, address.src_path_bits), (Sl::new(5), 7));
        assert_eq!(address.dest_qp, Qpn::new(0x123));
        assert_eq!(address.qkey, QKey::new(0x8001_0000));
        let global = address.global.unwrap();
        assert_eq!(global.dgid.to_bytes()[..2], [0xf0, 0xf1]);
        assert_eq!((global.sgid_index, global.flow_label), (2, 0x12345));
        assert_eq!((global.traffic_class, global.hop_limit), (0x1c, 64));

        let wr = decoded("datagram_compact", Format::Datagram);
        assert_eq!(wr.address.unwrap().global, None);
        assert_eq!(wr.address.unwrap().dest_qp, Qpn::new(0x123));
        assert_eq!(wr.sges.len(), 1);
    }

    #[test]
    fn packets_say_what_is_done_to_them() {
        let wr = decoded("packet", Format::Packet);
        assert_eq!(wr.operation, Operation::Send);
        assert_eq!(wr.address.unwrap().dest_qp, Qpn::new(0x123));
        let checksums = Offload {
            network_checksum: true,
            transport_checksum: true,
            segmentation: None,
        };
        assert_eq!(wr.offload, Some(checksums));
        assert_eq!((wr.payload_len(), wr.is_mixed()), (100, false));

        let wr = decoded("stretch", Format::Packet);
        let headers = b"headers, of any length";
        assert_eq!(wr.operation, Operation::Send);
        let offload = Offload {
            network_checksum: false,
            transport_checksum: true,
            segmentation: Some(Segmentation {
                header: headers.len() as u16,
                mss: 1460,
            }),
        };
        assert_eq!(wr.offload, Some(offload));
        let pieces: Vec<_> = wr.pieces().collect();
        assert_eq!(pieces[0], Piece::Inline(headers));
        assert_eq!(wr.payload_len(), 22 + 9000);
        // Other queue pairs have no such requests.
        let bytes = vector("stretch");
        let mut wr = SendWr::with_capacity();
        assert!(decode(&bytes, Format::Datagram, &mut wr).is_err());
        // Headers that would be longer than the request.
        let mut bytes = vector("stretch");
        bytes[16 + 48 + 16 + 12] = 0xff;
        let mut wr = SendWr::with_capacity();
        assert!(decode(&bytes, Format::Packet, &mut wr).is_err());
    }

    #[test]
    fn requests_of_dynamic_connections_have_an_address_and_a_key() {
        let wr = decoded("dynamic_write", Format::Dynamic);
        assert_eq!(wr.operation, Operation::Write);
        assert_eq!(wr.access_key, 0x0102_0304_0506_0708);
        let address = wr.address.unwrap();
        assert_eq!(address.dest_qp, Qpn::new(0x123));
        assert_eq!((address.dlid, address.sl), (Lid::new(0xbeef), Sl::new(5)));
        assert_eq!(address.global.unwrap().sgid_index, 2);
        assert_eq!(
            (wr.remote_addr, wr.rkey),
            (0x1122_3344_5566_7788, 0x99aa_bbcc)
        );
        assert_eq!(wr.sges.len(), 1);

        let wr = decoded("dynamic_fetch_add_compact", Format::Dynamic);
        assert_eq!(wr.operation, Operation::FetchAdd);
        assert_eq!(wr.access_key, 0x0102_0304_0506_0708);
        assert_eq!(wr.address.unwrap().global, None);
        assert_eq!(wr.atomic.swap_add, 5);
    }

    #[test]
    fn an_xrc_request_names_the_shared_receive_queue() {
        let mut bytes = vector("write");
        bytes.splice(16..16, [0, 0x12, 0x34, 0x56].into_iter().chain([0; 12]));
        bytes[7] += 1;
        let mut wr = SendWr::with_capacity();
        decode(&bytes, Format::Xrc, &mut wr).unwrap();
        assert_eq!((wr.xrc_srqn, wr.rkey), (0x12_3456, 0x99aa_bbcc));
    }

    #[test]
    fn a_key_update_says_what_changes_and_nothing_else() {
        let wr = decoded("key_update", Format::Connected);
        let update = wr.key_update.unwrap();
        assert_eq!(
            *update,
            KeyUpdate {
                mkey: 0x0a42,
                variant: Some(0x43),
                free: Some(false),
                start: Some(0x40_0000),
                len: Some(0x8000),
                local_write: Some(true),
                remote_write: Some(false),
                translation_octwords: 4,
                ..KeyUpdate::default()
            }
        );
        assert_eq!(
            wr.sges,
            [Sge {
                addr: 0x2000,
                lkey: 0x1234,
                len: 64
            }]
        );

        let wr = decoded("key_revoke", Format::Connected);
        assert_eq!(wr.key_update.unwrap().free, Some(true));
        assert_eq!((wr.sges.len(), wr.inline.len()), (0, 0));
    }

    #[test]
    fn windows_are_bound_by_key_updates() {
        let right = Some;
        for (name, two) in [("window_bind_1", false), ("window_bind_2", true)] {
            let wr = decoded(name, Format::Connected);
            let update = KeyUpdate {
                mkey: 0x0a42,
                variant: Some(0x43),
                free: Some(false),
                start: Some(0x7f00_0000_1000),
                len: Some(0x2000),
                local_write: right(false),
                remote_read: right(false),
                remote_write: right(true),
                atomic: right(false),
                qpn: two.then_some(Some(Qpn::new(0xab_cdef))),
                check_free: two,
                translation_octwords: 4,
                ..KeyUpdate::default()
            };
            assert_eq!(*wr.key_update.unwrap(), update, "{name}");
            // A stretch of a region, and nothing in the place of three more.
            let stretch = [
                [0, 0, 0x20, 0, 0, 0, 0x12, 0x34],
                0x7f00_0000_1000_u64.to_be_bytes(),
            ];
            assert_eq!(wr.inline[..16], stretch.concat());
            assert_eq!(wr.inline[16..], [0; 48]);
        }
        for (name, two) in [("window_unbind_1", false), ("window_invalidate", true)] {
            let wr = decoded(name, Format::Connected);
            let update = KeyUpdate {
                mkey: 0x0a42,
                variant: Some(if two { 0 } else { 0x43 }),
                free: Some(true),
                qpn: two.then_some(None),
                check_qpn: two,
                ..KeyUpdate::default()
            };
            assert_eq!(*wr.key_update.unwrap(), update, "{name}");
            assert!(wr.inline.is_empty());
        }
    }

    #[test]
    fn nonsense_is_malformed() {
        let mut wr = SendWr::with_capacity();
        let mut refused = |bytes: &[u8], format| {
            wr.clear();
            decode(bytes, format, &mut wr).is_err()
        };
        let mut unknown = vector("send");
        unknown[3] = 0x77;
        assert!(refused(&unknown, Format::Connected));
        assert!(refused(&vector("write"), Format::Datagram));
        assert!(refused(&vector("write")[..40], Format::Connected));
        let mut short = vector("send_imm_inline");
        short[16..20].copy_from_slice(&(INLINE | 1000).to_be_bytes());
        assert!(refused(&short, Format::Connected));
        let mut empty = vector("send");
        empty[7] = 0;
        assert!(refused(&empty[..16], Format::Connected));
        // Operands of two bytes, and of sixteen.
        for size in [7, 10] {
            let mut masked = vector("ucx_masked_fetch_add_4");
            masked[0] = size;
            assert!(refused(&masked, Format::Connected));
        }
        // Entries of a key partly inline, partly in memory.
        let mut mixed = vector("key_update");
        mixed[7] += 1;
        mixed.extend([0; 16]);
        assert!(!refused(&mixed, Format::Connected));
        mixed[128..132].copy_from_slice(&(INLINE | 4).to_be_bytes());
        assert!(refused(&mixed, Format::Connected));
    }

    /// The payload of a request: what it has inline, and where it gathers.
    fn payload(wr: &SendWr) -> Vec<(Vec<u8>, u64, u32, u32)> {
        let piece = |piece: Piece<'_>| match piece {
            Piece::Inline(bytes) => (bytes.to_vec(), 0, 0, 0),
            Piece::Memory(sge) => (Vec::new(), sge.addr, sge.lkey, sge.len),
        };
        wr.pieces().map(piece).collect()
    }

    #[test]
    fn inline_data_and_memory_follow_each_other() {
        let wr = decoded("ucx_header_and_gather", Format::Connected);
        assert_eq!(wr.payload_len(), 26 + 8230 + 7);
        assert_eq!(
            payload(&wr),
            [
                (b"twenty-six bytes of header".to_vec(), 0, 0, 0),
                (vec![], 0x7f00_0000_1000, 0x1234, 8230),
                (vec![], 0x7f00_0000_9001, 0x5678, 7),
            ]
        );
        let wr = decoded("ucx_datagram", Format::Datagram);
        assert_eq!(wr.address.unwrap().dest_qp, Qpn::new(0x123));
        assert_eq!(
            payload(&wr),
            [
                (b"datagram".to_vec(), 0, 0, 0),
                (vec![], 0x1000, 0x1234, 1000)
            ]
        );
        let wr = decoded("ucx_flush", Format::Connected);
        assert_eq!((wr.operation, wr.fence), (Operation::Nop, true));
        assert!(wr.signaled);
    }

    #[test]
    fn operands_of_masked_atomics() {
        let wr = decoded("ucx_masked_fetch_add_8", Format::Connected);
        assert_eq!(
            (wr.atomic.swap_add, wr.atomic.swap_mask),
            (5, 0x8000_0000_8000_0000)
        );
        assert_eq!(wr.sges.len(), 1);
        let wr = decoded("ucx_masked_compare_swap_8", Format::Connected);
        assert_eq!(
            wr.atomic,
            AtomicOperands {
                swap_add: 1,
                compare: 2,
                swap_mask: 3,
                compare_mask: 4,
                half: false,
            }
        );
        assert_eq!(wr.sges.len(), 1);
        let wr = decoded("ucx_masked_fetch_add_4", Format::Connected);
        assert_eq!(
            wr.atomic,
            AtomicOperands {
                swap_add: 5,
                swap_mask: 0x8000_0000,
                half: true,
                ..AtomicOperands::default()
            }
        );
        let wr = decoded("ucx_masked_compare_swap_4", Format::Connected);
        assert_eq!(
            wr.atomic,
            AtomicOperands {
                swap_add: 1,
                compare: 2,
                swap_mask: 3,
                compare_mask: 4,
                half: true,
            }
        );
        assert_eq!(wr.payload_len(), 4);
    }

    #[test]
    fn a_scatter_list_ends_at_the_terminator_or_with_its_room() {
        let mut bytes = [0; 64];
        for (at, (len, lkey)) in [(16_u32, 1_u32), (0, 1), (32, 2), (0, 0x100)]
            .into_iter()
            .enumerate()
        {
            bytes[at * 16..at * 16 + 4].copy_from_slice(&len.to_be_bytes());
            bytes[at * 16 + 4..at * 16 + 8].copy_from_slice(&lkey.to_be_bytes());
        }
        let mut wr = RecvWr::with_capacity();
        decode_scatter(&bytes, 0, &mut wr).unwrap();
        assert_eq!(
            wr.sges.iter().map(|sge| sge.len).collect::<Vec<_>>(),
            [16, 32]
        );
        bytes[0] = 0x80;
        wr.clear();
        assert!(decode_scatter(&bytes, 0, &mut wr).is_err());
        // More elements than any list may have.
        let mut wr = RecvWr::with_capacity();
        assert!(decode_scatter(&[1; 16 * 65], 0, &mut wr).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 16..1009),
            opcode in prop::sample::select(vec![0_u8, 1, 8, 9, 0xa, 0xb, 0xe, 0x10, 0x11, 0x12, 0x14, 0x15, 0x1b, 0x25, 0x28, 0x77]),
            format in prop::sample::select(vec![Format::Connected, Format::Xrc, Format::Datagram, Format::Packet, Format::Dynamic]),
        ) {
            let mut bytes = bytes;
            bytes[3] = opcode;
            let mut wr = SendWr::with_capacity();
            let _ = decode(&bytes, format, &mut wr);
            prop_assert!(wr.sges.len() <= MAX_SGE && wr.inline.len() <= MAX_INLINE);
            let mut wr = RecvWr::with_capacity();
            let _ = decode_scatter(&bytes, 0, &mut wr);
        }
    }
}
