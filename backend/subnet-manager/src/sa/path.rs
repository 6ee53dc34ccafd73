//! Path records.

use wire::mad::{Method, Status};
use wire::sa::{McMemberRecord, PathRecord, Rate, Selector};
use wire::{Gid, Guid, Lid, Mtu, PKey, Sl};

use super::View;
use super::directory::{Capacity, Directory, Port, PortIndex};
use super::membership::Groups;
use super::request::{Request, Table};
use crate::config::policy::{self, Level, Query};

/// Paths between two ports that a request may ask for, unless it says how many.
const NUMB_PATH: u8 = 127;

/// Adds the paths that a request for PathRecords asks for.
pub(super) fn answer(
    request: &Request<'_>,
    directory: &Directory,
    groups: &Groups,
    view: &View<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    table.begin::<PathRecord>(request.method);
    let wanted: PathRecord = request.record()?;
    let asked = Asked {
        request,
        wanted,
        directory,
        view,
    };
    let to_group = request.gives(PathRecord::DGID) && wanted.dgid.is_multicast()
        || request.gives(PathRecord::DLID) && wanted.dlid.is_multicast();
    let sources = asked.source()?;
    if to_group {
        return asked.group(sources, groups, table);
    }
    let destinations = asked.destination()?;
    let all: Vec<End> = match (sources, destinations) {
        (Some(from), Some(to)) => {
            asked.between(from, to, table);
            return Ok(());
        }
        _ => directory
            .end_ports()
            .flat_map(|port| {
                let guids = directory.port(port).all_guids();
                guids.map(move |guid| End::new(port, guid))
            })
            .collect(),
    };
    let ends = |given: &Option<End>| match given {
        Some(end) => vec![*end],
        None => all.clone(),
    };
    let destinations = ends(&destinations);
    for from in ends(&sources) {
        for &to in &destinations {
            asked.between(from, to, table);
            if table.is_full() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// One end of a path: a port, and which of its GUIDs is meant.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) port: PortIndex,
    pub(super) guid: Guid,
    /// GID of a port of another subnet, where this is the way out of the subnet.
    beyond: Option<Gid>,
}

impl End {
    fn new(port: PortIndex, guid: Guid) -> Self {
        let beyond = None;
        Self { port, guid, beyond }
    }

    /// The end with this GID.
    pub(super) fn of(directory: &Directory, gid: Gid) -> Option<Self> {
        Some(Self::new(directory.by_gid(gid)?, gid.guid()))
    }

    /// The end with this GID, or the router to its subnet.
    pub(super) fn toward(directory: &Directory, gid: Gid) -> Option<Self> {
        if let Some(end) = Self::of(directory, gid) {
            return Some(end);
        }
        let router = directory.router_to(gid.prefix())?;
        let end = Self::new(router, directory.port(router).guid);
        let beyond = Some(gid);
        Some(Self { beyond, ..end })
    }
}

/// The hop limit of a path out of the subnet, as OpenSM has it: how many routers there are beyond
/// the first, nobody asks.
const HOP_LIMIT: u8 = 255;

/// The longest life time of a packet, by code.
const MAX_LIFE: u8 = 63;

/// Request for paths.
pub(super) struct Asked<'a> {
    pub(super) request: &'a Request<'a>,
    /// The template.
    pub(super) wanted: PathRecord,
    pub(super) directory: &'a Directory,
    pub(super) view: &'a View<'a>,
}

impl Asked<'_> {
    fn gives(&self, component: u64) -> bool {
        self.request.gives(component)
    }

    /// The end that GID and LID name; `None` when neither is given.
    fn end(
        &self,
        gid: (u64, Gid),
        lid: (u64, Lid),
        find: impl Fn(&Directory, Gid) -> Option<End>,
    ) -> Result<Option<End>, Status> {
        let mut end = None;
        if self.gives(gid.0) {
            let found = find(self.directory, gid.1);
            end = Some(found.ok_or(Status::SA_INVALID_GID)?);
        }
        if self.gives(lid.0) {
            let found = self.directory.by_lid(lid.1).ok_or(Status::SA_NO_RECORDS)?;
            if end.is_some_and(|end| end.port != found) {
                return Err(Status::SA_NO_RECORDS);
            }
            let guid = self.directory.guid_with(lid.1);
            end = end.or_else(|| Some(End::new(found, guid?)));
        }
        Ok(end)
    }

    /// Where paths are to begin, if the template says it.
    pub(super) fn source(&self) -> Result<Option<End>, Status> {
        let PathRecord { sgid, slid, .. } = self.wanted;
        self.end((PathRecord::SGID, sgid), (PathRecord::SLID, slid), End::of)
    }

    /// Where they are to end.
    pub(super) fn destination(&self) -> Result<Option<End>, Status> {
        let PathRecord { dgid, dlid, .. } = self.wanted;
        let (gid, lid) = ((PathRecord::DGID, dgid), (PathRecord::DLID, dlid));
        self.end(gid, lid, End::toward)
    }

    /// The level that the policy has for paths between two ports, if there is a policy.
    fn policy(&self, from: End, to: End) -> Option<&Level> {
        let policy = self.view.config.policy.as_ref()?;
        Some(policy.level(&Query {
            source: self.policy_end(from),
            destination: self.policy_end(to),
            wanted: &self.wanted,
            mask: self.request.mask,
        }))
    }

    fn policy_end(&self, end: End) -> policy::End<'_> {
        let port = self.directory.port(end.port);
        let node = self.directory.node_of(port);
        let name = self.view.config.names.get(node.info.node_guid);
        policy::End {
            guids: [end.guid, port.guid],
            kind: node.info.node_type,
            name: name.map_or_else(
                || String::from_utf8_lossy(node.description.as_bytes()),
                Into::into,
            ),
            number: port.number,
            pkeys: self.directory.pkeys(port, end.guid),
            is_own: self.directory.own == Some(end.port),
        }
    }

    /// The key that packets from one port to the other carry.
    fn partition(&self, from: End, to: End, level: Option<&Level>) -> Option<PKey> {
        let pkeys = |end: End| {
            self.directory
                .pkeys(self.directory.port(end.port), end.guid)
        };
        let (from, to) = (pkeys(from), pkeys(to));
        if self.gives(PathRecord::PKEY) {
            let pkey = self.wanted.pkey;
            let of = |pkeys: &[PKey]| {
                let same = |own: &&PKey| own.partition() == pkey.partition();
                pkeys.iter().copied().filter(|own| same(&own)).max()
            };
            let admitted = level.is_none_or(|level| level.admits(pkey));
            return (admitted && of(from)?.matches(of(to)?)).then_some(pkey);
        }
        let both = |own: &PKey| to.iter().any(|other| other.matches(*own));
        let mut shared = from.iter().copied().filter(both);
        match level {
            Some(level) => level.choose(shared),
            None => shared.next(),
        }
    }

    /// Adds the paths between two ports.
    pub(super) fn between(&self, from: End, to: End, table: &mut Table) {
        let (source, destination) = (self.directory.port(from.port), self.directory.port(to.port));
        if !self.request.may_see(self.directory, source)
            || !self.request.may_see(self.directory, destination)
        {
            return;
        }
        let level = self.policy(from, to);
        let Some(pkey) = self.partition(from, to, level) else {
            return;
        };
        let (base, lmc) = self.directory.lids_of(destination, to.guid);
        let (own_base, own_lmc) = self.directory.lids_of(source, from.guid);
        let paths = 1u16 << lmc.min(7);
        // The pair's own paths come first, where it has some: others are shared with them.
        let plan = self.view.paths.plan.as_ref();
        let [first, back] = [(source, destination), (destination, source)]
            .map(|(from, to)| plan.map_or(0, |plan| u16::from(plan.offset(from.guid, to.guid))));
        let first = Some(first).filter(|first| *first < paths).unwrap_or(0);
        let most = match self.request.method {
            Method::GET => 1,
            _ if self.gives(PathRecord::NUMB_PATH) => u16::from(self.wanted.numb_path.max(1)),
            _ => u16::from(NUMB_PATH),
        };
        let mut found = 0;
        for number in 0..paths {
            let bits = number ^ first;
            let dlid = if !self.gives(PathRecord::DLID) {
                Lid::new(base.value() + bits)
            } else if number == 0 {
                self.wanted.dlid
            } else {
                break;
            };
            let Some(capacity) = self.directory.capacity(from.port, dlid) else {
                continue;
            };
            let of_cluster = self.level_of_cluster([from.guid, to.guid]);
            let sl = of_cluster.unwrap_or_else(|| self.level(source, dlid, pkey, level));
            let Some(sl) = sl else {
                continue;
            };
            let slid = if self.gives(PathRecord::SLID) {
                self.wanted.slid
            } else {
                let own = (1u16 << own_lmc.min(7)) - 1;
                Lid::new(own_base.value() + ((number ^ back) & own))
            };
            if let Some(record) = self.path(from, to, (slid, dlid), pkey, (capacity, level)) {
                table.push(&PathRecord { sl, ..record });
                found += 1;
                if found >= most || table.is_full() {
                    break;
                }
            }
        }
    }

    /// The service level of paths between ports of which one is in a cluster with levels of its own.
    fn level_of_cluster(&self, ends: [Guid; 2]) -> Option<Option<Sl>> {
        let wanted = self.gives(PathRecord::SL).then_some(self.wanted.sl);
        self.view.levels.level(ends, wanted)
    }

    /// The service level of the path to a LID: where levels keep paths from waiting for each other,
    /// the path's own, and in it the class of service that is asked for; elsewhere the policy's, and `None` if another one is asked for, as by OpenSM. Without either,
    /// the one that is asked for, or else the partition's.
    fn level(&self, from: &Port, dlid: Lid, pkey: PKey, policy: Option<&Level>) -> Option<Sl> {
        let levels = &self.view.paths.levels;
        let given = self.gives(PathRecord::SL).then_some(self.wanted.sl);
        let is_wanted = |own: &Sl| given.is_none_or(|given| given == *own);
        let file = self.view.config.partition_file.as_ref();
        let of_partition = || file.and_then(|file| file.level(pkey));
        let free = || given.or_else(of_partition).unwrap_or_default();
        if levels.count() < 2 && levels.free() == 0 {
            let Some(policy) = policy else {
                return Some(free());
            };
            return Some(policy.sl).filter(is_wanted);
        }
        let vertex = self.directory.vertex(from)?;
        let class = policy.map_or_else(free, |policy| policy.sl).value() & levels.free();
        let level = Sl::new(levels.level(vertex, dlid).value() | class);
        Some(level).filter(is_wanted)
    }

    /// A path with what was asked for of it, if it can be had.
    fn path(
        &self,
        from: End,
        to: End,
        (slid, dlid): (Lid, Lid),
        pkey: PKey,
        (capacity, level): (Capacity, Option<&Level>),
    ) -> Option<PathRecord> {
        let longest = level.and_then(|level| level.life);
        let longest = longest.unwrap_or(self.view.config.subnet_timeout);
        let life = match (capacity.loops, to.beyond) {
            (true, None) => 0,
            (_, None) => longest,
            // There is a subnet beyond, and that takes time, too.
            (_, Some(_)) => (longest + 1).min(MAX_LIFE),
        };
        let (mut mtu, mut rate) = (capacity.mtu, capacity.rate);
        if let Some(level) = level {
            mtu = level.mtu.map_or(mtu, |limit| limit.min(mtu));
            let slower = |limit: &Rate| limit.gigabits() < rate.gigabits();
            rate = level.rate.filter(slower).unwrap_or(rate);
        }
        let wanted = &self.wanted;
        // A VF that shares a LID is found by the global route header alone, which a limit above 0 asks for (IBA
        // 12.7.19).
        let is_alias = |end: End| {
            let port = self.directory.port(end.port);
            self.directory.shares_lid(port, end.guid)
        };
        let record = PathRecord {
            dgid: to.beyond.unwrap_or(self.directory.gid_of(to.guid)),
            sgid: self.directory.gid_of(from.guid),
            dlid,
            slid,
            hop_limit: match to.beyond {
                Some(_) => HOP_LIMIT,
                None => u8::from(is_alias(from) || is_alias(to)),
            },
            cacheable: self.view.config.path_caching,
            reversible: true,
            numb_path: 0,
            pkey,
            ..self.common(mtu, rate, life)?
        };
        // Components that the subnet has no use for are answered as they were asked.
        let given = |component, value, default| {
            if self.gives(component) {
                value
            } else {
                default
            }
        };
        Some(PathRecord {
            flow_label: given(PathRecord::FLOW_LABEL, wanted.flow_label, 0),
            hop_limit: given(
                PathRecord::HOP_LIMIT,
                u32::from(wanted.hop_limit),
                u32::from(record.hop_limit),
            ) as u8,
            traffic_class: given(
                PathRecord::TRAFFIC_CLASS,
                u32::from(wanted.traffic_class),
                0,
            ) as u8,
            ..record
        })
    }

    /// MTU, rate and life time.
    fn common(&self, mtu: u8, rate: Rate, life: u8) -> Option<PathRecord> {
        let wanted = &self.wanted;
        let choose =
            |components: (u64, u64), selector, value, best, rank: &dyn Fn(u8) -> Option<u32>| {
                if self.gives(components.0) && self.gives(components.1) {
                    Selector::from_code(selector).choose(value, best, rank)
                } else {
                    Some(best)
                }
            };
        let exactly = Selector::Exactly.code();
        // Less time is better: a path that takes `life` can be had for any longer time.
        let life_fits =
            if self.gives(PathRecord::PACKET_LIFE_TIME_SELECTOR | PathRecord::PACKET_LIFE_TIME) {
                match Selector::from_code(wanted.packet_life_time_selector) {
                    Selector::Greater => life > wanted.packet_life_time,
                    Selector::Less => life < wanted.packet_life_time,
                    Selector::Exactly => life == wanted.packet_life_time,
                    Selector::Largest => true,
                }
            } else {
                true
            };
        Some(PathRecord {
            mtu_selector: exactly,
            mtu: choose(
                (PathRecord::MTU_SELECTOR, PathRecord::MTU),
                wanted.mtu_selector,
                wanted.mtu,
                mtu,
                &|code| Mtu::from_code(code).map(Mtu::bytes),
            )?,
            rate_selector: exactly,
            rate: choose(
                (PathRecord::RATE_SELECTOR, PathRecord::RATE),
                wanted.rate_selector,
                wanted.rate,
                rate.0,
                &|code| Rate(code).gigabits(),
            )?,
            packet_life_time_selector: exactly,
            packet_life_time: life_fits.then_some(life)?,
            ..PathRecord::default()
        })
    }

    /// Adds the path to a multicast group.
    fn group(&self, source: Option<End>, groups: &Groups, table: &mut Table) -> Result<(), Status> {
        let group = if self.gives(PathRecord::DGID) {
            groups
                .by_gid(self.wanted.dgid)
                .ok_or(Status::SA_INVALID_GID)?
        } else {
            groups
                .by_lid(self.wanted.dlid)
                .ok_or(Status::SA_NO_RECORDS)?
        };
        let of: McMemberRecord = group.record();
        if self.gives(PathRecord::DLID) && self.wanted.dlid != of.mlid {
            return Err(Status::SA_NO_RECORDS);
        }
        let own = End::new(self.request.requester, self.request.guid);
        let source = source.unwrap_or(own);
        let port = self.directory.port(source.port);
        let visible = self.request.may_see(self.directory, port);
        let fits = port.holds(of.pkey)
            && (!self.gives(PathRecord::PKEY)
                || self.wanted.pkey.partition() == of.pkey.partition());
        if !visible || !fits {
            return Err(Status::SA_NO_RECORDS);
        }
        let common = self.common(of.mtu, Rate(of.rate), of.packet_life_time);
        if let Some(common) = common {
            table.push(&PathRecord {
                dgid: of.mgid,
                sgid: self.directory.gid_of(source.guid),
                dlid: of.mlid,
                slid: self.directory.lids_of(port, source.guid).0,
                flow_label: of.flow_label,
                hop_limit: of.hop_limit,
                traffic_class: of.traffic_class,
                pkey: of.pkey,
                sl: of.sl,
                ..common
            });
        }
        Ok(())
    }
}
