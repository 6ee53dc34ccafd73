//! View that a guest of a virtual cluster has of the subnet, by its device's queue pair 0.

use std::collections::{BTreeMap, BTreeSet};

use crate::daemon::{Daemon, HALF, Peer};
use crate::programs::Opensm;
use test_driver::{AddressVector, Data, QueuePair, SendRequest, Transport};
use testing::Configuration;

const GRH: usize = 40;
const MAD: usize = 256;
const PERMISSIVE: u16 = 0xffff;
const NODE_INFO: u16 = 0x0011;
const PORT_INFO: u16 = 0x0015;
const LINEAR_FORWARDING: u16 = 0x0019;
const SM_INFO: u16 = 0x0020;
const MASTER: u8 = 3;
const GET: u8 = 1;
const SET: u8 = 2;
const SWITCH: u8 = 2;
const DOWN: u8 = 1;

/// Two clusters with views, in which LIDs are the same, and one without.
fn configuration() -> Configuration {
    Configuration::new()
        .clusters(["a"])
        .key("view", "mirror")
        .clusters(["b"])
        .key("view", "mirror")
        .clusters(["c"])
        .hypervisor("hv1", [])
        .spare_vfs(1)
        .member("a1", "a")
        .member("b1", "b")
        .member("c1", "c")
        .hypervisor("hv2", [])
        .member("a2", "a")
        .member("b2", "b")
        .hypervisor("hv3", [])
        .spare_vfs(1)
}

/// A guest's queue pair 0.
struct Guest {
    peer: Peer,
    qp: QueuePair,
}

impl Guest {
    fn new(daemon: &Daemon, name: &str) -> Self {
        let peer = Peer::open(daemon, name);
        let qp = peer.qp(Transport::Smi);
        qp.activate(0, 0).expect("becomes ready");
        Self { peer, qp }
    }

    /// Sends a packet for a directed route out of these ports; a question that always has an answer
    /// follows, and is passed over if it is not the only one.
    fn ask(
        &mut self,
        method: u8,
        attribute: u16,
        modifier: u32,
        route: &[u8],
    ) -> Option<[u8; MAD]> {
        let question = directed(method, attribute, modifier, route, 1);
        self.send(&question, PERMISSIVE)
    }

    fn ask_by_lid(&mut self, lid: u16, attribute: u16, modifier: u32) -> Option<[u8; MAD]> {
        let mut question = directed(GET, attribute, modifier, &[], 1);
        question[1] = 0x01;
        question[32..36].fill(0);
        self.send(&question, lid)
    }

    fn send(&mut self, question: &[u8; MAD], lid: u16) -> Option<[u8; MAD]> {
        let last = directed(GET, NODE_INFO, 0, &[], 2);
        for slot in [HALF, HALF + 512] {
            self.qp
                .post_receive(&[self.peer.sge(slot, GRH + MAD)])
                .expect("is posted");
        }
        for (mad, lid) in [(question, lid), (&last, PERMISSIVE)] {
            let to = AddressVector {
                lid,
                ..AddressVector::default()
            };
            let request = SendRequest::send(Data::Inline(mad));
            self.qp.post_send(&request.to(&to)).expect("is posted");
        }
        // Receives complete in their order, and stay posted where they were not needed.
        let mut answer = None;
        loop {
            let entry = self.peer.cq.wait().expect("a completion");
            assert!(entry.is_ok(), "{:?}", entry.syndrome());
            if entry.kind() == test_driver::CqeKind::Requester {
                self.qp.complete(&entry);
                continue;
            }
            self.qp.complete_receive(&entry);
            let mut slots = [HALF, HALF + 512].map(|slot| {
                let mut mad = [0; MAD];
                self.peer.buffer.read(slot + GRH, &mut mad);
                mad
            });
            let transaction = |mad: &[u8; MAD]| mad[15];
            if let Some(found) = slots.iter().find(|mad| transaction(mad) == 1) {
                answer = Some(*found);
            }
            if slots.iter().any(|mad| transaction(mad) == 2) {
                for (slot, mad) in [HALF, HALF + 512].into_iter().zip(&mut slots) {
                    mad.fill(0);
                    self.peer.buffer.write(slot + GRH, mad);
                }
                return answer;
            }
        }
    }

    /// All nodes by their GUID: kind, LID and route, as `ibnetdiscover` goes about it.
    fn discover(&mut self) -> BTreeMap<u64, (u8, u16, Vec<u8>)> {
        let mut found = BTreeMap::new();
        let mut waiting = vec![Vec::new()];
        while let Some(route) = waiting.pop() {
            let Some(info) = self.ask(GET, NODE_INFO, 0, &route) else {
                continue;
            };
            let (kind, ports, guid) = (info[64 + 2], info[64 + 3], long(&info, 64 + 12));
            if found.contains_key(&guid) {
                continue;
            }
            let own = if kind == SWITCH { 0 } else { 1 };
            let lid = self.ask(GET, PORT_INFO, own, &route).expect("its port");
            found.insert(guid, (kind, word(&lid, 64 + 16), route.clone()));
            for port in 1..=ports {
                let info = self.ask(GET, PORT_INFO, port.into(), &route);
                let state = info.expect("its port")[64 + 32] & 0xf;
                if state != DOWN && (kind == SWITCH || route.is_empty()) {
                    waiting.push([&route[..], &[port]].concat());
                }
            }
        }
        found
    }
}

fn directed(method: u8, attribute: u16, modifier: u32, route: &[u8], transaction: u8) -> [u8; MAD] {
    let mut mad = [0; MAD];
    mad[..4].copy_from_slice(&[1, 0x81, 1, method]);
    mad[7] = route.len() as u8;
    mad[15] = transaction;
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[32..36].fill(0xff);
    mad[129..129 + route.len()].copy_from_slice(route);
    mad
}

fn word(mad: &[u8; MAD], at: usize) -> u16 {
    u16::from_be_bytes([mad[at], mad[at + 1]])
}

fn long(mad: &[u8; MAD], at: usize) -> u64 {
    let bytes = mad[at..at + 8].first_chunk().expect("eight bytes");
    u64::from_be_bytes(*bytes)
}

fn guid(daemon: &Daemon, vm: &str) -> u64 {
    let shown = daemon.ask(&["vf", "show", vm]);
    let text = shown["port_guid"]
        .as_str()
        .expect("a GUID")
        .replace(':', "");
    u64::from_str_radix(&text, 16).expect("is hexadecimal")
}

fn refused(daemon: &Daemon, name: &str) -> u64 {
    let vf = daemon.ask(&["vf", "show", name]);
    vf["mads"]["refused"]["smp"].as_u64().unwrap_or(0)
}

/// Subnet management packets that the nodes have seen.
fn seen_by_nodes(daemon: &Daemon) -> Vec<String> {
    ["sw1", "hv1", "hv2", "a1", "a2", "b1"]
        .map(|node| daemon.ask(&["counters", node])["smps"].to_string())
        .to_vec()
}

#[test]
fn each_cluster_finds_itself_and_what_serves_it() {
    let daemon = Daemon::configured(configuration());
    let mut all: Vec<BTreeSet<u64>> = Vec::new();
    let mut guests = ["a1", "b1", "c1"].map(|name| Guest::new(&daemon, name));
    let before = seen_by_nodes(&daemon);
    for (guest, vms) in guests.iter_mut().zip([["a1", "a2"], ["b1", "b2"]]) {
        let nodes = guest.discover();
        for (lid, vm) in (1..).zip(vms) {
            let (kind, own, _) = nodes[&guid(&daemon, vm)];
            assert_eq!((kind, own), (1, lid));
        }
        let kinds = nodes.values().map(|(kind, ..)| *kind);
        // The switch and two vSwitches; the third hypervisor has nobody of theirs. The manager's host.
        assert_eq!(kinds.clone().filter(|kind| *kind == SWITCH).count(), 3);
        assert_eq!(kinds.filter(|kind| *kind != SWITCH).count(), 3);
        // Each is found by its LID as well, and the tables know these LIDs and no others.
        let lids: BTreeSet<u16> = nodes.values().map(|(_, lid, _)| *lid).collect();
        assert_eq!(lids.len(), nodes.len());
        assert!(lids.contains(&0xbfff), "the manager");
        for (guid, (kind, lid, route)) in &nodes {
            let by_lid = guest.ask_by_lid(*lid, NODE_INFO, 0).expect("is found");
            assert_eq!(long(&by_lid, 64 + 12), *guid, "LID {lid}");
            if *kind == SWITCH {
                let table = guest.ask(GET, LINEAR_FORWARDING, 0, route);
                let table = table.expect("a table");
                let known = (0..64).filter(|lid| table[64 + usize::from(*lid)] != 0xff);
                assert_eq!(known.collect::<Vec<u16>>(), [1, 2]);
            }
        }
        assert_eq!(guest.ask_by_lid(3, NODE_INFO, 0), None);
        // The manager's is the same for both.
        let info = guest.ask_by_lid(0xbfff, SM_INFO, 0).expect("a manager");
        let (manager, state) = (long(&info, 64), info[64 + 20] & 0xf);
        assert_eq!((word(&info, 4), state), (0, MASTER));
        assert_eq!(nodes[&manager].1, 0xbfff);
        let others = nodes.into_keys().filter(|guid| *guid != manager);
        all.push(others.collect());
    }
    assert!(all[0].is_disjoint(&all[1]), "{all:x?}");
    // Without a view there is the own port.
    assert_eq!(guests[2].discover().len(), 1);
    assert_eq!(seen_by_nodes(&daemon), before, "nothing enters the subnet");
}

#[test]
fn nothing_can_be_set_and_the_guest_is_told() {
    let daemon = Daemon::configured(configuration());
    let mut guest = Guest::new(&daemon, "a1");
    for route in [&[][..], &[1], &[1, 1]] {
        let answer = guest.ask(SET, PORT_INFO, 1, route).expect("an answer");
        assert_eq!(answer[3], 0x81, "GetResp");
        assert_eq!(word(&answer, 4) & 0x7fff, 3 << 2, "method and attribute");
    }
    let local = directed(SET, PORT_INFO, 1, &[], 1);
    let local = guest.peer.device.mad_ifc(&local).expect("is answered");
    assert_eq!(word(&local, 4) & 0x7fff, 3 << 2);
    assert_eq!(refused(&daemon, "a1"), 4);
    // What the own agent tells the driver, it tells those who come over the vSwitch.
    let own = directed(GET, NODE_INFO, 0, &[], 1);
    let own = guest.peer.device.mad_ifc(&own).expect("is answered");
    assert_eq!(long(&own, 64 + 12), guid(&daemon, "a1"));
}

#[test]
fn a_vm_that_moves_is_seen_elsewhere() {
    let daemon = Daemon::configured(configuration());
    let mut guest = Guest::new(&daemon, "a2");
    let moving = guid(&daemon, "a1");
    let (before, switches) = {
        let nodes = guest.discover();
        let switches: BTreeSet<u64> = switches(&nodes);
        (nodes[&moving].clone(), switches)
    };
    daemon.ask(&["vf", "migrate", "a1", "--to", "hv3"]);
    let nodes = guest.discover();
    let after = &nodes[&moving];
    assert_eq!(
        (before.0, before.1),
        (after.0, after.1),
        "with the same LID"
    );
    assert_ne!(before.2, after.2);
    let now = self::switches(&nodes);
    assert_eq!(now.intersection(&switches).count(), 2, "the switch and hv2");
    assert_eq!(now.len(), 3, "hv1 serves the cluster no longer");
}

/// OpenSM of the host, which knows nothing of clusters, manages what the views show.
#[test]
fn whoever_manages_there_is_a_view() {
    let daemon = Daemon::configured(configuration().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    for (name, vms) in [("a1", ["a1", "a2"]), ("b2", ["b1", "b2"])] {
        let mut guest = Guest::new(&daemon, name);
        let nodes = guest.discover();
        assert_eq!((switches(&nodes).len(), nodes.len()), (3, 6), "{nodes:x?}");
        for (lid, vm) in (1..).zip(vms) {
            let (kind, own, route) = &nodes[&guid(&daemon, vm)];
            assert_eq!((*kind, *own), (1, lid));
            let by_lid = guest.ask_by_lid(lid, NODE_INFO, 0).expect("is found");
            assert_eq!(long(&by_lid, 64 + 12), guid(&daemon, vm), "at {route:?}");
        }
        let info = guest.ask_by_lid(0xbfff, SM_INFO, 0).expect("an answer");
        assert_eq!(word(&info, 4), 3 << 2, "what OpenSM says is not known");
    }
}

fn switches(nodes: &BTreeMap<u64, (u8, u16, Vec<u8>)>) -> BTreeSet<u64> {
    let switches = nodes.iter().filter(|(_, (kind, ..))| *kind == SWITCH);
    switches.map(|(guid, _)| *guid).collect()
}
