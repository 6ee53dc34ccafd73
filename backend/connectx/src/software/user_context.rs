//! User contexts (UCTX): who of a guest's programs has which object.
//!
//! A driver opens a context for each program that has the device open, and says in each command (`uid`) for which
//! of them it is; 0 is the driver itself. A program may have its driver send commands that the program has written
//! (DEVX), so a context's commands name objects of that context, and of those that are the driver's only what the
//! driver has for everybody: event queues and sets of counters (`uid` 0xffff), domains of XRC, which programs share by
//! the driver, and doorbell pages: drivers before Linux 5.14 allocate those of programs for themselves, and who may
//! write to a page, its mapping says. When a context is closed, whatever it still has goes with it.

use std::collections::{BTreeMap, BTreeSet};

use hca::{Dma, VerbError};
use serde::{Deserialize, Serialize};
use wire::Qpn;

use super::receive_pool::Form;
use super::{Commands, NUMBER, Outcome, Refusal, refuse};
use crate::bits::Field;
use crate::bits::command::{NetworkOpcode, Opcode, Status, UserContextOpcode, UserMemoryOpcode};
use crate::bits::completion::{cqc, create_cq_in};
use crate::bits::counter::{alloc_q_counter_out, dealloc_q_counter_in, query_q_counter_in};
use crate::bits::dynamic::{create_dct_in, dctc};
use crate::bits::event::{create_eq_out, destroy_eq_in};
use crate::bits::memory_key::{MODE_KLM, MODE_KSM, MODE_MTT, create_mkey_in, mkc};
use crate::bits::queue_pair::{ReceiveType, create_qp_in, qpc};
use crate::bits::shared_receive::{create_srq_in, srqc};
use crate::bits::signature::{create_psv_in, create_psv_out};
use crate::state::network::Network;

/// In each request: the user context that it is for.
pub(super) const UID: Field = Field::new(0x00, 15, 0);
/// Request of CREATE_UCTX: the rights that the context is to have.
const CAP: Field = Field::new(0x10, 31, 0);
/// Reply of CREATE_UCTX and request of DESTROY_UCTX: the context.
const CONTEXT: Field = Field::new(0x08, 15, 0);

/// The `uid` of objects that the driver has for all contexts.
const SHARED: u16 = 0xffff;
/// Contexts that a function may have, as a power of two.
pub(crate) const LOG_MAX: u32 = 12;
/// Contexts that a function may have.
const MOST: usize = 1 << LOG_MAX;
/// Bytes of the host's memory that are counted for a context, and for each object of one.
const HELD: usize = 128;
/// Objects that are taken away while others wait.
const AT_ONCE: usize = 64;

/// Kinds of objects, in the order in which they can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    QueuePair,
    Target,
    ReservedNumber,
    SharedReceiveQueue,
    CompletionQueue,
    MemoryKey,
    SignatureValue,
    UserMemory,
    CounterSet,
    XrcDomain,
    ProtectionDomain,
    TransportDomain,
    Page,
    EventQueue,
}

/// What an image has of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserContextsImageV1 {
    open: Vec<u16>,
    owned: Vec<(u16, Kind, u32)>,
    /// Objects, and the memory objects that they lie in.
    lie: Vec<(Kind, u32, Vec<u32>)>,
}

/// A function's user contexts, and their objects. What is not listed is the driver's own.
#[derive(Debug, Default)]
pub(crate) struct UserContexts {
    open: BTreeSet<u16>,
    owners: BTreeMap<(Kind, u32), u16>,
    owned: BTreeSet<(u16, Kind, u32)>,
    /// Memory objects that objects lie in, and how often each is named.
    lie: BTreeMap<(Kind, u32), Vec<u32>>,
    used: BTreeMap<u32, usize>,
}

impl UserContexts {
    fn owner(&self, kind: Kind, number: u32) -> u16 {
        self.owners.get(&(kind, number)).copied().unwrap_or(0)
    }

    /// Whether the object is the context's own.
    fn has(&self, uid: u16, kind: Kind, number: u32) -> Outcome {
        if self.owner(kind, number) == uid {
            Ok(())
        } else {
            Err(refuse(
                Status::BadResource,
                "the object is not the user context's",
            ))
        }
    }

    /// Whether the context may use the object: its own, or one for all.
    fn shares(&self, uid: u16, kind: Kind, number: u32) -> Outcome {
        if self.owner(kind, number) == SHARED {
            return Ok(());
        }
        self.has(uid, kind, number)
    }

    /// Whether the object is the driver's own.
    fn is_drivers(&self, kind: Kind, number: u32) -> bool {
        self.owner(kind, number) == 0
    }

    /// The object is the context's now; whether that takes room.
    fn give(&mut self, uid: u16, kind: Kind, number: u32) {
        self.take(kind, number);
        self.owners.insert((kind, number), uid);
        self.owned.insert((uid, kind, number));
    }

    /// The object is nobody's; whether it was one's.
    fn take(&mut self, kind: Kind, number: u32) -> bool {
        let owner = self.owners.remove(&(kind, number));
        owner.is_some_and(|uid| self.owned.remove(&(uid, kind, number)))
    }

    /// The object lies in these memory objects from now on, the last of which is its queue's.
    fn lay(&mut self, kind: Kind, number: u32, named: &[u32]) {
        if named.is_empty() {
            return;
        }
        for memory in named {
            *self.used.entry(*memory).or_default() += 1;
        }
        self.lie.insert((kind, number), named.to_vec());
    }

    /// A completion queue has another ring, in these memory objects; its record stays where it is.
    fn relay(&mut self, cqn: u32, named: &[u32]) {
        const RECORD: usize = 1;
        let lay = self.lie.get(&(Kind::CompletionQueue, cqn));
        let record = lay.map_or(&[][..], |lay| &lay[..lay.len().min(RECORD)]);
        let all = [record, named].concat();
        self.lift(Kind::CompletionQueue, cqn);
        self.lay(Kind::CompletionQueue, cqn, &all);
    }

    /// The object is gone, and lies nowhere.
    fn lift(&mut self, kind: Kind, number: u32) {
        for memory in self.lie.remove(&(kind, number)).unwrap_or_default() {
            if let Some(count) = self.used.get_mut(&memory) {
                *count -= 1;
                if *count == 0 {
                    self.used.remove(&memory);
                }
            }
        }
    }

    /// Whether something lies in a memory object.
    pub(super) fn is_used(&self, memory: u32) -> bool {
        self.used.contains_key(&memory)
    }

    /// What an image has of them.
    pub fn save(&self) -> UserContextsImageV1 {
        UserContextsImageV1 {
            open: self.open.iter().copied().collect(),
            owned: self.owned.iter().copied().collect(),
            lie: (self.lie.iter())
                .map(|(&(kind, number), named)| (kind, number, named.clone()))
                .collect(),
        }
    }

    /// Those of an image; what they take of the host's memory goes to `held`.
    pub fn restore(image: &UserContextsImageV1, held: &mut Vec<usize>) -> Result<Self, String> {
        let mut contexts = Self::default();
        for &uid in &image.open {
            if uid == 0
                || uid == SHARED
                || contexts.open.len() >= MOST
                || !contexts.open.insert(uid)
            {
                return Err(format!("user context {uid} is there twice, or cannot be"));
            }
            held.push(HELD);
        }
        for &(uid, kind, number) in &image.owned {
            let twice = contexts.owners.contains_key(&(kind, number));
            if twice || uid != SHARED && !contexts.open.contains(&uid) {
                return Err(format!(
                    "object {number:#x} is of user context {uid}, which is not there, or of two"
                ));
            }
            contexts.give(uid, kind, number);
            held.push(HELD);
        }
        for (kind, number, named) in &image.lie {
            contexts.lay(*kind, *number, named);
        }
        Ok(contexts)
    }

    /// Whether a command is one that a context may send, and names nothing that is not its own. `form` is how a
    /// shared receive queue was asked for.
    pub(super) fn check(
        &self,
        uid: u16,
        (opcode, form): (Opcode, Option<Form>),
        by_memory: bool,
        request: &[u8],
    ) -> Outcome {
        if uid == 0 {
            return Ok(());
        }
        if uid == SHARED {
            return match opcode {
                Opcode::CreateEq | Opcode::AllocQCounter => Ok(()),
                _ => Err(refuse(
                    Status::BadParameter,
                    "only event queues and sets of counters are for all user contexts",
                )),
            };
        }
        if !self.open.contains(&uid) {
            return Err(refuse(Status::BadParameter, "no such user context"));
        }
        if let Some(kind) = named(opcode) {
            self.has(uid, kind, NUMBER.get(request))?;
        }
        match opcode {
            Opcode::CreateMkey => self.check_key(uid, by_memory, request),
            Opcode::CreateCq => {
                let context = create_cq_in::CQ_CONTEXT.get(request);
                let eqn = cqc::C_EQN_OR_APU_ELEMENT.get(context) & 0xff;
                self.shares(uid, Kind::EventQueue, eqn)?;
                self.has_with_driver(uid, Kind::Page, cqc::UAR_PAGE.get(context))
            }
            Opcode::CreateQp => self.check_queue_pair(uid, create_qp_in::QPC.get(request)),
            Opcode::CreateSrq => {
                if form.is_none() {
                    // Where its pages are, only the driver may say, and here nobody could tell who says it.
                    return Err(refuse(
                        Status::BadOperation,
                        "user contexts create receive memory pools in place of it",
                    ));
                }
                let context = create_srq_in::SRQ_CONTEXT_ENTRY.get(request);
                self.has(uid, Kind::ProtectionDomain, srqc::PD.get(context))?;
                if form == Some(Form::Xrc) {
                    self.has_with_driver(uid, Kind::XrcDomain, srqc::XRCD.get(context))?;
                }
                if matches!(form, Some(Form::Xrc | Form::Tagged)) {
                    self.has(uid, Kind::CompletionQueue, srqc::CQN.get(context))?;
                }
                Ok(())
            }
            Opcode::CreatePsv => {
                self.has(uid, Kind::ProtectionDomain, create_psv_in::PD.get(request))
            }
            Opcode::CreateDct => {
                let context = create_dct_in::DCT_CONTEXT_ENTRY.get(request);
                self.has(uid, Kind::ProtectionDomain, dctc::PD.get(context))?;
                self.has(uid, Kind::SharedReceiveQueue, dctc::SRQN_XRQN.get(context))?;
                self.has(uid, Kind::CompletionQueue, dctc::CQN.get(context))?;
                self.counts_in(uid, dctc::COUNTER_SET_ID.get(context))
            }
            Opcode::Rst2Init | Opcode::Rts2Rts => {
                let context = create_qp_in::QPC.get(request);
                self.counts_in(uid, qpc::COUNTER_SET_ID.get(context))
            }
            Opcode::QueryQCounter => {
                let set = query_q_counter_in::COUNTER_SET_ID.get(request);
                self.shares(uid, Kind::CounterSet, set)
            }
            Opcode::DeallocQCounter => {
                let set = dealloc_q_counter_in::COUNTER_SET_ID.get(request);
                self.has(uid, Kind::CounterSet, set)
            }
            _ if named(opcode).is_some() || is_for_all(opcode) => Ok(()),
            _ => Err(refuse(
                Status::BadOperation,
                "the command is not one of user contexts",
            )),
        }
    }

    /// A context's keys lead to memory objects of its own, or to keys; never to addresses that it says.
    fn check_key(&self, uid: u16, by_memory: bool, request: &[u8]) -> Outcome {
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.get(request);
        self.has(uid, Kind::ProtectionDomain, mkc::PD.get(context))?;
        let mode = mkc::ACCESS_MODE_4_2.get(context) << 2 | mkc::ACCESS_MODE_1_0.get(context);
        match mode {
            MODE_KLM | MODE_KSM => Ok(()),
            MODE_MTT if by_memory && !mkc::UMR_EN.is_set(context) => Ok(()),
            _ => Err(refuse(
                Status::BadParameter,
                "keys of a user context are over its memory objects, or indirect",
            )),
        }
    }

    fn check_queue_pair(&self, uid: u16, context: &[u8]) -> Outcome {
        self.has(uid, Kind::ProtectionDomain, qpc::PD.get(context))?;
        self.has_with_driver(uid, Kind::Page, qpc::UAR_PAGE.get(context))?;
        if !qpc::NO_SQ.is_set(context) {
            self.has(uid, Kind::CompletionQueue, qpc::CQN_SND.get(context))?;
        }
        match super::queue_pair::receives(context) {
            None => Err(refuse(
                Status::BadParameter,
                "user contexts have no queue pairs of this kind",
            )),
            Some((ReceiveType::None, _)) => Ok(()),
            Some((_, true)) => self.has_with_driver(uid, Kind::XrcDomain, qpc::XRCD.get(context)),
            Some((kind, false)) => {
                self.has(uid, Kind::CompletionQueue, qpc::CQN_RCV.get(context))?;
                if kind == ReceiveType::Shared {
                    let srqn = qpc::SRQN_RMPN_XRQN.get(context);
                    self.has(uid, Kind::SharedReceiveQueue, srqn)?;
                }
                Ok(())
            }
        }
    }

    /// Whether the context's objects may count in a set; 0 is none.
    fn counts_in(&self, uid: u16, set: u32) -> Outcome {
        if set == 0 {
            return Ok(());
        }
        self.shares(uid, Kind::CounterSet, set)
    }

    /// Whether the context may use the object: its own, or one of the driver's.
    fn has_with_driver(&self, uid: u16, kind: Kind, number: u32) -> Outcome {
        if self.is_drivers(kind, number) {
            return Ok(());
        }
        self.has(uid, kind, number)
    }

    /// Whether a memory object may be named by a context.
    pub(super) fn has_memory(&self, uid: u16, number: u32) -> bool {
        self.owner(Kind::UserMemory, number) == uid
    }
}

/// What a command that is about one object is about.
const fn named(opcode: Opcode) -> Option<Kind> {
    match opcode {
        Opcode::QueryMkey | Opcode::DestroyMkey => Some(Kind::MemoryKey),
        Opcode::QueryCq | Opcode::ModifyCq | Opcode::DestroyCq => Some(Kind::CompletionQueue),
        Opcode::DestroyQp
        | Opcode::QueryQp
        | Opcode::Rst2Init
        | Opcode::Init2Init
        | Opcode::Init2Rtr
        | Opcode::Rtr2Rts
        | Opcode::Rts2Rts
        | Opcode::Sqerr2Rts
        | Opcode::Sqd2Rts
        | Opcode::ToErr
        | Opcode::ToRst
        | Opcode::AttachToMcg
        | Opcode::DetachFromMcg => Some(Kind::QueuePair),
        Opcode::DrainDct
        | Opcode::DestroyDct
        | Opcode::QueryDct
        | Opcode::ArmDctForKeyViolation => Some(Kind::Target),
        Opcode::QuerySrq | Opcode::ArmRq | Opcode::DestroySrq => Some(Kind::SharedReceiveQueue),
        Opcode::DestroyPsv => Some(Kind::SignatureValue),
        Opcode::DestroyGeneralObject => Some(Kind::ReservedNumber),
        Opcode::DeallocPd => Some(Kind::ProtectionDomain),
        Opcode::DeallocXrcd => Some(Kind::XrcDomain),
        Opcode::DeallocUar => Some(Kind::Page),
        _ => None,
    }
}

/// Whether a command is about no object, and changes nothing that others see.
const fn is_for_all(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::QueryHcaCap
            | Opcode::QueryAdapter
            | Opcode::QueryLag
            | Opcode::QueryIssi
            | Opcode::QueryHcaVportContext
            | Opcode::AllocPd
            | Opcode::AllocXrcd
            | Opcode::AllocUar
            | Opcode::AllocQCounter
            | Opcode::CreateGeneralObject
    )
}

/// What a command makes.
const fn made(opcode: Opcode) -> Option<Kind> {
    Some(match opcode {
        Opcode::CreateQp => Kind::QueuePair,
        Opcode::CreateDct => Kind::Target,
        Opcode::CreateSrq => Kind::SharedReceiveQueue,
        Opcode::CreateCq => Kind::CompletionQueue,
        Opcode::CreateMkey => Kind::MemoryKey,
        Opcode::CreatePsv => Kind::SignatureValue,
        Opcode::CreateGeneralObject => Kind::ReservedNumber,
        Opcode::AllocQCounter => Kind::CounterSet,
        Opcode::AllocXrcd => Kind::XrcDomain,
        Opcode::AllocPd => Kind::ProtectionDomain,
        Opcode::AllocUar => Kind::Page,
        Opcode::CreateEq => Kind::EventQueue,
        _ => return None,
    })
}

/// What a command takes away, and where its request has the number.
const fn gone(opcode: Opcode) -> Option<(Kind, Field)> {
    Some(match opcode {
        Opcode::DestroyQp => (Kind::QueuePair, NUMBER),
        Opcode::DestroyDct => (Kind::Target, NUMBER),
        Opcode::DestroySrq => (Kind::SharedReceiveQueue, NUMBER),
        Opcode::DestroyCq => (Kind::CompletionQueue, NUMBER),
        Opcode::DestroyMkey => (Kind::MemoryKey, NUMBER),
        Opcode::DestroyPsv => (Kind::SignatureValue, NUMBER),
        Opcode::DestroyGeneralObject => (Kind::ReservedNumber, NUMBER),
        Opcode::DeallocQCounter => (Kind::CounterSet, dealloc_q_counter_in::COUNTER_SET_ID),
        Opcode::DeallocXrcd => (Kind::XrcDomain, NUMBER),
        Opcode::DeallocPd => (Kind::ProtectionDomain, NUMBER),
        Opcode::DeallocUar => (Kind::Page, NUMBER),
        Opcode::DestroyEq => (Kind::EventQueue, destroy_eq_in::EQ_NUMBER),
        _ => return None,
    })
}

impl<D: Dma + 'static> Commands<'_, D> {
    /// Carries `act` out for a context, and keeps account of whom its object is.
    pub(super) fn for_context(
        &mut self,
        (uid, opcode): (u16, Opcode),
        (request, named): (&[u8], &[u32]),
        reply: &mut [u8],
        act: impl FnOnce(&mut Self, &mut [u8]) -> Outcome,
    ) -> Outcome {
        let made = made(opcode).filter(|_| uid != 0);
        if made.is_some() {
            self.engine.take_memory(self.vf, HELD)?;
        }
        let outcome = act(self, reply);
        if outcome.is_err() {
            if made.is_some() {
                self.engine.give_memory(self.vf, HELD);
            }
            return outcome;
        }
        if let Some(kind) = self::made(opcode) {
            let number = match kind {
                Kind::EventQueue => create_eq_out::EQ_NUMBER.get(reply),
                Kind::SignatureValue => create_psv_out::PSV0_INDEX.get(reply),
                Kind::CounterSet => alloc_q_counter_out::COUNTER_SET_ID.get(reply),
                _ => NUMBER.get(reply),
            };
            let contexts = &mut self.state_mut().user_contexts;
            if made.is_some() {
                contexts.give(uid, kind, number);
            }
            contexts.lay(kind, number, named);
        }
        if opcode == Opcode::ModifyCq && !named.is_empty() {
            let cqn = NUMBER.get(request);
            self.state_mut().user_contexts.relay(cqn, named);
        }
        if let Some((kind, number)) = gone(opcode) {
            let number = number.get(request);
            self.state_mut().user_contexts.lift(kind, number);
            self.disown(kind, number);
        }
        Ok(())
    }

    fn disown(&mut self, kind: Kind, number: u32) {
        if self.state_mut().user_contexts.take(kind, number) {
            self.engine.give_memory(self.vf, HELD);
        }
    }

    /// Carries out a command about a memory object, for a context or the driver.
    pub(super) fn user_memory_of(
        &mut self,
        opcode: UserMemoryOpcode,
        request: &[u8],
        reply: &mut [u8],
    ) -> Outcome {
        let uid = UID.get(request) as u16;
        let contexts = &self.state().user_contexts;
        if uid != 0 && !contexts.open.contains(&uid) {
            return Err(refuse(Status::BadParameter, "no such user context"));
        }
        match opcode {
            UserMemoryOpcode::Create => {
                if uid != 0 {
                    self.engine.take_memory(self.vf, HELD)?;
                }
                let outcome = self.user_memory(opcode, request, reply);
                if uid != 0 {
                    match outcome {
                        Ok(()) => {
                            let number = NUMBER.get(reply);
                            let contexts = &mut self.state_mut().user_contexts;
                            contexts.give(uid, Kind::UserMemory, number);
                        }
                        Err(_) => self.engine.give_memory(self.vf, HELD),
                    }
                }
                outcome
            }
            UserMemoryOpcode::Destroy => {
                let number = NUMBER.get(request);
                if uid != 0 {
                    contexts.has(uid, Kind::UserMemory, number)?;
                }
                self.user_memory(opcode, request, reply)?;
                self.disown(Kind::UserMemory, number);
                Ok(())
            }
        }
    }

    /// Allocates or frees a transport domain, for a context or the driver.
    pub(super) fn transport_domain(
        &mut self,
        uid: u16,
        opcode: NetworkOpcode,
        request: &[u8],
        reply: &mut [u8],
    ) -> Outcome {
        let contexts = &self.state().user_contexts;
        if uid != 0 && !contexts.open.contains(&uid) {
            return Err(refuse(Status::BadParameter, "no such user context"));
        }
        let number = NUMBER.get(request);
        if opcode == NetworkOpcode::DeallocTransportDomain {
            if uid != 0 {
                contexts.has(uid, Kind::TransportDomain, number)?;
            }
            self.free(Network::held(0), |network| network.dealloc_domain(number))?;
            self.disown(Kind::TransportDomain, number);
            return Ok(());
        }
        if uid != 0 {
            self.engine.take_memory(self.vf, HELD)?;
        }
        match self.make(Network::held(0), Network::alloc_domain) {
            Ok(number) => {
                NUMBER.set(reply, number);
                if uid != 0 {
                    let contexts = &mut self.state_mut().user_contexts;
                    contexts.give(uid, Kind::TransportDomain, number);
                }
                Ok(())
            }
            Err(refusal) => {
                if uid != 0 {
                    self.engine.give_memory(self.vf, HELD);
                }
                Err(refusal)
            }
        }
    }

    /// Carries out a command about a context. Whether it has to be asked again: the context has more objects than
    /// can be taken away while others wait.
    pub(super) fn user_context(
        &mut self,
        opcode: UserContextOpcode,
        request: &[u8],
        reply: &mut [u8],
    ) -> Result<bool, Refusal> {
        if !self.state().is_initialized() {
            return Err(super::TOO_EARLY);
        }
        if UID.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "contexts are opened and closed by the driver",
            ));
        }
        match opcode {
            UserContextOpcode::Create => self.open_context(request, reply).map(|()| false),
            UserContextOpcode::Destroy => {
                let uid = CONTEXT.get(request) as u16;
                if !self.state().user_contexts.open.contains(&uid) {
                    return Err(refuse(Status::BadResource, "no such user context"));
                }
                if self.clear_context(uid) {
                    return Ok(true);
                }
                self.state_mut().user_contexts.open.remove(&uid);
                self.engine.give_memory(self.vf, HELD);
                Ok(false)
            }
        }
    }

    fn open_context(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
        if self.state().interface == 0 {
            return Err(refuse(
                Status::BadSystemState,
                "user contexts need version 1 of the interface (ISSI)",
            ));
        }
        if CAP.is_set(request) {
            return Err(refuse(
                Status::BadParameter,
                "contexts may not have rights that the capabilities do not offer",
            ));
        }
        let open = &self.state().user_contexts.open;
        if open.len() >= MOST {
            return Err(refuse(Status::NoResources, "too many user contexts"));
        }
        // Numbers are used again as late as can be.
        let last = open.last().copied().unwrap_or(0);
        let uid = if last < SHARED - 1 {
            last + 1
        } else {
            (1..SHARED).find(|uid| !open.contains(uid)).unwrap_or(1)
        };
        self.engine.take_memory(self.vf, HELD)?;
        self.state_mut().user_contexts.open.insert(uid);
        CONTEXT.set(reply, u32::from(uid));
        Ok(())
    }

    /// Takes objects of a context away, in the order in which they can go. Whether there are more. One that
    /// something of the driver's still uses becomes the driver's.
    fn clear_context(&mut self, uid: u16) -> bool {
        let owned = &self.state().user_contexts.owned;
        let from = (uid, Kind::QueuePair, 0);
        let of = owned.range(from..).take_while(|object| object.0 == uid);
        let some: Vec<(Kind, u32)> = of.take(AT_ONCE).map(|it| (it.1, it.2)).collect();
        for &(kind, number) in &some {
            match self.remove(kind, number) {
                Ok(()) => self.state_mut().user_contexts.lift(kind, number),
                Err(error) => {
                    tracing::debug!("object {number:#x} of user context {uid} stays: {error}");
                }
            }
            self.disown(kind, number);
        }
        some.len() == AT_ONCE
    }

    fn remove(&mut self, kind: Kind, number: u32) -> Result<(), VerbError> {
        let vf = self.vf;
        match kind {
            Kind::QueuePair => {
                self.engine.destroy_qp(vf, Qpn::new(number))?;
                self.state_mut().contexts.qps.remove(&number);
            }
            Kind::Target => {
                let dctn = Qpn::new(number);
                // It is taken away when it has drained.
                let _ = self.engine.drain_dct(vf, dctn);
                self.engine.destroy_dct(vf, dctn)?;
                self.state_mut().contexts.dcts.remove(&number);
            }
            Kind::ReservedNumber => self.engine.release_qpn(vf, Qpn::new(number))?,
            Kind::SharedReceiveQueue => {
                self.engine.destroy_srq(vf, number)?;
                self.state_mut().contexts.srqs.remove(&number);
            }
            Kind::CompletionQueue => {
                let gone = self.engine.destroy_cq(vf, number)?;
                self.engine.discard(gone);
            }
            Kind::MemoryKey => {
                let gone = self.engine.destroy_key(vf, number)?;
                self.engine.discard(gone);
            }
            Kind::SignatureValue => self.engine.destroy_psv(vf, number)?,
            Kind::UserMemory if self.state().user_contexts.is_used(number) => {
                return Err(VerbError::InUse);
            }
            Kind::UserMemory => self.drop_user_memory(number),
            Kind::CounterSet => self.engine.dealloc_counters(vf, number as u8)?,
            Kind::XrcDomain => self.engine.dealloc_xrcd(vf, number)?,
            Kind::ProtectionDomain => self.engine.dealloc_pd(vf, number)?,
            Kind::TransportDomain => {
                let freed = self.state_mut().network.dealloc_domain(number);
                freed.map_err(|_| VerbError::InUse)?;
                self.engine.give_memory(vf, Network::held(0));
            }
            Kind::Page => {
                self.state_mut().uars.free(number);
            }
            // Of contexts there are none.
            Kind::EventQueue => {}
        }
        Ok(())
    }
}
