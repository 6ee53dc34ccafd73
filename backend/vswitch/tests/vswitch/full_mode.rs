//! Clusters that a subnet manager in one of their VMs manages.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use hca::{End, Heading, NoRoute, PortView, Route, VfId};
use ibvswitch_vswitch::model::{FullModeEnd, MadRules, Model, Vf, View};
use ibvswitch_vswitch::{ForGuest, Input, LinkAction};
use subnet_manager::routing::MinHop;
use subnet_manager::{Config, SubnetManager, Transport};
use wire::attribute::CapabilityMask;
use wire::mad::{Method, Status};
use wire::sa::{self, PathRecord, Record};
use wire::{Lid, MadPacket, PKey, Sl};

use crate::lab::Lab;

/// The VMs: three of the cluster, one of another cluster, one of none.
const A: usize = 0;
const B: usize = 1;
const OTHER: usize = 2;
const STRANGER: usize = 3;
const C: usize = 4;

/// Two leaves and two spines, with VMs at both leaves.
fn cloud() -> Model {
    let mut model = Model::new(&["l1", "l2", "s1", "s2"]);
    for (leaf, spine) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        model.add_cable(leaf, spine);
    }
    model.add_cluster("c", Lid::new(0xbfff), View::Full);
    model.add_cluster("d", Lid::new(0xbfff), View::Mirror);
    let vm = |name, cluster, lid| {
        let vf = Vf::new(name);
        let mads = MadRules {
            rate: None,
            ..vf.mads.clone()
        };
        Vf { mads, ..vf }.in_cluster(cluster, lid)
    };
    let vfs = vec![vm("a", 0, 1), vm("b", 0, 2), vm("other", 1, 1)];
    model.add_hypervisor("h1", 0, vfs);
    let vfs = vec![Vf::new("stranger"), vm("c", 0, 3), vm("other2", 1, 2)];
    model.add_hypervisor("h2", 1, vfs);
    model
}

/// A subnet manager in a VM.
struct Tenant {
    manager: SubnetManager,
    vf: usize,
    post: Post,
}

#[derive(Default)]
struct Post {
    inbox: VecDeque<MadPacket>,
    outbox: Vec<MadPacket>,
}

impl Transport for Post {
    fn send(&mut self, packet: MadPacket) {
        self.outbox.push(packet);
    }

    fn receive(&mut self) -> Option<MadPacket> {
        self.inbox.pop_front()
    }
}

impl Tenant {
    /// A manager that the driver of its VM announces.
    fn start(lab: &Lab, vf: usize) -> Self {
        let function = lab.vswitch.function(VfId(vf as u16)).expect("is there");
        assert!(function.facts().writable.contains(CapabilityMask::IS_SM));
        function.set_capabilities(CapabilityMask::IS_SM, CapabilityMask::default());
        lab.vswitch.poll();
        let manager = SubnetManager::new(Config::default(), Box::new(MinHop));
        let mut tenant = Self {
            manager: manager.expect("is right"),
            vf,
            post: Post::default(),
        };
        tenant.run(lab);
        tenant
    }

    /// Lets the manager work until nothing is left to do.
    fn run(&mut self, lab: &Lab) {
        loop {
            let now = lab.vswitch.now();
            self.manager.poll(now, &mut self.post);
            for packet in self.post.outbox.drain(..) {
                let packet = Input::Packet(VfId(self.vf as u16), Box::new(packet));
                lab.vswitch.handle(packet);
            }
            lab.vswitch.poll();
            let before = self.post.inbox.len();
            while let Some(output) = lab.vswitch.poll_guest() {
                if let ForGuest::Packet(to, packet) = output
                    && usize::from(to.0) == self.vf
                {
                    self.post.inbox.push_back(*packet);
                }
            }
            if self.post.inbox.len() == before {
                return;
            }
        }
    }

    /// The same for a while.
    fn pass(&mut self, lab: &Lab, time: Duration) {
        let end = lab.vswitch.now() + time;
        while lab.vswitch.now() < end {
            lab.pass(Duration::from_millis(500));
            self.run(lab);
        }
    }
}

fn view(lab: &Lab, vf: usize) -> PortView {
    lab.vswitch.port_view(VfId(vf as u16))
}

/// The way of data between two VMs by the LID that the second one sees as its own.
fn way(lab: &Lab, from: usize, to: Lid) -> Result<Route, NoRoute> {
    let mut subnet = lab.vswitch.for_engine(Waker::noop().clone());
    let pkey = view(lab, from).pkeys[0];
    let heading = Heading {
        dlid: to,
        sl: Sl::default(),
        pkey,
        global: None,
    };
    subnet.resolve(VfId(from as u16), &heading)
}

/// Asserts that data gets from each of these VMs to each by their own LIDs.
fn all_reach_all(lab: &Lab, vms: &[usize]) {
    for &from in vms {
        for &to in vms.iter().filter(|&&to| to != from) {
            let lid = view(lab, to).lid;
            let route = way(lab, from, lid).map(|route| route.end);
            assert_eq!(
                route,
                Ok(End::Here(VfId(to as u16))),
                "{from} to {to} ({lid})"
            );
        }
    }
}

#[test]
fn the_cluster_is_managed_then_full_then_managed() {
    let lab = Lab::new(&cloud());
    all_reach_all(&lab, &[A, B, C]);
    let before = [A, B, C].map(|vf| view(&lab, vf));
    assert_eq!(before.clone().map(|view| view.lid.value()), [1, 2, 3]);
    let others =
        || [OTHER, STRANGER].map(|vf| (view(&lab, vf), lab.vswitch.physical_lid(VfId(vf as u16))));
    let of_others = others();
    let tenant = Tenant::start(&lab, A);
    assert!(tenant.manager.is_up(), "{:?}", tenant.manager.report());
    let lids = [A, B, C].map(|vf| view(&lab, vf).lid);
    let given: Vec<Lid> = tenant.manager.lids().values().copied().collect();
    assert!(
        lids.iter().all(|lid| given.contains(lid)),
        "{lids:?} of {given:?}"
    );
    assert!([A, B, C].iter().all(|&vf| view(&lab, vf).active));
    let function = lab.vswitch.function(VfId(B as u16)).expect("is there");
    assert_eq!(function.facts().sm_lid, lids[0]);
    assert_eq!(function.facts().lid, lids[1]);
    all_reach_all(&lab, &[A, B, C]);
    // A switch of the cluster is no place for data.
    let switch = given
        .iter()
        .find(|lid| !lids.contains(lid))
        .expect("is one");
    assert_eq!(
        way(&lab, A, *switch).map(|it| it.end),
        Err(NoRoute::Dropped)
    );
    assert_eq!(others(), of_others);
    // Silence.
    lab.pass(Duration::from_secs(61));
    assert!([A, B, C].map(|vf| view(&lab, vf)) == before);
    all_reach_all(&lab, &[A, B, C]);
}

#[test]
fn paths_are_the_managers_to_tell() {
    let lab = Lab::new(&cloud());
    let mut tenant = Tenant::start(&lab, A);
    let [a, b, c] = [A, B, C].map(|vf| view(&lab, vf).lid);
    let record = PathRecord {
        slid: b,
        dlid: c,
        ..PathRecord::default()
    };
    let mask = PathRecord::SLID | PathRecord::DLID;
    let mad = sa::with_record(Method::GET, 7, mask, &record);
    let question = MadPacket::gmp(b, a, Sl::default(), PKey::DEFAULT_FULL, mad);
    lab.vswitch
        .handle(Input::Packet(VfId(B as u16), Box::new(question)));
    lab.vswitch.poll();
    tenant.post.inbox.extend(lab.received(VfId(A as u16)));
    assert_eq!(tenant.post.inbox.len(), 1);
    tenant.manager.poll(lab.vswitch.now(), &mut tenant.post);
    let answer = tenant.post.outbox.pop().expect("is one");
    assert_eq!(answer.header().status(), Status::OK);
    lab.vswitch
        .handle(Input::Packet(VfId(A as u16), Box::new(answer)));
    lab.vswitch.poll();
    let [answer] = &lab.received(VfId(B as u16))[..] else {
        panic!("no answer, or several");
    };
    assert_eq!((answer.slid, answer.dlid), (a, b));
    let record = PathRecord::read(&answer.mad[sa::DATA]).expect("is one");
    assert_eq!((record.slid, record.dlid), (b, c));
}

#[test]
fn changes_of_the_subnet_are_told_and_lids_stay() {
    let lab = Lab::new(&cloud());
    let mut tenant = Tenant::start(&lab, A);
    let lids = || [A, B, C].map(|vf| view(&lab, vf).lid);
    let before = lids();
    let sweeps = tenant.manager.report().sweeps;
    let spine = |action| {
        let changed = lab.vswitch.change_link(&lab.plan, ("s2", 1), action);
        changed.expect("is there");
    };
    spine(LinkAction::Down);
    tenant.pass(&lab, Duration::from_secs(60));
    assert!(
        tenant.manager.report().sweeps > sweeps,
        "a trap tells of it"
    );
    assert_eq!(lids(), before);
    all_reach_all(&lab, &[A, B, C]);
    spine(LinkAction::Up);
    tenant.pass(&lab, Duration::from_secs(60));
    assert_eq!(lids(), before);
    all_reach_all(&lab, &[A, B, C]);
}

#[test]
fn what_was_set_stays_in_force_where_it_is_to_be_kept() {
    let mut model = cloud();
    model.clusters[0].full_mode.end = FullModeEnd::Keep;
    let lab = Lab::new(&model);
    Tenant::start(&lab, A);
    let before = [A, B, C].map(|vf| view(&lab, vf));
    lab.pass(Duration::from_secs(3600));
    assert!([A, B, C].map(|vf| view(&lab, vf)) == before);
    all_reach_all(&lab, &[A, B, C]);
}
