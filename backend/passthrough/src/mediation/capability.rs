//! Filters the VF's capabilities for a guest: only known ones pass.
//!
//! A capability that is not listed here is zero for the guest, and its driver does without: Ethernet,
//! on-demand paging, DEVX, dynamic connections, write-combining doorbells.

use connectx::bits::Field;
use connectx::bits::capability::{atomic_caps as atomic, cmd_hca_cap as cap};

/// Kinds of keys that work requests cannot change.
const UMR_DISABLED: [Field; 3] = [
    cap::UMR_MODIFY_ENTITY_SIZE_DISABLED,
    cap::UMR_MODIFY_ATOMIC_DISABLED,
    cap::UMR_INDIRECT_MKEY_DISABLED,
];

/// General capabilities that are the VF's.
const GENERAL: &[Field] = &[
    cap::LOG_MAX_SRQ_SZ,
    cap::LOG_MAX_QP_SZ,
    cap::LOG_MAX_QP,
    cap::LOG_MAX_SRQ,
    cap::LOG_MAX_CQ_SZ,
    cap::LOG_MAX_CQ,
    cap::LOG_MAX_EQ_SZ,
    cap::LOG_MAX_MKEY,
    cap::LOG_MAX_EQ,
    cap::MAX_INDIRECTION,
    cap::LOG_MAX_MRW_SZ,
    cap::LOG_MAX_KLM_LIST_SIZE,
    cap::LOG_MAX_RA_REQ_QP,
    cap::LOG_MAX_RA_RES_QP,
    cap::GID_TABLE_SIZE,
    cap::OUT_OF_SEQ_CNT,
    cap::RETRANSMISSION_Q_COUNTERS,
    cap::ENHANCED_ERROR_Q_COUNTERS,
    cap::MAX_QP_CNT,
    cap::RTS2RTS_QP_COUNTERS_SET_ID,
    cap::PKEY_TABLE_SIZE,
    cap::IB_VIRT,
    cap::LOCAL_CA_ACK_DELAY,
    cap::PORT_TYPE,
    cap::LOG_MAX_MSG,
    cap::CQE_VERSION,
    cap::COMPACT_ADDRESS_VECTOR,
    cap::ATOMIC,
    cap::CQ_OI,
    cap::CQ_RESIZE,
    cap::CQE_128_ALWAYS,
    cap::CQ_MODERATION,
    cap::BLOCK_LB_MC,
    cap::IMAICL,
    cap::QKV,
    cap::PKV,
    cap::SET_DETH_SQPN,
    cap::XRC,
    cap::UD,
    cap::UC,
    cap::RC,
    cap::UAR_4K,
    cap::UAR_SZ,
    cap::LOG_PG_SZ,
    cap::LOG_BF_REG_SIZE,
    cap::MAX_WQE_SZ_SQ,
    cap::MAX_WQE_SZ_RQ,
    cap::MAX_QP_MCG,
    cap::LOG_MAX_MCG,
    cap::LOG_MAX_PD,
    cap::LOG_MAX_XRCD,
    cap::MAX_NUM_EQS,
    cap::DEVICE_FREQUENCY_MHZ,
    cap::DEVICE_FREQUENCY_KHZ,
    cap::NUM_OF_UARS_PER_PAGE,
];

/// Capabilities of atomic operations that are the VF's.
const ATOMIC: &[Field] = &[
    atomic::ATOMIC_REQ_8B_ENDIANNESS_MODE,
    atomic::SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1,
    atomic::ATOMIC_OPERATIONS,
    atomic::ATOMIC_SIZE_QP,
];

/// Filters general capabilities for a guest.
pub(crate) fn general(physical: &[u8]) -> Vec<u8> {
    let mut shown = copied(GENERAL, physical, cap::SIZE);
    for field in UMR_DISABLED {
        field.set(&mut shown, field.get(physical));
    }
    // Firmware has its pages from the daemon.
    cap::PAGE_REQUEST_DISABLE.set(&mut shown, 1);
    cap::NUM_PORTS.set(&mut shown, 1);
    shown
}

/// Has a guest do without work requests that change keys, and so without memory windows.
pub(crate) fn hide_key_updates(shown: &mut [u8]) {
    cap::IMAICL.set(shown, 0);
    for field in UMR_DISABLED {
        field.set(shown, 1);
    }
}

/// Filters the capabilities of atomic operations for a guest.
pub(crate) fn atomic(physical: &[u8]) -> Vec<u8> {
    copied(ATOMIC, physical, atomic::SIZE)
}

fn copied(fields: &[Field], physical: &[u8], size: usize) -> Vec<u8> {
    let mut shown = vec![0; size];
    for field in fields {
        field.set(&mut shown, field.get(physical));
    }
    shown
}
