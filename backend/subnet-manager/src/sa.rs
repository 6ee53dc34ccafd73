//! Subnet administration: what the manager knows, told to those who ask.

mod aliases;
mod directory;
mod guid_info;
mod inventory;
mod membership;
mod multi_path;
mod path;
mod path_cache;
mod request;
mod service;
mod subscription;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use wire::attribute::{GidChange, MulticastBlock, Notice, SlToVl, Trap};
use wire::mad::{AttributeId, Mad, Method, SIZE, Status};
use wire::rmpp::{self, Rmpp};
use wire::sa::{self, MultiPathRecord, SaHeader, id};
use wire::smp;
use wire::{Gid, Guid, Lid, MadPacket, PKey, Qpn};

use crate::config::Config;
use crate::config::cluster_levels::ClusterLevels;
use crate::model::{At, Subnet};
use crate::rmpp::{Receiver, Sender, Taken};
use crate::routing::clusters::Overlay;
use crate::routing::multipath::Plan;
use crate::routing::{ForwardingTable, Graph, RoutingError, ServiceLevels};
use crate::tables::Tables;
pub(crate) use aliases::Aliases;
use directory::{Directory, PortIndex};
use membership::Groups;
pub use path_cache::{PathCache, PathChange};
use request::{Request, Table};
use service::Services;
use subscription::{Audience, Subscriptions};
use wire::Transport;

/// Routes of the subnet after the last sweep that ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paths {
    pub(crate) graph: Graph,
    /// The node of each switch of the graph, as an index of [`Subnet::nodes`].
    pub(crate) nodes: Vec<usize>,
    /// In the order of the graph's switches; empty where routing failed.
    pub(crate) tables: Arc<Vec<ForwardingTable>>,
    /// The service level of every path.
    pub(crate) levels: ServiceLevels,
    /// The lane of every service level, where the manager says which.
    pub(crate) lanes: Option<SlToVl>,
    /// The engine that the tables are of.
    pub(crate) engine: Option<&'static str>,
    /// Why they are not of the one that is configured.
    pub(crate) refusals: Vec<RoutingError>,
    /// The paths of pairs of ports, where LIDs are given by these.
    pub(crate) plan: Option<Arc<Plan>>,
    /// The provider's entries in place of which those of clusters act; `None` before these are put in.
    pub(crate) overlay: Option<Overlay>,
}

/// View of the subnet administration: the subnet as the last sweep that ended left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) config: &'a Config,
    pub(crate) subnet: &'a Subnet,
    pub(crate) paths: &'a Paths,
    pub(crate) levels: &'a ClusterLevels,
    pub(crate) tables: &'a Tables,
}

/// The blocks of a switch's multicast forwarding table that hold anything, by number and position.
pub(crate) type MulticastBlocks = BTreeMap<(u16, u8), MulticastBlock>;

/// Something that subscribers may want to hear of, besides what ports report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    PortCame(Guid),
    PortWent(Guid),
    GroupCreated(Gid, PKey),
    GroupDeleted(Gid, PKey),
}

/// Requests of several packets, on their way.
#[derive(Debug)]
struct Requests(Receiver);

impl Default for Requests {
    fn default() -> Self {
        // A MultiPathRecord with as many GIDs as it can have.
        const LONGEST: usize = MultiPathRecord::SIZE + 2 * 255 * 16;
        // Each port has but so many on their way: what one sends leaves others their room.
        Self(Receiver::new(LONGEST, usize::MAX))
    }
}

/// The subnet administration, at queue pair 1 of the manager's port.
#[derive(Debug, Default)]
pub(crate) struct Administration {
    directory: Directory,
    groups: Groups,
    services: Services,
    aliases: Aliases,
    subscriptions: Subscriptions,
    /// Tables on their way to those who asked.
    tables: Sender,
    /// Requests of several packets.
    requests: Requests,
    table: Table,
    /// Ports as subscribers know them.
    known: BTreeSet<Guid>,
    swept: bool,
}

impl Administration {
    /// Takes in a packet of class SubnAdm that came to queue pair 1.
    pub(crate) fn receive(
        &mut self,
        packet: &MadPacket,
        view: &View<'_>,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        let Ok(rmpp) = Rmpp::of(&packet.mad) else {
            return;
        };
        let method = packet.header().method();
        // Before the first sweep nobody can be known; who asks then asks again. Nor is anybody known
        // for whom a router speaks: each subnet administration answers its own subnet.
        let requester = self.directory.by_lid(packet.slid);
        let requester = requester.filter(|&port| !self.directory.is_router(port));
        let (true, Some(requester)) = (self.swept && packet.dst_qp == Qpn::QP1, requester) else {
            return;
        };
        if method == Method::REPORT_RESPONSE {
            self.subscriptions.acknowledged(packet);
            return;
        }
        if rmpp.is_active() {
            // Segments are of a request, and all else is about an answer, unless there is none.
            let is_request = method == Method::GET_MULTI && rmpp.kind == Rmpp::DATA;
            let mut send = |packet| transport.send(packet);
            if is_request || !self.tables.receive(packet, &rmpp, now, &mut send) {
                self.receive_segment(packet, &rmpp, requester, view, now, transport);
            }
            return;
        }
        if method.is_response() || matches!(method, Method::SEND | Method::TRAP | Method::REPORT) {
            return;
        }
        let data = &packet.mad[sa::DATA];
        self.answer(packet, data, requester, view, now, transport);
    }

    /// Takes in a part of a request of several packets.
    fn receive_segment(
        &mut self,
        packet: &MadPacket,
        rmpp: &Rmpp,
        requester: PortIndex,
        view: &View<'_>,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        if packet.header().method() != Method::GET_MULTI || rmpp.kind == Rmpp::ACK {
            return;
        }
        match self.requests.0.receive(packet, rmpp, now) {
            Taken::Part(None) => {}
            Taken::Part(Some(mad)) => transport.send(self.reply(packet, *mad)),
            Taken::Whole {
                acknowledgement,
                first,
                data,
            } => {
                transport.send(self.reply(packet, *acknowledgement));
                self.answer(&first, &data, requester, view, now, transport);
            }
        }
    }

    /// Answers a request, of which `packet` is the first packet or all, and `data` what follows the
    /// header.
    fn answer(
        &mut self,
        packet: &MadPacket,
        data: &[u8],
        requester: PortIndex,
        view: &View<'_>,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        let Ok(header) = SaHeader::of(&packet.mad) else {
            return;
        };
        let mad = packet.header();
        let method = mad.method();
        let key = view.config.sa_key;
        let global = packet.grh.map(|grh| grh.sgid);
        // Functions that share a LID are told apart by their GIDs.
        let global = global.filter(|&gid| self.directory.by_gid(gid) == Some(requester));
        let request = Request {
            packet,
            method,
            attribute: mad.attribute(),
            modifier: mad.modifier(),
            mask: header.component_mask,
            data,
            requester,
            guid: { global.map(Gid::guid) }
                .or_else(|| self.directory.guid_with(packet.slid))
                .unwrap_or(self.directory.port(requester).guid),
            trusted: self.directory.own == Some(requester) || key != 0 && header.sm_key == key,
        };
        let sound = (mad.base_version(), mad.class_version()) == (1, 2);
        let outcome = if sound {
            self.serve(&request, view, now, transport)
        } else {
            Err(Status::BAD_VERSION)
        };
        let status = match outcome {
            Ok(()) if has_table(method) => {
                self.send_table(packet, now, transport);
                return;
            }
            Ok(()) if method == Method::GET && self.table.count == 0 => Status::SA_NO_RECORDS,
            Ok(()) if method == Method::GET && self.table.count > 1 => Status::SA_TOO_MANY_RECORDS,
            Ok(()) => Status::OK,
            Err(status) => status,
        };
        if !status.is_ok() {
            debug!(request = %mad, lid = %packet.slid, %status, "refused");
        }
        let data: &[u8] = match status {
            Status::OK => &self.table.bytes,
            _ => &[],
        };
        transport.send(self.response(packet, status, data));
    }

    /// Finds what is asked for, or does it; the answer's records are in `table` then.
    fn serve(
        &mut self,
        request: &Request<'_>,
        view: &View<'_>,
        now: Duration,
        transport: &mut impl Transport,
    ) -> Result<(), Status> {
        let Self {
            directory,
            groups,
            services,
            aliases,
            subscriptions,
            table,
            ..
        } = self;
        table.bytes.clear();
        match request.method {
            Method::GET | Method::GET_TABLE => match request.attribute {
                id::PATH => path::answer(request, directory, groups, view, table),
                id::MC_MEMBER => groups.answer(request, directory, table),
                id::NODE => inventory::nodes(request, directory, table),
                id::PORT_INFO => inventory::ports(request, directory, table),
                id::SWITCH_INFO => inventory::switch_infos(request, directory, table),
                id::LINK => inventory::links(request, directory, table),
                id::LINEAR_FORWARDING => inventory::linear_tables(request, directory, table),
                id::MULTICAST_FORWARDING => {
                    inventory::multicast_tables(request, directory, groups, table)
                }
                id::GUID_INFO => inventory::guids(request, directory, table),
                id::P_KEY_TABLE => inventory::partitions(request, directory, table),
                id::SL_TO_VL => inventory::lanes(request, directory, view, table),
                id::VL_ARBITRATION => inventory::arbitration(request, directory, view, table),
                id::SM_INFO => inventory::managers(request, directory, view, table),
                id::SERVICE => services.answer(request, directory, now, table),
                id::INFORM_INFO => subscriptions.answer(request, directory, table),
                AttributeId::CLASS_PORT_INFO if request.method == Method::GET => {
                    class_port_info(view, table);
                    Ok(())
                }
                _ => Err(Status::UNSUPPORTED_ATTRIBUTE),
            },
            Method::GET_MULTI if request.attribute == id::MULTI_PATH => {
                multi_path::answer(request, directory, view, table)
            }
            Method::GET_TRACE_TABLE if request.attribute == id::TRACE => {
                trace::answer(request, directory, view, table)
            }
            Method::GET_MULTI | Method::GET_TRACE_TABLE => Err(Status::UNSUPPORTED_ATTRIBUTE),
            Method::SET | Method::DELETE => {
                let event = match (request.method, request.attribute) {
                    (Method::SET, id::MC_MEMBER) => groups.join(request, directory, table)?,
                    (Method::DELETE, id::MC_MEMBER) => groups.leave(request, directory, table)?,
                    (Method::SET, id::SERVICE) => {
                        services.register(request, directory, now, table)?;
                        None
                    }
                    (Method::DELETE, id::SERVICE) => {
                        services.remove(request, directory, table)?;
                        None
                    }
                    (Method::SET, AttributeId::INFORM_INFO) => {
                        let info = subscriptions.set(request, directory)?;
                        table.bytes.extend(info.to_bytes());
                        None
                    }
                    (Method::SET | Method::DELETE, id::GUID_INFO) => {
                        guid_info::answer(aliases, request, directory, table)?;
                        if aliases.is_changed() {
                            self.swept(view, now, transport);
                        }
                        None
                    }
                    _ => return Err(Status::UNSUPPORTED_ATTRIBUTE),
                };
                self.tell(event, now, transport);
                Ok(())
            }
            _ => Err(Status::UNSUPPORTED_METHOD),
        }
    }

    /// The keys of the manager's port.
    fn own_pkeys(&self) -> &[PKey] {
        let own = self.directory.own.map(|own| self.directory.port(own));
        own.map_or(&[], |own| &own.pkeys)
    }

    /// Answers to a packet with this datagram.
    fn reply(&self, packet: &MadPacket, mad: [u8; SIZE]) -> MadPacket {
        MadPacket {
            mad,
            ..reply(packet, self.own_pkeys())
        }
    }

    /// The response to a request, with a record or none.
    fn response(&self, packet: &MadPacket, status: Status, data: &[u8]) -> MadPacket {
        response(packet, self.own_pkeys(), status, data)
    }

    /// Answers with a table, in as many segments as it takes.
    fn send_table(&mut self, packet: &MadPacket, now: Duration, transport: &mut impl Transport) {
        let bytes = std::mem::take(&mut self.table.bytes);
        if !self.tables.make_room(packet.slid, bytes.len()) {
            transport.send(self.response(packet, Status::SA_NO_RESOURCES, &[]));
            return;
        }
        let mut template = self.response(packet, Status::OK, &[]);
        SaHeader {
            attribute_offset: (self.table.stride / 8) as u16,
            ..SaHeader::of(&packet.mad).unwrap_or_default()
        }
        .emit(&mut template.mad[sa::HEADER]);
        let mut send = |packet| transport.send(packet);
        self.tables.begin(template, bytes, now, &mut send);
    }

    /// A sweep ended: ports may have come, gone or changed.
    pub(crate) fn swept(&mut self, view: &View<'_>, now: Duration, transport: &mut impl Transport) {
        self.refresh(view);
        let first = !self.swept;
        self.swept = true;
        let end_ports = self.directory.end_ports();
        let there: BTreeSet<Guid> = end_ports
            .flat_map(|index| self.directory.port(index).all_guids())
            .collect();
        let known = std::mem::replace(&mut self.known, there);
        let mut events = Vec::new();
        if !first {
            events.extend(known.difference(&self.known).copied().map(Event::PortWent));
            events.extend(self.known.difference(&known).copied().map(Event::PortCame));
        }
        events.extend(self.groups.swept(&self.directory, view));
        self.services.expire(&self.directory, now);
        self.subscriptions.swept(&self.directory);
        for event in events {
            self.tell(Some(event), now, transport);
        }
    }

    /// Gives up what it shares with the paths, which are to change where they are; until [`Administration::moved`].
    pub(crate) fn release_paths(&mut self) {
        self.directory.release_tables();
    }

    /// VMs have moved between these places, and nothing else has changed. False where that is not all: then it is as after a
    /// sweep.
    pub(crate) fn moved(&mut self, view: &View<'_>, places: &[At]) -> bool {
        if !self.directory.moved(view, &self.aliases, places) {
            return false;
        }
        for &place in places {
            if let Some(port) = self.directory.port_at(place) {
                self.groups.moved(port, &view.paths.graph);
            }
        }
        self.subscriptions.readdress(&self.directory);
        true
    }

    /// Addresses or paths changed without a sweep: answers are as the view is from now on.
    pub(crate) fn refresh(&mut self, view: &View<'_>) {
        self.directory = Directory::new(view, &self.aliases);
        self.subscriptions.readdress(&self.directory);
    }

    /// A trap came, the first time; `data` is the notice.
    pub(crate) fn trap(
        &mut self,
        data: &[u8; smp::DATA],
        _view: &View<'_>,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        let Ok(notice) = Notice::parse(data) else {
            return;
        };
        let issuer = self.directory.by_lid(notice.issuer_lid);
        let gid = issuer.map(|port| self.directory.gid(self.directory.port(port)));
        self.report(data, gid, Audience::Of(notice.issuer_lid), now, transport);
    }

    /// Does what is due. Returns when something is next.
    pub(crate) fn poll(
        &mut self,
        _view: &View<'_>,
        now: Duration,
        transport: &mut impl Transport,
    ) -> Option<Duration> {
        self.tables.poll(now, &mut |packet| transport.send(packet));
        self.subscriptions.poll(now, transport);
        if self.services.deadline().is_some_and(|due| due <= now) {
            self.services.expire(&self.directory, now);
        }
        let due = [
            self.tables.deadline(),
            self.subscriptions.deadline(),
            self.services.deadline(),
        ];
        due.into_iter().flatten().min()
    }

    /// Whether groups changed since [`Administration::multicast`]: the manager then writes the
    /// multicast forwarding tables anew.
    pub(crate) fn multicast_changed(&self) -> bool {
        self.groups.is_changed()
    }

    /// Planned content of the multicast forwarding tables of the graph's switches. Every block that the switch has
    /// been given before is among them, empty ones included. `lids` says where the members are.
    pub(crate) fn multicast(
        &mut self,
        graph: &Graph,
        lids: &BTreeMap<Guid, Lid>,
    ) -> Vec<MulticastBlocks> {
        let directory = &self.directory;
        self.groups.blocks(graph, |guid| {
            let port = directory
                .by_guid(guid)
                .map(|port| directory.port(port).guid);
            lids.get(&port.unwrap_or(guid)).copied()
        })
    }

    /// Blocks of a switch's multicast forwarding table as it is to be.
    pub(crate) fn multicast_tables(
        &self,
        switch: Guid,
    ) -> impl Iterator<Item = (&(u16, u8), &MulticastBlock)> {
        self.groups.tables_of(switch)
    }

    /// The GUIDs that ports have besides their own.
    pub(crate) fn aliases(&self) -> &Aliases {
        &self.aliases
    }

    /// Ports that got another table of GUIDs since this was last asked.
    pub(crate) fn take_changed_aliases(&mut self) -> Vec<Guid> {
        self.aliases.take_changed()
    }

    /// Tells an event to its subscribers.
    fn tell(&mut self, event: Option<Event>, now: Duration, transport: &mut impl Transport) {
        let Some(event) = event else {
            return;
        };
        let own = self.directory.own.map(|own| self.directory.port(own));
        let issuer = own.map_or(Lid::NONE, |own| own.info.lid);
        let of_port = |guid| {
            let port = self.directory.by_guid(guid);
            let port = port.map(|port| self.directory.port(port));
            let prefix = own.map_or(Gid::DEFAULT_PREFIX, |own| own.info.gid_prefix);
            let audience = match port {
                Some(port) => Audience::Of(port.info.lid),
                // Nobody knows any more which partitions it was in.
                None => Audience::Partition(PKey::DEFAULT_FULL),
            };
            (
                GidChange {
                    gid: Gid::new(prefix, guid),
                },
                audience,
            )
        };
        let (trap, audience) = match event {
            Event::PortCame(guid) => {
                let (change, audience) = of_port(guid);
                (Trap::GidInService(change), audience)
            }
            Event::PortWent(guid) => {
                let (change, audience) = of_port(guid);
                (Trap::GidOutOfService(change), audience)
            }
            Event::GroupCreated(gid, pkey) => (
                Trap::GroupCreated(GidChange { gid }),
                Audience::Partition(pkey),
            ),
            Event::GroupDeleted(gid, pkey) => (
                Trap::GroupDeleted(GidChange { gid }),
                Audience::Partition(pkey),
            ),
        };
        let notice = trap.to_notice(Notice::CLASS_MANAGER, issuer);
        let gid = own.map(|own| self.directory.gid(own));
        self.report(&notice, gid, audience, now, transport);
    }

    fn report(
        &mut self,
        notice: &[u8; smp::DATA],
        issuer: Option<Gid>,
        audience: Audience,
        now: Duration,
        transport: &mut impl Transport,
    ) {
        // In a report the GID of who issued the notice follows it (IBA 13.4.8.2).
        let mut bytes = [0; smp::DATA + 16];
        bytes[..smp::DATA].copy_from_slice(notice);
        bytes[smp::DATA..].copy_from_slice(&issuer.unwrap_or_default().to_bytes());
        self.subscriptions
            .report(&bytes, issuer, audience, &self.directory, now, transport);
    }
}

/// Whether a request is answered by a table.
fn has_table(method: Method) -> bool {
    matches!(
        method,
        Method::GET_TABLE | Method::GET_TRACE_TABLE | Method::GET_MULTI
    )
}

/// The answer to a packet, as the port whose table `own` is sends it: with the port's own key of
/// the packet's partition. A limited member that asks would not take an answer with its own.
fn reply(packet: &MadPacket, own: &[PKey]) -> MadPacket {
    let pkey = own.iter().find(|own| own.matches(packet.pkey));
    MadPacket {
        pkey: pkey.copied().unwrap_or(packet.pkey),
        ..packet.reply()
    }
}

/// Rest of a response to be filled in.
fn response(packet: &MadPacket, own: &[PKey], status: Status, data: &[u8]) -> MadPacket {
    let mut reply = reply(packet, own);
    let method = Method(packet.header().method().0 | 0x80);
    if let Ok(mut mad) = Mad::new_checked(&mut reply.mad[..]) {
        // A Set is answered as a Get is, a GetTraceTable as a GetTable; all others by the response
        // of their own.
        mad.set_method(match method {
            Method(0x82) => Method::GET_RESPONSE,
            Method(0x93) => Method::GET_TABLE_RESPONSE,
            method => method,
        });
        if mad.attribute() == id::MULTI_PATH {
            // The records of the answer are PathRecords (IBA 15.4.7).
            mad.set_attribute(id::PATH, mad.modifier());
        }
        mad.set_status(status);
    }
    reply.mad[rmpp::HEADER].fill(0);
    let length = data.len().min(sa::DATA_SIZE);
    reply.mad[sa::DATA].fill(0);
    reply.mad[sa::DATA][..length].copy_from_slice(&data[..length]);
    reply
}

/// Capabilities of this subnet administration (IBA 15.2.4).
fn class_port_info(view: &View<'_>, table: &mut Table) {
    const OPTIONAL_RECORDS: u16 = 1 << 8;
    const UD_MULTICAST: u16 = 1 << 9;
    const MULTI_PATH: u16 = 1 << 10;
    const CAPABILITY_MATCH: u16 = 1 << 13;
    const SEND_ONLY_FULL_MEMBERS: u32 = 1 << 12;
    let bytes = wire::performance::ClassPortInfo {
        base_version: 1,
        class_version: 2,
        capability_mask: OPTIONAL_RECORDS | UD_MULTICAST | MULTI_PATH | CAPABILITY_MATCH,
        capability_mask2: SEND_ONLY_FULL_MEMBERS,
        resp_time_value: view.config.subnet_timeout.min(20),
        ..wire::performance::ClassPortInfo::default()
    }
    .to_bytes();
    table.stride = bytes.len();
    table.count = 1;
    table.bytes.clear();
    table.bytes.extend(bytes);
}
