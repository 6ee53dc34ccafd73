//! Several subnets in one fabric, joined by routers.

use fabric::{
    Fabric, GlobalAddress, LinkRate, NoRoute, NodeId, NodeSpec, Output, Owner, PortRef, Routed,
    SmpAccess, Topology,
};
use ibvswitch_subnet_manager::{Arrival, Config};
use testing::Random;
use wire::header::GlobalRoute;
use wire::mad::Status;
use wire::sa::{PathRecord, get};
use wire::{ExtendedLid, Gid, Guid, Lid, MadPacket, PKey, PortState, Sl};

use crate::cloud::seed;
use crate::guests::record;
use crate::harness::Managed;

const SUBNETS: usize = 3;
const FUNCTIONS: usize = 3;

fn prefix(subnet: usize) -> u64 {
    0xfec0_0000_0000_0001 + subnet as u64
}

fn manager(subnet: usize) -> Guid {
    Guid::new(0x10 + subnet as u64)
}

fn function(subnet: usize, function: usize) -> Guid {
    Guid::new(0x100 + 0x10 * subnet as u64 + function as u64)
}

/// The GUID of a router's port: the first router joins the subnets 0 and 1, the second 1 and 2.
fn router(router: usize, subnet: usize) -> Guid {
    Guid::new(0x200 + 0x10 * router as u64 + subnet as u64)
}

fn gid(subnet: usize, guid: Guid) -> Gid {
    Gid::new(prefix(subnet), guid)
}

pub fn global_route(sgid: Gid, GlobalAddress { dgid, hop_limit }: GlobalAddress) -> GlobalRoute {
    GlobalRoute {
        ip_version: 6,
        traffic_class: 0,
        flow_label: 0,
        payload_length: 0,
        next_header: GlobalRoute::IBA_TRANSPORT,
        hop_limit,
        sgid,
        dgid,
    }
}

/// Three subnets in a row. Their managers take turns with the fabric.
struct Row {
    managed: Vec<Managed>,
    turn: usize,
}

impl Row {
    fn new() -> Self {
        let mut topology = Topology::new();
        let link = |topology: &mut Topology, switch: (NodeId, &mut u8), end: (NodeId, u8)| {
            *switch.1 += 1;
            topology.link((switch.0, *switch.1), end, LinkRate::default());
        };
        let guids = |r: usize| vec![router(r, r), router(r, r + 1)];
        let routers = [0, 1].map(|r| {
            let guid = Guid::new(0x300 + r as u64);
            topology.add(NodeSpec::router(guid, guids(r), "router"))
        });
        for subnet in 0..SUBNETS {
            let guid = Guid::new(0x20 + subnet as u64);
            let (switch, mut used) = (topology.add(NodeSpec::switch(guid, 8, "switch")), 0);
            let own = manager(subnet);
            let host = topology.add(NodeSpec::channel_adapter(own, own, "manager"));
            link(&mut topology, (switch, &mut used), (host, 1));
            for number in 0..FUNCTIONS {
                let spec = NodeSpec::virtual_function(function(subnet, number), "VF");
                let vf = topology.add(spec);
                link(&mut topology, (switch, &mut used), (vf, 1));
            }
            for (number, &node) in routers.iter().enumerate() {
                if let Some(port) = (subnet + 1)
                    .checked_sub(number)
                    .filter(|&p| p == 1 || p == 2)
                {
                    link(&mut topology, (switch, &mut used), (node, port as u8));
                }
            }
        }
        let fabric = Fabric::new(&topology).unwrap();
        let mut all = vec![fabric];
        // Those who wait for their turn hold what has the same GUIDs and nothing else.
        all.extend((1..SUBNETS).map(|_| Fabric::new(&topology).unwrap()));
        let managed = all.into_iter().enumerate().map(|(subnet, fabric)| {
            let routes = |other: usize| {
                let first = if other < subnet { subnet - 1 } else { subnet };
                (prefix(other), router(first, subnet))
            };
            let config = Config {
                gid_prefix: prefix(subnet),
                prefix_routes: (0..SUBNETS)
                    .filter(|&it| it != subnet)
                    .map(routes)
                    .collect(),
                ..Config::default()
            };
            Managed::new(fabric, manager(subnet), config)
        });
        let mut row = Self {
            managed: managed.collect(),
            turn: 0,
        };
        for subnet in 0..SUBNETS {
            let guids = (0..FUNCTIONS).map(|number| function(subnet, number));
            let fabric = row.fabric_mut();
            let own = fabric.port_by_guid(manager(subnet)).unwrap();
            fabric.set_owner(own, Owner::Consumer, SmpAccess::Fabric);
            for guid in guids {
                let at = fabric.port_by_guid(guid).unwrap();
                fabric.set_owner(at, Owner::Consumer, SmpAccess::OwnPort);
            }
        }
        for subnet in 0..SUBNETS {
            row.of(subnet).settle();
            let errors = &row.managed[subnet].manager.report().errors;
            assert_eq!(*errors, Vec::<String>::new());
        }
        row.forget_events();
        row
    }

    /// A subnet's manager, whose turn it is now.
    fn of(&mut self, subnet: usize) -> &mut Managed {
        if subnet != self.turn {
            let pair = self.managed.get_disjoint_mut([self.turn, subnet]);
            let [last, next] = pair.unwrap();
            std::mem::swap(&mut last.link.fabric, &mut next.link.fabric);
            self.turn = subnet;
        }
        &mut self.managed[subnet]
    }

    fn fabric(&self) -> &Fabric {
        &self.managed[self.turn].link.fabric
    }

    fn fabric_mut(&mut self) -> &mut Fabric {
        &mut self.managed[self.turn].link.fabric
    }

    fn forget_events(&mut self) {
        while self.fabric_mut().poll_output().is_some() {}
        for managed in &mut self.managed {
            managed.link.station.others.clear();
        }
    }

    fn port(&self, guid: Guid) -> PortRef {
        self.fabric().port_by_guid(guid).unwrap()
    }

    fn lid(&self, guid: Guid) -> Lid {
        self.fabric().port_info(self.port(guid)).unwrap().lid
    }

    /// Sends a packet to queue pair 1, and tells at which function's port it comes out, and how.
    fn send(
        &mut self,
        from: PortRef,
        dlid: Lid,
        global: Option<(Gid, GlobalAddress)>,
    ) -> Option<(PortRef, MadPacket)> {
        self.forget_events();
        let mut mad = [0; 256];
        // A vendor's class, which no agent answers.
        mad[..4].copy_from_slice(&[1, 0x0a, 1, 3]);
        let key = PKey::DEFAULT_FULL;
        let mut packet = MadPacket::gmp(Lid::NONE, dlid, Sl::default(), key, mad);
        packet.grh = global.map(|(sgid, global)| global_route(sgid, global));
        let fabric = self.fabric_mut();
        fabric.inject(from, packet);
        fabric.run();
        let mut arrived = None;
        while let Some(output) = fabric.poll_output() {
            if let Output::Deliver { port, packet } = output {
                assert!(arrived.is_none(), "one packet arrives once");
                arrived = Some((port, *packet));
            }
        }
        arrived
    }

    /// Answer of the subnet administration of a function's subnet about a path.
    fn path(&mut self, subnet: usize, from: Guid, dgid: Gid) -> Result<PathRecord, Status> {
        let sm = self
            .fabric()
            .port_info(self.port(from))
            .unwrap()
            .master_sm_lid;
        self.ask(subnet, from, dgid, (sm, None))
            .expect("an answer comes")
    }

    /// Answer of a subnet's administration about a path, if it answers: asked at this LID, or GID.
    fn ask(
        &mut self,
        subnet: usize,
        from: Guid,
        dgid: Gid,
        (sm, global): (Lid, Option<GlobalRoute>),
    ) -> Option<Result<PathRecord, Status>> {
        let at = self.port(from);
        let info = self.fabric().port_info(at).unwrap();
        let template = PathRecord {
            sgid: gid(subnet, from),
            dgid,
            numb_path: 1,
            ..PathRecord::default()
        };
        let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
        let key = PKey::DEFAULT_FULL;
        let mut question =
            MadPacket::gmp(info.lid, sm, Sl::default(), key, get(7, mask, &template));
        question.grh = global;
        self.forget_events();
        let managed = self.of(subnet);
        managed.link.fabric.inject(at, question);
        managed.manager.poll(managed.now, &mut managed.link);
        managed.link.fabric.run();
        let fabric = &mut managed.link.fabric;
        let left = std::iter::from_fn(|| fabric.poll_output());
        let mut all = managed.link.station.others.drain(..).chain(left);
        let answer = all.find_map(|output| match output {
            Output::Deliver { port, packet } if port == at => Some(packet.mad),
            _ => None,
        });
        answer.map(|mad| record(&mad))
    }
}

#[test]
fn each_subnet_has_its_lids_and_its_prefix() {
    let row = Row::new();
    for subnet in 0..SUBNETS {
        let mut lids: Vec<Lid> = (0..FUNCTIONS)
            .map(|number| {
                let at = row.port(function(subnet, number));
                let info = row.fabric().port_info(at).unwrap();
                assert_eq!(info.port_state, PortState::Active);
                assert_eq!(info.gid_prefix, prefix(subnet));
                info.lid
            })
            .collect();
        lids.sort_unstable();
        lids.dedup();
        assert_eq!(lids.len(), FUNCTIONS);
        // Two adapters more than the functions: nobody looks past a router.
        let routers = if subnet == 1 { 2 } else { 1 };
        let report = row.managed[subnet].manager.report();
        assert_eq!(
            (report.switches, report.adapters),
            (1, 1 + FUNCTIONS + routers)
        );
    }
}

#[test]
fn a_path_to_another_subnet_leads_to_the_router() {
    let mut row = Row::new();
    for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let (sender, dgid) = (function(from, 0), gid(to, function(to, 2)));
        let path = row.path(from, sender, dgid).unwrap();
        let first = if to < from { from - 1 } else { from };
        assert_eq!(path.dlid, row.lid(router(first, from)));
        assert_eq!((path.sgid, path.dgid), (gid(from, sender), dgid));
        // As OpenSM says it.
        assert_eq!(path.hop_limit, 255);
        assert_eq!(path.packet_life_time, Config::default().subnet_timeout + 1);
        let local = row
            .path(from, sender, gid(from, function(from, 1)))
            .unwrap();
        assert_eq!(local.dlid, row.lid(function(from, 1)));
        assert_eq!(local.hop_limit, 0);
        // By the path a packet comes to the port of the GID.
        let global = GlobalAddress {
            dgid,
            hop_limit: path.hop_limit,
        };
        let way = Some((path.sgid, global));
        let (at, packet) = row.send(row.port(sender), path.dlid, way).unwrap();
        assert_eq!(at, row.port(function(to, 2)));
        let last = if to < from { to } else { to - 1 };
        assert_eq!(packet.slid, row.lid(router(last, to)));
        assert_eq!(packet.dlid, row.lid(function(to, 2)));
        let routers = from.abs_diff(to) as u8;
        assert_eq!(packet.grh.unwrap().hop_limit, 255 - routers);
    }
    let nowhere = Gid::new(prefix(7), function(0, 1));
    let nobody = row.path(0, function(0, 0), nowhere);
    assert_eq!(nobody, Err(Status::SA_INVALID_GID));
}

#[test]
fn hop_limits_end_at_routers_and_are_counted_there() {
    let mut row = Row::new();
    let (sender, dgid) = (function(0, 0), gid(2, function(2, 1)));
    let (from, dlid) = (row.port(sender), row.lid(router(0, 0)));
    let entries = [row.port(router(0, 0)), row.port(router(1, 1))];
    for (hop_limit, end) in [(0, Some(0)), (1, Some(0)), (2, Some(1)), (3, None)] {
        let errors = |row: &Row| {
            let read = |at| row.fabric().port_totals(at).unwrap().rcv_errors;
            entries.map(read)
        };
        let before = errors(&row);
        let global = GlobalAddress { dgid, hop_limit };
        let arrived = row.send(from, dlid, Some((gid(0, sender), global)));
        assert_eq!(arrived.is_some(), end.is_none(), "hop limit {hop_limit}");
        let after = errors(&row);
        let counted = [0, 1].map(|at| after[at] - before[at]);
        let wanted = [0, 1].map(|at| u64::from(end == Some(at)));
        assert_eq!(counted, wanted, "hop limit {hop_limit}");
        let (left_by, route) =
            row.fabric()
                .follow_routed(from, dlid.into(), Sl::default(), None, Some(global));
        match end {
            Some(router) => {
                assert_eq!(route, Err(NoRoute::HopLimit(entries[router])));
                assert_eq!(left_by.len(), 2 * (router + 1));
            }
            None => assert_eq!(route.unwrap().route.hops, 6),
        }
    }
}

/// The data plane resolves a path as a packet takes it hop by hop.
#[test]
fn resolved_ways_are_those_of_packets() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut row = Row::new();
    let (mut crossed, mut lost) = (0, 0);
    for _ in 0..600 {
        let subnet = random.below(SUBNETS);
        let sender = function(subnet, random.below(FUNCTIONS));
        let from = row.port(sender);
        let to = random.below(SUBNETS);
        let dlid = match random.below(5) {
            0 => row.lid(function(to, random.below(FUNCTIONS))),
            1 => row.lid(router(1, 1)),
            2 => Lid::new(1 + random.below(12) as u16),
            _ => row.lid(router(
                subnet.saturating_sub(random.below(2)).min(1),
                subnet,
            )),
        };
        let dgid = match random.below(6) {
            0 => Gid::new(Gid::DEFAULT_PREFIX, function(to, random.below(FUNCTIONS))),
            1 => gid(random.below(4), function(to, random.below(FUNCTIONS))),
            2 => gid(to, router(to.min(1), to)),
            _ => gid(to, function(to, random.below(FUNCTIONS))),
        };
        let hop_limit = random.below(5) as u8;
        let global = (random.below(8) > 0).then_some(GlobalAddress { dgid, hop_limit });
        let (left_by, end) = row.fabric().follow_routed(
            from,
            ExtendedLid::from(dlid),
            Sl::default(),
            Some(PKey::DEFAULT_FULL),
            global,
        );
        let arrived = row.send(from, dlid, global.map(|it| (gid(subnet, sender), it)));
        let functions = || (0..SUBNETS).flat_map(|s| (0..FUNCTIONS).map(move |f| function(s, f)));
        let managers = (0..SUBNETS).map(manager);
        let takes = functions().chain(managers).map(|guid| row.port(guid));
        let takes: Vec<PortRef> = takes.collect();
        let resolved = end
            .ok()
            .filter(|Routed { route, .. }| takes.contains(&route.port));
        assert_eq!(
            arrived.as_ref().map(|(port, _)| *port),
            resolved.map(|Routed { route, .. }| route.port),
            "from {sender} to LID {dlid} with {global:?}: {end:?}"
        );
        let (Some((_, packet)), Some(Routed { route, crossing })) = (arrived, resolved) else {
            lost += 1;
            continue;
        };
        assert_eq!(usize::from(route.hops), left_by.len());
        if let Some(crossing) = crossing {
            crossed += 1;
            assert_eq!(packet.slid, crossing.slid);
            assert_eq!(ExtendedLid::from(packet.dlid), crossing.dlid);
            assert_eq!(packet.grh.unwrap().hop_limit, crossing.hop_limit);
        } else {
            assert_eq!((packet.slid, packet.dlid), (row.lid(sender), dlid));
        }
    }
    assert!(crossed > 50 && lost > 50, "{crossed} crossed, {lost} lost");
}

#[test]
fn a_vm_is_reached_by_its_gid_wherever_it_is() {
    let mut row = Row::new();
    let (vm, spare, peer) = (function(0, 0), function(2, 0), function(1, 1));
    let places = [row.port(vm), row.port(spare)];
    let reached = |row: &mut Row, dgid| {
        let path = row.path(1, peer, dgid).unwrap();
        let global = GlobalAddress {
            dgid,
            hop_limit: path.hop_limit,
        };
        let arrived = row.send(row.port(peer), path.dlid, Some((path.sgid, global)));
        arrived.map(|(port, _)| port)
    };
    assert_eq!(reached(&mut row, gid(0, vm)), Some(places[0]));

    // It moves: its GUID stays, its LID and the subnet's half of its GID do not.
    assert!(row.fabric_mut().exchange(places[0], places[1]));
    for at in places {
        row.fabric_mut().forget_subnet(at);
    }
    let arrival = |is_spare| Arrival {
        is_spare,
        has_lid: true,
    };
    row.of(0).manager.exchanged(vm, spare, arrival(true));
    row.of(2).manager.exchanged(spare, vm, arrival(false));
    for subnet in [0, 2] {
        row.of(subnet).settle();
        let managed = row.of(subnet);
        managed.manager.poll(managed.now, &mut managed.link);
        managed.settle();
    }
    assert_eq!(row.port(vm), places[1]);
    let info = row.fabric().port_info(places[1]).unwrap();
    assert_eq!(
        (info.port_state, info.gid_prefix),
        (PortState::Active, prefix(2))
    );
    assert_eq!(reached(&mut row, gid(2, vm)), Some(places[1]));
    assert_eq!(reached(&mut row, gid(0, vm)), None);
    assert_eq!(reached(&mut row, gid(0, spare)), Some(places[0]));
}

/// A router is a member of every partition: whoever is behind it would see all.
#[test]
fn a_subnet_administration_answers_its_own_subnet() {
    let mut row = Row::new();
    let (stranger, dgid) = (function(0, 0), gid(1, function(1, 1)));
    let global = GlobalAddress {
        dgid: gid(1, manager(1)),
        hop_limit: 9,
    };
    let way = Some(global_route(gid(0, stranger), global));
    let router = row.lid(router(0, 0));
    let before = row.managed[1].manager.requests().count();
    assert_eq!(row.ask(1, stranger, dgid, (router, way)), None);
    assert_eq!(row.managed[1].manager.requests().count(), before);
    // The packet has come there.
    row.forget_events();
    let arrived = row.send(row.port(stranger), router, Some((gid(0, stranger), global)));
    assert_eq!(arrived.map(|(port, _)| port), Some(row.port(manager(1))));
}
