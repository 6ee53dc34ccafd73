//! Rules of each command: how far the function has to be, where the command is answered, and who may send it.

use crate::bits::command::AnyOpcode;
use crate::state::Stage;

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
    /// The function's stage from which on it is carried out.
    pub stage: Stage,
    pub class: Class,
    pub sender: Sender,
}

impl Rule {
    pub const fn of(opcode: AnyOpcode) -> Self {
        use AnyOpcode as Op;
        use Sender::{
            All, Context, ContextOrForAll, Driver, DriverForAll, DriverOfContexts,
            DriverOfInterface,
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
            // Objects, which user contexts have, too.
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
            | Op::DestroyUmem
            | Op::CreateXrcSrq
            | Op::DestroyXrcSrq
            | Op::QueryXrcSrq
            | Op::ArmXrcSrq
            | Op::CreateXrq
            | Op::DestroyXrq
            | Op::QueryXrq
            | Op::ArmXrq
            | Op::CreateRmp
            | Op::ModifyRmp
            | Op::DestroyRmp
            | Op::QueryRmp
            | Op::AllocTransportDomain
            | Op::DeallocTransportDomain => (Initialized, Class::Turn, Context),
        };
        Self {
            stage,
            class,
            sender,
        }
    }

    /// Whether a command is refused for the function's stage before it is for its sender.
    pub const fn stage_is_first(self, opcode: AnyOpcode) -> bool {
        !matches!(self.class, Class::Turn)
            || is_of_interface(opcode)
            || matches!(self.sender, Sender::All)
    }
}

/// Whether only functions with queues of network interfaces know a command.
pub(crate) const fn is_of_interface(opcode: AnyOpcode) -> bool {
    matches!(Rule::of(opcode).sender, Sender::DriverOfInterface)
        || matches!(
            opcode,
            AnyOpcode::AllocTransportDomain | AnyOpcode::DeallocTransportDomain
        )
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// The name of a command in the interface.
    fn name(opcode: AnyOpcode) -> String {
        match opcode {
            // A digit cannot begin a name in Rust.
            AnyOpcode::ToErr => return "2ERR_QP".to_owned(),
            AnyOpcode::ToRst => return "2RST_QP".to_owned(),
            _ => {}
        }
        let mut name = String::new();
        for letter in format!("{opcode:?}").chars() {
            // As in RST2INIT.
            let joins = name.is_empty() || name.ends_with(|last: char| last.is_ascii_digit());
            if letter.is_ascii_uppercase() && !joins {
                name.push('_');
            }
            name.push(letter.to_ascii_uppercase());
        }
        if name.contains('2') {
            name += "_QP";
        }
        name
    }

    fn row(opcode: AnyOpcode) -> String {
        let rule = Rule::of(opcode);
        let class = match rule.class {
            Class::Port => "port",
            Class::Turn => "one turn",
            Class::Stepwise => "stepwise",
        };
        let early = match rule.stage {
            Stage::Disabled => "",
            Stage::Enabled => "`BAD_SYS_STATE` before ENABLE_HCA",
            Stage::Initialized => "`BAD_SYS_STATE` before INIT_HCA",
        };
        let (sender, others) = match rule.sender {
            Sender::Driver => ("driver", "`BAD_OP` to user contexts"),
            Sender::DriverForAll => (
                "driver, for all user contexts too",
                "`BAD_OP` to user contexts",
            ),
            Sender::Context => (
                "driver, user contexts",
                "`BAD_RESOURCE` for objects of others",
            ),
            Sender::ContextOrForAll => ("driver, for all user contexts too; user contexts", ""),
            Sender::DriverOfInterface => (
                "driver",
                "`BAD_OP` to user contexts, and without enhanced IPoIB",
            ),
            Sender::DriverOfContexts => ("driver", "`BAD_PARAM` to user contexts"),
            Sender::All => ("all", ""),
        };
        let refusals: Vec<&str> = [early, others]
            .into_iter()
            .filter(|it| !it.is_empty())
            .collect();
        let (name, refusals) = (name(opcode), refusals.join("; "));
        format!(
            "| {:#05x} | {name} | {class} | {sender} | {refusals} |",
            opcode.code()
        )
    }

    /// The page has the table of all rules. With `IBVSWITCH_WRITE_DOCS` set, it is written anew.
    #[test]
    fn the_page_has_all_commands() {
        const PAGE: &str = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/developers/commands.md"
        );
        const HEAD: &str = "| opcode | command | answered in | sender | refused by rule with |\n";
        let page = std::fs::read_to_string(PAGE).expect("is readable");
        let (text, _) = page.split_once(HEAD).expect("has the table");
        let mut all = AnyOpcode::ALL.to_vec();
        all.sort_by_key(|opcode| opcode.code());
        let mut expected = format!("{text}{HEAD}|---|---|---|---|---|\n");
        for opcode in all {
            writeln!(expected, "{}", row(opcode)).expect("is memory");
        }
        if std::env::var_os("IBVSWITCH_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, &expected).expect("is writable");
        } else {
            assert_eq!(page, expected, "run this test with IBVSWITCH_WRITE_DOCS=1");
        }
    }
}
