//! Flow tables of what is received: CREATE_FLOW_TABLE, CREATE_FLOW_GROUP, SET_FLOW_TABLE_ENTRY, what takes those
//! away, and SET_FLOW_TABLE_ROOT.

use hca::Dma;

use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::network::{
    DISCONNECT, Destination, MissAction, OTHER_VPORT, OUTER_HEADERS, action, create_flow_group_in,
    create_flow_table_in, delete_fte_in, dest_format_struct as destination, destroy_flow_group_in,
    flow_context, flow_table_context as context, fte_match_set_lyr_2_4 as headers,
    set_flow_table_root_in, set_fte_in,
};
use crate::command::network::interface::require_underlay;
use crate::command::{Command, Commands, NUMBER};
use crate::refusal::{Outcome, Refusal, refuse};
use crate::state::network::flow_table::{Fields, FlowTable, Group, Next};
use crate::state::network::{Network, Unmade};

/// Whether a request is about the function's own tables of what it receives.
fn own_tables(request: &[u8]) -> Outcome {
    if create_flow_table_in::TABLE_TYPE.is_set(request) || OTHER_VPORT.is_set(request) {
        return Err(refuse(
            Status::BadParameter,
            "flow tables are of what the function itself receives",
        ));
    }
    Ok(())
}

fn unsupported<T>(reason: &'static str) -> Result<T, Refusal> {
    Err(refuse(Status::BadParameter, reason))
}

/// The fields of a match. Others have to be zero.
fn fields(given: &[u8]) -> Result<Fields, Refusal> {
    let fields = Fields {
        ethertype: headers::ETHERTYPE.get(given) as u16,
        protocol: headers::IP_PROTOCOL.get(given) as u8,
    };
    let mut rest = given.to_vec();
    headers::ETHERTYPE.set(&mut rest, 0);
    headers::IP_PROTOCOL.set(&mut rest, 0);
    if rest.iter().any(|byte| *byte != 0) {
        return unsupported("flow tables match the EtherType and the protocol of IP");
    }
    Ok(fields)
}

/// The table that a CREATE_FLOW_TABLE asks for.
#[derive(Debug)]
pub(crate) struct NewTable(FlowTable);

impl NewTable {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        own_tables(request)?;
        let given = create_flow_table_in::FLOW_TABLE_CONTEXT.get(request);
        let special = [
            context::REFORMAT_EN,
            context::DECAP_EN,
            context::SW_OWNER,
            context::TERMINATION_TABLE,
        ];
        if head_in::OP_MOD.is_set(request) || special.iter().any(|field| field.is_set(given)) {
            return unsupported("flow tables change no packets");
        }
        let miss = match MissAction::from_code(context::TABLE_MISS_ACTION.get(given)) {
            Some(MissAction::Default) => Next::Drop,
            Some(MissAction::Forward) => Next::Table(context::TABLE_MISS_ID.get(given)),
            None => return unsupported("no such thing to do with packets that nothing matches"),
        };
        let (level, log_size) = (
            context::LEVEL.get(given) as u8,
            context::LOG_SIZE.get(given),
        );
        let table = FlowTable::new(level, log_size, miss);
        let table = table.ok_or(refuse(Status::ExceededLimits, "the table is too large"))?;
        Ok(Self(table))
    }
}

/// The group that a CREATE_FLOW_GROUP asks for.
#[derive(Debug)]
pub(crate) struct NewGroup {
    table: u32,
    group: Group,
}

impl NewGroup {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        use create_flow_group_in as given;
        own_tables(request)?;
        let enabled = given::MATCH_CRITERIA_ENABLE.get(request);
        if given::GROUP_TYPE.is_set(request) || enabled & !OUTER_HEADERS != 0 {
            return unsupported("flow tables match headers that are not in a tunnel");
        }
        let criteria = fields(given::MATCH_CRITERIA.get(request))?;
        let group = Group {
            first: given::START_FLOW_INDEX.get(request),
            last: given::END_FLOW_INDEX.get(request),
            criteria: if enabled == 0 {
                Fields::default()
            } else {
                criteria
            },
        };
        let table = given::TABLE_ID.get(request);
        Ok(Self { table, group })
    }
}

/// The entry that a SET_FLOW_TABLE_ENTRY asks for.
#[derive(Debug)]
pub(crate) struct NewEntry {
    table: u32,
    /// Index and group.
    place: (u32, u32),
    value: Fields,
    next: Next,
}

impl NewEntry {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        own_tables(request)?;
        let given = set_fte_in::FLOW_CONTEXT.get(request);
        if head_in::OP_MOD.is_set(request) || flow_context::EXTENDED_DESTINATION.is_set(given) {
            return unsupported("entries do not change, and have plain destinations");
        }
        let count = flow_context::DESTINATION_LIST_SIZE.get(given);
        let next = match (flow_context::ACTION.get(given), count) {
            (action::DROP, 0) => Next::Drop,
            (action::FORWARD, 1) => {
                let to = request.get(set_fte_in::SIZE..).unwrap_or_default();
                let number = destination::DESTINATION_ID.get(to);
                match Destination::from_code(destination::DESTINATION_TYPE.get(to)) {
                    Some(Destination::FlowTable) => Next::Table(number),
                    Some(Destination::Tir) => Next::Tir(number),
                    None => return unsupported("packets go to a flow table or to a TIR"),
                }
            }
            _ => return unsupported("packets that match are dropped, or go to one destination"),
        };
        let value = fields(flow_context::MATCH_VALUE.get(given))?;
        let place = (
            set_fte_in::FLOW_INDEX.get(request),
            flow_context::GROUP_ID.get(given),
        );
        let table = set_fte_in::TABLE_ID.get(request);
        Ok(Self {
            table,
            place,
            value,
            next,
        })
    }
}

/// The first flow table of an underlay queue pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Root {
    underlay: u32,
    /// It is looked at after the queue pair.
    table: Result<Option<u32>, Refusal>,
}

impl Root {
    pub fn parse(request: &[u8]) -> Result<Self, Refusal> {
        use set_flow_table_root_in as given;
        own_tables(request)?;
        Ok(Self {
            underlay: given::UNDERLAY_QPN.get(request),
            table: match head_in::OP_MOD.get(request) {
                0 => Ok(Some(given::TABLE_ID.get(request))),
                DISCONNECT => Ok(None),
                _ => unsupported("a queue pair has a first flow table, or none"),
            },
        })
    }
}

/// Reads a DESTROY_FLOW_TABLE.
pub(crate) fn parse_table<D: Dma + 'static>(request: &[u8]) -> Result<Command<D>, Refusal> {
    own_tables(request)?;
    Ok(Command::DestroyFlowTable(
        delete_fte_in::TABLE_ID.get(request),
    ))
}

/// Reads a DESTROY_FLOW_GROUP.
pub(crate) fn parse_group<D: Dma + 'static>(request: &[u8]) -> Result<Command<D>, Refusal> {
    own_tables(request)?;
    Ok(Command::DestroyFlowGroup {
        table: destroy_flow_group_in::TABLE_ID.get(request),
        group: destroy_flow_group_in::GROUP_ID.get(request),
    })
}

/// Reads a DELETE_FLOW_TABLE_ENTRY.
pub(crate) fn parse_entry<D: Dma + 'static>(request: &[u8]) -> Result<Command<D>, Refusal> {
    own_tables(request)?;
    Ok(Command::DeleteFlowTableEntry {
        table: delete_fte_in::TABLE_ID.get(request),
        index: delete_fte_in::FLOW_INDEX.get(request),
    })
}

pub(crate) fn create_flow_table<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewTable(table): NewTable,
    reply: &mut [u8],
) -> Outcome {
    let number = commands.make(Network::held(0), |network| network.create_flow_table(table))?;
    NUMBER.set(reply, number);
    Ok(())
}

pub(crate) fn destroy_flow_table<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    table: u32,
) -> Outcome {
    commands.free(Network::held(0), |network| {
        network.destroy_flow_table(table)
    })
}

pub(crate) fn create_flow_group<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    NewGroup { table, group }: NewGroup,
    reply: &mut [u8],
) -> Outcome {
    let number = commands.make(Network::part(), |network| {
        let table = network.flow_table_mut(table)?;
        table.add_group(group).ok_or(Unmade::Invalid)
    })?;
    NUMBER.set(reply, number);
    Ok(())
}

pub(crate) fn destroy_flow_group<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    table: u32,
    group: u32,
) -> Outcome {
    commands.free(Network::part(), |network| {
        let removed = network.flow_table_mut(table)?.remove_group(group);
        removed.then_some(()).ok_or(Unmade::InUse)
    })
}

pub(crate) fn set_flow_table_entry<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    entry: NewEntry,
) -> Outcome {
    commands.make(Network::part(), |network| {
        network.add_entry(entry.table, entry.place, entry.value, entry.next)
    })
}

pub(crate) fn delete_flow_table_entry<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    table: u32,
    index: u32,
) -> Outcome {
    commands.free(Network::part(), |network| {
        network.remove_entry(table, index)
    })
}

pub(crate) fn set_flow_table_root<D: Dma + 'static>(
    commands: &mut Commands<'_, D>,
    root: Root,
) -> Outcome {
    require_underlay(commands, root.underlay)?;
    let table = root.table?;
    Ok(commands
        .state_mut()
        .network
        .set_root(root.underlay, table)?)
}
