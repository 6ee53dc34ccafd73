//! Queues: event queues, completion queues, shared receive queues and queue pairs.

use connectx::bits::Field;
use connectx::bits::command::{Opcode, Status, create_eq_in};
use connectx::bits::completion::{CQ_UMEM_OFFSET, cqc, create_cq_in, modify_cq_in};
use connectx::bits::event::{STATE_ARMED, STATE_FIRED, destroy_eq_in, eqc, query_eq_out};
use connectx::bits::queue_pair::{ReceiveType, ServiceType, ads, create_qp_in, qpc};
use connectx::bits::shared_receive::{create_srq_in, srqc};
use connectx::parse_event_queue;

use super::pages::{check_pages, check_record};
use super::partition::Change;
use super::{After, Judge, LIST, NUMBER, Refusal, Verdict, made, refuse};
use crate::mediation::guest::Kind;
use crate::policy::{Isolation, Smp};

/// Bytes behind the context of a request about a completion queue that name memory of user contexts.
const CQ_USER_MEMORY: std::ops::Range<usize> = CQ_UMEM_OFFSET.position().0 / 8..LIST;
/// The same behind the context of a queue pair.
const QP_USER_MEMORY: std::ops::Range<usize> = create_qp_in::WQ_UMEM_OFFSET.position().0 / 8..LIST;
/// In the context of a completion queue: the record of its doorbell is in memory of a user context; its events are for an
/// accelerator.
const CQ_OF_OTHERS: [Field; 2] = [cqc::DBR_UMEM_VALID, cqc::APU_CQ];
/// Smallest page, as a power of two.
const LOG_PAGE: u32 = 12;

impl Judge<'_> {
    /// A queue for completions is the VF's. One for anything else is filled by the daemon, which alone
    /// hears of such events; the VF gets a queue that stays empty, so that the number is taken.
    pub(super) fn create_event_queue(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get(request);
        let vector = eqc::INTR.get(context);
        let log_size = LOG_PAGE + eqc::LOG_PAGE_SIZE.get(context);
        check_pages(request.get(LIST..).unwrap_or_default(), log_size)?;
        let queue = parse_event_queue(request, self.facts.vectors, true)?;
        let queue = (queue.mask != 0).then(|| Box::new(queue));
        create_eq_in::EVENT_BITMASK.get_mut(request).fill(0);
        let context = create_eq_in::EQ_CONTEXT_ENTRY.get_mut(request);
        if queue.is_some() {
            eqc::INTR.set(context, 0);
        }
        self.translate_page(eqc::UAR_PAGE, context)?;
        Ok(Verdict::Forward(After::EventQueue(queue, vector)))
    }

    pub(super) fn query_event_queue(&self, request: &[u8]) -> Result<Verdict, Refusal> {
        let eqn = destroy_eq_in::EQ_NUMBER.get(request);
        self.own(Kind::EventQueue, eqn)?;
        let Some(queue) = self.guest.events.get(&(eqn as u8)) else {
            let at = query_eq_out::EQ_CONTEXT_ENTRY.position().0 / 8;
            return Ok(Verdict::Forward(After::ShowPage(eqc::UAR_PAGE, at)));
        };
        let mut reply = vec![0; query_eq_out::SIZE];
        query_eq_out::EVENT_BITMASK.set(&mut reply, queue.mask);
        let context = query_eq_out::EQ_CONTEXT_ENTRY.get_mut(&mut reply);
        let (producer, consumer) = queue.counters();
        let state = if queue.has_fired() {
            STATE_FIRED
        } else {
            STATE_ARMED
        };
        for (field, value) in [
            (eqc::ST, state),
            (eqc::LOG_EQ_SIZE, queue.log_size()),
            (eqc::INTR, u32::from(queue.vector())),
            (eqc::PRODUCER_COUNTER, producer),
            (eqc::CONSUMER_COUNTER, consumer),
        ] {
            field.set(context, value);
        }
        Ok(Verdict::Answer(reply))
    }

    pub(super) fn create_completion_queue(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        clear(request, CQ_USER_MEMORY);
        let context = create_cq_in::CQ_CONTEXT.get_mut(request);
        check_completion_queue(context)?;
        self.own(Kind::EventQueue, cqc::C_EQN_OR_APU_ELEMENT.get(context))?;
        self.translate_page(cqc::UAR_PAGE, context)?;
        let log_size = LOG_PAGE + cqc::LOG_PAGE_SIZE.get(context);
        check_pages(request.get(LIST..).unwrap_or_default(), log_size)?;
        made(Kind::CompletionQueue)
    }

    pub(super) fn modify_completion_queue(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        clear(request, CQ_USER_MEMORY);
        let verdict = self.with(Kind::CompletionQueue, request)?;
        let context = modify_cq_in::CQ_CONTEXT.get_mut(request);
        check_completion_queue(context)?;
        self.own_or_none(Kind::EventQueue, cqc::C_EQN_OR_APU_ELEMENT.get(context))?;
        if cqc::UAR_PAGE.is_set(context) {
            self.translate_page(cqc::UAR_PAGE, context)?;
        }
        let log_size = LOG_PAGE + cqc::LOG_PAGE_SIZE.get(context);
        check_pages(request.get(LIST..).unwrap_or_default(), log_size)?;
        Ok(verdict)
    }

    pub(super) fn create_shared_receive_queue(
        &self,
        request: &mut [u8],
    ) -> Result<Verdict, Refusal> {
        let context = create_srq_in::SRQ_CONTEXT_ENTRY.get_mut(request);
        self.own(Kind::ProtectionDomain, srqc::PD.get(context))?;
        self.own_or_none(Kind::XrcDomain, srqc::XRCD.get(context))?;
        self.own_or_none(Kind::CompletionQueue, srqc::CQN.get(context))?;
        if self.facts.policy.isolation == Isolation::Strict {
            // The key over all memory that the device has.
            srqc::RLKY.set(context, 0);
        }
        check_record(srqc::DBR_ADDR.get(context))?;
        let log_size = LOG_PAGE + srqc::LOG_PAGE_SIZE.get(context);
        check_pages(request.get(LIST..).unwrap_or_default(), log_size)?;
        made(Kind::SharedReceiveQueue)
    }

    pub(super) fn create_queue_pair(&self, request: &mut Vec<u8>) -> Result<Verdict, Refusal> {
        clear(request, QP_USER_MEMORY);
        let context = create_qp_in::QPC.get_mut(request);
        // The queue pair for changes to memory keys has none: what it changes, the keys say.
        self.own_or_none(Kind::ProtectionDomain, qpc::PD.get(context))?;
        let Some(service) = ServiceType::from_code(qpc::ST.get(context)) else {
            return refuse(Status::BadParameter, "no such service type");
        };
        self.confine_management(context);
        let Some(receives) = ReceiveType::from_code(qpc::RQ_TYPE.get(context)) else {
            return refuse(Status::BadParameter, "no such kind of receive queue");
        };
        if service == ServiceType::DynamicInitiator {
            return refuse(
                Status::BadParameter,
                "dynamic connections are not passed through",
            );
        }
        if qpc::ULP_STATELESS_OFFLOAD_MODE.is_set(context) {
            return refuse(
                Status::BadParameter,
                "offloads of IP packets are not passed through",
            );
        }
        let is_xrc = service == ServiceType::ExtendedReliableConnection;
        let shares = receives == ReceiveType::Shared;
        for (kind, field, counts) in [
            (
                Kind::CompletionQueue,
                qpc::CQN_SND,
                !qpc::NO_SQ.is_set(context),
            ),
            (
                Kind::CompletionQueue,
                qpc::CQN_RCV,
                shares || receives == ReceiveType::Own && !is_xrc,
            ),
            (Kind::SharedReceiveQueue, qpc::SRQN_RMPN_XRQN, shares),
            (Kind::XrcDomain, qpc::XRCD, is_xrc),
        ] {
            match self.own_or_none(kind, field.get(context)) {
                // Drivers leave anything in fields that do not count. The VF gets none of it.
                Err(_) if !counts => field.set(context, 0),
                checked => checked?,
            }
        }
        let page = qpc::UAR_PAGE.get(context);
        // Without a send queue there is nothing to ring: kernels leave the page of an XRC target 0.
        if !qpc::NO_SQ.is_set(context) || qpc::UAR_PAGE.is_set(context) {
            self.translate_page(qpc::UAR_PAGE, context)?;
        }
        self.check_context(context)?;
        self.begin_anywhere(context)?;
        let log_size = LOG_PAGE + qpc::LOG_PAGE_SIZE.get(context);
        check_pages(request.get(LIST..).unwrap_or_default(), log_size)?;
        let connects = is_xrc
            || matches!(
                service,
                ServiceType::ReliableConnection | ServiceType::UnreliableConnection
            );
        let manages = self.manages(create_qp_in::QPC.get(request));
        let shadow = self.shadow(page, manages, request)?;
        Ok(Verdict::Forward(After::QueuePair {
            connects,
            manages,
            shadow,
        }))
    }

    /// Queue pair 0 of a guest that may not send subnet management packets is one for datagrams: it is
    /// there, as drivers expect, and what is sent by it is on no lane where a queue pair 0 hears it.
    fn confine_management(&self, context: &mut [u8]) {
        let is_0 = qpc::ST.get(context) == ServiceType::QueuePair0.code();
        if is_0 && self.facts.policy.smp != Smp::Fabric {
            qpc::ST.set(context, ServiceType::UnreliableDatagram.code());
        }
    }

    /// A change of a queue pair: what was said when it was made may be said again.
    pub(super) fn modify_queue_pair(
        &mut self,
        opcode: Opcode,
        request: &mut Vec<u8>,
    ) -> Result<Verdict, Refusal> {
        let verdict = self.with(Kind::QueuePair, request)?;
        let number = NUMBER.get(request);
        // There is no list to it.
        request.truncate(LIST);
        clear(request, QP_USER_MEMORY);
        let optional = create_qp_in::OPT_PARAM_MASK.get(request);
        let context = create_qp_in::QPC.get_mut(request);
        for (kind, field) in [
            (Kind::ProtectionDomain, qpc::PD),
            (Kind::CompletionQueue, qpc::CQN_SND),
            (Kind::CompletionQueue, qpc::CQN_RCV),
            (Kind::SharedReceiveQueue, qpc::SRQN_RMPN_XRQN),
            (Kind::XrcDomain, qpc::XRCD),
        ] {
            self.own_or_none(kind, field.get(context))?;
        }
        let page = self.guest.page(qpc::UAR_PAGE.get(context));
        qpc::UAR_PAGE.set(context, page.unwrap_or(0));
        self.confine_management(context);
        self.check_context(context)?;
        self.take_key_in_change(number, context);
        self.translate_paths(opcode, number, context)?;
        self.keep_shadow(opcode, number, context);
        let change = Change {
            opcode,
            number,
            optional,
        };
        match self.place(&change, context)? {
            Some(places) => Ok(Verdict::Forward(After::Placed(number, places))),
            None => Ok(verdict),
        }
    }

    /// Checks the fields that every context of a queue pair has.
    fn check_context(&self, context: &mut [u8]) -> Result<(), Refusal> {
        qpc::DBR_UMEM_VALID.set(context, 0);
        if self.facts.policy.isolation == Isolation::Strict {
            qpc::RLKY.set(context, 0);
        }
        self.own_or_none(Kind::Counters, qpc::COUNTER_SET_ID.get(context))?;
        for path in [qpc::PRIMARY_ADDRESS_PATH, qpc::SECONDARY_ADDRESS_PATH] {
            if ads::VHCA_PORT_NUM.get(path.get(context)) > 1 {
                return refuse(Status::BadParameter, "there is one port");
            }
        }
        check_record(qpc::DBR_ADDR.get(context))
    }
}

/// Checks the fields that every context of a completion queue has.
fn check_completion_queue(context: &mut [u8]) -> Result<(), Refusal> {
    for field in CQ_OF_OTHERS {
        field.set(context, 0);
    }
    check_record(cqc::DBR_ADDR.get(context))
}

fn clear(request: &mut [u8], range: std::ops::Range<usize>) {
    let end = range.end.min(request.len());
    if let Some(bytes) = request.get_mut(range.start.min(end)..end) {
        bytes.fill(0);
    }
}
