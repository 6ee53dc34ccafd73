//! Entries of guests at the subnet administration: their limits, and their removal when guests go.

use crate::administration::{GET, SET, Vm, group, subscribe};
use crate::daemon::{Daemon, Peer};
use crate::programs::Opensm;
use testing::Configuration;

const OK: [u8; 2] = [0, 0];
const NO_RESOURCES: [u8; 2] = [1, 0];
const NO_RECORDS: [u8; 2] = [3, 0];
const SERVICE: u16 = 0x31;
/// The request gives ServiceKey.
const WITH_KEY: u64 = 1 << 5;
const INFORM_INFO_RECORD: u16 = 0xf3;

const GREEDY: [&str; 4] = ["vm1", "vm2", "vm3", "vm4"];

/// Five VMs, two of them on a second hypervisor.
fn configuration() -> Configuration {
    Configuration::new()
        .hypervisor("hv1", ["vm1", "vm2", "vm3"])
        .hypervisor("hv2", ["vm4", "vm5"])
}

fn gid(vm: usize, number: u16) -> [u8; 16] {
    let mut gid = group::gid(0);
    gid[12] = vm as u8;
    gid[14..].copy_from_slice(&number.to_be_bytes());
    gid
}

/// Joins groups that nobody is in until that is refused; how many.
fn take_all(vm: &mut Vm, index: usize) -> u16 {
    let mut taken = 0;
    loop {
        match group::try_join(vm, gid(index, taken)) {
            OK => taken += 1,
            status => {
                assert_eq!(status, NO_RESOURCES);
                return taken;
            }
        }
    }
}

/// Four take all that they can; then they go in different ways.
fn greedy(daemon: &Daemon) {
    let mut modest = Vm::open(daemon, "vm5");
    let mut greedy = GREEDY.map(|name| Vm::open(daemon, name));
    let mut taken = Vec::new();
    for (index, vm) in greedy.iter_mut().enumerate() {
        taken.push(take_all(vm, index));
    }
    assert!(taken.iter().all(|&taken| taken >= 32), "{taken:?}");
    group::join(&mut modest, group::gid(0));
    // Whose groups they were learns of none of it.
    let [one, two, mut three, four] = greedy;
    drop(one);
    two.peer.device.reset().expect("is reset");
    let client = four.peer.device.client();
    client
        .stream()
        .shutdown(std::net::Shutdown::Both)
        .expect("is cut");
    drop(client);
    for (index, &taken) in taken.iter().enumerate() {
        let last = gid(index, taken - 1);
        match index {
            2 => assert_eq!(group::status(&mut modest, last), OK, "it is still there"),
            _ => while group::status(&mut modest, last) != NO_RECORDS {},
        }
    }
    drop(two);
    drop(four);
    let mut again = Vm::open(daemon, "vm1");
    assert!(take_all(&mut again, 0) >= taken[0], "all is free again");
    group::leave(&mut three, gid(2, 0));
}

#[test]
fn groups_end_with_their_members_and_the_greedy_leave_some() {
    greedy(&Daemon::configured(configuration()));
}

#[test]
fn groups_end_with_their_members_at_a_shared_port() {
    greedy(&Daemon::configured(
        configuration().set("fabric.model", "shared-port"),
    ));
}

/// There it gives its LID back as well.
#[test]
fn groups_end_with_their_members_where_lids_are_dynamic() {
    let daemon = Daemon::configured(configuration().set("fabric.model", "vswitch-dynamic"));
    let mut stays = Vm::open(&daemon, "vm5");
    let mut goes = Vm::open(&daemon, "vm1");
    group::join(&mut goes, gid(0, 0));
    drop(goes);
    while group::status(&mut stays, gid(0, 0)) != NO_RECORDS {}
}

#[test]
fn groups_end_with_their_members_with_opensm() {
    let daemon = Daemon::configured(configuration().set("sm.manager", "external"));
    let opensm = Opensm::start(&daemon, None, &[]);
    opensm.subnet_up();
    greedy(&daemon);
}

#[test]
fn services_and_subscriptions_end_with_their_guest() {
    let daemon = Daemon::configured(configuration());
    let mut stays = Vm::open(&daemon, "vm5");
    for reset in [true, false] {
        let mut goes = Vm::open(&daemon, "vm1");
        let mut record = [0; 176];
        record[7] = 7;
        record[8..24].copy_from_slice(&goes.gid());
        record[24..26].fill(0xff);
        record[28..32].fill(0xff);
        // A key that nobody else knows.
        record[32..48].fill(0x5a);
        let key = if reset { WITH_KEY } else { 0 };
        assert_eq!(goes.ask(SET, SERVICE, 0b111 | key, &record).0, OK);
        assert_eq!(subscribe(&mut goes, true), OK);
        assert_eq!(stays.ask(GET, SERVICE, 1, &record).0, OK);
        if reset {
            goes.peer.device.reset().expect("is reset");
        }
        drop(goes);
        while stays.ask(GET, SERVICE, 1, &record).0 != NO_RECORDS {}
        let mut new = Vm::open(&daemon, "vm1");
        assert_eq!(new.table(INFORM_INFO_RECORD, 64), [[0_u8; 0]; 0]);
        // Nothing of this was an answer to a question of its own.
        assert_eq!(group::status(&mut new, gid(0, 0)), NO_RECORDS);
    }
    drop(Peer::open(&daemon, "vm2"));
}
