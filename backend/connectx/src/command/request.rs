//! The head of a command: its opcode, its sender and the objects that it names, apart from what it says.

use crate::bits::Field;
use crate::bits::command::{AnyOpcode, Status, create_eq_in as head};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::counter::{alloc_q_counter_out, dealloc_q_counter_in, query_q_counter_in};
use crate::bits::dynamic::{create_dct_in, dctc};
use crate::bits::event::{create_eq_out, destroy_eq_in};
use crate::bits::memory_key::{MODE_KLM, MODE_KSM, MODE_MTT, access_mode, create_mkey_in, mkc};
use crate::bits::port::{REGISTER_HOST_ENDIANNESS, access_register_in};
use crate::bits::queue_pair::{ReceiveType, create_qp_in, qpc};
use crate::bits::resource_dump::REGISTER_RESOURCE_DUMP;
use crate::bits::shared_receive::{create_srq_in, srqc};
use crate::bits::signature::{create_psv_in, create_psv_out};
use crate::configuration::Configuration;
use crate::refusal::{Outcome, Refusal, TOO_EARLY, UNKNOWN, refuse};
use crate::state::user_context::{Claim, Kind, Owner, SHARED, UserContexts};
use crate::state::{FunctionState, Stage};

use super::memory::user_memory::is_named;
use super::queue::queue_pair::receives;
use super::queue::receive_pool::{Form, translate};
use super::rule::{Class, Rule, Sender};
use super::{NUMBER, UID};

/// Objects of its sender that a command names, and why it is refused after them if it is.
#[derive(Debug, Default)]
struct Claims {
    all: Vec<Claim>,
    refused: Option<Refusal>,
}

impl Claims {
    fn add(&mut self, kind: Kind, number: u32, owner: Owner) {
        self.all.push(Claim {
            kind,
            number,
            owner,
        });
    }

    fn own(&mut self, kind: Kind, number: u32) {
        self.add(kind, number, Owner::Context);
    }

    fn refuse(&mut self, status: Status, reason: &'static str) {
        self.refused = Some(refuse(status, reason));
    }
}

/// The head of a command.
#[derive(Debug)]
pub(crate) struct Head {
    pub rule: Rule,
    pub uid: u16,
    /// The number of the object that most commands are about.
    pub number: u32,
    /// Memory objects stand in the request in place of pages or addresses.
    pub names_memory: bool,
    /// Memory objects that the command has named, the last of which is its queue's.
    pub named: Vec<u32>,
    claims: Claims,
    /// The object that the command takes away.
    pub gone: Option<(Kind, u32)>,
}

impl Head {
    /// Reads the head of a request, which becomes one of version 0 of the interface.
    ///
    /// # Errors
    /// The function does not know the command.
    pub fn read(request: &mut Vec<u8>, configuration: &Configuration) -> Result<Self, Refusal> {
        let code = head::OPCODE.get(request) as u16;
        let opcode = AnyOpcode::from_code(code).ok_or(UNKNOWN)?;
        let mut rule = Rule::of(opcode);
        if rule.is_of_interface() && !configuration.has_network_queues() {
            return Err(UNKNOWN);
        }
        if rule.form.is_some() {
            translate(opcode, rule.opcode, request);
        }
        let uid = UID.get(request) as u16;
        if opcode == AnyOpcode::AccessReg {
            match access_register_in::REGISTER_ID.get(request) {
                // Drivers tell the byte order of the host before they initialize the function.
                REGISTER_HOST_ENDIANNESS => rule.stage = Stage::Enabled,
                // The kernel alone: a dump may be of anybody's object, and goes where any key leads.
                REGISTER_RESOURCE_DUMP if uid == 0 => rule.class = Class::Turn,
                _ => {}
            }
        }
        Ok(Self {
            rule,
            uid,
            number: NUMBER.get(request),
            names_memory: is_named(rule, request),
            named: Vec::new(),
            claims: if uid == 0 {
                Claims::default()
            } else {
                claims(rule, request)
            },
            gone: gone(rule.opcode, request),
        })
    }

    /// Whether the function is far enough for the command, and its sender may send it.
    pub fn admit(&self, state: &FunctionState) -> Outcome {
        let staged = if state.stage >= self.rule.stage {
            Ok(())
        } else {
            Err(TOO_EARLY)
        };
        if self.rule.stage_is_first() {
            staged?;
        }
        if self.uid != 0 {
            self.check_context(&state.user_contexts)?;
        }
        staged
    }

    /// Whether a user context may send the command.
    fn check_context(&self, contexts: &UserContexts) -> Outcome {
        const NOT_OF_CONTEXTS: Refusal = refuse(
            Status::BadOperation,
            "the command is not one of user contexts",
        );
        match self.rule.sender {
            Sender::All => return Ok(()),
            Sender::DriverOfInterface => return Err(NOT_OF_CONTEXTS),
            Sender::DriverOfContexts => {
                return Err(refuse(
                    Status::BadParameter,
                    "contexts are opened and closed by the driver",
                ));
            }
            Sender::DriverForAll | Sender::ContextOrForAll if self.uid == SHARED => return Ok(()),
            _ if self.uid == SHARED => {
                return Err(refuse(
                    Status::BadParameter,
                    "only event queues and sets of counters are for all user contexts",
                ));
            }
            _ => {}
        }
        if !contexts.is_open(self.uid) {
            return Err(refuse(Status::BadParameter, "no such user context"));
        }
        for claim in &self.claims.all {
            contexts.check(self.uid, *claim)?;
        }
        if let Some(refusal) = self.claims.refused {
            return Err(refusal);
        }
        match self.rule.sender {
            Sender::Context | Sender::ContextOfInterface | Sender::ContextOrForAll => Ok(()),
            _ => Err(NOT_OF_CONTEXTS),
        }
    }

    /// The kind of objects that the command makes, and where the reply has the number of one.
    pub const fn made(&self) -> Option<(Kind, Field)> {
        let kind = match self.rule.opcode {
            AnyOpcode::CreateQp => Kind::QueuePair,
            AnyOpcode::CreateDct => Kind::Target,
            AnyOpcode::CreateSrq => Kind::SharedReceiveQueue,
            AnyOpcode::CreateCq => Kind::CompletionQueue,
            AnyOpcode::CreateMkey => Kind::MemoryKey,
            AnyOpcode::CreatePsv => {
                return Some((Kind::SignatureValue, create_psv_out::PSV0_INDEX));
            }
            AnyOpcode::CreateGeneralObject => Kind::ReservedNumber,
            AnyOpcode::CreateUmem => Kind::UserMemory,
            AnyOpcode::AllocQCounter => {
                return Some((Kind::CounterSet, alloc_q_counter_out::COUNTER_SET_ID));
            }
            AnyOpcode::AllocXrcd => Kind::XrcDomain,
            AnyOpcode::AllocPd => Kind::ProtectionDomain,
            AnyOpcode::AllocTransportDomain => Kind::TransportDomain,
            AnyOpcode::AllocUar => Kind::Page,
            AnyOpcode::CreateEq => return Some((Kind::EventQueue, create_eq_out::EQ_NUMBER)),
            _ => return None,
        };
        Some((kind, NUMBER))
    }
}

/// The object that a command takes away.
fn gone(opcode: AnyOpcode, request: &[u8]) -> Option<(Kind, u32)> {
    let number = NUMBER.get(request);
    Some(match opcode {
        AnyOpcode::DestroyQp => (Kind::QueuePair, number),
        AnyOpcode::DestroyDct => (Kind::Target, number),
        AnyOpcode::DestroySrq => (Kind::SharedReceiveQueue, number),
        AnyOpcode::DestroyCq => (Kind::CompletionQueue, number),
        AnyOpcode::DestroyMkey => (Kind::MemoryKey, number),
        AnyOpcode::DestroyPsv => (Kind::SignatureValue, number),
        AnyOpcode::DestroyGeneralObject => (Kind::ReservedNumber, number),
        AnyOpcode::DestroyUmem => (Kind::UserMemory, number),
        AnyOpcode::DeallocQCounter => {
            let set = dealloc_q_counter_in::COUNTER_SET_ID.get(request);
            (Kind::CounterSet, set)
        }
        AnyOpcode::DeallocXrcd => (Kind::XrcDomain, number),
        AnyOpcode::DeallocPd => (Kind::ProtectionDomain, number),
        AnyOpcode::DeallocTransportDomain => (Kind::TransportDomain, number),
        AnyOpcode::DeallocUar => (Kind::Page, number),
        AnyOpcode::DestroyEq => (Kind::EventQueue, destroy_eq_in::EQ_NUMBER.get(request)),
        _ => return None,
    })
}

/// The kind of the one object that a command is about, by its number.
const fn subject(opcode: AnyOpcode) -> Option<Kind> {
    use AnyOpcode as Op;
    match opcode {
        Op::QueryMkey | Op::DestroyMkey => Some(Kind::MemoryKey),
        Op::QueryCq | Op::ModifyCq | Op::DestroyCq => Some(Kind::CompletionQueue),
        Op::DestroyQp
        | Op::QueryQp
        | Op::Rst2Init
        | Op::Init2Init
        | Op::Init2Rtr
        | Op::Rtr2Rts
        | Op::Rts2Rts
        | Op::Sqerr2Rts
        | Op::Sqd2Rts
        | Op::ToErr
        | Op::ToRst
        | Op::AttachToMcg
        | Op::DetachFromMcg => Some(Kind::QueuePair),
        Op::DrainDct | Op::DestroyDct | Op::QueryDct | Op::ArmDctForKeyViolation => {
            Some(Kind::Target)
        }
        Op::QuerySrq | Op::ArmRq | Op::DestroySrq => Some(Kind::SharedReceiveQueue),
        Op::DestroyPsv => Some(Kind::SignatureValue),
        Op::DestroyGeneralObject => Some(Kind::ReservedNumber),
        Op::DestroyUmem => Some(Kind::UserMemory),
        Op::DeallocPd => Some(Kind::ProtectionDomain),
        Op::DeallocXrcd => Some(Kind::XrcDomain),
        Op::DeallocTransportDomain => Some(Kind::TransportDomain),
        Op::DeallocUar => Some(Kind::Page),
        _ => None,
    }
}

/// The objects that a context's command names.
fn claims(rule: Rule, request: &[u8]) -> Claims {
    let mut claims = Claims::default();
    if let Some(kind) = subject(rule.opcode) {
        claims.own(kind, NUMBER.get(request));
    }
    match rule.opcode {
        AnyOpcode::CreateMkey => {
            claim_for_key(&mut claims, is_named(rule, request), request);
        }
        AnyOpcode::CreateCq => {
            let context = create_cq_in::CQ_CONTEXT.get(request);
            let eqn = cqc::C_EQN_OR_APU_ELEMENT.get(context) & 0xff;
            claims.add(Kind::EventQueue, eqn, Owner::ContextOrShared);
            let page = cqc::UAR_PAGE.get(context);
            claims.add(Kind::Page, page, Owner::ContextOrDriver);
        }
        AnyOpcode::CreateQp => {
            claim_for_queue_pair(&mut claims, create_qp_in::QPC.get(request));
        }
        AnyOpcode::CreateSrq => claim_for_shared_queue(&mut claims, rule.form, request),
        AnyOpcode::CreatePsv => {
            claims.own(Kind::ProtectionDomain, create_psv_in::PD.get(request));
        }
        AnyOpcode::CreateDct => {
            let context = create_dct_in::DCT_CONTEXT_ENTRY.get(request);
            claims.own(Kind::ProtectionDomain, dctc::PD.get(context));
            claims.own(Kind::SharedReceiveQueue, dctc::SRQN_XRQN.get(context));
            claims.own(Kind::CompletionQueue, dctc::CQN.get(context));
            claim_counters(&mut claims, dctc::COUNTER_SET_ID.get(context));
        }
        AnyOpcode::Rst2Init | AnyOpcode::Rts2Rts => {
            let context = create_qp_in::QPC.get(request);
            claim_counters(&mut claims, qpc::COUNTER_SET_ID.get(context));
        }
        AnyOpcode::QueryQCounter => {
            let set = query_q_counter_in::COUNTER_SET_ID.get(request);
            claims.add(Kind::CounterSet, set, Owner::ContextOrShared);
        }
        AnyOpcode::DeallocQCounter => {
            let set = dealloc_q_counter_in::COUNTER_SET_ID.get(request);
            claims.own(Kind::CounterSet, set);
        }
        _ => {}
    }
    claims
}

/// Whether a command names objects that its sender has to have.
#[cfg(test)]
pub(super) fn names_objects(rule: Rule) -> bool {
    let is_of_contexts = matches!(
        rule.sender,
        Sender::Context | Sender::ContextOfInterface | Sender::ContextOrForAll
    );
    is_of_contexts && !claims(rule, &[]).all.is_empty()
}

/// The set of counters that an object counts in; 0 is no set.
fn claim_counters(claims: &mut Claims, set: u32) {
    if set != 0 {
        claims.add(Kind::CounterSet, set, Owner::ContextOrShared);
    }
}

/// A context's keys lead to memory objects of its own, or to keys; never to addresses that it says.
fn claim_for_key(claims: &mut Claims, by_memory: bool, request: &[u8]) {
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
    claims.own(Kind::ProtectionDomain, mkc::PD.get(context));
    match access_mode(context) {
        MODE_KLM | MODE_KSM => {}
        MODE_MTT if by_memory && !mkc::UMR_EN.is_set(context) => {}
        _ => claims.refuse(
            Status::BadParameter,
            "keys of a user context are over its memory objects, or indirect",
        ),
    }
}

fn claim_for_queue_pair(claims: &mut Claims, context: &[u8]) {
    claims.own(Kind::ProtectionDomain, qpc::PD.get(context));
    claims.add(
        Kind::Page,
        qpc::UAR_PAGE.get(context),
        Owner::ContextOrDriver,
    );
    if !qpc::NO_SQ.is_set(context) {
        claims.own(Kind::CompletionQueue, qpc::CQN_SND.get(context));
    }
    match receives(context) {
        None => claims.refuse(
            Status::BadParameter,
            "user contexts have no queue pairs of this kind",
        ),
        Some((ReceiveType::None, _)) => {}
        Some((_, true)) => claims.add(
            Kind::XrcDomain,
            qpc::XRCD.get(context),
            Owner::ContextOrDriver,
        ),
        Some((kind, false)) => {
            claims.own(Kind::CompletionQueue, qpc::CQN_RCV.get(context));
            if kind == ReceiveType::Shared {
                claims.own(Kind::SharedReceiveQueue, qpc::SRQN_RMPN_XRQN.get(context));
            }
        }
    }
}

fn claim_for_shared_queue(claims: &mut Claims, form: Option<Form>, request: &[u8]) {
    if form.is_none() {
        // Where its pages are, only the driver may say, and here nobody could tell who says it.
        claims.refuse(
            Status::BadOperation,
            "user contexts create receive memory pools in place of it",
        );
        return;
    }
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.get(request);
    claims.own(Kind::ProtectionDomain, srqc::PD.get(context));
    if form == Some(Form::Xrc) {
        let domain = srqc::XRCD.get(context);
        claims.add(Kind::XrcDomain, domain, Owner::ContextOrDriver);
    }
    if matches!(form, Some(Form::Xrc | Form::Tagged)) {
        claims.own(Kind::CompletionQueue, srqc::CQN.get(context));
    }
}
