//! Targets of dynamic connections: CREATE_DCT, DRAIN_DCT, DESTROY_DCT, QUERY_DCT,
//! ARM_DCT_FOR_KEY_VIOLATION. Initiators are queue pairs.

use hca::{DctDesc, Dma, InCompletion, QpAttr, QpState, RemoteRights, RouteMarks};
use wire::{Mtu, Qpn};

use super::queue_pair::messages_held;
use crate::bits::command::Status;
use crate::bits::dynamic::{STATE_ACTIVE, STATE_DRAINED, create_dct_in, dctc, query_dct_out};
use crate::bits::queue_pair::MessagesHeld;
use crate::command::{Commands, NUMBER};
use crate::refusal::{Outcome, Refusal, refuse};

/// The target that a CREATE_DCT asks for.
#[derive(Debug)]
pub(crate) struct NewTarget {
    context: Box<[u8; dctc::SIZE]>,
    /// Without what the function's state says.
    desc: DctDesc,
}

impl NewTarget {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        let context: Box<[u8; dctc::SIZE]> =
            Box::new(create_dct_in::DCT_CONTEXT_ENTRY.array(request));
        let context_bytes = context.as_slice();
        let mtu = Mtu::from_code(dctc::MTU.get(context_bytes) as u8);
        let mtu = mtu.ok_or(refuse(Status::BadParameter, "no such path MTU"))?;
        let cqn = dctc::CQN.get(context_bytes);
        let held = MessagesHeld::from_code(dctc::CS_RES.get(context_bytes));
        let in_completion = InCompletion {
            received: messages_held(held),
            answered: 0,
        };
        let desc = DctDesc {
            pd: dctc::PD.get(context_bytes),
            srqn: dctc::SRQN_XRQN.get(context_bytes),
            cqn,
            key: dctc::DC_ACCESS_KEY.get(context_bytes),
            attr: QpAttr {
                pkey_index: dctc::PKEY_INDEX.get(context_bytes) as u16,
                rights: RemoteRights {
                    read: dctc::RRE.is_set(context_bytes),
                    write: dctc::RWE.is_set(context_bytes),
                    atomic: dctc::RAE.is_set(context_bytes),
                },
                mtu,
                min_rnr_timer: dctc::MIN_RNR_NAK.get(context_bytes) as u8,
                ..QpAttr::default()
            },
            route: RouteMarks {
                flow_label: dctc::FLOW_LABEL.get(context_bytes),
                traffic_class: dctc::TCLASS.get(context_bytes) as u8,
                hop_limit: dctc::HOP_LIMIT.get(context_bytes) as u8,
            },
            counter_set: dctc::COUNTER_SET_ID.get(context_bytes) as u8,
            user_index: None,
            in_completion,
        };
        Ok(Self { context, desc })
    }
}

pub(crate) fn create_dct<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    new: NewTarget,
    reply: &mut [u8],
) -> Outcome {
    let NewTarget { context, mut desc } = new;
    let received = &mut desc.in_completion.received;
    *received = (*received).min(commands.held_by(desc.cqn));
    desc.user_index = commands.user_index(dctc::USER_INDEX.get(context.as_slice()));
    let dctn = commands
        .engine
        .verbs(commands.vf)
        .create_dct(&desc)?
        .value();
    commands.state_mut().contexts.dcts.insert(dctn, context);
    NUMBER.set(reply, dctn);
    Ok(())
}

/// Nothing of a target is under way from one turn to the next, so that it has drained at once.
pub(crate) fn drain_dct<D: Dma + 'static>(commands: &mut Commands<'_, D>, dctn: Qpn) -> Outcome {
    Ok(commands.engine.verbs(commands.vf).drain_dct(dctn)?)
}

pub(crate) fn destroy_dct<D: Dma + 'static>(commands: &mut Commands<'_, D>, dctn: u32) -> Outcome {
    commands
        .engine
        .verbs(commands.vf)
        .destroy_dct(Qpn::new(dctn))?;
    commands.state_mut().contexts.dcts.remove(&dctn);
    Ok(())
}

pub(crate) fn query_dct<D: Dma + 'static>(
    commands: &Commands<'_, D>,
    dctn: u32,
    reply: &mut [u8],
) -> Outcome {
    let view = commands.engine.query_dct(commands.vf, Qpn::new(dctn))?;
    let out = query_dct_out::DCT_CONTEXT_ENTRY.get_mut(reply);
    if let Some(context) = commands.state().contexts.dcts.get(&dctn) {
        let len = out.len().min(context.len());
        out[..len].copy_from_slice(&context[..len]);
    }
    let state = match view.qp.state {
        QpState::ReadyToReceive => STATE_ACTIVE,
        _ => STATE_DRAINED,
    };
    dctc::STATE.set(out, state);
    dctc::DC_ACCESS_KEY_VIOLATION_COUNT.set(out, view.violations);
    Ok(())
}

pub(crate) fn arm_dct<D: Dma + 'static>(commands: &mut Commands<'_, D>, dctn: Qpn) -> Outcome {
    Ok(commands.engine.verbs(commands.vf).arm_dct(dctn)?)
}
