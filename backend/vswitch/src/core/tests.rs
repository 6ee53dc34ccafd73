//! The steps of packets, without a thread, a lock or a waker.

use std::sync::Arc;
use std::time::Duration;

use hca::{Clock, VfId};
use wire::mad::{Class, Method, Status};
use wire::sa::{self, PathRecord, Record};
use wire::{Lid, MadPacket, PKey, Sl};

use super::guest::Step;
use super::output::ForGuest;
use super::subnets::{Mail, Managers};
use super::*;
use crate::filter::{Finding, Reason};
use crate::model::{Vf, View};

const MANAGER: Lid = Lid::new(9);

#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> u64 {
        0
    }
}

/// Two VMs of a cluster, with the LIDs 2 and 3.
fn clustered() -> (Core, Managers) {
    let mut model = Model::new(&["sw1"]);
    model.add_cluster("c", MANAGER, View::OwnPort);
    let vfs = vec![Vf::new("a").in_cluster(0, 2), Vf::new("b").in_cluster(0, 3)];
    model.add_hypervisor("h1", 0, vfs);
    let plan = Plan::new(&model);
    let environment = Environment::new(Arc::new(Still));
    let (mut core, mut managers) = Core::new(&model, &plan, &environment).expect("is right");
    settle(&mut core, &mut managers, Duration::ZERO);
    settle(&mut core, &mut managers, Duration::from_secs(1));
    (core, managers)
}

/// Moves packets until the fabric rests.
fn settle(core: &mut Core, managers: &mut Managers, now: Duration) {
    core.now = now;
    loop {
        for (index, manager) in managers.iter_mut().enumerate() {
            let mut mail = Mail::default();
            std::mem::swap(&mut mail.received, &mut core.subnets[index].received);
            manager.as_mut().expect("is embedded").poll(now, &mut mail);
            for packet in mail.sent {
                core.fabric.inject(core.subnets[index].port, packet);
            }
        }
        if !core.turn(managers, now) && core.has_no_mail() {
            return;
        }
    }
}

/// Asks the subnet administration for the path from LID 2 to another one.
fn ask_for_path(core: &mut Core, to: Lid) -> Step {
    let record = PathRecord {
        slid: Lid::new(2),
        dlid: to,
        ..PathRecord::default()
    };
    let mask = PathRecord::SLID | PathRecord::DLID;
    let mad = sa::with_record(Method::GET, 7, mask, &record);
    let packet = MadPacket::gmp(Lid::new(2), MANAGER, Sl::default(), PKey::DEFAULT_FULL, mad);
    let port = core.layout.port(VfId(0)).expect("is there");
    core.outbound(VfId(0), port, packet)
}

#[test]
fn a_question_is_translated_out_and_its_answer_in() {
    let (mut core, mut managers) = clustered();
    assert!(core.physical_lid(VfId(0)).is_unicast());
    while core.outputs.poll_guest().is_some() {}
    assert!(ask_for_path(&mut core, Lid::new(3)).is_continue());
    settle(&mut core, &mut managers, Duration::from_secs(1));
    let packets: Vec<_> = std::iter::from_fn(|| core.outputs.poll_guest()).collect();
    let [ForGuest::Packet(VfId(0), answer)] = &packets[..] else {
        panic!("{packets:?}");
    };
    assert_eq!(answer.header().class(), Class::SUBN_ADM);
    assert_eq!(answer.header().status(), Status::OK);
    let record = PathRecord::read(&answer.mad[sa::DATA]).expect("is one");
    assert_eq!((record.slid, record.dlid), (Lid::new(2), Lid::new(3)));
}

#[test]
fn a_packet_to_an_unknown_lid_is_refused_and_accounted() {
    let (mut core, _) = clustered();
    core.outputs.take_findings();
    let mad = sa::with_record(Method::GET, 7, 0, &PathRecord::default());
    let to = Lid::new(77);
    let packet = MadPacket::gmp(Lid::new(2), to, Sl::default(), PKey::DEFAULT_FULL, mad);
    let port = core.layout.port(VfId(0)).expect("is there");
    assert!(core.outbound(VfId(0), port, packet).is_break());
    let findings = core.outputs.take_findings();
    let [(VfId(0), Finding::Refused(refusal))] = &findings[..] else {
        panic!("{findings:?}");
    };
    assert_eq!(refusal.reason, Reason::Cluster);
}
