//! The port as a state machine: frames of the guest and datagrams of the fabric go in; datagrams, requests to the
//! subnet administration and frames for the guest come out. Its owner brings the time and carries everything.
//!
//! The port has one queue pair, of unreliable datagrams. It is a full member of the broadcast group (RFC 4391, 5) and
//! of the groups that its guest listens to; to other groups it sends as one that only sends. It learns addresses from
//! ARP and neighbour discovery, and asks for them itself if the guest knows an address that the port does not; it
//! learns the way to an address from path records.

mod claims;
mod cut;
mod groups;
mod listeners;
mod neighbours;
mod paths;
mod queries;
mod requests;
mod solicitation;
mod spares;
mod unknown_neighbours;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hca::PortView;
use hca::transport::{Address as Headers, Content, Frame, MAX_PAYLOAD};
use hca::work::GlobalRoute;
use wire::header::Service;
use wire::ipoib::{self, Address, HEADER_LEN, Train};
use wire::mad::Mad;
use wire::sa::{McMemberRecord, PathRecord, Record};
use wire::{Gid, Lid, MadPacket, Mtu, PKey, Psn, QKey, Qpn, Sl};

use crate::net_header::{self, NetHeader};
use crate::translate::{
    self, Dropped, ETHERNET_HEADER, Learned, Mac, Own, Packet, To, Transactions, UNKNOWN,
    queue_pair_of,
};
use claims::Claimed;
pub use claims::{Claims, Network, NotANetwork};
use cut::Cut;
use groups::{Group, Groups};
use neighbours::Table;
use paths::Paths;
use requests::Requests;
use spares::Spares;
pub use spares::Store;
use unknown_neighbours::UnknownNeighbours;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// State of the port's surroundings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// Addresses, partitions and state.
    pub view: PortView,
    /// The LID of the subnet administration, and the service level to it.
    pub administration: (Lid, Sl),
    /// The Ethernet address of the guest, where it may be another one than before: a guest has come from another
    /// port, with its addresses.
    pub mac: Option<Mac>,
    /// IP addresses that it may claim.
    pub claims: Claims,
}

/// Packet or request that leaves the port for the fabric.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all that leaves is frames"
)]
pub enum Output {
    /// A datagram of its queue pair.
    Frame(Frame),
    /// One of its queue pair 1.
    Mad(Box<MadPacket>),
}

/// Counters of what went nowhere, by reason.
pub type Drops = HashMap<Dropped, u64>;

/// The port.
#[derive(Debug)]
pub struct Port {
    mac: Mac,
    surroundings: Surroundings,
    own: Option<Own>,
    neighbours: Table,
    /// The guest's requests to DHCP servers.
    transactions: Transactions,
    paths: Paths,
    groups: Groups,
    claimed: Claimed,
    unknown_neighbours: UnknownNeighbours,
    /// The broadcast group, where the port is a member.
    broadcast: Option<Group>,
    requests: Requests,
    /// A train whose datagrams leave before the other outputs.
    cut: Option<Cut>,
    outputs: VecDeque<Output>,
    /// Frames of the port's own for its guest.
    questions: VecDeque<Packet>,
    psn: Psn,
    /// Buffers of datagrams that have come, for those that leave.
    spares: Spares,
    drops: Drops,
}

impl Port {
    /// The port of a guest with this address.
    #[must_use]
    pub fn new(mac: Mac) -> Self {
        Self {
            mac,
            surroundings: Surroundings::default(),
            own: None,
            neighbours: Table::default(),
            transactions: Transactions::default(),
            paths: Paths::default(),
            groups: Groups::default(),
            claimed: Claimed::default(),
            unknown_neighbours: UnknownNeighbours::default(),
            broadcast: None,
            requests: Requests::default(),
            cut: None,
            outputs: VecDeque::new(),
            questions: VecDeque::new(),
            psn: Psn::new(0),
            spares: Spares::default(),
            drops: Drops::new(),
        }
    }

    /// The port, which has its buffers in common with others.
    #[must_use]
    pub fn with_store(self, store: Arc<Store>) -> Self {
        Self {
            spares: Spares::new(store),
            ..self
        }
    }

    /// Forgets everything: the guest is another one.
    pub fn reset(&mut self) {
        *self = Self {
            surroundings: std::mem::take(&mut self.surroundings),
            own: self.own,
            requests: std::mem::take(&mut self.requests),
            drops: std::mem::take(&mut self.drops),
            spares: std::mem::take(&mut self.spares),
            psn: self.psn,
            ..Self::new(self.mac)
        };
    }

    /// Says how things are around the port now. To be said when something has changed.
    pub fn set_surroundings(&mut self, now: u64, surroundings: Surroundings) {
        let before = self.own;
        self.mac = surroundings.mac.unwrap_or(self.mac);
        let view = &surroundings.view;
        let gid = view.gids.first().copied().unwrap_or_default();
        let pkey = view.pkey(0);
        let up = view.active && pkey.is_valid() && !gid.guid().is_none();
        self.own = up.then(|| Own {
            mac: self.mac,
            address: Address {
                qpn: queue_pair_of(gid.guid()),
                gid,
            },
            pkey,
        });
        let moved = self.surroundings.administration != surroundings.administration
            || self.surroundings.view.lid != surroundings.view.lid;
        let claims = self.surroundings.claims != surroundings.claims;
        self.surroundings = surroundings;
        if before != self.own || claims {
            self.claimed = Claimed::default();
            self.unknown_neighbours = UnknownNeighbours::default();
        }
        if before != self.own || moved {
            self.groups.clear();
            self.broadcast = None;
            self.paths.clear();
        }
        self.join_always(now);
    }

    /// Begins with the memberships that every host has.
    fn join_always(&mut self, now: u64) {
        if let Some(own) = self.own {
            self.groups.want(ipoib::broadcast_group(own.pkey), now);
        }
    }

    /// Whether the port is in a subnet: it is Active, and has addresses and a partition.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the port is a member of the broadcast group: from then on everything works.
    #[must_use]
    pub const fn is_member(&self) -> bool {
        self.own.is_some() && self.broadcast.is_some()
    }

    /// Returns the counters of dropped packets.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Takes the next output for the fabric.
    pub fn poll_output(&mut self) -> Option<Output> {
        let Some(cut) = &mut self.cut else {
            return self.outputs.pop_front();
        };
        let datagram = cut.next(self.spares.take());
        if cut.left() == 0 {
            self.forget_cut();
        }
        Some(Output::Frame(datagram))
    }

    fn forget_cut(&mut self) {
        if let Some(cut) = self.cut.take() {
            self.spares.put(cut.frame.payload);
        }
    }

    /// Returns the port's own next query for its guest, which is there until it is [`Port::asked`].
    #[must_use]
    pub fn next_question(&self) -> Option<&Packet> {
        self.questions.front()
    }

    /// The guest has got the question.
    pub fn asked(&mut self) {
        self.questions.pop_front();
    }

    /// Returns the number of outputs for the fabric.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.outputs.len() + self.cut.as_ref().map_or(0, Cut::left)
    }

    /// Drops the outputs for the fabric.
    pub fn drop_outputs(&mut self) {
        for _ in 0..self.outputs() {
            self.count(Dropped::Full);
        }
        self.forget_cut();
        self.outputs.clear();
    }

    /// Counts something that goes nowhere.
    pub fn count(&mut self, why: Dropped) {
        *self.drops.entry(why).or_default() += 1;
    }

    /// The guest sends a frame, with what its `header` leaves to the port. `generation` is that of the
    /// subnet: with another one, ways are looked up anew.
    pub fn from_guest(
        &mut self,
        now: u64,
        generation: u64,
        header: &NetHeader,
        packet: &mut Packet,
    ) {
        if let Err(why) = self.send(now, generation, header, packet) {
            self.count(why);
        }
    }

    fn send(
        &mut self,
        now: u64,
        generation: u64,
        header: &NetHeader,
        packet: &mut Packet,
    ) -> Result<(), Dropped> {
        let own = self.own.ok_or(Dropped::NoCarrier)?;
        self.neighbours.set_now(now);
        let segment = match header.segmentation {
            net_header::WHOLE => None,
            net_header::TCP_IPV4 | net_header::TCP_IPV6 => Some(header.segment),
            _ => return Err(Dropped::Segments),
        };
        if let (Some((start, offset)), None) = (header.checksum, segment) {
            // Before anything is read: what is filled in may be anywhere.
            let start = usize::from(start).checked_sub(ETHERNET_HEADER);
            let start = start.ok_or(Dropped::Short)?;
            translate::complete(packet.packet_mut(), start, usize::from(offset))?;
        }
        let to = translate::outbound(packet, &own, &mut self.neighbours, &mut self.transactions);
        if to == Err(Dropped::Unknown)
            && let Some(receiver) = Learned::receiver(packet.datagram())
        {
            self.unknown_neighbours.meet(receiver, now);
        }
        let to = to?;
        if self.surroundings.claims != Claims::Any {
            // A port that is not a member yet cannot ask.
            self.broadcast.ok_or(Dropped::NoCarrier)?;
            let claims = &self.surroundings.claims;
            self.claimed.check(claims, packet.datagram(), now)?;
        }
        if let Some(segment) = segment {
            let train = Train::new(packet.datagram(), segment)?;
            return self.send_train(now, generation, to, train, packet);
        }
        self.note_listening(&own, now, packet.datagram());
        let datagram = packet.put(self.spares.take());
        self.dispatch(now, generation, to, datagram)
    }

    /// Sends a long TCP segment: as it is where there is a way for it, which may have it cut yet, and else the
    /// datagrams that it stands for.
    fn send_train(
        &mut self,
        now: u64,
        generation: u64,
        to: To,
        train: Train,
        packet: &mut Packet,
    ) -> Result<(), Dropped> {
        let own = self.own.ok_or(Dropped::NoCarrier)?;
        let broadcast = self.broadcast.ok_or(Dropped::NoCarrier)?;
        if train.longest() as usize > broadcast.mtu {
            return Err(Dropped::Long);
        }
        let is_one = train.datagrams() > 1
            && train.length() <= MAX_PAYLOAD
            && !train.has_cwr(packet.datagram());
        if let To::One(address) = to
            && is_one
            && let Some(way) = self.paths.find(address.gid, generation, now)
        {
            train.settle(packet.datagram_mut());
            let whole = packet.put(self.spares.take_long());
            let frame = self.frame(&own, way, None, address.qpn, broadcast.qkey, whole);
            self.psn = self.psn.plus(train.datagrams());
            let train = Some(train);
            self.outputs
                .push_back(Output::Frame(Frame { train, ..frame }));
            return Ok(());
        }
        let sums = train.sums(packet.datagram()).ok_or(Dropped::Short)?;
        for number in 0..train.datagrams() {
            let mut datagram = self.spares.take();
            datagram.clear();
            train.write_with(&sums, packet.datagram(), number, &mut datagram);
            // The others would be lost as well.
            self.dispatch(now, generation, to, datagram)?;
        }
        Ok(())
    }

    /// Has the datagrams that a train stands for leave in place of it.
    pub fn cut(&mut self, train: Frame) {
        self.cut = Cut::new(train);
    }

    /// Joins what the guest says that it listens to.
    fn note_listening(&mut self, own: &Own, now: u64, datagram: &[u8]) {
        for (group, joins) in listeners::told(own.pkey, datagram) {
            if joins {
                self.groups.want(group, now);
            } else {
                self.groups.leave(group);
            }
        }
    }

    fn dispatch(
        &mut self,
        now: u64,
        generation: u64,
        to: To,
        datagram: Vec<u8>,
    ) -> Result<(), Dropped> {
        let own = self.own.ok_or(Dropped::NoCarrier)?;
        let broadcast = self.broadcast.ok_or(Dropped::NoCarrier)?;
        if datagram.len() > broadcast.mtu {
            return Err(Dropped::Long);
        }
        match to {
            To::Group(mgid) => {
                let Some(&group) = self.groups.sends_to(mgid, generation, now) else {
                    return self.groups.wait(mgid, datagram);
                };
                self.transmit_to(&own, mgid, &group, datagram);
            }
            To::One(address) => {
                let Some(way) = self.paths.find(address.gid, generation, now) else {
                    return self.paths.wait(address, datagram);
                };
                self.transmit(&own, way, None, address.qpn, broadcast.qkey, datagram);
            }
        }
        Ok(())
    }

    fn transmit_to(&mut self, own: &Own, mgid: Gid, group: &Group, datagram: Vec<u8>) {
        let global = GlobalRoute {
            dgid: mgid,
            sgid_index: 0,
            flow_label: group.flow_label,
            traffic_class: group.traffic_class,
            hop_limit: group.hop_limit,
        };
        let way = (group.mlid, group.sl);
        self.transmit(own, way, Some(global), Qpn::MULTICAST, group.qkey, datagram);
    }

    fn transmit(
        &mut self,
        own: &Own,
        way: (Lid, Sl),
        global: Option<GlobalRoute>,
        dest_qp: Qpn,
        qkey: QKey,
        datagram: Vec<u8>,
    ) {
        let frame = self.frame(own, way, global, dest_qp, qkey, datagram);
        self.psn = self.psn.next();
        self.outputs.push_back(Output::Frame(frame));
    }

    /// A frame with the next number.
    fn frame(
        &self,
        own: &Own,
        (dlid, sl): (Lid, Sl),
        global: Option<GlobalRoute>,
        dest_qp: Qpn,
        qkey: QKey,
        payload: Vec<u8>,
    ) -> Frame {
        let address = Headers {
            slid: self.surroundings.view.lid,
            dlid,
            sl,
            global: global.map(|global| (global, own.address.gid)),
            service: Service::Ud,
            pkey: own.pkey,
            dest_qp,
        };
        let content = Content::Datagram {
            qkey,
            source: own.address.qpn,
            immediate: None,
        };
        Frame {
            payload,
            ..Frame::new(address, Mtu::B4096, self.psn, content)
        }
    }

    /// A datagram has come from the fabric. Whether there is a frame for the guest, in `packet`.
    pub fn from_fabric(&mut self, now: u64, datagram: Frame, packet: &mut Packet) -> bool {
        self.neighbours.set_now(now);
        self.claimed.heard(&datagram.payload, now);
        let taken = self.receive(now, datagram, packet);
        if let Err(why) = taken {
            self.count(why);
        }
        taken.is_ok()
    }

    fn receive(&mut self, now: u64, datagram: Frame, packet: &mut Packet) -> Result<(), Dropped> {
        let before = packet.put(datagram.payload);
        packet.train = datagram.train;
        self.spares.put(before);
        let own = self.own.ok_or(Dropped::NoCarrier)?;
        let Headers {
            slid,
            global,
            pkey,
            dest_qp,
            ..
        } = datagram.address;
        let Content::Datagram { qkey, source, .. } = datagram.content else {
            return Err(Dropped::Protocol);
        };
        let broadcast = self.broadcast.ok_or(Dropped::NoCarrier)?;
        if !pkey.matches(own.pkey) || qkey != broadcast.qkey {
            return Err(Dropped::Unknown);
        }
        let group = if dest_qp == Qpn::MULTICAST {
            let mgid = global.map(|(global, _)| global.dgid);
            // A host hears its own datagrams too, where the switch is told to send them back.
            let own = source == own.address.qpn && slid == self.surroundings.view.lid;
            let heard = mgid.filter(|&mgid| !own && self.groups.member(mgid).is_some());
            Some(heard.ok_or(Dropped::Unknown)?)
        } else if dest_qp == own.address.qpn {
            None
        } else {
            return Err(Dropped::Unknown);
        };
        let from = match global {
            Some((_, gid)) => Some(Address { qpn: source, gid }),
            None => self.neighbours.with_queue_pair(source),
        };
        let table = &mut self.neighbours;
        translate::inbound(packet, group, from, &own, table, &self.transactions)?;
        if packet.source() == UNKNOWN
            && group.is_none()
            && let Some(sender) = Learned::by(packet.datagram()).own[0]
        {
            self.unknown_neighbours.meet(sender, now);
        }
        Ok(())
    }

    /// The subnet administration has answered.
    pub fn from_management(&mut self, now: u64, generation: u64, packet: &MadPacket) {
        let Ok(mad) = Mad::new_checked(&packet.mad[..]) else {
            return;
        };
        if !mad.method().is_response() {
            return;
        }
        let (transaction, status) = (mad.transaction(), mad.status());
        let data = &packet.mad[wire::sa::DATA];
        if mad.attribute() == McMemberRecord::ID {
            let answer = McMemberRecord::parse(data).ok().filter(|_| status.is_ok());
            if let Some((mgid, group, waited)) =
                self.groups.answered(transaction, answer, generation, now)
                && let Some(own) = self.own
            {
                for datagram in waited {
                    self.transmit_to(&own, mgid, &group, datagram);
                }
                if mgid == ipoib::broadcast_group(own.pkey) {
                    self.broadcast = Some(group);
                    self.join_with_broadcast(own.pkey, now);
                    self.questions = queries::general().into();
                }
            }
        } else if mad.attribute() == PathRecord::ID {
            let answer = PathRecord::parse(data).ok().filter(|_| status.is_ok());
            let waited = self.paths.answered(transaction, answer, generation, now);
            for (address, datagram) in waited {
                // It is known now, or nobody is there.
                let sent = self.dispatch(now, generation, To::One(address), datagram);
                if let Err(why) = sent {
                    self.count(why);
                }
            }
        }
    }

    /// The groups that every host is in, and those of its addresses' neighbour discovery.
    fn join_with_broadcast(&mut self, pkey: PKey, now: u64) {
        let all_hosts = ipoib::ipv4_group(pkey, std::net::Ipv4Addr::new(224, 0, 0, 1));
        let all_nodes =
            ipoib::ipv6_group(pkey, std::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
        self.groups.want(all_hosts, now);
        self.groups.want(all_nodes, now);
    }

    /// Sends what is due.
    pub fn poll(&mut self, now: u64) {
        let Some(own) = self.own else { return };
        let (lid, sl) = self.surroundings.administration;
        let mut mads = Vec::new();
        let broadcast = ipoib::broadcast_group(own.pkey);
        self.groups
            .poll(now, &own, broadcast, &mut self.requests, &mut mads);
        self.paths.poll(now, &own, &mut self.requests, &mut mads);
        if let Some(group) = self.broadcast {
            let questions = self.claimed.poll(now, &own);
            for datagram in questions
                .into_iter()
                .chain(self.unknown_neighbours.poll(&own))
            {
                self.transmit_to(&own, broadcast, &group, datagram);
            }
        }
        for mad in mads {
            let packet = Box::new(MadPacket {
                slid: self.surroundings.view.lid,
                dlid: lid,
                sl,
                pkey: own.pkey,
                src_qp: Qpn::QP1,
                dst_qp: Qpn::QP1,
                qkey: QKey::QP1,
                grh: None,
                mad,
            });
            self.outputs.push_back(Output::Mad(packet));
        }
    }

    /// When to call [`Port::poll`] at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.own?;
        self.groups
            .deadline()
            .into_iter()
            .chain(self.paths.deadline())
            .chain(self.claimed.deadline().filter(|_| self.is_member()))
            .chain(
                self.unknown_neighbours
                    .deadline()
                    .filter(|_| self.is_member()),
            )
            .min()
    }

    /// The longest IP packet, in bytes, with links of this MTU.
    #[must_use]
    pub const fn longest_packet(link: Mtu) -> u16 {
        link.bytes() as u16 - HEADER_LEN as u16
    }
}
