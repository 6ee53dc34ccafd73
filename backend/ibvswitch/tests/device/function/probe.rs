//! Opening and closing the device, and what its port says of itself.

use crate::daemon::{Daemon, Peer};
use test_driver::{Device, Opcode, Options, ProtectionDomain, Status, initialization, request};
use testing::wait_until;

#[test]
fn the_port_is_active_and_distinct() {
    let daemon = Daemon::start("trap");
    let (a, b) = crate::daemon::peers(&daemon);
    for peer in [&a, &b] {
        let port = peer.port;
        assert_eq!((port.state, port.physical_state), (4, 5));
        assert!((1..0xc000).contains(&port.lid), "{port:?}");
        assert_ne!(port.sm_lid, 0);
        assert_ne!(port.port_guid, 0);
        assert_ne!(port.node_guid, 0);
        let gid = peer.device.gid(0).unwrap();
        assert_eq!(gid[..8], [0xfe, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gid[8..], port.port_guid.to_be_bytes());
        assert_eq!(peer.device.pkey(0).unwrap() & 0x7fff, 0x7fff);
        assert_eq!(peer.device.pkey(127).unwrap(), 0);
        assert!(!peer.device.node_description().unwrap().is_empty());
    }
    assert_ne!(a.port.lid, b.port.lid);
    assert_ne!(a.port.port_guid, b.port.port_guid);
}

/// The guest's name for its node lasts as long as the guest; the next guest finds the name of before.
#[test]
fn a_node_loses_its_guests_name_with_the_guest() {
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    let before = device.node_description().unwrap();
    for name in ["guest", "guest HCA-1"] {
        device.set_node_description(name).unwrap();
        assert_eq!(device.node_description().unwrap(), name);
    }
    device.reset().unwrap();
    let again = device.reopen(Options::default()).unwrap();
    assert_eq!(again.node_description().unwrap(), before);
    again.set_node_description("guest").unwrap();
    // Both have the connection.
    drop((device, again));
    let device = daemon.open("vm1");
    assert_eq!(device.node_description().unwrap(), before);
}

#[test]
fn the_port_registers_tell_width_speed_and_mtu() {
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    // PTYS, asked for InfiniBand: 4 lanes, EDR, as configured by default.
    let ptys = device.register(0x5004, 64).unwrap();
    assert_eq!(ptys[0x28..0x2c], [0, 4, 0, 32]);
    let pmtu = device.register(0x5003, 16).unwrap();
    assert_eq!(u16::from_be_bytes([pmtu[4], pmtu[5]]), 4096);
    assert_eq!(u16::from_be_bytes([pmtu[12], pmtu[13]]), 4096);
    let pvlc = device.register(0x500f, 16).unwrap();
    assert_ne!(pvlc[7] & 0xf, 0);
}

#[test]
fn the_subnet_management_agent_answers() {
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    let port = device.wait_active().unwrap();
    // SubnGet(NodeInfo), by LID: base version, class, class version, method;
    // attribute at 16, data at 64.
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 0x01, 1, 0x01]);
    mad[16..18].copy_from_slice(&[0x00, 0x11]);
    let answer = device.mad_ifc(&mad).unwrap();
    assert_eq!(answer[..4], [1, 0x01, 1, 0x81]);
    assert_eq!(answer[4..6], [0, 0], "status");
    let info = &answer[64..];
    assert_eq!(
        (info[2], info[3]),
        (1, 1),
        "a channel adapter with one port"
    );
    assert_eq!(info[12..20], port.node_guid.to_be_bytes());
    assert_eq!(info[20..28], port.port_guid.to_be_bytes());
    // PortInfo of port 1: LID at 16, state in the low half of byte 32.
    mad[16..18].copy_from_slice(&[0x00, 0x15]);
    mad[20..24].copy_from_slice(&[0, 0, 0, 1]);
    let answer = device.mad_ifc(&mad).unwrap();
    let info = &answer[64..];
    assert_eq!(info[16..18], port.lid.to_be_bytes());
    assert_eq!(info[18..20], port.sm_lid.to_be_bytes());
    assert_eq!(info[32] & 0xf, 4);
}

/// The answer of the device's own port to a datagram of Mellanox' class 0x0a.
fn ask_device(device: &Device, method: u8, attribute: u8) -> [u8; 256] {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 0x0a, 1, method]);
    mad[17] = attribute;
    let answer = device.mad_ifc(&mad).unwrap();
    assert_eq!(answer[..4], [1, 0x0a, 1, 0x81]);
    answer
}

#[test]
fn datagrams_tell_of_the_device_what_commands_tell() {
    const GENERAL_INFO: u8 = 0x17;
    const CONFIG_SPACE: u8 = 0x50;
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    let answer = ask_device(&device, 1, GENERAL_INFO);
    assert_eq!(answer[4..6], [0, 0], "status");
    let info = &answer[32..];
    let word = |at: usize| u32::from_be_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let revision = device.read_dword(0).unwrap();
    let subminor = device.read_dword(4).unwrap() & 0xffff;
    let firmware = [revision & 0xffff, revision >> 16, subminor];
    assert_eq!([word(68), word(72), word(76)], firmware);
    assert_eq!(info[33..36], firmware.map(|part| part as u8));
    let query = request(Opcode::QueryAdapter, 0, 16);
    let adapter = device.command(&query, 0x110).unwrap();
    let psid = &adapter[0x100..0x110];
    assert_ne!(psid, [0; 16]);
    assert_eq!(&info[48..64], psid);
    for (method, attribute) in [(2, GENERAL_INFO), (1, CONFIG_SPACE), (2, CONFIG_SPACE)] {
        assert_eq!(ask_device(&device, method, attribute)[4..6], [0, 0x0c]);
    }
}

#[test]
fn a_device_is_torn_down_and_brought_up_again() {
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    for _ in 0..3 {
        drop(Peer::new(device.clone()));
        device.teardown().unwrap();
        device.initialize().unwrap();
    }
    let port = device.wait_active().unwrap();
    drop(device);
    let again = Peer::open(&daemon, "vm1");
    assert_eq!(again.port.port_guid, port.port_guid);
    assert_eq!(again.port.lid, port.lid);
}

#[test]
fn one_client_at_a_time_and_another_after_it() {
    let daemon = Daemon::start("trap");
    for _ in 0..20 {
        let device = daemon.open("vm1");
        ProtectionDomain::new(&device).unwrap();
    }
}

#[test]
fn commands_in_the_wrong_order_are_refused() {
    let daemon = Daemon::start("trap");
    let device = Device::attach(daemon.socket("vm1"), Options::default()).unwrap();
    for opcode in [
        Opcode::AllocPd,
        Opcode::CreateCq,
        Opcode::CreateQp,
        Opcode::CreateMkey,
        Opcode::MadIfc,
    ] {
        let refused = device.command(&request(opcode, 0, 0x110), 0x110);
        assert!(refused.unwrap_err().status().is_some(), "{opcode:?}");
    }
    device
        .command(&request(Opcode::EnableHca, 0, 16), 12)
        .unwrap();
    let refused = device.command(&request(Opcode::CreateCq, 0, 0x110), 16);
    assert!(refused.unwrap_err().status().is_some());
    // It is none the worse for it.
    device
        .command(&request(Opcode::DisableHca, 0, 16), 12)
        .unwrap();
    device.initialize().unwrap();
    Peer::new(device);
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    let status = |opcode| {
        let mut input = request(opcode, 0, 16);
        input[9..12].copy_from_slice(&[0x12, 0x34, 0x56]);
        device.command(&input, 272).unwrap_err().status().unwrap()
    };
    assert_eq!(status(Opcode::Other(0xfff)), Status::BadOp);
    for opcode in [
        Opcode::QueryQp,
        Opcode::DestroyQp,
        Opcode::QueryCq,
        Opcode::DestroyCq,
        Opcode::DestroyMkey,
        Opcode::DestroySrq,
        Opcode::DeallocPd,
        Opcode::DeallocUar,
        Opcode::DeallocXrcd,
    ] {
        let status = status(opcode);
        assert!(
            matches!(
                status,
                Status::BadResource | Status::BadParam | Status::BadIndex
            ),
            "{opcode:?}: {status:?}"
        );
    }
}

#[test]
fn the_health_counter_counts_and_the_timer_runs() {
    let daemon = Daemon::start("trap");
    let device = daemon.open("vm1");
    let timer = || device.timer().unwrap();
    let first = timer();
    while timer() == first {}
    assert!(timer() > first);
    let health = || device.read_dword(initialization::HEALTH_COUNTER).unwrap();
    let first = health();
    wait_until("the health counter", || health() != first);
}
