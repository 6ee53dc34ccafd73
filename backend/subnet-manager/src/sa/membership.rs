//! Multicast groups and who is in them.

use std::collections::BTreeMap;

use wire::attribute::MulticastBlock;
use wire::mad::{Method, Status};
use wire::sa::{JoinState, McMemberRecord, Rate, Selector};
use wire::{Gid, Guid, Lid, Mtu, PKey};

use super::directory::{Directory, Port};
use super::request::{Request, Table};
use super::{Event, View};
use crate::config::preset_group::PresetGroup;
use crate::lids;
use crate::multicast::Trees;
use crate::routing::Graph;

/// Groups that one port may be in.
const OF_A_PORT: usize = 256;
/// Upper half of the GIDs that the subnet administration gives to groups without one: transient,
/// link-local, with the signature that the specification keeps for this (IBA 15.2.5.17.2).
const ASSIGNED: u128 = 0xff12_a01b << 96;

#[derive(Debug, Clone, Copy)]
struct Member {
    gid: Gid,
    state: JoinState,
}

#[derive(Debug)]
pub(super) struct Group {
    /// Record of the properties that all members have in common.
    of: McMemberRecord,
    preset: bool,
    /// Port whose share it counts to: the port that made it, or after that has left another member. Nobody's if it
    /// is there anyway.
    holder: Option<Guid>,
    /// By port GUID.
    members: BTreeMap<Guid, Member>,
}

impl Group {
    /// The group as a record, with no member.
    pub(super) fn record(&self) -> McMemberRecord {
        self.of
    }
}

/// All multicast groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_gid: BTreeMap<Gid, Group>,
    by_lid: BTreeMap<Lid, Gid>,
    /// Number of groups that a port is in.
    memberships: BTreeMap<Guid, usize>,
    /// Number of groups that a port holds.
    held: BTreeMap<Guid, usize>,
    /// Ports, and functions at ports, that may make groups.
    ports: usize,
    /// Multicast LIDs of which members came or went since the trees were last made.
    changed: Vec<Lid>,
    /// Members are elsewhere than the trees have them.
    moved: bool,
    /// LIDs that switches can forward, as the smallest of their tables has it.
    capacity: u16,
    trees: Trees,
    assigned: u64,
}

impl Groups {
    pub(super) fn by_gid(&self, mgid: Gid) -> Option<&Group> {
        self.by_gid.get(&mgid)
    }

    pub(super) fn by_lid(&self, mlid: Lid) -> Option<&Group> {
        self.by_gid.get(self.by_lid.get(&mlid)?)
    }

    pub(super) fn is_changed(&self) -> bool {
        self.moved || !self.changed.is_empty()
    }

    /// A sweep ended: ports that are gone leave, and the groups that are to be there are made.
    pub(super) fn swept(&mut self, directory: &Directory, view: &View<'_>) -> Vec<Event> {
        let tables = directory.nodes.iter().filter_map(|node| node.switch);
        let least = tables.map(|switch| switch.multicast_fdb_cap).min();
        self.capacity = least.unwrap_or(0).min(0x3fff);
        self.ports = directory.end_guids().count();
        self.moved = !self.by_lid.is_empty() && !self.trees.are_of(&view.paths.graph);
        let mut events = Vec::new();
        let mut emptied = Vec::new();
        for (&mgid, group) in &mut self.by_gid {
            let before = group.members.len();
            let (memberships, pkey) = (&mut self.memberships, group.of.pkey);
            group.members.retain(|guid, _| {
                let stays = directory
                    .by_guid(*guid)
                    .is_some_and(|port| directory.port(port).holds(pkey));
                if !stays {
                    left(memberships, *guid);
                }
                stays
            });
            if group.members.len() != before {
                self.changed.push(group.of.mlid);
                emptied.push(mgid);
            }
        }
        for mgid in emptied {
            events.extend(self.tend(mgid));
        }
        for preset in presets(directory, view) {
            let mgid = preset.record.mgid;
            if let Some(group) = self.by_gid.get_mut(&mgid) {
                group.preset = true;
                if group.members.is_empty() {
                    let mlid = group.of.mlid;
                    group.of = McMemberRecord {
                        mlid,
                        ..preset.record
                    };
                }
                events.extend(self.tend(mgid));
                continue;
            }
            events.extend(self.create(preset.record, None).ok());
        }
        events
    }

    /// A port's GUID and LIDs are elsewhere.
    pub(super) fn moved(&mut self, port: &Port, graph: &Graph) {
        for lid in lids::range(port.info.lid, port.info.lmc) {
            let endpoints = &graph.endpoints;
            if let Ok(at) = endpoints.binary_search_by_key(&lid, |endpoint| endpoint.lid) {
                self.trees.moved(endpoints[at]);
            }
        }
        let groups = self.by_gid.values();
        let joined = groups.filter(|group| group.members.contains_key(&port.guid));
        self.changed.extend(joined.map(|group| group.of.mlid));
    }

    /// Planned content of the multicast forwarding tables of the graph's switches; in a graph that is new all of
    /// it, otherwise what changed.
    pub(super) fn blocks(
        &mut self,
        graph: &Graph,
        lid_of: impl Fn(Guid) -> Option<Lid>,
    ) -> Vec<BTreeMap<(u16, u8), MulticastBlock>> {
        self.moved = false;
        let new = self.trees.span(graph);
        let changed: Vec<Lid> = if new {
            self.changed.clear();
            self.by_lid.keys().copied().collect()
        } else {
            std::mem::take(&mut self.changed)
        };
        for mlid in changed {
            let group = self.by_lid.get(&mlid).and_then(|gid| self.by_gid.get(gid));
            let members = group.into_iter().flat_map(|group| group.members.keys());
            let ends = members.filter_map(|guid| {
                let lid = lid_of(*guid)?;
                let at = graph
                    .endpoints
                    .binary_search_by_key(&lid, |endpoint| endpoint.lid);
                graph.endpoints.get(at.ok()?)
            });
            self.trees.grow(mlid, ends);
        }
        self.trees.blocks(graph)
    }

    /// Planned content of a switch's multicast forwarding table.
    pub(super) fn tables_of(
        &self,
        switch: Guid,
    ) -> impl Iterator<Item = (&(u16, u8), &MulticastBlock)> {
        self.trees.of(switch)
    }

    /// A LID that no group has.
    fn free(&self) -> Option<Lid> {
        let first = Lid::MULTICAST_FIRST.value();
        let all = (first..first.saturating_add(self.capacity)).map(Lid::new);
        let mut all = all.filter(|lid| lid.is_multicast());
        all.find(|lid| !self.by_lid.contains_key(lid))
    }

    /// Whether a port may make one group more. Each port has an equal share, which nobody else gets.
    /// Of what is in nobody's share it may have a quarter, so that always something is left.
    fn may_create(&self, guid: Guid) -> bool {
        let all = usize::from(self.capacity);
        let share = all.checked_div(self.ports).unwrap_or(0);
        let held = self.held.get(&guid).copied().unwrap_or(0);
        if held < share {
            return true;
        }
        let within: usize = self.held.values().map(|&held| held.min(share)).sum();
        let reserved = share * self.ports - within.min(share * self.ports);
        let spare = all.saturating_sub(self.by_lid.len() + reserved);
        held - share < spare.div_ceil(4)
    }

    /// Makes a group, which `maker` holds; without one it stays when nobody is in it.
    fn create(&mut self, record: McMemberRecord, maker: Option<Guid>) -> Result<Event, Status> {
        let mlid = self.free().ok_or(Status::SA_NO_RESOURCES)?;
        let of = McMemberRecord {
            mlid,
            port_gid: Gid::NONE,
            join_state: JoinState::default(),
            proxy_join: false,
            ..record
        };
        self.by_lid.insert(mlid, of.mgid);
        self.by_gid.insert(
            of.mgid,
            Group {
                of,
                preset: maker.is_none(),
                holder: maker,
                members: BTreeMap::new(),
            },
        );
        if let Some(maker) = maker {
            *self.held.entry(maker).or_default() += 1;
        }
        Ok(Event::GroupCreated(of.mgid, of.pkey))
    }

    /// Members have left: another one holds the group, or it ends if nobody keeps it.
    fn tend(&mut self, mgid: Gid) -> Option<Event> {
        let group = self.by_gid.get_mut(&mgid)?;
        let mut keepers = group
            .members
            .iter()
            .filter(|(_, member)| member.state.keeps());
        let (keeper, ends) = match group.holder {
            _ if group.preset => (None, false),
            Some(holder) if group.members.contains_key(&holder) => {
                (Some(holder), keepers.next().is_none())
            }
            _ => {
                let keeper = keepers.next().map(|(&guid, _)| guid);
                (keeper, keeper.is_none())
            }
        };
        if group.holder != keeper || ends {
            let before = std::mem::replace(&mut group.holder, keeper);
            if let Some(holder) = before {
                left(&mut self.held, holder);
            }
            if let (Some(keeper), false) = (keeper, ends) {
                *self.held.entry(keeper).or_default() += 1;
            }
        }
        if !ends {
            return None;
        }
        let group = self.by_gid.remove(&mgid)?;
        for guid in group.members.keys() {
            left(&mut self.memberships, *guid);
        }
        self.by_lid.remove(&group.of.mlid);
        self.changed.push(group.of.mlid);
        Some(Event::GroupDeleted(mgid, group.of.pkey))
    }

    /// A port joins a group, which begins with it if it may (IBA 15.2.5.17.1).
    pub(super) fn join(
        &mut self,
        request: &Request<'_>,
        directory: &Directory,
        table: &mut Table,
    ) -> Result<Option<Event>, Status> {
        const NEEDED: u64 =
            McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        const TO_CREATE: u64 = McMemberRecord::QKEY
            | McMemberRecord::TRAFFIC_CLASS
            | McMemberRecord::PKEY
            | McMemberRecord::SL
            | McMemberRecord::FLOW_LABEL;
        if !request.gives(NEEDED) {
            return Err(Status::SA_INSUFFICIENT_COMPONENTS);
        }
        let mut wanted: McMemberRecord = request.record()?;
        let (port, guid) = member(request, directory, &wanted)?;
        if wanted.join_state.is_none() {
            return Err(Status::SA_REQUEST_INVALID);
        }
        let is_in = |group: &Group| group.members.contains_key(&guid);
        let known = self.by_gid.get(&wanted.mgid);
        let count = self.memberships.get(&guid).copied().unwrap_or(0);
        if count >= OF_A_PORT && !known.is_some_and(is_in) {
            return Err(Status::SA_NO_RESOURCES);
        }
        let mut event = None;
        match known {
            Some(group) => fits(request, &wanted, &group.of, port)?,
            None => {
                if !request.gives(TO_CREATE) {
                    return Err(Status::SA_INSUFFICIENT_COMPONENTS);
                }
                if !wanted.join_state.keeps() {
                    return Err(Status::SA_REQUEST_INVALID);
                }
                if wanted.mgid == Gid::NONE {
                    self.assigned += 1;
                    let partition = u128::from(wanted.pkey.value()) << 80;
                    let mgid = ASSIGNED | partition | u128::from(self.assigned);
                    wanted.mgid = Gid::from_bits(mgid);
                } else if !may_be_created(wanted.mgid) {
                    return Err(Status::SA_INVALID_GID);
                }
                if !self.may_create(guid) {
                    return Err(Status::SA_NO_RESOURCES);
                }
                event = Some(self.create(begun(request, &wanted, port)?, Some(guid))?);
            }
        }
        let Some(group) = self.by_gid.get_mut(&wanted.mgid) else {
            return Err(Status::SA_NO_RESOURCES);
        };
        let gid = wanted.port_gid;
        let member = group.members.entry(guid).or_insert_with(|| {
            *self.memberships.entry(guid).or_default() += 1;
            self.changed.push(group.of.mlid);
            Member {
                gid,
                state: JoinState::default(),
            }
        });
        member.state = member.state.with(wanted.join_state);
        table.begin::<McMemberRecord>(Method::SET);
        table.push(&McMemberRecord {
            port_gid: gid,
            join_state: member.state,
            ..group.of
        });
        Ok(event)
    }

    /// A port leaves a group (IBA 15.2.5.17.3).
    pub(super) fn leave(
        &mut self,
        request: &Request<'_>,
        directory: &Directory,
        table: &mut Table,
    ) -> Result<Option<Event>, Status> {
        const NEEDED: u64 =
            McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        if !request.gives(NEEDED) {
            return Err(Status::SA_INSUFFICIENT_COMPONENTS);
        }
        let wanted: McMemberRecord = request.record()?;
        let (_, guid) = member(request, directory, &wanted)?;
        let group = self.by_gid.get_mut(&wanted.mgid);
        let group = group.ok_or(Status::SA_REQUEST_INVALID)?;
        let member = group.members.get_mut(&guid);
        let member = member.ok_or(Status::SA_REQUEST_INVALID)?;
        if (member.state.0 & wanted.join_state.0) == 0 {
            return Err(Status::SA_REQUEST_INVALID);
        }
        member.state = member.state.without(wanted.join_state);
        let state = member.state;
        table.begin::<McMemberRecord>(Method::DELETE);
        table.push(&McMemberRecord {
            port_gid: wanted.port_gid,
            join_state: state,
            ..group.of
        });
        if state.is_none() {
            group.members.remove(&guid);
            left(&mut self.memberships, guid);
            self.changed.push(group.of.mlid);
        }
        Ok(self.tend(wanted.mgid))
    }

    /// Adds the records of groups, and for those who may know of their members.
    pub(super) fn answer(
        &self,
        request: &Request<'_>,
        directory: &Directory,
        table: &mut Table,
    ) -> Result<(), Status> {
        table.begin::<McMemberRecord>(request.method);
        let wanted: McMemberRecord = request.record()?;
        let requester = directory.port(request.requester);
        let only = request
            .gives(McMemberRecord::MGID)
            .then(|| self.by_gid.get_key_value(&wanted.mgid));
        let groups = match only {
            Some(one) => one.map_or_else(Vec::new, |(_, group)| vec![group]),
            None => self.by_gid.values().collect(),
        };
        // How MTU, rate and time of a request count is said by selectors, not by equality.
        let selected = McMemberRecord::MTU_SELECTOR
            | McMemberRecord::MTU
            | McMemberRecord::RATE_SELECTOR
            | McMemberRecord::RATE
            | McMemberRecord::PACKET_LIFE_TIME_SELECTOR
            | McMemberRecord::PACKET_LIFE_TIME;
        let request = &Request {
            mask: request.mask & !selected,
            ..*request
        };
        let own = Request {
            mask: request.mask & !(McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE),
            ..*request
        };
        for group in groups {
            if table.is_full() {
                break;
            }
            if !request.trusted && !requester.holds(group.of.pkey) {
                continue;
            }
            if !selects(request, &wanted, &group.of) {
                continue;
            }
            if request.trusted {
                for member in group.members.values() {
                    table.offer(request, &of_member(group, member));
                }
                if group.members.is_empty() {
                    table.offer(request, &group.of);
                }
                continue;
            }
            // Others learn of the group, and of themselves.
            let about_itself = request.gives(McMemberRecord::PORT_GID);
            match group.members.get(&request.guid) {
                Some(member) if about_itself => table.offer(request, &of_member(group, member)),
                _ if about_itself => {}
                _ => table.offer(&own, &group.of),
            }
        }
        Ok(())
    }
}

/// The groups that are to be there: those of the configuration, and IPoIB's broadcast group of
/// every partition that a port is in.
fn presets(directory: &Directory, view: &View<'_>) -> Vec<PresetGroup> {
    let mut all = view.config.preset_groups();
    let mut partitions: Vec<u16> = directory
        .ports
        .iter()
        .flat_map(|port| &port.pkeys)
        .map(|pkey| pkey.partition())
        .collect();
    partitions.sort_unstable();
    partitions.dedup();
    for partition in partitions {
        let group = PresetGroup::ipoib(PKey::new(partition));
        let group = view.config.on_its_level(group);
        if !all.iter().any(|own| own.record.mgid == group.record.mgid) {
            all.push(group);
        }
    }
    for group in all.iter_mut().filter(|group| !group.has_own_level) {
        let level = view.levels.of_partition(group.record.pkey);
        group.record.sl = level.unwrap_or(group.record.sl);
    }
    all
}

fn of_member(group: &Group, member: &Member) -> McMemberRecord {
    McMemberRecord {
        port_gid: member.gid,
        join_state: member.state,
        ..group.of
    }
}

fn left(memberships: &mut BTreeMap<Guid, usize>, guid: Guid) {
    if let Some(count) = memberships.get_mut(&guid) {
        *count -= 1;
        if *count == 0 {
            memberships.remove(&guid);
        }
    }
}

/// The port that is to join or leave: only the one that asks, unless somebody trusted asks for
/// another one.
fn member<'a>(
    request: &Request<'_>,
    directory: &'a Directory,
    wanted: &McMemberRecord,
) -> Result<(&'a Port, Guid), Status> {
    let port = directory
        .by_gid(wanted.port_gid)
        .ok_or(Status::SA_INVALID_GID)?;
    if port != request.requester && !request.trusted {
        return Err(Status::SA_DENIED);
    }
    Ok((directory.port(port), wanted.port_gid.guid()))
}

/// Whether a GID is one that clients may make a group of: a multicast one with a scope, and not of
/// those that the subnet administration gives out itself.
fn may_be_created(mgid: Gid) -> bool {
    let bits = mgid.to_bits();
    let (flags, scope) = (bits >> 116 & 0xf, bits >> 112 & 0xf);
    mgid.is_multicast()
        && scope != 0
        && scope != 0xf
        && flags & 0xe == 0
        && bits >> 96 != ASSIGNED >> 96
}

/// Whether a value is what the selector of a request makes of it; a request without selector or
/// value takes any.
fn value_fits(
    request: &Request<'_>,
    components: (u64, u64),
    (selector, wanted): (u8, u8),
    value: u8,
    rank: impl Fn(u8) -> Option<u32>,
) -> bool {
    if !request.gives(components.0 | components.1) {
        return true;
    }
    let (Some(wanted), Some(value)) = (rank(wanted), rank(value)) else {
        return Selector::from_code(selector) == Selector::Largest;
    };
    match Selector::from_code(selector) {
        Selector::Greater => value > wanted,
        Selector::Less => value < wanted,
        Selector::Exactly => value == wanted,
        Selector::Largest => true,
    }
}

fn mtu_rank(code: u8) -> Option<u32> {
    Mtu::from_code(code).map(Mtu::bytes)
}

fn rate_rank(code: u8) -> Option<u32> {
    Rate(code).gigabits()
}

/// Whether MTU, rate and time of a group are such as the request selects.
fn selects(request: &Request<'_>, wanted: &McMemberRecord, of: &McMemberRecord) -> bool {
    value_fits(
        request,
        (McMemberRecord::MTU_SELECTOR, McMemberRecord::MTU),
        (wanted.mtu_selector, wanted.mtu),
        of.mtu,
        mtu_rank,
    ) && value_fits(
        request,
        (McMemberRecord::RATE_SELECTOR, McMemberRecord::RATE),
        (wanted.rate_selector, wanted.rate),
        of.rate,
        rate_rank,
    ) && value_fits(
        request,
        (
            McMemberRecord::PACKET_LIFE_TIME_SELECTOR,
            McMemberRecord::PACKET_LIFE_TIME,
        ),
        (wanted.packet_life_time_selector, wanted.packet_life_time),
        of.packet_life_time,
        |time| Some(u32::from(time)),
    )
}

/// Whether a port may join a group in the way it asks for.
fn fits(
    request: &Request<'_>,
    wanted: &McMemberRecord,
    of: &McMemberRecord,
    port: &Port,
) -> Result<(), Status> {
    let differs = |component, differs: bool| request.gives(component) && differs;
    let refused = !selects(request, wanted, of)
        || differs(McMemberRecord::QKEY, wanted.qkey != of.qkey)
        || differs(
            McMemberRecord::PKEY,
            wanted.pkey.partition() != of.pkey.partition(),
        )
        || differs(McMemberRecord::SL, wanted.sl != of.sl)
        || differs(
            McMemberRecord::FLOW_LABEL,
            wanted.flow_label != of.flow_label,
        )
        || differs(
            McMemberRecord::TRAFFIC_CLASS,
            wanted.traffic_class != of.traffic_class,
        );
    if refused {
        return Err(Status::SA_REQUEST_INVALID);
    }
    carries(port, of)
}

/// Whether a port is in the partition of a group and can take its packets.
fn carries(port: &Port, of: &McMemberRecord) -> Result<(), Status> {
    if !port.holds(of.pkey) {
        return Err(Status::SA_DENIED);
    }
    let slow = port.rate.gigabits() < Rate(of.rate).gigabits();
    if port.info.neighbor_mtu < of.mtu || slow {
        return Err(Status::SA_REQUEST_INVALID);
    }
    Ok(())
}

/// A group as its first member asks for it.
fn begun(
    request: &Request<'_>,
    wanted: &McMemberRecord,
    port: &Port,
) -> Result<McMemberRecord, Status> {
    let choose =
        |components: (u64, u64), selector, value, best, rank: &dyn Fn(u8) -> Option<u32>| {
            if request.gives(components.0 | components.1) {
                Selector::from_code(selector)
                    .choose(value, best, rank)
                    .ok_or(Status::SA_REQUEST_INVALID)
            } else {
                Ok(best)
            }
        };
    let exactly = Selector::Exactly.code();
    let life = McMemberRecord::PACKET_LIFE_TIME_SELECTOR | McMemberRecord::PACKET_LIFE_TIME;
    let record = McMemberRecord {
        // Packets of a group are those of its full members.
        pkey: PKey::new(wanted.pkey.value() | 0x8000),
        mtu_selector: exactly,
        mtu: choose(
            (McMemberRecord::MTU_SELECTOR, McMemberRecord::MTU),
            wanted.mtu_selector,
            wanted.mtu,
            port.info.neighbor_mtu,
            &mtu_rank,
        )?,
        rate_selector: exactly,
        rate: choose(
            (McMemberRecord::RATE_SELECTOR, McMemberRecord::RATE),
            wanted.rate_selector,
            wanted.rate,
            port.rate.0,
            &rate_rank,
        )?,
        packet_life_time_selector: exactly,
        packet_life_time: if request.gives(life) {
            wanted.packet_life_time
        } else {
            18
        },
        hop_limit: if request.gives(McMemberRecord::HOP_LIMIT) {
            wanted.hop_limit
        } else {
            0
        },
        scope: (wanted.mgid.to_bits() >> 112 & 0xf) as u8,
        ..*wanted
    };
    carries(port, &record)?;
    Ok(record)
}
