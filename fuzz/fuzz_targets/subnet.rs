//! Management packets of a hostile guest on a managed subnet: to agents, to the subnet manager and
//! to subnet administration.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use fabric::{Fabric, Owner, PortRef, SmpAccess, Station};
use libfuzzer_sys::fuzz_target;
use subnet_manager::{Config, MinHop, SubnetManager};
use topologies::Hypervisors;
use wire::attribute::PortInfo;
use wire::mad::SIZE;
use wire::{Lid, MadPacket, PKey, QKey, Qpn, Sl};

/// A datagram: a header that is mostly right, and any content.
#[derive(Debug, Arbitrary)]
struct Datagram {
    class: Class,
    method: u8,
    status: u16,
    hops: [u8; 2],
    attribute: u8,
    vendor: bool,
    modifier: u32,
    content: [u8; SIZE - 24],
}

#[derive(Debug, Arbitrary)]
enum Class {
    SubnetByLid,
    SubnetDirected,
    Administration,
    Performance,
    Device,
    Other(u8, u8, u8),
}

impl Datagram {
    fn bytes(&self) -> [u8; SIZE] {
        let [base, class, version] = match self.class {
            Class::SubnetByLid => [1, 0x01, 1],
            Class::SubnetDirected => [1, 0x81, 1],
            Class::Administration => [1, 0x03, 2],
            Class::Performance => [1, 0x04, 1],
            Class::Device => [1, 0x0a, 1],
            Class::Other(base, class, version) => [base, class, version],
        };
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&[base, class, version, self.method]);
        bytes[4..6].copy_from_slice(&self.status.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.hops);
        bytes[16] = if self.vendor { 0xff } else { 0 };
        bytes[17] = self.attribute;
        bytes[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        bytes[24..].copy_from_slice(&self.content);
        bytes
    }
}

#[derive(Debug, Arbitrary)]
enum Op {
    Send {
        dlid: u16,
        sl: u8,
        pkey: u16,
        qps: [u8; 2],
        qkey: Option<u32>,
        datagram: Box<Datagram>,
    },
    Ask(Box<Datagram>),
    Time(u16),
}

/// Returns the settings of the ports of other nodes than the guest's. Violations are counted everywhere.
fn settings(fabric: &Fabric, guest: PortRef) -> Vec<(Option<PortInfo>, Vec<PKey>)> {
    let others = fabric.nodes().filter(|&node| node != guest.node);
    others
        .flat_map(|node| (0..4).map(move |port| PortRef { node, port }))
        .map(|port| {
            let info = fabric.port_info(port).map(|info| PortInfo {
                m_key_violations: 0,
                p_key_violations: 0,
                q_key_violations: 0,
                ..info
            });
            let keys = fabric.pkeys(port).map(<[_]>::to_vec);
            (info, keys.unwrap_or_default())
        })
        .collect()
}

fuzz_target!(|ops: Vec<Op>| {
    let layout = Hypervisors::new(1, 2).expect("is possible");
    let mut fabric = Fabric::new(layout.topology()).expect("is right");
    let port = fabric
        .port_by_guid(layout.manager_guid())
        .expect("is there");
    let guest = fabric.port_by_guid(layout.vf_guid(0, 0)).expect("is there");
    let mut station = Station::of_manager(&mut fabric, port);
    fabric.set_owner(guest, Owner::Consumer, SmpAccess::OwnPort);
    let config = Config {
        sweep_interval: Duration::ZERO,
        ..Config::default()
    };
    let mut manager = SubnetManager::new(config, Box::new(MinHop)).expect("is right");
    let mut now = Duration::ZERO;
    manager.poll(now, &mut station.at(&mut fabric));
    assert!(manager.is_up());
    let before = settings(&fabric, guest);
    for op in ops.iter().take(64) {
        match op {
            Op::Send {
                dlid,
                sl,
                pkey,
                qps,
                qkey,
                datagram,
            } => {
                let packet = MadPacket {
                    slid: Lid::NONE,
                    dlid: Lid::new(*dlid),
                    sl: Sl::new(*sl),
                    pkey: PKey::new(*pkey),
                    src_qp: Qpn::new(u32::from(qps[0] % 4)),
                    dst_qp: Qpn::new(u32::from(qps[1] % 4)),
                    qkey: qkey.map_or(QKey::QP1, QKey::new),
                    grh: None,
                    mad: datagram.bytes(),
                };
                fabric.inject(guest, packet);
            }
            Op::Ask(datagram) => {
                fabric.local_mad(guest, &datagram.bytes());
            }
            Op::Time(ms) => now += Duration::from_millis(u64::from(*ms)),
        }
        fabric.advance(now);
        manager.poll(now, &mut station.at(&mut fabric));
        station.others.clear();
    }
    assert_eq!(settings(&fabric, guest), before);
});
