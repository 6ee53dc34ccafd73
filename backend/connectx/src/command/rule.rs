//! Rules of each command: how far the function has to be, where the command is answered, and who may send it.

use crate::bits::command::AnyOpcode;
use crate::state::Stage;

use super::queue::receive_pool::Form;

/// Where a command is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// By the port, without the engine: a port's answer may take its time, and others wait for the engine.
    Port,
    /// In one turn of the engine.
    Turn,
    /// In as many turns of the engine as it takes, with others at the engine between them.
    Stepwise,
}

/// The senders of a command. The driver may send all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The driver.
    Driver,
    /// The driver, for itself or for all user contexts.
    DriverForAll,
    /// The driver, and user contexts about objects of their own.
    Context,
    /// As [`Sender::Context`]; only functions with queues of network interfaces know the command.
    ContextOfInterface,
    /// The driver, for itself or for all user contexts, and user contexts about objects of their own.
    ContextOrForAll,
    /// The driver; commands of network interfaces name a user context in vain, whether it is open or not.
    DriverOfInterface,
    /// The driver; the command is about a user context, and none is its sender.
    DriverOfContexts,
    /// All: the command names no object of others.
    All,
}

/// The rules of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// The command, that of version 0 of the interface where it is one in another layout.
    pub opcode: AnyOpcode,
    /// The layout of a shared receive queue.
    pub form: Option<Form>,
    /// The function's stage from which on it is carried out.
    pub stage: Stage,
    pub class: Class,
    pub sender: Sender,
}

/// The stage of a function from which on it carries a command out.
#[must_use]
pub const fn needed_stage(opcode: AnyOpcode) -> Stage {
    Rule::of(opcode).stage
}

impl Rule {
    pub const fn of(opcode: AnyOpcode) -> Self {
        use AnyOpcode as Op;
        use Sender::{
            All, Context, ContextOfInterface, ContextOrForAll, Driver, DriverForAll,
            DriverOfContexts, DriverOfInterface,
        };
        use Stage::{Disabled, Enabled, Initialized};
        let (stage, class, sender) = match opcode {
            Op::EnableHca | Op::DisableHca | Op::TeardownHca => (Disabled, Class::Turn, Driver),
            Op::SetIssi | Op::QueryPages | Op::ManagePages | Op::SetHcaCap | Op::InitHca => {
                (Enabled, Class::Turn, Driver)
            }
            Op::QueryIssi | Op::QueryHcaCap | Op::QueryAdapter => (Enabled, Class::Turn, Context),
            // One register is written before the function is initialized; see `Request::stage`.
            Op::ModifyHcaVportContext
            | Op::QueryHcaVportGid
            | Op::QueryHcaVportPkey
            | Op::AccessReg
            | Op::MadIfc => (Initialized, Class::Port, Driver),
            Op::QueryHcaVportContext => (Initialized, Class::Port, Context),
            Op::CreateEq => (Initialized, Class::Turn, DriverForAll),
            Op::AllocQCounter => (Initialized, Class::Turn, ContextOrForAll),
            Op::CreateUctx | Op::DestroyUctx => (Initialized, Class::Stepwise, DriverOfContexts),
            Op::QuerySpecialContexts | Op::PageFaultResume => (Initialized, Class::Turn, All),
            Op::DestroyEq | Op::QueryEq | Op::AllocMemic | Op::DeallocMemic => {
                (Initialized, Class::Turn, Driver)
            }
            Op::QueryVportCounter
            | Op::CreateTir
            | Op::ModifyTir
            | Op::DestroyTir
            | Op::CreateSq
            | Op::ModifySq
            | Op::DestroySq
            | Op::QuerySq
            | Op::CreateRq
            | Op::ModifyRq
            | Op::DestroyRq
            | Op::QueryRq
            | Op::CreateTis
            | Op::DestroyTis
            | Op::CreateRqt
            | Op::ModifyRqt
            | Op::DestroyRqt
            | Op::SetFlowTableRoot
            | Op::CreateFlowTable
            | Op::DestroyFlowTable
            | Op::CreateFlowGroup
            | Op::DestroyFlowGroup
            | Op::SetFlowTableEntry
            | Op::DeleteFlowTableEntry => (Initialized, Class::Turn, DriverOfInterface),
            Op::AllocTransportDomain | Op::DeallocTransportDomain => {
                (Initialized, Class::Turn, ContextOfInterface)
            }
            // Objects, which user contexts have, too.
            Op::CreateMkey
            | Op::QueryMkey
            | Op::DestroyMkey
            | Op::CreateCq
            | Op::DestroyCq
            | Op::QueryCq
            | Op::ModifyCq
            | Op::CreateQp
            | Op::DestroyQp
            | Op::Rst2Init
            | Op::Init2Rtr
            | Op::Rtr2Rts
            | Op::Rts2Rts
            | Op::Sqerr2Rts
            | Op::ToErr
            | Op::ToRst
            | Op::QueryQp
            | Op::Sqd2Rts
            | Op::Init2Init
            | Op::CreatePsv
            | Op::DestroyPsv
            | Op::CreateSrq
            | Op::DestroySrq
            | Op::QuerySrq
            | Op::ArmRq
            | Op::CreateDct
            | Op::DestroyDct
            | Op::DrainDct
            | Op::QueryDct
            | Op::ArmDctForKeyViolation
            | Op::AllocPd
            | Op::DeallocPd
            | Op::AllocUar
            | Op::DeallocUar
            | Op::AttachToMcg
            | Op::DetachFromMcg
            | Op::DeallocQCounter
            | Op::QueryQCounter
            | Op::AllocXrcd
            | Op::DeallocXrcd
            | Op::QueryLag
            | Op::CreateGeneralObject
            | Op::DestroyGeneralObject
            | Op::CreateUmem
            | Op::DestroyUmem => (Initialized, Class::Turn, Context),
            // The same in another layout.
            Op::CreateXrcSrq => return Self::of(Op::CreateSrq).asked_as(Form::Xrc),
            Op::DestroyXrcSrq => return Self::of(Op::DestroySrq).asked_as(Form::Xrc),
            Op::QueryXrcSrq => return Self::of(Op::QuerySrq).asked_as(Form::Xrc),
            Op::ArmXrcSrq => return Self::of(Op::ArmRq).asked_as(Form::Xrc),
            Op::CreateXrq => return Self::of(Op::CreateSrq).asked_as(Form::Tagged),
            Op::DestroyXrq => return Self::of(Op::DestroySrq).asked_as(Form::Tagged),
            Op::QueryXrq => return Self::of(Op::QuerySrq).asked_as(Form::Tagged),
            Op::ArmXrq => return Self::of(Op::ArmRq).asked_as(Form::Tagged),
            Op::CreateRmp => return Self::of(Op::CreateSrq).asked_as(Form::Pool),
            Op::ModifyRmp => return Self::of(Op::ArmRq).asked_as(Form::Pool),
            Op::DestroyRmp => return Self::of(Op::DestroySrq).asked_as(Form::Pool),
            Op::QueryRmp => return Self::of(Op::QuerySrq).asked_as(Form::Pool),
        };
        Self {
            opcode,
            form: None,
            stage,
            class,
            sender,
        }
    }

    const fn asked_as(self, form: Form) -> Self {
        Self {
            form: Some(form),
            ..self
        }
    }

    /// Whether a command is refused for the function's stage before it is for its sender.
    pub const fn stage_is_first(self) -> bool {
        !matches!(self.class, Class::Turn)
            || self.is_of_interface()
            || matches!(self.sender, Sender::All)
    }

    /// Whether only functions with queues of network interfaces know a command.
    pub const fn is_of_interface(self) -> bool {
        matches!(
            self.sender,
            Sender::DriverOfInterface | Sender::ContextOfInterface
        )
    }
}
