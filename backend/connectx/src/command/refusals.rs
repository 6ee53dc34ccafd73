//! Statuses with which each command is refused: the tests hold each refusal against its command's list, and
//! docs/developers/commands.md is written from the lists.

use std::fmt::Write as _;

use super::request::{Head, names_objects};
use super::rule::{Class, Rule, Sender};
use super::{Command, LIST};
use crate::bits::command::{AnyOpcode as Op, Status, create_eq_in as head_in};
use crate::configuration::{Configuration, IpOverInfiniBand};
use crate::refusal::{Refusal, UNKNOWN};
use crate::state::Stage;
use crate::testing::Memory;

/// Statuses with which a command is refused for what it says, and for what the function has.
const fn own(opcode: Op) -> &'static [Status] {
    use Status::{
        BadIndex as Index, BadInputLength as Length, BadOperation as Operation,
        BadParameter as Parameter, BadQpState as QpState, BadResource as Resource,
        BadResourceState as InUse, BadSystemState as System, ExceededLimits as Limits,
        NoResources as Quota,
    };
    match opcode {
        Op::EnableHca
        | Op::DisableHca
        | Op::TeardownHca
        | Op::QueryIssi
        | Op::QueryPages
        | Op::QueryAdapter
        | Op::QueryLag
        | Op::QuerySpecialContexts => &[],
        Op::InitHca => &[System, Quota],
        Op::SetIssi
        | Op::QueryHcaCap
        | Op::QueryHcaVportContext
        | Op::ModifyHcaVportContext
        | Op::AccessReg
        | Op::MadIfc
        | Op::QueryVportCounter => &[Parameter],
        Op::ManagePages | Op::CreateUmem => &[Parameter, Length, Quota],
        Op::SetHcaCap => &[Parameter, Limits],
        Op::QueryHcaVportGid | Op::QueryHcaVportPkey => &[Parameter, Index],
        Op::AllocPd
        | Op::AllocXrcd
        | Op::AllocUar
        | Op::AllocQCounter
        | Op::AllocTransportDomain => &[Quota],
        Op::DeallocPd
        | Op::DeallocXrcd
        | Op::DestroyUmem
        | Op::DestroyCq
        | Op::DestroyQp
        | Op::DestroySrq
        | Op::DeallocTransportDomain
        | Op::DestroyTis
        | Op::DestroyTir
        | Op::DestroyRqt
        | Op::DestroyRq => &[Resource, InUse],
        Op::DeallocUar
        | Op::DeallocMemic
        | Op::QueryMkey
        | Op::DestroyMkey
        | Op::DestroyPsv
        | Op::DestroyUctx
        | Op::DeallocQCounter
        | Op::DestroyEq
        | Op::QueryEq
        | Op::QueryCq
        | Op::QueryQp
        | Op::QuerySrq
        | Op::DrainDct
        | Op::DestroyDct
        | Op::QueryDct
        | Op::ArmDctForKeyViolation
        | Op::DetachFromMcg
        | Op::DestroySq
        | Op::QuerySq
        | Op::QueryRq => &[Resource],
        Op::AllocMemic => &[Parameter, Quota],
        Op::CreateMkey => &[Parameter, Length, Resource, Quota],
        Op::CreatePsv | Op::CreateDct | Op::AttachToMcg => &[Parameter, Resource, Quota],
        Op::CreateUctx => &[Parameter, System, Quota],
        Op::CreateGeneralObject => &[Operation, Limits, Quota],
        Op::DestroyGeneralObject => &[Operation, Resource],
        Op::QueryQCounter | Op::ArmRq | Op::ModifyTir => &[Parameter, Resource],
        Op::PageFaultResume => &[Resource, QpState],
        Op::CreateEq => &[Parameter, Length, Limits, Quota],
        Op::CreateCq | Op::CreateSq | Op::CreateRq => &[Parameter, Length, Limits, Resource, Quota],
        Op::CreateQp | Op::ModifyCq => &[Parameter, Length, Limits, Resource, InUse, Quota],
        Op::Rst2Init
        | Op::Init2Init
        | Op::Init2Rtr
        | Op::Rtr2Rts
        | Op::Rts2Rts
        | Op::Sqerr2Rts
        | Op::Sqd2Rts
        | Op::ToErr
        | Op::ToRst => &[Parameter, Resource, QpState],
        // Contexts ask for receive memory pools in place of basic queues.
        Op::CreateSrq => &[Operation, Parameter, Length, Limits, Resource, Quota],
        Op::CreateTis | Op::CreateTir | Op::CreateFlowGroup | Op::SetFlowTableEntry => {
            &[Parameter, Resource, Quota]
        }
        Op::CreateRqt => &[Parameter, Length, Resource, Quota],
        Op::ModifyRqt => &[Parameter, Length, Resource],
        Op::ModifySq | Op::ModifyRq => &[Parameter, Resource, InUse],
        Op::SetFlowTableRoot | Op::DeleteFlowTableEntry => &[Parameter, Resource],
        Op::CreateFlowTable => &[Parameter, Limits, Resource, Quota],
        Op::DestroyFlowTable | Op::DestroyFlowGroup => &[Parameter, Resource, InUse],
        Op::CreateXrcSrq | Op::CreateXrq | Op::CreateRmp => {
            &[Parameter, Length, Limits, Resource, Quota]
        }
        // The same in another layout.
        Op::DestroyXrcSrq
        | Op::QueryXrcSrq
        | Op::ArmXrcSrq
        | Op::DestroyXrq
        | Op::QueryXrq
        | Op::ArmXrq
        | Op::ModifyRmp
        | Op::DestroyRmp
        | Op::QueryRmp => own(Rule::of(opcode).opcode),
    }
}

/// Statuses with which a command is refused by its rule, and when.
fn by_rule(opcode: Op) -> Vec<(Status, &'static str)> {
    let rule = Rule::of(opcode);
    let mut refusals = Vec::new();
    if let Some(when) = match rule.stage {
        Stage::Disabled => None,
        Stage::Enabled => Some("before ENABLE_HCA"),
        Stage::Initialized => Some("before INIT_HCA"),
    } {
        refusals.push((Status::BadSystemState, when));
    }
    if rule.is_of_interface() {
        refusals.push((Status::BadOperation, "without enhanced IPoIB"));
    }
    match rule.sender {
        Sender::Driver | Sender::DriverForAll | Sender::DriverOfInterface => {
            refusals.push((Status::BadOperation, "to user contexts"));
        }
        Sender::DriverOfContexts => refusals.push((Status::BadParameter, "to user contexts")),
        Sender::All | Sender::Context | Sender::ContextOfInterface | Sender::ContextOrForAll => {}
    }
    if names_objects(rule) {
        refusals.push((Status::BadResource, "for objects of others"));
    }
    refusals
}

/// Holds a refusal of the command with this code against its list.
pub(crate) fn check(code: u16, refusal: Refusal) {
    let is_known = |opcode| {
        let rules = by_rule(opcode);
        let is_by_rule = rules.iter().any(|(status, _)| *status == refusal.status);
        // To a context that is not open.
        let is_of_sender = refusal.status == Status::BadParameter
            && !matches!(Rule::of(opcode).sender, Sender::All);
        is_by_rule || is_of_sender || own(opcode).contains(&refusal.status)
    };
    assert!(
        Op::from_code(code).is_none_or(is_known),
        "the list of {code:#05x} lacks {refusal:?}"
    );
}

/// The name of a command in the interface.
fn name(opcode: Op) -> String {
    match opcode {
        // A digit cannot begin a name in Rust.
        Op::ToErr => return "2ERR_QP".to_owned(),
        Op::ToRst => return "2RST_QP".to_owned(),
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

/// The name of a status in the interface.
const fn status_name(status: Status) -> &'static str {
    match status {
        Status::Ok => "OK",
        Status::Internal => "INT_ERR",
        Status::BadOperation => "BAD_OP",
        Status::BadParameter => "BAD_PARAM",
        Status::BadSystemState => "BAD_SYS_STATE",
        Status::BadResource => "BAD_RESOURCE",
        Status::ResourceBusy => "RES_BUSY",
        Status::ExceededLimits => "LIM_EXCEEDED",
        Status::BadResourceState => "BAD_RES_STATE",
        Status::BadIndex => "BAD_INDEX",
        Status::NoResources => "NO_RESOURCES",
        Status::BadQpState => "BAD_QP_STATE",
        Status::BadInputLength => "BAD_INPUT_LEN",
        Status::BadOutputLength => "BAD_OUTPUT_LEN",
    }
}

fn row(opcode: Op) -> String {
    let rule = Rule::of(opcode);
    let class = match rule.class {
        Class::Port => "port",
        Class::Turn => "one turn",
        Class::Stepwise => "stepwise",
    };
    let sender = match rule.sender {
        Sender::Driver | Sender::DriverOfInterface | Sender::DriverOfContexts => "driver",
        Sender::DriverForAll => "driver, for all user contexts too",
        Sender::Context | Sender::ContextOfInterface => "driver, user contexts",
        Sender::ContextOrForAll => "driver, for all user contexts too; user contexts",
        Sender::All => "all",
    };
    let rules = by_rule(opcode).into_iter();
    let rules: Vec<String> = rules
        .map(|(status, when)| format!("`{}` {when}", status_name(status)))
        .collect();
    let own: Vec<String> = { own(opcode).iter() }
        .map(|status| format!("`{}`", status_name(*status)))
        .collect();
    let (code, name) = (opcode.code(), name(opcode));
    let (rules, own) = (rules.join("; "), own.join(", "));
    format!("| {code:#05x} | {name} | {class} | {sender} | {rules} | {own} |")
}

/// The page has all commands. With `IBVSWITCH_WRITE_DOCS` set, it is written anew.
#[test]
fn the_page_has_all_commands() {
    const PAGE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/developers/commands.md"
    );
    const HEAD: &str =
        "| opcode | command | answered in | sender | refused by rule | refused besides |\n";
    let page = std::fs::read_to_string(PAGE).expect("is readable");
    let (text, _) = page.split_once(HEAD).expect("has the table");
    let mut all = Op::ALL.to_vec();
    all.sort_by_key(|opcode| opcode.code());
    let mut expected = format!("{text}{HEAD}|---|---|---|---|---|---|\n");
    for opcode in all {
        writeln!(expected, "{}", row(opcode)).expect("is memory");
    }
    if std::env::var_os("IBVSWITCH_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &expected).expect("is writable");
    } else {
        assert_eq!(page, expected, "run this test with IBVSWITCH_WRITE_DOCS=1");
    }
}

/// The parser has all commands of version 0 of the interface.
#[test]
fn the_parser_knows_each_command() {
    let configuration = Configuration {
        ipoib: IpOverInfiniBand::Enhanced,
        ..Configuration::default()
    };
    for opcode in Op::ALL {
        let mut request = vec![0; LIST];
        head_in::OPCODE.set(&mut request, u32::from(opcode.code()));
        let head = Head::read(&mut request, &configuration).expect("is known");
        let parsed = Command::<Memory>::parse(&head, &request, &configuration);
        // General objects are known by their type.
        let is_typed = matches!(opcode, Op::CreateGeneralObject | Op::DestroyGeneralObject);
        assert_eq!(
            is_typed,
            parsed.is_err_and(|it| it == UNKNOWN),
            "{opcode:?}"
        );
    }
}
