//! Nodes and cables, once all lines are read.

use std::collections::{HashMap, HashSet};

use wire::attribute::NodeType;
use wire::{Guid, Lid};

use super::cables::{Ability, rate};
use super::error::{NetlistError, Place, error};
use super::lines::is_lid;
use super::notices::Loss;
use super::rate_name;
use super::read::{End, Listing, Reader, Record, Remote};
use super::text::shown;
use crate::nodes::topology::{NodeId, Topology};

/// A port, by the place of its node among the records.
type At = (usize, u8);

impl Record {
    /// Whether it says the same of the same node: listings with grouping have switches twice.
    fn repeats(&self, other: &Self) -> bool {
        let cables = |record: &Self| {
            let ends = record.ends.iter();
            ends.map(|(&port, end)| match &end.remote {
                Remote::Port(name, there) => (port, name.clone(), *there),
                Remote::Alias(name) => (port, name.clone(), 0),
            })
            .collect::<Vec<_>>()
        };
        self.spec == other.spec && cables(self) == cables(other)
    }
}

impl Reader {
    pub(super) fn finish(mut self) -> Result<Listing, NetlistError> {
        let places = self.places()?;
        self.guids(&places)?;
        self.lids();
        let mut topology = Topology::new();
        for record in &self.records {
            topology.add(record.spec.clone());
        }
        self.cables(&places, &mut topology)?;
        topology.check()?;
        Ok(Listing {
            topology,
            notices: self.notices.into_texts(),
            included: self.included,
        })
    }

    /// The nodes by their names, each once.
    fn places(&mut self) -> Result<HashMap<String, usize>, NetlistError> {
        if self.records.is_empty() {
            let why = self.notices.not_understood();
            return Err(NetlistError::Empty(
                why.map_or_else(String::new, |why| format!("; {why}")),
            ));
        }
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut kept: Vec<Record> = Vec::with_capacity(self.records.len());
        for record in std::mem::take(&mut self.records) {
            match places.get(&record.name) {
                Some(&place) if kept[place].repeats(&record) => {}
                Some(&place) => {
                    let what = format!(
                        "there are two nodes `{}`; the other one is at {}: give each a name of its own",
                        shown(&record.name),
                        kept[place].at
                    );
                    return error(&record.at, what);
                }
                None => {
                    places.insert(record.name.clone(), kept.len());
                    kept.push(record);
                }
            }
        }
        self.records = kept;
        Ok(places)
    }

    /// Gives ports their GUIDs: those in the text, or else numbers behind the node's.
    fn guids(&mut self, places: &HashMap<String, usize>) -> Result<(), NetlistError> {
        let mut told: Vec<(At, Guid, Place)> = Vec::new();
        for end in self.records.iter().flat_map(|record| record.ends.values()) {
            if let (Remote::Port(name, port), Some(guid)) = (&end.remote, end.remote_guid)
                && let Some(&place) = places.get(name)
            {
                told.push(((place, *port), guid, end.at.clone()));
            }
        }
        for ((place, port), guid, at) in told {
            let record = &mut self.records[place];
            let has_port = record.spec.kind != NodeType::Switch && port <= record.spec.ports;
            if has_port {
                record.guids.entry(port).or_insert((guid, at));
            }
        }
        let mut owners: HashMap<Guid, usize> = HashMap::new();
        for (place, record) in self.records.iter().enumerate() {
            let node = (&record.spec.guid, &record.at);
            let ports = record.guids.values().map(|(guid, at)| (guid, at));
            let mut of_ports = HashSet::new();
            for (guid, at) in ports.clone().chain([node]) {
                if guid.is_none() {
                    return error(
                        at,
                        "a GUID is zero; give every node and port one of its own",
                    );
                }
                let owner = *owners.entry(*guid).or_insert(place);
                if owner != place {
                    return same_guid(*guid, at, &self.records[owner].at);
                }
            }
            for (guid, at) in ports {
                if !of_ports.insert(guid) {
                    return same_guid(*guid, at, &record.at);
                }
            }
        }
        for (place, record) in self.records.iter_mut().enumerate() {
            let node = record.spec.guid;
            if record.spec.kind == NodeType::Switch {
                record.spec.port_guids = vec![record.guids.get(&0).map_or(node, |(guid, _)| *guid)];
                continue;
            }
            record.spec.port_guids.clear();
            // One after the other, as adapters have them: from the node's, as in ibsim, or as those given.
            let given = record.guids.iter().next();
            let base = given.map_or(node.value(), |(&port, (guid, _))| {
                guid.value().wrapping_sub(port.into())
            });
            let mut own: HashSet<Guid> = record.guids.values().map(|(guid, _)| *guid).collect();
            for port in 1..=record.spec.ports {
                if let Some((guid, _)) = record.guids.get(&port) {
                    record.spec.port_guids.push(*guid);
                    continue;
                }
                let mut is_free = |guid: &Guid| {
                    let owner = owners.get(guid);
                    !guid.is_none()
                        && owner.is_none_or(|&owner| owner == place)
                        && own.insert(*guid)
                };
                let usual =
                    [node.value(), base].map(|from| Guid::new(from.wrapping_add(port.into())));
                let guid = usual.into_iter().find(&mut is_free).unwrap_or_else(|| {
                    let mut guid = usual[0];
                    while !is_free(&guid) {
                        guid = Guid::new(guid.value().wrapping_add(1 << 40));
                    }
                    guid
                });
                if !usual.contains(&guid) {
                    self.notices.add(Loss::GuidTaken, &record.at, || {
                        format!(
                            "the GUID of port {port} is not given, and the usual one is another's; it is \
                             {guid}"
                        )
                    });
                }
                owners.insert(guid, place);
                record.spec.port_guids.push(guid);
            }
        }
        Ok(())
    }

    /// Has ports begin with the LIDs in the text, each with another's.
    fn lids(&mut self) {
        let mut taken = HashSet::new();
        for record in &mut self.records {
            let last = record.lids.keys().next_back().copied().unwrap_or(0);
            let ports = if record.spec.kind == NodeType::Switch {
                0..=0
            } else {
                1..=last
            };
            let notices = &mut self.notices;
            let mut lid = |port: u8| {
                let Some((lid, at)) = record.lids.get(&port).filter(|(lid, _)| *lid != 0) else {
                    return Lid::NONE;
                };
                if !is_lid(*lid) {
                    notices.add(Loss::LidReserved, at, || {
                        format!("LID {lid} is no unicast LID; the subnet manager gives another one")
                    });
                    return Lid::NONE;
                }
                if !taken.insert(*lid) {
                    notices.add(Loss::LidTaken, at, || {
                        format!(
                            "LID {lid} is another port's, too; the subnet manager gives a free one"
                        )
                    });
                    return Lid::NONE;
                }
                Lid::new(*lid as u16)
            };
            record.spec.lids = ports.map(&mut lid).collect();
            while record.spec.lids.last() == Some(&Lid::NONE) {
                record.spec.lids.pop();
            }
        }
    }

    fn cables(
        &mut self,
        places: &HashMap<String, usize>,
        topology: &mut Topology,
    ) -> Result<(), NetlistError> {
        let mut aliases: HashMap<&str, (At, Ability)> = HashMap::new();
        for (place, record) in self.records.iter().enumerate() {
            for (&port, (name, ability)) in &record.aliases {
                if aliases.insert(name, ((place, port), *ability)).is_some() {
                    let what = format!(
                        "the alias `{}` is another port's, too; give each a name of its own",
                        shown(name)
                    );
                    return error(&record.at, what);
                }
            }
        }
        let mut by_alias = HashSet::new();
        for (place, record) in self.records.iter().enumerate() {
            for (&port, end) in &record.ends {
                let own = (place, port);
                let found = match &end.remote {
                    Remote::Port(name, there) => {
                        let other = self.returning(places, own, end, name, *there)?;
                        // Each cable once.
                        if own > other.0 {
                            continue;
                        }
                        other
                    }
                    Remote::Alias(name) => match aliases.get(name.as_str()) {
                        Some(&alias) if by_alias.insert(alias.0) => alias,
                        Some(_) => {
                            let what = format!(
                                "the alias `{}` has a cable already; a port takes one",
                                shown(name)
                            );
                            return error(&end.at, what);
                        }
                        None => {
                            let what = format!(
                                "there is no alias `{}`; give a port this name by a line such as \
                                 `@[1] \"name\"`",
                                shown(name)
                            );
                            return error(&end.at, what);
                        }
                    },
                };
                let (other, ability) = found;
                if own == other {
                    return error(&end.at, "a cable from a port to itself; name another port");
                }
                let Some((rate, differ)) = rate(end.ability, ability) else {
                    return error(
                        &end.at,
                        "the ends have no width or speed in common; write the same at both",
                    );
                };
                if differ {
                    self.notices.add(Loss::RatesDiffer, &end.at, || {
                        let rate = rate_name(rate);
                        format!("the ends name different rates; the lower one is taken, {rate}")
                    });
                }
                let [a, b] = [own, other].map(|(place, port)| (NodeId(place as u32), port));
                topology.link(a, b, rate);
            }
        }
        Ok(())
    }

    /// The other end of a cable, which leads back.
    fn returning(
        &self,
        places: &HashMap<String, usize>,
        own: At,
        end: &End,
        name: &str,
        there: u8,
    ) -> Result<(At, Ability), NetlistError> {
        let Some(&place) = places.get(name) else {
            let what = format!(
                "there is no node `{}`; add it, or remove the cable",
                shown(name)
            );
            return error(&end.at, what);
        };
        let own_name = &self.records[own.0].name;
        let back = self.records[place].ends.get(&there);
        match back {
            Some(back) if back.remote == Remote::Port(own_name.clone(), own.1) => {
                Ok(((place, there), back.ability))
            }
            _ => error(
                &end.at,
                format!(
                    "`{}` has no cable at port {there} that leads back here; a cable stands at both \
                     its nodes",
                    shown(name)
                ),
            ),
        }
    }
}

fn same_guid(guid: Guid, at: &Place, other: &Place) -> Result<(), NetlistError> {
    let what = format!(
        "GUID {guid} is used twice, also at {other}; give every node and port a GUID of its own"
    );
    error(at, what)
}
