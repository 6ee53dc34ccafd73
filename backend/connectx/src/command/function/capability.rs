//! Capabilities: QUERY_HCA_CAP and SET_HCA_CAP.

use hca::Dma;

use crate::bits::capability::{
    TYPE_ATOMIC, TYPE_DEBUG, TYPE_DEVICE_MEMORY, TYPE_FLOW_TABLE, TYPE_GENERAL, TYPE_GENERAL_2,
    TYPE_IPOIB_ENHANCED, TYPE_ODP, TYPES_ABSENT, atomic_caps as atomic_cap, cmd_hca_cap as cap,
    debug_cap, odp_cap, query_hca_cap_out, set_hca_cap_in,
};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::command::Commands;
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::capability;

const EXCEEDS: Refusal = refuse(Status::ExceededLimits, "more than the device has");

/// Capabilities that a driver chooses.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Choice {
    General {
        log_max_qp: u32,
        pkey_table_size: u32,
        cqe_version: u32,
        log_uar_page_size: u32,
    },
    /// Paging on demand; no less than all of it.
    Paging,
    Atomic {
        mode: u32,
    },
}

impl Choice {
    /// Reads a SET_HCA_CAP.
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let wanted = set_hca_cap_in::CAPABILITY.get(request);
        match head_in::OP_MOD.get(request) >> 1 {
            TYPE_GENERAL => Ok(Self::General {
                log_max_qp: cap::LOG_MAX_QP.get(wanted),
                pkey_table_size: cap::PKEY_TABLE_SIZE.get(wanted),
                cqe_version: cap::CQE_VERSION.get(wanted),
                log_uar_page_size: cap::LOG_UAR_PAGE_SZ.get(wanted),
            }),
            TYPE_ODP => {
                let max = capability::paging();
                for field in [
                    odp_cap::RC_ODP_CAPS,
                    odp_cap::UD_ODP_CAPS,
                    odp_cap::XRC_ODP_CAPS,
                    odp_cap::DC_ODP_CAPS,
                ] {
                    if field.get(wanted) & !field.get(max.as_slice()) != 0 {
                        return Err(EXCEEDS);
                    }
                }
                Ok(Self::Paging)
            }
            TYPE_ATOMIC => match atomic_cap::ATOMIC_REQ_8B_ENDIANNESS_MODE.get(wanted) {
                mode @ 0..=1 => Ok(Self::Atomic { mode }),
                _ => Err(EXCEEDS),
            },
            _ => Err(refuse(Status::BadParameter, "no such kind of capabilities")),
        }
    }
}

/// Shows the capabilities that a function has, or that its driver has chosen, by the command's modifier.
pub(crate) fn query_hca_cap<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    modifier: u32,
    reply: &mut [u8],
) -> Outcome {
    let current = modifier & 1 == 1;
    let state = commands.state();
    let out = query_hca_cap_out::CAPABILITY.get_mut(reply);
    let mut copy = |from: &[u8]| {
        let len = out.len().min(from.len());
        out[..len].copy_from_slice(&from[..len]);
    };
    match (modifier >> 1, current) {
        (TYPE_GENERAL, true) => copy(state.capabilities.as_slice()),
        (TYPE_GENERAL, false) => {
            copy(capability::general(&state.configuration, &state.quota).as_slice())
        }
        // A driver may ask for less than there is, and has it all.
        (TYPE_ODP, _) => copy(capability::paging().as_slice()),
        (TYPE_ATOMIC, true) => copy(state.atomic_capabilities.as_slice()),
        (TYPE_ATOMIC, false) => copy(capability::atomic().as_slice()),
        // Reserved numbers of queue pairs are taken one by one, as long as it does not say more.
        (TYPE_GENERAL_2, _) => {}
        (TYPE_DEBUG, _) => debug_cap::RESOURCE_DUMP.set(out, 1),
        (TYPE_DEVICE_MEMORY, _) => copy(capability::device_memory(&state.configuration).as_slice()),
        (TYPE_IPOIB_ENHANCED, _) if state.configuration.has_network_queues() => {
            copy(&capability::enhanced_ipoib());
        }
        (TYPE_FLOW_TABLE, _) if state.configuration.has_network_queues() => {
            copy(&capability::flow_tables());
        }
        // Programs ask for these without a look at the general ones: the device has nothing of them.
        (kind, _) if TYPES_ABSENT.contains(&kind) => {}
        _ => return Err(refuse(Status::BadParameter, "no such kind of capabilities")),
    }
    Ok(())
}

/// Keeps the capabilities that the driver wants. It gets no more than there are; values without an effect here are
/// kept, so that it can read them.
pub(crate) fn set_hca_cap<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    choice: Choice,
) -> Outcome {
    let state = commands.state_mut();
    match choice {
        Choice::General {
            log_max_qp,
            pkey_table_size,
            cqe_version,
            log_uar_page_size,
        } => {
            let max = capability::general(&state.configuration, &state.quota);
            for (field, wanted) in [
                (cap::LOG_MAX_QP, log_max_qp),
                (cap::PKEY_TABLE_SIZE, pkey_table_size),
                (cap::CQE_VERSION, cqe_version),
            ] {
                if wanted > field.get(max.as_slice()) {
                    return Err(EXCEEDS);
                }
            }
            for (field, wanted) in [
                (cap::LOG_MAX_QP, log_max_qp),
                (cap::LOG_UAR_PAGE_SZ, log_uar_page_size),
                (cap::CQE_VERSION, cqe_version),
            ] {
                field.set(state.capabilities.as_mut_slice(), wanted);
            }
        }
        // A driver may ask for less than there is, and has it all.
        Choice::Paging => {}
        Choice::Atomic { mode } => {
            atomic_cap::ATOMIC_REQ_8B_ENDIANNESS_MODE
                .set(state.atomic_capabilities.as_mut_slice(), mode);
        }
    }
    Ok(())
}
