//! Flow tables of what is received: CREATE_FLOW_TABLE, CREATE_FLOW_GROUP, SET_FLOW_TABLE_ENTRY, what takes those
//! away, and SET_FLOW_TABLE_ROOT.

use hca::Dma;

use super::network::OTHER_VPORT;
use super::{Commands, NUMBER, Outcome, Refusal, refuse};
use crate::bits::command::{Status, create_eq_in as head_in};
use crate::bits::network::{
    DISCONNECT, Destination, MissAction, OUTER_HEADERS, action, create_flow_group_in,
    create_flow_table_in, delete_fte_in, dest_format_struct as destination, destroy_flow_group_in,
    flow_context, flow_table_context as context, fte_match_set_lyr_2_4 as headers,
    set_flow_table_root_in, set_fte_in,
};
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

impl<D: Dma + 'static> Commands<'_, D> {
    pub(super) fn create_flow_table(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
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
        let number = self.make(Network::held(0), |network| network.create_flow_table(table))?;
        NUMBER.set(reply, number);
        Ok(())
    }

    pub(super) fn destroy_flow_table(&mut self, request: &[u8]) -> Outcome {
        own_tables(request)?;
        let table = delete_fte_in::TABLE_ID.get(request);
        self.free(Network::held(0), |network| {
            network.destroy_flow_table(table)
        })
    }

    pub(super) fn create_flow_group(&mut self, request: &[u8], reply: &mut [u8]) -> Outcome {
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
        let number = self.make(Network::part(), |network| {
            let table = network.flow_table_mut(table)?;
            table.add_group(group).ok_or(Unmade::Invalid)
        })?;
        NUMBER.set(reply, number);
        Ok(())
    }

    pub(super) fn destroy_flow_group(&mut self, request: &[u8]) -> Outcome {
        own_tables(request)?;
        let table = destroy_flow_group_in::TABLE_ID.get(request);
        let group = destroy_flow_group_in::GROUP_ID.get(request);
        self.free(Network::part(), |network| {
            let removed = network.flow_table_mut(table)?.remove_group(group);
            removed.then_some(()).ok_or(Unmade::InUse)
        })
    }

    pub(super) fn set_flow_table_entry(&mut self, request: &[u8]) -> Outcome {
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
        self.make(Network::part(), |network| {
            network.add_entry(table, place, value, next)
        })
    }

    pub(super) fn delete_flow_table_entry(&mut self, request: &[u8]) -> Outcome {
        own_tables(request)?;
        let table = delete_fte_in::TABLE_ID.get(request);
        let index = delete_fte_in::FLOW_INDEX.get(request);
        self.free(Network::part(), |network| {
            network.remove_entry(table, index)
        })
    }

    pub(super) fn set_flow_table_root(&mut self, request: &[u8]) -> Outcome {
        use set_flow_table_root_in as given;
        own_tables(request)?;
        let underlay = given::UNDERLAY_QPN.get(request);
        self.require_underlay(underlay)?;
        let table = match head_in::OP_MOD.get(request) {
            0 => Some(given::TABLE_ID.get(request)),
            DISCONNECT => None,
            _ => return unsupported("a queue pair has a first flow table, or none"),
        };
        Ok(self.state_mut().network.set_root(underlay, table)?)
    }
}
