//! Subnet managers of clusters.

use std::collections::VecDeque;
use std::time::Duration;

use hca::VfId;
use ibvswitch_vswitch::model::{MadRules, RoutingChoice, Vf, View};
use ibvswitch_vswitch::{ForGuest, Input, Model};
use subnet_manager::routing::MinHop;
use subnet_manager::{Config, SubnetManager, Transport};
use wire::attribute::CapabilityMask;
use wire::mad::{AttributeId, Method, Status};
use wire::smp::{DATA, Destination, Request, Route, Smp};
use wire::{Lid, MadPacket};

use crate::lab::Lab;

/// A subnet manager in a VM.
pub struct Tenant {
    pub manager: SubnetManager,
    vf: usize,
    pub post: Post,
}

#[derive(Default)]
pub struct Post {
    pub inbox: VecDeque<MadPacket>,
    pub outbox: Vec<MadPacket>,
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
    pub fn start(lab: &Lab, vf: usize) -> Self {
        Self::with(lab, vf, Config::default())
    }

    /// The same with these settings.
    pub fn with(lab: &Lab, vf: usize, config: Config) -> Self {
        let function = lab.vswitch.function(VfId(vf as u16)).expect("is there");
        assert!(function.facts().writable.contains(CapabilityMask::IS_SM));
        function.set_capabilities(CapabilityMask::IS_SM, CapabilityMask::default());
        lab.vswitch.poll();
        let manager = SubnetManager::new(config, Box::new(MinHop));
        let mut tenant = Self {
            manager: manager.expect("is right"),
            vf,
            post: Post::default(),
        };
        tenant.run(lab);
        tenant
    }

    /// Lets the manager work until nothing is left to do.
    pub fn run(&mut self, lab: &Lab) {
        run(lab, &mut [self]);
    }

    /// The same for a while.
    pub fn pass(&mut self, lab: &Lab, time: Duration) {
        let end = lab.vswitch.now() + time;
        while lab.vswitch.now() < end {
            lab.pass(Duration::from_millis(500));
            self.run(lab);
        }
    }
}

/// Lets managers work until nothing is left to do.
pub fn run(lab: &Lab, tenants: &mut [&mut Tenant]) {
    loop {
        for tenant in tenants.iter_mut() {
            tenant.manager.poll(lab.vswitch.now(), &mut tenant.post);
            for packet in tenant.post.outbox.drain(..) {
                let from = VfId(tenant.vf as u16);
                lab.vswitch.handle(Input::Packet(from, Box::new(packet)));
            }
        }
        lab.vswitch.poll();
        let mut came = false;
        while let Some(output) = lab.vswitch.poll_guest() {
            if let ForGuest::Packet(to, packet) = output
                && let Some(tenant) = { tenants.iter_mut() }.find(|it| it.vf == usize::from(to.0))
            {
                tenant.post.inbox.push_back(*packet);
                came = true;
            }
        }
        if !came {
            return;
        }
    }
}

/// The answer to a request that a VM sends from its queue pair 0.
pub fn ask(
    lab: &Lab,
    vf: usize,
    to: Destination,
    method: Method,
    (attribute, modifier): (AttributeId, u32),
    data: [u8; DATA],
) -> Option<(Status, [u8; DATA])> {
    let request = Request {
        destination: to,
        method,
        attribute,
        modifier,
        transaction: 0x7777,
        m_key: 0,
        data,
    };
    let packet = MadPacket::smp(Lid::NONE, request.dlid(), request.to_bytes());
    let answers = lab.send(vf, packet);
    let is_it = |answer: &&MadPacket| {
        let header = answer.header();
        header.transaction() == 0x7777 && header.method().is_response()
    };
    let answer = answers.iter().find(is_it)?;
    let smp = Smp::new_checked(&answer.mad[..]).expect("is one");
    Some((smp.mad().status(), *smp.data()))
}

pub fn directed(route: &[u8]) -> Destination {
    Destination::Directed(Route::new(route).expect("is short"))
}

/// A tenant's tables by shortest ways on a ring of five switches could have packets wait for each other for ever. Switches tell
/// its manager so, until the tables are others.
#[test]
fn refused_tables_are_told_by_their_switches() {
    let mut model = Model::new(&["l1", "l2", "l3", "l4", "l5"]);
    model.manager.routing = RoutingChoice::UpDown;
    model.add_cluster("c", Lid::new(0xbfff), View::Full);
    for at in 0..5 {
        model.add_cable(at, (at + 1) % 5);
        let vf = Vf::new(&format!("vm{at}"));
        let mads = MadRules {
            rate: None,
            ..vf.mads.clone()
        };
        let vf = Vf { mads, ..vf }.in_cluster(0, at as u16 + 1);
        model.add_hypervisor(&format!("h{at}"), at, vec![vf]);
    }
    let lab = Lab::new(&model);
    let mut tenant = Tenant::start(&lab, 0);
    let traps = |tenant: &Tenant| -> u64 { tenant.manager.traps().map(|(_, count)| count).sum() };
    assert_eq!(traps(&tenant), 0);
    tenant.pass(&lab, Duration::from_secs(2));
    assert!(traps(&tenant) > 0, "no switch tells");
    let is_refused = || { lab.vswitch.cluster_status().into_iter() }.any(|it| it.refusal.is_some());
    assert!(is_refused());
    // From the VM to its vSwitch, its leaf and on: ports 2 and 3 lead to neighbours.
    let block = (AttributeId::LINEAR_FORWARDING, 0);
    let at = |leaf: &[u8]| directed(&[&[1, 1], leaf].concat());
    let set = |leaf: &[u8], table| ask(&lab, 0, at(leaf), Method::SET, block, table);
    let get = |leaf: &[u8]| {
        let answer = ask(&lab, 0, at(leaf), Method::GET, block, [0; DATA]);
        answer.expect("answers").1
    };
    // The provider's ways for the VMs hurt nobody.
    let vms = (0..5).map(|vf| {
        let lids = [
            lab.vswitch.port_view(VfId(vf)).lid,
            lab.vswitch.physical_lid(VfId(vf)),
        ];
        lids.map(|lid| (lid, usize::from(lid.value())))
    });
    let vms: Vec<_> = vms.collect();
    let way = |switch: usize, lid| {
        let port = lab.vswitch.inspect(|fabric| {
            let node = lab.plan.node(fabric, &format!("l{}", switch + 1));
            fabric.forwarding(node.expect("is there"), lid)
        });
        port.expect("a way")
    };
    let (mut refused, mut changed) = (0, 0);
    for switch in 0..5 {
        let leaf = &[2, 3, 3, 3][..switch];
        let before = get(leaf);
        let mut table = before;
        for [(_, own), (physical, _)] in &vms {
            table[*own] = way(switch, *physical);
        }
        match set(leaf, before) {
            Some((Status::INVALID_FIELD, answer)) => {
                assert_eq!(answer, before);
                refused += 1;
            }
            answer => assert_eq!(answer, Some((Status::OK, before))),
        }
        if table != before {
            changed += 1;
            // It is taken until the subnet's manager has judged it.
            assert_eq!(set(leaf, table), Some((Status::OK, table)));
            assert_eq!(set(leaf, table), Some((Status::OK, table)));
        }
    }
    assert!(refused >= 3 && changed > 0, "{refused} {changed}");
    lab.pass(Duration::from_secs(2));
    assert!(!is_refused());
    for switch in 0..5 {
        let leaf = &[2, 3, 3, 3][..switch];
        let table = get(leaf);
        assert_eq!(set(leaf, table), Some((Status::OK, table)));
    }
}
