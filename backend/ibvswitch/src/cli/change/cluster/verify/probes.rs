//! Packets that a guest could send, sent from each VF of a subnet in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::Waker;

use hca::{End, Heading, VfId};
use serde::Serialize;
use vswitch::{ForGuest, Function, Input, VSwitch};
use wire::attribute::NodeInfo;
use wire::header::GlobalRoute;
use wire::mad::{AttributeId, Class, Mad, Method};
use wire::sa::{self, JoinState, McMemberRecord};
use wire::smp::{Destination, Request, Route};
use wire::{Gid, Lid, MadPacket, PKey, Sl, cm};

use config::Config;

/// The highest unicast LID.
const LID_MAX: u16 = 0xbfff;
/// Class of `ibping` among vendors' (0x30 to 0x4f).
const PING: Class = Class(0x32);
/// All IP over InfiniBand nodes of the partition, whose P_Key is in it.
const BROADCAST: u128 = 0xff12_401b_8000_0000_0000_0000_ffff_ffff;
/// Hops of directed routes that are tried.
const HOPS_MAX: usize = 4;
/// Ports of each switch that directed routes leave by.
const PORTS_MAX: u8 = 8;

/// Kind of packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Probe {
    /// Data of connections and datagrams: each LID, P_Key of the table, and GID.
    Data,
    /// To a multicast group that all VMs have joined.
    Multicast,
    /// Queue pair 0: reads by LID and by directed routes.
    Management,
    /// Queue pair 0: writes.
    ManagementWrite,
    /// Queue pair 1: `ibping`.
    Ping,
    /// Queue pair 1: requests of the communication manager, as rdma_cm sends them.
    Connection,
}

impl Probe {
    /// All kinds. Writes come last: they begin the full mode of a cluster, which has no paths until a manager sets them.
    pub(super) const ALL: [Self; 6] = [
        Self::Data,
        Self::Multicast,
        Self::Management,
        Self::Ping,
        Self::Connection,
        Self::ManagementWrite,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Multicast => "multicast",
            Self::Management => "QP0 read",
            Self::ManagementWrite => "QP0 write",
            Self::Ping => "ibping",
            Self::Connection => "rdma_cm",
        }
    }
}

/// A guest, and its own port as it knows it.
struct Sender {
    vf: VfId,
    lid: Lid,
    sm_lid: Lid,
    sm_sl: Sl,
    gid: Gid,
    pkeys: Vec<PKey>,
}

/// The subnet, with VMs at all VFs.
pub(super) struct Subnet {
    vswitch: Arc<VSwitch>,
    engine: Box<dyn hca::Subnet>,
    /// By function: the table of its port.
    tables: Vec<Vec<PKey>>,
    /// By function: its LID in its cluster.
    virtual_lids: Vec<Lid>,
    transaction: u64,
}

impl Subnet {
    pub(super) fn new(config: &Config, vswitch: Arc<VSwitch>) -> Self {
        for (vf, _) in { config.vfs().enumerate() }.filter(|(_, (_, vf))| !vf.model.spare) {
            vswitch.handle(Input::Presence(VfId(vf as u16), true));
        }
        vswitch.poll();
        let vfs = || config.vfs().map(|(_, vf)| &vf.model);
        let mut subnet = Self {
            engine: vswitch.for_engine(Waker::noop().clone()),
            tables: vfs().map(|vf| vf.pkeys.clone()).collect(),
            virtual_lids: { vfs() }
                .map(|vf| vf.cluster.map_or(Lid::NONE, |(_, lid)| lid))
                .collect(),
            vswitch,
            transaction: 0,
        };
        subnet.received();
        subnet
    }

    /// Sends packets of a kind from each of these functions. Returns their number, and senders with those that they have reached.
    pub(super) fn send(
        &mut self,
        probe: Probe,
        functions: &[usize],
        every_lid: bool,
    ) -> (u64, BTreeSet<(usize, usize)>) {
        match probe {
            Probe::Data => self.data(functions, every_lid),
            Probe::Multicast => self.multicast(functions),
            Probe::Management => self.management(functions, Method::GET),
            Probe::ManagementWrite => self.management(functions, Method::SET),
            Probe::Ping | Probe::Connection => self.general(probe, functions),
        }
    }

    fn function(&self, at: usize) -> Option<Function> {
        self.vswitch.function(VfId(at as u16))
    }

    fn sender(&self, at: usize) -> Option<Sender> {
        let function = self.function(at)?;
        let facts = function.facts();
        let keys = (0..self.tables[at].len() as u16).map(|index| function.pkey(index));
        Some(Sender {
            vf: VfId(at as u16),
            lid: facts.lid,
            sm_lid: facts.sm_lid,
            sm_sl: facts.port.master_sm_sl,
            gid: function.gid(0),
            pkeys: keys.filter(|pkey| pkey.is_valid()).collect(),
        })
    }

    /// LIDs by which somebody may try to reach these functions.
    fn targets(&self, functions: &[usize]) -> BTreeSet<Lid> {
        let physical = functions
            .iter()
            .map(|&at| self.vswitch.physical_lid(VfId(at as u16)));
        let seen = functions.iter().map(|&at| self.virtual_lids[at]);
        { physical.chain(seen) }
            .filter(|lid| lid.is_unicast())
            .collect()
    }

    /// Whether the adapter of a function takes data with a P_Key, as its engine decides for queue pairs with each of its P_Keys.
    fn takes(&self, to: VfId, pkey: PKey) -> bool {
        let table = self.tables.get(usize::from(to.0));
        table.is_some_and(|table| table.iter().any(|own| own.matches(pkey)))
    }

    fn data(&mut self, functions: &[usize], every_lid: bool) -> (u64, BTreeSet<(usize, usize)>) {
        let mut reached = BTreeSet::new();
        let mut packets = 0;
        let near = self.targets(functions);
        let lids: Vec<Lid> = if every_lid {
            (1..=LID_MAX).map(Lid::new).collect()
        } else {
            near.iter().copied().collect()
        };
        let gids = functions
            .iter()
            .filter_map(|&at| Some(self.function(at)?.gid(0)));
        let gids: Vec<Gid> = gids.collect();
        for &from in functions {
            for pkey in self.tables[from].clone() {
                let usual = Sl::default();
                let bare = lids.iter().map(|&lid| (lid, None, usual));
                let leveled = near
                    .iter()
                    .flat_map(|&lid| levels().map(move |sl| (lid, None, sl)));
                let routed = near.iter().flat_map(|&lid| {
                    let with = move |&gid| levels().map(move |sl| (lid, Some((gid, 0xff)), sl));
                    gids.iter().flat_map(with)
                });
                for (dlid, global, sl) in bare.chain(leveled).chain(routed) {
                    packets += 1;
                    let heading = Heading {
                        dlid,
                        sl,
                        pkey,
                        global,
                    };
                    let route = self.engine.resolve(VfId(from as u16), &heading);
                    if let Ok(hca::Route {
                        end: End::Here(to), ..
                    }) = route
                        && self.takes(to, pkey)
                    {
                        reached.insert((from, usize::from(to.0)));
                    }
                }
            }
        }
        (packets, reached)
    }

    /// Joins a group in each partition for each function, and looks where packets to it come.
    fn multicast(&mut self, functions: &[usize]) -> (u64, BTreeSet<(usize, usize)>) {
        let mut groups: Vec<(usize, Lid, PKey)> = Vec::new();
        let mut packets = 0;
        for &from in functions {
            let Some(sender) = self.sender(from) else {
                continue;
            };
            for (index, &pkey) in sender.pkeys.iter().enumerate() {
                packets += 1;
                let full = u128::from(pkey.partition() | 0x8000);
                let record = McMemberRecord {
                    mgid: Gid::from_bits(BROADCAST | full << 80),
                    port_gid: sender.gid,
                    pkey,
                    join_state: JoinState::FULL,
                    ..McMemberRecord::default()
                };
                let mask = McMemberRecord::MGID
                    | McMemberRecord::PORT_GID
                    | McMemberRecord::PKEY
                    | McMemberRecord::JOIN_STATE;
                self.transaction += 1;
                let mad = sa::with_record(Method::SET, self.transaction, mask, &record);
                let packet = self.general_packet(&sender, sender.sm_lid, pkey, mad);
                let answers = self.exchange(sender.vf, packet);
                let answer = answers
                    .into_iter()
                    .find(|(vf, packet)| *vf == from && packet.header().class() == Class::SUBN_ADM);
                let lid = answer.and_then(|(_, packet)| {
                    use sa::Record;
                    McMemberRecord::read(&packet.mad[sa::DATA])
                        .ok()
                        .map(|it| it.mlid)
                });
                if let Some(lid) = lid.filter(|lid| lid.is_multicast()) {
                    groups.push((from, lid, self.tables[from][index]));
                }
            }
        }
        let mut reached = BTreeSet::new();
        let tries = { groups.into_iter() }.flat_map(|group| levels().map(move |sl| (group, sl)));
        for ((from, lid, pkey), sl) in tries {
            packets += 1;
            let vf = VfId(from as u16);
            let lid = self.engine.group_lid(vf, Gid::NONE, lid);
            for route in self.engine.resolve_multicast(vf, lid, sl, pkey) {
                if let End::Here(to) = route.end
                    && self.takes(to, pkey)
                {
                    reached.insert((from, usize::from(to.0)));
                }
            }
        }
        (packets, reached)
    }

    /// Asks nodes by LID and by directed routes. A sender has reached the function whose port's GUID is in an answer.
    fn management(
        &mut self,
        functions: &[usize],
        method: Method,
    ) -> (u64, BTreeSet<(usize, usize)>) {
        let mut reached = BTreeSet::new();
        let mut packets = 0;
        let by_lid = self.targets(functions).into_iter().map(Destination::Lid);
        let by_route = routes().into_iter().map(Destination::Directed);
        let destinations: Vec<Destination> = by_lid.chain(by_route).collect();
        for &from in functions {
            let Some(sender) = self.sender(from) else {
                continue;
            };
            for destination in &destinations {
                packets += 1;
                self.transaction += 1;
                let attribute = if method == Method::GET {
                    AttributeId::NODE_INFO
                } else {
                    AttributeId::PORT_INFO
                };
                let request = Request {
                    destination: destination.clone(),
                    method,
                    attribute,
                    modifier: 0,
                    transaction: self.transaction,
                    m_key: 0,
                    data: [0; 64],
                };
                let source = match destination {
                    Destination::Lid(_) => sender.lid,
                    Destination::Directed(_) => Lid::PERMISSIVE,
                };
                let packet = MadPacket::smp(source, request.dlid(), request.to_bytes());
                for (to, packet) in self.exchange(sender.vf, packet) {
                    if to != from {
                        reached.insert((from, to));
                        continue;
                    }
                    let is_answer = packet.header().method() == Method::GET_RESPONSE
                        && packet.header().status() == wire::mad::Status::OK;
                    let Some(node) = NodeInfo::parse(&packet.mad[64..])
                        .ok()
                        .filter(|_| is_answer)
                    else {
                        continue;
                    };
                    let other = functions.iter().find(|&&at| {
                        { self.function(at) }.is_some_and(|it| it.facts().guid == node.port_guid)
                    });
                    if let Some(&other) = other.filter(|_| method == Method::GET) {
                        reached.insert((from, other));
                    }
                }
            }
        }
        (packets, reached)
    }

    fn general(&mut self, probe: Probe, functions: &[usize]) -> (u64, BTreeSet<(usize, usize)>) {
        let mut reached = BTreeSet::new();
        let mut packets = 0;
        let targets = self.targets(functions);
        let gids = functions
            .iter()
            .filter_map(|&at| Some(self.function(at)?.gid(0)));
        let gids: Vec<Gid> = gids.collect();
        for &from in functions {
            let Some(sender) = self.sender(from) else {
                continue;
            };
            for &pkey in &sender.pkeys {
                let bare = targets
                    .iter()
                    .flat_map(|&lid| levels().map(move |sl| (lid, None, sl)));
                let level = sender.sm_sl;
                let routed = targets
                    .iter()
                    .flat_map(|&lid| gids.iter().map(move |&gid| (lid, Some(gid), level)));
                for (dlid, gid, sl) in bare.chain(routed) {
                    packets += 1;
                    let mad = self.datagram(probe, &sender, dlid, pkey);
                    let mut packet = self.general_packet(&sender, dlid, pkey, mad);
                    packet.sl = sl;
                    packet.grh = gid.map(|dgid| GlobalRoute {
                        sgid: sender.gid,
                        dgid,
                        hop_limit: 0xff,
                        ..GlobalRoute::default()
                    });
                    for (to, _) in self.exchange(sender.vf, packet) {
                        if to != from {
                            reached.insert((from, to));
                        }
                    }
                }
            }
        }
        (packets, reached)
    }

    fn datagram(&mut self, probe: Probe, sender: &Sender, dlid: Lid, pkey: PKey) -> [u8; 256] {
        self.transaction += 1;
        let mut bytes = [0; 256];
        if let Ok(mut mad) = Mad::new_checked(&mut bytes[..]) {
            let (class, method, attribute) = match probe {
                Probe::Connection => (Class::COMMUNICATION, Method::SEND, AttributeId::CM_REQ),
                _ => (PING, Method::GET, AttributeId(0)),
            };
            mad.set_class(class);
            mad.set_method(method);
            mad.set_transaction(self.transaction);
            mad.set_attribute(attribute, 0);
        }
        if probe == Probe::Connection {
            let places = cm::places(AttributeId::CM_REQ);
            if let [path, ..] = places.paths {
                bytes[path.local_lid..][..2].copy_from_slice(&sender.lid.value().to_be_bytes());
                bytes[path.remote_lid..][..2].copy_from_slice(&dlid.value().to_be_bytes());
                bytes[path.local_gid..][..16].copy_from_slice(&sender.gid.to_bytes());
            }
            if let Some(at) = places.pkey {
                bytes[at..][..2].copy_from_slice(&pkey.value().to_be_bytes());
            }
        }
        bytes
    }

    fn general_packet(&self, sender: &Sender, dlid: Lid, pkey: PKey, mad: [u8; 256]) -> MadPacket {
        // The device writes the P_Key of the table, whatever its guest calls it.
        let index = sender.pkeys.iter().position(|known| *known == pkey);
        let table = &self.tables[usize::from(sender.vf.0)];
        let pkey = index
            .and_then(|index| table.get(index))
            .copied()
            .unwrap_or(pkey);
        MadPacket::gmp(sender.lid, dlid, sender.sm_sl, pkey, mad)
    }

    /// Has a function's guest send a packet. Returns all that guests get until the subnet rests.
    fn exchange(&mut self, from: VfId, packet: MadPacket) -> Vec<(usize, MadPacket)> {
        self.engine.send_mad(from, packet);
        self.received()
    }

    fn received(&mut self) -> Vec<(usize, MadPacket)> {
        let mut packets = Vec::new();
        self.vswitch.poll();
        while self.vswitch.poll_output().is_some() {}
        while let Some(output) = self.vswitch.poll_guest() {
            if let ForGuest::Packet(vf, packet) = output {
                packets.push((usize::from(vf.0), *packet));
            }
        }
        packets
    }
}

/// All service levels.
fn levels() -> impl Iterator<Item = Sl> + Clone {
    (0..16).map(Sl::new)
}

/// Directed routes of a few hops: through all ports of the first switches.
fn routes() -> Vec<Route> {
    let mut all = Vec::new();
    let mut last: Vec<Vec<u8>> = vec![vec![1]];
    for _ in 0..HOPS_MAX {
        all.extend(last.iter().filter_map(|ports| Route::new(ports)));
        if all.len() > 512 {
            break;
        }
        last = { last.iter() }
            .flat_map(|ports| (1..=PORTS_MAX).map(move |port| [&ports[..], &[port]].concat()))
            .collect();
    }
    all
}
