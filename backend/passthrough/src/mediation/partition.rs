//! Partitions of a guest that has a P_Key table of its own: what it asks about the table, and the indexes that its
//! queue pairs have.

use connectx::bits::command::{Opcode, Status};
use connectx::bits::port::{listed_pkey, query_hca_vport_pkey_in};
use connectx::bits::queue_pair::{ads, optional, qpc};

use super::port::own_port;
use super::{After, FORWARD, Judge, Refusal, Verdict, refuse};
use crate::mediation::guest::Guest;
use crate::mediation::partitions::{ALL, BODY, Partitions, Place, TABLE, read_table};

/// The paths in the context of a queue pair, and the parameter of a change that says an index of each.
const PATHS: [(connectx::bits::Span, u32); 2] = [
    (qpc::PRIMARY_ADDRESS_PATH, optional::PKEY_INDEX),
    (qpc::SECONDARY_ADDRESS_PATH, optional::ALTERNATE_PATH),
];

/// A change of a queue pair: its number, and the optional parameters.
pub(super) struct Change {
    pub opcode: Opcode,
    pub number: u32,
    pub optional: u32,
}

impl Judge<'_> {
    /// The VF is asked for all of its table, so that the guest is told of what there is now.
    pub(super) fn query_partitions(&self, request: &mut [u8]) -> Result<Verdict, Refusal> {
        own_port(request)?;
        if self.facts.partitions.is_none() {
            return FORWARD;
        }
        let index = query_hca_vport_pkey_in::PKEY_INDEX.get(request);
        if index != ALL && index >= TABLE as u32 {
            return refuse(Status::BadIndex, "the P_Key table is not that long");
        }
        query_hca_vport_pkey_in::PKEY_INDEX.set(request, ALL);
        Ok(Verdict::Forward(After::ShowPartitions(index)))
    }

    /// Puts the VF's indexes of P_Keys in the place of the guest's. Where a change does not say an index, the VF
    /// gets the one that the queue pair has: it does not matter then which parameters the VF looks at. Returns
    /// what the queue pair has after the change; `None` where the guest has the VF's table.
    pub(super) fn place(
        &self,
        change: &Change,
        context: &mut [u8],
    ) -> Result<Option<[Option<Place>; 2]>, Refusal> {
        let Some(partitions) = self.facts.partitions else {
            return Ok(None);
        };
        let mut places = self.guest.places.of(change.number);
        for (at, (path, parameter)) in PATHS.into_iter().enumerate() {
            let path = path.get_mut(context);
            let begins = at == 0 && change.opcode == Opcode::Rst2Init;
            if begins || change.optional & parameter != 0 {
                let index = ads::PKEY_INDEX.get(path) as u16;
                places[at] = Some((index, behind(partitions, index)?));
            }
            let physical = match places[at].or(places[0]) {
                Some((_, physical)) => physical,
                // VFs refuse a change before the first one. What the VF is told counts all the same.
                None => {
                    let physical = behind(partitions, 0)?;
                    places[0] = Some((0, physical));
                    physical
                }
            };
            ads::PKEY_INDEX.set(path, physical.into());
        }
        Ok(Some(places))
    }

    /// The same for a new queue pair, which has no index before a change gives it one.
    pub(super) fn begin_anywhere(&self, context: &mut [u8]) -> Result<(), Refusal> {
        if let Some(partitions) = self.facts.partitions {
            for (path, _) in PATHS {
                let physical = behind(partitions, 0)?;
                ads::PKEY_INDEX.set(path.get_mut(context), physical.into());
            }
        }
        Ok(())
    }
}

fn behind(partitions: &Partitions, index: u16) -> Result<u16, Refusal> {
    match partitions.behind(index) {
        Some(physical) => Ok(physical),
        None => refuse(
            Status::BadIndex,
            "the port has neither this P_Key nor an index without one",
        ),
    }
}

impl Guest {
    /// Shows in the context of a queue pair the indexes as the guest knows them.
    pub(crate) fn show_places(&self, number: u32, context: &mut [u8]) {
        for ((path, _), place) in PATHS.into_iter().zip(self.places.of(number)) {
            let index = place.map_or(0, |(index, _)| index);
            ads::PKEY_INDEX.set(path.get_mut(context), index.into());
        }
    }
}

/// Learns the VF's table from its reply, and makes of it what the guest has asked for: one index, or all.
pub(crate) fn show_partitions(partitions: &mut Partitions, index: u32, reply: &mut Vec<u8>) {
    partitions.learn(read_table(reply));
    let asked = match index {
        ALL => 0..TABLE,
        index => index as usize..index as usize + 1,
    };
    reply.truncate(BODY);
    reply.resize(BODY + 4 * asked.len(), 0);
    for (at, index) in asked.enumerate() {
        listed_pkey(at).set(reply, partitions.key(index).into());
    }
}
