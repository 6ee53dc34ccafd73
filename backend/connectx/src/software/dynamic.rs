//! Targets of dynamic connections: CREATE_DCT, DRAIN_DCT, DESTROY_DCT, QUERY_DCT,
//! ARM_DCT_FOR_KEY_VIOLATION. Initiators are queue pairs.

use hca::{DctDesc, Dma, InCompletion, QpAttr, QpState, RemoteRights, RouteMarks};
use wire::{Mtu, Qpn};

use super::queue_pair::messages_held;
use super::{Commands, NUMBER, Outcome, refuse};
use crate::bits::command::Status;
use crate::bits::dynamic::{STATE_ACTIVE, STATE_DRAINED, create_dct_in, dctc, query_dct_out};
use crate::bits::queue_pair::MessagesHeld;

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn create_dct(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let context: [u8; dctc::SIZE] = create_dct_in::DCT_CONTEXT_ENTRY.array(request);
        let mtu = Mtu::from_code(dctc::MTU.get(&context) as u8);
        let mtu = mtu.ok_or(refuse(Status::BadParameter, "no such path MTU"))?;
        let cqn = dctc::CQN.get(&context);
        let held = MessagesHeld::from_code(dctc::CS_RES.get(&context));
        let in_completion = InCompletion {
            received: messages_held(held).min(self.held_by(cqn)),
            answered: 0,
        };
        let desc = DctDesc {
            pd: dctc::PD.get(&context),
            srqn: dctc::SRQN_XRQN.get(&context),
            cqn,
            key: dctc::DC_ACCESS_KEY.get(&context),
            attr: QpAttr {
                pkey_index: dctc::PKEY_INDEX.get(&context) as u16,
                rights: RemoteRights {
                    read: dctc::RRE.is_set(&context),
                    write: dctc::RWE.is_set(&context),
                    atomic: dctc::RAE.is_set(&context),
                },
                mtu,
                min_rnr_timer: dctc::MIN_RNR_NAK.get(&context) as u8,
                ..QpAttr::default()
            },
            route: RouteMarks {
                flow_label: dctc::FLOW_LABEL.get(&context),
                traffic_class: dctc::TCLASS.get(&context) as u8,
                hop_limit: dctc::HOP_LIMIT.get(&context) as u8,
            },
            counter_set: dctc::COUNTER_SET_ID.get(&context) as u8,
            user_index: self.user_index(dctc::USER_INDEX.get(&context)),
            in_completion,
        };
        let dctn = self.engine.create_dct(self.vf, &desc)?.value();
        self.state_mut()
            .contexts
            .dcts
            .insert(dctn, Box::new(context));
        NUMBER.set(reply, dctn);
        Ok(())
    }

    /// Nothing of a target is under way from one turn to the next, so that it has drained at once.
    pub(super) fn drain_dct(&mut self, request: &[u8]) -> Outcome {
        let dctn = Qpn::new(NUMBER.get(request));
        Ok(self.engine.drain_dct(self.vf, dctn)?)
    }

    pub(super) fn destroy_dct(&mut self, request: &[u8]) -> Outcome {
        let dctn = NUMBER.get(request);
        self.engine.destroy_dct(self.vf, Qpn::new(dctn))?;
        self.state_mut().contexts.dcts.remove(&dctn);
        Ok(())
    }

    pub(super) fn query_dct(&self, request: &[u8], reply: &mut [u8]) -> Outcome {
        let dctn = NUMBER.get(request);
        let view = self.engine.query_dct(self.vf, Qpn::new(dctn))?;
        let out = query_dct_out::DCT_CONTEXT_ENTRY.get_mut(reply);
        if let Some(context) = self.state().contexts.dcts.get(&dctn) {
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

    pub(super) fn arm_dct(&mut self, request: &[u8]) -> Outcome {
        let dctn = Qpn::new(NUMBER.get(request));
        Ok(self.engine.arm_dct(self.vf, dctn)?)
    }
}
