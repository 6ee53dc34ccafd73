//! Completion queue entries.

use hca::signature::format;
use hca::signature::key::{SignatureError, Wrong};
use hca::work::{CompletionEntry, RecvKind, Side, Source, Status, TagEvent, TagOperation};
use hca::{KeyFault, Reason};

use super::CQE_SIZE;
use crate::bits::completion::{
    APP_TAG_MATCHING, CHECK_SUM, CqeOpcode, NETWORK_CHECKED, RSS_HASH_RESULT, RSS_HASH_TYPE,
    SYNDROME, Syndrome, TAG_SUCCESS, TRANSPORT_CHECKED, TagOpcode, VENDOR_SYNDROME, VendorSyndrome,
    mlx5_cqe64 as cqe, mlx5_tm_cqe as tag_cqe,
};
use crate::bits::signature::{
    DOMAIN_MEMORY, WRONG_APPLICATION, WRONG_GUARD, WRONG_REFERENCE, mlx5_sigerr_cqe as sigerr,
};

/// Encodes everything of an entry but the bit that says whose it is.
///
/// A user index, which versions 1 of completions have, is what drivers look the queue pair up by, of a shared receive
/// queue's completion, too; of one of XRC it is the queue's own.
#[inline]
pub(super) fn encode(entry: &CompletionEntry, bytes: &mut [u8; CQE_SIZE]) {
    let (opcode, send_opcode) = match entry.side {
        Side::Send { opcode } => {
            cqe::SRQN_UIDX.set(bytes, entry.user_index.unwrap_or(0));
            (CqeOpcode::Requester, opcode)
        }
        Side::Signature(error) => return encode_signature_error(entry, &error, bytes),
        Side::Recv {
            kind,
            immediate,
            srqn,
            source,
        } => {
            cqe::SRQN_UIDX.set(bytes, entry.user_index.or(srqn).unwrap_or(0));
            cqe::IMM_INVAL_PKEY.set(bytes, immediate);
            if let Some(source) = source {
                encode_source(&source, bytes);
                if kind == RecvKind::Send {
                    // Management agents learn the partition here.
                    cqe::IMM_INVAL_PKEY.set(bytes, u32::from(source.pkey.value()));
                }
            }
            (received(kind), 0)
        }
        Side::Steered { .. } => (encode_steered(entry, bytes), 0),
        Side::Tagged { .. } | Side::Tags { .. } => (encode_tags(entry, bytes), 0),
    };
    cqe::BYTE_CNT.set(bytes, entry.byte_len);
    cqe::SOP_DROP_QPN.set(bytes, u32::from(send_opcode) << 24 | entry.qpn.value());
    cqe::WQE_COUNTER.set(bytes, u32::from(entry.index));
    let opcode = if entry.status == Status::Success {
        cqe::TIMESTAMP.set(bytes, entry.time);
        opcode
    } else {
        encode_error(entry, bytes)
    };
    cqe::OP_OWN.set(
        bytes,
        u32::from(opcode.code() << 4 | u8::from(entry.solicited) << 1),
    );
}

/// Where a datagram came from.
#[inline]
fn encode_source(source: &Source, bytes: &mut [u8; CQE_SIZE]) {
    cqe::ML_PATH.set(bytes, u32::from(source.path_bits));
    let checked = [
        (source.checked.network, NETWORK_CHECKED),
        (source.checked.transport, TRANSPORT_CHECKED),
    ];
    let checked = checked.iter().filter(|(right, _)| *right);
    cqe::HDS_IP_EXT.set(bytes, checked.fold(0, |bits, (_, bit)| bits | bit));
    cqe::SLID.set(bytes, u32::from(source.slid.value()));
    cqe::FLAGS_RQPN.set(
        bytes,
        u32::from(source.grh) << 28 | u32::from(source.sl.value()) << 24 | source.src_qp.value(),
    );
}

/// A packet in a receive queue of a network interface.
#[inline(never)]
fn encode_steered(entry: &CompletionEntry, bytes: &mut [u8; CQE_SIZE]) -> CqeOpcode {
    if let Side::Steered {
        source,
        hash,
        checksum,
    } = entry.side
    {
        cqe::SRQN_UIDX.set(bytes, entry.user_index.unwrap_or(0));
        encode_source(&source, bytes);
        cqe::IMM_INVAL_PKEY.set(bytes, u32::from(source.pkey.value()));
        RSS_HASH_RESULT.set(bytes, hash.value);
        RSS_HASH_TYPE.set(bytes, hash.kind.into());
        CHECK_SUM.set(bytes, checksum.into());
    }
    CqeOpcode::ResponderSend
}

#[inline]
const fn received(kind: RecvKind) -> CqeOpcode {
    match kind {
        RecvKind::Send => CqeOpcode::ResponderSend,
        RecvKind::SendImm => CqeOpcode::ResponderSendImm,
        RecvKind::SendInvalidate => CqeOpcode::ResponderSendInvalidate,
        RecvKind::WriteImm => CqeOpcode::ResponderWriteImm,
    }
}

/// Further fields of an entry about tags.
#[inline(never)]
fn encode_tags(entry: &CompletionEntry, bytes: &mut [u8; CQE_SIZE]) -> CqeOpcode {
    let (srqn, tag_opcode, opcode) = match entry.side {
        Side::Tagged {
            kind,
            immediate,
            srqn,
            event,
            header,
        } => {
            cqe::IMM_INVAL_PKEY.set(bytes, immediate);
            let tag_opcode = match event {
                TagEvent::NoTag => TagOpcode::NoTag,
                TagEvent::Unexpected => TagOpcode::Unexpected,
                TagEvent::Whole => TagOpcode::ConsumedMessage,
                TagEvent::Matched => TagOpcode::Consumed,
                TagEvent::Received => TagOpcode::Expected,
                TagEvent::Canceled => TagOpcode::Canceled,
            };
            bytes[..header.len()].copy_from_slice(&header);
            let opcode = match event {
                // Libraries expect no message where its data is to come.
                TagEvent::Matched => CqeOpcode::NoPacket,
                _ => received(kind),
            };
            (srqn, tag_opcode, opcode)
        }
        Side::Tags {
            srqn,
            operation,
            done,
            unexpected,
        } => {
            let tag_opcode = match operation {
                TagOperation::Nop => TagOpcode::Nop,
                TagOperation::Append { .. } => TagOpcode::Append,
                TagOperation::Remove { .. } => TagOpcode::Remove,
            };
            tag_cqe::SUCCESS.set(bytes, if done { TAG_SUCCESS } else { 0 });
            tag_cqe::HW_PHASE_CNT.set(bytes, unexpected.into());
            (srqn, tag_opcode, CqeOpcode::NoPacket)
        }
        Side::Send { .. } | Side::Recv { .. } | Side::Steered { .. } | Side::Signature(_) => {
            return CqeOpcode::Invalid;
        }
    };
    cqe::SRQN_UIDX.set(bytes, entry.user_index.unwrap_or(srqn));
    cqe::APP.set(bytes, APP_TAG_MATCHING);
    cqe::APP_OP.set(bytes, tag_opcode.code().into());
    cqe::APP_INFO.set(bytes, entry.index.into());
    opcode
}

/// A block that is not as its signature says.
#[cold]
fn encode_signature_error(
    entry: &CompletionEntry,
    error: &SignatureError,
    bytes: &mut [u8; CQE_SIZE],
) {
    let wrong = match error.wrong {
        Wrong::Guard => WRONG_GUARD,
        Wrong::Application => WRONG_APPLICATION,
        Wrong::Reference => WRONG_REFERENCE,
    };
    let upper = |value: u64| (value >> 32) as u32;
    for (field, value) in [
        (sigerr::EXPECTED_TRANS_SIG, upper(error.expected)),
        (sigerr::ACTUAL_TRANS_SIG, upper(error.actual)),
        (sigerr::EXPECTED_REF_TAG, error.expected as u32),
        (sigerr::ACTUAL_REF_TAG, error.actual as u32),
        (sigerr::SYNDROME, wrong),
        (sigerr::MKEY, error.key),
    ] {
        field.set(bytes, value);
    }
    if error.side == format::Side::Memory {
        sigerr::DOMAIN.set(bytes, DOMAIN_MEMORY);
    }
    sigerr::SIG_ERR_OFFSET.set(bytes, error.offset);
    // Drivers look a queue pair up for every entry before they look what it is.
    cqe::SOP_DROP_QPN.set(bytes, entry.qpn.value());
    let code = CqeOpcode::SignatureError.code() << 4 | u8::from(entry.solicited) << 1;
    sigerr::OP_OWN.set(bytes, code.into());
}

/// The syndrome takes the place of the time stamp.
#[cold]
fn encode_error(entry: &CompletionEntry, bytes: &mut [u8; CQE_SIZE]) -> CqeOpcode {
    let syndrome = match entry.status {
        Status::Success => 0,
        Status::LocalLength => Syndrome::LocalLength.code(),
        Status::LocalQpOperation => Syndrome::LocalQpOperation.code(),
        Status::LocalProtection => Syndrome::LocalProtection.code(),
        Status::Flushed => Syndrome::Flushed.code(),
        Status::MemoryBind => Syndrome::MemoryWindowBind.code(),
        Status::BadResponse => Syndrome::BadResponse.code(),
        Status::LocalAccess => Syndrome::LocalAccess.code(),
        Status::RemoteInvalidRequest => Syndrome::RemoteInvalidRequest.code(),
        Status::RemoteAccess => Syndrome::RemoteAccess.code(),
        Status::RemoteOperation => Syndrome::RemoteOperation.code(),
        Status::RetryExceeded => Syndrome::TransportRetryExceeded.code(),
        Status::RnrRetryExceeded => Syndrome::RnrRetryExceeded.code(),
    };
    bytes[SYNDROME] = syndrome;
    bytes[VENDOR_SYNDROME] = vendor_syndrome(entry);
    match entry.side {
        Side::Send { .. } => CqeOpcode::RequesterError,
        Side::Signature(_) => CqeOpcode::SignatureError,
        Side::Recv { .. } | Side::Steered { .. } | Side::Tagged { .. } | Side::Tags { .. } => {
            CqeOpcode::ResponderError
        }
    }
}

/// Cause that the driver is told besides the status. Of the responder's reasons it
/// hears no more than a packet says: whose key it was, and which, is a matter of
/// another function.
fn vendor_syndrome(entry: &CompletionEntry) -> u8 {
    let local = |fault| match fault {
        KeyFault::Invalid => VendorSyndrome::KeyInvalid,
        KeyFault::Protection => VendorSyndrome::KeyProtection,
        KeyFault::Access => VendorSyndrome::KeyAccess,
        KeyFault::Bounds => VendorSyndrome::KeyBounds,
        KeyFault::Unmapped | KeyFault::Absent => VendorSyndrome::KeyUnmapped,
    };
    let vendor = match (entry.status, entry.reason) {
        (Status::RetryExceeded, _) => VendorSyndrome::RetryExceeded,
        (Status::RemoteAccess, _) => VendorSyndrome::RemoteAccess,
        (Status::RemoteOperation, _) => VendorSyndrome::RemoteOperation,
        (Status::RemoteInvalidRequest, _) => VendorSyndrome::RemoteInvalidRequest,
        (_, Reason::Opcode) => VendorSyndrome::Opcode,
        (_, Reason::Segments) => VendorSyndrome::Segments,
        (_, Reason::Counter) => VendorSyndrome::Counter,
        (_, Reason::Transport) => VendorSyndrome::Transport,
        (_, Reason::InlineAnswer) => VendorSyndrome::InlineAnswer,
        (_, Reason::Length) => VendorSyndrome::Length,
        (_, Reason::AnswerLength) => VendorSyndrome::AnswerLength,
        (_, Reason::Pieces) => VendorSyndrome::Pieces,
        (_, Reason::KeyUpdate) => VendorSyndrome::KeyUpdate,
        (_, Reason::LocalKey(fault)) => local(fault),
        _ => return 0,
    };
    vendor.code()
}
