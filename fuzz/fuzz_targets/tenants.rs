//! Management packets of hostile VMs that manage their cluster, with VMs of another cluster and of none beside.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arbitrary::Arbitrary;
use fabric::PortRef;
use hca::{Clock, PortView, VfId};
use libfuzzer_sys::fuzz_target;
use vswitch::model::{MadRules, Model, Vf, View};
use vswitch::{Environment, ForGuest, Input, Plan, VSwitch};
use wire::attribute::{CapabilityMask, PortInfo};
use wire::mad::SIZE;
use wire::{Lid, MadPacket, PKey, QKey, Qpn, Sl};

/// VFs of the cluster that manages itself, and the others.
const TENANTS: [u16; 3] = [0, 1, 4];
const OTHERS: [u16; 3] = [2, 3, 5];

/// Bytes of a directed route's paths: 0, then ports of few links.
const ROUTE: usize = 6;

/// A datagram: a header that is mostly right, and any content.
#[derive(Debug, Arbitrary)]
struct Datagram {
    class: Class,
    method: Method,
    attribute: u8,
    modifier: u32,
    route: [u8; ROUTE],
    hops: u8,
    content: [u8; 64],
}

#[derive(Debug, Arbitrary)]
enum Class {
    SubnetByLid,
    SubnetDirected,
    Administration,
    Performance,
    Other(u8, u8),
}

#[derive(Debug, Arbitrary)]
enum Method {
    Get,
    Set,
    Trap,
    TrapRepress,
    Other(u8),
}

impl Datagram {
    fn bytes(&self) -> [u8; SIZE] {
        let [class, version] = match self.class {
            Class::SubnetByLid => [0x01, 1],
            Class::SubnetDirected => [0x81, 1],
            Class::Administration => [0x03, 2],
            Class::Performance => [0x04, 1],
            Class::Other(class, version) => [class, version],
        };
        let method = match self.method {
            Method::Get => 0x01,
            Method::Set => 0x02,
            Method::Trap => 0x05,
            Method::TrapRepress => 0x07,
            Method::Other(method) => method,
        };
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&[1, class, version, method]);
        bytes[15] = 1;
        bytes[17] = self.attribute;
        bytes[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        if let Class::SubnetDirected = self.class {
            bytes[7] = self.hops % (ROUTE as u8 + 1);
            bytes[32..36].fill(0xff);
            for (byte, port) in bytes[129..].iter_mut().zip(self.route) {
                *byte = port % 8;
            }
        }
        bytes[64..128].copy_from_slice(&self.content);
        bytes
    }
}

#[derive(Debug, Arbitrary)]
enum Op {
    Send {
        vf: u8,
        dlid: u16,
        sl: u8,
        qp0: bool,
        datagram: Box<Datagram>,
    },
    Ask(u8, Box<Datagram>),
    Announce(u8, bool),
    Presence(u8, bool),
    Time(u16),
}

#[derive(Debug, Default)]
struct ManualClock(AtomicU64);

impl Clock for ManualClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Two leaves and two spines, with VMs of all kinds at both leaves.
fn cloud() -> Model {
    let mut model = Model::new(&["l1", "l2", "s1", "s2"]);
    for (leaf, spine) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        model.add_cable(leaf, spine);
    }
    model.add_cluster("c", Lid::new(0xbfff), View::Full);
    model.add_cluster("d", Lid::new(0xbfff), View::Mirror);
    let vf = |name| {
        let vf = Vf::new(name);
        let mads = MadRules {
            rate: None,
            ..vf.mads.clone()
        };
        Vf { mads, ..vf }
    };
    let vm = |name, cluster, lid| vf(name).in_cluster(cluster, lid);
    model.add_hypervisor("h1", 0, vec![vm("a", 0, 1), vm("b", 0, 2), vm("e", 1, 1)]);
    model.add_hypervisor("h2", 1, vec![vf("s"), vm("c", 0, 3), vm("f", 1, 2)]);
    model
}

/// PortInfo and P_Keys of a port.
type PortSettings = (Option<PortInfo>, Vec<PKey>);

/// The subnet as its operator has it, and as others than the tenant see it. Violations are counted everywhere.
fn settings(vswitch: &VSwitch) -> (Vec<PortSettings>, Vec<PortView>) {
    let operators = vswitch.inspect(|fabric| {
        let ports = fabric
            .nodes()
            .flat_map(|node| (0..8).map(move |port| PortRef { node, port }));
        let of = |port| {
            let info = fabric.port_info(port).map(|info| PortInfo {
                m_key_violations: 0,
                p_key_violations: 0,
                q_key_violations: 0,
                capability_mask: CapabilityMask::default(),
                ..info
            });
            (info, fabric.pkeys(port).unwrap_or_default().to_vec())
        };
        ports.map(of).collect()
    });
    let others = OTHERS.map(|vf| vswitch.port_view(VfId(vf)));
    (operators, others.to_vec())
}

/// Takes what has come for guests: nothing may come for others than the tenant.
fn take(vswitch: &VSwitch) {
    while let Some(output) = vswitch.poll_guest() {
        if let ForGuest::Packet(vf, packet) = output {
            assert!(!OTHERS.contains(&vf.0), "{vf:?} gets {}", packet.header());
        }
    }
    while vswitch.poll_output().is_some() {}
}

fuzz_target!(|ops: Vec<Op>| {
    let clock = Arc::new(ManualClock::default());
    let model = cloud();
    let plan = Plan::new(&model);
    let environment = Environment::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let vswitch = VSwitch::new(&model, &plan, environment).expect("is right");
    let pass = |time: Duration| {
        clock.0.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        vswitch.poll();
    };
    for vf in TENANTS.into_iter().chain(OTHERS) {
        vswitch.handle(Input::Presence(VfId(vf), true));
    }
    for _ in 0..10 {
        pass(Duration::from_millis(100));
    }
    while vswitch.poll_guest().is_some() {}
    let before = settings(&vswitch);
    let tenant = |vf: &u8| VfId(TENANTS[usize::from(*vf) % TENANTS.len()]);
    for op in ops.iter().take(64) {
        match op {
            Op::Send {
                vf,
                dlid,
                sl,
                qp0,
                datagram,
            } => {
                let mad = datagram.bytes();
                let dlid = Lid::new(*dlid);
                let packet = if *qp0 {
                    MadPacket::smp(Lid::NONE, dlid, mad)
                } else {
                    MadPacket {
                        src_qp: Qpn::QP1,
                        qkey: QKey::QP1,
                        ..MadPacket::gmp(Lid::NONE, dlid, Sl::new(*sl), PKey::DEFAULT_FULL, mad)
                    }
                };
                vswitch.handle(Input::Packet(tenant(vf), Box::new(packet)));
            }
            Op::Ask(vf, datagram) => {
                if let Some(function) = vswitch.function(tenant(vf)) {
                    let _ = function.ask_own_port(&datagram.bytes());
                }
            }
            Op::Announce(vf, is) => {
                let none = CapabilityMask::default();
                let (set, clear) = if *is {
                    (CapabilityMask::IS_SM, none)
                } else {
                    (none, CapabilityMask::IS_SM)
                };
                if let Some(function) = vswitch.function(tenant(vf)) {
                    function.set_capabilities(set, clear);
                }
            }
            Op::Presence(vf, is) => vswitch.handle(Input::Presence(tenant(vf), *is)),
            Op::Time(ms) => pass(Duration::from_millis(u64::from(*ms))),
        }
        vswitch.poll();
        take(&vswitch);
    }
    for vf in TENANTS {
        vswitch.handle(Input::Presence(VfId(vf), true));
    }
    pass(Duration::from_secs(1));
    take(&vswitch);
    let after = settings(&vswitch);
    assert_eq!(after.1, before.1, "others see something else");
    assert_eq!(after.0, before.0, "the operator sees something else");
});
