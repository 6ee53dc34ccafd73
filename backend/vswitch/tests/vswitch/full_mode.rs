//! Clusters that a subnet manager in one of their VMs manages.

use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use fabric::{NodeId, PortEvent, PortRef, Tap};
use hca::{End, Foreign, Heading, NoRoute, PortView, Route, ServiceLevels, VfId};
use ibvswitch_vswitch::model::{AddressModel, FullModeEnd, MadRules, Model, Vf, View};
use ibvswitch_vswitch::{ForGuest, Input, LinkAction, Output, Reason};
use wire::attribute::{CapabilityMask, PortInfo, SmState};
use wire::mad::{AttributeId, Method, Status};
use wire::sa::{self, PathRecord, Record};
use wire::smp::{DATA, Destination, Request};
use wire::{Guid, Lid, MadPacket, PKey, Sl};

use crate::lab::Lab;
use crate::moves::request;
use crate::tenant::{Tenant, ask, directed, run};

/// The VMs: three of the cluster, one of another cluster, one of none.
const A: usize = 0;
const B: usize = 1;
const OTHER: usize = 2;
const STRANGER: usize = 3;
const C: usize = 4;
const OTHER2: usize = 5;

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

fn view(lab: &Lab, vf: usize) -> PortView {
    lab.vswitch.port_view(VfId(vf as u16))
}

/// The way of data between two VMs by the LID that the second one sees as its own.
fn way(lab: &Lab, from: usize, to: Lid) -> Result<Route, NoRoute> {
    way_on(lab, from, to, Sl::default())
}

/// The same on a service level.
fn way_on(lab: &Lab, from: usize, to: Lid, sl: Sl) -> Result<Route, NoRoute> {
    let mut subnet = lab.vswitch.for_engine(Waker::noop().clone());
    let pkey = view(lab, from).pkeys[0];
    let heading = Heading {
        dlid: to,
        sl,
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
fn a_vm_that_moves_keeps_its_lid() {
    const SPARE: usize = 6;
    let mut model = cloud();
    model.add_hypervisor("h3", 0, vec![Vf::spare("h3-spare1")]);
    let lab = Lab::new(&model);
    let mut tenant = Tenant::start(&lab, A);
    let lid = view(&lab, C).lid;
    let begun = lab.vswitch.migrate(&[request(1, "c", "h3")], |_| false);
    assert!(matches!(&begun.expect("names are right")[..], [None]));
    tenant.pass(&lab, Duration::from_secs(40));
    let moved = |output: &Output| matches!(output, Output::Moved { outcome: Ok(_), .. });
    assert!(lab.outputs().iter().any(moved));
    assert_eq!(
        (view(&lab, SPARE).lid, view(&lab, SPARE).active),
        (lid, true)
    );
    all_reach_all(&lab, &[A, B, SPARE]);
    // The rights of the cluster's VMs have gone along.
    let mut subnet = lab.vswitch.for_engine(Waker::noop().clone());
    for (vf, refusals) in [(SPARE, 0), (C, 1)] {
        let before = lab.vswitch.filter_report(VfId(vf as u16)).refused.len();
        let trap = Request {
            destination: Destination::Lid(view(&lab, A).lid),
            method: Method::TRAP,
            attribute: AttributeId::NOTICE,
            modifier: 0,
            transaction: 7,
            m_key: 0,
            data: [0; DATA],
        };
        let packet = MadPacket::smp(view(&lab, vf).lid, trap.dlid(), trap.to_bytes());
        subnet.send_mad(VfId(vf as u16), packet);
        let after = lab.vswitch.filter_report(VfId(vf as u16)).refused.len();
        assert_eq!(after - before, refusals, "{vf}");
    }
}

/// A daemon that is started anew knows nothing of the mode: VMs go on there, and are told of their LIDs.
#[test]
fn images_do_not_depend_on_the_mode() {
    let [lab, other] = [(); 2].map(|()| Lab::new(&cloud()));
    let vf = VfId(B as u16);
    Tenant::start(&lab, A);
    assert_ne!(view(&lab, B).lid, view(&other, B).lid);
    let image = lab.vswitch.save(vf).expect("is there");
    let told = |lab: &Lab| {
        while lab.vswitch.poll_guest().is_some() {}
        lab.vswitch.restore(vf, &image).expect("is the same VM");
        let all = std::iter::from_fn(|| lab.vswitch.poll_guest());
        let lid = |output| match output {
            ForGuest::Port(of, PortEvent::LidChange, view) if of == vf => Some(view.lid),
            _ => None,
        };
        all.filter_map(lid).next()
    };
    for lab in [&other, &lab] {
        assert_eq!(told(lab), Some(view(lab, B).lid));
    }
}

#[test]
fn lanes_are_the_managers_unless_the_provider_writes_levels() {
    let sl = Sl::new(3);
    let mut model = cloud();
    model.hypervisors[0].vfs[B].service_levels = ServiceLevels {
        allowed: 1 << 3,
        foreign: Foreign::Rewritten(sl),
    };
    let lab = Lab::new(&model);
    Tenant::start(&lab, A);
    let c = view(&lab, C).lid;
    // All levels but the first one are dropped at A and at B.
    let mut table = [0xff; DATA];
    table[0] = 0x0f;
    for (vf, reaches) in [(A, false), (B, true)] {
        assert!(way_on(&lab, vf, c, sl).is_ok());
        let lanes = (AttributeId::SL_TO_VL, 0);
        ask(&lab, vf, directed(&[]), Method::SET, lanes, table).expect("answers");
        assert_eq!(way_on(&lab, vf, c, sl).is_ok(), reaches, "{vf}");
        assert!(way(&lab, vf, c).is_ok());
    }
}

#[test]
fn a_vm_that_is_reset_is_no_manager_any_more() {
    let lab = Lab::new(&cloud());
    Tenant::start(&lab, A);
    let is_manager = || {
        let info = (AttributeId::PORT_INFO, 1);
        // A is at port 2 of its vSwitch.
        let answer = ask(&lab, B, directed(&[1, 2]), Method::GET, info, [0; DATA]);
        let (_, data) = answer.expect("answers");
        let info = PortInfo::parse(&data).expect("is right");
        info.capability_mask.contains(CapabilityMask::IS_SM)
    };
    assert!(is_manager());
    lab.vswitch.handle(Input::Reset(VfId(A as u16)));
    lab.vswitch.poll();
    assert!(!is_manager());
    all_reach_all(&lab, &[A, B, C]);
}

/// VMs that share ports have no queue pair 0, and are managed by one that has.
#[test]
fn vms_at_shared_ports_are_managed_too() {
    let mut model = Model::new(&["sw1"]);
    model.fabric.model = AddressModel::Hybrid;
    model.manager.lmc = 2;
    model.add_cluster("c", Lid::new(0xbfff), View::Full);
    let vfs = vec![
        Vf::new("a").in_cluster(0, 1),
        Vf::new("b").shared().in_cluster(0, 2),
    ];
    model.add_hypervisor("h1", 0, vfs);
    let vfs = vec![
        Vf::new("d").shared().in_cluster(0, 3),
        Vf::new("e").shared().in_cluster(0, 4),
    ];
    model.add_hypervisor("h2", 0, vfs);
    let lab = Lab::new(&model);
    all_reach_all(&lab, &[0, 1, 2, 3]);
    let tenant = Tenant::start(&lab, 0);
    let given: Vec<Lid> = tenant.manager.lids().values().copied().collect();
    let lids = [0, 1, 2, 3].map(|vf| view(&lab, vf).lid);
    assert!(
        lids.iter().all(|lid| given.contains(lid)),
        "{lids:?} of {given:?}"
    );
    all_reach_all(&lab, &[0, 1, 2, 3]);
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

#[test]
fn packets_take_the_ways_of_the_managers_tables() {
    let lab = Lab::new(&cloud());
    Tenant::start(&lab, A);
    lab.pass(Duration::from_secs(1));
    let c = view(&lab, C).lid;
    let physical = lab.vswitch.physical_lid(VfId(C as u16));
    let ways = || {
        lab.vswitch.inspect(|fabric| {
            let leaf = lab.plan.node(fabric, "l1").expect("is there");
            (0..64)
                .map(|lid| fabric.forwarding(leaf, Lid::new(lid)))
                .collect::<Vec<_>>()
        })
    };
    let before = ways();
    // The leaf is beyond the vSwitch; its ports 2 and 3 lead to the spines.
    let leaf = || directed(&[1, 1]);
    let block = (AttributeId::LINEAR_FORWARDING, 0);
    let (_, mut table) = ask(&lab, A, leaf(), Method::GET, block, [0; DATA]).expect("answers");
    let own = &mut table[usize::from(c.value())];
    assert_eq!(
        before[usize::from(physical.value())],
        Some(*own),
        "{table:?}"
    );
    *own = 5 - *own;
    let turned = *own;
    let answer = ask(&lab, A, leaf(), Method::SET, block, table);
    assert_eq!(answer, Some((Status::OK, table)));
    lab.pass(Duration::from_secs(1));
    let mut expected = before.clone();
    expected[usize::from(physical.value())] = Some(turned);
    assert_eq!(ways(), expected);
    all_reach_all(&lab, &[A, B, C]);
    // A way that ends nowhere is the cluster's own loss.
    table[usize::from(c.value())] = 0xff;
    ask(&lab, A, leaf(), Method::SET, block, table).expect("answers");
    lab.pass(Duration::from_secs(2));
    assert_eq!(way(&lab, A, c).map(|it| it.end), Err(NoRoute::Dropped));
    let reaches = way(&lab, C, view(&lab, A).lid).map(|it| it.end);
    assert_eq!(reaches, Ok(End::Here(VfId(A as u16))));
    // The provider's ways are back when the mode ends.
    lab.pass(Duration::from_secs(65));
    assert_eq!(ways(), before);
    all_reach_all(&lab, &[A, B, C]);
}

#[test]
fn partitions_are_of_the_share() {
    let mut model = cloud();
    let share = [0x8101, 0x8102].map(PKey::new);
    model.clusters[0].full_mode.pkeys = share.to_vec();
    for vf in model.hypervisors.iter_mut().flat_map(|it| &mut it.vfs) {
        if vf.cluster.is_some_and(|(of, _)| of == 0) {
            vf.pkeys.extend(share);
        }
    }
    let lab = Lab::new(&model);
    assert_eq!(
        view(&lab, A).pkeys[..3],
        [0xffff, 0, 0].map(PKey::new),
        "not seen"
    );
    Tenant::start(&lab, A);
    let set = |route: &[u8], keys: [u16; 3]| {
        let mut data = [0; DATA];
        for (at, key) in keys.iter().enumerate() {
            data[2 * at..][..2].copy_from_slice(&key.to_be_bytes());
        }
        let table = (AttributeId::P_KEY_TABLE, 0);
        let (status, _) = ask(&lab, A, directed(route), Method::SET, table, data).expect("answers");
        status
    };
    // A itself, and B at port 3 of the vSwitch.
    let (a, b) = (&[][..], &[1, 3][..]);
    assert_eq!(set(a, [0xffff, 0x8005, 0]), Status::OK);
    assert_eq!(set(b, [0xffff, 0, 0x0005]), Status::OK);
    assert_eq!(view(&lab, A).pkeys[..3], [0xffff, 0x8101, 0].map(PKey::new));
    assert_eq!(view(&lab, B).pkeys[..3], [0xffff, 0, 0x0101].map(PKey::new));
    let function = lab.vswitch.function(VfId(B as u16)).expect("is there");
    assert_eq!(
        [0, 1, 2].map(|at| function.pkey(at).value()),
        [0xffff, 0, 0x0005]
    );
    assert_eq!(view(&lab, B).shown(PKey::new(0x8101)), PKey::new(0x8005));
    // Of three partitions one is too many, until another is gone.
    assert_eq!(set(a, [0xffff, 0x8005, 0x8006]), Status::OK);
    let refused = |lab: &Lab| {
        let counts = lab.vswitch.filter_report(VfId(A as u16)).refused;
        let mut of_partitions = counts
            .iter()
            .filter(|(reason, _)| *reason == Reason::Partition);
        of_partitions.next().map(|&(_, count)| count)
    };
    assert_eq!(refused(&lab), None);
    assert_eq!(set(a, [0xffff, 0x8007, 0x8006]), Status::INVALID_FIELD);
    assert_eq!(refused(&lab), Some(1));
    assert_eq!(set(b, [0xffff, 0, 0]), Status::OK);
    assert_eq!(set(a, [0xffff, 0, 0x8006]), Status::OK);
    assert_eq!(set(a, [0xffff, 0x8007, 0x8006]), Status::OK);
    assert_eq!(
        view(&lab, A).pkeys[..3],
        [0xffff, 0x8101, 0x8102].map(PKey::new)
    );
}

#[test]
fn groups_reach_the_vms_of_the_managers_trees() {
    let lab = Lab::new(&cloud());
    Tenant::start(&lab, A);
    let mlid = Lid::new(0xc003);
    let reached = |from: usize| {
        let mut subnet = lab.vswitch.for_engine(Waker::noop().clone());
        let pkey = view(&lab, from).pkeys[0];
        let routes = subnet.resolve_multicast(VfId(from as u16), mlid, Sl::default(), pkey);
        let mut ends: Vec<_> = routes.iter().map(|route| route.end).collect();
        ends.sort_by_key(|end| match end {
            End::Here(vf) => vf.0,
            _ => u16::MAX,
        });
        ends
    };
    assert_eq!(reached(A), []);
    // From A's vSwitch to B, and over the first spine to C.
    let tree: [(&[u8], u16); 5] = [
        (&[1], 1 << 1 | 1 << 2 | 1 << 3),
        (&[1, 1], 1 << 1 | 1 << 2),
        (&[1, 1, 2], 1 << 1 | 1 << 2),
        (&[1, 1, 2, 2], 0xffff),
        (&[1, 1, 2, 2, 1], 0xffff),
    ];
    for (route, ports) in tree {
        let mut data = [0; DATA];
        data[6..8].copy_from_slice(&ports.to_be_bytes());
        let block = (AttributeId::MULTICAST_FORWARDING, 0);
        let answer = ask(&lab, A, directed(route), Method::SET, block, data);
        assert!(
            answer.is_some_and(|(status, _)| status.is_ok()),
            "{route:?} {answer:?}"
        );
    }
    let here = |vf: usize| End::Here(VfId(vf as u16));
    assert_eq!(reached(A), [here(B), here(C)]);
    assert_eq!(reached(C), [here(A), here(B)]);
}

#[test]
fn managers_of_a_cluster_find_each_other() {
    let lab = Lab::new(&cloud());
    let mut first = Tenant::start(&lab, A);
    let mut second = Tenant::start(&lab, C);
    for _ in 0..20 {
        run(&lab, &mut [&mut first, &mut second]);
        lab.pass(Duration::from_secs(1));
    }
    let states = [&first, &second].map(|tenant| tenant.manager.sm_info().state);
    assert!(
        states.contains(&SmState::Master) && states.contains(&SmState::Standby),
        "{states:?}"
    );
    all_reach_all(&lab, &[A, B, C]);
}

/// A manager that has its switch repeat a trap every 4 us, and changes its tables all the time.
#[test]
fn a_cluster_makes_no_more_work_than_it_may() {
    let lab = Lab::new(&cloud());
    Tenant::start(&lab, A);
    let leaf = || directed(&[1, 1]);
    let (_, data) = ask(
        &lab,
        A,
        leaf(),
        Method::GET,
        (AttributeId::PORT_INFO, 0),
        [0; DATA],
    )
    .expect("answers");
    let mut info = PortInfo::parse(&data).expect("is right");
    info.subnet_timeout = 0;
    let mut data = [0; DATA];
    info.emit(&mut data);
    ask(
        &lab,
        A,
        leaf(),
        Method::SET,
        (AttributeId::PORT_INFO, 0),
        data,
    )
    .expect("answers");
    let changed = lab
        .vswitch
        .change_link(&lab.plan, ("s2", 1), LinkAction::Down);
    changed.expect("is there");
    lab.pass(Duration::from_millis(20));
    while lab.vswitch.poll_guest().is_some() {}
    let before = lab.vswitch.now();
    let (mut turns, mut traps) = (0, 0);
    while lab.vswitch.now() < before + Duration::from_secs(1) {
        let due = lab.vswitch.deadline().expect("a trap");
        lab.clock.turn_to(due.as_nanos() as u64);
        lab.vswitch.poll();
        turns += 1;
        traps += lab.received(VfId(A as u16)).len();
    }
    assert!((100..400).contains(&turns), "{turns} turns");
    assert!((100..800).contains(&traps), "{traps} traps");
    // Two thousand changes in no time.
    let generation = || lab.vswitch.generation().load(Ordering::Relaxed);
    let before = generation();
    for number in 0..2000_u32 {
        let table = [number as u8; DATA];
        let block = (AttributeId::LINEAR_FORWARDING, 3);
        ask(&lab, A, leaf(), Method::SET, block, table).expect("answers");
    }
    assert!(generation() - before < 500, "{}", generation() - before);
}

/// All of the subnet that is not the cluster's to change, and how others see their ports.
#[derive(Debug, PartialEq)]
struct Outside {
    ports: Vec<(PortRef, PortInfo, Vec<PKey>, Vec<Guid>)>,
    ways: Vec<(NodeId, Lid, Option<u8>)>,
    views: Vec<PortView>,
}

fn outside(lab: &Lab) -> Outside {
    let own = [A, B, C].map(|vf| lab.vswitch.physical_lid(VfId(vf as u16)));
    lab.vswitch.inspect(|fabric| {
        let places =
            { fabric.nodes() }.flat_map(|node| (0..=8).map(move |port| PortRef { node, port }));
        let ports = places.filter_map(|at| {
            let (pkeys, guids) = (fabric.pkeys(at)?.to_vec(), fabric.guids(at)?.to_vec());
            Some((at, fabric.port_info(at)?, pkeys, guids))
        });
        let lids = (1..64).map(Lid::new).filter(|lid| !own.contains(lid));
        let ways = { fabric.nodes() }.flat_map(|node| lids.clone().map(move |lid| (node, lid)));
        Outside {
            ports: ports.collect(),
            ways: ways
                .map(|(node, lid)| (node, lid, fabric.forwarding(node, lid)))
                .collect(),
            views: [OTHER, STRANGER, OTHER2].map(|vf| view(lab, vf)).to_vec(),
        }
    })
}

/// Packets for others than the cluster's VMs since the last time.
fn for_others(lab: &Lab) -> Vec<MadPacket> {
    let all = std::iter::from_fn(|| lab.vswitch.poll_guest());
    let of_others = |output| match output {
        ForGuest::Packet(to, packet) => {
            (![A, B, C].contains(&usize::from(to.0))).then_some(*packet)
        }
        ForGuest::Port(..) => None,
    };
    all.filter_map(of_others).collect()
}

/// Every attribute with every method, by every way, from each VM, with contents of all kinds.
#[test]
fn nothing_that_a_cluster_sends_changes_anything_else() {
    let lab = Lab::new(&cloud());
    let mut tenant = Tenant::start(&lab, A);
    tenant.pass(&lab, Duration::from_secs(2));
    let before = outside(&lab);
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x14);
        (seed >> 33) as u32
    };
    let [a, b, c] = [A, B, C].map(|vf| view(&lab, vf).lid);
    let others = [OTHER, STRANGER].map(|vf| lab.vswitch.physical_lid(VfId(vf as u16)));
    let manager = lab.vswitch.manager_ports()[0];
    lab.vswitch.set_tap(Some(Tap::Ports([manager].into())));
    lab.outputs();
    let mut subnet = lab.vswitch.for_engine(Waker::noop().clone());
    let methods = [
        0x01, 0x02, 0x03, 0x05, 0x06, 0x07, 0x12, 0x14, 0x15, 0x81, 0x86, 0x92,
    ];
    let attributes = (0x01..0x40).chain([0xff02, 0xff12, 0xff17, 0xff90]);
    for (attribute, method) in attributes.flat_map(|it| methods.map(|method| (it, method))) {
        for (from, lid) in [(A, a), (B, b), (C, c)] {
            let route: &[u8] = [&[][..], &[1], &[1, 1], &[1, 3]][random() as usize % 4];
            let mut data = [0; DATA];
            for byte in &mut data {
                *byte = [0, 1, 0xff, random() as u8][random() as usize % 4];
            }
            let request = Request {
                destination: directed(route),
                method: Method(method),
                attribute: AttributeId(attribute),
                modifier: [0, 1, 2, random()][random() as usize % 4],
                transaction: 7,
                m_key: 0,
                data,
            };
            let smp = MadPacket::smp(lid, request.dlid(), request.to_bytes());
            let mut mad = request.to_bytes();
            mad[1] = [0x03, 0x04, 0x06, 0x07, 0x09, 0x0a, 0x21, 0x32][random() as usize % 8];
            let to = [
                others[0],
                others[1],
                Lid::new(1),
                a,
                c,
                Lid::new(0xc000),
                Lid::PERMISSIVE,
            ];
            let to = to[random() as usize % to.len()];
            let gmp = MadPacket::gmp(lid, to, Sl::default(), PKey::DEFAULT_FULL, mad);
            for packet in [smp, gmp] {
                subnet.send_mad(VfId(from as u16), packet);
                lab.vswitch.poll();
            }
        }
        assert_eq!(for_others(&lab), [], "{attribute:#x} {method:#x}");
    }
    lab.pass(Duration::from_secs(1));
    let tapped = lab.outputs();
    let own = [A, B, C].map(|vf| lab.vswitch.physical_lid(VfId(vf as u16)));
    for output in tapped {
        if let Output::Tapped { packet, .. } = output {
            assert!(!own.contains(&packet.slid), "{packet:?}");
        }
    }
    let passed = [A, B, C].map(|vf| lab.vswitch.filter_report(VfId(vf as u16)).passed);
    assert!(passed.iter().all(|passed| *passed > 500), "{passed:?}");
    let after = outside(&lab);
    assert!(after == before, "the subnet is another one");
    all_reach_all(&lab, &[OTHER, OTHER2]);
}

#[test]
fn sweeps_that_change_nothing_leave_paths_alone() {
    let lab = Lab::new(&cloud());
    let mut tenant = Tenant::start(&lab, A);
    // By then settings and tables are in force.
    tenant.pass(&lab, Duration::from_secs(2));
    let generation = || lab.vswitch.generation().load(Ordering::Relaxed);
    let (before, sweeps) = (generation(), tenant.manager.report().sweeps);
    tenant.manager.request_sweep();
    tenant.run(&lab);
    assert_eq!(tenant.manager.report().sweeps, sweeps + 1);
    assert_eq!(generation(), before);
}
