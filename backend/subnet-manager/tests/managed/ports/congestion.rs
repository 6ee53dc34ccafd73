//! Congestion control, by datagrams to the agents of switches and adapters.

use std::time::Duration;

use ibvswitch_subnet_manager::{Config, CongestionControl, Transport};
use wire::mad::{Mad, Method, SIZE, Status};
use wire::{Lid, MadPacket, PKey, Sl};

use crate::harness::Managed;

const KEY: u64 = 0x1234;
const KEY_INFO: u16 = 0x12;
const SWITCH: u16 = 0x14;
const ADAPTER: u16 = 0x16;
const TABLE: u16 = 0x17;

fn control() -> CongestionControl {
    let mut control = CongestionControl::default();
    let table: Vec<String> = (0..100).map(|at| format!("2:{at}")).collect();
    for (key, value) in [
        ("cc_key", "0x1234"),
        ("cc_max_outstanding_mads", "2"),
        ("cc_sw_cong_setting_control_map", "0x1f"),
        ("cc_sw_cong_setting_threshold", "0x0f"),
        ("cc_sw_cong_setting_marking_rate", "3"),
        ("cc_ca_cong_setting_control_map", "0xffff"),
        ("cc_ca_cong_setting_ccti_timer", "7 1000"),
        ("cc_cct", &table.join(",")),
    ] {
        assert_eq!(control.set(key, value), Ok(true), "{key}");
    }
    control
}

fn config() -> Config {
    Config {
        sweep_interval: Duration::ZERO,
        congestion: Some(control()),
        ..Config::default()
    }
}

/// The attribute that the agent at a LID has, for one who has the key.
fn ask(managed: &mut Managed, lid: Lid, attribute: u16, block: u32) -> (Status, [u8; SIZE]) {
    let mut mad = [0; SIZE];
    mad[..4].copy_from_slice(&[1, 0x21, 2, Method::GET.0]);
    mad[8..16].copy_from_slice(&u64::MAX.to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&block.to_be_bytes());
    mad[24..32].copy_from_slice(&KEY.to_be_bytes());
    let link = &mut managed.link;
    link.send(MadPacket::gmp(
        Lid::default(),
        lid,
        Sl::default(),
        PKey::DEFAULT_FULL,
        mad,
    ));
    let answer = link.receive().expect("an answer");
    let header = Mad::new_checked(&answer.mad[..]).unwrap();
    (header.status(), answer.mad)
}

/// The settings that were sent since the last call: LID and attribute.
fn sent(managed: &mut Managed) -> Vec<(Lid, u16)> {
    let log = managed.link.log.replace(Vec::new());
    let packets = log.unwrap_or_default().into_iter();
    let packets = packets.filter(|packet| packet.mad[1] == 0x21);
    packets
        .map(|packet| (packet.dlid, packet.header().attribute().0))
        .collect()
}

#[test]
fn switches_and_adapters_get_their_settings() {
    let (mut managed, layout) = Managed::hypervisors(2, 2, config());
    managed.link.log = Some(Vec::new());
    managed.settle();
    managed.run();
    assert_eq!(managed.manager.report().errors, [""; 0]);
    let lid = |managed: &Managed, guid| {
        let port = managed.link.fabric.port_by_guid(guid).unwrap();
        managed.link.fabric.port_info(port).unwrap().lid
    };
    let adapter = lid(&managed, layout.vf_guid(0, 1));
    let packets = sent(&mut managed);
    let own = packets.iter().filter(|(lid, _)| *lid == adapter);
    let own: Vec<u16> = own.map(|&(_, attribute)| attribute).collect();
    assert_eq!(own, [KEY_INFO, ADAPTER, TABLE, TABLE]);
    let switch = packets.iter().find(|&&(_, attribute)| attribute == SWITCH);
    let (switch, _) = *switch.expect("a switch");

    let (status, answer) = ask(&mut managed, switch, SWITCH, 0);
    assert_eq!((status, answer[64 + 68] >> 4), (Status::OK, 15));
    assert_eq!(answer[64 + 74..64 + 76], [0, 3]);
    let (_, answer) = ask(&mut managed, adapter, ADAPTER, 0);
    assert_eq!(answer[64 + 4 + 7 * 8..][..2], 1000_u16.to_be_bytes());
    let (_, answer) = ask(&mut managed, adapter, TABLE, 1);
    assert_eq!(answer[64..66], 99_u16.to_be_bytes());
    assert_eq!(
        answer[68 + 2 * (99 - 64)..][..2],
        (2 << 14 | 99_u16).to_be_bytes()
    );

    // Nothing is sent before the next sweep, which gives all of it again.
    sent(&mut managed);
    managed.run();
    assert!(sent(&mut managed).is_empty());
    managed.manager.request_sweep();
    managed.settle();
    managed.run();
    assert_eq!(sent(&mut managed).len(), packets.len());
}

#[test]
fn a_node_with_another_key_is_named() {
    let (mut managed, layout) = Managed::hypervisors(2, 1, config());
    managed.settle();
    managed.run();
    let port = layout.vf_guid(1, 0);
    let config = Config {
        congestion: Some(CongestionControl {
            key: KEY + 1,
            ..control()
        }),
        ..config()
    };
    let mut managed = managed.routed_by(Box::new(ibvswitch_subnet_manager::MinHop), config);
    managed.settle();
    managed.run();
    let errors = &managed.manager.report().errors;
    let named = errors
        .iter()
        .find(|error| error.contains(&port.to_string()));
    assert!(
        named.is_some_and(|error| error.contains("cc_key")),
        "{errors:?}"
    );
}
